"""What a format would change is refused: at the start by its type, with the batch by its value. No broker is needed."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from krishiv_py import KafkaSink
from krishiv_py.connectors.kafka.formats.decoding import decode_json
from krishiv_py.connectors.kafka.formats.encoding import values_of
from krishiv_py.errors import OperatorError, PlanError
from tests.kafka.messages import classes_of

UTC, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
FAR = pa.array([2_932_897], pa.int32()).cast(pa.date32())
TWICE = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
NEVER: dict[str, pa.Array] = {
    "day": FAR,
    "first day of Arrow": pa.array([-(2**31)], pa.int32()).cast(pa.date32()),
    "time": pa.array([2**63 - 1], pa.int64()).cast(LOCAL),
    "instant": pa.array([-(2**63)], pa.int64()).cast(UTC),
    "list": pa.ListArray.from_arrays([0, 1], FAR),
    "struct": pa.StructArray.from_arrays([FAR], ["d"]),
}


def logical(name: str, base: str = "long") -> dict[str, str]:
    """A logical type of Avro's."""
    return {"type": base, "logicalType": name}


def record(kind: Any, name: str = "R", field: str = "c") -> dict[str, Any]:
    """A record of one field."""
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind}]}


def written(values: pa.Array, given: Any = None, kind: str = "avro") -> list[bytes | None]:
    """A column as values of records."""
    table = pa.table({"c": values})
    to = values_of(kind, None, None if given is None else json.dumps(record(given)), None, None)
    to.check(table.schema, "sink")
    return to.encoder("t", table.schema)(table)


@pytest.fixture
def new_york() -> Iterator[None]:
    """A machine whose clock is not UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    yield
    del os.environ["TZ"]
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize("kind", ["json", "avro"])
@pytest.mark.parametrize("name", NEVER)
def test_times_that_a_format_has_not(kind: str, name: str) -> None:
    with pytest.raises(OperatorError, match=r"year 1 or after 9999|not a record of the Avro schema"):
        written(NEVER[name], kind=kind)


def test_a_key_that_is_twice_in_a_map() -> None:
    message = values_of("protobuf", None, None, classes_of("labels map"), None)
    encoders: dict[str, Callable[[], Any]] = {
        "json": lambda: written(TWICE, kind="json"),
        "avro": lambda: written(TWICE),
        "protobuf": lambda: message.encoder("t", pa.schema([("labels", TWICE.type)]))(pa.table({"labels": TWICE})),
    }
    for kind, encode in encoders.items():
        with pytest.raises(OperatorError, match=r"'a' twice|duplicate key was 'a'") as error:
            encode()
        assert "Hint: " in str(error.value), kind


def test_json_has_no_durations() -> None:
    took = pa.duration("us")
    for kind in (took, pa.list_(took), pa.struct([("a", took)])):
        with pytest.raises(PlanError, match=r"sink: JSON has no such type .got: c: .*Hint: (write|leave it out)"):
            written(pa.array([None], kind), kind="json")
    schema = pa.schema([("n", pa.int64()), ("took", took)])
    for more in ({"key": "took"}, {"headers": {"h": "took"}}):
        sink = KafkaSink("t", bootstrap_servers="nowhere:1", format="bytes", value="s", **more)
        with pytest.raises(PlanError, match="KafkaSink t: JSON has no such type"):
            sink._check(schema.append(pa.field("s", pa.string())))


def test_bytes_as_keys_of_maps_are_read_as_they_were_written() -> None:
    values = pa.array([[(b"\xff\x00", 1), (b"", 2)], [], None], pa.map_(pa.binary(), pa.int64()))
    schema = pa.schema([("c", values.type)])
    actual = decode_json(schema, ("c",), written(values, kind="json"))
    assert not actual.bad and actual.batch["c"].to_pylist() == values.to_pylist()


def test_both_zeros_are_one_key() -> None:
    table = pa.table({"x": [0.0, -0.0, None], "n": [1, 1, 1]})
    for key in ("x", ["x", "n"]):
        first, second, third = KafkaSink("t", bootstrap_servers="nowhere:1", key=key)._keys(table)
        assert first == second != third


@pytest.mark.parametrize(
    ("values", "declared"),
    [
        (pa.array([1_000_001], UTC), logical("timestamp-millis")),
        (pa.array([1_000_001, None], LOCAL), ["null", logical("local-timestamp-millis")]),
        (pa.array([[1_000_001]], pa.list_(UTC)), {"type": "array", "items": logical("timestamp-millis")}),
        (pa.array([{"x": 2**53 + 1}]), record("double", "S", "x")),
        (pa.array([2**24 + 1]), "float"),
    ],
)
def test_a_value_that_a_declared_field_would_cut_is_refused(values: pa.Array, declared: Any) -> None:
    with pytest.raises(OperatorError, match="not a record of the Avro schema"):
        written(values, declared)


@pytest.mark.parametrize(
    ("kind", "declared"),
    [
        (UTC, logical("date", "int")),
        (pa.float64(), "float"),
        (pa.float64(), ["null", "float"]),
        (pa.struct([("x", pa.int64()), ("y", pa.int64())]), record("long", "S", "x")),
        (pa.list_(pa.float64()), {"type": "array", "items": "float"}),
        (pa.map_(pa.string(), pa.float64()), {"type": "map", "values": "float"}),
        (pa.string(), "long"),
    ],
)
def test_a_declared_field_that_does_not_hold_a_column_is_refused_at_the_start(kind: pa.DataType, declared: Any) -> None:
    with pytest.raises(PlanError, match=r"sink: a field of `avro_schema` does not hold the values of a column .got: c: "):
        written(pa.array([], kind), declared)


@pytest.mark.usefixtures("new_york")
@pytest.mark.parametrize("unit", ["millis", "micros"])
@pytest.mark.parametrize("kind", [UTC, LOCAL])
@pytest.mark.parametrize("local", ["", "local-"])
def test_times_are_utc_wherever_the_machine_is(kind: pa.DataType, unit: str, local: str) -> None:
    at_us = 1_720_000_000_123_000
    (value,) = written(pa.array([at_us], kind), logical(f"{local}timestamp-{unit}"))
    assert value is not None
    actual: Any = fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(record("long")), None)
    assert actual["c"] == (at_us if unit == "micros" else at_us // 1_000)
