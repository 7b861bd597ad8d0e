"""Calendar windows against plain Python: a clock of the zone is read minute by minute."""

from __future__ import annotations

import datetime as dt
from functools import cache
from typing import Any, Final
from zoneinfo import ZoneInfo

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import DurationError, PlanError
from krishiv_py.plan.described import WindowAssigner
from krishiv_py.plan.windows.calendar import CalendarWindows
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled
from tests.kernels.fixed.calendar_cases import CASES, Case

UTC: Final = dt.timezone.utc
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=UTC)
MINUTE: Final = dt.timedelta(minutes=1)
ZONES: Final = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # midnight is skipped
    "America/Havana",  # midnight comes twice
    "America/St_Johns",  # clocks were put back a minute after midnight
    "Asia/Kolkata",  # half an hour off
    "Australia/Lord_Howe",  # changes by half an hour
    "Pacific/Apia",  # skipped a day
    "Africa/Casablanca",  # changes for a month
    "Asia/Kathmandu",
)


def made(*arguments: Any, **options: Any) -> CalendarWindows:
    """The assigner of ``calendar_window(...)``."""
    assigner = kv.calendar_window(*arguments, **options).assigner
    assert isinstance(assigner, CalendarWindows)
    return assigner


def us(at: dt.datetime) -> int:
    return (at - EPOCH) // dt.timedelta(microseconds=1)


def at(value: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=int(value))


def assign(windows: CalendarWindows, *times: dt.datetime) -> list[tuple[dt.datetime, dt.datetime]]:
    starts, ends = windows.assign(np.array([us(t) for t in times], np.int64))
    return [(at(s), at(e)) for s, e in zip(starts, ends, strict=True)]


def shown(zone: ZoneInfo, instant: dt.datetime) -> dt.datetime:
    return instant.astimezone(zone).replace(tzinfo=None)


@cache
def first_shown(zone: ZoneInfo, wall: dt.datetime) -> dt.datetime:
    """The first instant at which a clock shows `wall` or more: it is looked at every minute of two and a half days."""
    low = wall.replace(tzinfo=UTC) - dt.timedelta(hours=30)
    return next(t for t in (low + n * MINUTE for n in range(60 * 60)) if shown(zone, t) >= wall)


def beginning(windows: CalendarWindows, date: dt.date) -> dt.date:
    """The first day of the window of a day, found by walking back day by day."""
    day = dt.timedelta(days=1)
    months = {"month": 1, "quarter": 3, "year": 12}.get(windows.unit)

    def begins(d: dt.date) -> bool:
        if months is not None:
            return d.day == 1 and (12 * d.year + d.month - 1) % (months * windows.every) == 0
        if windows.unit == "day":
            return (d - dt.date(1970, 1, 1)).days % windows.every == 0
        names = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
        first = next(f for f in (dt.date(1970, 1, 1) - n * day for n in range(7)) if names[f.weekday()] == windows.week_start)
        return (d - first).days % (7 * windows.every) == 0

    while not begins(date):
        date -= day
    return date


