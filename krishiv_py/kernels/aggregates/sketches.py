"""Kernels of approximate aggregates and of percentiles: HyperLogLog, quantiles and bins.

approx_count_distinct: HyperLogLog (Flajolet et al. 2007), registers kept sparsely as a list per group.

The bins of quantiles are those of DDSketch (Masson, Rim, Lee: PVLDB 12, 2019) with its linear interpolation of the logarithm,
read off the bits of a double: exponent and fraction are one whole number, cut into parts of equal length. So bins are exact
whole-number arithmetic, the same on every machine, and merging adds counts. PyPI's ``ddsketch`` (3.0.1) takes values one by
one in Python, fails at infinity and takes NaN for zero. Apache's ``datasketches`` are not an alternative: KLL and REQ
draw random numbers without a seed, so a repeated batch would differ, and its t-digest states no bound.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from fractions import Fraction
from typing import ClassVar, Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import Spread, added, counting_ranges, hash_values, normal_key
from krishiv_py.arrays.ranges import Ranges, below, overlapping, running, smallest
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask, NumPy, doubles, last_rows, numpy_type, values_at
from krishiv_py.kernels.aggregates.base import (
    AggKernel,
    ListLimit,
    OrderedInput,
    Rows,
    computes,
    flatten,
    group_starts,
    lists,
    numbers,
)
from krishiv_py.plan.aggregates.sketches import ApproxCountDistinct, ApproxPercentile
from krishiv_py.plan.aggregates.sketches import Histogram as Bins
from krishiv_py.plan.aggregates.sketches import Percentile as ExactPercentile


@attrs.frozen
class HyperLogLog(AggKernel):
    """A register and its rank are one number, ``register * 64 + rank``; of each register the largest rank is kept."""

    partial_types: ClassVar[list[pa.DataType]] = [pa.list_(pa.int32())]
    result_type: ClassVar[pa.DataType] = pa.int64()

    precision: int

    def _registers(self, codes: Ints, ids: Ints, n: int) -> list[pa.Array]:
        width = 64 << self.precision
        pairs = sorted_unique(ids * width + codes)
        slot = pairs >> 6
        top = np.ones(len(pairs), np.bool_)
        top[:-1] = slot[1:] != slot[:-1]  # the last entry of a register has its largest rank
        pairs = pairs[top]
        return [lists(pa.array((pairs % width).astype(np.int32)), pairs // width, n)]

    def create(self, rows: Rows) -> list[pa.Array]:
        kept, ids, _ = rows.valid()
        hashes = hash_values(kept)
        register = (hashes >> np.uint64(64 - self.precision)).astype(np.int64)
        rest = (hashes << np.uint64(self.precision)) | np.uint64(1 << (self.precision - 1))
        # rank = leading zeros + 1; log2 of the top 53 bits is exact enough, for the sentinel bit bounds it from below
        rank = 64 - np.floor(np.log2((rest >> np.uint64(11)).astype(np.float64) + 0.5)).astype(np.int64) - 11
        rank = np.clip(rank, 1, 64 - self.precision + 1)
        return self._registers(register * 64 + np.minimum(rank, 63), ids, rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        codes, groups = flatten(partials[0], ids)
        return self._registers(numbers(codes).astype(np.int64), groups, n)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        used = partials[0].value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        codes, groups = flatten(partials[0], np.arange(len(used), dtype=np.int64))
        return pa.array(self.estimate(used, np.bincount(groups, weights=2.0 ** -(numbers(codes) & 63), minlength=len(used))))

    def estimate(self, used: Ints, inverse: NumPy) -> Ints:
        """Estimates, given how many registers are used and the sum of ``2 ** -rank`` over them."""
        registers = 1 << self.precision
        empty = registers - used
        alpha = {16: 0.673, 32: 0.697, 64: 0.709}.get(registers, 0.7213 / (1 + 1.079 / registers))
        raw = alpha * registers**2 / (inverse + empty)
        linear = registers * np.log(registers / np.maximum(empty, 1))
        estimate = np.where((raw <= 2.5 * registers) & (empty > 0), linear, raw)
        return np.rint(estimate).astype(np.int64)

    def noted(self, func: str) -> str:
        return f"{func} of precision {self.precision}"

    def range_results(self, column: OrderedInput | None, r: Ranges, holes: Ints | None, limit: ListLimit | None) -> pa.Array:
        assert column is not None
        return _of_ranges(self, *column.spread(r, holes))


def _of_ranges(kernel: HyperLogLog, values: pa.Array, s: Spread) -> pa.Array:
    """Of every register of a range the largest rank counts: the sketch of each range without making it."""
    n, m = len(s.low), len(values)
    codes = numbers(kernel.create(Rows(values, np.zeros(m, np.int64), np.arange(m), m))[0].flatten()).astype(np.int64)
    register, rank = codes >> 6, codes & 63
    order = stable_order(register)
    before, after = _outranked(order, register, rank)
    first, stop = counting_ranges(s, before, after)
    removed, instead = _removed_rows(s, order, register, rank, before, after)
    used, inverse = np.zeros(n, np.int64), np.zeros(n)
    for r in np.unique(rank).tolist():
        of = rank == r
        count = added(first[of], stop[of], None, n) - (removed == r) + (instead == r)
        used += count
        inverse += count * 2.0**-r
    return pa.array(kernel.estimate(used, inverse))


def _outranked(order: Ints, register: Ints, rank: Ints) -> tuple[Ints, Ints]:
    """For every value of a register the last one before of at least its rank, and the first one after of a larger rank."""
    n = len(order)
    reg, ranked = register[order], rank[order]
    head = np.searchsorted(reg, reg, side="left")
    stop = np.searchsorted(reg, reg, side="right")
    here = np.arange(n)
    before, after = np.full(n, -1, np.int64), np.full(n, n, np.int64)
    for r in np.unique(rank).tolist():
        mine = ranked == r
        last = np.maximum.accumulate(np.where(ranked >= r, here, -1))
        last = np.concatenate([[-1], last[:-1]])[mine]
        following = np.minimum.accumulate(np.where(ranked > r, here, n)[::-1])[::-1][mine]
        rows = order[mine]
        before[rows] = np.where(last >= head[mine], order[np.maximum(last, 0)], -1)
        after[rows] = np.where(following < stop[mine], order[np.minimum(following, n - 1)], n)
    return before, after


def _removed_rows(s: Spread, order: Ints, register: Ints, rank: Ints, before: Ints, after: Ints) -> tuple[Ints, Ints]:
    """By range the rank that goes with its hole, and the one that comes instead; -1 for none."""
    n = len(s.low)
    removed, instead = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    if s.hole is None:
        return removed, instead
    holes = np.flatnonzero(s.hole >= 0)
    hole = s.hole[holes]
    leads = (before[hole] < s.low[holes]) & (after[hole] >= s.high[holes])
    holes, hole = holes[leads], hole[leads]
    removed[holes] = rank[hole]
    width = len(register) + 1
    place = last_rows(order, len(order))
    coded = (register * width + np.arange(len(register)))[order]
    low = np.searchsorted(coded, register[hole] * width + s.low[holes])
    high = np.searchsorted(coded, register[hole] * width + s.high[holes])
    ranked = rank[order]
    for start, stop in ((low, place[hole]), (place[hole] + 1, high)):
        some: Mask = stop > start
        best = overlapping(np.maximum, ranked, start[some], stop[some])
        instead[holes[some]] = np.maximum(instead[holes[some]], best)
    return removed, instead


@computes(ApproxCountDistinct)
def _approx_count_distinct(call: ApproxCountDistinct, type_: pa.DataType) -> AggKernel:
    return HyperLogLog(call.precision)


@attrs.frozen
class PercentileKernel(AggKernel):
    """Exact percentile, interpolated between the two nearest values."""

    partial_types: ClassVar[list[pa.DataType]] = [pa.list_(pa.float64())]
    result_type: ClassVar[pa.DataType] = pa.float64()
    holds_values: ClassVar[bool] = True
    keeps: ClassVar[str] = "every value"
    percentage: float

    def _sorted(self, values: pa.Array, ids: Ints, n: int) -> list[pa.Array]:
        order = np.lexsort((numbers(values), ids))
        return [lists(values.take(pa.array(order)), ids[order], n)]

    def create(self, rows: Rows) -> list[pa.Array]:
        kept, ids, _ = rows.valid()
        return self._sorted(normal_key(doubles(kept)), ids, rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        return self._sorted(*flatten(partials[0], ids), n)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        lengths = partials[0].value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        values = numbers(partials[0].flatten())
        starts = np.cumsum(lengths) - lengths
        spot = self.percentage * np.maximum(lengths - 1, 0)
        low = np.floor(spot).astype(np.int64)
        high = np.minimum(low + 1, np.maximum(lengths - 1, 0))
        result = np.full(len(lengths), np.nan)
        some = lengths > 0
        result[some] = between(values[(starts + low)[some]], values[(starts + high)[some]], (spot - low)[some])
        return pa.array(result, mask=~some)

    def prefix_results(self, partials: list[pa.Array], ids: Ints, wanted: Ints) -> pa.Array:
        starts = group_starts(ids)
        ends = running(partials[0].value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64))
        return percentiles(self.percentage, partials[0].flatten(), Spread(ends[starts[wanted]], ends[wanted + 1], None))

    def range_results(self, column: OrderedInput | None, r: Ranges, holes: Ints | None, limit: ListLimit | None) -> pa.Array:
        assert column is not None
        return percentiles(self.percentage, *column.spread(r, holes))


def between(below: NumPy, above: NumPy, part: NumPy) -> NumPy:
    """Return the values that lie so far on the way from `below` to `above`; both weighted where their distance is not a
    number.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        distance = above - below
        way = below + distance * part
        far = ~np.isfinite(distance)
        if far.any():
            way[far] = below[far] * (1 - part[far]) + above[far] * part[far]
    return np.where((part == 0) | (below == above), below, way)


