"""Windows of the calendar, worked out by hand; instants in UTC."""

from __future__ import annotations

from typing import Final

import attrs

from krishiv_py.plan.windows.calendar import CalendarUnit, Weekday


@attrs.frozen
class Case:
    """A window: which, and of which instant."""

    unit: CalendarUnit
    zone: str
    time: str
    start: str
    end: str
    every: int = 1
    week_start: Weekday = "monday"
    offset: str | int = 0


def case(
    unit: CalendarUnit,
    zone: str,
    time: str,
    start: str,
    end: str,
    every: int = 1,
    week_start: Weekday = "monday",
    offset: str | int = 0,
) -> Case:
    """A case of instants without their zone, which is UTC."""
    return Case(unit, zone, f"{time}+00:00", f"{start}+00:00", f"{end}+00:00", every, week_start, offset)


BERLIN: Final = "Europe/Berlin"
CASES: Final = [
    # days of 24, 23 and 25 hours
    case("day", BERLIN, "2024-01-15T12:00", "2024-01-14T23:00", "2024-01-15T23:00"),
    case("day", BERLIN, "2024-03-31T12:00", "2024-03-30T23:00", "2024-03-31T22:00"),
    case("day", BERLIN, "2024-10-27T12:00", "2024-10-26T22:00", "2024-10-27T23:00"),
    case("day", BERLIN, "2024-03-30T23:00", "2024-03-30T23:00", "2024-03-31T22:00"),
    case("day", BERLIN, "2024-03-30T22:59:59.999999", "2024-03-29T23:00", "2024-03-30T23:00"),
    # the hour that is skipped, and the hour that comes twice
    case("hour", BERLIN, "2024-03-31T00:30", "2024-03-31T00:00", "2024-03-31T01:00"),
    case("hour", BERLIN, "2024-03-31T01:00", "2024-03-31T01:00", "2024-03-31T02:00"),
    case("hour", BERLIN, "2024-10-27T00:30", "2024-10-27T00:00", "2024-10-27T01:00"),
    case("hour", BERLIN, "2024-10-27T01:30", "2024-10-27T01:00", "2024-10-27T02:00"),
    case("hour", BERLIN, "2024-03-31T03:00", "2024-03-30T23:00", "2024-03-31T04:00", every=6),
    case("hour", BERLIN, "2024-10-27T03:00", "2024-10-26T22:00", "2024-10-27T05:00", every=6),
    # months, quarters and years over a change of the clock
    case("month", BERLIN, "2024-03-15T00:00", "2024-02-29T23:00", "2024-03-31T22:00"),
    case("month", BERLIN, "2023-02-10T00:00", "2023-01-31T23:00", "2023-02-28T23:00"),
    case("month", "UTC", "2024-02-29T23:59:59", "2024-02-01T00:00", "2024-03-01T00:00"),
    case("month", BERLIN, "2024-03-15T00:00", "2024-02-29T23:00", "2024-04-30T22:00", every=2),
    case("quarter", BERLIN, "2024-02-01T00:00", "2023-12-31T23:00", "2024-03-31T22:00"),
    case("quarter", BERLIN, "2024-12-31T22:59", "2024-09-30T22:00", "2024-12-31T23:00"),
    case("year", BERLIN, "2024-12-31T23:00", "2024-12-31T23:00", "2025-12-31T23:00"),
    case("year", "UTC", "1975-06-01T00:00", "1970-01-01T00:00", "1980-01-01T00:00", every=10),
    case("year", "UTC", "1969-12-31T23:59", "1900-01-01T00:00", "2000-01-01T00:00", every=100),
    # weeks, from whichever day
    case("week", BERLIN, "2024-03-27T00:00", "2024-03-24T23:00", "2024-03-31T22:00"),
    case("week", "America/New_York", "2024-03-09T12:00", "2024-03-03T05:00", "2024-03-10T05:00", week_start="sunday"),
    case("week", "America/New_York", "2024-03-10T12:00", "2024-03-10T05:00", "2024-03-17T04:00", week_start="sunday"),
    case("week", "UTC", "1970-01-01T00:00", "1969-12-29T00:00", "1970-01-05T00:00"),
    case("week", "UTC", "1970-01-01T00:00", "1970-01-01T00:00", "1970-01-08T00:00", week_start="thursday"),
    case("week", "UTC", "1970-01-01T00:00", "1969-12-26T00:00", "1970-01-02T00:00", week_start="friday"),
    case("week", "UTC", "1970-01-06T00:00", "1969-12-29T00:00", "1970-01-12T00:00", every=2),
    # zones with rules of their own
    case("day", "America/Sao_Paulo", "2018-11-04T12:00", "2018-11-04T03:00", "2018-11-05T02:00"),  # no midnight
    case("day", "America/Sao_Paulo", "2018-11-04T02:59", "2018-11-03T03:00", "2018-11-04T03:00"),
    case("day", "America/Sao_Paulo", "2019-02-17T02:30", "2019-02-16T02:00", "2019-02-17T03:00"),  # 25 hours
    case("day", "America/Havana", "2024-11-03T04:30", "2024-11-03T04:00", "2024-11-04T05:00"),  # two midnights
    case("day", "Pacific/Apia", "2011-12-30T09:00", "2011-12-29T10:00", "2011-12-30T10:00"),  # no 30 December
    case("day", "Pacific/Apia", "2011-12-30T10:00", "2011-12-30T10:00", "2011-12-31T10:00"),
    case("month", "Pacific/Apia", "2011-12-30T10:00", "2011-12-01T10:00", "2011-12-31T10:00"),
    case("hour", "Asia/Kolkata", "2024-01-01T00:15", "2023-12-31T23:30", "2024-01-01T00:30"),
    case("day", "Asia/Kathmandu", "2024-01-01T00:00", "2023-12-31T18:15", "2024-01-01T18:15"),
    case("hour", "Australia/Lord_Howe", "2024-04-06T14:45", "2024-04-06T14:00", "2024-04-06T15:30"),  # half an hour longer
    case("hour", "Australia/Lord_Howe", "2024-10-05T15:45", "2024-10-05T15:30", "2024-10-05T16:00"),  # half an hour shorter
    # days from 06:00 over a change of the clock, and where the clock skips or repeats the offset
    case("day", "Europe/Paris", "2023-03-26T03:59", "2023-03-25T05:00", "2023-03-26T04:00", offset="6 hours"),
    case("day", "Europe/Paris", "2023-03-26T04:00", "2023-03-26T04:00", "2023-03-27T04:00", offset="6 hours"),
    case("day", "Europe/Paris", "2023-10-29T04:59", "2023-10-28T04:00", "2023-10-29T05:00", offset="6 hours"),
    case("day", BERLIN, "2024-03-31T01:00", "2024-03-31T01:00", "2024-04-01T00:30", offset="2 h 30 min"),
    case("day", BERLIN, "2024-10-27T00:30", "2024-10-27T00:30", "2024-10-28T01:30", offset="2 h 30 min"),
    # shifts of eight hours from 06:00, fiscal years, months from the 15th, weeks from Monday 06:00
    case("hour", BERLIN, "2024-03-31T00:00", "2024-03-30T21:00", "2024-03-31T04:00", every=8, offset="6 hours"),
    case("hour", BERLIN, "2024-06-01T04:00", "2024-06-01T04:00", "2024-06-01T12:00", every=8, offset="6 hours"),
    case("year", "Asia/Kolkata", "2024-03-31T18:29", "2023-03-31T18:30", "2024-03-31T18:30", offset="3 months"),
    case("year", "Europe/London", "2024-04-05T22:59", "2023-04-05T23:00", "2024-04-05T23:00", offset="3 months 5 days"),
    case("quarter", "UTC", "2024-01-31T23:59", "2023-11-01T00:00", "2024-02-01T00:00", offset="1 month"),
    case("year", "UTC", "2024-06-30T23:59", "2023-07-01T00:00", "2024-07-01T00:00", offset="2 quarters"),
    case("month", BERLIN, "2024-03-14T22:59", "2024-02-14T23:00", "2024-03-14T23:00", offset="14 days"),
    case("week", BERLIN, "2024-04-01T03:59", "2024-03-25T05:00", "2024-04-01T04:00", offset="6 hours"),
    # long ago, before zones had rules
    case("day", BERLIN, "1850-01-01T12:00", "1849-12-31T23:06:32", "1850-01-01T23:06:32"),
    case("year", "UTC", "0500-06-01T00:00", "0500-01-01T00:00", "0501-01-01T00:00"),
    case("year", BERLIN, "9000-06-01T00:00", "8999-12-31T23:00", "9000-12-31T23:00"),
]
