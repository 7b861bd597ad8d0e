"""Spark Connect: bounded runs and streaming DataFrames; start() is refused with what to do instead."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
pytest.importorskip("grpc", reason="the `connect` extra is not installed")

PROGRAM = textwrap.dedent("""
    from krishiv_py import MemorySink, Session, count
    from krishiv_py.errors import PlanError

    session = Session.connect("local[2]")
    stream, sender = session.memory_stream("user string, at bigint")
    plan = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
    sender.send([{"user": "a", "at": 1}, {"user": "a", "at": 2}, {"user": "b", "at": 20}])
    print(sorted(tuple(r.values()) for r in plan.collect().to_pylist()))
    query = plan.to_dataframe().writeStream.format("memory").queryName("out").outputMode("append").start()
    query.processAllAvailable()
    print([tuple(r) for r in session.spark.table("out").collect()])
    query.stop()
    try:
        plan.start(MemorySink())
    except PlanError as refused:
        print(refused)
    marked = session.spark.readStream.format("rate").load().withWatermark("timestamp", "5 seconds")
    for frame in (marked.selectExpr("timestamp AS at"), marked.selectExpr("unix_millis(timestamp) AS at")):
        windows = session.from_dataframe(frame).watermark("at", 0).tumbling_window(1_000).agg(count())
        try:
            windows.to_dataframe()
        except PlanError as refused:
            print(refused)
    session.stop()
""")


def test_connect() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3_000:]
    lines = done.stdout.splitlines()
    assert lines[0] == "[('a', 0, 10, 2), ('b', 20, 30, 1)]"
    assert lines[1] == "[('a', 0, 10, 2)]"
    assert "use collect(), or to_dataframe()" in lines[2]
    assert ["to_dataframe() of a DataFrame with a watermark of its own" in line for line in lines[3:5]] == [True, True]
