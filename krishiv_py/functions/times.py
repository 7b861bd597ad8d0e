"""Functions of dates and times, in UTC where no time zone is given: parts, begins, moves, differences, texts."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa

from krishiv_py.functions.computing import dates, zones
from krishiv_py.functions.computing.casts import cast
from krishiv_py.functions.computing.dates import read_by
from krishiv_py.functions.computing.values import INSTANT
from krishiv_py.functions.definition import AddUnit, Read, SqlNode, Switch, Unit, Value, Written, Zone, example, function


@function("times", "int", node=SqlNode("Year"), zoned=True)
@example("year(TIMESTAMP '2024-02-29 12:30:15.25')", 2024)
def year(value: Value) -> Value:
    """Return the year of a date or time, as a clock in the `time_zone` shows it."""
    return dates.part("year", value)


@function("times", "int", node=SqlNode("Quarter"), zoned=True)
@example("quarter(TIMESTAMP '2024-02-29 12:30:15.25')", 1)
def quarter(value: Value) -> Value:
    """Return the quarter, 1 to 4, as a clock in the `time_zone` shows it."""
    return dates.part("quarter", value)


@function("times", "int", node=SqlNode("Month"), zoned=True)
@example("month(TIMESTAMP '2024-02-29 12:30:15.25')", 2)
def month(value: Value) -> Value:
    """Return the month, 1 to 12, as a clock in the `time_zone` shows it."""
    return dates.part("month", value)


@function("times", "int", node=SqlNode("WeekOfYear"), zoned=True)
@example("weekofyear(TIMESTAMP '2024-02-29 12:30:15.25')", 9)
def weekofyear(value: Value) -> Value:
    """Return the ISO week of the year, 1 to 53, as a clock in the `time_zone` shows it."""
    return dates.part("weekofyear", value)


@function("times", "int", node=(SqlNode("Day"), SqlNode("DayOfMonth")), names=("dayofmonth",), zoned=True)
@example("day(TIMESTAMP '2024-02-29 12:30:15.25')", 29)
def day(value: Value) -> Value:
    """Return the day of the month, 1 to 31, as a clock in the `time_zone` shows it."""
    return dates.part("day", value)


@function("times", "int", node=SqlNode("DayOfYear"), zoned=True)
@example("dayofyear(TIMESTAMP '2024-02-29 12:30:15.25')", 60)
def dayofyear(value: Value) -> Value:
    """Return the day of the year, 1 to 366, as a clock in the `time_zone` shows it."""
    return dates.part("dayofyear", value)


@function("times", "int", node=SqlNode("DayOfWeek"), zoned=True)
@example("dayofweek(TIMESTAMP '2024-02-29 12:30:15.25')", 5)
def dayofweek(value: Value) -> Value:
    """Return the day of the week: 1 is Sunday, 7 Saturday, as a clock in the `time_zone` shows it."""
    return dates.part("dayofweek", value)


@function("times", "int", node=SqlNode("Hour"), zoned=True)
@example("hour(TIMESTAMP '2024-02-29 12:30:15.25')", 12)
def hour(value: Value) -> Value:
    """Return the hour, 0 to 23, as a clock in the `time_zone` shows it."""
    return dates.part("hour", value)


@function("times", "int", node=SqlNode("Minute"), zoned=True)
@example("minute(TIMESTAMP '2024-02-29 12:30:15.25')", 30)
def minute(value: Value) -> Value:
    """Return the minute, 0 to 59, as a clock in the `time_zone` shows it."""
    return dates.part("minute", value)


@function("times", "int", node=SqlNode("Second"), zoned=True)
@example("second(TIMESTAMP '2024-02-29 12:30:15.25')", 15)
def second(value: Value) -> Value:
    """Return the second, 0 to 59, as a clock in the `time_zone` shows it."""
    return dates.part("second", value)


@function("times", "decimal(8, 6)", in_text=False, method=False)
@example("EXTRACT(SECOND FROM TIMESTAMP '2024-02-29 12:30:15.25')", Decimal("15.250000"))
def second_fraction(value: Value) -> Value:
    """Return the seconds of the minute with their fraction: ``EXTRACT(SECOND FROM t)`` in text."""
    return dates.second_fraction(value)


@function("times", "timestamp", subject=1, short=True)
@example("date_trunc('hour', TIMESTAMP '2024-02-29 12:30:15.25')", dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone.utc))
def date_trunc(unit: Unit, value: Value, time_zone: Zone = "UTC") -> Value:
    """Return the instant at which the `unit` of the time began, by a clock in the `time_zone`; weeks begin on Mondays."""
    unit = unit.lower()
    return dates.truncated(unit, value) if time_zone == "UTC" else zones.truncated(unit, value, time_zone)


@function("times", "date")
@example("date_add(DATE '2024-02-28', 2)", dt.date(2024, 3, 1))
def date_add(value: Value, days: Value) -> Value:
    """Return the date so many `days` later; a column or constant."""
    return dates.moved(value, days, 1)


@function("times", "date")
@example("date_sub(DATE '2024-03-01', 1)", dt.date(2024, 2, 29))
def date_sub(value: Value, days: Value) -> Value:
    """Return the date so many `days` earlier; a column or constant."""
    return dates.moved(value, days, -1)


@function("times", "int", node=SqlNode("DateDiff", "this expression"))
@example("datediff(DATE '2024-03-01', DATE '2024-02-28')", 2)
def datediff(value: Value, start: Value) -> Value:
    """Return the days from `start` to this date."""
    return dates.days_between(value, start)


@function("times", "date", node=SqlNode("AddMonths", "this expression"))
@example("add_months(DATE '2024-01-31', 1)", dt.date(2024, 2, 29))
def add_months(value: Value, months: Value) -> Value:
    """Return the date so many `months` later; the last day of a month that is too short."""
    return dates.add_months(value, months)


@function("times", "date or timestamp")
@example("DATE '2024-01-31' + INTERVAL 1 MONTH", dt.date(2024, 2, 29))
def plus_months(value: Value, months: Value) -> Value:
    """Return a date, or a time with its time of day, so many `months` later: ``x + INTERVAL 1 MONTH`` in text."""
    return dates.plus_months(value, months)


@function("times", "date or timestamp")
@example("DATE '2024-01-31' + INTERVAL 1 DAY", dt.date(2024, 2, 1))
def plus_days(value: Value, days: Value) -> Value:
    """Return a date, or a time, so many `days` later: ``x + INTERVAL 1 DAY`` in text."""
    return dates.plus_days(value, days)


@function("times", "date", node=SqlNode("LastDay"))
@example("last_day(DATE '2024-02-03')", dt.date(2024, 2, 29))
def last_day(value: Value) -> Value:
    """Return the last day of the month the date lies in."""
    return dates.last_day(value)


@function("times", "date", node=SqlNode("DateFromParts", "year month day"), method=False)
@example("make_date(2024, 2, 29)", dt.date(2024, 2, 29))
def make_date(year: Value, month: Value, day: Value) -> Value:
    """Return the date of three numbers; a date that the calendar does not have is an error."""
    return dates.make_date([year, month, day])


@function("times", "timestamp", node=SqlNode("TimestampFromParts", "year month day hour min sec"), method=False)
@example("make_timestamp(2024, 2, 29, 12, 30, 15.25)", dt.datetime(2024, 2, 29, 12, 30, 15, 250_000, tzinfo=dt.timezone.utc))
def make_timestamp(year: Value, month: Value, day: Value, hour: Value, minute: Value, seconds: Value) -> Value:
    """Return the time in UTC of six numbers; 60 whole seconds are the next minute."""
    return dates.make_timestamp([year, month, day, hour, minute, seconds])


@function("times", "timestamp", method=False)
@example(
    "timestampadd(HOUR, 2, TIMESTAMP '2024-02-29 12:30:15.25')",
    dt.datetime(2024, 2, 29, 14, 30, 15, 250_000, tzinfo=dt.timezone.utc),
)
def timestampadd(unit: AddUnit, amount: Value, value: Value) -> Value:
    """Return the time so many of a unit later; of a date a ``timestamp``."""
    return dates.timestampadd(unit.lower(), amount, value)


@function("times", "double", node=SqlNode("MonthsBetween", "this expression roundoff"), short=True)
@example("months_between(DATE '2024-03-31', DATE '2024-02-29')", 1.0)
def months_between(value: Value, start: Value, round_off: Switch = True) -> Value:
    """Return the months from `start` to the date or time, a fraction in 31 days; rounded to eight digits with `round_off`."""
    return dates.months_between(value, start, round_off)


@function("times", "string", zoned=True)
@example("date_format(TIMESTAMP '2024-02-29 12:30:15.25', 'dd/MM/yyyy HH:mm')", "29/02/2024 12:30")
def date_format(value: Value, pattern: Written) -> Value:
    """Return the time by a `pattern` such as ``"yyyy-MM-dd HH:mm"``, as a clock in the `time_zone` shows it."""
    return dates.date_format(value, pattern)


@function("times", "string")
@example("from_unixtime(0)", "1970-01-01 00:00:00")
def from_unixtime(value: Value, pattern: Written = "yyyy-MM-dd HH:mm:ss") -> Value:
    """Return whole seconds since 1970 as a time, written by a `pattern`."""
    return dates.from_unixtime(value, pattern)


@function("times", "bigint", node=SqlNode("UnixSeconds"))
@example("unix_seconds(TIMESTAMP '1970-01-01 00:00:02')", 2)
def unix_seconds(value: Value) -> Value:
    """Return the whole seconds from 1970 to the time; before 1970 those of the second that contains it."""
    return dates.since_1970(value, 1_000_000)


@function("times", "bigint", node=SqlNode("UnixMillis"))
@example("unix_millis(TIMESTAMP '1970-01-01 00:00:02')", 2000)
def unix_millis(value: Value) -> Value:
    """Return the whole milliseconds from 1970 to the time."""
    return dates.since_1970(value, 1_000)


@function("times", "bigint", node=SqlNode("UnixMicros"))
@example("unix_micros(TIMESTAMP '1970-01-01 00:00:02')", 2000000)
def unix_micros(value: Value) -> Value:
    """Return the microseconds from 1970 to the time."""
    return dates.since_1970(value, 1)


@function("times", "bigint", method=False)
@example("unix_timestamp(TIMESTAMP '1970-01-01 00:00:02')", 2)
def unix_timestamp(value: Value) -> Value:
    """Return the seconds from 1970 to the time without their fraction: before 1970 the later of the two around it."""
    return dates.unix_timestamp(value)


@function("times", "timestamp", method=False)
@example("timestamp_seconds(2)", dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.timezone.utc))
def timestamp_seconds(value: Value) -> Value:
    """Return the time so many seconds after 1970."""
    return dates.instant(value, 1_000_000)


@function("times", "timestamp", method=False)
@example("timestamp_millis(2000)", dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.timezone.utc))
def timestamp_millis(value: Value) -> Value:
    """Return the time so many milliseconds after 1970."""
    return dates.instant(value, 1_000)


@function("times", "timestamp", method=False)
@example("timestamp_micros(2000000)", dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.timezone.utc))
def timestamp_micros(value: Value) -> Value:
    """Return the time so many microseconds after 1970."""
    return dates.instant(value, 1)


def _read_as(type_: pa.DataType, value: Value, pattern: str | None, *, tried: bool) -> Value:
    return cast(value, type_, named=True, tried=tried) if pattern is None else read_by(value, pattern, type_, tried=tried)


@function("times", "date")
@example("to_date('31/01/2024', 'dd/MM/yyyy')", dt.date(2024, 1, 31))
def to_date(value: Value, pattern: Read | None = None) -> Value:
    """Return the text as a date, written by a `pattern` such as ``"dd/MM/yyyy"``; an error where it is not."""
    return _read_as(pa.date32(), value, pattern, tried=False)


@function("times", "timestamp")
@example("to_timestamp('31/01/2024', 'dd/MM/yyyy')", dt.datetime(2024, 1, 31, tzinfo=dt.timezone.utc))
def to_timestamp(value: Value, pattern: Read | None = None) -> Value:
    """Return the text as a time in UTC, written by a `pattern`; an error where it is not."""
    return _read_as(INSTANT, value, pattern, tried=False)


@function("times", "timestamp")
@example("try_to_timestamp('soon', 'dd/MM/yyyy')", None)
def try_to_timestamp(value: Value, pattern: Read | None = None) -> Value:
    """Return the text as a time in UTC, written by a `pattern`; null where it is not."""
    return _read_as(INSTANT, value, pattern, tried=True)


@function("times", "timestamp")
@example(
    "from_utc_timestamp(TIMESTAMP '2024-01-31 12:00:00', 'Europe/Berlin')", dt.datetime(2024, 1, 31, 13, tzinfo=dt.timezone.utc)
)
def from_utc_timestamp(value: Value, time_zone: Zone) -> Value:
    """Return what a clock in the `time_zone` shows when it is this time in UTC."""
    return zones.from_utc(value, time_zone)


@function("times", "timestamp")
@example(
    "to_utc_timestamp(TIMESTAMP '2024-01-31 13:00:00', 'Europe/Berlin')", dt.datetime(2024, 1, 31, 12, tzinfo=dt.timezone.utc)
)
def to_utc_timestamp(value: Value, time_zone: Zone) -> Value:
    """Return the time in UTC when a clock in the `time_zone` shows this.

    A time that the clock skips counts as if it had not been put forward yet; of one that it shows twice, the first counts.
    """
    return zones.to_utc(value, time_zone)


@function("times", "timestamp or timestamp_ntz", node=SqlNode("AtTimeZone", "this zone"), in_text=False)
@example("TIMESTAMP '2024-01-31 12:00:00' AT TIME ZONE 'Europe/Berlin'", dt.datetime(2024, 1, 31, 13))
def at_time_zone(value: Value, time_zone: Zone) -> Value:
    """Return of a ``timestamp`` what a clock in the `time_zone` shows, without zone; of a ``timestamp_ntz`` the instant.

    In SQL text: ``at AT TIME ZONE 'Europe/Berlin'``.
    """
    return zones.at_time_zone(value, time_zone)
