"""Unions without a session."""

from __future__ import annotations

import pytest

from krishiv_py import (
    CountingLateEventHandler,
    MemorySink,
    MultiSourceWatermarkSpec,
    OrderError,
    PlanError,
    SchemaError,
    Session,
    SideOutputLateEventHandler,
    WatermarkSpec,
    count,
)
from krishiv_py.testing import Driver, stream_of, union_of

ROWS = stream_of("at bigint")


def test_a_union_waits_for_the_slowest_of_its_streams() -> None:
    spec = MultiSourceWatermarkSpec.new().source("a", WatermarkSpec.fixed_lag(0)).source("b", WatermarkSpec.fixed_lag(5))
    both = union_of({"a": ROWS, "b": ROWS}, source_column="from").with_watermark(spec, "at", source_column="from")
    driver = Driver(both.key_by("from").tumbling_window(10).agg(count()))
    assert driver.send({"a": [{"at": 1}, {"at": 30}]}).results.num_rows == 0
    assert driver.send({"b": [{"at": 2}, {"at": 15}]}).results.to_pylist() == [
        {"from": "a", "window_start": 0, "window_end": 10, "count": 1},
        {"from": "b", "window_start": 0, "window_end": 10, "count": 1},
    ]


def test_the_handler_of_a_stream_takes_the_late_rows_of_the_union() -> None:
    counts, sink = CountingLateEventHandler(), MemorySink()
    heard = union_of({"a": ROWS.with_late_event_handler(counts), "b": ROWS})
    driver = Driver(heard.watermark("at", 0).tumbling_window(10).agg(count()))
    driver.send({"a": [{"at": 50}], "b": [{"at": 50}]})
    driver.send({"a": [{"at": 1}], "b": [{"at": 2}]})
    assert counts.total == 2
    with pytest.raises(PlanError, match="streams of a union have different late handlers"):
        aside = ROWS.with_late_event_handler(SideOutputLateEventHandler(sink))
        union_of({"a": ROWS.with_late_event_handler(counts), "b": aside})


def test_what_cannot_be_united_is_refused() -> None:
    with pytest.raises(SchemaError, match="'at' is bigint in 'a' and timestamp in 'b'"):
        union_of({"a": ROWS, "b": stream_of("at timestamp")})
    with pytest.raises(OrderError, match=r"session\.union.*union_of"):
        getattr(ROWS, "union")(ROWS)  # noqa: B009


def test_rows_of_a_union_name_their_stream_and_a_stream_that_is_read_twice_needs_no_name() -> None:
    counted = (
        union_of({"a": ROWS.filter("at < 5"), "b": stream_of("at bigint")}).watermark("at", 0).tumbling_window(10).agg(count())
    )
    with pytest.raises(PlanError, match=r'belong to one of several streams.*list.*Hint: send \{"a": \[...\], "b": \[...\]\}'):
        Driver(counted).send([{"at": 1}])
    assert Driver(counted).send([]).results.num_rows == 0
    twice = union_of({"a": ROWS.filter("at < 5"), "b": ROWS.filter("at > 2")}).watermark("at", 0)
    rows = [{"at": n} for n in range(10)]
    for stream in (twice.tumbling_window(10).agg(count()), twice.key_by("source").tumbling_window(10).agg(count())):
        with Session.in_process() as session:
            sent, sender = session.memory_stream("at bigint")
            both = session.union({"a": sent.filter("at < 5"), "b": sent.filter("at > 2")}).watermark("at", 0)
            keyed = both.key_by("source") if "source" in stream.schema.names else both
            sender.send(rows)
            theirs = keyed.tumbling_window(10).agg(count()).collect().to_pylist()
        driver = Driver(stream)
        driver.send(rows)
        assert driver.close().results.to_pylist() == theirs


def test_several_outputs_over_a_union_take_rows_as_the_union_does() -> None:
    both = union_of({"a": ROWS, "b": stream_of("at bigint")}).watermark("at", 0)
    outputs = [both.tumbling_window(size).agg(count()).to(MemorySink()) for size in (10, 20)]
    with pytest.raises(PlanError, match="belong to one of several streams"):
        Driver(outputs).send([{"at": 1}])
    driver = Driver(outputs)
    driver.send({"a": [{"at": 1}], "b": [{"at": 2}]})
    assert [table["count"].to_pylist() for table in driver.close().by_output.values()] == [[2], [2]]
