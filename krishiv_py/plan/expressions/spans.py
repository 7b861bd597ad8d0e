"""Times of SQL text: intervals, EXTRACT, conversions with a pattern."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Final, TypeAlias

import attrs
from sqlglot import expressions as sg
from sqlglot import parse_one
from sqlglot.dialects.spark import Spark

from krishiv_py.errors import ExpressionError, message
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
    """The expression of a function of times; None for another node."""
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
    """The pattern as it was written; sqlglot gives it as a literal, in which quotation marks have a backslash."""
    return parse_one(str(Spark().generator().format_time(node)), dialect="spark").name


def span_of(node: sg.Expression | None) -> Span | None:
    """The interval a node is; None for another node."""
    if isinstance(node, sg.Paren):
        return span_of(node.this)
    if isinstance(node, sg.Add):
        one, other = span_of(node.this), span_of(node.expression)
        if one is None or other is None or bool(one.months) != bool(other.months):
            return None
        return Span(one.months + other.months, one.days + other.days, one.us + other.us, one.by_day and other.by_day)
    if not isinstance(node, sg.Interval) or not isinstance(node.unit, sg.Var):
        return None
    unit, amount = node.unit.name.lower().removesuffix("s"), node.this
    negative = isinstance(amount, sg.Neg)
    text = amount.this.name if isinstance(amount, sg.Neg) else amount.name if isinstance(amount, sg.Literal) else ""
    try:
        number = -Decimal(text) if negative else Decimal(text)
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
        message(
            "an interval is a constant number of one unit",
            node.sql("spark"),
            "it has no length",
            "write INTERVAL 5 MINUTES; year, month, week, day, hour, minute, second, millisecond and microsecond are known",
        )
    )
