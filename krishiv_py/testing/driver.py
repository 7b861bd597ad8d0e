"""The driver without a JVM: the same kernels on batches in memory, of one pipeline or several, and of files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, NoReturn

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.api.stages.running import Output, RunMethods, named_plans
from krishiv_py.connectors.fit import FILE, MisfitError, explained, file_columns, lacking, open_parquet
from krishiv_py.connectors.lookup_table import tables_age_by, tables_are
from krishiv_py.connectors.sinks.known import MemorySink, as_sink
from krishiv_py.deprecation import deprecated
from krishiv_py.display.html import query_html
from krishiv_py.display.lag import Lateness, LatenessProfile
from krishiv_py.display.text import LaidOut
from krishiv_py.engine.closing import keys_to_close, why_text
from krishiv_py.engine.stage import FIRINGS, StageOperator, StageOutput
from krishiv_py.errors import PlanError, SourceError, failure_text, shown
from krishiv_py.failures.redaction import redacted
from krishiv_py.in_process.core import BatchOutput, Core, StreamRows
from krishiv_py.in_process.outputs import AnySink, outputs
from krishiv_py.in_process.savepoints import begun_core, save_core
from krishiv_py.in_process.stage import ProcessStage, dropped
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import MemoryStore
from krishiv_py.kernels.watermark import ONLY, Clocks, no_such_source
from krishiv_py.logs import BatchCounts, BatchLines
from krishiv_py.missing import OfOneProcess
from krishiv_py.plan.checks import PathLike, a_path, a_switch, a_text, is_collection
from krishiv_py.plan.durations import END_OF_TIME, TimePoint, show_instant, time_point_us
from krishiv_py.plan.options.query import OnChange, given_begin
from krishiv_py.plan.running import CALL_US, Counters, Progress, of_stages, summed
from krishiv_py.planner.cut import input_stages, leading_stage
from krishiv_py.planner.identity import check_keys
from krishiv_py.planner.physical import PhysicalPlan, check_snapshot, lookup_tables, tables_seen
from krishiv_py.planner.why import QueryProgress, in_stage, oldest_of_all, rows_that_wait, why_not_fired
from krishiv_py.runtime.capture import OpenCapture
from krishiv_py.runtime.closings import keys_as_table
from krishiv_py.testing.sends import BatchInput, DriverInput, Feed, ManualClock, StepOutput, Turns, run_by_driver


class Driver(OfOneProcess):
    """Runs an aggregated stream micro-batch by micro-batch (SEMANTICS §2.3).

    Parameters
    ----------
    stream : Stream, TimedStream or ResultStream, or iterable of Output
        The pipeline, with or without a session. Its late handler gets the late rows; it can write them to any sink that needs
        no Spark. Several outputs, ``[a.to(sink), b.to(other)]``, run as one query.
    sink : Sink, optional
        Where results go next to :class:`StepOutput`: any sink that needs no Spark, so not a ``ForeachBatchSink`` or a function.
        Each call is one micro-batch of it.
    idle_batches : bool
        Whether an empty batch with the new watermark follows every step, as in a query that waits for input. Turn it off to
        test batches that follow each other at once.
    clock : ManualClock, optional
        Processing time, by which tables of lookup joins are reloaded, too; by default a clock that stays at the epoch. Move it,
        then call :meth:`tick` or send a batch.
    name : str
        Its name, for instance in the labels of :func:`krishiv_py.metrics.register`.
    savepoint, on_change : optional
        Where it begins: a savepoint of any engine, as for ``start(..., savepoint=...)``. Positions of sources are left aside.

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

    _kind = "driver"
    _instead = ("state in this process", "send the rows, or a function that builds the pipeline, and make Driver(...) there")

    def __init__(
        self,
        stream: RunMethods | Iterable[Output],
        *,
        sink: AnySink | None = None,
        idle_batches: bool = True,
        clock: ManualClock | None = None,
        name: str = "driver",
        savepoint: PathLike | None = None,
        on_change: Mapping[str, OnChange] | None = None,
    ) -> None:
        if clock is not None and not isinstance(clock, ManualClock):
            raise PlanError("a Driver takes a ManualClock", got=shown(clock), hint="pass ManualClock()")
        a_switch(idle_batches, "idle_batches")
        self.name: str = a_text(name, "name", "pass what it is called where several are shown")
        self.clock: ManualClock = ManualClock() if clock is None else clock
        if isinstance(stream, Iterator):
            stream = list(stream)  # it is run again by restarted()
        plan, sinks = run_by_driver(stream, sink)
        self._plan: PhysicalPlan = plan
        self._spec: OperatorSpec = plan.spec
        self._stream = stream
        self._core = Core(self._plan, self.name, self.clock.now_us)
        begin = given_begin(savepoint, on_change)
        if begin is not None:
            self._plan, self._core = begun_core(begin, self._plan, self.name, self.clock.now_us)
        self._leading = leading_stage(self._plan.stages)
        self._tables = lookup_tables(self._plan)
        self._driver_input = DriverInput(self._plan)
        self._sinks = [None if each is None else as_sink(each, "results") for each in sinks]
        self._outputs = outputs(self._sinks, self._plan, self.name)
        self._lines = BatchLines(self.name, lambda: BatchCounts.of(self._progress()))
        self._idle_batches = idle_batches
        self._took: tuple[float, int | None] = (0.0, None)
        self._lateness = Lateness(self._plan)
        self._feed: Turns | None = None
        self._done: list[list[StageOutput]] = []
        """The results of each stage in the last batch."""

    @property
    def _stages(self) -> list[ProcessStage]:
        return self._core.stages

    @property
    def _clocks(self) -> Clocks:
        return self._core.clocks

    def __repr__(self) -> str:
        return redacted(f"<Driver {self.name}: {self.progress}>")

    def _repr_html_(self) -> str:
        """Return what a notebook shows: where it is."""
        return query_html(self.name, "running", self.progress, None)

    @property
    def operator(self) -> str:
        """The name of its operator.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "5 s").tumbling_window("10 s").agg(count()))
        >>> _ = driver.send([{"at": 1_000}, {"at": 12_000}])
        >>> driver.operator
        'window-aggregate'
        """
        return self._spec.name

    @property
    def _stage(self) -> StageOperator:
        return self._stages[0].stage

    @property
    def _store(self) -> MemoryStore:
        return self._stages[0].buckets[0].store

    @_store.setter
    def _store(self, store: MemoryStore) -> None:
        self._stages[0].buckets[0].store = store

    @property
    def open_windows(self) -> int:
        """Windows in state.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "5 s").tumbling_window("10 s").agg(count()))
        >>> _ = driver.send([{"at": 1_000}, {"at": 12_000}])
        >>> driver.open_windows
        2
        """
        return sum(s.open_windows for s in self._stages)

    @property
    def counters(self) -> dict[str, int]:
        """Rows so far, under the names of SEMANTICS §4.5 without prefix; of several stages, those that read sources.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "5 s").tumbling_window("10 s").agg(count()))
        >>> _ = driver.send([{"at": 1_000}, {"at": 12_000}])
        >>> driver.counters["rows"], driver.counters["late"]
        (2, 0)
        """
        counters = summed(dict(self._stages[n].counters) for n in input_stages(self._plan.stages))
        return Counters({name: n for name, n in counters.items() if name not in (FIRINGS, CALL_US)})

    @property
    def progress(self) -> Progress:
        """The progress, as of a query on Spark; state bytes are those of the tables in memory.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "5 s").tumbling_window("10 s").agg(count()))
        >>> _ = driver.send([{"at": 1_000}, {"at": 12_000}])
        >>> print(driver.progress)
        batch 0: watermark 1970-01-01T00:00:07Z, 2 rows, late: none, 2 open windows, ... state bytes, 0 firings
        """
        return self._lateness.seen(self._progress())

    def _progress(self) -> Progress:
        named = len(self._clocks.trackers) > 1 or self._stages[0].spec.source_column is not None
        sources = self.source_watermarks_us if named else {}
        core = self._core
        whole = of_stages(
            {
                s.spec.name: s.progress(
                    core.batch_id - 1, core.in_force.at(s.plan.times).watermark_us, {} if number else sources
                )
                for number, s in enumerate(self._stages)
            },
            input_stages(self._plan.stages),
            self._leading,
        )
        seconds, ended_us = self._took
        stages = {n: attrs.evolve(s, batch_seconds=seconds, batch_ended_us=ended_us) for n, s in whole.stages.items()}
        if stages:
            first = self._stages[0].spec.name
            stages[first] = attrs.evolve(stages[first], idle_sources=self._core.idle)
        return attrs.evolve(
            whole,
            idle_sources=self._core.idle,
            watermark_advances=self._core.advances,
            tables=tables_seen(self._tables, self._core),
            batch_seconds=seconds,
            batch_ended_us=ended_us,
            stages=stages,
            doubts=self._core.ahead.doubts,
        )

    def lateness(self, stage: str | None = None) -> LatenessProfile:
        """Return how late the rows of a source have come so far, as ``query.lateness()`` does.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", 5_000).tumbling_window(10_000).agg(count()))
        >>> for at in (1_000, 20_000, 12_500, 19_500):
        ...     _ = driver.send([{"at": at}])
        >>> print(driver.lateness())
        4 rows by 'at', in the order of the micro-batches: 2 came after a newer row, at most 10 s
         lag  late rows  share
         0 s          2   50 %
         1 s          1   25 %
         5 s          1   25 %
        10 s          0    0 %
        """
        return self._lateness.counted(self._progress(), stage)

    def expect_lateness(self, profile: LatenessProfile, stage: str | None = None) -> None:
        """Warn in :attr:`progress` when rows that come from now on are later than a `profile` says, of one `stage`.

        Examples
        --------
        >>> from krishiv_py import count, lateness_profile
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "1 s").tumbling_window("1 min").agg(count()))
        >>> driver.expect_lateness(lateness_profile([{"at": at} for at in range(0, 60_000, 100)], "at"))
        >>> _ = driver.send([{"at": 60_000}])
        >>> _ = driver.send([{"at": at} for at in range(30_000, 60_000, 100)])
        >>> print(*driver.progress.doubts)
        66.4 % of the last 301 rows came more than 10 s after a newer row, and 0 % in the lateness profile. Hint: ...
        """
        self._lateness.expect(profile, self._progress(), stage)

    @property
    def watermark_us(self) -> int:
        """The watermark of the next batch, µs; of several clocks that of the last stage, which waits for all.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "5 s").tumbling_window("10 s").agg(count()))
        >>> _ = driver.send([{"at": 1_000}, {"at": 12_000}])
        >>> driver.watermark_us
        7000000
        """
        return self._watermark_us(self._stages[self._leading])

    @property
    def watermark(self) -> str:
        """The watermark for people."""
        return show_instant(self.watermark_us)

    def _watermark_us(self, stage: ProcessStage) -> int:
        return self._clocks.moment().at(stage.plan.times).watermark_us

    @property
    def source_watermarks_us(self) -> dict[str, int]:
        """The watermark of every source, µs.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "5 s").tumbling_window("10 s").agg(count()))
        >>> _ = driver.send([{"at": 1_000}, {"at": 12_000}])
        >>> driver.source_watermarks_us
        {'': 7000000}
        """
        return self._clocks.reached

    def send(self, rows: Any) -> StepOutput:
        """One micro-batch: rows as dicts, a RecordBatch, a Table or a frame; of several streams a mapping by name.

        The streams of a join are ``"left"`` and ``"right"``, those of a union are called as there. Rows without a name are of
        the only stream; a union that reads it several times takes them as often, as it does those of a sender.
        """
        return self._step(self._driver_input.sent(rows))

    def advance_watermark(self, to: TimePoint, source: str | None = None) -> StepOutput:
        """Run an empty batch; afterwards the watermark (of one source, or of all) is at least `to`.

        `to` is in ms since the epoch, or a datetime.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "5 s").tumbling_window("10 s").agg(count()))
        >>> _ = driver.send([{"at": 1_000}, {"at": 12_000}])
        >>> driver.advance_watermark(10_000).results.to_pylist()
        [{'window_start': 0, 'window_end': 10000, 'count': 1}]
        >>> driver.watermark
        '1970-01-01T00:00:10Z'
        """
        moved = self._clocks.find(source) if isinstance(source, str) else None
        if source is not None and moved is None:
            raise no_such_source(source, list(self._clocks.reached))
        clock, named = (None, None) if moved is None else moved
        self._clocks.advance(clock, time_point_us(to, "to"), named, self.clock.now_us)
        return self._step(None)

    def close_windows_up_to(self, to: TimePoint) -> StepOutput:
        """:meth:`advance_watermark` under the lesson's name: every window that ends at or before `to` fires and is freed.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "5 s").tumbling_window("10 s").agg(count()))
        >>> _ = driver.send([{"at": 1_000}, {"at": 12_000}])
        >>> driver.close_windows_up_to("1970-01-01T00:00:10Z").results.num_rows
        1
        """
        return self.advance_watermark(to)

    def tick(self) -> StepOutput:
        """Run an empty batch at the current time of the clock, which handles idle sources, intervals and TTL.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> from krishiv_py import Trigger
        >>> from krishiv_py.testing import ManualClock
        >>> counts = stream_of("at bigint").watermark("at", 0).tumbling_window("10 s").agg(count())
        >>> clock = ManualClock()
        >>> driver = Driver(counts.trigger(Trigger.on_interval("1 s")), clock=clock)
        >>> _ = driver.send([{"at": 1_000}])
        >>> _ = clock.advance("1 s")
        >>> driver.tick().results.to_pylist()
        [{'window_start': 0, 'window_end': 10000, 'count': 1}]
        """
        return self._step(None)

    def snapshot(self) -> StepOutput:
        """Run an empty batch that also gives what is open as early results, as ``available_now(snapshot=True)`` does.

        Of several stages the last one gives what it would if the input ended now, and so does each output. State and watermark
        stay as :meth:`tick` leaves them (SEMANTICS §10).

        Raises
        ------
        PlanError
            For retractions, where no stage has windows that can be shown, and for a sink with a key in which early results
            would stay.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", 0).with_pane().tumbling_window(10).agg(count()))
        >>> _ = driver.send([{"at": 1}, {"at": 2}])
        >>> driver.snapshot().results.to_pylist()
        [{'window_start': 0, 'window_end': 10, 'count': 2, 'pane_timing': 'early', 'pane_index': None}]
        """
        check_snapshot(self._plan)
        check_keys(self._plan, self._sinks, early=True)
        return self._step(None, snapshot=True)

    def close(self) -> StepOutput:
        """End of input: every open window fires.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "5 s").tumbling_window("10 s").agg(count()))
        >>> _ = driver.send([{"at": 1_000}, {"at": 12_000}])
        >>> driver.close().results.column("count").to_pylist()
        [1, 1]
        """
        self._clocks.advance(None, END_OF_TIME, None, self.clock.now_us)
        return self._step(None, ended=True)

    def why_not_fired(self, window_end: TimePoint | None = None, stage: str | None = None) -> str:
        """Say what the window of a `stage` that ends at `window_end` is waiting for; without it the oldest window that waits.

        An end is milliseconds since the epoch, a datetime, or the text that this method prints.
        Without a name the last stage with windows is asked.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", 5_000).tumbling_window(10_000).agg(count()))
        >>> _ = driver.send([{"at": 1_000}])
        >>> print(driver.why_not_fired(10_000).split(";")[0])
        the window that ends at 1970-01-01T00:00:10Z fires when the watermark reaches 1970-01-01T00:00:10Z
        """
        idle = self._clocks.idle(self.clock.now_us)
        marks = {one.plan.spec.name: self._watermark_us(one) for one in self._stages}
        rows = {one.plan.spec.name: rows_that_wait(one.plan, one.open_windows, one.open_rows) for one in self._stages}
        stage_ = self._plan.stages[self._plan.stage_called(stage)]
        end_us = None if window_end is None else time_point_us(window_end, "window_end")
        if end_us is None:
            stages = self._plan.stages if stage is None else [stage_]
            oldest = oldest_of_all(stages, lambda one: marks[one.spec.name], self.state, rows)
            stage_, end_us = oldest or (stage_, None)
            rows = {} if oldest is None else rows
        name = stage_.spec.name
        text = why_not_fired(
            stage_, self._plan.clocks, marks[name], self.source_watermarks_us, end_us, idle, rows=rows.get(name, 0)
        )
        return LaidOut(f"{in_stage(self._plan.stages, stage_)} {text}".lstrip())

    def why(self, key: Any = None, time: TimePoint | None = None, stage: str | None = None) -> str:
        """Say what became of a `key` at a `time`, as ``query.why(...)`` does; without both :meth:`why_not_fired`.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> minutes = stream_of("user string, at bigint").watermark("at", 0).key_by("user").tumbling_window(60_000)
        >>> driver = Driver(minutes.agg(count()))
        >>> _ = driver.send([{"user": "a", "at": 1_000}, {"user": "a", "at": 70_000}])
        >>> print(driver.why("a", "1970-01-01T00:00:30Z").splitlines()[1])
        a row of 1970-01-01T00:00:30Z is counted as late, and in no late output: it is 40 s before the watermark.
        >>> print(driver.why("a", 70_000).splitlines()[2][:75])
        window 1970-01-01T00:01:00Z to 1970-01-01T00:02:00Z: open; the window that
        """
        if key is None and time is None:
            return self.why_not_fired(stage=stage)
        stage_, now_us = self._stages[self._plan.stage_called(stage)], self.clock.now_us
        known = {**self.source_watermarks_us, ONLY: self._watermark_us(stage_)}
        set_us = now_us if self.clock.is_set else None
        moved_us = self._core.moved_us if self.clock.is_set else {}
        now = QueryProgress(known.pop(ONLY), known, moved_us, set_us, self._clocks.idle(now_us))
        return LaidOut(why_text(self._plan, stage_.plan, now, key, time, lambda: self.state(stage), None))

    def state(self, stage: str | None = None) -> pa.Table:
        """Return the windows in state: keys, ``window_start``, ``window_end``, aggregates so far, ``last_update`` (by
        :attr:`clock`).

        They are those of the `stage` of this name, by default of the last one with windows.

        Raises
        ------
        PlanError
            For look-back windows with ``matches()`` or ``pairs(...)``, whose state holds no aggregates; for a name that no
            stage has.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", 5_000).tumbling_window(10_000).agg(count()))
        >>> _ = driver.send([{"at": 1_000}, {"at": 2_000}, {"at": 12_000}])
        >>> driver.state().select(["window_start", "window_end", "count"]).to_pylist()
        [{'window_start': 0, 'window_end': 10000, 'count': 2}, {'window_start': 10000, 'window_end': 20000, 'count': 1}]
        """
        stage_ = self._stages[self._plan.stage_called(stage)]
        return stage_.state()

    @property
    def pending_window_count(self) -> int:
        """The open windows, under the name of the metric.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> driver = Driver(stream_of("at bigint").watermark("at", "5 s").tumbling_window("10 s").agg(count()))
        >>> _ = driver.send([{"at": 1_000}, {"at": 12_000}])
        >>> driver.pending_window_count
        2
        """
        return self.open_windows

    @property
    def pending_keys(self) -> int:
        """Return how many keys have something in state; rows that nothing needs any more may stay for a while.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> visits = stream_of("user string, at bigint").watermark("at", 0).key_by("user").session_window("1 hour").agg(count())
        >>> driver = Driver(visits)
        >>> _ = driver.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 2_000}])
        >>> driver.pending_keys
        2
        """
        return sum(s.held_keys for s in self._stages)

    def close_key(self, key: Any, stage: str | None = None) -> int:
        """Forget a `key`, for which no more rows come, without results; a tuple names a key of several columns.

        Look-back, session, count and distinct-set windows are kept by key. Every stage that reads the source forgets it, or
        only the `stage` of this name. Returns how many windows (of look-back windows: rows) will not have their result.

        Raises
        ------
        PlanError
            For what is not a key of this query, for windows that end by themselves, for stages with different keys where
            none is named; then nothing is forgotten.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> visits = stream_of("user string, at bigint").watermark("at", 0).key_by("user").session_window("1 hour").agg(count())
        >>> driver = Driver(visits)
        >>> _ = driver.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 2_000}])
        >>> driver.close_key("ann")
        1
        >>> driver.close().results.column("user").to_pylist()
        ['bob']
        """
        keys = keys_to_close(self._plan, key, stage)
        stepped = self._core.stepped(self.clock.now_us)
        return sum(self._stages[n].forget(dead, stepped) for n, dead in keys.items())

    def try_add(self, row: dict[str, Any]) -> dict[str, Any] | None:
        """See :func:`krishiv_py.compat.try_add`, with its `row`."""
        deprecated("Driver.try_add", "krishiv_py.compat.try_add")
        return self._try_add(row)

    def _try_add(self, row: dict[str, Any]) -> dict[str, Any] | None:
        before = dropped(self._stages[0].counters)
        refused = self.send([row]).late.num_rows or dropped(self._stages[0].counters) > before
        return row if refused else None

    def savepoint(self, path: PathLike) -> str:
        """Write a savepoint into the new folder `path` (docs/savepoints.md); gives the folder.

        Examples
        --------
        >>> import tempfile
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> counts = stream_of("at bigint").watermark("at", 0).tumbling_window("10 s").agg(count())
        >>> driver = Driver(counts)
        >>> _ = driver.send([{"at": 1_000}])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     again = Driver(counts, savepoint=driver.savepoint(f"{folder}/savepoint"))
        >>> again.close().results.to_pylist()
        [{'window_start': 0, 'window_end': 10000, 'count': 1}]
        """
        return save_core(self._core, self.clock.now_us, a_path(path, "path", "pass a new folder for the savepoint")).folder

    def restarted(self) -> Driver:
        """Return a driver that goes on from what a checkpoint would keep: state and watermarks as plain bytes, nothing else.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> visits = stream_of("user string, at bigint").watermark("at", 0).key_by("user").session_window("1 hour").agg(count())
        >>> driver = Driver(visits)
        >>> _ = driver.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 2_000}])
        >>> driver.restarted().close().results.column("user").to_pylist()
        ['ann', 'bob']
        """
        again = Driver(self._stream, idle_batches=self._idle_batches, clock=self.clock, name=self.name)
        again._plan, again._driver_input = self._plan, DriverInput(self._plan)  # with what it carries along since a savepoint
        again._core = Core(self._plan, self.name, self.clock.now_us)
        again._core.go_on_from(self._core)
        again._outputs = self._outputs
        return again

    @classmethod
    def from_capture(
        cls,
        path: PathLike,
        stream: RunMethods | Iterable[Output],
        *,
        sink: AnySink | None = None,
        on_change: Mapping[str, OnChange] | None = None,
    ) -> Driver:
        """Make a driver that comes before the first batch of a capture; :meth:`next_batch` runs one after the other.

        Parameters
        ----------
        path : str or os.PathLike
            The folder of the capture, of either engine (docs/capture.md).
        stream : Stream, TimedStream or ResultStream, or iterable of Output
            The pipeline: that of the query, or another one to try.
        sink : Sink, optional
            As for a driver.
        on_change : dict, optional
            As for ``start(..., savepoint=...)``, where the plan is another one.

        Raises
        ------
        CheckpointError
            When there is no capture, it is damaged, or the plan cannot take its state.
        PlanError
            When the pipeline reads a source that the capture does not have.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> from krishiv_py.testing import Driver
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     counts = stream.watermark("at", "5 s").key_by("user").tumbling_window("10 s").agg(count())
        ...     query = counts.start(MemorySink(), checkpoint=(checkpoint := session.temporary_folder()))
        ...     for rows in ([{"user": "ann", "at": 1_000}], [{"user": "ann", "at": 22_000}], [{"user": "ann", "at": 2_000}]):
        ...         _ = sender.send(rows)
        ...         query.process_all_available()
        ...     query.stop()
        ...     capture = session.capture(checkpoint, counts, session.temporary_folder() + "/capture")
        ...     driver = Driver.from_capture(capture, counts)
        ...     driver.batches_left, driver.next_batch().results.num_rows, driver.next_batch().results.to_pylist()
        (3, 0, [{'user': 'ann', 'window_start': 0, 'window_end': 10000, 'count': 1}])
        """
        captured = OpenCapture.open(a_path(path, "path", "pass the folder of a capture"))
        begin = {} if captured.savepoint is None else {"savepoint": captured.savepoint, "on_change": on_change}
        driver = cls(stream, sink=sink, idle_batches=False, **begin)  # type: ignore[arg-type]  # both are there or none
        driver._feed = Feed(captured, driver._plan)
        return driver

    @property
    def batches_left(self) -> int:
        """The batches of the capture that did not run yet; 0 of a driver without one.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> from krishiv_py.testing import Driver
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     counts = stream.watermark("at", "5 s").tumbling_window("10 s").agg(count())
        ...     query = counts.start(MemorySink(), checkpoint=(checkpoint := session.temporary_folder()))
        ...     _ = sender.send([{"at": 1_000}, {"at": 22_000}])
        ...     query.process_all_available()
        ...     query.stop()
        ...     capture = session.capture(checkpoint, counts, session.temporary_folder() + "/capture")
        ...     driver = Driver.from_capture(capture, counts)
        ...     driver.batches_left, driver.next_batch().results.num_rows, driver.next_batch(), driver.batches_left
        (1, 1, None, 0)
        """
        return 0 if self._feed is None else self._feed.left

    def next_batch(self) -> StepOutput | None:
        """Run the next batch of the capture as the query ran it, at the time of its clock; None after the last one.

        Raises
        ------
        PlanError
            For a driver that was not made by :meth:`from_capture`.
        CheckpointError
            When a file of the capture is damaged.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> from krishiv_py.testing import Driver
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     counts = stream.watermark("at", "5 s").tumbling_window("10 s").agg(count())
        ...     query = counts.start(MemorySink(), checkpoint=(checkpoint := session.temporary_folder()))
        ...     _ = sender.send([{"at": 1_000}, {"at": 22_000}])
        ...     query.process_all_available()
        ...     query.stop()
        ...     capture = session.capture(checkpoint, counts, session.temporary_folder() + "/capture")
        ...     driver = Driver.from_capture(capture, counts)
        ...     driver.batches_left, driver.next_batch().results.num_rows, driver.next_batch(), driver.batches_left
        (1, 1, None, 0)
        """
        if self._feed is None:
            raise PlanError("this driver has no capture", got=self.name, hint="make it with Driver.from_capture(path, stream)")
        turn = self._feed.next()
        return None if turn is None else self._take(turn)

    def _take(self, turn: BatchInput) -> StepOutput:
        """Run a batch of a capture."""
        self.clock.now_us, self.clock._set = turn.batch.now_us, True
        for inputs, partitions in turn.partitions:
            self._clocks.expect(inputs, partitions, turn.batch.now_us)
        for control, inputs in turn.controls:
            self._clocks.take(control, inputs, turn.batch.now_us)
        if turn.batch.ended:
            self._clocks.advance(None, END_OF_TIME, None, turn.batch.now_us)
        self._idle_batches = turn.batch.waits
        stepped = self._core.stepped(turn.batch.now_us)
        for number, texts in turn.batch.closed.items():
            keys = keys_as_table(texts)
            if int(number) < len(self._stages) and len(self._stages[int(number)].spec.keys) == keys.num_columns:
                self._stages[int(number)].forget(keys, stepped)
        snapshot = turn.batch.snapshot or any(control.snapshot for control, _ in turn.controls)
        with tables_are(turn.tables):
            return self._step(turn.sent, snapshot=snapshot)

    def _step(self, sent: dict[int, StreamRows] | None, *, ended: bool = False, snapshot: bool = False) -> StepOutput:
        began = time.monotonic()
        with self._lines.batch():
            done = self._run(sent, ended=ended, snapshot=snapshot)
            self._took = time.monotonic() - began, time.time_ns() // 1_000
        return done

    def _run(self, sent: dict[int, StreamRows] | None, *, ended: bool, snapshot: bool) -> StepOutput:
        now_us = self.clock.now_us

        def publish(batch_id: int, output: BatchOutput) -> None:
            self._outputs.publish(batch_id, list(output.results.values()), output.late, now_us)

        with tables_age_by(self._core, now_us) if self._tables else nullcontext():
            done = self._core.run(
                sent, now_us, begun_us=self._begun_us, waits=self._idle_batches or ended, snapshot=snapshot, publish=publish
            )
        self._done = done.done
        by_stage = {s.spec.name: rows for s, rows in zip(self._stages, done.late, strict=True)}
        return StepOutput(next(iter(done.results.values())), done.late[0], self.watermark_us, by_stage, done.results)

    @property
    def _begun_us(self) -> int | None:
        return self.clock.now_us if self.clock.is_set else None

    @property
    def _moment(self) -> Moment:
        """Return what is in force, now."""
        return self._core.moment(self.clock.now_us, self._begun_us)


