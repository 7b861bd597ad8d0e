"""Determine where something failed, for people: the key and window of a row of an operator's tables."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.aggregates.base import shown_key
from krishiv_py.kernels.columns.assign import FixedAssigner
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.spec import OperatorSpec

WINDOW: Final = "w"
"""The column of window starts, in tables that have one."""
TIME: Final = "__t"
START: Final = "\x00start"
"""A key column of the library's own, the last: where a window that is known by its end begins."""
Bounds = tuple[Ints, Ints]
"""Starts and ends of windows, in µs."""


def key_names(spec: OperatorSpec) -> list[str]:
    """Return what key columns are called in an operator's tables."""
    return [f"k{i}" for i in range(len(spec.keys))]


def place_of(spec: OperatorSpec, table: pa.Table, row: int, bounds: tuple[int, int] | None = None) -> str:
    """``for key user='a' in the window 0 to 10``, as far as it is known: of a row, with the `bounds` of its window."""
    names = [n for n in key_names(spec) if n in table.column_names]
    known = len(names) == len(spec.keys)
    shown = [n for n, key in zip(names, spec.keys, strict=False) if key != START]
    key = shown_key(spec.keys[: len(shown)], [table[n][row].as_py() for n in shown]) if known else ""
    window_bounds = bounds or _window(spec, table, row)
    if window_bounds is not None and known and len(shown) < len(names):
        window_bounds = int(table[names[-1]][row].as_py()), window_bounds[1]
    return " ".join([*(["for", key] if key else []), *([] if window_bounds is None else [_shown_window(spec, *window_bounds)])])


def _window(spec: OperatorSpec, table: pa.Table, row: int) -> tuple[int, int] | None:
    """Return the window of a row, if the row is in one only."""
    grid = spec.operation.extent.grid
    if grid is None:
        return None
    if WINDOW in table.column_names:
        start = int(table[WINDOW][row].as_py())
    elif grid.tiles and TIME in table.column_names:
        start = int(FixedAssigner(grid).last_start(table[TIME].to_numpy()[row : row + 1])[0])
    else:
        return None
    return start, start + grid.size_us


def _shown_window(spec: OperatorSpec, start: int, end: int) -> str:
    if spec.operation.extent.numbered:
        return f"in rows {start} to {end}"
    bounds = unstamp(np.array([start, end], np.int64), spec.time_kind).to_pylist()
    return "in the window {} to {}".format(*(b.isoformat() if hasattr(b, "isoformat") else b for b in bounds))
