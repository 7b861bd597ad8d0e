"""Rows too far ahead: warned of, dropped or handed aside; a refused one moves no watermark (SEMANTICS §4.4)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.errors import DurationError, PlanError
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests import reference as ref


def counted(action: Any = "warn", reference: Any = None, tolerance: Any = 60) -> ResultStream:
    timed = stream_of("at bigint").watermark("at", 0).future_tolerance(tolerance, action, reference)
    return timed.tumbling_window(10).agg(kv.count())


def send(driver: Driver, *times: int) -> Any:
    return driver.send([{"at": t} for t in times])


def test_261_is_future_260_is_not() -> None:
    driver = Driver(counted(reference="watermark"))
    driver.advance_watermark(200)
    send(driver, 200, 260, 261)
    assert (driver.counters["future"], driver.watermark_us) == (1, 261_000)


@pytest.mark.parametrize("action", ["drop", "side_output"])
def test_one_bad_clock_does_not_close_every_window(action: str) -> None:
    clock = ManualClock()
    driver = Driver(counted(action), clock=clock)
    clock.set(100)
    out = send(driver, 95, 161, 160)
    assert driver.watermark_us == 160_000  # 161 is beyond 100 + 60
    assert out.late.to_pylist() == (
        [{"at": 161, "reason": "future", "watermark": None, "lateness": None}] if action == "side_output" else []
    )
    assert driver.progress.late["future"] == 1
    names = ("future", "future_dropped", "future_side_output", "late")
    assert [driver.counters[n] for n in names] == [1, int(action == "drop"), int(action == "side_output"), 0]
    clock.advance(1)
    send(driver, 161)
    assert driver.counters["future"] == 1


def test_the_watermark_as_reference_shuts_out_what_follows_a_lull_and_the_plan_says_so() -> None:
    stream = counted("drop", "watermark")
    driver = Driver(stream)
    send(driver, 0)
    send(driver, 100)
    send(driver, 200)
    assert (driver.counters["future_dropped"], driver.watermark_us) == (2, 0)
    assert "after a lull longer than 60 ms" in stream.explain()
    assert "lull" not in counted("drop").explain()
    assert "lull" not in counted().explain()


def test_a_catch_up_batch_is_not_from_the_future() -> None:
    """By the clock that a batch began at; a clock that nobody set knows no future, also when it was moved on."""
    plain = counted(tolerance="60 s")
    driver = Driver(plain)
    driver.clock.advance("1 h")
    for moment in (0, 10**9, 2 * 10**12):
        send(driver, moment)
    assert driver.counters["future"] == 0
    clock = ManualClock()
    clock.set(10**12)
    driver = Driver(plain, clock=clock)
    send(driver, 0)
    send(driver, 5 * 10**11, 10**12, 10**12 + 60_000, 10**12 + 60_001)
    assert driver.counters["future"] == 1
    assert driver.restarted()._spec.options.future_reference == "clock"


def test_the_preset_ripple_goes_by_the_watermark() -> None:
    timed = stream_of("at bigint").watermark("at", 0)
    for keyed in (timed.key_by().preset("ripple"), timed.preset("ripple").future_tolerance("5 s")):
        assert keyed._options.future_reference == "watermark"
    assert timed.preset("ripple").future_tolerance(5, reference="clock")._options.future_reference == "clock"
    assert timed.future_tolerance(5)._options.future_reference == "clock"


def test_a_log_line_names_the_source_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    spec = kv.MultiSourceWatermarkSpec.new()
    spec = spec.source("good", kv.WatermarkSpec.fixed_lag(0)).source("fast clock", kv.WatermarkSpec.fixed_lag(0))
    timed = stream_of("s string, at bigint").with_watermark(spec, "at", source_column="s")
    driver = Driver(timed.tumbling_window(10).agg(kv.count()), clock=ManualClock(1_000_000))
    for moment in (61_002, 61_003):
        driver.send([{"s": "good", "at": 1}, {"s": "fast clock", "at": moment}])
    lines = [r.getMessage() for r in caplog.records if r.name == "krishiv_py.future"]
    assert len(lines) == 1 and "fast clock" in lines[0] and "good" not in lines[0]
    assert driver.counters["future"] == 2


def test_settings_are_checked() -> None:
    for wrong in ("later", None):
        with pytest.raises(PlanError):
            counted(wrong)
    with pytest.raises(PlanError):
        counted("drop", "moon")
    with pytest.raises(DurationError):
        counted(tolerance=-1)


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 300), max_size=5), st.integers(0, 300)), max_size=8),
    st.sampled_from(["warn", "drop", "side_output"]),
    st.sampled_from(["watermark", "clock"]),
)
def test_against_the_reference(batches: list[tuple[list[int], int]], action: Any, reference: Any) -> None:
    rule = ref.FutureRule(60, action, reference)
    config = ref.Config(ref.Fixed(10), late_rule="event", future=rule)
    steps: list[ref.Step] = [ref.Batch([ref.Row(None, t) for t in times], now) for times, now in batches]
    seen = ref.Reference(config).run([*steps, ref.Close()])
    clock = ManualClock()
    driver = Driver(counted(action, reference), clock=clock)
    results, late = [], 0
    for times, now in batches:
        clock.set(now)
        out = send(driver, *times)
        results += out.results.to_pylist()
        late += sum(r == "future" for r in out.late["reason"].to_pylist())
    results += driver.close().results.to_pylist()
    expected = [(e.result.start, len(e.result.values)) for e in seen.emissions]
    assert [(r["window_start"], r["count"]) for r in results] == expected
    refused = sum(line.reason == "future" for line in seen.late)
    assert late == (refused if action == "side_output" else 0)
    assert driver.counters["future_dropped"] == (refused if action == "drop" else 0)
