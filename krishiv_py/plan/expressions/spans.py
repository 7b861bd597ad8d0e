"""Times of SQL text: intervals, EXTRACT, conversions with a pattern."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Final, TypeAlias

import attrs
from sqlglot import expressions as sg
from sqlglot import parse_one
from sqlglot.dialects.spark import Spark

from krishiv_py.errors import ExpressionError
from krishiv_py.plan.expressions.expr import BinOp, Expr, Func, Lit

Read: TypeAlias = Callable[[sg.Expression], Expr]

_PARTS: Final = {
    "year": ("year", "y", "years", "yr", "yrs"),
    "quarter": ("quarter", "qtr"),
    "month": ("month", "mon", "mons", "months"),
    "weekofyear": ("week", "w", "weeks"),
    "day": ("day", "d", "days"),
    "dayofweek": ("dayofweek", "dow"),
    "dayofyear": ("doy",),
    "hour": ("hour", "h", "hours", "hr", "hrs"),
    "minute": ("minute", "m", "min", "mins", "minutes"),
    "second_fraction": ("second", "s", "sec", "seconds", "secs"),
}
_MONTHS: Final = {"year": 12, "month": 1}
_MICROS: Final = {"hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000, "millisecond": 1_000, "microsecond": 1}
_DAYS: Final = {"week": 7, "day": 1}
_FIELDS: Final = ("day", "hour", "minute", "second")
_LEAST_ABOVE: Final = {"hour": 24, "minute": 60, "second": 60}
_UNITS: Final = re.compile(r"\s*([+-]?)\s*(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)
_YEARS: Final = re.compile(r"(\d+)-(\d{1,2})")


@attrs.frozen
class Span:
    """A length of time: whole months, or days and a rest in microseconds; `by_day` if only days were named."""

    months: int = 0
    days: int = 0
    us: int = 0
    by_day: bool = True


def part_of(name: str, value: Expr) -> Expr | None:
    """``EXTRACT(name FROM value)``; None for a part that is not known."""
    for function, names in _PARTS.items():
        if name.lower() in names:
            return Func(function, (value,))
    return None


def times(node: sg.Expression, read: Read) -> Expr | None:
    """Return the expression of a function of times; None for another node."""
    if isinstance(node, sg.Extract):
        return part_of(node.this.name, read(node.expression))
    if isinstance(node, sg.TsOrDsToDate):
        return Func("to_date", (read(node.this), *([Lit(_pattern(node))] if node.args.get("format") is not None else [])))
    if isinstance(node, sg.StrToTime):
        return Func("to_timestamp", (read(node.this), Lit(_pattern(node))))
    if isinstance(node, (sg.TimeToStr, sg.UnixToStr)):
        value = node.this.this if isinstance(node.this, sg.TimeStrToTime) else node.this
        return Func("date_format" if isinstance(node, sg.TimeToStr) else "from_unixtime", (read(value), Lit(_pattern(node))))
    if isinstance(node, sg.StrToUnix) and _pattern(node) == "yyyy-MM-dd HH:mm:ss":
        return Func("unix_timestamp", (read(node.this),))
    span = span_of(node)
    if span is None or span.months:
        return None
    return Lit(dt.timedelta(days=span.days, microseconds=span.us))


def _pattern(node: sg.Expression) -> str:
    """Return the pattern as it was written; sqlglot gives it as a literal, in which quotation marks have a backslash."""
    return parse_one(str(Spark().generator().format_time(node)), dialect="spark").name


def span_of(node: sg.Expression | None) -> Span | None:
    """Return the interval a node is; None for another node."""
    if isinstance(node, sg.Paren):
        return span_of(node.this)
    if isinstance(node, sg.Add):
        one, other = span_of(node.this), span_of(node.expression)
        if one is None or other is None or bool(one.months) != bool(other.months):
            return None
        return Span(one.months + other.months, one.days + other.days, one.us + other.us, one.by_day and other.by_day)
    if isinstance(node, sg.Neg):
        span = span_of(node.this)
        return None if span is None else _times(span, -1)
    if not isinstance(node, sg.Interval):
        return None
    amount, sign = node.this, -1 if isinstance(node.this, sg.Neg) else 1
    amount = amount.this if isinstance(amount, sg.Neg) else amount
    text = amount.name.strip() if isinstance(amount, sg.Literal) else ""
    if isinstance(node.unit, sg.IntervalSpan):
        return _times(_by_fields(text, node.unit.this.name.lower(), node.unit.expression.name.lower(), node), sign)
    if node.unit is None:
        return _times(_by_units(text, node), sign)
    return _times(_one(text, node.unit.name, node), sign)


def _times(span: Span, sign: int) -> Span:
    return Span(sign * span.months, sign * span.days, sign * span.us, span.by_day)


def _by_units(text: str, node: sg.Expression) -> Span:
    """``'1 day -2 hours'``."""
    position, span = 0, Span()
    while position < len(text) or not text:
        match = _UNITS.match(text, position)
        if match is None:
            raise _unreadable(node)
        one, position = _times(_one(match[2], match[3], node), -1 if match[1] == "-" else 1), match.end()
        span = Span(span.months + one.months, span.days + one.days, span.us + one.us, span.by_day and one.by_day)
    if span.months and (span.days or span.us or not span.by_day):
        raise _unreadable(node)
    return span


def _by_fields(text: str, first: str, last: str, node: sg.Expression) -> Span:
    """``'1-2' YEAR TO MONTH``, ``'1 02:03:04.5' DAY TO SECOND`` and what lies between; the first field has no upper bound."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if (first, last) == ("year", "month"):
        years = _YEARS.fullmatch(digits)
        if years is None or int(years[2]) > 11:
            raise _unreadable(node)
        return Span(months=sign * (12 * int(years[1]) + int(years[2])))
    if first not in _FIELDS or last not in _FIELDS[_FIELDS.index(first) + 1 :]:
        raise _unreadable(node)
    fields = _FIELDS[_FIELDS.index(first) : _FIELDS.index(last) + 1]
    gaps = ["" if f == first else " " if fields[i - 1] == "day" else ":" for i, f in enumerate(fields)]
    parts = [r"(\d+)" if f == first else r"(\d{1,2}(?:\.\d{1,9})?)" if f == "second" else r"(\d{1,2})" for f in fields]
    match = re.fullmatch("".join(g + p for g, p in zip(gaps, parts, strict=True)), digits)
    if match is None:
        raise _unreadable(node)
    days, us = 0, 0
    for field, written in zip(fields, match.groups(), strict=True):
        if field != first and Decimal(written) >= _LEAST_ABOVE[field]:
            raise _unreadable(node)
        if field == "day":
            days = int(written)
        else:
            us += int(Decimal(written) * _MICROS[field])
    return Span(days=sign * days, us=sign * us, by_day=False)


