"""A query that runs over Spark Connect: its start and its handle."""

from __future__ import annotations

import threading
from typing import ClassVar

import attrs
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from krishiv_py.connectors.ranges import Backlog
from krishiv_py.errors import KrishivError, PlanError
from krishiv_py.plan.checks import PathLike
from krishiv_py.plan.running import Progress
from krishiv_py.planner.identity import check_keys
from krishiv_py.planner.physical import PhysicalPlan, check_snapshot, lookup_tables
from krishiv_py.runtime.batch import StopReason
from krishiv_py.runtime.checkpoint.sparklog import forget_unplanned
from krishiv_py.runtime.controls import NOTE, ControlFiles, ControlFolder, warn_if_flushed
from krishiv_py.runtime.outputs import claim_outputs, described_outputs
from krishiv_py.runtime.query import BucketMetrics, QueryRows
from krishiv_py.runtime.ranges.limits import alignments
from krishiv_py.runtime.reading import arrow_scanned
from krishiv_py.runtime.session import QueryRun
from krishiv_py.spark.publishing import task_output
from krishiv_py.spark.query import SparkQueryHandle, StreamQuery, as_error, patiently
from krishiv_py.spark.remote.rows import Arrivals, client_folder, forget_failure, noted_failure, with_client
from krishiv_py.spark.remote.steps import (
    NO_MORE,
    SERVER,
    Planning,
    RemoteStart,
    RemoteSteps,
    await_end,
    is_behind_of,
    open_logs,
    planning_of,
    server_at_rest,
)
from krishiv_py.spark.setup.config import CHUNK_FILE_BYTES, setting, started_under, with_sources
from krishiv_py.spark.storage import ShuffleFiles, keep_with_driver
from krishiv_py.spark.streaming import chunk_folder, claimed, first_clock, runs_after, stateful, writing
from krishiv_py.version import __version__


@attrs.define(eq=False)
class NotedLedger(BucketMetrics):
    """Holds what the server's process notes of the query next to the checkpoint."""

    held: dict[str, int] = attrs.field(factory=dict)
    """The number of times that each source was held back there."""
    waits: list[str] = attrs.field(factory=list)
    waiting_rows: dict[str, Backlog] = attrs.field(factory=dict)

    def progress(self) -> Progress:
        """Return the sums over all buckets, as they were noted with the last batch."""
        self.look()
        self.backlog = lambda: self.waiting_rows
        return super().progress()

    def _held(self) -> dict[str, int]:
        return self.held

    def waiting(self) -> list[str]:
        """Return which sources the server's process holds back, as it noted them last."""
        return self.waits

    def look(self) -> None:
        """Read what is noted; where that is gone, a temporary folder with its query, what was read last still holds."""
        noted = self.notes.metrics()
        if noted:
            self._take_noted(noted)
            self.held, self.waits = noted.get("held", {}), noted.get("waiting", [])
            self.waiting_rows = noted.get("backlog", {})


class RemoteQuery(StreamQuery):
    """As on a driver of this process; what is for the client comes in files."""

    arrivals: Arrivals
    _gone_types: ClassVar[tuple[type[Exception], ...]] = (PySparkException, OSError)
    _end_types: ClassVar[tuple[type[Exception], ...]] = (PySparkException, OSError)

    def savepoint(self, path: PathLike) -> str:
        """Refuse: the server's process plans batches meanwhile.

        Raises
        ------
        PlanError
            Always; says what to do.
        """
        raise PlanError(
            "query.savepoint() needs the driver in this process",
            got=f"{self.name} over Spark Connect",
            then="batches would begin while the state is read",
            hint="stop() it, and call session.savepoint(checkpoint, path) of a session with a driver of its own",
        )

    def _processed(self) -> None:
        super()._processed()
        self.arrivals.take()

    def _ended(self) -> None:
        super()._ended()
        self.arrivals.take()

    def _problem(self) -> BaseException | None:
        """Return what Spark tells of, or what the server's process noted that ended it between two batches."""
        failure = super()._problem()
        if failure is None and self._end != "stopped" and not self._query.is_active():
            self._failure = failure = noted_failure(self._ledger.notes.checkpoint)
        return failure

    def _cancel_jobs(self) -> None:
        """Nothing: Spark ends the server's process, and with it what that waits for."""

    def results(self, output: str | None = None) -> pa.Table:
        """See StreamQuery."""
        self.arrivals.take()
        return super().results(output)

    def late_rows(self, stage: str | None = None) -> pa.Table:
        """See StreamQuery."""
        self.arrivals.take()
        return super().late_rows(stage)


_END_S = 10.0


