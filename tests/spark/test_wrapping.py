"""PySpark's warning about pandas 3 is heard once, when a session begins, and not for each function that it wraps."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import krishiv_py.spark
from krishiv_py.spark.setup.workers import mapped, with_state

TEXT = "PySpark does not yet fully support pandas >= 3.0.0. Some features may not work correctly."


def wrapped(*args: Any) -> str:
    """Warn as PySpark does with pandas 3, and of other things."""
    warnings.warn_explicit(TEXT, FutureWarning, "functions.py", 777, "pyspark.sql.pandas.functions")
    warnings.warn_explicit("something else", FutureWarning, "functions.py", 777, "pyspark.sql.pandas.functions")
    warnings.warn_explicit(TEXT, FutureWarning, "job.py", 1, "job")
    return "done"


def test_only_this_warning_of_these_calls_is_silent() -> None:
    frame: Any = SimpleNamespace(mapInArrow=wrapped, transformWithState=wrapped, groupBy=lambda name: frame)
    calls: list[Callable[[], Any]] = [lambda: mapped(frame, wrapped, ""), lambda: with_state(frame, None, "", "None")]
    for call in calls:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            assert call() == "done"
            warnings.warn_explicit(TEXT, FutureWarning, "functions.py", 777, "pyspark.sql.pandas.functions")
        said = [(str(one.message), one.filename) for one in heard]
        assert said == [("something else", "functions.py"), (TEXT, "job.py"), (TEXT, "functions.py")]


def test_functions_reach_spark_in_one_place() -> None:
    room = Path(krishiv_py.spark.__file__).parent
    calls = re.compile(r"\.(mapInArrow|transformWithState)\(")
    assert [p.name for p in room.rglob("*.py") if calls.search(p.read_text())] == ["workers.py"]
