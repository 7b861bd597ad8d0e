"""Joins on the three engines: the same results, late rows and counters."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py import windows
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.testing import Driver, stream_of

pytestmark = pytest.mark.two_tasks

LEFT, RIGHT = "id bigint, user string, at timestamp", "rid bigint, customer string, seen bigint, note string"
BEGIN = dt.datetime(2024, 3, 29, tzinfo=dt.timezone.utc)
SECOND = dt.timedelta(seconds=1)
SENDS: list[tuple[str, list[dict[str, Any]]]] = [
    (
        "left",
        [{"id": i, "user": "abc"[i % 3], "at": BEGIN + 2 * i * SECOND} for i in range(9)]
        + [{"id": 9, "user": None, "at": BEGIN}],
    ),
    ("right", [{"rid": i, "customer": "abd"[i % 3], "seen": 1_711_670_400_000 + 3_000 * i, "note": "ñ" * i} for i in range(7)]),
    ("left", [{"id": 20, "user": "a", "at": BEGIN + 15 * SECOND}, {"id": 21, "user": "b", "at": BEGIN - 9 * SECOND}]),
    (
        "right",
        [{"rid": 20, "customer": "b", "seen": 1_711_670_440_000}, {"rid": 21, "customer": "b", "seen": 1_711_670_400_000}],
    ),
    ("left", [{"id": 30, "user": "b", "at": BEGIN + 39 * SECOND}]),
]
KINDS: dict[str, Callable[[Any, Any], ResultStream]] = {
    "full": lambda left, right: left.interval_join(right, {"user": "customer"}, lower="-4 s", upper="2 s", how="full"),
    "nearest": lambda left, right: left.asof_join(right, {"user": "customer"}, direction="nearest", tolerance="5 s"),
    "windows": lambda left, right: left.window_join(
        right, {"user": "customer"}, window=windows.hopping("10 s", "5 s"), how="full"
    ),
    "versions": lambda left, right: left.versioned_join(
        right.from_changelog("upsert", key="customer", sequence="rid"), {"user": "customer"}
    ),
    "versions by the left clock": lambda left, right: left.versioned_join(
        right.from_changelog("upsert", key="customer"), {"user": "customer"}, table_clock="left"
    ),
    "semi": lambda left, right: left.interval_join(right, {"user": "customer"}, lower="-9 s", upper="-1 s", how="semi"),
}


def joined(left: Any, right: Any, kind: str, late: kv.MemorySink) -> ResultStream:
    """The sides have times of other kinds and other lags."""
    plan = KINDS[kind](left.watermark("at", "3 s"), right.watermark("seen", "1 s"))
    return plan.allowed_lateness("1 s").with_late_event_handler(kv.SideOutputLateEventHandler(late))


def shown(table: Any) -> list[str]:
    return sorted(repr(row) for row in table.to_pylist())


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(k, marks=() if k in ("nearest", "windows", "versions by the left clock") else pytest.mark.slow)
        for k in KINDS
    ],
)
def test_the_three_engines_agree(kind: str, session: kv.Session, tmp_path: Path) -> None:
    driver = Driver(joined(stream_of(LEFT), stream_of(RIGHT), kind, kv.MemorySink()))
    steps = [driver.send({side: rows}) for side, rows in SENDS] + [driver.close()]
    expected = sorted(line for step in steps for line in shown(step.results))
    late = sorted(line for step in steps for line in shown(step.late))
    assert len(expected) > 4 and len(late) > 1
    streams = {side: session.memory_stream(ddl) for side, ddl in (("left", LEFT), ("right", RIGHT))}
    sink = kv.MemorySink()
    plan = joined(streams["left"][0], streams["right"][0], kind, sink)
    query = plan.start(kv.MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
    try:
        for side, rows in SENDS:
            streams[side][1].send(rows)
            query.process_all_available()
        for _, sender in streams.values():
            sender.close()
        query.process_all_available()
        assert shown(query.results()) == expected
        assert shown(query.late_rows()) == late
        counted = query.progress.counters
        assert {n: counted[n] for n in ("rows", "late", "unmatched")} == {
            n: driver.counters[n] for n in ("rows", "late", "unmatched")
        }
    finally:
        query.stop()
    run = plan.run()
    assert shown(run.table) == expected
    assert shown(run.late) == late


@pytest.mark.one_in(2)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("versions")])
def test_versions_in_process_with_restarts(kind: str, workers: int, tmp_path: Path) -> None:
    driver = Driver(joined(stream_of(LEFT), stream_of(RIGHT), kind, kv.MemorySink()))
    steps = [driver.send({side: rows}) for side, rows in SENDS] + [driver.close()]
    with kv.Session.in_process(workers=workers) as session:
        streams = {side: session.memory_stream(ddl) for side, ddl in (("left", LEFT), ("right", RIGHT))}
        late, sink = kv.MemorySink(), kv.MemorySink()
        plan = joined(streams["left"][0], streams["right"][0], kind, late)
        for side, rows in SENDS:
            query = plan.start(sink, checkpoint=tmp_path / "checkpoint")
            streams[side][1].send(rows)
            query.process_all_available()
            query.stop()
        query = plan.start(sink, checkpoint=tmp_path / "checkpoint")
        for _, sender in streams.values():
            sender.close()
        query.process_all_available()
        query.stop()
        assert shown(sink.table()) == sorted(line for step in steps for line in shown(step.results))
        assert shown(late.table()) == sorted(line for step in steps for line in shown(step.late))
        run = plan.run()
    assert shown(run.table) == sorted(line for step in steps for line in shown(step.results))
