"""approx_count_distinct: HyperLogLog (Flajolet et al. 2007), registers kept sparsely as a list per group."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import hash_values
from krishiv_py.arrays.occurrences import Spread, added, counting_ranges
from krishiv_py.arrays.ranges import Ranges, overlapping
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask, NumPy
from krishiv_py.kernels.aggregates.base import Rows, flatten, lists, numbers, valid_rows
from krishiv_py.kernels.aggregates.generic.kernel import AggKernel, ListLimit, computes
from krishiv_py.kernels.aggregates.generic.ranges import OrderedInput
from krishiv_py.plan.aggregates.hyperloglog import ApproxCountDistinct


@attrs.frozen
class HyperLogLog(AggKernel):
    """A register and its rank are one number, ``register * 64 + rank``; of each register the largest rank is kept."""

    precision: int

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.list_(pa.int32())]

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def _registers(self, codes: Ints, ids: Ints, n: int) -> list[pa.Array]:
        width = 64 << self.precision
        pairs = sorted_unique(ids * width + codes)
        slot = pairs >> 6
        top = np.ones(len(pairs), np.bool_)
        top[:-1] = slot[1:] != slot[:-1]  # the last entry of a register has its largest rank
        pairs = pairs[top]
        return [lists(pa.array((pairs % width).astype(np.int32)), pairs // width, n)]

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        kept, ids, _ = valid_rows(rows.values, rows.ids)
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
        whole: Ints = np.rint(estimate).astype(np.int64)
        return whole

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
    lost, instead = _lost(s, order, register, rank, before, after)
    used, inverse = np.zeros(n, np.int64), np.zeros(n)
    for r in np.unique(rank).tolist():
        of = rank == r
        count = added(first[of], stop[of], None, n) - (lost == r) + (instead == r)
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
        at = order[mine]
        before[at] = np.where(last >= head[mine], order[np.maximum(last, 0)], -1)
        after[at] = np.where(following < stop[mine], order[np.minimum(following, n - 1)], n)
    return before, after


def _lost(s: Spread, order: Ints, register: Ints, rank: Ints, before: Ints, after: Ints) -> tuple[Ints, Ints]:
    """By range the rank that goes with its hole, and the one that comes instead; -1 for none."""
    n = len(s.low)
    lost, instead = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    if s.hole is None:
        return lost, instead
    at = np.flatnonzero(s.hole >= 0)
    hole = s.hole[at]
    leads = (before[hole] < s.low[at]) & (after[hole] >= s.high[at])
    at, hole = at[leads], hole[leads]
    lost[at] = rank[hole]
    width = len(register) + 1
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    coded = (register * width + np.arange(len(register)))[order]
    low = np.searchsorted(coded, register[hole] * width + s.low[at])
    high = np.searchsorted(coded, register[hole] * width + s.high[at])
    ranked = rank[order]
    for start, stop in ((low, place[hole]), (place[hole] + 1, high)):
        some: Mask = stop > start
        best = overlapping(np.maximum, ranked, start[some], stop[some])
        instead[at[some]] = np.maximum(instead[at[some]], best)
    return lost, instead


@computes(ApproxCountDistinct)
def _approx_count_distinct(call: ApproxCountDistinct, type_: pa.DataType) -> AggKernel:
    return HyperLogLog(call.precision)
