"""The window of a change, and of a pane, as one value."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import TimeIntervalWindowOptions, Window, count
from krishiv_py.compat import Emit, Retract, changes
from krishiv_py.testing import Driver, stream_of


@pytest.mark.parametrize("type_", ["bigint", "timestamp", "timestamp_ntz"])
def test_changes_have_their_window_in_the_type_of_the_time_column(type_: str) -> None:
    stream = (
        stream_of(f"user string, at {type_}").watermark("at", 0).key_by("user").allowed_lateness("1 min").emit("retractions")
    )
    driver = Driver(stream.tumbling_window("10 s").agg(count()))
    zone = None if type_ == "timestamp_ntz" else dt.timezone.utc
    begun = dt.datetime(2024, 3, 31, tzinfo=zone)
    start: Any
    second: Any
    start, second = (0, 1_000) if type_ == "bigint" else (begun, dt.timedelta(seconds=1))
    rows = [start + second, start + 11 * second, start + 2 * second]
    log = [c for moment in rows for c in changes(driver.send([{"user": "a", "at": moment}]).results)]
    log += changes(driver.close().results)
    first = Window(start, start + 10 * second)
    assert [type(c) for c in log if c.window == first] == [Emit, Retract, Emit]
    assert {c.window for c in log if c.window is not None} == {first, Window(first.end, first.end + 10 * second)}
    assert sorted([Window(first.end, first.end), first])[0] is first
    assert first.length == 10 * second


def test_rows_without_bounds_have_none() -> None:
    assert changes(pa.table({"window_end": [1]}))[0].window is None
    assert Emit("text").window is None and Retract({"window_start": 1, "window_end": 2}).window == Window(1, 2)


def test_panes_have_their_window() -> None:
    options = TimeIntervalWindowOptions(10.0)
    panes = stream_of("user string, at bigint").watermark("at", 0).key_by("user").time_interval_window(options)
    seen: list[Window] = []
    driver = Driver(panes.on_events(window_trigger=lambda pane: seen.append(pane.window)))
    driver.send([{"user": "a", "at": 1_000}, {"user": "b", "at": 12_000}])
    driver.close()
    assert seen == [Window(0, 10_000), Window(10_000, 20_000)]
