"""The changes of a table of PostgreSQL: after every batch the content is that of the table, whatever is done to it."""

from __future__ import annotations

import builtins
import contextlib
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row

from krishiv_py import (
    Batches,
    MemorySink,
    OperatorError,
    PlanError,
    Session,
    SideOutputLateEventHandler,
    SourceError,
    SqliteSink,
    Stream,
    count,
    sum,
)
from krishiv_py.connectors import postgres_changes_source
from krishiv_py.connectors.tables import pgoutput
from krishiv_py.connectors.tables.replication import PostgresChanges
from tests.tables.server import Server, running
from tests.tables.test_changes import content_of

TYPES = (
    "id bigint PRIMARY KEY, flag boolean, small smallint, whole integer, r real, d double precision, price numeric(12,3), "
    'any_number numeric, "Odd ""name"" ü" text, short varchar(9), body bytea, day date, at timestamptz, local timestamp(3), '
    "u uuid, doc jsonb, many integer[], span interval, twice integer GENERATED ALWAYS AS (whole * 2) STORED"
)


@pytest.fixture
def place(server: Server, table: Callable[[], str]) -> Iterator[Place]:
    """A table of users, its slot and its publication, which go in the end."""
    made = Place(server, table())
    yield made
    made.drop()


class Place:
    """A table in a database, and how it is read."""

    def __init__(self, server: Server, name: str, columns: str = "id bigint PRIMARY KEY, city text, n integer") -> None:
        self.server, self.name = server, name
        self.run(f"CREATE TABLE {name} ({columns})")

    def run(self, *statements: str) -> None:
        """Run statements in one transaction."""
        with psycopg.connect(self.server.address()) as connection:
            for statement in statements:
                connection.execute(statement)

    def stream(self, session: Session, **options: Any) -> Stream:
        """Its changes."""
        given: dict[str, Any] = {"slot": f"s_{self.name}", "publication": f'p "{self.name}"', **options}
        return session.read_postgres_changes(self.server.address(), self.name, **given)

    def source(self, **options: Any) -> PostgresChanges:
        """The source."""
        given: dict[str, Any] = {"slot": f"s_{self.name}", "publication": f'p "{self.name}"', **options}
        return postgres_changes_source(self.server.address(), self.name, **given)

    def rows(self) -> list[dict[str, Any]]:
        """What it holds."""
        with psycopg.connect(self.server.address(), row_factory=dict_row) as connection:
            return connection.execute(f"SELECT id, city, n FROM {self.name} ORDER BY id").fetchall()

    def confirmed(self) -> str:
        """Up to where the slot is read."""
        return str(self.server.rows(f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 's_{self.name}'"))

    def drop(self) -> None:
        """Take slot and publication away."""
        self.server.rows(
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 's_{self.name}'"
        )
        self.run(f'DROP PUBLICATION IF EXISTS "p ""{self.name}"""', f"DROP TABLE IF EXISTS {self.name}")


def held(sink: MemorySink) -> list[dict[str, Any]]:
    """The rows of a sink, in order of their key."""
    return sorted(content_of(sink).select(["id", "city", "n"]).to_pylist(), key=lambda row: row["id"])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(4))
def test_the_content_is_that_of_the_table_after_every_batch(place: Place, seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    sink, totals = MemorySink(), MemorySink()
    if draw.random() < 0.5:
        place.run(f"ALTER TABLE {place.name} REPLICA IDENTITY FULL")
    place.run(f"INSERT INTO {place.name} SELECT i, 'Ulm', i FROM generate_series(1, 9) i")
    most = draw.choice((1, 3, 100_000))

    def change() -> None:
        statements = []
        for _ in range(draw.randrange(1, 6)):
            one, other = draw.randrange(20), draw.randrange(20)
            city = draw.choice(("'Ulm'", "'Rom''s \"x\" \\ \n'", "NULL", "''"))
            statements.append(
                draw.choice(
                    (
                        f"INSERT INTO {place.name} VALUES ({one}, {city}, {other}) ON CONFLICT (id) DO UPDATE SET n = {other}",
                        f"UPDATE {place.name} SET city = {city} WHERE id % 3 = {one % 3}",
                        f"UPDATE {place.name} SET id = {other} WHERE id = {one} AND NOT EXISTS "
                        f"(SELECT 1 FROM {place.name} WHERE id = {other})",
                        f"DELETE FROM {place.name} WHERE id = {one}",
                        f"DELETE FROM {place.name}",
                        "INSERT INTO other_things VALUES (1)",
                    )
                )
            )
        place.run("CREATE TABLE IF NOT EXISTS other_things (x integer)", *statements)
        if draw.random() < 0.3:
            with contextlib.suppress(ZeroDivisionError), psycopg.connect(place.server.address()) as connection:
                connection.execute(f"DELETE FROM {place.name}")
                raise ZeroDivisionError  # rolled back

    with Session.in_process(workers=draw.choice((1, 2))) as session:
        table = place.stream(session, max_changes_per_batch=most).from_changelog("cdf", key="id")
        by_city = table.key_by("city").agg(k=count(), total=sum("n"))

        def start() -> Any:
            outputs = [table.to(sink, name="rows"), by_city.to(totals, name="totals")]
            return session.start(outputs, checkpoint=tmp_path / "checkpoint")

        query = start()
        query.process_all_available()
        assert held(sink) == place.rows()
        for _ in range(8):
            for _ in range(draw.randrange(1, 4)):
                change()
            query.process_all_available()
            expected = place.rows()
            assert held(sink) == expected
            cities = {row["city"] for row in expected}
            assert {row["city"]: (row["k"], row["total"]) for row in content_of(totals).to_pylist()} == {
                city: (
                    len([r for r in expected if r["city"] == city]),
                    builtins.sum(r["n"] for r in expected if r["city"] == city),
                )
                for city in cities
            }
            if draw.random() < 0.4:
                query.stop()
                change()
                query = start()
        query.stop()


def test_every_type_comes_as_the_docs_say(server: Server, table: Callable[[], str]) -> None:
    place = Place(server, table(), TYPES)
    insert = (
        "INSERT INTO "
        + place.name
        + " VALUES ({}, true, -5, 7, 0.1, 'NaN', 1.5, 1e30, 'ü\t\"\\', 'x', '\\x00ff', '2026-12-01', "
        "'2026-12-01 10:30:00.000005+02', '2026-12-01 10:30:00.5', '7b2e5c9c-0e55-4a3b-9d3e-0f3f6f0f9f10', "
        """'{"a": [1, null]}', '{1,NULL,2}', '1 day 02:00')"""
    )
    try:
        place.run(insert.replace("{}", "1"), f"INSERT INTO {place.name} (id) VALUES (2)")
        source = place.source()
        first = source.plan(None)
        assert first is not None
        place.run(insert.replace("{}", "3"), f"INSERT INTO {place.name} (id) VALUES (4)")
        second = source.plan(first.position)
        assert second is not None
        columns = source.schema.names
        assert "twice" not in columns
        batches = [batch for planned in (first, second) for part in planned.ranges for batch in source.read(part, columns)]
        rows = sorted(pa.Table.from_batches(batches).to_pylist(), key=lambda row: int(row["id"]))
        assert [row["id"] for row in rows] == [1, 2, 3, 4]
        feed = ("_change_type", "_commit_version", "_commit_timestamp", "id")
        plain = [repr({name: value for name, value in row.items() if name not in feed}) for row in rows]
        assert plain[0] == plain[2] and plain[1] == plain[3]  # of the snapshot and of the log
        assert {value for name, value in rows[1].items() if name not in feed} == {None}
        full = rows[0]
        assert (full["flag"], full["small"], full["whole"], full["body"]) == (True, -5, 7, b"\0\xff")
        assert (str(full["price"]), full["any_number"], full['Odd "name" ü']) == ("1.500", "1" + "0" * 30, 'ü\t"\\')
        assert (str(full["at"]), str(full["local"])) == ("2026-12-01 08:30:00.000005+00:00", "2026-12-01 10:30:00.500000")
        assert (full["doc"], full["many"], full["span"]) == ('{"a": [1, null]}', "{1,NULL,2}", "1 day 02:00:00")
        assert str(source.schema.field("r").type) == "float" and full["d"] != full["d"]
        assert rows[2]["_commit_version"] > 0 == rows[0]["_commit_version"]
        place.run(f"INSERT INTO {place.name} (id, day) VALUES (5, 'infinity')")
        third = source.plan(second.position)
        assert third is not None
        with pytest.raises(SourceError, match=r"a value of PostgreSQL is none of its type here.*day"):
            list(source.read(third.ranges[0], columns))
        assert len(list(source.read(third.ranges[0], ["id"]))) == 1  # a column that is not asked for
    finally:
        place.drop()


def test_large_values_that_an_update_leaves(place: Place, tmp_path: Path) -> None:
    large = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 999) i)"
    place.run(f"ALTER TABLE {place.name} REPLICA IDENTITY FULL", f"INSERT INTO {place.name} VALUES (1, {large}, 1)")
    sink = MemorySink()
    with Session.in_process() as session:
        query = place.stream(session).from_changelog("cdf", key="id").start(sink, checkpoint=tmp_path / "checkpoint")
        query.process_all_available()
        place.run(f"UPDATE {place.name} SET n = 2", f"UPDATE {place.name} SET n = 3, id = 7")
        query.process_all_available()
        assert held(sink) == place.rows() and len(held(sink)[0]["city"]) == 999 * 32
        place.run(f"ALTER TABLE {place.name} REPLICA IDENTITY DEFAULT", f"UPDATE {place.name} SET n = 4")
        with pytest.raises(SourceError, match=r"lacks a large value that an update left.*REPLICA IDENTITY FULL"):
            query.process_all_available()
        # without the column nothing is missing
        source = place.source(slot=f"s_{place.name}", starting="latest")
        planned = source.plan(None)
        assert planned is not None
        following = source.plan(planned.position)
        assert following is not None
        assert [b["n"].to_pylist() for b in source.read(following.ranges[0], ["id", "n"])][-1][-1] == 4


