"""Functions of lists and maps: sets, places, order, parts; lists that are made; maps by the lists of their keys and values."""

from __future__ import annotations

import datetime as dt
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.types import values_at
from krishiv_py.errors import ExpressionError, shown
from krishiv_py.functions.computing import lists
from krishiv_py.functions.computing.checks import alike, require, text
from krishiv_py.functions.computing.compare import plain, ranks
from krishiv_py.functions.computing.lists import (
    Lists,
    Maps,
    at_key,
    both,
    codes,
    distinct,
    element_or_null,
    equal_elements,
    followed,
    has_element,
    item_of,
    list_of,
    listed_in,
    shared,
)
from krishiv_py.functions.computing.values import FaultError, arrays, is_floating, joined, misfit
from krishiv_py.functions.definition import SqlNode, Switch, Value, example, function


@function("lists", "array", node=SqlNode("Array", "*expressions"), nulls="own", meets=True, method=False)
@example("array(1, 2)", [1, 2])
def array(*values: Value) -> Value:
    """Return the list of the values, in the type they meet in."""
    return list_of(list(values))


@function("lists", "int", node=SqlNode("ArraySize"), names=("cardinality",))
@example("size(array(7, 8))", 2)
def size(value: Value) -> Value:
    """Return how many elements a list or map has."""
    if pa.types.is_map(value.type):
        (column,), single = arrays(value)
        lengths = pc.subtract(column.offsets[1:], column.offsets[:-1])
        return joined(pc.if_else(pc.is_valid(column), lengths, pa.scalar(None, pa.int32())), single)
    require(pa.types.is_list, value)
    return pc.cast(value if pa.types.is_null(value.type) else pc.list_value_length(value), pa.int32())


def _check_item(name: str, args: tuple[Any, ...]) -> None:
    if isinstance(args[1], int) and args[1] < 0:
        raise ExpressionError("a list has no element below 0", got=shown(args[1]), hint="count from 0")


@function("lists", "element", in_text=False, method="getitem", check=_check_item)
@example("array(7, 8)[0]", 7)
def item(value: Value, place: Value) -> Value:
    """Return the element of a list at `place`, a column or constant that counts from 0; an error where the list is shorter.

    Of a map, the value of the key `place`, a constant; null where there is no such key.
    """
    return (at_key if pa.types.is_map(value.type) else item_of)(value, place)


@function("lists", "element")
@example("element_at(array(7, 8), -1)", 8)
def element_at(value: Value, place: Value) -> Value:
    """Return the element of a list at `place`, which counts from 1, below 0 from the end; of a map, the value of a key."""
    return (at_key if pa.types.is_map(value.type) else _element_at)(value, place)


def _element_at(value: Value, index: Value) -> Value:
    """The element of a list at a place that counts from 1, below 0 from the end."""
    if pa.types.is_null(value.type):
        return item_of(value, index)
    require(pa.types.is_list, value)
    require(pa.types.is_integer, index)
    (column, places), single = arrays(value, pc.cast(index, pa.int64()))
    if pc.any(pc.and_(pc.equal(places, 0), column.is_valid())).as_py():
        raise FaultError("element_at counts from 1: a list has no element 0")
    lengths = pc.cast(pc.list_value_length(column), pa.int64())
    element = item_of(column, pc.if_else(pc.greater(places, 0), pc.subtract(places, 1), pc.add(lengths, places)))
    return element[0] if single else element


@function("lists", "element")
@example("get(array(7, 8), 2)", None)
def get(value: Value, place: Value) -> Value:
    """Return the element of a list at `place`, which counts from 0; null beyond the list."""
    return element_or_null(value, place, from_one=False)


@function("lists", "element", nulls="own", method=False)
@example("try_element_at(array(7, 8), 3)", None)
def try_element_at(value: Value, place: Value) -> Value:
    """Return the element of a list at a place from 1 on, below 0 from the end, or of a map at a key; null if there is none."""
    if pa.types.is_map(value.type):
        return at_key(value, place)
    if pa.types.is_list(value.type) and pc.any(pc.and_(pc.equal(place, 0), pc.is_valid(value))).as_py():
        raise FaultError("try_element_at counts from 1: a list has no element 0")
    return element_or_null(value, place, from_one=True)


@function("lists", "boolean", node=SqlNode("ArrayContains", "this expression"))
@example("array_contains(array(1, 2), 2)", True)
def array_contains(items: Value, value: Value) -> Value:
    """Return whether a list has `value`, a column or constant, among its elements; null if it is not found and one is null."""
    return has_element(items, value)


@function("lists", "array", node=SqlNode("ArrayDistinct"))
@example("array_distinct(array(1, 2, 1))", [1, 2])
def array_distinct(value: Value) -> Value:
    """Return the list without what is equal to an element before. Null equals null, NaN equals NaN."""
    (column,), single = arrays(value)
    return joined(distinct(Lists.of(column)).column(), single)


@function("lists", "array")
@example("array_union(array(1, 2), array(2, 3))", [1, 2, 3])
def array_union(value: Value, other: Value) -> Value:
    """Return the elements of the list and the `other` one, each once."""
    a, b, single = both(value, other)
    return joined(distinct(followed([a, b])).column(), single)


