"""SQL text to expressions, types and schemas, through sqlglot: ``filter("amount > 3")``."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from functools import lru_cache
from typing import Final

import attrs
import pyarrow as pa
import sqlglot
from sqlglot import expressions as sg

from krishiv_py.errors import ExpressionError, SchemaError, shown
from krishiv_py.plan.durations import iso_moment
from krishiv_py.plan.expressions.allread import check_read, check_tokens
from krishiv_py.plan.expressions.constants import MAX_DIGITS, QuotedText, Scalar
from krishiv_py.plan.expressions.expr import Alias, BinaryOp, BinOp, Cast, Col, Expr, Field, Func, IsIn, Lit, UnOp
from krishiv_py.plan.expressions.instead import unsupported
from krishiv_py.plan.expressions.spans import check_cast, moved, span_of
from krishiv_py.plan.expressions.sql_functions import function_of
from krishiv_py.plan.expressions.sqltext import (
    check_units,
    check_whole,
    is_doubled,
    note_quotes,
    one_kind_of_error,
    quiet_parser,
    respelled,
    spelled,
)
from krishiv_py.types import NAMED_TYPES, nearest_type

_NAMED: Final = (*sorted(NAMED_TYPES), "decimal(10, 2)", "array<int>", "map<string, int>", "struct<a: int>")
_SIMPLE: Final[dict[str, pa.DataType]] = {
    **{name.upper(): type_ for name, type_ in NAMED_TYPES.items()},
    **dict.fromkeys(("TEXT", "VARCHAR"), pa.string()),
    "VARBINARY": pa.binary(),
    **dict.fromkeys(("TIMESTAMPTZ", "TIMESTAMPLTZ"), pa.timestamp("us", "UTC")),
    "TIMESTAMPNTZ": pa.timestamp("us"),
}


def type_of(node: sg.DataType) -> pa.DataType:
    """Return the Arrow type of a parsed SQL type.

    Raises
    ------
    SchemaError
        For a type that is not known, or that lacks what it is made of: ``array``, ``decimal(99)``.
    """
    try:
        return _type_of(node)
    except (LookupError, AttributeError, TypeError, ValueError) as problem:
        if isinstance(problem, SchemaError):
            raise
        hint = "write for instance decimal(38,2), array<int> or map<string,int>"
        raise SchemaError("the type is not complete, or out of range", got=node.sql("spark"), hint=hint) from problem


def _type_of(node: sg.DataType) -> pa.DataType:
    kind = node.this.name if isinstance(node.this, sg.DataType.Type) else str(node.this)
    if node.args.get("values"):
        is_time = kind == "ARRAY" and "TIMESTAMP" in node.expressions[0].sql("spark").upper()
        hint = "write timestamp or timestamp_ntz: times are in microseconds" if is_time else "write array<int> for a list"
        raise _odd("a type has more in square brackets than it can mean", node, hint)
    if isinstance(node.this, sg.Interval):
        return _interval(node)
    if kind in _SIMPLE:
        if node.expressions and not kind.startswith("TIMESTAMP"):  # Flink says TIMESTAMP(3); all digits are kept
            name = "string" if kind in ("TEXT", "VARCHAR") else node.sql("spark").partition("(")[0].lower()
            raise _odd("a type has a length that would not count", node, f"write {name} without brackets")
        return _SIMPLE[kind]
    if kind == "DECIMAL":
        digits, scale = ([int(e.this.this) for e in node.expressions] or [10]) + [0] * (2 - len(node.expressions or [0]))
        if scale > digits:  # Arrow would take more digits instead
            raise ValueError
        return pa.decimal128(digits, scale)
    if kind in ("ARRAY", "LIST"):
        (element,) = node.expressions
        return pa.list_(type_of(element))
    if kind == "MAP":
        key, value = node.expressions
        return pa.map_(type_of(key), type_of(value))
    if kind == "STRUCT":
        for part in node.expressions:
            _check_field(part)
        return pa.struct([pa.field(e.name, type_of(e.args["kind"])) for e in node.expressions])
    hint = "use Spark SQL type names, or pass a pyarrow schema"
    raise SchemaError("unknown type in the schema", got=node.sql("spark"), hint=hint)


def _odd(what: str, node: sg.Expression, hint: str) -> SchemaError:
    return SchemaError(what, got=node.sql("spark"), hint=hint)


_CLOCK_UNITS: Final = frozenset({"DAY", "HOUR", "MINUTE", "SECOND"})


def _interval(node: sg.DataType) -> pa.DataType:
    """Return a duration for ``interval day to second`` and the like."""
    unit = node.this.args.get("unit")
    ends = (unit.this, unit.expression) if isinstance(unit, sg.IntervalSpan) else (unit,)
    if all(end is not None and end.name.upper() in _CLOCK_UNITS for end in ends):
        return pa.duration("us")
    hint = "write interval day to second, which has one length"
    raise _odd("an interval of months or of no unit has no fixed length", node, hint)


def _check_field(part: sg.Expression) -> None:
    """Refuse what a field of a struct says besides name, type and COMMENT."""
    constraints = part.args.get("constraints") or ()
    if not all(isinstance(constraint.kind, sg.CommentColumnConstraint) for constraint in constraints):
        hint = "leave it out: each field of a struct may be null; NOT NULL goes after the type of a whole column"
        raise _odd("a field of a struct says more than its type", part, hint)


@lru_cache(maxsize=256)  # a library that opens many streams says the same text again
@quiet_parser()
def parse_schema(text: str) -> pa.Schema:
    """Read a DDL schema such as ``"user_id bigint, event_time timestamp"``."""
    try:
        with one_kind_of_error():
            tree = sqlglot.parse_one(respelled(f"CREATE TABLE t ({text}\n)"), dialect="spark")
    except sqlglot.errors.SqlglotError as problem:
        raise _unknown_word(text) or SchemaError(
            "this is not a DDL schema",
            got=text,
            then=str(problem).splitlines()[0].rstrip("."),
            hint='write for instance "user_id bigint, event_time timestamp"',
        ) from problem
    plain = isinstance(tree, sg.Create) and isinstance(tree.this, sg.Schema) and not tree.args.get("properties")
    columns = tree.this.expressions if plain else []
    for column in columns:
        if not isinstance(column, sg.ColumnDef) or column.args.get("kind") is None:
            raise SchemaError(
                "a column of the schema has no type",
                got=column.sql("spark"),
                hint="write name and type without a colon: "
                + ", ".join(" ".join(part.split(":")).replace("  ", " ").strip() for part in text.split(","))
                if ":" in text and "<" not in text
                else 'write for instance "user_id bigint, event_time timestamp"',
            )
        _check_column(column)
    try:
        fields = [pa.field(column.name, type_of(column.args["kind"]), nullable=not _is_required(column)) for column in columns]
    except SchemaError as problem:
        raise (_unknown_word(text) if "unknown type" in str(problem) else None) or problem from problem
    if not fields:
        raise SchemaError("the schema has no column", got=text, hint="name at least one column")
    return pa.schema(fields)


_WORD: Final = re.compile(r"""'[^']*'|"[^"]*"|`(?:[^`]|``)*`|[^\W\d]\w*|[<>,:()]""")
_NO_TYPES: Final = frozenset({"not", "null", "comment", "interval", "day", "hour", "minute", "second", "to", "without", "with"})
_TYPES: Final = frozenset({*(name.lower() for name in _SIMPLE), "decimal", "array", "map", "struct"})


