"""A Structured Streaming query moves here: both run over the same files, and their results are compared. Needs Java 17.

``python -m examples.cookbook.migration``.
"""

import datetime as dt
import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from krishiv_py import Batches, ParquetSink, Session, count

BEGIN = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)
SCHEMA = "shop string, at timestamp"


def write_orders(folder: Path) -> None:
    """Write two files of orders, some of them out of order; each file will be a micro-batch of both queries."""
    folder.mkdir()
    for number, seconds in enumerate([(1, 50, 70), (55, 61, 100, 20, 260)]):
        rows = [{"shop": "a", "at": BEGIN + dt.timedelta(seconds=second)} for second in seconds]
        schema = pa.schema([("shop", pa.string()), ("at", pa.timestamp("us", "UTC"))])
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / f"{number}.parquet")
        os.utime(folder / f"{number}.parquet", (1_700_000_000 + number,) * 2)  # files are taken by modification time


def before(spark: SparkSession, folder: Path) -> None:
    """Count as it was written by hand."""
    orders = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/in")
    counts = orders.withWatermark("at", "10 seconds").groupBy("shop", fn.window("at", "1 minute").alias("w")).count()
    flat = counts.select("shop", fn.col("w.start").alias("window_start"), "count")
    writer = flat.writeStream.outputMode("append").format("parquet").option("checkpointLocation", f"{folder}/before-checkpoint")
    writer.trigger(availableNow=True).start(f"{folder}/before").awaitTermination()


def after(session: Session, folder: Path) -> None:
    """Count here. A checkpoint of the other cannot be read: start this one where that one has ended."""
    orders = session.read_parquet(folder / "in", SCHEMA, streaming=True, max_files_per_batch=1)
    counts = (
        orders.watermark("at", "10 seconds")
        .key_by("shop")
        # Spark judges lateness by the watermark of the batch before. The preset does so too, and its results are equal
        # to the last row. Take it out later, and a row is late by the watermark it meets.
        .preset("spark")
        .tumbling_window("1 minute")
        .agg(count())
    )
    query = counts.start(ParquetSink(folder / "after"), checkpoint=folder / "after-checkpoint", batches=Batches.available_now())
    query.await_termination()


def values(row: dict[str, Any]) -> tuple[str, float, int]:
    """Return what a result says; Spark writes times in another unit."""
    return row["shop"], row["window_start"].timestamp(), row["count"]


def compared(session: Session, folder: Path) -> list[dict[str, object]]:
    """Run both and return their results, which must be the same."""
    write_orders(folder / "in")
    spark = SparkSession.getActiveSession()
    assert spark is not None
    spark.conf.set("spark.sql.shuffle.partitions", 2)  # 200 unless set, each a task and files of state in every batch
    before(spark, folder)
    after(session, folder)
    old, new = (pq.read_table(folder / which).to_pylist() for which in ("before", "after"))
    assert sorted(map(values, old)) == sorted(map(values, new)), (old, new)
    rows: list[dict[str, object]] = new
    return rows


if __name__ == "__main__":
    with Session.embedded() as session, tempfile.TemporaryDirectory() as name:
        print(*compared(session, Path(name)), sep="\n")
        print("migration: both give the same")
