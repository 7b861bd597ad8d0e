"""Process functions (SEMANTICS §14): rows and timers of each key go through a user's function in settled order.

Of each key the operator keeps the state of the user's class, as typed columns, and the timers that are set.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import key_hashes, normal_key
from krishiv_py.arrays.types import Ints, Mask, pick
from krishiv_py.kernels.columns.layout import whole
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.ordered import NEVER, KeyRows, OrderedOperator, OrderedStep
from krishiv_py.kernels.process.calls import Calls, StepCalls
from krishiv_py.kernels.process.rounds import Rounds
from krishiv_py.kernels.process.states import CALLED, CHANGED, FIRED, TIMERS, KeyUpdates, by_clock
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.key_table import HAS_STATE, STATE_FIELD
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.processing import Processing
from krishiv_py.plan.schema import TimeKind

_KEYS_AT_ONCE: Final = 1 << 16
"""So many keys have their state as objects, or columns, at a time; each takes about a kilobyte."""


class ProcessOperator(OrderedOperator):
    """See the module's docstring."""

    NAME: ClassVar[str] = "process"

    def __init__(self, spec: OperatorSpec) -> None:
        operation = spec.operation
        assert isinstance(operation, Processing)
        self.operation = operation
        self.numbers = [CALLED, FIRED, *([] if operation.ttl_us is None else [CHANGED])]
        self.state_fields = [field.with_name(f"{STATE_FIELD}{field.name}") for field in operation.state_fields]
        values = [
            pa.field(HAS_STATE, pa.bool_()),
            pa.field(TIMERS, pa.map_(pa.string(), pa.int64())),
            *(pa.field(name, pa.int64()) for name in self.numbers),
            *self.state_fields,
        ]
        super().__init__(spec, values, operation.order_by, in_time=operation.order == "time")

    def ends_all(self) -> bool:
        """Return whether each key with state is called at the end of input."""
        return self.operation.callbacks.on_end is not None

    def run(self, step: OrderedStep, keys: KeyRows, rows: pa.Table) -> tuple[pa.Table, pa.Table | None, dict[str, int]]:
        """See :class:`~krishiv_py.kernels.ordered.OrderedOperator`."""
        made: type[StepCalls] = Calls if self.operation.callbacks.on_events is None else Rounds
        late, late_begins = np.zeros(0, np.bool_), None
        if self.operation.takes_late:
            late = self.late_rows(step, rows)
            keys, rows, late_begins = _late_last(keys, rows, late)
        force = step.moment, step.horizon, step.due_us
        marks = step.marks_of(rows) if step.marks is not None and not self.in_time else None
        most = keys.n if self.operation.takes_late else _KEYS_AT_ONCE
        if keys.n <= most:
            calls: StepCalls = made(self.layout, keys, rows, *force, late_begins, marks)
            updates = calls.run()
        else:
            calls, parts = StepCalls(self.layout, keys, rows, *force), list[KeyUpdates]()
            for low in range(0, keys.n, most):
                part, first_row = keys.part(low, min(low + most, keys.n)), int(keys.begins[low])
                n = int(part.begins[-1])
                of_part = None if marks is None else marks[first_row : first_row + n]
                some = made(self.layout, part, rows.slice(first_row, n), *force, None, of_part)
                parts.append(some.run())
                calls.add(some, low, first_row)
            updates = KeyUpdates.joined(parts)
        calls.count("late_passed", int(np.count_nonzero(late)))
        has, first = updates.has, updates.soonest(clock=False)
        if self.operation.ttl_us is not None:
            first = np.where(has, np.minimum(first, updates.changed + self.operation.ttl_us), first)
        live = has.copy()
        live[updates.owners] = True
        numbers = map(pa.array, (updates.called, updates.fired, updates.changed)[: len(self.numbers)])
        columns = [pa.array(has), updates.timer_maps(), *numbers, *updates.fields]
        step.write(keys, live, columns, first, updates.soonest(clock=True))
        return calls.results(), calls.late(step.moment.watermark_us), calls.counters

    def begin(self, bucket: Bucket, states: pa.Table) -> None:
        """Give the keys of an empty bucket, among others, the states that a query begins with."""
        hashes = key_hashes([normal_key(whole(states[key])) for key in self.layout.spec.keys], states.num_rows)
        mine = np.flatnonzero(bucket.has(hashes, keyed=bool(self.names)))
        states, hashes = pick(states, mine), hashes[mine]
        n, pairs = states.num_rows, zip(self.layout.spec.keys, self.names, strict=True)
        keys = pa.table({name: normal_key(whole(states[key])) for key, name in pairs} or {"": pa.nulls(n)})
        fields = [states[field.name.removeprefix(STATE_FIELD)] for field in self.state_fields]
        no_timers, all_keys = pa.array([[]] * n, pa.map_(pa.string(), pa.int64())), np.ones(n, np.bool_)
        numbers = [pa.array(np.full(n, 0 if name == FIRED else UNSET)) for name in self.numbers]
        looks = [pa.array(np.full(n, NEVER))] * 2
        self.table(bucket).write(keys, hashes, all_keys, [pa.array(all_keys), no_timers, *numbers, *fields, *looks])

    def state(self, bucket: Bucket) -> pa.Table:
        """Return for each key its state, its timers by both clocks, how many rows it holds back, and when it was written."""
        rows, held = self.state_rows(bucket)
        timers = whole(rows[TIMERS])
        fields = {f.name.removeprefix(STATE_FIELD): rows[f.name] for f in self.state_fields}
        own = {
            "timers": _shown(timers, self.layout.spec.time_kind, clock=False),
            "clock_timers": _shown(timers, "timestamp", clock=True),
        }
        return self.state_table(rows, held, own, fields)


def _late_last(keys: KeyRows, rows: pa.Table, late: Mask) -> tuple[KeyRows, pa.Table, Ints]:
    """Put late rows behind all others; return where those of each key begin, too."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(late)])[keys.begins]
    n = len(late) - int(np.count_nonzero(late))
    order = np.argsort(late, kind="stable")
    return attrs.evolve(keys, begins=keys.begins - before), pick(rows, order), n + before


def _shown(timers: pa.MapArray, kind: TimeKind, *, clock: bool) -> pa.Array:
    """Return the timers of each key by event time, or by the clock, as names with times of a kind."""
    mine = np.flatnonzero(by_clock(timers.keys) == clock)
    names = timers.keys.take(pa.array(mine))
    offsets = np.searchsorted(mine, timers.offsets.to_numpy()).astype(np.int32)
    times = unstamp(timers.items.to_numpy()[mine], kind)
    return pa.MapArray.from_arrays(pa.array(offsets), pc.utf8_replace_slice(names, 0, 1, "") if clock else names, times)
