"""Avro values: schemas of a registry, several writers, and what is not a record."""

from __future__ import annotations

import datetime as dt
import http.server
import io
import json
import struct
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.connectors import kafka_source
from krishiv_py.connectors.kafka.formats.avro import decode_avro
from krishiv_py.errors import PlanError, SourceError
from krishiv_py.testing import MicroBatch, micro_batches
from krishiv_py.testing.broker import Broker
from tests.kafka.conftest import send
from tests.kafka.messages import registry as registry_of

Topic = Callable[..., str]
FIRST = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "user", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "amount", "type": "int"},
    ],
}
SECOND = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "amount", "type": "long"},
        {"name": "note", "type": "string"},
        {"name": "user", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", "UTC")), ("amount", pa.int64())])
AT = dt.datetime(2024, 2, 29, 12, 0, 0, 123_000, dt.timezone.utc)


def written(schema: Any, row: dict[str, Any], number: int | None = None) -> bytes:
    """A record, with the number of its schema in front."""
    stream = io.BytesIO()
    if number is not None:
        stream.write(struct.pack(">bI", 0, number))
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    """A schema registry with schemas 1 and 2, and 3, which is not Avro."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = self.path.split("?")[0].rpartition("/")[2]
            known = {"1": {"schema": json.dumps(FIRST)}, "2": {"schema": json.dumps(SECOND)}}
            known["3"] = {"schema": "{}", "schemaType": "JSON"}
            actual = known.get(number)
            self.send_response(200 if actual else 404)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.end_headers()
            self.wfile.write(json.dumps(actual or {"error_code": 40403, "message": "Schema not found"}).encode())

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.slow
def test_writers_of_several_schemas_in_one_topic(broker: Broker, topic: Topic, registry: str) -> None:
    name = topic(1)
    values: list[bytes | None] = [
        written(FIRST, {"user": "a", "at": AT, "amount": 1}, 1),
        written(SECOND, {"user": "b", "at": AT, "amount": 2, "note": "n"}, 2),
        None,
        b"",
        b"plain text",
        written(FIRST, {"user": None, "at": AT, "amount": 3}, 1),
        written(FIRST, {"user": "c", "at": AT, "amount": 3}, 1)[:-1],
        written(FIRST, {"user": "c", "at": AT, "amount": 3}, 1) + b"x",
        written(FIRST, {"user": "c", "at": AT, "amount": 3}, 99),
        written(FIRST, {"user": "c", "at": AT, "amount": 3}, 3),
        written(SECOND, {"user": "d", "at": AT, "amount": 4, "note": "n"}, 2),
    ]
    send(broker, name, [(0, v) for v in values])
    stated: dict[str, Any] = {"bootstrap_servers": broker.address, "schema": SCHEMA, "value_format": "avro", "ending": "latest"}
    source = kafka_source(name, schema_registry=registry, on_malformed="side_output", offset="offset", **stated)
    (batch,) = micro_batches(source)
    assert isinstance(batch, MicroBatch)
    assert [tuple(r.values()) for r in batch.table.to_pylist()] == [
        ("a", AT, 1, 0),
        ("b", AT, 2, 1),
        (None, AT, 3, 5),
        ("d", AT, 4, 10),
    ]
    assert [(m.offset, m.value) for m in batch.malformed] == [(n, values[n]) for n in (2, 3, 4, 6, 7, 8, 9)]
    with pytest.raises(SourceError, match=r"offset 2: no value \(a tombstone\)"):
        list(micro_batches(kafka_source(name, schema_registry=registry, **stated)))
    with pytest.raises(SourceError, match="the schema registry does not answer"):
        list(micro_batches(kafka_source(name, schema_registry="http://127.0.0.1:1", **stated)))
    wrong: list[dict[str, Any]] = [
        {},
        {"schema_registry": registry, "avro_schema": "{}"},
        {"avro_schema": "{}"},
        {"avro_schema": '"int"'},
    ]
    for refused in wrong:
        with pytest.raises(PlanError):
            kafka_source(name, **stated, **refused)
    with pytest.raises(PlanError):
        kafka_source(name, bootstrap_servers=broker.address, schema=SCHEMA, avro_schema=json.dumps(FIRST))


EVERY = {
    "type": "record",
    "name": "Every",
    "fields": [
        {"name": "i", "type": ["null", "int"]},
        {"name": "l", "type": "long"},
        {"name": "d", "type": ["double", "null"]},
        {"name": "s", "type": "string"},
        {"name": "b", "type": "bytes"},
        {"name": "o", "type": "boolean"},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "dec", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "list", "type": {"type": "array", "items": "long"}},
        {"name": "map", "type": {"type": "map", "values": "string"}},
        {"name": "rec", "type": {"type": "record", "name": "R", "fields": [{"name": "x", "type": "long"}]}},
    ],
}
ARROW = pa.schema(
    [
        ("i", pa.int64()),
        ("l", pa.int64()),
        ("d", pa.float64()),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("o", pa.bool_()),
        ("e", pa.string()),
        ("day", pa.date32()),
        ("us", pa.timestamp("us", "UTC")),
        ("dec", pa.decimal128(10, 2)),
        ("list", pa.list_(pa.int64())),
        ("map", pa.map_(pa.string(), pa.string())),
        ("rec", pa.struct([("x", pa.int64())])),
    ]
)
LONG = st.integers(-(2**63), 2**63 - 1)
ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "l": LONG,
        "d": st.none() | st.floats(allow_nan=False),
        "s": st.text(),
        "b": st.binary(),
        "o": st.booleans(),
        "e": st.sampled_from(["X", "Y"]),
        "day": st.dates(),
        "us": st.none() | st.datetimes(dt.datetime(1900, 1, 1), timezones=st.just(dt.timezone.utc)),
        "dec": st.decimals(-99_999_999, 99_999_999, places=2),
        "list": st.lists(LONG, max_size=3),
        "map": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
        "rec": st.fixed_dictionaries({"x": LONG}),
    }
)


@given(st.lists(ROWS | st.none() | st.binary(max_size=4), max_size=20))
def test_what_was_written_is_read_whatever_is_next_to_it(given_: Sequence[Any]) -> None:
    values = [written(EVERY, r) if isinstance(r, dict) else r for r in given_]
    actual = decode_avro(ARROW, None, json.dumps(EVERY), values)
    expected = [{**r, "map": list(r["map"].items()), "dec": Decimal(r["dec"])} for r in given_ if isinstance(r, dict)]
    assert [i for i, _ in actual.bad] == [i for i, r in enumerate(given_) if not isinstance(r, dict)]
    assert actual.batch.to_pylist() == expected


def test_a_type_that_would_lose_something_is_no_value() -> None:
    value = written(SECOND, {"user": "b", "at": AT, "amount": 2**40, "note": "n"})
    for name, type_ in (("amount", pa.int32()), ("amount", pa.string()), ("user", pa.int64()), ("at", pa.date32())):
        actual = decode_avro(pa.schema([(name, type_)]), None, json.dumps(SECOND), [value])
        assert actual.batch.num_rows == 0 and f"column '{name}'" in actual.bad[0][1], (name, type_)


@pytest.mark.slow
def test_a_registered_schema_without_the_columns_is_refused_at_the_call(broker: Broker, topic: Topic) -> None:
    name, other = topic(), topic()
    stated: dict[str, Any] = {"bootstrap_servers": broker.address, "value_format": "avro"}
    known = {1: {"subject": f"{name}-value", "schema": json.dumps(SECOND)}}
    known |= {2: {"subject": f"{other}-value", "schema": '"int"'}, 3: {"subject": "else-value", "schema": json.dumps(FIRST)}}
    with registry_of(known) as (url, schemas):
        with pytest.raises(PlanError, match="do not fit") as refused:
            kafka_source(name, schema="customer string, seen bigint", schema_registry=url, **stated)
        assert f"'{name}-value'" in str(refused.value) and "user, at" in str(refused.value)
        kafka_source(name, schema="user string, seen bigint", schema_registry=url, **stated)  # one column is enough
        kafka_source(other, schema="customer string", schema_registry=url, **stated)  # no record: the values tell
        schemas[4] = {"subject": f"{name}-value", "schema": json.dumps(FIRST).replace('"user"', '"customer"')}
        kafka_source(name, schema="customer string", schema_registry=url, **stated)


UTC = pa.timestamp("us", "UTC")
ID = uuid.UUID("8c2f0a3e-0000-4000-8000-00000000abcd")
LOGICAL: list[tuple[Any, Any, pa.DataType, Any]] = [
    ({"type": "long", "logicalType": "timestamp-nanos"}, 1_710_030_600_000_001_000, UTC, 1_710_030_600_000_001),
    ({"type": "long", "logicalType": "local-timestamp-nanos"}, 1_000, pa.timestamp("us"), 1),
    ({"type": "long", "logicalType": "timestamp-nanos"}, 5_000_000, pa.int64(), 5),
    ({"type": "long", "logicalType": "timestamp-nanos"}, 1, UTC, None),
    ({"type": "long", "logicalType": "timestamp-nanos"}, 1, pa.int64(), None),
    ({"type": "long", "logicalType": "timestamp-micros"}, 2_000, pa.int64(), 2),
    ({"type": "long", "logicalType": "timestamp-micros"}, 2_001, pa.int64(), None),
    ({"type": "long", "logicalType": "timestamp-millis"}, 2, UTC, 2_000),
    ({"type": "long", "logicalType": "timestamp-seconds"}, 7, pa.int64(), 7),
    ({"type": "long", "logicalType": "timestamp-seconds"}, 7, UTC, None),
    ({"type": "int", "logicalType": "timestamp-millis"}, 7, pa.int64(), 7),
    ({"type": "string", "logicalType": "uuid"}, "0-5", pa.string(), "0-5"),
    ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, b"x" * 16, pa.binary(), b"x" * 16),
    ({"type": "string", "logicalType": "uuid"}, str(ID).upper(), pa.binary(), ID.bytes),
    ({"type": "string", "logicalType": "uuid"}, "0-5", pa.binary(), None),
    ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, ID.bytes, pa.string(), str(ID)),
    ({"type": "fixed", "name": "U", "size": 4, "logicalType": "uuid"}, b"abcd", pa.binary(), b"abcd"),
    ({"type": "fixed", "name": "U", "size": 4, "logicalType": "uuid"}, b"abcd", pa.string(), None),
    ({"type": "string"}, str(ID), pa.binary(), None),
    ({"type": "string", "logicalType": "uuid"}, str(ID), pa.int64(), None),
    ({"type": "int", "logicalType": "time-millis"}, 3_600_001, pa.int32(), 3_600_001),
    ({"type": "int", "logicalType": "time-millis"}, 3_600_001, pa.string(), "01:00:00.001"),
    ({"type": "long", "logicalType": "time-micros"}, 9, pa.int64(), 9),
    ({"type": "int", "logicalType": "time-millis"}, 9, pa.duration("us"), 9_000),
    ({"type": "int", "logicalType": "time-millis"}, -1, pa.string(), None),
    ({"type": "int", "logicalType": "time-millis"}, 86_400_000, pa.int32(), None),
]


@pytest.mark.parametrize("depth", ["top", "nullable", "record", "list", "map"])
@pytest.mark.parametrize(("avro", "value", "arrow", "expected"), LOGICAL)
def test_a_logical_type_means_the_same_at_any_depth(
    depth: str, avro: Any, value: Any, arrow: pa.DataType, expected: Any
) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": avro}]}
    kind, row, wanted = {
        "top": (avro, value, arrow),
        "nullable": (["null", avro], value, arrow),
        "record": (["null", inner], {"x": value}, pa.struct([("x", arrow)])),
        "list": ({"type": "array", "items": ["null", inner]}, [None, {"x": value}], pa.list_(pa.struct([("x", arrow)]))),
        "map": ({"type": "map", "values": avro}, {"k": value}, pa.map_(pa.string(), arrow)),
    }[depth]
    stated = {"type": "record", "name": "Outer", "fields": [{"name": "v", "type": kind}]}
    plain = json.loads(json.dumps(stated).replace('"logicalType"', '"was"'))
    actual = decode_avro(pa.schema([("v", wanted)]), None, json.dumps(stated), [written(plain, {"v": row})])
    if expected is None:
        ((_, why),) = actual.bad
        assert "column 'v'" in why and str(value) not in why and actual.batch.num_rows == 0
        return
    assert not actual.bad
    exact = pa.array([expected], pa.int64()).cast(arrow) if pa.types.is_temporal(arrow) else pa.array([expected], arrow)
    (one,) = exact.to_pylist()
    shapes: dict[str, Any] = {"record": {"x": one}, "list": [None, {"x": one}], "map": [("k", one)]}
    assert actual.batch.to_pylist() == [{"v": shapes.get(depth, one)}]


def test_a_schema_that_holds_itself_is_read_as_deep_as_the_column() -> None:
    moment = {"type": "long", "logicalType": "timestamp-micros"}
    node = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "at", "type": moment}, {"name": "next", "type": ["null", "Node"]}],
    }
    row = {"at": AT, "next": {"at": AT, "next": {"at": AT, "next": None}}}
    wanted = pa.schema([("at", UTC), ("next", pa.struct([("at", pa.int64())]))])
    actual = decode_avro(wanted, None, json.dumps(node), [written(node, row), written(node, {"at": AT, "next": None})])
    ms = round(AT.timestamp() * 1_000)
    assert actual.batch.to_pylist() == [{"at": AT, "next": {"at": ms}}, {"at": AT, "next": None}]


def test_a_union_whose_times_have_no_known_unit_is_malformed() -> None:
    nanos = {"type": "long", "logicalType": "timestamp-nanos"}
    stated = {"type": "record", "name": "E", "fields": [{"name": "v", "type": ["string", nanos]}]}
    value = written({**stated, "fields": [{"name": "v", "type": ["string", "long"]}]}, {"v": 5_000_000})
    ((_, why),) = decode_avro(pa.schema([("v", pa.int64())]), None, json.dumps(stated), [value]).bad
    assert "union" in why


def test_a_damaged_value_is_not_shown() -> None:
    stated = {"type": "record", "name": "E", "fields": [{"name": "v", "type": "string"}]}
    for value in (b"\x08\xffsec", b"\x08\xff\xfeXY", b"\x04abc"):
        ((_, why),) = decode_avro(pa.schema([("v", pa.string())]), None, json.dumps(stated), [value]).bad
        assert why.startswith("no Avro record of its schema: ") and "0x" not in why
