"""``~`` at the beginning of a path is the folder of the user, wherever a path is given."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import Batches, JsonSink, ParquetSink, Session, count
from krishiv_py.testing import Driver, stream_of


def test_a_path_may_begin_with_the_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    (home / "in").mkdir(parents=True)
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    pq.write_table(pa.table({"k": ["a", "b"], "at": [1_000, 2_000]}), home / "in" / "1.parquet")
    with Session.in_process() as session:
        for source, sink, checkpoint, savepoint in (
            (session.read_parquet("~/in", "k string, at bigint", streaming=True), ParquetSink("~/out"), "~/one", None),
            (session.read_parquet(Path("~/in"), "k string, at bigint", streaming=True), JsonSink("~/json"), "~/two", "~/saved"),
        ):
            plan = source.watermark("at", 0).key_by("k").tumbling_window(1_000).agg(count())
            query = plan.start(sink, checkpoint=checkpoint, savepoint=savepoint, batches=Batches.available_now())
            query.await_termination()
            query.stop()
            if savepoint is None:
                assert session.savepoint(checkpoint, "~/saved") == str(home / "saved")
        session.memory_stream("k string, at bigint", spool="~/spool")[1].send([{"k": "a", "at": 1}])
    driver = Driver(stream_of("k string, at bigint").watermark("at", 0).key_by("k").tumbling_window(1_000).agg(count()))
    assert driver.savepoint("~/of the driver") == str(home / "of the driver")
    names = {"in", "out", "json", "one", "two", "saved", "spool", "of the driver"}
    assert (set(os.listdir(home)), os.listdir(here)) == (names, [])
    assert pq.read_table(home / "out")["count"].to_pylist() == [1]
