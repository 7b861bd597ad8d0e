"""The handle of a running query."""

from __future__ import annotations

import datetime as dt
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, ClassVar, Final, Literal

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from krishiv_py.display.progress import Show, of_query, shown
from krishiv_py.engine.closing import keys_to_close
from krishiv_py.errors import EnvironmentSetupError, KrishivError, OperatorError
from krishiv_py.plan.checks import PathLike, a_path, wait_us
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.batch import BatchStoppedError, Halt
from krishiv_py.runtime.checkpoint.sparklog import lost_file
from krishiv_py.runtime.closings import request
from krishiv_py.runtime.query import BucketMetrics, QueryRows, RunningQuery
from krishiv_py.runtime.savepoints import UnfinishedError
from krishiv_py.spark.internals import stack_trace
from krishiv_py.spark.setup.waiting import Call, waited
from krishiv_py.spark.state import WentOnError, count_keys, read_state, save
from krishiv_py.spark.tasks.failures import cause, failure, is_gone

_SLOW: Final = "Python worker failed to connect back"
"""Spark's words where the Python that tells which state an operator keeps did not answer in 10 s; that time is fixed."""
_TIMES: Final = 2
"""The number of times that a query is started again."""
_LATE: Final = "waiting for the Python worker to connect back"
"""Spark's words where the Python that publishes over Spark Connect did not begin in 10 s; that is fixed too."""
_ATTEMPTS: Final = 5


class Launched:
    """Stands for Spark's ``StreamingQuery`` where a query is waited for, asked and stopped.

    On a machine without a free core, or with a slow disk, a process may take longer to begin than Spark waits for it. No row
    was read by then, so the query may be started again from its checkpoint as if nothing had been.
    """

    def __init__(self, start: Callable[[], StreamingQuery], name: str) -> None:
        self._start = start
        self._name = name
        self._turn = threading.Lock()
        self._left = _TIMES
        self.query: StreamingQuery = start()
        """Spark's own handle, of the latest start."""
        # a query nobody asks about must go on as well
        threading.Thread(target=self._watch, name=f"{name}-launched", daemon=True).start()

    def _watch(self) -> None:
        try:
            self.await_termination()
        except (PySparkException, Py4JError, OSError):
            return  # reported to whoever waits for the query

    def is_active(self) -> bool:
        """Return whether it runs."""
        return bool(self.query.isActive) or self._again(self.query)

    def await_termination(self) -> None:
        """Wait for its end, and raise what made it fail."""
        self._tried(lambda query: query.awaitTermination())

    def process_all_available(self) -> None:
        """Wait until what there is was processed, and raise what made it fail."""
        self._tried(lambda query: query.processAllAvailable())

    def exception(self) -> StreamingQueryException | None:
        """Return what made it fail."""
        query = self.query
        error = query.exception()
        return None if error is not None and self._again(query) else error

    def stop(self) -> None:
        """Stop it; it is not started again."""
        with self._turn:
            self._left = 0
        self.query.stop()

    def _tried(self, call: Callable[[StreamingQuery], object]) -> None:
        while True:
            query = self.query
            try:
                call(query)
            except StreamingQueryException:
                if not self._again(query):
                    raise
            else:
                return

    def _again(self, query: StreamingQuery) -> bool:
        """Start another query in the place of this one, which has ended, where that may help; return whether there is one."""
        with self._turn:
            if self.query is not query:
                return True
            problem = query.exception()
            if self._left == 0 or problem is None or _SLOW not in str(problem) or query.lastProgress is not None:
                return False
            self._left -= 1
            warnings.warn(
                f"query {self._name!r}: Spark gave up waiting for a Python process to begin (10 s), before the first batch; "
                "the query is started again from its checkpoint. Hint: leave a core and some memory free",
                RuntimeWarning,
                stacklevel=2,
            )
            self.query = self._start()
            return True


def patiently(begin: Callable[[], StreamingQuery], name: str) -> StreamingQuery:
    """Begin a query over Spark Connect; again, where Spark gave up waiting for the server's process.

    Spark has not started the query in that process yet.

    Raises
    ------
    EnvironmentSetupError
        When it gives up every time.
    """
    for _ in range(_ATTEMPTS):
        try:
            return begin()
        except PySparkException as problem:
            if _LATE not in str(problem):
                raise
            last = problem
            warnings.warn(
                f"query {name!r}: the Spark Connect server gave up waiting for a Python process to begin (10 s); the query is "
                "started again. Hint: leave a core and some memory of its machine free",
                RuntimeWarning,
                stacklevel=2,
            )
    what = "no Python process begins in time on the machine of the Spark Connect server"
    hint = "see what keeps that machine busy, or how long `python -c 'import pyspark.sql.connect'` takes there"
    raise EnvironmentSetupError(what, got=f"{_ATTEMPTS} attempts, for each of which Spark waits 10 s", hint=hint) from last


