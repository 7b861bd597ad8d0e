"""Windows over a Kafka topic in PyFlink SQL: its connector with the JSON format, heap state, no micro-batches.

The watermark of the connector is that of each partition, and the least of them counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from pyflink.table import StatementSet, TableEnvironment

from benchmarks.jobs import HEAP
from benchmarks.kafka.task import KafkaTask, task_of
from benchmarks.peers.flink_sql import add, environment, interval, query

AT_ONCE = {"execution.checkpointing.interval": "100 ms", "pipeline.auto-watermark-interval": "10 ms"}
"""For latency: a result is read when the checkpoint after it is complete."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one job to the end that the topic has now."""
    given = task_of(argv, "flink", state="heap")
    os.environ.setdefault("JAVA_TOOL_OPTIONS", f"-Xmx{HEAP}")
    env = environment(given.task)
    add_source(env, given)
    statements = env.create_statement_set()
    if given.to is None:
        add(statements, env, given.task)
        statements.execute().wait()
        return 0
    add_topic(statements, env, given)
    client = statements.execute().get_job_client()
    while not given.task.has_to_stop():
        time.sleep(0.2)
    client.cancel().result()
    return 0


def add_source(env: TableEnvironment, given: KafkaTask) -> None:
    """Add view ``events`` over the topic; it ends where the topic has its end now, unless results go to a topic."""
    settings = {
        "connector": "kafka",
        "topic": given.topic,
        "properties.bootstrap.servers": given.address,
        "scan.startup.mode": "earliest-offset",
        **({"scan.bounded.mode": "latest-offset"} if given.to is None else {}),
        "format": "json",
    }
    env.execute_sql(
        f"""CREATE TABLE topic (user_id BIGINT, event_time BIGINT, amount BIGINT, seen AS TO_TIMESTAMP_LTZ(event_time, 3),
        WATERMARK FOR seen AS seen - {interval(given.task.job.lag_ms)}) WITH ({stated(settings)})"""
    )
    env.execute_sql("CREATE TEMPORARY VIEW events (user_id, event_time, amount) AS SELECT user_id, seen, amount FROM topic")


def add_topic(statements: StatementSet, env: TableEnvironment, given: KafkaTask) -> None:
    """Add the job with a topic for its results, exactly once: they are committed with a checkpoint. Times are milliseconds."""
    for name, value in AT_ONCE.items():
        env.get_config().set(name, value)
    settings = {
        "connector": "kafka",
        "topic": str(given.to),
        "properties.bootstrap.servers": given.address,
        "properties.transaction.timeout.ms": "60000",
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": str(given.to),
        "format": "json",
    }
    since = "TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', {})"
    millis = (f"1000 * CAST({since.format(name)} AS BIGINT)" for name in ("window_start", "window_end"))
    columns = "user_id BIGINT, window_start BIGINT, window_end BIGINT, `count` BIGINT, sum_amount BIGINT"
    env.execute_sql(f"CREATE TABLE sink ({columns}) WITH ({stated(settings)})")
    statements.add_insert_sql(
        f"INSERT INTO sink SELECT user_id, {', '.join(millis)}, `count`, sum_amount FROM ({query(given.task.job)})"
    )


def stated(settings: dict[str, str]) -> str:
    """Options as SQL."""
    return ", ".join(f"'{name}' = '{value}'" for name, value in settings.items())


if __name__ == "__main__":
    raise SystemExit(main())
