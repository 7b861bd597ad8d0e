"""Session windows with a longest duration (SEMANTICS §3.3).

Where such sessions begin and end depends on every row before, and a row out of order can divide later ones again. So rows
(those of one key and time merged) are kept until their session is closed::

    rows ──► wait by their time ──watermark──► in order of their key? ──yes──► log by key; the head of the key grows
                                               │                               (bounds of its last session)
                                               └ no, or a session is due: read the key in the log, walk it, fire

A row ahead of the watermark changes nothing that is due, so it waits, whatever its key has. When the watermark reaches it, rows
of its key mostly come in order of time, and such a row joins the last session or begins one: :mod:`.heads` keeps so much of
each key. A queue of small entries says when a key is due.

Cost of a batch: proportional to what it brings, and to the rows held for keys of which a session is due or a row is out of
order behind the watermark; the log is read as :mod:`~krishiv_py.kernels.state.window_log` reads: by pieces that may hold a
wanted key. Rows held for a key are at most those of its open sessions, which `max_duration` and the lateness bound. A row that
comes alone reads the rows of all keys that wait up to what it is classified by: the more, the further its lane is ahead.

Rows that come together, none of which divides others again: each takes its session one step on (SEMANTICS §3.3, §5.2).

What would happen row by row is computed at once. Along a session, from what was held on, bounds are running values, rows that
no firing has shown are counted up to the next firing, and each firing goes on from the one before::

    session    held  held │ row   row   row   row           on_count(2), one row not shown
    not shown   .     1   │  2     1     2     1
    fires                 │  ^ A         ^ B                A withdraws what was there, B withdraws A; the last row waits

Determine which rows of a batch can come together, where sessions have a longest duration (SEMANTICS §3.3).

A row *divides again* when its coming changes which of the rows before it form a session. All other rows join a session or begin
one, and many of them in a row can be counted at once. So the rows of each key are cut into pieces: rows that come together,
and rows that come alone::

    cap 10, gap 5     arrival  1   2   3   4   5   6         pieces  1 2 3 │ 4 │ 5 6
                      time     3   8  12  -1   9  14         4 is first now: [3, 13) becomes [-1, 9) and [9, …)

Rows in order of time never divide again: what was before them stays as it is. Rows of other keys are walked through by hand.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group, group_rows, key_hashes, rank
from krishiv_py.arrays.ranges import Components, PairCodes, running_reach
from krishiv_py.arrays.sorting import pair_order, sorted_unique, stable_order
from krishiv_py.arrays.types import (
    Ints,
    Mask,
    flags_at,
    largest_of,
    last_rows,
    least_of,
    pick,
    totals_of,
    values_at,
    with_column,
)
from krishiv_py.kernels.columns.layout import TIME
from krishiv_py.kernels.firing import FiringOperator
from krishiv_py.kernels.results import SplitRows, StateTables, StepResult, counted, over_in_turn, split_late
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket, Section
from krishiv_py.kernels.state.timer_queue import DUE, DueQueue
from krishiv_py.kernels.state.window_log import HASH, DeadKeys, KeyedLog, removed
from krishiv_py.kernels.windows.session.capped_log import (
    CLOSED,
    MARK,
    ROW,
    STANDING,
    CappedLog,
    HeadLog,
    Heads,
    Limits,
    LiveEntries,
    RowSessions,
    WrittenSessions,
)
from krishiv_py.kernels.windows.session.keyed_state import Firing, change_log, pane_names
from krishiv_py.kernels.windows.session.rows import END, FIRED, KIND, SEQ, START, SessionRows, firing
from krishiv_py.plan.durations import END_OF_TIME, UNSET

if TYPE_CHECKING:
    from krishiv_py.kernels.windows.session.capped_log import RowState


_TIMER = pa.schema([pa.field(HASH, pa.int64()), pa.field(DUE, pa.int64())])


@attrs.define
class _Lookups(Section):
    """Says how often keys were looked at."""

    seq: int = 0


class CappedSessionOperator(FiringOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        self.rows = SessionRows(self.layout)
        self.log = CappedLog(self.rows)
        self.keeps_fired = self.mode != "final" and self.firing_delay.keep_us > 0
        assert self.rows.window.max_duration_us is not None
        self.limits = Limits(self.rows.window.max_duration_us, self.rows.touching)
        self.finest_us = max(self.limits.cap_us >> 8, 1)
        self.waiting = self.log.schema.append(pa.field(DUE, pa.int64()))
        self.shortest_us = min(self.rows.window.gap_us or 0, self.limits.cap_us)

    def combine(self, rows: pa.Table) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return self.rows.combine(rows)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return _Step(self, bucket, moment).run(pa.concat_tables([self.rows.empty(), *chunks]))

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        entries = KeyedLog(bucket, "k", self.log.schema, self.log.compact).written()
        ahead = [t.drop_columns([DUE]) for t in DueQueue(bucket, "r", self.finest_us).written()]
        entries = pa.concat_tables([entries, *ahead])
        keys = group([entries[k] for k in self.layout.key_names], entries.num_rows)
        alive = np.flatnonzero(self.log.sift(entries, keys.ids, keys.n).rows)
        alive = alive[_arrival(pick(entries.select([SEQ, FIRED]), alive))]
        rows = pick(entries, alive)
        sessions = self.limits.sessions(keys.ids[alive], rows[START].to_numpy(), rows[END].to_numpy())
        return StateTables(self.layout).merged(rows, sessions.ids, sessions.starts, sessions.ends)

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; counts sessions that had not fired."""
        return _Step(self, bucket, moment).drop(DeadKeys.of(dead, self.layout.key_names))


