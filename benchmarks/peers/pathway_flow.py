"""Pathway: temporal windows over CSV files (``benchmarks.data.as_csv`` writes them), results to CSV.

Read in static mode, all in one commit: the engine's best batch, and the only way its file readers end. So nothing is late,
and the figures are of an incremental engine at its bounded best. Times are integers, microseconds. (It reads parquet as Delta
tables alone, which needs a licence key.)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("PATHWAY_THREADS", "2")

import pathway as pw

from benchmarks.jobs import Job
from benchmarks.peers.common import Task, run, unsupported

# mypy: disable-error-code="misc"
# (the base class is Any where Pathway is not installed)
NAME = "pathway_flow"


class Event(pw.Schema):
    """Input rows."""

    user_id: int
    event_time: int
    amount: int


def window_of(job: Job) -> Any:
    """Pathway's window of `job`."""
    size = job.size_ms * 1_000
    if job.kind == "tumbling":
        return pw.temporal.tumbling(duration=size, origin=0)
    if job.kind == "hopping":
        return pw.temporal.sliding(hop=job.slide_ms * 1_000, duration=size, origin=0)
    return pw.temporal.session(max_gap=size)


def behavior_of(job: Job) -> Any:
    """When results leave and which rows are late."""
    lag, size = job.lag_ms * 1_000, job.size_ms * 1_000
    if job.kind == "session":
        return None  # Pathway has none for sessions
    if job.retractions:
        return pw.temporal.common_behavior(delay=size + lag, cutoff=lag + job.allowed_lateness_ms * 1_000)
    return pw.temporal.exactly_once_behavior(shift=lag)


def windowed(job: Job, events: Any) -> Any:
    """J1, J2, J3 and J5."""
    grouped = events.windowby(events.event_time, window=window_of(job), behavior=behavior_of(job), instance=events.user_id)
    totals = {"count": pw.reducers.count(), "sum_amount": pw.reducers.sum(pw.this.amount)}
    if job.kind != "session":
        return grouped.reduce(
            user_id=pw.this._pw_instance, window_start=pw.this._pw_window_start, window_end=pw.this._pw_window_end, **totals
        )
    time = pw.this.event_time
    merged = grouped.reduce(
        user_id=pw.this._pw_instance, window_start=pw.reducers.min(time), last=pw.reducers.max(time), **totals
    )
    end = merged.last + job.size_ms * 1_000
    return merged.select(merged.user_id, merged.window_start, window_end=end, count=pw.this.count, sum_amount=merged.sum_amount)


def lookback(job: Job, events: Any) -> Any:
    """J4: the rows of a user as one sorted tuple, gone over with two hands.

    An interval join of the stream with itself takes twice the CPU with many keys and more than 24 GB with hot ones;
    ``intervals_over`` would look at the rows of all keys from each row; sliding windows of twice the look-back take five times
    the CPU and more. A user's rows are gone over again whenever one comes, which in static mode is once.
    """
    size = job.size_ms * 1_000

    def totals(rows: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        result = []
        oldest = newest = total = 0
        for now, _ in rows:
            while newest < len(rows) and rows[newest][0] <= now:
                total += rows[newest][1]
                newest += 1
            while rows[oldest][0] < now - size:
                total -= rows[oldest][1]
                oldest += 1
            result.append((now, newest - oldest, total))
        return result

    rows = pw.reducers.sorted_tuple(pw.make_tuple(events.event_time, events.amount))
    users = events.groupby(events.user_id).reduce(events.user_id, rows=rows)
    result = users.select(users.user_id, row=pw.udf(totals, deterministic=True)(users.rows))
    each = result.flatten(result.row)
    return each.select(each.user_id, event_time=each.row[0], count=each.row[1], sum_amount=each.row[2])


def body(task: Task) -> None:
    """Run one job to the end of its input."""
    job = task.job
    if job.name not in ("J1", "J2", "J3", "J4", "J5"):
        raise unsupported(NAME, job, "no window computes it")
    events = pw.io.csv.read(task.data, schema=Event, mode="static")
    result = lookback(job, events) if job.kind == "lookback" else windowed(job, events)
    pw.io.csv.write(result, task.out / "result.csv")
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return run(argv, NAME, body)


if __name__ == "__main__":
    raise SystemExit(main())
