"""The bounded adapter: a finite input as one Spark batch job over the same kernels.

The micro-batches of a memory stream, and of files read with ``max_files_per_batch``, are known, and so is the watermark in
force in each of them (tasks/bounded.py): late rows are classified as in a streaming query. Any other finite source is one
micro-batch, in which the watermark is still unset: nothing is late.
"""

from __future__ import annotations

import functools
from typing import Final

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.api.query import BoundedResult
from krishiv_py.connectors.lookup_table import as_they_stand
from krishiv_py.engine.stage import Notes, count, none_counted
from krishiv_py.engine.time_watch import TimeWatch
from krishiv_py.errors import PlanError
from krishiv_py.kernels.prepare import late_output, late_output_schema
from krishiv_py.kernels.spec import Moment
from krishiv_py.plan.nodes import MemorySource, SourceNode
from krishiv_py.plan.running import summed
from krishiv_py.planner.cut import input_stages
from krishiv_py.planner.physical import PhysicalPlan, lookup_tables
from krishiv_py.runtime.batch import RESULT, STAGE, leaving, place_of, result_kinds
from krishiv_py.spark.scan import scan
from krishiv_py.spark.setup.workers import mapped
from krishiv_py.spark.storage import ShuffleFiles
from krishiv_py.spark.tasks.bounded import (
    PACKED_TYPE,
    BoundedPack,
    BoundedSteps,
    TimedBatch,
    Timetable,
    in_order,
    stream_reader,
    timetable,
)
from krishiv_py.spark.tasks.pack import NOTES, root_of
from krishiv_py.storage.local import private_folder
from krishiv_py.storage.sends.log import ReplayLog

_ONE_TASK_BYTES: Final = 8 << 20


def run(spark: SparkSession, plan: PhysicalPlan, now_us: int, shuffle_files: ShuffleFiles) -> BoundedResult:
    """Run a finite plan."""
    source = plan.source
    if not all(read.source.bounded for read in plan.reads):
        hint = "use start(sink), or read the same data with streaming=False"
        raise PlanError("collect() needs an end", got=source.detail(), then="a streaming source never ends", hint=hint)
    gathered = BoundedOutputs(plan)
    if _nothing_sent(plan):
        return gathered.result()
    with as_they_stand(lookup_tables(plan)):  # all tasks see what they hold now
        return _run(spark, plan, now_us, shuffle_files, gathered)


def _run(
    spark: SparkSession, plan: PhysicalPlan, now_us: int, shuffle_files: ShuffleFiles, gathered: BoundedOutputs
) -> BoundedResult:
    partitions = _partitions(spark, plan)
    ids = tuple(range(partitions))
    given, when = _packed(spark, plan, ids, now_us, shuffle_files)
    batches = (TimedBatch(0, _begun(plan, now_us)),) if when is None else when.batches
    for number, stage in enumerate(plan.stages):
        if not stage.stateless:
            steps = BoundedSteps(stage.spec, place_of(plan, number, None, ids), batches, shuffle_files)
            shuffled = given.repartition(partitions, "bucket") if partitions > 1 else given.coalesce(1)
            given = mapped(shuffled, steps.__call__, PACKED_TYPE)
    reports = given.select("kind", "blob").toArrow()
    for kind, blob in zip(*(c.to_pylist() for c in reports.columns), strict=True):
        gathered.take(kind, blob, shuffle_files)
    result = gathered.result()
    if when is not None and when.order is not None:
        when.order.tell(plan.title, result.counters)
    return result


def _begun(plan: PhysicalPlan, now_us: int) -> Moment:
    """Return what is in force before any row."""
    return attrs.evolve(plan.clocks.initial, now_us=now_us, begun_us=now_us)


