"""Window functions and lengths of time: ``tumble_start(ts, INTERVAL '1' MINUTE)``, ``window(ts, '1 minute')``."""

from __future__ import annotations

import datetime as dt
import difflib
import re
from typing import Final, Literal, TypeAlias

import attrs
import pyarrow as pa
import sqlglot
from sqlglot import expressions as sg

from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.errors import DurationError, ExpressionError, PlanError
from krishiv_py.plan.durations import show_us, to_us
from krishiv_py.plan.expressions.spans import span_of
from krishiv_py.plan.windows.calendar import CalendarCumulating, CalendarUnit, calendar_window
from krishiv_py.plan.windows.fixed import AssignedWindow, assigned

_SAID_AGAIN: Final = re.compile(r"^\s*interval\s+", re.IGNORECASE)
"""Spark's ``window(ts, 'interval 1 minute')``."""
_ZONE: Final = re.compile(r"^(?!interval\b)[a-z]", re.IGNORECASE)
"""The beginning of a text that is the name of a time zone, and no length."""
_CALENDAR: Final = re.compile(r"^\s*(?:interval\s+)?(\d{1,9})\s*(hour|day|week|month|quarter|year)s?\s*$", re.IGNORECASE)
_IN_MONTHS: Final[dict[CalendarUnit, int]] = {"month": 1, "quarter": 3, "year": 12}
_IN_DAYS: Final[dict[CalendarUnit, int]] = {"day": 1, "week": 7}
Kind: TypeAlias = Literal["tumble", "hop", "cumulate", "session"]
Bound: TypeAlias = Literal["start", "end", "time"]

LENGTHS: Final[dict[Kind, tuple[str, ...]]] = {
    "tumble": ("size",),
    "hop": ("slide", "size"),
    "cumulate": ("step", "size"),
    "session": ("gap",),
}
_SHOWN: Final = {"tumble": ("interval",)}
_BOUNDS: Final[dict[str, Bound]] = {"start": "start", "end": "end", "rowtime": "time"}
_CALLS: Final[dict[str, tuple[Kind, Bound | None]]] = {
    **{f"tumble_{name}": ("tumble", bound) for name, bound in _BOUNDS.items()},
    **{f"hop_{name}": ("hop", bound) for name, bound in _BOUNDS.items()},
    **{"cumulate_start": ("cumulate", "start"), "cumulate_end": ("cumulate", "end")},
    **{f"session_{name}": ("session", bound) for name, bound in _BOUNDS.items()},
    **{"tumble": ("tumble", None), "hop": ("hop", None), "cumulate": ("cumulate", None), "session": ("session", None)},
    "session_window": ("session", None),
}
WINDOW_CALLS: Final = tuple(name for name, (_, bound) in _CALLS.items() if bound in ("start", "end"))
_BY_NAME: Final = ("offset", "time_zone")
WINDOW_FUNCTIONS: Final = frozenset({*_CALLS, "window"})
WINDOW_TIME: Final = "window_time"
"""Spark's function of such a struct: the event time of results."""
SPARKS: Final = ("window", "session_window")
"""Functions whose value is a struct of both bounds."""


@attrs.frozen
class WindowCall:
    """The window a query groups by; lengths in µs, in the order of the call."""

    kind: Kind
    lengths: tuple[int, ...]
    offset_us: int = 0

    def over(self, stream: KeyedStream) -> WindowedStream:
        """Return the builder's window."""
        lengths = [dt.timedelta(microseconds=us) for us in self.lengths]
        offset = dt.timedelta(microseconds=self.offset_us)
        if self.kind == "tumble":
            return stream.tumbling_window(lengths[0], offset)
        if self.kind == "hop":
            return stream.hopping_window(lengths[1], lengths[0], offset)
        if self.kind == "cumulate":
            return stream.cumulate_window(lengths[0], lengths[1], offset)
        return stream.session_window(lengths[0])

    def same_again(self, tick_us: int) -> WindowCall:
        """Tumbling windows that end where these end, each holding the results of one of them (Flink's cascading windows).

        ::

            inner   [0, 60)  [30, 90)  [60, 120)     results at 59, 89, 119
            again      [30, 60)  [60, 90)  [90, 120)
        """
        if self.kind == "session":
            return WindowCall("tumble", (tick_us,))
        return WindowCall("tumble", (self.lengths[0],), (self.offset_us + self.lengths[-1]) % self.lengths[0])

    def __str__(self) -> str:
        offset = f", offset {show_us(self.offset_us)}" if self.offset_us else ""
        return f"{self.kind}({', '.join(map(show_us, self.lengths))}{offset})"


