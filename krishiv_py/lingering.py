"""Sends that come close together, written as one micro-batch by a thread of their own."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait

import attrs
import pyarrow as pa


@attrs.frozen(eq=False)
class _Waiting:
    """Rows that wait, and who waits for them."""

    table: pa.Table
    written: Future[int]


class Lingering:
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
        self._waiting: list[_Waiting] = []
        self._rows = 0
        self._changed = threading.Condition()
        self._hurried = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        atexit.register(_flushed, weakref.ref(self))

    def add(self, table: pa.Table) -> Future[int]:
        """Let a table wait; gives the number of its micro-batch when it is written, or why it could not be.

        Who cancels before it is written takes it back.
        """
        one = _Waiting(table, Future())
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

    def _taken(self) -> list[_Waiting] | None:
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

    def _written(self, taken: list[_Waiting]) -> None:
        try:
            number = self._write(pa.concat_tables([one.table for one in taken]).combine_chunks())
        except BaseException as problem:  # noqa: BLE001  # whoever sent the rows has to know
            for one in taken:
                one.written.set_exception(problem)
            return
        for one in taken:
            one.written.set_result(number)


def _flushed(of: weakref.ref[Lingering]) -> None:
    """Write what still waits when the program ends."""
    lingering = of()
    if lingering is not None:
        lingering.flush()
