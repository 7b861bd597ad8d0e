"""Lease, plan and publish a micro-batch in a process of the server (Spark Connect).

The client holds a lease of its own while it lives, the process of the server another one. A client that was killed leaves its
query running, because nobody stops the server: the query that goes on from the checkpoint makes that process stop first, and
waits for it.

Spark Connect runs the function of ``foreachBatch`` in a Python process next to the server, from a pickled copy. So the copy has
values only, and what a driver keeps (locks, ledger, open sinks, threads) is made there, when the copy is unpickled: that is
before the query begins, so what goes wrong is raised by ``start()``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

import attrs
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.connect.session import SparkSession

from krishiv_py.connectors.ranges import RangeSource, next_ranges
from krishiv_py.connectors.sink import Sink
from krishiv_py.errors import RAISED, CheckpointError, EnvironmentSetupError, KrishivError, PlanError, failure_text
from krishiv_py.failures.retrying import RunningRetries
from krishiv_py.plan.options.late import LateEventHandler
from krishiv_py.plan.options.query import Batches
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.checkpoint.lease import Lease, OpenedCheckpoint, take
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.checkpoint.sparklog import batches_of, offsets_of
from krishiv_py.runtime.clocks import clock_for
from krishiv_py.runtime.controls import ControlFiles, ControlFolder
from krishiv_py.runtime.outputs import check_outputs
from krishiv_py.runtime.query import BucketMetrics
from krishiv_py.runtime.ranges.folders import FolderSource
from krishiv_py.runtime.ranges.log import RangeLog, names_of
from krishiv_py.runtime.ranges.planning import RangePlanner, logged
from krishiv_py.runtime.ranges.sent import SentSource
from krishiv_py.runtime.session import QueryRun
from krishiv_py.spark.remote.rows import ClientHandler, ClientRows, note_failure
from krishiv_py.spark.storage import ShuffleFiles
from krishiv_py.spark.streaming import BatchSteps, steps_of
from krishiv_py.spark.tasks.pack import batch_setting
from krishiv_py.storage.files import is_local_path, store_at
from krishiv_py.storage.store import Store
from krishiv_py.version import __version__

SERVER: Final = "server-"
_POLL_S: Final = 0.1
_LOOK_S: Final = 1.0
_LOOK_STORE_S: Final = 5.0
_PARENT_S: Final = 0.5
_WAIT_S: Final = 2.0
"""The seconds a process may take to end before a file tells it to."""
_END_S: Final = 150.0
"""For how long whoever goes on waits for another process to end: longer than a note without renewal is good."""


def take_server(checkpoint: str, query: str, wait_s: float = _END_S) -> Lease:
    """Take the right of the server's process, which an earlier one may have still.

    Raises
    ------
    CheckpointError
        When that one does not end.
    """
    began = time.monotonic()
    requested = False
    while True:
        try:
            lease = take(checkpoint, query, SERVER)
        except CheckpointError:
            waited = time.monotonic() - began
            if waited > wait_s:
                raise
            if waited > _WAIT_S and not requested:
                _ask(checkpoint)
                requested = True
            time.sleep(_POLL_S)
            continue
        _unask(checkpoint)
        return lease


@contextlib.contextmanager
def server_at_rest(checkpoint: str, query: str) -> Iterator[None]:
    """For the time of the body no process of a server runs from the checkpoint."""
    lease = take_server(checkpoint, query)
    try:
        yield
    finally:
        lease.release()


def await_end(checkpoint: str, query: str, wait_s: float) -> None:
    """Wait a while until the server's process ends, which has to stop."""
    with contextlib.suppress(CheckpointError, OSError):
        take_server(checkpoint, query, min(wait_s, _WAIT_S)).release()


def heed(checkpoint: str, stop: Callable[[], None]) -> None:
    """In the server's process: `stop` when somebody asks for it."""

    def look() -> None:
        wait = _LOOK_S if is_local_path(checkpoint) else _LOOK_STORE_S
        store, path = _asking(checkpoint)
        while True:
            time.sleep(wait)
            with contextlib.suppress(OSError):
                if store.read(path) is not None:
                    stop()

    threading.Thread(target=look, name="krishiv-stop", daemon=True).start()


def end_with_parent() -> None:
    """In the server's process: end when the JVM that began this process has ended, however that was.

    A batch in hand would go on asking that JVM for minutes, and hold the right to the checkpoint meanwhile. It is as good as
    killed: whoever goes on runs the batch again.
    """
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_S)
        os._exit(1)

    threading.Thread(target=look, name="krishiv-parent", daemon=True).start()


def query_id(checkpoint: str) -> str | None:
    """Spark's id of the query of a checkpoint."""
    store, root = store_at(checkpoint)
    data = store.read(f"{root}/metadata")
    return None if data is None else str(json.loads(data)["id"])