@attrs.frozen
class CalendarCall(WindowCall):
    """Windows of the calendar, which a time zone or a length in months asks for."""

    window: AssignedWindow = attrs.field(kw_only=True)
    again: AssignedWindow | None = attrs.field(kw_only=True, eq=False)
    """Windows that do not overlap and end where these end; None where there are none."""

    def over(self, stream: KeyedStream) -> WindowedStream:
        """Return the builder's window."""
        return stream.window(self.window)

    def same_again(self, tick_us: int) -> WindowCall:
        """See WindowCall."""
        if self.again is None:
            then = "weeks end within months, quarters and years"
            hint = "group by a step of days, or write the outer window out"
            raise PlanError("no windows end where these end", got=str(self), then=then, hint=hint)
        return CalendarCall("tumble", (), window=self.again, again=self.again)

    def __str__(self) -> str:
        return f"{self.kind}({self.window.describe()})"


def window_call(node: object, times: tuple[str, ...]) -> tuple[WindowCall, Bound | None] | None:
    """Return what a window function asks for; None for any other expression. It has to be over one of `times`, the
    event time.
    """
    if isinstance(node, sg.Dot) and node.expression.name.lower() in ("start", "end"):
        call = window_call(node.this, times) if is_struct_call(node.this) else None
        return None if call is None else (call[0], "start" if node.expression.name.lower() == "start" else "end")
    if not isinstance(node, sg.Anonymous):
        return None
    name = node.name.lower()
    if name == WINDOW_TIME and len(node.expressions) == 1 and is_struct_call(node.expressions[0]):
        call = window_call(node.expressions[0], times)
        return None if call is None else (call[0], "time")
    if name == "window":
        return _sparks(node, times), None
    if name not in _CALLS:
        near = difflib.get_close_matches(name, WINDOW_CALLS, n=1, cutoff=0.75)
        if near:
            raise PlanError("unknown function", got=node.sql("spark"), hint=f"the nearest is {near[0]}")
        return None
    kind, bound = _CALLS[name]
    names = LENGTHS[kind]
    least = 1 + len(names)
    if not least <= len(node.expressions) <= least + 2 * (kind != "session"):
        shown = _SHOWN.get(kind, names)
        wanted = f"{name}({_named(times)}, {', '.join(shown)})"
        raise PlanError(f"{name} takes {least} arguments", got=node.sql("spark"), hint=f"write {wanted}")
    column, *given = node.expressions
    lengths = [n.expression if isinstance(n, sg.Kwarg) and n.this.name.lower() in _BY_NAME else n for n in given]
    check_time(column, times, name)
    return call_of(kind, lengths, name), bound


def bound_of_row(window: WindowCall, bound: Bound, time: sg.Expression, schema: pa.Schema) -> sg.Expression:
    """Return a bound of the window that a row is in, computed from its `time`.

    Raises
    ------
    PlanError
        Where a row has several windows, or one that depends on other rows or on the calendar.
    """
    type_ = schema.field(time.name).type
    tick = tick_us(type_)
    lengths = (*window.lengths, window.offset_us)
    zoneless = pa.types.is_timestamp(type_) and type_.tz is None
    if window.kind != "tumble" or not window.lengths or zoneless or any(us % tick for us in lengths):
        then = "rows do not know them"
        hint = f"they are one value for all rows of a window, so write them outside of aggregates: MAX(x) - window_{bound}"
        raise PlanError(f"bounds of {window} in an aggregate, or its FILTER", got=f"window_{bound}", then=then, hint=hint)
    size, offset = window.lengths[0] // tick, window.offset_us // tick
    from_start = {"start": 0, "end": size, "time": size - 1}[bound]
    number = "{0}" if tick > 1 else "unix_micros({0})"
    text = f"{number} - pmod({number} - {offset}, {size}) + {from_start}"
    text = text if tick > 1 else f"timestamp_micros({text})"
    made: sg.Expression = sqlglot.parse_one(f"({text.format(time.sql('spark'))})", dialect="spark")  # type: ignore[assignment]  # it says Expr, which has what is used here
    return made


def tick_us(bound: pa.DataType) -> int:
    """Return the unit of a time column of this type."""
    return 1_000 if pa.types.is_int64(bound) else 1


