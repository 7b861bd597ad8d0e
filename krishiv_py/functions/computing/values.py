"""Values of expressions, and the type in which two of them meet: that of Spark's ANSI mode; also of exact decimals."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import doubles, flags
from krishiv_py.types import MAX_DECIMAL_DIGITS, type_text

Mask: TypeAlias = npt.NDArray[np.bool_]
Value: TypeAlias = Any  # a pyarrow Array or Scalar: pyarrow's own functions take both

INSTANT: Final = pa.timestamp("us", "UTC")
LOCAL: Final = pa.timestamp("us")
DOUBLE: Final = pa.float64()
DURATION: Final = pa.duration("us")
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}
is_integer = pa.types.is_integer
is_floating = pa.types.is_floating
is_decimal = pa.types.is_decimal
is_timestamp = pa.types.is_timestamp


class FaultError(ValueError):
    """A value that cannot be computed; becomes an error that names the expression."""


def is_number(type_: pa.DataType) -> bool:
    """Return whether a type can be computed with."""
    return bool(is_integer(type_) or is_floating(type_) or is_decimal(type_))


def is_moment(type_: pa.DataType) -> bool:
    """Return whether values are points in time."""
    return bool(is_timestamp(type_) or pa.types.is_date(type_))


class NoOperationError(TypeError):
    """Types for which there is no such operation; becomes an error that names the expression."""


def misfit(*types: pa.DataType) -> NoOperationError:
    """The error for these types."""
    return NoOperationError(" and ".join(map(type_text, types)))


def literal(value: object) -> pa.Scalar:
    """A constant: whole numbers are ``bigint``, or a decimal beyond; naive datetimes have no time zone."""
    if isinstance(value, bool) or value is None:
        return pa.scalar(value)
    if isinstance(value, int):
        return pa.scalar(value, pa.int64()) if -(2**63) <= value < 2**63 else shortest(decimal.Decimal(value))
    if isinstance(value, decimal.Decimal):
        return shortest(value)
    if isinstance(value, dt.datetime):
        return pa.scalar(
            value if value.tzinfo is None else value.astimezone(dt.timezone.utc), LOCAL if value.tzinfo is None else INSTANT
        )
    return pa.scalar(value, DURATION) if isinstance(value, dt.timedelta) else pa.scalar(value)


def shortest(value: decimal.Decimal) -> pa.Scalar:
    """A decimal in as many digits as it needs."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(-exponent, 0)
    return pa.scalar(value, pa.decimal128(max(len(digits) + max(exponent, 0), scale, 1), scale))


def decimal_parts(type_: pa.DataType) -> tuple[int, int]:
    """Precision and scale of a decimal, or of the one that holds every value of an integer type."""
    return (type_.precision, type_.scale) if is_decimal(type_) else (_DIGITS[type_.bit_width], 0)


