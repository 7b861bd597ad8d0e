"""When the keys of sessions with triggers are looked at: when rows of them come, when they are due, when the clock says so."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from krishiv_py.kernels.arrays.grouping import group, key_hashes
from krishiv_py.kernels.arrays.sorting import sorted_unique
from krishiv_py.kernels.arrays.types import Ints
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.input.lateness import floor_watermark
from krishiv_py.kernels.results.contract import StepResult
from krishiv_py.kernels.results.emit import Emitter
from krishiv_py.kernels.state.keyed_log import HASH, KeyedLog
from krishiv_py.kernels.state.store import ChunkStore, Meta
from krishiv_py.kernels.state.timer_queue import DUE, DueQueue
from krishiv_py.kernels.windows.session.rows import SessionRows
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.options.triggers import Interval, Trigger

_TIMER = pa.schema([pa.field(HASH, pa.int64()), pa.field(DUE, pa.int64())])
_HASHES = pa.schema([pa.field(HASH, pa.int64())])
_FINEST_US = 1 << 18


class Entries(Protocol):
    """What makes, sifts and merges the entries of a log."""

    schema: pa.Schema

    def compact(self, entries: pa.Table, oldest: bool) -> pa.Table:
        """Entries that still matter."""
        ...


class Visited(Protocol):
    """What a visit asks of its operator."""

    layout: Layout
    rows: SessionRows
    emitter: Emitter
    lateness_us: int
    trigger: Trigger

    @property
    def entries(self) -> Entries:
        """Of its log."""
        ...


class Visits:
    """One bucket in one micro-batch."""

    def __init__(self, operator: Visited, store: ChunkStore, meta: Meta, watermark_us: int) -> None:
        self._visited = operator
        self.trigger = operator.trigger
        self.meta = meta
        self.watermark_us = watermark_us
        self.horizon = floor_watermark(watermark_us, operator.lateness_us)
        self.log = KeyedLog(store, meta, "k", operator.entries.schema, operator.entries.compact)
        self.changed = KeyedLog(store, meta, "i", _HASHES, _once)
        self.timers = DueQueue(store, meta, "w", _FINEST_US)
        self.late: pa.Table | None = None

    def visit(self, hashes: Ints, chunk: pa.Table, *, due: bool = False, interval: bool = False) -> pa.Table:
        """Look at some keys: because rows of them came, because they are due, or because they changed. Returns results."""
        raise NotImplementedError

    def run(self, chunk: pa.Table, now_us: int | None) -> StepResult:
        """What the watermark makes due, then the rows that came, then what changed if the time has come."""
        nothing = chunk.slice(0, 0)
        timers = pa.concat_tables([_TIMER.empty_table(), *self.timers.pop(self.watermark_us)])
        due = sorted_unique(timers[HASH].to_numpy())
        results = [self.visit(due, nothing, due=True)] if len(due) else []
        early = self.trigger.early
        if chunk.num_rows:
            hashes = sorted_unique(key_hashes([chunk[k] for k in self._visited.layout.key_names], chunk.num_rows))
            results.append(self.visit(hashes, chunk))
            if isinstance(early, Interval):
                self.changed.append(pa.Table.from_arrays([pa.array(hashes)], schema=_HASHES))
        if isinstance(early, Interval) and self._time_has_come(early, now_us):
            hashes = sorted_unique(self.changed.everything()[HASH].to_numpy())
            self.changed.clear()
            results.append(self.visit(hashes, nothing, interval=True))
        if not len(self.timers):
            self.log.clear()
        table = self._visited.emitter.concat(results)
        n_late = 0 if self.late is None else self.late.num_rows
        return StepResult(
            table,
            self.timers.earliest,
            len(self.timers),
            len(self.log),
            table.num_rows,
            {"late": n_late} if n_late else {},
            self.late,
            self._wakeup_now(),
        )

    def arm(self, marks: pa.Table, heads: pa.Table, coming: Ints) -> Ints:
        """See that keys are looked at when `coming` says, at the latest; `heads` has hash and key of each. Returns when."""
        armed = self._armed(marks, heads)
        sooner = coming < armed
        if sooner.any():
            timer = [heads[HASH].filter(pa.array(sooner)), pa.array(coming[sooner])]
            self.timers.insert(pa.Table.from_arrays(timer, schema=_TIMER), self.watermark_us)
        return np.minimum(armed, coming)

    def _armed(self, marks: pa.Table, heads: pa.Table) -> Ints:
        """When each key is looked at again by what was noted before; entries up to the watermark have left the queue."""
        names = self._visited.layout.key_names
        n = heads.num_rows
        both = pa.concat_tables([heads.select([HASH, *names]), marks.select([HASH, *names])])
        keys = group(list(both.columns[1:]), both.num_rows)
        place = np.empty(keys.n, np.int64)
        place[keys.ids[:n]] = np.arange(n)
        armed = np.full(n, END_OF_TIME)
        armed[place[keys.ids[n:]]] = marks[TIME].to_numpy()
        return np.where((armed <= self.watermark_us) & (self.watermark_us != UNSET), END_OF_TIME, armed)

    def _time_has_come(self, early: Interval, now_us: int | None) -> bool:
        if now_us is None or not len(self.changed):
            return False
        if now_us - int(self.meta.setdefault("shown_at", now_us)) < early.period_us:
            return False
        self.meta["shown_at"] = now_us
        return True

    def _wakeup_now(self) -> int | None:
        early = self.trigger.early
        if not isinstance(early, Interval) or not len(self.changed) or "shown_at" not in self.meta:
            return None
        return int(self.meta["shown_at"]) + early.period_us


def _once(hashes: pa.Table, oldest: bool) -> pa.Table:
    return pa.Table.from_arrays([pa.array(sorted_unique(hashes[HASH].to_numpy()))], schema=_HASHES)
