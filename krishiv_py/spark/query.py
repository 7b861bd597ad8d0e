"""The handle of a running query."""

from __future__ import annotations

import datetime as dt
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, ClassVar, Final, Literal

import attrs
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from krishiv_py.display.progress import Show, of_query, shown
from krishiv_py.engine.closing import keys_to_close
from krishiv_py.errors import EnvironmentSetupError, KrishivError, OperatorError
from krishiv_py.failures.retrying import Backoff
from krishiv_py.plan.checks import PathLike, a_path, wait_us
from krishiv_py.runtime.batch import BatchStoppedError, StopReason
from krishiv_py.runtime.checkpoint.sparklog import gone_checkpoint, is_back, lost_file
from krishiv_py.runtime.closings import request
from krishiv_py.runtime.query import RunningQuery
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
_STEADY_S: Final = 5
"""So long a query has to run that was started again, to have found what was away."""


def as_error(problem: BaseException, name: str, checkpoint: str, *, is_stopped: bool = False) -> KrishivError:
    """Return the error of ours for what ended the query of this `name`; one that `is_stopped` has no temporary checkpoint."""
    lost = None if is_stopped else gone_checkpoint(name, checkpoint)
    lost = lost or lost_file(stack_trace(problem), name, checkpoint)
    error = lost or failure(problem, f"query {name!r}")
    if not error.transient and is_back(str(error)):
        error._verdict = "transient"
    return error


