"""What a sink writes is what a source reads, and what a format cannot write is refused."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import KafkaSink, count, sum
from krishiv_py.connectors import kafka_source
from krishiv_py.connectors.kafka.formats.avro import decode_avro, record_schema
from krishiv_py.connectors.kafka.formats.encoding import values_of
from krishiv_py.connectors.kafka.formats.protobuf import decode_protobuf, message_type
from krishiv_py.connectors.kafka.formats.registry import registry_at
from krishiv_py.errors import OperatorError, PlanError
from krishiv_py.testing import Driver, micro_batches, stream_of
from krishiv_py.testing.broker import Broker
from tests.kafka.messages import classes_of, registry
from tests.kafka.test_formats import CLASSES, COLUMNS, LONG, PLACE, PLACES, UTC
from tests.spark.conftest import DDL, row

Topic = Callable[..., str]
PER_WINDOW = classes_of("window_start int64; window_end int64; user optional string; count int64; total int64")
WINDOWS = pa.schema(
    [
        ("user", pa.string()),
        ("window_start", pa.int64()),
        ("window_end", pa.int64()),
        ("count", pa.int64()),
        ("total", pa.int64()),
    ]
)
AVRO = pa.schema(
    [
        ("user", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("amount", pa.int64()),
        ("short", pa.int16()),
        ("tags", pa.list_(pa.string())),
        ("place", PLACE),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("labels", pa.map_(pa.string(), pa.int64())),
    ]
)
AVRO_ROWS = st.fixed_dictionaries(
    {
        "user": st.none() | st.text(max_size=3),
        "at": st.none() | st.datetimes(dt.datetime(1900, 1, 1), timezones=st.just(UTC)),
        "local": st.none() | st.datetimes(dt.datetime(1900, 1, 1)),
        "amount": st.none() | LONG,
        "short": st.none() | st.integers(-(2**15), 2**15 - 1),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        "place": st.none() | PLACES,
        "raw": st.none() | st.binary(max_size=3),
        "day": st.none() | st.dates(),
        "price": st.none() | st.decimals(-99_999_999, 99_999_999, places=2),
        "labels": st.none() | st.dictionaries(st.text(max_size=2), LONG, max_size=3).map(lambda d: list(d.items())),
    }
)


@given(st.lists(AVRO_ROWS, max_size=10))
def test_avro_records_are_read_as_they_were_written(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, AVRO)
    with_number = values_of("avro", None, None, None, None).encoder("t", AVRO)(table)
    actual = decode_avro(AVRO, None, record_schema(AVRO, None, "t"), with_number)
    assert not actual.bad and actual.batch.to_pylist() == table.to_pylist()


def test_sinks_refuse_what_a_format_cannot_write() -> None:
    stated = {"type": "record", "name": "E", "fields": [{"name": "user", "type": "string"}, {"name": "n", "type": "int"}]}
    text = json.dumps(stated)
    avro = values_of("avro", None, text, None, None)
    two = pa.schema([("user", pa.string()), ("n", pa.int64())])
    avro.check(two, "sink")
    encode = avro.encoder("t", two)
    (value,) = encode(pa.table({"user": ["a"], "n": [1]}, two))
    assert value is not None and fastavro.schemaless_reader(io.BytesIO(value), stated, None) == {"user": "a", "n": 1}
    for wrong_row in ({"user": None, "n": 1}, {"user": "a", "n": 2**40}):
        with pytest.raises(OperatorError, match="not a record of the Avro schema"):
            encode(pa.Table.from_pylist([wrong_row], two))
    for schema in (pa.schema([("user", pa.string())]), pa.schema([*two, ("x", pa.int64())])):
        with pytest.raises(PlanError, match="sink: "):
            avro.check(schema, "sink")
    free = values_of("avro", None, None, None, None)
    for wrong in (
        ("a b", pa.int64()),
        ("d", pa.duration("us")),
        ("m", pa.map_(pa.int64(), pa.int64())),
        ("s", pa.struct([("é", pa.int64())])),
    ):
        with pytest.raises(PlanError, match="sink: Avro has no such"):
            free.check(pa.schema([wrong]), "sink")
    messages = values_of("protobuf", None, None, CLASSES["Event"], None)
    messages.check(COLUMNS, "sink")
    for wrong in (
        ("usr", pa.string()),
        ("user", pa.int64()),
        ("at", pa.int64()),
        ("small", pa.float64()),
        ("place", pa.struct([("z", pa.int64())])),
    ):
        with pytest.raises(PlanError, match="sink: "):
            messages.check(pa.schema([wrong]), "sink")
    kinds = pa.schema([("kind", pa.string())])
    with pytest.raises(OperatorError, match=r"a row is not a test\.Event"):
        messages.encoder("t", kinds)(pa.table({"kind": ["OTHER"]}))
    wrong_calls: list[tuple[Any, ...]] = [
        ("xml", None, None, None, None),
        ("json", None, text, None, None),
        ("avro", None, "{", None, None),
        ("avro", "user", None, None, None),
        ("protobuf", None, None, None, None),
        ("arrow", None, None, None, "http://localhost"),
        ("bytes", None, None, None, None),
    ]
    for call in wrong_calls:
        with pytest.raises(PlanError):
            values_of(*call)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("with_registry", [False, True])
@pytest.mark.parametrize("kind", ["avro", "protobuf", "arrow"])
def test_windows_go_through_a_topic_of_each_format(broker: Broker, topic: Topic, kind: Any, with_registry: bool) -> None:
    if kind == "arrow" and with_registry:
        pytest.skip("Arrow describes itself")
    name = topic(2)
    stream = stream_of(DDL).watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count(), sum("amount").alias("total"))
    stated: dict[str, Any] = {"protobuf_message": PER_WINDOW} if kind == "protobuf" else {}
    with registry() as (url, schemas):
        if with_registry:
            stated["schema_registry"] = url
        sink = KafkaSink(name, bootstrap_servers=broker.address, format=kind, key=None if kind == "arrow" else "user", **stated)
        driver = Driver(stream, sink=sink)
        expected = []
        for batch in ([row("a", 10), row("b", 20), row(None, 30)], [row("a", 5_000, 7)], [row("z", 20_000)]):
            expected += driver.send(batch).results.to_pylist()
        expected += driver.close().results.to_pylist()
        if with_registry:
            assert [one["subject"] for one in schemas.values()] == [f"{name}-value"]
        elif kind == "avro":
            stated["avro_schema"] = record_schema(WINDOWS, None, "t")
        source = kafka_source(
            name,
            bootstrap_servers=broker.address,
            schema=None if kind == "protobuf" else WINDOWS,
            value_format=kind,
            ending="latest",
            key="key",
            offset="offset",
            headers="headers",
            **stated,
        )
        (read,) = micro_batches(source)
    assert isinstance(read, pa.Table)
    rows = read.to_pylist()
    assert len(rows) == len(expected) == 5
    assert sorted(([r[n] for n in WINDOWS.names] for r in rows), key=str) == sorted(
        ([r[n] for n in WINDOWS.names] for r in expected), key=str
    )
    for actual in rows:
        assert actual["key"] == (None if kind == "arrow" else actual["user"]) and actual["offset"] is not None
        assert [h["name"] for h in actual["headers"]][-1] == "krishiv-row"
    planned = source.plan(None)
    assert planned is not None
    other_batches = [b for one in planned.ranges for b in source.read(one, ["offset"]) if isinstance(b, pa.RecordBatch)]
    assert pa.Table.from_batches(other_batches).column("offset").to_pylist() == [r["offset"] for r in rows]
    if kind == "arrow":
        assert len({(r["offset"], *(h["value"] for h in r["headers"])) for r in rows}) < len(rows)


def test_a_registry_that_refuses_and_arrow_with_keys(broker: Broker, topic: Topic) -> None:
    stream = stream_of(DDL).watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count())
    stated: dict[str, Any] = {"bootstrap_servers": broker.address}
    sink = KafkaSink(topic(), format="avro", schema_registry="http://127.0.0.1:1", **stated)
    driver = Driver(stream, sink=sink)
    with pytest.raises(OperatorError, match="the schema registry does not answer"):
        driver.send([row("a", 10)])
        driver.send([row("a", 5_000)])
    for wrong in ({"key": "user"}, {"upsert": True, "key": "user"}, {"headers": {"who": "user"}}):
        with pytest.raises(PlanError, match="a value of Arrow is many rows"):
            KafkaSink("t", format="arrow", **stated, **wrong)


def test_files_that_a_protobuf_message_imports_are_registered_and_referred_to() -> None:
    pool = descriptor_pool.DescriptorPool()
    money, order = (descriptor_pb2.FileDescriptorProto(name=f"shop/{n}.proto", package="shop") for n in ("money", "order"))
    money.message_type.add(name="Money").field.add(name="units", number=1, type=3, label=1)
    order.dependency.append(money.name)
    order.message_type.add(name="Order").field.add(name="total", number=1, type=11, label=1, type_name=".shop.Money")
    for file in (money, order):
        file.syntax = "proto3"
        pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    schema = pa.schema([("total", pa.struct([("units", pa.int64())]))])
    with registry() as (url, schemas):
        values = values_of("protobuf", None, None, made, url)
        values.check(schema, "t")
        (value,) = values.encoder("orders", schema)(pa.table({"total": [{"units": 7}]}, schema))
        number, kept = next((n, one) for n, one in schemas.items() if one["subject"] == "orders-value")
        assert kept["references"] == [{"name": "shop/money.proto", "subject": "shop/money.proto", "version": 1}]
        assert "shop/money.proto" in {one["subject"] for one in schemas.values()}
        assert value is not None and value[4] == number
        actual = decode_protobuf(schema, message_type(made), registry_at(url), [value])
    assert actual.batch.to_pylist() == [{"total": {"units": 7}}]


def test_a_type_that_is_used_again_cuts_nothing() -> None:
    """The second time it is only a name in the schema."""
    stamp = {
        "type": "record",
        "name": "Stamp",
        "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
    }
    given = json.dumps(
        {
            "type": "record",
            "name": "R",
            "fields": [{"name": "a", "type": ["null", stamp]}, {"name": "b", "type": ["null", "Stamp"]}],
        }
    )
    values, utc = values_of("avro", None, given, None, None), pa.timestamp("us", "UTC")
    schema = pa.schema([(name, pa.struct([("at", utc)])) for name in "ab"])
    values.check(schema, "t")
    for name in "ab":
        row = {"a": None, "b": None, name: {"at": dt.datetime(2026, 1, 1, 0, 0, 0, 1, UTC)}}
        with pytest.raises(OperatorError, match="a row is not a record of the Avro schema"):
            values.encoder("t", schema)(pa.Table.from_pylist([row], schema))
    wrong = schema.set(1, pa.field("b", pa.struct([("at", utc), ("zone", pa.string())])))
    for columns in (wrong, schema.set(1, pa.field("b", pa.string()))):
        with pytest.raises(PlanError, match=r"does not hold the values of a column.*b: "):
            values.check(columns, "t")
