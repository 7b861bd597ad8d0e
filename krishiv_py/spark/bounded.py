"""The bounded adapter: a finite input as one Spark batch job over the same kernels.

The micro-batches of a memory stream, and of files read with ``max_files_per_batch``, are known, and so is the watermark in
force in each of them (moments.py): late rows are judged as in a streaming query. Any other finite source is one micro-batch, in
which the watermark is still unset: nothing is late.
"""

from __future__ import annotations

import functools
from typing import Final

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.api.runner import BoundedResult
from krishiv_py.engine.notes import Notes, count, none_counted
from krishiv_py.errors import PlanError, message
from krishiv_py.kernels.input.malformed import late_output, late_output_schema
from krishiv_py.kernels.moment import Moment
from krishiv_py.plan.nodes import MemorySource, Source
from krishiv_py.planner.physical import PhysicalPlan, StagePlan
from krishiv_py.replay_log import ReplayLog
from krishiv_py.spark.reading.scan import scan
from krishiv_py.spark.storage.shuffle_files import ShuffleFiles
from krishiv_py.spark.tasks.bounded import DDL, OUT_DDL, RESULT, BoundedBehind, BoundedPack, BoundedSteps, Handing, step_moments
from krishiv_py.spark.tasks.handing_on import STAGE, HandingOn
from krishiv_py.spark.tasks.moments import TimedBatch, branch_reader, timetable
from krishiv_py.spark.tasks.pack import NOTES
from krishiv_py.spark.tasks.rows import BoundedRows

_ONE_TASK_BYTES: Final = 8 << 20


def _packed(
    spark: SparkSession, stage: StagePlan, partitions: int, now_us: int, shuffle_files: ShuffleFiles
) -> tuple[DataFrame, tuple[TimedBatch, ...]]:
    ids, spec = tuple(range(partitions)), stage.spec
    packs, ddl = (BoundedPack, DDL) if spec.time_column else (BoundedRows, OUT_DDL)
    when = timetable(spark, stage.inputs, spec, now_us)
    frames = []
    for at, part in enumerate(stage.inputs):
        if when is not None:
            paths = spark.createDataFrame([(f,) for f in when.files[at]], "path string")
            frame = paths.repartition(partitions) if partitions > 1 else paths.coalesce(1)
            pack = packs(part.spec, branch_reader(part), ids, when.files[at], now_us, shuffle_files)
            frames.append(frame.mapInArrow(pack.__call__, ddl))
        else:
            found = scan(spark, part.source, part.spec.needs_columns, streaming=False)
            pack = packs(part.spec, found.reader, ids, None, now_us, shuffle_files)
            frames.append(found.frame.mapInArrow(pack.__call__, ddl))
    only = (TimedBatch(0, Moment(spec.watermark.initial_us, now_us)),)
    return functools.reduce(DataFrame.union, frames), only if when is None else when.batches


def run(spark: SparkSession, plan: PhysicalPlan, now_us: int, shuffle_files: ShuffleFiles) -> BoundedResult:
    """Run a finite plan."""
    source = plan.source
    if not source.bounded:
        raise PlanError(
            message(
                "collect() needs an end",
                source.detail(),
                "a streaming source never ends",
                "use start(sink), or read the same data with streaming=False",
            )
        )
    first, last = plan.stages[0], len(plan.stages) - 1
    found = Gathered(plan)
    if _nothing_sent(first):
        return found.result()
    partitions = _partitions(spark, source)
    packed, when = _packed(spark, first, partitions, now_us, shuffle_files)
    moments = step_moments(when)
    for number, stage in enumerate(() if plan.keeps_nothing else plan.stages):
        following = HandingOn(plan.stages[number + 1].spec, tuple(range(partitions))) if number < last else None
        handing = Handing(number, following, shuffle_files)
        behind = tuple(m.behind(stage.behind_us) for m in moments)
        steps = (
            BoundedBehind(stage.spec, shuffle_files, handing, behind)
            if number
            else BoundedSteps(stage.spec, shuffle_files, handing, when)
        )
        shuffled = packed.repartition(partitions, "bucket") if partitions > 1 else packed.coalesce(1)
        packed = shuffled.mapInArrow(steps.__call__, OUT_DDL if following is None else DDL)
    for kind, blob in zip(*(c.to_pylist() for c in packed.toArrow().columns), strict=True):
        found.take(kind, blob, shuffle_files)
    return found.result()


@attrs.define(eq=False)
class Gathered:
    """What the driver gets of a bounded run."""

    plan: PhysicalPlan
    results: list[pa.Table] = attrs.field(factory=list)
    late: dict[int, list[pa.Table]] = attrs.field(factory=dict)
    counters: dict[int, dict[str, int]] = attrs.field(factory=dict)

    def take(self, named: str, blob: bytes, shuffle_files: ShuffleFiles) -> None:
        """Take what a task gave."""
        kind, _, number = named.partition(STAGE)
        if kind == RESULT:
            self.results.append(shuffle_files.take(blob).cast(self.plan.stage.layout.result_schema))
        elif kind == NOTES:
            count(self.counters.setdefault(int(number), none_counted()), Notes.from_bytes(blob).counters)
        else:
            self.late.setdefault(int(number), []).append(shuffle_files.take(blob))

    def result(self) -> BoundedResult:
        """All of it."""
        table = pa.concat_tables([self.plan.stage.layout.result_schema.empty_table(), *self.results]).combine_chunks()
        late = {
            stage.spec.name: late_output(stage.layout, self.late[n]).combine_chunks()
            if n in self.late
            else late_output_schema(stage.layout).empty_table()
            for n, stage in enumerate(self.plan.stages)
        }
        return BoundedResult(table, late[self.plan.stages[0].spec.name], self.counters.get(0, none_counted()), late)


def _nothing_sent(stage: StagePlan) -> bool:
    return all(isinstance(p.source, MemorySource) and not ReplayLog(p.source.spool).files() for p in stage.inputs)


def _partitions(spark: SparkSession, source: Source) -> int:
    """One task for little data: a shuffle would cost more than it spreads."""
    if isinstance(source, MemorySource) and ReplayLog(source.spool).size() < _ONE_TASK_BYTES:
        return 1
    return int(spark.conf.get("spark.sql.shuffle.partitions") or "2")