def test_a_truncation_stops_the_query_or_goes_aside(place: Place, tmp_path: Path) -> None:
    place.run(f"INSERT INTO {place.name} VALUES (1, 'Ulm', 1)")
    sink, late = MemorySink(), MemorySink()
    with Session.in_process() as session:
        rows = place.stream(session, on_truncate="side_output")
        plan = rows.with_late_event_handler(SideOutputLateEventHandler(late)).from_changelog("cdf", key="id")
        query = plan.start(sink, checkpoint=tmp_path / "one")
        query.process_all_available()
        place.run(f"TRUNCATE {place.name}", f"INSERT INTO {place.name} VALUES (2, 'Rom', 2)")
        query.process_all_available()
        assert [row["id"] for row in held(sink)] == [1, 2]
        aside = late.table()
        assert aside is not None
        assert aside["reason"].to_pylist() == ["bad_op"] and aside["id"].to_pylist() == [None]
        query.stop()
        query = place.stream(session).from_changelog("cdf", key="id").start(MemorySink(), checkpoint=tmp_path / "two")
        query.process_all_available()
        place.run(f"TRUNCATE {place.name}")
        with pytest.raises(SourceError, match="was truncated"):
            query.process_all_available()


def test_a_slot_of_nobody_else(place: Place, tmp_path: Path) -> None:
    place.run(f"INSERT INTO {place.name} VALUES (1, 'Ulm', 1)")
    source = place.source()
    first = source.plan(None)
    assert first is not None
    assert [[b.num_rows for b in source.read(part, ["id"])] for part in first.ranges] == [[1], []]
    before = place.confirmed()
    place.run(f"UPDATE {place.name} SET n = 2")
    second = source.plan(first.position)
    assert second is not None
    for _ in range(2):  # a batch that is repeated reads the same
        assert [b["n"].to_pylist() for b in source.read(second.ranges[0], ["n"])] == [[2]]
    assert place.confirmed() == before  # nothing is given up before it is committed
    with pytest.raises(SourceError, match=r"the snapshot of the first batch is gone.*begin with a new checkpoint"):
        source.finished(first.position)
        list(source.read(first.ranges[0], ["id"]))
    source.finished(second.position)
    assert place.confirmed() != before
    with pytest.raises(SourceError, match="further on than the checkpoint"):
        place.source().plan(first.position)
    with pytest.raises(SourceError, match="changes of a batch are gone"):
        list(source.read(second.ranges[0], ["n"]))
    with pytest.raises(SourceError, match="another database"):
        place.source(slot="other_slot").plan(first.position)
    assert source.plan(second.position) is None
    place.server.rows(f"SELECT pg_drop_replication_slot('s_{place.name}')")
    place.run(f"UPDATE {place.name} SET n = 3")
    with pytest.raises(SourceError, match="the slot of PostgreSQL is gone"):
        place.source().plan(second.position)
    place.server.rows(f"SELECT pg_create_logical_replication_slot('s_{place.name}', 'test_decoding')")
    with pytest.raises(SourceError, match="of another kind"):
        place.source().plan(None)