def _unknown_word(text: str) -> SchemaError | None:
    """Return the error for the first word of a schema that is in the place of a type and is none."""
    before, column = ",", ""
    within: list[str] = []  # what the brackets that are open belong to
    for word in _WORD.findall(text):
        if not within and before == ",":
            column = word
        elif word[0].isalpha() and word.lower() not in _TYPES | _NO_TYPES:
            behind_a_name = before == column if not within else before == ":" or before[0].isalpha() or before[0] == "`"
            if behind_a_name if not within or within[-1] == "struct" else before in ("<", ","):
                near = nearest_type(word)
                meant = f"write {near if within else f'{column} {near}'}" if near else f"types are {', '.join(_NAMED)}"
                what = f"column {column!r} of the schema: {word!r} is not a type"
                return SchemaError(what, got=text, hint=meant)
            if not within:
                break  # something after the type, which is another error
        if word in ("<", "("):
            within.append(before.lower())
        elif word in (">", ")") and within:
            within.pop()
        before = word
    return None


def _is_required(column: sg.ColumnDef) -> bool:
    kinds = [constraint.kind for constraint in column.args.get("constraints") or ()]
    return any(isinstance(kind, sg.NotNullColumnConstraint) and not kind.args.get("allow_null") for kind in kinds)


def _check_column(column: sg.ColumnDef) -> None:
    """Refuse what a column of a schema says besides name, type, NOT NULL and COMMENT: nobody would keep to it."""
    if not isinstance(column.this, sg.Identifier):
        column_text, hint = f"{column.this.sql('spark')}", "write a name with points in backquotes: `a.b` bigint"
        raise SchemaError("a column of the schema has no plain name", got=column_text, hint=hint)
    for constraint in column.args.get("constraints") or ():
        if not isinstance(constraint.kind, (sg.NotNullColumnConstraint, sg.CommentColumnConstraint)):
            hint = "leave it out: a schema has names and types"
            raise SchemaError("a column of the schema says more than its type", got=column.sql("spark"), hint=hint)


