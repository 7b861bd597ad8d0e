"""Dates and times: parts, calendar arithmetic, seconds since 1970, and times as text. All in UTC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing.checks import require
from krishiv_py.functions.computing.formats import Piece, pieces_of
from krishiv_py.functions.computing.values import (
    INSTANT,
    LOCAL,
    FaultError,
    Value,
    arrays,
    coerced,
    is_integer,
    is_moment,
    joined,
    misfit,
)

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


def local(value: Value) -> Value:
    """A date or time as a time without zone, in UTC."""
    require(is_moment, value)
    return pc.cast(pc.cast(value, INSTANT) if pa.types.is_null(value.type) else value, LOCAL)


def part(name: str, value: Value) -> Value:
    """A part of a date or time, as ``int``."""
    return pc.cast(PARTS[name](local(value)), pa.int32())


def truncated(unit: str, value: Value) -> Value:
    """The begin of the year, quarter, month, week (Monday), day, hour, minute or second a time lies in; a ``timestamp``."""
    return pc.cast(pc.floor_temporal(local(value), unit=unit, week_starts_monday=True), INSTANT)


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


_LAST_MONTH: Final = 12 * 5_870_000  # beyond, days have no 32 bits
_US_PER_DAY: Final = 86_400_000_000
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAYS: Final = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def _whole(value: Value) -> Value:
    require(is_integer, value)
    if pa.types.is_uint64(value.type):
        raise misfit(value.type)
    return pc.cast(value, pa.int64())


def _month_of(value: Value, months: Value) -> tuple[Value, Value]:
    """The first day of the month so many months later, as a date, and the last day's number in it."""
    day = pc.cast(local(value), pa.date32())
    (day, more), _ = arrays(day, months)
    months_of = pc.add_checked(
        pc.add(pc.multiply(pc.cast(pc.year(day), pa.int64()), 12), pc.subtract(pc.cast(pc.month(day), pa.int64()), 1)), more
    )
    if pc.any(pc.or_(pc.greater(months_of, _LAST_MONTH), pc.less(months_of, -_LAST_MONTH))).as_py():
        raise FaultError("a date is out of the calendar")
    missing = months_of.is_null().to_numpy(zero_copy_only=False)
    plain = pc.fill_null(pc.subtract(months_of, 1970 * 12), 0).to_numpy(zero_copy_only=False)
    first, after = (m.astype("datetime64[M]").astype("datetime64[D]").astype("int64") for m in (plain, plain + 1))
    return pa.array(first, pa.int64(), mask=missing), pa.array(after - first, pa.int64(), mask=missing)


def _moved(value: Value, months: Value) -> pa.Array:
    """Days since 1970, so many months later; the last day of a month that is too short."""
    first, length = _month_of(value, months)
    (day,), _ = arrays(pc.cast(pc.day(local(value)), pa.int64()))
    if len(day) != len(first):
        day = pa.repeat(day[0], len(first))
    return pc.add(first, pc.subtract(pc.min_element_wise(day, length, skip_nulls=False), 1))


def _single(*values: Value) -> bool:
    return not any(isinstance(v, pa.Array) for v in values)


def add_months(value: Value, months: Value) -> Value:
    """The date so many months later."""
    require(is_moment, value)
    moved = _moved(value, _whole(months))
    return joined(pc.cast(pc.cast(moved, pa.int32()), pa.date32()), _single(value, months))


def plus_months(value: Value, months: Value) -> Value:
    """A date, or a time with its time of day, so many months later."""
    require(is_moment, value)
    if not pa.types.is_timestamp(value.type):
        return add_months(value, months)
    days = pc.multiply_checked(_moved(value, _whole(months)), _US_PER_DAY)
    plain = local(value)
    clock = pc.subtract(pc.cast(plain, pa.int64()), pc.cast(pc.floor_temporal(plain, unit="day"), pa.int64()))
    if isinstance(clock, pa.Scalar):
        clock = pa.repeat(clock, len(days))
    return joined(pc.cast(pc.add_checked(days, clock), value.type), _single(value, months))


def plus_days(value: Value, days: Value) -> Value:
    """A date, or a time, or a length of time, so many days later."""
    if pa.types.is_date(value.type):
        number = pc.cast(pc.cast(pc.cast(value, pa.date32()), pa.int32()), pa.int64())
        return pc.cast(pc.cast(pc.add_checked(number, _whole(days)), pa.int32()), pa.date32())
    if not (pa.types.is_timestamp(value.type) or pa.types.is_duration(value.type) or pa.types.is_null(value.type)):
        raise misfit(value.type)
    plain = pc.cast(value, INSTANT) if pa.types.is_null(value.type) else value
    more = pc.multiply_checked(_whole(days), _US_PER_DAY)
    return pc.cast(pc.add_checked(pc.cast(plain, pa.int64()), more), plain.type)