class SparkQueryHandle:
    """Stands for Spark's ``StreamingQuery`` where a query is waited for, asked and stopped.

    Spark ends a query over what is away, as the store of its checkpoint. Then the query is started again from there, within
    the limit for all that is away. A thread does that, so a query nobody asks about goes on as well.

    On a machine without a free core, or with a slow disk, a process may take longer to begin than Spark waits for it. No row
    was read by then, so the query is started again twice in any case.

    Parameters
    ----------
    start : callable
        Starts Spark's query.
    name : str
        The name of the query, for warnings.
    limit_s : float
        For how long it is started again after a first failure, s.
    passing : callable
        Gives the error for what ended it, if a start may help.
    note : callable
        Gets what is away, and an empty text when it is back.
    prepare : callable
        Called before it is started again.
    """

    def __init__(
        self,
        start: Callable[[], StreamingQuery],
        name: str,
        limit_s: float = 0.0,
        passing: Callable[[BaseException], KrishivError | None] = lambda problem: None,
        note: Callable[[str], None] = lambda trouble: None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._start, self._name, self._passing, self._note, self._prepare = start, name, passing, note, prepare
        self._limit_s, self._backoff = limit_s, Backoff(limit_s)
        self._left = _TIMES
        self._changed = threading.Condition()
        self._starting = threading.Lock()
        self._stopped = threading.Event()
        self._waits = self._is_over = False
        self.query: StreamingQuery = start()
        """Spark's own handle, of the latest start."""
        threading.Thread(target=self._watch, name=f"{name}-launched", daemon=True).start()

    def is_active(self) -> bool:
        """Return whether it runs, or is to be started again."""
        query = self.query
        return bool(query.isActive) or (not self._stopped.is_set() and not self._has_ended(query))

    def await_termination(self) -> None:
        """Wait for its end, and raise what made it fail."""
        self._tried(lambda query: query.awaitTermination())

    def process_all_available(self) -> None:
        """Wait until what there is was processed, and raise what made it fail."""
        self._tried(lambda query: query.processAllAvailable())

    def exception(self) -> StreamingQueryException | None:
        """Return what made it fail; nothing where it was stopped before it was to be started again."""
        query = self.query
        error = query.exception()
        if error is None:
            return None
        ended = not self._waits if self._stopped.is_set() else self._has_ended(query)
        return error if ended else None

    def stop(self) -> None:
        """Stop it; it is not started again."""
        self._stopped.set()
        with self._starting:
            self.query.stop()

    def _tried(self, call: Callable[[StreamingQuery], object]) -> None:
        while True:
            query = self.query
            try:
                call(query)
            except StreamingQueryException:
                with self._changed:
                    self._changed.wait_for(partial(self._is_decided, query))
                if self.query is query:
                    raise
            else:
                return

    def _has_ended(self, query: StreamingQuery) -> bool:
        """Return whether no other query follows this one, which has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._waits or self._is_decided(query))
            return self._is_over

    def _is_decided(self, query: StreamingQuery) -> bool:
        return self._is_over or self.query is not query

    def _watch(self) -> None:
        try:
            while True:
                query = self.query
                with suppress(PySparkException, Py4JError, OSError):  # reported to whoever waits for the query
                    if not self._is_back(query):
                        query.awaitTermination()
                if not self._went_on(query):
                    return
        finally:
            with self._changed:
                self._is_over, self._waits = True, self._waits and self._stopped.is_set()
                self._changed.notify_all()

    def _is_back(self, query: StreamingQuery) -> bool:
        """Return whether a query has ended; one that was started again, and runs for a while, has found what was away."""
        if not self._backoff.failed:
            return False
        if query.awaitTermination(_STEADY_S):
            return True
        self._is_fine()
        return False

    def _is_fine(self) -> None:
        if self._backoff.failed:
            self._backoff.over()
            self._note("")

    def _went_on(self, query: StreamingQuery) -> bool:
        """Start another query in the place of this one, which has ended, where that may help; return whether there is one."""
        try:
            problem: BaseException | None = query.exception()
            is_slow = problem is not None and _SLOW in str(problem) and query.lastProgress is None
            if problem is not None and query.lastProgress is not None:
                self._is_fine()
        except (PySparkException, Py4JError, OSError):
            return False
        while problem is not None and not self._stopped.is_set():
            pause_s = self._pause_s(problem, is_slow=is_slow)
            if pause_s is None:
                return False
            with self._changed:
                self._waits = True
                self._changed.notify_all()
            self._stopped.wait(pause_s)
            with self._starting:
                if self._stopped.is_set():
                    return False
                try:
                    self._prepare()
                    started = self._start()
                except (KrishivError, PySparkException, Py4JError, OSError) as again:
                    problem, is_slow = again, False
                    continue
                with self._changed:
                    self.query, self._waits = started, False
                    self._changed.notify_all()
            return True
        return False

    def _pause_s(self, problem: BaseException, *, is_slow: bool) -> float | None:
        """Return how long to wait before the next start, and say that there is one; None where it would not help."""
        if is_slow and self._left:
            self._left -= 1
            warnings.warn(
                f"query {self._name!r}: Spark gave up waiting for a Python process to begin (10 s), before the first batch; "
                "the query is started again from its checkpoint. Hint: leave a core and some memory free",
                RuntimeWarning,
                stacklevel=2,
            )
            return 0.0
        error = failure(problem, f"query {self._name!r}") if is_slow else self._passing(problem)
        if error is None:
            return None
        is_first = not self._backoff.failed
        pause_s = self._backoff.pause_s(time.monotonic())
        if pause_s is not None:
            self._note(str(error))
            if is_first:
                text = f"query {self._name!r} tries again for {self._limit_s:g} s, from its checkpoint: {error}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        return pause_s


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


@attrs.define(eq=False, repr=False, slots=False)
class StreamQuery(RunningQuery):
    """Implements :class:`krishiv_py.api.query.Query` over a Spark ``StreamingQuery``; those of `then` follow it."""

    _gone_types: ClassVar[tuple[type[Exception], ...]] = (Py4JError, OSError)
    """Errors that are raised where nobody answers."""
    _end_types: ClassVar[tuple[type[Exception], ...]] = (StreamingQueryException, Py4JError, OSError)
    """That, and Spark's word of a query that failed."""

    _query: SparkQueryHandle
    _then: Sequence[Callable[[], SparkQueryHandle]]
    _halt: StopReason
    _spark: SparkSession
    _is_behind: Callable[[], bool]
    _closing: threading.Event
    _held: Callable[[], AbstractContextManager[Any]] = nullcontext
    _id: str = attrs.field(init=False)
    _ending: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _end: Literal["stopped", "failed"] | None = attrs.field(default=None, init=False)
    _failure: Exception | None = attrs.field(default=None, init=False)
    _follow: threading.Thread | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._id = str(self._query.query.id)
        if self._then:
            self._follow = threading.Thread(target=self._go_on, name=f"{self._name}-flush", daemon=True)
            self._follow.start()

    def _go_on(self) -> None:
        """Let the end of the input there was fire what is still open."""
        for follow in self._then:
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
        is_stopped = self._halt.stopping.is_set()
        error = as_error(problem, self._name, self._ledger.notes.checkpoint, is_stopped=is_stopped)
        if error._verdict == "unknown" and self._halt.repeats:
            error._verdict = "lasting"
        return error

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
