"""Protobuf and Arrow values as columns: whatever was written is read, and what cannot be read is bad alone."""

from __future__ import annotations

import datetime as dt
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.connectors import kafka_source
from krishiv_py.connectors.kafka.client import Connection
from krishiv_py.connectors.kafka.formats.decoding import decode_arrow
from krishiv_py.connectors.kafka.formats.encoding import messages_of_rows, values_of
from krishiv_py.connectors.kafka.formats.protobuf import decode_protobuf, fields_of, known_columns, message_type
from krishiv_py.errors import ColumnError, PlanError, SchemaError
from tests.kafka.messages import as_text, classes, described, registry

CLASSES = classes()
EVENT = message_type(CLASSES["Event"])
PLACE = pa.struct([("city", pa.string()), ("x", pa.float64())])
COLUMNS = pa.schema(
    [
        ("user", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("amount", pa.int64()),
        ("note", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("kind", pa.string()),
        ("place", PLACE),
        ("ratio", pa.float64()),
        ("small", pa.float32()),
        ("flag", pa.bool_()),
        ("raw", pa.binary()),
        ("big", pa.int64()),
        ("count", pa.int64()),
        ("took", pa.duration("us")),
        ("places", pa.list_(PLACE)),
        ("labels", pa.map_(pa.string(), pa.int64())),
    ]
)
UTC = dt.timezone.utc
LONG = st.integers(-(2**63), 2**63 - 1)
PLACES = st.fixed_dictionaries({"city": st.text(max_size=3), "x": st.floats(allow_nan=False)})
ROWS = st.fixed_dictionaries(
    {
        "user": st.text(max_size=3),
        "at": st.none() | st.datetimes(timezones=st.just(UTC)),
        "amount": LONG,
        "note": st.none() | st.text(max_size=3),
        "tags": st.lists(st.text(max_size=3), max_size=3),
        "kind": st.sampled_from(["NONE", "CLICK", "VIEW"]),
        "place": st.none() | PLACES,
        "ratio": st.floats(allow_nan=False),
        "small": st.floats(width=32, allow_nan=False),
        "flag": st.booleans(),
        "raw": st.binary(max_size=3),
        "big": st.integers(0, 2**63 - 1),
        "count": st.none() | LONG,
        "took": st.none() | st.timedeltas(dt.timedelta(days=-100_000_000), dt.timedelta(days=100_000_000)),
        "places": st.lists(PLACES, max_size=2),
        "labels": st.dictionaries(st.text(max_size=2), LONG, max_size=3).map(lambda d: sorted(d.items())),
    }
)


def by_protobuf(row: dict[str, Any]) -> bytes:
    """A row as a message, written by protobuf's own means."""
    made = CLASSES["Event"]()
    for name, value in row.items():
        if value is None:
            continue
        if name == "at":
            made.at.FromDatetime(value)
        elif name == "took":
            made.took.FromTimedelta(value)
        elif name == "count":
            made.count.value = value
        elif name in ("tags", "places"):
            for one in value:
                made.places.add(**one) if name == "places" else made.tags.append(one)
        elif name == "place":
            made.place.CopyFrom(CLASSES["Place"](**value))
        elif name == "labels":
            made.labels.update(dict(value))
        elif name == "kind":
            made.kind = ["NONE", "CLICK", "VIEW"].index(value)
        else:
            setattr(made, name, value)
    return bytes(made.SerializeToString())


@given(st.lists(ROWS | st.none(), max_size=12))
def test_messages_are_read_as_protobuf_writes_them_and_written_as_they_are_read(given_: Sequence[Any]) -> None:
    values = [None if r is None else by_protobuf(r) for r in given_]
    actual = decode_protobuf(COLUMNS, EVENT, None, values)
    rows = [r for r in given_ if r is not None]
    assert actual.batch.schema == COLUMNS and actual.batch.to_pylist() == rows
    assert [i for i, _ in actual.bad] == [i for i, r in enumerate(given_) if r is None]
    written = values_of("protobuf", None, None, CLASSES["Event"], None).encoder("t", COLUMNS)(pa.table(actual.batch))
    again = decode_protobuf(COLUMNS, EVENT, None, written)
    assert again.batch.to_pylist() == rows and not again.bad
    of_own = [CLASSES["Event"].FromString(v) for v in written if v is not None]
    assert of_own == [CLASSES["Event"].FromString(v) for v in values if v is not None]


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_no_bytes_do_harm(values: list[bytes]) -> None:
    good = by_protobuf({"user": "u", "amount": 1})
    for decode, schema, neighbour in (
        (lambda s, v: decode_protobuf(s, EVENT, None, v), COLUMNS, good),
        (decode_arrow, pa.schema([("amount", pa.int64())]), stream({"amount": [1]})),
    ):
        actual = decode(
            schema, [*values, neighbour, *(neighbour[:n] + v + neighbour[n + len(v) :] for n, v in enumerate(values))]
        )
        actual.batch.validate(full=True)
        assert len(values) not in dict(actual.bad)


def test_columns_that_a_message_has_otherwise() -> None:
    assert known_columns(EVENT) == COLUMNS
    other = message_type(CLASSES["Other"])
    with pytest.raises(SchemaError, match="it has itself as a field"):
        known_columns(other)
    nested = pa.schema([("self", pa.struct([("self", pa.struct([("amount", pa.int64())]))]))])
    made = CLASSES["Other"]()
    made.self.self.amount = 3
    assert decode_protobuf(nested, other, None, [made.SerializeToString()]).batch.to_pylist() == [
        {"self": {"self": {"amount": 3}}}
    ]
    for name, type_ in (("kind", pa.int64()), ("at", pa.int64()), ("amount", pa.decimal128(20, 0)), ("amount", pa.float64())):
        fields_of(EVENT, pa.schema([(name, type_)]))
    value = by_protobuf({"kind": "VIEW", "at": dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)})
    row = decode_protobuf(pa.schema([("kind", pa.int32()), ("at", pa.int64())]), EVENT, None, [value]).batch.to_pylist()
    assert row == [{"kind": 2, "at": 1_500}]
    for name, type_ in (
        ("user", pa.int64()),
        ("ratio", pa.float32()),
        ("at", pa.date32()),
        ("place", pa.string()),
        ("amount", pa.string()),
    ):
        with pytest.raises(SchemaError, match=f"field '{name}' of test.Event is no"):
            fields_of(EVENT, pa.schema([(name, type_)]))
    with pytest.raises(ColumnError, match="did you mean 'user'"):
        fields_of(EVENT, pa.schema([("usr", pa.string())]))
    with pytest.raises(ColumnError, match=r"'place.cty'"):
        fields_of(EVENT, pa.schema([("place", pa.struct([("cty", pa.string())]))]))


def test_values_that_do_not_fit_are_bad_alone() -> None:
    made = CLASSES["Event"]
    values = [
        made(amount=1).SerializeToString(),
        made(amount=2, kind=7).SerializeToString(),
        b"\xff\xff",
        made(amount=3, big=2**64 - 1).SerializeToString(),
        made(amount=4).SerializeToString(),
        b"",
    ]
    schema = pa.schema([("amount", pa.int64()), ("kind", pa.string()), ("big", pa.int64())])
    actual = decode_protobuf(schema, EVENT, None, values)
    assert actual.batch.column("amount").to_pylist() == [1, 4, 0]
    assert [moment for moment, _ in actual.bad] == [1, 2, 3]
    assert "a number is none of NONE, CLICK, VIEW" in actual.bad[0][1] and "no message test.Event" in actual.bad[1][1]
    as_number = decode_protobuf(pa.schema([("kind", pa.int32())]), EVENT, None, values[:2])
    assert as_number.batch.to_pylist() == [{"kind": 0}, {"kind": 7}]


def framed(number: int, places: bytes, value: bytes) -> bytes:
    """A value as Confluent's serializers write it."""
    return struct.pack(">bI", 0, number) + places + value


def test_numbers_of_schemas_before_messages() -> None:
    inner = CLASSES["Event.Inner"](amount=5).SerializeToString()
    event = by_protobuf({"amount": 5})
    amount = pa.schema([("amount", pa.int64())])
    text = as_text(described().file[-1])
    with registry({1: {"schema": text, "schemaType": "PROTOBUF"}, 2: {"schema": '"int"'}}) as (url, _):
        moment = Connection(url)
        values = [
            framed(1, b"\x02\x02", event),  # the second message of the file
            framed(1, b"\x00", event),
            framed(2, b"\x02\x02", event),
            framed(9, b"\x02\x02", event),
            event,
            framed(1, b"\x04\x02\x00", inner),
        ]
        actual = decode_protobuf(amount, EVENT, moment, values)
        assert actual.batch.to_pylist() == [{"amount": 5}]
        assert [problem for _, problem in actual.bad] == [
            "it is another message of schema 1 than test.Event",
            "schema 2 of the registry is AVRO, not PROTOBUF",
            "the schema registry has no schema 9",
            "it does not begin with the number of a schema",
            "it is another message of schema 1 than test.Event",
        ]
        nested = [d for d in [*CLASSES["Event"].DESCRIPTOR.nested_types]].index(CLASSES["Event.Inner"].DESCRIPTOR)
        values = [framed(1, bytes([4, 2, 2 * nested]), inner)]
        actual = decode_protobuf(amount, message_type(CLASSES["Event.Inner"]), moment, values)
        assert actual.batch.to_pylist() == [{"amount": 5}]
        short = CLASSES["Other"](amount=5).SerializeToString()
        values = [framed(1, head, short) for head in (b"\x00", b"\x02\x00")]
        assert decode_protobuf(amount, message_type(CLASSES["Other"]), moment, values).batch.num_rows == 2


def test_a_type_of_messages_is_reported_by_a_file_and_can_be_sent(tmp_path: Path) -> None:
    whole, part = tmp_path / "a.pb", tmp_path / "part.pb"
    whole.write_bytes(described().SerializeToString())
    without = described()
    del without.file[0]
    part.write_bytes(without.SerializeToString())
    stated = message_type((whole, "test.Event"))
    value = by_protobuf({"amount": 5})
    amount = pa.schema([("amount", pa.int64())])
    assert decode_protobuf(amount, pickle.loads(pickle.dumps(stated)), None, [value]).batch.to_pylist() == [{"amount": 5}]
    assert "files" not in repr(stated)
    for wrong in (
        "test.Event",
        (whole, "test.None"),
        (part, "test.Event"),
        (tmp_path, "x"),
        (tmp_path / "no", "x"),
        5,
        None,
        (whole,),
    ):
        with pytest.raises(PlanError, match="protobuf_message"):
            message_type(wrong)
    wrong_schema: list[dict[str, Any]] = [
        {"protobuf_message": (whole, "test.Event")},
        {"value_format": "protobuf"},
        {"value_format": "protobuf", "protobuf_message": (whole, "test.Event"), "avro_schema": "{}"},
        {"value_format": "arrow", "schema": amount, "schema_registry": "http://localhost:1"},
    ]
    for refused in wrong_schema:
        with pytest.raises(PlanError):
            kafka_source("t", bootstrap_servers="localhost:1", **{"schema": amount, **refused})


def stream(columns: dict[str, Any] | pa.Table, options: Any = None, file: bool = False) -> bytes:
    """Rows as an IPC stream, or file."""
    table = pa.table(columns)
    written = pa.BufferOutputStream()
    make = pa.ipc.new_file if file else pa.ipc.new_stream
    with make(written, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2)
    return bytes(written.getvalue().to_pybytes())


def test_arrow_values_of_many_rows_in_any_layout() -> None:
    moment = pa.array([1, None, 3], pa.timestamp("ms"))
    schema = pa.schema([("user", pa.string()), ("at", pa.timestamp("us")), ("n", pa.int64()), ("s", PLACE)])
    table = pa.table(
        {
            "n": pa.array([1, 2, 3], pa.int16()),
            "at": moment,
            "user": pa.array(["a", None, "a"]).dictionary_encode(),
            "x": [0, 0, 0],
        }
    )
    large = pa.table(
        {"n": pa.array([4], pa.uint64()), "user": pa.array(["b"], pa.large_string()), "s": pa.array([{"city": "c"}])}
    )
    wide = pa.table([pa.array([1]), pa.array([2])], names=["n", "n"])
    values = [
        stream(table),
        stream(table.slice(0, 0)),
        stream(large, file=True),
        None,
        b"",
        b"plain text",
        stream({"z": [1]}),
        stream(wide),
        stream({"n": ["text"]}),
        stream({"n": pa.array([2**63], pa.uint64())}),
        stream({"at": pa.array([1], pa.timestamp("ns"))}),
        stream(table)[:-30],
        stream(table) + stream(table),
        stream(large, pa.ipc.IpcWriteOptions(compression="lz4")),
    ]
    actual = decode_arrow(schema, values)
    first = [
        {"user": u, "at": t, "n": n, "s": None}
        for u, t, n in zip(["a", None, "a"], moment.cast(pa.timestamp("us")).to_pylist(), [1, 2, 3], strict=True)
    ]
    last = {"user": "b", "at": None, "n": 4, "s": {"city": "c", "x": None}}
    assert actual.batch.to_pylist() == [*first, last, last]
    assert actual.counts is not None and actual.counts.tolist() == [3, 0, 1, 1]
    assert [place for place, _ in actual.bad] == list(range(3, 13))
    problems = dict(actual.bad)
    assert "no value" in problems[3] and "none of the columns" in problems[6] and "two columns are called 'n'" in problems[7]
    assert "left over" in problems[12] and "column 'n'" in problems[8]


@given(st.lists(st.integers(), max_size=0) | st.lists(st.text(max_size=30), min_size=1, max_size=60), st.integers(400, 3_000))
def test_rows_are_cut_into_streams_of_a_size(texts: list[str], most: int) -> None:
    table = pa.table({"t": pa.array(texts, pa.string())})
    parts = messages_of_rows(table, most)
    actual = decode_arrow(table.schema, [value for value, _ in parts])
    assert actual.batch.column("t").to_pylist() == texts and not actual.bad
    assert actual.counts is not None
    begins = [0, *actual.counts.cumsum().tolist()[:-1]]
    assert [begin for _, begin in parts] == begins
    assert all(len(value) <= most for (value, _), n in zip(parts, actual.counts, strict=True) if n > 1)
