"""Check the output of a job against DuckDB: ``python -m benchmarks.check --job J1 --data DIR --out DIR --late event``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import duckdb
from attrs import frozen

from benchmarks.jobs import JOBS, Job
from benchmarks.truth import Rules, distinct_sql, keep_on_time, lookback_sql, one, pipeline_sql, read_rows, windows_sql
from benchmarks.truth_sessions import create_sessions

VALUES = "user_id, s, e, count, sum_amount"

SIGN = "CASE WHEN op IN ('+I', '+U', 'INSERT', 'UPDATE_AFTER') THEN 1 ELSE -1 END"


@frozen
class Verdict:
    """Outcome of a check."""

    ok: bool
    compared: int
    missing: int
    unexpected: int
    note: str = ""


def create_truth(db: duckdb.DuckDBPyConnection, job: Job, data: Path, rules: Rules) -> int:
    """Create ``truth`` and return the final watermark."""
    final_us = read_rows(db, job, data, rules.files)
    keep_on_time(db, job, rules)
    if job.kind == "session":
        create_sessions(db, job, rules)
    elif job.pipeline:
        db.execute(f"CREATE TEMP TABLE truth AS {pipeline_sql(job)}")
    else:
        query = {"lookback": lookback_sql(job), "distinct": distinct_sql(job)}.get(job.kind, windows_sql(job, rules))
        db.execute(f"CREATE TEMP TABLE truth AS {query}")
    return final_us


def output_files(folder: Path, what: str = "") -> str:
    """DuckDB table function that reads what a job wrote, parquet or CSV; an empty text where there is nothing."""
    base = folder / what
    files = sorted(p for p in base.rglob("*") if p.is_file() and p.stat().st_size and not is_aside(p, base))
    for call, chosen in (
        ("read_parquet([{}], union_by_name = true)", [path for path in files if is_parquet(path)]),
        ("read_csv([{}], union_by_name = true)", [path for path in files if path.suffix == ".csv"]),
    ):
        if chosen:
            return call.format(", ".join(f"'{path}'" for path in chosen))
    return ""


def is_parquet(path: Path) -> bool:
    """Whether a file is parquet, by its content (Flink's have no suffix)."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def is_aside(path: Path, folder: Path) -> bool:
    """Whether a file belongs to a sink's bookkeeping or to the late output."""
    return any(part.startswith(("_", ".")) or part == "late" for part in path.relative_to(folder).parts)


def as_us(db: duckdb.DuckDBPyConnection, source: str, column: str) -> str:
    """Expression for a time column in microseconds, whatever its type."""
    (_, kind, *_) = db.execute(f"DESCRIBE SELECT {column} FROM {source}").fetchall()[0]
    return column if kind == "BIGINT" else f"epoch_us({column})"


def create_output(db: duckdb.DuckDBPyConnection, job: Job, out: Path) -> None:
    """Create ``got`` with the columns of the truth; a retraction log is folded."""
    source = output_files(out)
    if not source:
        db.execute(f"CREATE TEMP TABLE got AS SELECT {VALUES} FROM truth WHERE false")
        return
    columns = [row[0] for row in db.execute(f"DESCRIBE FROM {source}").fetchall()]
    # A look-back result carries the time of its row, as such or as the end of its window.
    time = "event_time" if "event_time" in columns else "window_end"
    start, end = (as_us(db, source, c) for c in ((time, time) if job.kind == "lookback" else ("window_start", "window_end")))
    select = f"SELECT user_id, {start} AS s, {end} AS e, count::BIGINT AS count, sum_amount::BIGINT AS sum_amount"
    sign = SIGN if "op" in columns else "diff" if "diff" in columns else ""
    if sign:
        # A row stands as often as it was added beyond what was taken back (equal events have equal look-backs); what was
        # taken back too often is shown with a count that no truth has.
        net = f"{select}, sum({sign})::BIGINT AS n FROM {source} GROUP BY ALL"
        standing = f"SELECT * REPLACE (CASE WHEN n > 0 THEN count ELSE -1 END AS count), unnest(range(abs(n))) FROM ({net})"
        db.execute(f"CREATE TEMP TABLE got AS SELECT {VALUES} FROM ({standing})")
    else:
        db.execute(f"CREATE TEMP TABLE got AS {select} FROM {source}")


def differ(db: duckdb.DuckDBPyConnection, where: str) -> tuple[int, int, int]:
    """Rows compared, missing and unexpected."""
    signature = f"SELECT count(*), sum(hash({VALUES})::HUGEINT) % 1000000007 FROM {{}} WHERE {where}"
    rows, _ = expected = one(db, signature.format("truth"))
    if one(db, signature.format("got")) == expected:
        return rows, 0, 0
    both = "SELECT count(*) FROM (SELECT {0} FROM {1} WHERE {3} EXCEPT ALL SELECT {0} FROM {2} WHERE {3})"
    (missing,) = one(db, both.format(VALUES, "truth", "got", where))
    (unexpected,) = one(db, both.format(VALUES, "got", "truth", where))
    return rows, missing, unexpected


def check_late(db: duckdb.DuckDBPyConnection, out: Path) -> str:
    """Compare the late side output with the rows that are late; an empty text if they agree."""
    source = output_files(out, "late")
    (expected,) = one(db, "SELECT (SELECT count(*) FROM rows) - (SELECT count(*) FROM kept)")
    if not source:
        return f"no late output, {expected} late rows" if expected else ""
    late = f"SELECT user_id, {as_us(db, source, 'event_time')} AS t, amount FROM {source}"
    rows_of_keys = "SELECT user_id, t, amount FROM rows EXCEPT ALL SELECT user_id, t, amount FROM kept"
    (unexpected,) = one(db, f"SELECT count(*) FROM (({late}) EXCEPT ALL ({rows_of_keys}))")
    (got,) = one(db, f"SELECT count(*) FROM ({late})")
    return (
        "" if (got, unexpected) == (expected, 0) else f"late output: {got} rows, {unexpected} unexpected, {expected} expected"
    )


def check(job: Job, data: Path, out: Path, rules: Rules, *, slack_us: int = 0) -> Verdict:
    """Compare what a side wrote for `job` over `data` with the truth under `rules`, to `slack_us` before the last watermark."""
    with duckdb.connect() as db:
        final_us = create_truth(db, job, data, rules)
        try:
            return compare_output(db, job, out, rules, final_us - slack_us)
        except duckdb.Error as error:
            return Verdict(False, 0, 0, 0, f"output cannot be read: {error}")


def compare_output(db: duckdb.DuckDBPyConnection, job: Job, out: Path, rules: Rules, until_us: int) -> Verdict:
    """Compare what a side wrote with the truth, up to a time unless it has to be complete."""
    create_output(db, job, out)
    before = "e <" if job.kind in ("lookback", "distinct", "dedup", "join") else "e <="
    where = "true" if rules.complete else f"{before} {until_us}"
    note = ""
    if rules.late == "clean":
        where += " AND user_id NOT IN (FROM doubtful_keys)"
    elif job.late_output:
        note = check_late(db, out)
    compared, missing, unexpected = differ(db, where)
    if compared == 0:
        note = note or "nothing to compare"
    return Verdict(missing == unexpected == 0 and not note, compared, missing, unexpected, note)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check", description=__doc__)
    parser.add_argument("--job", choices=sorted(JOBS), required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--late", choices=("event", "window", "clean", "none"), default="event")
    parser.add_argument("--touch", choices=("separate", "merge"), default="separate")
    parser.add_argument("--complete", action="store_true")
    given = parser.parse_args(argv)
    verdict = check(JOBS[given.job], given.data, given.out, Rules(given.late, given.touch, given.complete))
    print(verdict)
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    sys.exit(main())
