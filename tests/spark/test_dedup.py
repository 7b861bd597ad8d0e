"""Deduplication on Spark: the same as on the driver, over a restart, and as the first stage of two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import krishiv_py as kv
from krishiv_py.testing import Driver, stream_of

pytestmark = pytest.mark.two_tasks

SCHEMA = "id string, n bigint, x double, at bigint"
SENDS = [
    [{"id": f"i{i % 5}", "n": i, "x": -0.0, "at": 1_000 * i} for i in range(12)] + [{"id": None, "n": -1, "x": None, "at": 0}],
    [{"id": f"i{i % 7}", "n": 100 + i, "x": 1.5, "at": 11_000 + 100 * i} for i in range(14)],
    [{"id": "i0", "n": 200, "x": 2.5, "at": 0}, {"id": "i6", "n": 201, "x": 2.5, "at": 40_000}],
    [{"id": "i6", "n": 300, "x": 2.5, "at": 40_001}, {"id": "late", "n": 301, "x": 2.5, "at": 1}],
]
COUNTED = ("rows", "late", "duplicates")


def passing(stream: Any, late: kv.MemorySink | None = None) -> kv.ResultStream:
    handler = kv.SideOutputLateEventHandler(kv.MemorySink() if late is None else late)
    rows: kv.ResultStream = stream.watermark("at", "2 s").drop_duplicates("id", within="20 s", duplicates="side_output")
    return rows.allowed_lateness("1 s").with_late_event_handler(handler)


def lines(table: Any) -> list[str]:
    return sorted(repr(row) for row in table.to_pylist())


def test_the_engines_agree_over_a_restart(session: kv.Session, tmp_path: Path) -> None:
    driver = Driver(passing(stream_of(SCHEMA)))
    steps = [driver.send(rows) for rows in SENDS]
    state = lines(driver.state().drop_columns(["last_update"]))
    reached = driver.watermark_us // 1_000
    steps.append(driver.close())
    passed, late = (sorted(line for s in steps for line in lines(getattr(s, name))) for name in ("results", "late"))
    assert len(passed) > 7 and {"'late'", "'duplicate'"} <= {line.split("'reason': ")[1].split(",")[0] for line in late}
    stream, sender = session.memory_stream(SCHEMA, spool=str(tmp_path / "spool"))
    results, aside, checkpoint = kv.MemorySink(), kv.MemorySink(), str(tmp_path / "checkpoint")
    for last, part in enumerate((SENDS[:2], SENDS[2:])):
        query = passing(stream, aside).start(results, checkpoint=checkpoint)
        try:
            for rows in part:
                sender.send(rows)
                query.process_all_available()
            if last:
                shown = session.read_state(checkpoint, passing(stream)).drop_columns(["last_update"])
                assert lines(shown.filter(pc.greater(shown["kept_until"], reached))) == state, (
                    "a bucket without rows forgets later"
                )
                sender.close()
                query.process_all_available()
        finally:
            query.stop()
    assert lines(results.table()) == passed
    assert lines(aside.table()) == late
    assert {n: query.progress.counters[n] for n in COUNTED} == {n: driver.counters[n] for n in COUNTED}
    run = passing(stream).run()
    assert lines(run.table) == passed and lines(run.late) == late
    assert {n: run.counters[n] for n in COUNTED} == {n: driver.counters[n] for n in COUNTED}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("engine", ["driver", "bounded", "streaming"])
def test_windows_over_rows_that_passed(engine: str, request: pytest.FixtureRequest) -> None:
    def per_window(stream: Any) -> kv.ResultStream:
        rows: kv.ResultStream = stream.watermark("at", "2 s").drop_duplicates("id", within="20 s")
        return rows.tumbling_window("10 s").agg(kv.count(), kv.sum("n"))

    wanted = [(0, 6, 9), (10_000, 2, 211), (40_000, 1, 201)]
    if engine == "driver":
        driver = Driver(per_window(stream_of(SCHEMA)))
        actual = [row for rows in SENDS for row in driver.send(rows).results.to_pylist()] + driver.close().results.to_pylist()
    else:
        session: kv.Session = request.getfixturevalue("session")
        stream, sender = session.memory_stream(SCHEMA)
        for rows in SENDS:
            sender.send(rows)
        sender.close()
        if engine == "bounded":
            actual = per_window(stream).collect().to_pylist()
        else:
            query = per_window(stream).start(kv.MemorySink())
            try:
                query.process_all_available()
                actual = query.results().to_pylist()
            finally:
                query.stop()
    assert [(r["window_start"], r["count"], r["sum_n"]) for r in actual] == wanted