def collect(streams: Iterable[RunMethods], *batches: Any) -> list[pa.Table]:
    """Return the results of several pipelines over the same rows, as :meth:`krishiv_py.Session.collect` gives them.

    Parameters
    ----------
    streams : iterable of Stream, TimedStream or ResultStream
        Pipelines that branch from one stream value.
    *batches : list of dict or RecordBatch or Table or mapping
        Micro-batches, as :meth:`Driver.send` takes them; the input ends after the last one.

    Returns
    -------
    list of pyarrow.Table
        One for each pipeline.

    Raises
    ------
    PlanError
        For no pipelines, and for those that cannot be one query.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import collect, stream_of
    >>> rows = stream_of("at bigint, n bigint")
    >>> many = rows.watermark("at", 0).tumbling_window(10).agg(count())
    >>> counts, large = collect([many, rows.filter("n > 5")], [{"at": 1, "n": 9}, {"at": 2, "n": 1}])
    >>> counts["count"].to_pylist(), large["n"].to_pylist()
    ([2], [9])
    """
    listed = list(streams) if is_collection(streams) else streams
    named_plans(listed, "collect")  # says what is not a pipeline
    driver = Driver(stream.to(MemorySink()) for stream in listed)
    done = [*(driver.send(batch) for batch in batches), driver.close()]
    return [pa.concat_tables([d.by_output[name] for d in done]) for name in done[-1].by_output]


