"""Streams without windows: any source to any sink, without a watermark (SEMANTICS §7.4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import krishiv_py as kv
from krishiv_py.errors import KrishivError
from krishiv_py.testing import Driver, stream_of

SCHEMA = "id bigint, name string, at bigint"
SENDS = [[{"id": 10 * n + i, "name": "ab"[i % 2], "at": None if i == 2 else i} for i in range(5)] for n in range(3)]


def steps(stream: Any) -> Any:
    """Whatever may stand before a window, without one."""
    return stream.filter("name = 'a'").with_column("twice", "id * 2").map_batches(lambda b: b).select("id", "at", "twice")


def lines(table: pa.Table) -> list[str]:
    return sorted(repr(row) for row in table.to_pylist())


def expected() -> list[str]:
    driver = Driver(steps(stream_of(SCHEMA)))
    return sorted(line for rows in SENDS for line in lines(driver.send(rows).results))


def test_the_engines_agree_over_a_restart(session: kv.Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(SCHEMA, spool=str(tmp_path / "spool"))
    plan, out, checkpoint = steps(stream), str(tmp_path / "out"), str(tmp_path / "checkpoint")
    for part in (SENDS[:2], SENDS[2:]):
        query = plan.start(kv.ParquetSink(out), checkpoint=checkpoint)
        try:
            for rows in part:
                sender.send(rows)
                query.process_all_available()
        finally:
            query.stop()
    assert lines(pq.read_table(out)) == expected()
    assert query.progress.rows == query.progress.firings == 9
    assert plan.start(kv.MemorySink(), checkpoint=checkpoint, batches=kv.Batches.available_now()).await_termination("60 s")
    sender.close()
    run = plan.run()
    assert lines(run.table) == expected() and run.counters["rows"] == 9
    assert lines(stream.watermark("at", 0).collect()) == lines(stream.collect())
    with pytest.raises(KrishivError, match="another plan"):
        stream.watermark("at", 0).tumbling_window(1).agg(kv.count()).start(kv.MemorySink(), checkpoint=checkpoint)


def test_malformed_lines_go_to_the_late_output(session: kv.Session, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [json.dumps({"id": i, "name": "a", "at": i}) for i in range(3)]
    (folder / "one.json").write_text("\n".join([rows[0], "{broken", *rows[1:]]) + "\n")
    late, out = kv.MemorySink(), kv.MemorySink()
    for streaming in (False, True):
        stream = session.read_json(str(folder), SCHEMA, streaming=streaming, on_malformed="side_output").filter("id <> 1")
        stream = stream.with_late_event_handler(kv.SideOutputLateEventHandler(late))
        late.tables.clear()
        if not streaming:
            run = stream.run()
            assert [r["id"] for r in run.table.to_pylist()] == [0, 2] and run.counters["malformed"] == 1
        else:
            query = stream.start(out, batches=kv.Batches.available_now(flush=True))
            assert query.await_termination("120 s")
            assert [r["id"] for r in query.results().to_pylist()] == [0, 2]
            assert query.progress.late["malformed"] == 1
        (row,) = late.table().to_pylist()  # type: ignore[union-attr]
        assert row["reason"] == "malformed" and row["malformed_text"] == "{broken" and row["id"] is None


def test_a_union_a_frame_and_a_dataframe_out(session: kv.Session) -> None:
    frame = session.spark.range(5)
    assert session.from_dataframe(frame).filter("id > 2").collect()["id"].to_pylist() == [3, 4]
    one, first = session.memory_stream(SCHEMA)
    other, second = session.memory_stream(SCHEMA)
    first.send(SENDS[0])
    second.send(SENDS[1])
    both = session.union({"x": one, "y": other}).select("id", "source")
    query = both.start(kv.MemorySink())
    try:
        query.process_all_available()
        wanted = [{"id": row["id"], "source": name} for name, rows in (("x", SENDS[0]), ("y", SENDS[1])) for row in rows]
        assert lines(query.results()) == sorted(map(repr, wanted))
        assert query.progress.counters["rows"] == 10
        assert "nothing is kept" in query.explain()
        with pytest.raises(KrishivError, match="no state"):
            query.state()
    finally:
        query.stop()
    assert lines(both.collect()) == sorted(map(repr, wanted))
    plain = one.select("id").to_dataframe().writeStream.format("memory").queryName("rows_plain").start()
    try:
        plain.processAllAvailable()
        assert session.spark.table("rows_plain").count() == 5
    finally:
        plain.stop()
