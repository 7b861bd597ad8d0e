"""Event times of another unit are noticed on Spark, in bounded runs and in queries."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import krishiv_py as kv


def test_seconds_for_milliseconds(session: kv.Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream("at bigint")
    plan = stream.watermark("at", 0).tumbling_window(1_000).agg(kv.count())
    with pytest.warns(RuntimeWarning, match="probably seconds") as seen:
        query = plan.start(kv.MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
        for n in range(2):
            sender.send([{"at": 1_732_867_260 + n}])
            query.process_all_available()
        (problem,) = query.progress.doubts
        text = query.explain()
        query.stop()
    assert len([w for w in seen if "probably seconds" in str(w.message)]) == 1
    assert f"! {problem}" in text and "! event times" not in plan.explain()


def test_a_bounded_run(session: kv.Session, tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": [1_732_867_260, 1_732_867_261]}), tmp_path / "rows.parquet")
    rows = session.read_parquet(str(tmp_path / "rows.parquet"))
    with pytest.warns(RuntimeWarning, match="probably seconds"):
        rows.watermark("at", 0).tumbling_window(1_000).agg(kv.count()).collect()
