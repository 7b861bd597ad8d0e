"""The one border from Python objects to columns: a value is taken exactly, or refused (docs/types.md has the table).

Every place where Python values become a column calls :func:`column`: rows sent as dicts, tuples of pane handlers,
results of ``udaf.finish``, records of Avro. It goes down column by column, at any depth, so that Arrow converts whole
lists wherever its own conversion is exact for the Python types in them. What it refuses is an :class:`UnfitError`,
which has the place in the list, the path inside the value, the reason and a hint; the caller says which row, record or
group that is:

    try:
        array = column(values, field.type)
    except UnfitError as problem:
        ...  # problem.row, problem.path, problem.why, problem.hint; its text shows no value

NumPy and pandas scalars are known by what they are; pandas is not imported. Times lie in the years 1 to 9999: outside of them
Python has no times, and texts of times are not the same everywhere.
"""

from __future__ import annotations

import bisect
import contextlib
import datetime as dt
import decimal
import itertools
import math
import re
import zoneinfo
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.fit import SENT, fit, fits
from krishiv_py.errors import OperatorError, shown
from krishiv_py.plan.durations import ISO_TIME, iso_moment
from krishiv_py.types import article, normal_type, type_text

_DAY_US: Final = 86_400_000_000
_FIRST_US: Final = -62_135_596_800_000_000
_BEHIND_US: Final = 253_402_300_800_000_000


def check_years(values: pa.Array | pa.ChunkedArray, name: str, where: str) -> None:
    """Refuse a date or time before year 1 or after 9999 in a column called `name`; other columns pass.

    Raises
    ------
    OperatorError
        Saying that it cannot be written to `where`.
    """
    if pa.types.is_date32(values.type):
        numbers, first, least = values.cast(pa.int32()), _FIRST_US // _DAY_US, _BEHIND_US // _DAY_US
    elif pa.types.is_timestamp(values.type):
        numbers, first, least = values.cast(pa.int64()), _FIRST_US, _BEHIND_US
    else:
        return
    extremes = pc.min_max(numbers).as_py()
    if extremes["min"] is not None and not (extremes["min"] >= first and extremes["max"] < least):
        raise not_written(name, where, "a time before year 1 or after 9999", "filter such rows")


def not_written(name: str, where: str, what: str, hint: str) -> OperatorError:
    """Return the error for a value of a column called `name` that `where` does not have."""
    then = "the batch is not written"
    return OperatorError(f"a value cannot be written to {where}", got=f"{what} in {shown(name)}", then=then, hint=hint)


