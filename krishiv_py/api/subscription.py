"""Readers of a running query in this process: its results batch by batch, by a loop or an asynchronous one."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import OperatorError
from krishiv_py.plan.durations import Duration, to_us

if TYPE_CHECKING:
    import asyncio

WhenSlow: TypeAlias = Literal["fail", "drop"]
"""The fate of a reader that does not keep up: it fails, or the oldest rows that wait for it are dropped and counted."""
_SLICE_S: Final = 0.1
"""Ctrl-C is noticed so often while somebody waits."""
_Waiter: TypeAlias = "tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]"


@attrs.define(eq=False)
class Subscription:
    """The results of a query as they come: a table for each micro-batch that has some; see :meth:`Query.subscribe`.

    ``for`` and ``async for`` give one table after another. The loop ends when the query ends, and raises the error of a query
    that failed; what came before is given first. One thread or task reads; others subscribe for themselves.

    Attributes
    ----------
    buffer : int
        How many rows wait for the reader at the most. A single batch may have more.
    when_slow : {"fail", "drop"}
        What becomes of a reader for whom more rows would wait.
    dropped : int
        How many rows were dropped so far; 0 with ``"fail"``.

    Examples
    --------
    >>> from krishiv_py import MemorySink, Session, sum
    >>> with Session.in_process() as session:
    ...     orders, sender = session.memory_stream("user string, amount bigint")
    ...     query = orders.key_by("user").agg(total=sum("amount")).start(MemorySink())
    ...     with query.subscribe() as changes:
    ...         for amount in (5, 2):
    ...             _ = sender.send([{"user": "ann", "amount": amount}])
    ...             query.process_all_available()
    ...         query.stop()
    ...         for table in changes:
    ...             print(table.to_pylist())
    [{'user': 'ann', 'total': 5, 'op': '+I'}]
    [{'user': 'ann', 'total': 5, 'op': '-U'}, {'user': 'ann', 'total': 7, 'op': '+U'}]
    """

    buffer: int
    when_slow: WhenSlow
    dropped: int = attrs.field(default=0, init=False)
    _waiting: deque[pa.Table] = attrs.field(factory=deque, init=False, repr=False)
    _rows: int = attrs.field(default=0, init=False)
    _ended: bool = attrs.field(default=False, init=False)
    _problem: Exception | None = attrs.field(default=None, init=False)
    _ready: threading.Condition = attrs.field(factory=threading.Condition, init=False, repr=False)
    _waiters: list[_Waiter] = attrs.field(factory=list, init=False, repr=False)

    def __iter__(self) -> Subscription:
        """Return the subscription itself."""
        return self

    def __next__(self) -> pa.Table:
        """Return the next table; wait for it."""
        while True:
            with self._ready:
                if not (self._waiting or self._ended):
                    self._ready.wait(_SLICE_S)
                if self._waiting or self._ended:
                    return self._pop(StopIteration())

    def __aiter__(self) -> Subscription:
        """Return the subscription itself."""
        return self

    async def __anext__(self) -> pa.Table:
        """Return the next table; other tasks of the loop run meanwhile."""
        import asyncio  # whoever has no loop needs none

        loop = asyncio.get_running_loop()
        while True:
            with self._ready:
                if self._waiting or self._ended:
                    return self._pop(StopAsyncIteration())
                waiter = (loop, loop.create_future())
                self._waiters.append(waiter)
            try:
                await waiter[1]
            finally:
                with self._ready, contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)

    def next(self, timeout: Duration) -> pa.Table | None:
        """Return the next table, or None where none comes within `timeout`, or none comes any more.

        Parameters
        ----------
        timeout : int, str or timedelta
            How long to wait: milliseconds, or a text such as ``"1 s"``; 0 only looks.

        Raises
        ------
        OperatorError
            Of the query that failed, or of a reader that was too slow.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, sum
        >>> with Session.in_process() as session:
        ...     orders, sender = session.memory_stream("user string, amount bigint")
        ...     query = orders.key_by("user").agg(total=sum("amount")).start(MemorySink())
        ...     changes = query.subscribe()
        ...     _ = sender.send([{"user": "ann", "amount": 5}])
        ...     query.process_all_available()
        ...     print(changes.next("5 s").to_pylist(), changes.next(0))
        [{'user': 'ann', 'total': 5, 'op': '+I'}] None
        """
        until = time.monotonic() + to_us(timeout, "timeout", allow_zero=True) / 1e6
        with self._ready:
            while not (self._waiting or self._ended):
                left = until - time.monotonic()
                if left <= 0:
                    return None
                self._ready.wait(min(left, _SLICE_S))
            return self._pop(None)

    def close(self) -> None:
        """Take no more; what waits is forgotten.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, sum
        >>> with Session.in_process() as session:
        ...     orders, _ = session.memory_stream("user string, amount bigint")
        ...     changes = orders.key_by("user").agg(total=sum("amount")).start(MemorySink()).subscribe()
        ...     changes.close()
        ...     list(changes)
        []
        """
        with self._ready:
            self._waiting.clear()
            self._rows = 0
        self._end(None)

    def __enter__(self) -> Subscription:
        """Return the subscription, which is closed when the body of ``with`` ends."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Close it."""
        self.close()

    def _pop(self, over: Exception | None) -> pa.Table:
        """Return the table that has waited longest; else raise what ended it, or `over`. The lock is held."""
        if self._waiting:
            table = self._waiting.popleft()
            self._rows -= table.num_rows
            return table
        if self._problem is not None:
            raise self._problem
        if over is not None:
            raise over
        return None

    def _put(self, table: pa.Table) -> None:
        """Take what a batch gave; of a reader that is too slow it never waits."""
        with self._ready:
            if self._ended:
                return
            over = self._rows + table.num_rows - self.buffer
            while over > 0 and self._waiting and self.when_slow == "drop":
                oldest = self._waiting.popleft()
                self.dropped, self._rows, over = (
                    self.dropped + oldest.num_rows,
                    self._rows - oldest.num_rows,
                    over - oldest.num_rows,
                )
            fits = over <= 0 or not self._waiting
            if fits:
                self._waiting.append(table)
                self._rows += table.num_rows
                self._wake()
        if not fits:
            self._end(
                OperatorError(
                    "a subscriber does not keep up with its query",
                    got=f"{self._rows} rows wait for it, and {table.num_rows} more came",
                    then="its next changes would be missing",
                    hint='read faster, subscribe(buffer=...) with more rows, or with when_slow="drop", which counts them',
                )
            )

    def _end(self, problem: Exception | None) -> None:
        """Give nothing more after what waits, and then raise the problem where there is one."""
        with self._ready:
            if not self._ended:
                self._ended, self._problem = True, problem
            self._wake()

    def _wake(self) -> None:
        """Let whoever waits look. The lock is held."""
        self._ready.notify_all()
        waiters, self._waiters = self._waiters, []
        for loop, future in waiters:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_set, future)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@attrs.define(eq=False)
class Subscribers:
    """The readers of the outputs of a query, by the name of the output; one that nobody holds any more is forgotten."""

    _of: dict[str, list[weakref.ref[Subscription]]] = attrs.field(factory=dict)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)
    _ended: bool = False
    _problem: Exception | None = None

    def add(self, output: str, one: Subscription) -> None:
        """Add a reader; after the end of the query there is nothing for it."""
        with self._lock:
            if not self._ended:
                self._of.setdefault(output, []).append(weakref.ref(one))
                return
        one._end(self._problem)

    def put(self, output: str, results: pa.Table) -> None:
        """Give the readers of an output what a batch gave."""
        if not self._of or not results.num_rows:
            return
        with self._lock:
            there = self._of.get(output, [])
            there[:] = [ref for ref in there if (one := ref()) is not None and not one._ended]
            readers = [ref() for ref in there]
        for reader in readers:
            if reader is not None:
                reader._put(results)

    def end(self, problem: Exception | None) -> None:
        """Tell the readers that nothing more comes."""
        with self._lock:
            self._ended, self._problem = True, problem
            readers = [ref() for refs in self._of.values() for ref in refs]
        for reader in readers:
            if reader is not None:
                reader._end(problem)
