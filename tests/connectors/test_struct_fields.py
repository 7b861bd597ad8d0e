"""Fields of structs are columns: each border has one rule for both, at any depth (docs/types.md)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from google.protobuf import descriptor_pb2, json_format

from krishiv_py import count
from krishiv_py.connectors import Planned, Source
from krishiv_py.connectors.kafka.formats.avro import decode_avro
from krishiv_py.connectors.kafka.formats.decoding import DecodedRows, decode_arrow, decode_json
from krishiv_py.connectors.kafka.formats.protobuf import MessageType, decode_protobuf, message_class
from krishiv_py.connectors.lookup_table import LookupTable
from krishiv_py.connectors.source import JsonValue
from krishiv_py.connectors.tables.delta.source import delta_source
from krishiv_py.errors import KrishivError, SchemaError, SourceError
from krishiv_py.runtime.reading import JsonReader, ParquetReader, Rules
from krishiv_py.testing import Driver, micro_batches, stream_of
from krishiv_py.testing.driver import replay
from tests.connectors.struct_fields import DEPTHS, DIFFERENCES, Outcome, came, expected, wanted

Border: TypeAlias = Callable[[pa.Table, pa.Schema, Path], Any]


def dicts(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    return Driver(stream_of(schema)).send(given.to_pylist()).results.to_pylist()


def frames(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    return Driver(stream_of(schema)).send(given).results.to_pylist()


def sliced_frames(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    return frames(pa.concat_tables([given] * 3).combine_chunks().slice(given.num_rows, given.num_rows), schema, folder)


def map_batches(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    stream = stream_of("at bigint").map_batches(lambda batch: given, schema)
    return Driver(stream).send([{"at": 0}]).results.to_pylist()


class Given(Source):
    """One batch."""

    finite = True

    def __init__(self, table: pa.Table, schema: pa.Schema) -> None:
        self.table, self.schema = table, schema

    def plan(self, last: JsonValue) -> Planned | None:
        return None if last else Planned(1, [1])

    def read(self, planned: JsonValue, columns: Any) -> Any:
        yield self.table


def own_source(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    return pa.concat_tables(micro_batches(Given(given, schema))).to_pylist()


def parquet(given: pa.Table, schema: pa.Schema, folder: Path, missing_null: bool = False) -> Any:
    pq.write_table(given, folder / "a.parquet")
    read = ParquetReader(schema, Rules(missing_null=missing_null))(pa.record_batch([[f"file:{folder}/a.parquet"]], ["path"]))
    return [row for one in read if one.batch is not None for row in one.batch.to_pylist()]


def parquet_with_nulls(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    return parquet(given, schema, folder, missing_null=True)


def replayed(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    pq.write_table(given, folder / "a.parquet")
    stream = stream_of(schema).watermark("at", 0).lookback_window(10, emit="arrival", with_row=True).agg(count())
    return replay(stream, [folder / "a.parquet"]).results.select(schema.names).to_pylist()


def as_json(value: Any, type_: pa.DataType) -> Any:
    """A value as JSON has it."""
    if value is None or not pa.types.is_nested(type_):
        return value
    if pa.types.is_struct(type_):
        return {f.name: as_json(value[f.name], f.type) for f in type_}
    if pa.types.is_map(type_):
        return {key: as_json(item, type_.item_type) for key, item in value}
    return [as_json(item, type_.value_type) for item in value]


def json_texts(given: pa.Table) -> list[bytes]:
    """The rows as JSON, without what is null on top."""
    types = {f.name: f.type for f in given.schema}
    rows = [{name: as_json(value, types[name]) for name, value in row.items()} for row in given.to_pylist()]
    return [json.dumps(row).encode() for row in rows]


def json_files(given: pa.Table, schema: pa.Schema, folder: Path, end: bytes = b"") -> Any:
    (folder / "a.json").write_bytes(b"\n".join(json_texts(given)) + b"\n" + end)
    reader = JsonReader(schema, Rules(), tuple(schema.names))
    read = reader(pa.record_batch([[f"file:{folder}/a.json"]], ["path"]))
    return [row for one in read if one.batch is not None for row in one.batch.to_pylist()]


def json_files_by_line(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    return json_files(given, schema, folder, b"\n")  # blank lines go by line


def rows_of(decoded: DecodedRows) -> Any:
    if decoded.bad:
        raise SourceError(decoded.bad[0][1])
    return decoded.batch.to_pylist()


def kafka_json(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    return rows_of(decode_json(schema, tuple(schema.names), json_texts(given)))


def kafka_json_one_by_one(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    return rows_of(decode_json(schema, tuple(schema.names), [b" " + text for text in json_texts(given)]))


def kafka_arrow(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, given.schema) as writer:
        writer.write_table(given)
    return rows_of(decode_arrow(schema, [stream.getvalue()]))


_AVRO: Final = {
    pa.int64(): "long",
    pa.int32(): "int",
    pa.uint64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
}


def avro_type(type_: pa.DataType, names: list[int]) -> Any:
    """A type of Avro's, with null next to it."""
    if pa.types.is_struct(type_):
        names.append(len(names))
        name = f"R{len(names)}"
        fields = [{"name": f.name, "type": avro_type(f.type, names)} for f in type_]
        return ["null", {"type": "record", "name": name, "fields": fields}]
    if pa.types.is_map(type_):
        return ["null", {"type": "map", "values": avro_type(type_.item_type, names)}]
    if pa.types.is_list(type_):
        return ["null", {"type": "array", "items": avro_type(type_.value_type, names)}]
    return ["null", _AVRO[type_]]