def _packed(
    spark: SparkSession, plan: PhysicalPlan, ids: tuple[int, ...], now_us: int, shuffle_files: ShuffleFiles
) -> tuple[DataFrame, Timetable | None]:
    """Return the rows of all streams, packed for the stages that read them; and the micro-batches they are in, if several."""
    when, begun = None if plan.in_lanes else timetable(spark, plan, now_us), _begun(plan, now_us)
    dated = tuple(n for n, stage in enumerate(plan.stages) if stage.spec.operation.by_clock)
    frames = []
    for number, read in enumerate(plan.reads):
        roots = tuple(root_of(plan, n, branch) for n, branch in read.takers)
        outs = tuple(leaving(plan, root.number) for root in roots)
        if when is not None:
            paths = spark.createDataFrame([(f,) for f in when.files[number]], "path string")
            frame = paths.repartition(len(ids)) if len(ids) > 1 else paths.coalesce(1)
            pack = BoundedPack(roots, stream_reader(read), ids, when.files[number], begun, shuffle_files, outs, dated=dated)
        elif number in plan.in_lanes:
            frame = spark.createDataFrame([(f,) for f in in_order(spark, read)], "path string").coalesce(1)
            pack = BoundedPack(roots, stream_reader(read), ids, None, begun, shuffle_files, outs, in_lanes=True, dated=dated)
        else:
            scanned = scan(spark, read.source, read.needs_columns, streaming=False)
            frame = scanned.frame
            pack = BoundedPack(roots, scanned.reader, ids, None, begun, shuffle_files, outs, dated=dated)
        frames.append(mapped(frame, pack.__call__, PACKED_TYPE))
    return functools.reduce(DataFrame.union, frames), when


def with_files(plan: PhysicalPlan, folder: str) -> PhysicalPlan:
    """Return a plan whose memory streams in segments, which Spark cannot read, are streams of files in a folder."""
    sources: dict[int, SourceNode] = {}
    for read in plan.reads:
        source = read.source
        if isinstance(source, MemorySource) and id(source) not in sources and ReplayLog(source.spool).in_segments:
            files = ReplayLog(f"{folder}/{len(sources)}")
            private_folder(files.folder)
            for send in ReplayLog(source.spool).sends():
                files.append(send)
            sources[id(source)] = attrs.evolve(source, spool=files.folder)
    if not sources:
        return plan
    stages = (
        attrs.evolve(stage, inputs=tuple(attrs.evolve(b, source=sources.get(id(b.source), b.source)) for b in stage.inputs))
        for stage in plan.stages
    )
    return attrs.evolve(plan, stages=tuple(stages))


@attrs.define(eq=False)
class BoundedOutputs:
    """Holds what the driver gets of a bounded run."""

    plan: PhysicalPlan
    results: dict[str, list[pa.Table]] = attrs.field(factory=dict)
    late: dict[int, list[pa.Table]] = attrs.field(factory=dict)
    counters: dict[int, dict[str, int]] = attrs.field(factory=dict)
    ahead: TimeWatch = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.ahead = TimeWatch(self.plan, self.plan.title)

    def take(self, named: str, blob: bytes, shuffle_files: ShuffleFiles) -> None:
        """Take what a task gave."""
        kind, _, number = named.partition(STAGE)
        if kind == RESULT:
            self.results.setdefault(named, []).append(shuffle_files.take(blob))
        elif kind == NOTES:
            noted = Notes.from_bytes(blob)
            count(self.counters.setdefault(int(number), none_counted()), noted.counters)
            self.ahead.take(int(number), [noted])
        else:
            self.late.setdefault(int(number), []).append(shuffle_files.take(blob))

    def result(self) -> BoundedResult:
        """Return the result, with all that was gathered."""
        outputs = {
            output.name: _whole(output.schema, self.results.get(kind, []))
            for kind, output in zip(result_kinds(self.plan), self.plan.outputs, strict=True)
        }
        late = {
            stage.spec.name: late_output(stage.layout, self.late[n]).combine_chunks()
            if n in self.late
            else late_output_schema(stage.layout).empty_table()
            for n, stage in enumerate(self.plan.stages)
        }
        first = self.plan.stages[0].spec.name
        by_stage = {s.spec.name: self.counters.get(n, none_counted()) for n, s in enumerate(self.plan.stages)}
        counters = summed(self.counters.get(n, none_counted()) for n in input_stages(self.plan.stages))
        return BoundedResult(next(iter(outputs.values())), late[first], counters, late, outputs, by_stage)


def _whole(schema: pa.Schema, tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)]).combine_chunks()


def _nothing_sent(plan: PhysicalPlan) -> bool:
    sources = [read.source for read in plan.reads]
    return all(isinstance(source, MemorySource) and not ReplayLog(source.spool).files() for source in sources)


def _partitions(spark: SparkSession, plan: PhysicalPlan) -> int:
    """One task for little data: a shuffle would cost more than it spreads."""
    sources = [read.source for read in plan.reads]
    if len(sources) == 1 and isinstance(sources[0], MemorySource) and ReplayLog(sources[0].spool).size() < _ONE_TASK_BYTES:
        return 1
    return int(spark.conf.get("spark.sql.shuffle.partitions") or "2")