def start(spark: SparkSession, run: QueryRun) -> RemoteQuery:
    """Start a query whose driver is in another process.

    Raises
    ------
    PlanError
        For what cannot be sent to it or done there, and for `max_drift` over sources that Spark plans.
    """
    plan, sinks, batches, title = run.plan, run.sinks, run.batches, run.title
    check_remote(plan)
    if batches.snapshot:
        check_snapshot(plan)
        check_keys(plan, sinks, early=True)
    alignments(plan, dict, run.now)  # the server's process makes its own; here for what they refuse
    checkpoint, durable = run.checkpoint, run.durable
    there, sinks_there, takers = with_client(plan, sinks, checkpoint)
    shuffle_files = ShuffleFiles(None, setting(spark, CHUNK_FILE_BYTES))
    with server_at_rest(checkpoint, title):
        notes, claim = claimed(spark, run)
        ledger = NotedLedger(notes, plan.stages, plan.last, plan.clocks.initial)
        ledger.restore()
        warn_if_flushed(ledger.moment.watermark_us, checkpoint, plan.source)
        clock = first_clock(run)
        control_files = ControlFiles.of(plan, batches)
        controls = ControlFolder.of(checkpoint, wanted=control_files.wanted, sources=len(plan.reads))
        claim_outputs(plan, sinks, claim.outputs, notes)
        arrivals = Arrivals(client_folder(checkpoint), takers)
        arrivals.take()
        ranged = open_logs(plan, checkpoint, durable=durable)
    output = task_output(plan, sinks, claim.outputs, checkpoint, durable=durable)
    blobs = chunk_folder(spark, run)
    frame = stateful(spark, plan, clock, claim.buckets, output, blobs, shuffle_files, controls)
    first = planning_of(batches)
    remote_start = RemoteStart(
        __version__,
        there,
        sinks_there,
        title,
        checkpoint,
        claim.outputs,
        durable,
        control_files,
        shuffle_files,
        first,
        run.now,
        run.retry_s,
        batches,
    )
    away = tuple(old.late for old, new in zip(plan.stages, there.stages, strict=True) if old.late is not new.late)
    steps = {how: RemoteSteps.of(attrs.evolve(remote_start, planning=how), away) for how in (first, NO_MORE)}
    every = [*sinks, *(stage.late for stage in plan.stages)]
    rows_in_jvm = not all(arrow_scanned(read.source) for read in plan.reads) or any(
        getattr(sink, "delivery", "") == "frame" for sink in every
    )

    def begin(how: Planning) -> StreamingQuery:
        with server_at_rest(checkpoint, title):
            forget_unplanned(checkpoint)
            forget_failure(checkpoint)
        with started_under(spark, checkpoint, batches, chunks_only=not rows_in_jvm):
            return with_sources(patiently(writing(frame, steps[how], run).start, title))

    def passing(problem: BaseException) -> KrishivError | None:
        error = as_error(problem, title, checkpoint)
        # the server's process has its right by that of the client: where it went with the folder, another one takes it again
        may_pass = error.transient or f"/krishiv/{SERVER}" in str(error)
        return error if may_pass and noted_failure(checkpoint) is None else None

    def note(trouble: str) -> None:
        ledger.trouble = trouble

    def launch(how: Planning = NO_MORE) -> SparkQueryHandle:
        return SparkQueryHandle(lambda: begin(how), title, run.retry_s, passing, note, run.opened.lease.check)

    def end() -> None:
        await_end(checkpoint, title, _END_S)
        arrivals.stop()
        ledger.look()
        run.cleanup()

    query = RemoteQuery(
        title,
        ledger,
        plan,
        "\n".join([described_outputs(plan, sinks), *([NOTE] if batches.flush and control_files.goes_on else [])]),
        QueryRows.of(plan, sinks),
        end,
        launch(first),
        runs_after(control_files, controls, run, launch),
        StopReason(),
        spark,
        is_behind_of(checkpoint, ranged),
        threading.Event(),
    )
    query.arrivals = arrivals
    arrivals.fail = query._fail
    arrivals.start()
    return query


def check_remote(plan: PhysicalPlan) -> None:
    """Refuse what only a driver in this process can do.

    Raises
    ------
    PlanError
        Naming it.
    """
    keep_with_driver(tables := lookup_tables(plan))
    for table in tables:
        if table.driver_only:
            raise PlanError(
                "over Spark Connect a table is not loaded again through Spark",
                got=f"{table.name}() returned a DataFrame, or holds what cannot be sent, such as a Spark session",
                then="it is loaded in a process of the server, which has no session of yours",
                hint="let the function read files or a database itself and return a pyarrow.Table, or leave `reload` out",
            )
