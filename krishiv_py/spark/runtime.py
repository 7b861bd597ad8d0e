"""Runs plans on a Spark session: the composition root of this room."""

from __future__ import annotations

import contextlib
import functools
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import pyarrow as pa
import pyspark
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.api.query import BoundedResult, QueryStart
from krishiv_py.api.session_options import DurabilityProfile
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors.sinks.files import folder_of
from krishiv_py.display.progress import Show, of_job, shown
from krishiv_py.errors import KrishivError, PlanError, SessionClosedError
from krishiv_py.kernels.spec import Moment
from krishiv_py.lazy import lazy
from krishiv_py.plan.nodes import FrameSource, MemorySource, SourceNode
from krishiv_py.plan.options.query import HandoverOptions, StartPoint
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.places import check_places
from krishiv_py.runtime.batch import deliver
from krishiv_py.runtime.beginning import begin_from, going_on, with_carried
from krishiv_py.runtime.checkpoint.lease import Lease, OpenedCheckpoint
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes, Target, check_engine
from krishiv_py.runtime.outputs import check_free, check_outputs, late_sinks
from krishiv_py.runtime.reading import PathLocation
from krishiv_py.runtime.savepoints import Savepoint, restore_for_spark
from krishiv_py.runtime.session import CheckpointProgress, QueryRun, SessionRunner
from krishiv_py.spark import bounded, state, streaming
from krishiv_py.spark.frames import handed_frame, lags_of, rows_frame
from krishiv_py.spark.publishing import write_once
from krishiv_py.spark.query import StreamQuery
from krishiv_py.spark.scan import catalog_frame, inferred, located
from krishiv_py.spark.setup.agreement import check_agreement, check_cluster, check_reach
from krishiv_py.spark.setup.config import (
    FSYNC,
    JVM_OPTIONS,
    buckets_wanted,
    check_checkpoint,
    check_stores,
    folders_shared,
    is_connect,
    query_settings,
    use_stores_of,
)
from krishiv_py.spark.setup.jvm import stop_spark
from krishiv_py.spark.setup.types import arrow_schema, spark_ddl
from krishiv_py.spark.setup.waiting import cancellable, counted
from krishiv_py.spark.setup.workers import make_archive
from krishiv_py.spark.state import read_state, rescale
from krishiv_py.spark.storage import handed_over, shuffle_files
from krishiv_py.spark.tasks.failures import as_own, require_alive
from krishiv_py.storage.files import arrow_reads
from krishiv_py.storage.local import absolute

if TYPE_CHECKING:
    from krishiv_py.spark.remote import query as remote
else:
    remote = lazy("krishiv_py.spark.remote.query")


def release_at_end(lease: Lease, query: StreamQuery) -> None:
    """Let others run from the checkpoint once the query has ended, in whatever way."""

    def wait() -> None:
        with contextlib.suppress(KrishivError, Py4JError):  # what ended it is reported to whoever asks the query
            query.await_termination()
        lease.release()

    threading.Thread(target=wait, name="krishiv-lease", daemon=True).start()


