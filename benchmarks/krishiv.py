"""The jobs in krishiv_py: ``python -m benchmarks.krishiv --job J1 --data DIR --out DIR [--engine in-process]``."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow.parquet as pq

from benchmarks.jobs import HEAP, PAIRED, SPLIT, Job
from benchmarks.peers.common import Task, parser_of, task_of
from krishiv_py import (
    Batches,
    MultiSourceWatermarkSpec,
    ParquetSink,
    Session,
    SideOutputLateEventHandler,
    SlidingWindows,
    WatermarkSpec,
    col,
    count,
    lit,
    own_process,
)
from krishiv_py import sum as total
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.connectors.sink import Sink
from krishiv_py.plan.options.watermarks import RowsClock

NAME = "krishiv"
SCHEMA = "user_id bigint, event_time timestamp, amount bigint"


def session(task: Task, engine: str = "spark") -> Session:
    """Local session as the benchmark prescribes it; everything else is the library's own choice."""
    if engine == "in-process":
        own_process()
        return Session.in_process(profile="single-node-durable")
    builder = Session.builder().master("local[2]").app_name(f"{NAME} {task.job.name}").profile("single-node-durable")
    settings: dict[str, str | int] = {
        "spark.sql.shuffle.partitions": task.partitions,
        "spark.driver.memory": HEAP,
        "spark.log.level": "ERROR",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.get_or_create()


def read(opened: Session, task: Task, *, streaming: bool = True) -> Stream:
    """The parquet parts, so many files of each source per batch; in the steady mode what has come."""
    if task.job.sources == 1:
        files = task.files_per_batch if task.to_the_end else None
        return opened.read_parquet(str(task.data), SCHEMA, streaming=streaming, max_files_per_batch=files)
    path, schema = str(task.data / "source-*"), f"{SCHEMA}, source string"
    return opened.read_parquet(path, schema, streaming=streaming, max_files_per_batch=task.job.sources * task.files_per_batch)


def keyed(stream: Stream, job: Job, clock: RowsClock = "batch") -> KeyedStream:
    """Watermark and key."""
    if job.sources == 1:
        return stream.watermark("event_time", job.lag_ms, clock=clock).key_by("user_id")
    spec = MultiSourceWatermarkSpec.new(clock=clock)
    for number in range(job.sources):
        spec = spec.source(f"source-{number}", WatermarkSpec.fixed_lag(job.lag_ms))
    if job.idle_timeout_ms is not None:
        spec = spec.idle_timeout(job.idle_timeout_ms)
    return stream.with_watermark(spec, "event_time", source_column="source").key_by("user_id")


def windowed(keys: KeyedStream, job: Job) -> WindowedStream:
    """The windows of `job`."""
    if job.kind == "tumbling":
        return keys.tumbling_window(job.size_ms)
    if job.kind == "hopping":
        return keys.hopping_window(job.size_ms, job.slide_ms)
    if job.kind == "session":
        return keys.session_window(job.size_ms, max_duration=job.max_duration_ms)
    if job.kind == "lookback":
        return keys.lookback_window(job.size_ms)
    return keys.windowed_by(SlidingWindows.of(job.size_ms).grace(job.grace_ms))


def pipeline(stream: Stream, job: Job) -> ResultStream:
    """A job that is more than a window."""
    if job.kind == "stages":
        inner = keyed(stream, job).tumbling_window(job.size_ms).agg(count(col("*")), total(col("amount")))
        outer = inner.key_by("user_id").tumbling_window(job.outer_ms)
        return outer.agg(total("count").alias("count"), total("sum_amount").alias("sum_amount"))
    if job.kind == "dedup":
        rows = stream.watermark("event_time", job.lag_ms).drop_duplicates(within=job.size_ms)
        return rows.select(
            "user_id", window_start=col("event_time"), window_end=col("event_time"), count=lit(1), sum_amount=col("amount")
        )
    left = stream.filter(col("amount") <= SPLIT).watermark("event_time", job.lag_ms)
    right = stream.filter(col("amount") > SPLIT).rename(event_time="other_time", amount="other")
    pairs = left.interval_join(right.watermark("other_time", job.lag_ms), "user_id", lower=-job.size_ms, upper=job.size_ms)
    return pairs.select(
        "user_id",
        window_start=col("event_time"),
        window_end=col("other_time"),
        count=lit(1),
        sum_amount=col("amount") * PAIRED + col("other"),
    )


def plan(stream: Stream, task: Task, late_rule: str, clock: RowsClock = "batch") -> ResultStream:
    """The whole job."""
    job = task.job
    if job.pipeline:
        return pipeline(stream, job)
    windows = windowed(keyed(stream, job, clock), job)
    if job.allowed_lateness_ms:
        windows = windows.allowed_lateness(job.allowed_lateness_ms)
    if late_rule == "window":
        windows = windows.late_rule("window")
    result = windows.agg(count(col("*")), total(col("amount")))
    if job.retractions:
        result = result.emit("retractions")
    if job.late_output:
        result = result.with_late_event_handler(SideOutputLateEventHandler(ParquetSink(str(task.out / "late"))))
    return result


def stream(task: Task, late_rule: str, engine: str, clock: RowsClock = "batch") -> None:
    """Run one job to the end of its input, or until it has to stop."""
    opened = session(task, engine)
    sink = ParquetSink(str(task.out / "result") if task.job.late_output else str(task.out))
    run(plan(read(opened, task), task, late_rule, clock), sink, task)
    opened.stop()


def run(
    result: ResultStream, sink: Sink, task: Task, progress: Callable[[], list[dict[str, Any]]] = list
) -> list[dict[str, Any]]:
    """A query to the end of its input, or until it has to stop; what `progress` says of its last micro-batches."""
    batches = Batches.available_now() if task.to_the_end else Batches.every(int(task.trigger)) if int(task.trigger) else None
    query = result.start(sink, checkpoint=str(task.checkpoint), batches=batches)
    if not task.to_the_end:
        while not task.has_to_stop():
            query.await_termination("200 ms")
    last = progress()
    if not task.to_the_end:
        query.stop()
    query.await_termination()
    return last


def collect(task: Task, late_rule: str) -> None:
    """Bounded: ``collect()`` in a session that was warmed by the same call; the times go to ``times.json``."""
    opened = session(task)
    seconds: list[float] = []
    for _ in range(6):
        start = time.perf_counter()
        table = plan(read(opened, task, streaming=False), task, late_rule).collect()
        seconds.append(time.perf_counter() - start)
    pq.write_table(table, task.out / "result.parquet")
    (task.out / "times.json").write_text(json.dumps({"first_s": seconds[0], "warm_s": seconds[1:], "rows": table.num_rows}))
    opened.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = parser_of(NAME)
    parser.prog = "python -m benchmarks.krishiv"
    parser.add_argument("--late-rule", choices=("event", "window"), default="event")
    parser.add_argument("--engine", choices=("spark", "in-process"), default="spark")
    parser.add_argument("--clock", choices=("batch", "row"), default="batch")
    parser.add_argument("--collect", action="store_true", help="bounded: collect() in a warm session")
    given = parser.parse_args(argv)
    if given.collect:
        collect(task_of(given), given.late_rule)
    else:
        stream(task_of(given), given.late_rule, given.engine, given.clock)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
