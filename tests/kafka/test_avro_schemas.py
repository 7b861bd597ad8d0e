"""Avro values whose writer had another schema than the reader, or one that refers to others. No broker is needed."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.connectors import Malformed, kafka_source
from krishiv_py.connectors.kafka import making, reading
from krishiv_py.connectors.kafka.formats.avro import decode_avro, require_columns
from krishiv_py.connectors.kafka.formats.decoding import decode_registered_json
from krishiv_py.connectors.kafka.formats.encoding import values_of
from krishiv_py.connectors.kafka.formats.registry import registry_at
from krishiv_py.errors import OperatorError, PlanError, SourceError
from tests.kafka.messages import registry

UTC = pa.timestamp("us", "UTC")
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}


def record(name: str, *fields: Any, **more: Any) -> dict[str, Any]:
    """A schema of a record."""
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    """A field of one."""
    return {"name": name, "type": type_, **more}


def written(schema: Any, row: Any) -> bytes:
    """A value without the number of a schema."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def framed(number: int, value: bytes) -> bytes:
    """A value with the number of its schema."""
    return struct.pack(">bI", 0, number) + value


def read(writer: Any, row: Any, reader: Any, **columns: pa.DataType) -> tuple[list[Any], list[str]]:
    """The rows, and why there are none."""
    value = written(writer, row)
    actual = decode_avro(pa.schema(list(columns.items())), None, json.dumps(writer), [value], json.dumps(reader))
    return actual.batch.to_pylist(), [why for _, why in actual.bad]


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
DEFAULTS: list[tuple[Any, Any, pa.DataType, Any]] = [
    ("int", 7, pa.int64(), 7),
    ("double", 1, pa.float64(), 1.0),
    ("string", "x", pa.string(), "x"),
    ("bytes", "\u00ff\u0001", pa.binary(), b"\xff\x01"),
    ({"type": "fixed", "name": "F2", "size": 2}, "\u00fe\u0000", pa.binary(), b"\xfe\x00"),
    ({"type": "enum", "name": "E2", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
    (["null", "string"], None, pa.string(), None),
    (["string", "null"], "x", pa.string(), "x"),
    (MILLIS, 1_500, pa.int64(), 1_500),
    (DECIMAL, "\u00fb", pa.decimal128(6, 2), Decimal("-0.05")),
    ({"type": "array", "items": "bytes"}, ["\u00ff"], pa.list_(pa.binary()), [b"\xff"]),
    ({"type": "map", "values": "long"}, {"k": 2}, pa.map_(pa.string(), pa.int64()), [("k", 2)]),
    (
        record("In2", field("a", "bytes"), field("b", "int", default=4)),
        {"a": "\u00ff"},
        pa.struct([("a", pa.binary()), ("b", pa.int64())]),
        {"a": b"\xff", "b": 4},
    ),
]


@pytest.mark.parametrize(("avro", "default", "arrow", "expected"), DEFAULTS)
@pytest.mark.parametrize("depth", ["top", "record", "list"])
def test_a_field_that_the_writer_does_not_have_has_its_default(
    depth: str, avro: Any, default: Any, arrow: pa.DataType, expected: Any
) -> None:
    old = record("In", field("k", "string"))
    new = record("In", field("x", avro, default=default), field("k", "string"))
    if depth == "top":
        assert read(old, {"k": "a"}, new, k=pa.string(), x=arrow) == ([{"k": "a", "x": expected}], [])
        return
    inside = pa.struct([("x", arrow), ("k", pa.string())])
    one = {"x": expected, "k": "a"}
    if depth == "record":
        rows = read(record("R", field("v", old)), {"v": {"k": "a"}}, record("R", field("v", new)), v=inside)
        assert rows == ([{"v": one}], [])
        return
    lists = [record("R", field("v", {"type": "array", "items": kind})) for kind in (old, new)]
    assert read(lists[0], {"v": [{"k": "a"}] * 2}, lists[1], v=pa.list_(inside)) == ([{"v": [one, one]}], [])


def test_aliases_orders_and_wider_types() -> None:
    old = record("Old", field("customer", "string"), field("n", "int"), field("gone", "bytes"))
    new = record("New", field("n", "long"), field("user", "string", aliases=["customer"]), aliases=["Old"])
    row = {"customer": "c", "n": 5, "gone": b"x"}
    assert read(old, row, new, user=pa.string(), n=pa.int64()) == ([{"user": "c", "n": 5}], [])
    other = record("New", field("n", "long"))
    assert read(old, row, other, n=pa.int64()) == ([], ["its schema cannot be resolved to avro_reader_schema"])
    narrower = record("Old", field("n", "string"))
    assert read(old, row, narrower, n=pa.string()) == ([], ["its schema cannot be resolved to avro_reader_schema"])
    lacking = record("Old", field("z", "string"))
    assert read(old, row, lacking, z=pa.string()) == ([], ["its schema cannot be resolved to avro_reader_schema"])
    with pytest.raises(PlanError, match="none of the columns"):
        require_columns(json.dumps(old), json.dumps(new), pa.schema([("customer", pa.string())]))


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: ["null", t], lambda t: {"type": "array", "items": t}])
def test_a_number_is_never_read_in_another_unit(wrap: Callable[[Any], Any]) -> None:
    for one, other in ((MILLIS, MICROS), (DECIMAL, {**DECIMAL, "scale": 3})):
        writer, reader = (record("R", field("at", wrap(t))) for t in (one, other))
        with pytest.raises(PlanError, match=r"field 'at' was written as .* and avro_reader_schema reads"):
            require_columns(json.dumps(writer), json.dumps(reader), pa.schema([("at", UTC)]))


