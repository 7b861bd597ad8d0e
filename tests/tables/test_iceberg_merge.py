"""An Iceberg table with a key equals the fold of the change log, whatever the key is and whoever else commits."""

from __future__ import annotations

import datetime as dt
import random
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.types import StringType

from krishiv_py import CheckpointError, ColumnError, SchemaError
from krishiv_py.connectors.publish import OutputOf, TablePublisher, check_sink
from tests.tables.stores import catalog, iceberg, iceberg_rows

UTC = dt.timezone.utc
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["a", "b'\"", "", None]),
    "start": (
        pa.timestamp("us", tz="UTC"),
        [
            dt.datetime(1, 1, 1, tzinfo=UTC),
            dt.datetime(9999, 12, 31, tzinfo=UTC),
            dt.datetime(2024, 1, 1, 0, 0, 0, 1, UTC),
            None,
        ],
    ),
    "local": (pa.timestamp("us"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), None]),
    "ratio": (pa.float64(), [1.5, float("nan"), float("-inf"), None]),
    "price": (pa.decimal128(9, 2), [Decimal("1.10"), Decimal("-1.10"), None]),
    "raw": (pa.binary(), [b"\x00", b"", None]),
    "day": (pa.date32(), [dt.date(2020, 1, 1), None]),
    "flag": (pa.bool_(), [True, False, None]),
    "small": (pa.int8(), [-128, None]),
}
KEY = list(VALUES)
LOG = pa.schema([*((name, kind) for name, (kind, _) in VALUES.items()), ("n", pa.int64()), ("op", pa.string())])
PLAIN = pa.schema([("k", pa.string()), ("n", pa.int64())])


def plain(key: tuple[Any, ...]) -> str:
    """A key as a text: NaN equals NaN, and a time is one whoever writes its zone."""
    return repr([v.isoformat() if isinstance(v, dt.datetime) else v for v in key])


def publisher(folder: Path, name: str, key: list[str], schema: pa.Schema, query: str = "q") -> TablePublisher:
    """A query that writes into a table."""
    sink = iceberg(folder, name, key)
    check_sink(sink, "results", schema)
    return TablePublisher(sink, OutputOf(query, "a query", "results", schema))


def test_keys_of_all_types_are_found_again(tmp_path: Path) -> None:
    seeded, valid = random.Random(3), dict[str, tuple[tuple[Any, ...], int]]()
    to = publisher(tmp_path, "t", KEY, LOG)
    for batch in range(8):
        lines: list[dict[str, Any]] = []
        for _ in range(seeded.randrange(1, 25)):
            key = tuple(seeded.choice(values) for _, values in VALUES.values())
            if valid and seeded.random() < 0.5:
                key = seeded.choice(list(valid.values()))[0]
            named = dict(zip(KEY, key, strict=True))
            if plain(key) in valid:
                lines.append({**named, "n": valid.pop(plain(key))[1], "op": "-U"})
            if seeded.random() < 0.6:
                valid[plain(key)] = key, seeded.randrange(1_000)
                lines.append({**named, "n": valid[plain(key)][1], "op": "+U"})
        to.publish(batch, [pa.Table.from_pylist(lines, LOG)] if lines else [], is_replay=False)
        actual = sorted((plain(tuple(row[name] for name in KEY)), row["n"]) for row in iceberg_rows(tmp_path, "t"))
        assert actual == sorted((key, n) for key, (_, n) in valid.items()), batch
    assert valid


def test_rows_of_others_and_their_columns_stay(tmp_path: Path) -> None:
    to = publisher(tmp_path, "t", ["k"], PLAIN)
    table = load_catalog("default", **catalog(tmp_path)).load_table("reports.t")
    with table.update_schema() as change:
        change.add_column("note", StringType())
    noted = pa.schema([*PLAIN, ("note", pa.string())])
    table.append(pa.table({"k": ["a", "b", "z"], "n": [1, 2, 3], "note": ["A", "B", "Z"]}, schema=noted))
    many = pa.table({"k": [f"k{n}" for n in range(1_000)] + ["b"], "n": [*range(1_000), 20]}, schema=PLAIN)
    to.publish(0, [many], is_replay=False)
    actual = {row["k"]: (row["n"], row["note"]) for row in iceberg_rows(tmp_path, "t")}
    assert len(actual) == len(iceberg_rows(tmp_path, "t")) == 1_003
    assert [actual[k] for k in ("a", "b", "z", "k7")] == [(1, "A"), (20, "B"), (3, "Z"), (7, None)]


@pytest.mark.parametrize("key", [["k"], []])
def test_several_queries_write_into_one_table_at_once(key: list[str], tmp_path: Path) -> None:
    queries = [publisher(tmp_path, "t", key, PLAIN, f"q{n}") for n in range(3)]
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for batch in range(3):
                queries[number].publish(batch, [pa.table([[f"{number} {batch}"], [batch]], schema=PLAIN)], is_replay=False)
        except BaseException as problem:
            failed.append(problem)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(row["k"] for row in iceberg_rows(tmp_path, "t")) == sorted(f"{n} {b}" for n in range(3) for b in range(3))


def test_a_second_writer_of_one_query_doubles_nothing(tmp_path: Path) -> None:
    rows = [pa.table([["a"], [1]], schema=PLAIN)]
    first, second = (publisher(tmp_path, "t", [], PLAIN) for _ in range(2))
    first.publish(0, rows, is_replay=False)
    second._begun = True  # it looked before the first one wrote
    with pytest.raises(CheckpointError, match="holds batch 0 of this query already"):
        second.publish(0, rows, is_replay=False)
    assert iceberg_rows(tmp_path, "t") == [{"k": "a", "n": 1}]


def test_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match="there is no column 'kk'"):
        check_sink(iceberg(tmp_path, "t", ["kk"]), "results", PLAIN)
    with pytest.raises(SchemaError, match="cannot be compared"):
        check_sink(iceberg(tmp_path, "t", ["l"]), "results", pa.schema([("l", pa.list_(pa.int64()))]))


def test_a_partitioned_table_equals_the_fold(tmp_path: Path) -> None:
    log = pa.schema([("k", pa.string()), ("day", pa.timestamp("us", tz="UTC")), ("n", pa.int64()), ("op", pa.string())])
    catalog_ = load_catalog("default", **catalog(tmp_path))
    catalog_.create_namespace("reports")
    table = catalog_.create_table("reports.t", schema=pa.schema(list(log)[:3]))
    with table.update_spec() as change:
        change.add_field("day", DayTransform(), "by_day")
        change.add_field("k", BucketTransform(4), "by_key")
    to, seeded, valid = publisher(tmp_path, "t", ["k", "day"], log), random.Random(1), dict[tuple[str, dt.datetime], int]()
    for batch in range(6):
        lines: list[dict[str, Any]] = []
        for _ in range(60):
            key = seeded.choice("abcdef"), dt.datetime(2024, 1, seeded.randrange(1, 5), tzinfo=UTC)
            named = {"k": key[0], "day": key[1]}
            if key in valid:
                lines.append({**named, "n": valid.pop(key), "op": "-U"})
            if seeded.random() < 0.6:
                valid[key] = seeded.randrange(100)
                lines.append({**named, "n": valid[key], "op": "+U"})
        to.publish(batch, [pa.Table.from_pylist(lines, log)], is_replay=False)
        actual = sorted((row["k"], row["day"], row["n"]) for row in iceberg_rows(tmp_path, "t"))
        assert actual == sorted((k, day, n) for (k, day), n in valid.items()), batch
