"""Fields of CSV to values, by the rules of Spark's reader: stricter than a cast for whole numbers, as a cast for times."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing import text
from krishiv_py.functions.computing.zone_names import zone_of
from krishiv_py.types import type_text

Mask: TypeAlias = npt.NDArray[np.bool_]
Converted: TypeAlias = "tuple[pa.Array, Mask]"
"""Values, and which fields are none."""

_SHORT: Final = r"^-?[0-9]{1,18}$"
_WHOLE: Final = re.compile(r"[+-]?\d+")
_REAL: Final = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,5})?$"
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?[0-9]{1,9})?")
_HEX: Final = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+")
_NAMED: Final = {"NaN": "nan", "Inf": "inf", "-Inf": "-inf"}
_SIGNED: Final = re.compile(r"[+-]?(NaN|Infinity)")
_BLANKS: Final = "".join(map(chr, range(0x21)))
_ZONED: Final = re.compile(r"(.*[0-9]) ?([A-Za-z][A-Za-z0-9_+/-]*)", re.DOTALL)
_FOUR_DIGITS: Final = re.compile(r"(.*:.*:.*[+-])([0-9]{2})([0-9]{2})", re.DOTALL)
_SHORT_ZONES: Final = {"EST": "-05:00", "MST": "-07:00", "HST": "-10:00"} | {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
"""Java's names of three letters."""
_EPOCH: Final = dt.datetime(1970, 1, 1)
_MICROSECOND: Final = dt.timedelta(microseconds=1)


def values(column: pa.Array, type_: pa.DataType) -> Converted:
    """Return fields as values of a type, and a mask of those that are none.

    Examples
    --------
    >>> values(pa.array(["1", " 1", "+2", None]), pa.int8())[0].to_pylist()
    [1, None, 2, None]
    """
    for holds, convert in _CONVERTERS:
        if holds(type_):
            return convert(column, type_)
    raise AssertionError(type_)


def unreadable(schema: pa.Schema) -> list[str]:
    """Columns whose type has no form in CSV, as Spark has it."""
    return [f"{f.name} {type_text(f.type)}" for f in schema if not any(holds(f.type) for holds, _ in _CONVERTERS)]


def _texts(column: pa.Array, type_: pa.DataType) -> Converted:
    return column, np.zeros(len(column), np.bool_)


def _one_by_one(column: pa.Array, ok: Any, known: pa.Array, one: Callable[[str], Any]) -> Converted:
    """Values that are `known` where `ok`, and those of the few others by a function that raises ValueError."""
    type_ = known.type
    odd = np.flatnonzero(~text.flags(ok) & text.flags(pc.is_valid(column)))
    bad = np.zeros(len(column), np.bool_)
    if not len(odd):
        return known, bad
    found: list[Any] = []
    for at in odd:
        try:
            found.append(one(column[int(at)].as_py()))
        except (ValueError, ArithmeticError):
            bad[at] = True
            found.append(None)
    at_odd = np.zeros(len(column), np.bool_)
    at_odd[odd] = True
    return pc.replace_with_mask(known, pa.array(at_odd), pa.array(found, type_)), bad


def _kept(column: pa.Array, ok: Any) -> pa.Array:
    return pc.if_else(ok, column, pa.scalar(None, pa.string()))


def _whole(column: pa.Array, type_: pa.DataType) -> Converted:
    ok = pc.match_substring_regex(column, _SHORT)
    wide = pc.cast(_kept(column, ok), pa.int64())
    lowest, highest = np.iinfo(type_.to_pandas_dtype()).min, np.iinfo(type_.to_pandas_dtype()).max

    def one(field: str) -> int:
        if not _WHOLE.fullmatch(field):
            raise ValueError
        return ranged(int(field))

    def ranged(value: int) -> int:
        if not lowest <= value <= highest:
            raise ValueError
        return value

    fits = pc.and_(ok, pc.and_(pc.greater_equal(wide, lowest), pc.less_equal(wide, highest)))
    known = pc.cast(pc.if_else(fits, wide, pa.scalar(None, pa.int64())), type_)
    return _one_by_one(column, fits, known, one)


