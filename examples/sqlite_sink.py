"""A sink of your own: results and late rows into a SQLite database, exactly once over a restart."""

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from krishiv_py import Batches, Session, SideOutputLateEventHandler, count
from krishiv_py.connectors import OutputBatch, TransactionalSink


def quoted(name: str) -> str:
    """A name of a column."""
    return '"' + name.replace('"', '""') + '"'


def stored(column: pa.ChunkedArray) -> list[Any]:
    """What SQLite can hold of a column: numbers, texts and bytes as they are (NaN becomes NULL), all else as text.

    Times outside of the years 1 to 9999, which Python has not, as their number.
    """
    is_, type_ = pa.types, column.type
    if is_.is_integer(type_) or is_.is_floating(type_) or is_.is_string(type_) or is_.is_binary(type_) or is_.is_boolean(type_):
        return list(column.to_pylist())
    try:
        values = column.to_pylist()
    except OverflowError:
        values = (column.cast(pa.int32()) if is_.is_date32(type_) else column.cast(pa.int64())).to_pylist()
    nested = is_.is_nested(type_)
    return [None if v is None else json.dumps(v, ensure_ascii=False, default=str) if nested else str(v) for v in values]


class SqliteSink(TransactionalSink):
    """Tables ``results`` and ``late_rows``, and a table ``committed`` that says which batches they hold."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """The database; without a COMMIT nothing that was written stays."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as database:
            database.execute("CREATE TABLE IF NOT EXISTS committed (query_id, output, batch_id)")
            yield database

    def last_committed(self, batch: OutputBatch) -> int | None:
        """The last batch of this query and output in the database."""
        with self.opened() as database:
            result = database.execute(
                "SELECT max(batch_id) FROM committed WHERE query_id = ? AND output = ?", (batch.query_id, batch.output)
            ).fetchone()
        last: int | None = result[0]
        return last

    def begin(self, batch: OutputBatch) -> None:
        """Begin a transaction."""
        self.held = self.opened()
        self.database = self.held.__enter__()
        self.database.execute("BEGIN IMMEDIATE")
        columns = ", ".join(quoted(name) for name in batch.schema.names)
        self.database.execute(f"CREATE TABLE IF NOT EXISTS {batch.output} ({columns})")

    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        """Add rows to the transaction."""
        marks = ", ".join("?" * table.num_columns)
        rows = zip(*(stored(column) for column in table.columns), strict=True)
        self.database.executemany(f"INSERT INTO {batch.output} VALUES ({marks})", rows)

    def commit(self, batch: OutputBatch) -> None:
        """Make the rows visible, together with the note that they are there."""
        self.database.execute("INSERT INTO committed VALUES (?, ?, ?)", (batch.query_id, batch.output, batch.batch_id))
        self.database.execute("COMMIT")
        self.held.__exit__(None, None, None)

    def abort(self, batch: OutputBatch) -> None:
        """Close the database, which rolls the transaction back."""
        self.held.__exit__(None, None, None)


def main() -> None:
    """Run a query twice from one checkpoint, and look into the database."""
    with tempfile.TemporaryDirectory() as name, Session.embedded() as session:
        folder = Path(name)
        sink = SqliteSink(folder / "out.db")
        stream, sender = session.memory_stream("user string, at bigint")
        per_minute = (
            stream.watermark("at", "10 seconds")
            .key_by("user")
            .tumbling_window("1 minute")
            .agg(count())
            .with_late_event_handler(SideOutputLateEventHandler(sink))
        )
        for batch in ([("a", 5_000), ("a", 80_000)], [("b", 6_000), ("a", 200_000)]):  # ("b", 6_000) is late
            sender.send([{"user": user, "at": moment} for user, moment in batch])
            batches = Batches.available_now()
            per_minute.start(sink, checkpoint=folder / "checkpoint", batches=batches).await_termination()
        with sink.opened() as database:
            results = database.execute('SELECT "user", window_start, "count" FROM results ORDER BY 2').fetchall()
            late = database.execute('SELECT "user", "at", reason FROM late_rows').fetchall()
    print(results, late)
    assert results == [("a", 0, 1), ("a", 60_000, 1)], results
    assert late == [("b", 6_000, "late")], late
    print("sqlite: every row once, over a restart")


if __name__ == "__main__":
    main()
