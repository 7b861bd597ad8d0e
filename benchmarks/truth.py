"""What each job has to give, computed by DuckDB under the micro-batch model: so many files are one batch.

``W_n`` is the greatest event time of the batches before batch n, floored to a millisecond (Spark keeps watermarks so),
less the lag; unset for the first. Rows (or their windows) that are late under the rule of the job are left out, then
everything is computed at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import duckdb
from attrs import frozen

from benchmarks.jobs import PAIRED, SPLIT, Job

Late = Literal["event", "window", "clean", "none"]
Touch = Literal["separate", "merge"]
NEVER_US = -(2**60)


@frozen
class Rules:
    """How a side judges: what the truth has to follow.

    late
        ``"event"``: a row is late if ``t < W - L``. ``"window"``: in the windows with ``end + L <= W``. ``"clean"``: no
        micro-batch model; keys with a row that lies more than the lag behind any row before it are left out of the comparison.
        ``"none"``: no row is late (bounded computations).
    session_rule
        Which end ``"window"`` takes for a session: that of the ``"row"``'s own, or of the one it is ``"merged"`` into.
    touch
        Whether a row at exactly ``gap`` joins a session.
    complete
        Whether the end of input fires what is open. If not, only windows with ``end <= W`` at the end are compared.
    files
        How many files (of each source) are one batch.
    """

    late: Late = "event"
    touch: Touch = "separate"
    complete: bool = False
    session_rule: Literal["row", "merged"] = "row"
    files: int = 1


def read_rows(db: duckdb.DuckDBPyConnection, job: Job, data: Path, files: int) -> int:
    """Create table ``rows(user_id, t, amount, part, pos, batch, w)``, times in microseconds; return the final watermark."""
    folders = sorted(data.glob("source-*")) or [data]
    lag_us = job.lag_ms * 1_000 + job.grace_ms * 1_000
    selects = []
    for number, folder in enumerate(folders):
        selects.append(
            f"""SELECT user_id, epoch_us(event_time) AS t, amount, {number} AS source, file_row_number AS pos,
                regexp_extract(filename, 'part-([0-9]+)', 1)::INT AS part
                FROM read_parquet('{folder}/part-*.parquet', filename = true, file_row_number = true)"""
        )
    db.execute(f"CREATE TEMP TABLE raw AS SELECT *, part // {files} AS batch FROM ({' UNION ALL '.join(selects)})")
    # Several sources are generated without late rows: their watermark does not matter but at the end.
    db.execute(
        f"""CREATE TEMP TABLE marks AS SELECT batch, coalesce(max(top) OVER (ORDER BY batch
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) // 1000 * 1000 - {lag_us}, {NEVER_US}) AS w
        FROM (SELECT batch, max(t) AS top FROM raw GROUP BY batch)"""
    )
    db.execute("CREATE TEMP TABLE rows AS SELECT raw.*, w FROM raw JOIN marks USING (batch)")
    if len(folders) > 1:
        db.execute(f"UPDATE rows SET w = {NEVER_US}")
    (final,) = one(db, f"SELECT max(t) // 1000 * 1000 - {lag_us} FROM rows")
    return final


def one(db: duckdb.DuckDBPyConnection, query: str) -> tuple[int, ...]:
    """The only row of a query of integers."""
    row = db.execute(query).fetchone()
    if row is None:
        raise LookupError(query)
    return tuple(int(value or 0) for value in row)


def keep_on_time(db: duckdb.DuckDBPyConnection, job: Job, rules: Rules) -> None:
    """Create ``kept``, the rows that count, and ``clean_keys`` for the rule of that name."""
    if rules.late == "event":
        # The distinct windows of a row at or after W - grace may have closed only when they end before it.
        db.execute(f"CREATE TEMP TABLE kept AS SELECT * FROM rows WHERE t >= w - {job.allowed_lateness_ms * 1_000}")
    else:
        db.execute("CREATE TEMP VIEW kept AS SELECT * FROM rows")
    if rules.late == "clean":
        db.execute(
            f"""CREATE TEMP TABLE classified AS SELECT user_id, t, t < max(t) OVER (PARTITION BY source ORDER BY part, pos)
            - {(job.lag_ms + job.grace_ms) * 1_000} AS doubtful FROM rows"""
        )
        db.execute("CREATE TEMP TABLE doubtful_keys AS SELECT DISTINCT user_id FROM classified WHERE doubtful")


def windows_sql(job: Job, rules: Rules) -> str:
    """Query of the truth for fixed windows, over ``kept``: ``user_id, s, e, count, sum_amount``."""
    size, slide = job.size_ms * 1_000, (job.slide_ms or job.size_ms) * 1_000
    start = f"t - ((t % {slide}) + {slide}) % {slide} - k * {slide}"
    assigned = (
        f"SELECT user_id, amount, w, {start} AS s FROM kept, range({-(-size // slide)}) AS r(k) WHERE t < {start} + {size}"
    )
    late = f"WHERE s + {size} + {job.allowed_lateness_ms * 1_000} > w" if rules.late == "window" else ""
    totals = "count(*) AS count, sum(amount)::BIGINT AS sum_amount"
    return f"SELECT user_id, s, s + {size} AS e, {totals} FROM ({assigned}) {late} GROUP BY ALL"


def pipeline_sql(job: Job) -> str:
    """Query of the truth for more than a window, over rows of which none is late: repeated rows lie close together."""
    if job.kind == "dedup":
        return "SELECT DISTINCT user_id, t AS s, t AS e, 1::BIGINT AS count, amount AS sum_amount FROM kept"
    size, outer = job.size_ms * 1_000, job.outer_ms * 1_000
    if job.kind == "join":
        return f"""SELECT l.user_id, l.t AS s, r.t AS e, 1::BIGINT AS count, l.amount * {PAIRED} + r.amount AS sum_amount
            FROM kept l JOIN kept r ON l.user_id = r.user_id AND r.t BETWEEN l.t - {size} AND l.t + {size}
            WHERE l.amount <= {SPLIT} AND r.amount > {SPLIT}"""
    totals = "count(*) AS count, sum(amount)::BIGINT AS sum_amount"
    return f"SELECT user_id, t // {outer} * {outer} AS s, s + {outer} AS e, {totals} FROM kept GROUP BY ALL"


def lookback_sql(job: Job) -> str:
    """Query of the truth for the look-back: one row per event."""
    size = job.size_ms * 1_000
    return f"""SELECT user_id, t AS s, t AS e, count(*) OVER w AS count, (sum(amount) OVER w)::BIGINT AS sum_amount FROM kept
        WINDOW w AS (PARTITION BY user_id ORDER BY t RANGE BETWEEN {size} PRECEDING AND CURRENT ROW)"""


def distinct_sql(job: Job) -> str:
    """Query of the truth for distinct-set windows: ``[t - size, t]``, and ``[t + 1, t + 1 + size]`` where a row lies in it."""
    size = job.size_ms * 1_000
    return f"""WITH times AS (SELECT user_id, t, count(*) AS n, sum(amount) AS a,
            lead(t) OVER (PARTITION BY user_id ORDER BY t) AS next FROM kept GROUP BY user_id, t),
        total AS (SELECT *, sum(n) OVER k AS upto_n, sum(a) OVER k AS upto_a FROM times
            WINDOW k AS (PARTITION BY user_id ORDER BY t ROWS UNBOUNDED PRECEDING)),
        wins AS (SELECT user_id, t - {size} AS s FROM times UNION
            SELECT user_id, t + 1 FROM times WHERE next <= t + 1 + {size})
        SELECT v.user_id, s, s + {size} AS e, (hi.upto_n - coalesce(lo.upto_n, 0))::BIGINT AS count,
            (hi.upto_a - coalesce(lo.upto_a, 0))::BIGINT AS sum_amount
        FROM wins v ASOF JOIN total hi ON v.user_id = hi.user_id AND v.s + {size} >= hi.t
        ASOF LEFT JOIN total lo ON v.user_id = lo.user_id AND v.s > lo.t"""
