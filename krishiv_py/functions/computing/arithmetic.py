"""Arithmetic of numbers and of times. Overflow and division by zero are errors."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing import values
from krishiv_py.functions.computing.dates import moved
from krishiv_py.functions.computing.values import (
    DOUBLE,
    DURATION,
    INSTANT,
    FaultError,
    Value,
    arrays,
    coerced,
    common,
    first_true,
    is_decimal,
    is_floating,
    is_integer,
    is_moment,
    is_number,
    joined,
    misfit,
    null_mask,
)

_ARROW: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
}
_MOST_PARTS: Final = 2**63 - 1
_TENS: Final = 22  # powers of ten up to this one are exact in double precision


def binary(op: str, left: Value, right: Value) -> Value:
    """``+ - * / %``."""
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        left, right = _typed_null(left, right)
    if op in "+-" and pa.types.is_date(left.type) and is_integer(right.type):
        return moved(left, right, 1 if op == "+" else -1)
    if not (is_number(left.type) and is_number(right.type)):
        return _times(op, left, right)
    floating = is_floating(left.type) or is_floating(right.type)
    if not floating and (is_decimal(left.type) or is_decimal(right.type)):
        return values.compute(op, left, right)
    if op == "/":
        left, right = coerced(left, DOUBLE), coerced(right, DOUBLE)
        _no_zero(left, right)
        return pc.divide(left, right)
    type_ = common(left.type, right.type)
    assert type_ is not None
    left, right = coerced(left, type_), coerced(right, type_)
    if op == "%":
        _no_zero(left, right)
        return _remainder(left, right)
    return _ARROW[op](left, right)


def _typed_null(left: Value, right: Value) -> tuple[Value, Value]:
    type_ = common(left.type, right.type)
    if type_ is None or pa.types.is_null(type_):
        type_ = DOUBLE
    return tuple(v if not pa.types.is_null(v.type) else pc.cast(v, type_) for v in (left, right))


def _no_zero(left: Value, right: Value) -> None:
    """Refuse a zero divisor, but not of nothing: null / 0 is null."""
    if isinstance(right, pa.Scalar):
        if right.as_py() == 0 and (row := first_true(pc.is_valid(left))) is not None:
            raise FaultError(f"division by zero in row {row}")
        return
    zero = pc.equal(right, pa.scalar(0, right.type))
    if pc.any(zero).as_py() and (row := first_true(pc.and_(zero, pc.is_valid(left)))) is not None:
        raise FaultError(f"division by zero in row {row}")


def _remainder(left: Value, right: Value) -> Value:
    """With the sign of the dividend, and exact also for floating point."""
    if is_integer(left.type):
        unit = pc.equal(right, pa.scalar(-1, right.type))  # -2**63 / -1 overflows; by 1 and -1 nothing remains
        divisor = pc.if_else(unit, pa.scalar(1, right.type), right)
        return pc.subtract(left, pc.multiply(pc.divide(left, divisor), divisor))
    (a, b), single = arrays(left, right)
    mask = null_mask(a, b)
    x, y = (pc.fill_null(v, 1).to_numpy(zero_copy_only=False) for v in (a, b))
    with np.errstate(all="ignore"):
        rest = np.fmod(x, y)
    return joined(pa.array(rest, a.type, mask=mask), single)


def _times(op: str, left: Value, right: Value) -> Value:
    """Points in time and lengths of time."""
    lengths = tuple(pa.types.is_duration(v.type) for v in (left, right))
    moments = tuple(is_moment(v.type) for v in (left, right))
    if op == "-" and all(moments):
        left, right = coerced(left, INSTANT), coerced(right, INSTANT)
    elif op in "+-" and all(lengths):
        left, right = pc.cast(left, DURATION), pc.cast(right, DURATION)
    elif op in "+-" and moments[0] and lengths[1]:
        left, right = _moment(left), pc.cast(right, DURATION)
    elif op == "+" and lengths[0] and moments[1]:
        left, right = pc.cast(left, DURATION), _moment(right)
    else:
        raise misfit(left.type, right.type)
    return _ARROW[op](left, right)


def _moment(value: Value) -> Value:
    return coerced(value, INSTANT) if pa.types.is_date(value.type) else value


def negative(value: Value) -> Value:
    """``-x``."""
    if not is_number(value.type) and not pa.types.is_duration(value.type):
        raise misfit(value.type)
    return pc.negate_checked(value)


def absolute(value: Value) -> Value:
    """``abs(x)``; of the smallest integer it is an error."""
    if not is_number(value.type):
        raise misfit(value.type)
    return pc.abs_checked(value)


def rounded(value: Value, digits: int) -> Value:
    """Half up (away from zero), of the number as it is written: 2.675 to two digits is 2.68."""
    if is_decimal(value.type):
        return values.rounded(value, digits)
    if not is_number(value.type):
        raise misfit(value.type)
    (column,), single = arrays(value)
    mask = null_mask(column)
    numbers = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    result = _whole(numbers, digits) if is_integer(column.type) else _floats(numbers, digits)
    return joined(pa.array(result, column.type, mask=mask), single)


def _whole(numbers: npt.NDArray[Any], digits: int) -> npt.NDArray[Any]:
    """Whole numbers to tens, hundreds, …; by Python's, which have room for what overflows."""
    if digits >= 0:
        return numbers
    unit = 10 ** min(-digits, 20)
    steps = [(abs(x) + unit // 2) // unit * unit * (1 if x > 0 else -1) for x in numbers.tolist()]
    bounds = np.iinfo(numbers.dtype)
    if steps and (max(steps) > bounds.max or min(steps) < bounds.min):
        raise FaultError("overflow: a rounded value leaves its type")
    return np.array(steps, numbers.dtype)


def _floats(numbers: npt.NDArray[Any], digits: int) -> npt.NDArray[Any]:
    """By multiplication where that is surely right; the few that lie near a half go through their decimal text."""
    x = numbers.astype(np.float64)
    finite = np.isfinite(x)
    scale = 10.0 ** min(abs(digits), _TENS)
    with np.errstate(all="ignore"):
        scaled = x * scale if digits >= 0 else x / scale
        floor = np.floor(np.abs(scaled))
        part = np.abs(scaled) - floor
        result = np.copysign(floor + (part > 0.5), x)
        result = result / scale if digits >= 0 else result * scale
        near = np.abs(part - 0.5) <= 1e-9 + floor * 1e-15
    doubt = finite & (near | ~np.isfinite(scaled)) if abs(digits) <= _TENS else finite
    out = np.where(finite, result, x)
    for row in np.flatnonzero(doubt):
        out[row] = _by_text(float(x[row]), digits)
    with np.errstate(over="ignore"):
        return (out + 0.0).astype(numbers.dtype)


def _by_text(x: float, digits: int) -> float:
    exact = decimal.Decimal(repr(x))
    exponent = exact.as_tuple().exponent
    if isinstance(exponent, int) and -exponent <= digits:
        return x
    with decimal.localcontext() as context:
        context.prec = 700
        return float(exact.quantize(decimal.Decimal(1).scaleb(-digits), decimal.ROUND_HALF_UP)) if digits > -400 else 0.0


def width_bucket(value: Value, low: Value, high: Value, n: Value) -> Value:
    """The number of the part of ``[low, high)``, cut into `n` of one length, that a value is in: 0 below, n + 1 above.

    Null where there are no such parts: `low` equals `high`, a bound is not finite, `n` is below 1, or the value is NaN.
    """
    for x in (value, low, high):
        if not is_number(x.type) and not pa.types.is_null(x.type):
            raise misfit(x.type)
    if not is_integer(n.type) and not pa.types.is_null(n.type):
        raise misfit(n.type)
    columns, single = arrays(*(coerced(x, DOUBLE) for x in (value, low, high)), pc.cast(n, pa.int64()))
    missing = null_mask(*columns)
    x, least, most = (pc.fill_null(c, 0).to_numpy(zero_copy_only=False) for c in columns[:3])
    parts = pc.fill_null(columns[3], 1).to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):
        bad = (least == most) | ~np.isfinite(least) | ~np.isfinite(most) | (parts < 1) | (parts == _MOST_PARTS) | np.isnan(x)
        low_end, high_end = np.minimum(least, most), np.maximum(least, most)
        inside = parts.astype(np.float64) * np.where(least < most, x - least, least - x) / (high_end - low_end)
        bucket = np.where(np.isfinite(inside), inside, 0).astype(np.int64) + 1
    below, above = (x < low_end, x >= high_end), (x > high_end, x <= low_end)
    falls = least > most
    bucket = np.where(np.where(falls, above[0], below[0]), 0, np.where(np.where(falls, above[1], below[1]), parts + 1, bucket))
    mask = (missing if missing is not None else False) | bad
    return joined(pa.array(bucket.astype(np.int64), pa.int64(), mask=np.broadcast_to(mask, x.shape)), single)
