"""State of untouched keys is dropped and counted, never emitted as if complete (SEMANTICS §6.1)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.kernels.state.store import Bucket, Runs
from krishiv_py.kernels.ttl import Expiring, _Clock, _TouchLog
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.planner.check import warnings
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests.examples import scaled


def keyed(clock: Any = "event", ttl: int = 60_000) -> KeyedStream:
    stream = stream_of("key string, at bigint").watermark("at", 0).key_by("key").late_rule("window")
    return stream.with_state_ttl(kv.StateTtlConfig(ttl, clock))


def pairs(table: Any) -> list[tuple[str, int, int]]:
    return [(r["key"], r["window_start"], r["count"]) for r in table.to_pylist()]


HOUR = 3_600_000
PLANS = {
    "default": lambda k: k.tumbling_window(HOUR).agg(kv.count()),
    "updates": lambda k: k.emit("updates").tumbling_window(HOUR).agg(kv.count()),
    "triggered": lambda k: k.emit("updates").trigger(kv.Trigger(early=1000)).tumbling_window(HOUR).agg(kv.count()),
}


#   key a   |x                          |x         dropped at 60 s, although a row comes at 61 s
#   key b   |x            |x            |x
@pytest.mark.parametrize("plan", PLANS)
def test_a_quiet_key_is_dropped_and_not_completed_by_later_rows(plan: str) -> None:
    driver = Driver(PLANS[plan](keyed()))
    driver.send([{"key": "a", "at": 0}, {"key": "b", "at": 0}])
    driver.send([{"key": "b", "at": 30_000}])
    assert driver.counters["ttl_dropped"] == 0
    driver.send([{"key": "b", "at": 60_000}])
    assert driver.counters["ttl_dropped"] == 1
    out = driver.send([{"key": "a", "at": 61_000}, {"key": "a", "at": HOUR + 1}])
    assert pairs(out.results) == [("b", 0, 3)]
    assert pairs(driver.close().results) == [("a", HOUR, 1)]
    assert driver.counters["ttl_dropped"] == 1


def test_what_is_due_fires_before_it_expires() -> None:
    driver = Driver(keyed(ttl=1_000).tumbling_window(10_000).agg(kv.count()))
    driver.send([{"key": "a", "at": 1}])
    assert pairs(driver.send([{"key": "b", "at": 50_000}]).results) == [("a", 0, 1)]
    assert driver.counters["ttl_dropped"] == 0


def test_the_end_of_input_fires_everything_that_is_there() -> None:
    driver = Driver(keyed().tumbling_window(HOUR).agg(kv.count()))
    driver.send([{"key": "a", "at": 1}])
    assert pairs(driver.close().results) == [("a", 0, 1)]


@pytest.mark.parametrize("plan", PLANS)
def test_by_wall_clock_also_without_rows(plan: str) -> None:
    clock = ManualClock()
    driver = Driver(PLANS[plan](keyed("processing")), clock=clock)
    driver.send([{"key": "a", "at": 0}, {"key": "b", "at": 0}])
    clock.advance("30 s")
    driver.send([{"key": "b", "at": 5}])
    clock.advance("29999 ms")
    driver.tick()
    assert driver.counters["ttl_dropped"] == 0
    clock.advance("5 s")
    driver.tick()
    assert driver.counters["ttl_dropped"] == 1
    assert pairs(driver.close().results) == [("b", 0, 2)]


def test_every_hopping_window_that_lost_a_row_is_dropped() -> None:
    driver = Driver(keyed(ttl=10_000).hopping_window(60_000, 30_000).agg(kv.count()))
    driver.send([{"key": "a", "at": 1_000}])
    driver.send([{"key": "b", "at": 15_000}])
    assert driver.counters["ttl_dropped"] == 2  # [-30 s, 30 s) and [0, 60 s)
    driver.send([{"key": "a", "at": 40_000}])
    assert [p for p in pairs(driver.close().results) if p[0] == "a"] == [("a", 30_000, 1)]


def model(batches: list[list[tuple[str, int]]], ttl: int, size: int) -> tuple[list[tuple[str, int, int]], int]:
    """Plain dictionaries; checks at every multiple of a sixteenth of the time to live, as the kernel's docstring says."""
    grain = max(ttl * 1000 // 16, 1)
    state: dict[tuple[str, int], int] = {}
    touched: dict[str, int] = {}
    dead: set[tuple[str, int]] = set()
    out, dropped, checked = [], 0, None
    mark: int | None = None

    def step(rows: list[tuple[str, int]]) -> None:
        nonlocal dropped, checked
        for key, moment in rows:
            start = moment - moment % size
            state[key, start] = state.get((key, start), 0) + 1
            touched[key] = max(moment, touched.get(key, moment), moment if mark is None else mark)
        if mark is None:
            return
        for key, start in sorted(state):
            if start + size <= mark:
                n = state.pop((key, start))
                if (key, start) not in dead:
                    out.append((key, start, n))
        us = mark * 1000
        if touched and (checked is None or us // grain > checked // grain):
            checked = us
            for key in list(touched):
                if touched[key] + ttl <= mark:
                    del touched[key]
                    for k, start in [p for p in state if p[0] == key]:
                        del state[k, start]
                        dead.add((k, start))
                        dropped += 1

    for rows in batches:
        rows = [(k, moment) for k, moment in rows if mark is None or moment - moment % size + size > mark]
        step(rows)
        top = max((moment for _, moment in rows), default=None)
        if top is not None and (mark is None or top > mark):
            mark = top
            step([])
    for key, start in sorted(state):
        if (key, start) not in dead:
            out.append((key, start, state[key, start]))
    return sorted(out), dropped


@pytest.mark.parametrize("emit", ["final", "updates"])
@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 200)), max_size=3), max_size=12),
    st.integers(1, 60),
    st.integers(1, 90),
)
def test_against_plain_dictionaries(emit: Any, batches: list[list[tuple[str, int]]], ttl: int, size: int) -> None:
    stream: ResultStream = keyed(ttl=ttl).emit(emit).tumbling_window(size).agg(kv.count())
    driver = Driver(stream)
    out = [p for rows in batches for p in pairs(driver.send([{"key": k, "at": moment} for k, moment in rows]).results)]
    out += pairs(driver.close().results)
    expected, dropped = model(batches, ttl, size)
    assert sorted(out) == expected
    assert driver.counters.get("ttl_dropped", 0) == dropped


