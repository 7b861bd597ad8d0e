"""Conversions, by the rules of Spark's ANSI mode; what has no counterpart is an error, or null where it was only tried."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import flags, numpy_type
from krishiv_py.errors import ExpressionError, SchemaError
from krishiv_py.functions.computing import text
from krishiv_py.functions.computing.text import Converted
from krishiv_py.functions.computing.values import (
    INSTANT,
    LOCAL,
    FaultError,
    Mask,
    Value,
    arrays,
    coerced,
    fitted,
    joined,
    nearest,
    wide,
)
from krishiv_py.types import normal_type, type_text

_US_PER: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_US_PER_DAY: Final = 86_400_000_000
_MAX: Final = 2**63 - 1


@attrs.frozen
class Target:
    """Holds what is converted to: the type asked for, the one Spark has for it, and what a number means as a point in time."""

    wanted_type: pa.DataType
    type: pa.DataType
    unit: str
    named: bool


Converter: TypeAlias = Callable[[pa.Array, Target], Converted]


def result_type(type_: pa.DataType) -> pa.DataType:
    """The type as Spark knows it, inside lists and structs too."""
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(type_.value_field.with_type(result_type(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([f.with_type(result_type(f.type)) for f in type_])
    if pa.types.is_map(type_):
        return pa.map_(result_type(type_.key_type), result_type(type_.item_type))
    if pa.types.is_date(type_):
        return pa.date32()
    return pa.duration("us") if pa.types.is_duration(type_) else normal_type(type_)


def _kind(type_: pa.DataType) -> str:
    types = pa.types
    if types.is_timestamp(type_):
        return "instant" if type_.tz else "local"
    names = (
        ("int", types.is_integer),
        ("decimal", types.is_decimal),
        ("bool", types.is_boolean),
        ("text", types.is_string),
        ("binary", types.is_binary),
        ("date", types.is_date),
        ("duration", types.is_duration),
        ("nested", types.is_nested),
    )
    if types.is_float32(type_) or types.is_float64(type_):
        return "float"
    return next((name for name, holds in names if holds(type_)), "other")


def cast(value: Value, wanted: pa.DataType, named: bool = False, tried: bool = False) -> Value:
    """The value of a cast whose argument has `value`.

    Raises
    ------
    ExpressionError
        For types between which there is no conversion.
    FaultError
        For a value that has no counterpart.
    """
    try:
        type_ = result_type(wanted)
    except SchemaError as problem:
        raise ExpressionError(str(problem)) from problem
    if value.type == type_ == wanted:
        return value
    if pa.types.is_null(value.type):
        return pc.cast(value, type_)
    unit = wanted.unit if pa.types.is_timestamp(wanted) or pa.types.is_duration(wanted) else "s"
    target = Target(wanted, type_, "s" if named else unit, named)
    (column,), single = arrays(value)
    result, bad = _rule(column.type, target)(column, target)
    if bad is not None and bad.any():
        if not tried:
            row = int(np.flatnonzero(bad)[0])
            raise FaultError(f"{text.shown(column, row)} in row {row} has no counterpart as {type_text(type_)}")
        result = pc.if_else(pa.array(bad), pa.scalar(None, result.type), result)
    return joined(result if result.type == type_ else pc.cast(result, type_, safe=False), single)


def _rule(source: pa.DataType, target: Target) -> Converter:
    pair = _kind(source), _kind(target.type)
    rule = _RULES.get(pair)
    if pair[1] in ("local", "duration") and pair[0] in ("int", "float", "decimal") and target.named:
        rule = None
    if pair == ("nested", "nested") and _alike(source, target.type):
        rule = _nested
    if rule is None:
        raise ExpressionError(
            f"{type_text(source)} cannot be cast to {type_text(target.wanted_type)}",
            got="types without a conversion between them",
            then="no value of the one stands for a value of the other",
            hint=_instead(pair),
        )
    return rule


def _instead(pair: tuple[str, str]) -> str:
    """Return what to write for a cast that there is none of."""
    times, numbers = ("instant", "local", "date"), ("int", "float", "decimal")
    if pair[0] in times and pair[1] in numbers:
        return "for milliseconds write unix_millis(CAST(x AS timestamp)), in Python x.cast('timestamp').unix_millis()"
    if pair[0] in numbers and pair[1] in times:
        write = f"CAST(timestamp_millis(x) AS {'date' if pair[1] == 'date' else 'timestamp_ntz'})"
        return f"for milliseconds write {write}, for seconds timestamp_seconds, in Python func('timestamp_millis', x)"
    return "see the table of conversions in docs/expressions.md, or use map_batches"


def _alike(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether nested types differ in the width of numbers and the length of texts only."""
    if _kind(source) != "nested" or _kind(target) != "nested":
        same = _kind(source) == _kind(target) and _kind(source) in ("int", "float", "text", "binary")
        return same or source == target
    if source.num_fields != target.num_fields or source.id != target.id:
        return False
    return all(
        source.field(i).name == target.field(i).name and _alike(source.field(i).type, target.field(i).type)
        for i in range(source.num_fields)
    )


