"""PyFlink 2.x SQL: window functions, sessions, OVER, and late firing, in streaming mode over one parquet file.

Flink hands out the files of a folder in no particular order, which makes most of the rows late; so the parts are
joined to one file first (``benchmarks.data.join``, outside the measured time), as one partition of a log would be.
Checkpoints every 10 s, to RocksDB state (``--state rocksdb``) or the heap (``--state heap``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, StatementSet, TableEnvironment

from benchmarks.jobs import HEAP, PAIRED, SPLIT, Job
from benchmarks.peers.common import Task, run, unsupported

NAME = "flink_sql"
JARS = Path(sys.prefix) / "jars"
FILES = "'connector' = 'filesystem', 'format' = 'parquet', 'parquet.utc-timezone' = 'true'"
WINDOWED = "user_id BIGINT, window_start TIMESTAMP(3), window_end TIMESTAMP(3), `count` BIGINT, sum_amount BIGINT"


def environment(task: Task) -> TableEnvironment:
    """Local mini cluster with two slots."""
    configuration = Configuration()
    settings = {
        "pipeline.jars": ";".join(f"file://{jar}" for jar in sorted(JARS.glob("*.jar"))),
        "parallelism.default": "2",
        "taskmanager.numberOfTaskSlots": "2",
        "taskmanager.memory.managed.size": "1g",
        "state.backend.type": "rocksdb" if task.state == "rocksdb" else "hashmap",
        "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.dir": f"file://{task.checkpoint}",
        "table.local-time-zone": "UTC",
        "table.exec.mini-batch.enabled": "false",
    }
    if task.job.kind == "dedup":
        settings["table.exec.state.ttl"] = "60 s"
    if task.job.retractions:
        settings |= {
            "table.exec.emit.late-fire.enabled": "true",
            "table.exec.emit.late-fire.delay": "0 s",
            "table.exec.emit.allow-lateness": f"{task.job.allowed_lateness_ms} ms",
        }
    for key, value in settings.items():
        configuration.set_string(key, value)
    return TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    )


def create_source(env: TableEnvironment, name: str, path: Path, job: Job) -> None:
    """Table over one parquet file, with its watermark."""
    idle = f"'scan.watermark.idle-timeout' = '{job.idle_timeout_ms} ms'," if job.idle_timeout_ms else ""
    env.execute_sql(
        f"""CREATE TABLE {name} (user_id BIGINT, event_time TIMESTAMP(3), amount BIGINT,
        WATERMARK FOR event_time AS event_time - {interval(job.lag_ms)})
        WITH ({idle} 'path' = 'file://{path}', {FILES})"""
    )


def interval(ms: int) -> str:
    """SQL interval; of seconds alone Flink takes three digits."""
    seconds, rest = divmod(ms, 1_000)
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    return f"INTERVAL '{days} {hours:02}:{minutes:02}:{seconds % 60:02}.{rest:03}' DAY TO SECOND(3)"


def plain(column: str) -> str:
    """A time as a value: a sink of Flink's takes one event time only."""
    return f"CAST({column} AS TIMESTAMP(3))"


def pipeline(job: Job) -> str:
    """A job that is more than a window, over table ``events``."""
    if job.kind == "dedup":
        first = "ROW_NUMBER() OVER (PARTITION BY user_id, event_time, amount ORDER BY PROCTIME() ASC) AS n"
        rows = f"SELECT user_id, event_time, amount, {first} FROM events"
        return (
            f"SELECT user_id, {plain('event_time')}, {plain('event_time')}, CAST(1 AS BIGINT), amount FROM ({rows}) WHERE n = 1"
        )
    if job.kind == "join":
        span, times = interval(job.size_ms), f"{plain('l.event_time')}, {plain('r.event_time')}"
        return f"""SELECT l.user_id, {times}, CAST(1 AS BIGINT), l.amount * {PAIRED} + r.amount
            FROM events l JOIN events r ON l.user_id = r.user_id AND l.amount <= {SPLIT} AND r.amount > {SPLIT}
            AND r.event_time BETWEEN l.event_time - {span} AND l.event_time + {span}"""
    inner = f"""SELECT user_id, window_time, COUNT(*) AS n, SUM(amount) AS s
        FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(event_time), {interval(job.size_ms)}))
        GROUP BY user_id, window_start, window_end, window_time"""
    return f"""WITH inn AS ({inner}) SELECT user_id, window_start, window_end, SUM(n), SUM(s)
        FROM TABLE(TUMBLE(TABLE inn, DESCRIPTOR(window_time), {interval(job.outer_ms)}))
        GROUP BY user_id, window_start, window_end"""


