"""Triggered windows as if the rows of a batch had come one by one (SEMANTICS §5.2).

The accumulators of ``count_distinct`` and ``percentile`` grow with the rows, their results do not. So results of prefixes are
worked out without accumulators (:meth:`~krishiv_py.kernels.aggregates.base.AggKernel.prefix_results`). They ride
along with partials as columns ``__f0``, ``__f1``, …, which :meth:`Layout.finish
<krishiv_py.kernels.columns.layout.Layout.finish>` takes as they are; accumulators are made where they are kept.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.sorting import pair_order, stable_order
from krishiv_py.arrays.types import Ints, Mask, last_rows, pick, run_begins
from krishiv_py.kernels.aggregates import AggKernel
from krishiv_py.kernels.aggregates.base import FailingPlace, group_starts, regrouped
from krishiv_py.kernels.columns.layout import TIME, Layout, finished_name, place_of, whole
from krishiv_py.kernels.columns.times import FixedAssigner
from krishiv_py.kernels.firing import Firings
from krishiv_py.kernels.state.window_log import NEWEST, ROWS, WINDOW, KeyWindows, PairLog
from krishiv_py.plan.options.triggers import Trigger

_FEW: Final = 3


def exactly(kernel: AggKernel) -> bool:
    """Return whether results of prefixes cost the same for every row, and are to the last bit those of whole groups."""
    return kernel.exact_prefixes or kernel.holds_values


def few_each(ids: Ints) -> bool:
    """Return whether groups have so few rows that to merge them is cheaper: what was held, and a row or two."""
    return int(np.bincount(ids).max(initial=0)) <= _FEW


def cumulated(layout: Layout, stack: pa.Table, ids: Ints, kept: Ints) -> pa.Table:
    """Of every row the merged partials of its group up to and with that row, and results of aggregates that hold values.

    Parameters
    ----------
    stack : pyarrow.Table
        Partials, rows of a group next to each other.
    ids : ndarray of int64
        The group of every row, ascending.
    kept : ndarray of int64
        Rows of which accumulators that hold values are wanted; others get empty ones.
    """
    every = np.arange(len(ids))
    columns: list[pa.Array] = []
    results: list[pa.Array] = []
    for kernel, names in zip(layout.kernels, layout.partial_names, strict=True):
        given = [whole(stack[x]) for x in names]
        if kernel.holds_values and few_each(ids):
            merged = kernel.prefixes(given, ids)
            columns += merged
            results.append(kernel.finish(merged))
        elif kernel.holds_values:
            results.append(kernel.prefix_results(given, ids, every))
            columns.append(_accumulators(kernel, given, ids, kept))
        else:
            columns += kernel.prefixes(given, ids)
    return pa.Table.from_arrays([*columns, *results], schema=pa.schema([*layout.partial_fields, *_result_fields(layout)]))


def with_results(layout: Layout, partials: pa.Table) -> pa.Table:
    """Return the partials, and next to them the results that :func:`cumulated` tells."""
    for i, (kernel, names) in enumerate(zip(layout.kernels, layout.partial_names, strict=True)):
        if kernel.holds_values:
            field = pa.field(finished_name(i), kernel.result_type)
            partials = partials.append_column(field, kernel.finish([whole(partials[x]) for x in names]))
    return partials


def _result_fields(layout: Layout) -> list[pa.Field]:
    return [pa.field(finished_name(i), k.result_type) for i, k in enumerate(layout.kernels) if k.holds_values]


def _accumulators(kernel: AggKernel, partials: list[pa.Array], ids: Ints, kept: Ints) -> pa.Array:
    rows, of = expand(group_starts(ids)[kept], kept + 1)
    merged = kernel.merge([pick(p, rows) for p in partials], of, len(kept) + 1)[0]  # the last one is empty
    place = last_rows(kept, len(ids), len(kept))
    return pick(merged, place)


@attrs.frozen(eq=False)
class Units:
    """Rows (or partials of slices) of a batch in the windows they belong to, in order of arrival.

    Attributes
    ----------
    rows, windows, ids : ndarray of int64
        Row number, start of the window in µs, and number of the (key, window) pair.
    n : int
        How many pairs there are.
    pair_windows : ndarray of int64
        Window start of every pair.
    keys : pyarrow.Table
        Window start (column ``w``) and key of every pair.
    """

    rows: Ints
    windows: Ints
    ids: Ints
    n: int
    pair_windows: Ints
    keys: pa.Table


def units_of(
    assigner: FixedAssigner, keys: pa.Table, times: Ints, horizon: int, only: tuple[int, list[int]] | None = None
) -> Units:
    """Assign rows to the windows that are not over; `only` to those that end up to a time, and to some that start as given."""
    rows, windows = assigner.windows(times)
    ends = windows + assigner.grid.size_us
    keep = ends > horizon
    if only is not None:
        keep &= (ends <= only[0]) | np.isin(windows, np.array(only[1], np.int64))
    rows, windows = rows[keep], windows[keep]
    order = pair_order(rows, windows)
    rows, windows = rows[order], windows[order]
    columns = [pick(c, rows) for c in keys.columns]
    groups = group([windows, *columns], len(rows))
    spread = pa.Table.from_arrays([pa.array(windows), *columns], names=[WINDOW, *keys.schema.names])
    return Units(rows, windows, groups.ids, groups.n, windows[groups.first], pick(spread, groups.first))


@attrs.frozen(eq=False)
class BatchFirings:
    """Holds what a batch brings: firings, log entries with their windows, and which windows need another look.

    ``unfired``: overdue windows with pairs that have had no watermark firing; ``waiting``: windows whose late rows wait for
    the watermark to grow.
    """

    firings: Firings | None
    windows: Ints
    entries: pa.Table
    unfired: set[int]
    waiting: set[int]


@attrs.frozen(eq=False)
class _Segments:
    """Stretches of a pair's rows, each ending with a firing or with the batch; pairs one after the other.

    ``newest``: the newest event time of each, where it is counted.
    """

    pair: Ints
    rows: Ints
    last_unit: Ints
    fires: Mask
    partials: pa.Table
    newest: Ints | None


class PrefixFold:
    """Folds batches under one trigger."""

    def __init__(self, log: PairLog, trigger: Trigger, discarding: bool, size_us: int) -> None:
        self.log = log
        self.trigger = trigger
        self.discarding = discarding
        self.size_us = size_us

    def fold(self, fresh: pa.Table, units: Units, state: KeyWindows, watermark_us: int, by_row: bool) -> BatchFirings:
        """Fold `units` of `fresh`, rows or partials, into pairs of this `state`, all classified by one watermark."""
        over = units.pair_windows + self.size_us <= watermark_us
        late = over & (state.done | ~state.known | (not self.trigger.on_time))
        every = np.zeros(units.n, np.int64)
        if isinstance(self.trigger.early, int):
            every[~over] = self.trigger.early
        if isinstance(self.trigger.late, int):
            every[late] = self.trigger.late
        at_end = late & (self.trigger.late == "batch")
        cut = self._segments(fresh, units, state.pending, every, at_end, by_row)
        fired = np.flatnonzero(cut.fires)
        count = np.bincount(cut.pair[fired], minlength=units.n)
        with FailingPlace(lambda pair: place_of(self.log.layout.spec, units.keys, pair)):
            values = self._discarded(cut, fired, state) if self.discarding else self._running(cut, fired, count, state)
        firings = self._firings(units, cut, fired, values, state, over, at_end) if len(fired) else None
        done = state.done | (over & (count > 0))
        waits = late & (self.trigger.late == "watermark")
        windows, entries = self._entries(units, cut, fired, values, state, count, done, waits)
        unfired = units.pair_windows[over & ~done & ~waits]
        return BatchFirings(firings, windows, entries, set(unfired.tolist()), set(units.pair_windows[waits].tolist()))

    def _segments(self, fresh: pa.Table, units: Units, pending: Ints, every: Ints, at_end: Mask, by_row: bool) -> _Segments:
        order = stable_order(units.ids)
        pair = units.ids[order]
        place = np.arange(len(pair)) - group_starts(pair)
        period = np.maximum(every, 1)[pair]
        first = np.maximum(0, period - pending[pair] - 1)
        fires = (every[pair] > 0) & (place >= first) & ((place - first) % period == 0)
        fires |= at_end[pair] & (place == np.bincount(pair)[pair] - 1)
        begins = place == 0
        begins[1:] |= fires[:-1]
        first_rows = np.flatnonzero(begins)
        rows = np.diff(np.append(first_rows, len(pair)))
        segment = np.cumsum(begins) - 1
        content = pick(fresh, units.rows[order])
        combine = self.log.layout.create if by_row else self.log.layout.merge
        partials = self.log.partials(combine(content, segment, len(first_rows)))
        last = first_rows + rows - 1
        newest = None
        if self.log.counted:
            newest = np.maximum.reduceat(content[NEWEST if NEWEST in content.column_names else TIME].to_numpy(), first_rows)
            rows = np.add.reduceat(content[ROWS].to_numpy(), first_rows) if ROWS in content.column_names else rows
        return _Segments(pair[first_rows], rows, order[last], fires[last], partials, newest)

    def _running(self, cut: _Segments, fired: Ints, count: Ints, state: KeyWindows) -> pa.Table:
        """Of every firing, everything of the pair up to it."""
        firing = np.flatnonzero(count)
        snap, pend = firing[state.snap_at[firing] >= 0], firing[state.pend_at[firing] >= 0]
        segments = np.flatnonzero(count[cut.pair] > 0)
        stacked = pa.concat_tables(
            [pick(state.snaps, state.snap_at[snap]), pick(state.pends, state.pend_at[pend]), pick(cut.partials, segments)]
        )
        pair = np.concatenate([snap, pend, cut.pair[segments]])
        order = stable_order(pair)
        stacked, pair = pick(stacked, order), pair[order]
        row_of = np.full(len(cut.pair), -1, np.int64)
        place = last_rows(order, len(order))
        row_of[segments] = place[len(snap) + len(pend) :]
        wanted = row_of[fired]
        with regrouped(pair):
            return pick(cumulated(self.log.layout, stacked, pair, wanted[_last_of(cut.pair[fired])]), wanted)

    def _discarded(self, cut: _Segments, fired: Ints, state: KeyWindows) -> pa.Table:
        """Of every firing, what came since the last one."""
        values = pick(cut.partials, fired)
        first = run_begins(cut.pair[fired])
        pend = state.pend_at[cut.pair[fired]]
        both = np.flatnonzero(first & (pend >= 0))
        pairs = pa.concat_tables([pick(state.pends, pend[both]), pick(values, both)])
        with regrouped(cut.pair[fired[both]]):
            merged = self.log.partials(self.log.layout.merge(pairs, np.tile(np.arange(len(both)), 2), len(both)))
        source = np.arange(len(fired))
        source[both] = len(fired) + np.arange(len(both))
        return pick(pa.concat_tables([values, merged]), source)

    def _firings(
        self, units: Units, cut: _Segments, fired: Ints, values: pa.Table, state: KeyWindows, over: Mask, at_end: Mask
    ) -> Firings:
        """Row by row in order of arrival, then once per batch in ascending end order."""
        pair = cut.pair[fired]
        rank = np.arange(len(fired)) - group_starts(pair)
        old_at = np.where(rank == 0, state.snap_at[pair], len(state.snaps) + np.arange(len(fired)) - 1)
        old = state.snaps if self.discarding else with_results(self.log.layout, state.snaps)
        once = at_end[pair]
        order = pair_order(once.astype(np.int64), np.where(once, units.pair_windows[pair], cut.last_unit[fired]))
        index = (state.fired[pair] + rank)[order]
        pair = pair[order]
        return Firings(
            units.pair_windows[pair],
            pick(units.keys, pair),
            pick(values, order),
            index,
            np.where(over[pair], "late", "early"),
            pa.concat_tables([old, values]),
            old_at[order],
        )

    def _entries(
        self,
        units: Units,
        cut: _Segments,
        fired: Ints,
        values: pa.Table,
        state: KeyWindows,
        count: Ints,
        done: Mask,
        waits: Mask,
    ) -> tuple[Ints, pa.Table]:
        """Return a snapshot per pair that fired, then what is left of the batch as deltas."""
        last = _last_of(cut.pair[fired])
        snapped = cut.pair[fired][last]
        own = values.select(self.log.partial_schema.names)
        content = self.log.nothing(len(last)) if self.discarding else pick(own, last)
        number = state.fired[snapped] + count[snapped]
        snaps = self.log.entries(
            pick(units.keys, snapped),
            np.zeros(len(last), np.int64),
            number,
            done[snapped],
            np.ones(len(last), np.bool_),
            content,
        )
        rest = np.flatnonzero(~cut.fires)
        pair = cut.pair[rest]
        zeros = np.zeros(len(rest), np.int64)
        deltas = self.log.entries(
            pick(units.keys, pair),
            cut.rows[rest],
            zeros,
            waits[pair],
            zeros > 0,
            pick(cut.partials, rest),
            None if cut.newest is None else cut.newest[rest],
        )
        return units.pair_windows[np.concatenate([snapped, pair])], pa.concat_tables([snaps, deltas])


def _last_of(pairs: Ints) -> Ints:
    """Return the last of each run of equal numbers."""
    ends = np.ones(len(pairs), np.bool_)
    ends[:-1] = pairs[1:] != pairs[:-1]
    return np.flatnonzero(ends)
