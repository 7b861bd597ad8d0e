"""Session windows with a longest duration (SEMANTICS §3.3).

Where such sessions begin and end hangs on every row before, and a row out of order can divide later ones anew. So rows
(those of one key and time merged) are kept until their session is closed, in a log by key, and a key is walked anew when
rows of it arrive and when one of its sessions is due. A queue of small entries says when that is.

Cost of a batch: proportional to the rows held for the keys it brings and for those that are due; the log is read as
:mod:`~krishiv_py.kernels.state.keyed_log` reads: by pieces that may hold a wanted key. Rows held for a key are at most those
of its open sessions, which `max_duration` and the lateness bound.
"""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group, group_rows, key_hashes
from krishiv_py.arrays.intervals import Codes, Components
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.firing.due import Patience
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results.contract import StepResult
from krishiv_py.kernels.results.emit import Emitter
from krishiv_py.kernels.results.refused import Judged, counted, judged, over_in_turn
from krishiv_py.kernels.results.state_table import Opened
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.expired_keys import DeadKeys, removed
from krishiv_py.kernels.state.keyed_log import HASH, KeyedLog
from krishiv_py.kernels.state.sections import Section
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.timer_queue import DUE, DueQueue
from krishiv_py.kernels.windows.session.capped.built_sessions import Limits
from krishiv_py.kernels.windows.session.capped.log import CLOSED, MARK, ROW, STANDING, Alive, CappedLog
from krishiv_py.kernels.windows.session.log import Firing, change_log, pane_names
from krishiv_py.kernels.windows.session.rows import END, FIRED, SEQ, START, SessionRows, by_session
from krishiv_py.plan.durations import END_OF_TIME, UNSET

_TIMER = pa.schema([pa.field(HASH, pa.int64()), pa.field(DUE, pa.int64())])


@attrs.define
class _Looks(Section):
    """How often keys were looked at."""

    seq: int = 0


