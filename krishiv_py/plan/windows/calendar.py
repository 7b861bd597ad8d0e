"""Calendar windows in a time zone (SEMANTICS §3.10), an assigner like any other: hours, days, weeks, months, quarters, years.

The bounds around a stretch of time are worked out once, day by day in the zone, and kept; rows are then looked up in them::

    tumbling                 [jan)[feb)[mar)            calendar_window("month")
    hopping, 3 months long   [jan  feb  mar)            calendar_window("month", size=3)
                                  [feb  mar  apr)
    cumulating by days       [1 jan)                    calendar_window("month", step="day")
                             [1 jan 2)
                             [1 jan 2 3) ...
"""

from __future__ import annotations

import datetime as dt
import re
from functools import lru_cache
from typing import ClassVar, Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

import attrs
import numpy as np

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_number, a_text, one_of
from krishiv_py.plan.described import Assigned, Times, WindowAssigner
from krishiv_py.plan.durations import Duration, show_us, to_us
from krishiv_py.plan.operation import Apart
from krishiv_py.plan.windows.fixed import MAX_OVERLAP, AssignedWindow, assigned
from krishiv_py.plan.windows.window import EITHER_BOUND
from krishiv_py.types import zone_of

CalendarUnit: TypeAlias = Literal["hour", "day", "week", "month", "quarter", "year"]
Weekday: TypeAlias = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]