def last_day(value: Value) -> Value:
    """The last day of the month."""
    first, length = _month_of(value, pa.scalar(0, pa.int64()))
    days_since = pc.cast(pc.subtract(pc.add(first, length), 1), pa.int32())
    return joined(pc.cast(days_since, pa.date32()), _single(value))


def since_1970(value: Value, unit_us: int) -> Value:
    """Whole units since 1970; the one that contains the time."""
    require(is_moment, value)
    micros = pc.cast(coerced(value, INSTANT), pa.int64())
    below = pc.subtract(micros, pc.multiply(pc.divide(micros, unit_us), unit_us))
    return pc.subtract(pc.divide(micros, unit_us), pc.cast(pc.less(below, 0), pa.int64()))


def unix_timestamp(value: Value) -> Value:
    """Seconds since 1970 without their fraction: before 1970 the later of the two around the time, as Spark has it."""
    require(is_moment, value)
    return pc.divide(pc.cast(coerced(value, INSTANT), pa.int64()), 1_000_000)


def instant(value: Value, unit_us: int) -> Value:
    """The time so many units after 1970."""
    return pc.cast(pc.multiply_checked(_whole(value), unit_us), INSTANT)


def second_fraction(value: Value) -> Value:
    """Seconds of the minute with their fraction, ``decimal(8, 6)``."""
    plain = local(value)
    within = pc.subtract(pc.cast(plain, pa.int64()), pc.cast(pc.floor_temporal(plain, unit="minute"), pa.int64()))
    millionth = pa.scalar(Decimal("0.000001"), pa.decimal128(6, 6))
    return pc.cast(pc.multiply(pc.cast(within, pa.decimal128(19, 0)), millionth), pa.decimal128(8, 6))


def _number(values: Value, width: int) -> Value:
    return pc.utf8_lpad(pc.cast(pc.cast(values, pa.int64()), pa.string()), width=width, padding="0")


def _named(values: Value, names: Sequence[str], short: bool) -> Value:
    texts = pa.array([n[:3] if short else n for n in names])
    return texts.take(pc.cast(values, pa.int64()))


def _micros(plain: Value) -> Value:
    return pc.subtract(pc.cast(plain, pa.int64()), pc.cast(pc.floor_temporal(plain, unit="second"), pa.int64()))


_PIECES: Final[dict[str, Callable[[Any, int], Value]]] = {
    "y": lambda t, n: _number(pc.year(t), 4) if n != 2 else pc.utf8_slice_codeunits(_number(pc.year(t), 4), 2, 4),
    "M": lambda t, n: _number(pc.month(t), n) if n < 3 else _named(pc.subtract(pc.month(t), 1), _MONTHS, n == 3),
    "d": lambda t, n: _number(pc.day(t), n),
    "D": lambda t, n: _number(pc.day_of_year(t), n),
    "E": lambda t, n: _named(pc.day_of_week(t), _DAYS, n < 4),
    "H": lambda t, n: _number(pc.hour(t), n),
    "h": lambda t, n: _number(pc.add(_mod(pc.add(pc.hour(t), 11), 12), 1), n),
    "m": lambda t, n: _number(pc.minute(t), n),
    "s": lambda t, n: _number(pc.second(t), n),
    "S": lambda t, n: pc.utf8_slice_codeunits(_number(_micros(t), 6), 0, n),
    "a": lambda t, n: pc.if_else(pc.less(pc.hour(t), 12), "AM", "PM"),
}


def _mod(values: Value, by: int) -> Value:
    return pc.subtract(values, pc.multiply(pc.divide(values, by), by))


def _written(plain: pa.Array, piece: Piece) -> Value:
    return _PIECES[piece.letter](plain, piece.count) if piece.letter else pa.scalar(piece.text)


def date_format(value: Value, pattern: str) -> Value:
    """A time by a pattern of letters."""
    (plain,), single = arrays(local(value))
    years = pc.year(plain)
    if pc.any(pc.or_(pc.less(years, 1), pc.greater(years, 9999))).as_py():
        raise FaultError("a year does not have four digits")
    parts = [_written(plain, piece) for piece in pieces_of(pattern)]
    text = pc.binary_join_element_wise(*parts, "") if parts else pa.repeat("", len(plain))
    return joined(pc.if_else(pc.is_valid(plain), text, pa.scalar(None, pa.string())), single)


def from_unixtime(value: Value, pattern: str) -> Value:
    """Seconds since 1970 by a pattern."""
    return date_format(pc.cast(instant(value, 1_000_000), LOCAL), pattern)
