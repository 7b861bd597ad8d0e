"""Define what is done with a micro-batch in a process of the server.

Spark Connect runs the function of ``foreachBatch`` in a Python process next to the server, from a pickled copy. So the copy has
values only, and what a driver keeps (locks, ledger, open sinks, threads) is made there, when the copy is unpickled: that is
before the query begins, so what goes wrong is raised by ``start()``.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable
from typing import Any

import attrs
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.connect.session import SparkSession

from krishiv_py.connectors.sink import Sink
from krishiv_py.engine.time_watch import TimeWatch
from krishiv_py.errors import RAISED, CheckpointError, EnvironmentSetupError, PlanError, failure_text
from krishiv_py.plan.options.late import LateEventHandler
from krishiv_py.planner.physical import PhysicalPlan, lookup_tables
from krishiv_py.runtime.batch import Halt
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.checkpoint.sparklog import batches_of
from krishiv_py.runtime.clocks import clock_for
from krishiv_py.runtime.closings import Closings
from krishiv_py.runtime.controls import ControlFiles, ControlFolder
from krishiv_py.runtime.outputs import check_outputs
from krishiv_py.runtime.query import BucketMetrics
from krishiv_py.runtime.ranges.limits import alignments
from krishiv_py.runtime.ranges.planning import backlogs, planners
from krishiv_py.runtime.tables import LookupTables
from krishiv_py.spark.publishing import outputs_of
from krishiv_py.spark.remote.lease import end_with_parent, heed, query_id, take_server
from krishiv_py.spark.remote.planning import Planning, begin_planning
from krishiv_py.spark.remote.rows import Away, ForClient
from krishiv_py.spark.storage import ShuffleFiles
from krishiv_py.spark.streaming import BatchSteps
from krishiv_py.spark.tasks.batch_number import batch_setting
from krishiv_py.version import __version__

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
    kept : int
        How many of the last batches can be gone back to.
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
    kept: int


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
            return Away, (ForClient("", ""), self._away[id(obj)].wants)
        return super().reducer_override(obj)


@attrs.frozen(eq=False)
class ServerSteps:
    """The function of ``foreachBatch`` in the server's process."""

    steps: BatchSteps
    number: str
    """The setting by which tasks know the batch."""

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        frame.sparkSession.conf.set(self.number, str(batch_id))
        self.steps(frame, batch_id)


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
        raise EnvironmentSetupError(
            "client and server have different versions of krishiv_py",
            got=f"{start.version} in the client, {__version__} in the server's Python",
            hint="install the same version in both",
        )
    plan, checkpoint = start.plan, start.checkpoint
    lease = take_server(checkpoint, start.title, _SECOND_S)
    notes = CheckpointNotes(checkpoint, start.durable)
    noted = notes.plan()
    if noted is None or noted["outputs"] != start.mark:
        raise CheckpointError(
            "the Spark Connect server does not see the checkpoint of the client",
            got=checkpoint,
            hint="use a folder that client, server and executors reach under one path",
        )
    check_outputs(plan, start.sinks)
    reached: list[BucketMetrics] = []
    aligned = alignments(plan, lambda: reached[0].sources_us, start.now)
    waiting = tuple({id(alignment): alignment for alignment, _ in aligned.values()}.values())
    ledger = BucketMetrics(notes, plan.stages, plan.last, plan.clocks.initial, waiting, every_batch=True)
    reached.append(ledger)
    ledger.restore()
    for alignment in waiting:
        alignment.changed = lambda: _note_waiting(ledger)
    sources, kept = [read.source for read in plan.reads], start.kept
    planning = planners(sources, checkpoint, start.now, aligned, durable=start.durable, kept=kept)
    ledger.backlog = lambda: backlogs(planning)
    clock = clock_for(plan, checkpoint, durable=start.durable, kept=kept)
    controls = ControlFolder.of(checkpoint, wanted=False)
    heartbeats = start.control_files.heartbeats(controls, start.now, lambda: bool(ledger.open))
    begun = max(batches_of(checkpoint), default=-1)
    steps = BatchSteps(
        plan,
        outputs_of(plan, start.sinks, start.title, start.mark, durable=start.durable),
        begun,
        ledger,
        clock,
        start.now,
        start.shuffle_files,
        Halt(),
        heartbeats,
        lease,
        TimeWatch(plan, start.title),
        planning,
        start.control_files.writer(controls, start.now),
        LookupTables(checkpoint, lookup_tables(plan), start.now, start.durable, kept=kept),
        Closings(checkpoint, start.durable, begun, kept=kept),
    )
    if heartbeats is not None:
        heartbeats.start(lambda: True)  # the process ends with the query
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
    begin_planning(planning, start.planning, checkpoint, stop_wanted)
    return ServerSteps(steps, batch_setting(checkpoint))


def _note_waiting(ledger: BucketMetrics) -> None:
    with contextlib.suppress(OSError):  # for people only: the next batch notes it again
        ledger.note_waiting()


def _cannot_be_sent(problem: BaseException) -> PlanError:
    return PlanError(
        "over Spark Connect functions, sinks and sources are pickled and sent to the server",
        got=failure_text(problem),
        hint="leave open connections, locks and sessions out of what they hold, and make them at their first use",
    )
