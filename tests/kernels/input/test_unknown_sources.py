"""Rows of sources nobody declared: never lost, never in a window by accident (SEMANTICS §2.4)."""

from __future__ import annotations

from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py import MemorySink
from krishiv_py.api.query import NoRunner
from krishiv_py.api.sources import union_of
from krishiv_py.errors import OperatorError, PlanError
from krishiv_py.session import Session
from krishiv_py.testing import Driver, stream_of
from tests.connectors.sinks import SparkJsonSink

SPEC = kv.MultiSourceWatermarkSpec.new().source("a", kv.WatermarkSpec.fixed_lag(0)).source("b", kv.WatermarkSpec.fixed_lag(0))
ROWS: list[dict[str, Any]] = [
    {"s": "a", "at": 1},
    {"s": "A", "at": 2},
    {"s": None, "at": 3},
    {"s": "None", "at": 4},
    {"s": "b", "at": 50},
    {"s": "", "at": None},
]


def plan(spec: kv.MultiSourceWatermarkSpec = SPEC, stream: Any = None) -> kv.ResultStream:
    source = stream_of("s string, at bigint") if stream is None else stream
    actual: kv.ResultStream = source.with_watermark(spec, "at", source_column="s").tumbling_window(10).agg(kv.count())
    return actual


def refusals(rows: Any) -> list[tuple[Any, ...]]:
    return [(r["s"], r["at"], r["reason"]) for r in rows.to_pylist()]


def test_by_default_they_are_late_output_and_counted() -> None:
    driver = Driver(plan())
    step = driver.send(ROWS)
    assert refusals(step.late) == [
        ("A", 2, "unknown_source"),
        (None, 3, "unknown_source"),
        ("None", 4, "unknown_source"),
        ("", None, "null_time"),
    ]
    assert driver.counters["unknown_source"] == 3 and driver.progress.late["unknown_source"] == 3
    assert driver.watermark_us == 1_000  # the minimum of a and b alone
    assert driver.close().results["count"].to_pylist() == [1, 1]
    assert sorted(driver.source_watermarks_us) == ["a", "b"]


def test_they_can_stop_the_query() -> None:
    with pytest.raises(OperatorError, match=r"not declared in column 's' \(got: 'A'\).*declared are 'a', 'b'"):
        Driver(plan(SPEC.unknown("fail"))).send(ROWS)


def test_they_can_register_with_a_lag() -> None:
    driver = Driver(plan(SPEC.unknown("register", kv.WatermarkSpec.fixed_lag(1))))
    step = driver.send(ROWS)
    assert refusals(step.late) == [(None, 3, "unknown_source"), ("", None, "null_time")]
    assert driver.source_watermarks_us == {"a": 1_000, "b": 50_000, "A": 1_000, "None": 3_000}
    again = driver.restarted()
    again.send([{"s": "a", "at": 90}, {"s": "b", "at": 90}])
    assert again.watermark_us == 1_000  # "A" is remembered, and holds it
    again.send([{"s": "A", "at": 90}, {"s": "None", "at": 90}])
    assert again.watermark_us == 89_000


def test_a_watermark_can_be_moved_of_known_sources_only() -> None:
    driver = Driver(plan())
    with pytest.raises(PlanError, match=r"no such source .*the sources are 'a', 'b'"):
        driver.advance_watermark(5, source="c")


@pytest.mark.parametrize("names", [("a", "b", "c"), ("a",), ("a", "B")])
def test_names_of_a_union_must_be_the_declared_ones(names: tuple[str, ...]) -> None:
    united = union_of({n: stream_of("at bigint") for n in names}, "s", NoRunner())
    with pytest.raises(PlanError, match=r"not a declared source|the name of a declared source"):
        united.filter("at > 0").with_watermark(SPEC, "at", source_column="s")
    if names == ("a", "b", "c"):
        united.with_watermark(SPEC.unknown("register", kv.WatermarkSpec.fixed_lag(1)), "at", source_column="s")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("action", ["side_output", "register"])
def test_all_three_engines_agree(session: Session, action: Any) -> None:
    spec = SPEC.unknown(action, kv.WatermarkSpec.fixed_lag(1) if action == "register" else None)
    late = MemorySink()
    stream, sender = session.memory_stream("s string, at bigint")
    running = plan(spec, stream).with_late_event_handler(kv.SideOutputLateEventHandler(late))
    driver = Driver(plan(spec).with_late_event_handler(kv.SideOutputLateEventHandler(kept := MemorySink())))
    with running.start(MemorySink()) as query:
        sender.send(ROWS)
        driver.send(ROWS)
        query.process_all_available()
        sender.close()
        results = driver.close()
        query.process_all_available()
        counters = {n: query.progress.counters[n] for n in ("rows", "late", "null_time", "unknown_source")}
        assert counters == {n: driver.counters[n] for n in counters}
        in_query = sorted(query.results()["window_start"].to_pylist())
    table, by_driver = late.table(), kept.table()
    assert table is not None and by_driver is not None
    assert sorted(refusals(table), key=repr) == sorted(refusals(by_driver), key=repr)
    bounded = running.run()
    assert sorted(refusals(bounded.late), key=repr) == sorted(refusals(by_driver), key=repr)
    assert bounded.counters["unknown_source"] == driver.counters["unknown_source"]
    assert sorted(bounded.table["window_start"].to_pylist()) == in_query
    assert set(results.results["window_start"].to_pylist()) <= set(in_query)


def test_the_driver_fills_the_side_output() -> None:
    kept = MemorySink()
    driver = Driver(plan().with_late_event_handler(kv.SideOutputLateEventHandler(kept)))
    given = [driver.send(ROWS).late, driver.send(ROWS[1:3]).late]
    table = kept.table()
    assert table is not None and table.to_pylist() == [r for t in given for r in t.to_pylist()]
    with pytest.raises(PlanError, match="a Driver cannot write late rows to a sink that needs Spark"):
        Driver(plan().with_late_event_handler(kv.SideOutputLateEventHandler(SparkJsonSink("out"))))
