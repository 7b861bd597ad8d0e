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

from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.kernels.aggregates.base import AggKernel, Rows, lists, numbers
from krishiv_py.kernels.aggregates.collections import CollectList, Distinct, Percentile
from krishiv_py.kernels.aggregates.extremes import ranks
from krishiv_py.kernels.aggregates.failed import regrouped, told_where
from krishiv_py.kernels.aggregates.percentiles import percentiles
from krishiv_py.kernels.aggregates.sketch import HyperLogLog
from krishiv_py.kernels.arrays.grouping import normal_key
from krishiv_py.kernels.arrays.occurrences import Spread, added, counting_ranges, distinct_counts, neighbours
from krishiv_py.kernels.arrays.ranges import Ranges, expand, overlapping, portions, running
from krishiv_py.kernels.arrays.sorting import stable_order
from krishiv_py.kernels.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.columns.place import Bounds, place_of
from krishiv_py.kernels.windows.ranged.listed import Listing
from krishiv_py.kernels.windows.ranged.sliding import Column, column_of, kernel_partials

_PIECE: Final = 4_000_000


def range_values(
    layout: Layout,
    rows: pa.Table,
    r: Ranges,
    holes: Ints | None = None,
    listing: Listing | None = None,
    bounds: Bounds | None = None,
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
    """

    def where(n: int) -> str:
        window = None if bounds is None else (int(bounds[0][n]), int(bounds[1][n]))
        return place_of(layout.spec, rows, int(r.low[n]), window)

    times: Ints = rows[TIME].to_numpy()
    columns: dict[int, Column] = {}
    out: list[pa.Array] = []
    for kernel, at in zip(layout.kernels, layout.input_of, strict=True):
        if at is not None and at not in columns:
            columns[at] = column_of(rows, at)
        column = None if at is None else columns[at]
        special = _special(kernel, column, r, holes, listing)
        with told_where(where):
            out.append(kernel.finish(_partials(kernel, column, times, r, holes)) if special is None else special)
    return out


def _partials(kernel: AggKernel, column: Column | None, times: Ints, r: Ranges, holes: Ints | None) -> list[pa.Array]:
    if holes is None:
        return kernel_partials(kernel, column, times, r)
    before, after = np.flatnonzero(holes > r.low), np.flatnonzero(r.high > holes + 1)
    parts = []
    for some, low, high in ((before, r.low, holes), (after, holes + 1, r.high)):
        with regrouped(some):
            parts.append(kernel_partials(kernel, column, times, Ranges(low[some], high[some], r.block)))
    alone = np.flatnonzero((holes == r.low) & (r.high == holes + 1))
    none = np.empty(0, np.int64)
    with regrouped(alone):
        parts.append(kernel.create(Rows(None if column is None else column[0].slice(0, 0), none, none, len(alone))))
    both = [pa.concat_arrays([_whole(x) for x in pair]) for pair in zip(*parts, strict=True)]
    return kernel.merge(both, np.concatenate([before, after, alone]), len(holes))


def _whole(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _special(
    kernel: AggKernel, column: Column | None, r: Ranges, holes: Ints | None, listing: Listing | None
) -> pa.Array | None:
    """Aggregates that do better without partials; None for the others."""
    if not isinstance(kernel, (Distinct, Percentile, HyperLogLog, CollectList)):
        return None
    assert column is not None
    values, spread = _compact(column, r, holes)
    if isinstance(kernel, Percentile):
        return percentiles(kernel.percentage, values, spread)
    if isinstance(kernel, HyperLogLog):
        return _registers(kernel, values, spread)
    if isinstance(kernel, CollectList):
        return _listed(values, spread, listing)
    codes, ordered = ranks(normal_key(values))
    return _sets(codes, ordered, spread, listing) if kernel.result == "set" else pa.array(distinct_counts(codes, spread))


def _compact(column: Column, r: Ranges, holes: Ints | None) -> tuple[pa.Array, Spread]:
    """Without nulls."""
    values, valid = column
    if valid is None:
        return values, Spread(r.low, r.high, holes)
    seen = running(valid.astype(np.int64))
    hole = None if holes is None else np.where(valid[holes], seen[holes], -1)
    return values.drop_null(), Spread(seen[r.low], seen[r.high], hole)


def _listed(values: pa.Array, s: Spread, listing: Listing | None) -> pa.Array:
    """The values of every range in their order."""
    if listing is not None:
        listing.check("collect_list", s.lengths)
    made = []
    for start, stop in portions(s.low, s.high, _PIECE):
        at, ids = expand(s.low[start:stop], s.high[start:stop])
        if s.hole is not None:
            kept = at != s.hole[start:stop][ids]
            at, ids = at[kept], ids[kept]
        made.append(lists(values.take(pa.array(at)), ids, stop - start))
    return pa.concat_arrays(made) if made else pa.array([], pa.list_(values.type))


def _sets(codes: Ints, ordered: pa.Array, s: Spread, listing: Listing | None) -> pa.Array:
    """The distinct values of every range, ascending."""
    n = len(s.low)
    before, after = neighbours(codes)
    first, stop = counting_ranges(s, before, np.full(len(codes), len(codes)))
    if listing is not None:
        listing.check("collect_set", added(first, stop, None, n))
    ids, at = expand(first, stop)
    if s.hole is not None:
        kept = (at != s.hole[ids]) | (after[at] < s.high[ids])
        at, ids = at[kept], ids[kept]
    width = max(len(ordered), 1)
    order = stable_order(ids * width + codes[at])
    return lists(ordered.take(pa.array(codes[at][order])), ids[order], n)


def _registers(kernel: HyperLogLog, values: pa.Array, s: Spread) -> pa.Array:
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
