"""SqliteSink: values, keys, tables of users, other writers, and a death at each place of a batch."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import pickle
import sqlite3
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import CheckpointError, OperatorError, PlanError, SchemaError, SqliteSink
from krishiv_py.connectors import OutputBatch
from krishiv_py.connectors.publish import OutputOf, TablePublisher
from krishiv_py.connectors.tables import sqlite
from tests.connectors.sinks import Crash
from tests.tables.test_other_writers import to

KEYED = pa.schema([("k", pa.string()), ("n", pa.int64()), ("op", pa.string())])


def rows(path: Path, table: str = "t") -> list[tuple[Any, ...]]:
    """The rows of a table, in order."""
    database = sqlite3.connect(path)
    found = database.execute(f"SELECT * FROM {sqlite.quoted(table)}").fetchall()
    database.close()
    return sorted(found, key=repr)


def log(*lines: tuple[str | None, int, str]) -> pa.Table:
    """Changes."""
    return pa.table([list(column) for column in zip(*lines, strict=True)], schema=KEYED)


def test_each_type_is_kept_as_the_docs_say(tmp_path: Path) -> None:
    at = dt.datetime(2026, 12, 1, 9, 30, 0, 5, dt.timezone.utc)
    columns: dict[str, tuple[pa.Array, list[Any]]] = {
        "yes": (pa.array([True, None, False]), [1, None, 0]),
        "small": (pa.array([-128, None, 127], pa.int8()), [-128, None, 127]),
        "big": (pa.array([-(1 << 63), None, (1 << 63) - 1], pa.int64()), [-(1 << 63), None, (1 << 63) - 1]),
        "real": (pa.array([0.1, None, math.inf]), [0.1, None, math.inf]),
        "nan": (pa.array([math.nan, None, -0.0]), ["NaN", None, 0.0]),
        "float": (pa.array([0.5, None, 2.0], pa.float32()), [0.5, None, 2.0]),
        "text": (pa.array(["ü\0\"'", None, ""]), ["ü\0\"'", None, ""]),
        "numbers in text": (pa.array(["007", None, "1e5"]), ["007", None, "1e5"]),
        "bytes": (pa.array([b"\0\xff", None, b""]), [b"\0\xff", None, b""]),
        "price": (pa.array([Decimal("1.50"), None, Decimal("-2.00")]), ["1.50", None, "-2.00"]),
        "at": (pa.array([at, None, at], pa.timestamp("us", "UTC")), ["2026-12-01 09:30:00.000005+00:00", None] * 2),
        "local": (
            pa.array([0, None, 1], pa.timestamp("us")),
            ["1970-01-01 00:00:00.000000", None, "1970-01-01 00:00:00.000001"],
        ),
        "day": (pa.array([0, None, -719_162], pa.int32()).cast(pa.date32()), ["1970-01-01", None, "0001-01-01"]),
        "long": (pa.array([5, None, -5], pa.duration("us")), [5, None, -5]),
        "list": (pa.array([[1, None], None, []]), ["[1,null]", None, "[]"]),
        'odd "name"; --': (pa.array([{"a": "ü"}, None, {"a": None}]), ['{"a":"ü"}', None, '{"a":null}']),
        "map": (pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())), ['{"a":1}', None, "{}"]),
        "nothing": (pa.nulls(3), [None] * 3),
    }
    table = pa.table({name: values for name, (values, _) in columns.items()})
    path = tmp_path / "t.db"
    for key in ([], ["text"]):
        name = f'a table of {len(key)} "keys"'
        to(SqliteSink(path, name, key=key), schema=table.schema).publish(0, [table], is_replay=False)
        database = sqlite3.connect(path)
        got = database.execute(f"SELECT * FROM {sqlite.quoted(name)}").fetchall()
        expected = [[given[n] for _, given in columns.values()] for n in range(3)]
        assert sorted(map(repr, got)) == sorted(repr(tuple(row)) for row in expected)
        date = f"SELECT datetime(at), julianday(day), unixepoch(local) FROM {sqlite.quoted(name)} WHERE yes"
        assert database.execute(date).fetchall() == [("2026-12-01 09:30:00", 2440587.5, 0)]
        database.close()


def test_a_key_has_one_row_whatever_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    publisher = to(SqliteSink(path, "t", key="k"), schema=KEYED)
    publisher.publish(0, [log(("a", 1, "+I"), (None, 2, "+I"), ("", 3, "+I"))], is_replay=False)
    publisher.publish(1, [log((None, 2, "-U"), (None, 5, "+U"), ("A", 1, "+I"))], is_replay=False)
    assert rows(path) == [("", 3), ("A", 1), ("a", 1), (None, 5)]
    publisher.publish(
        2, [log((None, 5, "-D"), ("a", 1, "-U"), ("a", 7, "+U"), ("b", 1, "+I"), ("b", 1, "-D"))], is_replay=False
    )
    assert rows(path) == [("", 3), ("A", 1), ("a", 7)]
    floats = pa.schema([("x", pa.float64()), ("y", pa.string())])
    publisher = to(SqliteSink(path, "floats", key=["x", "y"]), schema=floats)
    for batch, values in enumerate(([math.nan, -0.0, None], [-math.nan, 0.0, None])):
        publisher.publish(batch, [pa.table([values, [None] * 3], schema=floats)], is_replay=False)
    assert len(rows(path, "floats")) == 3
    with pytest.raises(OperatorError, match="does not tell results apart"):
        publisher = to(SqliteSink(path, "other", key="k"), schema=KEYED)
        publisher.publish(0, [log(("a", 1, "+I"), ("a", 2, "+I"))], is_replay=False)
    assert rows(path, "other") == []


def test_tables_of_users_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    database = sqlite3.connect(path)
    refused = {
        "CREATE TABLE t (k TEXT UNIQUE)": "there is no column n",
        "CREATE TABLE t (k TEXT, n INTEGER)": "has no unique index over `key`",
        "CREATE TABLE t (k TEXT COLLATE NOCASE UNIQUE, n INTEGER)": "has no unique index over `key`",
        "CREATE TABLE t (k INTEGER UNIQUE, n INTEGER)": "k is INTEGER, and values are string",
        "CREATE TABLE t (k TEXT UNIQUE, n REAL)": "n is REAL, and values are bigint",
        "CREATE TABLE t (k TEXT UNIQUE, n INTEGER AS (1))": "its column n is computed",
        "CREATE TABLE t (k TEXT UNIQUE, n INTEGER, m INTEGER NOT NULL)": "its column m is NOT NULL",
        "CREATE VIEW t AS SELECT 'a' AS k, 1 AS n": "a table only",
    }
    for made, why in refused.items():
        database.execute(made)
        with pytest.raises((SchemaError, PlanError), match=why):
            to(SqliteSink(path, "t", key="k"), schema=KEYED)
        database.execute("DROP VIEW t" if "VIEW" in made else "DROP TABLE t")
    with pytest.raises(PlanError, match="there is no such table"):
        to(SqliteSink(path, "t", key="k", create=False), schema=KEYED)
    database.execute("CREATE TABLE T (K VARCHAR(3) PRIMARY KEY, more TEXT DEFAULT 'x', other INTEGER)")
    with pytest.raises(SchemaError, match="evolve=True"):
        to(SqliteSink(path, "t", key="k"), schema=KEYED)
    publisher = to(SqliteSink(path, "t", key="k", evolve=True), schema=KEYED)
    publisher.publish(0, [log(("a", 1, "+I"))], is_replay=False)
    database.execute("UPDATE t SET other = 9")
    database.commit()
    publisher.publish(1, [log(("a", 1, "-U"), ("a", 2, "+U"))], is_replay=False)
    assert rows(path) == [("a", "x", 9, 2)]  # columns that are not ours stay
    database.execute("CREATE TABLE mine (query_id, output, target, batch_id)")
    with pytest.raises(SchemaError, match="`ledger` is another table"):
        to(SqliteSink(path, "t", key="k", ledger="mine"), schema=KEYED)
    with pytest.raises(SchemaError, match="SQLite has no such type"):
        to(SqliteSink(path, "u"), schema=pa.schema([("x", pa.list_(pa.duration("us")))]))
    numbers = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("op", pa.string())])
    database.execute("CREATE TABLE whole (id INTEGER PRIMARY KEY, n INTEGER)")
    to(SqliteSink(path, "whole", key="id"), schema=numbers).publish(0, [pa.table([[5], [6], ["+I"]], numbers)], is_replay=False)
    assert rows(path, "whole") == [(5, 6)]
    database.close()


def test_what_is_no_database_says_so(tmp_path: Path) -> None:
    for wrong in (":memory:", "file:x?mode=memory", "s3://bucket/x.db", "", 5, None):
        with pytest.raises(PlanError):
            SqliteSink(wrong, "t")  # type: ignore[arg-type]
    for given in ({"table": "sqlite_x"}, {"table": ""}, {"table": "t", "ledger": "T"}, {"table": "t", "key": "k", "log": True}):
        with pytest.raises(PlanError):
            SqliteSink(tmp_path / "t.db", **given)
    text = tmp_path / "text.db"
    text.write_text("this is no database " * 100)
    for path in (text, tmp_path, tmp_path / "none" / "t.db"):
        with pytest.raises(OperatorError, match="SQLite refuses"):
            to(SqliteSink(path, "t"))
    late = pa.table({"at": pa.array([1 << 62], pa.int64()).cast(pa.timestamp("us"))})
    publisher = to(SqliteSink(tmp_path / "t.db", "t"), schema=late.schema)
    with pytest.raises(OperatorError, match="before year 1 or after 9999"):
        publisher.publish(0, [late], is_replay=False)
    assert rows(tmp_path / "t.db") == []


def test_another_writer_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_LOCKED_SECONDS", 0.05)
    path = tmp_path / "t.db"
    publisher = to(SqliteSink(path, "t", key="k"), schema=KEYED)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OperatorError, match="held by another writer") as refused:
        publisher.publish(0, [log(("a", 1, "+I"))], is_replay=False)
    assert refused.value.transient
    other.execute("ROLLBACK")
    publisher.publish(0, [log(("a", 1, "+I"))], is_replay=True)
    assert rows(path) == [("a", 1)]
    with pytest.raises(CheckpointError):  # the checkpoint is an older copy
        to(SqliteSink(path, "t", key="k"), schema=KEYED).publish(0, [log(("a", 1, "+I"))], is_replay=False)
    copied = pickle.loads(pickle.dumps(SqliteSink(path, "t", key="k")))
    assert copied.table_id == SqliteSink(path, "T", key="k").table_id


class DyingSink(SqliteSink):
    """Ends with the process, as it were, at a place of a batch."""

    place: tuple[str, int] | None = None

    def _die(self, place: str, batch: OutputBatch) -> None:
        if DyingSink.place == (place, batch.batch_id):
            DyingSink.place = None
            raise Crash

    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        super().write(batch, table)
        self._die("written", batch)

    def commit(self, batch: OutputBatch) -> None:
        self._die("before", batch)
        super().commit(batch)
        self._die("committed", batch)


@pytest.mark.parametrize(("place", "at"), list(itertools.product(("written", "before", "committed"), range(3))))
@pytest.mark.parametrize("key", [["k"], []], ids=str)
def test_a_death_at_any_place_leaves_the_content(tmp_path: Path, place: str, at: int, key: Sequence[str]) -> None:
    batches = [log(("a", 1, "+I"), ("b", 2, "+I")), log(("a", 1, "-U"), ("a", 3, "+U")), log(("b", 2, "-D"), ("c", 4, "+I"))]
    path, begun, finished = tmp_path / "t.db", -1, -1
    DyingSink.place = place, at
    for _ in range(2):
        sink = DyingSink(path, "t", key=key, log=not key)
        sink.check("results", KEYED)
        publisher, replayed = TablePublisher(sink, OutputOf("q", "a query", "results", KEYED)), begun
        try:
            for number in range(finished + 1, len(batches)):
                begun = max(begun, number)
                publisher.publish(number, [batches[number]], is_replay=number <= replayed)
                finished = number
        except (Crash, OperatorError) as problem:
            assert isinstance(problem, Crash) or isinstance(problem.__cause__, Crash)
    assert finished == 2 and DyingSink.place is None
    whole = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert rows(path) == ([("a", 3), ("c", 4)] if key else sorted(whole, key=repr))
