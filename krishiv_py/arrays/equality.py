"""Equality of values, column by column: null equals null, NaN equals NaN, and -0.0 equals 0.0, as with keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Mask, whole


def equal_values(one: pa.Array, other: pa.Array) -> Mask:
    """Return which values of two arrays of one length and type are equal, place by place; nested ones by their parts."""
    valid, also = one.is_valid().to_numpy(zero_copy_only=False), other.is_valid().to_numpy(zero_copy_only=False)
    both: Mask = valid & also
    equal: Mask = ~(valid | also)
    places = np.flatnonzero(both)
    if not len(places):
        return equal
    if len(places) < len(one):
        one, other = one.take(pa.array(places)), other.take(pa.array(places))
    equal[places] = _equal(one, other)
    return equal


def equal_rows(one: pa.Table, other: pa.Table) -> Mask:
    """Return which rows of two tables of one length and schema are equal, place by place."""
    equal = np.ones(one.num_rows, np.bool_)
    for mine, theirs in zip(one.columns, other.columns, strict=True):
        if not equal.any():
            break
        equal &= equal_values(whole(mine), whole(theirs))
    return equal


def _equal(one: pa.Array, other: pa.Array) -> Mask:
    """Return which values are equal, none of which is null."""
    type_: Any = one.type
    if pa.types.is_struct(type_):
        fields = (equal_values(a, b) for a, b in zip(one.flatten(), other.flatten(), strict=True))
        equal: Mask = np.logical_and.reduce([np.ones(len(one), np.bool_), *fields])
        return equal
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_map(type_):
        return _equal_lists(one, other)
    same: Mask = pc.equal(one, other).to_numpy(zero_copy_only=False).astype(np.bool_)
    if pa.types.is_floating(type_):
        same = same | (pc.is_nan(one).to_numpy(zero_copy_only=False) & pc.is_nan(other).to_numpy(zero_copy_only=False))
    return same


def _equal_lists(one: pa.Array, other: pa.Array) -> Mask:
    if pa.types.is_map(one.type):
        parts = pa.list_(pa.struct([pa.field("key", one.type.key_type), pa.field("value", one.type.item_type)]))
        one, other = (_as_lists(array, parts) for array in (one, other))
    lengths, others = (array.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64) for array in (one, other))
    equal: Mask = lengths == others
    places = np.flatnonzero(equal & (lengths > 0))
    if len(places):
        picked = pa.array(places)
        items = equal_values(one.take(picked).flatten(), other.take(picked).flatten())
        starts = np.cumsum(lengths[places]) - lengths[places]
        equal[places] = np.logical_and.reduceat(items, starts)
    return equal


def _as_lists(array: pa.Array, type_: pa.DataType) -> pa.Array:
    entries = pa.StructArray.from_arrays([array.keys, array.items], fields=list(type_.value_type))
    lengths = np.diff(array.offsets.to_numpy())
    begin = array.offsets[0].as_py()
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), entries.slice(begin, int(offsets[-1])))
