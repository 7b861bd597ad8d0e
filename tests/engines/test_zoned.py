"""Times in time zones against Python's ``zoneinfo``, at and around every change of a clock."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import Expr, ExpressionError, col
from krishiv_py.kernels.columns.evaluate import evaluate
from krishiv_py.plan.expressions.parse import parse_expr
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

UTC = dt.timezone.utc
ZONES = (
    *("Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "Pacific/Apia", "America/Sao_Paulo"),
    *("Africa/Casablanca", "Europe/Dublin", "Asia/Tehran", "Antarctica/Troll", "America/St_Johns", "Pacific/Kiritimati", "UTC"),
)
CHANGES = (  # the hour of a change in some of these zones
    *("2024-03-31T01:00", "2024-10-27T01:00", "2024-03-10T07:00", "2024-11-03T06:00", "2011-12-30T10:00", "2018-11-04T03:00"),
    *(
        "2024-04-06T15:00",
        "1893-03-31T23:06:32",
        "1970-01-01T00:00",
        "2040-03-25T01:00",
        "2400-10-29T01:00",
        "1969-12-31T23:59",
    ),
)
_FIRST, _LAST = dt.datetime(1800, 1, 1), dt.datetime(2500, 1, 1)
TIMES = st.one_of(
    st.datetimes(_FIRST, _LAST).map(lambda time: time.replace(fold=0)),  # Arrow keeps no fold
    st.builds(
        lambda text, minutes, us: dt.datetime.fromisoformat(text) + dt.timedelta(minutes=minutes, microseconds=us),
        st.sampled_from(CHANGES),
        st.integers(-1_600, 1_600),
        st.integers(-2, 2),
    ),
)


def values(expr: Expr, times: list[dt.datetime | None], type_: pa.DataType) -> list[Any]:
    actual: list[Any] = evaluate(expr, pa.table({"t": pa.array(times, type_)})).to_pylist()
    return [v.replace(tzinfo=None) if isinstance(v, dt.datetime) else v for v in actual]


@given(times=st.lists(TIMES, min_size=1, max_size=30), zone=st.sampled_from(ZONES))
def test_instants_and_clocks_are_those_of_zoneinfo(times: list[dt.datetime], zone: str) -> None:
    there = ZoneInfo(zone)
    shown = [t.replace(tzinfo=UTC).astimezone(there).replace(tzinfo=None) for t in times]
    instants = [t.replace(tzinfo=there).astimezone(UTC).replace(tzinfo=None) for t in times]
    for type_ in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
        assert values(col("t").from_utc_timestamp(zone), [*times, None], type_) == [*shown, None]
        assert values(col("t").to_utc_timestamp(zone), [*times, None], type_) == [*instants, None]
    assert values(col("t").at_time_zone(zone), [*times], pa.timestamp("us", "UTC")) == shown
    assert values(col("t").at_time_zone(zone), [*times], pa.timestamp("us")) == instants
    assert values(col("t").hour(zone), [*times], pa.timestamp("us", "UTC")) == [t.hour for t in shown]
    assert values(col("t").date_format("yyyy-MM-dd HH:mm", zone), [*times], pa.timestamp("us", "UTC")) == [
        f"{t:%Y-%m-%d %H:%M}" for t in shown
    ]


@given(times=st.lists(TIMES, min_size=1, max_size=30), zone=st.sampled_from(ZONES))
def test_units_begin_where_a_clock_there_says_so(times: list[dt.datetime], zone: str) -> None:
    there = ZoneInfo(zone)
    aware = [t.replace(tzinfo=UTC) for t in times]
    days, hours = [], []
    for t in aware:
        shown = t.astimezone(there)
        midnight = shown.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        days.append(midnight.astimezone(UTC).replace(tzinfo=None))
        within = dt.timedelta(minutes=shown.minute, seconds=shown.second, microseconds=shown.microsecond)
        hours.append((t - within).replace(tzinfo=None))
    type_ = pa.timestamp("us", "UTC")
    assert values(col("t").date_trunc("day", zone), times, type_) == days  # type: ignore[arg-type]
    assert values(col("t").date_trunc("hour", zone), times, type_) == hours  # type: ignore[arg-type]


TEXTS = {
    "hour(t, 'Europe/Berlin')": col("t").hour("Europe/Berlin"),
    "dayofmonth(t, '+05:30')": col("t").day("+05:30"),
    "date_trunc('day', t, 'Europe/Berlin')": col("t").date_trunc("day", "Europe/Berlin"),
    "date_format(t, 'HH, mm', 'Europe/Berlin')": col("t").date_format("HH, mm", "Europe/Berlin"),
    "from_utc_timestamp(t, 'Asia/Tokyo')": col("t").from_utc_timestamp("Asia/Tokyo"),
    "TO_UTC_TIMESTAMP (t, 'Asia/Tokyo')": col("t").to_utc_timestamp("Asia/Tokyo"),
    "t AT TIME ZONE 'Asia/Tokyo'": col("t").at_time_zone("Asia/Tokyo"),
    "hour(t AT TIME ZONE 'Asia/Tokyo')": col("t").at_time_zone("Asia/Tokyo").hour(),
    "EXTRACT(HOUR FROM t AT TIME ZONE 'Asia/Tokyo')": col("t").at_time_zone("Asia/Tokyo").hour(),
    "hour(date_trunc('hour', t, 'Asia/Tokyo'), 'Asia/Tokyo')": col("t").date_trunc("hour", "Asia/Tokyo").hour("Asia/Tokyo"),
}


@pytest.mark.parametrize("text", [text for text in TEXTS])
def test_texts_are_the_expressions(text: str) -> None:
    expr = TEXTS[text]
    assert expr is not None and parse_expr(text).same_as(expr)


def test_a_column_may_be_called_like_these_functions() -> None:
    stream = stream_of("hour bigint, year string").with_column("n", "hour + 1").filter("year = 'hour(t, ''x'')'")
    assert Driver(stream).send([{"hour": 1, "year": "hour(t, 'x')"}]).results["n"].to_pylist() == [2]


def test_a_statement_takes_zones_too() -> None:
    context = SqlContext()
    context.register("events", stream_of("at timestamp, amount bigint"))
    plan = context.sql(
        "SELECT hour(at, 'Europe/Berlin') AS h, at AT TIME ZONE 'Asia/Kolkata' AS there FROM events "
        "WHERE date_format(at, 'EEE', 'Pacific/Kiritimati') = 'Mon'"
    )
    assert plan is not None
    rows = [{"at": dt.datetime(2024, 3, day, 12, tzinfo=UTC), "amount": 1} for day in (31, 30)]
    assert Driver(plan).send(rows).results.to_pylist() == [{"h": 14, "there": dt.datetime(2024, 3, 31, 17, 30)}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hour(t, 'Berlin')", "no such time zone"),
        ("t AT TIME ZONE 'Europe'", "no such time zone"),
        ("t AT TIME ZONE '+25:00'", "no such time zone"),
        ("from_utc_timestamp(t, '../etc/passwd')", "no such time zone"),
        ("date_trunc('day', t, '')", "no such time zone"),
        ("hour(t, z)", "constant text"),
        ("hour(t, 1)", "constant text"),
        ("from_utc_timestamp(t)", "from_utc_timestamp"),
        ("hour(t, 'UTC', 'UTC')", "hour|arguments"),
        ("date_format(t, 'HH', 'UTC', 1)", "date_format"),
        ("hour(z, 'Europe/Berlin')", "do not fit"),
    ],
)
def test_wrong_zones_are_refused(text: str, words: str) -> None:
    with pytest.raises(ExpressionError, match=words):
        stream_of("t timestamp, z string").with_column("x", text)