class SparkRunner(SessionRunner[StreamQuery]):
    """Implements :class:`krishiv_py.api.query.Runner`."""

    target: ClassVar[Target] = "spark"
    folders: ClassVar[tuple[str, ...]] = ("offsets", "commits", "sources", "state")

    def __init__(
        self, spark: SparkSession, profile: DurabilityProfile, *, owned: bool, given: Mapping[str, str] | None = None
    ) -> None:
        self.spark = spark
        self._owned = owned
        self._warms = owned and given is not None and JVM_OPTIONS not in given
        check_agreement(spark, given=not owned)
        super().__init__(profile)
        for name, value in query_settings(profile).items():
            spark.conf.set(name, (given or {}).get(name, value))
        use_stores_of(spark, given or {})

    def _alive(self, what: str) -> None:
        if self._forked:
            raise SessionClosedError(
                f"{what} in a process that was forked",
                got=f"a session of process {self._pid}",
                then="two processes cannot share its connection to Spark",
                hint="start the process before the session (multiprocessing: the method 'spawn'), and make one session in each",
            )
        require_alive(self.spark, what, stopped=self._stopped)

    def run_bounded(self, plan: PhysicalPlan, progress: Show = False) -> BoundedResult:
        """See :class:`~krishiv_py.api.query.Runner`."""
        aside = late_sinks(plan)
        check_places(None, aside[-1], plan.source, None, aside[:-1])
        for sink in aside:
            check_free(sink)
        what = f"the run of {plan.title}"
        self._alive("collect()")
        check_stores(self.spark, map(folder_of, aside), by_spark=False, written=True)
        check_outputs(plan, ())
        with as_own(what):
            result = self._run(plan, progress)
        for stage, sink in zip(plan.stages, aside, strict=True):
            late = result.late_by_stage[stage.spec.name]
            if late.num_rows and sink is not None:
                write_once(self.spark, sink, late, stage.spec.name)
            elif late.num_rows:
                deliver(stage.late, [late], stage.spec.name, 0)
        return result

    def _run(self, plan: PhysicalPlan, progress: Show) -> BoundedResult:
        if progress is False:
            return cancellable(self.spark, lambda: self._bounded(plan))
        counters: dict[str, int] = {}
        look: list[Callable[[], tuple[int, int | None]]] = [lambda: (0, None)]

        def work() -> BoundedResult:
            with counted(self.spark) as tasks:
                look[0] = tasks
                return self._bounded(plan)

        with shown(lambda: of_job(*look[0](), counters), progress):
            result = cancellable(self.spark, work)
            counters.update(result.counters)
        return result

    def _bounded(self, plan: PhysicalPlan) -> BoundedResult:
        sends = self._new_path("sends")
        try:
            with handed_over(self.spark, self._new_path("chunks")) as chunks:
                return bounded.run(self.spark, bounded.with_files(plan, sends), self.clock(), chunks)
        finally:
            shutil.rmtree(sends, ignore_errors=True)

    def _checked(self, start: QueryStart) -> QueryStart:
        """See SessionRunner."""
        start.batches._check_for_spark()
        check_checkpoint(self.profile, start.checkpoint, mounted=folders_shared(self.spark))
        return start

    def _check_stores(self, checkpoint: str | None, written: Sequence[str], source: SourceNode) -> None:
        """See SessionRunner."""
        check_cluster(self.spark, checkpoint, written, source)
        check_stores(self.spark, [checkpoint], written=True)
        check_stores(self.spark, written, by_spark=False, written=True)

    def _check_tasks(self, checkpoint: str, written: Sequence[str], source: SourceNode) -> None:
        """See SessionRunner."""
        outputs = [folder for folder in (checkpoint, *written) if arrow_reads(folder)]
        check_reach(self.spark, outputs, [path for _, path in source.places if arrow_reads(path)])

    @property
    def _durable(self) -> bool:
        return str(self.spark.conf.get(FSYNC, "false")).lower() == "true"

    def _begin_from(self, begin: StartPoint, plan: PhysicalPlan, checkpoint: str) -> None:
        """See SessionRunner."""
        buckets, engine = buckets_wanted(self.spark), f"PySpark {pyspark.__version__}"
        write = functools.partial(restore_for_spark, checkpoint=checkpoint, buckets=buckets)
        begin_from(begin, plan, checkpoint, buckets, engine, write)

    def _going_on(self, plan: PhysicalPlan, opened: OpenedCheckpoint) -> PhysicalPlan:
        """See SessionRunner."""
        return going_on(plan, opened.checkpoint, state.read_clocks, durable=opened.durable, on_spark=True)

    def _started(self, run: QueryRun) -> StreamQuery:
        """See SessionRunner."""
        chunks, release = shuffle_files(self.spark, self._new_path("chunks")), run.cleanup

        def cleanup() -> None:
            chunks.clear()
            release()

        run = attrs.evolve(run, cleanup=cleanup)
        try:
            with as_own("start()"):
                if is_connect(self.spark):  # whose process of the driver gets a copy of the clock
                    query: StreamQuery = remote.start(self.spark, attrs.evolve(run, now=self.clock))
                else:
                    check_outputs(run.plan, run.sinks)
                    query = streaming.start(self.spark, run, chunks)
        except BaseException:
            chunks.clear()
            raise
        release_at_end(run.opened.lease, query)
        return query

    def read_state(self, plan: PhysicalPlan, checkpoint: str, stage: str | None = None) -> pa.Table:
        """Return the state of a stage in a checkpoint as a table."""
        check_engine(checkpoint, "spark")
        return read_state(self.spark, with_carried(plan, checkpoint), CheckpointNotes(checkpoint), stage)

    def standing(self, plan: PhysicalPlan, checkpoint: str) -> CheckpointProgress:
        """See :class:`~krishiv_py.runtime.session.SessionRunner`."""
        kept = CheckpointNotes(checkpoint).metrics()
        others = tuple(kept.get("watermarks of further clocks", ()))
        moment = Moment(kept["watermark"], others=others) if "watermark" in kept else plan.clocks.initial
        return CheckpointProgress(moment, kept.get("sources", {}), kept.get("moved", {}))

    def rescale(self, checkpoint: str, tasks: int) -> None:
        """Spread the state of a checkpoint over another number of tasks."""
        if is_connect(self.spark):
            what = "session.rescale() needs the driver in this process"
            hint = "call it from a session of Session.embedded(), builder() or from_spark()"
            raise PlanError(what, got="a Spark Connect session", then="Spark offers it to no other", hint=hint)
        self._alive("rescale()")
        with as_own("session.rescale()"):
            rescale(self.spark, absolute(checkpoint).rstrip("/"), tasks, durable=self.profile != "dev-local")

    def save_for_spark(self, checkpoint: str, folder: str, after: int | None = None) -> Savepoint:
        """See SessionRunner."""
        return state.save(self.spark, checkpoint, folder, after)

    def check_reachable(self, paths: Iterable[str]) -> None:
        """See SessionRunner."""
        check_stores(self.spark, paths)

    def as_own(self, what: str) -> AbstractContextManager[None]:
        """See SessionRunner."""
        return as_own(what)

    def new_buckets(self) -> int:
        """See SessionRunner."""
        return buckets_wanted(self.spark)

    def to_dataframe(self, plan: PhysicalPlan, handed: HandoverOptions | None = None) -> Any:
        """See :class:`~krishiv_py.api.query.Runner`."""
        if handed is not None:
            options, name = handed, handed.name
            streaming_plan = attrs.evolve(plan, engine="streaming")
            return handed_frame(
                self.spark,
                streaming_plan,
                options,
                lambda sink: self.start(QueryStart(streaming_plan, (sink,), options.checkpoint, options.batches, name)),
                durable=self.profile != "dev-local",
            )
        source = plan.source
        if source.bounded and not isinstance(source, MemorySource):
            table = self.run_bounded(attrs.evolve(plan, engine="bounded")).table
            return self.spark.createDataFrame(table, spark_ddl(table.schema))
        return rows_frame(self.spark, attrs.evolve(plan, engine="streaming"))

    def frame_stream(self, frame: DataFrame) -> Stream:
        """Return a stream over any DataFrame."""
        schema = arrow_schema(frame)
        return Stream(FrameSource(frame, schema, not frame.isStreaming, lags_of(frame)), schema, self)

    def table_stream(self, name: str, streaming: bool) -> Stream:
        """Return a stream over a table of the catalog."""
        return self.frame_stream(catalog_frame(self.spark, name, streaming=streaming))

    def located(self, path: str, streaming: bool) -> tuple[str, bool]:
        """See :class:`~krishiv_py.api.sources.FileRunner`."""
        check_stores(self.spark, [path])
        return attrs.astuple(located(self.spark, path, streaming=streaming))

    def infer(self, path: tuple[str, bool], kind: str, options: dict[str, str]) -> pa.Schema:
        """See :class:`~krishiv_py.api.sources.FileRunner`."""
        return inferred(self.spark, PathLocation(*path), kind, options)

    def stop(self) -> None:
        """Stop all queries, remove temporary folders, and stop Spark if it was started here."""
        try:
            super().stop()
        finally:
            if self._owned and not self._forked:
                stop_spark(self.spark)
            if self._warms and not self._forked:
                make_archive()
