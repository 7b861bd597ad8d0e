"""DataFrames as sources, and results as DataFrames.

A query of ours hands its results to a query of plain Spark through a folder. A micro-batch is one file: its name has the query
and the batch, its modification time gives the order. A file is there whole or not at all, and a batch that is repeated finds it
there, so Spark's own log of the files it has read makes the hand-over exactly once. A file may also hold the watermark, and one
file holds the error of a query that failed.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.connectors.sink import OnRepeat, OutputBatch, OutputName, TableSink
from krishiv_py.errors import CheckpointError, KrishivError, PlanError, SchemaError
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.nodes import UnionSource
from krishiv_py.plan.options.query import HandoverOptions
from krishiv_py.plan.schema import time_name
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.fingerprint import uses_ledger
from krishiv_py.planner.physical import PhysicalPlan, lookup_tables
from krishiv_py.runtime.batch import RESULT
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT
from krishiv_py.runtime.clocks import LedgerClock, SparkClock, clock_for
from krishiv_py.runtime.reading import literal_path
from krishiv_py.spark import internals
from krishiv_py.spark.publishing import explode
from krishiv_py.spark.query import StreamQuery
from krishiv_py.spark.scan import every_file, scan
from krishiv_py.spark.setup.config import bucket_ids, setting
from krishiv_py.spark.setup.types import quoted, spark_ddl
from krishiv_py.spark.setup.workers import mapped
from krishiv_py.spark.storage import keep_with_driver
from krishiv_py.spark.streaming import operator, plain_frame
from krishiv_py.spark.tasks.pack import PACKED_TYPE, RawPack
from krishiv_py.spark.tasks.processor import BucketProcessor
from krishiv_py.storage.files import store_at
from krishiv_py.storage.local import absolute
from krishiv_py.storage.store import Store
from krishiv_py.types import type_text

_MARK: Final = "spark.watermarkDelayMs"
_NODE: Final = "EventTimeWatermark"


def lags_of(frame: DataFrame) -> dict[str, int] | None:
    """Of a streaming frame that carries a watermark, how far it is behind its columns, µs; None for one that carries none."""
    if not frame.isStreaming:
        return None
    lags = {f.name: int(f.metadata[_MARK]) * 1_000 for f in frame.schema if _MARK in (f.metadata or {})}
    return lags if lags or _NODE in _plan_of(frame) else None


def _plan_of(frame: DataFrame) -> str:
    """Return the analysed plan as text; empty where this Spark does not tell it."""
    try:
        return internals.analysed_plan(frame)
    except Exception:  # noqa: BLE001  # private to PySpark: without it the column's own mark is what there is
        return ""


def rows_frame(spark: SparkSession, plan: PhysicalPlan) -> DataFrame:
    """Return a streaming DataFrame of result rows, to go on with in plain Spark."""
    if plan.late.wants != "count":
        then = "late rows would be lost"
        hint = "pass checkpoint=..., a folder, use start(sink), or a CountingLateEventHandler"
        raise PlanError("to_dataframe() has one output", got=type(plan.late).__name__, then=then, hint=hint)
    spec = plan.spec
    if len(plan.stages) > 1:
        what = "to_dataframe() of a stream that does not end has one stage"
        raise PlanError(what, got=f"{len(plan.stages)} stages", hint="pass checkpoint=..., a folder, or use start(sink)")
    if uses_ledger(spec) or (spec.options.future_action != "warn" and spec.options.future_reference == "clock"):
        raise PlanError(
            "to_dataframe() knows no clock but the watermark of one source",
            got=spec.watermark._describe(),
            then="idle sources and intervals would never take their turn",
            hint="pass checkpoint=..., a folder, or use start(sink)",
        )
    keep_with_driver(tables := lookup_tables(plan))
    if alone := [f"{table.name}()" for table in tables if table.driver_only]:
        raise PlanError(
            "to_dataframe() loads no table through Spark",
            got=f"{', '.join(alone)}, which uses Spark, or what else cannot be sent to tasks",
            then="it is loaded in the tasks, where there is no Spark session",
            hint="pass checkpoint=..., a folder, use start(sink), or let the function load a pyarrow.Table by itself",
        )
    if plan.watermarked:
        what = "to_dataframe() of a DataFrame with a watermark of its own"
        hint = "pass checkpoint=..., a folder, or use start(sink)"
        raise PlanError(what, got=plan.source.detail(), then="with two in one query no window would ever end", hint=hint)
    source = plan.source
    if isinstance(source, UnionSource):
        hint = "pass checkpoint=..., a folder, or use start(sink)"
        raise PlanError("to_dataframe() knows one source only", got=source.detail(), hint=hint)
    if isinstance(source, RangeSource):
        then = "a restart would read other rows"
        hint = "pass checkpoint=..., a folder, or use start(sink)"
        raise PlanError("to_dataframe() needs a log of what a source planned", got=source.detail(), then=then, hint=hint)
    if source.puts_aside:
        got = f'{source.detail()} with on_malformed="side_output"'
        hint = 'pass checkpoint=..., a folder, read with on_malformed="fail", or use start(sink)'
        raise PlanError("to_dataframe() has one output", got=got, then="malformed input would be lost", hint=hint)
    if plan.stateless:
        return plain_frame(spark, plan)
    frame = scan(spark, source, spec.needs_columns, streaming=True)
    ids = bucket_ids(setting(spark, "spark.sql.shuffle.partitions"))
    packed = mapped(frame.frame, RawPack(spec, frame.reader, ids).__call__, PACKED_TYPE)
    chunks = operator(packed, BucketProcessor(spec))
    return explode(chunks.filter(chunks["kind"] == RESULT), plan.stage.layout.result_schema)


TIME: Final = "time"
NOTE: Final = "note"
WATERMARK: Final = "watermark"
"""The note of a row that only tells the time; any other note is why the query failed."""
_TIME_TYPE: Final = pa.timestamp("us", "UTC")
_LAST_US: Final = 253_402_300_799_000_000
"""The watermark at the end of input, in the last second of the year 9999: Spark's own arithmetic has room after it."""
_HOME: Final = "_home.json"
_FIRST_MTIME: Final = 1_000_000_000
_NAMED: Final = re.compile(r"batch-(.+)-([0-9]{12})\.parquet")