def kafka_avro(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    names: list[int] = []
    fields = [{"name": f.name, "type": avro_type(f.type, names)} for f in given.schema]
    avro = {"type": "record", "name": "Row", "fields": fields}
    values = []
    for row in given.to_pylist():
        stream = io.BytesIO()
        types = {f.name: f.type for f in given.schema}
        plain = {name: as_json(value, types[name]) for name, value in row.items()}
        fastavro.schemaless_writer(stream, fastavro.parse_schema(avro), plain)
        values.append(stream.getvalue())
    return rows_of(decode_avro(schema, None, json.dumps(avro), values))


def delta(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    path = str(folder / "table")
    write_deltalake(path, schema.empty_table())
    table = pa.Table.from_pylist([{"at": i + 1} for i in range(given.num_rows)], schema)
    write_deltalake(path, table, mode="append")
    (file,) = Path(path).glob("*.parquet")
    pq.write_table(given, file)
    return pa.concat_tables(micro_batches(delta_source(path))).to_pylist()


def lookup_table(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    return LookupTable(schema, load=lambda: given).loaded().to_pylist()


STRICT: Final[dict[str, Outcome]] = dict.fromkeys(
    ["missing", "further", "misspelt", "other case", "case twice", "other type", "too large"], "refused"
)
FILES: Final[dict[str, Outcome]] = {
    **STRICT, "missing": "refused", "further": "same", "misspelt": "refused", "other case": "same", "case twice": "skip",
}  # fmt: skip
RECORDS: Final[dict[str, Outcome]] = {
    **STRICT, "missing": "null", "further": "same", "misspelt": "null", "other case": "null", "case twice": "skip",
}  # fmt: skip
LENIENT: Final[dict[str, Outcome]] = {**FILES, "missing": "null", "misspelt": "null"}
BORDERS: Final[dict[str, tuple[Border, dict[str, Outcome]]]] = {
    "dicts": (dicts, {**STRICT, "missing": "null"}),
    "frames": (frames, STRICT),
    "slices of frames": (sliced_frames, STRICT),
    "map_batches": (map_batches, STRICT),
    "a source of one's own": (own_source, {**STRICT, "further": "same", "case twice": "skip"}),
    "parquet": (parquet, FILES),
    "parquet, missing_columns": (parquet_with_nulls, LENIENT),
    "replayed parquet": (replayed, FILES),
    "JSON": (json_files, LENIENT),
    "JSON by line": (json_files_by_line, LENIENT),
    "Kafka, JSON": (kafka_json, RECORDS),
    "Kafka, JSON one by one": (kafka_json_one_by_one, RECORDS),
    "Kafka, Arrow": (kafka_arrow, RECORDS),
    "Kafka, Avro": (kafka_avro, RECORDS),
    "Delta": (delta, LENIENT),
    "a table that is looked up": (lookup_table, {**STRICT, "further": "same", "case twice": "skip"}),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize("depth", ["column", *DEPTHS])
@pytest.mark.parametrize("border", BORDERS)
def test_fields_are_columns(border: str, depth: str, difference: str, tmp_path: Path) -> None:
    read, outcomes = BORDERS[border]
    outcome = outcomes.get(difference, "same")
    given = came(depth, difference)
    if outcome != "refused":
        assert read(given, wanted(depth), tmp_path) == expected(depth, outcome)
        return
    with pytest.raises(KrishivError) as raised:
        read(given, wanted(depth), tmp_path)
    assert isinstance(raised.value, (SchemaError, SourceError))
    name = {"other type": "id", "too large": "id", "further": "z"}.get(difference, "n")
    assert name in str(raised.value)


_PROTO: Final = {pa.int64(): 3, pa.int32(): 5, pa.uint64(): 4, pa.string(): 9, pa.large_string(): 9}


def message_of(made: Any, type_: pa.DataType) -> None:
    """Fields of a message as those of a struct, each with a message of its own where it is one."""
    for number, field in enumerate(type_, 1):
        inner, repeated = field.type, not pa.types.is_struct(field.type) and pa.types.is_nested(field.type)
        one = made.field.add(name=field.name, number=number, label=3 if repeated else 1)
        if pa.types.is_map(inner):
            entry = made.nested_type.add(name=f"{field.name.title()}Entry")
            entry.options.map_entry = True
            message_of(entry, pa.struct([("key", inner.key_type), ("value", inner.item_type)]))
            one.type, one.type_name = 11, f"{made.name}.{entry.name}"
            continue
        inner = inner.value_type if repeated else inner
        if pa.types.is_struct(inner):
            below = made.nested_type.add(name=f"M{number}")
            message_of(below, inner)
            one.type, one.type_name = 11, below.name
        else:
            one.type = _PROTO[inner]


def kafka_protobuf(given: pa.Table, schema: pa.Schema, folder: Path) -> Any:
    described = descriptor_pb2.FileDescriptorSet()
    file = described.file.add(name="rows.proto", syntax="proto3")
    message_of(file.message_type.add(name="Row"), pa.struct(list(given.schema)))
    type_ = MessageType("Row", described.SerializeToString())
    types = {f.name: f.type for f in given.schema}
    values = [
        json_format.ParseDict({n: as_json(v, types[n]) for n, v in row.items()}, message_class(type_)()).SerializeToString()
        for row in given.to_pylist()
    ]
    return rows_of(decode_protobuf(schema, type_, None, values))


@pytest.mark.parametrize("difference", DIFFERENCES)
@pytest.mark.parametrize("depth", ["column", "field", "field of a field", "field in a list", "field in a map"])
def test_fields_of_messages_are_columns(depth: str, difference: str, tmp_path: Path) -> None:
    """Messages have no null in lists and maps, and what one does not have is seen before a value is read."""
    hold: Callable[[Any], Any] = {
        "field of a field": lambda v: {"in": v},
        "field in a list": lambda v: [v],
        "field in a map": lambda v: [("k", v)],
    }.get(depth, lambda v: v)
    value, _ = DIFFERENCES[difference]
    schema = came(depth, difference).schema
    row = {**value, "at": 1} if depth == "column" else {"u": hold(value), "at": 1}
    given = pa.Table.from_pylist([row], schema)
    if difference in ("same", "other order", "narrower", "further", "case twice"):
        taken = {"id": 1, "n": value["n"]}
        wanted_row = {**taken, "at": 1} if depth == "column" else {"u": hold(taken), "at": 1}
        assert kafka_protobuf(given, wanted(depth), tmp_path) == [wanted_row]
        return
    with pytest.raises(KrishivError, match="id" if difference in ("other type", "too large") else "n"):
        kafka_protobuf(given, wanted(depth), tmp_path)
