"""Finished aggregates of many overlapping ranges of rows, and what each costs.

n rows in order, q ranges of w rows on average; bounds of ranges ascend:

===============================================  ================================================================
aggregate                                        cost
===============================================  ================================================================
count, sum, avg, stddev, variance, first, last   O(n + q)
count_distinct                                   O(n + q), after one sort of the values
min, max, percentile                             O((n + q) log n)
approx_count_distinct                            O((n + q) r), r ranks of registers, some 20
decimal sums, udaf                               O((n + q) log w), of ranges of up to 64 rows O(q w)
collect_list, collect_set                        what they give
===============================================  ================================================================

A range may leave one row out, its *hole*.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.ranges import Ranges
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.aggregates import AggKernel, Rows
from krishiv_py.kernels.aggregates.failed import failing_place, regrouped
from krishiv_py.kernels.aggregates.generic.ranges import OrderedInput, as_array
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.columns.place import Bounds, place_of
from krishiv_py.kernels.windows.ranged.listed import Listing
from krishiv_py.kernels.windows.ranged.range_partials import inputs


def range_values(
    layout: Layout,
    rows: pa.Table,
    r: Ranges,
    holes: Ints | None = None,
    listing: Listing | None = None,
    bounds: Bounds | None = None,
    anchors: Ints | None = None,
) -> list[pa.Array]:
    """The aggregates of `layout` over every range of `rows`, which are laid out by key, time and arrival.

    Parameters
    ----------
    layout : Layout
        Names the aggregates and the columns they take.
    rows : pyarrow.Table
        Working rows.
    r : Ranges
        Non-empty ranges whose bounds ascend.
    holes : ndarray of int64, optional
        A row within each range that does not count.
    listing : Listing, optional
        Refuses lists that hold too many values.
    bounds : tuple of ndarray of int64, optional
        Windows of the ranges, told where one fails.
    anchors : ndarray of int64, optional
        The row of each range, from which aggregates with a range of their own look back.
    """

    def where(n: int) -> str:
        window = None if bounds is None else (int(bounds[0][n]), int(bounds[1][n]))
        return place_of(layout.spec, rows, int(r.low[n]), window)

    times: Ints = rows[TIME].to_numpy()
    out: list[pa.Array] = []
    for call, (kernel, column) in zip(layout.spec.aggs, inputs(layout, rows), strict=True):
        own = r if call.over_us is None or anchors is None else _narrowed(times, r, times[anchors], call.over_us)
        with failing_place(where):
            found = kernel.range_results(column, own, holes, listing)
            out.append(kernel.finish(_partials(kernel, column, times, own, holes)) if found is None else found)
    return out


def _narrowed(times: Ints, r: Ranges, at: Ints, over_us: int) -> Ranges:
    """The part of every range that is at most so far from the time of its row; times ascend in a range."""
    return Ranges(_first(times, r, at - over_us), _first(times, r, at + over_us + 1), r.block)


def _first(times: Ints, r: Ranges, bound: Ints) -> Ints:
    """The first row of every range at or after a time of its own, or the end of the range: all are bisected at once."""
    low, high = r.low.copy(), r.high.copy()
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) // 2
        before = (low < high) & (times[np.minimum(middle, len(times) - 1)] < bound)
        low, high = np.where(before, middle + 1, low), np.where(before, high, middle)
    return low


def _partials(kernel: AggKernel, column: OrderedInput | None, times: Ints, r: Ranges, holes: Ints | None) -> list[pa.Array]:
    if holes is None:
        return kernel.ranges(column, times, r)
    before, after = np.flatnonzero(holes > r.low), np.flatnonzero(r.high > holes + 1)
    parts = []
    for some, low, high in ((before, r.low, holes), (after, holes + 1, r.high)):
        with regrouped(some):
            parts.append(kernel.ranges(column, times, Ranges(low[some], high[some], r.block)))
    alone = np.flatnonzero((holes == r.low) & (r.high == holes + 1))
    none = np.empty(0, np.int64)
    with regrouped(alone):
        parts.append(kernel.create(Rows(None if column is None else column.values.slice(0, 0), none, none, len(alone))))
    both = [pa.concat_arrays([as_array(x) for x in pair]) for pair in zip(*parts, strict=True)]
    return kernel.merge(both, np.concatenate([before, after, alone]), len(holes))
