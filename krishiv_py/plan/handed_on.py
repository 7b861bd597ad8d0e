"""The columns a stage adds to its results for the stage that follows: their event time, and what their order goes by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from krishiv_py.plan.schema import RESERVED

WINDOW_TIME: Final = "window_time"
_ORDER: Final = f"{RESERVED}order_"


def time_name(names: Iterable[str]) -> str:
    """Return what the event time of results is called next to columns of these `names`."""
    taken, name = {n.lower() for n in names}, WINDOW_TIME
    while name in taken:
        name += "_"
    return name


def order_name(number: int) -> str:
    """Return the column that results are ordered by in place `number`: end, start, then the keys (SEMANTICS §7.3)."""
    return f"{_ORDER}{number}"


def in_order_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return which of the columns called `names` say in which order results arrive."""
    return tuple(sorted((n for n in names if n.startswith(_ORDER)), key=lambda n: int(n.removeprefix(_ORDER))))


def without_order(rows: pa.Schema) -> pa.Schema:
    """Return the columns of `rows` that a step can name: not those that results are ordered by."""
    hidden = in_order_of(rows.names)
    return pa.schema([f for f in rows if f.name not in hidden], metadata=rows.metadata)
