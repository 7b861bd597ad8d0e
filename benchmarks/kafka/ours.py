"""A job in krishiv_py over a topic, on Spark or in process: ``read_kafka``, windows, parquet or a topic (exactly once)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.kafka.task import note_parts, task_of
from benchmarks.krishiv import keyed, run, session, windowed
from krishiv_py import KafkaSink, ParquetSink, col, count
from krishiv_py import sum as total

SCHEMA = "user_id bigint, event_time bigint, amount bigint"


def micro_batches() -> list[dict[str, Any]]:
    """What Spark says of the last micro-batches of its queries."""
    from pyspark.sql import SparkSession  # not in process

    progress = [p for running in SparkSession.active().streams.active for p in running.recentProgress]
    return [dict(json.loads(p.json)) if hasattr(p, "json") else dict(p) for p in progress]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one job to the end of the topic, or until it has to stop."""
    given = task_of(argv, "ours")
    task = given.task
    opened = session(task, given.engine)
    events = opened.read_kafka(
        given.topic, bootstrap_servers=given.address, schema=SCHEMA, max_offsets_per_batch=given.batch_rows
    )
    result = windowed(keyed(events, task.job), task.job).agg(count(col("*")), total(col("amount")))
    sink = ParquetSink(str(task.out)) if given.to is None else KafkaSink(given.to, bootstrap_servers=given.address)
    if given.engine == "spark":
        note_parts(run(result, sink, task, micro_batches), task)
    else:
        run(result, sink, task)
    opened.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
