"""Tables that many batches are written to: what a batch costs, small files, columns that are added, rows that are refused."""

from __future__ import annotations

import datetime as dt
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from krishiv_py import DeltaSink, IcebergSink, OperatorError, PlanError, PostgresSink, SchemaError
from tests.tables.server import Server
from tests.tables.stores import catalog, delta_rows, iceberg, iceberg_rows
from tests.tables.test_other_writers import PLAIN, rows, to

MORE = pa.schema([*PLAIN, ("extra", pa.float64())])


def iceberg_table(folder: Path) -> Any:
    return load_catalog("default", **catalog(folder)).load_table("reports.t")


@pytest.mark.parametrize("key", [[], pytest.param(["k"], marks=pytest.mark.slow)])
def test_snapshots_and_manifests_of_iceberg_stay_few(key: list[str], tmp_path: Path) -> None:
    """pyiceberg copies all snapshots of a table in each commit, and lists all manifests."""
    sink = attrs.evolve(iceberg(tmp_path, "t", key), keep_snapshots=5)
    publisher = to(sink)
    for batch in range(60):
        publisher.publish(batch, rows((f"k{batch % 7}", batch)), is_replay=False)
    table = iceberg_table(tmp_path)
    assert len(table.metadata.snapshots) <= 5 + 10 + 3  # kept, and so many too many before they expire
    assert len(table.current_snapshot().manifests(table.io)) <= 60 // 2
    assert sorted(row["n"] for row in iceberg_rows(tmp_path, "t")) == list(range(53 if key else 0, 60))
    to(sink).publish(59, rows(("again", 100)), is_replay=True)
    assert 100 not in [row["n"] for row in iceberg_rows(tmp_path, "t")]  # known, though its snapshot may have expired


def test_snapshots_of_others_and_those_with_a_tag_do_not_expire(tmp_path: Path) -> None:
    publisher = to(attrs.evolve(iceberg(tmp_path, "t"), keep_snapshots=1))
    publisher.publish(0, rows(("a", 0)), is_replay=False)
    table = iceberg_table(tmp_path)
    tagged = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(tagged, "first").commit()
    iceberg_table(tmp_path).append(rows(("other", 1))[0])
    other = iceberg_table(tmp_path).current_snapshot().snapshot_id
    for batch in range(1, 40):
        publisher.publish(batch, rows((f"k{batch}", batch)), is_replay=False)
    left = {snapshot.snapshot_id for snapshot in iceberg_table(tmp_path).metadata.snapshots}
    assert {tagged, other} <= left and len(left) < 20


@pytest.mark.one_in(2)
@pytest.mark.parametrize("key", [[], ["k"]])
def test_small_files_are_merged_and_the_rows_stay(key: list[str], tmp_path: Path) -> None:
    made: list[tuple[Any, Callable[[], list[dict[str, Any]]], Callable[[], int]]] = [
        (
            attrs.evolve(iceberg(tmp_path, "t", key), compact_every=10),
            lambda: iceberg_rows(tmp_path, "t"),
            lambda: len(list(iceberg_table(tmp_path).scan().plan_files())),
        ),
        (
            DeltaSink(tmp_path / "d", key=key, compact_every=10),
            lambda: delta_rows(tmp_path / "d"),
            lambda: len(deltalake.DeltaTable(tmp_path / "d").file_uris()),
        ),
    ]
    for sink, there, files in made:
        publisher = to(sink)
        for batch in range(20):
            publisher.publish(batch, rows((f"k{batch}", batch)), is_replay=False)
        assert sorted(row["n"] for row in there()) == list(range(20)), sink.title
        assert files() <= 2, sink.title
        to(sink).publish(19, rows(("again", 19)), is_replay=True)
        assert len(there()) == 20, sink.title


