"""Determine which rows make up which sums: rows by group, or ranges of rows."""

from __future__ import annotations

from typing import Protocol

import attrs
import numpy as np

from krishiv_py.arrays.types import Ints, Mask, NumPy
from krishiv_py.kernels.aggregates.exact.limbs import LimbPieces


class Reducer(Protocol):
    """Says which rows make up which of `n` sums; at most `depth` rows are ever added up."""

    @property
    def n(self) -> int: ...
    @property
    def depth(self) -> int: ...

    def zeros(self, type_: type) -> NumPy:
        """Return where sums of numbers begin."""
        ...

    def add(self, totals: NumPy, block: slice, values: NumPy) -> None:
        """Take in values of a block of rows, each block once; their sums are exact in any order."""
        ...

    def done(self, totals: NumPy) -> NumPy:
        """The sums."""
        ...

    def limbs(self, parts: LimbPieces, width: int) -> Ints:
        """Sums of limbs, a row of `width` for each."""
        ...

    def holding(self, rows: Mask) -> Mask:
        """Return which sums have one of the marked rows."""
        ...

    def only(self, wanted: Ints) -> tuple[Reducer, Ints | None]:
        """The same for some of the sums, and the rows it takes (None: all)."""
        ...


@attrs.frozen(eq=False)
class ByGroup:
    """A sum for every group of rows."""

    ids: Ints
    counts: Ints

    @property
    def n(self) -> int:
        return len(self.counts)

    @property
    def depth(self) -> int:
        return int(self.counts.max(initial=0))

    def zeros(self, type_: type) -> NumPy:
        return np.zeros(self.n, type_)

    def add(self, totals: NumPy, block: slice, values: NumPy) -> None:
        np.add.at(totals, self.ids[block], values)

    def done(self, totals: NumPy) -> NumPy:
        return totals

    def limbs(self, parts: LimbPieces, width: int) -> Ints:
        sums = np.zeros(self.n * width, np.int64)
        np.add.at(sums, self.ids[parts.rows] * width + parts.places, parts.values)
        return sums.reshape(self.n, width)

    def holding(self, rows: Mask) -> Mask:
        found = np.zeros(self.n, np.bool_)
        found[self.ids[rows]] = True
        return found

    def only(self, wanted: Ints) -> tuple[Reducer, Ints | None]:
        place = np.full(self.n, -1, np.int64)
        place[wanted] = np.arange(len(wanted))
        rows = np.flatnonzero(place[self.ids] >= 0)
        return ByGroup(place[self.ids[rows]], self.counts[wanted]), rows


@attrs.frozen(eq=False)
class ByRange:
    """A sum for every range ``[low, high)`` of rows: the difference of two running totals, which are exact themselves."""

    low: Ints
    high: Ints
    rows: int

    @property
    def n(self) -> int:
        return len(self.low)

    @property
    def depth(self) -> int:
        return self.rows

    def zeros(self, type_: type) -> NumPy:
        return np.zeros(self.rows + 1, type_)

    def add(self, totals: NumPy, block: slice, values: NumPy) -> None:
        totals[block.start + 1 : block.stop + 1] = values

    def done(self, totals: NumPy) -> NumPy:
        np.cumsum(totals, out=totals)
        found: NumPy = totals[self.high] - totals[self.low]
        return found

    def limbs(self, parts: LimbPieces, width: int) -> Ints:
        sums = np.empty((self.n, width), np.int64)
        for place in range(width):
            here = parts.places == place
            total = np.zeros(self.rows + 1, np.int64)
            np.add.at(total, parts.rows[here] + 1, parts.values[here])
            np.cumsum(total, out=total)  # may wrap: differences are right modulo 2**64
            sums[:, place] = total[self.high] - total[self.low]
        return sums

    def holding(self, rows: Mask) -> Mask:
        total = np.zeros(self.rows + 1, np.int64)
        np.cumsum(rows, out=total[1:])
        found: Mask = total[self.high] > total[self.low]
        return found

    def only(self, wanted: Ints) -> tuple[Reducer, Ints | None]:
        return ByRange(self.low[wanted], self.high[wanted], self.rows), None
