"""Lists in the order of a function that compares two elements, all lists at once.

The pairs compared are those of Java's sort of short lists, where Spark leaves them: an ascending or strictly descending run at
the front, then each other element goes to its place by halving. So a function that contradicts itself, or fails for some
pairs only, gives what it gives there. Above 31 elements Java merges; of a function that does not contradict itself there is but
one stable order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.functions.computing.lists import Lists

Before: TypeAlias = Callable[[Ints, Ints, Ints], Mask]
"""For rows, and two elements of each: whether the first one is less."""


def by_place(counts: Ints) -> Iterator[tuple[Ints, int]]:
    """The rows that have an element at a place, the longest lists first, place after place."""
    order = np.argsort(-counts, kind="stable")
    descending = -counts[order]
    for place in range(int(counts.max(initial=0))):
        yield order[: int(np.searchsorted(descending, -place, side="left"))], place


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
