"""The streaming adapter: ``scan → pack → (shuffle by bucket) → transformWithState → publish``."""

from __future__ import annotations

import functools
import json
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from krishiv_py.engine.stage import PREPARE, Report, StageOperator
from krishiv_py.engine.time_watch import TimeWatch
from krishiv_py.errors import KrishivError, PlanError
from krishiv_py.failures.retrying import RunningRetries
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.watermark import ONLY, ClockInput, Clocks
from krishiv_py.logs import BatchLines, batch_part
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.plan.running import Control
from krishiv_py.planner.identity import check_keys
from krishiv_py.planner.physical import PhysicalPlan, check_snapshot, lookup_tables
from krishiv_py.runtime.batch import STAGE, BatchStoppedError, StopReason, TaskRow, leaving, place_of, reports_of, stage_of
from krishiv_py.runtime.checkpoint.lease import Lease
from krishiv_py.runtime.checkpoint.moved import follow
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes, Claim, forget_state
from krishiv_py.runtime.checkpoint.sparklog import batches_of, check_log, forget_unplanned, planned
from krishiv_py.runtime.chunk_files import ChunkFolder
from krishiv_py.runtime.clocks import STEPPED, Clock, LedgerClock, SparkClock, clock_for, planned_us
from krishiv_py.runtime.closings import Closings
from krishiv_py.runtime.controls import NOTE, ControlFiles, ControlFolder, ControlWriter, Heartbeats, warn_if_flushed
from krishiv_py.runtime.outputs import TaskOutput, claim_outputs, described_outputs
from krishiv_py.runtime.query import BucketMetrics, QueryRows
from krishiv_py.runtime.ranges.limits import alignments
from krishiv_py.runtime.ranges.planning import RangePlanner, backlogs, held, logged, planners
from krishiv_py.runtime.ranges.spark_files import convert
from krishiv_py.runtime.reading import ParquetReader, arrow_scanned
from krishiv_py.runtime.session import QueryRun
from krishiv_py.runtime.tables import LookupTables
from krishiv_py.spark.publishing import HandlerRows, QueryOutput, TaskOutputs, outputs_of, task_output
from krishiv_py.spark.query import SparkQueryHandle, StreamQuery, as_error
from krishiv_py.spark.scan import Reader, own_files, scan
from krishiv_py.spark.setup.config import (
    CHUNK_FILE_BYTES,
    bucket_ids,
    buckets_wanted,
    retained,
    setting,
    started_under,
    with_sources,
)
from krishiv_py.spark.setup.types import spark_ddl
from krishiv_py.spark.setup.workers import mapped, with_state
from krishiv_py.spark.state import check_rescaled
from krishiv_py.spark.storage import ShuffleFiles, keep_with_driver
from krishiv_py.spark.tasks.failures import cause, failed_batch, in_task, passable
from krishiv_py.spark.tasks.pack import PACKED_TYPE, PackTask, Root, closing_setting, root_of
from krishiv_py.spark.tasks.processor import OUT_TYPE, BucketProcessor
from krishiv_py.spark.tasks.rows import NO_ANSWER, GiveRows, RowsOut, carried, done, in_total, packing_of, take
from krishiv_py.storage.sends.log import ReplayLog


def rows_given(spark: SparkSession, plan: PhysicalPlan, checkpoint: str, output: TaskOutput) -> DataFrame:
    """Return the streaming DataFrame of a plan: rows ``(kind, bucket, blob)``, as of one with windows."""
    frames = []
    for number, read in enumerate(plan.reads):
        frame = scan(spark, logged(read.source, checkpoint, number, waits=False), read.needs_columns, streaming=True)
        outputs = tuple(RowsOut(b.spec, output, n, plan.last, number, leaving(plan, n)) for n, b in read.takers)
        frames.append(mapped(frame.frame, GiveRows(outputs, frame.reader).__call__, OUT_TYPE))
    return functools.reduce(DataFrame.union, frames)


