"""Lengths of windows that are finer than the time column."""

from __future__ import annotations

from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError
from krishiv_py.plan.durations import show_us
from krishiv_py.plan.windows.base import WindowOperation

_MS: Final = 1_000
_NO_BOUND: Final = ("discard_age_us", "longest_us")
"""Of what no bound of a window is made."""


def finer_than_ms(window: WindowOperation) -> dict[str, int]:
    """Return the lengths of a window that are not whole milliseconds, by name, µs."""
    finer: dict[str, int] = {}
    for part in (window, window.extent.assigner):
        of_class: Any = type(part)
        fields = attrs.fields(of_class) if attrs.has(of_class) else ()
        for name in (f.name for f in fields if f.name.endswith("_us") and f.name not in _NO_BOUND):
            value = getattr(part, name)
            if isinstance(value, int) and value % _MS:
                finer[name.removesuffix("_us")] = value
    return finer


def check_ticks(finer: dict[str, int], times: pa.DataType, column: str) -> None:
    """Refuse lengths that are `finer` than a time column: bounds of results have its type.

    Raises
    ------
    PlanError
        For a ``bigint`` column, which has whole milliseconds.
    """
    if finer and pa.types.is_int64(times):
        raise PlanError(
            "windows are finer than the time column",
            got=", ".join(f"{name} {show_us(us)}" for name, us in finer.items()),
            then=f"{column!r} has whole milliseconds, so a bound of a result would be another one than that of its window",
            hint="use whole milliseconds, or a timestamp column",
        )
