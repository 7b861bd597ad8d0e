"""Parts of dates and times, and arithmetic of days. All in UTC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.kernels.columns.expressions.functions import require
from krishiv_py.kernels.columns.expressions.values import INSTANT, LOCAL, Value, is_integer, is_moment, misfit

PARTS: Final[dict[str, Callable[[Any], Any]]] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "day": pc.day,
    "dayofyear": pc.day_of_year,
    "dayofweek": lambda x: pc.day_of_week(x, count_from_zero=False, week_start=7),
    "weekofyear": pc.iso_week,
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
}


def _local(value: Value) -> Value:
    require(is_moment, value)
    return pc.cast(pc.cast(value, INSTANT) if pa.types.is_null(value.type) else value, LOCAL)


def part(name: str, value: Value) -> Value:
    """A part of a date or time, as ``int``."""
    return pc.cast(PARTS[name](_local(value)), pa.int32())


def truncated(unit: str, value: Value) -> Value:
    """The begin of the year, quarter, month, week (Monday), day, hour, minute or second a time lies in; a ``timestamp``."""
    return pc.cast(pc.floor_temporal(_local(value), unit=unit, week_starts_monday=True), INSTANT)


def _days(value: Value) -> Value:
    require(is_moment, value)
    plain = pc.floor_temporal(pc.cast(value, LOCAL), unit="day") if pa.types.is_timestamp(value.type) else value
    return pc.cast(pc.cast(pc.cast(plain, pa.date32()), pa.int32()), pa.int64())


def moved(value: Value, days: Value, sign: int) -> Value:
    """A date so many days later, or earlier."""
    require(is_integer, days)
    if pa.types.is_uint64(days.type):
        raise misfit(days.type)
    change = pc.multiply_checked(pc.cast(days, pa.int64()), sign)
    return pc.cast(pc.cast(pc.add_checked(_days(value), change), pa.int32()), pa.date32())


def days_between(end: Value, start: Value) -> Value:
    """Days from `start` to `end`."""
    return pc.cast(pc.subtract(_days(end), _days(start)), pa.int32())