def expected(windows: CalendarWindows, instant: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
    """The window that holds an instant: of all beginnings near it the last before and the first after."""
    zone = ZoneInfo(windows.time_zone)
    step = {"day": 1, "week": 7, "month": 31, "quarter": 93, "year": 366}[windows.unit] * windows.every
    here = shown(zone, instant).date()
    half = step // 2  # three quarters may have 273 days, not 279: one step away may be two windows on
    near = (-step - 3, -step, -half, -2, 0, 2, half, step - 1, step, step + 3)
    firsts = {beginning(windows, here + dt.timedelta(days=d)) for d in near}
    starts = sorted({first_shown(zone, dt.datetime.combine(d, dt.time())) for d in firsts})
    return max(s for s in starts if s <= instant), min(s for s in starts if s > instant)


def jumps_over_hour(zone: ZoneInfo, instant: dt.datetime) -> bool:
    """Whether an hour begins at an instant: the clock shows one, or has jumped ahead over one."""
    now, before = shown(zone, instant), shown(zone, instant - MINUTE)
    return now.minute == 0 or (now - before > MINUTE and now.replace(minute=0) > before)


def expected_hour(zone: ZoneInfo, instant: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
    low = instant.replace(second=0, microsecond=0)
    high = low + MINUTE
    while not jumps_over_hour(zone, low):
        low -= MINUTE
    while not jumps_over_hour(zone, high):
        high += MINUTE
    return low, high


INSTANTS: Final = st.datetimes(dt.datetime(1975, 1, 1), dt.datetime(2060, 1, 1), timezones=st.just(UTC))
CHANGES: Final = [
    dt.datetime(2024, 3, 31, 1, tzinfo=UTC),  # Berlin
    dt.datetime(2024, 10, 27, 1, tzinfo=UTC),
    dt.datetime(2018, 11, 4, 3, tzinfo=UTC),  # Sao Paulo
    dt.datetime(2019, 2, 17, 2, tzinfo=UTC),
    dt.datetime(2024, 11, 3, 5, tzinfo=UTC),  # Havana
    dt.datetime(2006, 10, 29, 2, 31, tzinfo=UTC),  # St. John's
    dt.datetime(2024, 4, 6, 15, tzinfo=UTC),  # Lord Howe
    dt.datetime(2024, 10, 5, 15, 30, tzinfo=UTC),
    dt.datetime(2011, 12, 30, 10, tzinfo=UTC),  # Apia
]
NEAR: Final = st.builds(
    lambda change, minutes, more: change + dt.timedelta(minutes=minutes, microseconds=more),
    st.sampled_from(CHANGES),
    st.integers(-3_000, 3_000),
    st.sampled_from([0, 1, 999_999]),
)


@hypothesis.given(
    st.sampled_from(ZONES),
    st.sampled_from(["day", "week", "month", "quarter", "year"]),
    st.integers(1, 3),
    st.sampled_from(["monday", "thursday", "friday", "sunday"]),
    st.lists(INSTANTS | NEAR, min_size=1, max_size=4),
)
@hypothesis.settings(max_examples=scaled(60), deadline=None)
@hypothesis.example("Australia/Lord_Howe", "quarter", 3, "monday", [dt.datetime(2001, 9, 25, 14, tzinfo=UTC)])
def test_windows_are_those_of_a_clock(zone: str, unit: Any, every: int, first: Any, instants: list[dt.datetime]) -> None:
    windows = CalendarWindows(unit, zone, every, first)
    assert assign(windows, *instants) == [expected(windows, t) for t in instants]


@hypothesis.given(st.sampled_from(ZONES), st.lists(INSTANTS | NEAR, min_size=1, max_size=4))
@hypothesis.settings(max_examples=scaled(40), deadline=None)
def test_hours_are_those_of_a_clock(zone: str, instants: list[dt.datetime]) -> None:
    windows = CalendarWindows("hour", zone, 1, "monday")
    assert assign(windows, *instants) == [expected_hour(ZoneInfo(zone), t) for t in instants]


def begins_later(windows: CalendarWindows, instant: dt.datetime) -> list[dt.datetime]:
    """All beginnings near an instant, by the clock: every day of two windows around is looked at."""
    zone, here = ZoneInfo(windows.time_zone), instant.astimezone(ZoneInfo(windows.time_zone)).date()
    plain = CalendarWindows(windows.unit, windows.time_zone, windows.every, windows.week_start)
    around = {"day": 3, "week": 10, "month": 62, "quarter": 190, "year": 740}[windows.unit] * windows.every
    days = (here + dt.timedelta(days=n) for n in range(-around, around))
    firsts = {beginning(plain, day) for day in days}
    actual = set()
    for first in firsts:
        year, month = divmod(first.year * 12 + first.month - 1 + windows.offset.months, 12)
        day = dt.date(year, month + 1, first.day) + dt.timedelta(days=windows.offset.days)
        clock = dt.datetime.combine(day, dt.time()) + dt.timedelta(seconds=windows.offset.seconds)
        actual.add(first_shown(zone, clock))
    return sorted(actual)


OFFSETS: Final = {
    "day": ["6 hours", "2 h 30 min", "23 h 59 min", "30 min"],
    "week": ["6 hours", "2 days 3 hours", "6 days 23 hours"],
    "month": ["14 days", "27 days 23 hours", "2 hours"],
    "quarter": ["1 month", "2 months 27 days", "2 h 30 min"],
    "year": ["3 months", "1 quarter 5 days", "11 months 2 hours"],
}


@hypothesis.given(st.data(), st.sampled_from(ZONES), st.sampled_from(sorted(OFFSETS)), st.lists(NEAR, min_size=1, max_size=3))
@hypothesis.settings(max_examples=scaled(40), deadline=None)
def test_windows_with_an_offset_are_those_of_a_clock(data: Any, zone: str, unit: Any, instants: list[dt.datetime]) -> None:
    windows = made(unit, zone, offset=data.draw(st.sampled_from(OFFSETS[unit])))
    for instant in instants:
        starts = begins_later(windows, instant)
        expected_one = max(s for s in starts if s <= instant), min(s for s in starts if s > instant)
        assert assign(windows, instant) == [expected_one]


def later(date: dt.date, unit: str, many: int) -> dt.date:
    """The day `many` units after another."""
    if unit in ("day", "week"):
        return date + dt.timedelta(days=many * {"day": 1, "week": 7}[unit])
    year, month = divmod(date.year * 12 + date.month - 1 + many * {"month": 1, "quarter": 3, "year": 12}[unit], 12)
    return dt.date(year, month + 1, date.day)


def midnight(zone: ZoneInfo, date: dt.date) -> dt.datetime:
    return first_shown(zone, dt.datetime.combine(date, dt.time()))


def all_windows(assigner: WindowAssigner, instant: dt.datetime) -> list[tuple[dt.datetime, dt.datetime]]:
    """The windows of an instant, by start and end."""
    given: Any = assigner.assign(np.array([us(instant)], np.int64))
    rows, starts, ends = given
    assert (rows == 0).all()
    return [(at(s), at(e)) for s, e in zip(starts, ends, strict=True)]


@hypothesis.given(st.sampled_from(ZONES), st.sampled_from(["day", "week", "month"]), st.integers(1, 2), st.integers(2, 4), NEAR)
@hypothesis.settings(max_examples=scaled(30), deadline=None)
@hypothesis.example("Pacific/Apia", "day", 1, 3, CHANGES[-1])
def test_hopping_windows_are_those_of_a_clock(zone: str, unit: Any, every: int, many: int, instant: dt.datetime) -> None:
    base, here = CalendarWindows(unit, zone, every, "monday"), ZoneInfo(zone)
    reach = {"day": 1, "week": 7, "month": 31}[unit] * every * many + 3
    today = shown(here, instant).date()
    firsts = {beginning(base, today + dt.timedelta(days=n)) for n in range(-reach, 2)}
    pairs = {midnight(here, d): midnight(here, later(d, unit, every * many)) for d in sorted(firsts)}
    windows = kv.calendar_window(unit, zone, every, size=every * many).assigner
    assert windows is not None
    assert all_windows(windows, instant) == [(s, e) for s, e in sorted(pairs.items()) if s <= instant < e]


@hypothesis.given(
    st.sampled_from(ZONES), st.sampled_from(["month day", "month week", "week day", "quarter month", "quarter week"]), NEAR
)
@hypothesis.settings(max_examples=scaled(30), deadline=None)
def test_cumulating_windows_are_those_of_a_clock(zone: str, units: str, instant: dt.datetime) -> None:
    unit, step = units.split()
    start, end = expected(CalendarWindows(unit, zone, 1, "monday"), instant)  # type: ignore[arg-type]
    steps = CalendarWindows(step, zone, 1, "monday")  # type: ignore[arg-type]
    here, today = ZoneInfo(zone), shown(ZoneInfo(zone), instant).date()
    actual = {midnight(here, beginning(steps, today + dt.timedelta(days=n))) for n in range(-8, 95)}
    windows = kv.calendar_window(unit, zone, step=step).assigner  # type: ignore[arg-type]
    assert windows is not None
    assert all_windows(windows, instant) == [(start, e) for e in sorted({*actual, end}) if instant < e <= end]


@pytest.mark.parametrize("options", [{"size": 5}, {"step": "hour"}, {"size": 3, "offset": "6 h"}])
def test_overlapping_windows_of_many_rows_are_those_of_each_alone(options: dict[str, Any]) -> None:
    windows = kv.calendar_window("day", "America/Havana", **options).assigner
    assert windows is not None
    times = np.array([us(c) + n * 3_500_000_000 for c in CHANGES for n in (-9, 0, 1, 30)], np.int64)[::-1]
    given: Any = windows.assign(times)
    rows, starts, ends = given
    together = [[(at(s), at(e)) for s, e in zip(starts[rows == n], ends[rows == n], strict=True)] for n in range(len(times))]
    assert together == [all_windows(windows, at(t)) for t in times]


def test_hours_of_a_clock_overlap_and_fill_a_day() -> None:
    hours = kv.calendar_window("hour", "Europe/Berlin", size=2).assigner
    assert hours is not None
    at_two = dt.datetime(2024, 10, 27, 0, 30, tzinfo=UTC)  # the first of two hours from two to three
    assert [(s.hour, e.hour) for s, e in all_windows(hours, at_two)] == [(23, 1), (0, 2)]
    business = kv.calendar_window("day", "Europe/Berlin", offset="6 h", step="hour").assigner
    assert business is not None
    begun = dt.datetime(2024, 10, 26, 4, tzinfo=UTC)
    actual = all_windows(business, begun)
    assert len(actual) == 25 and actual[0] == (begun, begun + dt.timedelta(hours=1)) and actual[-1][1].hour == 5


def test_a_fiscal_year_to_date_by_month() -> None:
    years = kv.calendar_window("year", "UTC", offset="3 months", step="month").assigner
    assert years is not None
    actual = all_windows(years, dt.datetime(2024, 1, 5, tzinfo=UTC))
    assert [(s.isoformat()[:10], e.isoformat()[:10]) for s, e in actual] == [("2023-04-01", f"2024-0{n}-01") for n in (2, 3, 4)]


@pytest.mark.parametrize("offset", ["7 hours", dt.timedelta(hours=7), 7 * 3_600_000])
def test_an_offset_is_any_duration_and_is_noted_only_where_there_is_one(offset: Any) -> None:
    window, plain = kv.calendar_window("day", "Europe/Paris", offset=offset), kv.calendar_window("day", "Europe/Paris")
    assert window == kv.calendar_window("day", "Europe/Paris", offset="7 h") and window != plain
    assert window.identity() != plain.identity() and "parameter offset" not in plain.identity()


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.unit} {c.zone} {c.time}")
def test_golden_windows(case: Case) -> None:
    windows = made(case.unit, case.zone, case.every, week_start=case.week_start, offset=case.offset)
    time, start, end = (dt.datetime.fromisoformat(t) for t in (case.time, case.start, case.end))
    assert assign(windows, time) == [(start, end)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("unit", ["hour", "day", "week", "month", "quarter", "year"])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia", "Asia/Manila", "America/Juneau"])
def test_windows_meet_and_keep_their_longest(unit: Any, every: int, zone: str) -> None:
    windows = CalendarWindows(unit, zone, every, "monday")
    years = np.array([-110, -102, -53, -30, 0, 31, 54]) * 365 * 86_400_000_000  # two zones have crossed the date line
    times = np.concatenate([years, us(CHANGES[-1]) + np.arange(-99, 99) * 3_600_000_000])
    starts, ends = windows.assign(times)
    assert (starts <= times).all() and (times < ends).all()
    assert (ends - starts).max() <= windows.longest / dt.timedelta(microseconds=1)
    again, _ = windows.assign(ends)
    before, closing = windows.assign(starts - 1)
    assert (again == ends).all() and (closing == starts).all() and (before < starts).all()


@pytest.mark.parametrize("years", [-140_000, -2_000, 8_000, 20_000, 140_000])
@pytest.mark.parametrize("unit", ["hour", "day", "week", "month", "quarter", "year"])
def test_far_times_have_the_windows_of_400_years_nearer(unit: Any, years: int) -> None:
    windows = CalendarWindows(unit, "Europe/Berlin", 1, "monday")
    cycle = 146_097 * 86_400_000_000
    near = us(dt.datetime(2800 if years > 0 else 200, 7, 1, 13, 30, tzinfo=UTC))
    far = near + cycle * (years // 400)
    starts, ends = windows.assign(np.array([near, far], np.int64))
    assert (starts[1] - starts[0], ends[1] - ends[0]) == (far - near, far - near)


def test_rows_from_all_over_time_in_one_batch() -> None:
    days = Driver(stream_of("at bigint").watermark("at", 0).window(kv.calendar_window("day")).agg(kv.count()))
    far = 4_500_000_000_000_000
    rows = days.send([{"at": t} for t in (0, -far, far, -1, 5)]).results.to_pylist() + days.close().results.to_pylist()
    assert [(r["count"], r["window_end"] - r["window_start"]) for r in rows] == [(n, 86_400_000) for n in (1, 1, 2, 1)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unit": "fortnight"}, "`unit`"),
        ({"unit": "day", "time_zone": "Mars/Olympus"}, "no such time zone"),
        ({"unit": "day", "time_zone": "../../etc/passwd"}, "no such time zone"),
        ({"unit": "day", "time_zone": "Europe"}, "no such time zone"),
        ({"unit": "day", "time_zone": ""}, "time_zone"),
        ({"unit": "day", "every": 0}, "every"),
        ({"unit": "day", "every": True}, "every"),
        ({"unit": "hour", "every": 5}, "do not divide a day"),
        ({"unit": "month", "week_start": "sunday"}, "only weeks have a first day"),
        ({"unit": "week", "week_start": "Sun"}, "`week_start`"),
        ({"unit": "day", "offset": "24 hours"}, "as long as a window"),
        ({"unit": "hour", "every": 8, "offset": "8 hours"}, "as long as a window"),
        ({"unit": "week", "offset": "7 days"}, "as long as a window"),
        ({"unit": "year", "offset": "1 year"}, "as long as a window"),
        ({"unit": "month", "offset": "1 month"}, "as long as a window"),
        ({"unit": "month", "offset": "28 days"}, "not every month has"),
        ({"unit": "day", "offset": "1 month"}, "has months"),
        ({"unit": "day", "offset": "500 ms"}, "whole number of seconds"),
        ({"unit": "day", "offset": "six"}, "`offset`"),
        ({"unit": "day", "offset": "-1 hour"}, "`offset`"),
        ({"unit": "day", "offset": -5}, "`offset`"),
        ({"unit": "day", "offset": None}, "`offset`"),
        ({"unit": "year", "offset": "1.5 months"}, "`offset`"),
        ({"unit": "day", "size": 0}, "size"),
        ({"unit": "day", "size": 2.0}, "size"),
        ({"unit": "day", "size": "7 days"}, "size"),
        ({"unit": "month", "every": 2, "size": 3}, "not a multiple"),
        ({"unit": "month", "every": 2, "size": 1}, "not a multiple"),
        ({"unit": "month", "size": 2, "step": "day"}, "hop or cumulate"),
        ({"unit": "month", "step": "month"}, "not shorter"),
        ({"unit": "hour", "step": "hour"}, "not shorter"),
        ({"unit": "day", "step": "week"}, "not shorter"),
        ({"unit": "day", "step": "minute"}, "`step`"),
        ({"unit": "year", "every": 100, "step": "hour"}, "more than 100,000 windows"),
    ],
)
def test_what_is_no_calendar_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((PlanError, DurationError), match=f"{message}.*Hint:"):
        kv.calendar_window(**arguments)