def look_again(spec: OperatorSpec, bucket: Bucket, waited_us: int, *, stale: bool) -> None:
    """Let a bucket go on under another lateness or emission: each key is looked at in the next step (SEMANTICS §12.3).

    Until then results waited for the watermark to pass their end by `waited_us`. With ``final`` results that stand count for
    nothing, as each session has one when it leaves; they are `stale` once a batch has run so.
    """
    operator = CappedSessionOperator(spec.plain)
    log, timers = KeyedLog(bucket, "k", operator.log.schema, operator.log.compact), DueQueue(bucket, "w", operator.finest_us)
    ahead = [t.select([HASH, START]) for t in DueQueue(bucket, "r", operator.finest_us).written()]
    entries = log.everything()
    if stale:
        entries = entries.filter(pa.array(entries[KIND].to_numpy() != STANDING))
        log.clear()
        log.append(entries)
    held = entries.filter(pa.array(entries[KIND].to_numpy() <= STANDING)).select([HASH, START])
    rows = pa.concat_tables([held, *ahead])
    hashes, of_row = np.unique(rows[HASH].to_numpy(), return_inverse=True)
    first = least_of(of_row, rows[START].to_numpy(), len(hashes), END_OF_TIME)
    timers.pop(END_OF_TIME)
    timers.insert(pa.Table.from_arrays([pa.array(hashes), pa.array(first)], schema=_TIMER), UNSET)
    HeadLog(bucket, operator.rows).look_again(hashes, first, operator.firing_delay.wait_us - waited_us)


