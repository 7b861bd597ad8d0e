"""Session windows without a longest duration (SEMANTICS §3.3, §4.2, §5).

What is stored of a key are *mini-sessions*: intervals ``[a, b)`` with partial aggregates, one for rows of a batch that
overlap. They wait in a queue by the time they could close at (``b``), and enter their bounds in a compact side table::

    rows ──► mini-sessions ──► queue by b ──due──► does a longer session of the key reach on? (side table)
                     │                               │ no: merge all of it, fire
                     └──► side table (hash, a, b)    └ yes: merge what is due, wait for that session's end

So a session is put together once, when it fires, and moved at most once per gap before that.

Cost of a batch: proportional to the mini-sessions it brings and to those that are due, each of which is read and written a
few times in all. What is open but quiet costs only where the side table (24 bytes an entry) is looked up: keys are found in
it by bisection, without computing on the rest, but pieces of it that may hold a wanted key are read whole.

With allowed lateness, fired sessions wait in a second queue until ``end + L <= W``. A row that touches one fetches it
back (reading the blocks its end lies in) and the session fires again when its end has been passed.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.ranges import components
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask, flags_at, largest_of, pick, values_at, with_column
from krishiv_py.errors import CheckpointError
from krishiv_py.kernels.firing import FiringOperator
from krishiv_py.kernels.results import SplitRows, StateTables, StepResult, earliest, split_late
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket, FiringProgress, with_written
from krishiv_py.kernels.state.timer_queue import DUE, DueQueue
from krishiv_py.kernels.state.window_log import HASH, DeadKeys
from krishiv_py.kernels.windows.session.keyed_state import HELD, STANDING, Firing, KeySpans, SideTable, change_log, pane_names
from krishiv_py.kernels.windows.session.rows import END, FIRED, KIND, SEQ, START, SessionRows
from krishiv_py.plan.durations import END_OF_TIME, UNSET

_UNKNOWN_GAP_US: Final = 1 << 28


@attrs.define
class SessionProgress(FiringProgress):
    """Up to which end sessions were closed, and a number that grows with the arrival of rows."""

    closed_at: int = UNSET
    seq: int = 0


class SessionOperator(FiringOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        self.rows = SessionRows(self.layout)
        self.keeps_fired = self.mode != "final" and self.firing_delay.keep_us > 0
        self.finest_us = max((self.rows.window.gap_us or _UNKNOWN_GAP_US) >> 8, 1)
        extra = [pa.field(SEQ, pa.int64()), pa.field(FIRED, pa.int64()), pa.field(KIND, pa.int8()), pa.field(DUE, pa.int64())]
        self.stored = pa.schema([*self.rows.schema, *extra])

    def combine(self, rows: pa.Table) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return self.rows.combine(rows)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return _Step(self, bucket, moment).run(chunks)

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        queues = [DueQueue(bucket, name, self.finest_us) for name in ("w", "f")]
        rows = pa.concat_tables([with_written(self.stored.empty_table(), None), *(t for q in queues for t in q.written())])
        rows = rows.filter(pa.array(rows[KIND].to_numpy() == HELD))  # the others are results that will be withdrawn
        rows = pick(rows, stable_order(rows[SEQ].to_numpy()))
        keys = group([rows[k] for k in self.layout.key_names], rows.num_rows)
        parts = components(keys.ids, rows[START].to_numpy(), rows[END].to_numpy(), touching=self.rows.touching)
        return StateTables(self.layout).merged(rows, parts.ids, parts.starts, parts.ends)

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; counts sessions that had not fired."""
        return _Step(self, bucket, moment).drop(DeadKeys.of(dead, self.layout.key_names))


