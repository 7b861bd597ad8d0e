"""Hand-written PySpark: ``groupBy(window)`` and ``session_window`` in Structured Streaming, on either state store."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.jobs import HEAP, PAIRED, SPLIT, Job
from benchmarks.peers.common import Task, run, unsupported

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
SCHEMA = "user_id BIGINT, event_time TIMESTAMP, amount BIGINT"
NAME = "native_spark"


def session(task: Task, more: Mapping[str, str] | None = None) -> SparkSession:
    """Local session as the benchmark prescribes it, with more settings."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName(f"{NAME} {task.job.name}")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(task.partitions),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB if task.state == "rocksdb" else HDFS,
        "spark.sql.streaming.statefulOperator.allowMultiple": str(task.job.kind == "stages").lower(),
        "spark.driver.memory": HEAP,
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        **(more or {}),
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


def pipeline(stream: DataFrame, job: Job) -> DataFrame:
    """A job that is more than a window, as Spark's guide writes it."""
    lag = f"{job.lag_ms} milliseconds"
    if job.kind == "stages":
        inner = (
            stream.withWatermark("event_time", lag)
            .groupBy("user_id", window_of(job).alias("inner"))
            .agg(f.count("*").alias("n"), f.sum("amount").alias("s"))
        )
        outer = f.window(f.window_time("inner"), f"{job.outer_ms} milliseconds").alias("window")
        return inner.groupBy("user_id", outer).agg(f.sum("n").alias("count"), f.sum("s").alias("sum_amount"))
    if job.kind == "dedup":
        return stream.withWatermark("event_time", lag).dropDuplicatesWithinWatermark(["user_id", "event_time", "amount"])
    left = stream.where(f.col("amount") <= SPLIT).withWatermark("event_time", lag)
    right = stream.where(f.col("amount") > SPLIT).select(
        f.col("user_id").alias("other_user"), f.col("event_time").alias("other_time"), f.col("amount").alias("other")
    )
    span = f"INTERVAL {job.size_ms} MILLISECONDS"
    near = f"user_id = other_user AND other_time BETWEEN event_time - {span} AND event_time + {span}"
    return left.join(right.withWatermark("other_time", lag), f.expr(near))


def columns(result: DataFrame, job: Job) -> DataFrame:
    """The columns that every side writes."""
    if job.kind in ("dedup", "join"):
        end, amount = ("event_time", "amount") if job.kind == "dedup" else ("other_time", f"amount * {PAIRED} + other")
        return result.selectExpr(
            "user_id", "event_time AS window_start", f"{end} AS window_end", "1L AS count", f"{amount} AS sum_amount"
        )
    bounds = "window.start AS window_start", "window.end AS window_end"
    return result.selectExpr("user_id", *bounds, "count", "sum_amount")


def body(task: Task) -> None:
    """Run one job to the end of its input."""
    job = task.job
    if job.name not in ("J1", "J2", "J3", "P1", "P2", "P3", "F1", "S1", "O1"):
        raise unsupported(NAME, job, "no native window computes it")
    spark = session(task)
    stream = read(spark, task)
    if job.pipeline:
        result = pipeline(stream, job)
    else:
        windows = stream.withWatermark("event_time", f"{job.lag_ms} milliseconds").groupBy(
            "user_id", window_of(job).alias("window")
        )
        result = windows.agg(f.count("*").alias("count"), f.sum("amount").alias("sum_amount"))
    write(columns(result, job), task)
    spark.stop()


def write(result: DataFrame, task: Task) -> None:
    """A query to parquet files, to the end of its input or until it has to stop."""
    writer = result.writeStream.format("parquet").outputMode("append").option("checkpointLocation", str(task.checkpoint))
    if task.to_the_end:
        writer.trigger(availableNow=True).start(str(task.out)).awaitTermination()
    else:
        query = writer.trigger(processingTime=f"{task.trigger} milliseconds").start(str(task.out))
        while not task.has_to_stop():
            query.awaitTermination(1)
        query.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return run(argv, NAME, body)


if __name__ == "__main__":
    raise SystemExit(main())
