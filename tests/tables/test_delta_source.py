"""A Delta table as a source: snapshots, versions, what is refused; on the driver and as a query over a restart."""

from __future__ import annotations

import json
import random
import shutil
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from krishiv_py import ParquetSink, PlanError, Session, SourceError, count
from krishiv_py import sum as total
from krishiv_py.connectors import delta_source
from krishiv_py.connectors.tables.delta.place import filesystem
from krishiv_py.connectors.tables.delta.source import commit_of
from krishiv_py.connectors.tables.source import TablePlace
from krishiv_py.testing import micro_batches


def events(*numbers: int, key: str = "a") -> pa.Table:
    """Rows with a number, which is also their time."""
    return pa.table({"n": pa.array(numbers, pa.int64()), "key": [key] * len(numbers)})


def numbers(batches: Any) -> list[list[int]]:
    """The numbers of each micro-batch."""
    return [sorted(batch["n"].to_pylist()) for batch in batches]


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table of three versions."""
    path = str(tmp_path / "a täble")
    for each in (events(1, 2), events(3), events(4, 5, key="b")):
        write_deltalake(path, each, mode="append")
    return path


def test_a_table_is_read_once_as_it_is(table: str) -> None:
    assert numbers(micro_batches(delta_source(table))) == [[1, 2, 3, 4, 5]]
    assert numbers(micro_batches(delta_source(table, version=1))) == [[1, 2, 3]]
    DeltaTable(table).delete("n = 2")
    DeltaTable(table).optimize.compact()
    assert numbers(micro_batches(delta_source(table))) == [[1, 3, 4, 5]]
    assert numbers(micro_batches(delta_source(table, max_files_per_batch=1, version=2))) == [[1, 2], [3], [4, 5]]


def test_each_version_is_read_once_whatever_the_size_of_batches(table: str) -> None:
    starts: list[tuple[TablePlace, list[int]]] = [("earliest", [1, 2, 3, 4, 5]), ("latest", []), (1, [3, 4, 5]), (3, [])]
    for start, before in starts:
        for most in (None, 1, 2):
            path = f"{table} {start} {most}"
            shutil.copytree(table, path)
            source = delta_source(path, streaming=True, starting=start, max_files_per_batch=most)
            actual, last, chance = [], None, random.Random(0)
            for step in range(12):
                if step % 3 == 1:
                    write_deltalake(path, events(10 + step), mode="append")
                if step == 5:
                    DeltaTable(path).optimize.compact()
                if chance.random() < 0.4:  # a restart
                    source = delta_source(path, streaming=True, starting="latest", max_files_per_batch=most)
                while (planned := source.plan(last)) is not None:
                    last = json.loads(json.dumps(planned.position))
                    rows = [b for r in planned.ranges for b in source.read(json.loads(json.dumps(r)), ["n"])]
                    actual.append([n for batch in rows for n in batch["n"].to_pylist()])
                    assert most is None or sum(len(r) for r in planned.ranges) <= most  # type: ignore[arg-type,misc]
            assert sorted(n for batch in actual for n in batch) == [*before, 11, 14, 17, 20], (start, most)


def test_two_queries_over_one_source_object_do_not_disturb_one_another(table: str) -> None:
    source = delta_source(table, streaming=True, starting=0)
    first = source.plan(None)
    assert first is not None
    early = source.plan({**first.position, "version": 0, "done": None})  # type: ignore[dict-item]
    assert early is not None and sum(len(r) for r in early.ranges) == 2  # type: ignore[arg-type,misc]
    DeltaTable(table).optimize.compact()
    assert source.plan(first.position) is None
    again = source.plan({**first.position, "version": 1, "done": None})  # type: ignore[dict-item]
    assert again is not None and sum(len(r) for r in again.ranges) == 1  # type: ignore[arg-type,misc]


def test_versions_that_change_rows_are_refused_or_passed_over(table: str) -> None:
    source = delta_source(table, streaming=True)
    first = source.plan(None)
    assert first is not None
    DeltaTable(table).delete("n = 4")
    write_deltalake(table, events(6), mode="append")
    with pytest.raises(SourceError, match=r"changed or deleted.*version 3 takes 1 files out and adds 1.*on_change"):
        source.plan(first.position)
    passing = delta_source(table, streaming=True, on_change="skip")
    with pytest.warns(RuntimeWarning, match="a version that changed rows is passed over"):
        second = passing.plan(first.position)
    assert second is not None
    assert [b["n"].to_pylist() for r in second.ranges for b in passing.read(r, ["n"])] == [[6]]


def test_types_partitions_and_columns_added_later(tmp_path: Path) -> None:
    path, zoned = str(tmp_path / "t"), pa.timestamp("us", "UTC")
    rows = pa.table(
        {
            "n": pa.array([1, 2, 3], pa.int64()),
            "word": ["a b/ü=%20", None, "ä:?#"],
            "at": pa.array([0, 86_400_000_001, None], zoned),
            "plain": pa.array([0, 5, None], pa.timestamp("us")),
            "day": pa.array([0, 400, None], pa.date32()),
            "price": pa.array([Decimal("1.50"), Decimal("2.25"), None], pa.decimal128(9, 2)),
            "yes": [True, False, None],
            "many": pa.array([[1, 2], [], None], pa.list_(pa.int64())),
            "inside": pa.array([{"x": 1.5}, {"x": None}, None], pa.struct([("x", pa.float64())])),
        }
    )
    parts = ["word", "at", "plain", "day", "price", "yes"]
    write_deltalake(path, rows, partition_by=parts)
    more = pa.table({"n": pa.array([4], pa.int64()), "new": ["x"]})
    write_deltalake(path, more, mode="append", schema_mode="merge")
    source = delta_source(path)
    names = [*rows.column_names, "new"]
    actual = [row for planned in micro_batches(source) for row in planned.to_pylist()]
    expected = [{name: row.get(name) for name in names} for row in [*rows.to_pylist(), *more.to_pylist()]]
    by_number = sorted(({name: row[name] for name in names} for row in actual), key=lambda row: row["n"])
    assert by_number == expected
    stream = delta_source(path, streaming=True, starting=0)  # partition values from the log's texts, and not from the snapshot
    first = stream.plan(None)
    assert first is not None
    second = stream.plan(first.position) if not first.ranges[0] else first
    assert second is not None
    read = [row for r in second.ranges for batch in stream.read(r, names) for row in batch.to_pylist()]
    assert sorted(read, key=lambda row: row["n"]) == expected


def test_what_cannot_be_read_is_reported(table: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no Delta table"):
        delta_source(tmp_path / "nothing")
    with pytest.raises(SourceError, match=r"cannot be read.*version 9"):
        delta_source(table, version=9)
    for wrong in (
        {"version": 1, "streaming": True}, {"starting": "latest"}, {"streaming": True, "starting": 5},
        {"streaming": True, "starting": True}, {"streaming": True, "starting": "never"}, {"max_files_per_batch": 0},
        {"version": -1}, {"on_change": "ignore"}, {"parallelism": 0}, {"storage_options": "x"},
    ):  # fmt: skip
        with pytest.raises(PlanError):
            delta_source(table, **wrong)
    source = delta_source(table, streaming=True)
    first = source.plan(None)
    assert first is not None
    write_deltalake(table, events(6), mode="append")
    second = source.plan(first.position)
    assert second is not None
    (Path(table) / str(second.ranges[0][0][0])).unlink()  # type: ignore[index]
    with pytest.raises(SourceError, match="a file of a Delta table is gone"):
        list(source.read(second.ranges[0], ["n"]))
    log = Path(table, "_delta_log/00000000000000000003.json")
    log.write_text('{"add": ')
    with pytest.raises(SourceError, match="damaged"):
        source.plan(first.position)


def test_lost_versions_and_other_tables_are_reported(table: str) -> None:
    source = delta_source(table, streaming=True, starting=1)
    first = source.plan(None)
    assert first is not None
    for number in (6, 7):
        write_deltalake(table, events(number), mode="append")
    DeltaTable(table).create_checkpoint()
    for version in range(4):
        Path(table, f"_delta_log/{version:020d}.json").unlink()
    with pytest.raises(SourceError, match=r"versions of a Delta table are gone.*no version 3"):
        source.plan(first.position)
    shutil.rmtree(table)
    write_deltalake(table, events(1))
    for each in (source, delta_source(table, streaming=True)):
        with pytest.raises(SourceError, match="another Delta table"):
            each.plan(first.position)


def test_shallow_clones_and_mapped_columns_are_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    write_deltalake(path, events(1))
    entry = Path(path, "_delta_log/00000000000000000001.json")
    add = {"path": "file:///elsewhere/a.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
    entry.write_text(json.dumps({"add": add}))
    with pytest.raises(SourceError, match="lies outside"):
        delta_source(path, streaming=True, starting=1).plan(None)
    entry.write_text(json.dumps({"add": {**add, "path": "a.parquet", "deletionVector": {"storageType": "u"}}}))
    with pytest.raises(SourceError, match="deletes rows by deletion vectors"):
        commit_of(filesystem(path, {}), path, 1)
    entry.write_text(json.dumps({"metaData": {"id": "x", "configuration": {"delta.columnMapping.mode": "name"}}}))
    with pytest.raises(SourceError, match="its columns are mapped"):
        commit_of(filesystem(path, {}), path, 1)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_query_over_a_table_that_grows(session: Session, table: str, tmp_path: Path) -> None:
    def start() -> Any:
        stream = session.read_delta(table, streaming=True, max_files_per_batch=1).watermark("n", 0)
        windows = stream.key_by("key").tumbling_window(10).agg(count().alias("count"), total("n").alias("s"))
        return windows.start(ParquetSink(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"))

    query = start()
    query.process_all_available()
    write_deltalake(table, events(12, 13), mode="append")
    query.process_all_available()
    query.stop()
    write_deltalake(table, events(25), mode="append")
    writer = threading.Thread(target=lambda: write_deltalake(table, events(41), mode="append"))
    query = start()
    writer.start()
    writer.join()
    query.process_all_available()
    query.stop()
    rows = session.read_parquet(str(tmp_path / "out")).collect().to_pylist()
    got = sorted((row["key"], row["window_start"], row["count"], row["s"]) for row in rows)
    assert got == [("a", 0, 3, 6), ("a", 10, 2, 25), ("a", 20, 1, 25), ("b", 0, 2, 9)]
    once = session.read_delta(table).watermark("n", 0).key_by("key").tumbling_window(10).agg(count()).collect()
    assert once.num_rows == 5
