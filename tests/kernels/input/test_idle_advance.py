"""A quiet stream goes on with the clock (SEMANTICS §10): on the JVM-free driver, against the plain reference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.errors import DurationError, PlanError
from krishiv_py.planner.fingerprint import uses_ledger
from krishiv_py.runtime.controls import period_us
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests import reference as ref

STEPS = st.lists(
    st.tuples(
        st.integers(0, 12),  # how far the clock moves on
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(-20, 60)), max_size=3),  # rows; without any it is a tick
        st.booleans(),  # whether the query is restarted before
    ),
    max_size=25,
)


def several(after: int, timeout: int | None) -> kv.MultiSourceWatermarkSpec:
    spec = kv.MultiSourceWatermarkSpec.new(idle_timeout=timeout, idle_advance=after)
    return spec.source("a", kv.WatermarkSpec.fixed_lag(2)).source("b", kv.WatermarkSpec.fixed_lag(5))


@given(steps=STEPS, after=st.integers(1, 9), timeout=st.none() | st.integers(1, 12), one=st.booleans())
def test_the_watermark_is_that_of_the_reference(
    steps: list[tuple[int, list[tuple[str, int]], bool]], after: int, timeout: int | None, one: bool
) -> None:
    stream, clock = stream_of("source string, at bigint"), ManualClock()
    if one:
        timed = stream.watermark("at", 2, idle_advance=after)
        plain = ref.WatermarkSpec(2, idle_advance=after, start_now=0)
    else:
        timed = stream.with_watermark(several(after, timeout), "at", source_column="source")
        plain = ref.WatermarkSpec(sources={"a": 2, "b": 5}, idle_timeout=timeout, idle_advance=after, start_now=0)
    driver, reference = Driver(timed.tumbling_window(5).agg(kv.count()), clock=clock), ref.Clock(plain)
    known, fired, late = 0, 0, 0
    for by, rows, restart in steps:
        driver = driver.restarted() if restart else driver
        if by:
            clock.advance(by)
        out = driver.send([{"source": s, "at": t} for s, t in rows]) if rows else driver.tick()
        reference.observe([ref.Row(None, t, source=s) for s, t in rows], clock.now_us // 1_000)
        expected = reference.value
        assert out.watermark_us == (driver.watermark_us if expected == ref.model.UNSET else expected * 1_000)
        assert (expected == ref.model.UNSET) == (driver.watermark == "unset")
        known, late = known + len(rows), late + out.late.num_rows
        fired += sum(out.results["count"].to_pylist())
        assert all(end * 1_000 <= out.watermark_us for end in out.results["window_end"].to_pylist())
    assert fired + late + sum(driver.close().results["count"].to_pylist()) == known


def quiet(**more: Any) -> tuple[Driver, ManualClock]:
    clock = ManualClock()
    timed = stream_of("at bigint").watermark("at", "1 s", idle_advance="30 s")
    return Driver(timed.tumbling_window("10 s").agg(kv.count()), clock=clock, **more), clock


def test_a_quiet_stream_closes_its_last_window_as_the_clock_says() -> None:
    driver, clock = quiet()
    driver.send([{"at": 5_000}])
    stated = []
    for _ in range(8):
        clock.advance("5 s")
        driver = driver.restarted()
        out = driver.tick()
        stated.append((clock.now_us // 1_000_000, out.watermark_us // 1_000_000, out.results.num_rows))
    assert stated == [(5, 4, 0), (10, 4, 0), (15, 4, 0), (20, 4, 0), (25, 4, 0), (30, 4, 0), (35, 9, 0), (40, 14, 1)]


def test_a_row_ends_the_lull_and_may_be_late() -> None:
    driver, clock = quiet()
    driver.send([{"at": 5_000}])
    clock.advance("60 s")
    assert driver.tick().watermark_us == 34_000_000
    clock.advance("10 s")  # nobody looked since: what is in force stays as it was recorded
    out = driver.send([{"at": 33_999}, {"at": 34_000}])
    assert (out.late.num_rows, out.watermark_us) == (1, 34_000_000)
    clock.advance("30 s")
    assert driver.tick().watermark_us == 34_000_000
    clock.advance("1 s")
    assert driver.tick().watermark_us == 35_000_000


def test_nothing_goes_on_before_a_first_row_or_after_the_end_or_when_the_clock_goes_back() -> None:
    driver, clock = quiet()
    clock.advance("1 hour")
    driver.tick()
    assert driver.watermark == "unset"
    driver.send([{"at": 5_000}])
    clock.advance("40 s")
    assert driver.tick().watermark_us == 14_000_000
    clock.set(0)
    assert driver.tick().watermark_us == 14_000_000
    clock.set(3_600_000 + 40_000)
    assert driver.tick().watermark_us == 14_000_000, "the same moment once more"
    driver.close()
    clock.advance("1 day")
    driver.tick()
    assert driver.watermark == "end of input"


def test_it_begins_where_a_watermark_starts() -> None:
    clock = ManualClock()
    spec = kv.WatermarkSpec.fixed_lag(0, initial=100, idle_advance="1 s")
    driver = Driver(stream_of("at bigint").with_watermark(spec, "at").tumbling_window(10).agg(kv.count()), clock=clock)
    clock.advance("1500 ms")
    assert driver.tick().watermark_us == 600_000


def test_words_say_that_it_follows_the_clock() -> None:
    driver, _ = quiet()
    assert "goes on with the clock in a lull, but not before" in driver.why_not_fired(10_000)
    driver.send([{"at": 5_000}])
    assert "when no row has come for 30 s of processing time" in driver.why_not_fired(10_000)
    stream = driver._stream
    assert isinstance(stream, ResultStream)
    assert "with the clock after 30 s without rows" in stream.explain()
    spec = several(1_000, None)
    timed = stream_of("source string, at bigint").with_watermark(spec, "at", source_column="source")
    other = Driver(timed.tumbling_window(10).agg(kv.count()))
    assert "goes on with the clock" in other.why_not_fired(10)
    assert "with the clock after 1 s without rows" in spec._describe()


def test_the_clock_of_a_query_is_the_ledger_and_gives_heartbeats() -> None:
    plan = stream_of("at bigint").watermark("at", 0, idle_advance="30 s").tumbling_window(10).agg(kv.count())
    assert uses_ledger(plan._spec())
    assert period_us(plan._spec()) == 15_000_000
    plain = stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(kv.count())
    assert period_us(plain._spec()) is None
    assert not uses_ledger(plain._spec())


def test_wrong_lengths_and_places_are_refused() -> None:
    stream = stream_of("at bigint")
    for wrong in (0, -1, 1.5, True, "soon"):
        with pytest.raises(DurationError):
            stream.watermark("at", 0, idle_advance=wrong)  # type: ignore[arg-type]
        with pytest.raises(DurationError):
            kv.MultiSourceWatermarkSpec.new().idle_advance(wrong)  # type: ignore[arg-type]
    alone = kv.WatermarkSpec.fixed_lag(0, idle_advance="1 s")
    with pytest.raises(PlanError, match=r"(?s)no source at all.*Hint: .*\.idle_advance\(\"1 s\"\)"):
        kv.MultiSourceWatermarkSpec.new().source("a", alone)
    with pytest.raises(PlanError, match="no source at all"):
        kv.MultiSourceWatermarkSpec.new().unknown("register", alone)
