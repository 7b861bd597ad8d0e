"""Text to values and values to text, written as Spark writes them. Converters give the values and a mask of what is none."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import flags as flags
from krishiv_py.arrays.types import numpy_type
from krishiv_py.functions.computing.values import LOCAL, Mask, is_timestamp

Converted: TypeAlias = "tuple[pa.Array, Mask | None]"

_BLANKS: Final = "".join(map(chr, range(0x21))) + "\x7f"
_WHOLE: Final = r"^[+-]?[0-9]+$"
_SHORT: Final = r"^-?[0-9]{1,18}$"
_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,5})?$"
_SPECIAL: Final = {
    "inf": "inf",
    "+inf": "inf",
    "infinity": "inf",
    "+infinity": "inf",
    "-inf": "-inf",
    "-infinity": "-inf",
    "nan": "nan",
}
_TRUE: Final = ("t", "true", "y", "yes", "1")
_FALSE: Final = ("f", "false", "n", "no", "0")
_DATE: Final = r"^(?P<y>[+-]?[0-9]{4,7})(?:-(?P<m>[0-9]{1,2})(?:-(?P<d>[0-9]{1,2})(?:[ T](?s:.*))?)?)?$"
_TIME: Final = (
    r"^(?P<y>[+-]?[0-9]{4,7})(?:-(?P<m>[0-9]{1,2})(?:-(?P<d>[0-9]{1,2})"
    r"(?:[ T](?P<H>[0-9]{1,2})(?::(?P<M>[0-9]{1,2})(?::(?P<S>[0-9]{1,2})(?:\.(?P<f>[0-9]{1,9}))?"
    r"(?: ?(?:Z|UTC|GMT)?(?:(?P<zs>[+-])(?P<zh>[0-9]{1,2})(?::(?P<zm>[0-9]{1,2}))?)?)?)?)?)?)?)?$"
)
_US_PER_DAY: Final = 86_400_000_000
_EXACT: Final = decimal.Context(prec=120, rounding=decimal.ROUND_HALF_UP, Emax=999_999, Emin=-999_999)


def trimmed(column: pa.Array) -> pa.Array:
    """Without blanks and control characters around."""
    return pc.utf8_trim(column, characters=_BLANKS)


def _bad(ok: Any) -> Mask:
    """Return what is not ok, and not null."""
    return flags(pc.invert(ok))


def _only(column: pa.Array, ok: Any) -> pa.Array:
    return pc.if_else(ok, column, pa.scalar(None, column.type))


def whole_numbers(column: pa.Array) -> Converted:
    """``bigint``, or decimals of 76 digits where texts are longer."""
    text = trimmed(column)
    if not _bad(pc.match_substring_regex(text, _SHORT)).any():
        return pc.cast(text, pa.int64()), None
    ok = pc.and_(pc.match_substring_regex(text, _WHOLE), pc.less_equal(pc.binary_length(text), 70))
    plain = pc.replace_substring_regex(_only(text, ok), r"^\+", "")
    return pc.cast(plain, pa.decimal256(76, 0)), _bad(ok)


def floats(column: pa.Array, type_: pa.DataType) -> Converted:
    """Numbers with point or exponent, ``inf``, ``infinity`` and ``NaN`` whatever their case."""
    text = trimmed(column)
    ok = pc.match_substring_regex(text, _NUMBER)
    out = [None if x is None else float(x) for x in _only(text, ok).to_pylist()]
    bad = _bad(ok)
    for row in np.flatnonzero(bad):
        special = _SPECIAL.get(text[int(row)].as_py().lower())
        if special is not None:
            out[row], bad[row] = float(special), False
    with np.errstate(over="ignore"):
        return pc.cast(pa.array(out, pa.float64()), type_, safe=False), bad


def decimals(column: pa.Array, type_: pa.DataType) -> Converted:
    """Rounded half up."""
    text = trimmed(column)
    ok = pc.match_substring_regex(text, _NUMBER)
    result, long = quantized([None if x is None else decimal.Decimal(x) for x in _only(text, ok).to_pylist()], type_)
    return result, _bad(ok) | long


def quantized(values: list[decimal.Decimal | None], type_: pa.DataType) -> tuple[pa.Array, Mask]:
    """Decimals rounded half up to a type, and the mask of those with too many digits."""
    unit = decimal.Decimal(1).scaleb(-type_.scale)
    limit = decimal.Decimal(10) ** (type_.precision - type_.scale)
    long = np.zeros(len(values), np.bool_)
    out: list[decimal.Decimal | None] = []
    for row, value in enumerate(values):
        exact = None
        if value is not None:
            exact = value if abs(value) >= limit else value.quantize(unit, context=_EXACT)
            long[row] = abs(exact) >= limit
        out.append(None if long[row] else exact)
    return pa.array(out, type_), long


def booleans(column: pa.Array) -> Converted:
    """``t true y yes 1`` and ``f false n no 0``, whatever their case."""
    text = pc.utf8_lower(trimmed(column))
    true = pc.is_in(text, value_set=pa.array(_TRUE))
    ok = pc.or_(true, pc.is_in(text, value_set=pa.array(_FALSE)))
    return _only(true, pc.is_valid(text)), flags(pc.and_(pc.invert(ok), pc.is_valid(text)))


def _part(parts: pa.Array, name: str, default: int) -> npt.NDArray[np.int64]:
    text = pc.struct_field(parts, parts.type.get_field_index(name))
    plain = pc.replace_substring_regex(pc.if_else(pc.equal(text, ""), str(default), text), r"^\+", "")
    part: npt.NDArray[np.int64] = pc.fill_null(pc.cast(plain, pa.int64()), default).to_numpy(zero_copy_only=False)
    return part


def _days(parts: pa.Array) -> tuple[npt.NDArray[np.int64], Mask]:
    """Days since the epoch, and which are in the calendar."""
    year, month, day = _part(parts, "y", 1970), _part(parts, "m", 1), _part(parts, "d", 1)
    months = (year - 1970) * 12 + np.clip(month, 1, 12) - 1
    start, end = (m.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) for m in (months, months + 1))
    return start + day - 1, (month >= 1) & (month <= 12) & (day >= 1) & (start + day - 1 < end)


def dates(column: pa.Array) -> Converted:
    """``2024-01-31``, ``2024-1``, ``2024``; what follows a full date after a blank or T is not looked at."""
    text = trimmed(column)
    parts = pc.extract_regex(text, _DATE)
    days, fits = _days(parts)
    missing = text.is_null().to_numpy(zero_copy_only=False)
    bad = (flags(pc.is_null(parts)) | ~fits) & ~missing
    return pa.array(days.astype(np.int32), pa.int32(), mask=bad | missing).cast(pa.date32()), bad


def times(column: pa.Array, type_: pa.DataType) -> Converted:
    """A date, then hours, minutes, seconds and a fraction; after seconds a zone: Z, UTC, GMT or an offset; no zone is UTC."""
    text = trimmed(column)
    parts = pc.extract_regex(text, _TIME)
    us, fits = _micros(parts)
    zone_hour, zone_minute = _part(parts, "zh", 0), _part(parts, "zm", 0)
    fits &= (zone_hour * 60 + zone_minute <= 18 * 60) & (zone_minute < 60)
    if type_.tz:
        west = flags(pc.equal(pc.struct_field(parts, parts.type.get_field_index("zs")), "-"))
        us = us - np.where(west, -1, 1) * (zone_hour * 60 + zone_minute) * 60_000_000
    missing = text.is_null().to_numpy(zero_copy_only=False)
    bad = (flags(pc.is_null(parts)) | ~fits) & ~missing
    return pa.array(us, pa.int64(), mask=bad | missing).cast(type_), bad


def times_by(column: pa.Array, regex: str) -> Converted:
    """Times, without zone, of texts that a pattern reads (:func:`~krishiv_py.functions.computing.dates.read_regex`)."""
    parts = pc.extract_regex(column, regex)
    us, fits = _micros(parts)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    bad = (flags(pc.is_null(parts)) | ~fits) & ~missing
    return pa.array(us, pa.int64(), mask=bad | missing).cast(LOCAL), bad


def _micros(parts: pa.Array) -> tuple[npt.NDArray[np.int64], Mask]:
    """Microseconds since the epoch, and which are in the calendar and on the clock."""
    days, fits = _days(parts)
    hour, minute, second = (_part(parts, name, 0) for name in "HMS")
    fits &= (hour < 24) & (minute < 60) & (second < 60) & (np.abs(days) < 106_000_000)
    digits = pc.struct_field(parts, parts.type.get_field_index("f"))
    padded = pc.utf8_slice_codeunits(pc.utf8_rpad(pc.fill_null(digits, ""), 6, padding="0"), 0, 6)
    micros = pc.cast(padded, pa.int64()).to_numpy(zero_copy_only=False)
    return np.clip(days, -106_000_000, 106_000_000) * _US_PER_DAY + (
        hour * 3600 + minute * 60 + second
    ) * 1_000_000 + micros, fits


def written(column: pa.Array) -> Converted:
    """Values as text."""
    type_ = column.type
    if pa.types.is_floating(type_):
        exact = numpy_type(type_).type
        return pa.array([None if x is None else _float(exact(x)) for x in column.to_pylist()], pa.string()), None
    if is_timestamp(type_):
        text = pc.cast(pc.cast(column, LOCAL), pa.string())
        return pc.utf8_rtrim(pc.utf8_rtrim(text, characters="0"), characters="."), None
    if pa.types.is_decimal(type_):
        text = pc.cast(column, pa.string())
        if not flags(pc.match_substring(text, "E")).any():
            return text, None
        return pa.array([None if x is None else f"{x:f}" for x in column.to_pylist()], pa.string()), None
    if pa.types.is_binary(type_):
        return _decoded(column)
    return pc.cast(column, pa.string()), None


def _decoded(column: pa.Array) -> Converted:
    try:
        return pc.cast(column, pa.string()), None
    except pa.ArrowInvalid:  # some are not UTF-8: find out which
        out: list[str | None] = []
        bad = np.zeros(len(column), np.bool_)
        for row, value in enumerate(column.to_pylist()):
            try:
                out.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                out.append(None)
                bad[row] = True
        return pa.array(out, pa.string()), bad


def _float(x: np.floating[Any]) -> str:
    """As Java writes it: ``1.0``, ``1.0E10``, ``NaN``, ``Infinity``."""
    if np.isnan(x):
        return "NaN"
    if np.isinf(x):
        return "Infinity" if x > 0 else "-Infinity"
    if x == 0 or 1e-3 <= abs(float(x)) < 1e7:
        return np.format_float_positional(x, unique=True, trim="0")
    mantissa, _, exponent = np.format_float_scientific(x, unique=True, trim="0").partition("e")
    if mantissa.endswith(".0"):  # one digit would do, and Java writes the nearest number of two: 4.9E-324
        mantissa, _, exponent = f"{float(x):.1e}".partition("e")
    return f"{mantissa}E{int(exponent)}"


def shown(column: pa.Array, row: int) -> str:
    """One value for an error text."""
    try:
        value = column[row].as_py()
    except (ValueError, OverflowError):  # a time Python does not know
        return str(column[row])
    return str(value) if isinstance(value, (dt.datetime, dt.date, decimal.Decimal)) else repr(value)[:60]