def folder_below(checkpoint: str) -> str:
    """Return where the files of a checkpoint are."""
    return f"{checkpoint}/krishiv/handed"


@attrs.frozen(eq=False)
class ResultTimes:
    """The event time of results, as far as their columns tell it, and how far the watermark of a stage has come.

    Attributes
    ----------
    column : str or None
        The column it follows from; None where there is none.
    before_us : int
        How much it is less than that, µs.
    tick_us : int
        The unit of the time column, µs.
    hold_back_us : int
        How far the watermark of results lags that of the stage, µs (SEMANTICS §7.2).
    """

    column: str | None
    before_us: int
    tick_us: int
    hold_back_us: int

    @classmethod
    def of(cls, stage: StagePlan, schema: pa.Schema) -> ResultTimes:
        """Return those of the results of a stage with this `schema`."""
        spec, time = stage.spec, stage.node.time
        hold_us = spec.operation.hold_back_us(spec.options)
        if stage.stateless or time is None or time.column not in schema.names:
            return cls(None, 0, spec.tick_us, hold_us)
        type_ = schema.field(time.column).type
        fits = pa.types.is_timestamp(type_) or type_ == pa.int64()
        return cls(time.column if fits else None, time.before_us(spec.tick_us), spec.tick_us, hold_us)

    def times(self, rows: pa.Table) -> pa.Array | pa.ChunkedArray:
        """Return the event time of each of the `rows`."""
        if self.column is None:
            return pa.nulls(rows.num_rows, _TIME_TYPE)
        raw = rows[self.column]
        scale = 1 if pa.types.is_timestamp(raw.type) else 1_000
        us = pc.subtract(pc.multiply(raw.cast(pa.int64()), pa.scalar(scale, pa.int64())), pa.scalar(self.before_us, pa.int64()))
        return us.cast(_TIME_TYPE)

    def reached(self, watermark_us: int) -> int | None:
        """Return the greatest time that no later result has, for this watermark of the stage, µs; None while it has none."""
        if watermark_us in (UNSET, END_OF_TIME):
            return None if watermark_us == UNSET else _LAST_US
        return watermark_us - self.hold_back_us - self.tick_us  # Spark takes a row at its watermark for late


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return how rows lie in files: under plain names, without columns that have nothing but nulls, which parquet does
    not know.
    """
    fields = [pa.field(f"c{i}", f.type) for i, f in enumerate(schema) if not pa.types.is_null(f.type)]
    return pa.schema([*fields, pa.field(TIME, _TIME_TYPE), pa.field(NOTE, pa.string())])


@attrs.define(eq=False)
class HandOver(TableSink):
    """Takes the results of a query, a file a micro-batch.

    Attributes
    ----------
    folder : str
        Where the files are.
    schema : pyarrow.Schema
        Columns of results.
    stage : StagePlan
        The stage that gives them.
    clock : SparkClock or LedgerClock or None
        Tells what is in force in a batch; None where the frame has no watermark.
    durable : bool
        Whether files must survive a loss of power.
    """

    title: ClassVar[str] = "to_dataframe()"

    folder: str
    schema: pa.Schema
    stage: StagePlan
    times: ResultTimes
    clock: SparkClock | LedgerClock | None
    durable: bool = False
    _reported_us: int = UNSET
    on_repeat: ClassVar[OnRepeat] = "skip"

    def check(self, output: OutputName, schema: pa.Schema) -> None:
        """Make the folder, and take back what earlier runs noted of failures.

        The files stay, for a batch of the reader may have planned them already.

        Raises
        ------
        CheckpointError
            When the folder was moved: whoever reads it knows files by their paths, and would read all of them again.
        """
        store, root = store_at(self.folder)
        store.make_folder(root)
        there = store.entries(root)
        _check_home(store, root, any(_NAMED.fullmatch(entry.base_name) for entry in there), durable=self.durable)
        for entry in there:
            if entry.base_name.startswith("failed-") and entry.base_name.endswith(".parquet"):
                name = entry.base_name.removesuffix(".parquet")
                write(self.folder, name, stored_schema(self.schema).empty_table(), 0, durable=self.durable)

    def last_committed(self, batch: OutputBatch) -> int | None:
        """See TableSink."""
        store, root = store_at(self.folder)
        entries = store.entries(root)
        named = [name for f in entries if (name := _NAMED.fullmatch(f.base_name)) is not None]
        return max((int(name[2]) for name in named if name[1] == batch.query_id), default=None)

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """See TableSink."""
        rows = pa.concat_tables(tables) if tables else self.schema.empty_table()
        parts = [self._stored(rows)] if rows.num_rows else []
        reached = self._reached(batch.batch_id)
        if reached is not None and reached > self._reported_us:
            self._reported_us = reached
            parts.append(_only(stored_schema(self.schema), reached, WATERMARK))
        if parts:
            name = f"batch-{batch.query_id}-{batch.batch_id:012d}"
            write(self.folder, name, pa.concat_tables(parts), batch.batch_id, durable=self.durable)

    def _stored(self, rows: pa.Table) -> pa.Table:
        stored = stored_schema(self.schema)
        kept = [c for c, f in zip(rows.columns, self.schema, strict=True) if not pa.types.is_null(f.type)]
        return pa.Table.from_arrays([*kept, self.times.times(rows), pa.nulls(rows.num_rows, pa.string())], schema=stored)

    def _reached(self, batch_id: int) -> int | None:
        if self.clock is None:
            return None
        return self.times.reached(self.clock.in_force(batch_id).at(self.stage.times).watermark_us)


def _check_home(store: Store, root: str, any_there: bool, *, durable: bool) -> None:
    here = os.path.realpath(root) if store.local else root
    path = f"{root}/{_HOME}"
    home = store.read_note(path, str, NEW_CHECKPOINT)
    if home not in (None, here) and any_there:
        what = "the checkpoint was moved, and it hands results over"
        then = "the query that reads the frame would read all of them again"
        raise CheckpointError(what, got=f"{here}, before {home}", then=then, hint="move it back, or start with both queries")
    if home != here:
        store.write_note(path, here, durable=durable)


def tell_failure(folder: str, schema: pa.Schema, why: str, durable: bool) -> None:
    """Let whoever reads the folder fail with this text."""
    write(folder, f"failed-{uuid.uuid4().hex}", _only(stored_schema(schema), None, why), 0, durable=durable)


def _only(stored: pa.Schema, time_us: int | None, note: str) -> pa.Table:
    """Return a row with nothing but a note."""
    values = {TIME: pa.array([time_us], pa.int64()).cast(_TIME_TYPE), NOTE: pa.array([note])}
    return pa.Table.from_arrays([values.get(f.name, pa.nulls(1, f.type)) for f in stored], schema=stored)


def write(folder: str, name: str, rows: pa.Table, number: int, *, durable: bool) -> None:
    """Write a file, or replace it, whole or not at all; its modification time tells its place in the order."""
    store, root = store_at(folder)
    hidden, final = f"{root}/{name}.tmp", f"{root}/{name}.parquet"
    with store.arrow.open_output_stream(hidden) as stream:
        pq.write_table(rows, stream, compression="snappy", store_schema=False, write_page_checksum=True)
    if store.local:
        os.utime(hidden, (_FIRST_MTIME + number,) * 2)
    if durable:
        store.sync(hidden)
    store.rename([(hidden, final)])
    if durable:
        store.sync(root)


def handed_frame(
    spark: SparkSession, plan: PhysicalPlan, handed: HandoverOptions, start: Callable[[HandOver], StreamQuery], *, durable: bool
) -> DataFrame:
    """Return the frame of what a query hands over that `start` starts.

    Raises
    ------
    PlanError
        For a watermark where results have no event time.
    SchemaError
        For columns that no file can have.
    """
    schema = plan.outputs[0].schema
    _check(schema)
    checkpoint = absolute(handed.checkpoint).rstrip("/")
    times = ResultTimes.of(plan.stages[-1], schema)
    if handed.watermark_us is not None and times.column is None:
        raise _no_time(plan)
    clock = None if handed.watermark_us is None else clock_for(plan, checkpoint)
    sink = HandOver(folder_below(checkpoint), schema, plan.stages[-1], times, clock, durable)
    query = start(sink)
    _watch(query, sink)
    if handed.batches.kind == "available_now":
        query.await_termination()
    return _read(spark, sink, handed)


def _check(schema: pa.Schema) -> None:
    for field in schema:
        if not pa.types.is_null(field.type) and _has_null(field.type):
            then = "no file can have a list or struct of nulls only"
            hint = "leave it out with .drop(...), or cast it"
            raise SchemaError(f"column {field.name!r} cannot be handed over", got=type_text(field.type), then=then, hint=hint)


def _has_null(type_: pa.DataType) -> bool:
    return bool(pa.types.is_null(type_)) or any(_has_null(type_.field(i).type) for i in range(type_.num_fields))


def _no_time(plan: PhysicalPlan) -> PlanError:
    stage = plan.stages[-1]
    if stage.stateless:
        got, hint = "rows without windows", 'write .to_dataframe(checkpoint=...).withWatermark("event_time", "5 seconds")'
    elif stage.node.time is None:
        got, hint = (
            stage.spec.operation.nature.heading,
            "leave `watermark` out, and use .withWatermark(...) on a column of the frame",
        )
    else:
        got, hint = "no column window_end, or of the rows' own time", "keep it in .select(...)"
    return PlanError("the results have no event time", got=got, hint=hint)


def _watch(query: StreamQuery, sink: HandOver) -> None:
    """Hand over why the query failed, too."""

    def wait() -> None:
        why: KrishivError | None = None
        try:
            query.await_termination()
        except KrishivError as problem:
            why = problem
        except Py4JError:  # Spark is gone, and with it whoever reads
            return
        if why is not None:
            text = f"the query {query.name!r}, which hands results over to this one, failed: {why}"
            with contextlib.suppress(OSError):
                tell_failure(sink.folder, sink.schema, text, sink.durable)

    threading.Thread(target=wait, name=f"{query.name}-handed", daemon=True).start()


def _read(spark: SparkSession, sink: HandOver, handed: HandoverOptions) -> DataFrame:
    reader = every_file(spark.readStream.schema(spark_ddl(stored_schema(sink.schema))), None)
    reader = reader.option("pathGlobFilter", "*.parquet").option("parquet.page.verify-checksum.enabled", "true")
    # or Spark looks for partitions, and reads each file as often as there are files where the path has characters of patterns
    reader = reader.option("recursiveFileLookup", "true")
    if handed.clean:
        reader = reader.option("cleanSource", "delete")
    rows: DataFrame = reader.parquet(literal_path(sink.folder))
    names = sink.schema.names
    time = time_name(names)
    columns = [
        (f.lit(None) if pa.types.is_null(field.type) else f.col(f"c{i}")).alias(field.name)
        for i, field in enumerate(sink.schema)
    ]
    timed = [f.col(TIME).alias(time)] if sink.times.column is not None else []
    note = f"__krishiv_{NOTE}"
    rows = rows.select(*columns, *timed, f.col(NOTE).alias(note))
    shown = [f.col(quoted(name)) for name in [*names, *([time] if timed else [])]]
    # not deterministic, so that Spark pushes no filter of the user's below: a failure would not be seen, nor the time go on
    never = f.spark_partition_id() < 0
    ended = f.when(f.col(note).isNull(), True).when(f.col(note) == WATERMARK, never)
    given = rows.filter(ended.otherwise(f.raise_error(f.col(note)).cast("boolean"))).select(*shown)
    if handed.watermark_us is None:
        return given
    lag = f"{-(-handed.watermark_us // 1_000)} milliseconds"
    # results do not pass here, for they may be ahead of their watermark; a union has the marks of its first part's columns
    times = rows.filter(f.col(note) == WATERMARK).withWatermark(time, lag).filter(never).select(*shown)
    return times.union(given)
