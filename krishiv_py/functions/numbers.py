"""Functions of numbers: whole parts, roots, powers, logarithms, bits."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing.arithmetic import absolute, binary, rounded
from krishiv_py.functions.computing.arithmetic import width_bucket as bucket
from krishiv_py.functions.computing.checks import require
from krishiv_py.functions.computing.values import (
    DOUBLE,
    FaultError,
    arrays,
    coerced,
    common,
    first_true,
    is_decimal,
    is_floating,
    is_integer,
    is_number,
    joined,
    misfit,
    null_mask,
    wide,
)
from krishiv_py.functions.definition import Digits, SqlNode, Value, example, function

_Floats: TypeAlias = "npt.NDArray[np.float64]"
_LONG: Final = 2.0**63


@function("numbers", "number", name="abs", node=SqlNode("Abs"))
@example("abs(-3)", 3)
def abs_(value: Value) -> Value:
    """Return the number without its sign; an error for the smallest integer."""
    return absolute(value)


@function("numbers", "number", name="round", node=SqlNode("Round", "this decimals"))
@example("round(2.675, 2)", 2.68)
def round_(value: Value, digits: Digits = 0) -> Value:
    """Return the number rounded half away from zero to `digits` after the point; below 0 to tens."""
    return rounded(value, digits)


def _whole(value: Value, *, up: bool) -> Value:
    """``floor``, ``ceil``: ``bigint``, of a decimal one without digits after the point."""
    require(is_number, value)
    if pa.types.is_null(value.type) or is_integer(value.type):
        return pc.cast(value, pa.int64())
    rounded = pc.ceil if up else pc.floor
    if is_decimal(value.type):
        digits = min(value.type.precision - value.type.scale + 1, 38)
        return pc.cast(rounded(wide(value, value.type.scale)), pa.decimal128(digits, 0))
    whole = rounded(pc.cast(value, DOUBLE))
    outside = pc.invert(pc.and_(pc.greater_equal(whole, -_LONG), pc.less(whole, _LONG)))  # NaN too
    if (row := first_true(outside)) is not None:
        raise FaultError(f"the number in row {row} is not a 64-bit integer")
    return pc.cast(whole, pa.int64())


@function("numbers", "bigint or decimal", node=SqlNode("Floor"))
@example("floor(-1.5)", -2)
def floor(value: Value) -> Value:
    """Return the greatest whole number that is not above it: ``bigint``, of a decimal one without digits after the point."""
    return _whole(value, up=False)


@function("numbers", "bigint or decimal", node=SqlNode("Ceil"))
@example("ceil(-1.5)", -1)
def ceil(value: Value) -> Value:
    """Return the least whole number that is not below it: ``bigint``, of a decimal one without digits after the point."""
    return _whole(value, up=True)


@function("numbers", "bigint", node=SqlNode("IntDiv", "this expression"))
@example("-7 DIV 2", -3)
def div(left: Value, divisor: Value) -> Value:
    """Return how often an integer `divisor` goes into it, cut off towards zero: ``a DIV b`` in text."""
    for value in (left, divisor):
        if not is_integer(value.type) and not pa.types.is_null(value.type):
            raise misfit(left.type, divisor.type)
    left, divisor = pc.cast(left, pa.int64()), pc.cast(divisor, pa.int64())
    if (row := first_true(pc.and_(pc.equal(divisor, 0), pc.is_valid(left)))) is not None:
        raise FaultError(f"division by zero in row {row}")
    return pc.divide_checked(left, pc.if_else(pc.equal(divisor, 0), pa.scalar(1, pa.int64()), divisor))


@function("numbers", "number")
@example("pmod(-7, 3)", 2)
def pmod(left: Value, divisor: Value) -> Value:
    """Return the remainder by `divisor`, moved by it once where it is negative."""
    return _positive_remainder(left, divisor)


def _positive_remainder(left: Value, right: Value) -> Value:
    """``pmod``: the remainder, moved by the divisor once where it is negative."""
    remainder = binary("%", left, right)
    divisor = pc.cast(right, remainder.type) if pa.types.is_null(right.type) else right
    below = pc.less(remainder, _zero(remainder.type))
    moved = binary("%", binary("+", remainder, pc.if_else(below, divisor, _zero(divisor.type))), divisor)
    return pc.if_else(below, coerced(moved, remainder.type), remainder)


def _zero(type_: pa.DataType) -> pa.Scalar:
    return pa.scalar(decimal.Decimal(0) if is_decimal(type_) else 0, type_)


@function("numbers", "double", node=SqlNode("Sign"), names=("signum",))
@example("sign(-2)", -1.0)
def sign(value: Value) -> Value:
    """Return -1.0, 0.0 or 1.0; a zero keeps its sign."""
    return _of_doubles(lambda x: np.where(x == 0, x, np.sign(x)), value)


@function("numbers", "double", node=SqlNode("Sqrt"))
@example("sqrt(9)", 3.0)
def sqrt(value: Value) -> Value:
    """Return the square root; NaN of a negative number."""
    return _of_doubles(np.sqrt, value)


@function("numbers", "double", node=SqlNode("Exp"))
@example("exp(0)", 1.0)
def exp(value: Value) -> Value:
    """Return the power of e."""
    return _of_doubles(np.exp, value)


@function("numbers", "double", name="pow", node=SqlNode("Pow", "this expression"))
@example("pow(2, 10)", 1024.0)
def pow_(value: Value, exponent: Value) -> Value:
    """Return the power with an `exponent`, a column or constant."""

    def power(x: _Floats, y: _Floats) -> _Floats:
        none = np.isnan(y) | ((np.abs(x) == 1) & np.isinf(y))
        return np.where(none, np.nan, np.power(x, np.where(none, 0, y)))

    return _of_doubles(power, value, exponent)


def _logarithm(function: Callable[[_Floats], _Floats], value: Value) -> Value:
    return _above_zero(_of_doubles(function, value), value)


@function("numbers", "double", node=SqlNode("Ln"))
@example("ln(1)", 0.0)
def ln(value: Value) -> Value:
    """Return the natural logarithm; null of 0 and below."""
    return _logarithm(np.log, value)


@function("numbers", "double")
@example("log2(8)", 3.0)
def log2(value: Value) -> Value:
    """Return the logarithm to the base 2; null of 0 and below."""
    return _logarithm(np.log2, value)


@function("numbers", "double")
@example("log10(1000)", 3.0)
def log10(value: Value) -> Value:
    """Return the logarithm to the base 10; null of 0 and below."""
    return _logarithm(np.log10, value)


@function("numbers", "double", method=False)
@example("log(3, 9)", 2.0)
def log(base: Value, value: Value) -> Value:
    """Return the logarithm to a base; null where one of both is 0 or below."""
    result = _of_doubles(lambda x, y: np.log(y) / np.log(x), base, value)
    return _above_zero(_above_zero(result, value), base)


def _above_zero(result: Value, value: Value) -> Value:
    low = pc.fill_null(pc.less_equal(coerced(value, DOUBLE), 0.0), False)
    return pc.if_else(low, pa.scalar(None, DOUBLE), result)


def _of_doubles(function: Callable[..., Any], *values: Value) -> Value:
    """A function of NumPy on numbers as doubles; null where one is."""
    require(is_number, *values)
    columns, single = arrays(*(coerced(v, DOUBLE) for v in values))
    with np.errstate(all="ignore"):
        result = function(*(pc.fill_null(c, 1.0).to_numpy(zero_copy_only=False) for c in columns))
    return joined(pa.array(result, DOUBLE, mask=null_mask(*columns)), single)


@function("numbers", "boolean", node=SqlNode("IsNan"))
@example("isnan(CAST('NaN' AS double))", True)
def isnan(value: Value) -> Value:
    """Return whether the number is NaN; false for null."""
    require(is_number, value)
    if not is_floating(value.type):
        (column,), single = arrays(value)
        return joined(pa.repeat(pa.scalar(False), len(column)), single)
    return pc.fill_null(pc.is_nan(value), False)


def _bits(function: Callable[[Value, Value], Value], left: Value, right: Value) -> Value:
    """``&``, ``|``, ``^`` of integers."""
    type_ = common(left.type, right.type)
    if type_ is None or not (is_integer(type_) or pa.types.is_null(type_)):
        raise misfit(left.type, right.type)
    type_ = pa.int64() if pa.types.is_null(type_) else type_
    return function(pc.cast(left, type_), pc.cast(right, type_))


@function("numbers", "integer", node=SqlNode("BitwiseAnd", "this expression"), method=False)
@example("6 & 3", 2)
def bit_and(left: Value, right: Value) -> Value:
    """Return the bits of two integers joined by and: ``a & b`` in text."""
    return _bits(pc.bit_wise_and, left, right)


@function("numbers", "integer", node=SqlNode("BitwiseOr", "this expression"), method=False)
@example("6 | 3", 7)
def bit_or(left: Value, right: Value) -> Value:
    """Return the bits of two integers joined by or: ``a | b`` in text."""
    return _bits(pc.bit_wise_or, left, right)


@function("numbers", "integer", node=SqlNode("BitwiseXor", "this expression"), method=False)
@example("6 ^ 3", 5)
def bit_xor(left: Value, right: Value) -> Value:
    """Return the bits of two integers joined by xor: ``a ^ b`` in text."""
    return _bits(pc.bit_wise_xor, left, right)


@function("numbers", "integer", node=SqlNode("BitwiseNot"), method=False)
@example("~5", -6)
def bit_not(value: Value) -> Value:
    """Return the integer with all bits turned: ``~a`` in text."""
    if not is_integer(value.type):
        raise misfit(value.type)
    return pc.bit_wise_not(value)


def _shifted(where: str, value: Value, count: Value) -> Value:
    """``shiftleft``, ``shiftright``, ``shiftrightunsigned``: an ``int`` or a ``bigint``; the count goes modulo its bits."""
    for each in (value, count):
        if not (is_integer(each.type) or pa.types.is_null(each.type)):
            raise misfit(value.type, count.type)
    type_ = pa.int64() if pa.types.is_int64(value.type) else pa.int32()
    (column, counts), single = arrays(pc.cast(value, type_), pc.cast(count, pa.int64()))
    bits = np.bitwise_and(pc.fill_null(counts, 0).to_numpy(zero_copy_only=False), type_.bit_width - 1)
    plain = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    if where == "unsigned":
        plain = plain.view(f"uint{type_.bit_width}")
    bits = bits.astype(plain.dtype)
    shifted = np.left_shift(plain, bits) if where == "left" else np.right_shift(plain, bits)
    return joined(pa.array(shifted.view(f"int{type_.bit_width}"), type_, mask=null_mask(column, counts)), single)


@function("numbers", "int or bigint", node=SqlNode("BitwiseLeftShift", "this expression"))
@example("shiftleft(4, 1)", 8)
def shiftleft(value: Value, bits: Value) -> Value:
    """Return the integer with its `bits` moved to the left."""
    return _shifted("left", value, bits)


@function("numbers", "int or bigint", node=SqlNode("BitwiseRightShift", "this expression"))
@example("shiftright(4, 2)", 1)
def shiftright(value: Value, bits: Value) -> Value:
    """Return the integer with its `bits` moved to the right, its sign kept."""
    return _shifted("right", value, bits)


@function("numbers", "int or bigint")
@example("shiftrightunsigned(4, 2)", 1)
def shiftrightunsigned(value: Value, bits: Value) -> Value:
    """Return the integer with its `bits` moved to the right, and zeros in their place."""
    return _shifted("unsigned", value, bits)


@function("numbers", "bigint", node=SqlNode("WidthBucket", "this min_value max_value num_buckets"))
@example("width_bucket(5, 0, 10, 4)", 3)
def width_bucket(value: Value, low: Value, high: Value, n: Value) -> Value:
    """Return the number of the part that the number is in when `low` to `high` is cut into `n`: 0 below, n + 1 above them.

    Null where there are no such parts: `low` equals `high`, a bound is not finite, `n` is below 1, or the value is NaN.
    """
    return bucket(value, low, high, n)
