"""Values, types and names that a table would not give back: refused at the start or with the batch, or written as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from krishiv_py import DeltaSink, OperatorError, SchemaError
from krishiv_py.connectors import delta_source
from krishiv_py.testing import micro_batches
from tests.tables.stores import delta_rows, iceberg, iceberg_rows
from tests.tables.test_other_writers import to

LOCAL = pa.timestamp("us")
NEVER: dict[str, pa.Array] = {
    "day behind": pa.array([2_932_897], pa.int32()).cast(pa.date32()),
    "day before": pa.array([-719_163], pa.int32()).cast(pa.date32()),
    "time": pa.array([1 << 62], pa.int64()).cast(LOCAL),
    "instant": pa.array([-(1 << 62)], pa.int64()).cast(pa.timestamp("us", "UTC")),
}
DEEP = pa.array([{"a": {"b": n, "t": f"{n}"}} for n in range(6)])
SLICES: dict[str, pa.Array] = {
    "whole": DEEP.slice(2, 3),
    "inside": pa.StructArray.from_arrays([DEEP.slice(3)], ["x"]),
    "list": pa.ListArray.from_arrays([0, 1, 3, 3], DEEP.slice(3)),
}


def table_of(values: pa.Array) -> pa.Table:
    """A table with a column ``c``, and a number."""
    return pa.table({"c": values, "n": pa.array(range(len(values)), pa.int64())})


@pytest.mark.parametrize("name", SLICES)
def test_slices_of_structs_in_structs_are_written(tmp_path: Path, name: str) -> None:
    rows = table_of(SLICES[name])
    to(DeltaSink(tmp_path / "t"), schema=rows.schema).publish(0, [rows], is_replay=False)
    assert delta_rows(tmp_path / "t") == rows.to_pylist()


@pytest.mark.parametrize("name", NEVER)
def test_times_that_the_readers_of_a_table_have_not(tmp_path: Path, name: str) -> None:
    rows = table_of(NEVER[name])
    is_day = pa.types.is_date32(rows.schema.field("c").type)
    refused = [
        iceberg(tmp_path, "t"),
        DeltaSink(tmp_path / "p", partition_by="c"),
        *([DeltaSink(tmp_path / "d")] if is_day else []),
    ]
    for sink in refused:
        with pytest.raises(OperatorError, match=r"a value cannot be written to .*before year 1 or after 9999 in 'c'"):
            to(sink, schema=rows.schema).publish(0, [rows], is_replay=False)
    if not is_day:
        to(DeltaSink(tmp_path / "d"), schema=rows.schema).publish(0, [rows], is_replay=False)
        assert deltalake.DeltaTable(tmp_path / "d").to_pyarrow_table()["c"].combine_chunks().equals(rows["c"].combine_chunks())


def test_a_table_of_others_with_such_days_is_read(tmp_path: Path) -> None:
    inside = table_of(pa.StructArray.from_arrays([NEVER["day behind"]], ["d"]))
    for name, rows in (("plain", table_of(NEVER["day behind"])), ("inside", inside)):
        deltalake.write_deltalake(tmp_path / name, rows)
        (actual,) = micro_batches(delta_source(tmp_path / name))
        assert isinstance(actual, pa.Table) and actual["c"].combine_chunks().equals(rows["c"].combine_chunks())


def test_bytes_in_a_partition(tmp_path: Path) -> None:
    rows = table_of(pa.array([b"a", b"\x00\xff\\", None]))
    with pytest.raises(SchemaError, match=r"cannot be partitioned by it .got: c is binary"):
        to(DeltaSink(tmp_path / "t", partition_by="c", key="c"), schema=rows.schema)
    deltalake.write_deltalake(tmp_path / "t", rows, partition_by=["c"])
    with pytest.raises(SchemaError, match=r"cannot be partitioned by it .got: c is binary"):
        to(DeltaSink(tmp_path / "t"), schema=rows.schema)
    actual = [row for batch in micro_batches(delta_source(tmp_path / "t")) for row in batch.to_pylist()]
    assert sorted(actual, key=lambda row: row["n"]) == rows.to_pylist()


def test_a_text_that_means_null_in_folders(tmp_path: Path) -> None:
    rows = table_of(pa.array(["__HIVE_DEFAULT_PARTITION__"]))
    publisher = to(DeltaSink(tmp_path / "t", partition_by="c", key="c"), schema=rows.schema)
    with pytest.raises(OperatorError, match="such a text cannot be in a key that is a partition"):
        publisher.publish(0, [rows], is_replay=False)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (("c", pa.list_(pa.null())), "Delta has no such type .got: c is array<null>"),
        (("c", pa.struct([("a", pa.null())])), "Delta has no such type"),
        (("c", pa.map_(pa.string(), LOCAL)), "makes no table with such a map"),
        (("c", pa.struct([("a", pa.map_(LOCAL, pa.int64()))])), "makes no table with such a map"),
        (("a\0b", pa.int64()), "Delta has no such name"),
    ],
)
def test_types_and_names_that_delta_rs_would_refuse_later(tmp_path: Path, column: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        to(DeltaSink(tmp_path / "t"), schema=pa.schema([column]))


def test_a_map_of_local_times_next_to_another_local_time_is_written(tmp_path: Path) -> None:
    rows = table_of(pa.array([[("a", 5)]], pa.map_(pa.string(), LOCAL))).append_column("t", pa.array([7], LOCAL))
    to(DeltaSink(tmp_path / "t"), schema=rows.schema).publish(0, [rows], is_replay=False)
    assert delta_rows(tmp_path / "t") == rows.to_pylist()


def test_names_with_dots_in_iceberg(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("a.b", pa.int64())])
    with pytest.raises(SchemaError, match=r"a column of `key` has a dot in its name .got: 'a\.b'"):
        to(iceberg(tmp_path, "t", ["a.b"]), schema=schema)
    publisher = to(iceberg(tmp_path, "t", ["k"]), schema=schema)
    for batch in range(2):
        publisher.publish(batch, [pa.table([["a", "b"], [batch, batch]], schema=schema)], is_replay=False)
    assert sorted(row["a.b"] for row in iceberg_rows(tmp_path, "t")) == [1, 1]
