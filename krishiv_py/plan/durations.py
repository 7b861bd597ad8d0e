"""Durations and points in time of the public API, as integer microseconds (SEMANTICS §1.1)."""

from __future__ import annotations

import datetime as dt
import functools
import numbers
import re
from typing import Any, Final, TypeAlias

from krishiv_py.errors import DurationError, shown

Duration: TypeAlias = "int | dt.timedelta | str"
"""Milliseconds as ``int``, a ``datetime.timedelta``, or a string such as ``"5 seconds"``."""
TimePoint: TypeAlias = "int | dt.datetime | str"
"""Milliseconds since the Unix epoch as ``int``, or a ``datetime`` (naive means UTC)."""

UNSET: Final = -(2**63)
"""A watermark before any row was seen: minus infinity."""
END_OF_TIME: Final = 2**63 - 1
"""The watermark after the end of input: plus infinity."""
MAX_TIME_US: Final = 4_500_000_000_000_000
"""Event times of timestamp columns beyond ± this many µs (1827-05 … 2112-08) are out of range, see docs/semantics.md."""
MAX_TIME_MS: Final = MAX_TIME_US
"""The same bound for ``bigint`` millisecond columns, in milliseconds (about ± 142 000 years)."""

_UNITS: Final[dict[str, int]] = {
    **dict.fromkeys(("us", "microsecond", "µs", "μs"), 1),  # the micro sign and the Greek letter
    **dict.fromkeys(("ms", "millisecond", "milli"), 1_000),
    **dict.fromkeys(("s", "sec", "second"), 1_000_000),
    **dict.fromkeys(("m", "min", "minute"), 60_000_000),
    **dict.fromkeys(("h", "hour"), 3_600_000_000),
    **dict.fromkeys(("d", "day"), 86_400_000_000),
    **dict.fromkeys(("w", "week"), 604_800_000_000),
}
_CALENDAR: Final = ("month", "quarter", "year")
_MAX_TEXT: Final = 200  # characters; Python reads no integer of thousands of digits
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Zµμ]+)\s*")
ISO_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([01][0-9]|2[0-3])(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?)?"
    r"(Z|([+-][0-9]{2})(?::?([0-9]{2}))?)?"
)
"""A date, a time of day and maybe a zone, as ISO 8601 writes them."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


class DoubtfulLength(int):
    """A length in µs, made of a number without a unit that may have been meant as seconds; it calculates as any number.

    Attributes
    ----------
    name : str
        The parameter that it was given for.
    """

    name: str


def _of_number(ms: int, name: str) -> int:
    """Return a number of milliseconds in µs, marked where a number of seconds, minutes or days in seconds looks like it."""
    if ms % 1_000 == 0 or not (abs(ms) < 1_000 or ms % 900 == 0 or ms % 86_400 == 0):
        return ms * 1_000
    length = DoubtfulLength(ms * 1_000)
    length.name = name
    return length


def _bad(name: str, value: object, consequence: str, hint: str) -> DurationError:
    return DurationError(f"`{name}` is not a legal duration", got=shown(value), then=consequence, hint=hint)


def _scale(unit: str, value: str, name: str) -> int | None:
    """Microseconds of a unit, whatever its case; None where there is no such unit."""
    if unit == "M":
        raise _bad(name, value, "M may be a minute or a month", 'write "min" or "m" for minutes; months have no fixed length')
    lower = unit.lower()
    if lower in _UNITS:  # before the plural: "MS" is not a plural of "m"
        return _UNITS[lower]
    return _UNITS.get(lower.removesuffix("s")) if len(lower) > 3 else None  # "mins" is a plural, "hs" is none


@functools.lru_cache(256)
def _parse(value: str, name: str) -> int:
    total, pos = 0, 0
    text = value.strip()
    if len(text) > _MAX_TEXT:
        raise _bad(
            name, f"{text[:20]}… ({len(text)} characters)", "no length of time is that long", 'write for instance "5 seconds"'
        )
    while pos < len(text):
        part = _PART.match(text, pos)
        unit = "" if part is None else part.group(2).lower().removesuffix("s")
        if unit in _CALENDAR:
            hint = f"write days for a fixed length; windows of calendar {unit}s: calendar_window"
            raise _bad(name, value, "months, quarters and years have no fixed length", hint)
        scale = None if part is None else _scale(part.group(2), value, name)
        if part is None or scale is None:
            raise _bad(name, value, "the text cannot be read", 'write for instance "5 seconds", "1 min 30 s" or "250ms"')
        whole, _, frac = part.group(1).partition(".")
        scaled_frac = int(frac or "0") * scale
        if scaled_frac % 10 ** len(frac):
            raise _bad(name, value, "it is finer than a microsecond", "round it to whole microseconds")
        total += int(whole) * scale + scaled_frac // 10 ** len(frac)
        pos = part.end()
    if not text:
        raise _bad(name, value, "the text is empty", 'write for instance "5 seconds"')
    return total


def to_us(value: Duration, name: str, *, allow_zero: bool = False, allow_negative: bool = False) -> int:
    """Convert a duration of the API to microseconds.

    Parameters
    ----------
    value : int or datetime.timedelta or str
        Milliseconds, a timedelta, or text such as ``"5 seconds"``; where negative values are legal also ``"-5 seconds"``.
    name : str
        The parameter's name, for the error text.
    allow_zero, allow_negative : bool
        Whether 0, and negative values (offsets), are legal here.

    Raises
    ------
    DurationError
        For ``bool``, floats, NaN, unreadable text, and values out of the legal range (SEMANTICS §1.1).

    Examples
    --------
    >>> to_us(60_000, "size"), to_us("5 seconds", "lag")
    (60000000, 5000000)
    """
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, (int, dt.timedelta, str)):
        kind = type(value).__name__
        raise _bad(name, value, f"a {kind} has no exact length", "pass whole milliseconds, a timedelta or text")
    if isinstance(value, str):
        text = value.strip()
        back = text.startswith("-")  # the sign is that of the whole: "-1 min 30 s" is 90 s back
        us = -_parse(text[1:], name) if back else _parse(value, name)
    elif isinstance(value, dt.timedelta):
        us = value // dt.timedelta(microseconds=1)
        if getattr(value, "nanoseconds", 0):  # pandas has them
            raise _bad(name, value, "it is finer than a microsecond", "round it to whole microseconds")
    else:
        us = _of_number(value, name)
    if us < 0 and not allow_negative:
        raise _bad(name, value, "time would run backwards", "pass a positive duration")
    if us == 0 and not allow_zero:
        raise _bad(name, value, "a window of no length holds no row", "pass a positive duration")
    if abs(us) > MAX_TIME_US:
        raise _bad(name, value, "it is longer than the supported range of time", "pass a shorter duration")
    return us


def milliseconds(value: Duration, name: str) -> Duration:
    """Return a duration whose parameter says by its name that a number is of milliseconds, so that nobody doubts its unit."""
    to_us(value, name, allow_zero=True)
    value = _plain(value)
    return dt.timedelta(milliseconds=value) if isinstance(value, int) else value


def _plain(value: Any) -> Any:
    """Return a whole number of another library, as NumPy's, as an ``int``; anything else as it is."""
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else value


