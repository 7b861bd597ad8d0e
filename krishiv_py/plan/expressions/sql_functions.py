"""Functions and operators of SQL text: from sqlglot's nodes to the library's names, or to other functions."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import pyarrow as pa
import sqlglot
from sqlglot import expressions as sg

from krishiv_py.errors import ExpressionError
from krishiv_py.functions.definition import Definition, SqlNode
from krishiv_py.functions.known import FUNCTIONS
from krishiv_py.plan.expressions.allread import SAID
from krishiv_py.plan.expressions.constants import SPREADING, spreading
from krishiv_py.plan.expressions.expr import BinOp, Case, Cast, Expr, Func, Lambda, LambdaVar, Lit, UnOp
from krishiv_py.plan.expressions.spans import part_of, span_of, times
from krishiv_py.plan.expressions.sqltext import ZONED
from krishiv_py.types import NAMED_TYPES

_SPREADING: Final = frozenset({"Explode", "ExplodeOuter", "Posexplode", "PosexplodeOuter", "Inline", "Unnest"})


def of_collections(kind: str, node: sg.Expression, read: Read) -> Expr | None:
    """Return the expression of a node, by the name of its class; None for one that is not known here."""
    if kind == "Lambda":
        return Lambda(tuple(e.name for e in node.expressions), read(node.this))
    if kind == "Identifier":  # what a function of elements calls its parameters
        return LambdaVar(node.name)
    if kind.strip("_") in _SPREADING:
        raise spreading(node.sql("spark"))
    if kind == "Tuple":
        named = [(e.name if isinstance(e, sg.Column) else f"col{i}", e) for i, e in enumerate(node.expressions, 1)]
        return Func("named_struct", tuple(x for name, e in named for x in (Lit(name), read(e))))
    if kind in ("ArrayAppend", "ArrayPrepend") and node.args.get("expression") is not None:
        one = (read(node.this), Func("array", (read(node.expression),)))
        return Func("concat", one if kind == "ArrayAppend" else one[::-1])
    if kind == "GenerateSeries":
        return _sequence(node, read)
    if kind in ("ArraySort", "SortArray"):
        return _sorted(kind, node, read)
    if kind == "VarMap" and type(node.args["keys"]).__name__ == type(node.args["values"]).__name__ == "Array":
        pairs = zip(node.args["keys"].expressions, node.args["values"].expressions, strict=True)
        return Func("map", tuple(read(e) for pair in pairs for e in pair))
    if kind in ("TimestampAdd", "DateAdd") and node.args.get("unit") is not None:
        return Func("timestampadd", (Lit(node.args["unit"].name.lower()), read(node.expression), read(_plain(node.this))))
    return None


def _sequence(node: sg.Expression, read: Read) -> Expr:
    """``sequence(start, stop, step)``, by months of its own."""
    step = node.args.get("step")
    ends = (read(node.args["start"]), read(node.args["end"]))
    if step is None:
        return Func("sequence", ends)
    span = span_of(step)
    return (
        Func("sequence", (*ends, read(step)))
        if span is None or not span.months
        else Func("sequence_months", (*ends, Lit(span.months)))
    )


def _sorted(kind: str, node: sg.Expression, read: Read) -> Expr:
    """``sort_array``, which has nulls first, and ``array_sort``, which has them last."""
    if node.args.get("expression") is not None:
        return Func("array_sort", (read(node.this), read(node.expression)))
    ascending, nulls_first = node.args.get("asc"), node.args.get("nulls_first")
    first = isinstance(nulls_first, sg.Boolean) and bool(nulls_first.this)
    if kind == "ArraySort" and ascending is None and not first:  # the parser up to 30.23 says nothing of nulls
        return Func("array_sort", (read(node.this),))
    return Func("sort_array", (read(node.this), *(() if ascending is None else (read(ascending),))))


def _plain(node: sg.Expression) -> sg.Expression:
    """Without the conversion sqlglot puts around a date."""
    return node.this if isinstance(node, sg.TsOrDsToDate) and not node.args.get("safe") else node


UNIT_NAMES: Final = {**{"yyyy": "year", "yy": "year", "mon": "month", "mm": "month", "dd": "day"}}
"""Other names of the units of ``date_trunc`` and ``trunc``."""
_DATE_UNITS: Final = ("year", "quarter", "month", "week")
_MIXED: Final = frozenset({"BitwiseAnd", "BitwiseOr", "BitwiseXor"})
_LENGTHS: Final = {
    **{"microsecond": 1, "millisecond": 1_000, "second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000},
    **{"day": 86_400_000_000, "week": 604_800_000_000},
}
_CASTS: Final = ("bigint", "smallint", "tinyint", "binary")
"""Functions that are casts to the type of their name; others are nodes of the parser."""


def check_bits(node: sg.Expression) -> None:
    """Refuse different operators of bits of which it is not the same everywhere which comes first."""
    kind = type(node).__name__
    if kind in _MIXED and type(node.this).__name__ in _MIXED - {kind}:
        then = "which comes first is not the same in every SQL"
        hint = "write parentheses: (a & b) | c"
        raise ExpressionError("different operators of bits next to each other", got=node.sql("spark"), then=then, hint=hint)


def rewritten(node: sg.Expression, read: Read) -> Expr | None:
    """Return the expression of a node; None for one that is not known here either."""
    kind = type(node).__name__
    expr = of_collections(kind, node, read)
    if expr is not None:
        return expr
    for known in (_of_nulls, _of_patterns, _of_places, _of_time, _of_numbers):
        expr = known(kind, node, read)
        if expr is not None:
            return expr
    return None


def extra_by_name(name: str, args: list[Expr]) -> Expr | None:
    """Return the expression of a function that sqlglot has no class for."""
    if name in _CASTS and len(args) == 1:
        return Cast(args[0], NAMED_TYPES[name], named=True)
    if name == "weekday" and len(args) == 1:  # 0 is Monday
        return Cast(BinOp("%", BinOp("+", Func("dayofweek", (args[0],)), Lit(5)), Lit(7)), pa.int32(), named=True)
    one: dict[str, Callable[[Expr], Expr]] = {
        "isnull": lambda x: UnOp("is_null", x),
        "isnotnull": lambda x: UnOp("is_not_null", x),
        "zeroifnull": lambda x: Func("coalesce", (x, Lit(0))),
        "nullifzero": lambda x: Func("nullif", (x, Lit(0))),
        "negative": lambda x: UnOp("-", x),
        "positive": lambda x: x,
    }
    if name in one and len(args) == 1:
        return one[name](args[0])
    if name in SPREADING:
        raise spreading(name)
    return None


def _of_nulls(kind: str, node: sg.Expression, read: Read) -> Expr | None:
    if kind == "NullSafeNEQ":
        return UnOp("not", Func("equal_null", (read(node.this), read(node.expression))))
    if kind == "Is" and isinstance(node.expression, sg.Boolean):
        holds = read(node.this)
        return Func("coalesce", (holds if node.expression.this else UnOp("not", holds), Lit(False)))
    if kind == "Nvl2" and node.args.get("false") is not None:
        return Func("if_else", (UnOp("is_not_null", read(node.this)), read(node.args["true"]), read(node.args["false"])))
    if kind == "Nanvl":
        value = read(node.this)
        return Func("if_else", (Func("isnan", (value,)), read(node.expression), value))
    if kind == "SafeDivide":
        return BinOp("/", read(node.this), Func("nullif", (read(node.expression), Lit(0))))
    return UnOp("-", read(node.this)) if kind == "Negative" else None


def _of_patterns(kind: str, node: sg.Expression, read: Read) -> Expr | None:
    """``LIKE ANY (...)``, ``LIKE ALL (...)``, ``LIKE ... ESCAPE '!'``."""
    if kind == "Escape" and isinstance(node.this, (sg.Like, sg.ILike)) and isinstance(node.expression, sg.Literal):
        like = node.this.copy()
        if not isinstance(like.expression, sg.Literal) or len(node.expression.name) != 1:
            return None
        like.set("expression", sg.Literal.string(_escaped(like.expression.name, node.expression.name)))
        return read(like)
    if kind not in ("Like", "ILike") or not isinstance(node.expression, (sg.Any, sg.All)):
        return None
    listed = node.expression.this.unnest()
    patterns = listed.expressions if isinstance(listed, sg.Tuple) else [listed]
    value, name = read(node.this), kind.lower()
    likes: list[Expr] = [Func(name, (value, read(p))) for p in patterns]
    if node.args.get("negate"):
        likes = [UnOp("not", one) for one in likes]
    whole = likes[0]
    for one in likes[1:]:
        whole = BinOp("or" if isinstance(node.expression, sg.Any) else "and", whole, one)
    return whole


def _escaped(pattern: str, escape: str) -> str:
    r"""Return a pattern with another escape, written with ``\``."""
    out: list[str] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == escape:
            position += 1
            char = pattern[position : position + 1]
            if char not in ("%", "_", escape) or not char:
                what = "a LIKE pattern has its ESCAPE before another character"
                hint = f"write {escape}% for a percent sign, {escape}_ for an underscore, {escape}{escape} for {escape}"
                raise ExpressionError(what, got=f"{pattern!r} ESCAPE {escape!r}", then="Spark reads no such pattern", hint=hint)
            out.append("\\" + char if char in "%_\\" else char)
        else:
            out.append("\\\\" if char == "\\" else char)
        position += 1
    return "".join(out)


def _of_places(kind: str, node: sg.Expression, read: Read) -> Expr | None:
    if kind in ("Left", "Right"):
        length = read(node.expression)
        if not isinstance(length, Lit) or type(length.value) is not int:
            return None
        n = max(length.value, 0)
        places = (Lit(1), Lit(n)) if kind == "Left" or n == 0 else (Lit(-n), Lit(n))
        return Func("substring", (read(node.this), *places))
    if kind == "JSONExtractScalar" and type(node.expression).__name__ in ("JSONPath", "Literal"):
        return Func("get_json_object", (read(node.this), Lit(_path(node.expression))))
    return None


def _path(node: sg.Expression) -> str:
    """Return a path as it was written."""
    if isinstance(node, sg.Literal):
        return str(node.this)
    out = []
    for step in node.expressions:
        name = step.this if "this" in step.args else None
        if isinstance(step, sg.JSONPathRoot):
            out.append("$")
        elif isinstance(step, sg.JSONPathKey) and isinstance(name, str):
            out.append(f"['{name}']" if set(name) & set(".[*") else f".{name}")
        elif isinstance(step, sg.JSONPathSubscript) and isinstance(name, int):
            out.append(f"[{name}]")
        else:
            out.append("[*]")
    return "".join(out)


def _of_time(kind: str, node: sg.Expression, read: Read) -> Expr | None:
    if kind == "DateTrunc":
        unit = node.args["unit"].name.lower()
        unit = UNIT_NAMES.get(unit, unit)
        return Cast(Func("date_trunc", (Lit(unit), read(node.this))), pa.date32(), named=True) if unit in _DATE_UNITS else None
    if kind in ("TimestampDiff", "DateDiff") and node.args.get("unit") is not None:
        length = _LENGTHS.get(node.args["unit"].name.lower())
        if length is None:
            return None
        end, start = (Func("unix_micros", (read(_plain(x)),)) for x in (node.this, node.expression))
        return Func("div", (BinOp("-", end, start), Lit(length)))
    if kind == "UnixDate":
        return Func("datediff", (read(_plain(node.this)), Lit(dt.date(1970, 1, 1))))
    if kind == "DateFromUnixDate":
        return Func("date_add", (Lit(dt.date(1970, 1, 1)), read(node.this)))
    return None


def _of_numbers(kind: str, node: sg.Expression, read: Read) -> Expr | None:
    if kind != "Log" or node.args.get("expression") is None:
        return None
    base, value = read(node.this), read(node.expression)
    for known in (2, 10):
        if isinstance(base, Lit) and type(base.value) is int and base.value == known:
            return Func(f"log{known}", (value,))
    return Func("log", (base, value))


Read: TypeAlias = Callable[[sg.Expression], Expr]


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
        if set(arguments) - {*parts, *by.says} - SAID or any(
            arguments.get(key, False) != value for key, value in by.says.items()
        ):
            continue
        given = [arguments[part] for part in parts if part in arguments]
        args = [
            _plain(x) if known.family == "times" else x for each in given for x in (each if isinstance(each, list) else [each])
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
            return Func("date_sub", (read(_plain(node.this)), read(days.this)))
        return Func("date_add", (read(_plain(node.this)), read(days)))
    return None
