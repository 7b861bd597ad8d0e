"""More functions and operators of SQL text, most of them written with other ones."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Final, TypeAlias

import pyarrow as pa
from sqlglot import expressions as sg

from krishiv_py.errors import ExpressionError
from krishiv_py.plan.expressions.collections import of_collections
from krishiv_py.plan.expressions.constants import SPREADING, spreading
from krishiv_py.plan.expressions.expr import BinOp, Cast, Expr, Func, Lit, UnOp

Read: TypeAlias = Callable[[sg.Expression], Expr]

UNIT_NAMES: Final = {
    **{"yyyy": "year", "yy": "year", "mon": "month", "mm": "month", "dd": "day"},
}
"""Other names of the units of ``date_trunc`` and ``trunc``."""
_DATE_UNITS: Final = ("year", "quarter", "month", "week")
_MIXED: Final = frozenset({"BitwiseAnd", "BitwiseOr", "BitwiseXor"})
_LENGTHS: Final = {
    **{"microsecond": 1, "millisecond": 1_000, "second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000},
    **{"day": 86_400_000_000, "week": 604_800_000_000},
}
_TYPES: Final[dict[str, pa.DataType]] = {
    "bigint": pa.int64(),
    "smallint": pa.int16(),
    "tinyint": pa.int8(),
    "binary": pa.binary(),
}


def check_bits(node: sg.Expression) -> None:
    """Refuse different operators of bits of which it is not the same everywhere which comes first."""
    kind = type(node).__name__
    if kind in _MIXED and type(node.this).__name__ in _MIXED - {kind}:
        raise ExpressionError(
            "different operators of bits next to each other",
            got=node.sql("spark"),
            then="which comes first is not the same in every SQL",
            hint="write parentheses: (a & b) | c",
        )


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
    if name in _TYPES and len(args) == 1:
        return Cast(args[0], _TYPES[name], named=True)
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
                raise ExpressionError(
                    "a LIKE pattern has its ESCAPE before another character",
                    got=f"{pattern!r} ESCAPE {escape!r}",
                    then="Spark reads no such pattern",
                    hint=f"write {escape}% for a percent sign, {escape}_ for an underscore, {escape}{escape} for {escape}",
                )
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


def _plain(node: sg.Expression) -> sg.Expression:
    """Without the conversion sqlglot puts around a date."""
    return node.this if isinstance(node, sg.TsOrDsToDate) and not node.args.get("safe") else node


def _of_numbers(kind: str, node: sg.Expression, read: Read) -> Expr | None:
    if kind != "Log" or node.args.get("expression") is None:
        return None
    base, value = read(node.this), read(node.expression)
    for known in (2, 10):
        if isinstance(base, Lit) and type(base.value) is int and base.value == known:
            return Func(f"log{known}", (value,))
    return Func("log", (base, value))
