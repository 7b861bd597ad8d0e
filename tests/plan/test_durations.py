"""Durations and points in time: what is read, exactly, and what is refused."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.errors import DurationError
from krishiv_py.plan.durations import END_OF_TIME, MAX_TIME_US, UNSET, show_instant, show_length, show_us, time_point_us, to_us

UNITS = {"us": 1, "ms": 1_000, "s": 10**6, "min": 60 * 10**6, "h": 3_600 * 10**6, "d": 86_400 * 10**6, "week": 604_800 * 10**6}


@pytest.mark.parametrize(
    ("given_", "us"),
    [
        (1, 1_000),
        (60_000, 60_000_000),
        (dt.timedelta(microseconds=1), 1),
        (dt.timedelta(days=-1, seconds=86_401), 1_000_000),
        ("5 seconds", 5_000_000),
        ("5s", 5_000_000),
        ("1 second", 1_000_000),
        ("250ms", 250_000),
        ("1.5 s", 1_500_000),
        ("0.000001 s", 1),
        ("1 min 30 s", 90_000_000),
        ("1 MINUTE", 60_000_000),
        ("2 Hours", 7_200_000_000),
        ("  1 d  ", 86_400_000_000),
        ("1 week", 604_800_000_000),
        ("7µs", 7),
        ("7 μs", 7),
        ("7 US", 7),
        ("500 MS", 500_000),
        ("500 Ms", 500_000),
        ("500 mS", 500_000),
        ("1 m", 60_000_000),
        ("1 S 1 MS", 1_001_000),
        ("2 MINS 1 Secs", 121_000_000),
        (np.int64(60_000), 60_000_000),
        (np.uint8(5), 5_000),
        (pd.Timedelta("1.5 s"), 1_500_000),
    ],
)
def test_what_is_read(given_: Any, us: int) -> None:
    assert to_us(given_, "size") == us


@pytest.mark.parametrize(("unit", "us"), sorted(UNITS.items()))
def test_case_changes_no_unit(unit: str, us: int) -> None:
    for text in {f"3 {how(unit)}" for how in (str.lower, str.upper, str.title, str.swapcase)}:
        assert to_us(text, "size") == 3 * us


@pytest.mark.parametrize("text", ["1M", "1 M", "1 h 1 M", "1 month", "1 hs", "1 mss", "1 s s", "1 y", "9" * 5_000 + " s"])
def test_units_that_mean_two_things_or_none_are_refused(text: str) -> None:
    with pytest.raises(DurationError, match=r"`size` is not a legal duration .*Hint:"):
        to_us(text, "size")


@pytest.mark.parametrize(
    ("given_", "consequence"),
    [
        ("1 month", "months, quarters and years have no fixed length"),
        ("2 Years", "calendar years: calendar_window"),
        ("-5 seconds", "time would run backwards"),
        (pd.Timedelta("1500 ns"), "finer than a microsecond"),
        (np.array([5]), "an? ndarray has no exact length"),
        (np.bool_(True), "has no exact length"),
        (np.float64(5), "has no exact length"),
    ],
)
def test_the_error_says_what_is_wrong(given_: Any, consequence: str) -> None:
    with pytest.raises(DurationError, match=consequence):
        to_us(given_, "size")


@given(st.integers(1, MAX_TIME_US // 1_000))
def test_integers_are_milliseconds(ms: int) -> None:
    assert to_us(ms, "size") == to_us(f"{ms} ms", "size") == ms * 1_000


@given(st.integers(1, MAX_TIME_US))
def test_timedeltas_are_exact(us: int) -> None:
    assert to_us(dt.timedelta(microseconds=us), "size") == us


@given(st.integers(0, 10**6), st.integers(0, 999_999), st.sampled_from(sorted(UNITS)))
def test_text_is_exact_or_refused(whole: int, millionths: int, unit: str) -> None:
    """No float comes in between: what is not a whole number of microseconds is an error."""
    exact = (whole + Fraction(millionths, 10**6)) * UNITS[unit]
    text = f"{whole}.{millionths:06d} {unit}"
    if exact.denominator == 1 and 0 < exact <= MAX_TIME_US:
        assert to_us(text, "size") == exact
    else:
        with pytest.raises(DurationError):
            to_us(text, "size")


@given(st.integers(1, MAX_TIME_US))
def test_what_is_shown_is_read_again(us: int) -> None:
    assert to_us(show_us(us), "size") == us
    assert to_us(show_length(us), "size") == us


def test_zero_and_negative_only_where_they_mean_something() -> None:
    assert to_us(0, "lag", allow_zero=True) == to_us("0 s", "lag", allow_zero=True) == 0
    assert to_us(-5, "offset", allow_negative=True) == -5_000
    for bad in (0, -5, dt.timedelta(0)):
        with pytest.raises(DurationError, match="`size`"):
            to_us(bad, "size")
    with pytest.raises(DurationError, match="`lag`"):
        to_us(-1, "lag", allow_zero=True)


def test_no_length_beyond_the_range_of_time() -> None:
    assert to_us(dt.timedelta(microseconds=MAX_TIME_US), "size") == MAX_TIME_US
    with pytest.raises(DurationError, match="longer than the supported range"):
        to_us(dt.timedelta(microseconds=MAX_TIME_US + 1), "size")


@pytest.mark.parametrize(
    ("point", "us"),
    [
        (0, 0),
        (-1, -1_000),
        (dt.datetime(1970, 1, 1), 0),
        (dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), -1),
        (dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), 0),
    ],
)
def test_points_in_time(point: Any, us: int) -> None:
    assert time_point_us(point, "to") == us


@pytest.mark.parametrize("point", [True, 1.5, "now", None, dt.date(1970, 1, 1)], ids=repr)
def test_what_is_no_point_in_time(point: Any) -> None:
    with pytest.raises(DurationError, match="`to`"):
        time_point_us(point, "to")


def test_instants_for_people() -> None:
    assert show_instant(UNSET) == "unset"
    assert show_instant(END_OF_TIME) == "end of input"
    assert show_instant(-1) == "1969-12-31T23:59:59.999999Z"
    assert show_instant(10**18) == "1000000000000000000 µs"
    assert [show_length(us) for us in (0, 250_000, 1_500, 83_456_000, 5_123_456, 7_200_000_000, 90_000_000, -999)] == [
        *("0 s", "250 ms", "1.5 ms", "1 min 23.456 s", "5.123456 s", "2 h", "1 min 30 s", "-999 µs")
    ]
    assert [show_us(us) for us in (0, 1, 1_000, 60_000_000, 86_400_000_000, 90_000_000)] == [
        "0 µs",
        "1 µs",
        "1 ms",
        "1 min",
        "1 d",
        "90 s",
    ]
