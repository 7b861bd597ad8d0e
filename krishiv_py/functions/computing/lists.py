"""Functions of lists over their elements: one flat column, and how many of it each row has.

Functions of maps, by way of the lists of their keys and values.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.functions.computing.checks import alike, boolean, require
from krishiv_py.functions.computing.compare import compare
from krishiv_py.functions.computing.order import plain, ranks
from krishiv_py.functions.computing.values import FaultError, Value, arrays, common, joined, misfit

NO_LIST: Final = pa.list_(pa.null())


@attrs.frozen(eq=False)
class Lists:
    """The lists of rows.

    Attributes
    ----------
    items : pyarrow.Array
        The elements of all lists that are not null.
    counts : ndarray of int64
        How many each row has: none where the list is null.
    missing : ndarray of bool
        Where the list is null.
    """

    items: pa.Array
    counts: Ints
    missing: Mask

    @classmethod
    def of(cls, column: pa.Array) -> Lists:
        """Return the lists of a column."""
        require(pa.types.is_list, column)
        if pa.types.is_null(column.type):
            column = pa.nulls(len(column), NO_LIST)
        missing = column.is_null().to_numpy(zero_copy_only=False)
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(column.flatten(), counts, missing)

    @property
    def rows(self) -> Ints:
        """The row of each element."""
        return np.repeat(np.arange(len(self.counts), dtype=np.int64), self.counts)

    @property
    def starts(self) -> Ints:
        """Return where the elements of each row begin."""
        begins: Ints = np.cumsum(self.counts) - self.counts
        return begins

    @property
    def places(self) -> Ints:
        """The place of each element in its list, from 0 on."""
        positions: Ints = np.arange(len(self.items), dtype=np.int64) - np.repeat(self.starts, self.counts)
        return positions

    def column(self) -> pa.Array:
        """The lists as a column."""
        offsets = pa.array(np.concatenate([[0], np.cumsum(self.counts)]), pa.int32())
        mask = pa.array(self.missing) if self.missing.any() else None
        return pa.ListArray.from_arrays(offsets, self.items, mask=mask)

    def only(self, kept: Ints) -> Lists:
        """The elements at some positions, in this order, which goes by row."""
        counts = np.bincount(self.rows[kept], minlength=len(self.counts)).astype(np.int64)
        return Lists(self.items.take(pa.array(kept)), counts, self.missing)

    def without(self, more: Mask) -> Lists:
        """With more rows null."""
        missing = self.missing | more
        return attrs.evolve(self.only(np.flatnonzero(~missing[self.rows])), missing=missing)


def codes(items: pa.Array) -> tuple[Ints, int]:
    """A number for each element that equal ones share, null too, and a number above all: NaN equals NaN, and -0.0 0.0."""
    if pa.types.is_null(items.type):
        return np.zeros(len(items), np.int64), 1
    if pa.types.is_nested(items.type):
        rank = ranks(items)
        most = int(rank.max(initial=-1)) + 1
        return np.where(rank < 0, most, rank), most + 1
    known = plain(items).dictionary_encode()
    most = len(known.dictionary)
    return pc.fill_null(known.indices, most).to_numpy(zero_copy_only=False).astype(np.int64), most + 1


def distinct(lists: Lists) -> Lists:
    """Each element once, where it comes first."""
    number, most = codes(lists.items)
    _, first = np.unique(lists.rows * most + number, return_index=True)
    first.sort()
    return attrs.evolve(lists, items=plain(lists.items)).only(first)


def both(left: Value, right: Value) -> tuple[Lists, Lists, bool]:
    """Two columns of lists with elements of one type, null where one of them is."""
    (one, other), single = arrays(left, right)
    a, b = Lists.of(one), Lists.of(other)
    a, b = a.without(b.missing), b.without(a.missing)
    first, second = alike([a.items, b.items])
    return attrs.evolve(a, items=first), attrs.evolve(b, items=second), single


def followed(parts: list[Lists]) -> Lists:
    """The elements of several lists, one list after the other."""
    rows = np.concatenate([part.rows for part in parts])
    whole = Lists(pa.concat_arrays([p.items for p in parts]), np.zeros_like(parts[0].counts), parts[0].missing)
    order = np.argsort(rows, kind="stable")
    counts = np.sum([p.counts for p in parts], axis=0)
    return attrs.evolve(whole, items=whole.items.take(pa.array(order)), counts=counts)


def shared(a: Lists, b: Lists) -> Mask:
    """Return which elements of one list the other one has, too."""
    number, most = codes(pa.concat_arrays([a.items, b.items]))
    one, other = number[: len(a.items)], number[len(a.items) :]
    hits: Mask = np.isin(a.rows * most + one, b.rows * most + other)
    return hits


def equal_elements(lists: Lists, needles: pa.Array) -> Mask:
    """Return which elements equal the value of their row."""
    same = compare("==", lists.items, needles.take(pa.array(lists.rows)))
    equal: Mask = pc.fill_null(same, False).to_numpy(zero_copy_only=False)
    return equal


def listed_in(value: Value, ascending: bool, nulls_first: bool) -> Value:
    """``sort_array``, ``array_sort``; equal elements keep their order."""
    (column,), single = arrays(value)
    lists = Lists.of(column)
    rank = ranks(lists.items)
    null = lists.items.is_null().to_numpy(zero_copy_only=False)  # older versions of Arrow rank nulls, too
    order = np.lexsort((rank if ascending else -rank, ~null if nulls_first else null, lists.rows))
    return joined(lists.only(order).column(), single)


def turned(value: Value) -> Value:
    """``reverse`` of a list."""
    (column,), single = arrays(value)
    lists = Lists.of(column)
    order = np.repeat(2 * lists.starts + lists.counts - 1, lists.counts) - np.arange(len(lists.items))
    return joined(attrs.evolve(lists, items=lists.items.take(pa.array(order))).column(), single)


def chained(values: list[Value]) -> Value:
    """``concat`` of lists; null if one is."""
    columns, single = arrays(*values)
    parts = [Lists.of(column) for column in columns]
    missing = np.any([part.missing for part in parts], axis=0)
    parts = [part.without(missing) for part in parts]
    items = alike([part.items for part in parts])
    parts = [attrs.evolve(part, items=one) for part, one in zip(parts, items, strict=True)]
    return joined(followed(parts).column(), single)


def truths(value: Value, n: int) -> tuple[Mask, Mask]:
    """Return where a condition is true, and where it is null."""
    held = boolean(value)
    if isinstance(held, pa.Scalar):
        held = pa.repeat(held, n)
    return pc.fill_null(held, False).to_numpy(zero_copy_only=False), held.is_null().to_numpy(zero_copy_only=False)


def item_of(value: Value, index: Value) -> Value:
    """The element with the number `index` of a list, which counts from 0."""
    require(pa.types.is_list, value)
    require(pa.types.is_integer, index)
    if pa.types.is_null(value.type):
        return value
    if isinstance(index, pa.Scalar) and index.is_valid:
        return _element(value, index.as_py())
    (column, places), single = arrays(value, pc.cast(index, pa.int64()))
    lengths = pc.cast(pc.list_value_length(column), pa.int64())
    outside = pc.fill_null(pc.or_(pc.less(places, 0), pc.greater_equal(places, lengths)), False)
    if pc.any(outside).as_py():
        row = pc.index(outside, True).as_py()
        raise FaultError(f"a list of length {lengths[row]} has no element {places[row]}")
    known = pc.and_(pc.is_valid(places), pc.is_valid(lengths))
    starts = pc.cast(pa.array(column.offsets[:-1]), pa.int64())
    return joined(column.values.take(pc.if_else(known, pc.add(starts, places), pa.scalar(None, pa.int64()))), single)


def _element(value: Value, index: int) -> Value:
    if index < 0:
        raise FaultError("a list has no element below 0")
    (column,), single = arrays(value)
    lengths = pc.list_value_length(column)
    if pc.any(pc.less_equal(lengths, index)).as_py():
        raise FaultError(f"a list has no element {index}: it is shorter")
    if column.null_count:
        column = column.filter(column.is_valid()).take(pc.if_else(pc.is_valid(lengths), _ranks(column), None))
    return joined(pc.list_element(column, index), single)


def _ranks(column: pa.Array) -> pa.Array:
    """Return how many lists stand before each."""
    return pc.subtract(pc.cumulative_sum(pc.cast(pc.is_valid(column), pa.int64())), 1)


def list_of(values: list[Value]) -> Value:
    """``array(a, b, ...)``: the values, in the type they meet in."""
    if not values:
        return pa.scalar([], pa.list_(pa.null()))
    columns, single = arrays(*alike(values))
    n, width = len(columns[0]), len(columns)
    places = pa.array(np.arange(n * width, dtype=np.int64).reshape(width, n).T.ravel())
    offsets = pa.array(np.arange(0, n * width + 1, width), pa.int32())
    return joined(pa.ListArray.from_arrays(offsets, pa.concat_arrays(columns).take(places)), single)


def element_or_null(value: Value, index: Value, from_one: bool) -> Value:
    """``get(list, i)`` from 0 on, ``try_element_at(list, i)`` from 1 on or from the end: null beyond the list."""
    require(pa.types.is_list, value)
    require(pa.types.is_integer, index)
    if pa.types.is_null(value.type):
        return value
    (column, places), single = arrays(value, pc.cast(index, pa.int64()))
    lengths = pc.cast(pc.list_value_length(column), pa.int64())
    if from_one:
        places = pc.if_else(pc.greater(places, 0), pc.subtract(places, 1), pc.add(lengths, places))
    inside = pc.fill_null(pc.and_(pc.greater_equal(places, 0), pc.less(places, lengths)), False)
    starts = pc.cast(pa.array(column.offsets[:-1]), pa.int64())
    return joined(column.values.take(pc.if_else(inside, pc.add(starts, places), pa.scalar(None, pa.int64()))), single)


def has_element(value: Value, wanted: Value) -> Value:
    """Return whether an element equals the value; null if none does and one is null."""
    require(pa.types.is_list, value)
    (column, needles), single = arrays(value, wanted)
    n = len(column)
    if pa.types.is_null(column.type) or pa.types.is_null(needles.type):
        return joined(pa.nulls(n, pa.bool_()), single)
    if common(column.type.value_type, needles.type) is None:
        raise misfit(column.type, needles.type)
    parents = pc.list_parent_indices(column)
    same = compare("==", pc.list_flatten(column), needles.take(parents))
    rows = parents.to_numpy(zero_copy_only=False)
    hits = np.bincount(rows[pc.fill_null(same, False).to_numpy(zero_copy_only=False)], minlength=n) > 0
    open_ = np.bincount(rows[same.is_null().to_numpy(zero_copy_only=False)], minlength=n) > 0
    missing = pc.or_(column.is_null(), needles.is_null()).to_numpy(zero_copy_only=False)
    return joined(pa.array(hits, mask=missing | (open_ & ~hits)), single)


@attrs.frozen(eq=False)
class Maps:
    """The entries of maps as two columns of lists, which are null where the map is."""

    keys: Lists
    values: Lists

    @classmethod
    def of(cls, column: pa.Array) -> Maps:
        """Return the maps of a column."""
        require(pa.types.is_map, column)
        if pa.types.is_null(column.type):
            column = pa.nulls(len(column), pa.map_(pa.string(), pa.null()))
        missing = column.is_null().to_numpy(zero_copy_only=False)
        offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        low, high = offsets[:-1], np.where(missing, offsets[:-1], offsets[1:])
        counts = high - low
        positions = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(low - (np.cumsum(counts) - counts), counts)
        taken = pa.array(positions)
        return cls(Lists(column.keys.take(taken), counts, missing), Lists(column.items.take(taken), counts, missing))

    def column(self) -> pa.Array:
        """The maps as a column."""
        missing = self.keys.missing
        ends = np.cumsum(self.keys.counts)
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        if not missing.any():
            return pa.MapArray.from_arrays(offsets, self.keys.items, self.values.items)
        open_ = pa.array(np.concatenate([[0], ends]), pa.int32(), mask=np.concatenate([missing, [False]]))
        return pa.MapArray.from_arrays(open_, self.keys.items, self.values.items)


def at_key(value: Value, key: Value) -> Value:
    """The value of a key; null if there is none."""
    known = value.type.key_type
    if not pa.types.is_null(key.type) and common(known, key.type) != known:
        raise misfit(value.type, key.type)
    (column,), single = arrays(value)
    if isinstance(key, pa.Scalar):
        if not key.is_valid:
            return joined(pa.nulls(len(column), value.type.item_type), single)
        return pc.map_lookup(value, query_key=pc.cast(key, known), occurrence="first")
    (column, wanted), _ = arrays(value, pc.cast(key, known))
    maps = Maps.of(column)
    positions = np.full(len(column), -1, np.int64)
    hits = np.flatnonzero(equal_elements(maps.keys, wanted))
    rows, first = np.unique(maps.keys.rows[hits], return_index=True)
    positions[rows] = hits[first]
    return maps.values.items.take(pa.array(positions, mask=positions < 0))