def go_on_as(spec: OperatorSpec, bucket: Bucket, given_us: int) -> None:
    """Let a bucket go on under another emission, late rule or lateness than its sessions were kept under (SEMANTICS §12.3).

    Sessions that have fired are kept where they fire again: with ``final`` all of them do, once, when they leave. Those that
    end up to `given_us` are as they were when they fired: no batch has run since results became final.

    Raises
    ------
    CheckpointError
        Where results would have to be withdrawn that are not known.
    """
    operator = SessionOperator(spec.plain)
    progress = SessionProgress.of(bucket)
    waiting, fired = (DueQueue(bucket, name, operator.finest_us) for name in ("w", "f"))
    skeleton = SideTable(bucket, progress.closed_at, touching=operator.rows.touching)
    waits, over = (pa.concat_tables([operator.stored.empty_table(), *queue.pop(END_OF_TIME)]) for queue in (waiting, fired))
    if operator.mode != "final":
        back = (waits[DUE].to_numpy() <= given_us) & (waits[FIRED].to_numpy() > 0) & (waits[KIND].to_numpy() == HELD)
        over = pa.concat_tables([over, waits.filter(pa.array(back))])
        waits = waits.filter(pa.array(~back))
    if operator.mode == "retractions":
        known = set(waits.filter(pa.array(waits[KIND].to_numpy() == STANDING))[HASH].to_pylist())
        data = waits.filter(pa.array((waits[KIND].to_numpy() == HELD) & (waits[FIRED].to_numpy() > 0)))
        if not set(data[HASH].to_pylist()) <= known:
            raise CheckpointError(
                "results of these sessions cannot be withdrawn yet",
                got="sessions that have fired and have had rows since",
                then="their first result would stand next to the next one",
                hint="make the savepoint once the watermark has passed these sessions, or keep the emission",
            )
    if operator.mode == "final":
        waits, over = pa.concat_tables([waits, over]), over.slice(0, 0)
    for rows in (waits, over):
        skeleton.append(rows[HASH].to_numpy(), rows[START].to_numpy(), rows[END].to_numpy())
    waiting.insert(waits, progress.fired_at)
    fired.insert(over, progress.closed_at)