class CappedSessionOperator:
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.layout = Layout(spec)
        self.rows = SessionRows(self.layout)
        self.log = CappedLog(self.rows)
        self.emitter = Emitter(self.layout)
        self.patience = Patience.of(spec.options)
        self.mode = spec.options.emit_mode
        self.keeps_fired = self.mode != "final" and self.patience.keep_us > 0
        assert self.rows.window.max_duration_us is not None
        self.limits = Limits(self.rows.window.max_duration_us, self.rows.touching)

    def combine(self, rows: pa.Table) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        return self.rows.combine(rows)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        return _Step(self, bucket, moment).run(pa.concat_tables([self.rows.empty(), *chunks]))

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        entries = KeyedLog(bucket, "k", self.log.schema, self.log.compact).written()
        keys = group([entries[k] for k in self.layout.key_names], entries.num_rows)
        alive = np.flatnonzero(self.log.sift(entries, keys.ids, keys.n).rows)
        alive = alive[stable_order(entries[SEQ].to_numpy()[alive])]
        rows = pick(entries, alive)
        sessions = self.limits.sessions(keys.ids[alive], rows[START].to_numpy(), rows[END].to_numpy())
        return Opened(self.layout).merged(rows, sessions.ids, sessions.starts, sessions.ends)

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.wrappers.ttl.KeyDropping`; counts sessions that had not fired."""
        return _Step(self, bucket, moment).drop(DeadKeys.of(dead, self.layout.key_names))


class _Step:
    """One bucket in one micro-batch."""

    def __init__(self, operator: CappedSessionOperator, bucket: Bucket, moment: Moment) -> None:
        self.op = operator
        self.rows = operator.rows
        self.bucket = bucket
        self.watermark_us = moment.watermark_us
        due = operator.patience.due(moment)
        self.horizon, self.due_at = due.horizon_us, due.to_us
        self.log = KeyedLog(bucket, "k", operator.log.schema, operator.log.compact)
        self.timers = DueQueue(bucket, "w", max(operator.limits.cap_us >> 8, 1))

    def run(self, chunk: pa.Table) -> StepResult:
        """Look at the keys that have rows or are due."""
        due = self.timers.pop(self.watermark_us)
        fresh_hashes = self._hashes(chunk)
        touched = sorted_unique(np.concatenate([fresh_hashes, *(t[HASH].to_numpy() for t in due)]))
        results, late = self.op.emitter.concat([]), None
        held = self.log.lookup(touched)
        if held.num_rows or chunk.num_rows:
            results, late = self._visit(held, chunk)
        if not len(self.timers):
            self.log.clear()
        return StepResult(results, self.timers.earliest, len(self.timers), len(self.log), results.num_rows, counted(late), late)

    def drop(self, dead: DeadKeys) -> int:
        """Take keys out of state. Returns how many sessions were open."""
        entries = removed(self.log, self.timers, dead)
        if not entries.num_rows:
            return 0
        keys = group([entries[k] for k in dead.names], entries.num_rows)
        alive = self.op.log.sift(entries, keys.ids, keys.n)
        rows = entries.filter(pa.array(alive.rows))
        sessions = self.op.limits.sessions(alive.groups[alive.rows], rows[START].to_numpy(), rows[END].to_numpy())
        return int(np.count_nonzero(sessions.ends > self.due_at))

    def _hashes(self, chunk: pa.Table) -> Ints:
        if not self.rows.by_window:
            return np.asarray(chunk[HASH].to_numpy())
        return key_hashes([chunk[k] for k in self.op.layout.key_names], chunk.num_rows)

    def _visit(self, entries: pa.Table, chunk: pa.Table) -> tuple[pa.Table, pa.Table | None]:
        """Walk the keys of these entries and fresh rows anew; returns results and late rows."""
        looks = _Looks.of(self.bucket)
        looks.seq = seq = looks.seq + 1
        looks.store(self.bucket)
        fresh = self._judge(entries, chunk) if self.rows.by_window else Judged(chunk)
        everything = pa.concat_tables([entries, self.op.log.entries(fresh.rows, seq, ROW)])
        keys = group([everything[k] for k in self.op.layout.key_names], everything.num_rows)
        results = self._fire(everything, self.op.log.sift(everything, keys.ids, keys.n), seq)
        return results, fresh.late

    def _judge(self, entries: pa.Table, rows: pa.Table) -> Judged:
        """Rule "window". Taking a refused row away can move a session, so look again until nothing changes."""
        times = rows[TIME].to_numpy()
        if not (times < self.horizon).any():
            return Judged(self.rows.reduce(rows))
        names = self.op.layout.key_names
        keys = group_rows(names, entries, rows)
        held = np.flatnonzero(self.op.log.sift(entries, keys.ids[: entries.num_rows], keys.n).rows)
        groups = np.concatenate([keys.ids[held], keys.ids[entries.num_rows :]])
        starts = np.concatenate([entries[START].to_numpy()[held], times])
        ends = np.concatenate([entries[END].to_numpy()[held], self.rows.ends(rows)])

        def ends_of(at: Ints) -> Ints:
            return self.op.limits.sessions(groups[at], starts[at], ends[at]).row_ends

        refused = over_in_turn(ends_of, len(held), len(groups), self.horizon)
        found = judged(self.rows.layout, rows, times, refused, self.watermark_us)
        return attrs.evolve(found, rows=self.rows.reduce(found.rows))

    def _fire(self, entries: pa.Table, alive: Alive, seq: int) -> pa.Table:
        at = np.flatnonzero(alive.rows)
        rows = pick(entries, at)
        groups = alive.groups[at]
        sessions = self.op.limits.sessions(groups, rows[START].to_numpy(), rows[END].to_numpy())
        of_session = np.empty(sessions.n, np.int64)
        of_session[sessions.ids] = groups
        complete = sessions.ends <= self.due_at
        standing = entries.filter(pa.array(alive.standing))
        stands = _Standing(standing, alive.groups[alive.standing], sessions, of_session)
        changed = np.zeros(sessions.n, np.bool_)
        came = rows[SEQ].to_numpy() == seq
        changed[sessions.ids[came]] = True
        firing = complete & ~stands.as_before(changed)
        by = stands.withdrawn_by(firing)
        gone = by >= 0
        numbers = np.cumsum(firing) - 1
        replaced_by = numbers[by[gone]]
        merged = self._merge(rows, sessions, firing)
        index = by_session(standing[FIRED].to_numpy()[gone], replaced_by, merged.num_rows)
        stays = standing.filter(pa.array(~gone & stands.may_change(sessions.ends <= self.horizon)))
        self._record(entries, alive, seq, sessions, of_session, complete, self._standing(stays, merged, index + 1, seq))
        old = standing.filter(pa.array(gone))
        if self.op.mode != "retractions":
            old, replaced_by = old.slice(0, 0), replaced_by[:0]
        late = changed | (np.isin(of_session, groups[came]) & stands.covered())
        return change_log(self.op.emitter, old, replaced_by, Firing(merged, pane_names(self.op.mode, late[firing]), index))

    def _standing(self, stays: pa.Table, merged: pa.Table, fired: Ints, seq: int) -> list[pa.Table]:
        """The results that stand after this step and may yet change."""
        if not self.op.keeps_fired:
            return []
        open_ = merged[END].to_numpy() > self.horizon
        return [
            self.op.log.entries(stays, seq, STANDING, stays[FIRED].to_numpy()),
            self.op.log.entries(merged.filter(pa.array(open_)), seq, STANDING, fired[open_]),
        ]

    def _merge(self, rows: pa.Table, sessions: Components, firing: Mask) -> pa.Table:
        """The sessions that fire, merged from their rows in order of arrival, with their bounds."""
        inside = firing[sessions.ids]
        numbers = np.cumsum(firing) - 1
        picked = rows.filter(pa.array(inside))
        ids = numbers[sessions.ids[inside]]
        order = stable_order(picked[SEQ].to_numpy())
        merged = self.rows.merge(pick(picked, order), ids[order], int(firing.sum()))
        at = merged.schema.get_field_index(END)
        return merged.set_column(at, merged.schema.field(at), pa.array(sessions.ends[firing]))

    def _record(
        self,
        entries: pa.Table,
        alive: Alive,
        seq: int,
        sessions: Components,
        of_session: Ints,
        complete: Mask,
        standing: list[pa.Table],
    ) -> None:
        """Write fresh rows, what stands now, and a mark for every key; see that each key is looked at in time."""
        n = len(alive.armed)
        shut = sessions.ends <= self.horizon
        closed = np.full(n, UNSET)
        np.maximum.at(closed, of_session[shut], sessions.ends[shut])
        waits = ~shut
        moment = sessions.ends + np.where(complete | (self.op.mode == "final"), self.op.patience.keep_us, 0)
        coming = np.full(n, END_OF_TIME)
        np.minimum.at(coming, of_session[waits], moment[waits])
        armed = np.where(alive.armed <= self.watermark_us, END_OF_TIME, alive.armed)
        sooner = coming < armed
        member = np.empty(n, np.int64)
        member[alive.groups] = np.arange(len(alive.groups))
        keys = pick(entries.select([HASH, *self.op.layout.key_names]), member)
        if sooner.any():
            timer = [keys[HASH].filter(pa.array(sooner)), pa.array(coming[sooner])]
            self.timers.insert(pa.Table.from_arrays(timer, schema=_TIMER), self.watermark_us)
        fresh = entries.filter(pa.array(alive.rows & (entries[SEQ].to_numpy() == seq)))
        written = [fresh, self.op.log.marks(keys, np.minimum(armed, coming), seq, MARK)]
        if shut.any():
            some = closed != UNSET
            written.append(self.op.log.marks(keys.filter(pa.array(some)), closed[some], seq, CLOSED))
        self.log.append(pa.concat_tables([*written, *standing]))


class _Standing:
    """Which sessions the results that stand have become."""

    def __init__(self, standing: pa.Table, groups: Ints, sessions: Components, of_session: Ints) -> None:
        starts, ends = standing[START].to_numpy(), standing[END].to_numpy()
        self.n, n_old = sessions.n, len(starts)
        if not n_old or not self.n:
            self.first, self.stop = np.zeros((2, n_old), np.int64)
            self.same = np.zeros(n_old, np.bool_)
            return
        group_of = np.concatenate([of_session, of_session, groups, groups])
        codes = Codes(group_of, np.concatenate([sessions.starts, sessions.ends, starts, ends])).codes
        own_starts, own_ends = codes[2 * self.n : 2 * self.n + n_old], codes[2 * self.n + n_old :]
        self.first = _places(codes[self.n : 2 * self.n], own_starts, after=True)
        self.stop = _places(codes[: self.n], own_ends, after=False)
        at = np.minimum(self.first, self.n - 1)
        self.same = (codes[at] == own_starts) & (codes[self.n + at] == own_ends)

    def as_before(self, changed: Mask) -> Mask:
        """Sessions whose result stands as it is."""
        mask = np.zeros(self.n, np.bool_)
        mask[self.first[self.same]] = True
        return mask & ~changed

    def covered(self) -> Mask:
        """Sessions made of rows whose results stand, though perhaps divided otherwise."""
        marks = np.zeros(self.n + 1, np.int64)
        np.add.at(marks, self.first, 1)
        np.add.at(marks, self.stop, -1)
        return np.cumsum(marks)[: self.n] > 0

    def withdrawn_by(self, firing: Mask) -> Ints:
        """The firing session that takes the place of each result; -1 for those that go on standing."""
        following = np.append(np.where(firing, np.arange(self.n), self.n), self.n)
        following = np.minimum.accumulate(following[::-1])[::-1]
        by: Ints = following[self.first]
        return np.where(by < self.stop, by, -1)

    def may_change(self, shut: Mask) -> Mask:
        """Results of which one of the sessions they have become is open."""
        last = np.maximum(self.stop - 1, 0)
        return (self.stop > self.first) & (~shut[last] if self.n else False)


def _places(ordered: Ints, wanted: Ints, *, after: bool) -> Ints:
    """Return where `wanted` would go among `ordered`, before or after equal ones."""
    return np.searchsorted(ordered, wanted, side="right" if after else "left").astype(np.int64)
