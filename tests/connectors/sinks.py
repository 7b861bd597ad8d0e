"""Sinks as a user would write them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.csv as pa_csv

from krishiv_py.connectors import FileSink, OutputBatch, SparkFileSink, TransactionalSink


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


class Crash(BaseException):
    """Stands for the death of the process."""


@attrs.frozen
class CsvSink(FileSink):
    """Files of comma-separated values, written by tasks."""

    path: str
    suffix = ".csv"

    def write_table(self, table: pa.Table, stream: Any) -> None:
        """Write `table` to `stream`."""
        pa_csv.write_csv(table, stream, pa_csv.WriteOptions(include_header=False))


@attrs.frozen
class SparkJsonSink(SparkFileSink):
    """Files of JSON lines as Spark writes them."""

    path: str

    def write_files(self, frame: Any, folder: str) -> None:
        """Write `frame` into `folder`."""
        frame.write.mode("overwrite").json(folder)


class DyingSink(SqliteSink):
    """Dies once, at a point of a batch."""

    def __init__(self, path: str, point: str, batch_id: int) -> None:
        super().__init__(path)
        self.point, self.batch_id = point, batch_id

    def _dies(self, point: str, batch: OutputBatch) -> None:
        if self.point == point and batch.batch_id == self.batch_id:
            self.point = "done"
            self.die()

    def die(self) -> None:
        """Leave, as a process that is killed."""
        raise Crash

    def begin(self, batch: OutputBatch) -> None:
        """Begin, unless it dies before."""
        self._dies("begin", batch)
        super().begin(batch)

    def commit(self, batch: OutputBatch) -> None:
        """Commit, unless it dies before; or die after."""
        self._dies("written", batch)
        super().commit(batch)
        self._dies("committed", batch)