_COMMON_TIME: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6}0*)?)?"
_ZONE: Final = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])$"
_ISO_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_Flags: TypeAlias = "np.ndarray[Any, Any]"
_WRONG: Final = (pa.ArrowException, TypeError, ValueError, OverflowError, ArithmeticError)
_NONE: Final = type(None)
_TIMES: Final[frozenset[type]] = frozenset({dt.datetime, _NONE})
_NUMPY_DAY: Final = np.dtype("datetime64[D]")
_EXACT: Final = decimal.Context(prec=200, Emin=-100_000, Emax=100_000, traps=[decimal.Inexact, decimal.InvalidOperation])
_UNIT_US: Final = {
    "W": 604_800_000_000,
    "D": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_PARTS_OF_US: Final = {"ns": 1_000, "ps": 1_000_000, "fs": 1_000_000_000, "as": 1_000_000_000_000}
_INT64: Final = 1 << 63
_PANDAS_NULLS: Final = ("NaTType", "NAType")


class UnfitError(ValueError):
    """A value that a column of this type cannot hold exactly.

    Its text names the place, the kind of the value and the reason, never the value itself.

    Parameters
    ----------
    value : object
        The value that was refused.
    type_ : pyarrow.DataType
        The type that was wanted for it.
    why : str
        The reason.
    hint : str
        What to write for it.

    Attributes
    ----------
    row : int
        Its place in the list that became a column.
    path : str
        Where it lies inside the value: ``.user.id``, ``[3]``; empty for the value itself.
    """

    def __init__(self, value: object, type_: pa.DataType, why: str, hint: str = "") -> None:
        super().__init__(value, type_, why, hint)
        self.value, self.type, self.why = value, type_, why
        self.hint = hint or f"give {type_text(type_)} values"
        self.row = 0
        self.path = ""

    def inside(self, path: str, index: int) -> UnfitError:
        """Return the same error, seen from the value around it."""
        self.path, self.row = path + self.path, index
        return self

    def __str__(self) -> str:
        where = f"{self.path.removeprefix('.')}: " if self.path else ""
        own, wanted = type(self.value).__name__, type_text(self.type)
        if own == wanted:  # both Python and schemas have an int and a float
            return f"{where}a number of Python does not fit {article(wanted)}: {self.why}"
        return f"{where}a value of type {own} is not {article(wanted)}: {self.why}"


def column(values: Sequence[Any], type_: pa.DataType, *, extra_fields: bool = False) -> pa.Array:
    """Return Python values as an Arrow array of a type, each of them exactly.

    Parameters
    ----------
    values : sequence
        One value a row; None, ``pandas.NA``, ``pandas.NaT`` and NumPy's ``NaT`` are nulls.
    type_ : pyarrow.DataType
        The type of the array, of any depth.
    extra_fields : bool, default False
        Whether names that a struct does not have are left unread, as more columns of files are. By default they are refused.

    Raises
    ------
    UnfitError
        For the first value that does not fit.

    Examples
    --------
    >>> column([1, 2.0, None], pa.int64()).to_pylist()
    [1, 2, None]
    >>> column([1, 2.5], pa.int64())
    Traceback (most recent call last):
    ...
    krishiv_py.connectors.values.UnfitError: a value of type float is not a bigint: a part of the value would be lost
    """
    t = pa.types
    if t.is_struct(type_):
        return _structs(values, type_, extra_fields)
    if t.is_map(type_):
        return _maps(values, type_, extra_fields)
    if t.is_list(type_):
        return _lists(values, type_, extra_fields)
    plain, careful = _rules(type_)
    if careful is None:
        return _other(values, type_, extra_fields)
    if set(map(type, values)) <= plain:
        try:
            exact = _at_once(values, type_)
        except _WRONG:
            exact = None  # the careful way finds the value, or takes it
        if exact is not None:
            return exact
    return _apart(values, type_, None)


def fitting(values: Sequence[Any], type_: pa.DataType, *, extra_fields: bool = False) -> tuple[pa.Array, dict[int, UnfitError]]:
    """Return values as :func:`column` does, with null for those that do not fit, and why, by their places.

    Examples
    --------
    >>> array, unfit = fitting([1, "two", 3.0], pa.int64())
    >>> array.to_pylist(), str(unfit[1])
    ([1, None, 3], 'a value of type str is not a bigint: it is another kind of value')
    """
    unfit: dict[int, UnfitError] = {}
    if pa.types.is_nested(type_) or _rules(type_)[1] is None:
        return _by_halves(values, type_, extra_fields, 0, unfit), unfit
    return _apart(values, type_, unfit), unfit


def _by_halves(
    values: Sequence[Any], type_: pa.DataType, extra_fields: bool, first: int, unfit: dict[int, UnfitError]
) -> pa.Array:
    try:
        return column(values, type_, extra_fields=extra_fields)
    except UnfitError as problem:
        if len(values) == 1:
            unfit[first] = problem
            return pa.nulls(1, type_)
    middle = len(values) // 2
    left = _by_halves(values[:middle], type_, extra_fields, first, unfit)
    return pa.concat_arrays([left, _by_halves(values[middle:], type_, extra_fields, first + middle, unfit)])


def _at_once(values: Sequence[Any], type_: pa.DataType) -> pa.Array | None:
    """Return the values as Arrow takes them; None where that may lose something."""
    if pa.types.is_timestamp(type_):
        if str in map(type, values):
            return _common_times(pa.array(values, pa.string()), type_)
        zones = {value.tzinfo for value in values if value is not None}
        if not all(map(_is_whole_zone, zones)) or (not type_.tz and zones - {None}):
            return None
    if pa.types.is_float32(type_):
        wide = pa.array(values, pa.float64())
        narrow = wide.cast(type_)
        return None if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(wide))).as_py() else narrow
    return pa.array(values, type_)


