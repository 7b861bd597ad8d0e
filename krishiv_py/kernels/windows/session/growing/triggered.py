"""Session windows with triggers or discarding accumulation, without a longest duration (SEMANTICS §3.3, §5).

Such sessions only grow and join, so of each its totals are kept (:mod:`~krishiv_py.kernels.windows.session.growing.triggered`),
not its rows. A key is looked at when rows of it come and when one of its sessions is due, and is then written again.

Cost of a batch: proportional to the rows it brings and to the open sessions of the keys it brings and of those that are due,
however many rows these hold. Triggers that count rows follow the rows of a batch along the sessions they fall into
(:mod:`~krishiv_py.kernels.windows.session.growing.assigned_rows`) and cumulate aggregates on the way
(:mod:`~krishiv_py.kernels.windows.session.growing.firings`).

A session has a number ``n``, rows ``r``, of which ``u`` are told by no firing, firings so far ``o``, whether its end was passed
``d``, where a user's trigger is asked the newest event time ``m``, and its partials; discarding, those of the ``u`` rows. A
result is kept if rows came to its session ``n`` after it; without such rows what stands is the session itself.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.grouping import Groups, group, key_hashes
from krishiv_py.arrays.intervals import components
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.aggregates.failed import failing_place
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.columns.place import place_of
from krishiv_py.kernels.firing.custom_trigger import WindowFacts
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results.contract import StepResult
from krishiv_py.kernels.results.state_table import StateTables
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.expired_keys import DeadKeys, removed
from krishiv_py.kernels.state.keyed_log import HASH
from krishiv_py.kernels.state.store import WRITTEN, Bucket
from krishiv_py.kernels.windows.session.growing.assigned_rows import SessionElements, Tracks, follow
from krishiv_py.kernels.windows.session.growing.firings import RowReplay, Sessions, TrackFirings, finished, value_schema
from krishiv_py.kernels.windows.session.growing.lines import WrittenLines, lines, withdrawn_by
from krishiv_py.kernels.windows.session.key_timers import Early, VisitingOperator, Visits
from krishiv_py.kernels.windows.session.keyed_state import DONE, HELD, NUMBER, OFTEN, STANDING, UNDER, EntryLog, KeyEntries
from krishiv_py.kernels.windows.session.rows import END, KIND, SEQ
from krishiv_py.plan.durations import UNSET

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
        content = pick(s.partials, pa.array(s.at, mask=s.at < 0))
        noted = {**numbers, PENDING: s.pending, OFTEN: s.often, DONE: s.done}
        return self.entries(keys, {**noted, **{name: content[name] for name in self.partials.names}}, HELD, seq)

    def standing(self, keys: pa.Table, numbers: dict[str, Ints], values: pa.Table, seq: int) -> pa.Table:
        """Entries of results that stand."""
        return self.entries(keys, {**numbers, **{name: values[name] for name in self.values.names}}, STANDING, seq)


def session_arrays(entries: pa.Table, partials: pa.Schema, *, discarding: bool) -> Sessions:
    """Return what the entries of sessions say."""
    pending = entries[PENDING].to_numpy()
    at = np.arange(entries.num_rows)
    return Sessions(
        pending,
        entries[OFTEN].to_numpy(),
        np.array(entries[DONE].to_numpy(), np.bool_),
        entries.select(partials.names),
        np.where(pending > 0, at, -1) if discarding else at,
    )


class TriggeredSessionOperator(VisitingOperator):
    """See the module's docstring."""

    entries: Totals

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        self.entries = Totals(self.layout, values=self.retract, newest=self.custom_trigger is not None)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        rows = pa.concat_tables([self.layout.row_schema.empty_table(), *chunks])
        return _Step(self, bucket, moment).run(rows)

    def state(self, bucket: Bucket) -> pa.Table:
        """See ``WindowOperator``; when discarding, what came since the last firing."""
        found = self.entries.page(self.log(bucket).written()).held
        if self.discarding:
            found = found.filter(pa.array(found[PENDING].to_numpy() > 0))
        opened = StateTables(self.layout)
        if not found.num_rows:
            return opened.empty()
        partials = [column.combine_chunks() for column in found.select(self.entries.partials.names).columns]
        return opened.table(found, found[WRITTEN].to_numpy(), partials, found[TIME].to_numpy(), found[END].to_numpy())

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.wrappers.ttl.KeyDropping`; counts sessions that had not ended."""
        return _Step(self, bucket, moment).drop(DeadKeys.of(dead, self.layout.key_names))


@attrs.frozen(eq=False)
class _Open:
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
class _After:
    """Firings after the last row: by session whether, when and why."""

    fires: Mask
    moments: Ints
    panes: npt.NDArray[np.str_]


class _Step(Visits):
    """One bucket in one micro-batch."""

    def __init__(self, operator: TriggeredSessionOperator, bucket: Bucket, moment: Moment) -> None:
        super().__init__(operator, bucket, moment)
        self.op = operator

    def drop(self, dead: DeadKeys) -> int:
        """Take keys out of state. Returns how many sessions had not ended."""
        gone = self.op.entries.page(removed(self.log, self.timers, dead)).held
        return int(np.count_nonzero(gone[END].to_numpy() > self.watermark_us))

    def visit(self, hashes: Ints, chunk: pa.Table, *, due: bool = False, early: Early = "none") -> pa.Table:
        """See :class:`Visits`."""
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
            self.op.layout,
            rows,
            held,
            tracks,
            trigger=self.trigger,
            watermark_us=self.watermark_us,
            discarding=self.op.discarding,
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
        """See :class:`Visits`."""
        return (components(groups, starts, ends, touching=self.op.rows.touching).row_ends <= self.horizon)[n_held:]

    def _custom_fires(self, heads: pa.Table, e: SessionElements, t: Tracks, s: Sessions, now: _Open, *, came: bool) -> Mask:
        """Sessions that changed, or that rows came to, and fire early: all of them, unless a user's trigger is asked."""
        changed: Mask = (now.ends > self.watermark_us) & (s.pending[now.tracks] > 0)
        if self.question is None:
            return changed
        assert now.newest is not None
        keys = pick(heads, e.groups[t.first[now.tracks]])
        counts = now.rows, s.pending[now.tracks], s.often[now.tracks], now.newest
        windows = WindowFacts(keys, now.starts, now.ends, *counts)
        return self.question.chosen(windows, changed & now.came if came else changed, of=keys[HASH].to_numpy())

    def _after(self, now: _Open, s: Sessions, n_rows: int, *, due: bool, early: Mask | None) -> _After:
        """Return what fires once all rows have come; notes of sessions whether their end was passed with a firing."""
        complete = now.ends <= self.watermark_us
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
        return _After(fires & pending if self.op.discarding else fires, moments, panes)

    def _results_of(
        self,
        page: KeyEntries,
        heads: pa.Table,
        e: SessionElements,
        t: Tracks,
        s: Sessions,
        f: TrackFirings,
        now: _Open,
        after: _After,
    ) -> pa.Table:
        """Results, while the keys are written again."""
        at = np.flatnonzero(after.fires)
        track = now.tracks[at]
        with failing_place(
            lambda n: place_of(
                self.op.layout.spec, heads, int(e.groups[t.first[track[n]]]), (int(now.starts[at[n]]), int(now.ends[at[n]]))
            )
        ):
            made = finished(self.op.layout, pick(s.partials, s.at[track]))
        old = self._standing(page)
        n_rows = len(t.of_row)
        results = WrittenLines(
            old.n_old,
            np.concatenate([old.tracks, f.tracks, track]),
            np.concatenate([old.rows, f.rows, np.full(len(at), n_rows)]),
            np.concatenate([old.starts, t.starts[f.rows], now.starts[at]]),
            np.concatenate([old.ends, t.ends[f.rows], now.ends[at]]),
            pa.concat_tables([old.values, f.values, made]),
            np.concatenate([old.moments, f.rows, after.moments[at]]),
            np.concatenate([old.panes, np.where(f.late, "late", "early"), after.panes[at]]),
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
        with failing_place(lambda n: place_of(self.op.layout.spec, own, n)):
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
        t: Tracks,
        s: Sessions,
        now: _Open,
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
            under = np.full(t.n, -1, np.int64)
            under[owner[untouched]] = base + untouched  # of a session without rows since, the only one
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
            np.where(s.pending[track] > 0, s.at[track], -1) if self.op.discarding else s.at[track],
        )
        written = [entries.sessions(pick(heads, groups), numbers, content, seq), *kept]
        waits = (now.ends <= self.watermark_us) & (s.pending[now.tracks] > 0)
        armed = self.arm(page.marks, heads, self.coming(now.ends[open_], waits[open_], groups, heads.num_rows))
        self.log.append(pa.concat_tables([*written, entries.marks(heads, armed, seq)]))


def _open(e: SessionElements, t: Tracks, held_newest: Ints | None) -> _Open:
    """The sessions that the tracks have come to; `held_newest` has the newest event time of each that is held."""
    starts, ends = e.starts[t.first], e.ends[t.first]
    starts[t.of_row], ends[t.of_row] = t.starts, t.ends  # of several writes to one place the last one stands
    root = np.arange(t.n)
    for level in range(int(t.level.max(initial=0)), -1, -1):  # what ended in a track was of a lower level
        ended = np.flatnonzero((t.into >= 0) & (t.level == level))
        root[ended] = root[t.of_row[t.into[ended]]]
    rows = np.zeros(t.n, np.int64)
    np.add.at(rows, root, np.where(t.first < e.n_held, e.rows[t.first], 0))
    np.add.at(rows, root[t.of_row], 1)
    came = np.zeros(t.n, np.bool_)
    came[root[t.of_row]] = True
    final = np.flatnonzero(t.into < 0)
    newest = None
    if held_newest is not None:
        newest = np.full(t.n, UNSET)
        held = np.flatnonzero(t.first < e.n_held)
        np.maximum.at(newest, root[held], held_newest[t.first[held]])
        np.maximum.at(newest, root[t.of_row], e.starts[e.n_held :])
        newest = newest[final]
    return _Open(final, starts[final], ends[final], rows[final], came[final], newest)