@attrs.frozen(eq=False)
class RowsFrame:
    """The mapInArrow function of a DataFrame that goes on in plain Spark."""

    spec: OperatorSpec
    reader: Reader

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stage = StageOperator(self.spec)
        with in_task(self.spec.label, PREPARE):
            for batch in batches:
                for scanned in self.reader(batch):
                    if scanned.malformed:
                        raise scanned.malformed[0].error()  # nobody would see it: such a frame has one output
                    packing = packing_of(stage)
                    take(packing, scanned)
                    yield from done(stage, packing).results.to_batches()


def plain_frame(spark: SparkSession, plan: PhysicalPlan) -> DataFrame:
    """Return a streaming DataFrame of the rows of a plan with one source.

    Raises
    ------
    PlanError
        For a memory stream in segments, which Spark cannot read.
    """
    source = plan.source
    if isinstance(source, MemorySource) and ReplayLog(source.spool).in_segments:
        got = f"{source.spool}, which a session in process began"
        hint = "pass another `spool`, or start the query with start(sink)"
        raise PlanError("a DataFrame of sends needs a memory stream that a session on Spark began", got=got, hint=hint)
    frame = scan(spark, plan.source, plan.spec.needs_columns, streaming=True)
    return mapped(frame.frame, RowsFrame(plan.spec, frame.reader).__call__, spark_ddl(plan.stage.layout.result_schema))


def stateful(
    spark: SparkSession,
    plan: PhysicalPlan,
    clock: Clock,
    buckets: int,
    output: TaskOutput,
    blobs: ChunkFolder,
    shuffle_files: ShuffleFiles,
    controls: ControlFolder | None,
) -> DataFrame:
    """Return the streaming DataFrame of a plan: rows ``(kind, bucket, blob)``."""
    if plan.stateless:
        return rows_given(spark, plan, clock.checkpoint, output)
    ids, stages = bucket_ids(buckets), plan.stages
    timed = [n for n, s in enumerate(stages) if not s.stateless]
    moving = tuple(timed) if plan.in_lanes else ()
    waits = [plan.drift_us(read) is not None for read in plan.reads]
    sources = tuple(
        (n, logged(r.source, clock.checkpoint, n, waits=waits[n], in_lanes=n in plan.in_lanes))
        for n, r in enumerate(plan.reads)
    )
    frames = []
    for index, read in enumerate(plan.reads):
        scanned = scan(spark, sources[index][1], read.needs_columns, streaming=True)
        roots = tuple(root_of(plan, n, b) for n, b in read.takers if n in timed)
        passed = tuple(RowsOut(b.spec, output, n, plan.last, index, leaving(plan, n)) for n, b in read.takers if n not in timed)
        others = sources[:index] + sources[index + 1 :]
        pack = PackTask(roots, scanned.reader, ids, clock, shuffle_files, passed, others, moving)
        frames.append(mapped(scanned.frame, pack.__call__, PACKED_TYPE))
    if controls is not None:
        frame_of_controls = own_files(spark, controls.folder, streaming=True, max_files=None)
        roots = tuple(Root(stages[n].spec, n, stages[n].times, index) for index, n in enumerate(plan.clock_owners))
        reader = ParquetReader(stages[0].spec.source_schema, sent=True)
        pack = PackTask(roots, reader, ids, clock, shuffle_files, moving=moving)
        frames.append(mapped(frame_of_controls, pack.__call__, PACKED_TYPE))
    frame = functools.reduce(DataFrame.union, frames)
    if clock.heartbeats_reach_buckets:
        frame = frame.drop("wm")
    for number, after in zip(timed, [*timed[1:], None], strict=True):
        chunks = attrs.evolve(blobs, stage=number)
        processor = BucketProcessor(
            stages[number].spec,
            output,
            clock,
            chunks,
            shuffle_files,
            place_of(plan, number, after, ids),
            plan.clocks if moving else None,
        )
        frame = _following(frame, processor) if number or clock.heartbeats_reach_buckets else operator(frame, processor)
    return frame


