"""Ranges of a user's source, read in the tasks: what travels through the JVM are names of files, and ranges as text."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.runtime.ranges.reader import RangeReader
from krishiv_py.spark.reading.listing import own_files


def range_frame(spark: SparkSession, source: RangeSource, schema: pa.Schema) -> tuple[DataFrame, RangeReader]:
    """Return the files of a log as a query reads them: one a batch, for each of the tasks that share its ranges.

    A product with the numbers of the tasks gives each task its row without a shuffle, and the source is in the plan once:
    checkpoints count how often it is.
    """
    assert source.log is not None
    tasks = source.source.parallelism
    frame = own_files(spark, source.log, streaming=True, max_files=1)
    if tasks > 1:
        numbers = spark.range(0, tasks, 1, tasks).withColumnRenamed("id", "task")
        frame = frame.hint("shuffle_replicate_nl").crossJoin(numbers)  # a cartesian product; a broadcast would be a job
    return frame, RangeReader(schema, source.source, source.name, tasks)


def empty_frame(spark: SparkSession, source: RangeSource, schema: pa.Schema) -> tuple[DataFrame, RangeReader]:
    """A finite source without any range."""
    return spark.createDataFrame([], "path string"), RangeReader(schema, source.source, source.name)