def _kept(value: Value, other: Value, *, inside: bool) -> Value:
    a, b, single = both(value, other)
    a = attrs.evolve(a, items=plain(a.items))
    return joined(distinct(a.only(np.flatnonzero(shared(a, b) == inside))).column(), single)


@function("lists", "array", node=SqlNode("ArrayIntersect", "*expressions"))
@example("array_intersect(array(1, 2), array(2, 3))", [2])
def array_intersect(value: Value, other: Value) -> Value:
    """Return the elements that the `other` list has as well, each once."""
    return _kept(value, other, inside=True)


@function("lists", "array", node=SqlNode("ArrayExcept", "this expression"))
@example("array_except(array(1, 2), array(2, 3))", [1])
def array_except(value: Value, other: Value) -> Value:
    """Return the elements that the `other` list does not have, each once."""
    return _kept(value, other, inside=False)


@function("lists", "boolean", node=SqlNode("ArrayOverlaps", "this expression"))
@example("arrays_overlap(array(1, 2), array(2, 3))", True)
def arrays_overlap(value: Value, other: Value) -> Value:
    """Return whether the list and the `other` one have an element in common; null if none is found and one is null."""
    a, b, single = both(value, other)
    n = len(a.counts)
    known = a.items.is_valid().to_numpy(zero_copy_only=False)
    hits = np.bincount(a.rows[shared(a, b) & known], minlength=n) > 0
    nulls = [np.bincount(x.rows[x.items.is_null().to_numpy(zero_copy_only=False)], minlength=n) > 0 for x in (a, b)]
    open_ = ~hits & (nulls[0] | nulls[1]) & (a.counts > 0) & (b.counts > 0)
    return joined(pa.array(hits, mask=open_ | a.missing), single)


@function("lists", "bigint", node=SqlNode("ArrayPosition", "this expression"))
@example("array_position(array(7, 8), 8)", 2)
def array_position(items: Value, value: Value) -> Value:
    """Return the place of the first element that equals `value`, from 1 on; 0 if there is none."""
    (column, needles), single = arrays(items, value)
    lists = Lists.of(column)
    places = np.zeros(len(column), np.int64)
    missing = lists.missing | needles.is_null().to_numpy(zero_copy_only=False)
    if not pa.types.is_null(needles.type):
        hits = np.flatnonzero(equal_elements(lists, needles))
        rows, first = np.unique(lists.rows[hits], return_index=True)
        places[rows] = lists.places[hits[first]] + 1
    return joined(pa.array(places, mask=missing), single)


@function("lists", "array", node=SqlNode("ArrayRemove", "this expression"))
@example("array_remove(array(1, 2, 1), 1)", [2])
def array_remove(items: Value, value: Value) -> Value:
    """Return the list without the elements that equal `value`; nulls stay."""
    (column, needles), single = arrays(items, value)
    lists = Lists.of(column)
    if not pa.types.is_null(needles.type):
        lists = lists.only(np.flatnonzero(~equal_elements(lists, needles)))
    return joined(lists.without(needles.is_null().to_numpy(zero_copy_only=False)).column(), single)


@function("lists", "array", node=SqlNode("ArrayCompact"))
@example("array_compact(array(1, NULL))", [1])
def array_compact(value: Value) -> Value:
    """Return the list without nulls."""
    (column,), single = arrays(value)
    lists = Lists.of(column)
    return joined(lists.only(np.flatnonzero(lists.items.is_valid().to_numpy(zero_copy_only=False))).column(), single)


def _extreme(value: Value, *, greatest: bool) -> Value:
    """``array_max``, ``array_min``: the first of the greatest or least elements; nulls are left out."""
    (column,), single = arrays(value)
    lists = Lists.of(column)
    rank, rows = ranks(lists.items), lists.rows
    known = np.flatnonzero(rank >= 0)
    order = known[np.lexsort((-rank[known] if greatest else rank[known], rows[known]))]
    have, first = np.unique(rows[order], return_index=True)
    positions = values_at(have, order[first], len(column), -1)
    return joined(lists.items.take(pa.array(positions, mask=positions < 0)), single)


@function("lists", "element", node=SqlNode("ArrayMax"))
@example("array_max(array(1, 3, NULL))", 3)
def array_max(value: Value) -> Value:
    """Return the greatest element; nulls are left out, NaN is the greatest."""
    return _extreme(value, greatest=True)


@function("lists", "element", node=SqlNode("ArrayMin"))
@example("array_min(array(1, 3, NULL))", 1)
def array_min(value: Value) -> Value:
    """Return the least element; nulls are left out."""
    return _extreme(value, greatest=False)


@function("lists", "array")
@example("sort_array(array(2, NULL, 1), false)", [2, 1, None])
def sort_array(value: Value, ascending: Switch = True) -> Value:
    """Return the list in order, `ascending` with nulls first, else descending with nulls last."""
    return listed_in(value, ascending=ascending, nulls_first=ascending)