@attrs.define(eq=False)
class BatchSteps:
    """Holds what happens on the driver with one micro-batch: both outputs are published, then the ledger is written."""

    plan: PhysicalPlan
    outputs: tuple[QueryOutput, ...]
    begun: int
    """The last micro-batch that was begun in an earlier run."""
    make_outputs: Callable[[], tuple[QueryOutput, ...]]
    """Makes the outputs once more, for another attempt to publish a batch."""
    retry_s: float
    """For how long what is away is tried again, s."""
    ledger: BucketMetrics
    clock: SparkClock | LedgerClock
    now: Callable[[], int]
    shuffle_files: ShuffleFiles
    halt: StopReason
    heartbeats: Heartbeats | None
    lease: Lease
    ahead: TimeWatch
    planners: tuple[RangePlanner, ...] = ()
    control_writer: ControlWriter | None = None
    tables: LookupTables | None = None
    closings: Closings | None = None
    _before: int = attrs.field(init=False)
    """The last micro-batch that was begun by an earlier process."""
    _lines: BatchLines = attrs.field(init=False)
    retries: RunningRetries = attrs.field(init=False)
    """Tries again what fails over something that is away."""

    def __attrs_post_init__(self) -> None:
        self._lines = BatchLines(self.ahead.title, self.ledger.counted)
        title, self._before = self.ahead.title, self.begun

        def may_pass(problem: BaseException) -> bool:
            return failed_batch(problem, title, 0).transient

        self.retries = RunningRetries(self.retry_s, title, self.halt.stopping, self.note, may_pass)

    def note(self, trouble: str) -> None:
        """Let people see what is away, or that it is back."""
        self.ledger.trouble = trouble

    def passing(self, problem: BaseException) -> KrishivError | None:
        """Return the error for what has ended the query, if it may go on from its checkpoint: no step was tried enough."""
        error = as_error(self.halt.problem or problem, self.ahead.title, self.ledger.notes.checkpoint)
        return error if error.transient and not self.retries.gave_up else None

    def go_on(self) -> None:
        """Begin again from what the checkpoint holds, as a new process would.

        Raises
        ------
        CheckpointError
            When it is not there.
        """
        self.lease.check()
        self.halt.problem = None
        self.begun = max(batches_of(self.ledger.notes.checkpoint), default=-1)
        self.outputs = self.make_outputs()
        if self.tables is not None:
            self.tables = self.tables.again(self.begun)
        if self.closings is not None:
            self.closings = self.closings.again(self.begun)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.halt.thread = threading.get_ident()
        self.ledger.began = self.ledger.busy_since = time.monotonic()
        try:
            with self._lines.batch():
                self._run(frame, batch_id)
        except BaseException as problem:  # noqa: BLE001  # SystemExit too: py4j would leave Spark without an answer
            if self.halt.stopping.is_set():  # whatever the interruption came out as
                raise BatchStoppedError() from None
            self.halt.problem = failed_batch(problem, self.plan.title, batch_id)
            self.halt.repeats = batch_id <= self._before
            raise self.halt.problem from passable(cause(problem))
        finally:
            self.halt.thread = self.ledger.busy_since = None

    def _run(self, frame: DataFrame, batch_id: int) -> None:
        self.lease.check()
        if self.plan.dates_batches and isinstance(self.clock, LedgerClock):
            self.clock.begin(batch_id, self.now())
        if self.tables is not None:
            self.ledger.tables = self.tables.begin(batch_id)
        if self.closings is not None and self.closings.begin(batch_id):
            frame.sparkSession.conf.set(closing_setting(self.closings.checkpoint), str(batch_id))
        for planner in self.planners:
            self.retries.call(functools.partial(planner.taken, batch_id))
        if self.plan.in_lanes and isinstance(self.clock, LedgerClock):
            self.clock.expect(batch_id, self.plan.clocks, self._partitions())
        self._publish(frame, batch_id)
        for planner in self.planners:
            planner.published()

    def _partitions(self) -> Iterator[tuple[Sequence[ClockInput], Iterable[str]]]:
        """Yield the partitions that sources know of, with their streams as the clocks have them."""
        for planner in self.planners:
            if planner.number in self.plan.in_lanes and planner.log.position is not None:
                names = planner.node.source.partitions_at(json.loads(planner.log.position))
                yield self.plan.clock_inputs(self.plan.reads[planner.number]), names

    def _publish(self, frame: DataFrame, batch_id: int) -> None:
        on_cluster = [output.kind for output in self.outputs if output.delivery == "frame"]
        if on_cluster:
            frame = frame.persist()
        try:
            here = frame.filter(~frame["kind"].isin(on_cluster)) if on_cluster else frame
            with batch_part("compute"):
                rows = self.retries.call(lambda: self._computed(here))
            for planner in self.planners:
                planner.check_files(read=True)
                planner.computed()
            self.lease.check()
            number, is_replay = self.clock.begun.batches + batch_id, batch_id <= self.begun
            arrived = TaskOutputs(number, is_replay, frame, rows, lambda: planned_us(planned(self.clock.checkpoint, batch_id)))
            with batch_part("publish"):
                for place in range(len(self.outputs)):
                    self._publish_to(place, arrived)
        finally:
            if on_cluster:
                frame.unpersist()
        self.shuffle_files.of_batch(batch_id).clear()
        with batch_part("commit"):
            self._account(batch_id, reports_of(rows))
        if self.closings is not None:
            self.closings.published(batch_id, {row.kind for row in rows})
        if self.heartbeats is not None:
            self.heartbeats.batch_done()

    def _publish_to(self, place: int, arrived: TaskOutputs) -> None:
        """Publish a batch to one output; to one that is made again where the sink was away, as a restart would."""

        def attempt() -> None:
            nonlocal arrived
            try:
                self.outputs[place].publish(arrived)
            except Exception:
                self.outputs, arrived = self.make_outputs(), attrs.evolve(arrived, is_replay=True)
                raise

        self.retries.call(attempt)

    def _computed(self, frame: DataFrame) -> list[TaskRow]:
        """Run the batch; once more where a task got no answer from Spark's server of the state.

        The server listens at a port and ends when another program calls there first; an embedded session uses sockets in a
        folder of its own instead, executors of a cluster and sessions of the user do not. No row is published before all tasks
        are done, and each job of a batch begins with the state of the batch before: to run it again is what a restart would do.
        """
        try:
            return self._task_rows(frame)
        except PySparkException as problem:
            if NO_ANSWER not in str(problem):
                raise
        warnings.warn(
            f"query {self.ahead.title!r}: {NO_ANSWER} to a task; the batch is run again", RuntimeWarning, stacklevel=2
        )
        return self._task_rows(frame)

    def _task_rows(self, frame: DataFrame) -> list[TaskRow]:
        """Return what tasks hand over; rows for a sink on the driver in bulk, as collect() would pickle them byte by byte."""
        if any(output.delivery == "tables" and not isinstance(output, HandlerRows) for output in self.outputs):
            return [TaskRow(*values) for values in zip(*(c.to_pylist() for c in frame.toArrow().columns), strict=True)]
        return [TaskRow(r.kind, r.bucket, bytes(r.blob)) for r in frame.collect()]

    def _account(self, batch_id: int, reported: dict[str, Report]) -> None:
        """Metrics; and for plans with a ledger what will be in force in the next batch."""
        for bucket, report in reported.items():
            self.ahead.take(stage_of(bucket, self.plan.last), report.notes)
        self.ledger.doubts, self.ledger.partition_times_us = self.ahead.doubts, self.ahead.partition_times_us
        passing = [n for n, stage in enumerate(self.plan.stages) if stage.stateless]
        if passing:
            reported = self._totals(passing, batch_id, reported)
        if self.plan.stateless:
            self.ledger.take(batch_id, reported, Moment(UNSET), {}, whole=True)
            return
        now_us = self.now()
        if isinstance(self.clock, SparkClock):
            in_force = self.clock.in_force(batch_id)
            assert self.clock.facts is not None
            of_mark = {"reached": {ONLY: in_force.watermark_us}, "spoke": {}, "current": in_force.watermark_us}
            noted = self.clock.facts.read(batch_id, needed=False)
            clocks = Clocks.restored(self.plan.clocks, noted or {"tracker": of_mark})
            self._follow(clocks, reported, now_us)
            self.clock.facts.write(batch_id + 1, {**clocks.saved(), "now_us": now_us})
            self.ledger.take(batch_id, reported, in_force, {}, whole=bool(passing))
            return
        entry = self.clock.read(batch_id)
        clocks = Clocks(self.plan.clocks) if entry is None else Clocks.restored(self.plan.clocks, entry)
        stepped: dict[str, Any] = {}
        if self.plan.in_lanes:
            stepped[STEPPED] = self.clock.after(batch_id, self.plan.clocks, self._said(reported)).every
        in_force = self._follow(clocks, reported, now_us)
        self.ledger.idle = tuple(clocks.idle(now_us))
        self.clock.write(batch_id + 1, {**clocks.saved(), **stepped, "now_us": now_us})
        if self.control_writer is not None:
            self.control_writer.batch_done(moved=in_force.later(self.clock.in_force(batch_id)))
        self.ledger.take(batch_id, reported, in_force, clocks.reached, whole=bool(passing))

    def _follow(self, clocks: Clocks, reported: dict[str, Report], now_us: int) -> Moment:
        """Let the clocks follow what the buckets reported; gives what is in force in the next batch."""
        for clock, maxima, advances in self._said(reported):
            clocks.saw(clock, maxima, now_us)
            for advance in advances:
                clocks.note(clock, advance, now_us)
        return clocks.settle(now_us)

    def _said(self, reported: dict[str, Report]) -> list[tuple[int, dict[str, int], list[Control]]]:
        """Return what the buckets reported of each clock."""
        return [
            (clock, notes.maxima, notes.advances)
            for bucket, report in reported.items()
            if (clock := self.plan.stages[stage_of(bucket, self.plan.last)].clock) is not None
            for notes in report.notes
        ]

    def _totals(self, passing: list[int], batch_id: int, reported: dict[str, Report]) -> dict[str, Report]:
        """Return all that is known with this batch: tasks that keep nothing tell of one batch only, so theirs are summed up."""
        known, last = self.ledger.buckets, self.plan.last
        whole = {b: r for b, r in {**known, **reported}.items() if stage_of(b, last) not in passing}
        for number in passing:
            before = {b: r for b, r in known.items() if stage_of(b, last) == number}
            reports = [r for b, r in reported.items() if stage_of(b, last) == number]
            whole |= in_total(before, batch_id, reports, "" if number == last else f"{STAGE}{number}")
        return whole


