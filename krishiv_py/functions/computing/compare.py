"""Comparisons as in SQL, and orders: null with anything is null, NaN equals NaN and is greater than every number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import normal_key
from krishiv_py.arrays.sorting import numbered
from krishiv_py.arrays.types import Ints, Mask, last_rows, values_at
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


def ranks(items: pa.Array) -> Ints:
    """The place of each value among all; equal ones share it, NaN is the greatest, null is -1.

    Of lists and structs the first part that differs decides; there a null comes first and equals another one. A list that
    ends comes before one that goes on.
    """
    type_ = items.type
    if pa.types.is_null(type_):
        return np.full(len(items), -1, np.int64)
    if pa.types.is_struct(type_):
        return _known(items, _of_structs(items))
    if pa.types.is_list(type_):
        return _known(items, _of_lists(items))
    if pa.types.is_nested(type_):
        raise misfit(type_)
    known = plain(items.cast(pa.int8()) if pa.types.is_boolean(type_) else items).dictionary_encode()
    order = pc.sort_indices(known.dictionary).to_numpy(zero_copy_only=False)
    rank = last_rows(order, len(order) + 1)
    rank[-1] = -1
    ranks_of_rows: Ints = rank[pc.fill_null(known.indices, len(order)).to_numpy(zero_copy_only=False)]
    return ranks_of_rows


def plain(items: pa.Array) -> pa.Array:
    """Numbers with one zero and one NaN, also inside lists and structs."""
    if not pa.types.is_nested(items.type) or not len(items):
        return normal_key(items)
    mask = items.is_null() if items.null_count else None
    if pa.types.is_struct(items.type):
        return pa.StructArray.from_arrays([plain(part) for part in items.flatten()], fields=list(items.type), mask=mask)
    ends = np.cumsum(pc.fill_null(pc.list_value_length(items), 0).to_numpy(zero_copy_only=False))
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return pa.ListArray.from_arrays(offsets, plain(items.flatten()), items.type, mask=mask)


def _known(items: pa.Array, rank: Ints) -> Ints:
    if items.null_count:
        rank[items.is_null().to_numpy(zero_copy_only=False)] = -1
    return rank


def _pairs(first: Ints, second: Ints) -> Ints:
    """The places of pairs of numbers from 0 on, each below the square root of 2**63."""
    return numbered(first * (int(second.max(initial=0)) + 1) + second)[0]


def _of_structs(items: pa.StructArray) -> Ints:
    rank = np.zeros(len(items), np.int64)
    for part in items.flatten():
        rank = _pairs(rank, ranks(part) + 1)
    return rank


def _of_lists(items: pa.ListArray) -> Ints:
    """Neighbours become one, round by round, until each list has one: as many rounds as the longest has binary digits."""
    counts = pc.fill_null(pc.list_value_length(items), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    values = ranks(items.flatten()) + 2  # null is 1; 0 comes after the end
    while counts.max(initial=0) > 1:
        halves = (counts + 1) // 2
        rows = np.repeat(np.arange(len(counts), dtype=np.int64), halves)
        places = 2 * (np.arange(len(rows), dtype=np.int64) - (np.cumsum(halves) - halves)[rows])
        positions = (np.cumsum(counts) - counts)[rows] + places
        paired = places + 1 < counts[rows]
        second = np.where(paired, values[np.minimum(positions + 1, len(values) - 1)], 0)
        values, counts = _pairs(values[positions], second) + 1, halves
    return values_at(counts == 1, values, len(items))


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
