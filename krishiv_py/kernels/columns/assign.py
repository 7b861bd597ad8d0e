"""Determine which windows a row belongs to: floor arithmetic on whole columns (SEMANTICS §1.2, §3.1, §3.2)."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import numpy as np

from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.plan.operation import Grid


@attrs.frozen
class FixedAssigner:
    """Slices and windows of a grid."""

    grid: Grid

    @property
    def width(self) -> int:
        """Return how many windows a row can belong to at the most."""
        return -(-self.grid.size_us // self.grid.slide_us)

    def slices(self, times: Ints) -> Ints:
        """Start of the slice of every row: the latest window bound (start or end) not after it."""
        w = self.grid
        step = (times - w.offset_us) % w.slide_us
        base = times - step
        cut = w.size_us % w.slide_us if w.slide_us <= w.size_us else w.size_us
        return base if cut == 0 else base + np.where(step >= cut, cut, 0)

    def last_start(self, times: Ints) -> Ints:
        """Start of the latest window that begins at or before the row."""
        return times - (times - self.grid.offset_us) % self.grid.slide_us

    def last_end(self, times: Ints) -> Ints:
        """End of the latest window holding the row (for gap windows: of the one before it)."""
        return self.last_start(times) + self.grid.size_us

    def unassigned(self, times: Ints) -> Mask:
        """Rows in a gap between windows; they belong to none."""
        return self.last_end(times) <= times

    def windows(self, times: Ints) -> tuple[Ints, Ints]:
        """Every (row, window start) pair: row numbers and starts, later windows first."""
        last = self.last_start(times)
        rows, starts = [], []
        for back in range(self.width):
            start = last - back * self.grid.slide_us
            held = np.flatnonzero(start + self.grid.size_us > times)
            rows.append(held)
            starts.append(start[held])
        return np.concatenate(rows), np.concatenate(starts)

    def windows_between(self, times: Ints, first: int, last: int) -> tuple[Ints, Ints]:
        """Pairs as in :meth:`windows`, row by row and in ascending order, of windows that start from `first` to `last`."""
        slide, offset = self.grid.slide_us, self.grid.offset_us
        low, high = self._numbers(times)
        low, high = np.maximum(low, -((offset - first) // slide)), np.minimum(high, (last - offset) // slide)
        numbers, rows = expand(low, np.maximum(high + 1, low))
        return rows, numbers * slide + offset

    def starts(self, slices: Ints, first: int, last: int) -> Ints:
        """Starts of the windows over these slices, from `first` to `last`, ascending, each once."""
        slide, offset = self.grid.slide_us, self.grid.offset_us
        low, high = self._numbers(slices)
        low, high = np.maximum(low, -((offset - first) // slide)), np.minimum(high, (last - offset) // slide)
        low, high = low[high >= low], high[high >= low]
        if not len(low):
            return low
        order = np.argsort(low)
        low, high = low[order], high[order]
        before = np.maximum.accumulate(high)
        low[1:] = np.maximum(low[1:], before[:-1] + 1)
        numbers, _ = expand(low, np.maximum(high + 1, low))
        return numbers * slide + offset

    def next_end(self, slices: Iterable[int], after: int) -> int | None:
        """The smallest end beyond `after` among the windows over these few slices."""
        size, slide, offset = self.grid.size_us, self.grid.slide_us, self.grid.offset_us
        least, found = (after - size - offset) // slide + 1, None
        for place in slices:
            number = max((place - offset - size) // slide + 1, least)
            if number <= (place - offset) // slide and (found is None or number < found):
                found = number
        return None if found is None else found * slide + offset + size

    def _numbers(self, times: Ints) -> tuple[Ints, Ints]:
        """The first and the last window of every time, by their place on the grid."""
        from_epoch = times - self.grid.offset_us
        return (from_epoch - self.grid.size_us) // self.grid.slide_us + 1, from_epoch // self.grid.slide_us
