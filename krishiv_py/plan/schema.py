"""Arrow schemas of streams: what a user may pass, what a step makes of it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from krishiv_py.errors import ColumnError, ExpressionError, SchemaError, failure_text, shown, unknown_column
from krishiv_py.plan.checks import known_column
from krishiv_py.plan.expressions import parse
from krishiv_py.plan.expressions.constants import QuotedText, Scalar
from krishiv_py.plan.expressions.expr import Aggregate, Col, Expr, Field, IsIn, Lit, aggregate_in, columns_of
from krishiv_py.plan.expressions.trees import render, walk
from krishiv_py.plan.names import encodable
from krishiv_py.plan.row_classes import guessed_text, row_fields, schema_text
from krishiv_py.types import NAMED_TYPES, is_numeric, normal_type, part_of, spark_arrow, type_text

SchemaLike: TypeAlias = "pa.Schema | str | type[Any]"
"""An Arrow schema, DDL text, or a class whose fields are the columns."""
TimeKind: TypeAlias = Literal["timestamp", "timestamp_ntz", "bigint_ms"]
RESERVED: Final = "__krishiv_"
_COLUMN: Final = re.compile(r"\s*([A-Za-z_]\w*)\s+([a-z_]+)\s*", re.ASCII)
_OF_SQL: Final = {
    *("any", "case", "connect_by_root", "constraint", "current_date", "current_timestamp", "current_user", "exclude"),
    *("false", "like", "not", "null", "select", "session_user", "true", "unique", "with"),
}
"""Words that the SQL parser does not take as a name, or takes for something else."""
_LEFT_OUT: Final = b"krishiv_left_out"


def as_schema(schema: object) -> pa.Schema:
    """Return a pyarrow schema from one of Arrow, a DDL text, a Spark ``StructType`` or a class of rows.

    One of Arrow is a pyarrow schema, or a schema of another library that has ``__arrow_c_schema__``.

    A class of rows is a dataclass, an attrs class, a TypedDict, a NamedTuple or a pydantic model: its fields are the columns.

    Raises
    ------
    SchemaError
        For anything else, for an empty schema, duplicate or reserved names, and types no stream can have
        (see :func:`krishiv_py.types.normal_type`).
    """
    if isinstance(schema, str):
        schema_read = _plain(schema) or parse.parse_schema(schema)
    elif isinstance(schema, pa.Schema):
        schema_read = schema
    elif hasattr(schema, "__arrow_c_schema__"):
        schema_read = _imported(schema)
    elif type(schema).__name__ == "StructType" and hasattr(schema, "jsonValue"):
        schema_read = pa.schema([_from_spark(f) for f in schema.jsonValue()["fields"]])
    elif (fields := row_fields(schema)) is not None:
        schema_read = parse.parse_schema(schema_text(fields))
    else:
        text = guessed_text(schema)
        hint = f'write "{text}"' if text else "pass a pyarrow.Schema, a Spark StructType, DDL text or a dataclass"
        raise SchemaError("not a schema", got=shown(schema), hint=hint)
    return checked(schema_read)


def _plain(text: str) -> pa.Schema | None:
    """Return the schema of a text of plain names and types; None for any other, for which the SQL parser is loaded."""
    columns = [_COLUMN.fullmatch(part) for part in text.split(",")]
    if not all(column is not None and column[1].lower() not in _OF_SQL and column[2] in NAMED_TYPES for column in columns):
        return None
    return pa.schema([pa.field(column[1], NAMED_TYPES[column[2]]) for column in columns if column is not None])


def _from_spark(field: dict[str, Any]) -> pa.Field:
    try:
        return pa.field(field["name"], spark_arrow(field["type"]))
    except SchemaError as problem:
        raise SchemaError(f"column {field['name']!r}: {problem}") from problem


def _imported(schema: object) -> pa.Schema:
    """Return the schema that another library hands on by Arrow's PyCapsule interface."""
    try:
        return pa.schema(schema)
    except Exception as problem:  # each library has kinds of its own
        what, hint = f"the {type(schema).__name__} is not a schema", "pass a pyarrow.Schema, or DDL text"
        raise SchemaError(what, got=failure_text(problem), hint=hint) from problem