class _Step:
    """One bucket in one micro-batch."""

    def __init__(self, operator: SessionOperator, bucket: Bucket, moment: Moment) -> None:
        self.op = operator
        self.rows = operator.rows
        self.alone_us, self.classified_us = moment.alone_us, moment.classified_us
        self.bucket, self.progress = bucket, SessionProgress.of(bucket)
        self.before = self.progress.seq  # rows of this batch have larger numbers
        self.fired_at, self.closed_at = self.progress.fired_at, self.progress.closed_at
        self.due = operator.firing_delay.due(moment, self.fired_at)
        self.horizon = max(self.due.horizon_us, self.closed_at)
        self.due_at = self.horizon if operator.mode == "final" else self.due.to_us
        self.skeleton = SideTable(bucket, self.closed_at, touching=self.rows.touching)
        self.waiting = DueQueue(bucket, "w", operator.finest_us)
        self.fired = DueQueue(bucket, "f", operator.finest_us)

    def run(self, chunks: list[pa.Table]) -> StepResult:
        """Fold in, fire, forget."""
        rows = pa.concat_tables([self.rows.empty(), *chunks])
        if self.alone_us is not None and rows.num_rows:
            left = self._leave(rows, self.op.firing_delay.over(self.alone_us))
            step = self._folded(rows, chunks)
            return attrs.evolve(step, results=pa.concat_tables([left, step.results]), firings=step.firings + left.num_rows)
        return self._folded(rows, chunks)

    def _leave(self, rows: pa.Table, upto_us: int) -> pa.Table:
        """Fire what ends up to a point in time of the keys of some rows, and forget it; return results."""
        names = self.op.layout.key_names
        keys = DeadKeys.of(rows.select(names) if names else pa.table({"": pa.nulls(rows.num_rows)}), names)
        spans = self.skeleton.of(keys.hashes, self.closed_at)
        parts = self.skeleton.merged(spans)
        over = parts.ends <= upto_us
        if not over.any():
            return self.op.emitter.concat([])
        of_part = values_at(parts.ids, spans.hashes, parts.n)

        def gone(stored: pa.Table) -> Mask:
            mask = keys.rows(stored)
            hashes, starts = stored[HASH].to_numpy(), stored[START].to_numpy()
            within = np.zeros(len(mask), np.bool_)
            for part in np.flatnonzero(over).tolist():
                within |= (hashes == of_part[part]) & (starts >= parts.starts[part]) & (starts < parts.ends[part])
            return mask & within

        pool = self.waiting.remove(spans.starts, spans.ends, gone)
        self.fired.remove(spans.starts, spans.ends, gone)
        left = over[parts.ids]
        self.skeleton.remove(keys.hashes)
        self.skeleton.append(spans.hashes[~left], spans.starts[~left], spans.ends[~left])
        if not pool:
            return self.op.emitter.concat([])
        whole = pa.concat_tables(pool)
        self.horizon, horizon = max(self.horizon, upto_us), self.horizon  # so what fires is not kept
        results = self._fire(pick(whole, stable_order(whole[SEQ].to_numpy())))
        self.horizon = horizon
        return results

    def _folded(self, rows: pa.Table, chunks: list[pa.Table]) -> StepResult:
        turns = self.rows.turns(chunks)
        split = SplitRows(rows)
        if self.rows.by_window:
            split, turns = self._split_late(rows, turns)
        pool = self._take_in(split.rows, turns) if split.rows.num_rows else []
        pool += self.waiting.pop(self.due_at)
        results = self._settle(pa.concat_tables(pool)) if pool else self.op.emitter.concat([])
        if len(self.fired):  # also where a plan before kept them
            self.fired.pop(self.horizon)
        attrs.evolve(self.progress, fired_at=self.due.reached_us, closed_at=self.horizon).store(self.bucket)
        held = len(self.waiting) + len(self.fired)
        if not held:
            self.skeleton.clear()
        return StepResult(results, self._wakeup(), held, held, results.num_rows, split.counters, split.late)

    def drop(self, dead: DeadKeys) -> int:
        """Take keys out of state; returns how many sessions were open."""
        spans = self.skeleton.of(dead.hashes, self.closed_at)
        shared: list[Ints] = []

        def gone(rows: pa.Table) -> Mask:
            mask = dead.rows(rows)
            shared.append(rows[HASH].to_numpy()[dead.hashed(rows) & ~mask])
            return mask

        open_ = self.waiting.remove(spans.starts, spans.ends, gone)
        self.fired.remove(spans.starts, spans.ends, gone)
        # where a living key has the hash of a dead one, bounds of both stay: its sessions fire later, but whole
        self.skeleton.remove(np.setdiff1d(dead.hashes, np.concatenate([np.empty(0, np.int64), *shared])))
        if not open_:
            return 0
        rows = pa.concat_tables(open_)
        keys = group([rows[k] for k in dead.names], rows.num_rows)
        return components(keys.ids, rows[START].to_numpy(), rows[END].to_numpy(), touching=self.rows.touching).n

    def _split_late(self, rows: pa.Table, turns: Ints) -> tuple[SplitRows, Ints]:
        """Rule "window": refuse rows of sessions with ``end + L <= W`` after merging, but no rows that were combined before.

        Returns the turns of the others too.
        """
        starts, ends = self.rows.spans(rows)
        over = self.op.firing_delay.over(self.classified_us)
        doubtful = ends <= over
        if not doubtful.any():
            return self._admitted(SplitRows(rows), turns)
        hashes = self.rows.hashes(rows)
        near = np.isin(hashes, sorted_unique(hashes[doubtful]))
        parts, ids = self.skeleton.joined(KeySpans(hashes[near], starts[near], ends[near]), self.closed_at)
        refused = np.zeros(len(ends), np.bool_)
        refused[near] = parts.ends[ids] <= over
        split = split_late(self.rows.layout, rows, starts, refused, self.classified_us)
        return self._admitted(split, turns[~refused])

    def _admitted(self, split: SplitRows, turns: Ints) -> tuple[SplitRows, Ints]:
        """Return rows that are not refused as mini-sessions, with their turns."""
        admitted = self.rows.admitted(split.rows)
        if self.rows.as_they_are:  # rows of all chunks are combined, in their order
            turns = np.zeros(admitted.num_rows, np.int64)
        return attrs.evolve(split, rows=admitted), turns

    def _take_in(self, minis: pa.Table, turns: Ints) -> list[pa.Table]:
        """Store what is not due; returns what is, and fired sessions that were touched."""
        seqs = self.before + 1 + turns
        self.progress.seq = int(seqs[-1])
        fresh = KeySpans(minis[HASH].to_numpy(), minis[START].to_numpy(), minis[END].to_numpy())
        pool = self._recall(fresh) if self.op.keeps_fired and self.fired_at != UNSET else []
        self.skeleton.append(fresh.hashes, fresh.starts, fresh.ends)
        n = len(fresh.ends)
        stored = self._stored(minis, seqs, np.zeros(n, np.int64), fresh.ends)
        due = fresh.ends <= self.due_at
        if due.any():
            pool.append(stored.filter(pa.array(due)))
            stored = stored.filter(pa.array(~due))
        self.waiting.insert(stored, self.due_at)
        return pool

    def _stored(self, rows: pa.Table, seq: Ints, fired: Ints, due: Ints, kind: int = HELD) -> pa.Table:
        extra = [pa.array(seq), pa.array(fired), pa.repeat(pa.scalar(kind, pa.int8()), rows.num_rows), pa.array(due)]
        return pa.Table.from_arrays([*rows.select(self.rows.schema.names).columns, *extra], schema=self.op.stored)

    def _recall(self, fresh: KeySpans) -> list[pa.Table]:
        """Fetch back the fired sessions that fresh rows touch; in a change log their results stand until withdrawn."""
        early = fresh.starts <= self.fired_at
        if not early.any():
            return []
        fresh = KeySpans(fresh.hashes[early], fresh.starts[early], fresh.ends[early])
        entries = self.skeleton.of(fresh.hashes, self.closed_at)
        if not len(entries.starts):
            return []
        known = self.skeleton.merged(entries)
        hashes = values_at(known.ids, entries.hashes, known.n)
        both = self.skeleton.merged(KeySpans(hashes, known.starts, known.ends).and_then(fresh))
        grown = flags_at(both.ids[known.n :], both.n)
        wanted = np.flatnonzero(grown[both.ids[: known.n]] & (known.ends <= self.fired_at))
        if not len(wanted):
            return []
        recalled = self.fired.extract(HASH, hashes[wanted], known.ends[wanted])
        if self.op.mode == "retractions":
            recalled += [with_column(t, KIND, pa.repeat(pa.scalar(STANDING, pa.int8()), t.num_rows)) for t in recalled]
        return recalled

    def _settle(self, pool: pa.Table) -> pa.Table:
        """Fire the sessions that are over; let the rest wait for the end of theirs. Returns results."""
        seqs = pool[SEQ].to_numpy()
        if (np.diff(seqs) < 0).any():
            pool = pick(pool, stable_order(seqs))
        spans = KeySpans(pool[HASH].to_numpy(), pool[START].to_numpy(), pool[END].to_numpy())
        parts, ids = self.skeleton.joined(spans, self.due_at)
        over = parts.ends[ids] <= self.due_at
        if not over.all():
            going = ~over
            self._postpone(pool.filter(pa.array(going)), parts.ends[ids[going]])
            # rows of one session may wait for different ends, so what joins them must outlast the shortest of their own spans
            open_parts = sorted_unique(ids[going])
            of_part = values_at(ids, spans.hashes, parts.n)
            self.skeleton.append(of_part[open_parts], parts.starts[open_parts], parts.ends[open_parts])
            pool = pool.filter(pa.array(over))
        return self._fire(pool) if pool.num_rows else self.op.emitter.concat([])

    def _postpone(self, rows: pa.Table, ends: Ints) -> None:
        """Wait for the end of the session that goes on, as one row where no aggregate goes by order of arrival."""
        seqs, fired, standing = rows[SEQ].to_numpy(), rows[FIRED].to_numpy(), rows[KIND].to_numpy() == STANDING
        if standing.any():
            old = rows.filter(pa.array(standing))
            self.waiting.insert(self._stored(old, seqs[standing], fired[standing], ends[standing], STANDING), self.due_at)
            data = ~standing
            rows, ends, seqs, fired = rows.filter(pa.array(data)), ends[data], seqs[data], fired[data]
        if not self.op.layout.in_order:
            sessions = group([*(rows[k] for k in self.op.layout.key_names), ends], rows.num_rows)
            if sessions.n < rows.num_rows:
                fired = largest_of(sessions.ids, fired, sessions.n, 0)
                rows, ends, seqs = self.rows.merge(rows, sessions.ids, sessions.n), ends[sessions.first], seqs[sessions.first]
        self.waiting.insert(self._stored(rows, seqs, fired, ends), self.due_at)

    def _fire(self, pool: pa.Table) -> pa.Table:
        keys = group([pool[k] for k in self.op.layout.key_names], pool.num_rows)
        parts = components(keys.ids, pool[START].to_numpy(), pool[END].to_numpy(), touching=self.rows.touching)
        standing = pool[KIND].to_numpy() == STANDING
        data = ~standing
        rows, ids = (pool, parts.ids) if data.all() else (pool.filter(pa.array(data)), parts.ids[data])
        merged = self.rows.merge(rows, ids, parts.n)
        changed = flags_at(parts.ids[pool[SEQ].to_numpy() > self.before], parts.n)
        index = largest_of(parts.ids, pool[FIRED].to_numpy(), parts.n, 0)
        if self.op.keeps_fired:
            self._keep(merged, index + 1)
        firing = Firing(merged, pane_names(self.op.mode, changed), index)
        withdrawn = standing if self.op.mode == "retractions" else np.zeros(len(standing), np.bool_)  # of a plan before
        return change_log(self.op.emitter, pool.filter(pa.array(withdrawn)), parts.ids[withdrawn], firing)

    def _keep(self, merged: pa.Table, fired: Ints) -> None:
        ends = merged[END].to_numpy()
        kept = ends > self.horizon
        if not kept.any():
            return
        merged, ends = merged.filter(pa.array(kept)), ends[kept]
        seqs = np.full(len(ends), self.progress.seq, np.int64)
        self.fired.insert(self._stored(merged, seqs, fired[kept], ends), self.horizon)
        if self.rows.by_window:
            self.skeleton.append(merged[HASH].to_numpy(), merged[START].to_numpy(), ends)

    def _wakeup(self) -> int | None:
        """Return the next watermark at which something fires or is forgotten."""
        delay = self.op.firing_delay
        return earliest((self.waiting.earliest, delay.wait_us), (self.fired.earliest, delay.keep_us))
