"""A streaming DataFrame of what another query handed over, on which any operator of Spark's works."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from krishiv_py.errors import KrishivError, PlanError, SchemaError
from krishiv_py.plan.handed_on import time_name
from krishiv_py.plan.options.handed import Handed
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.clock.clocks import clock_for
from krishiv_py.runtime.reading.located import literal_path
from krishiv_py.spark.frames.folder import (
    NOTE,
    TIME,
    WATERMARK,
    HandOver,
    ResultTimes,
    folder_below,
    stored_schema,
    tell_failure,
)
from krishiv_py.spark.query import StreamQuery
from krishiv_py.spark.reading.listing import every_file
from krishiv_py.spark.setup.types import quoted, spark_ddl
from krishiv_py.storage.folders import absolute


def handed_frame(
    spark: SparkSession, plan: PhysicalPlan, handed: Handed, start: Callable[[HandOver], StreamQuery], *, durable: bool
) -> DataFrame:
    """The frame of what a query hands over that `start` starts.

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
            raise SchemaError(
                f"column {field.name!r} cannot be handed over",
                got=str(field.type),
                then="no file can have a list or struct of nulls only",
                hint="leave it out with .drop(...), or cast it",
            )


def _has_null(type_: pa.DataType) -> bool:
    return bool(pa.types.is_null(type_)) or any(_has_null(type_.field(i).type) for i in range(type_.num_fields))


def _no_time(plan: PhysicalPlan) -> PlanError:
    stage = plan.stages[-1]
    if stage.stateless:
        got, hint = "rows without windows", 'write .to_dataframe(checkpoint=...).withWatermark("event_time", "5 seconds")'
    elif stage.node.time is None:
        got, hint = stage.spec.operation.heading, "leave `watermark` out, and use .withWatermark(...) on a column of the frame"
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


def _read(spark: SparkSession, sink: HandOver, handed: Handed) -> DataFrame:
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
        (f.lit(None) if pa.types.is_null(field.type) else f.col(f"c{at}")).alias(field.name)
        for at, field in enumerate(sink.schema)
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
