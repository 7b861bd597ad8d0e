"""Exact percentiles, of groups and of many ranges of values."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.decimals import doubles
from krishiv_py.arrays.grouping import normal_key
from krishiv_py.arrays.occurrences import Spread
from krishiv_py.arrays.ranges import Ranges, running
from krishiv_py.arrays.types import Ints, NumPy
from krishiv_py.arrays.wavelet import below, smallest
from krishiv_py.kernels.aggregates.base import Rows, flatten, lists, numbers, valid_rows
from krishiv_py.kernels.aggregates.generic.kernel import AggKernel, ListLimit, computes
from krishiv_py.kernels.aggregates.generic.prefixes import group_starts
from krishiv_py.kernels.aggregates.generic.ranges import OrderedInput
from krishiv_py.plan.aggregates.percentiles import Percentile as ExactPercentile


@attrs.frozen
class PercentileKernel(AggKernel):
    """Exact percentile, interpolated between the two nearest values."""

    keeps: ClassVar[str] = "every value"
    percentage: float

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.list_(pa.float64())]

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def _sorted(self, values: pa.Array, ids: Ints, n: int) -> list[pa.Array]:
        order = np.lexsort((numbers(values), ids))
        return [lists(values.take(pa.array(order)), ids[order], n)]

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        kept, ids, _ = valid_rows(rows.values, rows.ids)
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

    @property
    def holds_values(self) -> bool:
        return True

    def prefix_results(self, partials: list[pa.Array], ids: Ints, wanted: Ints) -> pa.Array:
        starts = group_starts(ids)
        ends = running(partials[0].value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64))
        return percentiles(self.percentage, partials[0].flatten(), Spread(ends[starts[wanted]], ends[wanted + 1], None))

    def range_results(self, column: OrderedInput | None, r: Ranges, holes: Ints | None, limit: ListLimit | None) -> pa.Array:
        assert column is not None
        return percentiles(self.percentage, *column.spread(r, holes))


def between(below: NumPy, above: NumPy, part: NumPy) -> NumPy:
    """The values that lie so far on the way from `below` to `above`; both weighted where their distance is not a number."""
    with np.errstate(invalid="ignore", over="ignore"):
        distance = above - below
        way = below + distance * part
        far = ~np.isfinite(distance)
        if far.any():
            way[far] = below[far] * (1 - part[far]) + above[far] * part[far]
    return np.where((part == 0) | (below == above), below, way)


def percentiles(percentage: float, values: pa.Array, s: Spread) -> pa.Array:
    """The percentile of every range of `values`, which have no nulls; null where a range is empty. Bounds may lie anyhow."""
    plain = numbers(normal_key(doubles(values)))  # of two zeros it must not show which one came first
    order = np.argsort(plain, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
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
    found = [plain[order[smallest(rank, low, high, k if skip is None else k + (k >= skip))]] for k in (least, most)]
    result = np.full(len(lengths), np.nan)
    result[some] = between(found[0], found[1], spot - least)
    return pa.array(result, mask=lengths == 0)


@computes(ExactPercentile)
def _percentile(call: ExactPercentile, type_: pa.DataType) -> AggKernel:
    return PercentileKernel(call.percentage)
