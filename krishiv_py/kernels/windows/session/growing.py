"""Session windows with triggers or discarding accumulation, without a longest duration (SEMANTICS §3.3, §5).

Such sessions only grow and join, so of each its totals are kept, not its rows. A key is looked at when rows of it come and
when one of its sessions is due, and is then written again.

A *track* is a session as it grows: it begins with a session that was held, or with a row that joins none, and each row that
falls into it takes it one step on. A row that bridges several takes the one of most rows on; the others end there::

    arrival    1   2   3   4   5          track A   1 ── 3 ─────── 5 ──►     rows 1 3 5 and all of B
    time       0  20   2  18  10          track B     2 ──── 4 ────┘         5 joins A and B (gap 9)

So of n rows in a session no chain of tracks that end in tracks is longer than log2 n. Tracks are worked out level by level,
those that others end in after those. Along a track aggregates are cumulated, so a firing costs what it brings and not what
the session holds.

Cost of a batch: proportional to the rows it brings and to the open sessions of the keys it brings and of those that are
due, however many rows these hold. Triggers that count rows follow the rows of a batch along the sessions they fall into,
and cumulate aggregates on the way.

A session has a number ``n``, rows ``r``, of which ``u`` are in no firing, firings so far ``o``, whether its end was passed
``d``, where a user's trigger is asked the newest event time ``m``, and its partials; discarding, those of the ``u`` rows. A
result is kept if rows came to its session ``n`` after it; without such rows the valid result is the session itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.grouping import Groups, group, key_hashes
from krishiv_py.arrays.ranges import components, running_reach
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask, flags_at, last_rows, pick, run_begins, totals_of, values_at
from krishiv_py.kernels.aggregates import AggKernel
from krishiv_py.kernels.aggregates.base import FailingPlace, first_of, regrouped
from krishiv_py.kernels.columns.layout import TIME, Layout, place_of, whole
from krishiv_py.kernels.firing import WindowFacts
from krishiv_py.kernels.prefixes import few_each
from krishiv_py.kernels.results import Emitter, StateTables, StepResult, compose
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import WRITTEN, Bucket
from krishiv_py.kernels.state.window_log import HASH, DeadKeys, removed
from krishiv_py.kernels.windows.session.keyed_state import (
    DONE,
    HELD,
    NUMBER,
    OFTEN,
    STANDING,
    UNDER,
    BucketVisit,
    Early,
    EntryLog,
    KeyEntries,
    VisitingOperator,
)
from krishiv_py.kernels.windows.session.rows import END, KIND, SEQ, firing
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.options.triggers import Trigger


@attrs.frozen(eq=False)
class SessionElements:
    """Sessions that were held, then the rows of a batch in order of arrival.

    Attributes
    ----------
    groups, starts, ends : ndarray of int64
        Group of the key and bounds; a row reaches from its time to the end of its gap.
    rows, ids : ndarray of int64
        How many rows each is made of, and a number that grows with arrival.
    n_held : int
        How many of them are sessions.
    """

    groups: Ints
    starts: Ints
    ends: Ints
    rows: Ints
    ids: Ints
    n_held: int


@attrs.frozen(eq=False)
class SessionTracks:
    """Holds what became of the elements. Tracks are numbered: held sessions first, then those that began with a row.

    Attributes
    ----------
    of_row : ndarray of int64
        The track each row took on.
    starts, ends : ndarray of int64
        Bounds of the session after each row.
    first : ndarray of int64
        The element each track began with.
    into : ndarray of int64
        The row that joined each track to another; -1 for those that go on.
    level : ndarray of int64
        0 for tracks no other ended in, else one more than the highest of those.
    """

    of_row: Ints
    starts: Ints
    ends: Ints
    first: Ints
    into: Ints
    level: Ints

    @property
    def n(self) -> int:
        """Return how many tracks there are."""
        return len(self.first)


def follow(e: SessionElements, *, touching: bool) -> SessionTracks:
    """Follow these elements, and return their tracks."""
    h = e.n_held
    walker = _Walker(e, touching=touching)
    if h == len(e.starts):
        return walker.tracks()
    parts = components(e.groups, e.starts, e.ends, touching=touching)
    brought = flags_at(parts.ids[h:], parts.n)
    order = stable_order(parts.ids)
    order = order[brought[parts.ids[order]]]
    part = parts.ids[order]
    heads = run_begins(part)
    low, high = -running_reach(part, -e.starts[order]), running_reach(part, e.ends[order])
    apart = _apart(e, order, low, high, heads, touching=touching)
    by_hand = flags_at(part[apart], parts.n)
    single = ~by_hand[part]
    row = order >= h
    walker.singles(order, part, low, high, heads, row, single)
    if by_hand.any():
        walker.walk(order[~single], part[~single])
    return walker.tracks()


def _apart(e: SessionElements, order: Ints, low: Ints, high: Ints, heads: Mask, *, touching: bool) -> Mask:
    """Elements that do not meet the span of those before them: where there are none, it is one session all along."""
    starts, ends = e.starts[order][1:], e.ends[order][1:]
    met = (starts <= high[:-1]) & (ends >= low[:-1]) if touching else (starts < high[:-1]) & (ends > low[:-1])
    apart = np.zeros(len(order), np.bool_)
    apart[1:] = ~met & ~heads[1:]
    return apart


class _Walker:
    """Fills in the tracks: all at once where a session grows without another next to it, else row by row."""

    def __init__(self, elements: SessionElements, *, touching: bool) -> None:
        self._e = elements
        self._touching = touching
        n_rows = len(elements.starts) - elements.n_held
        self._of_row, self._starts, self._ends = (np.zeros(n_rows, np.int64) for _ in range(3))
        self._first: list[int] = []
        self._joins: list[tuple[int, int]] = []  # (row, track that ends there)

    def singles(self, order: Ints, part: Ints, low: Ints, high: Ints, heads: Mask, row: Mask, single: Mask) -> None:
        """Parts that are one session all along."""
        h = self._e.n_held
        begins = np.flatnonzero(heads & single)
        first = order[begins]
        fresh = first >= h
        number = np.where(fresh, h + np.cumsum(fresh) - 1, first)
        self._first = first[fresh].tolist()
        track = values_at(part[begins], number, int(part.max(initial=-1)) + 1)
        row_places = row & single
        rows = order[row_places] - h
        self._of_row[rows] = track[part[row_places]]
        self._starts[rows], self._ends[rows] = low[row_places], high[row_places]

    def walk(self, order: Ints, part: Ints) -> None:
        """Parts in which sessions begin side by side and are joined."""
        cuts = np.flatnonzero(np.diff(part)) + 1
        size = self._e.rows.tolist()[: self._e.n_held] + [1] * len(self._first)
        for elements in np.split(order, cuts):
            self._part(elements, size)

    def _part(self, elements: Ints, size: list[int]) -> None:
        h, e = self._e.n_held, self._e
        held = elements[elements < h]
        held = held[np.argsort(e.starts[held])]
        starts, ends, tracks = e.starts[held].tolist(), e.ends[held].tolist(), held.tolist()
        rows = elements[elements >= h]
        after, before = (bisect_left, bisect_right) if self._touching else (bisect_right, bisect_left)
        taken, lows, highs = [], [], []
        for row, low, high in zip((rows - h).tolist(), e.starts[rows].tolist(), e.ends[rows].tolist(), strict=True):
            left, right = after(ends, low), before(starts, high)
            if left >= right:
                track = h + len(self._first)
                self._first.append(row + h)
                size.append(1)
                starts.insert(left, low)
                ends.insert(left, high)
                tracks.insert(left, track)
            else:
                track = tracks[left]
                if right > left + 1:
                    track = self._joined(row, tracks[left:right], size)
                size[track] += 1
                low, high = min(low, starts[left]), max(high, ends[right - 1])
                starts[left:right], ends[left:right], tracks[left:right] = [low], [high], [track]
            taken.append(track)
            lows.append(low)
            highs.append(high)
        row_places = rows - h
        self._of_row[row_places], self._starts[row_places], self._ends[row_places] = taken, lows, highs

    def _joined(self, row: int, tracks: list[int], size: list[int]) -> int:
        """Return the track that goes on: of most rows, the older of equal ones."""
        h, ids = self._e.n_held, self._e.ids
        main = max(tracks, key=lambda t: (size[t], -int(ids[t if t < h else self._first[t - h]])))
        for other in tracks:
            if other != main:
                self._joins.append((row, other))
                size[main] += size[other]
        return main

    def tracks(self) -> SessionTracks:
        """Return what was found."""
        h = self._e.n_held
        first = np.concatenate([np.arange(h), np.array(self._first, np.int64)])
        into = np.full(len(first), -1, np.int64)
        level = np.zeros(len(first), np.int64)
        for row, ended in sorted(self._joins):
            into[ended] = row
            main = self._of_row[row]
            level[main] = max(level[main], level[ended] + 1)
        return SessionTracks(self._of_row, self._starts, self._ends, first, into, level)


@attrs.frozen(eq=False)
class WrittenLines:
    """Results in the order they were written; the first `n_old` stand from before.

    Attributes
    ----------
    tracks : ndarray of int64
        The track of each.
    rows : ndarray of int64
        The row that made it fire; -1 for old ones, one more than the last for firings after all rows.
    starts, ends : ndarray of int64
        Bounds.
    values : pyarrow.Table
        Finished aggregates.
    moments : ndarray of int64
        When each is written.
    panes : ndarray of str
        Why.
    index : ndarray of int64
        How often the session had fired before.
    """

    n_old: int
    tracks: Ints
    rows: Ints
    starts: Ints
    ends: Ints
    values: pa.Table
    moments: Ints
    panes: npt.NDArray[np.str_]
    index: Ints


def withdrawn_by(r: WrittenLines, t: SessionTracks) -> tuple[Ints, Ints]:
    """For every result the firing that takes its place (-1: it is valid), and the track it is of in the end."""
    n = len(r.tracks)
    width = len(t.of_row) + 3
    fired = np.arange(r.n_old, n)
    codes = r.tracks[fired] * width + r.rows[fired]
    order = np.argsort(codes)
    codes = codes[order]
    by = np.full(n, -1, np.int64)
    track, after = r.tracks.copy(), r.rows.copy()
    open_ = np.arange(n)
    while len(open_):
        positions = np.searchsorted(codes, track[open_] * width + after[open_], side="right")
        withdrawn = positions < len(codes)
        withdrawn[withdrawn] = codes[positions[withdrawn]] // width == track[open_[withdrawn]]
        by[open_[withdrawn]] = fired[order[positions[withdrawn]]]
        open_ = open_[~withdrawn]
        into = t.into[track[open_]]
        open_, into = open_[into >= 0], into[into >= 0]
        track[open_], after[open_] = t.of_row[into], into - 1
    return by, track


def lines(emitter: Emitter, keys: pa.Table, r: WrittenLines, by: Ints | None) -> pa.Table:
    """Result rows by moment, then in ascending end order, withdrawals before what replaces them.

    `keys` has the key of every result; `by` says what withdraws each, None where nothing is withdrawn.
    """
    gone = np.empty(0, np.int64) if by is None else np.flatnonzero(by >= 0)
    bounds = r.starts, r.ends
    new = np.arange(r.n_old, len(r.tracks))
    results = compose(new, gone, gone if by is None else by[gone], (*bounds, r.moments), bounds)
    picked = pa.array(results.result)
    return emitter.finished(
        [pick(keys[k], picked) for k in emitter.layout.key_names],
        r.starts[results.result],
        r.ends[results.result],
        pick(r.values, picked).columns,
        results.op,
        r.panes[results.cause],
        r.index[results.cause],
    )


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
        columns = kernel.prefixes(partials, ids)
    last = pa.array(np.append(np.flatnonzero(np.diff(ids)), len(ids) - 1))
    with regrouped(ids[wanted]):
        values = kernel.finish([pick(p, wanted) for p in columns])
    return Prefixes(values, [pick(p, last) for p in columns])


@attrs.frozen(eq=False)
class Sessions:
    """Sessions by number: rows that no firing has shown, firings so far, whether the end was passed with a firing.

    `partials` are those of all rows, or, discarding, of the rows that no firing has shown; `line` is the line of each session
    there, -1 for none.
    """

    pending: Ints
    often: Ints
    done: Mask
    partials: pa.Table
    line: Ints


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
        tracks: SessionTracks,
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
        new = tracks.n - len(held.line)
        self._pending = np.append(held.pending, np.zeros(new, np.int64))
        self._often = np.append(held.often, np.zeros(new, np.int64))
        self._done = np.append(held.done, np.zeros(new, np.bool_))
        self._at = np.append(held.line, np.full(new, -1))
        self._partials = held.partials
        self._fired: list[TrackFirings] = []

    def run(self) -> tuple[Sessions, TrackFirings]:
        """Return the tracks after the last row, and what fired."""
        level_of_row = self._tracks.level[self._tracks.of_row]
        for level in range(int(self._tracks.level.max(initial=0)) + 1):
            row_places = np.flatnonzero(level_of_row == level)
            if len(row_places):
                self._replay(self._line(row_places))
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
        head = run_begins(track)
        place = last_rows(order, len(t.of_row))
        ended = np.flatnonzero(t.into >= 0)
        row_places = place[t.into[ended]]
        return _Line(order, track, head, ended[row_places >= 0], row_places[row_places >= 0])

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
        source = values_at(line.head, self._often[line.track[line.head]], len(fires), -1)
        np.maximum.at(source, line.ended_at, self._often[line.ended])
        return running_reach(group, np.where(source < 0, -len(fires) - 1, source - before)) + before

    def _evaluate(self, line: _Line, fires: Mask, track: Ints) -> pa.Table:
        """Aggregates of the firings; the totals of the tracks are kept."""
        begins = line.head.copy()
        begins[1:] |= fires[:-1]
        group = np.cumsum(begins if self._discarding else line.head) - 1
        begins[line.ended_at] = True  # what ended counts before the row that joined it
        begins |= self._by_row  # each by itself, so that nothing depends on where batches end
        first_rows = np.flatnonzero(begins)
        segment = np.cumsum(begins) - 1
        created = self._layout.create(pick(self._rows, line.order), segment, len(first_rows))
        parts = pa.Table.from_arrays(created, schema=self._partials.schema)
        heads = np.flatnonzero(line.head)
        held, ended = self._at[track] >= 0, self._at[line.ended] >= 0
        place = np.concatenate([3 * heads[held], 3 * line.ended_at[ended] + 1, 3 * first_rows + 2])
        order = stable_order(place)
        taken = np.concatenate([self._at[track[held]], self._at[line.ended[ended]]])
        stack = pick(pa.concat_tables([pick(self._partials, taken), parts]), order)
        ids = group[place[order] // 3]
        element = last_rows(order, len(order))
        firing = element[len(taken) :][fires[np.append(first_rows[1:], len(fires)) - 1]]
        row_of = first_of(group)
        with FailingPlace(lambda row: place_of(self._layout.spec, self._rows, int(line.order[row_of(row)]))):
            if self._discarding:
                return self._discarded(stack, ids, firing, line, group, fires)
            columns = [[whole(stack[x]) for x in names] for names in self._layout.partial_names]
            results = [
                prefixes(kernel, given, ids, firing) for kernel, given in zip(self._layout.kernels, columns, strict=True)
            ]
        self._keep(pa.Table.from_arrays([p for f in results for p in f.totals], schema=self._partials.schema), track, None)
        return pa.Table.from_arrays([f.values for f in results], schema=value_schema(self._layout))

    def _discarded(self, stack: pa.Table, ids: Ints, firing: Ints, line: _Line, group: Ints, fires: Mask) -> pa.Table:
        """Every firing tells of the rows since the one before it."""
        merged = pa.Table.from_arrays(self._layout.merge(stack, ids, int(group[-1]) + 1), schema=self._partials.schema)
        self._keep(pick(merged, group[line.last]), line.track[line.head], fires[line.last])
        with regrouped(ids[firing]):
            return finished(self._layout, pick(merged, ids[firing]))

    def _keep(self, totals: pa.Table, track: Ints, gone: Mask | None) -> None:
        rows = self._partials.num_rows + np.arange(len(track))
        self._at[track] = rows if gone is None else np.where(gone, -1, rows)
        self._partials = pa.concat_tables([self._partials, totals])


def value_schema(layout: Layout) -> pa.Schema:
    """Finished aggregates, as ``v0``, ``v1``, …"""
    return pa.schema([pa.field(f"v{i}", k.result_type) for i, k in enumerate(layout.kernels)])


def finished(layout: Layout, partials: pa.Table) -> pa.Table:
    """Finished aggregates of partials."""
    return pa.Table.from_arrays(layout.finish(partials), schema=value_schema(layout))


ROWS: Final = "r"
PENDING: Final = "u"
NEWEST: Final = "m"
_PLAIN: Final = {HASH: 0, SEQ: 0, NUMBER: -1, TIME: 0, END: 0, ROWS: 0, PENDING: 0, OFTEN: 0, UNDER: -1, KIND: 0, DONE: False}


class Totals(EntryLog):
    """Entries of sessions and of results.

    `values` says whether results that stand are kept with what they hold, `newest` whether sessions keep the newest event time.
    """

    def __init__(self, layout: Layout, *, values: bool, newest: bool = False) -> None:
        self.partials = pa.schema(layout.partial_fields)
        self.values = value_schema(layout) if values else pa.schema([])
        plain = {**_PLAIN, NEWEST: UNSET} if newest else _PLAIN
        super().__init__(layout, plain, [*self.partials, *self.values])

    def sessions(self, keys: pa.Table, numbers: dict[str, Ints], s: Sessions, seq: int) -> pa.Table:
        """Entries of sessions; `keys` has hash and key of each."""
        content = pick(s.partials, pa.array(s.line, mask=s.line < 0))
        noted = {**numbers, PENDING: s.pending, OFTEN: s.often, DONE: s.done}
        return self.entries(keys, {**noted, **{name: content[name] for name in self.partials.names}}, HELD, seq)

    def standing(self, keys: pa.Table, numbers: dict[str, Ints], values: pa.Table, seq: int) -> pa.Table:
        """Entries of results that stand."""
        return self.entries(keys, {**numbers, **{name: values[name] for name in self.values.names}}, STANDING, seq)


def session_arrays(entries: pa.Table, partials: pa.Schema, *, discarding: bool) -> Sessions:
    """Return what the entries of sessions say."""
    pending = entries[PENDING].to_numpy()
    rows = np.arange(entries.num_rows)
    return Sessions(
        pending,
        entries[OFTEN].to_numpy(),
        np.array(entries[DONE].to_numpy(), np.bool_),
        entries.select(partials.names),
        np.where(pending > 0, rows, -1) if discarding else rows,
    )


class TriggeredSessionOperator(VisitingOperator):
    """See the module's docstring."""

    entries: Totals

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        self.entries = Totals(self.layout, values=self.retract, newest=self.custom_trigger is not None)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        rows = pa.concat_tables([self.layout.row_schema.empty_table(), *chunks])
        return _Step(self, bucket, moment).run(rows)

    def state(self, bucket: Bucket) -> pa.Table:
        """See ``WindowOperator``; when discarding, what came since the last firing."""
        held = self.entries.page(self.log(bucket).written()).held
        if self.discarding:
            held = held.filter(pa.array(held[PENDING].to_numpy() > 0))
        opened = StateTables(self.layout)
        if not held.num_rows:
            return opened.empty()
        partials = [column.combine_chunks() for column in held.select(self.entries.partials.names).columns]
        return opened.table(held, held[WRITTEN].to_numpy(), partials, held[TIME].to_numpy(), held[END].to_numpy())

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; counts sessions that had not ended."""
        return _Step(self, bucket, moment).drop(DeadKeys.of(dead, self.layout.key_names))


@attrs.frozen(eq=False)
class _OpenSessions:
    """The sessions of the keys looked at, after the rows that came: their tracks, bounds, rows, and which rows came to.

    ``newest``: their newest event times, where these are kept.
    """

    tracks: Ints
    starts: Ints
    ends: Ints
    rows: Ints
    came: Mask
    newest: Ints | None


@attrs.frozen(eq=False)
class _LastFirings:
    """Firings after the last row: by session whether, when and why."""

    fires: Mask
    moments: Ints
    panes: npt.NDArray[np.str_]


class _Step(BucketVisit):
    """One bucket in one micro-batch."""

    def __init__(self, operator: TriggeredSessionOperator, bucket: Bucket, moment: Moment) -> None:
        super().__init__(operator, bucket, moment)
        self.op = operator

    def drop(self, dead: DeadKeys) -> int:
        """Take keys out of state. Returns how many sessions had not ended."""
        gone = self.op.entries.page(removed(self.log, self.timers, dead)).held
        return int(np.count_nonzero(gone[END].to_numpy() > self.watermark_us))

    def visit(self, hashes: Ints, chunk: pa.Table, *, due: bool = False, early: Early = "none") -> pa.Table:
        """See :class:`BucketVisit`."""
        entries = self.log.lookup(hashes)
        if not entries.num_rows and not chunk.num_rows:  # keys whose time to live has passed
            return self.op.emitter.concat([])
        page = self.op.entries.page(entries)
        self.numbers.seq += 1
        rows = self.without_late(page.held, chunk)
        everyone, keys = self._keys(page, rows)
        elements = self._elements(page.held, rows, keys)
        tracks = follow(elements, touching=self.op.rows.touching)
        held = session_arrays(page.held, self.op.entries.partials, discarding=self.op.discarding)
        replay = RowReplay(
            self.op.layout, rows, held, tracks, trigger=self.trigger, watermark_us=self.passed_us, discarding=self.op.discarding
        )
        sessions, firings = replay.run()
        now = _open(elements, tracks, page.held[NEWEST].to_numpy() if self.question is not None else None)
        heads = pick(everyone, keys.first)
        fires = self._custom_fires(heads, elements, tracks, sessions, now, came=early == "came") if early != "none" else None
        after = self._after(now, sessions, rows.num_rows, due=due, early=fires)
        return self._results_of(page, heads, elements, tracks, sessions, firings, now, after)

    def _keys(self, page: KeyEntries, rows: pa.Table) -> tuple[pa.Table, Groups]:
        """Hash and key of sessions, rows and marks, and their groups."""
        names = self.op.layout.key_names
        hashes = key_hashes([rows[k] for k in names], rows.num_rows)
        fresh = rows.select(names).add_column(0, HASH, pa.array(hashes))
        everyone = pa.concat_tables([page.held.select([HASH, *names]), fresh, page.marks.select([HASH, *names])])
        return everyone, group(list(everyone.columns[1:]), everyone.num_rows)

    def _elements(self, held: pa.Table, rows: pa.Table, keys: Groups) -> SessionElements:
        n, m = held.num_rows, rows.num_rows
        first = self.numbers.rows
        self.numbers.rows += m
        starts = np.concatenate([held[TIME].to_numpy(), rows[TIME].to_numpy()])
        ends = np.concatenate([held[END].to_numpy(), self.op.rows.ends(rows)])
        ids = np.concatenate([held[NUMBER].to_numpy(), first + np.arange(m)])
        return SessionElements(keys.ids[: n + m], starts, ends, np.append(held[ROWS].to_numpy(), np.ones(m, np.int64)), ids, n)

    def closed(self, groups: Ints, starts: Ints, ends: Ints, n_held: int) -> Mask:
        """See :class:`BucketVisit`."""
        return (components(groups, starts, ends, touching=self.op.rows.touching).row_ends <= self.horizon)[n_held:]

    def _custom_fires(
        self, heads: pa.Table, e: SessionElements, t: SessionTracks, s: Sessions, now: _OpenSessions, *, came: bool
    ) -> Mask:
        """Sessions that changed, or that rows came to, and fire early: all of them, unless a user's trigger is asked."""
        changed: Mask = (now.ends > self.passed_us) & (s.pending[now.tracks] > 0)
        if self.question is None:
            return changed
        assert now.newest is not None
        keys = pick(heads, e.groups[t.first[now.tracks]])
        counts = now.rows, s.pending[now.tracks], s.often[now.tracks], now.newest
        windows = WindowFacts(keys, now.starts, now.ends, *counts)
        return self.question.chosen(windows, changed & now.came if came else changed, of=keys[HASH].to_numpy())

    def _after(self, now: _OpenSessions, s: Sessions, n_rows: int, *, due: bool, early: Mask | None) -> _LastFirings:
        """Return what fires once all rows have come; notes of sessions whether their end was passed with a firing."""
        complete = now.ends <= self.passed_us
        pending, done = s.pending[now.tracks] > 0, s.done[now.tracks]
        panes, moments = np.full(len(complete), "on_time", "<U8"), np.full(len(complete), n_rows + 1)
        late = np.zeros(len(complete), np.bool_)
        if n_rows:
            done = done & complete
            if self.trigger.late == "batch":
                late = complete & pending & (now.came | self.trigger.on_time)
        if due and self.trigger.late == "watermark":
            late = complete & done & pending
        panes[late], moments[late] = "late", n_rows
        done = done | late
        passed = complete & ~done
        s.done[now.tracks] = done | passed
        on_time = passed & self.trigger.on_time & (pending | (not self.op.retract))
        fires = late | on_time
        if early is not None:
            panes[early], moments[early] = "early", n_rows + 2
            fires |= early
        return _LastFirings(fires & pending if self.op.discarding else fires, moments, panes)

    def _results_of(
        self,
        page: KeyEntries,
        heads: pa.Table,
        e: SessionElements,
        t: SessionTracks,
        s: Sessions,
        f: TrackFirings,
        now: _OpenSessions,
        after: _LastFirings,
    ) -> pa.Table:
        """Results, while the keys are written again."""
        rows = np.flatnonzero(after.fires)
        track = now.tracks[rows]
        with FailingPlace(
            lambda n: place_of(
                self.op.layout.spec, heads, int(e.groups[t.first[track[n]]]), (int(now.starts[rows[n]]), int(now.ends[rows[n]]))
            )
        ):
            made = finished(self.op.layout, pick(s.partials, s.line[track]))
        old = self._standing(page)
        n_rows = len(t.of_row)
        results = WrittenLines(
            old.n_old,
            np.concatenate([old.tracks, f.tracks, track]),
            np.concatenate([old.rows, f.rows, np.full(len(rows), n_rows)]),
            np.concatenate([old.starts, t.starts[f.rows], now.starts[rows]]),
            np.concatenate([old.ends, t.ends[f.rows], now.ends[rows]]),
            pa.concat_tables([old.values, f.values, made]),
            np.concatenate([old.moments, f.rows, after.moments[rows]]),
            np.concatenate([old.panes, np.where(f.late, "late", "early"), after.panes[rows]]),
            np.concatenate([old.index, f.index, s.often[track]]),
        )
        s.often[track] += 1
        s.pending[track] = 0
        by, owner = withdrawn_by(results, t) if self.op.retract else (None, results.tracks)
        keys = pick(heads, e.groups[t.first[results.tracks]])
        table = lines(self.op.emitter, keys, results, by)
        self._record(page, heads, e, t, s, now, results, by, owner)
        return table

    def _standing(self, page: KeyEntries) -> WrittenLines:
        """Results that may be withdrawn: those kept, and every session that no row has come to since it fired."""
        sessions = page.held
        if not self.op.retract:
            none = np.empty(0, np.int64)
            return WrittenLines(
                0, none, none, none, none, value_schema(self.op.layout).empty_table(), none, np.empty(0, "U1"), none
            )
        whole = np.flatnonzero(sessions[PENDING].to_numpy() == 0)
        own = pick(sessions, whole)
        with FailingPlace(lambda n: place_of(self.op.layout.spec, own, n)):
            values = finished(self.op.layout, own.select(self.op.entries.partials.names))
        ids = sessions[NUMBER].to_numpy()
        numbers = np.concatenate([own[UNDER].to_numpy(), page.standing[UNDER].to_numpy()])
        order = np.argsort(numbers)
        tracks = np.concatenate([whole, np.searchsorted(ids, page.standing[NUMBER].to_numpy())])[order]
        starts, ends = (np.concatenate([own[n].to_numpy(), page.standing[n].to_numpy()])[order] for n in (TIME, END))
        content = pick(pa.concat_tables([values, page.standing.select(values.column_names)]), order)
        nothing = np.zeros(len(order), np.int64)
        return WrittenLines(
            len(order), tracks, nothing - 1, starts, ends, content, numbers[order], np.full(len(order), ""), nothing
        )

    def _record(
        self,
        page: KeyEntries,
        heads: pa.Table,
        e: SessionElements,
        t: SessionTracks,
        s: Sessions,
        now: _OpenSessions,
        r: WrittenLines,
        by: Ints | None,
        owner: Ints,
    ) -> None:
        """Write the keys again without closed sessions; see that each is looked at in time."""
        entries, seq = self.op.entries, self.numbers.seq
        open_ = now.ends > self.horizon
        track = now.tracks[open_]
        groups = e.groups[t.first[track]]
        numbers = {TIME: now.starts[open_], END: now.ends[open_], ROWS: now.rows[open_], NUMBER: e.ids[t.first[track]]}
        if now.newest is not None:
            numbers[NEWEST] = now.newest[open_]
        kept = []
        if by is not None:
            base = self.numbers.results
            self.numbers.results += len(r.tracks)
            untouched = np.flatnonzero(by < 0)
            under = values_at(owner[untouched], base + untouched, t.n, -1)  # of a session without rows since, the only one
            numbers[UNDER] = under[track]
            is_open = np.zeros(t.n, np.bool_)
            is_open[track] = s.pending[track] > 0
            untouched = untouched[is_open[owner[untouched]]]
            of = e.groups[t.first[r.tracks[untouched]]]
            columns = {
                TIME: r.starts[untouched],
                END: r.ends[untouched],
                UNDER: base + untouched,
                NUMBER: e.ids[t.first[owner[untouched]]],
            }
            values = pick(r.values, untouched)
            kept.append(entries.standing(pick(heads, of), columns, values, seq))
        content = Sessions(
            s.pending[track],
            s.often[track],
            s.done[track],
            s.partials,
            np.where(s.pending[track] > 0, s.line[track], -1) if self.op.discarding else s.line[track],
        )
        written = [entries.sessions(pick(heads, groups), numbers, content, seq), *kept]
        waits = (now.ends <= self.passed_us) & (s.pending[now.tracks] > 0)
        armed = self.arm(page.marks, heads, self.coming(now.ends[open_], waits[open_], groups, heads.num_rows))
        self.log.append(pa.concat_tables([*written, entries.marks(heads, armed, seq)]))


