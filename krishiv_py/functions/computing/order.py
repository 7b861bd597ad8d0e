"""The place of values among all, as Spark orders them: of plain ones, and of lists and structs by way of their parts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import normal_key
from krishiv_py.arrays.sorting import numbered
from krishiv_py.arrays.types import Ints
from krishiv_py.functions.computing.values import misfit


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
    rank = np.empty(len(order) + 1, np.int64)
    rank[order] = np.arange(len(order))
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
    rank = np.zeros(len(items), np.int64)
    rank[counts == 1] = values
    return rank
