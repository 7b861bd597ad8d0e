"""Avro values as columns, with the writer's schema from a schema registry or as it was told."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from krishiv_py.connectors.kafka.formats.decoding import NO_VALUE, Decoded
from krishiv_py.connectors.kafka.formats.registry import FRAME, NO_NUMBER, latest, registered
from krishiv_py.connectors.kafka.formats.rows import ValuesOf, columns
from krishiv_py.connectors.kafka.settings import Connection
from krishiv_py.errors import RAISED, PlanError, message, require_extra, shown, told

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
            if stream.read(1):
                raise ValueError("bytes are left over")
        except (*RAISED, RecursionError) as problem:
            bad[at] = f"no Avro record of its schema: {type(problem).__name__}: {problem}"
            continue
        good.append((at, found))
    return good


@functools.cache
def _raw_of(text: str) -> Any:
    import fastavro

    schema = json.loads(text)
    for field in schema["fields"]:
        type_, _ = inner(field["type"])
        if isinstance(type_, dict) and type_.get("logicalType") in _LOGICAL:
            del type_["logicalType"]
    return fastavro.parse_schema(schema)


def _raw(writer: Any) -> Any:
    """The schema without logical times in its fields: whole columns of numbers become times at once."""
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
    found = []
    for field in schema:
        type_, _ = inner(by_name.get(field.name, "null"))
        name, logical = (type_["type"], type_.get("logicalType")) if isinstance(type_, dict) else (type_, None)
        plain = _PLAIN.get(name) if isinstance(name, str) and logical in (None, *_LOGICAL) else None
        found.append(ValuesOf(functools.partial(_of, field.name), plain, arrow_type(name, logical)))
    return found


def arrow_type(name: Any, logical: str | None) -> pa.DataType | None:
    """What values of a plain type of Avro's stand for; None where it is not known here."""
    plain = _PLAIN.get(name) if isinstance(name, str) and logical in (None, *_LOGICAL) else None
    return plain if plain is None else _LOGICAL.get(logical or "", plain)


def _of(name: str, record: dict[str, Any]) -> Any:
    return record.get(name)
