"""Truth of the session jobs: at once where rows are classified, batch by batch where a fired session stays closed."""

from __future__ import annotations

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.jobs import Job
from benchmarks.truth import NEVER_US, Rules

Ints = npt.NDArray[np.int64]


def merged_sql(source: str, rules: Rules) -> str:
    """Query that merges overlapping ``(user_id, s, e, count, sum_amount)`` of `source`."""
    apart = ">=" if rules.touch == "separate" else ">"
    return f"""WITH marked AS (SELECT *, coalesce(s {apart} max(e) OVER (PARTITION BY user_id ORDER BY s, e
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), true)::INT AS opens FROM {source}),
        numbered AS (SELECT *, sum(opens) OVER (PARTITION BY user_id ORDER BY s, e ROWS UNBOUNDED PRECEDING) AS island
            FROM marked)
        SELECT user_id, min(s) AS s, max(e) AS e, sum(count)::BIGINT AS count, sum(sum_amount)::BIGINT AS sum_amount
        FROM numbered GROUP BY user_id, island"""


def create_sessions(db: duckdb.DuckDBPyConnection, job: Job, rules: Rules) -> None:
    """Create ``truth`` for a session job over ``kept``."""
    own = f"SELECT user_id, t AS s, t + {job.size_ms * 1_000} AS e, 1 AS count, amount AS sum_amount, batch, w FROM kept"
    if job.max_duration_ms is not None:
        bounded_sessions(db, job, rules)
    elif rules.late == "window":
        batchwise(db, own, rules)
    else:
        db.execute(f"CREATE TEMP TABLE truth AS {merged_sql(f'({own})', rules)}")


def batchwise(db: duckdb.DuckDBPyConnection, own: str, rules: Rules) -> None:
    """Sessions classified by windows: a row that bridges to a session already fired opens a new one."""
    db.execute("CREATE TEMP TABLE truth (user_id BIGINT, s BIGINT, e BIGINT, count BIGINT, sum_amount BIGINT)")
    db.execute("CREATE TEMP TABLE held AS FROM truth")
    for batch, w in db.execute("SELECT DISTINCT batch, w FROM kept ORDER BY batch").fetchall():
        own_end = f" AND e > {w}" if rules.session_rule == "row" else ""
        if rules.session_rule == "merged":  # what is over is out before the batch comes
            db.execute(f"INSERT INTO truth FROM held WHERE e <= {w}")
            db.execute(f"DELETE FROM held WHERE e <= {w}")
        fresh = f"SELECT user_id, s, e, count, sum_amount FROM ({own}) WHERE batch = {batch}{own_end}"
        db.execute(f"CREATE OR REPLACE TEMP TABLE merged AS {merged_sql(f'({fresh} UNION ALL FROM held)', rules)}")
        if rules.session_rule == "merged":
            # A row of a session that is over even with it is late; one that ends such a session later is not.
            inside = "f.user_id = m.user_id AND f.s >= m.s AND f.e <= m.e"
            on_time = f"SELECT f.* FROM ({fresh}) AS f JOIN merged AS m ON {inside} WHERE m.e > {w}"
            db.execute(f"CREATE OR REPLACE TEMP TABLE merged AS {merged_sql(f'({on_time} UNION ALL FROM held)', rules)}")
        db.execute(f"INSERT INTO truth FROM merged WHERE e <= {w}")
        db.execute(f"CREATE OR REPLACE TEMP TABLE held AS FROM merged WHERE e > {w}")
    db.execute("INSERT INTO truth FROM held")


def bounded_sessions(db: duckdb.DuckDBPyConnection, job: Job, rules: Rules) -> None:
    """Sessions of at most ``max_duration``: walk the rows of a key in time order (SEMANTICS §3.3)."""
    if job.max_duration_ms is None:
        raise ValueError("a job without max_duration")
    got = db.execute("SELECT user_id, t, amount FROM kept ORDER BY user_id, t").fetchnumpy()
    user, t, amount = (np.asarray(got[name], dtype=np.int64) for name in ("user_id", "t", "amount"))
    gap, longest = job.size_ms * 1_000, job.max_duration_ms * 1_000
    starts = walk(user, t, gap, longest, merge=rules.touch == "merge")
    last = np.append(starts[1:], len(t)) - 1
    totals = np.concatenate(([0], np.cumsum(amount)))
    table = pa.table(
        {
            "user_id": user[starts],
            "s": t[starts],
            "e": np.minimum(t[last] + gap, t[starts] + longest),
            "count": last - starts + 1,
            "sum_amount": totals[last + 1] - totals[starts],
        }
    )
    db.register("walked", table)
    db.execute("CREATE TEMP TABLE truth AS FROM walked")


def walk(user: Ints, t: Ints, gap: int, longest: int, *, merge: bool) -> Ints:
    """Positions where a session opens, rows sorted by user and time."""
    if len(t) == 0:
        return np.empty(0, dtype=np.int64)
    distance = np.diff(t, prepend=NEVER_US)
    breaks = (np.diff(user, prepend=user[0] - 1) != 0) | ((distance > gap) if merge else (distance >= gap))
    islands = np.flatnonzero(breaks)
    ends = np.append(islands[1:], len(t))
    extra: list[int] = []
    for low, high in zip(islands[t[ends - 1] - t[islands] >= longest], ends[t[ends - 1] - t[islands] >= longest], strict=True):
        position = int(low)
        while (position := position + int(np.searchsorted(t[position:high], t[position] + longest))) < high:
            extra.append(position)
    return np.sort(np.concatenate((islands, np.asarray(extra, dtype=np.int64))))
