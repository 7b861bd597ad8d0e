"""Types in errors have the names that schema texts and casts take: over a matrix of types, at every border."""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import krishiv_py as kv
from krishiv_py import col
from krishiv_py.connectors.json_lines import JsonLines
from krishiv_py.connectors.kafka.formats import decoding as kafka_rows
from krishiv_py.connectors.values import UnfitError, column
from krishiv_py.errors import KrishivError
from krishiv_py.testing import Driver, stream_of, union_of
from krishiv_py.types import type_text

TYPES = (
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(10, 2)",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "interval day to second",
    "array<int>",
    "map<string, bigint>",
    "struct<a: bigint, b: array<timestamp>>",
)
ARROW = re.compile(
    r"\bu?int(8|16|32|64)\b|(?<!type )\bbool\b|\bdecimal128\b|\bhalffloat\b|\bdate32\b|"
    r"timestamp\[us|duration\[us|\blist<|item: |\blarge_|tz=UTC"
)
"""What only Arrow calls so."""
VALUES: tuple[Any, ...] = (True, 5, 1.5, "x", b"x", dt.date(2024, 1, 1), dt.datetime(2024, 1, 1), dt.timedelta(1), [object()])
VALUES += ({"z": 1}, 10**40, object(), [[1]], {1: 2})


def schema(type_: str) -> pa.Schema:
    """A column of this type, and event times."""
    return stream_of(f"x {type_}, at bigint").schema


def windowed(stream: Any) -> Any:
    return stream.watermark("at", 0).tumbling_window(10)


def of_another_type(type_: str) -> Iterator[tuple[str, Callable[[Any], Any], Any]]:
    """Uses in which a column or value of this type does not fit: a name, a function and its argument."""
    stream, fields = stream_of(f"x {type_}, at bigint"), schema(type_)
    wanted = fields.field("x").type
    timed = stream.watermark("at", 0)
    for value in VALUES:
        yield "dict row", lambda value: Driver(stream).send([{"x": value, "at": 1}]), value
        yield "udaf", lambda value: finished(value, wanted), value
    for other in TYPES:
        two = stream_of(f"x {other}, at bigint")
        table = pa.table({"x": pa.nulls(1, two.schema.field("x").type), "at": [1]})
        both = stream_of(f"x {type_}, y {other}, at bigint")
        right = two.rename(at="t").watermark("t", 0)
        yield f"table of {other}", lambda table: Driver(stream).send(table), table
        yield f"map_batches to {other}", lambda table: Driver(stream.map_batches(lambda _: table, fields)).send([]), table
        yield f"cast to {other}", lambda name: stream.with_column("y", col("x").cast(name)), other
        yield f"union with {other}", lambda two: union_of({"a": stream, "b": two}), two
        yield f"join with {other}", lambda right: timed.interval_join(right, on="x", lower=0, upper=5), right
        yield f"look up {other}", lambda table: stream.lookup_join(table, on=[("x", "k")]), table.rename_columns(["k", "v"])
        yield f"compare with {other}", lambda both: both.filter("x > y"), both
        yield f"add {other}", lambda both: both.with_column("z", "x + y"), both
        yield f"records of {other}", lambda column: kafka_rows.RECORD.leaf(column, wanted), table["x"].chunk(0)
    yield "filter", stream.filter, "x"
    yield "key", timed.key_by, "x"
    yield "field", lambda name: stream.with_column("y", col("x").field(name)), "nothing"
    yield "explode", lambda text: stream.with_column("y", text), "explode(x)"
    for call in (kv.sum("x"), kv.avg("x"), kv.stddev("x"), kv.median("x"), kv.min("x"), kv.collect_set("x"), kv.top_k(2, "x")):
        yield str(call), lambda call: windowed(stream).agg(call), call
    for name in ("upper", "abs", "year", "size", "map_keys", "date_trunc", "sqrt", "element_at", "shiftleft"):
        yield name, lambda name: stream.with_column("y", kv.func(name, col("x"))), name


def finished(value: Any, type_: pa.DataType) -> Any:
    class Gives:
        def create(self) -> int:
            return 0

        def add(self, state: int, value: Any) -> int:
            return state

        def merge(self, left: int, right: int) -> int:
            return left

        def finish(self, state: int) -> Any:
            return value

    driver = Driver(windowed(stream_of("v bigint, at bigint")).agg(kv.udaf(Gives(), "v", type_).alias("u")))
    driver.send([{"v": 1, "at": 1}])
    return driver.close()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("type_", TYPES)
def test_errors_name_types_as_schema_texts_do(type_: str) -> None:
    seen = 0
    for name, use, argument in of_another_type(type_):
        try:
            use(argument)
        except (KrishivError, ValueError) as problem:
            text = str(problem).replace("user-defined, " + str(schema(type_).field("x").type), "")  # how the aggregate is shown
            actual = ARROW.search(text)
            assert actual is None, f"{name}: {actual[0]} in {text}"
            seen += 1
        except Exception as problem:
            assert type(problem).__module__.startswith("krishiv_py"), f"{name}: {problem!r}"  # such as WrongTypeError
    assert seen > 40
    for value in VALUES:
        try:
            column([value], schema(type_).field("x").type)
        except UnfitError as problem:
            assert not ARROW.search(f"{problem} {problem.hint}")


@pytest.mark.parametrize("type_", TYPES)
def test_sinks_and_files_too(type_: str, tmp_path: Path) -> None:
    fields = schema(type_)
    lines = JsonLines(fields, ("x", "at"))
    for text in ("true", "5", "1.5", '"x"', '["x"]', '{"z": 1}', "1e400"):
        for part in lines.read(pa.BufferReader(f'{{"x": {text}, "at": 1}}\n'.encode())):
            for bad in part.bad:
                assert not ARROW.search(bad.problem), bad.problem
    kafka = [kv.KafkaSink("topic", bootstrap_servers="localhost:1", format=name) for name in ("json", "avro")]
    kafka += [kv.KafkaSink("topic", bootstrap_servers="localhost:1", format="bytes", value="x")]
    kafka += [kv.KafkaSink("topic", bootstrap_servers="localhost:1", key="x")]
    checks: list[Callable[[], Any]] = [functools.partial(sink._check, fields) for sink in kafka]
    for sink in (
        kv.ParquetSink(str(tmp_path / "p"), partition_by=["x"]),
        kv.DeltaSink(str(tmp_path / "d")),
        kv.DeltaSink(str(tmp_path / "e"), partition_by=["x"]),
    ):
        checks.append(functools.partial(sink.check, "results", fields))
    for check in checks:
        try:
            check()
        except KrishivError as problem:
            assert not ARROW.search(str(problem)), problem


@pytest.mark.parametrize("type_", TYPES)
def test_the_name_of_a_type_can_be_written(type_: str) -> None:
    actual = schema(type_).field("x").type
    assert type_text(actual) == type_
    assert stream_of(f"y {type_text(actual)}").schema.field("y").type == actual
    same = stream_of(f"x {type_}, at bigint").with_column("y", col("x").cast(type_text(actual)))
    assert same.schema.field("y").type == actual
    assert stream_of(f"x {type_}, at bigint").with_column("y", f"cast(x as {type_})").schema.field("y").type == actual
