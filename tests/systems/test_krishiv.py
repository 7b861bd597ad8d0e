"""Krishiv's text: windows, watermarks with 5 s of lag, late events counted, routed or counted by key."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

import pytest

import krishiv_py as kv
from krishiv_py import compat
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.errors import PlanError
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

SCHEMA = "user_id string, event_time timestamp, amount bigint"


def keyed() -> KeyedStream:
    return stream_of(SCHEMA).watermark("event_time", 5_000).key_by("user_id")


def row(user: str, second: float, amount: int = 1) -> dict[str, Any]:
    return {"user_id": user, "event_time": dt.datetime.fromtimestamp(second, dt.timezone.utc), "amount": amount}


def brief(table: Any) -> list[tuple[Any, ...]]:
    """Rows with their bounds in seconds."""
    return [tuple(v.timestamp() if hasattr(v, "timestamp") else v for v in r.values()) for r in table.to_pylist()]


def test_the_example_per_minute_as_a_whole() -> None:
    per_minute = keyed().preset("krishiv").tumbling_window(60_000).agg([kv.count(kv.col("*")), kv.sum(kv.col("amount"))])
    driver = Driver(per_minute)
    assert driver.send([row("ann", 1, 5), row("ann", 59.9, 7), row("bob", 30, 1)]).results.num_rows == 0
    assert driver.send([row("bob", 64.9, 2)]).results.num_rows == 0  # W = 59.9
    assert sorted(brief(driver.send([row("bob", 65, 3)]).results)) == [("ann", 0, 60, 2, 12), ("bob", 0, 60, 1, 1)]
    assert brief(driver.close().results) == [("bob", 60, 120, 2, 5)]
    assert per_minute.schema.names == ["user_id", "window_start", "window_end", "count", "sum_amount"]


def test_tumbling_windows_are_aligned_to_the_epoch() -> None:
    driver = Driver(keyed().tumbling_window(60_000).agg(kv.count()))
    driver.send([row("a", -0.5), row("a", 61)])
    assert [r[1] for r in brief(driver.close().results)] == [60]
    assert driver.counters["rows"] == 2


def test_sliding_windows_overlap() -> None:
    driver = Driver(compat.sliding_window(keyed(), 60_000, 15_000).agg(kv.count()))
    driver.send([row("a", 50)])
    assert [r[1] for r in brief(driver.close().results)] == [0, 15, 30, 45]


def test_sessions_close_after_inactivity_unbounded_too() -> None:
    driver = Driver(keyed().session_window(10_000).agg(kv.count()))
    out = driver.send([row("a", 0), row("a", 9), row("a", 19), row("b", 40)])
    assert sorted(r[1:] for r in brief(out.results)) == [(0, 19, 2), (19, 29, 1)]  # at exactly the gap: two sessions


def test_the_watermark_is_the_newest_minus_the_lag() -> None:
    driver = Driver(keyed().tumbling_window(60_000).agg(kv.count()))
    driver.send([row("a", 100)])
    assert driver.watermark_us == 95_000_000
    out = driver.send([row("a", 95), row("a", 94.999)])
    assert out.late["reason"].to_pylist() == ["late"]  # 95 is not behind the watermark, 94.999 is
    spec = compat.fixed_lag_ms(5_000)
    same = stream_of(SCHEMA).with_watermark(spec).key_by("user_id").tumbling_window(60_000).agg(kv.count())
    assert Driver(same)._spec.watermark == driver._spec.watermark


@pytest.mark.parametrize("handler", [None, kv.CountByKeyLateEventHandler()])
def test_late_events_are_dropped_and_counted(handler: Any) -> None:
    counting = kv.CountingLateEventHandler()
    stream = keyed().with_late_event_handler(handler or counting).tumbling_window(60_000).agg(kv.count())
    driver = Driver(stream)
    driver.send([row("a", 100), row("b", 100)])
    driver.send([row("a", 1), row("a", 2), row("b", 3)])
    assert driver.counters["late"] == 3
    if handler is None:
        assert counting.total == 3
    else:
        assert handler.by_key == {("a",): 2, ("b",): 1}


def test_event_time_ttl_bounds_what_is_kept() -> None:
    stream = keyed().with_state_ttl(kv.StateTtlConfig(30_000)).tumbling_window(3_600_000).agg(kv.count())
    driver = Driver(stream)
    driver.send([row("quiet", 0), row("busy", 0)])
    driver.send([row("busy", 20)])
    driver.send([row("busy", 36)])
    assert driver.counters["ttl_dropped"] == 1
    assert [r[0] for r in brief(driver.close().results)] == ["busy"]


SQL = """SELECT
tumble_start(event_time, INTERVAL '1 minute') AS window_start,
tumble_end(event_time, INTERVAL '1 minute') AS window_end,
COUNT(*) AS events
FROM events
GROUP BY
tumble_start(event_time, INTERVAL '1 minute'),
tumble_end(event_time, INTERVAL '1 minute');"""


def test_the_sql_example_is_the_builders_plan() -> None:
    context = SqlContext()
    context.register("events", stream_of(SCHEMA), event_time="event_time")
    assert context.sql("SET watermark.lag = INTERVAL '5' SECOND") is None
    actual = context.sql(SQL)
    assert actual is not None
    built = stream_of(SCHEMA).watermark("event_time", 5_000).tumbling_window(60_000).agg(kv.count().alias("events"))
    assert actual.explain() == built.explain()
    assert actual.schema.names == ["window_start", "window_end", "events"]
    driver = Driver(actual)
    assert driver.send([row("ann", 1), row("bob", 59.9), row("bob", 64.9)]).results.num_rows == 0
    assert brief(driver.send([row("bob", 65)]).results) == [(0, 60, 2)]
    assert brief(driver.close().results) == [(60, 120, 2)]


def test_late_drops_can_be_recorded_by_a_handler_of_ones_own() -> None:
    """The text counts in ``watermark.record_late_drop()``; a handler that routes rows itself has them counted there."""
    counting = kv.CountingLateEventHandler()

    class Routing:
        wants: Literal["rows"] = "rows"

        def handle(self, late: kv.LateRows) -> None:
            counting.record_late_drop(late.table.num_rows, operator=late.operator)

    driver = Driver(keyed().with_late_event_handler(Routing()).tumbling_window(60_000).agg(kv.count()), name="routed")
    driver.send([row("a", 100)])
    driver.send([row("a", 1), row("a", 2)])
    counting.record_late_drop(reason="stale")
    assert counting.total == 3
    assert counting.by_reason == {"late": 2, "stale": 1}
    assert counting.by_operator == {driver.operator: 2, "": 1}
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(PlanError, match="rows"):
            counting.record_late_drop(wrong)  # type: ignore[arg-type]


def test_the_watermark_of_the_query_is_the_one_state_expires_by() -> None:
    """``TtlStateBackend.set_watermark(...)`` has no place here: an explicit advance moves both."""
    stream = keyed().with_state_ttl(kv.StateTtlConfig(30_000)).session_window("1 h").agg(kv.count())
    driver = Driver(stream)
    driver.send([row("quiet", 0)])
    driver.advance_watermark(40_000)
    assert driver.counters["ttl_dropped"] == 1


def test_multi_source_watermarks_are_the_minimum() -> None:
    spec = (
        kv.MultiSourceWatermarkSpec.new().source("a", kv.WatermarkSpec.fixed_lag(0)).source("b", kv.WatermarkSpec.fixed_lag(5))
    )
    driver = Driver(
        stream_of("s string, at bigint").with_watermark(spec, "at", source_column="s").tumbling_window(10).agg(kv.count())
    )
    assert driver.send([{"s": "a", "at": 100}, {"s": "b", "at": 55}]).watermark_us == 50_000