def _asking(checkpoint: str) -> tuple[Store, str]:
    return store_at(f"{checkpoint}/krishiv/server-stop")


def _ask(checkpoint: str) -> None:
    store, path = _asking(checkpoint)
    store.write(path, b"{}")


def _unask(checkpoint: str) -> None:
    store, path = _asking(checkpoint)
    store.delete(path)


Planning = Literal["one by one", "all there is", "no more"]
"""The moment to plan on the server: while the query runs, once before it, or never, as an earlier run has planned all."""
NO_MORE: Final = "no more"
_AGAIN_S: Final = 0.5


def planning_of(batches: Batches) -> Planning:
    """Return how the first run of a query plans."""
    return "all there is" if batches.kind == "available_now" else "one by one"


def open_logs(plan: PhysicalPlan, checkpoint: str, *, durable: bool) -> dict[int, RangeSource]:
    """In the client: the sources that have a log, which is there before Spark looks at it.

    Raises
    ------
    CheckpointError
        When one of the logs is damaged.
    """
    logs = {}
    for number, read in enumerate(plan.reads):
        waits, in_lanes = plan.drift_us(read) is not None, number in plan.in_lanes
        source = logged(read.source, checkpoint, number, waits=waits, in_lanes=in_lanes)
        if isinstance(source, RangeSource):
            RangeLog.open(source.log or "", durable=durable)
            logs[number] = source
    return logs


def is_behind_of(checkpoint: str, sources: dict[int, RangeSource]) -> Callable[[], bool]:
    """In the client: whether there are files or sends that no batch has taken."""
    sent = {streams: source for streams, source in sources.items() if isinstance(source.source, (SentSource, FolderSource))}

    def any_left() -> bool:
        if not sent:
            return False
        batches = batches_of(checkpoint)
        store, root = store_at(checkpoint)
        taken = offsets_of(store, f"{root}/offsets/{batches[-1]}") if batches else {}
        for number, source in sent.items():
            log = RangeLog.open(source.log or "", durable=False)
            if isinstance(source.source, FolderSource):
                try:
                    source.source.plans(names_of(log))
                except CheckpointError:  # the server's process merges parts at this moment
                    return True
                if log.last > taken.get(number, -1) or source.source.any_new():
                    return True
            elif log.last > taken.get(number, -1) or next_ranges(source.source, source.name, log.position) is not None:
                return True
        return False

    return any_left


def begin_planning(
    planners: Sequence[RangePlanner], how: Planning, checkpoint: str, stop: Callable[[], None], retries: RunningRetries
) -> None:
    """In the server's process, before the query begins.

    Raises
    ------
    SourceError
        When a source cannot plan.
    """

    def fail(problem: KrishivError) -> None:
        try:
            note_failure(checkpoint, problem)
        except OSError as unwritten:
            warnings.warn(f"the query ends, and why cannot be noted ({unwritten}): {problem}", RuntimeWarning, stacklevel=2)
        while True:  # until this process ends with the query, which may not have begun yet
            stop()
            time.sleep(_AGAIN_S)

    if how == NO_MORE:
        return
    for planner in planners:
        planner.begin(everything=how == "all there is")
    if how == "one by one":
        for planner in planners:
            planner.start(lambda: True, fail, retries)


_SECOND_S = 10.0


@attrs.frozen(eq=False)
class RemoteStart:
    """Holds what the server's process knows of a query.

    Attributes
    ----------
    version : str
        That of the library in the client.
    plan : PhysicalPlan
        Its plan; late handlers of the client have stand-ins.
    sinks : tuple of Sink
        Its sinks, likewise.
    title : str
        Its name.
    checkpoint : str
        Its checkpoint.
    mark : str
        The mark of its outputs in that.
    durable : bool
        Whether what is written must survive a loss of power.
    control_files : ControlFiles
        Which control files it needs.
    shuffle_files : ShuffleFiles
        How chunks are handed on.
    planning : str
        How the batches of sources are planned that do not plan them themselves.
    now : callable
        The clock of the session.
    retry_s : float
        For how long what is away is tried again, s.
    batches : Batches
        When batches are planned, and how many of the last ones can be gone back to.
    """

    version: str
    plan: PhysicalPlan
    sinks: tuple[Sink, ...]
    title: str
    checkpoint: str
    mark: str
    durable: bool
    control_files: ControlFiles
    shuffle_files: ShuffleFiles
    planning: Planning
    now: Callable[[], int]
    retry_s: float
    batches: Batches


