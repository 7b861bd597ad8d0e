"""Functions of SQL text: from sqlglot's nodes to the library's names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import pyarrow as pa
import sqlglot
from sqlglot import expressions as sg

from krishiv_py.functions.definition import Definition, SqlNode
from krishiv_py.functions.known import FUNCTIONS
from krishiv_py.plan.expressions.case import Case
from krishiv_py.plan.expressions.expr import BinOp, Cast, Expr, Func, Lit, UnOp
from krishiv_py.plan.expressions.rewritten import UNIT_NAMES, check_bits, extra_by_name, rewritten
from krishiv_py.plan.expressions.spans import part_of, times
from krishiv_py.plan.expressions.sqltext import ZONED

Read: TypeAlias = Callable[[sg.Expression], Expr]

_SAID: Final = frozenset(
    {
        "coalesce",
        "flatten",
        "ignore_nulls",
        "is_length",
        "negate",
        "null_if_pos_overflow",
        "null_propagation",
        "preserve_end_of_month",
        "safe",
    }
)
"""Parts of nodes that say what Spark does in any case; and that a condition is negated."""


@functools.cache
def _calls() -> Mapping[str, list[tuple[Definition, SqlNode]]]:
    """Definitions by the name of the node that calls them."""
    calls: dict[str, list[tuple[Definition, SqlNode]]] = {}
    for known in FUNCTIONS.values():
        for node in known.nodes:
            calls.setdefault(node.kind, []).append((known, node))
    return calls


@functools.cache
def _names() -> Mapping[str, str]:
    """Functions by their names in SQL text."""
    return {name: f.name for f in FUNCTIONS.values() for name in ((f.name,) if f.in_text else ()) + f.names}


def _called(node: sg.Expression, read: Read) -> Expr | None:
    """Return the call that a node is by a definition; None if it is none, or says more than that one takes."""
    spelled = _calls().get(type(node).__name__, ())
    arguments = (
        {key.rstrip("_"): value for key, value in node.args.items() if value not in (None, [], False)} if spelled else {}
    )
    if isinstance(arguments.get("expression"), (sg.Any, sg.All)) or isinstance(arguments.get("this"), sg.Query):
        return None
    for known, by in spelled:
        parts = [part.strip("*") for part in by.parts]
        if set(arguments) - {*parts, *by.says} - _SAID or any(
            arguments.get(key, False) != value for key, value in by.says.items()
        ):
            continue
        given = [arguments[part] for part in parts if part in arguments]
        args = [
            _bare(x) if known.family == "times" else x for each in given for x in (each if isinstance(each, list) else [each])
        ]
        filled = [Lit(by.fill)] if by.fill is not None and len(given) < len(parts) else []
        call = Func(known.name, (*map(read, args), *filled))
        return UnOp("not", call) if arguments.get("negate") else call
    return None


def function_of(node: sg.Expression, read: Read) -> Expr | None:
    """Return the expression of a function call, read with `read`; None for another node."""
    check_bits(node)
    call = _called(node, read)
    if call is not None:
        return call
    if isinstance(node, sg.Case):
        return _case(node, read)
    if isinstance(node, sg.Bracket) and len(node.expressions) == 1:
        index = read(node.expressions[0])
        if node.args.get("offset"):
            return Func("try_element_at" if node.args.get("safe") else "element_at", (read(node.this), index))
        return Func("item", (read(node.this), index)) if isinstance(index, Lit) or _has_offsets() else None
    if isinstance(node, sg.ConvertTimezone):
        source = node.args.get("source_tz")
        in_utc = Func("to_utc_timestamp", (read(node.args["timestamp"]), Lit("UTC") if source is None else read(source)))
        return Cast(Func("from_utc_timestamp", (in_utc, read(node.args["target_tz"]))), pa.timestamp("us"), named=True)
    if isinstance(node, sg.Anonymous):
        return _by_name(node.name.lower(), [read(e) for e in node.expressions])
    for reader in (_dates, times, rewritten):
        expr = reader(node, read)
        if expr is not None:
            return expr
    return None


@functools.cache
def _has_offsets() -> bool:
    """Return whether the parser says that ``element_at(list, i + 1)`` is not ``list[i]``; not all versions do."""
    return bool(sqlglot.parse_one("element_at(a, b + 1)", dialect="spark").args.get("offset") == 1)


def _zoned(name: str, args: list[Expr]) -> Expr:
    """Return a function whose last argument is a time zone."""
    if name in FUNCTIONS and FUNCTIONS[name].limits[1] >= len(args):
        return Func(name, tuple(args))
    value, *more, zone = args
    return Func("day" if name == "dayofmonth" else name, (Func("from_utc_timestamp", (value, zone)), *more))


def _by_name(name: str, args: list[Expr]) -> Expr | None:
    if name.startswith(ZONED):
        return _zoned(name.removeprefix(ZONED), args)
    if name in ("date_part", "datepart") and len(args) == 2 and isinstance(args[0], Lit):
        return part_of(str(args[0].value), args[1])
    called = _names().get(name)
    return extra_by_name(name, args) if called is None else Func(called, tuple(args))


def _bare(node: sg.Expression) -> sg.Expression:
    """Without the conversion sqlglot puts around a date."""
    return node.this if isinstance(node, sg.TsOrDsToDate) and not node.args.get("safe") else node


def _case(node: sg.Case, read: Read) -> Expr:
    subject = read(node.this) if node.this is not None else None
    args: list[Expr] = []
    for branch in node.args["ifs"]:
        condition = read(branch.this)
        args += [condition if subject is None else BinOp("==", subject, condition), read(branch.args["true"])]
    default = node.args.get("default")
    return Case((*args, *([read(default)] if default is not None else [])))


def _dates(node: sg.Expression, read: Read) -> Expr | None:
    if isinstance(node, sg.TimestampTrunc) and node.unit and node.args.get("zone") is None:
        unit = node.unit.name.lower()
        return Func("date_trunc", (Lit(UNIT_NAMES.get(unit, unit)), read(node.this)))
    if isinstance(node, sg.TsOrDsAdd) and node.unit and node.unit.name.upper() == "DAY":
        days = node.expression
        if isinstance(days, sg.Mul) and isinstance(days.expression, sg.Neg) and days.expression.this.name == "1":
            return Func("date_sub", (read(_bare(node.this)), read(days.this)))
        return Func("date_add", (read(_bare(node.this)), read(days)))
    return None
