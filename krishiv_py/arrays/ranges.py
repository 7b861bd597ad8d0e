"""Ranges of an array and intervals of groups: reductions over them, their k-th smallest value, what overlaps, and parts.

For the k-th smallest the array is looked at bit by bit, from the highest; all ranges follow at once. So n values and q ranges
cost O((n + q) log n), however long the ranges are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, NumPy, extremes, pick, values_at

_LONG: Final = 256
_STRETCH: Final = 64
"""Stretches of so many equal numbers are cheaper to slice than their rows are to pick."""
_FEW_NUMBERS: Final = 4
_MANY_ROWS: Final = 1_024
"""So many rows of so few numbers are picked number by number, which is less than to find an order first."""
_IDEMPOTENT: Final = (np.minimum, np.maximum, np.fmin, np.fmax)


def expand(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Every (position, range) pair of the ranges: positions, and the number of the range of each."""
    lengths = high - low
    ids = np.repeat(np.arange(len(low), dtype=np.int64), lengths)
    starts = np.cumsum(lengths) - lengths
    return np.arange(len(ids), dtype=np.int64) - np.repeat(starts - low, lengths), ids


def by_place(counts: Ints) -> Iterator[tuple[Ints, int]]:
    """Give the rows with an element at each place, from 0 on; row n has ``counts[n]`` elements, and the longest come first."""
    order = np.argsort(-counts, kind="stable")
    descending = -counts[order]
    for place in range(int(counts.max(initial=0))):
        yield order[: int(np.searchsorted(descending, -place, side="left"))], place


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
    return ufunc.reduceat(padded, bounds)[0::2]


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


_ROOM: Final = 1 << 62


@attrs.frozen(eq=False)
class Components:
    """Intervals merged into components, numbered by group, then by start.

    Attributes
    ----------
    ids : ndarray of int64
        Component of every interval.
    starts, ends : ndarray of int64
        Bounds by component.
    n : int
        How many components there are.
    """

    ids: Ints
    starts: Ints
    ends: Ints
    n: int

    @property
    def row_ends(self) -> Ints:
        """Return where the component of every interval ends."""
        return self.ends[self.ids]


class PairCodes:
    """Pairs (group, value) as single integers in the same order, so that one sort or running maximum serves all groups."""

    def __init__(self, groups: Ints, values: Ints) -> None:
        low, high = extremes(values)
        span = high - low + 1
        self._low = low
        self._ranked: Ints | None = None
        if (int(groups.max()) + 1) * span < _ROOM:
            self._span = span
            self.codes = groups * span + (values - low)
        else:
            self._ranked, rank = np.unique(values, return_inverse=True)
            self._span = len(self._ranked)
            self.codes = groups * self._span + rank

    def values(self, groups: Ints, codes: Ints) -> Ints:
        """Return the values back from codes of these groups."""
        rest = codes - groups * self._span
        return rest + self._low if self._ranked is None else self._ranked[rest]


def running_reach(groups: Ints, ends: Ints) -> Ints:
    """Return the largest end so far within each group; rows must be sorted by group."""
    coded = PairCodes(groups, ends)
    return coded.values(groups, np.maximum.accumulate(coded.codes))


def components(groups: Ints, starts: Ints, ends: Ints, *, touching: bool) -> Components:
    """Merge the intervals of each group that overlap, or with `touching` also those that only meet.

    Parameters
    ----------
    groups : ndarray of int64
        Group of every interval, ``0 <= group``.
    starts, ends : ndarray of int64
        Bounds; every interval has a positive length.
    touching : bool
        Whether ``[0, 5)`` and ``[5, 9)`` are one.
    """
    n = len(starts)
    if n == 0:
        none = np.empty(0, np.int64)
        return Components(none, none, none, 0)
    order = np.argsort(PairCodes(groups, starts).codes)  # equal ones are of one component, whatever their order
    g, a = groups[order], starts[order]
    reach = running_reach(g, ends[order])
    opens = np.ones(n, np.bool_)
    opens[1:] = (g[1:] != g[:-1]) | ((a[1:] > reach[:-1]) if touching else (a[1:] >= reach[:-1]))
    heads = np.flatnonzero(opens)
    ids = values_at(order, np.cumsum(opens) - 1, n)
    return Components(ids, a[heads], reach[np.append(heads[1:], n) - 1], len(heads))


