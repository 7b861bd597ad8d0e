"""Archives of a topic on Spark: a task reads a lane, bounded and as a query, and gives what a loop over the lanes gives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import Batches, MemorySink, Session, count
from krishiv_py.plan.options.watermarks import RowsClock
from tests.in_process.test_archives import SCHEMA, expected, texts, topic, windows, written


@pytest.mark.slow
def test_lanes_of_an_archive(session: Session, tmp_path: Path) -> None:
    rows = topic(3)
    written(rows, tmp_path / "archive", 3)
    archive = session.read_parquet(tmp_path / "archive", lane="partition", order="offset", max_files_per_batch=2)
    wanted, late = expected(rows)
    result = windows(archive).run()
    assert (texts(result.table), result.counters["late"]) == (wanted, late)
    query = windows(archive).start(sink := MemorySink(), checkpoint=tmp_path / "c", batches=Batches.available_now(flush=True))
    query.await_termination()
    table = sink.table()
    assert table is not None and (texts(table), query.progress.late["late"]) == (wanted, late)


def test_a_run_batch_by_batch_says_how_many_rows_the_row_clock_calls_late(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [row for row in topic(2) if row["partition"] == 0]
    for number, begin in enumerate(range(0, len(rows), 50)):
        pq.write_table(pa.Table.from_pylist(rows[begin : begin + 50], SCHEMA), file := tmp_path / f"{number}.parquet")
        os.utime(file, (number, number))

    def run(clock: RowsClock, **options: Any) -> int:
        files = session.read_parquet(str(tmp_path), **options)
        timed = files.with_column("t", "at").watermark("t", "2 s", clock=clock).key_by("user")
        return timed.tumbling_window("10 s").agg(count()).run().counters["late"]

    late = run("row")
    assert late > 10 and not [r for r in caplog.records if "row clock" in r.getMessage()]
    of_batches = run("batch", max_files_per_batch=1)
    (said,) = [r.getMessage() for r in caplog.records if "row clock" in r.getMessage()]
    assert 0 < of_batches < late
    assert f"{late} of {len(rows)} rows are late by the row clock, and {of_batches} by the clock of batches" in said
