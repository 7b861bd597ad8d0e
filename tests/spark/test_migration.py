"""Five jobs in hand-written Structured Streaming and here give the same results of the same files; their lines are counted."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from examples.migration import by_hand, here
from krishiv_py import Session
from scripts.docs import lines

BEGIN = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
SCHEMAS = {"orders": "id bigint, shop string, amount bigint, at timestamp", "payments": "id bigint, paid timestamp"}
UTC = pa.timestamp("us", "UTC")
ARROW = {
    "orders": pa.schema([("id", pa.int64()), ("shop", pa.string()), ("amount", pa.int64()), ("at", UTC)]),
    "payments": pa.schema([("id", pa.int64()), ("paid", UTC)]),
}
FILES = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with files of orders and payments: out of order, some late, some twice."""
    home, chosen = tmp_path_factory.mktemp("migration"), random.Random(7)
    for number in range(FILES):
        orders: list[dict[str, Any]] = []
        for n in range(40):
            second = 300 * number + chosen.randrange(200) - chosen.choice((0, 0, 3, 9, 60))
            row = {"id": 40 * number + n, "shop": chosen.choice("abc"), "amount": n, "at": BEGIN + timedelta(seconds=second)}
            orders += [row] * chosen.choice((1, 1, 1, 2))
        payments = [{"id": row["id"], "paid": row["at"] + timedelta(seconds=chosen.randrange(50))} for row in orders[::2]]
        for name, rows in (("orders", orders), ("payments", payments)):
            (home / name).mkdir(exist_ok=True)
            path = home / name / f"{number}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, ARROW[name]), path)
            os.utime(path, (1_700_000_000 + number,) * 2)
    return home


@pytest.fixture(scope="module")
def spark(session: Session) -> Iterator[SparkSession]:
    """Yield the session of Spark with few tasks a batch."""
    running = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    before = str(running.conf.get("spark.sql.shuffle.partitions"))
    running.conf.set("spark.sql.shuffle.partitions", "2")
    yield running
    running.conf.set("spark.sql.shuffle.partitions", before)


def written(folder: Path, names: list[str]) -> list[tuple[Any, ...]]:
    """Return the rows of a folder; times as seconds, since Spark writes them in another unit."""
    rows = pq.read_table(folder).select(names).to_pylist()
    return sorted(tuple(v.timestamp() if isinstance(v, datetime) else v for v in row.values()) for row in rows)


JOBS = {
    "minutes": ["shop", "window_start", "orders", "amount"],
    "sessions": ["shop", "window_start", "orders"],
    "once": ["id", "shop", "at"],
    "paid": ["id", "at", "paid"],
    "busiest": ["window_start", "most"],
}


@pytest.mark.slow
@pytest.mark.parametrize("job", ["minutes", *(pytest.param(name, marks=pytest.mark.slow) for name in list(JOBS)[1:])])
def test_both_give_the_same(session: Session, spark: SparkSession, folder: Path, tmp_path: Path, job: str) -> None:
    inputs = list(SCHEMAS) if job == "paid" else ["orders"]
    frames = [by_hand.read(spark, str(folder / name), SCHEMAS[name]) for name in inputs]
    by_hand.run(getattr(by_hand, job)(*frames), str(tmp_path / "by_hand"), str(tmp_path / "by_hand_checkpoint"))
    streams = [here.read(session, str(folder / name), SCHEMAS[name]) for name in inputs]
    here.run(getattr(here, job)(*streams), str(tmp_path / "here"), str(tmp_path / "here_checkpoint"))
    rows = written(tmp_path / "here", JOBS[job])
    assert rows == written(tmp_path / "by_hand", JOBS[job])
    assert rows


def test_the_page_has_the_lines_that_there_are() -> None:
    assert lines.PAGE.read_text(encoding="utf-8") == lines.page(), "run python -m scripts.docs.lines"