_POINT: Final = 'pass whole milliseconds since the epoch, a datetime, or a text such as "2024-01-31T12:00:00Z"'


def iso_moment(text: str) -> dt.datetime:
    """Return the time that a text of ISO 8601 is, with its zone if it names one; exactly, and the same on every Python.

    Raises
    ------
    ValueError
        Saying what is wrong with it, without the text.
    """
    parts = ISO_TIME.fullmatch(text)
    if parts is None:
        raise ValueError("the text is not a date and time of ISO 8601")
    day, hour, minute, second, digits, zone, hours, minutes = parts.groups(default="")
    if digits[6:].strip("0"):
        raise ValueError("the text has digits below a microsecond")
    offset = f"{hours or '+00'}:{minutes or '00'}" if zone else ""
    return dt.datetime.fromisoformat(f"{day}T{hour}:{minute or '00'}:{second or '00'}.{digits[:6]:0<6}{offset}")


def _read_instant(text: str, name: str) -> dt.datetime:
    """Return a point in time that is written in ISO form, or a day; UTC where it names no zone."""
    written = text.strip().upper()
    try:
        return iso_moment(f"{written}T00:00" if len(written) == len("2024-01-31") else written)
    except ValueError:
        raise DurationError(f"`{name}` is not a point in time", got=shown(text), hint=_POINT) from None


def time_point_us(value: TimePoint, name: str) -> int:
    """Convert a point in time of the API (ms since the epoch, a datetime, or ISO text) to microseconds."""
    value = _plain(value)
    if isinstance(value, str):
        value = _read_instant(value, name)
    if isinstance(value, dt.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)
        return (aware - _EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(value, bool) or not isinstance(value, int):
        raise DurationError(f"`{name}` is not a point in time", got=shown(value), hint=_POINT)
    if abs(value) > MAX_TIME_MS:
        hint = f"pass whole milliseconds since the epoch, at most {MAX_TIME_MS} of them"
        raise DurationError(f"`{name}` is out of the supported range of time", got=shown(value), hint=hint)
    return value * 1_000


def show_us(us: int) -> str:
    """Return a duration in the largest unit that keeps it whole: ``60000000`` → ``"1 min"``; with a rest in µs as a length."""
    for unit in ("d", "h", "min", "s", "ms"):
        if us and us % _UNITS[unit] == 0:
            return f"{us // _UNITS[unit]} {unit}"
    return f"{us} µs" if abs(us) < _UNITS["s"] else show_length(us)


def show_length(us: int) -> str:
    """Return a length that was measured, exactly, as a text that steps take: ``83_456_000`` → ``"1 min 23.456 s"``."""
    if us < 0:
        return f"-{show_length(-us)}"
    if 0 < us < 1_000_000:
        return f"{us} µs" if us < 1_000 else f"{_decimal(us, 1_000)} ms"
    parts = []
    for unit in ("d", "h", "min"):
        whole, us = divmod(us, _UNITS[unit])
        parts += [f"{whole} {unit}"] if whole else []
    parts += [f"{_decimal(us, 1_000_000)} s"] if us or not parts else []
    return " ".join(parts)


def _decimal(us: int, scale: int) -> str:
    """Return a number of units of so many µs, with as many digits as it takes."""
    whole, rest = divmod(us, scale)
    return f"{whole}.{rest:0{len(str(scale)) - 1}d}".rstrip("0") if rest else str(whole)


def show_instant(us: int) -> str:
    """Return a watermark or event time for people: ISO text, or ``unset`` / ``end of input``."""
    if us == UNSET:
        return "unset"
    if us == END_OF_TIME:
        return "end of input"
    try:
        return (_EPOCH + dt.timedelta(microseconds=us)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{us} µs"
