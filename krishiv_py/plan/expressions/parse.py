"""SQL text to expressions, through sqlglot: ``filter("amount > 3")``."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from typing import Final

import attrs
import pyarrow as pa
import sqlglot
from sqlglot import expressions as sg

from krishiv_py.errors import ExpressionError
from krishiv_py.plan.expressions.constants import MAX_DIGITS, Doubled, Scalar
from krishiv_py.plan.expressions.ddl import type_of
from krishiv_py.plan.expressions.expr import Alias, BinaryOp, BinOp, Cast, Col, Expr, Field, Func, IsIn, Lit, UnOp
from krishiv_py.plan.expressions.lost import check_units, check_whole
from krishiv_py.plan.expressions.spans import check_cast, moved, span_of
from krishiv_py.plan.expressions.sql_functions import function_of
from krishiv_py.plan.expressions.sqltext import is_doubled, note_quotes, one_kind_of_error, quiet_parser, respelled, spelled

_BINARY: Final[dict[type[sg.Expression], BinaryOp]] = {
    sg.Add: "+",
    sg.Sub: "-",
    sg.Mul: "*",
    sg.Div: "/",
    sg.Mod: "%",
    sg.EQ: "==",
    sg.NEQ: "!=",
    sg.LT: "<",
    sg.LTE: "<=",
    sg.GT: ">",
    sg.GTE: ">=",
    sg.And: "and",
    sg.Or: "or",
}
_BEGINS: Final = re.compile(
    r"\s*(alter|analyze|begin|cache|call|comment|commit|copy|create|declare|delete|desc|describe|drop|execute|explain|fetch|grant"
    r"|insert|kill|load|merge|optimize|pivot|pragma|prepare|refresh|rename|revoke|rollback|set|show|truncate|uncache|unpivot"
    r"|update|use|vacuum)\b",
    re.IGNORECASE,
)
"""Words by which the parser knows a statement where a text begins with them."""


class _NoConstantError(ExpressionError):
    """Raised for a value in a list of IN that is not constant."""


@quiet_parser()
def parse_expr(text: str) -> Expr:
    """Read a SQL expression.

    Raises
    ------
    ExpressionError
        For text that is not an SQL expression, or uses what the library cannot evaluate.
    DurationError
        For an interval of ``M``, which could be a minute or a month.
    """
    hint = "write for instance \"amount > 3 AND country = 'NO'\""
    try:
        with one_kind_of_error():
            check_whole(text)
            tree = _tree(respelled(text))
        check_units(text)
        return expr_of(tree)
    except sqlglot.errors.SqlglotError as problem:
        raise ExpressionError(
            "this is not an SQL expression", got=text, then=str(problem).splitlines()[0], hint=hint
        ) from problem
    except RecursionError as problem:
        raise ExpressionError(
            "the SQL expression is nested too deeply",
            got=f"{text[:60]}… ({len(text)} characters)",
            hint="compute parts of it with .with_column(...) before",
        ) from problem


def _tree(text: str) -> sg.Expression:
    """The node of an expression; a column may be called as statements begin: ``load > 5``, ``comment LIKE 'a%'``."""
    if _BEGINS.match(text) is None:
        tree: sg.Expression = sqlglot.parse_one(text, dialect="spark")  # type: ignore[assignment]  # it says Expr, which has what is used here
        note_quotes(tree, text)
        return tree
    text = f"SELECT {text}"
    found = sqlglot.parse_one(text, dialect="spark")
    others = [part for part, value in found.args.items() if value and part != "expressions"]
    if not isinstance(found, sg.Select) or others or len(found.expressions) != 1:
        raise sqlglot.errors.ParseError("it is a statement")
    note_quotes(found, text)
    one: sg.Expression = found.expressions[0]
    return one


def _literal(node: sg.Literal) -> Lit:
    if node.is_string:
        return Lit(Doubled(node.this) if is_doubled(node) else node.this)
    number = node.this
    if any(mark in number for mark in ".eE"):
        try:
            found = float(number)
        except ValueError as problem:  # the parser's tokens are generous: 1e, .3.0
            raise ExpressionError("this is not a number", got=number, hint="write for instance 1.5 or 1e3") from problem
        if found in (float("inf"), float("-inf")):
            raise ExpressionError("this number is not a double", got=number, hint="write a smaller one")
        return Lit(found)
    if len(number) > MAX_DIGITS:
        raise ExpressionError(
            f"a number of more than {MAX_DIGITS} digits", got=f"{number[:60]}…", hint="compare with a double: 1e40"
        )
    return Lit(int(number))


def _typed(value: Scalar, type_: pa.DataType, node: sg.Expression) -> Scalar:
    """A constant with its type: ``5L``, ``1.5BD``, ``DATE '2024-01-31'``, ``TIMESTAMP '2024-01-31 12:00:00'``."""
    try:
        if pa.types.is_floating(type_) and isinstance(value, (int, float, str)):
            return float(value)
        if pa.types.is_integer(type_) and isinstance(value, int):
            return value
        if pa.types.is_decimal(type_) and isinstance(value, (int, str)):
            return decimal.Decimal(value)
        if pa.types.is_date(type_) and isinstance(value, str):
            return dt.date.fromisoformat(value)
        if pa.types.is_timestamp(type_) and isinstance(value, str):
            moment = dt.datetime.fromisoformat(value.replace("Z", "+00:00"))
            return moment if moment.tzinfo or not type_.tz else moment.replace(tzinfo=dt.timezone.utc)
    except (ValueError, decimal.InvalidOperation) as problem:
        raise ExpressionError(
            "this is not a constant of its type",
            got=node.sql("spark"),
            then=str(problem),
            hint="write for instance DATE '2024-01-31'",
        ) from problem
    raise _NoConstantError("IN takes constants", got=node.sql("spark"), hint="compare with = and OR")


def _constant(node: sg.Expression) -> Scalar:
    if isinstance(node, sg.Neg):
        value = _constant(node.this)
        if isinstance(value, (int, float, decimal.Decimal)):
            return -value
    found = expr_of(node)
    if isinstance(found, Lit):
        return found.value
    if isinstance(found, Cast) and isinstance(found.arg, Lit):
        return _typed(found.arg.value, found.type, node)
    raise _NoConstantError("IN takes constants", got=node.sql("spark"), hint="compare with = and OR")


def _is_in(node: sg.In) -> Expr:
    """IN of constants; or of anything, as comparisons."""
    value = expr_of(node.this)
    try:
        return IsIn(value, tuple(_constant(e) for e in node.expressions))
    except _NoConstantError:
        found: Expr = BinOp("==", value, expr_of(node.expressions[0]))
        for other in node.expressions[1:]:
            found = BinOp("or", found, BinOp("==", value, expr_of(other)))
        return found


def expr_of(node: sg.Expression | None) -> Expr:
    """The expression of one sqlglot node."""
    if node is None:  # datediff(a)
        raise ExpressionError("an argument is left out", got="nothing", hint="name all of them")
    if type(node) in _BINARY:
        return _chain(node)
    if isinstance(node, sg.Column):
        return _column(node)
    if isinstance(node, sg.Star):
        return Col("*")
    if isinstance(node, sg.Literal):
        return _literal(node)
    if isinstance(node, sg.Boolean):
        return Lit(bool(node.this))
    if isinstance(node, sg.Null):
        return Lit(None)
    if isinstance(node, sg.RawString):  # r'a\nb': a backslash is one
        return Lit(node.name)
    if isinstance(node, sg.HexString):
        return Lit(bytes.fromhex("0" * (len(node.name) % 2) + node.name))  # X'1' is X'01', as in Spark
    found = function_of(node, expr_of)
    return _compound(node) if found is None else found


def _chain(node: sg.Expression) -> Expr:
    """Operators from left to right, without recursion: a text may have thousands of ANDs."""
    links = []
    while type(node) in _BINARY:
        links.append(node)
        node = node.this
    begin = span_of(node) if links and isinstance(links[-1], sg.Add) else None
    if begin is not None and span_of(links[-1].expression) is None:  # INTERVAL 1 MONTH + x
        found = moved(expr_of(links.pop().expression), begin, 1)
    else:
        found = expr_of(node)
    for link in reversed(links):
        span = span_of(link.expression) if isinstance(link, (sg.Add, sg.Sub)) else None
        if span is None:
            found = BinOp(_BINARY[type(link)], found, expr_of(link.expression))
        else:
            found = moved(found, span, 1 if isinstance(link, sg.Add) else -1)
    return found


def _column(node: sg.Column) -> Expr:
    """``a`` is a column, ``a.b`` the field of a struct, as in Spark; ```a.b``` in backquotes the column of that name."""
    if isinstance(node.this, sg.Star):
        raise ExpressionError("* is for COUNT(*) only", got=node.sql("spark"), hint="name a column")
    names = [node.args[part].name for part in ("catalog", "db", "table", "this") if node.args.get(part) is not None]
    found: Expr = Col(names[0])
    for name in names[1:]:
        found = Field(found, name)
    return found


def _compound(node: sg.Expression) -> Expr:
    if isinstance(node, sg.Paren):
        return expr_of(node.this)
    if isinstance(node, sg.Not):
        return UnOp("not", expr_of(node.this))
    if isinstance(node, sg.Neg):
        found = expr_of(node.this)
        if isinstance(found, Cast) and pa.types.is_integer(found.type) and isinstance(found.arg, Lit):
            number = found.arg.value
            if type(number) is int and number > 0 and not found.tried:  # -128Y: 128Y alone is out of range
                return attrs.evolve(found, arg=Lit(-number))
        return Lit(-found.value) if isinstance(found, Lit) and isinstance(found.value, (int, float)) else UnOp("-", found)
    if isinstance(node, sg.Is) and isinstance(node.expression, sg.Null):
        return UnOp("is_null", expr_of(node.this))
    if isinstance(node, sg.In) and node.expressions:
        return _is_in(node)
    if isinstance(node, sg.Between) and not node.args.get("symmetric"):
        value = expr_of(node.this)
        return BinOp("and", BinOp(">=", value, expr_of(node.args["low"])), BinOp("<=", value, expr_of(node.args["high"])))
    if isinstance(node, sg.Cast):  # sqlglot takes Spark's CAST for a lenient one too; only TRY_CAST is marked safe
        check_cast(node)
        return Cast(expr_of(node.this), type_of(node.to), named=True, tried=bool(node.args.get("safe")))
    if isinstance(node, sg.Dot) and isinstance(node.expression, sg.Identifier):
        return Field(expr_of(node.this), node.expression.name)
    if isinstance(node, sg.Struct) and all(isinstance(e, sg.PropertyEQ) for e in node.expressions):
        return Func("named_struct", tuple(x for e in node.expressions for x in (Lit(e.this.name), expr_of(e.expression))))
    if isinstance(node, sg.Alias):
        return Alias(expr_of(node.this), node.alias)
    if isinstance(node, (sg.Placeholder, sg.Parameter)):
        hint = "write the value, with quotes in it doubled: 'it''s'; in Python lit(value)"
        raise ExpressionError("a parameter has no value in a text", got=spelled(node), hint=hint)
    raise ExpressionError(
        "this SQL is not supported in an expression",
        got=spelled(node),
        hint="do it in Spark and pass from_dataframe(df), or use map_batches",
    )
