"""Determine when the keys of sessions with triggers are looked at: when rows of them come, when they are due, when the
clock says so.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group_rows, key_hashes
from krishiv_py.arrays.sorting import sorted_unique
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.firing.custom_trigger import Question, custom_trigger_of
from krishiv_py.kernels.firing.due import FiringDelay, IntervalGate
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results import Emitter, StepResult, counted, split_late
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket, Section
from krishiv_py.kernels.state.timer_queue import DUE, DueQueue
from krishiv_py.kernels.state.window_log import HASH, KeyedLog
from krishiv_py.kernels.windows.session.keyed_state import EntryLog
from krishiv_py.kernels.windows.session.rows import END, SessionRows
from krishiv_py.plan.durations import END_OF_TIME, UNSET

Early: TypeAlias = Literal["none", "came", "all"]
_TIMER = pa.schema([pa.field(HASH, pa.int64()), pa.field(DUE, pa.int64())])
_HASHES = pa.schema([pa.field(HASH, pa.int64())])
_FINEST_US = 1 << 18


@attrs.define
class Numbers(Section):
    """Says how many looks at keys, rows and results there have been: the next ones are numbered on from there."""

    seq: int = 0
    rows: int = 0
    results: int = 0


class VisitingOperator:
    """Sessions with triggers: what their kinds share."""

    entries: EntryLog

    def __init__(self, spec: OperatorSpec) -> None:
        self.layout = Layout(spec)
        self.rows = SessionRows(self.layout)
        self.emitter = Emitter(self.layout)
        self.firing_delay = FiringDelay.of(spec.options)
        self.trigger = spec.options.trigger
        self.custom_trigger = custom_trigger_of(self.trigger)
        self.discarding = spec.options.accumulation == "discarding"
        self.retract = spec.options.emit_mode == "retractions" and not self.discarding

    def combine(self, rows: pa.Table) -> pa.Table:
        """Rows as they are: each may make a session fire, or be refused."""
        return rows

    def log(self, bucket: Bucket) -> KeyedLog:
        """Return the entries of a bucket."""
        return KeyedLog(bucket, "k", self.entries.schema, self.entries.compact)


class Visits:
    """One bucket in one micro-batch."""

    def __init__(self, operator: VisitingOperator, bucket: Bucket, moment: Moment) -> None:
        self._visited = operator
        self.trigger = operator.trigger
        self.numbers, self.gate = Numbers.of(bucket), IntervalGate.of(bucket)
        self.bucket, self.moment = bucket, moment
        self.question = None if operator.custom_trigger is None else Question(operator.custom_trigger, operator.layout, moment)
        self.watermark_us = moment.watermark_us
        self.horizon = operator.firing_delay.due(moment).horizon_us
        self.log = operator.log(bucket)
        self.changed = KeyedLog(bucket, "i", _HASHES, _once)
        self.timers = DueQueue(bucket, "w", _FINEST_US)
        self.late: pa.Table | None = None

    def visit(self, hashes: Ints, chunk: pa.Table, *, due: bool = False, early: Early = "none") -> pa.Table:
        """Look at some keys: because rows of them came, because they are due, or because they changed. Returns results.

        `early` says which sessions fire early, or are asked about: those that rows of `chunk` came to, or all that changed.
        """
        raise NotImplementedError

    def closed(self, groups: Ints, starts: Ints, ends: Ints, n_held: int) -> Mask:
        """Rows after the held ones that end up in a session that is closed."""
        raise NotImplementedError

    def without_late(self, held: pa.Table, rows: pa.Table) -> pa.Table:
        """Rule "window": refuse rows that end up in a closed session, next to what is held of their keys."""
        times, of = rows[TIME].to_numpy(), self._visited
        if not of.rows.by_window or not (times < self.horizon).any():
            return rows
        keys = group_rows(of.layout.key_names, held, rows)
        starts = np.concatenate([held[TIME].to_numpy(), times])
        ends = np.concatenate([held[END].to_numpy(), of.rows.ends(rows)])
        split = split_late(of.layout, rows, times, self.closed(keys.ids, starts, ends, held.num_rows), self.watermark_us)
        self.late = split.late
        return split.rows

    def coming(self, ends: Ints, waits: Mask, groups: Ints, n: int) -> Ints:
        """Return when each of `n` keys is to be looked at again, given its open sessions and which of them wait for the
        watermark.
        """
        moment = ends + np.where(ends <= self.watermark_us, self._visited.firing_delay.keep_us, 0)
        if self.trigger.late == "watermark":
            moment = np.where(waits, min(self.watermark_us + 1, END_OF_TIME), moment)
        coming = np.full(n, END_OF_TIME)
        np.minimum.at(coming, groups, moment)
        return coming

    def run(self, chunk: pa.Table) -> StepResult:
        """Return what the watermark makes due, then the rows that came, then what changed if the time has come."""
        nothing = chunk.slice(0, 0)
        timers = pa.concat_tables([_TIMER.empty_table(), *self.timers.pop(self.watermark_us)])
        due = sorted_unique(timers[HASH].to_numpy())
        results = [self.visit(due, nothing, due=True)] if len(due) else []
        changed = len(self.changed) > 0 or chunk.num_rows > 0
        calls_triggers = self.question is None or self.moment.calls_triggers
        opens = calls_triggers and self.gate.opens(self.trigger, self.moment, changed=changed)
        if chunk.num_rows:
            hashes = sorted_unique(key_hashes([chunk[k] for k in self._visited.layout.key_names], chunk.num_rows))
            results.append(self.visit(hashes, chunk, early="none" if self.question is None or opens else "came"))
            if self.trigger._period_us is not None:
                self._note(hashes)
        if opens:
            hashes = sorted_unique(self.changed.everything()[HASH].to_numpy())
            self.changed.clear()
            left = set() if self.question is None else self.question.left
            left.clear()
            results.append(self.visit(hashes, nothing, early="all"))
            if left:
                self._note(np.array(sorted(left), np.int64))
        if not len(self.timers):
            self.log.clear()
        self.numbers.store(self.bucket)
        self.gate.store(self.bucket)
        table = self._visited.emitter.concat(results)
        return StepResult(
            table,
            self.timers.earliest,
            len(self.timers),
            len(self.log),
            table.num_rows,
            counted(self.late),
            self.late,
            self.gate.wakeup(self.trigger, changed=len(self.changed) > 0),
        )

    def _note(self, hashes: Ints) -> None:
        """Note that something of these keys waits for the clock."""
        self.changed.append(pa.Table.from_arrays([pa.array(hashes)], schema=_HASHES))

    def arm(self, marks: pa.Table, heads: pa.Table, coming: Ints) -> Ints:
        """See that keys are looked at when `coming` says, at the latest; `heads` has hash and key of each. Returns when."""
        armed = self._armed(marks, heads)
        sooner = coming < armed
        if sooner.any():
            timer = [heads[HASH].filter(pa.array(sooner)), pa.array(coming[sooner])]
            self.timers.insert(pa.Table.from_arrays(timer, schema=_TIMER), self.watermark_us)
        return np.minimum(armed, coming)

    def _armed(self, marks: pa.Table, heads: pa.Table) -> Ints:
        """Return when each key is looked at again by what was noted before; entries up to the watermark have left the queue."""
        names = self._visited.layout.key_names
        n = heads.num_rows
        keys = group_rows(names, heads, marks)
        place = np.empty(keys.n, np.int64)
        place[keys.ids[:n]] = np.arange(n)
        armed = np.full(n, END_OF_TIME)
        armed[place[keys.ids[n:]]] = marks[TIME].to_numpy()
        return np.where((armed <= self.watermark_us) & (self.watermark_us != UNSET), END_OF_TIME, armed)


def _once(hashes: pa.Table, oldest: bool) -> pa.Table:
    return pa.Table.from_arrays([pa.array(sorted_unique(hashes[HASH].to_numpy()))], schema=_HASHES)