_WAIT_S: Final = 2.0
"""The time that a stop may take before Spark is asked again."""
_WAITS_IN_SILENCE: Final = 5
_QUIET_S: Final = 120.0
"""The time that a savepoint waits for a moment between two micro-batches."""
_LOOK_S: Final = 0.05


class StreamQuery(RunningQuery):
    """Implements :class:`krishiv_py.api.query.Query` over a Spark ``StreamingQuery``."""

    _gone_types: ClassVar[tuple[type[Exception], ...]] = (Py4JError, OSError)
    """Errors that are raised where nobody answers."""
    _end_types: ClassVar[tuple[type[Exception], ...]] = (StreamingQueryException, Py4JError, OSError)
    """That, and Spark's word of a query that failed."""

    def __init__(
        self,
        query: Launched,
        then: Sequence[Callable[[], Launched]],
        name: str,
        ledger: BucketMetrics,
        plan: PhysicalPlan,
        note: str | None,
        rows: QueryRows,
        cleanup: Callable[[], None],
        halt: Halt,
        spark: SparkSession,
        is_behind: Callable[[], bool],
        closing: threading.Event,
        held: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._query = query
        self._id = str(query.query.id)
        super().__init__(name, ledger, plan, note, rows)
        self._cleanup = cleanup
        self._spark = spark
        self._is_behind = is_behind
        self._closing = closing
        self._held = held
        self._halt = halt
        self._ending = threading.Lock()
        self._end: Literal["stopped", "failed"] | None = None
        self._failure: Exception | None = None
        self._follow = threading.Thread(target=self._go_on, args=(then,), name=f"{name}-flush", daemon=True) if then else None
        if self._follow is not None:
            self._follow.start()

    def _go_on(self, then: Sequence[Callable[[], Launched]]) -> None:
        """Let the end of the input there was fire what is still open."""
        for follow in then:
            try:
                self._query.await_termination()
            except self._end_types:
                return  # reported to whoever waits for the query
            if self._halt.stopping.is_set():
                return
            try:
                self._query = follow()
            except (PySparkException, Py4JError, OSError) as problem:  # reported to whoever waits: windows are still open
                self._failure = problem
                return

    @property
    def id(self) -> str:
        """Spark's query id, kept across restarts from one checkpoint."""
        return self._id

    @property
    def status(self) -> Literal["running", "stopped", "failed"]:
        """``running``, ``stopped`` or ``failed``."""
        if self._end is None:
            try:
                if self._query.is_active() or (self._follow is not None and self._follow.is_alive()):
                    return "running"
                self._end = "failed" if self._problem() is not None else "stopped"
            except self._gone_types as problem:
                self._gone(problem)
                return "failed"
        return self._end

    @property
    def spark_query(self) -> StreamingQuery:
        """Spark's own handle."""
        return self._query.query

    def await_termination(self, timeout: dt.timedelta | str | None = None) -> bool:
        """Wait for the end; True when it came. Ctrl-C ends the waiting, not the query.

        Raises
        ------
        KrishivError
            What made the query fail: the error of ours that a task raised, else an :class:`~krishiv_py.errors.OperatorError`.
        """
        if timeout is None:
            waited(self._ended)
        elif not Call(self._ended).wait(max(wait_us(timeout, "timeout") / 1_000_000, 1)):
            return False
        self._raise_problem()
        return True

    def _ended(self) -> None:
        """Wait for Spark's query, and the one that follows it."""
        try:
            if self._follow is not None:
                self._follow.join()
            self._query.await_termination()
        except self._end_types as problem:
            self._gone(problem)

    def process_all_available(self, *, progress: Show = False) -> None:
        """Wait until everything sent so far is processed and the query is idle, with or without a `progress` line.

        Ctrl-C ends the waiting, not the query. Raises as :meth:`await_termination`; returns at once when the query is over.
        """
        with shown(lambda: of_query(self._name, self.progress), progress):
            waited(self._processed)
        self._raise_problem()

    def _processed(self) -> None:
        try:
            self._query.process_all_available()
            while self.status == "running" and self._is_behind():  # sends that are made to wait
                time.sleep(0.02)
                self._query.process_all_available()
        except self._end_types as problem:
            self._gone(problem)

    def exception(self) -> Exception | None:
        """Return what made the query fail, naming operator, step and micro-batch."""
        problem = self._problem()
        return None if problem is None else self._as_error(problem)

    def _as_error(self, problem: BaseException) -> KrishivError:
        return lost_file(stack_trace(problem), self._name, self._ledger.notes.checkpoint) or failure(
            problem, f"query {self._name!r}"
        )

    def _raise_problem(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise self._as_error(problem) from cause(problem)

    def _problem(self) -> BaseException | None:
        """Return what ended it, as it came: an exception of ours or of a user's function rather than Spark's words for it."""
        if self._failure is not None or self._end == "stopped":
            return self._failure
        try:
            error: BaseException | None = self._query.exception()
        except self._gone_types as problem:
            self._gone(problem)
            return self._failure
        if self._halt.stopping.is_set() and self._halt.problem is None and BatchStoppedError.__name__ in str(error):
            return None  # the batch that stop() broke off ended before Spark heard of the stop
        return None if error is None else self._halt.problem or error

    def _gone(self, problem: Exception) -> None:
        """Remember that the JVM has gone, unless the query had ended before."""
        if self._end is None and is_gone(problem):
            self._failure, self._end = problem, "failed"

    def _fail(self, problem: KrishivError) -> None:
        """End it over a problem that is not one of Spark's; nothing, when it has ended."""
        if self.status == "running":
            self._failure, self._end = problem, "failed"
            self.stop()

    def stop(self) -> None:
        """Stop; a later start from the same checkpoint goes on. Stopping twice, or a query that failed, is harmless.

        A micro-batch that runs is broken off, and run again by whoever goes on. A function of yours that runs at that moment
        (sink, late handler) is waited for, as Python cannot break it off; called from there, ``stop()`` returns at once.
        """
        self._halt.stopping.set()
        call = Call(self._stop)
        if self._halt.thread == threading.get_ident():
            return
        waits = 0
        while not call.wait(_WAIT_S):
            self._cancel_jobs()
            waits += 1
            if waits == _WAITS_IN_SILENCE:
                warnings.warn(
                    f"query {self._name!r} is not stopped yet: a function of its sink or late handler still runs, or Spark is "
                    "busy; stop() waits for it. Hint: Ctrl-C ends the waiting",
                    RuntimeWarning,
                    stacklevel=2,
                )
        call.result()

    def _cancel_jobs(self) -> None:
        """Break off a job that began after the stop: while Spark plans a query, it may not see the stop."""
        with suppress(PySparkException, Py4JError, OSError):
            self._spark.sparkContext.cancelJobGroup(str(self._query.query.runId))

    def _stop(self) -> None:
        with self._ending:
            try:
                self._query.stop()
                if self._follow is not None:
                    self._follow.join()
                    self._query.stop()
                _ = self.status
            except self._gone_types as problem:
                if not is_gone(problem):
                    raise
                self._gone(problem)
            finally:
                self._cleanup()

    def state(self, stage: str | None = None) -> pa.Table:
        """Return the windows in state of the last `stage`, or of the one of this name, with their aggregates so far."""
        return read_state(self._spark, self._plan, self._ledger.notes, stage)

    def savepoint(self, path: PathLike) -> str:
        """Write a savepoint between two micro-batches: sources plan none while it is written."""
        folder = a_path(path, "path", "pass a new folder for the savepoint")
        checkpoint, until = self._ledger.notes.checkpoint, time.monotonic() + _QUIET_S
        while True:
            try:
                with self._held():
                    return save(self._spark, checkpoint, folder).folder
            except (WentOnError, UnfinishedError):
                if self.status != "running" or time.monotonic() > until:
                    raise
                time.sleep(_LOOK_S)

    @property
    def pending_keys(self) -> int:
        """Return how many keys have something in state, after the last finished micro-batch."""
        return count_keys(self._spark, self._plan, self._ledger.notes)

    def close_key(self, key: Any, stage: str | None = None) -> None:
        """Forget a `key` in the next micro-batch that reads rows, before it takes them in."""
        keys = keys_to_close(self._plan, key, stage)
        if self.status != "running":
            got, hint = f"{self._name}: {self.status}", "start it again from its checkpoint, and close the key then"
            raise OperatorError("the query does not run", got=got, hint=hint)
        request(self._ledger.notes.checkpoint, keys, durable=self._ledger.notes.durable)
        self._closing.set()
