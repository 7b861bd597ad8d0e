"""Session windows with a longest duration and triggers or discarding accumulation (SEMANTICS §3.3, §5).

Rows are kept until their session is closed, in a log by key. A key is looked at when rows of it come and when one of its
sessions is due, and is then written again; a queue of small entries says when that is.

Cost of a batch: proportional to the rows held for the keys it brings and for those that are due. Triggers that count rows let
rows come in pieces (:mod:`~krishiv_py.kernels.windows.session.capped`): rows in order of time at once, and
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
from krishiv_py.arrays.ranges import components
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask, flags_at, pick, values_at
from krishiv_py.kernels.columns.layout import GAP, TIME, Layout
from krishiv_py.kernels.firing import TriggerContext, WindowFacts
from krishiv_py.kernels.results import StateTables, StepResult, over_in_turn
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import HASH, DeadKeys, removed
from krishiv_py.kernels.windows.session.capped import fire_by_row, pieces
from krishiv_py.kernels.windows.session.capped_log import Limits, RowSessions, RowState, WrittenSessions
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
from krishiv_py.kernels.windows.session.rows import END, KIND, SEQ, Contents, NumberedResults, written
from krishiv_py.plan.durations import UNSET


class SessionLedger(WrittenSessions):
    """A ledger that lets rows come one by one, or several at once where that is the same."""

    def one_by_one(self, fresh: int, watermark_us: int) -> None:
        """Let rows from number `fresh` on come one by one, and fire what their coming makes fire.

        In round i the i-th piece of every key comes. Where only late sessions count, keys whose rows are all on time wait.
        """
        s = self.state
        n = len(s.starts)
        n_groups = int(s.groups.max(initial=-1)) + 1
        counted = np.zeros(n_groups, np.bool_)
        early = s.starts[fresh:] < watermark_us
        counted[s.groups[fresh:] if isinstance(self.trigger.early, int) else s.groups[fresh:][early]] = True
        coming = fresh + np.flatnonzero(counted[s.groups[fresh:]])
        if not len(coming):
            return
        held = np.flatnonzero(counted[s.groups[:fresh]])
        cut = pieces(s, held, coming, self.limits)
        order = stable_order(cut.turn)
        turns = np.split(order, np.cumsum(np.bincount(cut.turn))[:-1])
        self.present[coming] = False
        rounds = _Rounds(self, n_groups, held, watermark_us) if cut.alone.any() else None
        for turn in turns:
            rows, alone = coming[turn], cut.alone[turn]
            together = rows[~alone]
            if rounds is not None:
                rounds.narrow(rows)
            if len(together):
                self.present[together] = True
                came = flags_at(together, n)
                wanted = flags_at(s.groups[together], n_groups)
                now = self.cut(wanted)
                fire_by_row(self, now, came, watermark_us)
                if rounds is not None:
                    rounds.note(now)
            if alone.any():
                assert rounds is not None
                rounds.come(rows[alone])


class _Rounds:
    """Rows that may divide sessions again, one of each key a round."""

    def __init__(self, ledger: SessionLedger, n_groups: int, held: Ints, watermark_us: int) -> None:
        self._ledger = ledger
        self._n_groups = n_groups
        self._watermark_us = watermark_us
        self._before = np.full((3, len(ledger.state.starts)), -1, np.int64)
        self._near = _LinkedRows(ledger.state, held)
        self.note(ledger.cut_of(held))

    def narrow(self, rows: Ints) -> None:
        """Keys of which nothing comes have no more turns."""
        self._near.narrow(rows, self._n_groups)

    def note(self, cut: RowSessions) -> None:
        """Note what sessions are now, after rows came together."""
        self._changed(cut)
        self._near.link(cut.at)

    def come(self, rows: Ints) -> None:
        """Let rows come, one of a key, and fire what changed."""
        ledger = self._ledger
        ledger.present[rows] = True
        moment = values_at(ledger.state.groups[rows], rows, self._n_groups)
        cut = ledger.cut_of(self._near.rows(rows, ledger.present, self._n_groups))
        complete = cut.sessions.ends <= self._watermark_us
        early, late = (x if isinstance(x, int) else 0 for x in (ledger.trigger.early, ledger.trigger.late))
        every = np.where(complete, late, early)
        fires = self._changed(cut) & (every > 0) & (ledger.pending(cut) >= every)
        if fires.any():
            ledger.fire(cut, fires, np.where(complete, "late", "early"), moment[cut.groups])
            ledger.tick_off(cut, fires & complete)

    def _changed(self, cut: RowSessions) -> Mask:
        """Sessions that have other rows or bounds than before; notes what they are now."""
        before, ids, n = self._before, cut.sessions.ids, cut.sessions.n
        counts = np.bincount(ids, minlength=n)
        now = np.stack([cut.sessions.starts, cut.sessions.ends, counts])[:, ids]
        changed = flags_at(ids[(before[:, cut.at] != now).any(axis=0)], n)
        before[:, cut.at] = now
        return changed


class _LinkedRows:
    """Finds the rows whose session the coming of a row may change: those it is linked with by reaches that meet.

    `low` and `high` are the bounds of all that a row is linked with; rows beyond them neither join it nor divide it.
    """

    def __init__(self, state: RowState, held: Ints) -> None:
        self._state = state
        self._low, self._high = state.starts.copy(), state.reaches.copy()
        self._pool = np.arange(len(state.starts))
        self.link(held)

    def link(self, rows: Ints) -> None:
        """Work out the bounds of rows, all those present of some groups."""
        s = self._state
        linked = components(s.groups[rows], s.starts[rows], s.reaches[rows], touching=True)
        self._low[rows], self._high[rows] = linked.starts[linked.ids], linked.ends[linked.ids]

    def narrow(self, turn: Ints, n_groups: int) -> None:
        """Forget groups that none of the rows of this turn is of."""
        groups = self._state.groups
        wanted = flags_at(groups[turn], n_groups)
        if not wanted.all():
            self._pool = self._pool[wanted[groups[self._pool]]]

    def rows(self, turn: Ints, present: Mask, n_groups: int) -> Ints:
        """Return the rows present that matter now that those of `turn` come, one of a group."""
        groups, low, high = self._state.groups, self._low, self._high
        first = np.full(n_groups, np.iinfo(np.int64).max)
        last = np.full(n_groups, np.iinfo(np.int64).min)
        first[groups[turn]], last[groups[turn]] = low[turn], high[turn]
        pool = self._pool
        of = groups[pool]
        rows: Ints = pool[present[pool] & (low[pool] <= last[of]) & (high[pool] >= first[of])]
        np.minimum.at(first, groups[rows], low[rows])
        np.maximum.at(last, groups[rows], high[rows])
        low[rows], high[rows] = first[groups[rows]], last[groups[rows]]
        return rows


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
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; counts sessions that had not ended."""
        return _Step(self, bucket, moment).drop(DeadKeys.of(dead, self.layout.key_names))


