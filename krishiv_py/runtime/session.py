"""The part of a session that every engine shares: their handles, temporary folders, the clock, the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import attrs
import pyarrow as pa

from krishiv_py.api.query import QueryStart
from krishiv_py.api.session_options import DurabilityProfile
from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.files import folder_of
from krishiv_py.engine.closing import why_text
from krishiv_py.errors import PlanError, SessionClosedError
from krishiv_py.failures.retrying import RETRY_S, retried
from krishiv_py.kernels.spec import Moment
from krishiv_py.kernels.watermark import Clocks, no_such_source
from krishiv_py.plan.durations import TimePoint
from krishiv_py.plan.nodes import MemorySource, SourceNode
from krishiv_py.plan.options.query import Batches, StartPoint
from krishiv_py.plan.options.watermarks import RowsClock
from krishiv_py.planner.physical import Engine, PhysicalPlan
from krishiv_py.planner.places import check_places
from krishiv_py.planner.why import QueryProgress
from krishiv_py.runtime.beginning import changes_against, prepare_beginning
from krishiv_py.runtime.checkpoint.lease import OpenedCheckpoint, make_private, take, writable_checkpoint
from krishiv_py.runtime.checkpoint.notes import Target, check_engine, check_goes_on
from krishiv_py.runtime.checkpoint.sparklog import trim
from krishiv_py.runtime.outputs import Owner, check_there, late_sinks, take_sinks
from krishiv_py.runtime.query import RunningQuery
from krishiv_py.runtime.savepoints import Savepoint
from krishiv_py.storage.ending import runners, stop_at_end
from krishiv_py.storage.local import absolute, new_folder, remove_leftovers
from krishiv_py.storage.sends.log import wall_clock_us

Q = TypeVar("Q", bound=RunningQuery)


@attrs.frozen
class CheckpointProgress:
    """Says how far a query of a checkpoint is: what is in force, the watermark of each source, and when it last moved."""

    moment: Moment
    sources_us: Mapping[str, int]
    moved_us: Mapping[str, int]


@attrs.frozen(eq=False)
class QueryRun:
    """The start of a query whose checkpoint is open: what engines take.

    Attributes
    ----------
    plan : PhysicalPlan
        What runs, as it goes on from the checkpoint.
    sinks : tuple of Sink
        Where results go.
    batches : Batches
        When batches are planned.
    title : str
        The name of the query.
    opened : OpenedCheckpoint
        Its checkpoint, and the right to it.
    now : callable
        Processing time, µs since the epoch.
    retry_s : float
        For how long what is away is tried again, s.
    cleanup : callable
        Lets go of the checkpoint once the query has ended.
    """

    plan: PhysicalPlan
    sinks: tuple[Sink, ...]
    batches: Batches
    title: str
    opened: OpenedCheckpoint
    now: Callable[[], int]
    retry_s: float
    cleanup: Callable[[], None]

    @property
    def checkpoint(self) -> str:
        """Return the folder of its checkpoint."""
        return self.opened.checkpoint

    @property
    def durable(self) -> bool:
        """Return whether what is noted must survive a loss of power."""
        return self.opened.durable


class SessionRunner(Generic[Q]):
    """Base of what runs the queries of a session.

    Attributes
    ----------
    profile : str
        What survives a loss of power.
    clock : callable
        Processing time, µs since the epoch.
    queries : list
        The handles of its queries.
    watchers : list of callable
        Called with each query that has started.
    retry_s : float
        For how long what is away is tried again, s.
    rows_clock : {"batch", "row"}
        What rows are classified by where a watermark does not say it.
    """

    engine: Engine | None = None
    """The engine that runs its plans; None where it depends on how they are run."""
    save_for_spark: Callable[[str, str, int | None], Savepoint] | None = None
    """Writes the state of a checkpoint of Spark, after a batch or at its end, as a savepoint; None where there is no Spark."""
    target: ClassVar[Target]
    """The engine, as a checkpoint names it."""
    folders: ClassVar[tuple[str, ...]]
    """The folders that its checkpoints have."""
    sends_in_segments: ClassVar[bool] = False
    """True where memory streams of its sessions begin in segments, which Spark itself cannot read."""

    def __init__(self, profile: DurabilityProfile) -> None:
        self.profile: DurabilityProfile = profile
        self.clock: Callable[[], int] = wall_clock_us
        self.queries: list[Q] = []
        self.watchers: list[Callable[[Q], None]] = []
        self.retry_s = RETRY_S
        self.rows_clock: RowsClock = "batch"
        self._folder: str | None = None
        self._stopped, self._pid = False, os.getpid()
        self._changing = threading.Lock()
        remove_leftovers()
        stop_at_end(self)

    def folder(self, name: str) -> str:
        """Return a new temporary folder that goes with the session."""
        return self._new_path(name, make=True)

    def check_open(self, what: str) -> None:
        """Refuse a call `what` of a session that was stopped.

        Raises
        ------
        SessionClosedError
            Always, once it is.
        """
        if self._stopped:
            raise SessionClosedError(f"{what} on a session that is over", got="a stopped one", hint="make a new session")

    def _new_path(self, name: str, make: bool = False) -> str:
        with self._changing:  # a stop removes the folder that it is in
            self.check_open(f"a new folder for the {name}")
            if self._folder is None or not Path(self._folder).is_dir():
                self._folder = new_folder("session")
            path = Path(self._folder) / f"{name}-{uuid.uuid4().hex[:8]}"
            if make:
                path.mkdir()
            return str(path)

    @property
    def ended(self) -> bool:
        """Return whether the session was stopped."""
        return self._stopped

    @property
    def _forked(self) -> bool:
        """Return whether this is another process than the one that made the session."""
        return os.getpid() != self._pid

    def _check_name(self, name: str | None) -> None:
        if name is not None and any(q.name == name and q.status == "running" for q in self.queries):
            then = "the library cannot distinguish the two, which might share a checkpoint"
            hint = "stop() it first, or start this one under another name; session.queries has the running ones"
            raise PlanError(f"a query named {name!r} runs already", got="the name of a running query", then=then, hint=hint)

    def start(self, start: QueryStart) -> Q:
        """See :class:`~krishiv_py.api.query.Runner`; tried again while something is away."""

        def attempt() -> Q:
            try:
                return self._start(start)
            except Exception:
                self.check_open("start()")  # a stop meanwhile has removed folders that the start was in
                raise

        return retried(attempt, self.retry_s, f"the start of {start.name or start.plan.title}")

    def _start(self, start: QueryStart) -> Q:
        """Start a query, or leave nothing of it."""
        self._alive("start()")
        self._check_name(start.name)
        start = self._checked(start)
        opened = self._opened(start)

        def cleanup() -> None:
            opened.lease.release()
            if start.checkpoint is None:
                shutil.rmtree(opened.checkpoint, ignore_errors=True)

        owner = Owner(start.title, opened.checkpoint)
        try:
            take_sinks(owner, *start.sinks, *late_sinks(start.plan))
            if start.begin is not None:
                with writable_checkpoint(opened.checkpoint):
                    self._begin_from(start.begin, start.plan, opened.checkpoint)
            plan = self._going_on(start.plan, opened)
            run = QueryRun(plan, start.sinks, start.batches, start.title, opened, lambda: self.clock(), self.retry_s, cleanup)
            query = self._started(run)
            owner.of(query)
            opened.lease.running, opened.lease.on_lost = owner.running, query._fail
            try:
                self._add(query)
            except SessionClosedError:
                query._give_up()
                raise
        except BaseException:
            owner.running = lambda: False
            cleanup()
            self.check_open("start()")  # whatever failed: the folders of the session went meanwhile
            raise
        return query

    def check_reachable(self, paths: Iterable[str]) -> None:
        """See that the stores of some paths answer."""
        raise NotImplementedError

    def as_own(self, what: str) -> AbstractContextManager[None]:
        """Let what the engine raises in a call `what` come out as an error of ours."""
        return contextlib.nullcontext()

    def new_buckets(self) -> int:
        """Return in how many buckets Spark keeps the state of a new query."""
        raise NotImplementedError

    def _alive(self, what: str) -> None:
        """Refuse a call `what` of a session that is over, or in a process that was forked."""
        raise NotImplementedError

    def _checked(self, start: QueryStart) -> QueryStart:
        """Refuse what the engine cannot run; gives what it runs."""
        raise NotImplementedError

    def _opened(self, start: QueryStart) -> OpenedCheckpoint:
        """Take the checkpoint of a query, or a temporary one.

        Raises
        ------
        PlanError
            When folders of the query are one, or lie in each other, or where not every task finds them.
        CheckpointError
            While another query runs from the checkpoint.
        EnvironmentSetupError
            When an object store or HDFS does not answer.
        """
        home = None if start.checkpoint is None else absolute(start.checkpoint).rstrip("/")
        sinks, late, source = start.sinks, tuple(late_sinks(start.plan)), start.plan.source
        check_places(sinks[0], late[-1], source, home, late[:-1], sinks[1:])
        written = [folder for folder in map(folder_of, (*sinks, *late)) if folder is not None]
        self._check_stores(home, written, source)
        where = self.folder("checkpoint") if home is None else home
        with writable_checkpoint(where):
            if start.begin is not None:
                prepare_beginning(start.begin, where)
            check_goes_on(where)
            check_engine(where, self.target)
            check_there(where, (*sinks, *late), is_new=start.begin is not None)
            make_private(where, self.folders)
        self._check_tasks(where, written, source)
        with writable_checkpoint(where):
            lease = take(where, start.title)
        return OpenedCheckpoint(where, lease, home is not None and self._durable)

    def _check_stores(self, checkpoint: str | None, written: Sequence[str], source: SourceNode) -> None:
        """See that a query can be run in its folders: the `checkpoint`, and those it has `written`."""
        raise NotImplementedError

    def _check_tasks(self, checkpoint: str, written: Sequence[str], source: SourceNode) -> None:
        """See that tasks find the folders of a query, where they run elsewhere."""

    @property
    def _durable(self) -> bool:
        """Return whether what a query notes must survive a loss of power."""
        return self.profile != "dev-local"

    def _begin_from(self, begin: StartPoint, plan: PhysicalPlan, checkpoint: str) -> None:
        """Make a checkpoint of a savepoint."""
        raise NotImplementedError

    def _going_on(self, plan: PhysicalPlan, opened: OpenedCheckpoint) -> PhysicalPlan:
        """Return a plan with what its checkpoint has carried into it."""
        raise NotImplementedError

    def _started(self, run: QueryRun) -> Q:
        """Let the engine start a query."""
        raise NotImplementedError

    def _add(self, query: Q) -> None:
        """Let a query begin, keep its handle, and forget those that have ended.

        Raises
        ------
        SessionClosedError
            Where the session was stopped meanwhile: nobody would stop the query.
        """
        with self._changing:
            self.check_open("start()")
            query._begin()
            self.queries = [*(q for q in self.queries if q.status == "running"), query]
        for watcher in list(self.watchers):
            watcher(query)

    def read_state(self, plan: PhysicalPlan, checkpoint: str, stage: str | None = None) -> pa.Table:
        """Return the state of a stage of the query of a checkpoint."""
        raise NotImplementedError

    def standing(self, plan: PhysicalPlan, checkpoint: str) -> CheckpointProgress:
        """Return how far the query of a checkpoint is."""
        raise NotImplementedError

    def why(self, plan: PhysicalPlan, checkpoint: str, key: Any, time: TimePoint | None, stage: str | None) -> str:
        """Say what became of a key at a time in the query of a checkpoint."""
        try:
            state = self.read_state(plan, checkpoint, stage)
        except PlanError:  # rows that are kept without aggregates have no table
            state = None
        reached = self.standing(plan, checkpoint)
        stage_plan = plan.stages[plan.stage_called(stage)]
        now = QueryProgress(
            reached.moment.at(stage_plan.times).watermark_us, reached.sources_us, reached.moved_us, self.clock()
        )
        return why_text(plan, stage_plan, now, key, time, lambda: state, None)

    def against(self, plan: PhysicalPlan, folder: str, bootstrap: Iterable[str]) -> str:
        """See :class:`~krishiv_py.api.query.Runner`."""
        return "\n".join(map(str, changes_against(folder, plan, bootstrap)))

    def check_source(self, spool: str, source: str) -> None:
        """Refuse the name of a source that no query has which reads a memory stream; without such a query any name may do.

        Raises
        ------
        PlanError
            Naming the sources that there are.
        """
        plans = [query._plan for query in self.queries if query.status == "running"]
        of_stream = [(p, r) for p in plans for r in p.reads if isinstance(r.source, MemorySource) and r.source.spool == spool]
        if of_stream and not any(plan.follows(source, read) for plan, read in of_stream):
            raise no_such_source(source, [name for plan, _ in of_stream for name in Clocks(plan.clocks).reached])

    def trim(self, spool: str) -> int:
        """Remove the sends of a memory stream that no query will read again."""
        return trim(spool)

    def stops(self) -> list[Callable[[], None]]:
        """See :class:`~krishiv_py.storage.ending.Stops`."""
        return [query.stop for query in self.queries]

    def stop(self) -> None:
        """Stop all queries, and remove temporary folders."""
        with contextlib.nullcontext() if self._forked else self._changing:  # a fork may have a lock that nobody opens
            self._stopped = True
            queries = list(self.queries)
        if self._forked:
            return
        try:
            for query in queries:
                if query.status == "running":
                    query.stop()
        finally:
            self.queries.clear()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None


def sessions_of_process() -> list[SessionRunner[Any]]:
    """Return what runs the sessions of this process that were not stopped, also of those that the program has dropped."""
    return [runner for runner in runners() if isinstance(runner, SessionRunner) and not runner.ended]


def check_kept(profile: DurabilityProfile, checkpoint: str | None) -> None:
    """Refuse to run without a checkpoint where the profile promises that a query survives."""
    if checkpoint is None and profile != "dev-local":
        raise PlanError(f"profile {profile!r} needs a checkpoint", got="None", hint='pass start(..., checkpoint="...")')