def test_a_partition_is_compacted_by_itself(tmp_path: Path) -> None:
    publisher = to(DeltaSink(tmp_path / "d", partition_by=["k"], compact_every=12, vacuum_after="1 hour"))
    for batch in range(12):
        publisher.publish(batch, rows(("a", batch), ("b", batch)), is_replay=False)
    assert len(deltalake.DeltaTable(tmp_path / "d").file_uris()) == 2
    assert len(delta_rows(tmp_path / "d")) == 24


def test_a_delta_table_that_was_replaced_under_the_query_is_loaded_again(tmp_path: Path) -> None:
    publisher = to(DeltaSink(tmp_path / "d"))
    for batch in range(3):
        publisher.publish(batch, rows(("a", batch)), is_replay=False)
    deltalake.write_deltalake(tmp_path / "new", rows(("z", 0))[0])
    (tmp_path / "d").rename(tmp_path / "old")
    (tmp_path / "new").rename(tmp_path / "d")
    publisher.publish(3, rows(("b", 3)), is_replay=False)
    assert deltalake.DeltaTable(tmp_path / "d").version() == 1
    assert sorted(row["n"] for row in delta_rows(tmp_path / "d")) == [0, 3]


def test_columns_are_added_on_request_only(server: Server, table: Callable[[], str], tmp_path: Path) -> None:
    name = table()
    log = pa.table({"k": ["b"], "n": [1], "extra": [0.5]}, schema=MORE)
    made: list[tuple[Any, Callable[[], list[Any]]]] = [
        (PostgresSink(server.address(), name), lambda: [r[0] for r in server.rows(f"SELECT extra FROM {name} ORDER BY k")]),
        (DeltaSink(tmp_path / "d"), lambda: [r["extra"] for r in sorted(delta_rows(tmp_path / "d"), key=lambda r: r["k"])]),
        (iceberg(tmp_path, "t"), lambda: [r["extra"] for r in sorted(iceberg_rows(tmp_path, "t"), key=lambda r: r["k"])]),
    ]
    for plain, there in made:
        to(plain).publish(0, rows(("a", 0)), is_replay=False)
        with pytest.raises(SchemaError, match="no column extra"):
            to(plain, schema=MORE)
        sink = attrs.evolve(plain, evolve=True)
        for _ in range(2):  # a restart finds them
            publisher = to(sink, schema=MORE)
        publisher.publish(1, [log], is_replay=False)
        assert there() == [None, 0.5], plain.title


@pytest.mark.parametrize("key", [[], ["k"]])
def test_rows_that_postgresql_refuses_go_to_a_table_with_the_reason(
    key: list[str], server: Server, table: Callable[[], str]
) -> None:
    name, schema = table(), pa.schema([("k", pa.string()), ("at", pa.timestamp("us"))])
    server.rows(f"CREATE TABLE {name} (k varchar(3) UNIQUE NOT NULL, at timestamp, CHECK (k <> 'bad'))")
    sink = PostgresSink(server.address(), name, key=key, refused=f"{name}_refused")
    publisher, now = to(sink, schema=schema), dt.datetime(2024, 1, 1)
    batch = pa.table(
        {"k": ["ok", "a\0b", "bad", "long text", None, "far", "fin"], "at": [now] * 5 + [None, now]}, schema=schema
    )
    far = pa.array([10**18], pa.int64()).cast(pa.timestamp("us"))
    batch = pa.concat_tables([batch, pa.table({"k": ["yr"], "at": far}, schema=schema)])
    with pytest.warns(RuntimeWarning, match="refused 5 rows of batch 0"):
        publisher.publish(0, [batch], is_replay=False)
    assert sorted(r[0] for r in server.rows(f"SELECT k FROM {name}")) == ["far", "fin", "ok"]
    refused = server.rows(f"SELECT refused_row, reason, batch_id, output FROM {name}_refused")
    assert len(refused) == 5 and {r[2:] for r in refused} == {(0, "results")}
    reasons = " | ".join(str(r[1]) for r in refused)
    for word in ("U+0000", "check constraint", "too long", "not-null", "PostgreSQL"):
        assert word in reasons, reasons
    assert {"k": "a\0b", "at": "2024-01-01T00:00:00.000000"} in [json.loads(str(r[0])) for r in refused]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        publisher.publish(1, [batch.slice(0, 0), pa.table({"k": ["x"], "at": [now]}, schema=schema)], is_replay=False)
    assert len(server.rows(f"SELECT 1 FROM {name}_refused")) == 5