def _nested(column: pa.Array, target: Target) -> Converted:
    try:
        return pc.cast(_exposed(column), target.type), None
    except pa.ArrowInvalid as problem:
        raise FaultError(str(problem).splitlines()[0]) from problem


def _exposed(column: pa.Array) -> pa.Array:
    """Return a column without values outside of its rows and below nulls: Arrow's cast looks at them, too."""
    if not pa.types.is_nested(column.type):
        return column
    column = column.take(pa.array(np.arange(len(column))))
    missing = column.is_null() if column.null_count else None
    if pa.types.is_struct(column.type):
        parts = [_exposed(part) for part in column.flatten()]
        return pa.StructArray.from_arrays(parts, fields=list(column.type), mask=missing) if parts else column
    if pa.types.is_list(column.type):
        return pa.ListArray.from_arrays(column.offsets, _exposed(column.values), column.type, mask=missing)
    return column


def _plain(column: pa.Array) -> npt.NDArray[Any]:
    plain: npt.NDArray[Any] = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return plain


def _nulls(column: pa.Array) -> Mask | None:
    return column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None


def _array(values: npt.NDArray[Any], column: pa.Array, bad: Mask | None) -> pa.Array:
    nulls = _nulls(column)
    return pa.array(values, mask=bad if nulls is None else nulls if bad is None else bad | nulls)


def _bounds(type_: pa.DataType) -> tuple[int, int]:
    info = np.iinfo(numpy_type(type_))
    return int(info.min), int(info.max)


def _narrow(column: pa.Array, target: Target) -> Converted:
    """Whole numbers in fewer bits."""
    low, high = _bounds(target.wanted_type)
    least, most = _bounds(column.type)
    if low <= least and most <= high:
        return pc.cast(column, target.type), None
    numbers = _plain(column)
    bad = (numbers < low) | (numbers > high)
    return _array(np.where(bad, 0, numbers), column, bad), bad


def _float_to_int(column: pa.Array, target: Target) -> Converted:
    low, high = _bounds(target.wanted_type)
    numbers = _plain(column).astype(np.float64)
    with np.errstate(invalid="ignore"):
        whole = np.trunc(numbers)
        bad = ~((whole >= float(low)) & (whole < float(high) + 1))
    return _array(np.where(bad, 0, whole).astype(np.int64), column, bad), bad


def _decimal_to_int(column: pa.Array, target: Target) -> Converted:
    low, high = _bounds(target.wanted_type)
    return _whole(column, low, high)


def _whole(column: pa.Array, low: int, high: int) -> Converted:
    whole = pc.trunc(wide(column, column.type.scale))
    low_, high_ = (pa.scalar(decimal.Decimal(bound), pa.decimal256(76, 0)) for bound in (low, high))
    short = pc.cast(whole, pa.decimal256(76, 0))
    bad = flags(pc.or_(pc.less(short, low_), pc.greater(short, high_)))
    return pc.cast(pc.if_else(pa.array(bad), pa.scalar(None, short.type), short), pa.int64()), bad


def _to_float(column: pa.Array, target: Target) -> Converted:
    return pc.cast(column, target.type, safe=False), None


def _to_decimal(column: pa.Array, target: Target) -> Converted:
    result, over = fitted(wide(column, column.type.scale if pa.types.is_decimal(column.type) else 0), target.type)
    return result, flags(over)


def _float_to_decimal(column: pa.Array, target: Target) -> Converted:
    """Of the shortest text of the double, as it would be written; NaN and infinity are null, as in Spark."""
    numbers = _plain(column).astype(np.float64)
    bad = ~np.isfinite(numbers)
    nulls = _nulls(column)
    skipped = bad if nulls is None else bad | nulls
    result, long = text.quantized(
        [None if skip else decimal.Decimal(repr(float(x))) for x, skip in zip(numbers, skipped, strict=True)], target.type
    )
    return result, long


def _bool_to_number(column: pa.Array, target: Target) -> Converted:
    whole = pc.cast(column, pa.int8())
    return _to_decimal(whole, target) if pa.types.is_decimal(target.type) else (pc.cast(whole, target.type), None)


def _to_bool(column: pa.Array, _target: Target) -> Converted:
    if pa.types.is_decimal(column.type):
        return pc.not_equal(column, pa.scalar(decimal.Decimal(0), column.type)), None
    return pc.not_equal(column, pa.scalar(0, column.type)), None