def query(job: Job) -> str:
    """The job over table ``events``."""
    if job.pipeline:
        return pipeline(job)
    totals = "COUNT(*) AS `count`, SUM(amount) AS sum_amount"
    windowed = f"SELECT user_id, window_start, window_end, {totals} FROM TABLE({{}}) GROUP BY user_id, window_start, window_end"
    column = "DESCRIPTOR(event_time)"
    if job.retractions:
        size = interval(job.size_ms)
        return f"""SELECT user_id, TUMBLE_START(event_time, {size}), TUMBLE_END(event_time, {size}), {totals}
            FROM events GROUP BY user_id, TUMBLE(event_time, {size})"""
    if job.kind == "tumbling":
        return windowed.format(f"TUMBLE(TABLE events, {column}, {interval(job.size_ms)})")
    if job.kind == "hopping":
        return windowed.format(f"HOP(TABLE events, {column}, {interval(job.slide_ms)}, {interval(job.size_ms)})")
    if job.kind == "session" and job.max_duration_ms is None:
        return windowed.format(f"SESSION(TABLE events PARTITION BY user_id, {column}, {interval(job.size_ms)})")
    if job.kind == "lookback":
        return f"""SELECT user_id, event_time, COUNT(*) OVER w, SUM(amount) OVER w FROM events
            WINDOW w AS (PARTITION BY user_id ORDER BY event_time
                RANGE BETWEEN {interval(job.size_ms)} PRECEDING AND CURRENT ROW)"""
    raise unsupported(NAME, job, "no SQL of Flink computes it")


def add(statements: StatementSet, env: TableEnvironment, task: Task) -> None:
    """Add the job and its sink."""
    job = task.job
    columns = (
        "user_id BIGINT, event_time TIMESTAMP(3), `count` BIGINT, sum_amount BIGINT" if job.kind == "lookback" else WINDOWED
    )
    select = query(job)
    if job.retractions:
        # The file sink takes appended rows alone: turn the changelog into rows with an operation code.
        env.execute_sql(f"CREATE TEMPORARY VIEW changes (user_id, window_start, window_end, `count`, sum_amount) AS {select}")
        columns = f"op STRING, {WINDOWED}"
        select = "SELECT * FROM TO_CHANGELOG(input => TABLE changes)"
    env.execute_sql(f"CREATE TABLE sink ({columns}) WITH ('path' = 'file://{task.out}', {FILES})")
    statements.add_insert_sql(f"INSERT INTO sink {select}")


def body(task: Task) -> None:
    """Run one job to the end of its input."""
    os.environ.setdefault("JAVA_TOOL_OPTIONS", f"-Xmx{HEAP}")
    env = environment(task)
    files = sorted(task.data.rglob("joined.parquet"))
    if len(files) == 1:
        create_source(env, "events", files[0], task.job)
    else:
        for number, path in enumerate(files):
            create_source(env, f"events_{number}", path, task.job)
        union = " UNION ALL ".join(f"SELECT * FROM events_{number}" for number in range(len(files)))
        env.execute_sql(f"CREATE TEMPORARY VIEW events AS {union}")
    statements = env.create_statement_set()
    add(statements, env, task)
    statements.execute().wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return run(argv, NAME, body)


if __name__ == "__main__":
    raise SystemExit(main())
