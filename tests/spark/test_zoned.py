"""Times in time zones are those of Spark (docs/expressions.md)."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pyarrow as pa
import pytest

from krishiv_py import MemorySink, Output, Session, Stream, calendar_window, count
from krishiv_py.testing import Driver, stream_of
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


@pytest.mark.slow
def test_times_in_zones_are_those_of_spark(session: Session) -> None:
    chance = random.Random("zones")
    near = [
        dt.datetime.fromisoformat(text) + dt.timedelta(minutes=chance.randint(-200, 200)) for text in CHANGES for _ in range(8)
    ]
    far = [dt.datetime(chance.randint(1800, 2400), 7, 1) + dt.timedelta(hours=chance.randint(0, 8_000)) for _ in range(30)]
    times = [*near, *far, None]
    rows = pa.table({"t": pa.array(times, pa.timestamp("us", "UTC")), "n": pa.array(times, pa.timestamp("us"))})
    check_rows(session, rows, tuple(call.format(zone=zone) for zone in ZONES for call in CALLS))


@pytest.mark.slow
def test_calendar_windows_are_those_of_the_driver(session: Session, tmp_path: Path) -> None:
    """Business days, hopping days, a quarter to date, over a change of clocks, a restart, and in a bounded run."""
    chance, first = random.Random("calendar"), dt.datetime(2023, 3, 20, tzinfo=dt.timezone.utc)
    batches = [
        [
            {"user": chance.choice("ab"), "at": first + dt.timedelta(days=days, minutes=chance.randint(0, 6 * 1_440))}
            for _ in range(40)
        ]
        for days in (0, 2, 215)
    ]

    def outputs(stream: Stream) -> list[Output]:
        keyed = stream.watermark("at", "2 days").key_by("user").allowed_lateness("1 day")
        windows = {
            "business day": calendar_window("day", "Europe/Paris", offset="6 hours"),
            "fiscal quarter": calendar_window("quarter", "Australia/Lord_Howe", offset="1 month", step="week"),
        }
        every = {name: keyed.window(window).agg(count()) for name, window in windows.items()}
        every["changed"] = keyed.emit("retractions").window(calendar_window("day", "Europe/Paris", size=2)).agg(count())
        return [plan.to(MemorySink(), name=name) for name, plan in every.items()]

    driver, wanted = Driver(outputs(stream_of("user string, at timestamp"))), dict[str, list[str]]()
    stream, sender = session.memory_stream("user string, at timestamp")
    given, checkpoint = outputs(stream), str(tmp_path)
    query = session.start(given, checkpoint=checkpoint)
    try:
        for number, batch in enumerate([*batches, None]):
            if number == 2:
                query.stop()
                query = session.start(given, checkpoint=checkpoint)
            done = driver.close() if batch is None else driver.send(batch)
            for name, table in done.by_output.items():
                wanted.setdefault(name, []).extend(map(repr, table.to_pylist()))
            sender.close() if batch is None else sender.send(batch)
            query.process_all_available()
        for name, rows in wanted.items():
            assert rows and sorted(map(repr, query.results(name).to_pylist())) == sorted(rows), name
    finally:
        query.stop()
    bounded = session.collect([output.stream for output in given])
    for output, table in zip(given, bounded, strict=True):
        if output.name != "changed":
            assert sorted(map(repr, table.to_pylist())) == sorted(wanted[str(output.name)]), output.name
