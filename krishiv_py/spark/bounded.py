"""The bounded adapter: a finite input as one Spark batch job over the same kernels.

The micro-batches of a memory stream, and of files read with ``max_files_per_batch``, are known, and so is the watermark in
force in each of them (moments.py): late rows are judged as in a streaming query. Any other finite source is one micro-batch, in
which the watermark is still unset: nothing is late.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Final

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.api.runner import BoundedResult
from krishiv_py.errors import PlanError, message
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.input.malformed import late_output, late_output_schema, malformed_rows
from krishiv_py.kernels.input.prepare import COUNTERS, Prepare
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import MemoryStore, Meta
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.nodes import MemorySource, Source
from krishiv_py.planner.physical import PhysicalPlan, StagePlan
from krishiv_py.spark.reading.malformed import in_columns
from krishiv_py.spark.reading.scan import Reader, scan
from krishiv_py.spark.reading.scanned import Scanned
from krishiv_py.spark.setup.workers import release_memory, settle_worker
from krishiv_py.spark.storage.handover import Handover
from krishiv_py.spark.tasks.failures import in_task
from krishiv_py.spark.tasks.moments import Moment, branch_reader, one_path, timetable
from krishiv_py.spark.tasks.pack import split
from krishiv_py.spool import Spool

_DDL: Final = "bucket int, batch int, seq bigint, kind string, blob binary"
_SCHEMA: Final = pa.schema(
    [
        pa.field("bucket", pa.int32()),
        pa.field("batch", pa.int32()),
        pa.field("seq", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("blob", pa.binary()),
    ]
)
_OUT_DDL: Final = "kind string, blob binary"
_OUT: Final = pa.schema([pa.field("kind", pa.string()), pa.field("blob", pa.binary())])
_ONE_TASK_BYTES: Final = 8 << 20


@attrs.frozen(eq=False)
class BoundedPack:
    """Before the shuffle. `moments` says what is in force by spool file; without it the input is one batch."""

    spec: OperatorSpec
    reader: Reader
    bucket_ids: tuple[int, ...]
    moments: dict[str, Moment] | None
    now_us: int
    handover: Handover

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker("bounded")
        with in_task(self.spec.name, "prepare"):
            yield from self._rows(batches)
        release_memory()

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare, operator = Prepare(self.spec), operator_for(self.spec)
        for seq, (moment, scanned) in enumerate(self._batches(batches)):
            rows = []
            if scanned.malformed:
                n = len(scanned.malformed)
                aside = malformed_rows(prepare.layout, in_columns(scanned.malformed), moment.watermark_us)
                rows.append(self._late(aside, {"rows": n, "malformed": n}))
            if scanned.batch is not None:
                prepared = prepare(scanned.batch, moment.watermark_us, moment.now_us)
                chunk = operator.combine(prepared.rows)
                chunks = split(chunk, prepare.layout.key_names, self.bucket_ids)
                rows += [(b, "chunk", self.handover.give(t)) for b, t in chunks]
                rows.append(self._late(prepared.late, prepared.counters))
            if not rows:
                continue
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([r[0] for r in rows], pa.int32()),
                    pa.array([moment.number] * len(rows), pa.int32()),
                    pa.array([seq] * len(rows), pa.int64()),
                    pa.array([r[1] for r in rows]),
                    pa.array([r[2] for r in rows], pa.binary()),
                ],
                schema=_SCHEMA,
            )

    def _late(self, late: pa.Table, counters: dict[str, int]) -> tuple[int, str, bytes]:
        tagged = late.replace_schema_metadata({b"counters": json.dumps(counters).encode()})
        return self.bucket_ids[0], "late", self.handover.give(tagged)

    def _batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Moment, Scanned]]:
        for batch in batches:
            if self.moments is None:
                only = Moment(0, self.spec.watermark.initial_us, self.now_us)
                yield from ((only, s) for s in self.reader(batch))
                continue
            for path in batch.column(0).to_pylist():
                moment = self.moments[path]
                yield from ((moment, s) for s in self.reader(one_path(path)))


@attrs.frozen(eq=False)
class BoundedSteps:
    """After the shuffle: each bucket's chunks, micro-batch by micro-batch, then the end of input."""

    spec: OperatorSpec
    moments: tuple[Moment, ...]
    handover: Handover

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker("bounded")
        with in_task(self.spec.name, "window step"):
            yield from self._rows(batches)
        release_memory()

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrived: dict[int, list[tuple[int, int, bytes]]] = {}
        counters = dict.fromkeys(COUNTERS, 0)
        for batch in batches:
            for row in batch.to_pylist():
                if row["kind"] == "late":
                    late = self.handover.take(row["blob"])
                    for name, n in json.loads(late.schema.metadata[b"counters"]).items():
                        counters[name] += n
                    if late.num_rows:
                        yield _out("late", row["blob"])
                else:
                    arrived.setdefault(row["bucket"], []).append((row["batch"], row["seq"], row["blob"]))
        yield _out("counters", json.dumps(counters).encode())
        for chunks in arrived.values():
            results, late, counted = self._bucket(sorted(chunks, key=lambda c: c[:2]))
            for kind, table in (("result", results), ("late", late)):
                if table.num_rows:
                    yield _out(kind, self.handover.give(table))
            yield _out("counters", json.dumps(counted).encode())

    def _bucket(self, chunks: list[tuple[int, int, bytes]]) -> tuple[pa.Table, pa.Table, dict[str, int]]:
        operator, store = operator_for(self.spec), MemoryStore()
        layout = Layout(self.spec)
        meta: Meta = {}
        by_batch: dict[int, list[pa.Table]] = {}
        for number, _, blob in chunks:
            by_batch.setdefault(number, []).append(self.handover.take(blob))
        end = Moment(-1, END_OF_TIME, self.moments[-1].now_us)
        steps = []
        for moment, then in zip(self.moments, [*self.moments[1:], end], strict=True):
            steps.append(operator.step(store, meta, by_batch.get(moment.number, []), moment.watermark_us, moment.now_us))
            waits = moment.idle or then is end  # a query runs a batch without rows while it waits for input
            if waits and then.watermark_us > moment.watermark_us:
                steps.append(operator.step(store, meta, [], then.watermark_us, then.now_us))
        counted: dict[str, int] = {"firings": sum(s.firings for s in steps)}
        for step in steps:
            for name, n in step.counters.items():
                counted[name] = counted.get(name, 0) + n
        late = [s.late for s in steps if s.late is not None]
        return (
            pa.concat_tables([s.results for s in steps]),
            pa.concat_tables([layout.late_schema.empty_table(), *late]),
            counted,
        )