def _int_to_time(column: pa.Array, target: Target) -> Converted:
    numbers = _plain(column).astype(np.int64)
    if target.unit == "ns":
        return _array(numbers // 1_000, column, None).cast(target.type), None
    unit = _US_PER[target.unit]
    bad = (numbers > _MAX // unit) | (numbers < -(_MAX // unit))
    return _array(np.where(bad, 0, numbers) * unit, column, bad).cast(target.type), bad


def _float_to_time(column: pa.Array, target: Target) -> Converted:
    numbers = _plain(column).astype(np.float64)
    with np.errstate(all="ignore"):
        us = np.trunc(numbers / 1_000 if target.unit == "ns" else numbers * _US_PER[target.unit])
        bad = ~(np.abs(us) < 2.0**63)
    return _array(np.where(bad, 0, us).astype(np.int64), column, bad).cast(target.type), bad


def _decimal_to_time(column: pa.Array, target: Target) -> Converted:
    scale = column.type.scale
    if target.unit == "ns":
        us = pc.divide(pc.cast(column, pa.decimal256(60, scale)), pa.scalar(decimal.Decimal(1_000), pa.decimal256(4, 0)))
    else:
        unit = pa.scalar(decimal.Decimal(_US_PER[target.unit]), pa.decimal256(7, 0))
        us = pc.multiply_checked(pc.cast(column, pa.decimal256(60, scale)), unit)
    result, bad = _whole(us, -_MAX, _MAX)
    return result.cast(target.type), bad


def _seconds(column: pa.Array) -> pa.Array:
    return pa.array(_plain(pc.cast(column, pa.int64())) / 1_000_000.0, mask=_nulls(column))


def _time_to_int(column: pa.Array, target: Target) -> Converted:
    whole = pa.array(_plain(pc.cast(column, pa.int64())) // 1_000_000, pa.int64(), mask=_nulls(column))
    return _narrow(whole, target)


def _time_to_date(column: pa.Array, _target: Target) -> Converted:
    days = _plain(pc.cast(column, pa.int64())) // _US_PER_DAY
    return pa.array(days.astype(np.int32), pa.int32(), mask=_nulls(column)).cast(pa.date32()), None


def _date_to_time(column: pa.Array, target: Target) -> Converted:
    days = _plain(pc.cast(column, pa.int32())).astype(np.int64)
    bad = np.abs(days) > _MAX // _US_PER_DAY
    return _array(np.where(bad, 0, days) * _US_PER_DAY, column, bad).cast(target.type), bad


def _text_to_int(column: pa.Array, target: Target) -> Converted:
    result, bad = text.whole_numbers(column)
    result, outside = (
        _whole(result, *_bounds(target.wanted_type)) if pa.types.is_decimal(result.type) else _narrow(result, target)
    )
    return result, outside if bad is None else bad if outside is None else bad | outside


_TIMES: Final[dict[str, Converter]] = {"int": _int_to_time, "float": _float_to_time, "decimal": _decimal_to_time}
_RULES: Final[dict[tuple[str, str], Converter]] = {
    **{
        (source, "text"): lambda c, t: text.written(c)
        for source in ("int", "float", "decimal", "bool", "binary", "date", "instant", "local")
    },
    **{("bool", number): _bool_to_number for number in ("int", "float", "decimal")},
    **{(number, "bool"): _to_bool for number in ("int", "float", "decimal")},
    **{(source, kind): rule for source, rule in _TIMES.items() for kind in ("instant", "local", "duration")},
    ("int", "int"): _narrow,
    ("float", "int"): _float_to_int,
    ("decimal", "int"): _decimal_to_int,
    ("int", "float"): _to_float,
    ("float", "float"): _to_float,
    ("decimal", "float"): lambda c, t: (nearest(c, t.type), None),
    ("int", "decimal"): _to_decimal,
    ("decimal", "decimal"): _to_decimal,
    ("float", "decimal"): _float_to_decimal,
    ("text", "int"): _text_to_int,
    ("text", "float"): lambda c, t: text.floats(c, t.type),
    ("text", "decimal"): lambda c, t: text.decimals(c, t.type),
    ("text", "bool"): lambda c, t: text.booleans(c),
    ("text", "date"): lambda c, t: text.dates(c),
    ("text", "instant"): lambda c, t: text.times(c, t.type),
    ("text", "local"): lambda c, t: text.times(c, t.type),
    ("text", "text"): lambda c, t: (c, None),
    ("text", "binary"): lambda c, t: (pc.cast(c, pa.binary()), None),
    ("binary", "binary"): lambda c, t: (c, None),
    ("bool", "bool"): lambda c, t: (c, None),
    ("date", "date"): lambda c, t: (pc.cast(c, pa.date32()), None),
    ("date", "instant"): _date_to_time,
    ("date", "local"): _date_to_time,
    ("instant", "date"): _time_to_date,
    ("local", "date"): _time_to_date,
    ("instant", "int"): _time_to_int,
    ("instant", "float"): lambda c, t: _to_float(_seconds(c), t),
    ("instant", "decimal"): lambda c, t: _float_to_decimal(_seconds(c), t),
    **{(source, "local"): lambda c, t: (pc.cast(c, LOCAL), None) for source in ("instant", "local")},
    **{(source, "instant"): lambda c, t: (coerced(c, INSTANT), None) for source in ("instant", "local")},
    ("duration", "duration"): lambda c, t: (pc.cast(c, t.type), None),
}
