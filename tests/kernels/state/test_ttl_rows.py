"""A time to live on session, count, look-back and distinct-set windows (SEMANTICS §6.1)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.planner.check import warnings
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests.kernels.ranged.per_row import Sleeper
from tests.kernels.state.ttl_model import Line, Model

KINDS = ("session", "capped", "count", "lookback", "distinct")
CLOCKS = ("event", "processing")


def windowed(keyed: KeyedStream, kind: str, size: int) -> ResultStream:
    if kind == "session":
        return keyed.session_window(size).agg(kv.count())
    if kind == "capped":
        return keyed.session_window(size, max_duration=2 * size).agg(kv.count())
    if kind == "count":
        return keyed.count_window(size % 4 + 1).agg(kv.count())
    if kind == "lookback":
        return keyed.lookback_window(size, two_sided=True).agg(kv.count())
    return keyed.windowed_by(kv.SlidingWindows.of(size)).agg(kv.count())


def query(kind: str, clock: Any, ttl: int, size: int) -> ResultStream:
    keyed = stream_of("key string, at bigint").watermark("at", 0).key_by("key")
    return windowed(keyed.with_state_ttl(kv.StateTtlConfig(ttl, clock)), kind, size)


def sent(rows: list[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"key": k, "at": moment} for k, moment in rows]


def lines(table: Any) -> list[Line]:
    return [(r["key"], r["window_start"], r["window_end"], r["count"]) for r in table.to_pylist()]


#   ms          0        40000    80000    120000   120010
#   key a   |xx                                     x        quiet for 100 s: its windows are dropped
#   key b   |xx      x        x        x         x           busy
@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_quiet_key_begins_again_a_busy_one_goes_on(kind: str, clock: str) -> None:
    size, ttl = 300_003 if kind == "count" else 200_002, 100_000  # a count window of 4 rows
    wall = ManualClock()
    driver, model = Driver(query(kind, clock, ttl, size), clock=wall), Model(kind, clock, ttl, size)
    batches = [
        [("a", 0), ("b", 0), ("a", 1), ("b", 1)],
        [("b", 40_000)],
        [("b", 80_000)],
        [("b", 120_000)],
        [("a", 120_010), ("b", 120_010)],
    ]
    out: Counter[Line] = Counter()
    for rows in batches:
        out.update(lines(driver.send(sent(rows)).results))
        model.send(rows, wall.now_us // 1000)
        driver = driver.restarted()
        if rows is not batches[-1]:
            wall.advance("40 s")
    assert driver.counters["ttl_dropped"] == model.dropped > 0
    out.update(lines(driver.close().results))
    model.close(wall.now_us // 1000)
    assert out == model.lines
    assert driver.counters["ttl_dropped"] == model.dropped
    later = {
        "count": ("a", 0, 4, 1),
        "session": ("a", 120_010, 320_012, 1),
        "capped": ("a", 120_010, 320_012, 1),
        "lookback": ("a", 120_010 - size, 120_010 + size, 1),
        "distinct": ("a", 120_010 - size, 120_010, 1),
    }
    assert out[later[kind]] == 1
    assert max(n for key, *_, n in out if key == "b") >= 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_bucket_without_rows_is_woken_for_expiry(kind: str) -> None:
    driver = Driver(query(kind, "event", 1_000, 50_003))
    driver._stage.operator = Sleeper(driver._stage.operator)
    driver.send(sent([("a", 0), ("a", 1)]))
    driver.advance_watermark(999)
    assert driver.counters["ttl_dropped"] == 0
    driver.advance_watermark(1_100)
    assert driver.counters["ttl_dropped"] > 0
    assert driver.close().results.num_rows == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_bucket_without_rows_knows_when_the_wall_clock_is_to_wake_it(kind: str) -> None:
    wall = ManualClock()
    driver = Driver(query(kind, "processing", 1_000, 50_003), clock=wall)
    driver._stage.operator = sleeper = Sleeper(driver._stage.operator)
    driver.send(sent([("a", 0), ("a", 1)]))
    assert sleeper.last is not None
    assert sleeper.last.wakeup_now_us == wall.now_us + 1_000_000


TRIGGERED = {"session": lambda k: k.session_window(50_000), "capped": lambda k: k.session_window(50_000, max_duration=80_000)}


@pytest.mark.parametrize("plan", TRIGGERED)
@pytest.mark.parametrize("emit", ["updates", "retractions"])
def test_sessions_with_triggers_expire_too(plan: str, emit: Any) -> None:
    keyed = stream_of("key string, at bigint").watermark("at", 0).key_by("key").emit(emit).trigger(kv.Trigger(early=3))
    driver = Driver(TRIGGERED[plan](keyed.with_state_ttl(kv.StateTtlConfig(1_000))).agg(kv.count()))
    driver.send(sent([("a", 0), ("a", 1), ("b", 1)]))
    driver.send(sent([("b", 900)]))
    driver.send(sent([("b", 1_800)]))
    assert driver.counters["ttl_dropped"] == 1
    out = driver.restarted().send(sent([("a", 1_900), ("a", 1_901), ("a", 1_902)])).results
    assert [line for line in lines(out) if line[0] == "a"] == [("a", 1_900, 51_902, 3)]


def test_no_warning_says_that_the_time_to_live_does_not_apply() -> None:
    for kind in KINDS:
        assert not any("whatever the state TTL" in w for w in warnings(query(kind, "event", 60_000, 9)._spec()))


BATCH = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 30)), max_size=6)
STEP = st.tuples(BATCH, st.integers(0, 25), st.booleans())


@pytest.mark.one_in(5)
@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(STEP, max_size=12), st.integers(1, 60), st.integers(1, 40))
def test_every_row_is_in_a_result_late_or_dropped(
    kind: str, clock: str, steps: list[tuple[list[tuple[str, int]], int, bool]], ttl: int, size: int
) -> None:
    wall = ManualClock()
    driver, model = Driver(query(kind, clock, ttl, size), clock=wall), Model(kind, clock, ttl, size)
    out: Counter[Line] = Counter()
    for number, (actual, pause, restart) in enumerate(steps):
        rows = [(key, 12 * number + t) for key, t in actual]
        if pause:
            wall.advance(pause)
        out.update(lines(driver.send(sent(rows)).results))
        model.send(rows, wall.now_us // 1000)
        driver = driver.restarted() if restart else driver
    out.update(lines(driver.close().results))
    model.close(wall.now_us // 1000)
    assert out == model.lines
    assert driver.counters.get("ttl_dropped", 0) == model.dropped
    ended = Counter(place for places in model.places.values() for place in places)
    assert driver.counters["late"] == ended["late"]
    if kind == "distinct":  # its windows overlap, so a row may be in one that fired and in one that was dropped
        assert len(model.places) == model.arrived
        return
    assert ended.total() == len(model.places) == model.arrived
    if kind != "lookback":
        assert sum(n * times for (*_, n), times in out.items()) == ended["result"]
    else:
        assert out.total() == ended["result"]
