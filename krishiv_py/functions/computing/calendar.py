"""Dates and times that are made of numbers, moved by units, and months between them. All in UTC."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.functions.computing.casts import cast
from krishiv_py.functions.computing.checks import require
from krishiv_py.functions.computing.dates import local, plus_months
from krishiv_py.functions.computing.values import (
    DOUBLE,
    INSTANT,
    FaultError,
    Value,
    arrays,
    coerced,
    is_integer,
    is_moment,
    is_number,
    is_timestamp,
    joined,
    null_mask,
)

_SECONDS_A_DAY: Final = 86_400
_DAYS_A_MONTH: Final = 31
_US: Final = 1_000_000
_YEARS: Final = 290_000
_SECONDS: Final = pa.decimal128(16, 6)
_MONTHS: Final = {"year": 12, "quarter": 3, "month": 1}
_LENGTHS: Final = {
    **{"microsecond": 1, "millisecond": 1_000, "second": _US, "minute": 60 * _US, "hour": 3_600 * _US},
    **{"day": _SECONDS_A_DAY * _US, "dayofyear": _SECONDS_A_DAY * _US, "week": 7 * _SECONDS_A_DAY * _US},
}


def _days(years: Ints, months: Ints, days: Ints) -> Ints:
    """Days since 1970 of dates that must be there."""
    if (np.abs(years) > _YEARS).any() or ((months < 1) | (months > 12)).any():
        raise FaultError("there is no such month in the calendar")
    months_of = (years - 1970) * 12 + months - 1
    first, after = (m.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) for m in (months_of, months_of + 1))
    if ((days < 1) | (days > after - first)).any():
        raise FaultError("there is no such day in the month")
    days_since: Ints = first + days - 1
    return days_since


def _numbers(columns: list[pa.Array], missing: Mask) -> list[Ints]:
    """Whole numbers, 1 where any of the row is null."""
    plain = (pc.fill_null(pc.cast(c, pa.int64()), 1).to_numpy(zero_copy_only=False) for c in columns)
    return [np.where(missing, 1, x).astype(np.int64) for x in plain]


def make_date(values: list[Value]) -> Value:
    """``make_date(year, month, day)``."""
    require(is_integer, *values)
    columns, single = arrays(*values)
    missing = null_mask(*columns)
    known = np.zeros(len(columns[0]), np.bool_) if missing is None else missing
    days = _days(*_numbers(columns, known))
    return joined(pc.cast(pa.array(days.astype(np.int32), pa.int32(), mask=missing), pa.date32()), single)


def make_timestamp(values: list[Value]) -> Value:
    """``make_timestamp(year, month, day, hour, minute, second)``: 60 whole seconds are the next minute."""
    require(is_integer, *values[:5])
    require(is_number, values[5])
    seconds = cast(values[5], _SECONDS, named=True)
    columns, single = arrays(*values[:5], seconds)
    missing = null_mask(*columns)
    known = np.zeros(len(columns[0]), np.bool_) if missing is None else missing
    days = _days(*_numbers(columns[:3], known))
    hours, minutes = (np.where(known, 0, x) for x in _numbers(columns[3:5], known))
    wide = pc.multiply(pc.cast(columns[5], pa.decimal256(22, 6)), _US)
    us = np.where(known, 0, pc.fill_null(pc.cast(wide, pa.int64()), 0).to_numpy(zero_copy_only=False))
    if ((hours < 0) | (hours > 23) | (minutes < 0) | (minutes > 59)).any():
        raise FaultError("there is no such time of day")
    if ((us < 0) | (us > 60 * _US)).any():
        raise FaultError("a minute has 60 seconds, the last one without a fraction")
    whole = days * (_SECONDS_A_DAY * _US) + (hours * 3_600 + minutes * 60) * _US + us
    return joined(pa.array(whole, pa.int64(), mask=missing).cast(INSTANT), single)


def timestampadd(unit: str, amount: Value, value: Value) -> Value:
    """``timestampadd(unit, amount, t)``; of a date a ``timestamp``."""
    require(is_integer, amount)
    require(is_moment, value)
    moment = value if is_timestamp(value.type) else coerced(value, INSTANT)
    more = pc.cast(amount, pa.int64())
    if unit in _MONTHS:
        return plus_months(moment, pc.multiply_checked(more, _MONTHS[unit]))
    us = pc.multiply_checked(more, _LENGTHS[unit])
    return pc.cast(pc.add_checked(pc.cast(moment, pa.int64()), us), moment.type)


def months_between(end: Value, start: Value, round_off: bool) -> Value:
    """Whole months between the same days, or last days, of months; else a fraction in months of 31 days."""
    (one, other), single = arrays(local(end), local(start))
    months, days, at_end, seconds = zip(*(_parts(c) for c in (one, other)), strict=True)
    whole = (months[0] - months[1]).astype(np.float64)
    even = (days[0] == days[1]) | (at_end[0] & at_end[1])
    apart = (days[0] - days[1]) * _SECONDS_A_DAY + seconds[0] - seconds[1]
    difference = whole + apart / float(_DAYS_A_MONTH * _SECONDS_A_DAY)
    if round_off:
        scaled = difference * 1e8
        below = np.floor(scaled)
        difference = (below + (scaled - below >= 0.5)) / 1e8
    return joined(pa.array(np.where(even, whole, difference), DOUBLE, mask=null_mask(one, other)), single)


def _parts(column: pa.Array) -> tuple[Ints, Ints, Ints, Ints]:
    """Months since year 0, the day of the month, whether it is the last one, whole seconds of the day."""
    us = pc.fill_null(pc.cast(column, pa.int64()), 0).to_numpy(zero_copy_only=False)
    day = us // (_SECONDS_A_DAY * _US)
    dates = day.astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    number = (dates - months.astype("datetime64[D]")).astype(np.int64) + 1
    after = (months + 1).astype("datetime64[D]").astype(np.int64)
    return months.astype(np.int64), number, day + 1 == after, (us - day * (_SECONDS_A_DAY * _US)) // _US