def checked(schema: pa.Schema) -> pa.Schema:
    """Refuse empty schemas, duplicate names and names the library needs for itself."""
    if not schema.names:
        raise SchemaError("the schema has no column", got="0 columns", hint="name at least one column")
    seen: set[str] = set()
    for name in schema.names:
        if name.lower() in seen:
            raise SchemaError("two columns share a name (Spark ignores case)", got=name, hint="rename one of them")
        if not encodable(name):
            raise SchemaError("a column name cannot be written as UTF-8", got=shown(name), hint="rename the column")
        if name.startswith(RESERVED) or name in ("", "*"):
            hint = f"do not start names with {RESERVED}, and call no column '*'"
            raise SchemaError("a column name is reserved", got=repr(name), hint=hint)
        seen.add(name.lower())
    return pa.schema([_normal(f) for f in schema], _notes(left_out(schema)))


def _normal(field: pa.Field) -> pa.Field:
    try:
        return pa.field(field.name, normal_type(field.type), field.nullable)
    except SchemaError as problem:
        raise SchemaError(f"column {field.name!r}: {problem}") from problem


def left_out(schema: pa.Schema) -> dict[str, str]:
    """Columns of a DataFrame or of files that are not columns of the stream, for the stream cannot have their types."""
    kept = (schema.metadata or {}).get(_LEFT_OUT)
    lost_fields: dict[str, str] = {} if kept is None else json.loads(kept)
    return lost_fields


def _notes(columns: dict[str, str]) -> dict[bytes, bytes] | None:
    return {_LEFT_OUT: json.dumps(columns).encode()} if columns else None


def refuse_left_out(names: Iterable[str], schema: pa.Schema, where: str) -> None:
    """Refuse to name a column that was left out; one that is nowhere is not looked at."""
    unfit = left_out(schema)
    for name in names:
        if isinstance(name, str) and name in unfit:
            then = "it was left out when the stream was made"
            hint = "cast it in Spark before from_dataframe"
            raise ColumnError(f"{where}: column {name!r} has a type no stream can have", got=unfit[name], then=then, hint=hint)


def found_schema(schema: Any) -> pa.Schema:
    """Return the schema of rows that are there already, as a Spark ``StructType``: what no stream can have is left out.

    Only columns that a query needs must be right. What was left out is kept in the metadata: see :func:`left_out`.

    Raises
    ------
    SchemaError
        When no column is left, and for two columns of one name.
    """
    fields, unfit = [], {}
    for field in schema.jsonValue()["fields"]:
        try:
            fields.append(pa.field(field["name"], spark_arrow(field["type"])))
        except SchemaError:
            kind = field["type"]
            unfit[field["name"]] = kind if isinstance(kind, str) else str(kind.get("type"))
    if not fields:
        hint = "cast the columns in Spark before"
        raise SchemaError("no column has a type a stream can have", got=unfit or "0 columns", hint=hint)
    return checked(pa.schema(fields, _notes(unfit)))


def time_kind(schema: pa.Schema, column: str) -> TimeKind:
    """Return how an event-time column is to be read (SEMANTICS §1.1), or a :class:`ColumnError`."""
    refuse_left_out([column], schema, "watermark")
    known_column(column, schema.names, "watermark")
    type_ = schema.field(column).type
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    if pa.types.is_int64(type_):
        return "bigint_ms"
    text = f"col({column!r})"
    hint = "use a timestamp, timestamp_ntz or bigint (milliseconds) column"
    if pa.types.is_string(type_) or pa.types.is_date(type_):
        hint = f'write .with_column({column!r}, {text}.cast("timestamp")) before'
    elif is_numeric(type_):
        seconds, millis = f'{text}.cast("timestamp")', f'{text}.cast("bigint")'
        hint = f"write .with_column({column!r}, {seconds}) before if it counts seconds, {millis} if milliseconds"
    raise ColumnError(f"column {column!r} cannot be event time", got=type_text(type_), hint=hint)


def require_columns(expr: Expr, schema: pa.Schema, where: str) -> None:
    """Refuse an expression over columns that are not there, and one with an aggregate."""
    if (aggregate := aggregate_in(expr)) is not None:
        raise misplaced(aggregate, where)
    refuse_left_out(sorted(columns_of(expr)), schema, where)
    _refuse_doubled(expr, schema, where)
    for name in sorted(columns_of(expr) - {"*"}):
        if schema.get_all_field_indices(name):  # `schema.names` makes a list: slow on thousands of columns
            continue
        column, _, field = name.partition(".")
        if field and column in schema.names and pa.types.is_struct(schema.field(column).type):
            then = "here a dot is part of a name"
            hint = f'write col("{column}").field("{field}"), or {name} in SQL text'
            raise ColumnError(f"{where}: there is no column {name!r}", got=f"a struct {column!r}", then=then, hint=hint)
        dotted = {_path(node) for node in walk(expr) if isinstance(node, Field)}
        for dotted_name in sorted(n for n in dotted if n.startswith(f"{name}.") and n in schema.names):
            then = f"{dotted_name} is a field of {name!r}"
            hint = f"write `{dotted_name}` in backquotes, or col({dotted_name!r})"
            raise ColumnError(f"{where}: there is no column {name!r}", got=f"a column {dotted_name!r}", then=then, hint=hint)
        raise unknown_column(name, schema.names, where)


