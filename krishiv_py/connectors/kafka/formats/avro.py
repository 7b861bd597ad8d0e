"""Avro values as columns, with the writer's schema from a schema registry or as it was told."""

from __future__ import annotations

import functools
import io
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from krishiv_py.connectors.kafka.formats.decoding import NO_VALUE, Decoded
from krishiv_py.connectors.kafka.formats.registry import FRAME, NO_NUMBER, latest, registered
from krishiv_py.connectors.kafka.formats.rows import ValuesOf, columns
from krishiv_py.connectors.kafka.settings import Connection
from krishiv_py.errors import RAISED, PlanError, message, require_extra, shown, told

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
_LOGICAL: Final[dict[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_READ: Final[dict[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    **{
        ("long", f"{local}timestamp-{name}"): pa.timestamp(unit, zone)
        for local, zone in (("", "UTC"), ("local-", None))
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}
"""The times that numbers mean. A logical type that is not here, or on another type, has no effect, as Avro's rules say."""


def avro_modules() -> None:
    """Raise :class:`MissingExtraError` unless Avro can be read."""
    require_extra("Avro", ("fastavro",), "kafka", "Avro values cannot be decoded")


def parsed(text: str) -> Any:
    """A schema that a user told.

    Raises
    ------
    PlanError
        When it is none, or no record.
    """
    import fastavro

    try:
        found = fastavro.parse_schema(json.loads(text))
    except RAISED as problem:
        hint = "pass the JSON text of a record schema"
        raise PlanError(message("`avro_schema` is no Avro schema", shown(text), told(problem), hint)) from None
    if not isinstance(found, dict) or found.get("type") != "record":
        hint = "pass the schema of a record"
        raise PlanError(message("`avro_schema` is no record", shown(text), "there would be no columns", hint))
    return found


def require_columns(text: str, schema: pa.Schema) -> None:
    """Refuse a schema that was told and has none of the columns: every value would be malformed.

    Raises
    ------
    PlanError
        When it has none of them.
    """
    try:
        _fields(_told(text), schema)
    except ValueError as problem:
        hint = "name the fields of the Avro schema in `schema`, or pass the schema that the values were written with"
        raise PlanError(message("`avro_schema` and `schema` do not fit", str(problem), "no value has a row", hint)) from None


def require_registered_columns(registry: Connection, topic: str, schema: pa.Schema) -> None:
    """Refuse a topic whose values have none of the columns, by the newest schema that is registered for it.

    That is the one under ``TOPIC-value``, as producers name it if nobody tells them otherwise. Where there is none under this
    name, or the registry does not answer, the values themselves tell.

    Raises
    ------
    PlanError
        When it has none of the columns.
    """
    import fastavro

    subject = f"{topic}-value"
    found = latest(registry, subject)
    if found is None or found.schema_type != "AVRO" or found.references:
        return
    try:
        record = fastavro.parse_schema(json.loads(found.schema_str))
    except RAISED:
        return
    if not (isinstance(record, dict) and record.get("type") == "record"):
        return
    try:
        _fields(record, schema)
    except ValueError as problem:
        what = f"the registered schema {subject!r} and `schema` do not fit"
        raise PlanError(message(what, str(problem), "no value has a row", "name its fields in `schema`")) from None


@functools.lru_cache(maxsize=1_000)
def _writer(registry: Connection, number: int) -> Any:
    """The schema of this number.

    Raises
    ------
    SourceError
        When the registry does not answer.
    ValueError
        When it has no such schema, or another kind of schema.
    """
    import fastavro

    found = registered(registry, number, "AVRO")
    if found.references:
        raise ValueError(f"schema {number} of the registry refers to others")
    return fastavro.parse_schema(json.loads(found.schema_str))


def decode_avro(schema: pa.Schema, registry: Connection | None, text: str | None, values: Sequence[bytes | None]) -> Decoded:
    """Values that are one Avro record each, in the columns of `schema`; with a registry each begins with a schema's number."""
    bad: dict[int, str] = {}
    by_writer: dict[int, list[int]] = {}
    for at, value in enumerate(values):
        if value is None:
            bad[at] = NO_VALUE
        elif registry is None:
            by_writer.setdefault(-1, []).append(at)
        elif len(value) < FRAME.size or value[0] != 0:
            bad[at] = NO_NUMBER
        else:
            by_writer.setdefault(FRAME.unpack_from(value)[1], []).append(at)
    rows: dict[int, pa.RecordBatch] = {}
    order: list[int] = []
    for number, places in by_writer.items():
        try:
            writer = _told(text) if registry is None else _writer(registry, number)
            fields = _fields(writer, schema)
        except ValueError as problem:
            bad.update(dict.fromkeys(places, str(problem)))
            continue
        good = _records(writer, values, places, 0 if registry is None else FRAME.size, bad)
        batch, kept = columns(schema, fields, good, bad)
        rows[number] = batch
        order += kept
    table = pa.Table.from_batches(list(rows.values()), schema).combine_chunks()
    if len(rows) > 1:  # back into the order of the records
        table = table.take(pa.array(sorted(range(len(order)), key=order.__getitem__), pa.int64())).combine_chunks()
    batches = table.to_batches()
    return Decoded(batches[0] if batches else pa.RecordBatch.from_pylist([], schema), tuple(sorted(bad.items())))


@functools.lru_cache(maxsize=8)
def _told(text: str | None) -> Any:
    return parsed(text or "")


def _records(
    writer: Any, values: Sequence[bytes | None], places: list[int], skipped: int, bad: dict[int, str]
) -> list[tuple[int, dict[str, Any]]]:
    """Values as dicts; all bytes of a value must belong to its record."""
    import fastavro

    raw, good = _raw(writer), []
    for at in places:
        stream = io.BytesIO(values[at] or b"")
        stream.seek(skipped)
        try:
            found: Any = fastavro.schemaless_reader(stream, raw, None)
        except (*RAISED, RecursionError) as problem:
            bad[at] = f"no Avro record of its schema: {type(problem).__name__}"
            continue
        if stream.read(1):
            bad[at] = "no Avro record of its schema: bytes are left over"
            continue
        good.append((at, found))
    return good


@functools.cache
def _raw_of(text: str) -> Any:
    import fastavro

    return fastavro.parse_schema(_without_logical(json.loads(text)))


def _without_logical(type_: Any) -> Any:
    """A schema whose times and UUIDs are read as they are written. Decimals stay, and unions of several types."""
    if isinstance(type_, list):
        return type_ if inner(type_)[0] is None else [_without_logical(t) for t in type_]
    if not isinstance(type_, dict):
        return type_
    kept = {k: v for k, v in type_.items() if k != "logicalType" or v == "decimal"}
    for part in kept.keys() & {"type", "items", "values"}:
        kept[part] = _without_logical(kept[part])
    if "fields" in kept:
        kept["fields"] = [{**f, "type": _without_logical(f["type"])} for f in kept["fields"]]
    return kept


def _raw(writer: Any) -> Any:
    """The schema without logical times: whole columns of numbers become times at once."""
    return _raw_of(json.dumps({k: v for k, v in writer.items() if not k.startswith("__")}))


def inner(type_: Any) -> tuple[Any, bool]:
    """A type without the null beside it, and whether that was all it needed."""
    if isinstance(type_, list):
        rest = [t for t in type_ if t != "null"]
        return (rest[0], True) if len(rest) == 1 else (None, False)
    return type_, True


def _fields(writer: Any, schema: pa.Schema) -> list[ValuesOf]:
    """Where the values of each column are, and the Arrow types they have."""
    by_name = {f["name"]: f["type"] for f in writer["fields"]}
    if not any(name in by_name for name in schema.names):
        raise ValueError(f"none of the columns {', '.join(schema.names[:20])}; it has: {', '.join(list(by_name)[:20])}")
    import fastavro

    found: list[ValuesOf] = []
    named: dict[str, Any] = {}
    fastavro.parse_schema(writer, named)
    for field in schema:
        plain, logical = _types(by_name.get(field.name, "null"), field.type, named)
        change = _uuids(by_name.get(field.name, "null"), field.type, named)
        one = functools.partial(_of, field.name) if change is None else functools.partial(_changed, field.name, change)
        found.append(ValuesOf(one, plain, logical))
    return found


def _types(type_: Any, wanted: pa.DataType, named: Mapping[str, Any]) -> tuple[pa.DataType, pa.DataType]:
    """The Arrow type of values as they are read, and with times in place of numbers; `wanted` itself where they are to fit."""
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
        found = [_types(parts.get(f.name, "null"), f.type, named) for f in wanted]
        plain, meant = ([f.with_type(t[at]) for f, t in zip(wanted, found, strict=True)] for at in (0, 1))
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
    return _PLAIN[name], _READ.get((name, logical), _PLAIN[name])


def _uuids(type_: Any, wanted: pa.DataType, named: Mapping[str, Any]) -> Change | None:
    """The function that makes bytes of UUIDs that are texts, or texts of bytes; None where nothing is to change."""
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
        raise ValueError("a text is no UUID") from None


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
    """What values of a plain type of Avro's stand for; None where it is not known here."""
    plain = _PLAIN.get(name) if isinstance(name, str) and logical in (None, *_LOGICAL) else None
    return plain if plain is None else _LOGICAL.get(logical or "", plain)


def _of(name: str, record: dict[str, Any]) -> Any:
    return record.get(name)
