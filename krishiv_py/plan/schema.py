"""Arrow schemas of streams: what a user may pass, what a step makes of it."""

from __future__ import annotations

import difflib
from typing import Final, Literal, TypeAlias

import pyarrow as pa

from krishiv_py.errors import ColumnError, ExpressionError, SchemaError, message, shown, unknown_column
from krishiv_py.plan.checks import encodable, known_column
from krishiv_py.plan.expr import Col, Expr, Field, columns_of
from krishiv_py.plan.parse import parse_schema
from krishiv_py.plan.trees import walk

SchemaLike: TypeAlias = "pa.Schema | str"
TimeKind: TypeAlias = Literal["timestamp", "timestamp_ntz", "bigint_ms"]
RESERVED: Final = "__krishiv_"


def as_schema(schema: object) -> pa.Schema:
    """A pyarrow schema from a pyarrow schema, a DDL text or a Spark ``StructType``.

    Raises
    ------
    SchemaError
        For anything else, for an empty schema, duplicate or reserved names.
    """
    if isinstance(schema, str):
        found = parse_schema(schema)
    elif isinstance(schema, pa.Schema):
        found = schema
    elif hasattr(schema, "simpleString") and hasattr(schema, "fields"):
        ddl = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in schema.fields)
        found = parse_schema(ddl)
    else:
        raise SchemaError(message("not a schema", shown(schema), "no column is known",
                                  "pass a pyarrow.Schema, a Spark StructType or DDL text"))
    return checked(found)


def checked(schema: pa.Schema) -> pa.Schema:
    """Refuse empty schemas, duplicate names and names the library needs for itself."""
    if not schema.names:
        raise SchemaError(message("the schema has no column", "0 columns", "no row can be sent", "name at least one column"))
    seen: set[str] = set()
    for name in schema.names:
        if name.lower() in seen:
            raise SchemaError(message("two columns share a name (Spark ignores case)", name, "neither can be meant alone",
                                      "rename one of them"))
        if not encodable(name):
            raise SchemaError(message("a column name cannot be written as UTF-8", shown(name), "no engine could read it",
                                      "rename the column"))
        if name.startswith(RESERVED) or not name:
            raise SchemaError(message("a column name is reserved", name, "it would clash with the library's own",
                                      f"do not start names with {RESERVED}"))
        seen.add(name.lower())
    return pa.schema([pa.field(f.name, normal_type(f.type), f.nullable) for f in schema])


def normal_type(type_: pa.DataType) -> pa.DataType:
    """The type as Spark knows it: microsecond timestamps in UTC, plain strings, no dictionaries."""
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", "UTC" if type_.tz else None)
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_):
        return pa.binary()
    if pa.types.is_dictionary(type_):
        return normal_type(type_.value_type)
    if pa.types.is_unsigned_integer(type_):
        return {8: pa.int16(), 16: pa.int32()}.get(type_.bit_width, pa.int64())
    return type_


def time_kind(schema: pa.Schema, column: str) -> TimeKind:
    """How an event-time column is to be read (SEMANTICS §1.1), or a :class:`ColumnError`."""
    known_column(column, schema.names, "watermark")
    type_ = schema.field(column).type
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    if pa.types.is_int64(type_):
        return "bigint_ms"
    raise ColumnError(message(f"column {column!r} cannot be event time", type_, "rows cannot be placed on the time axis",
                              "use a timestamp, timestamp_ntz or bigint (milliseconds) column, or cast it before"))


def require_columns(expr: Expr, schema: pa.Schema, where: str) -> None:
    """Refuse an expression over columns that are not there."""
    for name in sorted(columns_of(expr) - {"*"}):
        if name in schema.names:
            continue
        column, _, field = name.partition(".")
        if field and column in schema.names and pa.types.is_struct(schema.field(column).type):
            raise ColumnError(message(f"{where}: there is no column {name!r}", f"a struct {column!r}", "here a dot is part of "
                                      "a name", f'write col("{column}").field("{field}"), or {name} in SQL text'))
        dotted = {_path(node) for node in walk(expr) if isinstance(node, Field)}
        for found in sorted(n for n in dotted if n.startswith(f"{name}.") and n in schema.names):
            raise ColumnError(message(f"{where}: there is no column {name!r}", f"a column {found!r}", f"{found} is a field of "
                                      f"{name!r}", f"write `{found}` in backquotes, or col({found!r})"))
        raise unknown_column(name, schema.names, where)


def _path(node: Field) -> str:
    """A field as it is written without backquotes."""
    names = [node.name]
    below = node.arg
    while isinstance(below, Field):
        names.append(below.name)
        below = below.arg
    return ".".join(reversed([*names, below.name] if isinstance(below, Col) else names))


def unknown_field(name: str, type_: pa.DataType, where: str) -> ExpressionError:
    """The error for a field that a value of `type_` does not have."""
    if not pa.types.is_struct(type_):
        return ExpressionError(message(f"{where} is no struct", f"{name!r} of a {type_}", "it has no fields",
                                       "name a column of type struct, or in backquotes a column with a dot in its name"))
    names = [field.name for field in type_]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"the fields are: {', '.join(names[:20])}"
    found = "two fields" if names.count(name) > 1 else "no field"
    return ExpressionError(message(f"{where} has {found} {name!r}", type_, "no value is meant", hint.rstrip("?")))


def is_key_type(type_: pa.DataType) -> bool:
    """Whether values of the type can be grouped by."""
    return not (pa.types.is_nested(type_) or pa.types.is_null(type_))
