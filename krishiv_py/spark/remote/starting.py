"""Starting a query over Spark Connect."""

from __future__ import annotations

import threading
from collections.abc import Callable

import attrs
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from krishiv_py.connectors.sink import Sink
from krishiv_py.errors import PlanError
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.options.query import Batches
from krishiv_py.plan.running import Control
from krishiv_py.planner.physical import PhysicalPlan, check_snapshot, lookup_tables
from krishiv_py.runtime.batch import Halt
from krishiv_py.runtime.checkpoint.lease import OpenedCheckpoint
from krishiv_py.runtime.checkpoint.sparklog import forget_unplanned
from krishiv_py.runtime.controls import NOTE, ControlFiles, ControlFolder, warn_if_flushed
from krishiv_py.runtime.outputs import claim_outputs, described_outputs
from krishiv_py.runtime.query import QueryRows
from krishiv_py.runtime.ranges.limits import alignments
from krishiv_py.runtime.reading import arrow_scanned
from krishiv_py.spark.launched import Launched, patiently
from krishiv_py.spark.publishing import task_output
from krishiv_py.spark.remote.lease import await_end, server_at_rest
from krishiv_py.spark.remote.planning import NO_MORE, Planning, is_behind_of, open_logs, planning_of
from krishiv_py.spark.remote.query import NotedLedger, RemoteQuery
from krishiv_py.spark.remote.rows import Arrivals, client_folder, forget_failure, with_client
from krishiv_py.spark.remote.steps import RemoteStart, RemoteSteps
from krishiv_py.spark.setup.config import CHUNK_FILE_BYTES, setting, started_under, with_sources
from krishiv_py.spark.storage import ShuffleFiles, keep_with_driver
from krishiv_py.spark.streaming import chunk_folder, claimed, first_clock, stateful, writing
from krishiv_py.version import __version__

_END_S = 10.0


def start(
    spark: SparkSession,
    plan: PhysicalPlan,
    sinks: tuple[Sink, ...],
    opened: OpenedCheckpoint,
    batches: Batches,
    title: str,
    now: Callable[[], int],
    cleanup: Callable[[], None],
) -> RemoteQuery:
    """Start a query whose driver is in another process.

    Raises
    ------
    PlanError
        For what cannot be sent to it or done there, and for `max_drift` over sources that Spark plans.
    """
    check_remote(plan)
    if batches.snapshot:
        check_snapshot(plan)
    alignments(plan, dict, now)  # the server's process makes its own; here for what they refuse
    checkpoint, durable = opened.checkpoint, opened.durable
    there, sinks_there, takers = with_client(plan, sinks, checkpoint)
    shuffle_files = ShuffleFiles(None, setting(spark, CHUNK_FILE_BYTES))
    with server_at_rest(checkpoint, title):
        notes, claim = claimed(spark, plan, opened)
        ledger = NotedLedger(notes, plan.stages, plan.last, plan.clocks.initial)
        ledger.restore()
        warn_if_flushed(ledger.moment.watermark_us, checkpoint, plan.source)
        clock = first_clock(plan, opened, now, batches._kept)
        control_files = ControlFiles.of(plan, batches)
        controls = ControlFolder.of(checkpoint, wanted=control_files.wanted, sources=len(plan.reads))
        claim_outputs(plan, sinks, claim.outputs, checkpoint)
        arrivals = Arrivals(client_folder(checkpoint), takers)
        arrivals.take()
        ranged = open_logs(plan, checkpoint, durable=durable)
    output = task_output(plan, sinks, claim.outputs, checkpoint, durable=durable)
    blobs = chunk_folder(spark, opened, batches)
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
        now,
        batches._kept,
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
            return with_sources(patiently(writing(frame, steps[how], checkpoint, batches, title).start, title))

    def launch() -> Launched:
        return Launched(lambda: begin(NO_MORE), title)

    def go_on() -> Launched:
        assert controls is not None
        controls.write(Control(END_OF_TIME if batches.flush else UNSET, None, now(), batches.snapshot))
        return launch()

    def end() -> None:
        await_end(checkpoint, title, _END_S)
        arrivals.stop()
        ledger.look()
        cleanup()

    query = RemoteQuery(
        Launched(lambda: begin(first), title),
        [go_on, *([launch] if control_files.woken and batches.flush else [])] if control_files.goes_on else [],
        title,
        ledger,
        plan,
        "\n".join([described_outputs(plan, sinks), *([NOTE] if batches.flush and control_files.goes_on else [])]),
        QueryRows.of(plan, sinks),
        end,
        Halt(),
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
