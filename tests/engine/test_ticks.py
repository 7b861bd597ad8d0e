"""Windows whose bounds a column of milliseconds cannot hold."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from krishiv_py import PlanError, TimedStream, TimeIntervalWindowOptions, count, windows
from krishiv_py.testing import Driver, collect, stream_of

HALF = dt.timedelta(microseconds=500)
MS = stream_of("k string, at bigint").watermark("at", 0)
US = stream_of("k string, at timestamp_ntz").watermark("at", 0)

FINE: list[Callable[[TimedStream], Any]] = [
    lambda rows: rows.tumbling_window(HALF),
    lambda rows: rows.tumbling_window(10, HALF),
    lambda rows: rows.hopping_window(10, HALF),
    lambda rows: rows.cumulate_window(HALF, 1),
    lambda rows: rows.session_window(HALF, max_duration=10),
    lambda rows: rows.session_window(10, max_duration=21 * HALF),
    lambda rows: rows.lookback_window(HALF),
    lambda rows: rows.time_interval_window(TimeIntervalWindowOptions(dt.timedelta(milliseconds=10), HALF)),
    lambda rows: rows.tumbling_window(10).agg(count()).tumbling_window(HALF),
    lambda rows: rows.window_join(rows, "k", window=windows.tumbling(HALF), suffixes=("", "_right")),
]


@pytest.mark.parametrize("windowed", FINE)
def test_bounds_finer_than_the_time_column_are_refused(windowed: Callable[[TimedStream], Any]) -> None:
    """`[0, 0.5 ms)` would be shown as `[0, 0)`."""
    with pytest.raises(PlanError, match=r"finer than the time column.*whole milliseconds"):
        windowed(MS)
    windowed(US)


def test_ages_that_are_no_bounds_may_be_fine() -> None:
    panes = MS.time_interval_window(TimeIntervalWindowOptions(dt.timedelta(milliseconds=10), discard_age=HALF)).agg(count())
    assert [r["count"] for r in collect([panes], [{"k": "a", "at": 3}])[0].to_pylist()] == [1]


def test_microseconds_are_kept_where_the_column_has_them() -> None:
    driver = Driver(US.tumbling_window(HALF).agg(count()))
    driver.send([{"k": "a", "at": dt.datetime(1970, 1, 1, 0, 0, 0, 700)}])
    row = driver.close().results.to_pylist()[0]
    assert (row["window_start"].microsecond, row["window_end"].microsecond) == (500, 1_000)