_WRITTEN: Final = ((_ZONE, pa.timestamp("us", "UTC")), ("$", pa.timestamp("us")))


def _common_times(texts: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """Return the times of ISO 8601 texts, which either all name a zone or none does; None where one is written otherwise."""
    for ending, written in _WRITTEN:
        if pc.all(pc.match_substring_regex(texts, _COMMON_TIME + ending), min_count=0).as_py():
            return _exact_times(texts, written, type_)
    return None


def _exact_times(texts: pa.Array, written: pa.DataType, type_: pa.DataType) -> pa.Array | None:
    try:
        times = texts.cast(written)
    except pa.ArrowInvalid:  # Arrow refuses nine digits of a second, the last of which may be zeros
        times = pc.replace_substring_regex(texts, r"(\.[0-9]{6})0+", r"\1").cast(written)
    numbers = times.cast(pa.int64())
    exact = (type_.tz or not written.tz) and (pc.min(numbers).as_py() or 0) >= _FIRST_US
    return numbers.cast(type_) if exact else None


def _apart(values: Sequence[Any], type_: pa.DataType, unfit: dict[int, UnfitError] | None) -> pa.Array:
    """Return values that are of several kinds: those of the common ones at once, and each of the others alone.

    The first that does not fit is raised; with `unfit` all that do not are noted there.
    """
    plain, careful = _rules(type_)
    assert careful is not None
    parts = list(_together(values, type_, plain))
    rest = np.ones(len(values), np.bool_)
    for places, _ in parts:
        rest[places] = False
    alone = np.flatnonzero(rest)
    exact = _carefully(values, alone.tolist(), type_, careful, unfit)
    order = np.empty(len(values), np.int64)
    order[np.concatenate([*(places for places, _ in parts), alone])] = np.arange(len(values))
    return pa.concat_arrays([*(part for _, part in parts), exact]).take(pa.array(order))


def _together(values: Sequence[Any], type_: pa.DataType, plain: frozenset[type]) -> Iterator[tuple[_Flags, pa.Array]]:
    """Yield values that are taken at once, of one kind or times as texts of one form, with their places."""
    kinds = _Kinds.of(values)
    if pa.types.is_timestamp(type_):
        yield from _texts_together(*kinds.some({str}), type_)
        places, some = kinds.some(_TIMES)
        whole = list(map(_is_plain_time, some))
        places, some = places[whole], list(itertools.compress(some, whole))
    else:
        places, some = kinds.some(plain)
    if pa.types.is_timestamp(type_) or pa.types.is_date32(type_):
        yield from _of_numpy_together(*kinds.some({np.datetime64}), type_)
    with contextlib.suppress(*_WRONG):  # each of them alone shows which one it is
        if pa.types.is_signed_integer(type_):
            wide = pa.array(some, pa.int64())
            within = pc.fill_null(pc.equal(wide.cast(type_, safe=False).cast(pa.int64()), wide), True)
            yield places[within.to_numpy(zero_copy_only=False)], wide.filter(within).cast(type_)
        elif (part := _at_once(some, type_)) is not None:
            yield places, part


@attrs.frozen(eq=False)
class _Kinds:
    """The Python types of some values, each type once, and which of them each value has."""

    values: Sequence[Any]
    types: Collection[type]
    numbers: _Flags

    @classmethod
    def of(cls, values: Sequence[Any]) -> _Kinds:
        kinds = list(map(type, values))
        numbers = {kind: i for i, kind in enumerate(set(kinds))}
        return cls(values, list(numbers), np.fromiter(map(numbers.__getitem__, kinds), np.int64, len(kinds)))

    def some(self, wanted: Collection[type]) -> tuple[_Flags, list[Any]]:
        """Return the values of some types, after their places."""
        marks = np.array([kind in wanted for kind in self.types], np.bool_)[self.numbers]
        return np.flatnonzero(marks), list(itertools.compress(self.values, marks.tolist()))


def _texts_together(places: _Flags, values: Sequence[str], type_: pa.DataType) -> Iterator[tuple[_Flags, pa.Array]]:
    with contextlib.suppress(*_WRONG):
        texts = pa.array(values, pa.string())
        for ending, written in _WRITTEN:
            common = pc.match_substring_regex(texts, _COMMON_TIME + ending)
            if (part := _exact_times(texts.filter(common), written, type_)) is not None:
                yield places[common.to_numpy(zero_copy_only=False)], part
            places, texts = places[~common.to_numpy(zero_copy_only=False)], texts.filter(pc.invert(common))


def _of_numpy_together(
    places: _Flags, values: Sequence[np.datetime64], type_: pa.DataType
) -> Iterator[tuple[_Flags, pa.Array]]:
    """Yield times and days of NumPy that are of one unit, as far as nothing of them is lost."""
    units = {value.dtype for value in values}
    if len(units) != 1 or (pa.types.is_date32(type_) and units != {_NUMPY_DAY}):
        return
    times = np.array(values)
    if pa.types.is_date32(type_):
        exact = np.isnat(times) | ((times >= np.datetime64("0001-01-01")) & (times <= np.datetime64("9999-12-31")))
        yield places[exact], pa.array(times[exact], type_)
    elif np.datetime_data(times.dtype)[0] == "generic":
        yield places[np.isnat(times)], pa.nulls(np.count_nonzero(np.isnat(times)), type_)
    else:
        in_us = times.astype("datetime64[us]")
        exact = np.isnat(times) | (in_us.astype(times.dtype) == times)
        yield places[exact], pa.array(in_us[exact]).cast(pa.int64()).cast(type_)


def _is_plain_time(value: dt.datetime | None) -> bool:
    """Return whether a value is null, or a time in a zone of whole offsets."""
    return value is None or _is_whole_zone(value.tzinfo)


def _is_whole_zone(zone: dt.tzinfo | None) -> bool:
    """Return whether no offset of a zone has microseconds, which Arrow would drop."""
    if zone is None or zone is dt.timezone.utc or isinstance(zone, zoneinfo.ZoneInfo):
        return True
    return type(zone) is dt.timezone and not zone.utcoffset(None).microseconds


def _carefully(
    values: Sequence[Any],
    places: list[int],
    type_: pa.DataType,
    careful: Callable[[Any, pa.DataType], Any],
    unfit: dict[int, UnfitError] | None,
) -> pa.Array:
    exact: list[Any] = []
    for i in places:
        try:
            scalar = _unwrapped(values[i], type_)
            exact.append(None if is_null(scalar) else careful(scalar, type_))
        except _WRONG as problem:
            far = UnfitError(values[i], type_, "it is out of range")
            own = (problem if isinstance(problem, UnfitError) else far).inside("", i)
            if unfit is None:
                raise own from None
            unfit[i] = own
            exact.append(None)
    try:
        return pa.array(exact, type_)
    except _WRONG:
        pass
    for place, i in enumerate(places):
        try:
            pa.array(exact[place : place + 1], type_)
        except _WRONG:
            own = UnfitError(values[i], type_, "it is out of range").inside("", i)
            if unfit is None:
                raise own from None
            unfit[i], exact[place] = own, None
    return pa.array(exact, type_)


def is_null(value: object) -> bool:
    """Return whether a value means null: None, ``pandas.NA``, ``pandas.NaT``, NumPy's ``NaT``."""
    if value is None:
        return True
    kind = type(value)
    if kind.__name__ in _PANDAS_NULLS and kind.__module__.startswith("pandas"):
        return True
    return isinstance(value, (np.datetime64, np.timedelta64)) and bool(np.isnat(value))


def _unwrapped(value: Any, type_: pa.DataType) -> Any:
    """Return a value out of Arrow's scalars and NumPy's arrays without dimensions."""
    if isinstance(value, pa.Scalar):
        if not value.is_valid:
            return None
        if not fits(value.type, type_, SENT):
            _refuse(value, type_)
        return fit(pa.repeat(value, 1), type_, SENT, ())[0].as_py()
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _refuse(value: object, type_: pa.DataType, why: str = "it is another kind of value", hint: str = "") -> NoReturn:
    raise UnfitError(value, type_, why, hint)


def _refuse_loss(value: object, type_: pa.DataType, hint: str = "") -> NoReturn:
    raise UnfitError(value, type_, "a part of the value would be lost", hint)


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))


