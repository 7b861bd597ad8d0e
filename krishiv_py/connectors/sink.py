"""The interfaces of sinks: what a sink states of itself, and the ways in which it can take rows (docs/outputs.md)."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import CheckpointError
from krishiv_py.plan.checks import call_plainly
from krishiv_py.storage.datasets import Dataset, files_at

Delivery: TypeAlias = Literal["task_files", "tables", "frame"]
"""The way in which rows reach a sink: tasks write files, the driver gets Arrow tables, or the sink gets a Spark DataFrame."""
OnRepeat: TypeAlias = Literal["replace", "skip", "at_least_once"]
"""The result of publishing a micro-batch again after a crash: its rows are replaced, skipped, or there twice."""
OutputName: TypeAlias = Literal["results", "late_rows"]
"""The outputs of a query."""


@attrs.frozen
class OutputBatch:
    """One micro-batch of one output of a query: how a sink recognises rows that it was given before.

    Attributes
    ----------
    query_id : str
        Identifies the query. It belongs to the checkpoint, so it stays the same after a restart.
    query : str
        The name of the query, for people. It may change at a restart.
    output : {"results", "late_rows"}
        Which output of the query it is.
    batch_id : int
        Number of the micro-batch, from 0, increasing.
    is_replay : bool
        Whether this batch may have been published before: it was begun before the query was restarted. Its rows are the same.
    schema : pyarrow.Schema
        The columns of the output.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from krishiv_py.connectors import OutputBatch
    >>> batch = OutputBatch("5f2c", "clicks", "results", 7, False, pa.schema([("count", pa.int64())]))
    >>> f"{batch.query}: {batch.output} of batch {batch.batch_id}"
    'clicks: results of batch 7'
    """

    query_id: str
    query: str
    output: OutputName
    batch_id: int
    is_replay: bool
    schema: pa.Schema


class Sink(ABC):
    """Base of all sinks. Do not subclass it directly: a query refuses a sink that is none of the interfaces below.

    Attributes
    ----------
    delivery : {"task_files", "tables", "frame"}
        How its rows reach it.
    on_repeat : {"replace", "skip", "at_least_once"}
        What it does with a micro-batch that is published again after a crash.
    exclusive : bool
        Whether only one output of one query may write to it at a time, because it knows batches by number only.
    key : sequence of str
        The columns of which it has one row; none where rows are added, the default. A query compares it with what tells its
        results apart, and refuses at its start a key by which rows would be lost. :func:`net_changes` folds a batch.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from krishiv_py import MemorySink, ParquetSink
    >>> MemorySink().delivery, ParquetSink("out").on_repeat, ParquetSink("out").title
    ('tables', 'replace', 'ParquetSink')
    >>> ParquetSink("s3a://bucket/out").dataset()
    Dataset(namespace='s3://bucket', name='out')
    >>> ParquetSink("out", partition_by="day").check("results", pa.schema([("count", pa.int64())]))
    Traceback (most recent call last):
        ...
    krishiv_py.errors.ColumnError: `partition_by` of ParquetSink: there is no column 'day'...
    """

    __slots__ = ("__weakref__",)
    delivery: ClassVar[Delivery]
    on_repeat: ClassVar[OnRepeat]
    exclusive: ClassVar[bool] = False
    key: Sequence[str] = ()

    @property
    def title(self) -> str:
        """Return what errors and plans call it."""
        return type(self).__name__

    @property
    def _storage_sink(self) -> Sink:
        """Return the sink whose folder or table takes its rows."""
        return self

    def dataset(self) -> Dataset | None:
        """Return the name of what it writes, for :mod:`krishiv_py.lineage`; by default none, then it goes by its output."""
        return None

    def check(self, output: OutputName, schema: pa.Schema) -> None:  # noqa: B027  # most sinks take any row
        """Refuse rows that it cannot take, and make what it needs; by default nothing.

        Called when a query starts, before its first batch, for each output that goes to this sink.

        Parameters
        ----------
        output : {"results", "late_rows"}
            Which output it is.
        schema : pyarrow.Schema
            Its columns.
        """

    def in_batch(self, table: pa.Table, batch_id: int, clock_us: Callable[[], int]) -> pa.Table:
        """Return rows as they are written, of files and tables; by default as they are. Of files it runs in a task.

        Parameters
        ----------
        table : pyarrow.Table
            Rows of one micro-batch.
        batch_id : int
            Its number. A repeated batch has the same.
        clock_us : callable
            Gives the clock on record of the micro-batch, µs since the epoch. It is noted before the batch runs, so a repeated
            batch has the same.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from krishiv_py import ParquetSink
        >>> ParquetSink("out").in_batch(pa.table({"count": [1]}), 7, lambda: 1_000_000).to_pylist()
        [{'count': 1}]
        """
        return table


class FolderSink(Sink):
    """Files in a folder, replaced by micro-batch. Base of :class:`FileSink` and :class:`SparkFileSink`.

    Files of a batch are written into a hidden folder first. The driver then publishes them by renaming, after it has removed
    those of an earlier attempt at the same batch. A subclass only writes files.

    Attributes
    ----------
    path : str
        The folder.
    """

    __slots__ = ()
    on_repeat: ClassVar[OnRepeat] = "replace"
    path: str

    def dataset(self) -> Dataset | None:
        """Return the name of the folder."""
        return files_at(os.fspath(self.path))


class FileSink(FolderSink):
    """Files that tasks write from Arrow tables: exactly once, replaced by micro-batch.

    A subclass has an attribute `path`, the folder, and is sent to the tasks with pickle.

    Attributes
    ----------
    suffix : str
        The end of file names, for instance ``".parquet"``.
    partition_by : tuple of str
        Columns whose values are folders, as in ``day=2026-11-26/``, and that the files do not have; none by default.
    in_threads : bool
        True if threads may write files of a batch at once, as workers in process do; False by default.

    Examples
    --------
    >>> import pathlib
    >>> import attrs
    >>> from krishiv_py import Session, count
    >>> from krishiv_py.connectors import FileSink
    >>> @attrs.frozen
    ... class CsvSink(FileSink):
    ...     path: str
    ...     suffix = ".csv"
    ...
    ...     def write_table(self, table, stream):
    ...         from pyarrow import csv
    ...         csv.write_csv(table, stream)
    >>> with Session.in_process() as session:
    ...     stream, sender = session.memory_stream("at bigint")
    ...     folder = session.temporary_folder()
    ...     query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(CsvSink(folder))
    ...     _ = sender.send([{"at": 1}, {"at": 12}])
    ...     query.process_all_available()
    ...     print(next(pathlib.Path(folder).glob("*.csv")).read_text().strip())
    "window_start","window_end","count"
    0,10,1
    """

    __slots__ = ()
    delivery: ClassVar[Delivery] = "task_files"
    suffix: ClassVar[str]
    in_threads: ClassVar[bool] = False
    partition_by: tuple[str, ...] = ()

    @abstractmethod
    def write_table(self, table: pa.Table, stream: Any) -> None:
        """Write one file. Runs in a task.

        Parameters
        ----------
        table : pyarrow.Table
            The rows of one bucket of one micro-batch, at least one.
        stream : pyarrow.NativeFile
            The open file, to which bytes are written. It is closed afterwards.
        """


class SparkFileSink(FolderSink):
    """Files that Spark writes from a DataFrame: exactly once, replaced by micro-batch.

    Examples
    --------
    >>> import attrs
    >>> from krishiv_py.connectors import SparkFileSink
    >>> @attrs.frozen
    ... class OrcSink(SparkFileSink):
    ...     path: str
    ...
    ...     def write_files(self, frame, folder):
    ...         frame.write.mode("overwrite").orc(folder)
    >>> OrcSink("out").delivery
    'frame'
    """

    __slots__ = ()
    delivery: ClassVar[Delivery] = "frame"

    @abstractmethod
    def write_files(self, frame: Any, folder: str) -> None:
        """Write the rows of one micro-batch.

        Parameters
        ----------
        frame : pyspark.sql.DataFrame
            The rows.
        folder : str
            The folder to write to. It may hold files of an earlier attempt, which must be overwritten. Non-empty files whose
            names begin with ``part-`` are published from it.
        """


class TableSink(Sink):
    """Takes Arrow tables on the driver.

    Examples
    --------
    >>> from krishiv_py import Session, count
    >>> from krishiv_py.connectors import TableSink
    >>> class Printing(TableSink):
    ...     def last_committed(self, batch):
    ...         return None  # it cannot know, so a repeated batch is printed again
    ...
    ...     def write_tables(self, batch, tables):
    ...         for table in tables:
    ...             print(batch.batch_id, table.to_pylist())
    >>> with Session.in_process() as session:
    ...     stream, sender = session.memory_stream("at bigint")
    ...     query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(Printing())
    ...     _ = sender.send([{"at": 1}, {"at": 12}])
    ...     query.process_all_available()
    0 [{'window_start': 0, 'window_end': 10, 'count': 1}]
    """

    __slots__ = ()
    delivery: ClassVar[Delivery] = "tables"
    on_repeat: ClassVar[OnRepeat] = "at_least_once"

    def last_committed(self, batch: OutputBatch) -> int | None:
        """Number of the last batch of this query and output that the sink holds for certain; None if it does not know.

        It is called once, before the first `batch` of a run. A repeated batch up to this number is not written again. A batch
        up to this number that is not a repetition shows that the checkpoint was restored from an older copy: the query stops.
        """
        return None

    @abstractmethod
    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """Take the rows of one micro-batch.

        Parameters
        ----------
        batch : OutputBatch
            Which batch of which query and output it is.
        tables : sequence of pyarrow.Table
            Its rows; empty if the batch has none, so that rows of an earlier attempt can be removed.
        """


class FrameSink(Sink):
    """Takes a Spark DataFrame on the cluster.

    Examples
    --------
    >>> from krishiv_py.connectors import FrameSink
    >>> class Counting(FrameSink):
    ...     def write_frame(self, batch, frame):
    ...         print(batch.batch_id, frame.count())
    >>> Counting().on_repeat
    'at_least_once'
    """

    __slots__ = ()
    delivery: ClassVar[Delivery] = "frame"
    on_repeat: ClassVar[OnRepeat] = "at_least_once"

    @abstractmethod
    def write_frame(self, batch: OutputBatch, frame: Any) -> None:
        """Take the rows of one micro-batch.

        Parameters
        ----------
        batch : OutputBatch
            Which batch of which query and output it is.
        frame : pyspark.sql.DataFrame
            Its rows, cached: several actions on it do not compute them again.
        """


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
        call_plainly(self.begin, batch)
        try:
            for table in tables:
                call_plainly(self.write, batch, table)
            call_plainly(self.commit, batch)
        except BaseException:
            call_plainly(self.abort, batch)
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
