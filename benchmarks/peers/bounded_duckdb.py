"""DuckDB over the whole input at once: the limit of what a bounded computation costs (no watermark, no late row)."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from benchmarks.jobs import Job
from benchmarks.peers.common import Task, run, unsupported

NAME = "bounded_duckdb"


def query(job: Job) -> str:
    """One SQL query per job over ``events``."""
    size = f"INTERVAL {job.size_ms} MILLISECONDS"
    totals = "count(*) AS count, sum(amount)::BIGINT AS sum_amount"
    if job.kind == "tumbling":
        return f"""SELECT user_id, time_bucket({size}, event_time) AS window_start, window_start + {size} AS window_end,
            {totals} FROM events GROUP BY ALL"""
    if job.kind == "hopping":
        slide = f"INTERVAL {job.slide_ms} MILLISECONDS"
        return f"""WITH panes AS (SELECT user_id, time_bucket({slide}, event_time) AS pane, count(*) AS n, sum(amount) AS a
                FROM events GROUP BY ALL)
            SELECT user_id, pane - k * {slide} AS window_start, window_start + {size} AS window_end, sum(n)::BIGINT AS count,
                sum(a)::BIGINT AS sum_amount
            FROM panes, range({job.size_ms // job.slide_ms}) AS r(k) GROUP BY ALL"""
    if job.kind == "session" and job.max_duration_ms is None:
        return f"""WITH marked AS (SELECT *, coalesce(event_time - lag(event_time) OVER w >= {size}, true)::INT AS opens
                FROM events WINDOW w AS (PARTITION BY user_id ORDER BY event_time)),
            numbered AS (SELECT *, sum(opens) OVER (PARTITION BY user_id ORDER BY event_time ROWS UNBOUNDED PRECEDING) AS island
                FROM marked)
            SELECT user_id, min(event_time) AS window_start, max(event_time) + {size} AS window_end, {totals}
            FROM numbered GROUP BY user_id, island"""
    if job.kind == "lookback":
        return f"""SELECT user_id, event_time, count(*) OVER w AS count, (sum(amount) OVER w)::BIGINT AS sum_amount FROM events
            WINDOW w AS (PARTITION BY user_id ORDER BY event_time RANGE BETWEEN {size} PRECEDING AND CURRENT ROW)"""
    raise unsupported(NAME, job, "no plain query computes it")


def body(task: Task) -> None:
    """Run one job."""
    with duckdb.connect(config={"threads": 2}) as db:
        db.execute("SET TimeZone = 'UTC'")
        db.execute("CREATE VIEW events AS FROM read_parquet([{}])".format(", ".join(f"'{path}'" for path in task.files)))
        db.execute(f"COPY ({query(task.job)}) TO '{task.out / 'result.parquet'}' (FORMAT parquet)")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    return run(argv, NAME, body)


if __name__ == "__main__":
    raise SystemExit(main())