def percentiles(percentage: float, values: pa.Array, s: Spread) -> pa.Array:
    """Return the percentile of every range of `values`, which have no nulls; null where a range is empty. Bounds may lie
    anyhow.
    """
    plain = numbers(normal_key(doubles(values)))  # of two zeros it must not show which one came first
    order = np.argsort(plain, kind="stable")
    rank = last_rows(order, len(order))
    lengths = s.lengths
    some = np.flatnonzero(lengths > 0)
    spot = percentage * (lengths[some] - 1)
    least = np.floor(spot).astype(np.int64)
    most = np.minimum(least + 1, lengths[some] - 1)
    low, high = s.low[some], s.high[some]
    skip = None
    if s.hole is not None:
        hole = s.hole[some]
        inside = hole >= 0
        skip = np.where(inside, below(rank, low, high, rank[np.where(inside, hole, 0)]) if len(rank) else 0, lengths[some])
    least_and_most = [plain[order[smallest(rank, low, high, k if skip is None else k + (k >= skip))]] for k in (least, most)]
    result = np.full(len(lengths), np.nan)
    result[some] = between(least_and_most[0], least_and_most[1], spot - least)
    return pa.array(result, mask=lengths == 0)


@computes(ExactPercentile)
def _percentile(call: ExactPercentile, type_: pa.DataType) -> AggKernel:
    return PercentileKernel(call.percentage)


