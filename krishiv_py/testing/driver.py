"""The JVM-free driver: the same kernels on batches in memory, one micro-batch per call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from krishiv_py.kernels.evaluate import one_batch
from krishiv_py.kernels.prepare import COUNTERS, Prepare
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.rows import as_batch
from krishiv_py.kernels.state import MemoryStore, Meta
from krishiv_py.plan.durations import END_OF_TIME, UNSET, TimePoint, show_instant, time_point_us
from krishiv_py.plan.late import LateEventHandler, LateRows
from krishiv_py.testing.clock import ManualClock

if TYPE_CHECKING:
    from krishiv_py.api.aggregated import AggregatedStream


@attrs.frozen(eq=False)
class StepOutput:
    """What one call brought forth.

    Attributes
    ----------
    results : pyarrow.Table
        Results, in firing order.
    late : pyarrow.Table
        Rows that entered no window, with ``reason``, ``watermark``, ``lateness``.
    watermark_us : int
        The watermark afterwards, µs.
    """

    results: pa.Table
    late: pa.Table
    watermark_us: int


class Driver:
    """Runs an aggregated stream micro-batch by micro-batch, as SEMANTICS §2.3 has it.

    Parameters
    ----------
    stream : AggregatedStream
        The pipeline, of any session or of none.
    idle_batches : bool
        Whether every step is followed by a batch without rows under the moved watermark (as a query does that waits for
        input). Turn it off to see what back-to-back batches do.
    clock : ManualClock, optional
        Processing time; one that stands at the epoch by default. Move it, then call :meth:`tick` or send a batch.

    Examples
    --------
    >>> from krishiv_py import col, count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> per_minute = (stream_of("user string, at bigint").watermark("at", 5_000).key_by("user")
    ...               .tumbling_window(60_000).agg(count()))
    >>> driver = Driver(per_minute)
    >>> driver.send([{"user": "a", "at": 1_000}, {"user": "a", "at": 70_000}]).results.to_pylist()
    [{'user': 'a', 'window_start': 0, 'window_end': 60000, 'count': 1}]
    >>> driver.send([{"user": "a", "at": 2_000}]).late.select(["at", "reason"]).to_pylist()
    [{'at': 2000, 'reason': 'late'}]
    """

    def __init__(self, stream: AggregatedStream, *, idle_batches: bool = True, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.spec = stream.spec(late="rows")
        self._handler: LateEventHandler = stream.late_handler
        self._prepare = Prepare(self.spec)
        self._operator = operator_for(self.spec)
        self._store = MemoryStore()
        self._meta: Meta = {}
        self._idle = idle_batches
        self._batch_id = 0
        self._ended = False
        self._in_force = self.spec.watermark.initial_us
        self._next = self.spec.watermark.initial_us
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self.open_windows = 0

    @property
    def watermark_us(self) -> int:
        """The watermark the next batch will be judged by, µs."""
        return self._next

    @property
    def watermark(self) -> str:
        """The watermark for people."""
        return show_instant(self._next)

    def send(self, rows: Any) -> StepOutput:
        """One micro-batch: rows as dicts, a RecordBatch, a Table or a pandas frame."""
        batch = as_batch(rows, self.spec.source_schema)
        return self._step(one_batch(pa.Table.from_batches([batch])), None)

    def advance_watermark(self, to: TimePoint) -> StepOutput:
        """A batch without rows after which the watermark is at least `to` (ms since the epoch, or a datetime)."""
        return self._step(None, time_point_us(to, "to"))

    def tick(self) -> StepOutput:
        """A batch without rows at the present time of the clock: intervals and processing-time TTL take their turn."""
        return self._step(None, None)

    def close(self) -> StepOutput:
        """End of input: every open window fires."""
        return self._step(None, END_OF_TIME)

    def _step(self, batch: pa.RecordBatch | None, control_us: int | None) -> StepOutput:
        results, late = [], []
        self._in_force = self._next
        chunks = []
        if batch is not None:
            prepared = self._prepare(batch, self._in_force, self.clock.now_us)
            for name, n in prepared.counters.items():
                self.counters[name] += n
            if prepared.max_time_us != UNSET:
                self._next = max(self._next, prepared.max_time_us - self.spec.watermark.lag_us)
            chunks = [self._operator.combine(prepared.rows)]
            late.append(prepared.late)
        if control_us is not None:
            self._next = max(self._next, control_us)
        results.append(self._run(chunks))
        if self._idle and self._next > self._in_force:
            self._in_force = self._next
            results.append(self._run([]))
        late_table = pa.concat_tables(late) if late else self._prepare.layout.late_schema.empty_table()
        if late_table.num_rows:
            wanted = self._handler.wants
            names = {"rows": late_table.schema.names, "keys": [*self.spec.keys, *late_table.schema.names[-3:]],
                     "count": late_table.schema.names[-3:]}[wanted]
            self._handler.handle(LateRows(late_table.select(names), self.spec.name, self._batch_id))
        self._batch_id += 1
        return StepOutput(pa.concat_tables(results), late_table, self._next)

    def _run(self, chunks: list[pa.Table]) -> pa.Table:
        step = self._operator.step(self._store, self._meta, chunks, self._in_force, self.clock.now_us)
        for name, n in step.counters.items():
            self.counters[name] = self.counters.get(name, 0) + n
        self.open_windows = step.open_windows
        return step.results