@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.text(max_size=5)), max_size=20))
def test_the_schema_of_the_writer_as_that_of_the_reader_changes_nothing(rows: list[tuple[int, str]]) -> None:
    schema = record("R", field("a", "int"), field("b", ["null", "string"]), field("at", MILLIS))
    values = [written(schema, {"a": a, "b": b or None, "at": a}) for a, b in rows]
    columns = pa.schema([("a", pa.int64()), ("b", pa.string()), ("at", UTC)])
    text = json.dumps(schema)
    plain, resolved = (decode_avro(columns, None, text, values, reader) for reader in (None, text))
    assert plain.batch.equals(resolved.batch) and plain.bad == resolved.bad == ()


MONEY = record("Money", field("units", "long"), field("currency", "string"), namespace="shop.types")
PLACE = record("Place", field("city", "string"), field("price", "shop.types.Money"), namespace="shop.types")
ORDER = record(
    "Order",
    field("total", "shop.types.Money"),
    field("at", MILLIS),
    field("places", {"type": "array", "items": ["null", "shop.types.Place"]}),
    namespace="shop",
)
REFUND = record("Refund", field("at", MILLIS), field("reason", "string"), namespace="shop")


def reference(name: str, version: int = 1) -> dict[str, Any]:
    """What a schema of a registry refers to."""
    return {"name": name, "subject": name, "version": version}


def known() -> dict[int, dict[str, Any]]:
    """A registry in which schemas refer to others, and to what those refer to."""
    return {
        1: {"subject": "shop.types.Money", "schema": json.dumps(MONEY)},
        2: {"subject": "shop.types.Place", "schema": json.dumps(PLACE), "references": [reference("shop.types.Money")]},
        3: {
            "subject": "shop.Order",
            "schema": json.dumps(ORDER),
            "references": [reference("shop.types.Place"), reference("shop.types.Money")],
        },
        4: {"subject": "shop.Refund", "schema": json.dumps(REFUND)},
        5: {
            "subject": "orders-value",
            "schema": json.dumps(["null", "shop.Order", "shop.Refund"]),
            "references": [reference("shop.Order"), reference("shop.Refund")],
        },
        6: {"subject": "else", "schema": json.dumps(ORDER), "references": [reference("shop.types.Place", 9)]},
        7: {"subject": "text", "schema": '"string"'},
        8: {"subject": "damaged", "schema": '{"type": "record"}'},
        9: {"subject": "json", "schema": "{}", "schemaType": "JSON"},
    }


