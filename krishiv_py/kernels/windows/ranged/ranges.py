"""Ranges of rows that a look-back window covers, and values over them.

Finished aggregates of many overlapping ranges of rows, and what each costs.

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

from collections.abc import Iterator

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.ranges import Ranges
from krishiv_py.arrays.types import Ints, Mask, totals_of
from krishiv_py.errors import OperatorError, shown
from krishiv_py.kernels.aggregates import AggKernel, Rows
from krishiv_py.kernels.aggregates.base import FailingPlace, OrderedInput, regrouped
from krishiv_py.kernels.columns.layout import TIME, Bounds, Layout, place_of, whole
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.windows.lookback import DistinctWindows


def range_partials(layout: Layout, rows: pa.Table, r: Ranges) -> list[pa.Array]:
    """Return the partial columns of `layout` for every range of `rows`, which are laid out by key, time and arrival."""
    times: Ints = rows[TIME].to_numpy()
    return [p for kernel, column in inputs(layout, rows) for p in kernel.ranges(column, times, r)]


def inputs(layout: Layout, rows: pa.Table) -> Iterator[tuple[AggKernel, OrderedInput | None]]:
    """Every aggregate with the column it reads; aggregates of one column share it."""
    columns: dict[int, OrderedInput] = {}
    for kernel, i in zip(layout.kernels, layout.input_of, strict=True):
        if i is not None and i not in columns:
            columns[i] = OrderedInput.of(whole(rows[f"a{i}"]))
        yield kernel, None if i is None else columns[i]


class Listing:
    """Refuses too many values listed, or rows met.

    Parameters
    ----------
    rows : pyarrow.Table
        Working rows.
    anchors : ndarray of int64
        A row of each range, of its key.
    ids : ndarray of int64
        The number of the key of each range.
    """

    def __init__(self, layout: Layout, rows: pa.Table, anchors: Ints, ids: Ints) -> None:
        self._layout = layout
        self._rows = rows
        self._anchors = anchors
        self._ids = ids

    def check(self, what: str, lengths: Ints, *, copies: int = 1) -> None:
        """Refuse lists of these lengths if those of a key hold too many values together; `what` makes them.

        What is not kept but only looked at may be `copies` times as much.

        Raises
        ------
        OperatorError
            With key, number of values and the way out.
        """
        most = self._layout.spec.options.max_listed * copies
        if not len(lengths) or int(lengths.sum()) <= most:
            return
        totals = totals_of(self._ids, lengths, int(self._ids.max()) + 1)
        worst = int(totals.argmax())
        total = int(totals[worst])
        if total <= most:
            return
        mine = np.flatnonzero(self._ids == worst)
        row = self._rows.slice(int(self._anchors[mine[0]]), 1)
        key = {name: row[k][0].as_py() for name, k in zip(self._layout.spec.keys, self._layout.key_names, strict=True)}
        got = f"{total:,} for key {shown(key)}, in {len(mine):,} results of one step, up to {int(lengths[mine].max()):,} in one"
        if copies > 1:
            verb, then, hint = "look at", "take very long", "put fewer rows into a batch"
        else:
            verb, then, hint = "list", "fill the memory", "bound its rows with max_rows_per_key, count instead of listing"
        then = f"that grows with the square of the rows in a window, and would {then}"
        hint = f"make the window smaller, {hint}, or raise the limit: .max_listed({2 * total // copies})"
        raise OperatorError(f"{what} would {verb} more than {most:,} values of one key", got=got, then=then, hint=hint)


FROM = "__from"
"""Working column: the row counts in windows that end at this time or later, for others were closed when it came."""


@attrs.frozen
class WindowSpans:
    """Windows of one length, both bounds inclusive; `tick_us` is the resolution of the time column."""

    window: DistinctWindows
    tick_us: int

    @property
    def size(self) -> int:
        """Length, µs."""
        return self.window.size_us

    @property
    def reach(self) -> int:
        """Return how far before the end of its last window a row can be."""
        return self.size if self.window.direction == "forward" else self.size + self.tick_us

    def own_start(self, times: Ints) -> Ints:
        """Return where the window begins that a row brings by itself."""
        if self.window.direction == "forward":
            return times
        if self.window.clamp_zero:
            return np.where((times >= 0) & (times < self.size), 0, times - self.size)
        return times - self.size

    def own_end(self, times: Ints) -> Ints:
        """Return where it ends."""
        return self.own_start(times) + self.size

    def next_start(self, times: Ints) -> Ints:
        """Return where the window begins that a row brings as soon as another lies in it; empty where there is none."""
        return times[:0] if self.window.direction == "forward" else times + self.tick_us

    def frontier(self, horizon: int) -> int:
        """Return the earliest time of rows whose own window ends at or after `horizon`."""
        if horizon in (UNSET, END_OF_TIME):
            return horizon
        if self.window.direction == "forward":
            return horizon - self.size
        return min(horizon, 0) if self.window.clamp_zero and horizon <= self.size else horizon

    def late(self, times: Ints, ids: Ints, known: Ints, known_ids: Ints, n: int, horizon: int) -> Mask:
        """Rows that find no open window: neither their own, nor one that a known row or another new one brings.

        A window that is open reaches beyond every row in question, so what counts is where the earliest of a key begins; and
        a row that finds its place in one cannot bring an earlier one.
        """
        closed = self.own_end(times) < horizon
        if not closed.any():
            return closed
        seeds, owners = np.concatenate([known, times[~closed]]), np.concatenate([known_ids, ids[~closed]])
        earliest = np.full(n, END_OF_TIME, np.int64)
        is_open = self.own_end(seeds) >= horizon
        np.minimum.at(earliest, owners[is_open], self.own_start(seeds[is_open]))
        right = self.next_start(seeds)
        if len(right):
            is_open = right + self.size >= horizon
            np.minimum.at(earliest, owners[is_open], right[is_open])
        return closed & (times < earliest[ids])


def range_values(
    layout: Layout,
    rows: pa.Table,
    r: Ranges,
    holes: Ints | None = None,
    listing: Listing | None = None,
    bounds: Bounds | None = None,
    anchors: Ints | None = None,
) -> list[pa.Array]:
    """Return the aggregates of `layout` over every range of `rows`, which are laid out by key, time and arrival.

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
        Windows of the ranges, named where one fails.
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
        with FailingPlace(where):
            values = kernel.range_results(column, own, holes, listing)
            out.append(kernel.finish(_partials(kernel, column, times, own, holes)) if values is None else values)
    return out


def _narrowed(times: Ints, r: Ranges, rows: Ints, over_us: int) -> Ranges:
    """Return the part of every range that is at most so far from the time of its row; times ascend in a range."""
    return Ranges(_first(times, r, rows - over_us), _first(times, r, rows + over_us + 1), r.block)


def _first(times: Ints, r: Ranges, bound: Ints) -> Ints:
    """Return the first row of every range at or after a time of its own, or the end of the range: all are bisected at once."""
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
    both = [pa.concat_arrays([whole(x) for x in pair]) for pair in zip(*parts, strict=True)]
    return kernel.merge(both, np.concatenate([before, after, alone]), len(holes))