def _out(kind: str, blob: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([kind]), pa.array([blob], pa.binary())], schema=_OUT)


def _packed(
    spark: SparkSession, stage: StagePlan, partitions: int, now_us: int, handover: Handover
) -> tuple[DataFrame, tuple[Moment, ...]]:
    ids, spec = tuple(range(partitions)), stage.spec
    when = timetable(spark, stage.inputs, spec, now_us)
    frames = []
    for at, part in enumerate(stage.inputs):
        if when is not None:
            paths = spark.createDataFrame([(f,) for f in when.files[at]], "path string")
            frame = paths.repartition(partitions) if partitions > 1 else paths.coalesce(1)
            pack = BoundedPack(part.spec, branch_reader(part), ids, when.files[at], now_us, handover)
            frames.append(frame.mapInArrow(pack.__call__, _DDL))
        else:
            found = scan(spark, part.source, part.spec.needs_columns, streaming=False)
            pack = BoundedPack(part.spec, found.reader, ids, None, now_us, handover)
            frames.append(found.frame.mapInArrow(pack.__call__, _DDL))
    only = (Moment(0, spec.watermark.initial_us, now_us),)
    return functools.reduce(DataFrame.union, frames), only if when is None else when.moments


def run(spark: SparkSession, plan: PhysicalPlan, now_us: int, handover: Handover) -> BoundedResult:
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
    stage = plan.stage
    layout = stage.layout
    counters = dict.fromkeys(COUNTERS, 0)
    if _nothing_sent(stage):
        return BoundedResult(layout.result_schema.empty_table(), late_output_schema(layout).empty_table(), counters)
    partitions = _partitions(spark, source)
    packed, when = _packed(spark, stage, partitions, now_us, handover)
    shuffled = packed.repartition(partitions, "bucket") if partitions > 1 else packed.coalesce(1)
    out = shuffled.mapInArrow(BoundedSteps(stage.spec, when, handover).__call__, _OUT_DDL).toArrow()
    results, late = [layout.result_schema.empty_table()], []
    for kind, blob in zip(*(c.to_pylist() for c in out.columns), strict=True):
        if kind != "counters":
            table = handover.take(blob)
            if kind == "result":
                results.append(table.cast(layout.result_schema))
            else:
                late.append(table.replace_schema_metadata())
            continue
        for name, n in json.loads(blob).items():
            counters[name] = counters.get(name, 0) + n
    return BoundedResult(pa.concat_tables(results).combine_chunks(), late_output(layout, late).combine_chunks(), counters)


def _nothing_sent(stage: StagePlan) -> bool:
    return all(isinstance(p.source, MemorySource) and not Spool(p.source.spool).files() for p in stage.inputs)


def _partitions(spark: SparkSession, source: Source) -> int:
    """One task for little data: a shuffle would cost more than it spreads."""
    if isinstance(source, MemorySource) and Spool(source.spool).size() < _ONE_TASK_BYTES:
        return 1
    return int(spark.conf.get("spark.sql.shuffle.partitions") or "2")
