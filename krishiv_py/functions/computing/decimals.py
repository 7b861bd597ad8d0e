"""Exact arithmetic of decimals, with the precision and scale Spark gives the results."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing.values import FaultError, Value, arrays, decimal_parts, first_true, joined, wide
from krishiv_py.types import MAX_DECIMAL_DIGITS, type_text

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