def runs_after(
    control_files: ControlFiles, controls: ControlFolder | None, run: QueryRun, launch: Callable[[], SparkQueryHandle]
) -> list[Callable[[], SparkQueryHandle]]:
    """Return what runs after a query that has read all there is: the end of input, or what else it is to be shown."""
    if not control_files.goes_on:
        return []

    def go_on() -> SparkQueryHandle:
        assert controls is not None
        controls.write(Control(END_OF_TIME if run.batches.flush else UNSET, None, run.now(), run.batches.snapshot))
        return launch()

    # where files wake it, one more run reads the word that the end of input has moved the watermark
    return [go_on, *([launch] if control_files.woken and run.batches.flush else [])]


def claimed(spark: SparkSession, run: QueryRun) -> tuple[CheckpointNotes, Claim]:
    """Take the checkpoint for a plan, and mend what an earlier run left."""
    plan, opened = run.plan, run.opened
    notes = CheckpointNotes(opened.checkpoint, opened.durable)
    notes.plan()  # its format, before anything is looked at by the rules of this one, or written again
    check_rescaled(opened.checkpoint, durable=opened.durable)
    forget_state(opened.checkpoint)
    sources = [read.source for read in plan.reads]
    check_log(opened.checkpoint, len(sources))
    forget_unplanned(opened.checkpoint)
    follow(opened.checkpoint, sources)
    convert(opened.checkpoint, sources, durable=opened.durable)
    return notes, notes.claim(plan, buckets_wanted(spark), f"PySpark {pyspark.__version__}")


