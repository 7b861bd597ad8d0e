"""Process functions (SEMANTICS §14): rows and timers of each key go through a user's function in settled order.

A bucket keeps facts: rows that are not settled, by their time; of each key its state with its timers, as the newest row of a
table; and a queue that says when a key is to be looked at::

    rows     ──► held by time ──settled──► with the state of their key ──► on_row, on_timer ──► state, results
    timers   in the row of the key         ▲
    look at  (key, time) ──────due─────────┘

A timer that moves to a later time leaves the queue as it is: the key is looked at once in vain, and again when it is due. So a
batch costs what it brings and what is due, whatever is held.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group_rows, key_hashes
from krishiv_py.arrays.sorting import sorted_unique
from krishiv_py.arrays.types import Ints, pick
from krishiv_py.kernels.aggregates.base import shown_key
from krishiv_py.kernels.columns.layout import TIME, Layout, whole
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.process.calls import Calls, StepCalls, ranks_of
from krishiv_py.kernels.process.rounds import Rounds
from krishiv_py.kernels.process.states import CALLED, FIRED, NEVER, TIMERS, KeyRows, KeyUpdates
from krishiv_py.kernels.results import StepResult
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.key_table import HAS_STATE, STATE_FIELD, KeyTable
from krishiv_py.kernels.state.store import WRITTEN, Bucket, Section
from krishiv_py.kernels.state.timer_queue import DUE, DueQueue
from krishiv_py.kernels.state.window_log import HASH, DeadKeys
from krishiv_py.kernels.watermark import floor_watermark
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.processing import Processing

_ARRIVED: Final = "n"
_LOOK, _CLOCK = "__look", "__clock"
_LOOKS: Final = pa.schema([pa.field(HASH, pa.int64()), pa.field(DUE, pa.int64())])


@attrs.define
class _Arrived(Section):
    """The number of rows that have arrived: rows of equal time go to the function in this order."""

    process_arrived: int = 0


class ProcessOperator:
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        operation = spec.operation
        assert isinstance(operation, Processing)
        self.operation = operation
        self.layout = layout = Layout(spec)
        self.late_us = spec.options.allowed_lateness_us
        self.names = layout.key_names
        working = dict(zip(spec.keys, self.names, strict=True)) | dict(zip(layout.own, layout.own_names, strict=True))
        self.working = working
        numbers = [pa.field(_ARRIVED, pa.int64()), pa.field(DUE, pa.int64())]
        self.held_schema = pa.schema([*layout.row_schema, *numbers])
        fields = [] if operation.state is None else list(operation.state.schema)
        self.state_fields = [pa.field(f"{STATE_FIELD}{f.name}", f.type) for f in fields]
        self.values = [
            pa.field(HAS_STATE, pa.bool_()),
            pa.field(TIMERS, pa.map_(pa.string(), pa.int64())),
            *(pa.field(name, pa.int64()) for name in (_LOOK, _CLOCK, CALLED, FIRED)),
            *self.state_fields,
        ]
        self.finest_us = max(spec.tick_us, 1 << 16)

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return the rows as they are."""
        return rows

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return _Step(self, bucket, moment).run(pa.concat_tables([self.layout.row_schema.empty_table(), *chunks]))

    def table(self, bucket: Bucket) -> KeyTable:
        """Return the state and the timers of the keys of a bucket."""
        return KeyTable(bucket, "process", self.layout.key_fields, self.values)

    def held(self, bucket: Bucket) -> DueQueue:
        """Return the rows of a bucket that are not settled."""
        return DueQueue(bucket, "process_rows", self.finest_us)

    def looks(self, bucket: Bucket) -> DueQueue:
        """Return when the keys of a bucket are to be looked at."""
        return DueQueue(bucket, "process_due", self.finest_us)

    def looks_by_clock(self, bucket: Bucket) -> DueQueue:
        """Return when the keys of a bucket are to be looked at by the clock."""
        return DueQueue(bucket, "process_clock", self.finest_us)

    def state(self, bucket: Bucket) -> pa.Table:
        """Return for each key its state, its timers, the rows that it holds back and when the state was written."""
        spec, kind = self.layout.spec, self.layout.spec.time_kind
        rows = self.table(bucket).rows()
        held = pa.concat_tables(
            [self.held_schema.empty_table(), *(t.select(self.held_schema.names) for t in self.held(bucket).written())]
        )
        groups = group_rows(self.names, rows, held.select(self.names)) if self.names else None
        n = rows.num_rows
        if groups is None:
            counts = np.array([held.num_rows] * n, np.int64)
        else:
            counts = np.bincount(groups.ids[n:], minlength=groups.n)[groups.ids[:n]]
        timers = whole(rows[TIMERS])
        times = pa.MapArray.from_arrays(timers.offsets, timers.keys, unstamp(timers.items.to_numpy(), kind))
        taken = {*spec.keys, *(f.name.removeprefix(STATE_FIELD) for f in self.state_fields)}
        columns: dict[str, Any] = {key: rows[name] for key, name in zip(spec.keys, self.names, strict=True)}
        columns |= {f.name.removeprefix(STATE_FIELD): rows[f.name] for f in self.state_fields}
        own = {"timers": times, "held_rows": pa.array(counts), "last_update": unstamp(rows[WRITTEN].to_numpy(), "timestamp")}
        for name, column in own.items():
            columns[f"state_{name}" if name in taken else name] = column
        return pa.table(columns)

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; counts keys with timers and rows that were held."""
        gone = DeadKeys.of(dead, self.names)
        rows = self.table(bucket).drop(gone)
        held = sum(t.num_rows for t in self.held(bucket).discard(gone.rows))
        timed = sum(1 for timers in rows[TIMERS].to_pylist() if timers)
        return int(held) + timed

    def shown_key(self, keys: pa.Table, place: int) -> str:
        """Return a key for the text of an error."""
        text = shown_key(self.layout.spec.keys, [keys[name][place].as_py() for name in self.names])
        return f" for {text}" if text else ""


class _Step:
    """One bucket in one micro-batch."""

    def __init__(self, operator: ProcessOperator, bucket: Bucket, moment: Moment) -> None:
        self.op = operator
        self.bucket = bucket
        self.moment = moment
        self.ended = moment.watermark_us == END_OF_TIME
        self.horizon = floor_watermark(moment.watermark_us, operator.late_us)
        self.table = operator.table(bucket)
        self.held = operator.held(bucket)
        self.looks = operator.looks(bucket)
        self.by_clock = operator.looks_by_clock(bucket)
        self.in_time = operator.operation.order == "time"
        self.due_us = self.horizon if self.in_time else moment.watermark_us

    def run(self, chunk: pa.Table) -> StepResult:
        """Call the function for what is settled and due."""
        op = self.op
        settled = self._settled(chunk)
        due = self.looks.pop(self.due_us) if self.due_us != UNSET else []
        if self.moment.now_us is not None:
            due += self.by_clock.pop(END_OF_TIME if self.ended else self.moment.now_us)
        results, refused, counters = op.layout.result_schema.empty_table(), None, {}
        if settled.num_rows or due or (self.ended and op.operation.callbacks.on_end is not None):
            keys, rows = self._keys(settled, due)
            made: type[StepCalls] = Calls if op.operation.callbacks.on_events is None else Rounds
            calls = made(op.layout, keys, rows, self.moment, self.horizon, self.due_us)
            self._write(keys, calls.run())
            results, counters, refused = calls.results(), calls.counters, calls.late(self.moment.watermark_us)
        held, look = self.held.earliest, self.looks.earliest
        wakeups = [] if held is None else [held + 1 + op.late_us]
        wakeups += [] if look is None else [look + op.late_us if self.in_time else look]
        waiting = len(self.held) + len(self.table)
        return StepResult(
            results,
            min(wakeups, default=None),
            len(self.looks),
            waiting,
            results.num_rows,
            counters,
            refused,
            self.by_clock.earliest,
        )

    def _settled(self, chunk: pa.Table) -> pa.Table:
        """Return the rows that are settled; the others are held."""
        op, arrived = self.op, _Arrived.of(self.bucket)
        numbers = np.arange(arrived.process_arrived, arrived.process_arrived + chunk.num_rows)
        arrived.process_arrived += chunk.num_rows
        arrived.store(self.bucket)
        rows = pa.Table.from_arrays([*chunk.columns, pa.array(numbers), chunk[TIME]], schema=op.held_schema)
        if op.operation.order == "arrival":
            return rows
        reached = [] if self.horizon == UNSET else self.held.pop(self.horizon - 1)
        ready = rows[TIME].to_numpy() < self.horizon
        if not ready.all():
            self.held.insert(rows.filter(pa.array(~ready)), self.horizon)
            rows = rows.filter(pa.array(ready))
        return pa.concat_tables([*reached, rows])

    def _keys(self, rows: pa.Table, due: list[pa.Table]) -> tuple[KeyRows, pa.Table]:
        """Return the keys that have rows or are due, and the rows in order of key, time and arrival."""
        names, op = self.op.names, self.op
        looked = sorted_unique(pa.concat_tables([_LOOKS.empty_table(), *due])[HASH].to_numpy())
        waiting = self.table.of_hashes(looked)
        due_now = waiting[_LOOK].to_numpy() <= self.due_us
        if self.moment.now_us is not None:
            due_now |= waiting[_CLOCK].to_numpy() <= (END_OF_TIME if self.ended else self.moment.now_us)
        waiting = waiting.filter(pa.array(due_now))
        if self.ended and op.operation.callbacks.on_end is not None:
            waiting = self.table.rows()
        every = pa.concat_tables([rows.select(names), waiting.select(names)]) if names else pa.table({})
        if names:
            groups = group_rows(names, every)
            ids, n = groups.ids[: rows.num_rows], groups.n
            keys = pick(every, groups.first)
        else:
            ids, n = np.zeros(rows.num_rows, np.int64), int(rows.num_rows + waiting.num_rows > 0)
            keys = pa.table({"": pa.nulls(n)})
        hashes = key_hashes([keys[k] for k in names], n)
        order = self._order(rows, ids)
        rows, ids = pick(rows, order), ids[order]
        begins = np.searchsorted(ids, np.arange(n + 1))
        stored, places = self.table.lookup(keys, hashes)
        found = np.flatnonzero(places >= 0)
        stored = pick(stored, places[found])
        known = KeyRows(keys, begins, stored, found, partial(op.shown_key, keys))
        self.hashes, self.look, self.clock_look = hashes, known.numbers(_LOOK, NEVER), known.numbers(_CLOCK, NEVER)
        return known, rows

    def _order(self, rows: pa.Table, ids: Ints) -> Ints:
        arrived = rows[_ARRIVED].to_numpy()
        if self.op.operation.order == "arrival":
            return np.lexsort((arrived, ids))
        ranks = [ranks_of(whole(rows[self.op.working[name]])) for name in reversed(self.op.operation.order_by)]
        return np.lexsort((arrived, *ranks, rows[TIME].to_numpy(), ids))

    def _write(self, keys: KeyRows, updates: KeyUpdates) -> None:
        """Write what became of the keys, and see that those with timers are looked at when the first is due."""
        op, has = self.op, updates.has
        first, by_clock = updates.soonest(clock=False), updates.soonest(clock=True)
        if op.operation.ttl_us is not None:
            first = np.where(has, np.minimum(first, updates.called + op.operation.ttl_us), first)
        look = self._armed(self.looks, first, self.look, self.due_us)
        clock_look = self._armed(self.by_clock, by_clock, self.clock_look, self.moment.now_us)
        live = has.copy()
        live[updates.owners] = True
        numbers = map(pa.array, (look, clock_look, updates.called, updates.fired))
        self.table.write(keys.keys, self.hashes, live, [pa.array(has), updates.timer_maps(), *numbers, *updates.fields])

    def _armed(self, queue: DueQueue, first: Ints, look: Ints, reached_us: int | None) -> Ints:
        """Put keys into a queue that have a timer before what it says of them; return what it says now."""
        reached = UNSET if reached_us is None else reached_us
        passed = look <= reached
        arm = (first != NEVER) & ((first < look) | passed)
        if arm.any():
            entries = pa.Table.from_arrays([pa.array(self.hashes[arm]), pa.array(first[arm])], schema=_LOOKS)
            queue.insert(entries, reached if reached != UNSET else int(first[arm].min()))
        return np.where(arm, first, np.where(passed, NEVER, look))