MONEY_INSIDE = {"units": 5, "currency": "EUR"}
ROW = {"total": MONEY_INSIDE, "at": 1_000, "places": [None, {"city": "Rom", "price": MONEY_INSIDE}]}
WHOLE = record(
    "Order",
    field("total", MONEY),
    field("at", "long"),
    field("places", {"type": "array", "items": ["null", PLACE]}),
    namespace="shop",
)
MONEY_TYPE = pa.struct([("units", pa.int64()), ("currency", pa.string())])
COLUMNS = pa.schema(
    [
        ("total", MONEY_TYPE),
        ("at", pa.int64()),
        ("places", pa.list_(pa.struct([("city", pa.string()), ("price", MONEY_TYPE)]))),
        ("reason", pa.string()),
    ]
)


def test_schemas_that_refer_to_others_and_unions_of_records() -> None:
    order, refund = (
        written(WHOLE, ROW),
        written(record("Refund", field("at", "long"), field("reason", "string")), {"at": 7, "reason": "r"}),
    )
    values = [
        framed(3, order),
        framed(5, b"\x02" + order),
        framed(5, b"\x04" + refund),
        framed(4, refund),
        framed(5, b"\x00"),
        framed(5, b"\x06" + refund),
        framed(5, b""),
        framed(5, b"\xff\xff\xff\xff\xff\xff"),
        framed(6, order),
        framed(7, b"\x02a"),
        framed(8, b"\x02a"),
        framed(9, b"{}"),
        framed(99, order),
        framed(5, b"\x02" + order),
    ]
    with registry(known()) as (url, _):
        actual = decode_avro(COLUMNS, registry_at(url), None, values)
    paid = {**ROW, "reason": None}
    back = {"total": None, "at": 7, "places": None, "reason": "r"}
    assert actual.batch.to_pylist() == [paid, paid, back, back, paid]
    assert [i for i, _ in actual.bad] == list(range(4, 13))
    why = dict(actual.bad)
    assert why[4] == "no value (a tombstone)" and "begins with no branch" in why[5] + why[6]
    assert "no schema shop.types.Place version 9" in why[8]
    assert why[9] == "schema 7 of the registry is not a record" and "it is not an Avro schema" in why[10]


def test_a_registry_that_is_away_is_no_malformed_value() -> None:
    with pytest.raises(SourceError, match="the schema registry does not answer"):
        decode_avro(COLUMNS, registry_at("http://127.0.0.1:1"), None, [framed(3, b"")])


def test_the_reader_of_values_of_a_registry() -> None:
    reader = record("Refund", field("why", "string", aliases=["reason"]), field("who", "string", default="me"))
    value = framed(4, written(record("Refund", field("at", "long"), field("reason", "string")), {"at": 7, "reason": "r"}))
    with registry(known()) as (url, _):
        columns = pa.schema([("why", pa.string()), ("who", pa.string())])
        actual = decode_avro(columns, registry_at(url), None, [value, framed(3, b"")], json.dumps(reader))
    assert actual.batch.to_pylist() == [{"why": "r", "who": "me"}]
    assert [moment for moment, _ in actual.bad] == [1]


@pytest.mark.parametrize("text", ["00000000-0000-0000-0000-0000000000ff", "no uuid"])
def test_uuids_as_bytes_and_as_text(text: str) -> None:
    schema = record("R", field("id", ["null", {"type": "string", "logicalType": "uuid"}]))
    values = [written(record("R", field("id", ["null", "string"])), {"id": one}) for one in (text, None)]
    actual = decode_avro(pa.schema([("id", pa.binary())]), None, json.dumps(schema), values)
    if text == "no uuid":
        assert actual.bad == ((0, "column 'id': a text is not a UUID"),) and actual.batch.to_pylist() == [{"id": None}]
        return
    assert actual.batch.to_pylist() == [{"id": bytes(15) + b"\xff"}, {"id": None}]
    kind = {"type": "fixed", "name": "U", "size": 16}
    value = written(record("R", field("id", kind)), {"id": bytes(15) + b"\xff"})
    of_bytes = json.dumps(record("R", field("id", {**kind, "logicalType": "uuid"})))
    assert decode_avro(pa.schema([("id", pa.string())]), None, of_bytes, [value]).batch.to_pylist() == [{"id": text}]