def is_struct_call(node: sg.Expression) -> bool:
    """Return whether it is one of Spark's functions, which give both bounds."""
    return isinstance(node, sg.Anonymous) and node.name.lower() in SPARKS


def call_of(kind: Kind, lengths: list[sg.Expression], name: str) -> WindowCall:
    """Return the window of parsed lengths, and of the offset that may follow them."""
    if kind != "session":
        zone = lengths[-1].name if is_zone(lengths[-1]) else None
        lengths = lengths if zone is None else lengths[:-1]
        units = [_calendar_length(node) for node in lengths[: len(LENGTHS[kind])]]
        if zone is not None or any(u is not None and u[1] in _IN_MONTHS for u in units):
            return _calendar_call(kind, lengths, units, zone or "UTC", name)
    if len(lengths) > len(LENGTHS[kind]) + 1:
        what = f"{name} takes lengths, an offset and a time zone"
        hint = f"write a zone last: {name}(..., INTERVAL '1' DAY, INTERVAL '6' HOUR, 'Europe/Berlin')"
        raise PlanError(what, got=", ".join(n.sql("spark") for n in lengths), hint=hint)
    names = _SHOWN.get(kind, LENGTHS[kind]) if name in _CALLS else LENGTHS[kind]
    given = tuple(interval_us(n, name) for n, _ in zip(lengths, names, strict=False))
    if kind == "hop" and given[0] > given[1]:
        order = "window(ts, size, slide)" if name == "window" else f"{name}(ts, slide, size)"
        hint = f"write the shorter length as the slide: {order}"
        what = f"`slide` ({show_us(given[0])}) is longer than `size` ({show_us(given[1])})"
        raise PlanError(
            what, got=", ".join(n.sql("spark") for n in lengths), then="rows between would be in no window", hint=hint
        )
    more = lengths[len(names) :]
    offset_us = interval_us(more[0], f"{name} offset", allow_zero=True, allow_negative=True) if more else 0
    period_us = given[-1] if kind == "cumulate" else given[0]
    return WindowCall(kind, given, offset_us % period_us)


def is_zone(node: sg.Expression) -> bool:
    """Return whether it is a text that can only be the name of a time zone."""
    return isinstance(node, sg.Literal) and node.is_string and _ZONE.match(node.name.strip()) is not None


def _calendar_length(node: sg.Expression) -> tuple[int, CalendarUnit] | None:
    """Return a number of one unit of the calendar; None for any other length."""
    value = node.this if isinstance(node, sg.Interval) else node
    if not isinstance(value, sg.Literal):
        return None
    unit = node.args.get("unit") if isinstance(node, sg.Interval) else None
    match = _CALENDAR.match(value.name if unit is None else f"{value.name} {unit.sql('spark')}")
    if match is None:
        return None
    word: CalendarUnit = match[2].lower()  # type: ignore[assignment]  # the pattern holds no other words
    return int(match[1]), word


def _calendar_call(
    kind: Kind, lengths: list[sg.Expression], units: list[tuple[int, CalendarUnit] | None], zone: str, name: str
) -> CalendarCall:
    """Windows of the calendar of such lengths, and of the offset that may follow them."""
    known = [u for u in units if u is not None]
    if len(known) < len(LENGTHS[kind]) or len(lengths) > len(units) + 1:
        what = f"{name} in a time zone takes whole hours, days, weeks, months, quarters or years"
        hint = f"write for instance INTERVAL '1' DAY; leave {zone!r} out for windows of minutes or seconds"
        raise PlanError(what, got=", ".join(n.sql("spark") for n in lengths), hint=hint)
    offset = _offset_text(lengths[len(units)]) if len(lengths) > len(units) else "0 s"
    many, unit = known[-1]
    if kind == "tumble":
        window = calendar_window(unit, zone, many, offset=offset)
        return CalendarCall(kind, (), window=window, again=window)
    if kind == "hop":
        every, slide = known[0]
        window = calendar_window(slide, zone, every, offset=offset, size=_as_many(known[1], slide, lengths))
        return CalendarCall(kind, (), window=window, again=calendar_window(slide, zone, every, offset=offset))
    one, step = known[0]
    if one != 1:
        steps, hint = lengths[0].sql("spark"), f"write INTERVAL '1' {step.upper()}"
        raise PlanError("windows of the calendar cumulate by one unit", got=steps, hint=hint)
    window = calendar_window(unit, zone, many, offset=offset, step=step)
    tiles = step != "week" or unit == "week"
    return CalendarCall(kind, (), window=window, again=_steps(window) if tiles else None)


