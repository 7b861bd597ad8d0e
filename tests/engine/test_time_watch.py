"""Event times of another unit are noticed: once a query, on every engine, and never in small numbers of tests."""

from __future__ import annotations

import datetime as dt
import warnings

import pytest

from krishiv_py import count
from krishiv_py.engine.time_watch import unlikely
from krishiv_py.testing import Driver, stream_of

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