@lru_cache(maxsize=256)
def json_type(text: str) -> pa.DataType:
    """Return the struct of a DDL schema such as ``"id bigint, tags array<string>"``.

    Raises
    ------
    ExpressionError
        For a value that is not a schema, and for types that are not read from JSON.
    """
    try:
        schema = parse_schema(text)
    except SchemaError as problem:
        raise ExpressionError(f"from_json: {problem}") from problem
    if len(set(schema.names)) < len(schema.names):
        raise _unread("two fields of one name", text)
    for field in schema:
        _check_json(field.type, text)
    return pa.struct(list(schema))


def _check_json(type_: pa.DataType, text: str) -> None:
    if pa.types.is_struct(type_):
        if len({f.name for f in type_}) < type_.num_fields:
            raise _unread("two fields of one name", text)
        for field in type_:
            _check_json(field.type, text)
    elif pa.types.is_list(type_):
        _check_json(type_.value_type, text)
    elif not (
        pa.types.is_string(type_) or pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_)
    ):
        raise _unread(str(type_), text)


def _unread(what: str, text: str) -> ExpressionError:
    then = "its values would be others than Spark's"
    hint = "read string, boolean, whole and floating-point numbers, struct and array; cast a string to anything else"
    return ExpressionError(f"from_json does not read {what}", got=shown(text), then=then, hint=hint)


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
            written = respelled(text)
            tree = _tree(written)
        check_units(text)
        expr = expr_of(tree)
        check_tokens(written, [tree])
        check_read(tree)
        return expr
    except sqlglot.errors.SqlglotError as problem:
        raise ExpressionError(
            "this is not an SQL expression", got=text, then=str(problem).splitlines()[0], hint=hint
        ) from problem
    except RecursionError as problem:
        what = "the SQL expression is nested too deeply"
        got = f"{text[:60]}… ({len(text)} characters)"
        raise ExpressionError(what, got=got, hint="compute parts of it with .with_column(...) before") from problem


def _tree(text: str) -> sg.Expression:
    """Return the node of an expression; a column may be called as statements begin: ``load > 5``, ``comment LIKE 'a%'``."""
    if _BEGINS.match(text) is None:
        tree: sg.Expression = sqlglot.parse_one(text, dialect="spark")  # type: ignore[assignment]  # it says Expr, which has what is used here
        note_quotes(tree, text)
        return tree
    text = f"SELECT {text}"
    parsed = sqlglot.parse_one(text, dialect="spark")
    others = [part for part, value in parsed.args.items() if value and part != "expressions"]
    if not isinstance(parsed, sg.Select) or others or len(parsed.expressions) != 1:
        raise sqlglot.errors.ParseError("it is a statement")
    note_quotes(parsed, text)
    one: sg.Expression = parsed.expressions[0]
    return one


def _literal(node: sg.Literal) -> Lit:
    if node.is_string:
        return Lit(QuotedText(node.this) if is_doubled(node) else node.this)
    number = node.this
    if any(mark in number for mark in ".eE"):
        try:
            number_read = float(number)
        except ValueError as problem:  # the parser's tokens are generous: 1e, .3.0
            raise ExpressionError("this is not a number", got=number, hint="write for instance 1.5 or 1e3") from problem
        if number_read in (float("inf"), float("-inf")):
            raise ExpressionError("this number is not a double", got=number, hint="write a smaller one")
        return Lit(number_read)
    if len(number) > MAX_DIGITS:
        hint = "compare with a double: 1e40"
        raise ExpressionError(f"a number of more than {MAX_DIGITS} digits", got=f"{number[:60]}…", hint=hint)
    return Lit(int(number))


