"""Runs plans in this process: what a session of ``Session.in_process()`` uses instead of Spark."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NoReturn

import attrs
import pyarrow as pa

from krishiv_py.api.query import BoundedResult, QueryStart
from krishiv_py.api.session_options import MOST_LOOKUP_RESULTS, DurabilityProfile
from krishiv_py.display.progress import Show
from krishiv_py.errors import PlanError, SessionClosedError, shown
from krishiv_py.in_process import savepoints
from krishiv_py.in_process.bounded import run_bounded
from krishiv_py.in_process.engine import Engine, QueryEnds, kept_core
from krishiv_py.in_process.outputs import outputs_of
from krishiv_py.in_process.query import ProcessQuery
from krishiv_py.in_process.sources import inferred, readers
from krishiv_py.in_process.stage import Workers
from krishiv_py.plan.nodes import MemorySource, SourceNode
from krishiv_py.plan.options.query import HandoverOptions, StartPoint
from krishiv_py.planner.identity import check_keys
from krishiv_py.planner.physical import PhysicalPlan, check_snapshot, lookup_tables
from krishiv_py.runtime.beginning import begin_from, going_on, with_carried
from krishiv_py.runtime.checkpoint.lease import OpenedCheckpoint
from krishiv_py.runtime.checkpoint.moved import note_streams
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes, Target, check_engine
from krishiv_py.runtime.checkpoint.sparklog import batches_of, note_reader
from krishiv_py.runtime.controls import warn_if_flushed
from krishiv_py.runtime.outputs import claim_outputs, described_outputs
from krishiv_py.runtime.query import BucketMetrics, QueryRows
from krishiv_py.runtime.ranges.limits import alignments
from krishiv_py.runtime.ranges.planning import backlogs
from krishiv_py.runtime.reading import located
from krishiv_py.runtime.session import CheckpointProgress, QueryRun, SessionRunner, check_kept
from krishiv_py.runtime.tables import LookupTables
from krishiv_py.storage.files import check_reachable
from krishiv_py.storage.local import absolute
from krishiv_py.storage.store import known_settings, use

_ENGINE: Final = "in process"
_PROFILES: Final[tuple[DurabilityProfile, ...]] = ("dev-local", "single-node-durable")


class ProcessRunner(SessionRunner[ProcessQuery]):
    """Implements :class:`krishiv_py.api.query.Runner` without Spark."""

    engine = "in_process"
    target: ClassVar[Target] = "in-process"
    folders: ClassVar[tuple[str, ...]] = ("offsets", "commits", "krishiv")
    sends_in_segments: ClassVar[bool] = True
    workers: int = 1
    lookup_results: int = MOST_LOOKUP_RESULTS

    @classmethod
    def of(cls, profile: str, stores: Mapping[str, str], workers: int = 1) -> ProcessRunner:
        """Return the runner of a `profile`; this process reaches `stores` by these settings of Hadoop's from now on.

        Each of its queries has so many `workers`.

        Raises
        ------
        PlanError
            For the profile of a cluster, which this process is not.
        """
        for own in _PROFILES:
            if own == profile:
                if stores:
                    use({**known_settings(), **stores})
                runner = cls(own)
                runner.workers = workers
                return runner
        then = "its state would be lost with the machine"
        hint = 'write profile="single-node-durable", or .engine("spark") for a cluster'
        raise PlanError("a session in process is one machine", got=shown(profile), then=then, hint=hint)

    @classmethod
    def next_to(cls, other: SessionRunner[Any]) -> ProcessRunner:
        """Return a runner in the process of a session on Spark, by the same clock."""
        runner = cls.of("dev-local" if other.profile == "dev-local" else "single-node-durable", {})
        runner.clock = lambda: other.clock()
        return runner

    @property
    def spark(self) -> NoReturn:
        """Refuse: there is none."""
        raise _no_spark("session.spark")

    def run_bounded(self, plan: PhysicalPlan, progress: Show = False) -> BoundedResult:
        """See :class:`~krishiv_py.api.query.Runner`."""
        self._alive("collect()")
        return run_bounded(attrs.evolve(plan, engine=self.engine), lambda: self.clock(), progress, self.workers)

    def _checked(self, start: QueryStart) -> QueryStart:
        """See SessionRunner."""
        plan = attrs.evolve(start.plan, engine=self.engine)
        if start.batches.snapshot:
            check_snapshot(plan)
            check_keys(plan, start.sinks, early=True)
        check_kept(self.profile, start.checkpoint)
        outputs_of(plan, start.sinks, start.title, "")  # before the checkpoint is looked at
        return attrs.evolve(start, plan=plan)

    def _begin_from(self, begin: StartPoint, plan: PhysicalPlan, checkpoint: str) -> None:
        """See SessionRunner."""
        begin_from(begin, plan, checkpoint, 1, _ENGINE, lambda savepoint: savepoints.restore(savepoint, checkpoint))

    def _going_on(self, plan: PhysicalPlan, opened: OpenedCheckpoint) -> PhysicalPlan:
        """See SessionRunner."""
        return going_on(
            plan, opened.checkpoint, lambda *given: savepoints.read_clocks(*given), durable=opened.durable, on_spark=False
        )

    def _started(self, run: QueryRun) -> ProcessQuery:
        """See SessionRunner."""
        plan, sinks, checkpoint, durable, now = run.plan, run.sinks, run.checkpoint, run.durable, run.now
        notes = CheckpointNotes(checkpoint, durable)
        note_streams(checkpoint, [read.source for read in plan.reads])
        claim = notes.claim(plan, 1, _ENGINE)
        ledger = BucketMetrics(_NoNotes(checkpoint), plan.stages, plan.last, plan.clocks.initial)
        kept, workers = run.batches._kept, Workers(self.workers)

        is_claimed = False

        def ends() -> QueryEnds:
            nonlocal is_claimed
            aligned = alignments(plan, lambda: ledger.sources_us, now)
            ledger.aligned = tuple({id(a): a for a, _ in aligned.values()}.values())
            streams = readers(plan, checkpoint, now, aligned, durable=durable, workers=self.workers, kept=kept)
            if not is_claimed:  # later on a missing folder is away, and is not made again
                claim_outputs(plan, sinks, claim.outputs, notes)
                is_claimed = True
            outputs = outputs_of(plan, sinks, run.title, claim.outputs, durable=durable, workers=workers)
            begun, looked_up = max(batches_of(checkpoint), default=-1), lookup_tables(plan)
            tables = LookupTables(checkpoint, looked_up, now, durable, begun, notes.has_tables, notes.note_tables, kept)
            ledger.backlog = lambda: backlogs([stream.planner for stream in streams])
            return QueryEnds(streams, outputs, tables)

        engine = Engine(run, ends, ledger, workers, self.lookup_results)
        engine.begin()
        ledger.rows_before = ledger.counted().rows
        warn_if_flushed(ledger.moment.watermark_us, checkpoint, plan.source)
        for read in plan.reads:
            if isinstance(read.source, MemorySource):
                note_reader(read.source.spool, checkpoint)
        rows = QueryRows.of(plan, sinks)
        return ProcessQuery(run.title, ledger, plan, described_outputs(plan, sinks), rows, run.cleanup, engine)

    def _check_stores(self, checkpoint: str | None, written: Sequence[str], source: SourceNode) -> None:
        """See SessionRunner."""
        check_reachable([checkpoint, *written], written=True)

    def to_dataframe(self, plan: PhysicalPlan, handed: HandoverOptions | None = None) -> Any:
        """Refuse: a DataFrame is Spark's."""
        raise _no_spark("to_dataframe()")

    def frame_stream(self, frame: Any) -> NoReturn:
        """Refuse: a DataFrame is Spark's."""
        raise _no_spark("from_dataframe()")

    def table_stream(self, name: str, streaming: bool) -> NoReturn:
        """Refuse: the catalog is Spark's."""
        raise _no_spark("session.table()")

    def located(self, path: str, streaming: bool) -> tuple[str, bool]:
        """See :class:`~krishiv_py.api.sources.FileRunner`."""
        check_reachable([path])
        return attrs.astuple(located(path, streaming=streaming, here="://" not in path or path.startswith("file:")))

    def infer(self, path: tuple[str, bool], kind: str, options: dict[str, str]) -> pa.Schema:
        """See :class:`~krishiv_py.api.sources.FileRunner`."""
        return inferred(path, kind, options)

    def read_state(self, plan: PhysicalPlan, checkpoint: str, stage: str | None = None) -> pa.Table:
        """Return the state of a stage in a checkpoint as a table; the query may run, here or elsewhere."""
        self._alive("read_state()")
        home = absolute(checkpoint).rstrip("/")
        check_reachable([home])
        check_engine(home, "in-process")
        plan = with_carried(attrs.evolve(plan, engine=self.engine), home)
        CheckpointNotes(home).check(plan)
        return kept_core(plan, home, stage, self.clock())[1].state()

    def standing(self, plan: PhysicalPlan, checkpoint: str) -> CheckpointProgress:
        """See :class:`~krishiv_py.runtime.session.SessionRunner`."""
        now_us = self.clock()
        core, _ = kept_core(attrs.evolve(plan, engine=self.engine), absolute(checkpoint).rstrip("/"), None, now_us)
        return CheckpointProgress(core.in_force, core.clocks.reached if plan.keeps_ledger else {}, core.moved_us)

    def rescale(self, checkpoint: str, tasks: int) -> None:
        """Refuse: there is one process."""
        raise _no_spark("session.rescale()")

    def check_reachable(self, paths: Iterable[str]) -> None:
        """See SessionRunner."""
        check_reachable(paths)

    def new_buckets(self) -> int:
        """See SessionRunner."""
        return os.cpu_count() or 1

    def _alive(self, what: str) -> None:
        if self._forked:
            got = f"a session of process {self._pid}"
            raise SessionClosedError(f"{what} on a session that is over", got=got, hint="make a new session")
        self.check_open(what)


class _NoNotes(CheckpointNotes):
    """Metrics are part of each commit, so nothing is noted apart from it."""

    def keep_metrics(self, metrics: dict[str, Any]) -> None:
        """Keep nothing."""


def _no_spark(what: str) -> PlanError:
    return PlanError(f"{what} needs Spark", got="a session in process", hint="use Session.embedded() for this pipeline")
