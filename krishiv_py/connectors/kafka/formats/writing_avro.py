"""Rows as Avro records, in a schema that was given or follows from the columns."""

from __future__ import annotations

import functools
import io
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from krishiv_py.connectors.fit import fits
from krishiv_py.connectors.kafka.formats.avro import arrow_type
from krishiv_py.connectors.kafka.formats.avro_schemas import inner, names_of, parsed
from krishiv_py.connectors.kafka.formats.encoding import Encode
from krishiv_py.connectors.kafka.formats.registry import FRAME
from krishiv_py.connectors.kafka.formats.rows import RECORD
from krishiv_py.errors import RAISED, OperatorError, PlanError, failure_text
from krishiv_py.types import type_text

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final[dict[pa.DataType, Any]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}


def record_schema(schema: pa.Schema, given: str | None, where: str) -> str:
    """Return the JSON text of the schema of records with these columns; `where` begins errors.

    Raises
    ------
    PlanError
        For a name or a type that Avro does not have, and for columns that are not those of a `given` schema.
    """
    if given is None:
        return json.dumps(_record("row", [(field.name, field.type) for field in schema], where))
    described = parsed(given)
    fields, named = {field["name"]: field for field in described["fields"]}, names_of(described)
    for name in schema.names:
        if name not in fields:
            hint = f"the fields are: {', '.join(list(fields)[:20])}; leave the column out with select(), or add a field"
            raise PlanError(f"{where}: `avro_schema` has no field for a column", got=name, hint=hint)
    for name, field in fields.items():
        if name not in schema.names and "default" not in field:
            hint = "add a column of this name, or give the field a default"
            raise PlanError(f"{where}: a field of `avro_schema` has no column", got=name, hint=hint)
    for column in schema:
        try:
            _held(column.type, fields[column.name]["type"], named)
        except ValueError as problem:
            hint = "cast the column with .with_column or .select, or change the field"
            what = f"{where}: a field of `avro_schema` does not hold the values of a column"
            raise PlanError(what, got=f"{column.name}: {problem}", hint=hint) from None
    return given


def _held(kind: pa.DataType, field: Any, named: Mapping[str, Any]) -> pa.DataType:
    """Return the type that values of a `kind` are cast to for a field of a given schema; `kind` where fastavro sees to it.

    A type that is used again is only a name there, and `named` has it.

    fastavro cuts times to milliseconds or days, rounds numbers, leaves out fields that a record does not have, and takes times
    without a zone for those of the machine.

    Raises
    ------
    ValueError
        When no cast keeps them.
    """
    type_, _ = inner(field)
    type_ = named.get(type_, type_) if isinstance(type_, str) else type_
    name, logical = (type_["type"], type_.get("logicalType")) if isinstance(type_, dict) else (type_, None)
    if name == "array" and pa.types.is_list(kind):
        return pa.list_(_held(kind.value_type, type_["items"], named))
    if name == "map" and pa.types.is_map(kind):
        return pa.map_(kind.key_type, _held(kind.item_type, type_["values"], named))
    if name == "record" and pa.types.is_struct(kind):
        known = {one["name"]: one["type"] for one in type_["fields"]}
        for part in kind:
            if part.name not in known:
                raise ValueError(f"the record has no field {part.name}")
        return pa.struct([(part.name, _held(part.type, known[part.name], named)) for part in kind])
    if name in ("array", "map", "record") and not pa.types.is_null(kind):
        raise ValueError(f"{kind} for {name}")
    wanted = arrow_type(name, logical)
    if wanted is None or pa.types.is_null(kind):
        return kind
    if not fits(kind, wanted, RECORD) or (pa.types.is_integer(wanted) and not pa.types.is_integer(kind)):
        raise ValueError(f"{kind} for {logical or name}")
    return wanted if pa.types.is_timestamp(wanted) or pa.types.is_floating(wanted) else kind


def _record(name: str, fields: list[tuple[str, pa.DataType]], where: str) -> dict[str, Any]:
    for field, _ in fields:
        if not _NAME.fullmatch(field):
            hint = "rename the column: letters, digits and _, and no digit first"
            raise PlanError(f"{where}: Avro has no such name", got=repr(field), hint=hint)
    # every column may be null
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": field, "type": ["null", _type(type_, f"{name}_{field}", where)], "default": None}
            for field, type_ in fields
        ],
    }


def _type(type_: pa.DataType, name: str, where: str) -> Any:
    if type_ in _PLAIN:
        return _PLAIN[type_]
    if pa.types.is_decimal128(type_):
        return {"type": "bytes", "logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
    if pa.types.is_list(type_):
        return {"type": "array", "items": ["null", _type(type_.value_type, name, where)]}
    if pa.types.is_map(type_) and pa.types.is_string(type_.key_type):
        return {"type": "map", "values": ["null", _type(type_.item_type, name, where)]}
    if pa.types.is_struct(type_):
        return _record(name, [(type_.field(i).name, type_.field(i).type) for i in range(type_.num_fields)], where)
    hint = "cast the column" if pa.types.is_duration(type_) else 'cast the column, or use format="json"'
    raise PlanError(f"{where}: Avro has no such type", got=f"{name.partition('_')[2]}: {type_text(type_)}", hint=hint)


def head(registry: Any, topic: str, schema: Any) -> bytes:
    """Register the schema of a topic's values: the bytes before each of them."""
    return FRAME.pack(0, registry.register_schema(f"{topic}-value", schema))


def encoder(record: str, head_: bytes, *, with_schema: bool) -> Encode:
    """Return what writes rows as records; those of a schema that was given are checked one by one."""
    return functools.partial(_encoded, _parsed(record), head_, with_schema)


@functools.lru_cache(maxsize=64)
def _parsed(record: str) -> Any:
    import fastavro

    return fastavro.parse_schema(json.loads(record))


def _encoded(schema: Any, head_: bytes, checked: bool, table: pa.Table) -> list[bytes | None]:
    import fastavro
    from fastavro.validation import validate

    messages: list[bytes | None] = []
    try:
        if checked:
            fields, named = {field["name"]: field["type"] for field in schema["fields"]}, names_of(schema)
            table = table.cast(pa.schema([(f.name, _held(f.type, fields[f.name], named)) for f in table.schema]))
        maps = any(_has_map(field.type) for field in table.schema)
        for row in table.to_pylist(maps_as_pydicts="strict") if maps else table.to_pylist():
            stream = io.BytesIO()
            stream.write(head_)
            if checked:
                validate(row, schema)
            fastavro.schemaless_writer(stream, schema, row)
            messages.append(stream.getvalue())
    except RAISED as problem:  # a time that Python does not have, and a key that is twice in a map, too
        hint = "see which column it is, and cast it or change the schema"
        raise OperatorError(
            "a row is not a record of the Avro schema", got=failure_text(problem), then="the batch was not written", hint=hint
        ) from None
    return messages


def _has_map(type_: pa.DataType) -> bool:
    if pa.types.is_map(type_):
        return True
    return any(_has_map(type_.field(i).type) for i in range(type_.num_fields))