def _steps(window: AssignedWindow) -> AssignedWindow:
    """Return the steps of cumulating windows, as windows."""
    assert isinstance(window.assigner, CalendarCumulating)
    return assigned(window.assigner.step)


def _as_many(length: tuple[int, CalendarUnit], unit: CalendarUnit, lengths: list[sg.Expression]) -> int:
    """Return a length as a number of another unit."""
    many, own = length
    for table in (_IN_MONTHS, _IN_DAYS):
        if own in table and unit in table and many * table[own] % table[unit] == 0:
            return many * table[own] // table[unit]
    if own == unit:
        return many
    raise PlanError(
        "the size is not a whole number of slides",
        got=", ".join(n.sql("spark") for n in lengths),
        then=f"a {own} is not a fixed number of {unit}s",
        hint=f"write the size in {unit}s: INTERVAL '7' {unit.upper()}",
    )


def _offset_text(node: sg.Expression) -> str:
    """Return an offset as a duration with months, which only calendars have."""
    if isinstance(node, sg.Add):
        return f"{_offset_text(node.this)} {_offset_text(node.expression)}"
    match = _calendar_length(node)
    if match is not None and match[1] in _IN_MONTHS:
        return f"{match[0]} {match[1]}"
    return f"{interval_us(node, 'offset', allow_zero=True, allow_negative=True)} us"


def _sparks(node: sg.Anonymous, times: tuple[str, ...]) -> WindowCall:
    """``window(ts, size[, slide[, offset[, zone]]])``."""
    if not 2 <= len(node.expressions) <= 5:
        hint = f"write window({_named(times)}, '1 minute'), or window({_named(times)}, size, slide, offset)"
        raise PlanError("window takes 2 to 4 arguments", got=node.sql("spark"), hint=hint)
    column, size, *more = node.expressions
    check_time(column, times, "window")
    slide, *offset = more if more and not is_zone(more[0]) else (size, *more)
    if slide == size:
        return call_of("tumble", [size, *offset], "window")
    return call_of("hop", [slide, size, *offset], "window")


def _named(times: tuple[str, ...]) -> str:
    """Return what the event time is called in a hint."""
    return times[0] if times else "ts"


def check_time(column: sg.Expression, times: tuple[str, ...], name: str) -> None:
    """Refuse another column than the event time; one with a table is a field of a struct."""
    if not isinstance(column, sg.Column) or column.table or column.name not in times:
        known = f"the declared event time is {_named(times)!r}"
        if not times:
            known = "select the event time in the inner query, too"
        then = "the watermark says nothing of it, so windows would never end"
        raise PlanError(f"{name} is not over the event time", got=column.sql("spark"), then=then, hint=known)


def interval_us(node: sg.Expression, name: str, *, allow_zero: bool = False, allow_negative: bool = False) -> int:
    """Return a length of time in µs: ``INTERVAL '1 minute'``, ``INTERVAL '1' MINUTE``, or the plain text ``'1 minute'``."""
    if isinstance(node, sg.Add):
        return interval_us(node.this, name) + interval_us(node.expression, name)
    if isinstance(node, sg.Neg) and allow_negative:
        return -interval_us(node.this, name, allow_zero=allow_zero)
    value = node.this if isinstance(node, sg.Interval) else node
    if not isinstance(value, sg.Literal) or not (value.is_string or isinstance(node, sg.Interval)):
        hint = "write for instance INTERVAL '5' SECOND"
        raise DurationError(f"`{name}` is not a legal duration", got=node.sql("spark"), hint=hint)
    unit = node.args.get("unit") if isinstance(node, sg.Interval) else None
    text = value.name if unit is None else f"{value.name} {unit.sql('spark')}"
    if isinstance(unit, sg.IntervalSpan):  # '1:30' MINUTE TO SECOND
        text = _one_unit(node, text)
    elif unit is None:
        text = _SAID_AGAIN.sub("", text)
    return to_us(text, name, allow_zero=allow_zero, allow_negative=allow_negative)


def _one_unit(node: sg.Expression, text: str) -> str:
    """Return an interval of several fields as a number of microseconds; the `text` itself where it has no fixed length."""
    try:
        span = span_of(node)
    except ExpressionError:
        return text
    return text if span is None or span.months else f"{span.days * 86_400_000_000 + span.us} us"
