"""The same by hand in PySpark: Spark's Kafka connector, ``from_json``, ``withWatermark``, RocksDB.

The connector is that of Spark 4.2.0, whose jars are listed in ``jars.sha256`` and kept in ``~/.cache/krishiv_py/spark_kafka``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from benchmarks.kafka.task import KafkaTask, note_parts, task_of
from benchmarks.peers.native_spark import columns, session, window_of, write
from krishiv_py.testing.broker import Jars

JARS = Jars(Path(__file__).with_name("jars.sha256"), "spark_kafka", "KRISHIV_SPARK_KAFKA_JARS")
"""The connector and what it needs next to Spark's own jars."""
SCHEMA = "user_id BIGINT, event_time BIGINT, amount BIGINT"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one job to the end of the topic, or until it has to stop."""
    given = task_of(argv, "native")
    task, job = given.task, given.task.job
    spark = session(task, {"spark.jars": ",".join(map(str, JARS.fetch()))})
    settings = {
        "kafka.bootstrap.servers": given.address,
        "subscribe": given.topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(given.batch_rows),
    }
    records = spark.readStream.format("kafka").options(**settings).load()
    event = records.select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("event")).select("event.*")
    stream = event.withColumn("event_time", f.timestamp_millis("event_time"))
    groups = stream.withWatermark("event_time", f"{job.lag_ms} milliseconds").groupBy("user_id", window_of(job).alias("window"))
    result = columns(groups.agg(f.count("*").alias("count"), f.sum("amount").alias("sum_amount")), job)
    if given.to is None:
        write(result, task)
    else:
        send(result, given)
    spark.stop()
    return 0


def send(result: DataFrame, given: KafkaTask) -> None:
    """A query to a topic, at least once, until it has to stop; times are milliseconds, as ours."""
    millis = [f.unix_millis(name).alias(name) for name in ("window_start", "window_end")]
    value = f.to_json(f.struct("user_id", *millis, "count", "sum_amount")).alias("value")
    writer = result.select(value).writeStream.format("kafka").option("kafka.bootstrap.servers", given.address)
    writer = writer.option("topic", given.to).option("checkpointLocation", str(given.task.checkpoint))
    query = writer.trigger(processingTime=f"{given.task.trigger} milliseconds").start()
    while not given.task.has_to_stop():
        query.awaitTermination(1)
    note_parts([dict(json.loads(p.json)) for p in query.recentProgress], given.task)
    query.stop()


if __name__ == "__main__":
    raise SystemExit(main())