class _Step:
    """One bucket in one micro-batch."""

    def __init__(self, operator: CappedSessionOperator, bucket: Bucket, moment: Moment) -> None:
        self.op = operator
        self.rows = operator.rows
        self.bucket = bucket
        self.watermark_us, self.classified_us = moment.watermark_us, moment.classified_us
        self.alone = moment.alone_us is not None
        self.horizon = operator.firing_delay.over(self.classified_us)
        self.due_at = max(operator.firing_delay.due(moment).to_us, self.horizon)
        self.log = KeyedLog(bucket, "k", operator.log.schema, operator.log.compact)
        self.heads = HeadLog(bucket, self.rows)
        self.ahead = DueQueue(bucket, "r", operator.finest_us)
        self.timers = DueQueue(bucket, "w", operator.finest_us)
        self.seq = 0

    def run(self, chunk: pa.Table) -> StepResult:
        """Look at the keys that have rows or are due; of a row that comes alone, at its key before it."""
        results = []
        if self.alone and chunk.num_rows:
            due = sorted_unique(self.rows.hashes(chunk))
            results.append(self._look(due, self._reached_of(due), self.rows.reduce(chunk.slice(0, 0))))
            due, reached = due[:0], list[pa.Table]()
        else:
            timers = pa.concat_tables([_TIMER.empty_table(), *self.timers.pop(self.watermark_us)])
            due, reached = sorted_unique(timers[HASH].to_numpy()), self.ahead.pop(self.due_at)
        came = self._split_late(chunk) if self.rows.by_window else SplitRows(chunk)
        results.append(self._look(due, reached, came.rows))
        if not len(self.timers):
            self.log.clear()
            self.heads.clear()
        held = len(self.log) + len(self.ahead)
        table, late = self.op.emitter.concat(results), counted(came.late)
        return StepResult(table, self.timers.earliest, len(self.timers), held, table.num_rows, late, came.late)

    def _reached_of(self, hashes: Ints) -> list[pa.Table]:
        """Take out the rows of some keys that wait no longer."""

        def reached(waiting: pa.Table) -> Mask:
            mask: Mask = (waiting[DUE].to_numpy() <= self.due_at) & np.isin(waiting[HASH].to_numpy(), hashes)
            return mask

        return self.ahead.remove(np.array([UNSET]), np.array([self.due_at]), reached)

    def _look(self, due: Ints, reached: list[pa.Table], came: pa.Table) -> pa.Table:
        """Look at the keys that are due, and at those of rows; returns results."""
        if not (len(due) or reached or came.num_rows):
            return self.op.emitter.concat([])
        lookups = _Lookups.of(self.bucket)
        lookups.seq = self.seq = lookups.seq + 1
        lookups.store(self.bucket)
        return self._take_in(due, reached, came)

    def drop(self, dead: DeadKeys) -> int:
        """Take keys out of state. Returns how many sessions were open."""
        self.heads.drop(dead)
        ahead = [t.drop_columns([DUE]) for t in self.ahead.discard(dead.rows)]
        entries = pa.concat_tables([removed(self.log, self.timers, dead), *ahead])
        if not entries.num_rows:
            return 0
        keys = group([entries[k] for k in dead.names], entries.num_rows)
        alive = self.op.log.sift(entries, keys.ids, keys.n)
        rows = entries.filter(pa.array(alive.rows))
        sessions = self.op.limits.sessions(alive.groups[alive.rows], rows[START].to_numpy(), rows[END].to_numpy())
        return int(np.count_nonzero(sessions.ends > self.due_at))

    def _split_late(self, rows: pa.Table) -> SplitRows:
        """Rule "window". Taking a refused row away can move a session, so look again until nothing changes.

        Rows that wait ahead of what these are classified by decide nothing: a session that is over ended before the first.
        """
        times = rows[TIME].to_numpy()
        doubtful = times < self.horizon
        if not doubtful.any():
            return SplitRows(self.rows.reduce(rows))
        names = self.op.layout.key_names
        hashes = key_hashes([rows[k] for k in names], rows.num_rows)
        wanted = sorted_unique(hashes[doubtful])
        near = np.flatnonzero(np.isin(hashes, wanted))
        entries, some = self.log.lookup(wanted), pick(rows, near)
        keys = group_rows(names, entries, some)
        held = np.flatnonzero(self.op.log.sift(entries, keys.ids[: entries.num_rows], keys.n).rows)
        groups = np.concatenate([keys.ids[held], keys.ids[entries.num_rows :]])
        starts = np.concatenate([entries[START].to_numpy()[held], times[near]])
        ends = np.concatenate([entries[END].to_numpy()[held], self.rows.ends(some)])

        def ends_of(rows: Ints) -> Ints:
            return self.op.limits.sessions(groups[rows], starts[rows], ends[rows]).row_ends

        refused = np.zeros(rows.num_rows, np.bool_)
        refused[near] = over_in_turn(ends_of, len(held), len(groups), self.horizon)
        split = split_late(self.rows.layout, rows, times, refused, self.classified_us)
        return attrs.evolve(split, rows=self.rows.reduce(split.rows))

    def _take_in(self, due: Ints, reached: list[pa.Table], came: pa.Table) -> pa.Table:
        """Let rows wait, or join the last session of their key; walk the other keys. Returns results."""
        fresh = self.op.log.entries(came, self.seq, ROW, np.arange(came.num_rows))
        early = fresh[START].to_numpy() > self.due_at
        ready = pa.concat_tables([*(t.drop_columns([DUE]) for t in reached), fresh.filter(pa.array(~early))])
        ready = pick(ready, _arrival(ready))
        waiting = fresh.filter(pa.array(early))
        self.ahead.insert(pa.Table.from_arrays([*waiting.columns, waiting[START]], schema=self.op.waiting), self.due_at)
        hashes = [t[HASH].to_numpy() for t in (ready, waiting)]
        heads, known, (of_ready, of_waiting) = self.heads.of(sorted_unique(np.concatenate([due, *hashes])), ready, waiting)
        grown, grows = self._grown(heads, ready, of_ready)
        grows &= known
        unknown = np.setdiff1d(due, heads.hashes[known])
        walked = sorted_unique(np.concatenate([heads.hashes[~grows], unknown]))
        grows &= ~np.isin(heads.hashes, walked)  # two keys of one hash are found together
        waits = np.full((2, len(grows)), [[END_OF_TIME], [UNSET]])
        own = (
            np.minimum(waiting[END].to_numpy(), waiting[START].to_numpy() + self.op.limits.cap_us)
            + self.op.firing_delay.wait_us
        )
        np.minimum.at(waits[0], of_waiting, own)
        np.maximum.at(waits[1], of_waiting, own)
        inside = grows[of_ready]
        seen = _StepWrites([ready.filter(pa.array(inside))], [], [])
        touched = np.zeros(len(grows), np.bool_)
        touched[of_ready], touched[of_waiting] = True, True
        some = grows & (touched | (heads.armed <= self.watermark_us))
        self._arm(grown.picked(some), waits[:, some], seen)
        results = self.op.emitter.concat([])
        if len(walked):
            own_rows = ready.filter(pa.array(~inside))
            results = self._walk(self.log.lookup(walked), own_rows, heads.picked(~grows), waits[:, ~grows], seen)
        self.log.append(pa.concat_tables(seen.entries))
        self.timers.insert(pa.concat_tables([_TIMER.empty_table(), *seen.timers]), self.watermark_us)
        self.heads.write(seen.heads)
        return results

    def _grown(self, heads: Heads, ready: pa.Table, of_ready: Ints) -> tuple[Heads, Mask]:
        """Heads with the rows that reached the watermark, and for which keys that is all there is to do."""
        n = len(heads.starts)
        times, reaches = ready[START].to_numpy(), ready[END].to_numpy()
        has = np.flatnonzero(heads.starts != UNSET)
        groups = np.concatenate([has, of_ready])
        starts, ends = np.concatenate([heads.starts[has], times]), np.concatenate([heads.ends[has], reaches])
        sessions = self.op.limits.sessions(groups, starts, ends)
        of_session = values_at(sessions.ids, groups, sessions.n)
        grown = attrs.evolve(heads, starts=np.full(n, UNSET), ends=np.full(n, UNSET), ordered_from=heads.ordered_from.copy())
        grown.starts[of_session], grown.ends[of_session] = sessions.starts, sessions.ends
        np.maximum.at(grown.ordered_from, of_ready, times)
        astray = flags_at(of_ready[times < heads.ordered_from[of_ready]], n)
        counts = np.bincount(of_session, minlength=n)
        fires = (counts > 1) | ((counts == 1) & (grown.ends <= self.due_at))
        return grown, ~astray & ~fires & (heads.other > self.classified_us)

    def _arm(self, heads: Heads, waits: Ints, seen: _StepWrites) -> None:
        """See that each key is looked at in time; `waits` has when the first and the last of its new rows ahead would end."""
        inside, wait_us = heads.starts != UNSET, self.op.firing_delay.wait_us
        coming = np.minimum(heads.other, waits[0])
        coming[inside] = np.minimum(coming[inside], heads.ends[inside] + wait_us)
        gone = heads.armed <= self.watermark_us
        # rows ahead that came before: those that end sooner than the last session belong to it; else none ends before this
        if (past := ~inside & gone & (heads.waiting_until > self.watermark_us)).any():
            coming[past] = np.minimum(coming[past], self.due_at + 1 + self.op.shortest_us + wait_us)
        armed = np.where(gone, END_OF_TIME, heads.armed)
        sooner = coming < armed
        if sooner.any():
            timer = [heads.keys[HASH].filter(pa.array(sooner)), pa.array(coming[sooner])]
            seen.timers.append(pa.Table.from_arrays(timer, schema=_TIMER))
        until = np.maximum(heads.waiting_until, waits[1])
        seen.heads.append(attrs.evolve(heads, armed=np.minimum(armed, coming), waiting_until=until))

    def _walk(self, held: pa.Table, ready: pa.Table, heads: Heads, waits: Ints, seen: _StepWrites) -> pa.Table:
        """Walk the rows of some keys again; returns results."""
        names = self.op.layout.key_names
        entries = pa.concat_tables([held, ready])
        keys = group_rows(names, heads.keys, entries)
        n_heads = len(heads.starts)
        groups = keys.ids[n_heads:]
        alive = self.op.log.sift(entries, groups, keys.n)
        place = last_rows(keys.ids, keys.n)
        own = pa.concat_tables([t.select([HASH, *names]) for t in (heads.keys, entries)])
        of_head = keys.ids[:n_heads]
        armed, until = alive.armed, np.full(keys.n, UNSET)
        noted = heads.armed != END_OF_TIME
        armed[of_head[noted]], until[of_head] = heads.armed[noted], heads.waiting_until
        extremes = np.full((2, keys.n), [[END_OF_TIME], [UNSET]])
        extremes[:, of_head] = waits
        walked = _KeyEntries(entries, held.num_rows, alive, pick(own, place))
        return self._fire(walked, armed, until, extremes, seen)

    def _fire(self, walked: _KeyEntries, armed: Ints, until: Ints, waits: Ints, seen: _StepWrites) -> pa.Table:
        entries, alive, seq = walked.entries, walked.alive, self.seq
        row_places = np.flatnonzero(alive.rows)
        rows = pick(entries, row_places)
        groups = alive.groups[row_places]
        sessions = self.op.limits.sessions(groups, rows[START].to_numpy(), rows[END].to_numpy())
        of_session = values_at(sessions.ids, groups, sessions.n)
        complete = sessions.ends <= self.due_at
        shown = alive.standing & (self.op.mode != "final")
        standing = entries.filter(pa.array(shown))
        before = _ResultSessions(standing, alive.groups[shown], sessions, of_session)
        changed = np.zeros(sessions.n, np.bool_)
        came = rows[SEQ].to_numpy() == seq
        changed[sessions.ids[came]] = True
        firing = complete & ~before.as_before(changed)
        by = before.withdrawn_by(firing)
        gone = by >= 0
        numbers = np.cumsum(firing) - 1
        replaced_by = numbers[by[gone]]
        merged = self._merge(rows, sessions, firing)
        index = largest_of(replaced_by, standing[FIRED].to_numpy()[gone], merged.num_rows, 0)
        stays = standing.filter(pa.array(~gone & before.may_change(sessions.ends <= self.horizon)))
        seen.entries.extend(self._standing(stays, merged, index + 1, seq))
        self._record(walked, rows, sessions, of_session, complete, armed, seen)
        self._arm(self._heads(walked, rows[START].to_numpy(), sessions, of_session, complete, armed, until), waits, seen)
        old = standing.filter(pa.array(gone))
        if self.op.mode != "retractions":
            old, replaced_by = old.slice(0, 0), replaced_by[:0]
        late = changed | (np.isin(of_session, groups[came]) & before.covered())
        return change_log(self.op.emitter, old, replaced_by, Firing(merged, pane_names(self.op.mode, late[firing]), index))

    def _standing(self, stays: pa.Table, merged: pa.Table, fired: Ints, seq: int) -> list[pa.Table]:
        """Return the results that stand after this step and may yet change."""
        if not self.op.keeps_fired:
            return []
        open_ = merged[END].to_numpy() > self.horizon
        return [
            self.op.log.entries(stays, seq, STANDING, stays[FIRED].to_numpy()),
            self.op.log.entries(merged.filter(pa.array(open_)), seq, STANDING, fired[open_]),
        ]

    def _merge(self, rows: pa.Table, sessions: Components, firing: Mask) -> pa.Table:
        """Return the sessions that fire, merged from their rows in order of arrival, with their bounds."""
        inside = firing[sessions.ids]
        numbers = np.cumsum(firing) - 1
        picked = rows.filter(pa.array(inside))
        ids = numbers[sessions.ids[inside]]
        order = _arrival(picked)
        merged = self.rows.merge(pick(picked, order), ids[order], int(firing.sum()))
        return with_column(merged, END, pa.array(sessions.ends[firing]))

    def _record(
        self,
        walked: _KeyEntries,
        rows: pa.Table,
        sessions: Components,
        of_session: Ints,
        complete: Mask,
        armed: Ints,
        seen: _StepWrites,
    ) -> None:
        """Write the rows that are new to the log, and what is withdrawn or gone."""
        entries, alive, n = walked.entries, walked.alive, len(armed)
        new = alive.rows.copy()
        new[: walked.n_held] = False
        seen.entries.append(entries.filter(pa.array(new)))
        if self.op.keeps_fired or alive.standing.any():
            seen.entries.append(self.op.log.marks(walked.keys, armed, self.seq, MARK))
        shut = sessions.ends <= self.horizon
        if shut.any():
            closed = largest_of(of_session[shut], sessions.ends[shut], n, UNSET)
            some = closed != UNSET
            seen.entries.append(self.op.log.marks(walked.keys.filter(pa.array(some)), closed[some], self.seq, CLOSED))

    def _heads(
        self, walked: _KeyEntries, times: Ints, sessions: Components, of_session: Ints, complete: Mask, armed: Ints, until: Ints
    ) -> Heads:
        """Return the head of each key that was walked; `times` are those of its rows."""
        n = len(armed)
        starts, ends, ordered_from = np.full((3, n), UNSET)
        other = np.full(n, END_OF_TIME)
        open_ = sessions.ends > self.horizon
        last = np.ones(sessions.n, np.bool_)
        last[:-1] = of_session[1:] != of_session[:-1]
        goes_on = last & ~complete
        starts[of_session[goes_on]], ends[of_session[goes_on]] = sessions.starts[goes_on], sessions.ends[goes_on]
        fired = last & complete & open_
        ordered_from[of_session[fired]] = sessions.ends[fired] + int(self.rows.touching)
        inside = goes_on[sessions.ids]
        np.maximum.at(ordered_from, of_session[sessions.ids[inside]], times[inside])
        keeps = np.where(complete, self.op.firing_delay.keep_us, self.op.firing_delay.wait_us)
        others = open_ & ~goes_on
        np.minimum.at(other, of_session[others], sessions.ends[others] + keeps[others])
        return Heads(walked.keys, starts, ends, ordered_from, other, armed, until)