_FRACTION: Final = 52
_NORMAL: Final = 1 << _FRACTION  # the bits of the smallest number with all its digits
_LARGEST: Final = (0x7FF << _FRACTION) - 1
_INFINITY: Final = 1 << 30
_NAN: Final = (1 << 31) - 1
_OFFSET: Final = 1 << 31


@attrs.frozen
class BinPartials(AggKernel):
    """Partials are the bins of a group in their order, and the number of values in each."""

    partial_types: ClassVar[list[pa.DataType]] = [pa.list_(pa.int32()), pa.list_(pa.int64())]

    @abstractmethod
    def bins(self, values: pa.Array) -> Ints:
        """Return the bin of every value, none of which is null; 32 bits."""

    def create(self, rows: Rows) -> list[pa.Array]:
        kept, ids, _ = rows.valid()
        codes = np.sort(_coded(ids, self.bins(kept)))
        heads = np.flatnonzero(np.concatenate([np.ones(min(len(codes), 1), np.bool_), codes[1:] != codes[:-1]]))
        return _listed(codes[heads], np.diff(heads, append=len(codes)), rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        merged, groups = flatten(partials[0], ids)
        codes = _coded(groups, numbers(merged).astype(np.int64))
        order = stable_order(codes)
        codes = codes[order]
        heads = np.flatnonzero(np.concatenate([np.ones(min(len(codes), 1), np.bool_), codes[1:] != codes[:-1]]))
        counts = numbers(partials[1].flatten())[order]
        return _listed(codes[heads], np.add.reduceat(counts, heads) if len(heads) else counts, n)


def _coded(ids: Ints, bins: Ints) -> Ints:
    """Group and bin as one number, in their order."""
    return (ids << 32) | (bins + _OFFSET)


def _listed(codes: Ints, counts: Ints, n: int) -> list[pa.Array]:
    owners = codes >> 32
    bins = ((codes & ((1 << 32) - 1)) - _OFFSET).astype(np.int32)
    return [lists(pa.array(bins), owners, n), lists(pa.array(counts.astype(np.int64)), owners, n)]


@attrs.frozen
class Quantiles(BinPartials):
    """The value of a rank, at most a relative error away; one of several ranks is a list.

    Bin k > 0 has the numbers whose bits are ``width`` on from those of the bin before; bin 0 all that is closer to zero than
    the smallest normal double. Bins of negative numbers are negative; infinities and NaN have bins of their own.
    """

    ranks: tuple[float, ...]
    error: float
    many: bool

    @property
    def width(self) -> int:
        """Bits a bin is long. One that begins at a power of two has ends of the ratio ``1 + width / 2**52``, others of less."""
        error = Fraction(self.error)
        return math.floor(2 * error / (1 - error) * _NORMAL)

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(pa.float64()) if self.many else pa.float64()

    def noted(self, func: str) -> str:
        """Bins of another length could not be added up."""
        return f"{func} with a relative error of {self.error}"

    def bins(self, values: pa.Array) -> Ints:
        """See Binned."""
        plain = np.ascontiguousarray(numbers(doubles(values)))
        bits = np.abs(plain).view(np.int64)
        place = np.where(bits < _NORMAL, 0, (bits - _NORMAL) // self.width + 1)
        special = ~np.isfinite(plain)
        if special.any():
            place[special] = np.where(np.isnan(plain[special]), _NAN, _INFINITY)
        return np.where((plain < 0), -place, place)

    def middle(self, bins: Ints) -> NumPy:
        """Return the number that is as far from one end of its bin as from the other, each distance measured by that end."""
        place = np.abs(bins)
        last = (_LARGEST - _NORMAL) // self.width + 1
        low = _NORMAL + (np.clip(place, 1, last) - 1) * self.width
        least, most = (x.view(np.float64) for x in (low, np.minimum(low + self.width, _LARGEST)))
        middle = least * (2 / (1 + least / most))
        middle[place == 0] = 0.0
        middle[place == _INFINITY] = np.inf
        middle[place == _NAN] = np.nan
        return np.where(bins < 0, -middle, middle)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        n = len(partials[0])
        lengths = partials[0].value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        ends = np.cumsum(lengths)
        so_far = np.concatenate([[0], np.cumsum(numbers(partials[1].flatten()))])
        before, some = so_far[ends - lengths], lengths > 0
        total = so_far[ends][some] - before[some]
        bins = numbers(partials[0].flatten()).astype(np.int64)
        columns = [np.full(n, np.nan) for _ in self.ranks]
        for rank, column in zip(self.ranks, columns, strict=True):
            places = np.searchsorted(so_far, before[some] + place_of(rank, total), side="left") - 1
            column[some] = self.middle(bins[places])
        if not self.many:
            return pa.array(columns[0], mask=~some)
        flat = np.stack(columns, axis=1)[some].reshape(-1)
        offsets = np.concatenate([[0], np.cumsum(some * len(self.ranks))])
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat), mask=pa.array(~some))


