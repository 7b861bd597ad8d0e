"""Define what feeds a memory stream: each send is a micro-batch, or sends that come close together are one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, Protocol

import pyarrow as pa
from typing_extensions import TypeVar

from krishiv_py.errors import SenderClosedError, SpoolError
from krishiv_py.lazy import lazy
from krishiv_py.lingering import Lingering
from krishiv_py.plan.durations import END_OF_TIME, TimePoint, time_point_us
from krishiv_py.plan.running import Control
from krishiv_py.replay_log import ReplayLog, closed_text, wall_clock_us
from krishiv_py.send_segments import Send

if TYPE_CHECKING:
    from krishiv_py.kernels import prepare
else:
    prepare = lazy("krishiv_py.kernels.prepare")


T = TypeVar("T", default=Any)


class ArrowData(Protocol):
    """A table, batch or frame that hands its columns on as Arrow data."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the columns."""
        ...


class Sender(Generic[T]):
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

    def __init__(
        self,
        spool: ReplayLog,
        schema: pa.Schema,
        clock: Callable[[], int] = wall_clock_us,
        trimming: Callable[[str], int] = lambda folder: 0,
        linger_us: int = 0,
        max_batch_rows: int | None = None,
    ) -> None:
        self._trimming = trimming
        self._spool = spool
        self._clock = clock
        self._schema = schema
        self._lock, self._pid = threading.Lock(), os.getpid()
        spool.tidy()
        self._closed = spool.closed()
        self._lingering = Lingering(self._write, linger_us, max_batch_rows) if linger_us else None

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

    def send(self, batch: Sequence[T] | ArrowData) -> int:
        """Send rows; they are on disk when this returns.

        Parameters
        ----------
        batch : list of dict or of objects, pyarrow.RecordBatch, pyarrow.Table or frame of pandas, Polars or DuckDB
            Rows of the stream's schema; an empty batch is legal.

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

    def send_soon(self, batch: Sequence[T] | ArrowData) -> Future[int]:
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

    async def send_async(self, batch: Sequence[T] | ArrowData) -> int:
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
        """Move the watermark (of one `source`, or of all) to at least `to`: ms since the epoch, or a datetime.

        Of several outputs those with a larger lag stay behind it by the difference.

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
        return self._control(time_point_us(to, "to"), source, "advance_watermark()")

    def close_windows_up_to(self, to: TimePoint) -> int:
        """:meth:`advance_watermark` under the lesson's name: every window that ends at or before `to` fires and is freed.

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
        if not self._closed:
            with contextlib.suppress(SenderClosedError):  # another sender was faster
                self._control(END_OF_TIME, None, "close()")
        self._closed = True
        if self._lingering is not None:
            self._lingering.close()

    def _rows(self, batch: Sequence[T] | ArrowData) -> pa.RecordBatch | pa.Table:
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

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