@attrs.frozen(eq=False)
class _KeyEntries:
    """Entries of the keys that are walked, first those of the log; and hash and key of each key."""

    entries: pa.Table
    n_held: int
    alive: LiveEntries
    keys: pa.Table


@attrs.frozen(eq=False)
class _StepWrites:
    """Holds what a step writes in the end: entries of the log, timers, and heads."""

    entries: list[pa.Table]
    timers: list[pa.Table]
    heads: list[Heads]


def _arrival(rows: pa.Table) -> Ints:
    """Return the order in which rows came: by batch, then by their place in it."""
    return pair_order(rows[SEQ].to_numpy(), rows[FIRED].to_numpy())


class _ResultSessions:
    """Says which sessions the results that stand have become."""

    def __init__(self, standing: pa.Table, groups: Ints, sessions: Components, of_session: Ints) -> None:
        starts, ends = standing[START].to_numpy(), standing[END].to_numpy()
        self.n, n_old = sessions.n, len(starts)
        if not n_old or not self.n:
            self.first, self.stop = np.zeros((2, n_old), np.int64)
            self.same = np.zeros(n_old, np.bool_)
            return
        group_of = np.concatenate([of_session, of_session, groups, groups])
        codes = PairCodes(group_of, np.concatenate([sessions.starts, sessions.ends, starts, ends])).codes
        own_starts, own_ends = codes[2 * self.n : 2 * self.n + n_old], codes[2 * self.n + n_old :]
        self.first = _places(codes[self.n : 2 * self.n], own_starts, after=True)
        self.stop = _places(codes[: self.n], own_ends, after=False)
        places = np.minimum(self.first, self.n - 1)
        self.same = (codes[places] == own_starts) & (codes[self.n + places] == own_ends)

    def as_before(self, changed: Mask) -> Mask:
        """Sessions whose result stays as it is."""
        mask = flags_at(self.first[self.same], self.n)
        return mask & ~changed

    def covered(self) -> Mask:
        """Sessions made of rows whose results stand, though perhaps divided otherwise."""
        marks = totals_of(self.first, 1, self.n + 1)
        np.add.at(marks, self.stop, -1)
        return np.cumsum(marks)[: self.n] > 0

    def withdrawn_by(self, firing: Mask) -> Ints:
        """Return the firing session that takes the place of each result; -1 for those that go on standing."""
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