def test_columns_that_come_and_go(place: Place) -> None:
    source = place.source(starting="latest")
    position = source.plan(None).position  # type: ignore[union-attr]
    place.run(
        f"INSERT INTO {place.name} VALUES (1, 'Ulm', 1)",
        f"ALTER TABLE {place.name} ADD COLUMN more text DEFAULT 'x'",
        f"INSERT INTO {place.name} VALUES (2, 'Rom', 2, 'y')",
        f"ALTER TABLE {place.name} DROP COLUMN city",
        f"INSERT INTO {place.name} VALUES (3, 3, 'z')",
    )
    planned = source.plan(position)
    assert planned is not None
    assert [n for b in source.read(planned.ranges[0], ["n"]) for n in b["n"].to_pylist()] == [1, 2, 3]
    with pytest.raises(SourceError, match=r"has lost columns.*city"):
        list(source.read(planned.ranges[0], ["id", "city"]))


def test_calls_that_are_wrong_say_what_to_do(place: Place, tmp_path: Path) -> None:
    for wrong in (
        {"slot": "Upper"}, {"slot": ""}, {"publication": ""}, {"starting": 5}, {"on_truncate": "x"},
        {"max_changes_per_batch": 0}, {"create": "no"},
    ):  # fmt: skip
        with pytest.raises(PlanError):
            place.source(**wrong)
    for name in ("a.b.c", "", "none_such", "pg_catalog.pg_tables"):
        with pytest.raises(PlanError):
            postgres_changes_source(place.server.address(), name, slot="s", publication="p")
    with pytest.raises(PlanError, match="there is no such publication"):
        place.source(create=False)
    place.run(f'CREATE PUBLICATION "p ""{place.name}"""')
    with pytest.raises(PlanError, match="a publication does not have the table"):
        place.source()
    place.run(f'ALTER PUBLICATION "p ""{place.name}""" ADD TABLE {place.name} WHERE (id > 5)')
    with pytest.raises(PlanError, match="a part of the rows only"):
        place.source()
    place.run(f'ALTER PUBLICATION "p ""{place.name}""" SET TABLE {place.name} (id, n)')
    assert place.source().schema.names[:3] == ["id", "n", "_change_type"]
    with pytest.raises(SourceError, match="there is no such slot"):
        place.source(create=False).plan(None)
    place.run(f'ALTER PUBLICATION "p ""{place.name}""" SET (publish = \'insert\')')
    with pytest.raises(PlanError, match="leaves changes out"):
        place.source()
    place.run(f'ALTER PUBLICATION "p ""{place.name}""" SET (publish = \'insert, update, delete, truncate\')')
    place.run("DROP ROLE IF EXISTS plain", "CREATE ROLE plain LOGIN PASSWORD 'x'", f"GRANT SELECT ON {place.name} TO plain")
    weak = postgres_changes_source(
        place.server.address("plain", "x"), place.name, slot=f"s_{place.name}", publication=f'p "{place.name}"'
    )
    with pytest.raises(SourceError, match="the role may not read changes"):
        weak.plan(None)
    with pytest.raises(OperatorError, match="cannot be reached") as refused:
        postgres_changes_source("host=127.0.0.1 port=1 password=s3cret", "t", slot="s", publication="p")
    assert "s3cret" not in str(refused.value) and "hunter2" not in repr(place.source())