def _bool(value: Any, type_: pa.DataType) -> bool:
    return bool(value) if isinstance(value, (bool, np.bool_)) else _refuse(value, type_)


def _int(value: Any, type_: pa.DataType) -> int:
    if isinstance(value, (float, np.floating, decimal.Decimal)):
        if not math.isfinite(value):
            _refuse(value, type_, "it is not finite", "give None where there is no value")
        if isinstance(value, decimal.Decimal) and value and value.adjusted() > 20:
            _refuse(value, type_, "it is out of range", "declare the column decimal")
        if value != int(value):
            _refuse_loss(value, type_, "round it, or declare the column double")
    elif not _is_whole(value):
        hint = ""
        if isinstance(value, (dt.datetime, np.datetime64)):
            hint = "give milliseconds since 1970: round(value.timestamp() * 1000), or declare the column timestamp"
        elif isinstance(value, str) and ISO_TIME.fullmatch(value):
            hint = "give milliseconds since 1970, or declare the column timestamp, which takes such texts"
        _refuse(value, type_, hint=hint)
    whole = int(value)
    if not -(1 << (type_.bit_width - 1)) <= whole < 1 << (type_.bit_width - 1):
        _refuse(value, type_, "it is out of range", "declare a wider type")
    return whole


def _float(value: Any, type_: pa.DataType) -> float:
    if isinstance(value, (float, np.floating)):
        number = float(value)
        if isinstance(value, np.longdouble) and value == value and np.longdouble(number) != value:
            _refuse_loss(value, type_)
    elif isinstance(value, decimal.Decimal) or _is_whole(value):
        number = float(value)
        exact = decimal.Decimal(number) == (value if isinstance(value, decimal.Decimal) else int(value))
        if math.isfinite(number) and not exact:
            _refuse_loss(value, type_, "give a float, or declare the column decimal or bigint")
        if math.isinf(number) and not (isinstance(value, decimal.Decimal) and value.is_infinite()):
            _refuse(value, type_, "it is out of range")
    else:
        _refuse(value, type_)
    if type_.bit_width == 32 and math.isfinite(number):
        with np.errstate(over="ignore"):
            narrow = float(np.float32(number))
        if math.isinf(narrow):
            _refuse_loss(value, type_, "declare the column double")
        if narrow != number and not isinstance(value, (float, np.floating)):
            _refuse_loss(value, type_, "give a float, or declare the column double")
        return narrow
    return number


