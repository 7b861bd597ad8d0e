"""Functions of lists over their elements: one flat column, and how many of it each row has."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.functions.computing.compare import compare
from krishiv_py.functions.computing.functions import alike, boolean, require
from krishiv_py.functions.computing.order import plain, ranks
from krishiv_py.functions.computing.strings import text
from krishiv_py.functions.computing.values import FaultError, Value, arrays, joined

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
        """Those of a column."""
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
        """Where the elements of each row begin."""
        found: Ints = np.cumsum(self.counts) - self.counts
        return found

    @property
    def places(self) -> Ints:
        """The place of each element in its list, from 0 on."""
        found: Ints = np.arange(len(self.items), dtype=np.int64) - np.repeat(self.starts, self.counts)
        return found

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
        """With further rows null."""
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


def array_distinct(value: Value) -> Value:
    """``array_distinct``."""
    (column,), single = arrays(value)
    return joined(distinct(Lists.of(column)).column(), single)


def _both(left: Value, right: Value) -> tuple[Lists, Lists, bool]:
    """Two columns of lists with elements of one type, null where one of them is."""
    (one, other), single = arrays(left, right)
    a, b = Lists.of(one), Lists.of(other)
    a, b = a.without(b.missing), b.without(a.missing)
    first, second = alike([a.items, b.items])
    return attrs.evolve(a, items=first), attrs.evolve(b, items=second), single


def behind(parts: list[Lists]) -> Lists:
    """The elements of several lists, one list after the other."""
    rows = np.concatenate([part.rows for part in parts])
    whole = Lists(pa.concat_arrays([p.items for p in parts]), np.zeros_like(parts[0].counts), parts[0].missing)
    order = np.argsort(rows, kind="stable")
    counts = np.sum([p.counts for p in parts], axis=0)
    return attrs.evolve(whole, items=whole.items.take(pa.array(order)), counts=counts)


def array_union(left: Value, right: Value) -> Value:
    """``array_union``."""
    a, b, single = _both(left, right)
    return joined(distinct(behind([a, b])).column(), single)


def _shared(a: Lists, b: Lists) -> Mask:
    """Which elements of one list the other one has, too."""
    number, most = codes(pa.concat_arrays([a.items, b.items]))
    one, other = number[: len(a.items)], number[len(a.items) :]
    found: Mask = np.isin(a.rows * most + one, b.rows * most + other)
    return found


def array_set(left: Value, right: Value, kept: bool) -> Value:
    """``array_intersect``, and ``array_except`` for those that are not `kept`."""
    a, b, single = _both(left, right)
    a = attrs.evolve(a, items=plain(a.items))
    return joined(distinct(a.only(np.flatnonzero(_shared(a, b) == kept))).column(), single)


def arrays_overlap(left: Value, right: Value) -> Value:
    """Whether two lists have an element in common; null if none is found beside a null."""
    a, b, single = _both(left, right)
    n = len(a.counts)
    known = a.items.is_valid().to_numpy(zero_copy_only=False)
    hits = np.bincount(a.rows[_shared(a, b) & known], minlength=n) > 0
    nulls = [np.bincount(x.rows[x.items.is_null().to_numpy(zero_copy_only=False)], minlength=n) > 0 for x in (a, b)]
    open_ = ~hits & (nulls[0] | nulls[1]) & (a.counts > 0) & (b.counts > 0)
    return joined(pa.array(hits, mask=open_ | a.missing), single)


def array_position(value: Value, wanted: Value) -> Value:
    """The place of the first element that equals a value, from 1 on; 0 if there is none."""
    (column, needles), single = arrays(value, wanted)
    lists = Lists.of(column)
    places = np.zeros(len(column), np.int64)
    missing = lists.missing | needles.is_null().to_numpy(zero_copy_only=False)
    if not pa.types.is_null(needles.type):
        hits = np.flatnonzero(equal_elements(lists, needles))
        rows, first = np.unique(lists.rows[hits], return_index=True)
        places[rows] = lists.places[hits[first]] + 1
    return joined(pa.array(places, mask=missing), single)


def equal_elements(lists: Lists, needles: pa.Array) -> Mask:
    """Which elements equal the value of their row."""
    same = compare("==", lists.items, needles.take(pa.array(lists.rows)))
    found: Mask = pc.fill_null(same, False).to_numpy(zero_copy_only=False)
    return found


def array_remove(value: Value, unwanted: Value) -> Value:
    """``array_remove``: nulls stay."""
    (column, needles), single = arrays(value, unwanted)
    lists = Lists.of(column)
    if not pa.types.is_null(needles.type):
        lists = lists.only(np.flatnonzero(~equal_elements(lists, needles)))
    return joined(lists.without(needles.is_null().to_numpy(zero_copy_only=False)).column(), single)


def array_compact(value: Value) -> Value:
    """``array_compact``."""
    (column,), single = arrays(value)
    lists = Lists.of(column)
    return joined(lists.only(np.flatnonzero(lists.items.is_valid().to_numpy(zero_copy_only=False))).column(), single)


def extreme_element(value: Value, greatest: bool) -> Value:
    """``array_max``, ``array_min``: the first of the greatest or least elements; nulls are left out."""
    (column,), single = arrays(value)
    lists = Lists.of(column)
    rank, rows = ranks(lists.items), lists.rows
    known = np.flatnonzero(rank >= 0)
    order = known[np.lexsort((-rank[known] if greatest else rank[known], rows[known]))]
    have, first = np.unique(rows[order], return_index=True)
    at = np.full(len(column), -1, np.int64)
    at[have] = order[first]
    return joined(lists.items.take(pa.array(at, mask=at < 0)), single)


def sorted_list(value: Value, ascending: bool, nulls_first: bool) -> Value:
    """``sort_array``, ``array_sort``; equal elements keep their order."""
    (column,), single = arrays(value)
    lists = Lists.of(column)
    rank = ranks(lists.items)
    null = lists.items.is_null().to_numpy(zero_copy_only=False)  # older versions of Arrow rank nulls, too
    order = np.lexsort((rank if ascending else -rank, ~null if nulls_first else null, lists.rows))
    return joined(lists.only(order).column(), single)


def array_join(value: Value, delimiter: Value, null: Value | None) -> Value:
    """The texts of a list with a delimiter between them; nulls are left out, or written as `null`."""
    (column, between, *instead), single = arrays(value, text(delimiter), *([] if null is None else [text(null)]))
    lists = Lists.of(column)
    lists = attrs.evolve(lists, items=text(lists.items))
    if instead:
        filled = pc.coalesce(lists.items, instead[0].take(pa.array(lists.rows)))
        lists = attrs.evolve(lists, items=filled).without(instead[0].is_null().to_numpy(zero_copy_only=False))
    else:
        lists = lists.only(np.flatnonzero(lists.items.is_valid().to_numpy(zero_copy_only=False)))
    return joined(pc.binary_join(lists.column(), between), single)


def _whole(value: Value) -> Value:
    require(pa.types.is_integer, value)
    return pc.cast(value, pa.int64())


def sliced(value: Value, start: Value, length: Value) -> Value:
    """``slice``: from a place on that counts from 1, below 0 from the end."""
    (column, firsts, lengths), single = arrays(value, _whole(start), _whole(length))
    lists = Lists.of(column)
    null = (firsts.is_null().to_numpy(zero_copy_only=False)) | lengths.is_null().to_numpy(zero_copy_only=False)
    lists = lists.without(null)
    first = pc.fill_null(firsts, 1).to_numpy(zero_copy_only=False)
    many = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
    if (first[~lists.missing] == 0).any():
        raise FaultError("slice counts from 1: a list has no element 0")
    if (many[~lists.missing] < 0).any():
        raise FaultError("slice takes no length below 0")
    begin = np.where(first > 0, first - 1, lists.counts + first)
    there = (begin >= 0) & (begin < lists.counts)
    begin = np.where(there, begin, 0)
    low = lists.starts + begin
    high = low + np.where(there, np.minimum(many, lists.counts - begin), 0)
    return joined(lists.only(expand(low, high)[0]).column(), single)


def flattened(value: Value) -> Value:
    """``flatten``: null where one of the lists is."""
    (column,), single = arrays(value)
    outer = Lists.of(column)
    inner = Lists.of(outer.items)
    lost = np.bincount(outer.rows[inner.missing], minlength=len(column)) > 0
    row_of_item = outer.rows[inner.rows]
    counts = np.bincount(row_of_item, minlength=len(column)).astype(np.int64)
    return joined(Lists(inner.items, counts, outer.missing).without(lost).column(), single)


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
    return joined(behind(parts).column(), single)


def truths(value: Value, n: int) -> tuple[Mask, Mask]:
    """Where a condition is true, and where it is null."""
    held = boolean(value)
    if isinstance(held, pa.Scalar):
        held = pa.repeat(held, n)
    return pc.fill_null(held, False).to_numpy(zero_copy_only=False), held.is_null().to_numpy(zero_copy_only=False)
