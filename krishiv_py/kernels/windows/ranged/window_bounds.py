"""Determine which windows the rows of distinct-set sliding windows bring into being (SEMANTICS §3.5): arithmetic on
whole columns.
"""

from __future__ import annotations

import attrs
import numpy as np

from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.windows.distinct import DistinctWindows

FROM = "__from"
"""Working column: the row counts in windows that end at this time or later, for others were closed when it came."""


@attrs.frozen
class WindowSpans:
    """Windows of one length, both bounds inclusive; `tick_us` is the resolution of the time column."""

    window: DistinctWindows
    tick_us: int

    @property
    def size(self) -> int:
        """Length, µs."""
        return self.window.size_us

    @property
    def reach(self) -> int:
        """Return how far before the end of its last window a row can be."""
        return self.size if self.window.direction == "forward" else self.size + self.tick_us

    def own_start(self, times: Ints) -> Ints:
        """Return where the window begins that a row brings by itself."""
        if self.window.direction == "forward":
            return times
        if self.window.clamp_zero:
            return np.where((times >= 0) & (times < self.size), 0, times - self.size)
        return times - self.size

    def own_end(self, times: Ints) -> Ints:
        """Return where it ends."""
        return self.own_start(times) + self.size

    def next_start(self, times: Ints) -> Ints:
        """Return where the window begins that a row brings as soon as another lies in it; empty where there is none."""
        return times[:0] if self.window.direction == "forward" else times + self.tick_us

    def frontier(self, horizon: int) -> int:
        """The earliest time of rows whose own window ends at or after `horizon`."""
        if horizon in (UNSET, END_OF_TIME):
            return horizon
        if self.window.direction == "forward":
            return horizon - self.size
        return min(horizon, 0) if self.window.clamp_zero and horizon <= self.size else horizon

    def late(self, times: Ints, ids: Ints, known: Ints, known_ids: Ints, n: int, horizon: int) -> Mask:
        """Rows that find no open window: neither their own, nor one that a known row or another new one brings.

        A window that is open reaches beyond every row in question, so what counts is where the earliest of a key begins; and
        a row that finds its place in one cannot bring an earlier one.
        """
        closed = self.own_end(times) < horizon
        if not closed.any():
            return closed
        seeds, owners = np.concatenate([known, times[~closed]]), np.concatenate([known_ids, ids[~closed]])
        earliest = np.full(n, END_OF_TIME, np.int64)
        is_open = self.own_end(seeds) >= horizon
        np.minimum.at(earliest, owners[is_open], self.own_start(seeds[is_open]))
        right = self.next_start(seeds)
        if len(right):
            is_open = right + self.size >= horizon
            np.minimum.at(earliest, owners[is_open], right[is_open])
        found: Mask = closed & (times < earliest[ids])
        return found
