"""Polars over the whole input at once, the other bounded limit."""

from __future__ import annotations

import os
from collections.abc import Sequence

os.environ.setdefault("POLARS_MAX_THREADS", "2")  # read when Polars is imported

import polars as pl  # the number of threads has to be set before

from benchmarks.jobs import Job
from benchmarks.peers.common import Task, run, unsupported

NAME = "bounded_polars"
TOTALS = (pl.len().cast(pl.Int64).alias("count"), pl.col("amount").sum().alias("sum_amount"))


def result(job: Job, events: pl.LazyFrame) -> pl.LazyFrame:
    """Plan of `job`."""
    size = pl.duration(milliseconds=job.size_ms)
    start, columns = pl.col("window_start"), job.columns
    if job.kind == "tumbling":
        keyed = events.with_columns(window_start=pl.col("event_time").dt.truncate(f"{job.size_ms}ms"))
        return keyed.group_by("user_id", "window_start").agg(*TOTALS).with_columns(window_end=start + size).select(columns)
    if job.kind == "hopping":
        pane = pl.col("event_time").dt.truncate(f"{job.slide_ms}ms")
        panes = events.group_by("user_id", pane.alias("pane")).agg(*TOTALS)
        hops = [
            panes.with_columns(window_start=pl.col("pane") - pl.duration(milliseconds=k * job.slide_ms))
            for k in range(job.size_ms // job.slide_ms)
        ]
        sums = pl.concat(hops).group_by("user_id", "window_start").agg(pl.col("count", "sum_amount").sum())
        return sums.with_columns(window_end=start + size).select(columns)
    if job.kind == "session" and job.max_duration_ms is None:
        time = pl.col("event_time")
        opens = (pl.col("user_id") != pl.col("user_id").shift()) | (time.diff() >= size)
        rows = events.sort("user_id", "event_time").with_columns(island=opens.fill_null(True).cum_sum())
        merged = rows.group_by("user_id", "island").agg(*TOTALS, window_start=time.min(), window_end=time.max() + size)
        return merged.select(columns)
    if job.kind == "lookback":
        rows = events.sort("user_id", "event_time")
        return (
            rows.rolling("event_time", period=f"{job.size_ms}ms", closed="both", group_by="user_id")
            .agg(*TOTALS)
            .select(columns)
        )
    raise unsupported(NAME, job, "no plain query computes it")


def body(task: Task) -> None:
    """Run one job."""
    result(task.job, pl.scan_parquet(list(task.files))).sink_parquet(task.out / "result.parquet")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return run(argv, NAME, body)


if __name__ == "__main__":
    raise SystemExit(main())