def _open(e: SessionElements, t: SessionTracks, held_newest: Ints | None) -> _OpenSessions:
    """Return the sessions that the tracks have come to; `held_newest` has the newest event time of each that is held."""
    starts, ends = e.starts[t.first], e.ends[t.first]
    starts[t.of_row], ends[t.of_row] = t.starts, t.ends  # of several writes to one place the last one counts
    root = np.arange(t.n)
    for level in range(int(t.level.max(initial=0)), -1, -1):  # what ended in a track was of a lower level
        ended = np.flatnonzero((t.into >= 0) & (t.level == level))
        root[ended] = root[t.of_row[t.into[ended]]]
    rows = totals_of(root, np.where(t.first < e.n_held, e.rows[t.first], 0), t.n)
    np.add.at(rows, root[t.of_row], 1)
    came = flags_at(root[t.of_row], t.n)
    final = np.flatnonzero(t.into < 0)
    newest = None
    if held_newest is not None:
        newest = np.full(t.n, UNSET)
        held = np.flatnonzero(t.first < e.n_held)
        np.maximum.at(newest, root[held], held_newest[t.first[held]])
        np.maximum.at(newest, root[t.of_row], e.starts[e.n_held :])
        newest = newest[final]
    return _OpenSessions(final, starts[final], ends[final], rows[final], came[final], newest)
