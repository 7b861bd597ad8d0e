"""Session windows with a longest duration and triggers or discarding accumulation (SEMANTICS §3.3, §5).

Rows are kept until their session is closed, in a log by key. A key is looked at when rows of it come and when one of its
sessions is due, and is then written again; a queue of small entries says when that is.

Cost of a batch: proportional to the rows held for the keys it brings and for those that are due. Triggers that count rows let
rows come in pieces (:mod:`~krishiv_py.kernels.windows.session.capped.plain`): rows in order of time at once, and
a row that divides sessions again in a round of its own, over the rows held for the keys that take part in it.

A row spans its time and its reach. It keeps whether it was part of a firing (``f``) or of a session that had its watermark
firing or a late one (``d``), how often its session fired (``o``), and the result it belongs to (``i``). A result keeps how
many rows it is made of (``o``), and what it may take to withdraw it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import Groups, group, key_hashes
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.sorting import sorted_unique
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import GAP, TIME, Layout
from krishiv_py.kernels.firing.custom_trigger import Question, WindowFacts
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results import StateTables, StepResult, over_in_turn
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.expired_keys import DeadKeys, removed
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import HASH
from krishiv_py.kernels.windows.session.capped.firing_layout import SessionLedger
from krishiv_py.kernels.windows.session.capped.log import Limits
from krishiv_py.kernels.windows.session.capped.written_results import Cut, RowState
from krishiv_py.kernels.windows.session.key_timers import Early, VisitingOperator, Visits
from krishiv_py.kernels.windows.session.keyed_state import DONE, HELD, NUMBER, OFTEN, STANDING, UNDER, EntryLog, KeyEntries
from krishiv_py.kernels.windows.session.rows import END, KIND, SEQ, Contents, NumberedResults, written
from krishiv_py.plan.durations import UNSET

WRITTEN: Final = "f"
_PLAIN: Final = {HASH: 0, SEQ: 0, NUMBER: 0, TIME: 0, END: 0, OFTEN: 0, UNDER: -1, KIND: 0, WRITTEN: False, DONE: False}


class RowLog(EntryLog):
    """Entries of rows and of results with their partials."""

    def __init__(self, layout: Layout) -> None:
        self.inputs = [n for n in layout.row_schema.names if n not in (TIME, GAP) and n[0] == "a"]
        self.partials = [f.name for f in layout.partial_fields]
        super().__init__(layout, _PLAIN, [*(layout.row_schema.field(n) for n in self.inputs), *layout.partial_fields])

    def fresh(self, rows: pa.Table, reaches: Ints, seq: int, first: int) -> pa.Table:
        """Entries of working rows, numbered from `first` in order of arrival."""
        n, names = rows.num_rows, self.layout.key_names
        keys = rows.select(names).add_column(0, HASH, pa.array(key_hashes([rows[k] for k in names], n)))
        columns = {TIME: rows[TIME], NUMBER: first + np.arange(n), END: reaches, **{name: rows[name] for name in self.inputs}}
        return self.entries(keys, columns, HELD, seq)

    def standing(
        self, keys: pa.Table, starts: Ints, ends: Ints, rows: Ints, numbers: Ints, contents: pa.Table | None, seq: int
    ) -> pa.Table:
        """Entries of results; `keys` has hash and key of each, `contents` what it may take to withdraw it."""
        columns = {TIME: starts, END: ends, OFTEN: rows, UNDER: numbers}
        content = {} if contents is None else {name: contents[name] for name in self.partials}
        return self.entries(keys, {**columns, **content}, STANDING, seq)

    def rewritten(self, rows: pa.Table, seq: int, fired: Mask, done: Mask, often: Ints, under: Ints) -> pa.Table:
        """Rows with what has become of them."""
        noted = {WRITTEN: fired, DONE: done, OFTEN: often, UNDER: under}
        kept = {name: rows[name] for name in (NUMBER, TIME, END, *self.inputs, *self.partials)}
        return self.entries(rows, {**kept, **noted}, HELD, seq)


class CappedTriggeredOperator(VisitingOperator):
    """See the module's docstring."""

    entries: RowLog

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        self.entries = RowLog(self.layout)
        assert self.rows.window.max_duration_us is not None
        self.limits = Limits(self.rows.window.max_duration_us, self.rows.touching)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        rows = pa.concat_tables([self.layout.row_schema.empty_table(), *chunks])
        return _Step(self, bucket, moment).run(rows)

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        rows = self.entries.page(self.log(bucket).written()).held
        keys = group([rows[k] for k in self.layout.key_names], rows.num_rows)
        sessions = self.limits.sessions(keys.ids, rows[TIME].to_numpy(), rows[END].to_numpy())
        return StateTables(self.layout).created(rows, sessions.ids, sessions.starts, sessions.ends)

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.wrappers.ttl.KeyDropping`; counts sessions that had not ended."""
        return _Step(self, bucket, moment).drop(DeadKeys.of(dead, self.layout.key_names))


class _Step(Visits):
    """One bucket in one micro-batch."""

    def __init__(self, operator: CappedTriggeredOperator, bucket: Bucket, moment: Moment) -> None:
        super().__init__(operator, bucket, moment)
        self.op = operator

    def drop(self, dead: DeadKeys) -> int:
        """Take keys out of state. Returns how many sessions had not ended."""
        rows = self.op.entries.page(removed(self.log, self.timers, dead)).held
        keys = group([rows[k] for k in dead.names], rows.num_rows)
        sessions = self.op.limits.sessions(keys.ids, rows[TIME].to_numpy(), rows[END].to_numpy())
        return int(np.count_nonzero(sessions.ends > self.watermark_us))

    def visit(self, hashes: Ints, chunk: pa.Table, *, due: bool = False, early: Early = "none") -> pa.Table:
        """See :class:`Visits`."""
        entries = self.op.entries
        held = self.log.lookup(hashes)
        if not held.num_rows and not chunk.num_rows:  # keys whose time to live has passed
            return self.op.emitter.concat([])
        page = entries.page(held)
        self.numbers.seq = seq = self.numbers.seq + 1
        rows = self.without_late(page.held, chunk)
        first = self.numbers.rows
        self.numbers.rows += rows.num_rows
        table = pa.concat_tables([page.held, entries.fresh(rows, self.op.rows.ends(rows), seq, first)])
        names = [HASH, *self.op.layout.key_names]
        everyone = pa.concat_tables([table.select(names), page.standing.select(names), page.marks.select(names)])
        keys = group(list(everyone.columns[1:]), everyone.num_rows)
        ledger = self._ledger_of(table, page.standing, keys)
        if rows.num_rows and self.trigger._row_by_row:
            ledger.one_by_one(page.held.num_rows, self.watermark_us)
        cut = ledger.cut(np.ones(keys.n, np.bool_))
        moment = np.full(cut.sessions.n, table.num_rows)
        complete = cut.sessions.ends <= self.watermark_us
        if rows.num_rows:
            ledger.tick_off(cut, ~complete, done=False)
            if self.trigger.late == "batch":
                self._late_batch(ledger, cut, complete, page.held.num_rows, moment)
        if due and self.trigger.late == "watermark":
            known = complete & cut.where(ledger.state.done)
            ledger.fire(cut, known & ((ledger.pending(cut) > 0) | ledger.revised(cut)), np.full(cut.sessions.n, "late"), moment)
        self._on_watermark(ledger, cut, complete, moment + 1)
        if early != "none":
            waits = ~complete & ((ledger.pending(cut) > 0) | ledger.revised(cut))
            if early == "came":
                fresh = np.arange(table.num_rows) >= page.held.num_rows
                came = np.zeros(keys.n, np.bool_)
                came[ledger.state.groups[fresh]] = True
                waits &= cut.where(fresh) | (ledger.revised(cut) & came[cut.groups])
            fires = waits if self.question is None else self._answered(self.question, ledger, cut, everyone, keys, waits)
            ledger.fire(cut, fires, np.full(cut.sessions.n, "early"), moment + 2)
        under = ledger.state.under
        contents = ledger.contents.table(sorted_unique(under[under >= 0]) if self.op.retract else under[:0])
        heads = pick(everyone, keys.first)
        self._record(ledger, cut, complete, table, page, heads, contents, seq)
        return written(self.op.emitter, heads, ledger.results, contents)

    def _answered(
        self, question: Question, ledger: SessionLedger, cut: Cut, everyone: pa.Table, keys: Groups, waits: Mask
    ) -> Mask:
        """Sessions that changed and that a user's trigger lets fire."""
        sessions, row_places = cut.sessions, cut.at
        fired, newest = np.zeros(sessions.n, np.int64), np.full(sessions.n, UNSET)
        np.maximum.at(fired, sessions.ids, ledger.state.often[row_places])
        np.maximum.at(newest, sessions.ids, ledger.state.starts[row_places])
        rows = np.bincount(sessions.ids, minlength=sessions.n)
        heads = pick(everyone, keys.first[cut.groups])
        windows = WindowFacts(heads, sessions.starts, sessions.ends, rows, ledger.pending(cut), fired, newest)
        return question.chosen(windows, waits, of=heads[HASH].to_numpy())

    def _ledger_of(self, table: pa.Table, standing: pa.Table, keys: Groups) -> SessionLedger:
        n, m = table.num_rows, standing.num_rows
        numbers = standing[UNDER].to_numpy()
        under = table[UNDER].to_numpy()
        positions = np.where(under < 0, -1, np.searchsorted(numbers, under))
        fired, done = (np.array(table[name].to_numpy(), np.bool_) for name in (WRITTEN, DONE))
        often = np.array(table[OFTEN].to_numpy())
        state = RowState(keys.ids[:n], table[TIME].to_numpy(), table[END].to_numpy(), fired, done, often, positions)
        old = NumberedResults(
            standing[TIME].to_numpy(), standing[END].to_numpy(), standing[OFTEN].to_numpy(), keys.ids[n : n + m]
        )
        contents = Contents(self.op.layout, table, standing.select(self.op.entries.partials), known=self.op.retract)
        return SessionLedger(
            state, self.op.limits, self.trigger, old, contents, discarding=self.op.discarding, retract=self.op.retract
        )

    def closed(self, groups: Ints, starts: Ints, ends: Ints, n_held: int) -> Mask:
        """See :class:`Visits`; taking a row away can move a session."""

        def ends_of(rows: Ints) -> Ints:
            return self.op.limits.sessions(groups[rows], starts[rows], ends[rows]).row_ends

        return over_in_turn(ends_of, n_held, len(starts), self.horizon)

    def _late_batch(self, ledger: SessionLedger, cut: Cut, complete: Mask, fresh: int, moment: Ints) -> None:
        """Once per batch, complete sessions that it changed; without an on-time firing others may wait for rows of theirs."""
        came = np.arange(len(ledger.state.starts)) >= fresh
        pending = (ledger.pending(cut) > 0) & (cut.where(came) | self.trigger.on_time)
        fires = complete & (pending | ledger.revised(cut))
        ledger.fire(cut, fires, np.full(cut.sessions.n, "late"), moment)
        ledger.tick_off(cut, fires)

    def _on_watermark(self, ledger: SessionLedger, cut: Cut, complete: Mask, moment: Ints) -> None:
        passed = complete & ~cut.where(ledger.state.done)
        ledger.tick_off(cut, passed)
        if not self.trigger.on_time:
            return
        if self.op.retract:
            passed &= ~ledger.standing(cut)
        ledger.fire(cut, passed, np.full(cut.sessions.n, "on_time"), moment)

    def _record(
        self,
        ledger: SessionLedger,
        cut: Cut,
        complete: Mask,
        table: pa.Table,
        page: KeyEntries,
        heads: pa.Table,
        contents: pa.Table,
        seq: int,
    ) -> None:
        """Write the keys again without closed sessions; see that each is looked at in time."""
        entries, s = self.op.entries, ledger.state
        open_ = cut.sessions.ends > self.horizon
        kept = cut.at[open_[cut.sessions.ids]]
        under = s.under[kept]
        numbers = sorted_unique(under[under >= 0])
        base = self.numbers.results
        self.numbers.results += len(numbers)
        noted_under = np.where(under < 0, -1, base + np.searchsorted(numbers, under))
        rows = entries.rewritten(pick(table, kept), seq, s.fired[kept], s.done[kept], s.often[kept], noted_under)
        r = ledger.results
        of_result = pick(heads, r.groups[numbers])
        kept_contents = pick(contents, numbers) if self.op.retract else None
        standing = entries.standing(
            of_result, r.starts[numbers], r.ends[numbers], r.counts[numbers], base + np.arange(len(numbers)), kept_contents, seq
        )
        waits = complete & ((ledger.pending(cut) > 0) | ledger.revised(cut))
        coming = self.coming(cut.sessions.ends[open_], waits[open_], cut.groups[open_], heads.num_rows)
        armed = self.arm(page.marks, heads, coming)
        self.log.append(pa.concat_tables([rows, standing, entries.marks(heads, armed, seq)]))