def test_a_server_without_a_log_of_rows_is_refused() -> None:
    with running("replica") as plain:
        plain.rows("CREATE TABLE t (id bigint PRIMARY KEY)")
        with pytest.raises(PlanError, match=r"wal_level = replica.*ALTER SYSTEM SET wal_level = 'logical'"):
            postgres_changes_source(plain.address(), "t", slot="s", publication="p")


@pytest.mark.filterwarnings("ignore:.*tries again")
@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGINT])
def test_a_server_that_crashes_or_stops_in_between(how: signal.Signals, tmp_path: Path) -> None:
    retrying = Session.builder().engine("in-process").retry_for("60 s")
    with running() as own, retrying.get_or_create() as session:
        place, sink = Place(own, "people"), MemorySink()
        place.run("INSERT INTO people SELECT i, 'Ulm', i FROM generate_series(1, 99) i")
        query = place.stream(session).from_changelog("cdf", key="id").start(sink, checkpoint=tmp_path / "checkpoint")
        query.process_all_available()
        place.run("UPDATE people SET n = n + 1")
        query.process_all_available()
        place.run("DELETE FROM people WHERE id % 7 = 0")
        own.stop(how)
        own.start()
        place.run("UPDATE people SET n = n + 1 WHERE id % 3 = 0")
        query.process_all_available()
        assert held(sink) == place.rows()
        query.stop()