def test_json_with_the_number_of_a_schema() -> None:
    columns = pa.schema([("k", pa.string())])
    values = [
        framed(9, b'{"k": "a"}'),
        b'{"k": "a"}',
        framed(1, b'{"k": "a"}'),
        None,
        framed(9, b"{"),
        framed(9, b'{"k": "b"}'),
    ]
    with registry(known()) as (url, _):
        actual = decode_registered_json(columns, ("k",), registry_at(url), values)
    assert actual.batch.to_pylist() == [{"k": "a"}, {"k": "b"}]
    assert [moment for moment, _ in actual.bad] == [1, 2, 3, 4]
    assert dict(actual.bad)[2] == "schema 1 of the registry is AVRO, not JSON"


class Message:
    """A message as librdkafka gives it."""

    def __init__(self, at: int, key: bytes | None, value: bytes) -> None:
        self.at, self.found = at, (key, value)

    def key(self) -> bytes | None:
        """Its key."""
        return self.found[0]

    def value(self) -> bytes:
        """Its value."""
        return self.found[1]

    def offset(self) -> int:
        """Where it is."""
        return self.at


def rows_of(monkeypatch: pytest.MonkeyPatch, keys: list[bytes | None], **options: Any) -> tuple[list[Any], list[Malformed]]:
    """Rows and malformed records of a topic with these keys, whose values are the numbers of the records."""
    actual = [Message(n, key, json.dumps({"n": n}).encode()) for n, key in enumerate(keys)]
    monkeypatch.setattr(making, "partitions", lambda *_: [("t", 0)])
    source = kafka_source("t", bootstrap_servers="x:1", schema="n bigint", on_malformed="side_output", offset="at", **options)
    parts = list(reading.rows(source, ("t", 0), [actual], tuple(source.schema.names)))
    batches = [part for part in parts if isinstance(part, pa.RecordBatch)]
    assert [b.schema.names for b in batches] == [source.schema.names] * len(batches)
    return [row for b in batches for row in b.to_pylist()], [part for part in parts if isinstance(part, Malformed)]


def test_keys_of_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [b"\x02", None, b"", b"\x04x", b"\x05"]
    rows, bad = rows_of(monkeypatch, keys, key_format="avro", key_schema="id bigint", avro_key_schema='"long"')
    assert rows == [{"n": 0, "id": 1, "at": 0}, {"n": 1, "id": None, "at": 1}, {"n": 4, "id": -3, "at": 4}]
    assert [(m.offset, m.problem) for m in bad] == [
        (2, "its key: no Avro record of its schema: EOFError"),
        (3, "its key: no Avro record of its schema: bytes are left over"),
    ]
    nullable = rows_of(
        monkeypatch, [b"\x00", b"\x02\x02a"], key_format="avro", key_schema="k string", avro_key_schema='["null", "string"]'
    )
    assert [row["k"] for row in nullable[0]] == [None, "a"]


def test_keys_of_a_registry_and_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    key = framed(3, written(WHOLE, ROW))
    with registry(known()) as (url, _):
        stated: dict[str, Any] = {"key_format": "avro", "value_format": "bytes", "schema_registry": url}
        stated |= {"key_schema": pa.schema([("total", MONEY_TYPE), ("at_ms", pa.int64())])}
        actual = [Message(n, k, b"") for n, k in enumerate([key, None, framed(7, b"\x02a"), framed(99, b"")])]
        monkeypatch.setattr(making, "partitions", lambda *_: [("t", 0)])
        source = kafka_source("t", bootstrap_servers="x:1", on_malformed="side_output", **stated)
        parts = list(reading.rows(source, ("t", 0), [actual], ("total",)))
        assert [p.problem for p in parts if isinstance(p, Malformed)] == [
            "its key: schema 7 of the registry is not a record",
            "its key: the schema registry has no schema 99",
        ]
        assert [r for p in parts if isinstance(p, pa.RecordBatch) for r in p.to_pylist()] == [
            {"total": MONEY_INSIDE},
            {"total": None},
        ]
        text = rows_of(
            monkeypatch,
            [framed(7, b"\x02a")],
            key_format="avro",
            key_schema="k string",
            schema_registry=url,
            value_format="avro",
        )
        assert text[0] == [] and text[1][0].problem == "it does not begin with the number of a schema", "that is the value"
    rows, bad = rows_of(monkeypatch, [b'{"k": "a"}', b"{", None], key_format="json", key_schema="k string")
    assert [row["k"] for row in rows] == ["a", None] and [m.offset for m in bad] == [1]


