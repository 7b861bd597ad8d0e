"""Protobuf values as columns, and rows as messages, which may have the number of a registry's schema in front."""

from __future__ import annotations

import datetime as dt
import functools
import os
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.connectors.fit import fit, fits
from krishiv_py.connectors.kafka.client import Connection
from krishiv_py.connectors.kafka.formats.decoding import NO_VALUE, RECORD, DecodedRows, ValuesOf, columns
from krishiv_py.connectors.kafka.formats.encoding import Encode
from krishiv_py.connectors.kafka.formats.registry import FRAME, number_of, registered
from krishiv_py.errors import (
    RAISED,
    ColumnError,
    OperatorError,
    PlanError,
    SchemaError,
    failure_text,
    require_extra,
    shown,
    unknown_column,
)
from krishiv_py.types import article, type_text

Getter = Callable[[Any], Any]
_HINT: Final = (
    'pass a generated class, or the file of `protoc --include_imports --descriptor_set_out` and a name: ("a.pb", "my.Event")'
)
_SCALARS: Final[dict[int, pa.DataType]] = {
    1: pa.float64(), 2: pa.float32(), 3: pa.int64(), 4: pa.uint64(), 5: pa.int32(), 6: pa.uint64(), 7: pa.uint32(),
    8: pa.bool_(), 9: pa.string(), 12: pa.binary(), 13: pa.uint32(), 15: pa.int32(),
    16: pa.int64(), 17: pa.int32(), 18: pa.int64(),
}  # fmt: skip
"""Types of plain fields by the numbers of ``FieldDescriptorProto.Type``."""
WRAPPERS: Final = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
TIMES: Final[dict[str, pa.DataType]] = {
    "google.protobuf.Timestamp": pa.timestamp("us", "UTC"),
    "google.protobuf.Duration": pa.duration("us"),
}
_DEEPEST: Final = 50


@attrs.frozen
class MessageType:
    """A type of messages, with the files that describe it. It can be sent to tasks, as generated classes cannot.

    Attributes
    ----------
    name : str
        With its package: ``my.Event``.
    files : bytes
        A ``FileDescriptorSet``.
    """

    name: str
    files: bytes = attrs.field(repr=False)


def protobuf_modules() -> None:
    """Raise :class:`MissingExtraError` unless protobuf can be read."""
    require_extra("protobuf", ("google.protobuf",), "kafka", "protobuf values cannot be decoded")


def message_type(given: object) -> MessageType:
    """Return what a user gave: a generated class, or a file of descriptors and a name.

    Raises
    ------
    PlanError
        For anything else, and for a file that cannot be read or has no such message.
    """
    protobuf_modules()
    descriptor: Any = getattr(given, "DESCRIPTOR", given)
    if hasattr(descriptor, "fields_by_name") and hasattr(descriptor, "file"):
        message = MessageType(descriptor.full_name, _files(descriptor.file))
    elif isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[1], str) and _is_path(given[0]):
        try:
            with open(given[0], "rb") as file:
                message = MessageType(given[1], file.read())
        except OSError as problem:
            what = "`protobuf_message` names a file that cannot be read"
            raise PlanError(what, got=shown(given), then=failure_text(problem), hint=_HINT) from None
    else:
        raise PlanError("`protobuf_message` is a type of messages", got=shown(given), hint=_HINT)
    message_class(message)
    return message


def _is_path(given: object) -> bool:
    return isinstance(given, (str, os.PathLike))


def _files(file: Any) -> bytes:
    """Return a file of descriptors after all that it imports."""
    from google.protobuf import descriptor_pb2

    file_set = descriptor_pb2.FileDescriptorSet()
    seen: set[str] = set()

    def add(one: Any) -> None:
        if one.name not in seen:
            seen.add(one.name)
            for other in one.dependencies:
                add(other)
            one.CopyToProto(file_set.file.add())

    add(file)
    return bytes(file_set.SerializeToString(deterministic=True))


