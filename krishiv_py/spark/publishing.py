"""Sinks on Spark: what the driver does at the end of a micro-batch with each output of a query.

How rows reach a sink is stated by its interface (krishiv_py/connectors); this is the one place that looks at it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.connectors.publish import OutputOf, Publisher, TablePublisher, blamed, staging_of
from krishiv_py.connectors.sink import Delivery, FileSink, FolderSink, FrameSink, OutputName, Sink, SparkFileSink, TableSink
from krishiv_py.connectors.sinks.files import folder_of
from krishiv_py.connectors.sinks.known import side_output
from krishiv_py.kernels.prepare import late_output_schema
from krishiv_py.plan.checks import call_plainly
from krishiv_py.plan.options.late import LateEventHandler
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.places import LATE
from krishiv_py.runtime.batch import RESULT, TaskRow, deliver, kind_of, result_kinds
from krishiv_py.runtime.checkpoint.notes import CheckpointOrigin
from krishiv_py.runtime.outputs import TaskOutput, claim_folder, late_sinks
from krishiv_py.spark.setup.types import spark_ddl
from krishiv_py.spark.setup.workers import mapped
from krishiv_py.spark.tasks.processor import FILE, LATE_ROWS
from krishiv_py.storage.checksums import decode
from krishiv_py.storage.files import store_at

_KINDS: Final[dict[OutputName, str]] = {"results": RESULT, "late_rows": LATE_ROWS}


@attrs.frozen(eq=False)
class TaskOutputs:
    """Holds what the tasks of a micro-batch handed over.

    Attributes
    ----------
    batch_id : int
        Its number.
    is_replay : bool
        Whether it was begun in an earlier run, and so may have been published.
    frame : pyspark.sql.DataFrame
        All of it, as rows ``(kind, bucket, blob)``.
    rows : list of TaskRow
        What the driver fetched: all but the rows that go to a sink as a DataFrame.
    clock_us : callable
        Gives its clock on record, µs.
    """

    batch_id: int
    is_replay: bool
    frame: DataFrame
    rows: list[TaskRow]
    clock_us: Callable[[], int]

    def tables(self, kind: str) -> list[pa.Table]:
        """Fetched rows of a kind."""
        return [decode(r.blob) for r in self.rows if r.kind == kind]

    def frame_of(self, kind: str, schema: pa.Schema) -> DataFrame:
        """Rows of a kind that were not fetched."""
        return explode(self.frame.filter(self.frame["kind"] == kind), schema)


class QueryOutput(Protocol):
    """One output of a running query.

    Attributes
    ----------
    kind : str
        Of the rows that go to it.
    delivery : {"task_files", "tables", "frame"}
        How they reach it.
    """

    @property
    def kind(self) -> str: ...

    @property
    def delivery(self) -> Delivery: ...

    def publish(self, arrived: TaskOutputs) -> None:
        """Publish one micro-batch, in place of an earlier attempt at it."""


@attrs.frozen(eq=False)
class TaskFiles:
    """Files that tasks wrote."""

    kind: str
    publisher: Publisher
    delivery: Delivery = "task_files"

    def publish(self, arrived: TaskOutputs) -> None:
        """See Output."""
        written = [json.loads(r.blob) for r in arrived.rows if r.kind == FILE]
        self.publisher.publish(arrived.batch_id, [name for w in written if w["kind"] == self.kind for name in w["names"]])


@attrs.frozen(eq=False)
class TableWriter:
    """Tables for a sink on the driver."""

    kind: str
    publisher: TablePublisher
    delivery: Delivery = "tables"

    def publish(self, arrived: TaskOutputs) -> None:
        """See Output."""
        given = [self.publisher.sink.in_batch(rows, arrived.batch_id, arrived.clock_us) for rows in arrived.tables(self.kind)]
        self.publisher.publish(arrived.batch_id, given, is_replay=arrived.is_replay)


@attrs.frozen(eq=False)
class Frames:
    """A DataFrame for a sink on the cluster."""

    kind: str
    sink: FrameSink
    output: OutputOf
    delivery: Delivery = "frame"

    def publish(self, arrived: TaskOutputs) -> None:
        """See Output."""
        self.write(arrived.frame_of(self.kind, self.output.schema), arrived.batch_id, is_replay=arrived.is_replay)

    def write(self, frame: DataFrame, batch_id: int, *, is_replay: bool) -> None:
        """Give the rows of a micro-batch to the sink."""
        with blamed(self.sink, batch_id):
            call_plainly(self.sink.write_frame, self.output.batch(batch_id, is_replay=is_replay), frame)


@attrs.frozen(eq=False)
class SparkFiles:
    """Files that Spark writes from a DataFrame."""

    kind: str
    sink: SparkFileSink
    schema: pa.Schema
    publisher: Publisher
    delivery: Delivery = "frame"

    def publish(self, arrived: TaskOutputs) -> None:
        """See Output."""
        self.write(arrived.frame_of(self.kind, self.schema), arrived.batch_id)

    def write(self, frame: DataFrame, batch_id: int) -> None:
        """Write rows through Spark into the staging folder, and publish the files."""
        folder, staging = self.publisher.folder, staging_of(self.publisher.mark, batch_id)
        with blamed(self.sink, batch_id):
            self.sink.write_files(frame, f"{folder}/{staging}")
        store, root = store_at(folder)
        entries = store.entries(f"{root}/{staging}")
        if self.publisher.durable:
            store.sync(*(f.path for f in entries if f.is_file))
        names = [f.base_name for f in entries if f.base_name.startswith("part-") and f.size]
        self.publisher.publish(batch_id, names)


@attrs.frozen(eq=False)
class HandlerRows:
    """Late rows for a handler that has no sink."""

    kind: str
    handler: LateEventHandler
    operator: str
    delivery: Delivery = "tables"

    def publish(self, arrived: TaskOutputs) -> None:
        """See Output."""
        deliver(self.handler, arrived.tables(self.kind), self.operator, arrived.batch_id)


def explode(frame: DataFrame, schema: pa.Schema) -> DataFrame:
    """Return the rows inside the ``blob`` column."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for blob in batch.column(0).to_pylist():
                yield from decode(blob).to_batches()

    return mapped(frame.select("blob"), rows, spark_ddl(schema))


