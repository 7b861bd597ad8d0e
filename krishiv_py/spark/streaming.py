"""The streaming adapter: ``scan → pack → (shuffle by bucket) → transformWithState → publish``."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from typing import Any, Final

import attrs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from krishiv_py.errors import PlanError, message
from krishiv_py.kernels.input.malformed import late_output_schema
from krishiv_py.kernels.input.watermark import WatermarkTracker
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.nodes import FileSource, UnionSource
from krishiv_py.plan.options.late import LateEventHandler, SideOutputLateEventHandler
from krishiv_py.plan.options.sinks import ConsoleSink, ForeachBatchSink, JsonSink, MemorySink, ParquetSink, QueryTrigger, Sink
from krishiv_py.planner.fingerprint import uses_ledger
from krishiv_py.planner.physical import PhysicalPlan, StagePlan
from krishiv_py.spark.checkpoint.lease import Lease
from krishiv_py.spark.checkpoint.logcheck import check_log
from krishiv_py.spark.checkpoint.moved import follow
from krishiv_py.spark.checkpoint.notes import CheckpointNotes
from krishiv_py.spark.checkpoint.places import LATE, RESULTS, homed
from krishiv_py.spark.checkpoint.sparklog import forget_unplanned
from krishiv_py.spark.clock.clocks import Clock, LedgerClock, SparkClock, clock_for
from krishiv_py.spark.clock.controls import ControlFolder
from krishiv_py.spark.clock.flushed import NOTE, warn_if_flushed
from krishiv_py.spark.clock.pulse import Pulse, period_us
from krishiv_py.spark.frames import call_batch, explode, show, written_files
from krishiv_py.spark.opening import Opened
from krishiv_py.spark.query import Ledger, StreamQuery
from krishiv_py.spark.reading.listing import own_files
from krishiv_py.spark.reading.parquet import ParquetReader
from krishiv_py.spark.reading.scan import arrow_scanned, scan
from krishiv_py.spark.setup.config import CHUNK_FILE_BYTES, setting, started_under, with_sources
from krishiv_py.spark.storage.blobs import BlobFolder
from krishiv_py.spark.storage.codec import decode
from krishiv_py.spark.storage.handover import Handover
from krishiv_py.spark.tasks.batch import Halt, TaskRow, deliver, metrics_of
from krishiv_py.spark.tasks.failures import cause, failed_batch, passable
from krishiv_py.spark.tasks.outputs import Publisher, TaskOutput, claim_folder
from krishiv_py.spark.tasks.pack import PACKED_DDL, Pack, RawPack
from krishiv_py.spark.tasks.partitioning import bucket_ids
from krishiv_py.spark.tasks.processor import FILE, LATE_ROWS, METRICS, OUT_DDL, RESULT, BucketProcessor
from krishiv_py.spool import Control

ON_CLUSTER: Final = (ForeachBatchSink, ConsoleSink, JsonSink)
"""Sinks that take the rows of a micro-batch as a Spark DataFrame."""


def stateful(
    spark: SparkSession,
    stage: StagePlan,
    clock: Clock,
    buckets: int,
    output: TaskOutput,
    blobs: BlobFolder,
    handover: Handover,
    controls: ControlFolder | None,
) -> DataFrame:
    """The streaming DataFrame of a plan: rows ``(kind, bucket, blob)``."""
    spec, ids = stage.spec, bucket_ids(buckets)
    frames = []
    for branch in stage.inputs:
        found = scan(spark, branch.source, branch.spec.needs_columns, streaming=True)
        pack = Pack(branch.spec, found.reader, ids, clock, handover, branch.name)
        frames.append(found.frame.mapInArrow(pack.__call__, PACKED_DDL))
    if controls is not None:
        beats = own_files(spark, controls.folder, streaming=True, max_files=None)
        pack = Pack(spec, ParquetReader(spec.source_schema, sent=True), ids, clock, handover)
        frames.append(beats.mapInArrow(pack.__call__, PACKED_DDL))
    packed = functools.reduce(DataFrame.union, frames)
    return _operator(packed, BucketProcessor(spec, output, clock, blobs, handover))


class BatchStoppedError(Exception):
    """What Spark hears of a batch that ``stop()`` broke off.

    It looks in the text for an interruption, by a regular expression that overflows the JVM's stack on texts as long as those
    of Spark's own errors: the query would die with pages of noise instead of stopping.
    """

    def __init__(self) -> None:
        super().__init__("py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException")


@attrs.define(eq=False)
class BatchSteps:
    """What happens on the driver with one micro-batch: both outputs are published, then the ledger is written."""

    plan: PhysicalPlan
    sink: Sink
    late_sink: Sink | None
    ledger: Ledger
    publishers: dict[str, Publisher]
    clock: SparkClock | LedgerClock
    now: Callable[[], int]
    handover: Handover
    title: str
    halt: Halt
    pulse: Pulse | None
    lease: Lease

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.halt.thread = threading.get_ident()
        try:
            self.lease.check()
            self._publish(frame, batch_id)
        except BaseException as problem:  # noqa: BLE001  # SystemExit too: py4j would leave Spark without an answer
            if self.halt.stopping.is_set():  # whatever the interruption came out as
                raise BatchStoppedError() from None
            self.halt.problem = failed_batch(problem, self.plan.spec.name, batch_id)
            raise self.halt.problem from passable(cause(problem))
        finally:
            self.halt.thread = None

    def _publish(self, frame: DataFrame, batch_id: int) -> None:
        on_cluster = [k for k, s in ((RESULT, self.sink), (LATE_ROWS, self.late_sink)) if isinstance(s, ON_CLUSTER)]
        if on_cluster:
            frame = frame.persist()
        try:
            here = frame.filter(~frame["kind"].isin(on_cluster)) if on_cluster else frame
            rows = self._told(here)
            self.lease.check()
            self._cluster_outputs(frame, on_cluster, batch_id)
            self._files(rows, on_cluster, batch_id)
            self._memory(rows, batch_id)
        finally:
            if on_cluster:
                frame.unpersist()
        self.handover.of_batch(batch_id).clear()
        self._account(batch_id, metrics_of([r for r in rows if r.kind == METRICS]))
        if self.pulse is not None:
            self.pulse.batch_done()

    def _told(self, frame: DataFrame) -> list[TaskRow]:
        """What tasks hand over; rows for a sink in memory in bulk, as collect() would pickle them byte by byte."""
        if isinstance(self.sink, MemorySink):
            return [TaskRow(*values) for values in zip(*(c.to_pylist() for c in frame.toArrow().columns), strict=True)]
        return [TaskRow(r.kind, r.bucket, bytes(r.blob)) for r in frame.collect()]

    def _account(self, batch_id: int, reported: dict[str, Any]) -> None:
        """Metrics; and for plans with a ledger what will be in force in the next batch."""
        if isinstance(self.clock, SparkClock):
            self.ledger.take(batch_id, reported, self.clock.in_force(batch_id).watermark_us, {})
            return
        entry = self.clock.read(batch_id)
        now_us = self.now()
        tracker = (
            WatermarkTracker(self.plan.spec.watermark)
            if entry is None
            else WatermarkTracker.restored(self.plan.spec.watermark, entry["tracker"])
        )
        for metrics in reported.values():
            for maxima, controls in metrics["notes"]:
                tracker.saw(maxima, now_us)
                for watermark_us, source, _ in controls:
                    if watermark_us != UNSET:
                        tracker.advance(watermark_us, source, now_us)
        tracker.settle(now_us)
        self.clock.write(batch_id + 1, {"tracker": tracker.saved(), "now_us": now_us})
        self.ledger.take(batch_id, reported, tracker.current, dict(tracker.reached))

    def _files(self, rows: list[TaskRow], on_cluster: list[str], batch_id: int) -> None:
        written = [json.loads(r.blob) for r in rows if r.kind == FILE]
        for kind, publisher in self.publishers.items():
            if kind not in on_cluster:
                publisher.publish(batch_id, [w["name"] for w in written if w["kind"] == kind])

    def _memory(self, rows: list[TaskRow], batch_id: int) -> None:
        for kind, sink in ((RESULT, self.sink), (LATE_ROWS, self.late_sink)):
            tables = [decode(r.blob) for r in rows if r.kind == kind]
            if isinstance(sink, MemorySink):
                sink.put(batch_id, tables)
            elif kind == LATE_ROWS and sink is None:
                deliver(self.plan.late, tables, self.plan.spec.name, batch_id)

    def _cluster_outputs(self, frame: DataFrame, kinds: list[str], batch_id: int) -> None:
        layout = self.plan.stage.layout
        for kind in kinds:
            sink = self.sink if kind == RESULT else self.late_sink
            schema = layout.result_schema if kind == RESULT else late_output_schema(layout)
            rows = explode(frame.filter(frame["kind"] == kind), schema)
            if isinstance(sink, ForeachBatchSink):
                call_batch(sink.function, rows, batch_id)
            elif isinstance(sink, ConsoleSink):
                show(rows, self.title if kind == RESULT else f"{self.title}: late", batch_id, sink.max_rows)
            else:
                assert isinstance(sink, JsonSink)
                written_files(rows, sink, self.publishers[kind], batch_id)


def side_output(handler: LateEventHandler) -> Sink | None:
    """Where late rows go, if they go to a sink."""
    return homed(handler.sink) if isinstance(handler, SideOutputLateEventHandler) else None


def start(
    spark: SparkSession,
    plan: PhysicalPlan,
    sink: Sink,
    opened: Opened,
    trigger: QueryTrigger,
    title: str,
    now: Callable[[], int],
    handover: Handover,
    cleanup: Callable[[], None],
) -> StreamQuery:
    """Start a query."""
    stage, spec = plan.stage, plan.spec
    sink, late_sink, checkpoint, durable = homed(sink), side_output(plan.late), opened.checkpoint, opened.durable
    notes = CheckpointNotes(checkpoint, durable)
    notes.plan()  # its format, before anything is looked at by the rules of this one, or written anew
    check_log(checkpoint, len(stage.inputs))
    forget_unplanned(checkpoint)
    follow(checkpoint, [branch.source for branch in stage.inputs])
    claim = notes.claim(spec, setting(spark, "spark.sql.shuffle.partitions"))
    ledger = Ledger(notes)
    ledger.restore()
    warn_if_flushed(ledger.watermark_us, checkpoint, plan.source)
    outputs = ((RESULT, sink), (LATE_ROWS, late_sink))
    folders = {kind: s.path for kind, s in outputs if isinstance(s, ParquetSink)}
    clock = clock_for(spec, checkpoint, durable=durable)
    period = period_us(spec)
    controls = ControlFolder.of(checkpoint, wanted=period is not None or trigger.flush, sources=len(stage.inputs))
    pulse = Pulse(controls, period, now) if controls is not None and period is not None else None
    kept = setting(spark, "spark.sql.streaming.minBatchesToRetain")
    blobs = BlobFolder(checkpoint, kept, setting(spark, CHUNK_FILE_BYTES), durable)
    output = TaskOutput(folders, claim.outputs, durable)
    frame = stateful(spark, stage, clock, claim.buckets, output, blobs, handover, controls)
    for rows, folder in ((RESULTS, sink), (LATE, late_sink)):
        if isinstance(folder, (ParquetSink, JsonSink)):
            claim_folder(folder, rows, claim.outputs, checkpoint)
    publishers = {k: Publisher(s.path, claim.outputs, durable) for k, s in outputs if isinstance(s, (ParquetSink, JsonSink))}
    halt = Halt()
    steps = BatchSteps(plan, sink, late_sink, ledger, publishers, clock, now, handover, title, halt, pulse, opened.lease)
    writer = (
        frame.writeStream.foreachBatch(steps).option("checkpointLocation", checkpoint).outputMode("append").queryName(title)
    )
    if trigger.kind == "available_now":
        writer = writer.trigger(availableNow=True)
    elif trigger.kind == "every":
        writer = writer.trigger(processingTime=f"{trigger.interval_us // 1_000} milliseconds")
    stop = cleanup if pulse is None else pulse.stopping(cleanup)

    rows_in_jvm = not all(arrow_scanned(b.source) for b in stage.inputs) or any(
        isinstance(s, ON_CLUSTER) for s in (sink, late_sink)
    )

    def launch() -> StreamingQuery:
        forget_unplanned(checkpoint)
        with started_under(spark, chunks_only=not rows_in_jvm, kept=opened.kept):
            return with_sources(writer.start())

    def flush() -> StreamingQuery:
        assert controls is not None
        controls.write(Control(END_OF_TIME, None, now()))
        return launch()

    query = StreamQuery(
        launch(),
        flush if trigger.flush else None,
        title,
        ledger,
        plan,
        NOTE if trigger.flush else None,
        sink if isinstance(sink, MemorySink) else None,
        late_sink if isinstance(late_sink, MemorySink) else None,
        stop,
        halt,
        spark,
    )
    if pulse is not None:
        pulse.start(lambda: query.status == "running")
    return query


def rows_frame(spark: SparkSession, plan: PhysicalPlan) -> DataFrame:
    """A streaming DataFrame of result rows, to go on with in plain Spark."""
    if plan.late.wants != "count":
        raise PlanError(
            message(
                "to_dataframe() has one output",
                type(plan.late).__name__,
                "late rows would be lost",
                "use start(sink), or a CountingLateEventHandler",
            )
        )
    spec = plan.spec
    if uses_ledger(spec) or (spec.options.future_action != "warn" and spec.options.future_reference == "clock"):
        raise PlanError(
            message(
                "to_dataframe() knows no clock but the watermark of one source",
                spec.watermark.describe(),
                "idle sources and intervals would never take their turn",
                "use start(sink)",
            )
        )
    source = plan.source
    if isinstance(source, UnionSource):
        raise PlanError(
            message(
                "to_dataframe() knows one source only",
                source.detail(),
                "their watermarks cannot be told apart",
                "use start(sink)",
            )
        )
    if isinstance(source, FileSource) and source.on_malformed == "side_output":
        raise PlanError(
            message(
                "to_dataframe() has one output",
                f'{source.detail()} with on_malformed="side_output"',
                "malformed input would be lost",
                'read with on_malformed="fail", or use start(sink)',
            )
        )
    found = scan(spark, source, spec.needs_columns, streaming=True)
    ids = bucket_ids(setting(spark, "spark.sql.shuffle.partitions"))
    packed = found.frame.mapInArrow(RawPack(spec, found.reader, ids).__call__, PACKED_DDL)
    chunks = _operator(packed, BucketProcessor(spec))
    return explode(chunks.filter(chunks["kind"] == RESULT), plan.stage.layout.result_schema)


def _operator(packed: DataFrame, processor: BucketProcessor) -> DataFrame:
    # selecting the event-time attribute away keeps Spark from dropping late chunks before the operator sees them
    clocked = packed.withWatermark("wm", "0 seconds").select("bucket", "kind", "seq", "in_force", "blob")
    return clocked.groupBy("bucket").transformWithState(processor, OUT_DDL, "Append", "EventTime")