@function(
    "lists", "string", node=(SqlNode("ArrayJoin", "this expression null"), SqlNode("ArrayToString", "this expression null"))
)
@example("array_join(array('a', NULL, 'b'), '-', '?')", "a-?-b")
def array_join(value: Value, delimiter: Value, null: Value | None = None) -> Value:
    """Return the texts of a list with a `delimiter` between them; nulls are left out, or written as the text `null`."""
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


@function("lists", "array", name="slice", node=SqlNode("ArraySlice", "this start end"))
@example("slice(array(1, 2, 3), 2, 2)", [2, 3])
def sliced(value: Value, start: Value, length: Value) -> Value:
    """Return at most `length` elements from place `start` on, which counts from 1, below 0 from the end."""
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


@function("lists", "array", node=SqlNode("Flatten"))
@example("flatten(array(array(1), array(2, 3)))", [1, 2, 3])
def flatten(value: Value) -> Value:
    """Return the elements of the lists in a list, as one list; null if one of them is."""
    (column,), single = arrays(value)
    outer = Lists.of(column)
    inner = Lists.of(outer.items)
    has_null = np.bincount(outer.rows[inner.missing], minlength=len(column)) > 0
    row_of_item = outer.rows[inner.rows]
    counts = np.bincount(row_of_item, minlength=len(column)).astype(np.int64)
    return joined(Lists(inner.items, counts, outer.missing).without(has_null).column(), single)


@function("lists", "array")
@example("array_repeat('a', 2)", ["a", "a"])
def array_repeat(value: Value, times: Value) -> Value:
    """Return a list of the value so many `times`; empty if the number is below 0."""
    return lists.array_repeat(value, times)


@function("lists", "array")
@example("sequence(1, 7, 3)", [1, 4, 7])
def sequence(start: Value, stop: Value, step: Value | None = None) -> Value:
    """Return the list of whole numbers, dates or times from this one to `stop`.

    Parameters
    ----------
    stop : Expr or constant
        The last element, if a `step` meets it.
    step : Expr or constant, optional
        A whole number; of dates and times a ``timedelta``. 1 or a day, backwards where `stop` comes before, by default.
    """
    return lists.sequence(start, stop, step)


@function("lists", "array", in_text=False, method=False)
@example(
    "sequence(DATE '2024-01-31', DATE '2024-03-31', INTERVAL 1 MONTH)",
    [dt.date(2024, 1, 31), dt.date(2024, 2, 29), dt.date(2024, 3, 31)],
)
def sequence_months(start: Value, stop: Value, months: Value) -> Value:
    """Return the list of dates or times by so many `months`, each counted from the first; in SQL text by an interval."""
    return lists.sequence_months(start, stop, months)


@function("maps", "array", node=SqlNode("MapKeys"))
@example("map_keys(map('a', 1))", ["a"])
def map_keys(value: Value) -> Value:
    """Return the keys of a map as a list."""
    (column,), single = arrays(value)
    return joined(Maps.of(column).keys.column(), single)


@function("maps", "array")
@example("map_values(map('a', 1))", [1])
def map_values(value: Value) -> Value:
    """Return the values of a map as a list."""
    (column,), single = arrays(value)
    return joined(Maps.of(column).values.column(), single)


@function("maps", "boolean", node=SqlNode("MapContainsKey", "this key"))
@example("map_contains_key(map('a', 1), 'b')", False)
def map_contains_key(value: Value, key: Value) -> Value:
    """Return whether a map has a `key`."""
    return has_element(map_keys(value), key)


@function("maps", "map", node=SqlNode("Map", "keys values"))
@example("map_from_arrays(array('a'), array(1))", [("a", 1)])
def map_from_arrays(keys: Value, values: Value) -> Value:
    """Return a map of the list, its keys, to the list `values`; keys that are null, or equal to another one, are errors."""
    (one, other), single = arrays(keys, values)
    a, b = Lists.of(one), Lists.of(other)
    missing = a.missing | b.missing
    a, b = a.without(missing), b.without(missing)
    if not np.array_equal(a.counts, b.counts):
        raise FaultError("a map has as many keys as values")
    return joined(_checked(Maps(a, b)).column(), single)


def _checked(maps: Maps) -> Maps:
    items, rows = maps.keys.items, maps.keys.rows
    if is_floating(items.type):  # Spark's answer for -0.0 next to 0.0 depends on how the map was made
        raise misfit(items.type)
    if items.null_count:
        raise FaultError("a map has no key that is null")
    number, most = codes(items)
    if len(np.unique(rows * most + number)) < len(rows):
        raise FaultError("a map has two keys that are equal")
    return maps


@function("maps", "map", name="map", nulls="own", method=False, most=2_000, by_turns="keys and values")
@example("map('a', 1)", [("a", 1)])
def map_of(key: Value, value: Value, *more: Value) -> Value:
    """Return a map of keys and values by turns; keys that are null, or equal to another one, are errors."""
    keys, items = alike([key, *more[::2]]), alike([value, *more[1::2]])
    columns, single = arrays(*keys, *items)
    lists = [list_of(part) for part in (columns[: len(keys)], columns[len(keys) :])]
    result = map_from_arrays(*lists)
    return result[0] if single else result
