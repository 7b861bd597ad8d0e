"""Event times and lengths of another unit are noticed: once a query, on every engine, and never in small numbers of tests."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import count, windows
from krishiv_py.engine.stage import Notes, Report, StageOperator
from krishiv_py.engine.time_watch import TimeWatch, unlikely
from krishiv_py.kernels.spec import Moment
from krishiv_py.plan.durations import UNSET, Duration, to_us
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests.examples import scaled

DAY_S = 86_400
FIRST, LAST = 1_000_000_000, 4_102_444_799


@pytest.mark.parametrize("seconds", [FIRST, 1_732_867_260, LAST])
@pytest.mark.parametrize(("unit", "named"), [(1, "probably seconds"), (1_000_000, "probably microseconds")])
def test_numbers_of_another_unit(seconds: int, unit: int, named: str) -> None:
    text = unlikely(seconds * unit * 1_000, "bigint_ms", "at")
    assert text is not None and named in text and "'at'" in text and "Hint:" in text


@pytest.mark.parametrize("ms", [0, 1, 1_000, 60_000, -5, 7 * DAY_S * 1_000, FIRST - 1, LAST + 1, FIRST * 1_000, LAST * 1_000])
def test_likely_numbers_and_small_ones_are_silent(ms: int) -> None:
    assert unlikely(ms * 1_000, "bigint_ms", "at") is None


@pytest.mark.parametrize("times", ["at", "an hour"])
@pytest.mark.parametrize("unit", [1, 1_000_000])
def test_the_hint_can_be_followed(times: str, unit: int) -> None:
    made = 1_732_867_260
    text = unlikely(made * unit * 1_000, "bigint_ms", times)
    assert text is not None
    stream = eval(f"stream{text.split('Hint: ')[1].split(' before')[0]}", {"stream": stream_of(f"`{times}` bigint")})
    driver = Driver(stream.watermark(times, 0).tumbling_window(1_000).agg(count()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        driver.send([{times: made * unit}])
    assert driver.close().results["window_start"].to_pylist() == [made * 1_000]


def test_one_warning_a_query_which_stays_in_the_progress() -> None:
    driver = Driver(stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count()))
    with pytest.warns(RuntimeWarning, match="probably seconds") as seen:
        for n in range(3):
            driver.send([{"at": 1_732_867_260 + n}])
    assert len(seen) == 1
    (problem,) = driver.progress.doubts
    assert "1970-01-21T01:21:07" in problem and problem in str(driver.progress)


def test_stages_and_joins_warn_once_and_name_no_column_of_ours() -> None:
    left, right = (stream_of(f"u string, {t} bigint").watermark(t, 0) for t in "ab")
    driver = Driver(left.interval_join(right, on="u", lower=0, upper=10).tumbling_window(10).agg(count()))
    with pytest.warns(RuntimeWarning, match="probably seconds") as seen:
        driver.send({"left": [{"u": "x", "a": 1_732_867_260}], "right": [{"u": "x", "b": 1_732_867_260}]})
    assert len(seen) == 1 and "__krishiv" not in str(seen[0].message)


def test_timestamps_made_of_numbers_of_another_unit() -> None:
    driver = Driver(stream_of("at timestamp").watermark("at", 0).tumbling_window(10).agg(count()))
    with pytest.warns(RuntimeWarning, match="January 1970|1970-01-21"):
        driver.send([{"at": dt.datetime(1970, 1, 21, tzinfo=dt.timezone.utc)}])


DATE = dt.datetime(2024, 11, 29, 8, 1, tzinfo=dt.timezone.utc)
DATE_MS = int(DATE.timestamp()) * 1_000


def _timed(lag: Duration = "10 s") -> Any:
    return stream_of("u string, n bigint, at bigint").watermark("at", lag)


def _other() -> Any:
    return stream_of("u string, m bigint, at bigint").watermark("at", "10 s")


def _five(length: Duration) -> str:
    return f"{5 * to_us(length, 'length')} us"


LENGTHS: dict[str, Callable[[Duration], Any]] = {
    "lag": lambda n: _timed(n).tumbling_window("1 min").agg(count()),
    "lag of a side": lambda n: _timed(n).interval_join(_other(), on="u", lower="-1 min", upper="1 min"),
    "idle time-out": lambda n: _timed().window_join(_other(), on="u", window=windows.tumbling("1 min"), idle_timeout=n),
    "size": lambda n: _timed().key_by("u").tumbling_window(n).agg(count()),
    "offset": lambda n: _timed().window(windows.hopping("60 days", "2 days", offset=n)).agg(count()),
    "slide": lambda n: _timed().hopping_window(_five(n), n).agg(kv.sum("n")),
    "step": lambda n: _timed().cumulate_window(n, _five(n)).agg(count()),
    "gap": lambda n: _timed().key_by("u").session_window(n).agg(count()),
    "longest session": lambda n: _timed().key_by("u").session_window("1 ms", max_duration=n).agg(count()),
    "look-back": lambda n: _timed().key_by("u").lookback_window(n).agg(count()),
    "distinct": lambda n: _timed().key_by("u").windowed_by(kv.SlidingWindows.of(n)).agg(count()),
    "range of an aggregate": lambda n: _timed().key_by("u").lookback_window("1 day").agg(count().over(n)),
    "trigger": lambda n: _timed().tumbling_window("1 h").trigger(kv.Trigger.on_interval(n)).emit("updates").agg(count()),
    "lateness": lambda n: _timed().allowed_lateness(n).tumbling_window("1 min").agg(count()),
    "tolerance": lambda n: _timed().future_tolerance(n).tumbling_window("1 min").agg(count()),
    "time to live": lambda n: _timed().with_state_ttl(kv.StateTtlConfig(n)).key_by("u").tumbling_window("1 ms").agg(count()),
    "duplicates": lambda n: _timed().drop_duplicates("u", within=n),
    "lower": lambda n: _timed().interval_join(_other(), on="u", lower=n, upper="1 day"),
    "tolerance of a join": lambda n: _timed().asof_join(_other(), on="u", tolerance=n),
    "a second stage": lambda n: _timed().tumbling_window("1 ms").agg(count()).tumbling_window(n).agg(kv.sum("count")),
    "reload": lambda n: (
        stream_of("u string, n bigint, at bigint")
        .lookup_join(lambda: pa.table({"u": ["a"], "v": [1]}), on="u", reload=n)
        .watermark("at", "10 s")
        .tumbling_window("1 min")
        .agg(count())
    ),
}


def _doubts(plan: Any, time: Any) -> tuple[str, ...]:
    driver = Driver(plan)
    sides = {"left": [{"u": "a", "n": 1, "at": time}], "right": [{"u": "a", "m": 1, "at": time}]}
    driver.send(sides if "join" in plan.explain().lower() and "lookup" not in plan.explain() else sides["left"])
    return driver.progress.doubts


@pytest.mark.parametrize("number", [7, 60, 300, 3_600, 86_400])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_number_that_looks_like_seconds_gets_a_word_with_the_first_date(length: str, number: int) -> None:
    with pytest.warns(RuntimeWarning, match=rf"{number} is .* seconds are probably meant") as seen:
        (doubt,) = _doubts(LENGTHS[length](number), DATE_MS)
    assert len(seen) == 1 and f'write "{number} seconds", or "{number} ms"' in doubt and "2024-11-29" in doubt


@pytest.mark.parametrize("said", ["60 seconds", "60 ms", dt.timedelta(milliseconds=60), 60_000, 1_000])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_length_with_a_unit_or_of_whole_seconds_is_taken_as_it_is(length: str, said: Duration) -> None:
    assert _doubts(LENGTHS[length](said), DATE_MS) == ()


@pytest.mark.parametrize("length", LENGTHS)
def test_small_event_times_of_tests_say_nothing_of_units(length: str) -> None:
    assert _doubts(LENGTHS[length](60), 5) == ()


def test_the_clock_and_timestamps_are_dates_too_and_all_lengths_are_in_one_word() -> None:
    clock = ManualClock()
    clock.set(DATE)
    by_clock = Driver(stream_of("u string").processing_time().tumbling_window(60).agg(count()), clock=clock)
    with pytest.warns(RuntimeWarning, match="size 60 is 60 ms"):
        by_clock.send([{"u": "a"}])
    driver = Driver(stream_of("at timestamp").watermark("at", 10).tumbling_window(60).agg(count()))
    with pytest.warns(RuntimeWarning, match="lag 10 is 10 ms, size 60 is 60 ms") as seen:
        for _ in range(2):
            driver.send([{"at": DATE}])
    assert len(seen) == 1


@pytest.mark.parametrize("bounded", [True, False])
def test_a_session_in_process_says_it_of_a_query_and_a_bounded_run(bounded: bool) -> None:
    with kv.Session.in_process() as session:
        rows, sender = session.memory_stream("at bigint")
        counts = rows.watermark("at", 10).tumbling_window(60).agg(count())
        sender.send([{"at": DATE_MS}])
        with pytest.warns(RuntimeWarning, match="lag 10 is 10 ms, size 60 is 60 ms"):
            if bounded:
                counts.collect()
            else:
                query = counts.start(kv.MemorySink())
                query.process_all_available()
                assert "seconds are probably meant" in query.explain()


class Partitions:
    """A stage that reads partitions with one watermark and a lag of 10 ms; warnings of it."""

    def __init__(self, rule: str = "event") -> None:
        timed = stream_of("at bigint").watermark("at", 10).late_rule(rule)  # type: ignore[arg-type]
        self.plan = timed.tumbling_window(100).agg(count())._plan("streaming")
        self.stage = StageOperator(self.plan.stages[0].spec)
        self.watch = TimeWatch(self.plan, "q", lambda: self.now)
        self.now, self.top, self.late = 0.0, UNSET, 0

    def batch(self, given: dict[str, list[int]]) -> list[str]:
        """Read so much of each partition; gives the warnings."""
        watermark_us = UNSET if self.top == UNSET else (self.top - 10) * 1_000
        packing = self.stage.pack(Moment(watermark_us))
        for partition, times in given.items():
            for some in (times[: len(times) // 2], times[len(times) // 2 :]):
                packing.take(pa.record_batch({"at": pa.array(some, pa.int64())}), partition)
            self.top = max(self.top, *times) if times else self.top
        notes = Notes.from_bytes(packing.notes.to_bytes())
        self.late += notes.counters["late"]
        report = Report.from_bytes(Report({}, 0, 0, 0, (notes,)).to_bytes())
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            self.watch.take(0, report.notes)
        return [str(one.message) for one in seen]


@settings(max_examples=scaled(200), deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["a", "b", "c"]), st.lists(st.integers(0, 80), max_size=4)), min_size=1, max_size=6
    )
)
def test_partitions_are_named_when_rows_are_late_that_their_own_watermark_would_take(
    batches: list[dict[str, list[int]]],
) -> None:
    """The reference looks at each row. What came before a run began is not known, so the first batch names nobody."""
    parts, top, own, expected = Partitions(), -1_000, dict[str, int](), set[str]()
    for batch in batches:
        parts.now += 1_000.0
        actual = parts.batch(batch)
        missing = (
            {p for p, times in batch.items() for t in times if t < top - 10 and t >= own.get(p, -1_000) - 10} if own else set()
        )
        assert any("are late" in text for text in actual) == bool(missing)
        expected |= missing
        for p, times in batch.items():
            own[p] = max([own.get(p, -1_000), *times])
        own = {p: t for p, t in own.items() if t >= 0}
        top = max([top, *own.values()])
    assert any("are late" in text for text in parts.watch.doubts) <= bool(expected)


def test_a_partition_that_drifts_is_named_with_what_helps() -> None:
    parts = Partitions()
    assert parts.batch({"t-0": [0, 50], "t-1": [0, 20]}) == []
    (text,) = parts.batch({"t-0": [100], "t-1": [25, 30]})
    assert "partition 't-1' are 20 ms before those that 't-0' had reached, more than the lag of 10 ms" in text
    assert "2 rows of this batch are late" in text
    assert "partitions_as_sources=True" in text and "a lag above 20 ms" in text
    assert parts.late == 2 and parts.watch.doubts == (text.removeprefix("query 'q': "),)
    assert parts.batch({"t-1": [40]}) == [], "once in ten minutes"
    parts.now += 700
    (text,) = parts.batch({"t-1": [45], "t-2": [0]})
    assert "'t-2' (and of 1 more partitions)" in text and len(parts.watch.doubts) == 1


def test_rows_that_are_not_late_yet_are_announced() -> None:
    """Their window is open, but the partition is farther away than the lag."""
    parts = Partitions("window")
    assert parts.batch({"t-0": [5, 60], "t-1": [5]}) == []
    (text,) = parts.batch({"t-0": [70], "t-1": [20]})
    assert "rows may be late" in text and parts.late == 0
    (text,) = parts.batch({"t-0": [500], "t-1": [30]}) + parts.batch({"t-0": [510], "t-1": [40]})
    assert "1 rows of this batch are late" in text


@pytest.mark.parametrize("slow", [[60], [64, 60], []])
def test_what_is_no_drift_is_silent(slow: list[int]) -> None:
    """A slow partition in the order of time, disorder inside of a partition, and one that is silent."""
    parts = Partitions()
    for moment in (50, 65, 70, 75):
        assert parts.batch({"t-0": [moment], "t-1": [*slow, moment - 5] if slow else []}) == []
    assert parts.batch({"t-0": [1_000], "t-1": [999]}) == []
    assert parts.batch({"t-0": [1_001, 700], "t-1": [1_002, 100]}) == [], "late by the watermark of its own, too"
    assert parts.late == 2 and parts.watch.doubts == ()