def _text(value: Any, type_: pa.DataType) -> str:
    if not isinstance(value, str):
        hint = "decode it: value.decode()" if isinstance(value, (bytes, bytearray)) else "give a text: str(value)"
        _refuse(value, type_, hint=hint)
    plain = str.__str__(value)
    try:
        plain.encode()
    except UnicodeEncodeError:
        _refuse(value, type_, "it holds half a surrogate pair, which UTF-8 cannot write")
    return plain


def _bytes(value: Any, type_: pa.DataType) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        _refuse(value, type_, hint="encode it: value.encode()" if isinstance(value, str) else "")
    return bytes(value)


def _date(value: Any, type_: pa.DataType) -> dt.date:
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None or value.time() != dt.time() or getattr(value, "nanosecond", None):
            _refuse_loss(value, type_, "give its day: value.date()")
        return value.date()
    if isinstance(value, np.datetime64):
        if np.datetime_data(value)[0] != "D":
            _refuse(value, type_, "its time of day would be lost", "give its day: value.astype('datetime64[D]')")
        day = value.item()
        return day if isinstance(day, dt.date) else _refuse(value, type_, "it is out of range")
    if isinstance(value, str):
        hint = 'write it as "2024-01-31"'
        if not _ISO_DAY.fullmatch(value):
            _refuse(value, type_, "the text is not a date of ISO 8601", hint)
        try:
            return dt.date.fromisoformat(value)
        except ValueError as problem:  # 30 February
            _refuse(value, type_, str(problem), hint)
    if not isinstance(value, dt.date):
        _refuse(value, type_, hint="give a datetime.date: date(2024, 1, 31), date(1970, 1, 1) + timedelta(days=n)")
    return value


