"""What readers make of files that do not fit the schema, or are no files of their kind (docs/sources.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py.errors import SourceError
from krishiv_py.spark.malformed import Malformed, Rules
from krishiv_py.spark.parquet import ParquetReader

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
STRICT = Rules(missing_null=False)
ASIDE = Rules(aside=True, missing_null=False)


def write(path: Path, *rows: dict[str, Any], schema: pa.Schema = SCHEMA) -> Path:
    """One parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema), path)
    return path


def read(path: Path, rules: Rules = STRICT, schema: pa.Schema = SCHEMA) -> tuple[list[dict[str, Any]], list[Malformed]]:
    """The rows of a file, and what was put aside."""
    scanned = list(ParquetReader(schema, rules)(pa.record_batch([[f"file:{path}"]], names=["path"])))
    return [r for s in scanned if s.batch is not None for r in s.batch.to_pylist()], [m for s in scanned for m in s.malformed]


def refused(path: Path, schema: pa.Schema = SCHEMA) -> str:
    """The text of the error, which the file put aside has too."""
    with pytest.raises(SourceError) as raised:
        read(path, schema=schema)
    said = str(raised.value)
    assert str(path) in said
    assert "Hint" in said
    assert len(said.splitlines()) == 1
    (aside,) = read(path, ASIDE, schema)[1]
    assert (aside.file, aside.line, aside.text) == (str(path), None, None)
    assert " ".join(aside.problem.split()) in said
    return said


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.parquet", *[{"user": f"u{n}", "at": n, "amount": 1} for n in range(5_000)])
    data = whole.read_bytes()
    for cut in (data[: len(data) // 2], data[:-1], b"user,at\na,1\n", data[:2_000] + bytes(2_000) + data[4_000:]):
        whole.write_bytes(cut)
        assert "not a whole parquet file" in refused(whole)


def test_rows_before_the_damage_are_told(tmp_path: Path) -> None:
    whole = tmp_path / "a.parquet"
    rows = [{"user": f"u{n}", "at": n, "amount": n * n} for n in range(300_000)]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), whole, row_group_size=270_000, use_dictionary=False)
    data = bytearray(whole.read_bytes())
    start = pq.ParquetFile(whole).metadata.row_group(1).column(0).data_page_offset
    data[start : start + 200] = bytes(200)
    whole.write_bytes(bytes(data))
    found, (aside,) = read(whole, ASIDE)
    assert found == rows[: len(found)]
    assert 0 < len(found) <= 270_000
    assert f"after {len(found)} rows" in aside.problem


def test_what_says_nothing_about_rows_is_never_put_aside(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="went before it was read"):
        read(tmp_path / "gone #1.parquet", ASIDE)
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceError, match="cannot be opened"):
        read(tmp_path / "folder", ASIDE)


def test_a_file_without_a_column_is_refused_or_its_rows_have_nulls(tmp_path: Path) -> None:
    other = pa.schema([("usr", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
    file = write(tmp_path / "b.parquet", {"usr": "b", "at": 20, "amount": 2}, schema=other)
    assert "no column 'user'; it has: usr, at, amount" in refused(file)
    assert read(file, Rules())[0] == [{"user": None, "at": 20, "amount": 2}]
    assert read(file, schema=pa.schema([SCHEMA.field("at")]))[0] == [{"at": 20}]  # nobody asked for it


def test_case_of_names_is_ignored_as_in_spark(tmp_path: Path) -> None:
    shouted = pa.schema([(n.upper(), t) for n, t in zip(SCHEMA.names, SCHEMA.types, strict=True)])
    file = write(tmp_path / "a.parquet", {"USER": "a", "AT": 10, "AMOUNT": 1}, schema=shouted)
    assert read(file) == ([{"user": "a", "at": 10, "amount": 1}], [])
    upper, mixed, lower = (pa.field(n, pa.string()) for n in ("USER", "User", "user"))
    rest = [SCHEMA.field("at"), SCHEMA.field("amount")]
    both = write(tmp_path / "b.parquet", {"User": "a"}, schema=pa.schema([mixed, upper, *rest]))
    assert "'User' and 'USER'" in refused(both)
    one = write(tmp_path / "c.parquet", {"user": "a"}, schema=pa.schema([lower, upper, *rest]))
    assert read(one)[0] == [{"user": "a", "at": None, "amount": None}]


def test_a_column_twice_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["at", "at"])
    pq.write_table(table, tmp_path / "a.parquet")
    assert "'at' stands twice" in refused(tmp_path / "a.parquet", pa.schema([("at", pa.int64())]))


def test_a_column_of_another_type_is_named_unless_there_is_no_row(tmp_path: Path) -> None:
    texts = pa.schema([("user", pa.string()), ("at", pa.string()), ("amount", pa.int64())])
    assert read(write(tmp_path / "empty.parquet", schema=texts)) == ([], [])
    narrow = pa.schema([("user", pa.large_string()), ("at", pa.int32()), ("amount", pa.int8())])
    file = write(tmp_path / "small.parquet", {"user": "b", "at": 20, "amount": 2}, schema=narrow)
    assert read(file)[0] == [{"user": "b", "at": 20, "amount": 2}]
    bad = write(tmp_path / "b.parquet", {"user": "b", "at": "10"}, schema=texts)
    assert "column 'at' is string" in refused(bad)
    too_large = write(tmp_path / "c.parquet", {"user": "b", "at": 2**40})
    assert "column 'at' is int64" in refused(too_large, pa.schema([("at", pa.int32())]))


def test_folders_give_columns_that_the_file_has_not(tmp_path: Path) -> None:
    rest = pa.schema([SCHEMA.field("at")])
    schema = pa.schema([("day", pa.date32()), ("user", pa.int64()), ("at", pa.int64())])
    file = write(tmp_path / "day=2024-02-29/USER=7/x.parquet", {"at": 1}, schema=rest)
    assert [str(v) for v in read(file, schema=schema)[0][0].values()] == ["2024-02-29", "7", "1"]
    null = write(tmp_path / "day=2024-02-29/user=__HIVE_DEFAULT_PARTITION__/x.parquet", {"at": 1}, schema=rest)
    assert read(null, schema=schema)[0][0]["user"] is None
    wrong = write(tmp_path / "day=2024-02-30/user=1/x.parquet", {"at": 1}, schema=rest)
    assert "day=2024-02-30 gives no date32" in refused(wrong, schema)