def common(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type in which two meet; None if there is none."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if is_number(left) and is_number(right):
        return _number(left, right)
    if is_moment(left) and is_moment(right):
        return INSTANT if any(is_timestamp(t) and t.tz for t in (left, right)) else LOCAL
    return _nested(left, right)


def _nested(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Lists and structs of the same fields, in the types that their parts meet in."""
    if pa.types.is_list(left) and pa.types.is_list(right):
        item = common(left.value_type, right.value_type)
        return None if item is None else pa.list_(item)
    if not (pa.types.is_struct(left) and pa.types.is_struct(right)) or left.num_fields != right.num_fields:
        return None
    fields = []
    for one, other in zip(left, right, strict=True):
        type_ = common(one.type, other.type)
        if type_ is None or one.name.lower() != other.name.lower():
            return None
        fields.append(pa.field(one.name, type_))
    return pa.struct(fields)


def _number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if is_floating(left) or is_floating(right):
        return DOUBLE
    if is_integer(left) and is_integer(right):
        return left if left.bit_width >= right.bit_width else right
    (p1, s1), (p2, s2) = decimal_parts(left), decimal_parts(right)
    scale = max(s1, s2)
    whole = max(p1 - s1, p2 - s2)
    scale = max(0, min(scale, MAX_DECIMAL_DIGITS - whole))  # digits before the point go first, as in Spark
    return pa.decimal128(min(whole + scale, MAX_DECIMAL_DIGITS), scale)


def coerced(value: Value, type_: pa.DataType) -> Value:
    """A value in the type it meets others in; large whole numbers become the nearest double."""
    if value.type == type_:
        return value
    if is_timestamp(type_) and type_.tz and not (is_timestamp(value.type) and value.type.tz):
        return pc.assume_timezone(pc.cast(value, LOCAL), "UTC") if not pa.types.is_null(value.type) else pc.cast(value, type_)
    if is_decimal(value.type) and is_floating(type_):
        return nearest(value, type_)
    if is_decimal(value.type) and is_decimal(type_) and value.type.scale > type_.scale:
        value = pc.round(wide(value, value.type.scale), type_.scale, "half_towards_infinity")
    if pa.types.is_nested(type_) and not pa.types.is_null(value.type):
        return _parts_coerced(value, type_)
    return pc.cast(value, type_, safe=is_decimal(type_))


def _parts_coerced(value: Value, type_: pa.DataType) -> Value:
    (column,), single = arrays(value)
    mask = column.is_null() if column.null_count else None
    if pa.types.is_struct(type_):
        parts = [coerced(part, field.type) for part, field in zip(column.flatten(), type_, strict=True)]
        return joined(pa.StructArray.from_arrays(parts, fields=list(type_), mask=mask), single)
    if not pa.types.is_list(type_):
        return joined(column.cast(type_), single)
    ends = np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False))
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return joined(pa.ListArray.from_arrays(offsets, coerced(column.flatten(), type_.value_type), type_, mask=mask), single)


def nearest(value: Value, type_: pa.DataType) -> Value:
    """Decimals as the nearest floating-point numbers."""
    (column,), single = arrays(value)
    return joined(doubles(column).cast(type_, safe=False), single)


def wide(value: Value, scale: int) -> Value:
    """A whole number or a decimal as one of 76 digits, `scale` of them after the point: room for any sum of two."""
    return pc.cast(value, pa.decimal256(76, scale))


def literal_like(constant: object, value: pa.Scalar, other: Value) -> pa.Scalar:
    """Return a constant in the type it means with another value: whole numbers as short decimals."""
    if is_decimal(other.type) and isinstance(constant, int) and not isinstance(constant, bool):
        return shortest(decimal.Decimal(constant))
    return value


def arrays(*values: Value) -> tuple[list[pa.Array], bool]:
    """Values as arrays of one length, and whether all were constants (then of length 1)."""
    lengths = [len(v) for v in values if isinstance(v, pa.Array)]
    n = lengths[0] if lengths else 1
    return [v if isinstance(v, pa.Array) else repeated(v, n) for v in values], not lengths


def repeated(value: pa.Scalar, n: int) -> pa.Array:
    """A constant for `n` rows; Arrow repeats no list for none."""
    return pa.repeat(value, n) if n else pa.array([], value.type)


def joined(result: pa.Array, single: bool) -> Value:
    """An array, or its only value."""
    return result[0] if single else result


def first_true(mask: Value) -> int | None:
    """The first row for which a mask is true."""
    if isinstance(mask, pa.Scalar):
        return 0 if mask.as_py() else None
    rows = np.flatnonzero(flags(mask))
    return int(rows[0]) if len(rows) else None


def null_mask(*columns: pa.Array) -> Mask | None:
    """Rows in which any of the columns is null; None if there is none."""
    masks: list[Mask] = [c.is_null().to_numpy(zero_copy_only=False) for c in columns if c.null_count]
    if not masks:
        return None
    out = masks[0]
    for mask in masks[1:]:
        out = out | mask
    return out


_LEAST_SCALE: Final = 6  # digits after the point that a long result keeps
_EXACT: Final = decimal.Context(prec=160, rounding=decimal.ROUND_HALF_UP)
_VECTORS: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
}


def result_type(op: str, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """The decimal type of a result; a long one loses digits after the point, down to six."""
    (p1, s1), (p2, s2) = decimal_parts(left), decimal_parts(right)
    if op == "*":
        precision, scale = p1 + p2 + 1, s1 + s2
    elif op == "/":
        scale = max(_LEAST_SCALE, s1 + p2 + 1)
        precision = p1 - s1 + s2 + scale
    elif op == "%":
        scale = max(s1, s2)
        precision = min(p1 - s1, p2 - s2) + scale
    else:
        scale = max(s1, s2)
        precision = max(p1 - s1, p2 - s2) + scale + 1
    if precision > MAX_DECIMAL_DIGITS:
        whole = precision - scale
        precision, scale = MAX_DECIMAL_DIGITS, max(MAX_DECIMAL_DIGITS - whole, min(scale, _LEAST_SCALE))
    return pa.decimal128(max(precision, 1), scale)


def fitted(value: Value, type_: pa.DataType) -> tuple[Value, Value]:
    """Decimals rounded half up to a type, null where they have too many digits, and the mask of those."""
    if value.type.scale > type_.scale:
        value = pc.round(wide(value, value.type.scale), type_.scale, "half_towards_infinity")
    same = wide(value, type_.scale)
    limit = pa.scalar(decimal.Decimal(10 ** (type_.precision - type_.scale)), same.type)
    over = pc.greater_equal(pc.abs(same), limit)
    return pc.cast(pc.if_else(over, pa.scalar(None, same.type), same), type_), over


def _checked(value: Value, type_: pa.DataType) -> Value:
    result, over = fitted(value, type_)
    if first_true(over) is not None:
        raise FaultError(f"overflow: a result has more digits than {type_text(type_)} holds")
    return result


def compute(op: str, left: Value, right: Value) -> Value:
    """``+ - * / %`` of decimals and whole numbers."""
    type_ = result_type(op, left.type, right.type)
    (p1, s1), (p2, s2) = decimal_parts(left.type), decimal_parts(right.type)
    if op in "+-":
        scale = max(s1, s2)
        if max(p1 - s1, p2 - s2) + scale + 1 <= 76:
            pair = (pc.cast(x, pa.decimal256(75, scale)) for x in (left, right))
            return _checked(_VECTORS[op](*pair), type_)
    if op == "*" and p1 + p2 + 1 <= 76:
        return _checked(_VECTORS[op](pc.cast(left, pa.decimal256(p1, s1)), pc.cast(right, pa.decimal256(p2, s2))), type_)
    return _one_by_one(op, left, right, type_)


def _one_by_one(op: str, left: Value, right: Value, type_: pa.DataType) -> Value:
    """Division and remainder, which Arrow cuts off or lacks, and products of up to 76 digits."""
    (a, b), single = arrays(left, right)
    unit = decimal.Decimal(1).scaleb(-type_.scale)
    finest = decimal.Decimal(1).scaleb(-MAX_DECIMAL_DIGITS)
    limit = decimal.Decimal(10) ** (type_.precision - type_.scale)
    out: list[decimal.Decimal | None] = []
    for row, (x, y) in enumerate(zip(a.to_pylist(), b.to_pylist(), strict=True)):
        if x is None or y is None:
            out.append(None)
            continue
        if op in "/%" and y == 0:
            raise FaultError(f"division by zero in row {row}")
        x, y = decimal.Decimal(x), decimal.Decimal(y)
        if op == "/":  # Spark divides to 38 digits after the point, then rounds to those of the type
            exact = _EXACT.divide(x, y).quantize(finest, decimal.ROUND_HALF_DOWN, _EXACT)
        else:
            exact = _EXACT.remainder(x, y) if op == "%" else _EXACT.multiply(x, y)
        result = exact.quantize(unit, decimal.ROUND_HALF_UP, _EXACT)
        if abs(result) >= limit:
            raise FaultError(f"overflow: a result has more digits than {type_text(type_)} holds")
        out.append(result)
    return joined(pa.array(out, type_), single)


def rounded(value: Value, digits: int) -> Value:
    """Half up to so many digits after the point; the type has one digit more before it, as in Spark."""
    precision, scale = decimal_parts(value.type)
    least = precision - scale + 1
    kept = max(min(scale, digits), 0)
    if digits < 0:
        least = max(least, 1 - digits)
    type_ = pa.decimal128(min(least + kept, MAX_DECIMAL_DIGITS), kept)
    if digits < -MAX_DECIMAL_DIGITS:
        return pc.cast(pc.subtract(wide(value, scale), wide(value, scale)), type_)  # zero, or null
    return _checked(pc.round(wide(value, scale), min(digits, scale), "half_towards_infinity"), type_)
