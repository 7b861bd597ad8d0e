"""Avro values as columns, with the writer's schema from a schema registry or as it was told."""

from __future__ import annotations

import functools
import importlib
import io
import json
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from krishiv_py.connectors.kafka.client import kafka
from krishiv_py.connectors.kafka.formats.decoding import NO_VALUE, Decoded
from krishiv_py.connectors.kafka.settings import Connection
from krishiv_py.errors import RAISED, PlanError, SourceError, message, missing_extra, require_extra, shown, told

_FRAME: Final = struct.Struct(">bI")
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


def registry_modules() -> None:
    """Raise :class:`MissingExtraError` unless a registry can be asked."""
    try:
        importlib.import_module("confluent_kafka.schema_registry")
    except ImportError as problem:  # what it needs itself has had several names
        missing = f"{problem.name} (the schema registry's client)"
        raise missing_extra(missing, "kafka", "no schema can be looked up") from problem


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


@functools.lru_cache(maxsize=8)
def _registry(registry: Connection, _process: int) -> Any:
    kafka()
    from confluent_kafka.schema_registry import SchemaRegistryClient

    return SchemaRegistryClient({**dict(registry.settings), "url": registry.servers})


@functools.lru_cache(maxsize=1_000)
def _writer(registry: Connection, number: int, process: int) -> Any:
    """The schema of this number. It never changes, so it is asked once in a process.

    Raises
    ------
    SourceError
        When the registry does not answer.
    ValueError
        When it has no such schema, or another kind of schema.
    """
    import fastavro
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    try:
        found = _registry(registry, process).get_schema(number)
    except SchemaRegistryError as problem:
        if problem.http_status_code == 404:
            raise ValueError(f"the schema registry has no schema {number}") from None
        raise _silent(registry, problem) from None
    except RAISED as problem:
        raise _silent(registry, problem) from None
    if found.schema_type != "AVRO" or found.references:
        raise ValueError(f"schema {number} of the registry is {found.schema_type}, or refers to others")
    return fastavro.parse_schema(json.loads(found.schema_str))


def _silent(registry: Connection, problem: BaseException) -> SourceError:
    got = f"{registry.servers}: {registry.clean(told(problem))}"
    hint = "see that the registry runs and can be reached, then start the query again"
    return SourceError(message("the schema registry does not answer", got, "values cannot be decoded", hint))


def decode_avro(schema: pa.Schema, registry: Connection | None, text: str | None, values: Sequence[bytes | None]) -> Decoded:
    """Values that are one Avro record each, in the columns of `schema`; with a registry each begins with a schema's number."""
    bad: dict[int, str] = {}
    by_writer: dict[int, list[int]] = {}
    for at, value in enumerate(values):
        if value is None:
            bad[at] = NO_VALUE
        elif registry is None:
            by_writer.setdefault(-1, []).append(at)
        elif len(value) < _FRAME.size or value[0] != 0:
            bad[at] = "it does not begin with the number of a schema"
        else:
            by_writer.setdefault(_FRAME.unpack_from(value)[1], []).append(at)
    rows: dict[int, pa.RecordBatch] = {}
    order: list[int] = []
    for number, places in by_writer.items():
        try:
            writer = _told(text) if registry is None else _writer(registry, number, os.getpid())
            fields = _fields(writer, schema)
        except ValueError as problem:
            bad.update(dict.fromkeys(places, str(problem)))
            continue
        good = _records(writer, values, places, 0 if registry is None else _FRAME.size, bad)
        batch, kept = _columns(schema, fields, good, bad)
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
        type_, _ = _inner(field["type"])
        if isinstance(type_, dict) and type_.get("logicalType") in _LOGICAL:
            del type_["logicalType"]
    return fastavro.parse_schema(schema)


def _raw(writer: Any) -> Any:
    """The schema without logical times in its fields: whole columns of numbers become times at once."""
    return _raw_of(json.dumps({k: v for k, v in writer.items() if not k.startswith("__")}))


def _inner(type_: Any) -> tuple[Any, bool]:
    """A type without the null beside it, and whether that was all it needed."""
    if isinstance(type_, list):
        rest = [t for t in type_ if t != "null"]
        return (rest[0], True) if len(rest) == 1 else (None, False)
    return type_, True


def _fields(writer: Any, schema: pa.Schema) -> dict[str, tuple[pa.DataType | None, pa.DataType | None]]:
    """For each column the Arrow types its values have, before and after they are times; None where Arrow is to see."""
    by_name = {f["name"]: f["type"] for f in writer["fields"]}
    if not any(name in by_name for name in schema.names):
        raise ValueError(f"none of the columns {', '.join(schema.names[:20])}; it has: {', '.join(list(by_name)[:20])}")
    found: dict[str, tuple[pa.DataType | None, pa.DataType | None]] = {}
    for field in schema:
        type_, _ = _inner(by_name.get(field.name, "null"))
        name, logical = (type_["type"], type_.get("logicalType")) if isinstance(type_, dict) else (type_, None)
        plain = _PLAIN.get(name) if isinstance(name, str) and logical in (None, *_LOGICAL) else None
        found[field.name] = (plain, _LOGICAL.get(logical or "", plain))
    return found


def _columns(
    schema: pa.Schema,
    fields: dict[str, tuple[pa.DataType | None, pa.DataType | None]],
    good: list[tuple[int, dict[str, Any]]],
    bad: dict[int, str],
) -> tuple[pa.RecordBatch, list[int]]:
    """Dicts as columns; those whose values do not fit are found one by one."""
    try:
        return _batch(schema, fields, [row for _, row in good]), [at for at, _ in good]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
        if len(good) <= 1:
            for at, _ in good:
                bad[at] = str(problem)
            return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema), []
        middle = len(good) // 2
        parts = [_columns(schema, fields, half, bad) for half in (good[:middle], good[middle:])]
        table = pa.Table.from_batches([p[0] for p in parts], schema).combine_chunks()
        batches = table.to_batches()
        return batches[0] if batches else parts[0][0], [at for p in parts for at in p[1]]


def _batch(
    schema: pa.Schema, fields: dict[str, tuple[pa.DataType | None, pa.DataType | None]], rows: list[dict[str, Any]]
) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        plain, logical = fields[field.name]
        values = [row.get(field.name) for row in rows]
        try:
            array = pa.array(values, plain if plain is not None else field.type)
            if plain is not None and logical is not None and logical != plain:
                array = array.cast(logical)
            arrays.append(array if array.type == field.type else _strict(array, field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
            raise ValueError(f"column {field.name!r}: {problem}") from problem
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _strict(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast where nothing is lost: numbers to wider ones, times to finer ones, no text to a number."""
    is_ = pa.types
    kinds: tuple[Callable[[pa.DataType], bool], ...] = (
        is_.is_integer,
        lambda t: bool(is_.is_floating(t) or is_.is_integer(t)),
        is_.is_timestamp,
        is_.is_string,
        is_.is_binary,
    )
    both = any(kind(array.type) and kind(type_) for kind in kinds) or is_.is_null(array.type)
    as_millis = is_.is_int64(type_) and is_.is_timestamp(array.type)  # a bigint of event time is in ms
    if as_millis:
        return array.cast(pa.timestamp("ms", array.type.tz)).cast(type_)
    narrowed = is_.is_floating(array.type) and not is_.is_floating(type_)
    if not both or narrowed or (is_.is_float64(array.type) and is_.is_float32(type_)):
        raise ValueError(f"a value of Avro's {array.type} is no {type_}")
    return array.cast(type_)
