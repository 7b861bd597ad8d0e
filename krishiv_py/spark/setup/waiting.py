"""Waiting for Spark so that Ctrl-C is a KeyboardInterrupt at once, and progress of its jobs.

A main thread that waits inside the JVM hears of a signal, but what it waits for answers through the same connection: the
interrupt comes out late, or as another exception. So the work is done in a thread next to it, which the main thread waits for.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Generic, TypeVar

from py4j.protocol import Py4JError
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from krishiv_py.spark.setup.config import is_connect

T = TypeVar("T")


class Call(Generic[T]):
    """Work in a thread of its own. It goes on when nobody waits for it any more, and what it brings is dropped then."""

    def __init__(self, work: Callable[[], T], within: Callable[[Callable[[], None]], Any] | None = None) -> None:
        self._work = work
        self._results: list[T] = []
        self._problem: BaseException | None = None
        self._done = threading.Event()
        target = self._run if within is None else within(self._run)
        threading.Thread(target=target, name="krishiv-wait", daemon=True).start()

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as problem:  # noqa: BLE001  # raised again by whoever waits
            self._problem = problem
        finally:
            self._done.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait at most `timeout_s` seconds; whether it is done."""
        return self._done.wait(timeout_s)

    def result(self) -> T:
        """Return what it brought, or raised."""
        self._done.wait()
        if self._problem is not None:
            raise self._problem
        return self._results[0]


def on_main_thread() -> bool:
    """Return whether signals are heard here."""
    return threading.current_thread() is threading.main_thread()


def waited(work: Callable[[], T]) -> T:
    """Do `work`, for which the waiting can be interrupted."""
    return Call(work).result() if on_main_thread() else work()


def cancellable(spark: SparkSession, work: Callable[[], T]) -> T:
    """Do `work`, whose Spark jobs are cancelled when the waiting is interrupted."""
    if not on_main_thread():
        return work()
    tag = f"krishiv-{uuid.uuid4().hex}"
    # a classic session's own tags do not reach the thread in which Spark collects Arrow data; those of the context do
    add, remove, interrupt = (
        (spark.addTag, spark.removeTag, spark.interruptTag)
        if is_connect(spark)
        else (spark.sparkContext.addJobTag, spark.sparkContext.removeJobTag, spark.sparkContext.cancelJobsWithTag)
    )

    def tagged() -> T:
        add(tag)
        try:
            return work()
        finally:
            remove(tag)

    call = Call(tagged, inheritable_thread_target(spark))  # pool, group and tags of the caller hold for its work
    try:
        call.wait()
    except BaseException:
        with suppress(PySparkException, Py4JError, OSError):  # there may be nothing, or nobody, left to cancel
            interrupt(tag)
        raise
    return call.result()


_GROUP: Final = "spark.jobGroup.id"


@contextmanager
def counted(spark: SparkSession) -> Iterator[Callable[[], tuple[int, int | None]]]:
    """Count the tasks of the jobs this thread starts in the body.

    Yields
    ------
    callable
        Tasks done and tasks known so far, at any time and from any thread; the second is None over Spark Connect, which has
        no status tracker.
    """
    if is_connect(spark):
        yield lambda: (0, None)
        return
    context = spark.sparkContext
    before, group = context.getLocalProperty(_GROUP), f"krishiv-{uuid.uuid4().hex}"
    context.setLocalProperty(_GROUP, group)
    try:
        yield lambda: _count(context.statusTracker(), group)
    finally:
        context.setLocalProperty(_GROUP, before)  # type: ignore[arg-type]  # null takes it away


def _count(tracker: Any, group: str) -> tuple[int, int | None]:
    jobs = [job for job in map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)) if job is not None]
    stages = [stage for job in jobs for stage in map(tracker.getStageInfo, job.stageIds) if stage is not None]
    return sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages) or None