def _typed(value: Scalar, type_: pa.DataType, node: sg.Expression) -> Scalar:
    """Return a constant with its type: ``5L``, ``1.5BD``, ``DATE '2024-01-31'``, ``TIMESTAMP '2024-01-31 12:00:00'``."""
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
            moment = iso_moment(f"{value} 00:00" if len(value) == len("2024-01-31") else value)
            return moment if moment.tzinfo or not type_.tz else moment.replace(tzinfo=dt.timezone.utc)
    except (ValueError, decimal.InvalidOperation) as problem:
        what = "this is not a constant of its type"
        hint = "write for instance DATE '2024-01-31'"
        raise ExpressionError(what, got=node.sql("spark"), then=str(problem), hint=hint) from problem
    raise _NoConstantError("IN takes constants", got=node.sql("spark"), hint="compare with = and OR")


def _constant(node: sg.Expression) -> Scalar:
    if isinstance(node, sg.Neg):
        value = _constant(node.this)
        if isinstance(value, (int, float, decimal.Decimal)):
            return -value
    expr = expr_of(node)
    if isinstance(expr, Lit):
        return expr.value
    if isinstance(expr, Cast) and isinstance(expr.arg, Lit):
        return _typed(expr.arg.value, expr.type, node)
    raise _NoConstantError("IN takes constants", got=node.sql("spark"), hint="compare with = and OR")


def _is_in(node: sg.In) -> Expr:
    """IN of constants; or of anything, as comparisons."""
    value = expr_of(node.this)
    try:
        return IsIn(value, tuple(_constant(e) for e in node.expressions))
    except _NoConstantError:
        condition: Expr = BinOp("==", value, expr_of(node.expressions[0]))
        for other in node.expressions[1:]:
            condition = BinOp("or", condition, BinOp("==", value, expr_of(other)))
        return condition


def expr_of(node: sg.Expression | None) -> Expr:
    """Return the expression of one sqlglot node."""
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
    call = function_of(node, expr_of)
    return _compound(node) if call is None else call


def _chain(node: sg.Expression) -> Expr:
    """Operators from left to right, without recursion: a text may have thousands of ANDs."""
    links = []
    while type(node) in _BINARY:
        links.append(node)
        node = node.this
    begin = span_of(node) if links and isinstance(links[-1], sg.Add) else None
    if begin is not None and span_of(links[-1].expression) is None:  # INTERVAL 1 MONTH + x
        chained = moved(expr_of(links.pop().expression), begin, 1)
    else:
        chained = expr_of(node)
    for link in reversed(links):
        span = span_of(link.expression) if isinstance(link, (sg.Add, sg.Sub)) else None
        if span is None:
            chained = BinOp(_BINARY[type(link)], chained, expr_of(link.expression))
        else:
            chained = moved(chained, span, 1 if isinstance(link, sg.Add) else -1)
    return chained


def _column(node: sg.Column) -> Expr:
    """``a`` is a column, ``a.b`` the field of a struct, as in Spark; ```a.b``` in backquotes the column of that name."""
    if isinstance(node.this, sg.Star):
        raise ExpressionError("* is for COUNT(*) only", got=node.sql("spark"), hint="name a column")
    names = [node.args[part].name for part in ("catalog", "db", "table", "this") if node.args.get(part) is not None]
    column: Expr = Col(names[0])
    for name in names[1:]:
        column = Field(column, name)
    return column


def _compound(node: sg.Expression) -> Expr:
    if isinstance(node, sg.Paren):
        return expr_of(node.this)
    if isinstance(node, sg.Not):
        return UnOp("not", expr_of(node.this))
    if isinstance(node, sg.Neg):
        expr = expr_of(node.this)
        if isinstance(expr, Cast) and pa.types.is_integer(expr.type) and isinstance(expr.arg, Lit):
            number = expr.arg.value
            if type(number) is int and number > 0 and not expr.tried:  # -128Y: 128Y alone is out of range
                return attrs.evolve(expr, arg=Lit(-number))
        return Lit(-expr.value) if isinstance(expr, Lit) and isinstance(expr.value, (int, float)) else UnOp("-", expr)
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
    raise unsupported(node)