def split(table: pa.Table, numbers: NumPy) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of every number, numbers ascending; rows keep their order."""
    if not len(numbers):
        return
    least, most = extremes(numbers)
    if least == most:
        yield least, table
        return
    begins = np.append(0, np.flatnonzero(numbers[1:] != numbers[:-1]) + 1)
    if len(begins) * _STRETCH <= len(numbers):
        yield from _split_stretches(table, numbers[begins].tolist(), begins.tolist())
        return
    if most - least < _FEW_NUMBERS and len(numbers) >= _MANY_ROWS:
        mine = ((number, np.flatnonzero(numbers == number)) for number in range(least, most + 1))
        yield from ((number, pick(table, rows)) for number, rows in mine if len(rows))
        return
    order = stable_order(numbers)
    ordered = numbers[order]
    cuts = (np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist()
    table = pick(table, order)
    for start, stop in zip([0, *cuts], [*cuts, len(order)], strict=True):
        yield int(ordered[start]), table.slice(start, stop - start)


def _split_stretches(table: pa.Table, numbers: list[int], begins: list[int]) -> Iterator[tuple[int, pa.Table]]:
    """Yield as :func:`split` what lies in few stretches of one number each: whole slices are copied, not row by row."""
    slices: dict[int, list[pa.Table]] = {}
    for number, begin, end in zip(numbers, begins, [*begins[1:], table.num_rows], strict=True):
        slices.setdefault(number, []).append(table.slice(begin, end - begin))
    for number in sorted(slices):
        mine = slices[number]
        yield number, mine[0] if len(mine) == 1 else pa.concat_tables(mine).combine_chunks()


def portions(weights: Ints, limit: int) -> list[tuple[int, int]]:
    """Cut a row of things into stretches that weigh about `limit` each; first and last, which is left out, of every one."""
    if not len(weights):
        return []
    cuts = (np.flatnonzero(np.diff(np.cumsum(weights) // limit)) + 1).tolist()
    return list(zip([0, *cuts], [*cuts, len(weights)], strict=True))


def smallest(ranks: Ints, low: Ints, high: Ints, k: Ints) -> Ints:
    """Return the value number `k`, counted from 0 in ascending order, of every range ``ranks[low:high]``; ``0 <= k < high -
    low``.

    Parameters
    ----------
    ranks : ndarray of int64
        Whole numbers from 0.
    low, high, k : ndarray of int64
        By range.
    """
    lowest = np.zeros(len(low), np.int64)
    for bit in range(int(ranks.max(initial=0)).bit_length() - 1, -1, -1):
        ones = (ranks >> bit) & 1
        zeros = running(1 - ones)
        below, upto = zeros[low], zeros[high]
        right = k >= upto - below
        k = np.where(right, k - (upto - below), k)
        low = np.where(right, zeros[-1] + low - below, below)
        high = np.where(right, zeros[-1] + high - upto, upto)
        lowest |= right.astype(np.int64) << bit
        ranks = np.concatenate([ranks[ones == 0], ranks[ones == 1]])
    return lowest


def below(ranks: Ints, low: Ints, high: Ints, bound: Ints) -> Ints:
    """Return how many of every range ``ranks[low:high]`` are less than its `bound`, which is one of `ranks`."""
    count = np.zeros(len(low), np.int64)
    for bit in range(int(ranks.max(initial=0)).bit_length() - 1, -1, -1):
        ones = (ranks >> bit) & 1
        zeros = running(1 - ones)
        from_, upto = zeros[low], zeros[high]
        right = ((bound >> bit) & 1).astype(np.bool_)
        count += np.where(right, upto - from_, 0)
        low = np.where(right, zeros[-1] + low - from_, from_)
        high = np.where(right, zeros[-1] + high - upto, upto)
        ranks = np.concatenate([ranks[ones == 0], ranks[ones == 1]])
    return count