def _of_text(value: str, type_: pa.DataType) -> dt.datetime:
    """Return the time that a text of ISO 8601 is."""
    try:
        moment = iso_moment(value)
    except ValueError as problem:
        _refuse(value, type_, str(problem), 'write it as "2024-01-31T12:00:00Z"')
    if moment.tzinfo is not None and type_.tz is None:
        hint = "leave the zone out of the text, or declare the column timestamp"
        _refuse(value, type_, "its time zone would be lost", hint)
    return moment


def _microseconds(value: Any, type_: pa.DataType) -> int:
    """Return a time or length of NumPy's in µs."""
    unit, step = np.datetime_data(value)
    if unit in ("Y", "M"):
        if isinstance(value, np.timedelta64):
            _refuse(value, type_, "months and years have no fixed length", "give days or hours")
        value, unit, step = value.astype("datetime64[D]"), "D", 1
    if unit == "generic":
        _refuse(value, type_, "it has no unit", "give a unit: np.timedelta64(5, 's')")
    count = int(value.astype(np.int64)) * step
    if unit in _UNIT_US:
        us = count * _UNIT_US[unit]
    else:
        us, rest = divmod(count, _PARTS_OF_US[unit])
        if rest:
            _refuse_loss(value, type_, "round it to microseconds")
    return us if -_INT64 <= us < _INT64 else _refuse(value, type_, "it is out of range")