def first_clock(run: QueryRun) -> SparkClock | LedgerClock:
    """Return the clock of a plan; what is in force in a first batch is on record."""
    clock = clock_for(run.plan, run.checkpoint, durable=run.durable, kept=run.batches._kept)
    if isinstance(clock, LedgerClock) and not batches_of(run.checkpoint) and not clock.begun.elsewhere:
        clock.write(0, {**Clocks(run.plan.clocks).saved(), "now_us": run.now()})
    return clock


def chunk_folder(spark: SparkSession, run: QueryRun) -> ChunkFolder:
    """Return where large chunks of state are."""
    return ChunkFolder(run.checkpoint, retained(spark, run.batches), setting(spark, CHUNK_FILE_BYTES), run.durable)


def writing(frame: DataFrame, steps: Callable[[DataFrame, int], None], run: QueryRun) -> DataStreamWriter:
    """Return a query that is not started yet."""
    written, batches = frame.writeStream.foreachBatch(steps).option("checkpointLocation", run.checkpoint), run.batches
    written = written.outputMode("append").queryName(run.title)
    if batches.kind == "available_now":
        return written.trigger(availableNow=True)
    if batches.kind == "every":
        return written.trigger(processingTime=f"{batches.interval_us // 1_000} milliseconds")
    return written


