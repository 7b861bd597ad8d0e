"""Threads that share the work of a micro-batch: the buckets of a stage, and the parts of what is read.

The kernels work on whole columns and let go of Python's lock meanwhile, so threads use several cores. They share the memory of
the process: no row is copied from one to another.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

import attrs

T = TypeVar("T")

FEW_ROWS: Final = 8_192
"""Fewer rows are not shared out: handing them to a thread would cost more than it saves."""


def parted(each: Sequence[T], most: int) -> list[Sequence[T]]:
    """Return things in at most so many runs of equal length, in their order; at least one run."""
    size = max(-(-len(each) // most), 1)
    return [each[low : low + size] for low in range(0, max(len(each), 1), size)]


@attrs.define(eq=False)
class Workers:
    """Threads of one query.

    Attributes
    ----------
    count : int
        How many tasks run at once; 1: none is handed to a thread.
    """

    count: int = 1
    _pool: ThreadPoolExecutor | None = attrs.field(default=None, init=False)

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run tasks, and return what they give, in their order.

        Raises
        ------
        Exception
            The error of the first task that failed, when the others are done.
        """
        if self.count == 1 or len(tasks) < 2:
            return [task() for task in tasks]
        futures = [self._submit(task) for task in tasks[1:]]
        try:
            first = tasks[0]()  # the thread that waits works too
        finally:
            wait(futures)
        return [first, *(future.result() for future in futures)]

    def ahead(self, tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
        """Run tasks, at most `count` at once, and give what they return in their order, while later ones run."""
        if self.count == 1:
            yield from (task() for task in tasks)
            return
        running, waiting = list[Future[T]](), iter(tasks)
        try:
            for task in waiting:
                running.append(self._submit(task))
                if len(running) == self.count:
                    yield running.pop(0).result()
            while running:
                yield running.pop(0).result()
        finally:
            for future in running:
                future.cancel()
            wait(running)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _submit(self, task: Callable[[], T]) -> Future[T]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count, "krishiv-worker")
        return self._pool.submit(contextvars.copy_context().run, task)  # lookup tables of a batch are in the context