@attrs.frozen(eq=False)
class _Line:
    """The rows of sessions that rows come to, session by session, in order of arrival: positions are along this line.

    Attributes
    ----------
    at : ndarray of int64
        Row.
    session : ndarray of int64
        From 0 without gaps, ascending.
    heads : ndarray of int64
        Where each session begins.
    groups : ndarray of int64
        Group of each session.
    starts, ends : ndarray of int64
        Bounds of the session when the row has come; of no use at rows that were there.
    new : ndarray of bool
        Rows that come.
    """

    at: Ints
    session: Ints
    heads: Ints
    groups: Ints
    starts: Ints
    ends: Ints
    new: Mask


@attrs.frozen(eq=False)
class _Firings:
    """Firings along the line: where, of which session, how many of it there were before, and their number by arrival."""

    place: Ints
    session: Ints
    nth: Ints
    number: Ints

    @property
    def lead(self) -> Mask:
        """The first of each session."""
        mask: Mask = self.nth == 0
        return mask


def fire_by_row(ledger: WrittenSessions, cut: RowSessions, came: Mask, watermark_us: int) -> None:
    """Let rows come that divide none again; `cut` has the sessions they come to, `came` masks them among all rows."""
    s = ledger.state
    line = _line(ledger, cut, came)
    late = line.ends <= watermark_us
    f = _fired(ledger, line, late)
    if not len(f.place):
        return
    index = np.maximum.reduceat(s.often[line.at], line.heads)[f.session] + f.nth
    of_firing, tells = _first_firings(line, f)
    used = ~s.fired[line.at] if ledger.discarding else np.ones(len(line.at), np.bool_)
    counts = _counts(line, f, used, fresh=ledger.discarding)
    order = np.argsort(f.number)
    place = f.place[order]
    first = ledger.results.add(
        line.starts[place],
        line.ends[place],
        counts[order],
        line.groups[f.session[order]],
        line.at[place],
        index[order],
        np.where(late[place], "late", "early"),
    )
    _contents(ledger, line, f, of_firing, tells & used, first)
    if not ledger.discarding:
        gone, by = _withdrawn(ledger, cut, line, f, first)
        if ledger.retract:
            ledger.results.withdraw(gone, first + by)
    _note(ledger, line, f, late, index, first)