def output_for(sink: Sink, output: OutputOf, mark: str, *, kind: str | None = None, durable: bool = False) -> QueryOutput:
    """Return what publishes one output to a sink; `mark` is in the names of its files, `kind` what its rows are called
    on the way.
    """
    kind = _KINDS[output.output] if kind is None else kind
    match sink:
        case FileSink():
            return TaskFiles(kind, Publisher(folder_of(sink) or "", mark, durable, claimed=True))
        case SparkFileSink():
            return SparkFiles(kind, sink, output.schema, Publisher(folder_of(sink) or "", mark, durable))
        case TableSink():
            return TableWriter(kind, TablePublisher(sink, output))
        case FrameSink():
            return Frames(kind, sink, output)
    raise AssertionError(f"{sink!r} passed the check of sinks")


def outputs_of(plan: PhysicalPlan, sinks: tuple[Sink, ...], title: str, mark: str, *, durable: bool) -> tuple[QueryOutput, ...]:
    """Return the outputs of a query: results, then the late rows of each stage."""
    outputs = []
    for output, sink, kind in zip(plan.outputs, sinks, result_kinds(plan), strict=True):
        query = f"{mark}-{output.name}" if plan.named else mark
        results = OutputOf(query, title, "results", output.schema)
        outputs.append(output_for(sink, results, mark, kind=kind, durable=durable))
    for number, stage in enumerate(plan.stages):
        kind, to = kind_of(LATE_ROWS, number, plan.last), side_output(stage.late)
        if to is None:
            outputs.append(HandlerRows(kind, stage.late, stage.spec.name))
        else:
            late = OutputOf(plan.late_id(mark, number), title, "late_rows", late_output_schema(stage.layout))
            outputs.append(output_for(to, late, mark, kind=kind, durable=durable))
    return tuple(outputs)


def task_output(plan: PhysicalPlan, sinks: tuple[Sink, ...], mark: str, checkpoint: str, *, durable: bool) -> TaskOutput:
    """Return what tasks write to files themselves."""
    results = dict(zip(result_kinds(plan), sinks, strict=True))
    late = {kind_of(LATE_ROWS, number, plan.last): to for number, to in enumerate(late_sinks(plan))}
    written = {kind: s for kind, s in {**results, **late}.items() if isinstance(s, FileSink)}
    first = CheckpointOrigin.of(checkpoint).batches
    return TaskOutput({kind: (folder_of(s) or "", s) for kind, s in written.items()}, mark, durable, checkpoint, first)


def write_once(spark: SparkSession, sink: Sink, late: pa.Table, query: str) -> None:
    """Write the late rows of a bounded run to a sink, as micro-batch 0 of a query of its own."""
    mark = uuid.uuid4().hex[:8]
    if isinstance(sink, FolderSink):
        claim_folder(sink, LATE, "bounded", None)
    output = output_for(sink, OutputOf(mark, query, "late_rows", late.schema), mark)
    match output:
        case TaskFiles() if isinstance(sink, FileSink):
            written = TaskOutput({LATE_ROWS: (output.publisher.folder, sink)}, mark).write(LATE_ROWS, 0, late, 0)
            output.publisher.publish(0, written["names"] if written is not None else [])
        case TableWriter():
            output.publisher.publish(0, [late], is_replay=False)
        case SparkFiles():
            output.write(_frame(spark, late), 0)
        case Frames():
            output.write(_frame(spark, late), 0, is_replay=False)


def _frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(table, spark_ddl(table.schema))  # else a time without zone becomes one of the session
