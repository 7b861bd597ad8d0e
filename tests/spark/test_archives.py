"""Archives of a topic on Spark: a task reads a lane, bounded and as a query, and gives what a loop over the lanes gives."""

from __future__ import annotations

from pathlib import Path

from krishiv_py import Batches, MemorySink, Session
from tests.in_process.test_archives import expected, texts, topic, windows, written


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
