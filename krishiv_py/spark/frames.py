"""Chunk rows as ordinary Spark DataFrames, for sinks that want rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.errors import OperatorError, message, told
from krishiv_py.plan.options.sinks import BatchConsumer, ConsoleSink, ForeachBatchSink, JsonSink, MemorySink, ParquetSink, Sink
from krishiv_py.spark.checkpoint.places import LATE
from krishiv_py.spark.setup.types import spark_ddl
from krishiv_py.spark.storage.codec import decode
from krishiv_py.spark.storage.files import file_system, sync_files
from krishiv_py.spark.tasks.outputs import Publisher, claim_folder, staging_of


def explode(frame: DataFrame, schema: pa.Schema) -> DataFrame:
    """The rows inside the ``blob`` column."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for blob in batch.column(0).to_pylist():
                yield from decode(blob).to_batches()

    return frame.select("blob").mapInArrow(rows, spark_ddl(schema))


def call_batch(function: BatchConsumer, frame: DataFrame, batch_id: int) -> None:
    """Give a micro-batch to a user's function.

    Raises
    ------
    OperatorError
        When the function fails; names it and the micro-batch. Leaving the process is a failure too: it is not the main thread.
    """
    try:
        function(frame, batch_id)
    except BaseException as problem:  # user code: whatever it raises is reported with the batch
        name = getattr(function, "__qualname__", type(function).__name__)
        raise OperatorError(
            message(f"the sink's function {name} failed", f"batch {batch_id}", told(problem), f"mend {name}")
        ) from problem


def show(frame: DataFrame, title: str, batch_id: int, max_rows: int) -> None:
    """Print a micro-batch, if it has rows."""
    found = frame.limit(max_rows + 1).toArrow()
    if found.num_rows:
        more = " (more rows not shown)" if found.num_rows > max_rows else ""
        print(f"-- {title}, batch {batch_id}{more}")
        for row in found.slice(0, max_rows).to_pylist():
            print("   ", ", ".join(f"{k}={v}" for k, v in row.items()))


def written_files(frame: DataFrame, sink: JsonSink, publisher: Publisher, batch_id: int) -> None:
    """Write rows through Spark into the staging folder, and publish the files."""
    system, root = file_system(sink.path)
    staging = staging_of(publisher.mark, batch_id)
    frame.write.mode("overwrite").json(f"{sink.path}/{staging}")
    found = system.get_file_info(pafs.FileSelector(f"{root}/{staging}"))
    if publisher.durable:
        sync_files(system, [f.path for f in found if f.is_file])
    publisher.publish(batch_id, [f.base_name for f in found if f.base_name.startswith("part-") and f.size])


def written_table(table: pa.Table, sink: ParquetSink, publisher: Publisher, batch_id: int) -> None:
    """Write rows as the tasks of a query do, with Arrow: Spark would write times of another type."""
    system, root = file_system(sink.path)
    staging = f"{root}/{staging_of(publisher.mark, batch_id)}"
    system.create_dir(staging, recursive=True)
    path = f"{staging}/rows.parquet"
    with system.open_output_stream(path) as stream:
        pq.write_table(table, stream, compression="snappy", store_schema=False)
    if publisher.durable:
        sync_files(system, [path])
    publisher.publish(batch_id, ["rows.parquet"])


def write_once(spark: SparkSession, sink: Sink, table: pa.Table) -> None:
    """Write the late rows of a bounded run to a sink, as micro-batch 0."""
    if isinstance(sink, MemorySink):
        sink.put(0, [table])
        return
    if isinstance(sink, (JsonSink, ParquetSink)):
        claim_folder(sink, LATE, "bounded", None)
        publisher = Publisher(sink.path, uuid.uuid4().hex[:8])
        if isinstance(sink, ParquetSink):
            written_table(table, sink, publisher, 0)
            return
    frame = spark.createDataFrame(table, spark_ddl(table.schema))  # else a time without zone becomes one of the session
    if isinstance(sink, ForeachBatchSink):
        call_batch(sink.function, frame, 0)
    elif isinstance(sink, ConsoleSink):
        show(frame, "late", 0, sink.max_rows)
    else:
        assert isinstance(sink, JsonSink)
        written_files(frame, sink, publisher, 0)
