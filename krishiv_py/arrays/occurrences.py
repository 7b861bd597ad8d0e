"""Determine which ranges an occurrence of a value counts in, for ranges whose bounds both ascend: runs of neighbouring ranges.

Of equal values in a range the first one counts. So an occurrence counts in the ranges that begin after the one before it and
hold it, and these lie side by side::

    values   a b a c a       ranges 0..2 hold the first a; it counts in 0; the second in 1 and 2, where the first is out
    ranges   |-----|
               |-----|
                 |---|
"""

from __future__ import annotations

import attrs
import numpy as np

from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, NumPy


@attrs.frozen(eq=False)
class Spread:
    """Ranges ``[low, high)`` over values without nulls; `hole` is a position each leaves out, -1 for none.

    A range may be empty; `low` and `high` ascend.
    """

    low: Ints
    high: Ints
    hole: Ints | None

    @property
    def lengths(self) -> Ints:
        """Return how many values each holds."""
        whole: Ints = self.high - self.low
        return whole if self.hole is None else whole - (self.hole >= 0)


def neighbours(codes: Ints) -> tuple[Ints, Ints]:
    """For every position the one before and the one after it of the same code; -1 and the length where there is none."""
    n = len(codes)
    before, after = np.full(n, -1, np.int64), np.full(n, n, np.int64)
    order = stable_order(codes)
    same = codes[order[1:]] == codes[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    after[order[:-1][same]] = order[1:][same]
    return before, after


def counting_ranges(s: Spread, after: Ints, until: Ints) -> tuple[Ints, Ints]:
    """For every position the ranges that hold it, begin after `after` and end at or before `until`: first, and one past."""
    here = np.arange(len(after), dtype=np.int64)
    first = np.maximum(np.searchsorted(s.low, after, side="right"), np.searchsorted(s.high, here, side="right"))
    stop = np.minimum(np.searchsorted(s.low, here, side="right"), np.searchsorted(s.high, until, side="right"))
    return first, np.maximum(first, stop)


def added(first: Ints, stop: Ints, weights: NumPy | None, n: int) -> Ints:
    """Of every range the sum of the whole weights (None: 1 each) of what counts in it."""
    total = np.zeros(n + 1, np.int64)
    np.add.at(total, first, 1 if weights is None else weights)
    np.subtract.at(total, stop, 1 if weights is None else weights)
    return np.cumsum(total)[:n]


def distinct_counts(codes: Ints, s: Spread) -> Ints:
    """Return how many distinct codes every range holds."""
    before, after = neighbours(codes)
    first, stop = counting_ranges(s, before, np.full(len(codes), len(codes)))
    counts = added(first, stop, None, len(s.low))
    if s.hole is not None:
        some = np.flatnonzero(s.hole >= 0)
        hole = s.hole[some]
        counts[some] -= (before[hole] < s.low[some]) & (after[hole] >= s.high[some])
    return counts
