"""Reductions over many ranges of one array, ranges in ascending order of their start."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np

from krishiv_py.arrays.types import Ints, NumPy

_LONG: Final = 256
_IDEMPOTENT: Final = (np.minimum, np.maximum, np.fmin, np.fmax)


def expand(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Every (position, range) pair of the ranges: positions, and the number of the range of each."""
    lengths = high - low
    ids = np.repeat(np.arange(len(low), dtype=np.int64), lengths)
    starts = np.cumsum(lengths) - lengths
    return np.arange(len(ids), dtype=np.int64) - np.repeat(starts - low, lengths), ids


def running(values: Ints) -> Ints:
    """Sums of the first 0, 1, 2, ... values; differences are exact modulo 2**64."""
    total = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=total[1:])
    return total


@attrs.frozen(eq=False)
class Ranges:
    """Non-empty ranges ``[low, high)`` over rows laid out by key and time.

    A reduction runs over the values of a range in order, one after the other; a range of many rows is cut where `block`
    changes, its blocks are reduced first, and then their results.

    Attributes
    ----------
    low, high : ndarray of int64
        The ranges, `low` ascending.
    block : ndarray of int64
        A number for every row that changes, at the latest, where the key changes, and now and then in between.
    """

    low: Ints
    high: Ints
    block: Ints

    def reduce(self, ufunc: np.ufunc, values: NumPy) -> NumPy:
        """`ufunc` over the values of every range."""
        long = np.flatnonzero(self.high - self.low > _LONG)
        if not len(long):
            return _reduce(ufunc, values, self.low, self.high)
        result = np.empty(len(self.low), values.dtype)
        short = np.flatnonzero(self.high - self.low <= _LONG)
        if len(short):
            result[short] = _reduce(ufunc, values, self.low[short], self.high[short])
        low, high = self.low[long], self.high[long]
        by = overlapping if ufunc in _IDEMPOTENT else self._by_block
        result[long] = by(ufunc, values, low, high)
        return result

    def _by_block(self, ufunc: np.ufunc, values: NumPy, low: Ints, high: Ints) -> NumPy:
        starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(np.diff(self.block)) + 1])
        first = np.searchsorted(starts, low, side="right")  # the block after the one the range begins in
        last = np.searchsorted(starts, high - 1, side="right") - 1  # the block it ends in
        bounds = np.append(starts, len(values))
        result = _reduce(ufunc, values, low, np.minimum(bounds[first], high))
        inner = np.flatnonzero(last > first)
        if len(inner):
            blocks = ufunc.reduceat(values, starts)
            result[inner] = ufunc(result[inner], _reduce(ufunc, blocks, first[inner], last[inner]))
        split = np.flatnonzero(last >= first)
        if len(split):
            result[split] = ufunc(result[split], _reduce(ufunc, values, starts[last[split]], high[split]))
        return result


def _reduce(ufunc: np.ufunc, values: NumPy, low: Ints, high: Ints) -> NumPy:
    """One reduction per range; `reduceat` takes bounds in pairs, and what lies between two ranges is thrown away."""
    bounds = np.empty(2 * len(low), np.int64)
    bounds[0::2], bounds[1::2] = low, high
    padded = np.append(values, values[:1]) if len(high) and int(high.max()) == len(values) else values
    result: NumPy = ufunc.reduceat(padded, bounds)[0::2]
    return result


def overlapping(ufunc: np.ufunc, values: NumPy, low: Ints, high: Ints) -> NumPy:
    """`ufunc`, to which it does not matter how often it meets a value, over non-empty ranges of any order.

    Ranges of every power of two are reduced, and each range is covered by two of them: O(n log n), however long ranges are.
    """
    level = np.frexp((high - low).astype(np.float64))[1] - 1
    result = np.empty(len(low), values.dtype)
    table, width = values, 1
    for depth in range(int(level.max(initial=-1)) + 1):
        mine = level == depth
        result[mine] = ufunc(table[low[mine]], table[high[mine] - width])
        if len(table) > width:
            table = ufunc(table[:-width], table[width:])
        width *= 2
    return result
