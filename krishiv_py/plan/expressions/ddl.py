"""SQL text to types and schemas, through sqlglot: ``schema="id bigint, at timestamp"``."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import pyarrow as pa
import sqlglot
from sqlglot import expressions as sg

from krishiv_py.errors import ExpressionError, SchemaError, shown
from krishiv_py.plan.expressions.sqltext import one_kind_of_error, quiet_parser, respelled
from krishiv_py.types import TYPE_NAMES, nearest_type

_NAMED: Final = (*sorted(TYPE_NAMES.values()), "decimal(10, 2)", "array<int>", "map<string, int>", "struct<a: int>")
_SIMPLE: Final[dict[str, Callable[[], pa.DataType]]] = {
    "BOOLEAN": pa.bool_,
    "TINYINT": pa.int8,
    "SMALLINT": pa.int16,
    "INT": pa.int32,
    "BIGINT": pa.int64,
    "FLOAT": pa.float32,
    "DOUBLE": pa.float64,
    "TEXT": pa.string,
    "VARCHAR": pa.string,
    "BINARY": pa.binary,
    "VARBINARY": pa.binary,
    "DATE": pa.date32,
    "TIMESTAMP": lambda: pa.timestamp("us", "UTC"),
    "TIMESTAMPTZ": lambda: pa.timestamp("us", "UTC"),
    "TIMESTAMPLTZ": lambda: pa.timestamp("us", "UTC"),
    "TIMESTAMPNTZ": lambda: pa.timestamp("us"),
}


def type_of(node: sg.DataType) -> pa.DataType:
    """The Arrow type of a parsed SQL type.

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
        raise SchemaError(
            "the type is not complete, or out of range",
            got=node.sql("spark"),
            hint="write for instance decimal(38,2), array<int> or map<string,int>",
        ) from problem


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
        return _SIMPLE[kind]()
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
    raise SchemaError(
        "unknown type in the schema", got=node.sql("spark"), hint="use Spark SQL type names, or pass a pyarrow schema"
    )


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
_TYPES: Final = frozenset({*(name.lower() for name in _SIMPLE), *TYPE_NAMES.values(), "decimal", "array", "map", "struct"})


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
                break  # something behind the type, which is another error
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
            raise SchemaError(
                "a column of the schema says more than its type",
                got=column.sql("spark"),
                hint="leave it out: a schema has names and types",
            )


@lru_cache(maxsize=256)
def json_type(text: str) -> pa.DataType:
    """The struct of a DDL schema such as ``"id bigint, tags array<string>"``.

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
    return ExpressionError(
        f"from_json does not read {what}",
        got=shown(text),
        then="its values would be others than Spark's",
        hint="read string, boolean, whole and floating-point numbers, struct and array; cast a string to anything else",
    )