def steps_of(
    run: QueryRun,
    notes: CheckpointNotes,
    mark: str,
    clock: SparkClock | LedgerClock,
    control_files: ControlFiles,
    controls: ControlFolder | None,
    shuffle_files: ShuffleFiles,
    closing: threading.Event | None = None,
    *,
    on_server: bool = False,
) -> BatchSteps:
    """Return what happens on the driver with each micro-batch, wherever it runs; its outputs, of a `mark`, are not made yet."""
    plan, checkpoint, durable, now, kept = run.plan, run.checkpoint, run.durable, run.now, run.batches._kept
    reached: list[BucketMetrics] = []
    aligned = alignments(plan, lambda: reached[0].sources_us, now)
    waiting = tuple({id(alignment): alignment for alignment, _ in aligned.values()}.values())
    ledger = BucketMetrics(notes, plan.stages, plan.last, plan.clocks.initial, waiting, every_batch=on_server)
    reached.append(ledger)
    ledger.restore()
    sources = [read.source for read in plan.reads]
    interval_us = run.batches.interval_us if run.batches.kind == "every" and not on_server else None
    planning = planners(
        sources, checkpoint, now, aligned, durable=durable, interval_us=interval_us, kept=kept, in_lanes=plan.in_lanes
    )
    ledger.backlog = lambda: backlogs(planning)
    begun = max(batches_of(checkpoint), default=-1)
    return BatchSteps(
        plan,
        (),
        begun,
        functools.partial(outputs_of, plan, run.sinks, run.title, mark, durable=durable),
        run.retry_s,
        ledger,
        clock,
        now,
        shuffle_files,
        StopReason(),
        control_files.heartbeats(controls, now, lambda: bool(ledger.open), ledger.is_due),
        run.opened.lease,
        TimeWatch(plan, run.title),
        planning,
        control_files.writer(controls, now),
        LookupTables(checkpoint, lookup_tables(plan), now, durable, begun, notes.has_tables, notes.note_tables, kept),
        Closings(checkpoint, durable, begun, closing, kept),
    )