class _Step(BucketVisit):
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
        """See :class:`BucketVisit`."""
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
            ledger.one_by_one(page.held.num_rows, self.passed_us)
        cut = ledger.cut(np.ones(keys.n, np.bool_))
        moment = np.full(cut.sessions.n, table.num_rows)
        complete = cut.sessions.ends <= self.passed_us
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
                came = flags_at(ledger.state.groups[fresh], keys.n)
                waits &= cut.where(fresh) | (ledger.revised(cut) & came[cut.groups])
            fires = waits if self.question is None else self._answered(self.question, ledger, cut, everyone, keys, waits)
            ledger.fire(cut, fires, np.full(cut.sessions.n, "early"), moment + 2)
        under = ledger.state.under
        contents = ledger.contents.table(sorted_unique(under[under >= 0]) if self.op.retract else under[:0])
        heads = pick(everyone, keys.first)
        self._record(ledger, cut, complete, table, page, heads, contents, seq)
        return written(self.op.emitter, heads, ledger.results, contents)

    def _answered(
        self, question: TriggerContext, ledger: SessionLedger, cut: RowSessions, everyone: pa.Table, keys: Groups, waits: Mask
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
        """See :class:`BucketVisit`; taking a row away can move a session."""

        def ends_of(rows: Ints) -> Ints:
            return self.op.limits.sessions(groups[rows], starts[rows], ends[rows]).row_ends

        return over_in_turn(ends_of, n_held, len(starts), self.horizon)

    def _late_batch(self, ledger: SessionLedger, cut: RowSessions, complete: Mask, fresh: int, moment: Ints) -> None:
        """Once per batch, complete sessions that it changed; without an on-time firing others may wait for rows of theirs."""
        came = np.arange(len(ledger.state.starts)) >= fresh
        pending = (ledger.pending(cut) > 0) & (cut.where(came) | self.trigger.on_time)
        fires = complete & (pending | ledger.revised(cut))
        ledger.fire(cut, fires, np.full(cut.sessions.n, "late"), moment)
        ledger.tick_off(cut, fires)

    def _on_watermark(self, ledger: SessionLedger, cut: RowSessions, complete: Mask, moment: Ints) -> None:
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
        cut: RowSessions,
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
