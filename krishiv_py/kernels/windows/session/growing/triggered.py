"""Session windows with triggers or discarding accumulation, without a longest duration (SEMANTICS §3.3, §5).

Such sessions only grow and join, so of each its totals are kept (:mod:`~krishiv_py.kernels.windows.session.growing.totals`),
not its rows. A key is looked at when rows of it come and when one of its sessions is due, and is then written anew.

Cost of a batch: proportional to the rows it brings and to the open sessions of the keys it brings and of those that are due,
however many rows these hold. Triggers that count rows follow the rows of a batch along the sessions they fall into
(:mod:`~krishiv_py.kernels.windows.session.growing.tracks`) and cumulate aggregates on the way
(:mod:`~krishiv_py.kernels.windows.session.growing.firings`).
"""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.kernels.aggregates.failed import told_where
from krishiv_py.kernels.arrays.grouping import Groups, group, key_hashes
from krishiv_py.kernels.arrays.intervals import components
from krishiv_py.kernels.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.columns.place import place_of
from krishiv_py.kernels.results.contract import StepResult
from krishiv_py.kernels.results.emit import Emitter
from krishiv_py.kernels.results.refused import refused_rows
from krishiv_py.kernels.results.state_table import Opened
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.dead_keys import DeadKeys
from krishiv_py.kernels.state.keyed_log import HASH, KeyedLog
from krishiv_py.kernels.state.store import WRITTEN, ChunkStore, Meta
from krishiv_py.kernels.windows.session.book import UNDER
from krishiv_py.kernels.windows.session.growing.firings import Firings, Play, Sessions, finished, value_schema
from krishiv_py.kernels.windows.session.growing.lines import Results, lines, withdrawn_by
from krishiv_py.kernels.windows.session.growing.totals import ID, PENDING, ROWS, Page, Totals, session_arrays
from krishiv_py.kernels.windows.session.growing.tracks import Elements, Tracks, follow
from krishiv_py.kernels.windows.session.rows import END, SessionRows
from krishiv_py.kernels.windows.session.visits import Visits
from krishiv_py.plan.durations import END_OF_TIME


class TriggeredSessionOperator:
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.layout = Layout(spec)
        self.rows = SessionRows(self.layout)
        self.emitter = Emitter(self.layout)
        self.lateness_us = spec.options.allowed_lateness_us
        self.trigger = spec.options.trigger
        self.discarding = spec.options.accumulation == "discarding"
        self.retract = spec.options.emit_mode == "retractions" and not self.discarding
        self.entries = Totals(self.layout, values=self.retract)

    def combine(self, rows: pa.Table) -> pa.Table:
        """Rows as they are: each may make a session fire, or be refused."""
        return rows

    def step(
        self, store: ChunkStore, meta: Meta, chunks: list[pa.Table], watermark_us: int, now_us: int | None = None
    ) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        rows = pa.concat_tables([self.layout.row_schema.empty_table(), *chunks])
        return _Step(self, store, meta, watermark_us).run(rows, now_us)

    def state(self, store: ChunkStore, meta: Meta) -> pa.Table:
        """See ``WindowOperator``; when discarding, what came since the last firing."""
        found = self.entries.page(KeyedLog(store, meta, "k", self.entries.schema, self.entries.compact).written()).sessions
        if self.discarding:
            found = found.filter(pa.array(found[PENDING].to_numpy() > 0))
        opened = Opened(self.layout)
        if not found.num_rows:
            return opened.empty()
        partials = [column.combine_chunks() for column in found.select(self.entries.partials.names).columns]
        return opened.table(found, found[WRITTEN].to_numpy(), partials, found[TIME].to_numpy(), found[END].to_numpy())

    def drop_keys(self, store: ChunkStore, meta: Meta, dead: pa.Table, watermark_us: int) -> int:
        """See :class:`~krishiv_py.kernels.wrappers.ttl.KeyDropping`; counts sessions that had not ended."""
        keys = DeadKeys.of(dead, self.layout.key_names)
        gone = KeyedLog(store, meta, "k", self.entries.schema, self.entries.compact).remove(keys.hashes, keys.rows)
        return int(np.count_nonzero(self.entries.page(gone).sessions[END].to_numpy() > watermark_us))


@attrs.frozen(eq=False)
class _Open:
    """The sessions of the keys looked at, after the rows that came: their tracks, bounds, rows, and which rows came to."""

    tracks: Ints
    starts: Ints
    ends: Ints
    rows: Ints
    came: Mask


@attrs.frozen(eq=False)
class _After:
    """Firings after the last row: by session whether, when and why."""

    fires: Mask
    moments: Ints
    panes: npt.NDArray[np.str_]


