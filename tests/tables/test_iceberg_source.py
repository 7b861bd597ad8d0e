"""An Iceberg table as a source: snapshots, time travel, what is refused; on the driver and as a query over a restart."""

from __future__ import annotations

import datetime as dt
import json
import random
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.types import LongType

from krishiv_py import ParquetSink, PlanError, SchemaError, Session, SourceError, count
from krishiv_py import sum as total
from krishiv_py.connectors import JsonValue, iceberg_source
from krishiv_py.connectors.tables.iceberg import snapshots
from krishiv_py.connectors.tables.iceberg.source import IcebergSource
from krishiv_py.testing import micro_batches
from tests.tables.stores import catalog

NAME = "lake.events"


def events(*numbers: int, key: str = "a") -> pa.Table:
    """Rows with a number, which is also their time."""
    return pa.table({"n": pa.array(numbers, pa.int64()), "key": [key] * len(numbers)})


def numbers(batches: Any) -> list[list[int]]:
    """The numbers of each micro-batch."""
    return [sorted(batch["n"].to_pylist()) for batch in batches]


class Lake:
    """A catalog in a folder."""

    def __init__(self, folder: Path) -> None:
        self.settings = catalog(folder)
        self.catalog = load_catalog("default", **self.settings)
        self.catalog.create_namespace("lake")

    def table(self, name: str = NAME) -> Any:
        """A table as it is now."""
        return self.catalog.load_table(name)

    def make(self, *parts: pa.Table, name: str = NAME) -> Any:
        """A table with an append for each of these."""
        made = self.catalog.create_table(name, schema=parts[0].schema)
        for part in parts:
            made.append(part)
        return made

    def source(self, name: str = NAME, **options: Any) -> IcebergSource:
        """The source."""
        return iceberg_source(name, catalog=self.settings, **options)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A table of three snapshots."""
    actual = Lake(tmp_path)
    actual.make(events(1, 2), events(3), events(4, 5, key="b"))
    return actual


def all_of(source: IcebergSource, last: JsonValue = None) -> tuple[list[list[int]], JsonValue]:
    """The numbers of each batch there is after a position, and the last position, both as the checkpoint has them."""
    actual = []
    while (planned := source.plan(last)) is not None:
        last = json.loads(json.dumps(planned.position))
        batches = [b for each in planned.ranges for b in source.read(json.loads(json.dumps(each)), ["n"])]
        actual.append(sorted(n for batch in batches for n in batch["n"].to_pylist()))
    return actual, last


def test_a_table_is_read_once_as_it_is_and_as_it_was(lake: Lake) -> None:
    assert numbers(micro_batches(lake.source())) == [[1, 2, 3, 4, 5]]
    table = lake.table()
    snapshots = [each.snapshot_id for each in table.metadata.snapshots]
    table.manage_snapshots().create_tag(snapshots[0], "first").commit()
    then = dt.datetime.now(dt.UTC)
    time.sleep(0.01)
    lake.table().delete("n = 2")
    assert numbers(micro_batches(lake.source())) == [[1, 3, 4, 5]]
    assert numbers(micro_batches(lake.source(snapshot=snapshots[1]))) == [[1, 2, 3]]
    assert numbers(micro_batches(lake.source(snapshot="first"))) == [[1, 2]]
    assert numbers(micro_batches(lake.source(snapshot=then))) == [[1, 2, 3, 4, 5]]
    assert numbers(micro_batches(lake.source(snapshot=snapshots[2], max_files_per_batch=1))) == [[1, 2], [3], [4, 5]]


@pytest.mark.slow
def test_each_snapshot_is_read_once_whatever_the_size_of_batches(tmp_path: Path) -> None:
    for number, (start, before) in enumerate([("earliest", [1, 2, 3, 4, 5]), ("latest", []), (1, [3, 4, 5])]):
        for most in (None, 1, 2):
            folder = tmp_path / f"{number}-{most}"
            folder.mkdir()
            lake = Lake(folder)
            table = lake.make(events(1, 2), events(3), events(4, 5, key="b"))
            begin: Any = table.metadata.snapshots[start].snapshot_id if isinstance(start, int) else start
            source = lake.source(streaming=True, starting=begin, max_files_per_batch=most)
            actual, last, chance = [], None, random.Random(0)  # type: tuple[list[list[int]], JsonValue, random.Random]
            for step in range(12):
                if step % 3 == 1:
                    lake.table().append(events(10 + step))
                if step == 5:
                    snapshots.compact(lake.table(), "note", 1 << 27)
                if chance.random() < 0.4:  # a restart
                    source = lake.source(streaming=True, starting="latest", max_files_per_batch=most)
                more, last = all_of(source, last)
                actual += more
            assert sorted(n for batch in actual for n in batch) == [*before, 11, 14, 17, 20], (start, most)
            assert most is None or len(actual) >= (len(before) + 4) // (2 * most)


def test_an_empty_table_is_read_when_rows_come(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.catalog.create_table(NAME, schema=events(1).schema)
    source = lake.source(streaming=True)
    assert numbers(micro_batches(lake.source())) in ([], [[]])
    actual, last = all_of(source)
    assert actual == [[]]
    lake.table().append(events(7))
    assert all_of(lake.source(streaming=True), last)[0] == [[7]]
    lake.table().append(events(8))
    lake.table().maintenance.expire_snapshots().by_id(lake.table().metadata.snapshots[0].snapshot_id).commit()
    with pytest.raises(SourceError, match="snapshots of an Iceberg table are gone"):  # 8 alone would look like the beginning
        source.plan(last)


def test_snapshots_that_change_rows_are_refused_or_passed_over(lake: Lake) -> None:
    source = lake.source(streaming=True)
    _, last = all_of(source)
    lake.table().delete("n = 4")
    lake.table().append(events(6))
    with pytest.raises(SourceError, match=r"changed or deleted.*takes 1 files of rows out and adds 1.*on_change"):
        source.plan(last)
    with pytest.warns(RuntimeWarning, match="a snapshot that changed rows is passed over"):
        assert all_of(lake.source(streaming=True, on_change="skip"), last)[0] == [[6]]


def test_types_and_columns_that_are_added_renamed_and_widened(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    rows = pa.table(
        {
            "n": pa.array([1, 2, 3], pa.int64()),
            "word": ["a b/ü=%20", None, "ä:?#"],
            "at": pa.array([0, 86_400_000_001, None], pa.timestamp("us", "UTC")),
            "plain": pa.array([0, 5, None], pa.timestamp("us")),
            "day": pa.array([0, 400, None], pa.date32()),
            "price": pa.array([Decimal("1.50"), Decimal("2.25"), None], pa.decimal128(9, 2)),
            "yes": [True, False, None],
            "small": pa.array([1, None, 3], pa.int32()),
            "bytes": [b"\x00\xff", None, b""],
            "many": pa.array([[1, 2], [], None], pa.list_(pa.int64())),
            "inside": pa.array([{"x": 1.5}, {"x": None}, None], pa.struct([("x", pa.float64())])),
            "pairs": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    table = lake.make(rows)
    with table.update_spec() as spec:
        for name in ("word", "day", "price", "yes"):
            spec.add_identity(name)
    lake.table().append(rows)
    with lake.table().update_schema() as change:
        change.rename_column("n", "number")
        change.update_column("small", LongType())
        change.add_column("new", LongType())
    source = lake.source()
    assert source.schema.field("small").type == pa.int64() and source.schema.names[0] == "number"
    for streaming in (source, lake.source(streaming=True)):
        planned = streaming.plan(None)
        assert planned is not None
        ranges = json.loads(json.dumps(planned.ranges))
        actual = [row for each in ranges for batch in streaming.read(each, source.schema.names) for row in batch.to_pylist()]
        expected = [{"number" if k == "n" else k: v for k, v in row.items()} | {"new": None} for row in rows.to_pylist()]
        assert sorted(actual, key=lambda r: r["number"]) == [row for row in expected for _ in (1, 2)]
    some = [batch for each in ranges for batch in source.read(each, ["new", "day"])]
    assert {tuple(batch.schema.names) for batch in some} == {("new", "day")}


def test_fields_of_structs_are_found_by_their_number_at_any_depth(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    inner = pa.struct([("x", pa.int32()), ("y", pa.string())])
    deep = {"x": 1, "y": "a"}
    row = {"u": deep, "l": [deep, None], "m": [("k", deep)]}
    schema = pa.schema([("u", inner), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))])
    lake.make(pa.Table.from_pylist([row], schema))
    with lake.table().update_schema() as change:
        for path in (("u",), ("l", "element"), ("m", "value")):
            change.rename_column((*path, "y"), "text")
            change.update_column((*path, "x"), LongType())
            change.add_column((*path, "new"), LongType())
    source = lake.source(streaming=True)
    planned = source.plan(None)
    assert planned is not None
    (actual,) = [r for each in planned.ranges for batch in source.read(each, source.schema.names) for r in batch.to_pylist()]
    given = {"x": 1, "text": "a", "new": None}
    assert actual == {"u": given, "l": [given, None], "m": [("k", given)]}
    with lake.table().update_schema(allow_incompatible_changes=True) as change:
        change.delete_column(("l", "element", "text"))
    lake.table().append(pa.Table.from_pylist([{"u": None}], lake.table().schema().as_arrow()))
    with pytest.raises(SourceError, match=r"lost columns.*: l.element.text\)"):
        source.plan(planned.position)


def test_values_of_a_partition_that_a_file_does_not_hold_and_deleted_rows(tmp_path: Path) -> None:
    """Files of tables that were converted lack the columns of their partitions; other writers delete rows by position."""
    lake = Lake(tmp_path)
    rows = pa.table({"n": pa.array([1, 2, 3], pa.int64()), "day": pa.array([400] * 3, pa.date32())})
    table = lake.make(rows)
    with table.update_spec() as change:
        change.add_identity("day")
    lake.table().append(rows)
    source = lake.source()
    planned = source.plan(None)
    assert planned is not None
    ranges: Any = planned.ranges
    files: list[dict[str, Any]] = [file for each in ranges for file in each if "spec" in file]
    assert len(files) == 1 and PartitionSpec.model_validate_json(files[0]["spec"]).fields
    bare = pa.table([rows["n"]], schema=pa.schema([pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "1"})]))
    pq.write_table(bare, tmp_path / "bare.parquet")
    path = f"file://{tmp_path}/bare.parquet"
    gone = pa.table({"file_path": [path, "file://other"], "pos": pa.array([1, 0], pa.int64())})
    pq.write_table(gone, tmp_path / "gone.parquet")
    file = {**files[0], "path": path, "deletes": [[f"file://{tmp_path}/gone.parquet", "PARQUET"]]}
    (batch,) = source.read([file], ["n", "day"])
    assert batch.to_pylist() == [row for row in rows.to_pylist() if row["n"] != 2]


def test_what_cannot_be_read_is_refused(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no such Iceberg table"):
        lake.source("lake.nothing")
    with pytest.raises(SourceError, match="does not answer"):
        iceberg_source(NAME, catalog={"type": "rest", "uri": "http://127.0.0.1:9", "token": "hunter2hunter2"})
    for wrong in (5, "nothing", dt.datetime(2000, 1, 1, tzinfo=dt.UTC)):
        with pytest.raises(SourceError, match=r"no such snapshot.*the last ones are \d+"):
            lake.source(snapshot=wrong)
    with pytest.raises(SourceError, match="no such snapshot"):
        lake.source(streaming=True, starting=5)
    for given in (
        {"snapshot": 1, "streaming": True}, {"starting": "latest"}, {"streaming": True, "starting": True},
        {"streaming": True, "starting": "never"}, {"max_files_per_batch": 0}, {"snapshot": -1}, {"snapshot": ""},
        {"snapshot": True}, {"snapshot": 1.5}, {"snapshot": dt.datetime(2026, 1, 1)}, {"on_change": "ignore"},
        {"parallelism": 0}, {"streaming": 1},
    ):  # fmt: skip
        with pytest.raises(PlanError):
            lake.source(**given)
    for name, place in (("events", lake.settings), (NAME, 5), (NAME, {})):
        with pytest.raises((PlanError, SourceError)):
            iceberg_source(name, catalog=place)  # type: ignore[arg-type]
    lake.catalog.create_table("lake.times", schema=pa.schema([("t", pa.time64("us"))]))
    with pytest.raises(SchemaError):
        lake.source("lake.times")


def test_lost_snapshots_files_columns_and_other_tables_are_errors(lake: Lake) -> None:
    source = lake.source(streaming=True, max_files_per_batch=1)
    first = source.plan(None)
    assert first is not None
    _, last = all_of(source)
    for number in (6, 7, 8):
        lake.table().append(events(number))
    middle = source.plan(last)
    assert middle is not None
    with lake.table().update_schema() as change:
        change.delete_column("key")
    with pytest.raises(SourceError, match=r"lost columns.*key"):
        source.plan(middle.position)
    history = [each.snapshot_id for each in lake.table().metadata.snapshots]
    lake.table().maintenance.expire_snapshots().by_ids(history[:4]).commit()
    with pytest.raises(SourceError, match=r"a snapshot of an Iceberg table is gone"):
        lake.source(streaming=True, max_files_per_batch=1).plan(first.position)
    assert all_of(lake.source(streaming=True), middle.position)[0] == [[7, 8]]  # its own snapshot may have expired
    with pytest.raises(SourceError, match=r"snapshots of an Iceberg table are gone"):
        lake.source(streaming=True).plan({**first.position, "done": None})  # type: ignore[dict-item]
    third = lake.source(streaming=True).plan(middle.position)
    assert third is not None
    path = str(third.ranges[0][0]["path"]).removeprefix("file://")  # type: ignore[index,call-overload]
    Path(path).unlink()
    with pytest.raises(SourceError, match=r"a file of an Iceberg table is gone.*keep snapshots"):
        list(source.read(third.ranges[0], ["n"]))
    lake.catalog.drop_table(NAME)
    lake.make(events(1))
    for each in (source, lake.source(streaming=True)):
        with pytest.raises(SourceError, match="another Iceberg table"):
            each.plan(middle.position)


def test_until_now_ends_with_the_snapshot_there_is(lake: Lake) -> None:
    source = lake.source(streaming=True, starting="latest")
    lake.table().append(events(6))
    upto = source.until_now()
    lake.table().append(events(7))
    actual, last = all_of(upto)
    assert actual[-1] == [6] and all_of(source, last)[0] == [[7]]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_query_over_a_table_that_grows(session: Session, lake: Lake, tmp_path: Path) -> None:
    def start() -> Any:
        read = session.read_iceberg(NAME, catalog=lake.settings, streaming=True, max_files_per_batch=1)
        windows = read.watermark("n", 0).key_by("key").tumbling_window(10).agg(count().alias("count"), total("n").alias("s"))
        return windows.start(ParquetSink(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"))

    def until(rows: int) -> None:
        end = time.monotonic() + 60
        while query.progress.rows < rows and time.monotonic() < end:
            time.sleep(0.05)
        query.process_all_available()

    query = start()
    until(5)
    lake.table().append(events(12, 13))
    until(7)
    query.stop()
    lake.table().append(events(25))
    query = start()
    lake.table().append(events(41))
    until(9)
    query.stop()
    rows = session.read_parquet(str(tmp_path / "out")).collect().to_pylist()
    got = sorted((row["key"], row["window_start"], row["count"], row["s"]) for row in rows)
    assert got == [("a", 0, 3, 6), ("a", 10, 2, 25), ("a", 20, 1, 25), ("b", 0, 2, 9)]
    once = session.read_iceberg(NAME, catalog=lake.settings).watermark("n", 0).key_by("key").tumbling_window(10).agg(count())
    assert once.collect().num_rows == 5
