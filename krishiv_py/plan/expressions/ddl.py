"""SQL text to types and schemas, through sqlglot: ``schema="id bigint, at timestamp"``."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import pyarrow as pa
import sqlglot
from sqlglot import expressions as sg

from krishiv_py.errors import SchemaError, message
from krishiv_py.plan.expressions.sqltext import one_kind_of_error, quiet_parser, respelled

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
            message(
                "the type is not complete, or out of range",
                node.sql("spark"),
                "no column can have it",
                "write for instance decimal(38,2), array<int> or map<string,int>",
            )
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
        message(
            "unknown type in the schema",
            node.sql("spark"),
            "no column can have it",
            "use Spark SQL type names, or pass a pyarrow schema",
        )
    )


def _odd(what: str, node: sg.Expression, hint: str) -> SchemaError:
    return SchemaError(message(what, node.sql("spark"), "no column can have it", hint))


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
        raise SchemaError(
            message(
                "this is no DDL schema",
                text,
                str(problem).splitlines()[0],
                'write for instance "user_id bigint, event_time timestamp"',
            )
        ) from problem
    plain = isinstance(tree, sg.Create) and isinstance(tree.this, sg.Schema) and not tree.args.get("properties")
    columns = tree.this.expressions if plain else []
    for column in columns:
        if not isinstance(column, sg.ColumnDef) or column.args.get("kind") is None:
            raise SchemaError(
                message(
                    "a column of the schema has no type",
                    column.sql("spark"),
                    "its values cannot be read",
                    'write for instance "user_id bigint, event_time timestamp"',
                )
            )
        _check_column(column)
    fields = [pa.field(column.name, type_of(column.args["kind"]), nullable=not _is_required(column)) for column in columns]
    if not fields:
        raise SchemaError(message("the schema has no column", text, "no row can be sent", "name at least one column"))
    return pa.schema(fields)


def _is_required(column: sg.ColumnDef) -> bool:
    kinds = [constraint.kind for constraint in column.args.get("constraints") or ()]
    return any(isinstance(kind, sg.NotNullColumnConstraint) and not kind.args.get("allow_null") for kind in kinds)


def _check_column(column: sg.ColumnDef) -> None:
    """Refuse what a column of a schema says besides name, type, NOT NULL and COMMENT: nobody would keep to it."""
    if not isinstance(column.this, sg.Identifier):
        told, hint = f"{column.this.sql('spark')}", "write a name with points in backquotes: `a.b` bigint"
        raise SchemaError(message("a column of the schema has no plain name", told, "its values cannot be named", hint))
    for constraint in column.args.get("constraints") or ():
        if not isinstance(constraint.kind, (sg.NotNullColumnConstraint, sg.CommentColumnConstraint)):
            raise SchemaError(
                message(
                    "a column of the schema says more than its type",
                    column.sql("spark"),
                    "nobody would keep to it",
                    "leave it out: a schema has names and types",
                )
            )
