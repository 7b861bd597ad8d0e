"""Sinks that hold a table, or a log of it, and what they hold: each on the real thing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import deltalake
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer
from psycopg.rows import dict_row

from krishiv_py import DeltaSink, KafkaSink, MemorySink, PostgresSink, SqliteSink
from krishiv_py.connectors import OutputBatch, Sink, TransactionalSink, net_changes
from krishiv_py.testing.broker import Broker
from tests.kernels.changes.reference import Row, Rows
from tests.tables.server import Server
from tests.tables.stores import delta_rows, iceberg, iceberg_rows


@attrs.frozen
class Held:
    """A sink, made again at each start, and the rows that it holds: those of the content."""

    make: Callable[[], Sink]
    rows: Callable[[], Rows]


Make: TypeAlias = "Callable[[Path, Sequence[str]], Held]"


class OwnTable(TransactionalSink):
    """A table of SQLite as a user writes it: `net_changes` says what a batch does, and the note goes with it."""

    def __init__(self, path: Path, key: Sequence[str]) -> None:
        self.path, self.key = path, list(key)

    def _opened(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, isolation_level=None)
        database.execute("CREATE TABLE IF NOT EXISTS done (query_id, output, batch_id)")
        return database

    def last_committed(self, batch: OutputBatch) -> int | None:
        found = "SELECT max(batch_id) FROM done WHERE query_id = ? AND output = ?"
        last: int | None = self._opened().execute(found, (batch.query_id, batch.output)).fetchone()[0]
        return last

    def begin(self, batch: OutputBatch) -> None:
        self.given: list[pa.Table] = []

    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        self.given.append(table)

    def commit(self, batch: OutputBatch) -> None:
        changed, database = net_changes(self.given, self.key, self.title), self._opened()
        names = [f'"{name}"' for name in changed.put.schema.names]
        database.execute("BEGIN IMMEDIATE")
        database.execute(f"CREATE TABLE IF NOT EXISTS held ({', '.join(names)})")
        same = " AND ".join(f'"{name}" IS ?' for name in self.key)
        keys = [tuple(row.values()) for rows in (changed.gone, changed.put.select(self.key)) for row in rows.to_pylist()]
        database.executemany(f"DELETE FROM held WHERE {same}", keys)
        marks = ", ".join("?" * len(names))
        database.executemany(f"INSERT INTO held VALUES ({marks})", [tuple(row.values()) for row in changed.put.to_pylist()])
        database.execute("INSERT INTO done VALUES (?, ?, ?)", (batch.query_id, batch.output, batch.batch_id))
        database.execute("COMMIT")

    def rows(self) -> Rows:
        database = self._opened()
        database.row_factory = sqlite3.Row
        if not database.execute("SELECT * FROM sqlite_master WHERE name = 'held'").fetchall():
            return []
        return [dict(row) for row in database.execute("SELECT * FROM held")]


def in_memory(folder: Path, key: Sequence[str]) -> Held:
    """The content of a memory sink, which goes on over a restart."""
    sink = MemorySink()

    def rows() -> Rows:
        content = sink.content()
        return [] if content is None else content.to_pylist()

    return Held(lambda: sink, rows)


def own(folder: Path, key: Sequence[str]) -> Held:
    """One's own sink, through the interface."""
    path = folder / "own.db"
    return Held(lambda: OwnTable(path, key), OwnTable(path, key).rows)


def sqlite(folder: Path, key: Sequence[str]) -> Held:
    """A table of SQLite."""
    path = folder / "held.db"

    def rows() -> Rows:
        database = sqlite3.connect(path)
        database.row_factory = sqlite3.Row
        return [dict(row) for row in database.execute("SELECT * FROM held")]

    return Held(lambda: SqliteSink(path, "held", key=key), rows)


def sqlite_log(folder: Path, key: Sequence[str]) -> Held:
    """A table of SQLite that keeps the changes."""
    path = folder / "log.db"

    def rows() -> Rows:
        database = sqlite3.connect(path)
        database.row_factory = sqlite3.Row
        return folded_rows(dict(row) for row in database.execute("SELECT * FROM held ORDER BY rowid"))

    return Held(lambda: SqliteSink(path, "held", log=True), rows)


