"""Rows as messages of protobuf."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pyarrow as pa

from krishiv_py.connectors.fit import fit, fits
from krishiv_py.connectors.kafka.formats.encoding import Encode
from krishiv_py.connectors.kafka.formats.protobuf import TIMES, WRAPPERS, MessageType, message_class, typed
from krishiv_py.connectors.kafka.formats.rows import RECORD
from krishiv_py.errors import RAISED, ColumnError, OperatorError, PlanError, SchemaError, failure_text
from krishiv_py.types import type_text

Putter: TypeAlias = Callable[[Any], Any]
"""A value of Arrow's as the constructor of a message takes it."""
_US: Final = dt.timedelta(microseconds=1)
_EPOCH: Final = dt.datetime(1970, 1, 1)


@functools.lru_cache(maxsize=64)
def putters(type_: MessageType, schema: pa.Schema, where: str) -> list[tuple[str, pa.DataType, Putter]]:
    """For each column its name, the type it is cast to, and how its values are put into a message; `where` begins errors.

    Raises
    ------
    PlanError
        For a column that is not a field of the message, or another type.
    """
    known = message_class(type_).DESCRIPTOR.fields_by_name
    setters = []
    for column in schema:
        if column.name not in known:
            hint = f"the fields are: {', '.join(list(known)[:20])}; leave the column out with select(), or rename it"
            raise PlanError(f"{where}: {type_.name} has no field for a column", got=column.name, hint=hint)
        field = known[column.name]
        try:
            plain = typed(field, column.type, column.name)[0]
        except (ColumnError, SchemaError) as problem:
            raise PlanError(f"{where}: {problem}") from None
        if not fits(column.type, plain, RECORD):
            hint = "cast the column, or change the message"
            got = f"{column.name}: {type_text(column.type)}"
            raise PlanError(f"{where}: a field of {type_.name} is {plain}", got=got, hint=hint)
        setters.append((column.name, plain, _of(field)))
    return setters


def _of(field: Any) -> Putter:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        item = _single(inner.fields_by_name["value"])
        return functools.partial(_pairs, item)
    one = _single(field)
    return (lambda values: [one(v) for v in values]) if field.is_repeated else one


def _pairs(item: Putter, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a map, which has each key once."""
    entries = {key: item(value) for key, value in pairs}
    if len(entries) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"a map has the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return entries


def _single(field: Any) -> Putter:
    inner = field.message_type
    if inner is None:
        return lambda value: value
    if inner.full_name in TIMES:
        return _parts_of_time
    if inner.full_name in WRAPPERS:
        return lambda value: {"value": value}
    inside: dict[str, Putter] = {}
    return lambda row: {
        name: inside.setdefault(name, _of(inner.fields_by_name[name]))(v) for name, v in row.items() if v is not None
    }


def _parts_of_time(value: dt.datetime | dt.timedelta) -> dict[str, int]:
    """Seconds and nanoseconds of a time since 1970, or of a duration; both parts of a duration have its sign."""
    if isinstance(value, dt.datetime):
        seconds, us = divmod((value.replace(tzinfo=None) - _EPOCH) // _US, 1_000_000)
        return {"seconds": seconds, "nanos": us * 1_000}
    whole = value // _US
    sign = -1 if whole < 0 else 1
    return {"seconds": sign * (abs(whole) // 1_000_000), "nanos": sign * (abs(whole) % 1_000_000) * 1_000}


def head(registry: Any, topic: str, type_: MessageType) -> bytes:
    """Register the schema of a topic's values: the bytes before each of them."""
    from confluent_kafka.schema_registry import topic_subject_name_strategy
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    made = message_class(type_)
    serializer = ProtobufSerializer(made, registry, {"subject.name.strategy": topic_subject_name_strategy})
    return bytes(serializer(made(), SerializationContext(topic, MessageField.VALUE)))  # an empty message has no bytes


def encoder(type_: MessageType, schema: pa.Schema, head_: bytes) -> Encode:
    """Return what writes rows of this `schema` as messages."""
    return functools.partial(_encoded, message_class(type_), putters(type_, schema, type_.name), head_)


def _encoded(made: Any, columns: list[tuple[str, pa.DataType, Putter]], head_: bytes, table: pa.Table) -> list[bytes | None]:
    try:
        values = [[None if v is None else put(v) for v in _plain(table.column(name), plain)] for name, plain, put in columns]
        names = [name for name, _, _ in columns]
        return [
            head_
            + made(**{n: v for n, v in zip(names, row, strict=True) if v is not None}).SerializeToString(deterministic=True)
            for row in (zip(*values, strict=True) if values else [()] * table.num_rows)
        ]
    except RAISED as problem:
        hint = "see which column it is, and cast it or change the message"
        raise OperatorError(
            f"a row is not a {made.DESCRIPTOR.full_name}",
            got=failure_text(problem),
            then="the batch was not written",
            hint=hint,
        ) from None


def _plain(column: pa.ChunkedArray, type_: pa.DataType) -> list[Any]:
    return [value for chunk in column.chunks for value in fit(chunk, type_, RECORD, ()).to_pylist()]
