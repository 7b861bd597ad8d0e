"""Functions that take a function of elements: it is computed over all elements at once, with the columns of their rows.

Of a sort by a function, the pairs compared are those of Java's sort of short lists, where Spark leaves them: an ascending or
strictly descending run at the front, then each other element goes to its place by halving. So a function that contradicts
itself, or fails for some pairs only, gives what it gives there. Above 31 elements Java merges; of a function that does not
contradict itself there is but one stable order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.ranges import by_place, expand
from krishiv_py.arrays.types import Ints, Mask, last_rows
from krishiv_py.errors import ExpressionError, OperatorError
from krishiv_py.functions.computing.lists import Lists, Maps, listed_in, truths
from krishiv_py.functions.computing.values import FaultError, is_integer
from krishiv_py.functions.definition import Elements, OfOne, OfOneOrTwo, OfTwo, SqlNode, Value, example
from krishiv_py.functions.definition import function as define
from krishiv_py.types import type_text

Before: TypeAlias = Callable[[Ints, Ints, Ints], Mask]
"""For rows, and two elements of each: whether the first one is less."""


def compared_order(lists: Lists, before: Before) -> Ints:
    """The elements of all lists, each list in its order."""
    starts = lists.starts
    order = np.arange(len(lists.items), dtype=np.int64)
    runs, falling = _first_runs(lists, before)
    turned = np.flatnonzero(falling)
    positions, of = expand(starts[turned], starts[turned] + runs[turned])
    order[positions] = (2 * starts + runs - 1)[turned][of] - positions
    for rows, place in by_place(lists.counts):
        rows = rows[runs[rows] <= place]
        if len(rows):
            _insert(order, rows, starts[rows], place, before)
    return order


def _first_runs(lists: Lists, before: Before) -> tuple[Ints, Mask]:
    """Return how many elements are in order from the first on, and whether that is from the greatest down."""
    runs, falling = np.minimum(lists.counts, 1), np.zeros(len(lists.counts), np.bool_)
    starts = lists.starts
    for rows, place in by_place(lists.counts):
        rows = rows[runs[rows] == place]
        if not place or not len(rows):
            continue
        less = before(rows, starts[rows] + place, starts[rows] + place - 1)
        if place == 1:
            falling[rows] = less
        runs[rows[less == falling[rows]]] += 1
    return runs, falling


def _insert(order: Ints, rows: Ints, starts: Ints, place: int, before: Before) -> None:
    """Bring the elements at a place to where they belong among those before, after their equals."""
    moved = order[starts + place]
    low, high = np.zeros(len(rows), np.int64), np.full(len(rows), place, np.int64)
    while len(open_ := np.flatnonzero(low < high)):
        middle = (low[open_] + high[open_]) >> 1
        less = before(rows[open_], moved[open_], order[starts[open_] + middle])
        high[open_[less]] = middle[less]
        low[open_[~less]] = middle[~less] + 1
    positions, _ = expand(starts + low, starts + place)
    order[positions + 1] = order[positions]
    order[starts + low] = moved


def _of_elements(lists: Lists, elements: Elements) -> pa.Array:
    """Return what a function gives for all elements, and their places."""
    return elements.given(lists.rows, lists.items, pa.array(lists.places, pa.int32()))


@define("lists", "array", node=SqlNode("Transform", "this expression"), nulls="own")
@example("transform(array(1, 2), x -> x + 1)", [2, 3])
def transform(value: Value, function: OfOneOrTwo) -> Value:
    """Return a list of what a `function` gives for each element, or for element and place, which counts from 0."""
    lists = Lists.of(value)
    return attrs.evolve(lists, items=_of_elements(lists, function)).column()


@define("lists", "array", name="filter", node=SqlNode("ArrayFilter", "this expression"), nulls="own")
@example("filter(array(1, 2), x -> x > 1)", [2])
def filtered(value: Value, function: OfOneOrTwo) -> Value:
    """Return the elements for which a `function`, of the element or of element and place, is true."""
    lists = Lists.of(value)
    holds, _ = truths(_of_elements(lists, function), len(lists.items))
    return lists.only(np.flatnonzero(holds)).column()


def _any(value: Value, elements: Elements, *, wanted: bool) -> Value:
    """``exists``, and ``forall`` by way of an element for which it is false; null if there is none and one is null."""
    lists = Lists.of(value)
    try:
        true, null = truths(_of_elements(lists, elements), len(lists.items))
        hits = true if wanted else ~true & ~null
        rows = lists.rows
        any_hit = np.bincount(rows[hits], minlength=len(lists.counts)) > 0
        open_ = np.bincount(rows[null], minlength=len(lists.counts)) > 0
    except OperatorError:  # elements after the one that decides need no value
        any_hit, open_ = _stepwise(elements, lists, wanted)
    return pa.array(any_hit if wanted else ~any_hit, mask=lists.missing | (open_ & ~any_hit))


def _stepwise(elements: Elements, lists: Lists, wanted: bool) -> tuple[Mask, Mask]:
    hits, open_ = np.zeros(len(lists.counts), np.bool_), np.zeros(len(lists.counts), np.bool_)
    for rows, place in by_place(lists.counts):
        rows = rows[~hits[rows]]
        items = lists.items.take(pa.array(lists.starts[rows] + place))
        true, null = truths(elements.given(rows, items), len(rows))
        hits[rows[true if wanted else ~true & ~null]] = True
        open_[rows[null]] = True
    return hits, open_


@define("lists", "boolean", node=SqlNode("Exists", "this expression"), nulls="own")
@example("exists(array(1, 2), x -> x > 1)", True)
def exists(value: Value, function: OfOne) -> Value:
    """Return whether a `function` is true for an element; null if it is for none, and null for one."""
    return _any(value, function, wanted=True)


@define("lists", "boolean", nulls="own")
@example("forall(array(1, 2), x -> x > 1)", False)
def forall(value: Value, function: OfOne) -> Value:
    """Return whether a `function` is true for every element; null if it is false for none, and null for one."""
    return _any(value, function, wanted=False)


@define("lists", "type of start", node=SqlNode("Reduce", "this initial merge finish"), names=("reduce",), nulls="own")
@example("aggregate(array(1, 2), 0, (acc, x) -> acc + x)", 3)
def aggregate(value: Value, start: Value, merge: OfTwo, finish: OfOne | None = None) -> Value:
    """Return what `merge` makes of `start` and the first element, then of that and the second one, and so on.

    Parameters
    ----------
    start : Expr or constant
        What is there before the first element; `merge` must give values of its type.
    merge : callable
        Of what is there so far, and an element.
    finish : callable, optional
        Makes the result of what is there in the end.
    """
    lists, so_far = Lists.of(value), start
    _same_type(start.type, merge, merge.given(np.zeros(0, np.int64), so_far[:0], lists.items[:0]).type)
    order = np.argsort(-lists.counts, kind="stable")
    so_far, done = so_far.take(pa.array(order)), []
    for rows, place in by_place(lists.counts):
        done.append(so_far[len(rows) :])
        items = lists.items.take(pa.array(lists.starts[rows] + place))
        so_far = merge.given(rows, so_far[: len(rows)], items)
    back = last_rows(order, len(order))
    ended = pa.concat_arrays([so_far, *reversed(done)]).take(pa.array(back))
    known = np.flatnonzero(~lists.missing)
    ended = ended.take(pa.array(known))
    if finish is not None:
        ended = finish.given(known, ended)
    positions = np.cumsum(~lists.missing) - 1
    return ended.take(pa.array(positions, mask=lists.missing))


def _same_type(start: pa.DataType, merge: Elements, merged: pa.DataType) -> None:
    if start != merged:
        raise ExpressionError(
            "the start of aggregate has another type than what is merged",
            got=f"the start is {type_text(start)}, {merge.text} gives {type_text(merged)}",
            then="it cannot go on from one to the other",
            hint=f'cast the start: lit(0).cast("{type_text(merged)}"), in text CAST(0 AS {type_text(merged)})',
        )


@define("lists", "array", nulls="own")
@example("array_sort(array(2, NULL, 1))", [1, 2, None])
def array_sort(value: Value, compare: OfTwo | None = None) -> Value:
    """Return the list in ascending order, nulls last; or as a function says of any two elements.

    Parameters
    ----------
    compare : callable, optional
        Of two elements, which may be null: a whole number below 0 if the first one comes first, above 0 if the second one
        does, else 0; equal ones keep their order. Null is an error.
    """
    if compare is None:
        return listed_in(value, ascending=True, nulls_first=False)
    lists, chosen = Lists.of(value), compare

    def before(rows: Ints, left: Ints, right: Ints) -> Mask:
        given = chosen.given(rows, lists.items.take(pa.array(left)), lists.items.take(pa.array(right)))
        if not is_integer(given.type):
            hint = "write (a, b) -> CASE WHEN a < b THEN -1 WHEN a > b THEN 1 ELSE 0 END"
            got = f"{chosen.text} gives {type_text(given.type)}"
            raise ExpressionError("a function that compares gives a whole number", got=got, hint=hint)
        if given.null_count:
            raise FaultError("a function that compares gave null for two elements: let it give 0, or a number below or above")
        less: Mask = given.to_numpy(zero_copy_only=False) < 0
        return less

    before(*(np.zeros(0, np.int64) for _ in range(3)))  # its type is known without elements
    return attrs.evolve(lists, items=lists.items.take(pa.array(compared_order(lists, before)))).column()


@define("lists", "array", nulls="own")
@example("zip_with(array(1, 2), array(3, 4), (x, y) -> x + y)", [4, 6])
def zip_with(value: Value, other: Value, function: OfTwo) -> Value:
    """Return a list of what a `function` gives for the elements at one place of it and `other`; null where one ends."""
    one, two = Lists.of(value), Lists.of(other)
    missing = one.missing | two.missing
    one, two = one.without(missing), two.without(missing)
    longer = Lists(pa.nulls(0), np.maximum(one.counts, two.counts), missing)
    rows = longer.rows
    places = np.arange(len(rows), dtype=np.int64) - np.repeat(longer.starts, longer.counts)
    sides = []
    for lists in (one, two):
        there = places < lists.counts[rows]
        sides.append(lists.items.take(pa.array(lists.starts[rows] + places, mask=~there)))
    return attrs.evolve(longer, items=function.given(rows, *sides)).column()


@define("maps", "map", nulls="own")
@example("map_filter(map('a', 1, 'b', 2), (k, v) -> v > 1)", [("b", 2)])
def map_filter(value: Value, function: OfTwo) -> Value:
    """Return the entries of a map for which a `function` of key and value is true."""
    maps = Maps.of(value)
    holds, _ = truths(function.given(maps.keys.rows, maps.keys.items, maps.values.items), len(maps.keys.items))
    kept = np.flatnonzero(holds)
    return Maps(maps.keys.only(kept), maps.values.only(kept)).column()


@define("maps", "map", nulls="own")
@example("transform_values(map('a', 1), (k, v) -> v + 1)", [("a", 2)])
def transform_values(value: Value, function: OfTwo) -> Value:
    """Return a map with what a `function` of key and value gives in the place of each value."""
    maps = Maps.of(value)
    items = function.given(maps.keys.rows, maps.keys.items, maps.values.items)
    return attrs.evolve(maps, values=attrs.evolve(maps.values, items=items)).column()
