"""Ripple's text: assigners, triggers, classes of lateness, retractions; its numbers are seconds."""

from __future__ import annotations

from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.testing import Driver, stream_of

S = 1_000


def ripple(lag: int = 0) -> KeyedStream:
    """A stream with Ripple's switches; times in ms."""
    return stream_of("key string, at bigint, x bigint").watermark("at", lag).key_by("key").preset("ripple")


def rows(*seconds: int, key: str = "k") -> list[dict[str, Any]]:
    return [{"key": key, "at": t * S, "x": t} for t in seconds]


def windows(table: Any) -> list[tuple[int, int]]:
    return sorted((r["window_start"] // S, r["window_end"] // S) for r in table.to_pylist())


#   |──── 60s ────|──── 60s ────|──── 60s ────|
@pytest.mark.parametrize(("t", "start"), [(0, 0), (59, 0), (60, 60), (119, 60), (120, 120)])
def test_tumbling_start_is_time_minus_time_modulo_size(t: int, start: int) -> None:
    driver = Driver(ripple().tumbling_window("60 s").agg(kv.count()))
    out = driver.send(rows(t))
    assert windows(out.results) + windows(driver.close().results) == [(start, start + 60)]


def test_sliding_60_by_15_puts_every_event_in_4_windows() -> None:
    driver = Driver(ripple().sliding_window("60 s", "15 s").agg(kv.count()))
    out = driver.send(rows(70))
    assert windows(out.results) + windows(driver.close().results) == [(15, 75), (30, 90), (45, 105), (60, 120)]


def test_sessions_close_after_30_seconds_of_silence() -> None:
    driver = Driver(ripple(lag=600 * S).session_window("30 s").agg(kv.count()))
    driver.send(rows(0, 10, 25, 100, 120, 200))
    found = [(r["window_start"] // S, r["window_end"] // S, r["count"]) for r in driver.close().results.to_pylist()]
    assert sorted(found) == [(0, 55, 3), (100, 150, 2), (200, 230, 1)]


def test_the_tracker_starts_at_zero_and_never_goes_back() -> None:
    driver = Driver(ripple().tumbling_window("60 s").agg(kv.count()))
    assert driver.watermark_us == 0
    marks = [driver.send(rows(t)).watermark_us // 1_000_000 for t in (100, 50, 200, 150)]
    assert marks == [100, 100, 200, 200]


@pytest.mark.parametrize(
    ("t", "class_"),
    [
        (195, "mildly_late"),
        (140, "mildly_late"),
        (130, "very_late"),
        (200, "on_time"),
        (260, "on_time"),
        (280, "future"),
        (261, "future"),
    ],
)
def test_classes_at_watermark_200_with_60_seconds_of_lateness(t: int, class_: str) -> None:
    driver = Driver(ripple().tumbling_window("60 s").agg(kv.count()))
    driver.advance_watermark(200 * S)
    out = driver.send(rows(t))
    counted = {name: driver.counters[name] for name in ("mildly_late", "very_late", "future")}
    assert counted == {name: int(name == class_) for name in counted}
    assert out.late.num_rows == int(class_ == "very_late")


def test_on_watermark_fires_once_when_the_end_is_reached() -> None:
    driver = Driver(ripple().tumbling_window("100 s").agg(kv.count()))
    driver.send(rows(10))
    fired = [windows(driver.advance_watermark(w * S).results) for w in (99, 100, 150, 200)]
    assert fired == [[], [(0, 100)], [], []]


def test_on_every_element_and_on_count() -> None:
    def early(trigger: kv.Trigger) -> list[int]:
        driver = Driver(ripple(lag=600 * S).trigger(trigger).emit("updates").tumbling_window("60 s").agg(kv.count()))
        return [r["count"] for r in driver.send(rows(1, 2, 3, 4, 5)).results.to_pylist()]

    assert early(kv.Trigger.on_every_element()) == [1, 2, 3, 4, 5]
    assert early(kv.Trigger.on_count(2)) == [2, 4]
    assert early(kv.Trigger.on_watermark()) == []


def test_a_mildly_late_event_retracts_and_corrects() -> None:
    driver = Driver(ripple().tumbling_window("60 s").agg(kv.sum("x").alias("s")))
    bounds = {"key": "k", "window_start": 120 * S, "window_end": 180 * S}
    first = kv.changes(driver.send(rows(130, 200)).results)
    assert first == [kv.Emit({**bounds, "s": 130})]
    second = kv.changes(driver.send(rows(145)).results)
    assert second == [kv.Retract({**bounds, "s": 130}), kv.Emit({**bounds, "s": 275})]
    assert driver.send(rows(139)).late["reason"].to_pylist() == ["late"]  # 139 < 200 - 60
    assert driver.counters["very_late"] == 1


def test_the_whole_pipeline_folds_to_what_a_perfect_order_would_give() -> None:
    """Clicks per user and minute, out of order by up to a minute: corrections, folded, are the exact counts."""
    times = [3, 61, 12, 130, 75, 119, 190, 150, 135, 260, 201]
    driver = Driver(ripple().sliding_window("60 s", "15 s").agg(kv.count(), kv.sum("x").alias("s")))
    log = [change for t in times for change in kv.changes(driver.send(rows(t, key="ann")).results)]
    log += kv.changes(driver.close().results)
    assert any(isinstance(change, kv.Retract) for change in log)
    accepted = [t for i, t in enumerate(times) if t >= max(times[:i], default=0) - 60]
    expected: dict[int, tuple[int, int]] = {}
    for t in accepted:
        for start in range(t - t % 15 - 45, t + 1, 15):
            n, total = expected.get(start, (0, 0))
            expected[start] = (n + 1, total + t)
    assert {r["window_start"] // S: (r["count"], r["s"]) for r in kv.fold(log)} == expected