def _counts(line: _Line, f: _Firings, used: Mask, *, fresh: bool) -> Ints:
    """Of every firing the rows that are used, from the beginning or `fresh` after each firing."""
    seen: Ints = np.cumsum(used)
    before = seen[line.heads] - used[line.heads]
    counts = seen[f.place]
    return counts - np.where(f.lead | (not fresh), before[f.session], np.roll(counts, 1))


def _line(ledger: WrittenSessions, cut: RowSessions, came: Mask) -> _Line:
    s, ids = ledger.state, cut.sessions.ids
    inside = np.flatnonzero(cut.where(came)[ids])
    order = inside[stable_order(ids[inside])]
    rows, of = cut.at[order], ids[order]
    heads = np.flatnonzero(np.concatenate([[True], of[1:] != of[:-1]]))
    session = np.repeat(np.arange(len(heads)), np.diff(np.append(heads, len(of))))
    starts = cut.sessions.starts[of]
    ends = np.minimum(running_reach(session, s.reaches[rows]), starts + ledger.limits.cap_us)
    return _Line(rows, session, heads, cut.groups[of[heads]], starts, ends, came[rows])


def _fired(ledger: WrittenSessions, line: _Line, late: Mask) -> _Firings:
    """Return which rows make their session fire."""
    early_n, late_n = (x if isinstance(x, int) else 0 for x in (ledger.trigger.early, ledger.trigger.late))
    rows = np.flatnonzero(line.new)
    session = line.session[rows]
    head = np.concatenate([[True], session[1:] != session[:-1]])
    weights = np.ones(len(rows), np.int64)
    waiting = line.session[~line.new & ~ledger.state.fired[line.at]]
    weights[head] += np.bincount(waiting, minlength=len(line.heads))
    fires = firing(weights, np.where(late[rows], late_n, early_n), late[rows], head)
    place, session = rows[fires], session[fires]
    number = last_rows(np.argsort(line.at[place]), len(place))
    return _Firings(place, session, rank(session), number)