def delta(folder: Path, key: Sequence[str]) -> Held:
    """A Delta table."""
    path = folder / "delta"
    return Held(lambda: DeltaSink(path, key=key), lambda: delta_rows(path) if path.exists() else [])


def delta_log(folder: Path, key: Sequence[str]) -> Held:
    """A Delta table that keeps the changes, folded by a batch at a time."""
    path = folder / "delta-log"

    def rows() -> Rows:
        if not path.exists():
            return []
        versions = [deltalake.DeltaTable(path, version=n) for n in range(deltalake.DeltaTable(path).version() + 1)]
        files = [set(version.file_uris()) for version in versions]
        tables = [pa.concat_tables([_parquet(file) for file in now - before]) for before, now in _pairs(files)]
        return folded_rows(row for table in tables for row in table.to_pylist())

    return Held(lambda: DeltaSink(path, log=True), rows)


def _pairs(files: list[set[str]]) -> Iterator[tuple[set[str], set[str]]]:
    return iter(zip([set(), *files], files, strict=False))


def _parquet(file: str) -> pa.Table:
    return pq.read_table(file.removeprefix("file://"))


def folded_rows(log: Iterator[Row]) -> Rows:
    """Return the rows that are left of a log, line by line."""
    left: dict[str, Rows] = {}
    for line in log:
        row = {name: value for name, value in line.items() if name != "op"}
        same = left.setdefault(repr(row), [])
        if line["op"][0] == "+":
            same.append(row)
        else:
            same.pop()
    return [row for rows in left.values() for row in rows]


def iceberg_table(folder: Path, key: Sequence[str]) -> Held:
    """An Iceberg table."""
    return Held(lambda: iceberg(folder, "held", key), lambda: iceberg_rows(folder, "held"))


def postgres(server: Server, name: str) -> Make:
    """A table of PostgreSQL."""

    def make(folder: Path, key: Sequence[str]) -> Held:
        def rows() -> Rows:
            with psycopg.connect(server.address(), row_factory=dict_row) as connection:
                return connection.execute(f"SELECT * FROM {name}").fetchall()

        return Held(lambda: PostgresSink(server.address(), name, key=key), rows)

    return make


def records(broker: Broker, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Return key and value of all records of a topic that were committed, in order of each partition."""
    reads = {"bootstrap.servers": broker.address, "group.id": "reads", "isolation.level": "read_committed"}
    consumer = Consumer({**reads, "auto.offset.reset": "earliest", "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.subscribe([topic])
    given: list[tuple[bytes | None, bytes | None]] = []
    ended = set[int]()
    partitions = len(consumer.list_topics(topic).topics[topic].partitions)
    while len(ended) < partitions:
        message = consumer.poll(10)
        assert message is not None, f"{topic} does not answer"
        if message.error():
            ended.add(message.partition() or 0)
        else:
            given.append((message.key(), message.value()))
    consumer.close()
    return given


def kafka_upserts(broker: Broker, topic: str) -> Make:
    """A compacted topic: the last record of each key, without tombstones."""

    def make(folder: Path, key: Sequence[str]) -> Held:
        def rows() -> Rows:
            last = dict(records(broker, topic))
            return [json.loads(value) for value in last.values() if value is not None]

        sink = {"bootstrap_servers": broker.address, "key": key, "upsert": True}
        return Held(lambda: KafkaSink(topic, **sink), rows)  # type: ignore[arg-type]

    return make


def kafka_log(broker: Broker, topic: str) -> Make:
    """A topic of changes, folded."""

    def make(folder: Path, key: Sequence[str]) -> Held:
        def rows() -> Rows:
            return folded_rows(json.loads(value or b"") for _, value in records(broker, topic))

        return Held(lambda: KafkaSink(topic, bootstrap_servers=broker.address), rows)

    return make


def counted_rows(rows: Any) -> list[str]:
    """Return rows as texts, in an order of their own."""
    return sorted(json.dumps(row, sort_keys=True) for row in rows)