@pytest.mark.parametrize(("ttl", "warned"), [(14, True), (15, False)])
def test_a_plan_warns_of_a_time_to_live_that_its_windows_outlast(ttl: int, warned: bool) -> None:
    keyed = stream_of("key string, at bigint").watermark("at", 1).key_by("key").allowed_lateness(5)
    plan = keyed.with_state_ttl(kv.StateTtlConfig(ttl)).tumbling_window(10).agg(kv.count())
    assert any("shorter than the window and the allowed lateness" in w for w in warnings(plan._spec())) is warned


def test_windows_that_expire_before_they_fire_again_are_dropped_and_counted() -> None:
    panes = kv.TimeIntervalWindowOptions("10 ms", discard_age="1 min")
    waits = stream_of("at bigint").watermark("at", 0).with_state_ttl(kv.StateTtlConfig(5, clock="processing"))
    on_interval = waits.trigger(kv.Trigger.on_interval(20)).tumbling_window("1 min").agg(kv.count())
    for plan in (waits.time_interval_window(panes).agg(kv.count()), on_interval):
        clock = ManualClock()
        driver = Driver(plan, clock=clock)
        driver.send([{"at": 100}])
        driver.send([{"at": 5}])  # of a pane that is complete: fires when the watermark grows
        clock.advance(50)
        driver.tick()
        assert driver.counters["ttl_dropped"] > 0
        driver.send([{"at": 50_000}])
        assert driver.send([]).results.num_rows == 0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("clock", ["event", "processing"])
@pytest.mark.parametrize("window", ["tumbling", "session"])
@settings(max_examples=scaled(40))
@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=6), max_size=14), st.integers(1, 12))
def test_a_state_with_one_list_of_all_touches_goes_on(
    clock: Any, window: str, batches: list[list[tuple[int, int]]], at: int
) -> None:
    """As earlier versions had it: the latest touch of each key, in one run."""
    actual = []
    for converts in (False, True):
        now = ManualClock()
        stream = stream_of("key bigint, at bigint").watermark("at", 5).key_by("key").allowed_lateness(20)
        stream = stream.with_state_ttl(kv.StateTtlConfig(33, clock))
        driver = Driver(
            (stream.tumbling_window(50) if window == "tumbling" else stream.session_window(40)).agg(kv.count()), clock=now
        )
        seen: list[Any] = []
        for number, rows in enumerate(batches):
            if converts and number == at:
                as_before(driver)
                driver = driver.restarted()
            now.advance(9)
            seen += driver.send([{"key": k, "at": 10 * number + t} for k, t in rows]).results.to_pylist()
        seen += driver.close().results.to_pylist()
        actual.append((seen, driver.counters["ttl_dropped"]))
    assert actual[0] == actual[1]


def as_before(driver: Driver) -> None:
    """Put all touches into one run, and take the log and the queue of the time to live out."""
    stage: Any = driver._stages[0].buckets[0]
    meta, store = stage.meta, stage.store
    bucket = Bucket(store, meta)
    operator: Any = stage.stage.operator
    while not isinstance(operator, Expiring):
        operator = operator.inner
    touches = _TouchLog(operator, bucket, _Clock())
    known = touches._latest(touches._log.everything()).drop_columns(["h"])
    touches._log.clear()
    touches._queue.pop(END_OF_TIME)
    for name in ("log:touched", "runs:ttl", "sums:ttl", "due:ttl"):
        del meta[name]
    if known.num_rows:
        Runs(bucket, "touch", None).append(0, known)