def place_of(rank: float, counts: Ints) -> Ints:
    """Return the least number of values that are at least the part `rank` of so many, and at least one."""
    places: Ints = np.maximum(np.ceil(rank * counts), 1).astype(np.int64)
    places -= (places > 1) & ((places - 1) / counts >= rank)  # the product was rounded
    places += places / counts < rank
    return places


@attrs.frozen
class HistogramKernel(BinPartials):
    """Counts how many values lie below the first bound, between two, and from the last one on."""

    result_type: ClassVar[pa.DataType] = pa.list_(pa.int64())

    bounds: tuple[float, ...]

    def noted(self, func: str) -> str:
        """Counts between other bounds could not be added up."""
        return f"{func} with bounds {', '.join(map(repr, self.bounds))}"

    def bins(self, values: pa.Array) -> Ints:
        """See Binned."""
        if not pa.types.is_integer(values.type):
            plain = numbers(doubles(values))
            return np.searchsorted(np.array(self.bounds, np.float64), plain, side="right").astype(np.int64)
        least = [math.ceil(b) for b in self.bounds]  # exact, whatever the size
        plain, kind = numbers(values), np.iinfo(numpy_type(values.type))
        inside = [b for b in least if kind.min < b <= kind.max]
        below = sum(b <= kind.min for b in least)
        return np.searchsorted(np.array(inside, plain.dtype), plain, side="right").astype(np.int64) + below

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        n, width = len(partials[0]), len(self.bounds) + 1
        bins, groups = flatten(partials[0], np.arange(n, dtype=np.int64))
        counts = values_at(groups * width + numbers(bins), numbers(partials[1].flatten()), n * width)
        return pa.ListArray.from_arrays(pa.array(np.arange(n + 1) * width, pa.int32()), pa.array(counts))


@computes(ApproxPercentile)
def _quantiles(call: ApproxPercentile, type_: pa.DataType) -> AggKernel:
    return Quantiles(call.percentages or (call.percentage,), call.relative_error, bool(call.percentages))


@computes(Bins)
def _histogram(call: Bins, type_: pa.DataType) -> AggKernel:
    return HistogramKernel(call.bounds)
