"""Windows over a Kafka topic in PyFlink SQL: its connector with the JSON format, heap state, no micro-batches.

The watermark of the connector is that of each partition, and the least of them counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from benchmarks.jobs import HEAP
from benchmarks.kafka.task import task_of
from benchmarks.peers.flink_sql import add, environment, interval


def main(argv: Sequence[str] | None = None) -> int:
    """Run one job to the end that the topic has now."""
    given = task_of(argv, "flink", state="heap")
    os.environ.setdefault("JAVA_TOOL_OPTIONS", f"-Xmx{HEAP}")
    env = environment(given.task)
    settings = {
        "connector": "kafka",
        "topic": given.topic,
        "properties.bootstrap.servers": given.address,
        "scan.startup.mode": "earliest-offset",
        "scan.bounded.mode": "latest-offset",
        "format": "json",
    }
    stated = ", ".join(f"'{name}' = '{value}'" for name, value in settings.items())
    env.execute_sql(
        f"""CREATE TABLE topic (user_id BIGINT, event_time BIGINT, amount BIGINT, seen AS TO_TIMESTAMP_LTZ(event_time, 3),
        WATERMARK FOR seen AS seen - {interval(given.task.job.lag_ms)}) WITH ({stated})"""
    )
    env.execute_sql("CREATE TEMPORARY VIEW events (user_id, event_time, amount) AS SELECT user_id, seen, amount FROM topic")
    statements = env.create_statement_set()
    add(statements, env, given.task)
    statements.execute().wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
