"""The sending end of a memory stream, and the small sends it keeps back for a moment."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any, Final, Generic, Protocol, TypeAlias

import attrs
import pyarrow as pa
from typing_extensions import TypeVar

from krishiv_py.errors import SenderClosedError, SessionClosedError, SpoolError
from krishiv_py.kernels import prepare
from krishiv_py.missing import OfOneProcess
from krishiv_py.plan.checks import a_text
from krishiv_py.plan.durations import END_OF_TIME, TimePoint, time_point_us
from krishiv_py.plan.running import Control
from krishiv_py.storage.ending import ClosedAtEnd
from krishiv_py.storage.sends.log import ReplayLog, closed_text, wall_clock_us
from krishiv_py.storage.sends.segments import Send


@attrs.frozen(eq=False)
class _RowBuffer:
    """Rows that wait, and who waits for them."""

    table: pa.Table
    written: Future[int]


class SendBuffer:
    """Gathers tables for a while, then writes them as one.

    Parameters
    ----------
    write : callable
        Writes a table; gives the number of its micro-batch.
    linger_us : int
        How long the first table waits for others, µs of processing time.
    max_rows : int or None
        How many rows are written at once at most; a table alone may have more.
    """

    def __init__(self, write: Callable[[pa.Table], int], linger_us: int, max_rows: int | None) -> None:
        self._write, self._pid = write, os.getpid()
        self._linger_s = linger_us / 1_000_000
        self._max_rows = max_rows
        self._waiting: list[_RowBuffer] = []
        self._rows = 0
        self._changed = threading.Condition()
        self._hurried = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        _lingering.add(self)

    def add(self, table: pa.Table) -> Future[int]:
        """Let a table wait; gives the number of its micro-batch when it is written, or why it could not be.

        Who cancels before it is written takes it back.
        """
        one = _RowBuffer(table, Future())
        with self._changed:
            if self._closed:
                self._written([one])
                return one.written
            self._waiting.append(one)
            self._rows += table.num_rows
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="krishiv-sender", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return one.written

    def flush(self) -> None:
        """Write what waits now, and return when it is written or has failed; who sent it is reported."""
        if os.getpid() != self._pid:
            return  # forked: who made it writes what waits
        with self._changed:
            waiting = [one.written for one in self._waiting]
            self._hurried = len(waiting)
            self._changed.notify_all()
        wait(waiting)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        self.flush()
        with self._changed:
            self._closed, thread, self._thread = True, self._thread, None
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while (taken := self._taken()) is not None:
            wanted = [one for one in taken if one.written.set_running_or_notify_cancel()]
            if wanted:
                self._written(wanted)

    def _taken(self) -> list[_RowBuffer] | None:
        """Wait for what is to be written at once; None when there will be no more."""
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return None
                self._changed.wait()
            until = time.monotonic() + self._linger_s
            while not (self._closed or self._hurried or self._is_full()) and (left_s := until - time.monotonic()) > 0:
                self._changed.wait(left_s)
            count, rows = 0, 0
            for one in self._waiting:
                if count and self._max_rows is not None and rows + one.table.num_rows > self._max_rows:
                    break
                count, rows = count + 1, rows + one.table.num_rows
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            self._rows -= rows
            self._hurried = max(self._hurried - count, 0)
            return taken

    def _is_full(self) -> bool:
        return self._max_rows is not None and self._rows >= self._max_rows

    def _written(self, taken: list[_RowBuffer]) -> None:
        try:
            number = self._write(pa.concat_tables([one.table for one in taken]).combine_chunks())
        except BaseException as problem:  # noqa: BLE001  # whoever sent the rows has to know
            for one in taken:
                one.written.set_exception(problem)
            return
        for one in taken:
            one.written.set_result(number)


_lingering: Final[weakref.WeakSet[SendBuffer]] = weakref.WeakSet()


@atexit.register
def _flushed() -> None:
    """Write what still waits when the program ends."""
    for lingering in list(_lingering):
        lingering.flush()


T = TypeVar("T", default=Any)


class ArrowData(Protocol):
    """A table, batch or frame that hands its columns on as Arrow data."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the columns."""


