"""Ripple's text: assigners, triggers, classes of lateness, retractions; its numbers are seconds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import compat
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.errors import DurationError, PlanError
from krishiv_py.testing import Driver, stream_of
from tests import reference as ref

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
    driver = Driver(compat.sliding_window(ripple(), "60 s", "15 s").agg(kv.count()))
    out = driver.send(rows(70))
    assert windows(out.results) + windows(driver.close().results) == [(15, 75), (30, 90), (45, 105), (60, 120)]


def test_sessions_close_after_30_seconds_of_silence() -> None:
    driver = Driver(ripple(lag=600 * S).session_window("30 s").agg(kv.count()))
    driver.send(rows(0, 10, 25, 100, 120, 200))
    actual = [(r["window_start"] // S, r["window_end"] // S, r["count"]) for r in driver.close().results.to_pylist()]
    assert sorted(actual) == [(0, 55, 3), (100, 150, 2), (200, 230, 1)]


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
    first = compat.changes(driver.send(rows(130, 200)).results)
    assert first == [compat.Emit({**bounds, "s": 130})]
    second = compat.changes(driver.send(rows(145)).results)
    assert second == [compat.Retract({**bounds, "s": 130}), compat.Emit({**bounds, "s": 275})]
    assert driver.send(rows(139)).late["reason"].to_pylist() == ["late"]  # 139 < 200 - 60
    assert driver.counters["very_late"] == 1


def test_the_whole_pipeline_folds_to_what_a_perfect_order_would_give() -> None:
    """Clicks per user and minute, out of order by up to a minute: corrections, folded, are the exact counts."""
    times = [3, 61, 12, 130, 75, 119, 190, 150, 135, 260, 201]
    driver = Driver(compat.sliding_window(ripple(), "60 s", "15 s").agg(kv.count(), kv.sum("x").alias("s")))
    log = [change for t in times for change in compat.changes(driver.send(rows(t, key="ann")).results)]
    log += compat.changes(driver.close().results)
    assert any(isinstance(change, compat.Retract) for change in log)
    accepted = [t for i, t in enumerate(times) if t >= max(times[:i], default=0) - 60]
    expected: dict[int, tuple[int, int]] = {}
    for t in accepted:
        for start in range(t - t % 15 - 45, t + 1, 15):
            n, total = expected.get(start, (0, 0))
            expected[start] = (n + 1, total + t)
    assert {r["window_start"] // S: (r["count"], r["s"]) for r in compat.fold(log)} == expected


@pytest.mark.parametrize(
    ("t", "class_"),
    [(195, "mildly_late"), (140, "mildly_late"), (130, "very_late"), (200, "on_time"), (260, "on_time"), (280, "future")],
)
def test_the_class_of_a_single_event_is_a_value(t: int, class_: str) -> None:
    assert compat.classify(t * S, 200 * S, "60 s", "60 s") is compat.RowClass(class_)
    assert compat.classify(t * S, None, "60 s") is compat.RowClass.ON_TIME


@given(
    t=st.integers(-500, 500),
    watermark=st.none() | st.integers(-200, 200),
    lateness=st.integers(0, 99),
    ahead=st.integers(0, 99),
)
def test_classes_are_those_of_the_reference(t: int, watermark: int | None, lateness: int, ahead: int) -> None:
    expected = ref.classify(t, ref.model.UNSET if watermark is None else watermark, lateness, ahead)
    assert compat.classify(t, watermark, lateness, ahead).value == expected


def test_what_is_no_time_has_no_class() -> None:
    with pytest.raises(PlanError, match="row_time"):
        compat.classify("soon", 0)
    with pytest.raises(DurationError, match="allowed_lateness"):
        compat.classify(0, 0, -1)


def test_sources_register_on_their_first_advance_and_advances_are_counted() -> None:
    """The worked table of the text: A 100, B 50, B 100, A 200, B 150; the overall watermark is the slowest source's."""
    tracker = compat.SourceTracker("A", "B")
    moved = [tracker.advance(s, w * S) for s, w in [("A", 100), ("B", 50), ("B", 40), ("B", 100), ("A", 200), ("B", 150)]]
    assert [None if w is None else w // 1_000_000 for w in moved] == [None, 50, None, 100, None, 150]
    assert (tracker.advance_count, tracker.watermark_us) == (3, 150_000_000)
    assert tracker.advance("C", 120 * S) is None, "a source that registers later holds it, and never moves it back"
    assert tracker.sources_us == {"A": 200_000_000, "B": 150_000_000, "C": 120_000_000}
    lazy = compat.SourceTracker()
    assert (lazy.watermark, lazy.advance("x", 5), lazy.advance("y", 3), lazy.watermark_us) == ("unset", 5_000, None, 5_000)


def test_triggerable_windows_are_a_list() -> None:
    tracker = compat.SourceTracker()
    tracker.advance("A", 100 * S)
    windows = [(0, 100 * S), (0, 101 * S), (-5, 3)]
    assert tracker.triggerable_windows(windows) == [(0, 100 * S), (-5, 3)]
    with pytest.raises(PlanError, match="start and end"):
        tracker.triggerable_windows([5])  # type: ignore[list-item]


def test_a_query_registers_sources_on_their_first_advance_too() -> None:
    spec = kv.MultiSourceWatermarkSpec.new().unknown("register", kv.WatermarkSpec.fixed_lag(0))
    stream = stream_of("source string, at bigint").with_watermark(spec, "at", source_column="source")
    driver = Driver(stream.tumbling_window("100 s").agg(kv.count()))
    stated = [
        (driver.advance_watermark(w * S, s).watermark_us // 1_000_000)
        for s, w in [("A", 100), ("B", 50), ("A", 200), ("B", 150)]
    ]
    assert stated == [100, 100, 100, 150]
    assert sorted(driver.source_watermarks_us) == ["A", "B"]
    assert driver.progress.watermark_advances == 2
    assert driver.restarted().progress.watermark_advances == 2
    assert driver.send([{"source": "C", "at": 149 * S}]).late.num_rows == 1


def test_on_count_over_all_elements_is_a_stream_without_a_key() -> None:
    """With a key each key of a window is counted by itself; without one all elements of the window are."""
    stream = stream_of("key string, at bigint, x bigint").watermark("at", 600 * S).preset("ripple").emit("updates")
    sent = [rows(t, key=k)[0] for t, k in [(1, "a"), (2, "b"), (3, "a"), (4, "c"), (5, "b")]]
    plan = stream.trigger(kv.Trigger.on_count(2)).tumbling_window("60 s").agg(kv.count(), kv.collect_list("key").alias("keys"))
    for cuts in ([5], [1, 1, 1, 1, 1], [3, 2]):
        driver, moment, stated = Driver(plan), 0, []
        for n in cuts:
            stated += driver.send(sent[moment : moment + n]).results.to_pylist()
            moment += n
        assert [(r["count"], r["keys"]) for r in stated] == [(2, ["a", "b"]), (4, ["a", "b", "a", "c"])]