@functools.lru_cache(maxsize=64)
def message_class(type_: MessageType) -> Any:
    """Return the class of messages of a type, in a pool of its own: two queries may have types of one name.

    Raises
    ------
    PlanError
        When the files do not describe it.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    try:
        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(type_.files).file:
            pool.AddSerializedFile(file.SerializeToString())
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(type_.name))
    except RAISED as problem:
        what = "`protobuf_message` is not described by its file"
        raise PlanError(what, got=type_.name, then=failure_text(problem), hint=_HINT) from None


def known_columns(type_: MessageType) -> pa.Schema:
    """Return all fields of a type as columns.

    Raises
    ------
    SchemaError
        For a type without fields, and one that has itself as a field.
    """
    fields = message_class(type_).DESCRIPTOR.fields
    return pa.schema([pa.field(field.name, _signed(typed(field, None, field.name)[0])) for field in fields])


def _signed(type_: pa.DataType) -> pa.DataType:
    return {pa.uint32(): pa.int64(), pa.uint64(): pa.int64()}.get(type_, type_)


@functools.lru_cache(maxsize=64)
def fields_of(type_: MessageType, schema: pa.Schema) -> list[ValuesOf]:
    """Return where the columns of `schema` stand in messages.

    Raises
    ------
    ColumnError
        For a column that is not a field.
    SchemaError
        For a type its values cannot have.
    """
    known = message_class(type_).DESCRIPTOR.fields_by_name
    fields = []
    for column in schema:
        if column.name not in known:
            raise unknown_column(column.name, list(known), f"messages {type_.name}")
        plain, one = typed(known[column.name], column.type, column.name)
        if not fits(plain, column.type, RECORD):
            hint = f"write {column.name!r} as {type_text(_signed(plain))} in `schema`, and cast it in the query"
            what = f"field {column.name!r} of {type_.name} is not {article(type_text(column.type))}"
            raise SchemaError(what, got=type_text(plain), hint=hint)
        fields.append(ValuesOf(one, plain, plain))
    return fields


def typed(field: Any, wanted: pa.DataType | None, where: str) -> tuple[pa.DataType, Getter]:
    """Return the type of a field's values, and how to get one from a message; of nested messages only what is `wanted`."""
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        by_name = field.message_type.fields_by_name
        pair = (wanted.key_type, wanted.item_type) if wanted is not None and pa.types.is_map(wanted) else (None, None)
        key, _ = _single(by_name["key"], pair[0], where)
        item, change = _single(by_name["value"], pair[1], where)
        return pa.map_(key, item), lambda m: [(k, change(v)) for k, v in sorted(getattr(m, name).items(), key=itemgetter(0))]
    if field.is_repeated:
        inside = wanted.value_type if wanted is not None and pa.types.is_list(wanted) else None
        type_, change = _single(field, inside, where)
        return pa.list_(type_), lambda m: [change(v) for v in getattr(m, name)]
    type_, change = _single(field, wanted, where)
    if field.has_presence:
        return type_, lambda m: change(getattr(m, name)) if m.HasField(name) else None
    return type_, lambda m: change(getattr(m, name))


def _single(field: Any, wanted: pa.DataType | None, where: str) -> tuple[pa.DataType, Getter]:
    """Return the type of one value of a field, and how it becomes one of Arrow's."""
    if field.enum_type is not None:
        if wanted is not None and pa.types.is_integer(wanted):
            return pa.int32(), _same
        names = {v.number: v.name for v in reversed(field.enum_type.values)}  # of two names the first
        return pa.string(), functools.partial(_name_of, names)
    if field.message_type is None:
        return _SCALARS[field.type], _same
    type_ = field.message_type
    if type_.full_name in TIMES:
        return TIMES[type_.full_name], _instant if type_.full_name.endswith("Timestamp") else _length
    if type_.full_name in WRAPPERS:
        return _SCALARS[type_.fields_by_name["value"].type], attrgetter("value")
    return _struct(type_, wanted, where)


def _struct(type_: Any, wanted: pa.DataType | None, where: str) -> tuple[pa.DataType, Getter]:
    fields = list(type_.fields)
    if wanted is not None and pa.types.is_struct(wanted):
        wanted_fields = [wanted.field(i) for i in range(wanted.num_fields)]
        for one in wanted_fields:
            if one.name not in type_.fields_by_name:
                raise unknown_column(
                    f"{where}.{one.name}", [f"{where}.{f.name}" for f in fields], f"messages {type_.full_name}"
                )
        pairs = [(type_.fields_by_name[one.name], one.type) for one in wanted_fields]
    else:
        pairs = [(field, None) for field in fields]
    if not pairs or where.count(".") > _DEEPEST:
        got = "it has no fields" if not pairs else "it has itself as a field"
        hint = "leave the column out, or write its type in `schema` as deep as you need it"
        raise SchemaError(f"field {where!r}, {type_.full_name}, is not a column", got=got, hint=hint)
    parts = [(field.name, *typed(field, inner, f"{where}.{field.name}")) for field, inner in pairs]
    getters = [(name, one) for name, _, one in parts]
    return pa.struct([(name, type_of) for name, type_of, _ in parts]), lambda m: {name: one(m) for name, one in getters}


