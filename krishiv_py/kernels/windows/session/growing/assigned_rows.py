"""Determine which session each row of a batch falls into as rows come one by one, where sessions only grow and join
(SEMANTICS §3.3).

A *track* is a session as it grows: it begins with a session that was held, or with a row that joins none, and each row that
falls into it takes it one step on. A row that bridges several takes the one of most rows on; the others end there::

    arrival    1   2   3   4   5          track A   1 ── 3 ─────── 5 ──►     rows 1 3 5 and all of B
    time       0  20   2  18  10          track B     2 ──── 4 ────┘         5 joins A and B (gap 9)

So of n rows in a session no chain of tracks that end in tracks is longer than log2 n.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import attrs
import numpy as np

from krishiv_py.arrays.intervals import components, running_reach
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask


@attrs.frozen(eq=False)
class SessionElements:
    """Sessions that were held, then the rows of a batch in order of arrival.

    Attributes
    ----------
    groups, starts, ends : ndarray of int64
        Group of the key and bounds; a row reaches from its time to the end of its gap.
    rows, ids : ndarray of int64
        How many rows each is made of, and a number that grows with arrival.
    n_held : int
        How many of them are sessions.
    """

    groups: Ints
    starts: Ints
    ends: Ints
    rows: Ints
    ids: Ints
    n_held: int


@attrs.frozen(eq=False)
class Tracks:
    """Holds what became of the elements. Tracks are numbered: held sessions first, then those that began with a row.

    Attributes
    ----------
    of_row : ndarray of int64
        The track each row took on.
    starts, ends : ndarray of int64
        Bounds of the session after each row.
    first : ndarray of int64
        The element each track began with.
    into : ndarray of int64
        The row that joined each track to another; -1 for those that go on.
    level : ndarray of int64
        0 for tracks no other ended in, else one more than the highest of those.
    """

    of_row: Ints
    starts: Ints
    ends: Ints
    first: Ints
    into: Ints
    level: Ints

    @property
    def n(self) -> int:
        """Return how many tracks there are."""
        return len(self.first)


def follow(e: SessionElements, *, touching: bool) -> Tracks:
    """The tracks of these elements."""
    h = e.n_held
    walker = _Walker(e, touching=touching)
    if h == len(e.starts):
        return walker.tracks()
    parts = components(e.groups, e.starts, e.ends, touching=touching)
    brought = np.zeros(parts.n, np.bool_)
    brought[parts.ids[h:]] = True
    order = stable_order(parts.ids)
    order = order[brought[parts.ids[order]]]
    part = parts.ids[order]
    heads = np.ones(len(part), np.bool_)
    heads[1:] = part[1:] != part[:-1]
    low, high = -running_reach(part, -e.starts[order]), running_reach(part, e.ends[order])
    apart = _apart(e, order, low, high, heads, touching=touching)
    by_hand = np.zeros(parts.n, np.bool_)
    by_hand[part[apart]] = True
    single = ~by_hand[part]
    row = order >= h
    walker.singles(order, part, low, high, heads, row, single)
    if by_hand.any():
        walker.walk(order[~single], part[~single])
    return walker.tracks()


def _apart(e: SessionElements, order: Ints, low: Ints, high: Ints, heads: Mask, *, touching: bool) -> Mask:
    """Elements that do not meet the span of those before them: where there are none, it is one session all along."""
    starts, ends = e.starts[order][1:], e.ends[order][1:]
    met = (starts <= high[:-1]) & (ends >= low[:-1]) if touching else (starts < high[:-1]) & (ends > low[:-1])
    apart = np.zeros(len(order), np.bool_)
    apart[1:] = ~met & ~heads[1:]
    return apart


class _Walker:
    """Fills in the tracks: all at once where a session grows without another next to it, else row by row."""

    def __init__(self, elements: SessionElements, *, touching: bool) -> None:
        self._e = elements
        self._touching = touching
        n_rows = len(elements.starts) - elements.n_held
        self._of_row, self._starts, self._ends = (np.zeros(n_rows, np.int64) for _ in range(3))
        self._first: list[int] = []
        self._joins: list[tuple[int, int]] = []  # (row, track that ends there)

    def singles(self, order: Ints, part: Ints, low: Ints, high: Ints, heads: Mask, row: Mask, single: Mask) -> None:
        """Parts that are one session all along."""
        h = self._e.n_held
        begins = np.flatnonzero(heads & single)
        first = order[begins]
        fresh = first >= h
        number = np.where(fresh, h + np.cumsum(fresh) - 1, first)
        self._first = first[fresh].tolist()
        track = np.zeros(int(part.max(initial=-1)) + 1, np.int64)
        track[part[begins]] = number
        at = row & single
        rows = order[at] - h
        self._of_row[rows] = track[part[at]]
        self._starts[rows], self._ends[rows] = low[at], high[at]

    def walk(self, order: Ints, part: Ints) -> None:
        """Parts in which sessions begin side by side and are joined."""
        cuts = np.flatnonzero(np.diff(part)) + 1
        size = self._e.rows.tolist()[: self._e.n_held] + [1] * len(self._first)
        for elements in np.split(order, cuts):
            self._part(elements, size)

    def _part(self, elements: Ints, size: list[int]) -> None:
        h, e = self._e.n_held, self._e
        held = elements[elements < h]
        held = held[np.argsort(e.starts[held])]
        starts, ends, tracks = e.starts[held].tolist(), e.ends[held].tolist(), held.tolist()
        rows = elements[elements >= h]
        after, before = (bisect_left, bisect_right) if self._touching else (bisect_right, bisect_left)
        taken, lows, highs = [], [], []
        for row, low, high in zip((rows - h).tolist(), e.starts[rows].tolist(), e.ends[rows].tolist(), strict=True):
            left, right = after(ends, low), before(starts, high)
            if left >= right:
                track = h + len(self._first)
                self._first.append(row + h)
                size.append(1)
                starts.insert(left, low)
                ends.insert(left, high)
                tracks.insert(left, track)
            else:
                track = tracks[left]
                if right > left + 1:
                    track = self._joined(row, tracks[left:right], size)
                size[track] += 1
                low, high = min(low, starts[left]), max(high, ends[right - 1])
                starts[left:right], ends[left:right], tracks[left:right] = [low], [high], [track]
            taken.append(track)
            lows.append(low)
            highs.append(high)
        at = rows - h
        self._of_row[at], self._starts[at], self._ends[at] = taken, lows, highs

    def _joined(self, row: int, tracks: list[int], size: list[int]) -> int:
        """The track that goes on: of most rows, the older of equal ones."""
        h, ids = self._e.n_held, self._e.ids
        main = max(tracks, key=lambda t: (size[t], -int(ids[t if t < h else self._first[t - h]])))
        for other in tracks:
            if other != main:
                self._joins.append((row, other))
                size[main] += size[other]
        return main

    def tracks(self) -> Tracks:
        """Return what was found."""
        h = self._e.n_held
        first = np.concatenate([np.arange(h), np.array(self._first, np.int64)])
        into = np.full(len(first), -1, np.int64)
        level = np.zeros(len(first), np.int64)
        for row, ended in sorted(self._joins):
            into[ended] = row
            main = self._of_row[row]
            level[main] = max(level[main], level[ended] + 1)
        return Tracks(self._of_row, self._starts, self._ends, first, into, level)
