"""A sink with transactions: the rows of a batch, and the fact that they are there, become visible at once."""

from __future__ import annotations

import contextlib
import threading
import weakref
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa

from krishiv_py.connectors.sink import OnRepeat, OutputBatch, Sink, TableSink
from krishiv_py.errors import CheckpointError

_turns: Final[dict[int, Any]] = {}
"""Locks by identity of the sink, which is pickled and so holds none itself; an entry goes with its sink."""
_taking: Final = threading.Lock()


class TransactionalSink(TableSink):
    """Exactly once into anything that has transactions, such as a database (docs/outputs.md, "Your own sink").

    For each micro-batch with rows the driver calls :meth:`begin`, :meth:`write` for each table, and :meth:`commit`, in one
    thread. The next batch may come in another thread, never two at once, also where several queries share the object. If
    :meth:`write` or :meth:`commit` raises, it calls :meth:`abort`. If any raises, the query stops.

    :meth:`commit` must make the rows visible together with a note of ``batch.query_id``, ``batch.output`` and
    ``batch.batch_id``; :meth:`last_committed` reads the note. After a crash the query runs the unfinished batch again: if
    the note is there, the batch is skipped; if not, nothing of it is visible, and it is written.

    Examples
    --------
    >>> import sqlite3
    >>> from krishiv_py import Session, count
    >>> from krishiv_py.connectors import TransactionalSink
    >>> database = sqlite3.connect(":memory:", check_same_thread=False)
    >>> _ = database.execute("create table counts (window_end, count)")
    >>> _ = database.execute("create table done (query, output, batch, primary key (query, output))")
    >>> class SqliteSink(TransactionalSink):
    ...     def last_committed(self, batch):
    ...         noted = "select max(batch) from done where query = ? and output = ?"
    ...         return database.execute(noted, (batch.query_id, batch.output)).fetchone()[0]
    ...
    ...     def begin(self, batch):
    ...         database.execute("begin")
    ...
    ...     def write(self, batch, table):
    ...         rows = table.select(["window_end", "count"]).to_pylist()
    ...         database.executemany("insert into counts values (:window_end, :count)", rows)
    ...
    ...     def commit(self, batch):
    ...         done = (batch.query_id, batch.output, batch.batch_id)
    ...         database.execute("insert or replace into done values (?, ?, ?)", done)
    ...         database.commit()
    ...
    ...     def abort(self, batch):
    ...         database.rollback()
    >>> with Session.in_process() as session:
    ...     stream, sender = session.memory_stream("at bigint")
    ...     query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(SqliteSink())
    ...     _ = sender.send([{"at": 1}, {"at": 12}])
    ...     query.process_all_available()
    >>> database.execute("select * from counts").fetchall()
    [(10, 1)]
    >>> database.close()
    """

    __slots__ = ()
    on_repeat: ClassVar[OnRepeat] = "skip"

    @abstractmethod
    def last_committed(self, batch: OutputBatch) -> int | None:
        """Number of the last batch with this ``query_id`` and ``output`` that was committed; None if there is none.

        It is called once, before the first `batch` of a run.
        """

    @abstractmethod
    def begin(self, batch: OutputBatch) -> None:
        """Begin the transaction of one `batch`."""

    @abstractmethod
    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        """Add the rows of `table`, at least one, to the transaction of this `batch`; called one or more times."""

    @abstractmethod
    def commit(self, batch: OutputBatch) -> None:
        """Make the rows visible, together with the note that this `batch` was committed."""

    def abort(self, batch: OutputBatch) -> None:
        """Give up the transaction of this `batch`; by default nothing, for stores that roll back by themselves."""

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """Run the transaction of one `batch` with the rows of `tables`; nothing for a batch without rows."""
        if not tables:
            return
        self.begin(batch)
        try:
            for table in tables:
                self.write(batch, table)
            self.commit(batch)
        except BaseException:
            self.abort(batch)
            raise


def turn(sink: Sink) -> contextlib.AbstractContextManager[object]:
    """To be held while a batch goes to a `sink`: queries may share the object, and its transaction is of one batch."""
    if not isinstance(sink, TransactionalSink):
        return contextlib.nullcontext()
    with _taking:
        if id(sink) not in _turns:
            weakref.finalize(sink, _turns.pop, id(sink), None)
            _turns[id(sink)] = threading.RLock()
        lock: contextlib.AbstractContextManager[object] = _turns[id(sink)]
        return lock


def written_by_another(sink: str, stored: object, batch: OutputBatch) -> CheckpointError:
    """Return the error for a sink that holds `batch`, or the later one `stored`: another process wrote it."""
    return CheckpointError(
        f"{sink} holds batch {stored} of this query already",
        got=f"batch {batch.batch_id} of {batch.output}",
        then="another process writes the same query, and rows would be doubled",
        hint="let one query run from a checkpoint",
    )
