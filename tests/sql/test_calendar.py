"""Windows of the calendar in SQL are those of the builder."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import pytest

from krishiv_py import calendar_window, count
from krishiv_py.errors import DurationError, KrishivError, PlanError
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

UTC: Final = dt.timezone.utc
ROWS: Final = [
    {"at": dt.datetime(2024, 3, 1, tzinfo=UTC) + dt.timedelta(hours=7 * n)}
    for n in range(200)  # over the change of the clock in March
]
EVENTS: Final = stream_of("user string, at timestamp").watermark("at", 0)
CALLS: Final[list[tuple[str, str, dict[str, Any]]]] = [
    ("tumble", "INTERVAL '1' MONTH", {"unit": "month"}),
    ("tumble", "INTERVAL '1' MONTH, 'Europe/Berlin'", {"unit": "month", "time_zone": "Europe/Berlin"}),
    ("tumble", "'1 quarter'", {"unit": "quarter"}),
    ("tumble", "INTERVAL '2' WEEK, 'Europe/Berlin'", {"unit": "week", "every": 2, "time_zone": "Europe/Berlin"}),
    (
        "tumble",
        "INTERVAL '1' DAY, INTERVAL '6' HOUR, 'Europe/Paris'",
        {"unit": "day", "offset": "6 h", "time_zone": "Europe/Paris"},
    ),
    ("tumble", "INTERVAL '1' YEAR, INTERVAL '3' MONTH", {"unit": "year", "offset": "3 months"}),
    (
        "tumble",
        "INTERVAL '1' YEAR, INTERVAL '3' MONTH + INTERVAL '5' DAY, 'Asia/Tokyo'",
        {"unit": "year", "offset": "3 months 5 days", "time_zone": "Asia/Tokyo"},
    ),
    ("tumble", "INTERVAL '1' DAY, 'UTC'", {"unit": "day"}),
    ("hop", "INTERVAL '1' DAY, INTERVAL '7' DAY, 'Europe/Berlin'", {"unit": "day", "size": 7, "time_zone": "Europe/Berlin"}),
    ("hop", "INTERVAL '1' DAY, INTERVAL '1' WEEK, 'Europe/Berlin'", {"unit": "day", "size": 7, "time_zone": "Europe/Berlin"}),
    ("hop", "INTERVAL '1' MONTH, INTERVAL '1' YEAR", {"unit": "month", "size": 12}),
    ("hop", "INTERVAL '1' WEEK, INTERVAL '28' DAY, 'UTC'", {"unit": "week", "size": 4}),
    (
        "cumulate",
        "INTERVAL '1' DAY, INTERVAL '1' MONTH, 'Europe/Berlin'",
        {"unit": "month", "step": "day", "time_zone": "Europe/Berlin"},
    ),
    ("cumulate", "INTERVAL '1' WEEK, INTERVAL '1' MONTH", {"unit": "month", "step": "week"}),
    (
        "cumulate",
        "INTERVAL '1' DAY, INTERVAL '7' DAY, 'Europe/Berlin'",
        {"unit": "day", "every": 7, "step": "day", "time_zone": "Europe/Berlin"},
    ),
    (
        "cumulate",
        "INTERVAL '1' HOUR, INTERVAL '1' DAY, INTERVAL '6' HOUR, 'Europe/Berlin'",
        {"unit": "day", "step": "hour", "offset": "6 h", "time_zone": "Europe/Berlin"},
    ),
]


def results(stream: Any) -> list[dict[str, Any]]:
    driver = Driver(stream)
    actual: list[dict[str, Any]] = driver.send(ROWS).results.to_pylist() + driver.close().results.to_pylist()
    return actual


def planned(text: str) -> Any:
    context = SqlContext()
    for name in ("events", "others"):
        context.register(name, stream_of("user string, at timestamp"), event_time="at", lag=0)
    return context.sql(text)


@pytest.mark.parametrize(("kind", "arguments", "options"), CALLS, ids=[f"{k} {a}" for k, a, _ in CALLS])
def test_calls_and_table_functions_are_the_builders_windows(kind: str, arguments: str, options: dict[str, Any]) -> None:
    expected = results(EVENTS.window(calendar_window(**options)).agg(count().alias("n")))
    assert len(expected) > 1
    columns = "window_start, window_end, count(*) AS n"
    table = f"SELECT {columns} FROM TABLE({kind}(TABLE events, DESCRIPTOR(at), {arguments})) GROUP BY window_start, window_end"
    assert results(planned(table)) == expected
    start, end = f"{kind}_start(at, {arguments})", f"{kind}_end(at, {arguments})"
    call = f"SELECT {start} AS window_start, {end} AS window_end, count(*) AS n FROM events GROUP BY {start}, {end}"
    assert results(planned(call)) == expected


def test_names_of_arguments() -> None:
    text = (
        "SELECT window_start, window_end, count(*) AS n FROM TABLE(TUMBLE(DATA => TABLE events, TIMECOL => DESCRIPTOR(at), "
        "TIME_ZONE => 'Europe/Paris', SIZE => INTERVAL '1' DAY{offset})) GROUP BY window_start, window_end"
    )
    for offset, given in [("", "0 s"), (", OFFSET => INTERVAL '6' HOUR", "6 h")]:
        window = calendar_window("day", "Europe/Paris", offset=given)
        assert results(planned(text.format(offset=offset))) == results(EVENTS.window(window).agg(count().alias("n")))


@pytest.mark.parametrize(
    ("inner", "again"),
    [
        ("hop({t}, INTERVAL '1' DAY, INTERVAL '7' DAY, 'Europe/Berlin')", "day"),
        ("cumulate({t}, INTERVAL '1' DAY, INTERVAL '1' MONTH, 'Europe/Berlin')", "day"),
        ("tumble({t}, INTERVAL '1' MONTH, 'Europe/Berlin')", "month"),
    ],
)
def test_a_second_grouping_takes_the_results_of_one_end(inner: str, again: str) -> None:
    table = inner.format(t="TABLE events, DESCRIPTOR(at)")
    text = (
        "SELECT window_start, window_end, sum(n) AS n FROM (SELECT window_start, window_end, window_time, count(*) AS n FROM "
        f"TABLE({table}) GROUP BY window_start, window_end, window_time) GROUP BY window_start, window_end"
    )
    actual = results(planned(text))
    assert len({row["window_end"] for row in actual}) == len(actual) > 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("tumble({t}, INTERVAL '5' MINUTE, 'Europe/Berlin')", "whole hours, days"),
        ("tumble({t}, INTERVAL '1' DAY, 'Europe/Nowhere')", "no such time zone"),
        ("tumble({t}, INTERVAL '1' DAY, INTERVAL '-6' HOUR, 'Europe/Berlin')", "offset"),
        ("tumble({t}, INTERVAL '1' DAY, INTERVAL '1' MONTH, 'Europe/Berlin')", "has months"),
        ("tumble({t}, INTERVAL '1' DAY, INTERVAL '6' HOUR, INTERVAL '6' HOUR)", "an offset and a time zone|cannot be read"),
        ("tumble({t}, INTERVAL '0' DAY, 'UTC')", "every"),
        ("hop({t}, INTERVAL '1' DAY, INTERVAL '1' MONTH, 'Europe/Berlin')", "not a whole number of slides"),
        ("hop({t}, INTERVAL '1' WEEK, INTERVAL '10' DAY, 'Europe/Berlin')", "not a whole number of slides"),
        ("hop({t}, INTERVAL '2' MONTH, INTERVAL '3' MONTH)", "not a multiple"),
        ("cumulate({t}, INTERVAL '2' DAY, INTERVAL '1' MONTH)", "by one unit"),
        ("cumulate({t}, INTERVAL '1' MONTH, INTERVAL '1' MONTH)", "not shorter"),
        ("cumulate({t}, INTERVAL '1' MONTH, INTERVAL '1' DAY)", "not shorter"),
        ("session({t}, INTERVAL '1' DAY, 'Europe/Berlin')", "session takes|cannot be read"),
    ],
)
def test_what_the_calendar_has_not_is_refused(call: str, message: str) -> None:
    table, function = call.format(t="TABLE events, DESCRIPTOR(at)"), call.format(t="at")
    with pytest.raises((PlanError, DurationError), match=f"(?s)({message}).*(Hint: |write )"):
        planned(f"SELECT count(*) FROM TABLE({table}) GROUP BY window_start, window_end")
    with pytest.raises((PlanError, DurationError), match=f"(?s)({message}).*(Hint: |write )"):
        planned(f"SELECT count(*) FROM events GROUP BY {function}")


def test_weeks_in_months_have_no_second_grouping_and_calendars_no_window_join() -> None:
    table = "TABLE(cumulate(TABLE events, DESCRIPTOR(at), INTERVAL '1' WEEK, INTERVAL '1' MONTH))"
    with pytest.raises(KrishivError, match="weeks end within months"):
        planned(
            "SELECT window_start, window_end, sum(n) AS n FROM (SELECT window_start, window_end, window_time, count(*) AS n "
            f"FROM {table} GROUP BY window_start, window_end, window_time) GROUP BY window_start, window_end"
        )
    side = "(SELECT * FROM TABLE(tumble(TABLE {}, DESCRIPTOR(at), INTERVAL '1' MONTH)))"
    with pytest.raises(KrishivError, match="windows of the calendar"):
        planned(
            f"SELECT a.user FROM {side.format('events')} AS a JOIN {side.format('others')} AS b ON a.user = b.user AND "
            "a.window_start = b.window_start AND a.window_end = b.window_end"
        )