@attrs.frozen(eq=False)
class RemoteSteps:
    """The function of ``foreachBatch`` in the client, which never calls it: it goes to the server as :func:`begin`."""

    pickled: bytes

    @classmethod
    def of(cls, start: RemoteStart, away: tuple[LateEventHandler, ...]) -> RemoteSteps:
        """Return what the process gets; the handlers `away`, which stay in the client, may be met anywhere in the plan.

        Raises
        ------
        PlanError
            For a function, sink or source that cannot be sent.
        """
        out = io.BytesIO()
        try:
            pickler: pickle.Pickler = _Pickler(out, {id(handler): handler for handler in away})
            pickler.dump(start)
        except RAISED as problem:
            raise _cannot_be_sent(problem) from problem
        return cls(out.getvalue())

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return begin, (self.pickled,)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        raise AssertionError("it runs in the server's process only")


_CloudPickler: Any = cloudpickle.CloudPickler  # has no types


class _Pickler(_CloudPickler):  # type: ignore[misc]
    def __init__(self, out: io.BytesIO, away: dict[int, LateEventHandler]) -> None:
        super().__init__(out)
        self._away = away

    def reducer_override(self, obj: Any) -> Any:
        """Pickle a stand-in for what stays in the client."""
        if id(obj) in self._away:
            return ClientHandler, (ClientRows("", ""), self._away[id(obj)].wants)
        return super().reducer_override(obj)


@attrs.frozen(eq=False)
class ServerSteps:
    """The function of ``foreachBatch`` in the server's process."""

    steps: BatchSteps
    number: str
    """The setting by which tasks know the batch."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        frame.sparkSession.conf.set(self.number, str(batch_id))
        try:
            self.steps(frame, batch_id)
        except KrishivError as problem:
            if self.steps.retries.gave_up:  # to begin once more does not help: whoever started the query reads it
                with contextlib.suppress(OSError):
                    note_failure(self.steps.ledger.notes.checkpoint, problem)
            raise


def begin(pickled: bytes) -> ServerSteps:
    """Make all that a driver keeps of a query.

    Raises
    ------
    EnvironmentSetupError
        For another version of the library than the client's.
    CheckpointError
        When the checkpoint cannot be seen from here, or another process runs from it.
    SourceError
        When a source cannot plan what the query begins with.
    KrishivError
        As sinks raise it that refuse their output.
    """
    end_with_parent()
    start: RemoteStart = pickle.loads(pickled)  # the client's own program, which Spark unpickles too
    if start.version != __version__:
        got = f"{start.version} in the client, {__version__} in the server's Python"
        hint = "install the same version in both"
        raise EnvironmentSetupError("client and server have different versions of krishiv_py", got=got, hint=hint)
    plan, checkpoint = start.plan, start.checkpoint
    lease = take_server(checkpoint, start.title, _SECOND_S)
    notes = CheckpointNotes(checkpoint, start.durable)
    noted = notes.plan()
    if noted is None or noted["outputs"] != start.mark:
        hint = "use a folder that client, server and executors reach under one path"
        raise CheckpointError("the Spark Connect server does not see the checkpoint of the client", got=checkpoint, hint=hint)
    check_outputs(plan, start.sinks)
    opened = OpenedCheckpoint(checkpoint, lease, start.durable)
    run = QueryRun(plan, start.sinks, start.batches, start.title, opened, start.now, start.retry_s, lease.release)
    clock = clock_for(plan, checkpoint, durable=start.durable, kept=start.batches._kept)
    controls = ControlFolder.of(checkpoint, wanted=False)
    steps = steps_of(run, notes, start.mark, clock, start.control_files, controls, start.shuffle_files, on_server=True)
    for alignment in steps.ledger.aligned:
        alignment.changed = lambda: _note_waiting(steps.ledger)
    steps.outputs = steps.make_outputs()
    if steps.heartbeats is not None:
        steps.heartbeats.start(lambda: True)  # the process ends with the query
    root = SparkSession.getActiveSession()

    def stop() -> None:
        id_ = query_id(checkpoint)
        query = None if root is None or id_ is None else root.streams.get(id_)
        if query is not None:
            query.stop()

    def stop_wanted() -> None:
        with contextlib.suppress(*RAISED):
            stop()

    heed(checkpoint, stop_wanted)
    begin_planning(steps.planners, start.planning, checkpoint, stop_wanted, steps.retries)
    return ServerSteps(steps, batch_setting(checkpoint))


def _note_waiting(ledger: BucketMetrics) -> None:
    with contextlib.suppress(OSError):  # for people only: the next batch notes it again
        ledger.note_waiting()


def _cannot_be_sent(problem: BaseException) -> PlanError:
    what = "over Spark Connect functions, sinks and sources are pickled and sent to the server"
    hint = "leave open connections, locks and sessions out of what they hold, and make them at their first use"
    return PlanError(what, got=failure_text(problem), hint=hint)
