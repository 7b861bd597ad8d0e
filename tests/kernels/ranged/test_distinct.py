"""Distinct-set sliding windows against the plain reference (SEMANTICS §3.5)."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import SlidingWindows
from krishiv_py.errors import DurationError, PlanError
from krishiv_py.testing import Driver, stream_of
from tests import reference as ref
from tests.kernels.ranged.per_row import AGGS, Plan, expected, observed, plans

SHAPES = st.sampled_from([("backward", False), ("backward", True), ("forward", False)])


@given(plan=plans(lateness=st.integers(0, 8)), shape=SHAPES)
def test_windows_and_late_rows_are_those_of_the_reference(plan: Plan, shape: tuple[str, bool]) -> None:
    direction, clamp = shape
    windows = SlidingWindows.of(plan.size, direction=direction, clamp_zero=clamp).grace(plan.lateness)  # type: ignore[arg-type]
    kind = ref.DistinctSet(plan.size, direction, clamp)  # type: ignore[arg-type]
    assert observed(plan, lambda s: s.windowed_by(windows).agg(AGGS)) == expected(plan, kind)


@given(plan=plans(lateness=st.integers(0, 4), jitter=st.integers(5, 25), lag=st.integers(0, 2), rule=st.just("window")))
def test_rows_that_come_after_some_of_their_windows_closed(plan: Plan) -> None:
    """Much disorder and little patience: most batches have rows that only a later row's window still takes in."""
    windows = SlidingWindows.of(plan.size).grace(plan.lateness)
    assert observed(plan, lambda s: s.windowed_by(windows).agg(AGGS)) == expected(plan, ref.DistinctSet(plan.size))


LOGS = st.sampled_from(["updates", "retractions"])


@given(plan=plans(lateness=st.integers(0, 8), emit=LOGS, each=st.booleans()), shape=SHAPES)
def test_change_logs_are_those_of_the_reference(plan: Plan, shape: tuple[str, bool]) -> None:
    """Row by row, or once per batch."""
    direction, clamp = shape
    windows = SlidingWindows.of(plan.size, direction=direction, clamp_zero=clamp)  # type: ignore[arg-type]
    kind = ref.DistinctSet(plan.size, direction, clamp)  # type: ignore[arg-type]
    assert observed(plan, lambda s: s.windowed_by(windows).agg(AGGS)) == expected(plan, kind)


@given(plan=plans(jitter=st.just(0), advances=st.just(False)), cuts=st.integers(1, 9))
def test_results_do_not_depend_on_batches_while_nothing_is_late(plan: Plan, cuts: int) -> None:
    windows = SlidingWindows.of(plan.size)
    one = observed(plan, lambda s: s.windowed_by(windows).agg(AGGS))
    other = observed(Plan(**{**vars(plan), "batches": cuts}), lambda s: s.windowed_by(windows).agg(AGGS))
    assert not sum(one[1], Counter()) and sum(one[0], Counter()) == sum(other[0], Counter())


def test_timestamps_have_windows_a_microsecond_apart() -> None:
    """
    ::

        size 10 ms   t=0        t=10.001 ms
        own          ●
        right         [1 µs ──● 10.001 ms]    the same window as the later row's own
    """
    schema = pa.schema([("at", pa.timestamp("us"))])
    driver = Driver(stream_of(schema).watermark("at", 0).windowed_by(SlidingWindows.of(10)).agg(kv.count()))
    driver.send(pa.table({"at": pa.array([0, 10_001], pa.timestamp("us"))}, schema=schema))
    actual = driver.close().results
    micros = [actual[c].cast(pa.int64()).to_pylist() for c in ("window_start", "window_end")]
    assert (*micros, actual["count"].to_pylist()) == ([1], [10_001], [1])


def test_a_late_row_with_its_reason_and_columns() -> None:
    keyed = stream_of("key string, at bigint, note string").watermark("at", 0).key_by("key").late_rule("window")
    driver = Driver(keyed.windowed_by(SlidingWindows.of(10).grace(5)).agg(kv.count()))
    driver.send([{"key": "a", "at": 100, "note": "first"}, {"key": "b", "at": 93, "note": "kept"}])
    out = driver.send(
        [
            {"key": "a", "at": 89, "note": "too old"},
            {"key": "a", "at": 91, "note": "in the window of 100"},
            {"key": "b", "at": 94, "note": "behind 93"},
            {"key": "c", "at": 94, "note": "alone"},
        ]
    )
    assert out.late.to_pylist() == [
        {"key": "a", "at": 89, "note": "too old", "reason": "late", "watermark": 100, "lateness": 11},
        {"key": "c", "at": 94, "note": "alone", "reason": "late", "watermark": 100, "lateness": 6},
    ]
    assert driver.counters["late"] == 2


def test_state_stays_bounded() -> None:
    driver = Driver(stream_of("at bigint").watermark("at", 50).windowed_by(SlidingWindows.of(100)).agg(kv.count()))
    held = []
    for index in range(0, 40_000, 100):
        driver.send([{"at": index + i} for i in range(100)])
        held.append(sum(t.num_rows for t in driver._store.tables.values()))
    assert max(held) < 1_500


def test_windows_as_values() -> None:
    one = SlidingWindows.of("10 s").grace(500)
    assert (one.size, one.grace_period_ms) == (10_000, 500)
    assert one == SlidingWindows.of(10_000).grace("500 ms") and hash(one) == hash(SlidingWindows.of(10_000).grace("500 ms"))
    assert len({one, SlidingWindows.of(10_000), SlidingWindows.of(10_000, clamp_zero=True), one}) == 3
    assert repr(one) == "SlidingWindows.of(10000).grace(500)"
    assert repr(SlidingWindows.of(5, direction="forward")) == "SlidingWindows.of(5, direction='forward')"
    assert SlidingWindows.of(10, clamp_zero=True).windows_for(3) == {0: (0, 10), 4: (4, 14)}
    assert SlidingWindows.of(10).windows_for(-3) == {-13: (-13, -3), -2: (-2, 8)}


def test_what_has_no_meaning_is_refused() -> None:
    for size in (-1, 1.5, True, "five"):
        with pytest.raises(DurationError):
            SlidingWindows.of(size)  # type: ignore[arg-type]
    with pytest.raises(DurationError, match="whole milliseconds"):
        SlidingWindows.of("5 us")
    with pytest.raises(PlanError, match="clamp_zero"):
        SlidingWindows.of(5, direction="forward", clamp_zero=True)
    keyed = stream_of("at bigint").watermark("at", 0)
    with pytest.raises(PlanError, match="SlidingWindows"):
        keyed.windowed_by(5)  # type: ignore[arg-type]