def test_what_there_is_now(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "out.db"

    def run() -> list[tuple[Any, ...]]:
        with Session.in_process() as session:
            table = place.stream(session).from_changelog("cdf", key="id")
            sink = SqliteSink(path, "t", key="id")
            table.start(sink, checkpoint=tmp_path / "checkpoint", batches=Batches.available_now()).await_termination()
        return sorted(sqlite3.connect(path).execute("SELECT id, city, n FROM t").fetchall())

    place.run(f"INSERT INTO {place.name} VALUES (1, 'Ulm', 1), (2, 'Rom', 2)")
    assert run() == [(1, "Ulm", 1), (2, "Rom", 2)]
    place.run(f"DELETE FROM {place.name} WHERE id = 1", f"UPDATE {place.name} SET id = 5 WHERE id = 2")
    assert run() == run() == [(5, "Rom", 2)]


def test_a_log_of_other_tables_lets_the_slot_go_on(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("krishiv_py.connectors.tables.replication._QUIET_BYTES", 1_000)
    source = place.source()
    first = source.plan(None)
    assert first is not None
    source.finished(first.position)
    place.run("CREATE TABLE IF NOT EXISTS other_things (x integer)", "INSERT INTO other_things SELECT generate_series(1, 999)")
    second = source.plan(first.position)
    assert second is not None and [b for part in second.ranges for b in source.read(part, ["id"])] == []
    before = place.confirmed()
    source.finished(second.position)
    assert place.confirmed() != before


def test_numbers_and_places() -> None:
    assert pgoutput.column_type("numeric(50,2)") == pa.string()
    assert pgoutput.column_type("numeric(5,2)[]") == pa.string()
    assert pgoutput.column_type("timestamp(0) with time zone") == pa.timestamp("us", "UTC")
    assert pgoutput.values_of(pa.array(["t", None, "f"]), pa.bool_()).to_pylist() == [True, None, False]
    assert pgoutput.values_of(pa.array(["\\x", None, "\\xff"]), pa.binary()).to_pylist() == [b"", None, b"\xff"]


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_changes_on_spark(session: Session, place: Place, tmp_path: Path) -> None:
    sink = MemorySink()
    place.run(f"INSERT INTO {place.name} VALUES (1, 'Ulm', 1), (2, 'Rom', 2)")

    def start() -> Any:
        return place.stream(session).from_changelog("cdf", key="id").start(sink, checkpoint=str(tmp_path / "checkpoint"))

    query = start()
    query.process_all_available()
    assert held(sink) == place.rows()
    place.run(f"UPDATE {place.name} SET id = 7 WHERE id = 2", f"DELETE FROM {place.name} WHERE id = 1")
    query.process_all_available()
    query.stop()
    place.run(f"INSERT INTO {place.name} VALUES (1, NULL, 3)")
    query = start()
    query.process_all_available()
    query.stop()
    assert held(sink) == place.rows()
