"""Session windows with a longest duration and triggers or discarding accumulation (SEMANTICS §3.3, §5).

Rows are kept until their session is closed, in a log by key (:mod:`~krishiv_py.kernels.windows.session.book`). A key is looked
at when rows of it come and when one of its sessions is due, and is then written anew; a queue of small entries says when that
is.

Cost of a batch: proportional to the rows held for the keys it brings and for those that are due. Triggers that count rows let
rows come in pieces (:mod:`~krishiv_py.kernels.windows.session.capped.pieces`): rows in order of time at once, and a row that
divides sessions anew in a round of its own, over the rows held for the keys that take part in it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_py.kernels.arrays.grouping import Groups, group
from krishiv_py.kernels.arrays.sorting import sorted_unique
from krishiv_py.kernels.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.results.contract import StepResult
from krishiv_py.kernels.results.emit import Emitter
from krishiv_py.kernels.results.refused import refused_rows
from krishiv_py.kernels.results.state_table import Opened
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.dead_keys import DeadKeys
from krishiv_py.kernels.state.keyed_log import HASH, KeyedLog
from krishiv_py.kernels.state.store import ChunkStore, Meta
from krishiv_py.kernels.windows.session.book import DONE, OFTEN, UNDER, WRITTEN, Book, Page
from krishiv_py.kernels.windows.session.capped.bench import Bench
from krishiv_py.kernels.windows.session.capped.ledger import Cut, RowState
from krishiv_py.kernels.windows.session.capped.walk import Limits
from krishiv_py.kernels.windows.session.rows import END, SessionRows
from krishiv_py.kernels.windows.session.trail import Contents, Results, written
from krishiv_py.kernels.windows.session.visits import Visits
from krishiv_py.plan.durations import END_OF_TIME


class CappedTriggeredOperator:
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.layout = Layout(spec)
        self.rows = SessionRows(self.layout)
        self.book = Book(self.layout)
        self.emitter = Emitter(self.layout)
        assert self.rows.window.max_duration_us is not None
        self.limits = Limits(self.rows.window.max_duration_us, self.rows.touching)
        self.lateness_us = spec.options.allowed_lateness_us
        self.trigger = spec.options.trigger
        self.discarding = spec.options.accumulation == "discarding"
        self.retract = spec.options.emit_mode == "retractions" and not self.discarding

    def combine(self, rows: pa.Table) -> pa.Table:
        """Rows as they are: each may make a session fire, or be refused."""
        return rows

    @property
    def entries(self) -> Book:
        """What the log is made of."""
        return self.book

    def step(
        self, store: ChunkStore, meta: Meta, chunks: list[pa.Table], watermark_us: int, now_us: int | None = None
    ) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        rows = pa.concat_tables([self.layout.row_schema.empty_table(), *chunks])
        return _Step(self, store, meta, watermark_us).run(rows, now_us)

    def state(self, store: ChunkStore, meta: Meta) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        rows = self.book.page(KeyedLog(store, meta, "k", self.book.schema, self.book.compact).written()).rows
        keys = group([rows[k] for k in self.layout.key_names], rows.num_rows)
        sessions = self.limits.sessions(keys.ids, rows[TIME].to_numpy(), rows[END].to_numpy())
        return Opened(self.layout).created(rows, sessions.ids, sessions.starts, sessions.ends)

    def drop_keys(self, store: ChunkStore, meta: Meta, dead: pa.Table, watermark_us: int) -> int:
        """See :class:`~krishiv_py.kernels.wrappers.ttl.KeyDropping`; counts sessions that had not ended."""
        return _Step(self, store, meta, watermark_us).drop(DeadKeys.of(dead, self.layout.key_names))


class _Step(Visits):
    """One bucket in one micro-batch."""

    def __init__(self, operator: CappedTriggeredOperator, store: ChunkStore, meta: Meta, watermark_us: int) -> None:
        super().__init__(operator, store, meta, watermark_us)
        self.op = operator

    def drop(self, dead: DeadKeys) -> int:
        """Take keys out of state; their timers will find nothing. Returns how many sessions had not ended."""
        rows = self.op.book.page(self.log.remove(dead.hashes, dead.rows)).rows
        keys = group([rows[k] for k in dead.names], rows.num_rows)
        sessions = self.op.limits.sessions(keys.ids, rows[TIME].to_numpy(), rows[END].to_numpy())
        return int(np.count_nonzero(sessions.ends > self.watermark_us))

    def visit(self, hashes: Ints, chunk: pa.Table, *, due: bool = False, interval: bool = False) -> pa.Table:
        """See :class:`Visits`."""
        book = self.op.book
        held = self.log.lookup(hashes)
        if not held.num_rows and not chunk.num_rows:  # keys whose time to live has passed
            return self.op.emitter.concat([])
        page = book.page(held)
        self.meta["seq"] = seq = self.meta.get("seq", 0) + 1
        rows = self._judge(page.rows, chunk)
        first: int = self.meta.get("rows", 0)
        self.meta["rows"] = first + rows.num_rows
        table = pa.concat_tables([page.rows, book.fresh(rows, self.op.rows.ends(rows), seq, first)])
        names = [HASH, *self.op.layout.key_names]
        everyone = pa.concat_tables([table.select(names), page.standing.select(names), page.marks.select(names)])
        keys = group(list(everyone.columns[1:]), everyone.num_rows)
        bench = self._bench(table, page.standing, keys)
        if rows.num_rows and self.trigger.row_by_row:
            bench.one_by_one(page.rows.num_rows, self.watermark_us)
        cut = bench.cut(np.ones(keys.n, np.bool_))
        moment = np.full(cut.sessions.n, table.num_rows)
        complete = cut.sessions.ends <= self.watermark_us
        if rows.num_rows:
            bench.tick_off(cut, ~complete, done=False)
            if self.trigger.late == "batch":
                self._late_batch(bench, cut, complete, page.rows.num_rows, moment)
        if due and self.trigger.late == "watermark":
            known = complete & cut.where(bench.state.done)
            bench.fire(cut, known & ((bench.pending(cut) > 0) | bench.revised(cut)), np.full(cut.sessions.n, "late"), moment)
        self._on_watermark(bench, cut, complete, moment + 1)
        if interval:
            changed = ~complete & ((bench.pending(cut) > 0) | bench.revised(cut))
            bench.fire(cut, changed, np.full(cut.sessions.n, "early"), moment + 2)
        stands = bench.state.stands
        contents = bench.contents.table(sorted_unique(stands[stands >= 0]) if self.op.retract else stands[:0])
        heads = everyone.take(pa.array(keys.first))
        self._record(bench, cut, complete, table, page, heads, contents, seq)
        return written(self.op.emitter, heads, bench.results, contents, bench.lines)

    def _bench(self, table: pa.Table, standing: pa.Table, keys: Groups) -> Bench:
        n, m = table.num_rows, standing.num_rows
        numbers = standing[UNDER].to_numpy()
        under = table[UNDER].to_numpy()
        stands = np.where(under < 0, -1, np.searchsorted(numbers, under))
        fired, done = (np.array(table[name].to_numpy(), np.bool_) for name in (WRITTEN, DONE))
        often = np.array(table[OFTEN].to_numpy())
        state = RowState(keys.ids[:n], table[TIME].to_numpy(), table[END].to_numpy(), fired, done, often, stands)
        old = Results(standing[TIME].to_numpy(), standing[END].to_numpy(), standing[OFTEN].to_numpy(), keys.ids[n : n + m])
        contents = Contents(self.op.layout, table, standing.select(self.op.book.partials), known=self.op.retract)
        return Bench(state, self.op.limits, self.trigger, old, contents, discarding=self.op.discarding, retract=self.op.retract)

    def _judge(self, held: pa.Table, rows: pa.Table) -> pa.Table:
        """Rule "window": refuse rows of closed sessions. Taking one away can move a session, so look until nothing changes."""
        times = rows[TIME].to_numpy()
        if not self.op.rows.by_window or not (times < self.horizon).any():
            return rows
        names = self.op.layout.key_names
        n = held.num_rows
        both = [pa.chunked_array([*held[k].chunks, *rows[k].chunks], rows[k].type) for k in names]
        keys = group(list(both), n + rows.num_rows)
        starts = np.concatenate([held[TIME].to_numpy(), times])
        ends = np.concatenate([held[END].to_numpy(), self.op.rows.ends(rows)])
        open_ = np.ones(len(starts), np.bool_)
        while True:
            at = np.flatnonzero(open_)
            sessions = self.op.limits.sessions(keys.ids[at], starts[at], ends[at])
            shut = at[sessions.ends[sessions.ids] <= self.horizon]
            shut = shut[shut >= n]
            if not len(shut):
                break
            open_[shut] = False
        refused = ~open_[n:]
        if refused.any():
            self.late = refused_rows(self.op.layout, rows, times, refused, self.watermark_us)
        return rows.filter(pa.array(~refused))

    def _late_batch(self, bench: Bench, cut: Cut, complete: Mask, fresh: int, moment: Ints) -> None:
        """Once per batch, complete sessions that it changed; without an on-time firing others may wait for rows of theirs."""
        came = np.arange(len(bench.state.starts)) >= fresh
        pending = (bench.pending(cut) > 0) & (cut.where(came) | self.trigger.on_time)
        fires = complete & (pending | bench.revised(cut))
        bench.fire(cut, fires, np.full(cut.sessions.n, "late"), moment)
        bench.tick_off(cut, fires)

    def _on_watermark(self, bench: Bench, cut: Cut, complete: Mask, moment: Ints) -> None:
        passed = complete & ~cut.where(bench.state.done)
        bench.tick_off(cut, passed)
        if not self.trigger.on_time:
            return
        if self.op.retract:
            passed &= ~bench.standing(cut)
        bench.fire(cut, passed, np.full(cut.sessions.n, "on_time"), moment)

    def _record(
        self, bench: Bench, cut: Cut, complete: Mask, table: pa.Table, page: Page, heads: pa.Table, contents: pa.Table, seq: int
    ) -> None:
        """Write the keys anew without closed sessions; see that each is looked at in time."""
        book, s = self.op.book, bench.state
        open_ = cut.sessions.ends > self.horizon
        kept = cut.at[open_[cut.sessions.ids]]
        stands = s.stands[kept]
        numbers = sorted_unique(stands[stands >= 0])
        base: int = self.meta.get("results", 0)
        self.meta["results"] = base + len(numbers)
        under = np.where(stands < 0, -1, base + np.searchsorted(numbers, stands))
        rows = book.rewritten(table.take(pa.array(kept)), seq, s.fired[kept], s.done[kept], s.often[kept], under)
        r = bench.results
        of_result = heads.take(pa.array(r.groups[numbers]))
        kept_contents = contents.take(pa.array(numbers)) if self.op.retract else None
        standing = book.standing(
            of_result, r.starts[numbers], r.ends[numbers], r.counts[numbers], base + np.arange(len(numbers)), kept_contents, seq
        )
        moment = cut.sessions.ends + np.where(complete, self.op.lateness_us, 0)
        if self.trigger.late == "watermark":
            waits = complete & ((bench.pending(cut) > 0) | bench.revised(cut))
            moment = np.where(waits, min(self.watermark_us + 1, END_OF_TIME), moment)
        coming = np.full(heads.num_rows, END_OF_TIME)
        np.minimum.at(coming, cut.groups[open_], moment[open_])
        armed = self.arm(page.marks, heads, coming)
        self.log.append(pa.concat_tables([rows, standing, book.marks(heads, armed, seq)]))
