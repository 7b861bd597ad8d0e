"""Chunk rows as ordinary Spark DataFrames, for sinks that want rows."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark.sql import DataFrame

from krishiv_py.plan.sinks import JsonSink, ParquetSink
from krishiv_py.spark.codec import decode
from krishiv_py.spark.files import file_system
from krishiv_py.spark.outputs import Publisher, staging_of
from krishiv_py.spark.types import spark_ddl


def explode(frame: DataFrame, schema: pa.Schema) -> DataFrame:
    """The rows inside the ``blob`` column."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for blob in batch.column(0).to_pylist():
                yield from decode(blob).to_batches()

    return frame.select("blob").mapInArrow(rows, spark_ddl(schema))


def show(frame: DataFrame, title: str, batch_id: int, max_rows: int) -> None:
    """Print a micro-batch, if it has rows."""
    found = frame.limit(max_rows + 1).toArrow()
    if found.num_rows:
        more = " (more rows not shown)" if found.num_rows > max_rows else ""
        print(f"-- {title}, batch {batch_id}{more}")
        for row in found.slice(0, max_rows).to_pylist():
            print("   ", ", ".join(f"{k}={v}" for k, v in row.items()))


def written_files(frame: DataFrame, sink: JsonSink | ParquetSink, publisher: Publisher, batch_id: int) -> None:
    """Write rows through Spark into the staging folder, and publish the files."""
    system, root = file_system(sink.path)
    staging = staging_of(publisher.mark, batch_id)
    writer = frame.write.mode("overwrite")
    (writer.json if isinstance(sink, JsonSink) else writer.parquet)(f"{sink.path}/{staging}")
    found = system.get_file_info(pafs.FileSelector(f"{root}/{staging}"))
    publisher.publish(batch_id, [f.base_name for f in found if f.base_name.startswith("part-") and f.size])