def _same(value: Any) -> Any:
    return value


def _microseconds(time: Any) -> int:
    """Return the microseconds of a time or a duration; digits after them are cut off, as in JSON."""
    return int(time.seconds * 1_000_000 + time.nanos // 1_000)


def _instant(time: Any) -> np.datetime64:
    return np.datetime64(_microseconds(time), "us")


def _length(duration: Any) -> np.timedelta64:
    return np.timedelta64(_microseconds(duration), "us")


def _name_of(names: dict[int, str], number: int) -> str:
    if number not in names:
        raise ValueError(f"a number is none of {', '.join(names[n] for n in sorted(names))}; read the column as int")
    return names[number]


def decode_protobuf(
    schema: pa.Schema, type_: MessageType, registry: Connection | None, values: Sequence[bytes | None]
) -> DecodedRows:
    """Values that are one message each, in the columns of `schema`; with a registry each begins with a schema's number."""
    found_in, fields = message_class(type_), fields_of(type_, schema)
    bad: dict[int, str] = {}
    good: list[tuple[int, Any]] = []
    for i, value in enumerate(values):
        try:
            if value is None:
                raise ValueError(NO_VALUE)
            message = found_in.FromString(value if registry is None else value[_head(registry, type_, value) :])
            if not message.IsInitialized():
                raise ValueError(f"{type_.name} has no {', '.join(message.FindInitializationErrors())}")
        except ValueError as problem:
            bad[i] = str(problem)
            continue
        except _no_message() as problem:
            bad[i] = f"no message {type_.name}: {problem}"
            continue
        good.append((i, message))
    batch, _ = columns(schema, fields, good, bad)
    return DecodedRows(batch, tuple(sorted(bad.items())))


@functools.cache
def _no_message() -> type[Exception]:
    from google.protobuf.message import DecodeError

    error: type[Exception] = DecodeError
    return error


def _head(registry: Connection, type_: MessageType, value: bytes) -> int:
    """Return how many bytes stand before the message: a zero, a schema's number, and where in its file the message is
    described.
    """
    number = number_of(value)
    registered(registry, number, "PROTOBUF")
    for head in _places(type_):
        if value.startswith(head, FRAME.size):
            return FRAME.size + len(head)
    raise ValueError(f"it is another message of schema {number} than {type_.name}")


@functools.lru_cache(maxsize=64)
def _places(type_: MessageType) -> tuple[bytes, ...]:
    """Return how the place of a message in its file is written: how many numbers, and these; the first message has a
    short form.
    """
    descriptor: Any = message_class(type_).DESCRIPTOR
    path: list[int] = []
    while descriptor.containing_type is not None:
        path.insert(0, [d.full_name for d in descriptor.containing_type.nested_types].index(descriptor.full_name))
        descriptor = descriptor.containing_type
    path.insert(0, list(descriptor.file.message_types_by_name).index(descriptor.name))
    written = b"".join(map(_zigzag, [len(path), *path]))
    return (b"\0", written) if path == [0] else (written,)


def _zigzag(number: int) -> bytes:
    """Return a number from 0 as protobuf writes a ``sint64``."""
    left, encoded = number * 2, bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*encoded, left])


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
        item = _putter(inner.fields_by_name["value"])
        return functools.partial(_pairs, item)
    one = _putter(field)
    return (lambda values: [one(v) for v in values]) if field.is_repeated else one


def _pairs(item: Putter, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a map, which has each key once."""
    entries = {key: item(value) for key, value in pairs}
    if len(entries) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"a map has the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return entries


def _putter(field: Any) -> Putter:
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
        what = f"a row is not a {made.DESCRIPTOR.full_name}"
        raise OperatorError(what, got=failure_text(problem), then="the batch was not written", hint=hint) from None


def _plain(column: pa.ChunkedArray, type_: pa.DataType) -> list[Any]:
    return [value for chunk in column.chunks for value in fit(chunk, type_, RECORD, ()).to_pylist()]
