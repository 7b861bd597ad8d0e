"""A table as its database has it, and the records that Debezium writes of it: the plain reference of change data capture."""

from __future__ import annotations

import io
import json
import struct
from typing import Any, TypeAlias

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from krishiv_py.testing.broker import Broker
from tests.kernels.changes.reference import Row, Rows

Record: TypeAlias = "tuple[bytes, bytes | None]"
"""Key and value."""
VALUE = "before struct<id: bigint, city: string, credit: bigint>, after struct<id: bigint, city: string, credit: bigint>"
SCHEMA = f"op string, {VALUE}, source struct<lsn: bigint, snapshot: string>, ts_ms bigint"


class Database:
    """A table by its key, and the log of its changes."""

    def __init__(self) -> None:
        self.by_id: dict[int, Row] = {}
        self.records: list[Record] = []
        self.lsn = 0

    @property
    def rows(self) -> Rows:
        """Return the rows as they stand."""
        return list(self.by_id.values())

    def put(self, key: int, city: str | None, credit: int) -> None:
        """Insert a row, or update the one of this key."""
        before, row = self.by_id.get(key), {"id": key, "city": city, "credit": credit}
        self.by_id[key] = row
        self._note("c" if before is None else "u", before, row)

    def delete(self, key: int) -> None:
        """Delete a row: a change, and a tombstone for the compaction of the topic."""
        row = self.by_id.pop(key)
        self._note("d", row, None)
        self.records.append((json.dumps({"id": key}).encode(), None))

    def change_key(self, key: int, other: int) -> None:
        """Give a row another key: a deletion, a tombstone and a creation (case C21)."""
        row = self.by_id[key]
        self.delete(key)
        self.put(other, row["city"], row["credit"])

    def snapshot(self) -> None:
        """Read all rows once more, as a connector does that has lost its place (case C22)."""
        self.lsn += 1
        for row in self.rows:
            self._note("r", None, row, snapshot="true")

    def repeat(self, number: int) -> None:
        """Send the last records again, as a connector does that has crashed."""
        self.records += self.records[-number:]

    def message(self, text: str) -> None:
        """Write a message to the log of the database, which changes no row."""
        self.lsn += 1
        source = {"lsn": self.lsn, "snapshot": "false"}
        value = {"op": "m", "ts_ms": 1, "source": source, "message": {"prefix": "audit", "content": text}}
        self.records.append((b'{"prefix":"audit"}', json.dumps(value).encode()))

    def _note(self, op: str, before: Row | None, after: Row | None, *, snapshot: str = "false") -> None:
        self.lsn += snapshot == "false"
        key = {"id": (after or before or {})["id"]}
        source = {"lsn": self.lsn, "snapshot": snapshot, "db": "shop", "table": "customers"}
        value = {"op": op, "before": before, "after": after, "source": source, "ts_ms": 1, "transaction": None}
        self.records.append((json.dumps(key).encode(), json.dumps(value).encode()))


HEARTBEAT: Record = (b'{"serverName":"shop"}', b'{"ts_ms":1669852800000}')
TRANSACTION: Record = (
    b'{"id":"571:53195832"}',
    b'{"status":"END","id":"571:53195832","event_count":2,"data_collections":null,"ts_ms":1669852800000}',
)
TRUNCATION: Record = (b"null", json.dumps({"op": "t", "before": None, "after": None, "source": {"lsn": 10**6}}).encode())


def with_schema(record: Record) -> Record:
    """Return a record as the JSON converter writes it with schemas, its default."""
    key, value = record
    return key, None if value is None else b'{"schema":{"type":"struct","optional":false},"payload":' + value + b"}"


_ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "city", "type": ["null", "string"], "default": None},
        {"name": "credit", "type": "long"},
    ],
}
_SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.postgresql",
    "fields": [
        {"name": "lsn", "type": ["null", "long"], "default": None},
        {"name": "snapshot", "type": [{"type": "string", "connect.version": 1, "connect.default": "false"}, "null"]},
        {"name": "table", "type": "string"},
    ],
}
ENVELOPE: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.customers",
    "fields": [
        {"name": "before", "type": ["null", _ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": _SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}
"""The schema that Debezium registers for the records of this table."""


def envelope() -> Any:
    """Return the message of an envelope, as a converter to Protobuf has it: fields that may be null are optional."""
    numbers = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")

    def message(name: str, **fields: str) -> None:
        made = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), 1):
            plain = {"int64": numbers.TYPE_INT64, "string": numbers.TYPE_STRING}
            added = made.field.add(name=field, number=number, label=numbers.LABEL_OPTIONAL)
            if kind in plain:
                added.type, added.proto3_optional, added.oneof_index = plain[kind], True, len(made.oneof_decl)
                made.oneof_decl.add(name=f"_{field}")
            else:
                added.type, added.type_name = numbers.TYPE_MESSAGE, f".shop.{kind}"

    message("Value", id="int64", city="string", credit="int64")
    message("Source", lsn="int64", snapshot="string")
    message("Envelope", before="Value", after="Value", source="Source", op="string", ts_ms="int64")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Envelope"))


def in_protobuf(record: Record, made: Any) -> Record:
    """Return a record with its value as a message."""
    key, value = record
    if value is None:
        return record
    known = {name: of for name, of in json.loads(value).items() if name in made.DESCRIPTOR.fields_by_name}
    return key, json_format.ParseDict(known, made(), ignore_unknown_fields=True).SerializeToString()


def in_avro(record: Record, number: int) -> Record:
    """Return a record as the Avro converter writes it, with the number of its schema."""
    key, value = record
    if value is None:
        return key, None
    stream = io.BytesIO(struct.pack(">bI", 0, number))
    stream.seek(5)
    fastavro.schemaless_writer(stream, fastavro.parse_schema(ENVELOPE), json.loads(value))
    return key, stream.getvalue()


def write(broker: Broker, topic: str, records: list[Record], partitions: int = 1) -> None:
    """Write records to the partition of their key."""
    from confluent_kafka import Producer

    producer: Any = Producer({"bootstrap.servers": broker.address})
    for key, value in records:
        producer.produce(topic, value, key=key, partition=sum(key) % partitions)
    assert producer.flush(30) == 0