def _first_firings(line: _Line, f: _Firings) -> tuple[Ints, Mask]:
    """By row the firing that tells of it first, counted along the line, and whether there is one."""
    fires = values_at(f.place, 1, len(line.at))
    of_firing = np.cumsum(fires) - fires
    beyond = of_firing == len(f.place)
    of_firing[beyond] = 0
    tells: Mask = ~beyond & (f.session[of_firing] == line.session)
    return of_firing, tells


def _contents(ledger: WrittenSessions, line: _Line, f: _Firings, of_firing: Ints, wanted: Mask, first: int) -> None:
    """Say what each firing is made of: the first one of the stored result, if that is whole, each other of the one before."""
    under = ledger.state.under[line.at]
    parents = np.full(len(f.place), -1, np.int64)
    if not ledger.discarding:
        parents[f.lead] = ledger.continued(line.at, line.session, len(line.heads))[f.session[f.lead]]
        follows = np.flatnonzero(~f.lead)
        parents[follows] = first + f.number[follows - 1]
        written = (under >= 0) & (under == parents[of_firing])
        wanted = wanted & ~written
    rows = np.flatnonzero(wanted)
    of_number = values_at(f.number, parents, len(parents))
    ledger.contents.add(f.number[of_firing[rows]], line.at[rows], of_number)


def _withdrawn(ledger: WrittenSessions, cut: RowSessions, line: _Line, f: _Firings, first: int) -> tuple[Ints, Ints]:
    """Take away what was there and, one after the other, what firings wrote; numbers of results, and which firing does it."""
    lead = values_at(f.session[f.lead], f.number[f.lead], len(line.heads), -1)
    of_row = lead[line.session]
    inside = of_row >= 0
    gone, by = ledger.withdraw(cut.at, line.at[inside], of_row[inside])
    follows = np.flatnonzero(~f.lead)
    return np.append(gone, first + f.number[follows - 1]), np.append(by, f.number[follows])


def _note(ledger: WrittenSessions, line: _Line, f: _Firings, late: Mask, index: Ints, first: int) -> None:
    """Keep by row what has become of it."""
    s = ledger.state
    last = last_rows(f.session, len(line.heads))
    of_row = last[line.session]
    within = (of_row >= 0) & (np.arange(len(of_row)) <= f.place[of_row])
    rows, of_row = line.at[within], of_row[within]
    s.fired[rows] = True
    s.often[rows] = index[of_row] + 1
    if not ledger.discarding:
        s.under[rows] = first + f.number[of_row]
    over = np.full(len(line.heads), -1, np.int64)
    fired_late = late[f.place]
    over[f.session[fired_late]] = f.place[fired_late]
    s.done[line.at[np.arange(len(line.at)) <= over[line.session]]] = True


_FEW, _MANY = 16, 2_048
"""Keys of few rows each, but of many together, come row by row: rounds over all keys are cheaper than walking by hand."""


@attrs.frozen(eq=False)
class Pieces:
    """By row: the number of its piece among those of its key, and whether it comes alone."""

    turn: Ints
    alone: Mask


