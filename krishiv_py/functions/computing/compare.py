"""Comparisons as in SQL: null with anything is null, NaN equals NaN and is greater than every number, -0.0 equals 0.0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.functions.computing.order import ranks
from krishiv_py.functions.computing.values import (
    Value,
    arrays,
    coerced,
    common,
    decimal_parts,
    is_decimal,
    is_floating,
    is_number,
    joined,
    literal,
    literal_like,
    misfit,
    null_mask,
    wide,
)

_ARROW: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_RANKS: Final[dict[str, Callable[[Ints, Ints], Mask]]] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_TURNED: Final = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NEGATED: Final = {">": pc.less_equal, ">=": pc.less}
COMPARISONS: Final = frozenset(_ARROW)


def compare(op: str, left: Value, right: Value) -> Value:
    """``== != < <= > >=``."""
    left, right = _paired(left, right)
    if pa.types.is_null(left.type):
        scalar = isinstance(left, pa.Scalar) and isinstance(right, pa.Scalar)
        return pa.scalar(None, pa.bool_()) if scalar else pa.nulls(len(arrays(left, right)[0][0]), pa.bool_())
    if pa.types.is_nested(left.type):
        return _nested(op, left, right)
    if is_floating(left.type):
        return _floats(op, left, right)
    return _ARROW[op](left, right)


def _paired(left: Value, right: Value) -> tuple[Value, Value]:
    if left.type == right.type:
        return left, right
    other = _called_as(right.type, left.type)
    type_ = common(left.type, other)
    if type_ is None:
        raise misfit(left.type, right.type)
    if is_decimal(type_) and is_number(left.type) and is_number(right.type):
        scale = max(decimal_parts(left.type)[1], decimal_parts(right.type)[1])
        return wide(left, scale), wide(right, scale)  # exact, however long
    return coerced(left, type_), coerced(right, type_)


def _called_as(type_: pa.DataType, other: pa.DataType) -> pa.DataType:
    """A type with the fields of structs called as in another one: they are compared by their places."""
    if pa.types.is_list(type_) and pa.types.is_list(other):
        return pa.list_(_called_as(type_.value_type, other.value_type))
    if not (pa.types.is_struct(type_) and pa.types.is_struct(other)) or type_.num_fields != other.num_fields:
        return type_
    return pa.struct([b.with_type(_called_as(a.type, b.type)) for a, b in zip(type_, other, strict=True)])


def _nested(op: str, left: Value, right: Value) -> Value:
    """Lists and structs as wholes, by their places in Spark's order: nulls inside them are equal."""
    (one, other), single = arrays(left, right)
    rank = ranks(pa.concat_arrays([one, other]))
    mask = null_mask(one, other)
    return joined(pa.array(_RANKS[op](rank[: len(one)], rank[len(one) :]), mask=mask), single)


def _floats(op: str, left: Value, right: Value) -> Value:
    if isinstance(left, pa.Scalar) and not isinstance(right, pa.Scalar):
        left, right, op = right, left, _TURNED[op]
    if isinstance(right, pa.Scalar) and not _is_nan(right):
        # Arrow finds NaN unequal to all, which for == != < <= is right next to a number; "not <=" finds it greater
        return pc.invert(_NEGATED[op](left, right)) if op in _NEGATED else _ARROW[op](left, right)
    if not (_may_have_nan(left) or _may_have_nan(right)):
        return _ARROW[op](left, right)
    one, other = pc.is_nan(left), pc.is_nan(right)
    if op in ("==", "!="):
        same = pc.or_(pc.equal(left, right), pc.and_(one, other))
        return same if op == "==" else pc.invert(same)
    if op in ("<", ">="):
        less = pc.or_(pc.less(left, right), pc.and_(other, pc.invert(one)))
        return less if op == "<" else pc.invert(less)
    more = pc.or_(pc.greater(left, right), pc.and_(one, pc.invert(other)))
    return more if op == ">" else pc.invert(more)


def _is_nan(value: pa.Scalar) -> bool:
    plain = value.as_py()
    return plain is not None and math.isnan(plain)


def _may_have_nan(value: Value) -> bool:
    """By the sum, which is quicker than looking at each."""
    total = (value if isinstance(value, pa.Scalar) else pc.sum(value)).as_py()
    return total is not None and math.isnan(total)


def is_in(value: Value, constants: tuple[object, ...]) -> Value:
    """SQL's IN: null for a null value, and where nothing matches but the list has a null; of no list, false."""
    known = [literal_like(c, literal(c), value) for c in constants if c is not None]
    (column,), single = arrays(value)
    if not constants:
        return joined(pa.repeat(pa.scalar(False), len(column)), single)
    column, listed = _listed(column, known)
    result = pc.is_in(column, value_set=listed) if len(listed) else pa.repeat(pa.scalar(False), len(column))
    missing = pa.scalar(None, pa.bool_())
    if len(known) != len(constants):
        result = pc.if_else(result, result, missing)
    return joined(pc.if_else(pc.is_valid(column), result, missing), single)


def _listed(column: pa.Array, known: list[pa.Scalar]) -> tuple[pa.Array, pa.Array]:
    """A column and the constants next to it in one type."""
    type_ = column.type
    for each in known:
        met = common(type_, each.type)
        if met is None or pa.types.is_nested(met):
            raise misfit(column.type, each.type)
        type_ = met
    if is_decimal(type_):
        scale = max(decimal_parts(t)[1] for t in (column.type, *(k.type for k in known)) if is_number(t))
        return wide(column, scale), pa.array([k.as_py() for k in known], pa.decimal256(76, scale))
    listed = [coerced(k, type_).as_py() for k in known]
    if is_floating(type_) and 0.0 in listed:
        listed += [0.0, -0.0]  # a table of hashes distinguishes them
    return coerced(column, type_), pa.array(listed, type_)
