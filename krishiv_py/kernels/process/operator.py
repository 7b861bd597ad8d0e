"""Process functions (SEMANTICS §14): rows and timers of each key go through a user's function in settled order.

Of each key the operator keeps the state of the user's class, as typed columns, and the timers that are set.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from krishiv_py.kernels.columns.layout import whole
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.ordered import KeyRows, OrderedOperator, OrderedStep
from krishiv_py.kernels.process.calls import Calls, StepCalls
from krishiv_py.kernels.process.rounds import Rounds
from krishiv_py.kernels.process.states import CALLED, FIRED, TIMERS
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.key_table import HAS_STATE, STATE_FIELD
from krishiv_py.kernels.state.store import WRITTEN, Bucket
from krishiv_py.plan.processing import Processing


class ProcessOperator(OrderedOperator):
    """See the module's docstring."""

    NAME: ClassVar[str] = "process"

    def __init__(self, spec: OperatorSpec) -> None:
        operation = spec.operation
        assert isinstance(operation, Processing)
        self.operation = operation
        self.state_fields = [field.with_name(f"{STATE_FIELD}{field.name}") for field in operation.state_fields]
        values = [
            pa.field(HAS_STATE, pa.bool_()),
            pa.field(TIMERS, pa.map_(pa.string(), pa.int64())),
            *(pa.field(name, pa.int64()) for name in (CALLED, FIRED)),
            *self.state_fields,
        ]
        super().__init__(spec, values, operation.order_by, in_time=operation.order == "time")

    def ends_all(self) -> bool:
        """Return whether each key with state is called at the end of input."""
        return self.operation.callbacks.on_end is not None

    def run(self, step: OrderedStep, keys: KeyRows, rows: pa.Table) -> tuple[pa.Table, pa.Table | None, dict[str, int]]:
        """See :class:`~krishiv_py.kernels.ordered.OrderedOperator`."""
        made: type[StepCalls] = Calls if self.operation.callbacks.on_events is None else Rounds
        calls = made(self.layout, keys, rows, step.moment, step.horizon, step.due_us)
        updates = calls.run()
        has, first = updates.has, updates.soonest(clock=False)
        if self.operation.ttl_us is not None:
            first = np.where(has, np.minimum(first, updates.called + self.operation.ttl_us), first)
        live = has.copy()
        live[updates.owners] = True
        numbers = map(pa.array, (updates.called, updates.fired))
        columns = [pa.array(has), updates.timer_maps(), *numbers, *updates.fields]
        step.write(keys, live, columns, first, updates.soonest(clock=True))
        return calls.results(), calls.late(step.moment.watermark_us), calls.counters

    def state(self, bucket: Bucket) -> pa.Table:
        """Return for each key its state, its timers, the rows that it holds back and when the state was written."""
        keys = self.layout.spec.keys
        rows, held = self.kept_rows(bucket)
        timers = whole(rows[TIMERS])
        times = unstamp(timers.items.to_numpy(), self.layout.spec.time_kind)
        fields = {f.name.removeprefix(STATE_FIELD): rows[f.name] for f in self.state_fields}
        columns: dict[str, Any] = {key: rows[name] for key, name in zip(keys, self.names, strict=True)} | fields
        own = {
            "timers": pa.MapArray.from_arrays(timers.offsets, timers.keys, times),
            "held_rows": pa.array(held),
            "last_update": unstamp(rows[WRITTEN].to_numpy(), "timestamp"),
        }
        return pa.table(columns | {f"state_{name}" if name in columns else name: column for name, column in own.items()})
