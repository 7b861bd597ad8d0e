"""The lateness that queries count, against profiles of the same rows; and when rows leave a profile."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import MemorySink, MultiSourceWatermarkSpec, Session, WatermarkSpec, count, lateness_profile
from krishiv_py.display.lag import late_over
from krishiv_py.errors import PlanError
from krishiv_py.plan.running import behind_of
from krishiv_py.testing import Driver, stream_of

STEPS_MS = [0, 1, 10, 100, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000]
PUNCTUAL = lateness_profile([{"at": n} for n in range(1_000)], "at")


def a_driver(lag: int) -> Driver:
    return Driver(stream_of("at bigint").watermark("at", lag).tumbling_window(7).agg(count()))


@given(times=st.lists(st.integers(-40_000, 40_000), min_size=1, max_size=40), lag=st.integers(0, 9_000))
def test_row_by_row_a_driver_counts_what_a_profile_shows(times: list[int], lag: int) -> None:
    driver = a_driver(lag)
    late = sum(driver.send([{"at": t}]).late.num_rows for t in times)
    live, exact = driver.lateness(), lateness_profile([{"at": t} for t in times], "at")
    assert (live.rows, late_over(live, lag * 1_000)) == (exact.rows, late)
    assert [late_over(live, ms * 1_000) for ms in STEPS_MS] == [late_over(exact, ms * 1_000) for ms in STEPS_MS]
    assert live.smallest_lag(1.0) == "0 s"
    for share in (0.0, 0.1, 0.5):  # a step is never too short
        ms = int(lateness_profile([{"at": 0}], "at", lags=[live.smallest_lag(share)]).table["lag_us"].to_pylist()[0])
        assert late_over(exact, ms) <= share * len(times)


@given(
    batches=st.lists(
        st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 30_000)), max_size=6), min_size=1, max_size=8
    ),
    more=st.sampled_from([1_000, 4_000]),  # the largest lag is a step of what is counted: 2 s, 5 s
)
def test_with_several_sources_a_step_is_the_change_of_all_lags(batches: list[list[tuple[str, int]]], more: int) -> None:
    def late(extra: int) -> tuple[int, Driver]:
        spec = MultiSourceWatermarkSpec.new().source("a", WatermarkSpec.fixed_lag(extra))
        spec = spec.source("b", WatermarkSpec.fixed_lag(1_000 + extra))
        stream = stream_of("source string, at bigint").with_watermark(spec, column="at", source_column="source")
        driver = Driver(stream.tumbling_window(7).agg(count()))
        return sum(driver.send([{"source": s, "at": t} for s, t in rows]).late.num_rows for rows in batches), driver

    missing, driver = late(more)
    assert late_over(driver.lateness(), (1_000 + more) * 1_000) == missing
    assert late_over(late(0)[1].lateness(), (1_000 + more) * 1_000) == missing


def test_rows_that_no_watermark_follows_are_apart() -> None:
    driver = a_driver(0)
    driver.send([{"at": 1_000}, {"at": None}])
    driver.send([{"at": 400}, {"at": 2**62}])
    profile = driver.lateness()
    assert (profile.rows, profile.without_time, late_over(profile, 0), profile.smallest_lag()) == (2, 2, 1, "1 s")


def test_a_query_goes_on_counting_after_a_restart(tmp_path: Any) -> None:
    with Session.in_process() as session:
        stream, sender = session.memory_stream("at bigint")
        windows = stream.watermark("at", "2 s").tumbling_window("10 s").agg(count())
        for batch in ([10_000], [9_000], [5_000]):
            query = windows.start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"), lateness=PUNCTUAL)
            sender.send([{"at": moment} for moment in batch])
            query.process_all_available()
            actual = query.lateness()
            query.stop()
        assert (actual.rows, [late_over(actual, us) for us in (0, 1_000_000, 2_000_000, 5_000_000)]) == (3, [2, 1, 1, 0])


def test_progress_warns_while_rows_leave_the_profile() -> None:
    driver = a_driver(5_000)
    driver.expect_lateness(PUNCTUAL)
    driver.send([{"at": 100_000}] * 99)
    assert driver.progress.doubts == ()
    driver.send([{"at": 99_000}] * 4)
    assert driver.progress.doubts == ()  # a few rows are chance
    driver.send([{"at": 99_000}] * 20)
    doubt = " ".join(driver.progress.doubts)
    assert "% of the last 123 rows" in doubt and "query.lateness()" in doubt
    driver.send([{"at": 100_000}] * 50_000)  # 20 of 50 123 rows are chance again
    assert driver.progress.doubts == ()
    driver.send([{"at": 100_000}] * 50_000)
    assert driver.progress.doubts == ()


@given(seed=st.integers(0, 50))
def test_rows_as_in_the_profile_raise_no_alarm(seed: int) -> None:
    times = [n * 10 + (seed * 7_919 + n * n * 31) % 2_000 for n in range(600)]
    driver = a_driver(500)
    driver.expect_lateness(lateness_profile([{"at": t} for t in times], "at"))
    for begin, end in itertools.pairwise(range(0, 601, 150)):
        driver.send([{"at": t} for t in times[begin:end]])
        assert driver.progress.doubts == ()


def test_several_stages_are_named() -> None:
    first = stream_of("at bigint").watermark("at", 5).tumbling_window(10).agg(count().alias("n"))
    driver = Driver(first.tumbling_window(100).agg(count()))
    driver.send([{"at": 50}])
    driver.send([{"at": 30}])
    name = next(iter(driver.progress.stages))
    assert late_over(driver.lateness(), 0) == late_over(driver.lateness(name), 0) == 1
    assert [bool(behind_of(dict(stage.counters))) for stage in driver.progress.stages.values()] == [True, False]
    with pytest.raises(PlanError, match="no such stage"):
        driver.lateness("nowhere")


def test_wrong_calls() -> None:
    with pytest.raises(PlanError, match="not a LatenessProfile"):
        a_driver(0).expect_lateness(5)  # type: ignore[arg-type]
    rows_only = Driver(stream_of("at bigint").filter("at > 3"))
    with pytest.raises(PlanError, match="no stage judges rows"):
        rows_only.lateness()
    with Session.in_process() as session:
        stream, _ = session.memory_stream("at bigint")
        with pytest.raises(PlanError, match="not a LatenessProfile"):
            stream.watermark("at", 0).tumbling_window(5).agg(count()).start(MemorySink(), lateness=0.1)  # type: ignore[arg-type]
        assert not session.queries
        with pytest.raises(PlanError, match="no stage judges rows"):
            stream.start(MemorySink(), lateness=PUNCTUAL)
        assert not session.queries
