"""The handle of a query that runs in this process, in a thread of its own."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sys
import threading
import time
import warnings
from typing import Any, Final, Literal

import attrs
import pyarrow as pa

from krishiv_py.api.subscription import Subscription, WhenSlow
from krishiv_py.display.progress import Show, of_query, shown
from krishiv_py.engine.closing import keys_of, keys_to_close
from krishiv_py.errors import KrishivError, OperatorError, PlanError, failure_text, own_type
from krishiv_py.failures.transient import verdict
from krishiv_py.in_process import savepoints
from krishiv_py.in_process.engine import Engine
from krishiv_py.in_process.lookup import KeyIndexes
from krishiv_py.in_process.outputs import LastResults
from krishiv_py.plan.checks import MOST_ROWS, PathLike, a_number, a_path, one_of, wait_us
from krishiv_py.plan.durations import Duration, TimePoint, time_point_us, to_us
from krishiv_py.runtime.query import RunningQuery, holding

_LONG_S: Final = 5.0
"""After so long, stop() says what it waits for."""
_LIBRARY: Final = os.path.dirname(os.path.dirname(__file__))
_PYTHON: Final = os.path.dirname(threading.__file__)
_SLICE_S: Final = 0.1
"""Ctrl-C is noticed so often while somebody waits."""


@attrs.define(eq=False, repr=False, slots=False)
class ProcessQuery(RunningQuery):
    """Implements :class:`krishiv_py.api.query.Query` over an :class:`~krishiv_py.in_process.engine.Engine`."""

    _engine: Engine
    _indexes: dict[int, KeyIndexes] = attrs.field(factory=dict, init=False)
    _problem: BaseException | None = attrs.field(default=None, init=False)
    _over: threading.Event = attrs.field(factory=threading.Event, init=False)
    _ending: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _left: bool = attrs.field(default=False, init=False)
    _thread: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._thread = threading.Thread(target=self._run, name=f"krishiv-{self._name}", daemon=True)

    def _begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _give_up(self) -> None:
        """End without having begun."""
        self._engine.end(whole=False)
        self._end()

    def _run(self) -> None:
        try:
            self._engine.run()
        except BaseException as problem:  # noqa: BLE001  # whatever user code raises is the query's end
            self._problem = problem
        finally:
            try:
                self._engine.end(whole=self._problem is None)
            except BaseException as problem:  # noqa: BLE001
                self._problem = self._problem or problem
            finally:
                self._end()

    def _end(self) -> None:
        """Let go of the checkpoint, once."""
        with self._ending:
            if self._over.is_set():
                return
            try:
                waiting = {} if self._left else self._ledger.backlog()
                self._ledger.backlog = lambda: waiting  # the checkpoint may go now
                self._cleanup()
            except BaseException as problem:  # noqa: BLE001  # the query is over all the same; a lease runs out by itself
                warnings.warn(f"query {self._name!r} has ended, and {failure_text(problem)}", RuntimeWarning, stacklevel=2)
            finally:
                self._over.set()
                self._engine.subscribers.end(self.exception())

    @property
    def id(self) -> str:
        """The id of the query, kept across restarts from one checkpoint."""
        return self._engine.query_id

    @property
    def status(self) -> Literal["running", "stopped", "failed"]:
        """``running``, ``stopped`` or ``failed``; in a process that was forked no thread runs it."""
        if not self._over.is_set() and (self._thread.is_alive() or self._thread.ident is None):
            return "running"
        return "stopped" if self._problem is None else "failed"

    def _check_other_thread(self, what: str) -> None:
        if threading.current_thread() is self._thread:
            hint = "call it from another thread"
            raise OperatorError(f"{what}: a query cannot wait for itself", got="a call from its own sink or handler", hint=hint)

    def await_termination(self, timeout: dt.timedelta | str | None = None) -> bool:
        """Wait for the end; True when it came. Ctrl-C ends the waiting, not the query.

        Raises
        ------
        KrishivError
            What made the query fail: an error of ours as it was raised, else an :class:`~krishiv_py.errors.OperatorError`.
        """
        self._check_other_thread("await_termination()")
        if timeout is not None:
            if not self._over.wait(wait_us(timeout, "timeout") / 1_000_000):
                return False
        else:
            while not self._over.wait(_SLICE_S) and self.status == "running":
                pass
        self._raise_problem()
        return True

    def process_all_available(self, *, progress: Show = False) -> None:
        """Wait until everything sent so far is processed and the query is idle, with or without a `progress` line.

        Ctrl-C ends the waiting, not the query. Raises as :meth:`await_termination`; returns at once when the query is over.
        """
        self._check_other_thread("process_all_available()")
        with shown(lambda: of_query(self._name, self.progress), progress):
            done = self._engine.process_available()
            while self.status == "running" and not done.wait(_SLICE_S):
                pass
            while self._problem is not None and self.status == "running":  # who sees the failure may start it again at once
                self._over.wait(_SLICE_S)
        self._raise_problem()

    def exception(self) -> Exception | None:
        """Return what made the query fail, naming operator, step and micro-batch."""
        problem = self._problem
        if problem is None:
            return None
        kind = own_type(type(problem)) if isinstance(problem, KrishivError) else OperatorError
        said = str(problem) if isinstance(problem, KrishivError) else failure_text(problem)
        where = "" if "batch " in said else f"batch {self._engine.core.batch_id}: "
        error = kind(f"query {self._name!r} failed: {where}{said}")
        error._verdict = verdict(problem)
        if error._verdict == "unknown" and self._engine.repeats:  # it failed there in an earlier run, too
            error._verdict = "lasting"
        return error

    def _raise_problem(self) -> None:
        problem = self.exception()
        if problem is not None:
            raise problem from self._problem

    def _fail(self, problem: KrishivError) -> None:
        """End the query with a problem that was met between its batches."""
        self._problem = self._problem or problem
        self._engine.stopping.set()
        self._engine.woken.set()

    def stop(self) -> None:
        """Stop the query when the batch in hand is finished; a later start from the same checkpoint continues it.

        A source that does not say what there is to read is left after a few seconds, with a warning. Where a batch takes long,
        a warning says where it is; Ctrl-C ends the waiting.
        """
        self._engine.stopping.set()
        self._engine.woken.set()
        if self._thread is threading.current_thread():
            return
        until, is_long = time.monotonic() + _LONG_S, False
        while self._thread.is_alive() and not self._over.is_set():
            self._thread.join(_SLICE_S)
            if is_long or time.monotonic() < until or not self._thread.is_alive():
                continue
            is_long, where = True, self._place()
            if self._engine.leave():
                self._left = True
                warnings.warn(
                    f"query {self._name!r} was stopped while {where} did not return: it keeps its thread until it does",
                    RuntimeWarning,
                    stacklevel=2,
                )
                self._end()
            else:
                text = f"query {self._name!r} stops when its batch is finished, which is in {where}; Ctrl-C ends the waiting"
                warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _place(self) -> str:
        """Return where the thread of the query is: the innermost function that is not of the library or of Python."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        innermost, place = frame, None
        while frame is not None and place is None:
            if not frame.f_code.co_filename.startswith((_LIBRARY, _PYTHON, "<")):
                place = frame
            frame = frame.f_back
        place = place or innermost
        if place is None:
            return "its last step"
        return f"{place.f_code.co_name}() ({place.f_code.co_filename}, line {place.f_lineno})"

    def state(self, stage: str | None = None) -> pa.Table:
        """Return the windows in state of the last `stage`, or of the one of this name, with their aggregates so far."""
        number = self._plan.stage_called(stage)
        with self._engine.between_batches():
            return self._engine.core.stages[number].state()

    def lookup(
        self,
        key: Any,
        *,
        window: TimePoint | None = None,
        stage: str | None = None,
        last: int | None = None,
        max_age: Duration = "10 s",
    ) -> pa.Table:
        """Return the open windows of one key, or of a list of keys, or their `last` results, of the last finished batch."""
        sent = not to_us(max_age, "max_age", allow_zero=True)
        if sent:
            self._check_other_thread("lookup(max_age=0)")
        number = self._plan.stage_called(stage)
        at_us = None if window is None else time_point_us(window, "window")
        if last is not None:
            results = self._last_results(number)
            if not results.most_rows:
                hint = "leave it out of the session's options, or read the sink"
                raise PlanError("results that have left are not in memory", got="lookup_results=0", hint=hint)
            a_number(last, "last", 1, "write last=1 for the newest result of each key", most=results.most_rows)
            keys = keys_of(results.stage.stage, key)
            with self._engine.between_batches(sent=True) if sent else contextlib.nullcontext():
                return results.of(keys, last, at_us)
        with self._engine.between_batches(sent=sent):
            indexes = self._indexes.get(number)
            if indexes is None or indexes.stage is not self._engine.core.stages[number]:
                indexes = self._indexes[number] = KeyIndexes(self._engine.core.stages[number])
            rows = indexes.open_windows(keys_of(indexes.stage.stage, key))
        return rows if at_us is None else holding(rows, at_us, indexes.stage.spec)

    def subscribe(self, output: str | None = None, *, buffer: int = 100_000, when_slow: WhenSlow = "fail") -> Subscription:
        """Return what the query gives from now on, batch by batch."""
        self._check_other_thread("subscribe()")
        name = self._rows.output_called(output, "subscribe()")
        rows = a_number(buffer, "buffer", 1, "write buffer=100_000, the number of rows that may wait", most=MOST_ROWS)
        one_of(when_slow, "when_slow", ("fail", "drop"))
        one = Subscription(rows, when_slow)
        self._engine.subscribers.add(name, one)
        return one

    def _last_results(self, number: int) -> LastResults:
        """Return the results that left the query of a stage."""
        named = [output.name for output in self._plan.outputs if output.stage == number]
        if not named:
            what = "results of this stage go to the next one, and none leave the query"
            hint = "leave `stage` out, or name the last one before an output"
            raise PlanError(what, got=self._plan.stages[number].spec.name, hint=hint)
        return self._engine.last[named[0]]

    @property
    def pending_keys(self) -> int:
        """Return the number of keys that have something in state, after the last finished micro-batch."""
        with self._engine.between_batches():
            return sum(stage.held_keys for stage in self._engine.core.stages)

    def savepoint(self, path: PathLike) -> str:
        """Write a savepoint between two micro-batches; gives its folder."""
        folder = a_path(path, "path", "pass a new folder for the savepoint")
        self._check_other_thread("savepoint()")
        with self._engine.between_batches():
            return savepoints.save(self._ledger.notes.checkpoint, folder).folder

    def close_key(self, key: Any, stage: str | None = None) -> None:
        """Forget a `key` in the next micro-batch, before it takes rows in."""
        keys = keys_to_close(self._plan, key, stage)
        if self.status != "running":
            got, hint = f"{self._name}: {self.status}", "start it again from its checkpoint, and close the key then"
            raise OperatorError("the query does not run", got=got, hint=hint)
        self._engine.close_keys(keys)