def replay(stream: RunMethods, files: Iterable[PathLike], *, close: bool = True) -> StepOutput:
    """Run a stream over parquet files, one micro-batch a file, as a query with ``max_files_per_batch=1`` took them.

    Parameters
    ----------
    stream : Stream, TimedStream or ResultStream
        The pipeline, made of :func:`stream_of` with the columns of the files.
    files : iterable of str or os.PathLike
        The files, in the order in which they came. They are read as ``read_parquet`` reads them (docs/sources.md).
    close : bool
        Whether the input ends with the last file, so that what is open fires.

    Returns
    -------
    StepOutput
        All results, all late rows, and the watermark at the end.

    Raises
    ------
    PlanError
        For a value that is not a sequence of files.
    SourceError
        For a file that cannot be read, or does not fit the columns of the stream.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa
    >>> import pyarrow.parquet as pq
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import stream_of
    >>> latest = stream_of("at bigint").watermark("at", 0).lookback_window("30 s", emit="arrival").agg(count())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pq.write_table(pa.table({"at": [0, 10_000]}), f"{folder}/1.parquet")
    ...     pq.write_table(pa.table({"at": [20_000, 40_000]}), f"{folder}/2.parquet")
    ...     replay(latest, [f"{folder}/1.parquet", f"{folder}/2.parquet"]).results["count"].to_pylist()
    [1, 2, 3, 3]
    """
    if isinstance(files, os.PathLike) or not is_collection(files):
        hint = "pass them in the order in which they came: sorted(folder.glob('*.parquet'))"
        raise PlanError("replay takes files", got=shown(files), hint=hint)
    driver = Driver(stream, idle_batches=False)
    schema = driver._spec.source_schema
    done = [driver.send(rows_of_file(file, schema)) for file in files]
    if close or not done:
        done.append(driver.close() if close else driver.tick())
    results, late = (pa.concat_tables([getattr(d, name) for d in done]) for name in ("results", "late"))
    by_stage = {name: pa.concat_tables([d.late_by_stage[name] for d in done]) for name in done[-1].late_by_stage}
    return StepOutput(results, late, done[-1].watermark_us, by_stage)


def rows_of_file(file: PathLike, schema: pa.Schema) -> pa.Table:
    """Return the rows of a file of Parquet as those of a stream."""
    try:
        with open(os.fspath(file), "rb") as opened:
            parquet = open_parquet(opened)
            if not parquet.metadata.num_rows:
                return schema.empty_table()
            stored = file_columns(schema, parquet, FILE)
            columns = [stored.get(field.name) or _missing(field.name, parquet) for field in schema]
            parts = parquet.iter_batches(columns=[column.name for column in columns])
            batches = [pa.record_batch([column.of(part) for column in columns], schema) for part in parts]
        return pa.Table.from_batches(batches, schema)
    except MisfitError as problem:
        hint = "use the columns of the files in stream_of"
        got = f"{shown(file)}: {explained(problem)}"
        raise SourceError("a file does not fit the stream", got=got, hint=hint) from problem
    except (OSError, TypeError, pa.ArrowInvalid) as problem:
        hint = "pass paths of parquet files"
        raise SourceError("a file cannot be replayed", got=shown(file), then=failure_text(problem), hint=hint) from problem


def _missing(name: str, parquet: pq.ParquetFile) -> NoReturn:
    raise lacking(parquet.schema_arrow.names, name)