def _real(column: pa.Array, type_: pa.DataType) -> Converted:
    ok = pc.match_substring_regex(column, _REAL)

    def one(field: str) -> float:
        if field in _NAMED:
            return float(_NAMED[field])
        inner = field.strip(_BLANKS)
        if signed := _SIGNED.fullmatch(inner):
            return float("nan") if signed[1] == "NaN" else float(inner.replace("Infinity", "inf"))
        inner = inner[:-1] if inner[-1:] in ("d", "D", "f", "F") else inner
        if _HEX.fullmatch(inner):
            return float.fromhex(inner)
        if not _NUMBER.fullmatch(inner):
            raise ValueError
        return nearest(inner)

    def nearest(field: str) -> float:
        try:
            return float(pc.cast(pa.scalar(field.removeprefix("+")), type_).as_py())
        except pa.ArrowInvalid:  # too large, or too small
            with np.errstate(over="ignore"):
                return float(np.float32(field)) if pa.types.is_float32(type_) else float(field)

    try:
        known = pc.cast(_kept(column, ok), type_)
    except pa.ArrowInvalid:
        ok = pa.array(np.zeros(len(column), np.bool_))
        known = pa.nulls(len(column), type_)
    return _one_by_one(column, ok, known, one)


def _boolean(column: pa.Array, type_: pa.DataType) -> Converted:
    small = pc.utf8_lower(column)
    true, false = pc.equal(small, "true"), pc.equal(small, "false")
    return _kept_flags(true, pc.or_(true, false)), text.flags(pc.invert(pc.or_(true, false)))


def _kept_flags(flags: pa.Array, ok: pa.Array) -> pa.Array:
    return pc.if_else(ok, flags, pa.scalar(None, pa.bool_()))


def _decimal(column: pa.Array, type_: pa.DataType) -> Converted:
    whole, scale = type_.precision - type_.scale, type_.scale
    fraction = rf"(\.[0-9]{{1,{scale}}})?" if scale else ""
    ok = pc.match_substring_regex(column, rf"^-?[0-9]{{1,{whole}}}{fraction}$" if whole else r"$^")

    def one(field: str) -> decimal.Decimal:
        plain = field.replace(",", "")
        if not _DECIMAL.fullmatch(plain):
            raise ValueError
        made, long = text.quantized([decimal.Decimal(plain)], type_)
        if long[0]:
            raise ValueError
        value: decimal.Decimal = made[0].as_py()
        return value

    return _one_by_one(column, ok, pc.cast(_kept(column, ok), type_), one)


def _date(column: pa.Array, type_: pa.DataType) -> Converted:
    found, bad = text.dates(column)
    return found, _mask(bad, len(column))


def _time(column: pa.Array, type_: pa.DataType) -> Converted:
    found, faults = text.times(column, type_)
    bad = _mask(faults, len(column))
    if type_.tz is None:  # a zone would say another time
        bad |= text.flags(pc.match_substring_regex(column, r"[0-9]:[^+-]*([A-Za-z+-].*)$"))
        return pc.if_else(pa.array(bad), pa.scalar(None, type_), found), bad

    def one(field: str) -> dt.datetime:
        inner = field.strip(_BLANKS)
        inner = inner[:-1] if inner.endswith(".") and ":" in inner else inner
        numbered = _FOUR_DIGITS.fullmatch(inner)
        if numbered:
            return plain(f"{numbered[1]}{numbered[2]}:{numbered[3]}", type_)
        named = _ZONED.fullmatch(inner)
        if not named or named[1].count(":") < 2:  # a zone comes after seconds
            return plain(inner, type_)
        name = _SHORT_ZONES.get(named[2], named[2])
        zone = zone_of(name)
        if zone is None:
            raise ValueError
        local = plain(named[1], pa.timestamp("us"))
        return local.replace(tzinfo=zone).astimezone(dt.timezone.utc)

    def plain(field: str, wanted: pa.DataType) -> dt.datetime:
        times, faults = text.times(pa.array([field]), wanted)
        if _mask(faults, 1)[0]:
            raise ValueError
        value: dt.datetime = times[0].as_py()
        return value

    return _one_by_one(column, pa.array(~bad), found, one)


def _mask(bad: Mask | None, n: int) -> Mask:
    return np.zeros(n, np.bool_) if bad is None else bad


_CONVERTERS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, pa.DataType], Converted]], ...]] = (
    (lambda t: bool(pa.types.is_string(t)), _texts),
    (lambda t: bool(pa.types.is_signed_integer(t)), _whole),
    (lambda t: bool(pa.types.is_float32(t) or pa.types.is_float64(t)), _real),
    (lambda t: bool(pa.types.is_boolean(t)), _boolean),
    (lambda t: bool(pa.types.is_decimal(t)), _decimal),
    (lambda t: bool(pa.types.is_date32(t)), _date),
    (lambda t: bool(pa.types.is_timestamp(t)), _time),
)
