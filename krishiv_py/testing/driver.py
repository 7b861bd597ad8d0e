"""The JVM-free driver: the same kernels on batches in memory, one micro-batch per call."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pyarrow as pa

from krishiv_py.api.stages.aggregated import AggregatedStream
from krishiv_py.errors import KrishivError, PlanError, message, own_type, shown
from krishiv_py.kernels.columns.layout import late_names
from krishiv_py.kernels.input.prepare import COUNTERS, Prepare, refused
from krishiv_py.kernels.input.rows import as_batch
from krishiv_py.kernels.input.watermark import ONLY, WatermarkTracker
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.state.store import NOW_MS, MemoryStore, Meta
from krishiv_py.plan.checks import a_switch, a_text
from krishiv_py.plan.durations import END_OF_TIME, TimePoint, show_instant, time_point_us
from krishiv_py.plan.options.late import LateEventHandler, LateRows, SideOutputLateEventHandler, hand_over
from krishiv_py.plan.options.sinks import MemorySink
from krishiv_py.plan.progress import Progress
from krishiv_py.planner.diagnose import why_not_fired
from krishiv_py.testing.clock import ManualClock


@attrs.frozen(eq=False)
class StepOutput:
    """What one call brought forth.

    Attributes
    ----------
    results : pyarrow.Table
        Results, in firing order.
    late : pyarrow.Table
        Rows that entered no window, with ``reason``, ``watermark``, ``lateness``: whole ones if the late handler wants whole
        rows, else all columns but those that nothing needs and that would have to be computed.
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
        The pipeline, of any session or of none. Its late handler gets the late rows; of sinks a MemorySink.
    idle_batches : bool
        Whether every step is followed by a batch without rows under the moved watermark (as a query does that waits for
        input). Turn it off to see what back-to-back batches do.
    clock : ManualClock, optional
        Processing time; one that stands at the epoch by default. Move it, then call :meth:`tick` or send a batch.
    name : str
        What it is called where several are shown, as by :func:`krishiv_py.metrics.register`.

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

    def __init__(
        self, stream: AggregatedStream, *, idle_batches: bool = True, clock: ManualClock | None = None, name: str = "driver"
    ) -> None:
        if not isinstance(stream, AggregatedStream):
            raise PlanError(
                message(
                    "a Driver runs an aggregated stream",
                    shown(stream),
                    "there is nothing to run",
                    "end the pipeline with .agg(...)",
                )
            )
        if clock is not None and not isinstance(clock, ManualClock):
            raise PlanError(message("a Driver takes a ManualClock", shown(clock), "it cannot be moved", "pass ManualClock()"))
        a_switch(idle_batches, "idle_batches")
        self.name = a_text(name, "name", "pass what it is called where several are shown")
        self.clock = ManualClock() if clock is None else clock
        self.plan = stream.plan("driver", late="rows" if stream.late_handler.wants == "rows" else "shown")
        self.spec = self.plan.spec
        self._stream = stream
        self._handler: LateEventHandler = stream.late_handler
        _takes_late_rows(self._handler)
        self._prepare = Prepare(self.spec)
        self._operator = operator_for(self.spec)
        self._store = MemoryStore()
        self._meta: Meta = {}
        self._idle_batches = idle_batches
        self._batch_id = 0
        self._tracker = WatermarkTracker(self.spec.watermark)
        self._tracker.settle(self.clock.now_us)
        self._in_force = self._tracker.current
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self.open_windows = 0
        self._open_rows = 0
        self._firings = 0

    @property
    def operator(self) -> str:
        """The name of its operator."""
        return self.spec.name

    @property
    def progress(self) -> Progress:
        """Where it stands, as a query on Spark tells it; state bytes are those of the tables in memory."""
        return Progress(
            batch_id=self._batch_id - 1,
            watermark_us=self._in_force,
            rows=self.counters["rows"],
            late=refused(self.counters),
            counters={**self.counters, "firings": self._firings},
            open_windows=self.open_windows,
            open_rows=self._open_rows,
            state_bytes=sum(t.nbytes for t in self._store.tables.values()),
            firings=self._firings,
            source_watermarks_us=self.source_watermarks_us if self.spec.source_column is not None else {},
        )

    @property
    def watermark_us(self) -> int:
        """The watermark the next batch will be judged by, µs."""
        return self._tracker.current

    @property
    def watermark(self) -> str:
        """The watermark for people."""
        return show_instant(self._tracker.current)

    @property
    def source_watermarks_us(self) -> dict[str, int]:
        """The watermark of every source, µs."""
        return dict(self._tracker.reached)

    def send(self, rows: Any) -> StepOutput:
        """One micro-batch: rows as dicts, a RecordBatch, a Table or a pandas frame."""
        return self._step(as_batch(rows, self.spec.source_schema))

    def advance_watermark(self, to: TimePoint, source: str | None = None) -> StepOutput:
        """A batch without rows after which the watermark (of one source, or of all) is at least `to`.

        `to` is in ms since the epoch, or a datetime.
        """
        known = sorted(self._tracker.reached)
        if source is not None and (not isinstance(source, str) or source not in known):
            hint = f"the sources are {', '.join(map(repr, known))}" if known != [ONLY] else "leave `source` out"
            raise PlanError(message("no such source", shown(source), "its watermark cannot be moved", hint))
        self._tracker.advance(time_point_us(to, "to"), source, self.clock.now_us)
        return self._step(None)

    def tick(self) -> StepOutput:
        """A batch without rows at the present time of the clock: idle sources, intervals and TTL take their turn."""
        return self._step(None)

    def close(self) -> StepOutput:
        """End of input: every open window fires."""
        self._tracker.advance(END_OF_TIME, None, self.clock.now_us)
        return self._step(None, ended=True)

    def why_not_fired(self, window_end: TimePoint) -> str:
        """Say what the window that ends at `window_end` (ms since the epoch, or a datetime) is waiting for.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", 5_000).tumbling_window(10_000).agg(count()))
        >>> _ = driver.send([{"at": 1_000}])
        >>> print(driver.why_not_fired(10_000).split(";")[0])
        the window that ends at 1970-01-01T00:00:10Z fires when the watermark reaches 1970-01-01T00:00:10Z
        """
        end_us = time_point_us(window_end, "window_end")
        idle = self._tracker.idle(self.clock.now_us)
        return why_not_fired(self.spec, self._tracker.current, self.source_watermarks_us, end_us, idle)

    def state(self) -> pa.Table:
        """The windows in state: keys, ``window_start``, ``window_end``, aggregates so far, ``last_update`` (by :attr:`clock`).

        Raises
        ------
        PlanError
            For look-back windows with ``matches()`` or ``pairs(...)``, whose state holds no aggregates.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", 5_000).tumbling_window(10_000).agg(count()))
        >>> _ = driver.send([{"at": 1_000}, {"at": 2_000}, {"at": 12_000}])
        >>> driver.state().select(["window_start", "window_end", "count"]).to_pylist()
        [{'window_start': 0, 'window_end': 10000, 'count': 2}, {'window_start': 10000, 'window_end': 20000, 'count': 1}]
        """
        return self._operator.state(self._store, self._meta)

    def restarted(self) -> Driver:
        """A driver that goes on from what a checkpoint would keep: state and watermarks as plain bytes, nothing else."""
        saved = json.loads(
            json.dumps(
                {"meta": self._meta, "tracker": self._tracker.saved(), "counters": self.counters, "firings": self._firings}
            )
        )
        again = Driver(self._stream, idle_batches=self._idle_batches, clock=self.clock, name=self.name)
        again._meta = saved["meta"]
        again._tracker = WatermarkTracker.restored(self.spec.watermark, saved["tracker"])
        again._in_force = again._tracker.current
        again.counters, again._firings = saved["counters"], saved["firings"]
        again._batch_id = self._batch_id
        for name, table in self._store.tables.items():
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            again._store.put(name, pa.ipc.open_stream(sink.getvalue()).read_all())
        return again

    def _step(self, batch: pa.RecordBatch | None, *, ended: bool = False) -> StepOutput:
        late: list[pa.Table] = []
        chunks = []
        if batch is not None:
            with self._named("prepare"):
                prepared = self._prepare(batch, self._in_force, self.clock.now_us)
                chunks = [self._operator.combine(prepared.rows)]
            self._count(prepared.counters)
            self._tracker.saw(prepared.maxima, self.clock.now_us)
            late.append(prepared.late)
        results = [self._run(chunks, late)]
        self._tracker.settle(self.clock.now_us)
        moved = self._tracker.current > self._in_force
        self._in_force = self._tracker.current
        if moved and (self._idle_batches or ended):
            results.append(self._run([], late))
        late_table = pa.concat_tables([self._prepare.layout.late_schema.empty_table(), *late])
        self._hand_on(late_table)
        self._batch_id += 1
        return StepOutput(pa.concat_tables(results), late_table, self._tracker.current)

    def _run(self, chunks: list[pa.Table], late: list[pa.Table]) -> pa.Table:
        self._meta[NOW_MS] = self.clock.now_us // 1_000
        with self._named("window step"):
            step = self._operator.step(self._store, self._meta, chunks, self._in_force, self.clock.now_us)
        self._count(step.counters)
        if step.late is not None:
            late.append(step.late)
        self.open_windows, self._open_rows = step.open_windows, step.open_rows
        self._firings += step.firings
        return step.results

    @contextmanager
    def _named(self, step: str) -> Iterator[None]:
        """Let what fails in the body name operator, step and micro-batch, as it does in a task of Spark's."""
        try:
            yield
        except KrishivError as problem:
            where = f"operator {self.operator}, {step}, batch {self._batch_id}"
            raise own_type(type(problem))(f"{where}: {problem}") from problem

    def _count(self, counted: dict[str, int]) -> None:
        for name, n in counted.items():
            self.counters[name] = self.counters.get(name, 0) + n

    def _hand_on(self, late: pa.Table) -> None:
        sink = self._handler.sink if isinstance(self._handler, SideOutputLateEventHandler) else None
        if isinstance(sink, MemorySink):
            if late.num_rows:  # behind what is there: two drivers may write into one sink, and no batch is repeated
                sink.put(max(sink.tables, default=-1) + 1, [late])
        elif late.num_rows:
            keys = () if self._handler.wants == "count" else self.spec.keys
            if self._handler.wants != "rows":
                why = late.schema.names[-3:]
                late = late.select([*keys, *why]).rename_columns([*keys, *late_names(keys)])
            hand_over(self._handler, LateRows(late, self.spec.name, self._batch_id))


def _takes_late_rows(handler: LateEventHandler) -> None:
    if isinstance(handler, SideOutputLateEventHandler) and not isinstance(handler.sink, MemorySink):
        raise PlanError(
            message(
                "a Driver writes late rows to memory only",
                shown(handler.sink),
                "the sink would stay empty",
                "pass SideOutputLateEventHandler(MemorySink()), or read StepOutput.late",
            )
        )