_UNITS: Final = ("hour", "day", "week", "month", "quarter", "year")
_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS: Final = {"hour": 1 / 24, "day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366}
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
_SECOND: Final = 1_000_000
_HOUR: Final = 3_600 * _SECOND
_DAY: Final = 24 * _HOUR
_BLOCK: Final = 512 * _DAY
"""The length of the stretches for which bounds are kept."""
_MOST_DAYS: Final = 27
"""The most days by which windows may begin later in a month: all months have a 28th."""
_CALENDAR_PART: Final = re.compile(r"(?<![\d.])(\d{1,6})\s*(month|quarter|year)s?(?![a-zA-Z])", re.IGNORECASE)
_EPOCH: Final = dt.datetime(1970, 1, 1)
_CYCLE: Final = 146_097
"""Days in 400 years, after which the calendar, and the last rules of a time zone, repeat."""
_FIRST, _LAST = (dt.date(2, 1, 1) - dt.date(1970, 1, 1)).days, (dt.date(9998, 1, 1) - dt.date(1970, 1, 1)).days


@attrs.frozen
class Offset:
    """Says how much later than the calendar's units windows begin: by a clock in the zone, not in time that passes."""

    months: int = 0
    days: int = 0
    seconds: int = 0

    def __str__(self) -> str:
        """For instance ``3 months``, or ``1 d 6 h``."""
        parts = (self.days * _DAY, self.seconds * _SECOND)
        months = [f"{self.months} month{'s' * (self.months > 1)}"] if self.months else []
        return " ".join(months + [show_us(us) for us in parts if us])


_NO_OFFSET: Final = Offset()


@attrs.frozen
class CalendarWindows(WindowAssigner):
    """Windows that begin where the calendar of a time zone says so."""

    name: ClassVar[str] = "calendar_window"
    _apart_by: ClassVar[Apart] = EITHER_BOUND

    unit: CalendarUnit
    time_zone: str
    every: int
    week_start: Weekday
    offset: Offset = _NO_OFFSET

    @property
    def longest(self) -> dt.timedelta:
        """A zone may put its clock back by a day, where it crosses the date line."""
        return dt.timedelta(days=_DAYS[self.unit] * self.every, hours=49)

    def describe(self) -> str:
        """For instance ``2 calendar weeks from monday in Europe/Berlin``."""
        many = f"calendar {self.unit}" if self.every == 1 else f"{self.every} calendar {self.unit}s"
        later = f", offset {self.offset}," if self.offset != _NO_OFFSET else ""
        return many + f" from {self.week_start}" * (self.unit == "week") + f"{later} in {self.time_zone}"

    def parameters(self) -> dict[str, object]:
        """Return what a checkpoint notes; an offset only where there is one."""
        settings = {"unit": self.unit, "time_zone": self.time_zone, "every": self.every, "week_start": self.week_start}
        return settings if self.offset == _NO_OFFSET else {**settings, "offset": str(self.offset)}

    def assign(self, times: Times) -> tuple[Times, Times]:
        """Look rows up in the bounds around them."""
        low, high = int(times.min()) // _BLOCK, int(times.max()) // _BLOCK
        blocks = [low] if low == high else np.unique(times // _BLOCK).tolist()
        bounds = _bounds(self, blocks[0]) if low == high else np.unique(np.concatenate([_bounds(self, b) for b in blocks]))
        positions = np.searchsorted(bounds, times, side="right")
        return bounds[positions - 1], bounds[positions]

    def numbers(self, first_day: int, last_day: int) -> range:
        """Numbers of all windows that begin between two local days (counted from 1970), and of one more on either side.

        An offset is shorter than a window, so the one before begins at or before the first day with it, too.
        """
        low, high = (self._number(day) for day in (first_day, last_day))
        return range(low - 1, high + 2)

    def _number(self, day: int) -> int:
        """Return the window that holds a local day; of hours: the day itself."""
        if self.unit == "hour":
            return day
        if self.unit == "day":
            return day // self.every
        if self.unit == "week":
            return (day - self._monday) // (7 * self.every)
        year, month = _month_of(day)
        return (year * 12 + month - 1) // (_MONTHS[self.unit] * self.every)

    @property
    def _monday(self) -> int:
        """The first day of the week that holds 1970-01-01, a Thursday."""
        return (_WEEKDAYS.index(self.week_start) - 3) % 7 - 7 if self.week_start != "thursday" else 0

    def starts(self, number: int) -> list[int]:
        """Return when window `number` begins, in µs; of hours: all windows of that day."""
        zone, later = ZoneInfo(self.time_zone), self.offset
        if self.unit == "hour":
            hours = range(0, 24, self.every)
            midnight, next_one = (_instant(zone, day, 0, 0) for day in (number, number + 1))
            if next_one - midnight == _DAY:  # a day like any other, of which no hour has to be looked at
                return [midnight + h * _HOUR + later.seconds * _SECOND for h in hours]
            folds = (0, 1) if self.every == 1 else (0,)
            return [_instant(zone, number, 3_600 * h + later.seconds, fold) for h in hours for fold in folds]
        if self.unit == "day":
            day = number * self.every
        elif self.unit == "week":
            day = self._monday + number * 7 * self.every
        else:
            months = number * _MONTHS[self.unit] * self.every + later.months
            day = _day_of(months // 12, months % 12 + 1)
        return [_instant(zone, day + later.days, later.seconds, 0)]


@attrs.frozen
class CalendarHopping(WindowAssigner):
    """Windows of `many` windows of the calendar each, of which one begins where each of those begins."""

    name: ClassVar[str] = "calendar_window"
    _apart_by: ClassVar[Apart] = EITHER_BOUND

    base: CalendarWindows
    many: int

    @property
    def size(self) -> int:
        """Return how many units a window lasts."""
        return self.many * self.base.every

    @property
    def longest(self) -> dt.timedelta:
        """As for windows that do not overlap."""
        return dt.timedelta(days=_DAYS[self.base.unit] * self.size, hours=49)

    def describe(self) -> str:
        """For instance ``calendar day in Europe/Berlin, 7 days long``."""
        return f"{self.base.describe()}, {self.size} {self.base.unit}s long"

    def parameters(self) -> dict[str, object]:
        """Return what a checkpoint notes."""
        return {**self.base.parameters(), "size": self.size}

    def assign(self, times: Times) -> Assigned:
        """Look rows up in the starts and in the ends, which both ascend."""
        blocks = np.unique(times // _BLOCK).tolist()
        starts_of = [_overlapping(self, block) for block in blocks]
        starts, one_each = np.unique(np.concatenate([s for s, _ in starts_of]), return_index=True)
        ends = np.concatenate([e for _, e in starts_of])[one_each]
        first, last = np.searchsorted(ends, times, side="right"), np.searchsorted(starts, times, side="right")
        rows, nth = _spread(last - first)
        positions = first[rows] + nth
        return rows, starts[positions], ends[positions]


@attrs.frozen
class CalendarCumulating(WindowAssigner):
    """Windows of one start that grow by a `step` of the calendar until the `base` window is full."""

    name: ClassVar[str] = "calendar_window"
    _apart_by: ClassVar[Apart] = (("window_end",),)

    base: CalendarWindows
    step: CalendarWindows

    @property
    def longest(self) -> dt.timedelta:
        """The whole window."""
        return self.base.longest

    def describe(self) -> str:
        """For instance ``calendar month in Europe/Berlin, cumulating by day``."""
        return f"{self.base.describe()}, cumulating by {self.step.unit}"

    def parameters(self) -> dict[str, object]:
        """Return what a checkpoint notes."""
        return {**self.base.parameters(), "step": self.step.unit}

    def assign(self, times: Times) -> Assigned:
        """A row is in each window of its start that ends after it; ends of one start do not reach into those of the next."""
        starts, ends = self.base.assign(times)
        firsts, one_each = np.unique(starts, return_index=True)
        pairs = zip(firsts.tolist(), ends[one_each].tolist(), strict=True)
        edges = np.concatenate([_edges(self.step, start, end) for start, end in pairs])
        first, last = np.searchsorted(edges, times, side="right"), np.searchsorted(edges, ends, side="right")
        rows, nth = _spread(last - first)
        return rows, starts[rows], edges[first[rows] + nth]


def _spread(counts: Times) -> tuple[Times, Times]:
    """Each number of a row as often as `counts` says, and its place among its like."""
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)


@lru_cache(maxsize=256)
def _overlapping(windows: CalendarHopping, block: int) -> tuple[Times, Times]:
    """Starts and ends of all windows that reach into a block of time, by start.

    Days that a zone skips count in the length of a window, but none begins there. Hours that it skips or repeats are the hours
    that a clock shows.
    """
    base, many, first = windows.base, windows.many, block * _BLOCK
    reach = round(_DAYS[base.unit] * windows.size) + 3
    numbers = base.numbers(first // _DAY - reach, (first + _BLOCK) // _DAY + reach)
    all_starts = np.array([start for n in numbers for start in base.starts(n)], np.int64)
    all_starts = np.unique(all_starts) if base.unit == "hour" else all_starts
    starts, ends = all_starts[:-many], all_starts[many:]
    kept = (np.append(starts[1:] != starts[:-1], True)) & (ends > first) & (starts < first + _BLOCK)
    return starts[kept], ends[kept]


@lru_cache(maxsize=1_024)
def _edges(step: CalendarWindows, start: int, end: int) -> Times:
    """Return where the windows of a start end: at each beginning of a step, and at the end."""
    edges = np.unique(np.concatenate([_bounds(step, b) for b in range(start // _BLOCK, (end - 1) // _BLOCK + 1)]))
    return np.append(edges[(edges > start) & (edges < end)], end)


@lru_cache(maxsize=256)
def _bounds(windows: CalendarWindows, block: int) -> Times:
    """Bounds from the last one at or before a block of time to the first one after it, ascending."""
    first, last = block * _BLOCK, (block + 1) * _BLOCK
    numbers = windows.numbers(first // _DAY - 2, last // _DAY + 2)
    bounds = np.unique(np.array([start for n in numbers for start in windows.starts(n)], np.int64))
    return bounds[np.searchsorted(bounds, first, side="right") - 1 : np.searchsorted(bounds, last, side="left") + 1]


def _instant(zone: ZoneInfo, day: int, second: int, fold: int) -> int:
    """Return the instant, µs, at which a clock in the zone shows a time of a local day; where it is skipped, the first one
    after.

    `fold` is 1 for the second of two instants. Far from now, the same day a few times 400 years nearer stands for the day.
    """
    cycles = (day - _FIRST) // _CYCLE if day < _FIRST else -(-(day - _LAST) // _CYCLE) if day > _LAST else 0
    wall = _EPOCH + dt.timedelta(days=day - cycles * _CYCLE, seconds=second)
    instant = wall.replace(tzinfo=zone, fold=fold).astimezone(dt.timezone.utc)
    if instant.astimezone(zone).replace(tzinfo=None) != wall:
        instant = _end_of_gap(zone, wall)
    return _us(instant) + cycles * _CYCLE * _DAY


def _end_of_gap(zone: ZoneInfo, wall: dt.datetime) -> dt.datetime:
    """Return when the clock jumps over a time it never shows."""
    before, after = sorted(wall.replace(tzinfo=zone, fold=f).astimezone(dt.timezone.utc) for f in (0, 1))
    while after - before > dt.timedelta(seconds=1):
        middle = before + (after - before) // 2
        middle = middle.replace(microsecond=0)
        middle = middle if middle > before else before + dt.timedelta(seconds=1)
        if middle.astimezone(zone).replace(tzinfo=None) < wall:
            before = middle
        else:
            after = middle
    return after


def _us(instant: dt.datetime) -> int:
    return (instant.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1)


def _day_of(year: int, month: int) -> int:
    """Return the first day of a month, counted from 1970, of any year."""
    cycles = year // 400 - 5
    return (dt.date(year - 400 * cycles, month, 1) - dt.date(1970, 1, 1)).days + cycles * _CYCLE


def _month_of(day: int) -> tuple[int, int]:
    """Year and month of a day counted from 1970."""
    cycles = day // _CYCLE
    date = dt.date(1970, 1, 1) + dt.timedelta(days=day - cycles * _CYCLE)
    return date.year + 400 * cycles, date.month


def calendar_window(
    unit: CalendarUnit,
    time_zone: str = "UTC",
    every: int = 1,
    *,
    week_start: Weekday = "monday",
    offset: Duration = 0,
    size: int | None = None,
    step: CalendarUnit | None = None,
) -> AssignedWindow:
    """Windows of the calendar in a time zone, for ``stream.window(...)`` (SEMANTICS §3.10).

    Parameters
    ----------
    unit : {"hour", "day", "week", "month", "quarter", "year"}
        What a window is a number of.
    time_zone : str
        Name of a zone, such as ``"Europe/Berlin"``. Event times are instants; those of ``bigint`` and ``timestamp_ntz`` columns
        count as UTC.
    every : int
        How many units a window has, from 1. Hours: a divisor of 24, counted from midnight. Days are counted from 1970-01-01,
        weeks from the one that holds it, months, quarters and years from January of the year 0.
    week_start : str
        The day on which weeks begin, for instance ``"sunday"``.
    offset : int or timedelta or str
        How much later windows begin, by a clock in the zone: ``"6 hours"`` for days from 06:00 to 06:00, ``"3 months"`` for
        years from April, ``"14 days"`` for months from the 15th. Shorter than a window, whole seconds; ``int`` is milliseconds.
        Months and quarters only for windows of months or longer, which may begin on the days 1 to 28 of a month.
    size : int, optional
        How many units a window lasts, a multiple of `every`, at most 10 000. Then windows overlap (hopping windows): one begins
        every `every` units. Unless given, a window ends where the next one begins.
    step : {"hour", "day", "week", "month", "quarter", "year"}, optional
        Windows of one start that grow by this unit until they are full (cumulating windows): ``"day"`` gives the month to date
        at the end of each of its days. The last one ends with the whole window, even if a week goes on.

    Raises
    ------
    PlanError
        For an unknown unit, time zone or weekday, and numbers that do not fit.

    Examples
    --------
    >>> calendar_window("month", "Europe/Berlin").describe()
    'calendar month in Europe/Berlin, windows of at most 793 h'
    >>> calendar_window("day", "Europe/Paris", offset="6 hours").describe()
    'calendar day, offset 6 h, in Europe/Paris, windows of at most 73 h'
    >>> calendar_window("day", "Europe/Paris", size=7).describe()
    'calendar day in Europe/Paris, 7 days long, windows of at most 217 h'
    >>> calendar_window("month", "Europe/Paris", step="day").describe()
    'calendar month in Europe/Paris, cumulating by day, windows of at most 793 h'
    """
    one_of(unit, "unit", _UNITS)
    one_of(week_start, "week_start", _WEEKDAYS)
    if week_start != "monday" and unit != "week":
        hint = "leave week_start out"
        raise PlanError("only weeks have a first day", got=f"week_start={week_start!r}", then=f"a {unit} has none", hint=hint)
    zone = a_text(time_zone, "time_zone", 'pass the name of a zone: "Europe/Berlin"')
    if not isinstance(zone_of(zone), ZoneInfo):
        hint = 'pass a name such as "Europe/Berlin"; where the system has no zones, install the package tzdata'
        raise PlanError("there is no such time zone", got=shown(zone), hint=hint)
    a_number(every, "every", 1, f"pass how many {unit}s a window has", most=1_000)
    if unit == "hour" and 24 % every:
        then = "windows are counted from midnight"
        hint = "use 1, 2, 3, 4, 6, 8, 12 or 24"
        raise PlanError("hours of a window do not divide a day", got=f"every={every}", then=then, hint=hint)
    base = CalendarWindows(unit, zone, every, week_start, _offset(offset, unit, every))
    if size is not None and step is not None:
        hint = "leave one of them out"
        raise PlanError("windows either hop or cumulate", got=f"size={shown(size)}, step={shown(step)}", hint=hint)
    if step is not None:
        return assigned(_cumulating(base, step))
    return assigned(base if size is None else _hopping(base, size))


def _hopping(base: CalendarWindows, size: int) -> WindowAssigner:
    """Return the checked windows of `size` units; those of one window each do not overlap."""
    a_number(size, "size", 1, f"pass how many {base.unit}s a window lasts", most=10_000)
    if size % base.every:
        hint = f"use size={max(1, size // base.every) * base.every}, or every=1"
        raise PlanError("`size` is not a multiple of `every`", got=f"size={size}, every={base.every}", hint=hint)
    return base if size == base.every else CalendarHopping(base, size // base.every)


def _cumulating(base: CalendarWindows, step: CalendarUnit) -> CalendarCumulating:
    """Return the checked windows that grow by a `step`."""
    one_of(step, "step", _UNITS)
    longer = _UNITS.index(step) - _UNITS.index(base.unit)
    if longer > 0 or (longer == 0 and base.every == 1):
        got = f"step={step!r}, windows of {base.every} {base.unit}{'s' * (base.every > 1)}"
        hint = "leave step out" if base.unit == "hour" else f"use step={_UNITS[max(0, _UNITS.index(base.unit) - 1)]!r}"
        raise PlanError("`step` is not shorter than the window", got=got, hint=hint)
    if _DAYS[base.unit] * base.every / _DAYS[step] > MAX_OVERLAP:
        what = f"rows would be in more than {MAX_OVERLAP:,} windows"
        then = "each of them has a result for its key, so no query would keep up"
        raise PlanError(what, got=f"{base.every} {base.unit}s by {step}", then=then, hint='use a longer step: step="month"')
    by_month, offset = _MONTHS.get(step, 0), base.offset
    if by_month:
        own = attrs.evolve(offset, months=offset.months % by_month)
    else:
        own = Offset(
            0, offset.days if base.unit == step == "week" else 0, offset.seconds % (3_600 if step == "hour" else 86_400)
        )
    return CalendarCumulating(base, CalendarWindows(step, base.time_zone, 1, base.week_start, own))


def _offset(offset: Duration, unit: CalendarUnit, every: int) -> Offset:
    """Return the checked offset of windows of `every` units."""
    months, rest = 0, offset
    if isinstance(offset, str):
        parts = _CALENDAR_PART.findall(offset)
        months = sum(int(n) * _MONTHS[word.lower()] for n, word in parts)
        rest = _CALENDAR_PART.sub(" ", offset) if parts else offset
        rest = 0 if parts and not rest.strip() else rest
    us = to_us(rest, "offset", allow_zero=True)
    days, within = divmod(us, _DAY)
    result = Offset(months, days, within // _SECOND)
    by_month = _MONTHS.get(unit, 0) * every
    if within % _SECOND:
        problem, hint = "is not a whole number of seconds", "round it to seconds"
    elif months and not by_month:
        problem, hint = f"has months, and a window of {unit}s has none", 'write days or hours: "6 hours"'
    elif by_month and months >= by_month:
        problem, hint = (
            "is as long as a window or longer",
            f"leave out whole windows: at most {by_month - 1} months and 27 days",
        )
    elif by_month and days > _MOST_DAYS:
        problem, hint = "begins on a day that not every month has", f"write months, and at most {_MOST_DAYS} days"
    elif not by_month and us >= round(_DAYS[unit] * every * _DAY):
        problem, hint = "is as long as a window or longer", "leave out whole windows"
    else:
        return result
    then = f"windows of {every} {unit}s have no such beginning"
    raise PlanError(f"the offset {problem}", got=shown(offset), then=then, hint=hint)
