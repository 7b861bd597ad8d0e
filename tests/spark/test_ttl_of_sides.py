"""The time to live of each side of a join of tables on Spark, over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from krishiv_py import MemorySink, Session
from tests.kernels.changes.test_ttl_of_sides import content


@pytest.mark.slow
def test_rows_of_a_side_go_at_their_time(session: Session, tmp_path: Path) -> None:
    now = 1_000
    session.use_clock(lambda: now * 1_000_000)
    left, of_left = session.memory_stream("k string, a bigint", name="left", spool=str(tmp_path / "left"))
    right, of_right = session.memory_stream("k string, b bigint", name="right", spool=str(tmp_path / "right"))
    plan, sink = left.join(right, on="k", how="left", ttl=("60 s", "16 s")), MemorySink()
    query = plan.start(sink, checkpoint=tmp_path / "checkpoint")
    of_left.send([{"k": key, "a": 1} for key in "abcdef"])
    of_right.send([{"k": key, "b": 2} for key in "abc"])
    query.process_all_available()
    query.stop()
    now += 20
    query = plan.start(sink, checkpoint=tmp_path / "checkpoint")
    of_right.send([{"k": "d", "b": 5}])
    query.process_all_available()
    of_right.send([{"k": "e", "b": 6}])
    query.process_all_available()
    assert content(sink) == {**dict.fromkeys("abcf"), "d": 5, "e": 6}
    now += 80
    of_left.send([{"k": "z", "a": 9}])
    query.process_all_available()
    assert content(sink) == {"z": None}
    query.stop()