def misplaced(aggregate: Aggregate, where: str) -> ExpressionError:
    """Return the error for an aggregate where an expression over the columns of one row is needed."""
    then = "this step sees one row at a time"
    return ExpressionError(f"{where}: {aggregate._is_of}", got=render(aggregate), then=then, hint=aggregate._belongs)


def _refuse_doubled(expr: Expr, schema: pa.Schema, where: str) -> None:
    """Refuse a text in double quotes that is the name of a column."""
    texts = [v for node in walk(expr) for v in _constants(node) if isinstance(v, QuotedText)]
    known = {n.lower(): n for n in schema.names} if texts else {}
    for text in texts:
        if text.lower() in known:
            raise text_or_column(text, known[text.lower()], where)


def _constants(node: Expr) -> tuple[Scalar, ...]:
    return (node.value,) if isinstance(node, Lit) else node.values if isinstance(node, IsIn) else ()


def text_or_column(text: str, column: str, where: str) -> ExpressionError:
    """Return the error for a `text` in double quotes that is the name of a `column`."""
    then = "double quotes mean a text here, in other systems a column"
    hint = f"write `{column}` in backquotes for the column, or '{text}' in single quotes for the text"
    return ExpressionError(f"{where}: a text in double quotes has the name of a column", got=f'"{text}"', then=then, hint=hint)


def _path(node: Field) -> str:
    """Return a field as it is written without backquotes."""
    names = [node.name]
    below = node.arg
    while isinstance(below, Field):
        names.append(below.name)
        below = below.arg
    return ".".join(reversed([*names, below.name] if isinstance(below, Col) else names))


def unknown_field(name: str, type_: pa.DataType, where: str) -> ExpressionError:
    """Return the error for a field that a value of `type_` does not have."""
    if not pa.types.is_struct(type_):
        hint = "name a column of type struct, or in backquotes a column with a dot in its name"
        return ExpressionError(f"{where} is not a struct", got=f"{name!r} of a {type_text(type_)}", hint=hint)
    names = [field.name for field in type_]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"the fields are: {', '.join(names[:20])}"
    problem = "two fields" if names.count(name) > 1 else "no field"
    return ExpressionError(f"{where} has {problem} {name!r}", got=type_text(type_), hint=hint.rstrip("?"))


def is_key_type(type_: pa.DataType) -> bool:
    """Return whether values of the type can be grouped by."""
    return not (pa.types.is_nested(type_) or pa.types.is_null(type_))


def key_hint(text: str, type_: pa.DataType) -> str:
    """Return what to write instead of a key, written as `text` in Python, whose values cannot be compared."""
    part = part_of(text, type_)
    return f"take a part of it: {part}" if part else f'write {text}.cast("string")'


def check_key_type(name: str, type_: pa.DataType, *, meant: str = "grouped") -> None:
    """Refuse a key column whose values cannot be compared.

    Raises
    ------
    ColumnError
        With what is `meant` to be done with its values.
    """
    if not is_key_type(type_):
        then, hint = f"only plain values can be {meant}", key_hint(f"col({name!r})", type_)
        raise ColumnError(f"column {name!r} cannot be a key", got=type_text(type_), then=then, hint=hint)


WINDOW_TIME: Final = "window_time"
_ORDER: Final = f"{RESERVED}order_"


def time_name(names: Iterable[str]) -> str:
    """Return what the event time of results is called next to columns of these `names`."""
    taken, name = {n.lower() for n in names}, WINDOW_TIME
    while name in taken:
        name += "_"
    return name


def order_name(number: int) -> str:
    """Return the column that results are ordered by in place `number`: end, start, then the keys (SEMANTICS §7.3)."""
    return f"{_ORDER}{number}"


def in_order_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return which of the columns called `names` say in which order results arrive."""
    return tuple(sorted((n for n in names if n.startswith(_ORDER)), key=lambda n: int(n.removeprefix(_ORDER))))


def without_order(rows: pa.Schema) -> pa.Schema:
    """Return the columns of `rows` that a step can name: not those that results are ordered by."""
    hidden = in_order_of(rows.names)
    return pa.schema([f for f in rows if f.name not in hidden], metadata=rows.metadata)
