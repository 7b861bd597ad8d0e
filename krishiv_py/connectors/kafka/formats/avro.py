"""Avro values as columns, and rows as Avro records, with schemas of a registry or as they were given."""

from __future__ import annotations

import functools
import io
import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from krishiv_py.connectors.fit import fits
from krishiv_py.connectors.kafka.client import Connection
from krishiv_py.connectors.kafka.formats.avro_schemas import (
    READ,
    AvroValues,
    SchemaRecords,
    described,
    inner,
    names_of,
    of_registry,
    of_text,
    parsed,
    whole,
)
from krishiv_py.connectors.kafka.formats.decoding import NO_VALUE, RECORD, DecodedRows, ValuesOf, columns
from krishiv_py.connectors.kafka.formats.encoding import Encode
from krishiv_py.connectors.kafka.formats.registry import FRAME, latest, number_of, referenced
from krishiv_py.errors import RAISED, OperatorError, PlanError, SourceError, failure_text
from krishiv_py.types import storable_hint, type_text

Change: TypeAlias = Callable[[Any], Any]
_PLAIN: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
}
_VARINT: Final = 5
"""The most bytes of the number of a branch."""
_LOGICAL: Final[dict[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def require_columns(
    text: str, reader: str | None, schema: pa.Schema, *, single: bool = False, name: str = "avro_schema"
) -> None:
    """Refuse a schema that was given and has none of the columns: every value would be malformed.

    Raises
    ------
    PlanError
        When it has none of them, or cannot be resolved to the schema of the reader.
    """
    try:
        _require(of_text(text, reader, single), schema)
    except ValueError as problem:
        hint = "name the fields of the Avro schema as columns, or pass the schema that was written with"
        raise PlanError(f"`{name}` and the columns do not fit", got=str(problem), hint=hint) from None


def _require(written: AvroValues, schema: pa.Schema) -> None:
    problems = []
    for branch in written.branches:
        if isinstance(branch, str):
            problems.append(branch)
            continue
        try:
            _fields(branch, schema)
            return
        except ValueError as problem:
            problems.append(str(problem))
    raise ValueError("; ".join(problems))


def require_registered_columns(registry: Connection, topic: str, reader: str | None, schema: pa.Schema) -> None:
    """Refuse a topic whose values have none of the columns, by the newest schema that is registered for it.

    That is the one under ``TOPIC-value``, as producers name it if nobody says otherwise. Where there is none under this
    name, or the registry does not answer, or it is not a record, the values themselves show it.

    Raises
    ------
    PlanError
        When it has none of the columns.
    """
    subject = f"{topic}-value"
    registered_schema = latest(registry, subject)
    if registered_schema is None or registered_schema.schema_type != "AVRO":
        return
    try:
        written = described(
            whole(registered_schema.schema_str, referenced(registry, registered_schema)), reader, f"schema {subject}"
        )
    except (ValueError, SourceError):
        return
    if all(isinstance(branch, str) for branch in written.branches):
        return
    try:
        _require(written, schema)
    except ValueError as problem:
        what = f"the registered schema {subject!r} and `schema` do not fit"
        raise PlanError(what, got=str(problem), hint="name its fields in `schema`") from None


def decode_avro(
    schema: pa.Schema,
    registry: Connection | None,
    text: str | None,
    values: Sequence[bytes | None],
    reader: str | None = None,
    *,
    single: bool = False,
) -> DecodedRows:
    """Return values that are one Avro record each, in the columns of `schema`.

    Parameters
    ----------
    schema : pyarrow.Schema
        The columns.
    registry : Connection, optional
        Where schemas are found by the number that each value begins with.
    text : str, optional
        Without a registry, the schema that all values were written with.
    values : sequence of bytes or None
        The values of records.
    reader : str, optional
        The schema to which that of the writer is resolved, with its defaults and aliases.
    single : bool
        Whether a value that is not a record is the only column.
    """
    bad: dict[int, str] = {}
    written: dict[int, AvroValues | str] = {}
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, value in enumerate(values):
        try:
            if value is None:
                raise ValueError(NO_VALUE)
            number, skipped = -1, 0
            if registry is not None:
                number, skipped = number_of(value), FRAME.size
            if number not in written:
                written[number] = _written(registry, number, text, reader, single)
            one = written[number]
            if isinstance(one, str):
                raise ValueError(one)
            branch, skipped = _branch_of(value, skipped, len(one.branches)) if one.union else (0, skipped)
            groups.setdefault((number, branch), []).append((i, skipped))
        except ValueError as problem:
            bad[i] = str(problem)
    rows: list[pa.RecordBatch] = []
    order: list[int] = []
    for (number, at_branch), places in groups.items():
        one = written[number]
        assert isinstance(one, AvroValues)
        schema_read = one.branches[at_branch]
        try:
            if isinstance(schema_read, str):
                raise ValueError(schema_read)
            fields = _fields(schema_read, schema)
        except ValueError as problem:
            bad.update((i, str(problem)) for i, _ in places)
            continue
        batch, kept = columns(schema, fields, _records(schema_read, values, places, bad), bad)
        rows.append(batch)
        order += kept
    table = pa.Table.from_batches(rows, schema).combine_chunks()
    if len(rows) > 1:  # back into the order of the records
        table = table.take(pa.array(sorted(range(len(order)), key=order.__getitem__), pa.int64())).combine_chunks()
    batches = table.to_batches()
    return DecodedRows(batches[0] if batches else pa.RecordBatch.from_pylist([], schema), tuple(sorted(bad.items())))


def _written(registry: Connection | None, number: int, text: str | None, reader: str | None, single: bool) -> AvroValues | str:
    """Return the way in which values of a number are read, or the reason why they are not rows."""
    try:
        return of_text(text or "", reader, single) if registry is None else of_registry(registry, number, reader, single)
    except ValueError as problem:
        return str(problem)


def _branch_of(value: bytes, position: int, most: int) -> tuple[int, int]:
    """Return the branch of a union, and where its value begins: a number of a few bytes in zigzag form."""
    number = shift = 0
    for place in range(position, min(position + _VARINT, len(value))):
        number |= (value[place] & 0x7F) << shift
        shift += 7
        if not value[place] & 0x80:
            branch = (number >> 1) ^ -(number & 1)
            if 0 <= branch < most:
                return branch, place + 1
            break
    raise ValueError(f"no Avro record of its schema: it begins with no branch of {most}")


def _records(
    branch: SchemaRecords, values: Sequence[bytes | None], places: list[tuple[int, int]], bad: dict[int, str]
) -> list[tuple[int, dict[str, Any]]]:
    """Values as dicts; all bytes of a value must belong to its record."""
    import fastavro
    from fastavro.read import SchemaResolutionError

    good = []
    for i, skipped in places:
        stream = io.BytesIO(values[i] or b"")
        stream.seek(skipped)
        try:
            record: Any = fastavro.schemaless_reader(stream, branch.raw, branch.reader)
        except SchemaResolutionError:
            bad[i] = "its schema cannot be resolved to avro_reader_schema"
            continue
        except (*RAISED, RecursionError) as problem:
            bad[i] = f"no Avro record of its schema: {type(problem).__name__}"
            continue
        if stream.read(1):
            bad[i] = "no Avro record of its schema: bytes are left over"
            continue
        good.append((i, record))
    return good


def _fields(branch: SchemaRecords, schema: pa.Schema) -> list[ValuesOf]:
    """Return the places of the values of each column, and the Arrow types they have.

    Raises
    ------
    ValueError
        When the record has none of the columns.
    """
    named = names_of(branch.record)
    fields = branch.record["fields"]
    names = {name: fields[0]["name"] if branch.single else name for name in schema.names}
    by_name = {f["name"]: f["type"] for f in fields}
    if not any(name in by_name for name in names.values()):
        raise ValueError(f"none of the columns {', '.join(schema.names[:20])}; it has: {', '.join(list(by_name)[:20])}")
    readers: list[ValuesOf] = []
    for field in schema:
        type_ = by_name.get(names[field.name], "null")
        plain, logical = _types(type_, field.type, named)
        change = _uuids(type_, field.type, named)
        one = functools.partial(_of, names[field.name])
        readers.append(
            ValuesOf(one if change is None else functools.partial(_changed, names[field.name], change), plain, logical)
        )
    return readers


def _types(type_: Any, wanted: pa.DataType, named: Mapping[str, Any]) -> tuple[pa.DataType, pa.DataType]:
    """Return the Arrow type of values as they are read, and with times in place of numbers; `wanted` itself where they are to
    fit.
    """
    is_ = pa.types
    if isinstance(type_, list):
        one, _ = inner(type_)
        if one is not None:
            return _types(one, wanted, named)
        for branch in type_:
            if "timestamp-nanos" in str(branch) or (isinstance(branch, str) and "'logicalType'" in str(named.get(branch))):
                raise ValueError("a union of several types has nanoseconds, or refers to a record with times by its name")
        return wanted, wanted
    if isinstance(type_, str):
        type_ = named.get(type_, {"type": type_})
    name, logical = type_["type"], str(type_.get("logicalType"))
    if not isinstance(name, str):
        return _types(name, wanted, named)
    if name in ("record", "error") and is_.is_struct(wanted):
        parts = {f["name"]: f["type"] for f in type_["fields"]}
        pairs = [_types(parts.get(f.name, "null"), f.type, named) for f in wanted]
        plain, meant = ([f.with_type(t[i]) for f, t in zip(wanted, pairs, strict=True)] for i in (0, 1))
        return pa.struct(plain), pa.struct(meant)
    if name == "array" and is_.is_list(wanted):
        plain, meant = _types(type_["items"], wanted.value_type, named)
        return pa.list_(wanted.value_field.with_type(plain)), pa.list_(wanted.value_field.with_type(meant))
    if name == "map" and is_.is_map(wanted):
        plain, meant = _types(type_["values"], wanted.item_type, named)
        key, item = wanted.key_field, wanted.item_field
        return pa.map_(key, item.with_type(plain)), pa.map_(key, item.with_type(meant))
    if name not in _PLAIN or (logical == "decimal" and name in ("bytes", "fixed")) or _of_uuid(type_, wanted) is not None:
        return wanted, wanted
    return _PLAIN[name], READ.get((name, logical), _PLAIN[name])


def _uuids(type_: Any, wanted: pa.DataType, named: Mapping[str, Any]) -> Change | None:
    """Return the function that makes bytes of UUIDs that are texts, or texts of bytes; None where nothing is to change."""
    is_ = pa.types
    if isinstance(type_, list):
        return _uuids(inner(type_)[0] or "null", wanted, named)
    if isinstance(type_, str):
        type_ = named.get(type_, {"type": type_})
    name = type_["type"]
    if not isinstance(name, str):
        return _uuids(name, wanted, named)
    if name in ("record", "error") and is_.is_struct(wanted):
        parts = {f["name"]: f["type"] for f in type_["fields"]}
        changes = {f.name: _uuids(parts[f.name], f.type, named) for f in wanted if f.name in parts}
        some = {n: change for n, change in changes.items() if change is not None}
        return functools.partial(_in_record, some) if some else None
    if name == "array" and is_.is_list(wanted):
        one = _uuids(type_["items"], wanted.value_type, named)
        return None if one is None else functools.partial(_in_list, one)
    if name == "map" and is_.is_map(wanted):
        one = _uuids(type_["values"], wanted.item_type, named)
        return None if one is None else functools.partial(_in_map, one)
    return _of_uuid(type_, wanted)


def _of_uuid(type_: Any, wanted: pa.DataType) -> Change | None:
    if type_.get("logicalType") == "uuid":
        if type_["type"] == "string" and pa.types.is_binary(wanted):
            return _uuid_bytes
        if type_["type"] == "fixed" and type_.get("size") == 16 and pa.types.is_string(wanted):
            return _uuid_text
    return None


def _uuid_bytes(value: str | None) -> bytes | None:
    try:
        return None if value is None else uuid.UUID(value).bytes
    except ValueError:
        raise ValueError("a text is not a UUID") from None


def _uuid_text(value: bytes | None) -> str | None:
    return None if value is None else str(uuid.UUID(bytes=value))


def _in_record(changes: Mapping[str, Change], value: dict[str, Any] | None) -> Any:
    return None if value is None else value | {name: change(value.get(name)) for name, change in changes.items()}


def _in_list(change: Change, value: list[Any] | None) -> Any:
    return None if value is None else [change(one) for one in value]


def _in_map(change: Change, value: dict[str, Any] | None) -> Any:
    return None if value is None else {key: change(one) for key, one in value.items()}


def _changed(name: str, change: Change, record: dict[str, Any]) -> Any:
    return change(record.get(name))


def arrow_type(name: Any, logical: str | None) -> pa.DataType | None:
    """Return what values of a plain type of Avro's stand for; None where it is not known here."""
    plain = _PLAIN.get(name) if isinstance(name, str) and logical in (None, *_LOGICAL) else None
    return plain if plain is None else _LOGICAL.get(logical or "", plain)


def _of(name: str, record: dict[str, Any]) -> Any:
    return record.get(name)


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AVRO_NAMES: Final[dict[pa.DataType, Any]] = {
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
    if type_ in _AVRO_NAMES:
        return _AVRO_NAMES[type_]
    if pa.types.is_decimal128(type_):
        return {"type": "bytes", "logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
    if pa.types.is_list(type_):
        return {"type": "array", "items": ["null", _type(type_.value_type, name, where)]}
    if pa.types.is_map(type_) and pa.types.is_string(type_.key_type):
        return {"type": "map", "values": ["null", _type(type_.item_type, name, where)]}
    if pa.types.is_struct(type_):
        return _record(name, [(type_.field(i).name, type_.field(i).type) for i in range(type_.num_fields)], where)
    column = name.partition("_")[2]
    hint = storable_hint(column, type_) if pa.types.is_duration(type_) else 'leave the column out, or use format="json"'
    raise PlanError(f"{where}: Avro has no such type", got=f"{column}: {type_text(type_)}", hint=hint)


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
        what = "a row is not a record of the Avro schema"
        raise OperatorError(what, got=failure_text(problem), then="the batch was not written", hint=hint) from None
    return messages


def _has_map(type_: pa.DataType) -> bool:
    if pa.types.is_map(type_):
        return True
    return any(_has_map(type_.field(i).type) for i in range(type_.num_fields))