class _Step(Visits):
    """One bucket in one micro-batch."""

    def __init__(self, operator: TriggeredSessionOperator, store: ChunkStore, meta: Meta, watermark_us: int) -> None:
        super().__init__(operator, store, meta, watermark_us)
        self.op = operator

    def visit(self, hashes: Ints, chunk: pa.Table, *, due: bool = False, interval: bool = False) -> pa.Table:
        """See :class:`Visits`."""
        entries = self.log.lookup(hashes)
        if not entries.num_rows and not chunk.num_rows:  # keys whose time to live has passed
            return self.op.emitter.concat([])
        page = self.op.entries.page(entries)
        self.meta["seq"] = self.meta.get("seq", 0) + 1
        rows = self._judge(page.sessions, chunk)
        everyone, keys = self._keys(page, rows)
        elements = self._elements(page.sessions, rows, keys)
        tracks = follow(elements, touching=self.op.rows.touching)
        held = session_arrays(page.sessions, self.op.entries.partials, discarding=self.op.discarding)
        play = Play(
            self.op.layout,
            rows,
            held,
            tracks,
            trigger=self.trigger,
            watermark_us=self.watermark_us,
            discarding=self.op.discarding,
        )
        sessions, firings = play.run()
        now = _open(elements, tracks)
        after = self._after(now, sessions, rows.num_rows, due=due, interval=interval)
        heads = everyone.take(pa.array(keys.first))
        return self._told(page, heads, elements, tracks, sessions, firings, now, after)

    def _keys(self, page: Page, rows: pa.Table) -> tuple[pa.Table, Groups]:
        """Hash and key of sessions, rows and marks, and their groups."""
        names = self.op.layout.key_names
        hashes = key_hashes([rows[k] for k in names], rows.num_rows)
        fresh = rows.select(names).add_column(0, HASH, pa.array(hashes))
        everyone = pa.concat_tables([page.sessions.select([HASH, *names]), fresh, page.marks.select([HASH, *names])])
        return everyone, group(list(everyone.columns[1:]), everyone.num_rows)

    def _elements(self, held: pa.Table, rows: pa.Table, keys: Groups) -> Elements:
        n, m = held.num_rows, rows.num_rows
        first: int = self.meta.get("rows", 0)
        self.meta["rows"] = first + m
        starts = np.concatenate([held[TIME].to_numpy(), rows[TIME].to_numpy()])
        ends = np.concatenate([held[END].to_numpy(), self.op.rows.ends(rows)])
        ids = np.concatenate([held[ID].to_numpy(), first + np.arange(m)])
        return Elements(keys.ids[: n + m], starts, ends, np.append(held[ROWS].to_numpy(), np.ones(m, np.int64)), ids, n)

    def _judge(self, held: pa.Table, rows: pa.Table) -> pa.Table:
        """Rule "window": refuse rows that end up in a closed session."""
        times = rows[TIME].to_numpy()
        if not self.op.rows.by_window or not (times < self.horizon).any():
            return rows
        both = [pa.chunked_array([*held[k].chunks, *rows[k].chunks], rows[k].type) for k in self.op.layout.key_names]
        keys = group(list(both), held.num_rows + rows.num_rows)
        starts = np.concatenate([held[TIME].to_numpy(), times])
        ends = np.concatenate([held[END].to_numpy(), self.op.rows.ends(rows)])
        sessions = components(keys.ids, starts, ends, touching=self.op.rows.touching)
        refused = (sessions.ends[sessions.ids] <= self.horizon)[held.num_rows :]
        if not refused.any():
            return rows
        self.late = refused_rows(self.op.layout, rows, times, refused, self.watermark_us)
        return rows.filter(pa.array(~refused))

    def _after(self, now: _Open, s: Sessions, n_rows: int, *, due: bool, interval: bool) -> _After:
        """What fires once all rows have come; notes of sessions whether their end was passed with a firing."""
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
        early = ~complete & pending & interval
        panes[early], moments[early] = "early", n_rows + 2
        fires = late | on_time | early
        return _After(fires & pending if self.op.discarding else fires, moments, panes)

    def _told(
        self, page: Page, heads: pa.Table, e: Elements, t: Tracks, s: Sessions, f: Firings, now: _Open, after: _After
    ) -> pa.Table:
        """Results, while the keys are written anew."""
        at = np.flatnonzero(after.fires)
        track = now.tracks[at]
        with told_where(
            lambda n: place_of(
                self.op.layout.spec, heads, int(e.groups[t.first[track[n]]]), (int(now.starts[at[n]]), int(now.ends[at[n]]))
            )
        ):
            made = finished(self.op.layout, s.partials.take(pa.array(s.at[track])))
        old = self._standing(page)
        n_rows = len(t.of_row)
        results = Results(
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
        keys = heads.take(pa.array(e.groups[t.first[results.tracks]]))
        table = lines(self.op.emitter, keys, results, by)
        self._record(page, heads, e, t, s, now, results, by, owner)
        return table

    def _standing(self, page: Page) -> Results:
        """Results that may be withdrawn: those kept, and every session that no row has come to since it fired."""
        sessions = page.sessions
        if not self.op.retract:
            none = np.empty(0, np.int64)
            return Results(0, none, none, none, none, value_schema(self.op.layout).empty_table(), none, np.empty(0, "U1"), none)
        whole = np.flatnonzero(sessions[PENDING].to_numpy() == 0)
        own = sessions.take(pa.array(whole))
        with told_where(lambda n: place_of(self.op.layout.spec, own, n)):
            values = finished(self.op.layout, own.select(self.op.entries.partials.names))
        ids = sessions[ID].to_numpy()
        numbers = np.concatenate([own[UNDER].to_numpy(), page.standing[UNDER].to_numpy()])
        order = np.argsort(numbers)
        tracks = np.concatenate([whole, np.searchsorted(ids, page.standing[ID].to_numpy())])[order]
        starts, ends = (np.concatenate([own[n].to_numpy(), page.standing[n].to_numpy()])[order] for n in (TIME, END))
        content = pa.concat_tables([values, page.standing.select(values.column_names)]).take(pa.array(order))
        nothing = np.zeros(len(order), np.int64)
        return Results(len(order), tracks, nothing - 1, starts, ends, content, numbers[order], np.full(len(order), ""), nothing)

    def _record(
        self,
        page: Page,
        heads: pa.Table,
        e: Elements,
        t: Tracks,
        s: Sessions,
        now: _Open,
        r: Results,
        by: Ints | None,
        owner: Ints,
    ) -> None:
        """Write the keys anew without closed sessions; see that each is looked at in time."""
        entries, seq = self.op.entries, self.meta["seq"]
        open_ = now.ends > self.horizon
        track = now.tracks[open_]
        groups = e.groups[t.first[track]]
        numbers = {TIME: now.starts[open_], END: now.ends[open_], ROWS: now.rows[open_], ID: e.ids[t.first[track]]}
        kept = []
        if by is not None:
            base: int = self.meta.get("results", 0)
            self.meta["results"] = base + len(r.tracks)
            stands = np.flatnonzero(by < 0)
            under = np.full(t.n, -1, np.int64)
            under[owner[stands]] = base + stands  # of a session without rows since, the only one
            numbers[UNDER] = under[track]
            is_open = np.zeros(t.n, np.bool_)
            is_open[track] = s.pending[track] > 0
            stands = stands[is_open[owner[stands]]]
            of = e.groups[t.first[r.tracks[stands]]]
            told = {TIME: r.starts[stands], END: r.ends[stands], UNDER: base + stands, ID: e.ids[t.first[owner[stands]]]}
            values = r.values.take(pa.array(stands))
            kept.append(entries.standing(heads.take(pa.array(of)), told, values, seq))
        content = Sessions(
            s.pending[track],
            s.often[track],
            s.done[track],
            s.partials,
            np.where(s.pending[track] > 0, s.at[track], -1) if self.op.discarding else s.at[track],
        )
        written = [entries.sessions(heads.take(pa.array(groups)), numbers, content, seq), *kept]
        armed = self.arm(page.marks, heads, self._coming(now, s, open_, groups, heads.num_rows))
        self.log.append(pa.concat_tables([*written, entries.marks(heads, armed, seq)]))

    def _coming(self, now: _Open, s: Sessions, open_: Mask, groups: Ints, n: int) -> Ints:
        """When each key is to be looked at again."""
        complete = now.ends <= self.watermark_us
        moment = now.ends + np.where(complete, self.op.lateness_us, 0)
        if self.trigger.late == "watermark":
            waits = complete & (s.pending[now.tracks] > 0)
            moment = np.where(waits, min(self.watermark_us + 1, END_OF_TIME), moment)
        coming = np.full(n, END_OF_TIME)
        np.minimum.at(coming, groups, moment[open_])
        return coming


def _open(e: Elements, t: Tracks) -> _Open:
    """The sessions that the tracks have come to."""
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
    return _Open(final, starts[final], ends[final], rows[final], came[final])
