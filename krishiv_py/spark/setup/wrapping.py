"""Functions of tasks given to Spark, without the warning about pandas that PySpark repeats for each of them.

PySpark warns that it does not fully support pandas 3 when a session begins, which is for the user to see, and again for each
function it wraps, though it passes Arrow to these and no pandas.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

from pyspark.sql import DataFrame

Clock: TypeAlias = Literal["None", "EventTime"]


def mapped(frame: DataFrame, function: Callable[..., Any], columns: Any) -> DataFrame:
    """Return ``frame.mapInArrow(function, columns)``."""
    with _quiet():
        return frame.mapInArrow(function, columns)


def with_state(frame: DataFrame, processor: Any, columns: Any, clock: Clock) -> DataFrame:
    """Return what a stateful processor makes of the rows of each bucket."""
    grouped = frame.groupBy("bucket")
    with _quiet():
        return grouped.transformWithState(processor, columns, "Append", clock)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning, r"pyspark\.sql\.")
        yield
