"""Python worker processes: how many there are is memory, and CPU to start them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import psutil

from krishiv_py import MemorySink, QueryTrigger, Sender, Stream
from tests.spark.conftest import per_second, row

Memory = Callable[[], tuple[Stream, Sender]]


def test_all_tasks_share_one_pool_of_workers(memory: Memory) -> None:
    # Spark keeps a pool for every environment of variables: settings that differ between kinds of tasks make a second one.
    stream, sender = memory()
    sender.send([row("a", 100), row("a", 5_000)])
    query = per_second(stream).start(MemorySink(), trigger=QueryTrigger.available_now())
    query.await_termination()
    assert query.results().num_rows == 1
    assert len(daemons()) == 1


def daemons() -> list[psutil.Process]:
    """The processes workers are forked from; each is a child of the JVM."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # others end meanwhile
            parent = process.parent()
            if parent is not None and parent.name() == "java" and "pyspark.daemon" in process.cmdline():
                found.append(process)
    return found