def _one(text: str, unit: str, node: sg.Expression) -> Span:
    """So many of one unit."""
    unit = unit.lower().removesuffix("s")
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise _unreadable(node) from None
    if unit == "second":
        number, unit = number * 1_000_000, "microsecond"
    if number != int(number) or abs(number) >= 2**63:
        raise _unreadable(node)
    whole = int(number)
    if unit in _MONTHS:
        return Span(months=whole * _MONTHS[unit])
    if unit in _DAYS:
        return Span(days=whole * _DAYS[unit])
    if unit in _MICROS:
        return Span(us=whole * _MICROS[unit], by_day=False)
    raise _unreadable(node)


def moved(value: Expr, span: Span, sign: int) -> Expr:
    """``value + span``, or less it."""
    if span.months:
        return Func("plus_months", (value, Lit(sign * span.months)))
    if span.by_day:
        return Func("plus_days", (value, Lit(sign * span.days)))
    return BinOp("+" if sign > 0 else "-", value, Lit(dt.timedelta(days=span.days, microseconds=span.us)))


def _unreadable(node: sg.Expression) -> ExpressionError:
    return ExpressionError(
        "this interval is not a constant number of units",
        got=node.sql("spark"),
        hint="write INTERVAL 5 MINUTES, INTERVAL '1 day 2 hours' or INTERVAL '1 02:30:00' DAY TO SECOND; year, month, week, "
        "day, hour, minute, second, millisecond and microsecond are known, and months stand alone",
    )


def check_cast(node: sg.Cast) -> None:
    """Refuse what a cast says besides its type, and ``TIMESTAMP(3)``, which would have to cut off what is below a millisecond.

    Raises
    ------
    ExpressionError
        For a format, a default, and a timestamp of another precision than 6.
    """
    if any(node.args.get(part) for part in ("format", "default", "action")):
        hint = "write CAST(x AS t) or TRY_CAST(x AS t); by a pattern date_format(x, p), to_date(x, p), to_timestamp(x, p)"
        raise ExpressionError("a cast has a value and a type", got=node.sql("spark"), hint=hint)
    type_ = node.to
    name = getattr(type_.this, "name", "")
    digits = [e.name for e in type_.expressions]
    if name.startswith("TIMESTAMP") and digits not in ([], ["6"]):
        hint = "write date_trunc('millisecond', x), or CAST(x AS timestamp)"
        raise ExpressionError("a cast does not cut times", got=f"{name}({', '.join(digits)})", hint=hint)