def _time(value: Any, type_: pa.DataType) -> Any:
    if isinstance(value, np.datetime64):
        return _microseconds(value, type_)
    if isinstance(value, str):
        value = _of_text(value, type_)
    if not isinstance(value, dt.datetime):
        hint = ""
        if isinstance(value, (int, float, decimal.Decimal, np.number)) and not isinstance(value, np.timedelta64):
            hint = "give datetime.fromtimestamp(seconds, timezone.utc), or declare the column bigint and give milliseconds"
        elif isinstance(value, dt.date):
            hint = "give datetime.combine(day, time()) of the day"
        _refuse(value, type_, hint=hint)
    if getattr(value, "nanosecond", 0):
        _refuse_loss(value, type_, "round it: value.round('us')")
    offset = value.utcoffset()
    if offset is not None and type_.tz is None:
        _refuse(value, type_, "its time zone would be lost", "give value.replace(tzinfo=None), or declare the column timestamp")
    stamp = dt.datetime(value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
    since = stamp - dt.datetime(1970, 1, 1)
    return (since if offset is None else since - offset) // dt.timedelta(microseconds=1)


def _length(value: Any, type_: pa.DataType) -> Any:
    if isinstance(value, np.timedelta64):
        return _microseconds(value, type_)
    if not isinstance(value, dt.timedelta):
        _refuse(value, type_, hint="give a datetime.timedelta: timedelta(seconds=n)")
    if getattr(value, "nanoseconds", 0):
        _refuse_loss(value, type_, "round it: value.round('us')")
    return (value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds


def _decimal(value: Any, type_: pa.DataType) -> decimal.Decimal:
    if isinstance(value, decimal.Decimal):
        number = value
    elif _is_whole(value):
        number = decimal.Decimal(int(value))
    else:
        floating = isinstance(value, (float, np.floating))
        _refuse(value, type_, hint="give a Decimal: Decimal(str(value))" if floating else "give a decimal.Decimal")
    if not number.is_finite():
        _refuse(value, type_, "it is not finite", "give None where there is no value")
    try:
        number = number.quantize(decimal.Decimal((0, (1,), -type_.scale)), context=_EXACT)
    except decimal.InvalidOperation:
        _refuse(value, type_, "it is out of range", "declare a decimal of more digits")
    except decimal.Inexact:
        _refuse_loss(value, type_, f"round it to {type_.scale} digits after the point, or declare more of them")
    if number and number.adjusted() + 1 > type_.precision - type_.scale:
        _refuse(value, type_, "it is out of range", "declare a decimal of more digits")
    return number


_Rule: TypeAlias = tuple[frozenset[type], Callable[[Any, pa.DataType], Any] | None]


def _rules(type_: pa.DataType) -> _Rule:
    """Return the Python types of which Arrow takes every value exactly or not at all, and the careful way for all others."""
    t = pa.types
    if t.is_boolean(type_):
        return frozenset({bool, _NONE}), _bool
    if t.is_signed_integer(type_):
        return frozenset({int, _NONE}), _int
    if t.is_float64(type_):
        return frozenset({float, int, _NONE}), _float
    if t.is_float32(type_):
        return frozenset({float, _NONE}), _float
    if t.is_string(type_):
        return frozenset({str, _NONE}), _text
    if t.is_binary(type_):
        return frozenset({bytes, _NONE}), _bytes
    if t.is_date32(type_):
        return frozenset({dt.date, _NONE}), _date
    if t.is_timestamp(type_) and type_.unit == "us":
        return frozenset({dt.datetime, str, _NONE}), _time
    if t.is_duration(type_) and type_.unit == "us":
        return frozenset({dt.timedelta, _NONE}), _length
    if t.is_decimal128(type_):
        return frozenset({decimal.Decimal, int, _NONE}), _decimal
    return frozenset(), None


def _other(values: Sequence[Any], type_: pa.DataType, extra_fields: bool) -> pa.Array:
    """Types that no stream has as they are: by way of the one that a stream has instead."""
    if pa.types.is_null(type_):
        for i, value in enumerate(values):
            if not is_null(value):
                raise UnfitError(value, type_, "the column has nulls only").inside("", i)
        return pa.nulls(len(values))
    if pa.types.is_timestamp(type_):
        plain = pa.timestamp("us", type_.tz and "UTC")
    else:
        plain = pa.duration("us") if pa.types.is_duration(type_) else normal_type(type_)
    if plain == type_:
        raise UnfitError(values[0] if values else None, type_, "no column can have this type")
    exact = column(values, plain, extra_fields=extra_fields)
    try:
        return exact.cast(type_)
    except pa.ArrowException:
        for i in range(len(exact)):
            try:
                exact.slice(i, 1).cast(type_)
            except pa.ArrowException:
                raise UnfitError(values[i], type_, "a part of the value would be lost").inside("", i) from None
        raise


def _present(values: Sequence[Any], type_: pa.DataType, kinds: frozenset[type]) -> tuple[list[Any], _Flags | None]:
    """Return the values with None for every null, and which are null; None where no value is."""
    seen = set(map(type, values))
    if not seen <= kinds:
        values = [None if v is None or is_null(v) else _opened(v) for v in values]
        seen = set(map(type, values))
    if _NONE not in seen:
        return list(values), None
    return list(values), np.fromiter((v is None for v in values), np.bool_, len(values))


def _opened(value: Any) -> Any:
    if isinstance(value, pa.Scalar):
        return value.as_py()
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _required(array: pa.Array, field: pa.Field, path: str, missing: _Flags | None = None) -> pa.Array:
    """Refuse nulls in what was declared without."""
    if not field.nullable and array.null_count:
        nulls = array.is_null().to_numpy(zero_copy_only=False)
        nulls = nulls if missing is None else nulls & ~missing
        if nulls.any():
            problem = UnfitError(None, field.type, "it was declared without nulls", "give a value, or declare it nullable")
            raise problem.inside(path, int(np.argmax(nulls)))
    return array


def _structs(values: Sequence[Any], type_: pa.DataType, extra_fields: bool) -> pa.Array:
    rows, missing = _present(values, type_, frozenset({dict, _NONE}))
    names = {f.name for f in type_}
    for i, row in enumerate(rows):
        if type(row) is not dict and row is not None:
            row = rows[i] = _named(row, type_, i)
        if row is not None and not extra_fields and not row.keys() <= names:
            name = next(n for n in row if n not in names)
            raise unknown_name(row[name], type_, name, list(names)).inside(f".{name}", i)
    arrays = []
    for field in type_:
        name = field.name
        try:
            below = column([None if row is None else row.get(name) for row in rows], field.type, extra_fields=extra_fields)
        except UnfitError as problem:
            raise problem.inside(f".{name}", problem.row) from None
        arrays.append(_required(below, field, f".{name}", missing))
    mask = None if missing is None else pa.array(missing)
    if not arrays:
        return pa.array([None if row is None else {} for row in rows], type_)
    return pa.StructArray.from_arrays(arrays, fields=list(type_), mask=mask)


def unknown_name(value: object, type_: pa.DataType, name: object, names: list[str]) -> UnfitError:
    """Return the error for a field that a struct does not have."""
    near = [n for n in names if isinstance(name, str) and n.lower() == name.lower()]
    hint = f"write {near[0]!r}: case counts" if near else f"the fields are: {', '.join(sorted(names)[:20])}"
    return UnfitError(value, type_, "the struct does not have this field, its value would be lost", hint)


def _named(row: Any, type_: pa.DataType, index: int) -> dict[Any, Any]:
    """Return a value for a struct as a dict: any mapping, a tuple with names, or a plain one with an item for each field."""
    if isinstance(row, Mapping):
        return dict(row)
    if isinstance(row, tuple):
        names = getattr(row, "_fields", None) or getattr(row, "__fields__", None)
        if names is None and len(row) == type_.num_fields:
            names = [f.name for f in type_]
        if names is not None and len(names) == len(row):
            return dict(zip(names, row, strict=True))
    raise UnfitError(row, type_, "it is another kind of value", "give a dict of its fields").inside("", index)


def _joined(parts: list[Any], missing: _Flags | None) -> tuple[list[Any], _Flags, pa.Array]:
    """Items of all values, where those of each value begin, and the same for Arrow: null where the value is."""
    sizes = np.fromiter((0 if p is None else len(p) for p in parts), np.int64, len(parts))
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    if bounds[-1] >= 1 << 31:
        raise UnfitError(None, pa.null(), "the lists of one batch have too many items", "give fewer rows at a time")
    mask = None if missing is None else np.append(missing, False)
    offsets = pa.array(bounds.astype(np.int32), mask=mask)
    return list(itertools.chain.from_iterable(p for p in parts if p is not None)), bounds, offsets


def _from_items(problem: UnfitError, bounds: _Flags, label: str = "") -> UnfitError:
    row = bisect.bisect_right(bounds.tolist(), problem.row) - 1
    return problem.inside(f"{label}[{problem.row - int(bounds[row])}]", row)


def _lists(values: Sequence[Any], type_: pa.DataType, extra_fields: bool) -> pa.Array:
    parts, missing = _present(values, type_, frozenset({list, tuple, _NONE}))
    for i, part in enumerate(parts):
        if not isinstance(part, (list, tuple, _NONE)):
            if isinstance(part, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(part, Collection):
                raise UnfitError(part, type_, "it is another kind of value", "give a list").inside("", i)
            try:
                parts[i] = list(part)
            except Exception:  # noqa: BLE001  # a collection of the user's, or an expression, that refuses to be gone through
                raise UnfitError(part, type_, "it is another kind of value", "give a list").inside("", i) from None
    items, bounds, offsets = _joined(parts, missing)
    try:
        below = _required(column(items, type_.value_type, extra_fields=extra_fields), type_.value_field, "")
    except UnfitError as problem:
        raise _from_items(problem, bounds) from None
    return pa.ListArray.from_arrays(offsets, below, type=type_)


def _maps(values: Sequence[Any], type_: pa.DataType, extra_fields: bool) -> pa.Array:
    parts, missing = _present(values, type_, frozenset({dict, list, tuple, _NONE}))
    for i, part in enumerate(parts):
        if isinstance(part, Mapping):
            parts[i] = list(part.items())
        elif part is not None and not (
            isinstance(part, (list, tuple)) and all(isinstance(p, (tuple, list)) and len(p) == 2 for p in part)
        ):
            raise UnfitError(part, type_, "it is another kind of value", "give a dict, or a list of pairs").inside("", i)
    items, bounds, offsets = _joined(parts, missing)
    try:
        keys = _required(column([k for k, _ in items], type_.key_type, extra_fields=extra_fields), type_.key_field, "")
    except UnfitError as problem:
        raise _from_items(problem, bounds, ".key") from None
    try:
        below = _required(column([v for _, v in items], type_.item_type, extra_fields=extra_fields), type_.item_field, "")
    except UnfitError as problem:
        raise _from_items(problem, bounds, ".value") from None
    return pa.MapArray.from_arrays(offsets, keys, below, type=type_)