def pieces(state: RowState, held: Ints, coming: Ints, limits: Limits) -> Pieces:
    """Return the pieces of the rows `coming`, in order of arrival, to those `held`."""
    groups, times = state.groups[coming], state.starts[coming]
    n = int(groups.max()) + 1
    newest = np.full(n, np.iinfo(np.int64).min)
    of_held = state.groups[held]
    known = of_held < n
    np.maximum.at(newest, of_held[known], state.starts[held[known]])
    order = stable_order(groups)
    g, t = groups[order], times[order]
    out_of_turn = (t < running_reach(g, t)) | (t < newest[g])
    turn = np.zeros(len(coming), np.int64)
    astray = flags_at(g[out_of_turn], n)
    counts = np.bincount(groups, minlength=n)
    few = astray & (counts <= _FEW)
    if int(counts[few].sum()) < _MANY:
        few &= counts == 1
    alone = few[groups]
    turn[alone] = rank(groups[alone])
    by_hand = np.flatnonzero(astray & ~few)
    if len(by_hand):
        _by_hand(state, held, coming, limits, by_hand, n, turn, alone)
    return Pieces(turn, alone)


def _by_hand(state: RowState, held: Ints, coming: Ints, limits: Limits, wanted: Ints, n: int, turn: Ints, alone: Mask) -> None:
    """Fill in the pieces of the rows of some keys."""
    examined = flags_at(wanted, n)
    of_held, of_coming = state.groups[held], state.groups[coming]
    held = held[of_held < n]
    held = held[examined[state.groups[held]]]
    held = held[pair_order(state.groups[held], state.starts[held])]
    rows = np.flatnonzero(examined[of_coming])
    rows = rows[stable_order(of_coming[rows])]
    bounds = np.append(wanted, n)
    held_cuts = np.searchsorted(state.groups[held], bounds).tolist()
    cuts = np.searchsorted(of_coming[rows], bounds).tolist()
    t0, r0 = state.starts[held].tolist(), state.reaches[held].tolist()
    t1, r1 = state.starts[coming[rows]].tolist(), state.reaches[coming[rows]].tolist()
    turns, alones = [], []
    for i in range(len(wanted)):
        a, b = held_cuts[i], held_cuts[i + 1]
        key = _Key(t0[a:b], r0[a:b], limits)
        number, was = 0, False
        for k in range(cuts[i], cuts[i + 1]):
            divides = key.divides(t1[k], r1[k])
            if (divides or was) and k > cuts[i]:
                number += 1
            turns.append(number)
            alones.append(divides)
            was = divides
    turn[rows], alone[rows] = turns, alones


class _Key:
    """The sessions of one key as rows come: first time, last time and reach of each, ascending; and all rows by time."""

    def __init__(self, times: list[int], reaches: list[int], limits: Limits) -> None:
        self._times, self._reaches = times, reaches
        self._cap, self._more = limits.cap_us, int(limits.touching)
        self._first: list[int] = []
        self._last: list[int] = []
        self._reach: list[int] = []
        if times:
            self._walk(0, 0)

    def divides(self, t: int, reach: int) -> bool:
        """Let a row come; whether it divides others again."""
        firsts = self._first
        i = bisect_right(firsts, t) - 1
        joins = i >= 0 and (t <= self._last[i] or (t < self._reach[i] + self._more and t - firsts[i] < self._cap))
        place = bisect_right(self._times, t)
        self._times.insert(place, t)
        self._reaches.insert(place, reach)
        first = firsts[i] if joins else t
        if i + 1 < len(firsts) and firsts[i + 1] < reach + self._more and firsts[i + 1] - first < self._cap:
            i += not joins
            self._walk(i, bisect_left(self._times, first))
            return True
        if not joins:
            i += 1
            firsts.insert(i, t)
            self._last.insert(i, t)
            self._reach.insert(i, reach)
        else:
            self._last[i] = max(self._last[i], t)
            self._reach[i] = max(self._reach[i], reach)
        return False

    def _walk(self, i: int, place: int) -> None:
        """Divide the rows from `place` on again, as the sessions from number `i` on, until one begins where one began."""
        times, reaches = self._times, self._reaches
        old, stop = self._first, i
        firsts, lasts, ends = [times[place]], [times[place]], [reaches[place]]
        for t, reach in zip(times[place + 1 :], reaches[place + 1 :], strict=True):
            if t < ends[-1] + self._more and t - firsts[-1] < self._cap:
                lasts[-1] = t
                ends[-1] = max(ends[-1], reach)
                continue
            while stop < len(old) and old[stop] < t:
                stop += 1
            if stop < len(old) and old[stop] == t:
                break
            firsts.append(t)
            lasts.append(t)
            ends.append(reach)
        else:
            stop = len(old)
        self._first[i:stop], self._last[i:stop], self._reach[i:stop] = firsts, lasts, ends
