"""Times in time zones are those of Spark (docs/expressions.md)."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa

from krishiv_py import Session
from tests.spark.row_by_row import check_rows

ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/Sao_Paulo",
    "+05:30",
)
CHANGES = (
    "2024-03-31T01:00",
    "2024-10-27T01:00",
    "2024-03-10T07:00",
    "2024-11-03T06:00",
    "2011-12-30T10:00",
    "2018-11-04T03:00",
)
CALLS = (
    "from_utc_timestamp(t, '{zone}')",
    "to_utc_timestamp(t, '{zone}')",
    "convert_timezone('{zone}', n)",
    "convert_timezone('{zone}', 'Asia/Tokyo', n)",
    "hour(from_utc_timestamp(t, '{zone}'))",
)


def test_times_in_zones_are_those_of_spark(session: Session) -> None:
    chance = random.Random("zones")
    near = [
        dt.datetime.fromisoformat(text) + dt.timedelta(minutes=chance.randint(-200, 200)) for text in CHANGES for _ in range(8)
    ]
    far = [dt.datetime(chance.randint(1800, 2400), 7, 1) + dt.timedelta(hours=chance.randint(0, 8_000)) for _ in range(30)]
    times = [*near, *far, None]
    rows = pa.table({"t": pa.array(times, pa.timestamp("us", "UTC")), "n": pa.array(times, pa.timestamp("us"))})
    check_rows(session, rows, tuple(call.format(zone=zone) for zone in ZONES for call in CALLS))
