"""Define what the sessions of a batch come to and when they fire, as rows come one by one: counts first, then aggregates.

Tracks (:mod:`~krishiv_py.kernels.windows.session.growing.assigned_rows`) are worked out level by level, those that others end
in after those. Along a track aggregates are cumulated, so a firing costs what it brings and not what the session holds.
"""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.intervals import running_reach
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.aggregates import AggKernel
from krishiv_py.kernels.aggregates.failed import failing_place, first_of, regrouped
from krishiv_py.kernels.columns.layout import Layout, whole
from krishiv_py.kernels.columns.place import place_of
from krishiv_py.kernels.firing.cumulated import few_each
from krishiv_py.kernels.windows.session.growing.assigned_rows import Tracks
from krishiv_py.kernels.windows.session.rows import firing
from krishiv_py.plan.options.triggers import Trigger


@attrs.frozen(eq=False)
class Prefixes:
    """Finished values of some prefixes, and the merged partials of every group."""

    values: pa.Array
    totals: list[pa.Array]


def prefixes(kernel: AggKernel, partials: list[pa.Array], ids: Ints, wanted: Ints) -> Prefixes:
    """Return what the prefixes that end at the rows `wanted` come to, and what every group does.

    Parameters
    ----------
    kernel : AggKernel
        The aggregate.
    partials : list of pyarrow.Array
        Its partial columns, rows of a group next to each other.
    ids : ndarray of int64
        The group of every row, ascending from 0 without gaps.
    wanted : ndarray of int64
        Rows.
    """
    if not len(wanted):
        return Prefixes(kernel.finish([p.slice(0, 0) for p in partials]), kernel.merge(partials, ids, int(ids[-1]) + 1))
    if kernel.holds_values and not few_each(ids):
        return Prefixes(kernel.prefix_results(partials, ids, wanted), kernel.merge(partials, ids, int(ids[-1]) + 1))
    with regrouped(ids):
        found = kernel.prefixes(partials, ids)
    last = pa.array(np.append(np.flatnonzero(np.diff(ids)), len(ids) - 1))
    with regrouped(ids[wanted]):
        values = kernel.finish([pick(p, wanted) for p in found])
    return Prefixes(values, [pick(p, last) for p in found])


@attrs.frozen(eq=False)
class Sessions:
    """Sessions by number: rows that no firing has told of, firings so far, whether the end was passed with a firing.

    `partials` are those of all rows, or, discarding, of the rows no firing has told of; `at` is the line of each session
    there, -1 for none.
    """

    pending: Ints
    often: Ints
    done: Mask
    partials: pa.Table
    at: Ints


@attrs.frozen(eq=False)
class TrackFirings:
    """Firings in order of arrival: the row that made each, its track, how often the track had fired, aggregates."""

    rows: Ints
    tracks: Ints
    late: Mask
    index: Ints
    values: pa.Table


@attrs.frozen(eq=False)
class _Line:
    """The rows of some tracks, track by track: positions are along this line."""

    order: Ints
    track: Ints
    head: Mask
    ended: Ints
    """Tracks that end in these."""
    ended_at: Ints
    """Where."""

    @property
    def last(self) -> Ints:
        """Return where each track ends."""
        return np.append(np.flatnonzero(self.head)[1:], len(self.order)) - 1