def test_without_refused_such_a_row_stops_the_query(server: Server, table: Callable[[], str]) -> None:
    publisher = to(PostgresSink(server.address(), table()))
    with pytest.raises(OperatorError, match=r"U\+0000"):
        publisher.publish(0, rows(("a\0b", 1)), is_replay=False)


@pytest.mark.parametrize(
    "options",
    [{"compact_every": 0}, {"compact_every": "5"}, {"target_file_size": "128 MB"}, {"target_file_size": 10}, {"evolve": 1}],
)
def test_wrong_options_are_refused_at_the_call(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(PlanError):
        DeltaSink(tmp_path / "d", **options)
    with pytest.raises(PlanError):
        IcebergSink("reports.t", catalog=catalog(tmp_path), **options)


def test_deleting_files_needs_a_length_of_time_and_compacting(tmp_path: Path) -> None:
    for options in ({"vacuum_after": "1 hour"}, {"vacuum_after": "1 minute", "compact_every": 5}):
        with pytest.raises(PlanError, match="vacuum_after"):
            DeltaSink(tmp_path / "d", **options)
    with pytest.raises(PlanError, match="keep_snapshots"):
        IcebergSink("reports.t", catalog=catalog(tmp_path), keep_snapshots=0)
    with pytest.raises(PlanError, match="properties"):
        IcebergSink("reports.t", catalog=catalog(tmp_path), properties=[])


def files_of(table: Any) -> set[str]:
    """All files that the snapshots of a table need."""
    actual = set[str]()
    for snapshot in table.metadata.snapshots:
        actual.add(snapshot.manifest_list)
        actual |= {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
        actual |= {task.file.file_path for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()}
    return actual


def files_in(folder: Path) -> set[str]:
    """All files of a warehouse but for the metadata of the table."""
    return {
        f"file://{path}"
        for path in (folder / "warehouse").rglob("*")
        if path.is_file() and path.suffix in (".parquet", ".avro")
    }


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("other", "key"),
    [
        ("nobody", ["k"]),
        ("a tag", []),
        ("another writer", []),
        pytest.param("nobody", [], marks=pytest.mark.slow),
        pytest.param("a tag", ["k"], marks=pytest.mark.slow),
        pytest.param("another writer", ["k"], marks=pytest.mark.slow),
        pytest.param("gc.enabled=false", ["k"], marks=pytest.mark.slow),
        ("gc.enabled=false", []),
    ],
)
def test_files_of_expired_snapshots_go_and_no_other(key: list[str], other: str, tmp_path: Path) -> None:
    properties = {"gc.enabled": "false"} if "=" in other else {}
    sink = attrs.evolve(iceberg(tmp_path, "t", key), keep_snapshots=3, compact_every=7, properties=properties)
    publisher = to(sink)
    for batch in range(40):
        publisher.publish(batch, rows((f"k{batch % 7}", batch)), is_replay=False)
        if batch == 10 and other == "a tag":
            table = iceberg_table(tmp_path)
            table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "kept").commit()
        if batch == 10 and other == "another writer":
            iceberg_table(tmp_path).append(rows(("other", 100))[0])
    table = iceberg_table(tmp_path)
    needed, there = files_of(table), files_in(tmp_path)
    assert needed <= there  # every snapshot can be read
    for snapshot in table.metadata.snapshots:
        table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    if other == "nobody":
        assert len(there - needed) <= 6  # of compactions and changes in the snapshots that are kept
    elif "=" in other:
        assert len([path for path in there - needed if path.endswith(".avro")]) > 50
    else:
        assert not [path for path in there - needed if path.endswith(".avro")]