def start(spark: SparkSession, run: QueryRun, shuffle_files: ShuffleFiles) -> StreamQuery:
    """Start a query."""
    plan, sinks, batches, title, now = run.plan, run.sinks, run.batches, run.title, run.now
    sources = [read.source for read in plan.reads]
    keep_with_driver(lookup_tables(plan))
    if batches.snapshot:
        check_snapshot(plan)
        check_keys(plan, sinks, early=True)
    checkpoint = run.checkpoint
    alignments(plan, dict, now)  # what they refuse, before the checkpoint is taken
    notes, claim = claimed(spark, run)
    clock, control_files, closing = first_clock(run), ControlFiles.of(plan, batches), threading.Event()
    controls = ControlFolder.of(checkpoint, wanted=control_files.wanted, sources=len(sources))
    steps = steps_of(run, notes, claim.outputs, clock, control_files, controls, shuffle_files, closing)
    ledger, planning, heartbeats = steps.ledger, steps.planners, steps.heartbeats
    ledger.rows_before = ledger.counted().rows
    warn_if_flushed(ledger.moment.watermark_us, checkpoint, plan.source)
    output = task_output(plan, sinks, claim.outputs, checkpoint, durable=run.durable)
    frame = stateful(spark, plan, clock, claim.buckets, output, chunk_folder(spark, run), shuffle_files, controls)
    claim_outputs(plan, sinks, claim.outputs, notes)
    steps.outputs = steps.make_outputs()
    writer = writing(frame, steps, run)

    def stop() -> None:
        for planner in planning:
            planner.stop()
        (run.cleanup if heartbeats is None else heartbeats.stopping(run.cleanup))()

    rows_in_jvm = not all(map(arrow_scanned, sources)) or any(output.delivery == "frame" for output in steps.outputs)

    for planner in planning:
        planner.begin(everything=batches.kind == "available_now")

    def begin() -> StreamingQuery:
        forget_unplanned(checkpoint)
        with started_under(spark, checkpoint, batches, chunks_only=not rows_in_jvm):
            return with_sources(writer.start())

    def launch() -> SparkQueryHandle:
        return SparkQueryHandle(begin, title, run.retry_s, steps.passing, steps.note, steps.go_on)

    query = StreamQuery(
        title,
        ledger,
        plan,
        "\n".join([described_outputs(plan, sinks), *([NOTE] if batches.flush and control_files.goes_on else [])]),
        QueryRows.of(plan, sinks),
        stop,
        launch(),
        runs_after(control_files, controls, run, launch),
        steps.halt,
        spark,
        lambda: any(planner.behind() for planner in planning),
        closing,
        lambda: held(planning),
    )
    if heartbeats is not None:
        heartbeats.start(lambda: query.status == "running")
    if batches.kind != "available_now":
        for planner in planning:
            planner.start(lambda: query.status == "running", query._fail, steps.retries)
    return query


def _following(given: DataFrame, processor: BucketProcessor) -> DataFrame:
    # its watermark follows from that of the first stage, and rows wake it: Spark's clock plays no part
    return with_state(given, carried(processor), OUT_TYPE, "None")


def operator(packed: DataFrame, processor: BucketProcessor) -> DataFrame:
    """Return the first stage after packed rows: the one operator that has Spark's watermark."""
    # selecting the event-time attribute away keeps Spark from dropping late chunks before the operator sees them
    clocked = packed.withWatermark("wm", "0 seconds").select("bucket", "kind", "seq", "in_force", "blob")
    return with_state(clocked, carried(processor), OUT_TYPE, "EventTime")