class RowReplay:
    """Lets the rows of a batch come.

    Parameters
    ----------
    rows : pyarrow.Table
        Working rows, in order of arrival.
    held : Sessions
        Those the first tracks begin with.
    """

    def __init__(
        self,
        layout: Layout,
        rows: pa.Table,
        held: Sessions,
        tracks: Tracks,
        *,
        trigger: Trigger,
        watermark_us: int,
        discarding: bool,
    ) -> None:
        self._layout = layout
        self._rows = rows
        self._tracks = tracks
        self._watermark_us = watermark_us
        self._early, self._late = (x if isinstance(x, int) else 0 for x in (trigger.early, trigger.late))
        self._discarding = discarding
        self._by_row = trigger._row_by_row
        new = tracks.n - len(held.at)
        self._pending = np.append(held.pending, np.zeros(new, np.int64))
        self._often = np.append(held.often, np.zeros(new, np.int64))
        self._done = np.append(held.done, np.zeros(new, np.bool_))
        self._at = np.append(held.at, np.full(new, -1))
        self._partials = held.partials
        self._fired: list[TrackFirings] = []

    def run(self) -> tuple[Sessions, TrackFirings]:
        """The tracks after the last row, and what fired."""
        level_of_row = self._tracks.level[self._tracks.of_row]
        for level in range(int(self._tracks.level.max(initial=0)) + 1):
            at = np.flatnonzero(level_of_row == level)
            if len(at):
                self._replay(self._line(at))
        f = self._fired
        rows = np.concatenate([np.empty(0, np.int64), *(x.rows for x in f)])
        order = stable_order(rows)
        nothing = TrackFirings(rows[:0], rows[:0], np.zeros(0, np.bool_), rows[:0], self._nothing())
        parts = [nothing, *f]
        tracks, late, index = (np.concatenate([getattr(x, n) for x in parts])[order] for n in ("tracks", "late", "index"))
        values = pick(pa.concat_tables([x.values for x in parts]), order)
        return (
            Sessions(self._pending, self._often, self._done, self._partials, self._at),
            TrackFirings(rows[order], tracks, late, index, values),
        )

    def _nothing(self) -> pa.Table:
        return value_schema(self._layout).empty_table()

    def _line(self, rows: Ints) -> _Line:
        t = self._tracks
        order = rows[stable_order(t.of_row[rows])]
        track = t.of_row[order]
        head = np.ones(len(order), np.bool_)
        head[1:] = track[1:] != track[:-1]
        place = np.full(len(t.of_row), -1, np.int64)
        place[order] = np.arange(len(order))
        ended = np.flatnonzero(t.into >= 0)
        at = place[t.into[ended]]
        return _Line(order, track, head, ended[at >= 0], at[at >= 0])

    def _replay(self, line: _Line) -> None:
        late = self._tracks.ends[line.order] <= self._watermark_us
        weights = np.ones(len(line.order), np.int64)
        np.add.at(weights, line.ended_at, self._pending[line.ended])
        weights[line.head] += self._pending[line.track[line.head]]
        fires = firing(weights, np.where(late, self._late, self._early), late, line.head)
        index = self._indexes(line, fires)
        last, track = line.last, line.track[line.head]
        self._often[track] = index[last] + fires[last]
        self._done[line.track[fires & late]] = True
        np.logical_or.at(self._done, line.track[line.ended_at], self._done[line.ended])
        total = np.cumsum(weights)
        since = np.maximum.accumulate(np.where(fires, total, 0))[last]
        self._pending[track] = total[last] - np.maximum(since, total[line.head] - weights[line.head])
        values = self._evaluate(line, fires, track)
        self._fired.append(TrackFirings(line.order[fires], line.track[fires], late[fires], index[fires], values))

    def _indexes(self, line: _Line, fires: Mask) -> Ints:
        """Return how often the session of each row had fired before; where sessions join, the larger number counts on."""
        group = np.cumsum(line.head) - 1
        before: Ints = np.cumsum(fires) - fires
        before = before - before[np.flatnonzero(line.head)][group]
        source = np.full(len(fires), -1, np.int64)
        source[line.head] = self._often[line.track[line.head]]
        np.maximum.at(source, line.ended_at, self._often[line.ended])
        return running_reach(group, np.where(source < 0, -len(fires) - 1, source - before)) + before

    def _evaluate(self, line: _Line, fires: Mask, track: Ints) -> pa.Table:
        """Aggregates of the firings; the totals of the tracks are kept."""
        begins = line.head.copy()
        begins[1:] |= fires[:-1]
        group = np.cumsum(begins if self._discarding else line.head) - 1
        begins[line.ended_at] = True  # what ended counts before the row that joined it
        begins |= self._by_row  # each by itself, so that nothing depends on where batches end
        at = np.flatnonzero(begins)
        segment = np.cumsum(begins) - 1
        created = self._layout.create(pick(self._rows, line.order), segment, len(at))
        parts = pa.Table.from_arrays(created, schema=self._partials.schema)
        heads = np.flatnonzero(line.head)
        held, ended = self._at[track] >= 0, self._at[line.ended] >= 0
        place = np.concatenate([3 * heads[held], 3 * line.ended_at[ended] + 1, 3 * at + 2])
        order = stable_order(place)
        taken = np.concatenate([self._at[track[held]], self._at[line.ended[ended]]])
        stack = pick(pa.concat_tables([pick(self._partials, taken), parts]), order)
        ids = group[place[order] // 3]
        element = np.empty(len(order), np.int64)
        element[order] = np.arange(len(order))
        firing = element[len(taken) :][fires[np.append(at[1:], len(fires)) - 1]]
        row_of = first_of(group)
        with failing_place(lambda at: place_of(self._layout.spec, self._rows, int(line.order[row_of(at)]))):
            if self._discarding:
                return self._discarded(stack, ids, firing, line, group, fires)
            columns = [[whole(stack[x]) for x in names] for names in self._layout.partial_names]
            found = [prefixes(kernel, given, ids, firing) for kernel, given in zip(self._layout.kernels, columns, strict=True)]
        self._keep(pa.Table.from_arrays([p for f in found for p in f.totals], schema=self._partials.schema), track, None)
        return pa.Table.from_arrays([f.values for f in found], schema=value_schema(self._layout))

    def _discarded(self, stack: pa.Table, ids: Ints, firing: Ints, line: _Line, group: Ints, fires: Mask) -> pa.Table:
        """Every firing tells of the rows since the one before it."""
        merged = pa.Table.from_arrays(self._layout.merge(stack, ids, int(group[-1]) + 1), schema=self._partials.schema)
        self._keep(pick(merged, group[line.last]), line.track[line.head], fires[line.last])
        with regrouped(ids[firing]):
            return finished(self._layout, pick(merged, ids[firing]))

    def _keep(self, totals: pa.Table, track: Ints, gone: Mask | None) -> None:
        at = self._partials.num_rows + np.arange(len(track))
        self._at[track] = at if gone is None else np.where(gone, -1, at)
        self._partials = pa.concat_tables([self._partials, totals])


def value_schema(layout: Layout) -> pa.Schema:
    """Finished aggregates, as ``v0``, ``v1``, …"""
    return pa.schema([pa.field(f"v{i}", k.result_type) for i, k in enumerate(layout.kernels)])


def finished(layout: Layout, partials: pa.Table) -> pa.Table:
    """Finished aggregates of partials."""
    return pa.Table.from_arrays(layout.finish(partials), schema=value_schema(layout))
