"""Hand-written PySpark: ``groupBy(window)`` and ``session_window`` in Structured Streaming, on either state store."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.jobs import HEAP, Job
from benchmarks.peers.common import Task, run, unsupported

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
SCHEMA = "user_id BIGINT, event_time TIMESTAMP, amount BIGINT"
NAME = "native_spark"


def session(task: Task) -> SparkSession:
    """Local session as the benchmark prescribes it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName(f"{NAME} {task.job.name}")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(task.partitions),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB if task.state == "rocksdb" else HDFS,
        "spark.sql.streaming.statefulOperator.allowMultiple": "false",
        "spark.driver.memory": HEAP,
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def read(spark: SparkSession, task: Task) -> DataFrame:
    """The parquet parts as a stream, so many files per batch; in the steady mode what has come."""
    stream = spark.readStream.schema(SCHEMA)
    if task.to_the_end:
        stream = stream.option("maxFilesPerTrigger", task.files_per_batch)
    return stream.parquet(str(task.data))


def window_of(job: Job) -> Column:
    """Spark's window of `job`."""
    if job.kind == "session":
        return f.session_window("event_time", f"{job.size_ms} milliseconds")
    slide = f"{job.slide_ms} milliseconds" if job.slide_ms else None
    return f.window("event_time", f"{job.size_ms} milliseconds", slide)


def body(task: Task) -> None:
    """Run one job to the end of its input."""
    job = task.job
    if job.name not in ("J1", "J2", "J3", "F1", "S1", "O1"):
        raise unsupported(NAME, job, "no native window computes it")
    spark = session(task)
    result = (
        read(spark, task)
        .withWatermark("event_time", f"{job.lag_ms} milliseconds")
        .groupBy("user_id", window_of(job).alias("window"))
        .agg(f.count("*").alias("count"), f.sum("amount").alias("sum_amount"))
        .select(
            "user_id",
            f.col("window.start").alias("window_start"),
            f.col("window.end").alias("window_end"),
            "count",
            "sum_amount",
        )
    )
    writer = result.writeStream.format("parquet").outputMode("append").option("checkpointLocation", str(task.checkpoint))
    if task.to_the_end:
        writer.trigger(availableNow=True).start(str(task.out)).awaitTermination()
    else:
        query = writer.trigger(processingTime=f"{task.trigger} milliseconds").start(str(task.out))
        while not task.told_to_stop():
            query.awaitTermination(1)
        query.stop()
    spark.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return run(argv, NAME, body)


if __name__ == "__main__":
    raise SystemExit(main())
