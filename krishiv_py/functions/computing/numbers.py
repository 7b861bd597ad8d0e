"""Functions of numbers: whole parts, roots, powers, logarithms, bits."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing.arithmetic import binary
from krishiv_py.functions.computing.values import (
    DOUBLE,
    FaultError,
    Value,
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

_Floats: TypeAlias = "npt.NDArray[np.float64]"
_LONG: Final = 2.0**63
_BITS: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "bit_and": pc.bit_wise_and,
    "bit_or": pc.bit_wise_or,
    "bit_xor": pc.bit_wise_xor,
}


def _number(*values: Value) -> None:
    for value in values:
        if not is_number(value.type) and not pa.types.is_null(value.type):
            raise misfit(*(v.type for v in values))


def whole(value: Value, up: bool) -> Value:
    """``floor``, ``ceil``: ``bigint``, of a decimal one without digits after the point."""
    _number(value)
    if pa.types.is_null(value.type) or is_integer(value.type):
        return pc.cast(value, pa.int64())
    rounded = pc.ceil if up else pc.floor
    if is_decimal(value.type):
        digits = min(value.type.precision - value.type.scale + 1, 38)
        return pc.cast(rounded(wide(value, value.type.scale)), pa.decimal128(digits, 0))
    found = rounded(pc.cast(value, DOUBLE))
    outside = pc.invert(pc.and_(pc.greater_equal(found, -_LONG), pc.less(found, _LONG)))  # NaN too
    if (at := first_true(outside)) is not None:
        raise FaultError(f"the number in row {at} is no 64-bit integer")
    return pc.cast(found, pa.int64())


def quotient(left: Value, right: Value) -> Value:
    """``a DIV b`` of integers, cut off towards zero; ``bigint``."""
    for value in (left, right):
        if not is_integer(value.type) and not pa.types.is_null(value.type):
            raise misfit(left.type, right.type)
    left, right = pc.cast(left, pa.int64()), pc.cast(right, pa.int64())
    if (at := first_true(pc.and_(pc.equal(right, 0), pc.is_valid(left)))) is not None:
        raise FaultError(f"division by zero in row {at}")
    return pc.divide_checked(left, pc.if_else(pc.equal(right, 0), pa.scalar(1, pa.int64()), right))


def positive_remainder(left: Value, right: Value) -> Value:
    """``pmod``: the remainder, moved by the divisor once where it is negative."""
    found = binary("%", left, right)
    divisor = pc.cast(right, found.type) if pa.types.is_null(right.type) else right
    below = pc.less(found, _zero(found.type))
    moved = binary("%", binary("+", found, pc.if_else(below, divisor, _zero(divisor.type))), divisor)
    return pc.if_else(below, coerced(moved, found.type), found)


def _zero(type_: pa.DataType) -> pa.Scalar:
    return pa.scalar(decimal.Decimal(0) if is_decimal(type_) else 0, type_)


def sign(value: Value) -> Value:
    """-1.0, 0.0 or 1.0; a zero keeps its sign."""
    return _of_doubles(lambda x: np.where(x == 0, x, np.sign(x)), value)


def root(value: Value) -> Value:
    """``sqrt``; NaN of a negative number."""
    return _of_doubles(np.sqrt, value)


def power_of_e(value: Value) -> Value:
    """``exp``."""
    return _of_doubles(np.exp, value)


def power(value: Value, exponent: Value) -> Value:
    """``pow`` as Java has it: NaN for an exponent that is NaN, and for 1 or -1 to an infinite one."""

    def found(x: _Floats, y: _Floats) -> _Floats:
        none = np.isnan(y) | ((np.abs(x) == 1) & np.isinf(y))
        result: _Floats = np.where(none, np.nan, np.power(x, np.where(none, 0, y)))
        return result

    return _of_doubles(found, value, exponent)


def logarithm(value: Value, base: float | None) -> Value:
    """``ln``, ``log2``, ``log10``; null of 0 and below."""
    function = np.log if base is None else np.log2 if base == 2 else np.log10
    return _above_zero(_of_doubles(function, value), value)


def logarithm_by(base: Value, value: Value) -> Value:
    """``log(base, x)``; null where one of both is 0 or below."""
    found = _of_doubles(lambda x, y: np.log(y) / np.log(x), base, value)
    return _above_zero(_above_zero(found, value), base)


def _above_zero(found: Value, value: Value) -> Value:
    low = pc.fill_null(pc.less_equal(coerced(value, DOUBLE), 0.0), False)
    return pc.if_else(low, pa.scalar(None, DOUBLE), found)


def is_nan(value: Value) -> Value:
    """Whether a number is NaN; false for null."""
    _number(value)
    if not is_floating(value.type):
        (column,), single = arrays(value)
        return joined(pa.repeat(pa.scalar(False), len(column)), single)
    return pc.fill_null(pc.is_nan(value), False)


def bits(name: str, left: Value, right: Value) -> Value:
    """``&``, ``|``, ``^`` of integers."""
    type_ = common(left.type, right.type)
    if type_ is None or not (is_integer(type_) or pa.types.is_null(type_)):
        raise misfit(left.type, right.type)
    type_ = pa.int64() if pa.types.is_null(type_) else type_
    return _BITS[name](pc.cast(left, type_), pc.cast(right, type_))


def inverted(value: Value) -> Value:
    """``~x`` of an integer."""
    if not is_integer(value.type):
        raise misfit(value.type)
    return pc.bit_wise_not(value)


def shifted(where: str, value: Value, count: Value) -> Value:
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
    found = np.left_shift(plain, bits) if where == "left" else np.right_shift(plain, bits)
    return joined(pa.array(found.view(f"int{type_.bit_width}"), type_, mask=null_mask(column, counts)), single)


def _of_doubles(function: Callable[..., Any], *values: Value) -> Value:
    """A function of NumPy on numbers as doubles; null where one is."""
    _number(*values)
    columns, single = arrays(*(coerced(v, DOUBLE) for v in values))
    with np.errstate(all="ignore"):
        found = function(*(pc.fill_null(c, 1.0).to_numpy(zero_copy_only=False) for c in columns))
    return joined(pa.array(found, DOUBLE, mask=null_mask(*columns)), single)
