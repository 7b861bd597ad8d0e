"""Files in the folders of partitions: what is read again, and what a repeated batch leaves."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from krishiv_py import Batches, JsonSink, ParquetSink, PlanError, SchemaError, Session
from krishiv_py.connectors.hive import NULL_PARTITION, partitions
from krishiv_py.connectors.publish import STAGING, Publisher, write_staged
from krishiv_py.connectors.sink import FileSink
from krishiv_py.errors import ColumnError, OperatorError
from krishiv_py.plan.nodes import FileSource
from krishiv_py.runtime.reading import file_reader
from krishiv_py.storage.files import files_at
from krishiv_py.testing import Driver, stream_of

UTC = dt.UTC
ROWS = list(enumerate([("a/b", 1), (None, 2), ("ü", 1), ("a/b", 2), ("x", 3)]))
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (
        pa.string(),
        ["a", "a b/ü=%20", "ä:?#", "..", "a'\"*{}[]\\^", "\x00\n", "x._COPYING_", "_a", ".b", "1", " ", None],
    ),
    "whole": (pa.int64(), [0, -(1 << 63), (1 << 63) - 1, None]),
    "tiny": (pa.int8(), [-128, 127]),
    "yes": (pa.bool_(), [True, False, None]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(2026, 11, 26), dt.date(9999, 12, 31), None]),
    "plain": (pa.timestamp("us"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(2026, 1, 1), None]),
    "zoned": (pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, 1, 5, 6, 7, 8, UTC), dt.datetime(1, 1, 1, tzinfo=UTC), None]),
    "price": (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-9999999.99"), Decimal("0.00"), None]),
}


def written(sink: FileSink, batch: int, table: pa.Table, publisher: Publisher) -> None:
    publisher.publish(batch, write_staged(sink, str(sink.path), "cafe", batch, 0, table))


def read(folder: Path, kind: Any, schema: pa.Schema) -> list[dict[str, Any]]:
    """Rows of all files, as a query reads them."""
    reader = file_reader(FileSource(str(folder), kind, schema, False, None, literal=True), schema)
    paths = [file.path for file in files_at(str(folder), literal=True)]
    scanned = [one for path in paths for one in reader(pa.record_batch([pa.array([path])], names=["path"]))]
    assert not any(one.malformed for one in scanned)
    return [row for one in scanned if one.batch is not None for row in one.batch.to_pylist()]


@pytest.mark.parametrize("kind", ["parquet", "json"])
@pytest.mark.parametrize("name", [*VALUES, "odd .=/%ü name", ".hidden", "_low"])
def test_values_of_folders_are_read_again(kind: str, name: str, tmp_path: Path) -> None:
    type_, values = VALUES.get(name, VALUES["text"])
    table = pa.table({"n": range(3 * len(values)), name: pa.array(values * 3, type_), "word": ["x", "y", None] * len(values)})
    made = ParquetSink if kind == "parquet" else JsonSink
    for by in ([name], [name, "word"], ["word", name]):
        folder = tmp_path / "-".join(map(str, map(by.index, by))) / str(len(by)) / by[0].replace("/", "_")
        sink = made(folder, partition_by=by)
        sink.check("results", table.schema)
        written(sink, 0, table, Publisher(str(folder), "cafe"))
        assert sorted(read(folder, kind, table.schema), key=lambda r: r["n"]) == table.to_pylist()
        assert not (folder / STAGING / "cafe-000000000000").exists()


def test_other_readers_find_the_same(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2, 3, 4], "user": ["a/b", "ü", None, "a/b"], "day": pa.array([1, 2, 3, 1], pa.date32())})
    sink = ParquetSink(tmp_path / "out", partition_by=["day", "user"])
    written(sink, 0, table, Publisher(sink.path, "cafe"))
    hive = ds.partitioning(pa.schema([table.schema.field("day"), table.schema.field("user")]), flavor="hive")
    actual = ds.dataset(tmp_path / "out", partitioning=hive, exclude_invalid_files=True).to_table().select(table.schema.names)
    assert actual.sort_by("n").to_pylist() == table.to_pylist()
    assert len(list((tmp_path / "out").rglob("part-*"))) == 3  # one a folder


def test_an_empty_text_and_the_mark_of_a_null_are_nulls(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out", partition_by="user")
    written(sink, 0, pa.table({"n": [1, 2, 3], "user": ["", NULL_PARTITION, None]}), Publisher(sink.path, "cafe"))
    assert {partitions(str(path))["user"] for path in (tmp_path / "out").rglob("part-*")} == {None}


def test_a_repeated_batch_replaces_its_files_in_all_folders(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("user", pa.string())])
    sink = ParquetSink(tmp_path / "out", partition_by="user")
    first = Publisher(sink.path, "cafe")
    written(sink, 0, pa.table({"n": [1, 2], "user": ["a", "b"]}), first)
    written(sink, 1, pa.table({"n": [3, 4, 5], "user": ["a", "b", "c"]}), first)
    write_staged(sink, sink.path, "cafe", 1, 0, pa.table({"n": [9], "user": ["z"]}))  # of an attempt that failed
    again = Publisher(sink.path, "cafe", durable=True)
    written(sink, 1, pa.table({"n": [3, 4], "user": ["a", "b"]}), again)
    written(sink, 2, pa.table({"n": [6], "user": ["c"]}), again)
    rows = [(row["n"], row["user"]) for row in read(tmp_path / "out", "parquet", schema)]
    assert sorted(rows) == [(1, "a"), (2, "b"), (3, "a"), (4, "b"), (6, "c")]
    plain = ParquetSink(tmp_path / "out")  # the same query without folders: those of a batch that it repeats go too
    written(plain, 1, pa.table({"n": [3], "user": ["a"]}), Publisher(sink.path, "cafe"))
    rows = [(row["n"], row["user"]) for row in read(tmp_path / "out", "parquet", schema)]
    assert sorted(rows) == [(1, "a"), (2, "b"), (3, "a")]


def test_what_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("l", pa.list_(pa.int64())), ("b", pa.binary())])
    for name in ("x", "l", "b"):
        with pytest.raises(SchemaError, match=rf"no name as a folder \(got: {name} is"):
            ParquetSink(tmp_path, partition_by=name).check("results", schema)
    with pytest.raises(ColumnError, match="partition_by"):
        JsonSink(tmp_path, partition_by=["m"]).check("results", schema)
    with pytest.raises(SchemaError, match="all columns"):
        JsonSink(tmp_path, partition_by=["n"]).check("results", pa.schema([("n", pa.int64())]))
    for wrong in (5, ["n", "n"], [1], [""]):
        with pytest.raises(PlanError):
            ParquetSink(tmp_path, partition_by=wrong)
    sink = ParquetSink(tmp_path, partition_by="t")
    with pytest.raises(OperatorError, match="a text of 300 bytes"):
        write_staged(sink, sink.path, "cafe", 0, 0, pa.table({"n": [1], "t": ["x" * 300]}))
    far = pa.table({"n": [1], "t": pa.array([4_000_000], pa.date32())})
    with pytest.raises(OperatorError, match="after 9999"):
        write_staged(sink, sink.path, "cafe", 0, 0, far)


def test_a_driver_writes_folders(tmp_path: Path) -> None:
    stream = stream_of("n bigint, user string").filter("n > 0")
    driver = Driver(stream, sink=ParquetSink(tmp_path / "out", partition_by="user"))
    driver.send([{"n": 1, "user": "a"}, {"n": 0, "user": "b"}, {"n": 2, "user": "c"}])
    assert sorted(path.parent.name for path in (tmp_path / "out").rglob("part-*")) == ["user=a", "user=c"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_query_on_spark_writes_folders_and_reads_them_over_a_restart(session: Session, tmp_path: Path) -> None:
    schema = "user string, day date, n bigint, at timestamp"
    sent = [{"user": u, "day": dt.date(2026, 1, d), "n": n, "at": dt.datetime(2026, 1, 1, tzinfo=UTC)} for n, (u, d) in ROWS]
    spool = str(tmp_path / "spool")
    for part in (sent[:3], sent[3:]):
        events, sender = session.memory_stream(schema, spool=spool)
        sender.send(part)
        sink = ParquetSink(tmp_path / "out", partition_by=["user", "day"])
        query = events.filter("n >= 0").start(sink, checkpoint=str(tmp_path / "checkpoint"), batches=Batches.available_now())
        query.await_termination()
    actual = session.read_parquet(str(tmp_path / "out"), schema).collect()
    assert sorted(actual.to_pylist(), key=lambda r: r["n"]) == sent
    given = session.read_parquet(str(tmp_path / "out")).schema
    assert set(given.names) == {"user", "day", "n", "at"} and given.field("day").type == pa.date32()
    assert (tmp_path / "out/user=a%2Fb").is_dir()