class ArrowBatch(Protocol):
    """A batch that hands its columns on as one Arrow array of structs."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object:
        """Return the columns."""


Rows: TypeAlias = "Iterable[T | ArrowData | ArrowBatch] | ArrowData | ArrowBatch"
"""Rows that can be sent: objects, or Arrow data, also several of them from a list or generator."""


class Sender(ClosedAtEnd, OfOneProcess, Generic[T]):
    """Feeds a memory stream; calls from several threads are put in order.

    Every call of :meth:`send` is one micro-batch. With ``linger`` (:meth:`~krishiv_py.Session.memory_stream`) sends that come
    within that time are one.

    Examples
    --------
    >>> from krishiv_py import Session, count
    >>> with Session.in_process() as session:
    ...     stream, sender = session.memory_stream("at bigint")
    ...     with sender:
    ...         _ = sender.send([{"at": 1}, {"at": 2}])
    ...     stream.watermark("at", 0).tumbling_window(10).agg(count()).collect().to_pylist()
    [{'window_start': 0, 'window_end': 10, 'count': 2}]
    """

    _kind = "sender"
    _instead = (
        "a lock of this process",
        "call session.memory_stream(..., spool=folder) there, with the folder of this one: senders take turns",
    )

    def __init__(
        self,
        spool: ReplayLog,
        schema: pa.Schema,
        clock: Callable[[], int] = wall_clock_us,
        trimming: Callable[[str], int] = lambda folder: 0,
        linger_us: int = 0,
        max_batch_rows: int | None = None,
        checking: Callable[[str, str], None] = lambda folder, source: None,
        temporary: bool = False,
    ) -> None:
        self._trimming, self._checking = trimming, checking
        self._temporary = temporary
        self._spool = spool
        self._clock = clock
        self._schema = schema
        self._lock, self._pid = threading.Lock(), os.getpid()
        spool.tidy()
        self._closed = spool.closed()
        self._over = False
        self._lingering = SendBuffer(self._write, linger_us, max_batch_rows) if linger_us else None

    @property
    def closed(self) -> bool:
        """Return whether :meth:`close` was called, on this sender or another of the same stream.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     before = sender.closed
        ...     sender.close()
        ...     before, sender.closed
        (False, True)
        """
        return self._closed or self._spool.closed()

    def send(self, batch: Rows[T]) -> int:
        """Send rows; they are on disk when this returns.

        Parameters
        ----------
        batch : list of dict or of objects, pyarrow.RecordBatch, pyarrow.Table or frame of pandas, Polars or DuckDB
            Rows of the stream's schema; an empty batch is legal. Anything with Arrow's PyCapsule interface is taken, Arrow's
            Dataset and Scanner, NumPy records, and a list or generator of such things, which is one send.

        Returns
        -------
        int
            Number of the micro-batch, from 0.

        Raises
        ------
        SchemaError
            Naming column, wrong type and (for dicts) row.
        SenderClosedError
            After :meth:`close`.
        SessionClosedError
            When the session was stopped, and the folder of the stream went with it.
        SpoolError
            When they cannot be written, as on a full disk; and with ``linger`` in a process that was forked.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     [sender.send([{"at": 1}]), sender.send([{"at": 2}, {"at": 3}])]
        [0, 1]
        """
        if self._lingering is not None:
            return self.send_soon(batch).result()
        return self._write(self._rows(batch))

    def send_soon(self, batch: Rows[T]) -> Future[int]:
        """Send rows without waiting until they are on disk.

        Parameters
        ----------
        batch : list of dict or of objects, pyarrow.RecordBatch, pyarrow.Table or frame of pandas, Polars or DuckDB
            Rows of the stream's schema.

        Returns
        -------
        concurrent.futures.Future of int
            The number of the micro-batch, or why the rows could not be written. Rows of a process that is killed before are
            lost. Without ``linger`` they are written by this call.

        Raises
        ------
        SchemaError
            Naming column, wrong type and (for dicts) row.
        SenderClosedError
            After :meth:`close`.
        SessionClosedError
            When the session was stopped, and the folder of the stream went with it.
        SpoolError
            When they cannot be written, as on a full disk; and with ``linger`` in a process that was forked.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint", linger="20 ms")
        ...     waiting = [sender.send_soon([{"at": n}]) for n in range(3)]
        ...     [one.result() for one in waiting]
        [0, 0, 0]
        """
        sent = self._rows(batch)
        self._check("send()")
        if self._lingering is not None:
            return self._lingering.add(pa.Table.from_batches([sent]) if isinstance(sent, pa.RecordBatch) else sent)
        done: Future[int] = Future()
        done.set_result(self._write(sent))
        return done

    async def send_async(self, batch: Rows[T]) -> int:
        """:meth:`send` for code that runs in an event loop, which goes on meanwhile.

        Parameters
        ----------
        batch : list of dict or of objects, pyarrow.RecordBatch, pyarrow.Table or frame of pandas, Polars or DuckDB
            Rows of the stream's schema.

        Returns
        -------
        int
            Number of the micro-batch; the rows are on disk.

        Raises
        ------
        SchemaError
            Naming column, wrong type and (for dicts) row.
        SenderClosedError
            After :meth:`close`.
        SessionClosedError
            When the session was stopped, and the folder of the stream went with it.
        SpoolError
            When they cannot be written, as on a full disk; and with ``linger`` in a process that was forked.

        Examples
        --------
        >>> import asyncio
        >>> from krishiv_py import Session
        >>> async def send_all(sender):
        ...     return await asyncio.gather(*(sender.send_async([{"at": n}]) for n in range(3)))
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint", linger="20 ms")
        ...     asyncio.run(send_all(sender))
        [0, 0, 0]
        """
        import asyncio  # here, for it loads TLS, and who calls this has it

        if self._lingering is None:
            return await asyncio.to_thread(self.send, batch)
        return await asyncio.wrap_future(self.send_soon(batch))

    def flush(self) -> None:
        """Write what waits for others, and wait until it is on disk; does nothing without ``linger``.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint", linger="1 min")
        ...     waiting = sender.send_soon([{"at": 1}])
        ...     sender.flush()
        ...     waiting.done()
        True
        """
        self._in_this_process("flush()")
        if self._lingering is not None:
            self._lingering.flush()

    def advance_watermark(self, to: TimePoint, source: str | None = None) -> int:
        """Move the watermark of this stream, or of one `source`, to at least `to`: ms since the epoch, or a datetime.

        The watermark of a union by source, or of a join, is the least of its streams; that of a union with one watermark for
        all rows moves at once. Of several outputs those with a larger lag stay behind it by the difference.

        Raises
        ------
        PlanError
            For a `source` that no running query has which reads the stream; one that starts later fails over it.
        SenderClosedError
            After :meth:`close`.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     query = stream.watermark("at", "1 hour").tumbling_window("10 s").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"at": 1_000}])
        ...     _ = sender.advance_watermark(10_000)
        ...     query.process_all_available()
        ...     query.results().to_pylist()
        [{'window_start': 0, 'window_end': 10000, 'count': 1}]
        """
        to_us = time_point_us(to, "to")
        if source is not None:
            self._checking(self._spool.folder, a_text(source, "source", "pass its name, or leave it out"))
        return self._control(to_us, source, "advance_watermark()")

    def close_windows_up_to(self, to: TimePoint) -> int:
        """:meth:`advance_watermark` under the lesson's name: every window that ends at or before `to` fires and is freed.

        In a union by source and in a join it does so when the other streams have come so far.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     query = stream.watermark("at", "1 hour").tumbling_window("10 s").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"at": 1_000}, {"at": 11_000}])
        ...     _ = sender.close_windows_up_to(10_000)
        ...     query.process_all_available()
        ...     query.results().to_pylist()
        [{'window_start': 0, 'window_end': 10000, 'count': 1}]
        """
        return self._control(time_point_us(to, "to"), None, "close_windows_up_to()")

    def trim(self) -> int:
        """Remove from the spool what no query will read again; returns how many sends.

        Those are the sends that every query with a checkpoint has read in a micro-batch that Spark cannot go back to any more
        (docs/state.md). Nothing is removed while no query has read the stream. Afterwards neither ``collect()`` nor a query
        with a new checkpoint can read it from its start; both say so.

        Raises
        ------
        CheckpointError
            When the checkpoint of a query that reads it is away, as where its mount is missing; nothing is removed then.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     query = stream.start(MemorySink(), checkpoint=session.temporary_folder("checkpoint"))
        ...     for n in range(4):
        ...         _ = sender.send([{"at": n}])
        ...         query.process_all_available()
        ...     removed = sender.trim()  # sends that no query can go back to
        """
        return self._trimming(self._spool.folder)

    def close(self) -> None:
        """End of input: the watermark moves to plus infinity and every open window fires. Closing twice is harmless.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(MemorySink())
        ...     _ = sender.send([{"at": 1}])
        ...     sender.close()
        ...     query.process_all_available()
        ...     query.results().to_pylist()
        [{'window_start': 0, 'window_end': 10, 'count': 1}]
        """
        self._in_this_process("close()")
        if not self._closed and not self._over:
            with contextlib.suppress(SenderClosedError):  # another sender was faster
                self._control(END_OF_TIME, None, "close()")
        self._closed = True
        if self._lingering is not None:
            self._lingering.close()

    def _end(self) -> None:
        """Write what waits, and end the thread: the session stops, and a temporary folder of the stream goes with it."""
        if os.getpid() != self._pid:
            return
        if self._lingering is not None:
            self._lingering.close()
        with self._lock:  # a send in hand is written
            self._over = self._temporary

    def _rows(self, batch: Rows[T]) -> pa.RecordBatch | pa.Table:
        """Rows of the stream's schema; a table where they are too many for one batch."""
        batches = prepare.as_batches(batch, self._schema)
        return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches, self._schema)

    def _write(self, sent: pa.RecordBatch | pa.Table) -> int:
        with self._lock:
            self._check("send()")
            return self._spool.append(Send(sent, self._clock(), None, sent.get_total_buffer_size()))

    def _control(self, watermark_us: int, source: str | None, what: str) -> int:
        self._in_this_process(what)
        self.flush()  # what was sent before comes before
        with self._lock:
            self._check(what)
            return self._spool.control(Control(watermark_us, source, self._clock()), what)

    def _check(self, what: str) -> None:
        self._in_this_process(what)
        if self._closed:
            raise SenderClosedError(closed_text(what))
        if self._over:
            then = "the folder of its sends went with it, and nobody would read the rows"
            hint = "make a new session and another memory_stream; sends into a folder of yours, spool=..., outlive a session"
            got = "a session that has stopped"
            raise SessionClosedError(f"{what} into a memory stream that is over", got=got, then=then, hint=hint)

    def _in_this_process(self, what: str) -> None:
        """After a fork the thread that writes is missing, and a lock may be held by one that is."""
        if os.getpid() == self._pid:
            return
        if self._lingering is not None:
            raise SpoolError(
                f"{what} in a process that was forked",
                got=f"a sender with `linger` of process {self._pid}",
                then="the thread that writes its rows is in that process only",
                hint="call memory_stream() after the fork, with the same spool",
            )
        self._lock, self._pid = threading.Lock(), os.getpid()