@pytest.mark.parametrize(
    "kafka_options",
    [
        {"key_format": "avro"},
        {"key_format": "avro", "key_schema": "k string"},
        {"key_format": "avro", "key_schema": "k string", "key": "k"},
        {"key_format": "avro", "key_schema": "k string", "avro_key_schema": "nothing"},
        {"key_format": "avro", "key_schema": "k string, l string", "avro_key_schema": '"string"'},
        {"key_format": "json"},
        {"key_schema": "k string"},
        {"avro_key_schema": '"string"'},
    ],
)
def test_keys_that_cannot_be_read_are_refused(kafka_options: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        kafka_source("t", bootstrap_servers="x:1", schema="n bigint", **kafka_options)


def sink_values(url: str, given: Any = ORDER, references: Any = None) -> Any:
    """How a sink writes values of a schema whose types the registry keeps."""
    if references is None:
        references = {one: (one, 1) for one in ("shop.types.Place", "shop.types.Money")}
    return values_of("avro", None, json.dumps(given), None, url, references)


WRITTEN = pa.schema([("total", MONEY_TYPE), ("at", pa.timestamp("ms", "UTC")), COLUMNS.field("places")])


def test_a_sink_registers_a_schema_with_references() -> None:
    """What it writes can be read with the schema of the registry alone."""
    rows = pa.Table.from_pylist([ROW], COLUMNS.remove(3)).cast(WRITTEN)
    with registry(known()) as (url, schemas):
        values = sink_values(url)
        values.check(WRITTEN, "t")
        for _ in range(2):
            written_ = values.encoder("paid", WRITTEN)(rows)
        (number,) = [n for n, one in schemas.items() if one["subject"] == "paid-value"]
        assert schemas[number]["schema"] == json.dumps(ORDER)
        assert schemas[number]["references"] == [reference("shop.types.Place"), reference("shop.types.Money")]
        actual = decode_avro(COLUMNS, registry_at(url), None, written_)
    assert actual.batch.to_pylist() == [{**ROW, "reason": None}] and not actual.bad
    assert written_ == [framed(number, written(WHOLE, ROW))]


@pytest.mark.parametrize(
    ("references", "why"),
    [
        ({"shop.types.Place": ("shop.types.Place", 9)}, "no schema shop.types.Place version 9"),
        ({"shop.Refund": ("shop.Refund", 1)}, "let `avro_references` name each type"),
        ({"x": ("damaged", 1)}, "not an Avro schema"),
    ],
    ids=["version", "other", "damaged"],
)
def test_types_that_the_registry_does_not_have_are_refused_before_the_first_row(references: Any, why: str) -> None:
    with registry(known()) as (url, _), pytest.raises(PlanError, match=why):
        sink_values(url, references=references).check(WRITTEN, "t")


def test_a_registry_that_is_away_and_columns_that_do_not_fit() -> None:
    with pytest.raises(OperatorError, match=r"the schema registry does not answer.*no record can be written"):
        sink_values("http://127.0.0.1:1").check(WRITTEN, "t")
    with registry(known()) as (url, _), pytest.raises(PlanError, match="does not hold the values of a column"):
        sink_values(url).check(WRITTEN.set(0, pa.field("total", pa.string())), "t")


@pytest.mark.parametrize(
    "references",
    [
        {},
        [],
        "x",
        {"a": "b"},
        {"a": ("b",)},
        {"a": ("b", 0)},
        {"a": ("b", True)},
        {"a": ("b", "1")},
        {1: ("b", 1)},
        {"a": (1, 1)},
    ],
    ids=str,
)
def test_references_of_another_form_are_refused_at_the_call(references: Any) -> None:
    with pytest.raises(PlanError, match="avro_references"):
        values_of("avro", None, json.dumps(ORDER), None, "http://127.0.0.1:1", references)


def test_references_belong_to_a_schema_and_a_registry() -> None:
    one = {"a": ("a", 1)}
    for call in (
        ("avro", None, None, None, "http://x:1", one),
        ("avro", None, json.dumps(ORDER), None, None, one),
        ("json", None, None, None, None, one),
        ("avro", None, "{", None, "http://x:1", one),
        ("avro", None, '"string"', None, "http://x:1", one),
    ):
        with pytest.raises(PlanError):
            values_of(*call)
