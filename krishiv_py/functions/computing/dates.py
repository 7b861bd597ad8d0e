"""Dates and times in UTC: parts, calendar arithmetic, seconds since 1970, and texts by the letters of Java's patterns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.errors import ExpressionError, shown
from krishiv_py.functions.computing import text
from krishiv_py.functions.computing.casts import cast
from krishiv_py.functions.computing.checks import require
from krishiv_py.functions.computing.values import (
    DOUBLE,
    INSTANT,
    LOCAL,
    FaultError,
    Value,
    arrays,
    coerced,
    is_integer,
    is_moment,
    is_number,
    is_timestamp,
    joined,
    misfit,
    null_mask,
)

_COUNTS: Final = {
    "y": (2, 4),
    "M": (1, 2, 3, 4),
    "d": (1, 2),
    "D": (1, 3),
    "E": (1, 2, 3, 4),
    "H": (1, 2),
    "h": (1, 2),
    "m": (1, 2),
    "s": (1, 2),
    "S": (1, 2, 3, 4, 5, 6),
    "a": (1,),
}


@attrs.frozen
class Piece:
    """So many times a letter, or plain text."""

    letter: str = ""
    count: int = 0
    text: str = ""


def pieces_of(pattern: str) -> list[Piece]:
    """A pattern in pieces.

    Raises
    ------
    ExpressionError
        For letters, or numbers of them, that are not known here.
    """
    out: list[Piece] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        end = position + 1
        if char == "'":
            end = pattern.find("'", position + 1)
            if end < 0:
                raise _unknown(pattern, "a quotation mark that is not closed")
            out.append(Piece(text=pattern[position + 1 : end] or "'"))
            end += 1
        elif char.isascii() and char.isalpha():
            while end < len(pattern) and pattern[end] == char:
                end += 1
            if end - position not in _COUNTS.get(char, ()):
                raise _unknown(pattern, pattern[position:end])
            out.append(Piece(char, end - position))
        elif char in "[]{}#" or ord(char) > 0x7F:
            raise _unknown(pattern, char)
        else:
            out.append(Piece(text=char))
        position = end
    return out


_READ: Final = {
    ("y", 4): "(?P<y>[0-9]{4})",
    ("M", 1): "(?P<m>[0-9]{1,2})",
    ("M", 2): "(?P<m>[0-9]{2})",
    ("d", 1): "(?P<d>[0-9]{1,2})",
    ("d", 2): "(?P<d>[0-9]{2})",
    ("H", 1): "(?P<H>[0-9]{1,2})",
    ("H", 2): "(?P<H>[0-9]{2})",
    ("m", 1): "(?P<M>[0-9]{1,2})",
    ("m", 2): "(?P<M>[0-9]{2})",
    ("s", 1): "(?P<S>[0-9]{1,2})",
    ("s", 2): "(?P<S>[0-9]{2})",
}
_SPECIAL: Final = frozenset(r"\.^$|?*+()[]{}")
_ALL_GROUPS: Final = "ymdHMSf"


def check_read(pattern: str) -> None:
    """Refuse a pattern by which no text can be read as a time.

    Raises
    ------
    ExpressionError
        For names of months and days, halves of days, years of two digits, and what is there twice.
    """
    read_regex(pattern)


@lru_cache(maxsize=256)
def read_regex(pattern: str) -> str:
    """The regular expression of texts that a pattern reads, with a group for each part of the time; empty ones are not read."""
    out: list[str] = []
    seen: list[str] = []
    for piece in pieces_of(pattern):
        if piece.text:
            out.append("".join("\\" + c if c in _SPECIAL else c for c in piece.text))
            continue
        group = f"(?P<f>[0-9]{{1,{piece.count}}})" if piece.letter == "S" else _READ.get((piece.letter, piece.count))
        if group is None or piece.letter in seen:
            then = f"{piece.letter * piece.count} is not read, or is there twice"
            hint = "use yyyy, MM or M, dd or d, HH or H, mm or m, ss or s, S to SSSSSS, and text in single quotes"
            raise ExpressionError("texts cannot be read by this pattern", got=shown(pattern), then=then, hint=hint)
        seen.append(piece.letter)
        out.append(group)
    known = {"y": "y", "M": "m", "d": "d", "H": "H", "m": "M", "s": "S", "S": "f"}
    missing = [g for g in _ALL_GROUPS if g not in {known[letter] for letter in seen}]
    return "^" + "".join(out) + "".join(f"(?P<{g}>)" for g in missing) + r"\z"


def _unknown(pattern: str, what: str) -> ExpressionError:
    hint = "use yyyy MM dd HH mm ss SSSSSS, yy, MMM, MMMM, E, EEEE, hh, a, and text in single quotes"
    return ExpressionError("the pattern of a time cannot be read", got=shown(pattern), then=f"it has {what}", hint=hint)


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


_SECONDS_A_DAY: Final = 86_400
_DAYS_A_MONTH: Final = 31
_US: Final = 1_000_000
_YEARS: Final = 290_000
_SECONDS: Final = pa.decimal128(16, 6)
_MONTHS_OF: Final = {"year": 12, "quarter": 3, "month": 1}
_LENGTHS: Final = {
    **{"microsecond": 1, "millisecond": 1_000, "second": _US, "minute": 60 * _US, "hour": 3_600 * _US},
    **{"day": _SECONDS_A_DAY * _US, "dayofyear": _SECONDS_A_DAY * _US, "week": 7 * _SECONDS_A_DAY * _US},
}


def _days_of(years: Ints, months: Ints, days: Ints) -> Ints:
    """Days since 1970 of dates that must be there."""
    if (np.abs(years) > _YEARS).any() or ((months < 1) | (months > 12)).any():
        raise FaultError("there is no such month in the calendar")
    months_of = (years - 1970) * 12 + months - 1
    first, after = (m.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) for m in (months_of, months_of + 1))
    if ((days < 1) | (days > after - first)).any():
        raise FaultError("there is no such day in the month")
    return first + days - 1


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
    days = _days_of(*_numbers(columns, known))
    return joined(pc.cast(pa.array(days.astype(np.int32), pa.int32(), mask=missing), pa.date32()), single)


def make_timestamp(values: list[Value]) -> Value:
    """``make_timestamp(year, month, day, hour, minute, second)``: 60 whole seconds are the next minute."""
    require(is_integer, *values[:5])
    require(is_number, values[5])
    seconds = cast(values[5], _SECONDS, named=True)
    columns, single = arrays(*values[:5], seconds)
    missing = null_mask(*columns)
    known = np.zeros(len(columns[0]), np.bool_) if missing is None else missing
    days = _days_of(*_numbers(columns[:3], known))
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
    if unit in _MONTHS_OF:
        return plus_months(moment, pc.multiply_checked(more, _MONTHS_OF[unit]))
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


def read_by(value: Value, pattern: str, type_: pa.DataType, tried: bool) -> Value:
    """Texts as a ``date``, or a ``timestamp`` in UTC; where a text does not fit, null if it is only `tried`.

    Raises
    ------
    FaultError
        For a text that the pattern does not read.
    """
    require(pa.types.is_string, value)
    (column,), single = arrays(pc.cast(value, pa.string()))
    times, bad = text.times_by(column, read_regex(pattern))
    if bad is not None and bad.any() and not tried:
        row = int(np.flatnonzero(bad)[0])
        raise FaultError(f"{text.shown(column, row)} in row {row} is not written as {pattern!r}")
    instants = coerced(times, INSTANT)
    return joined(instants if type_ == INSTANT else pc.cast(times, type_, safe=False), single)
