"""The bounded adapter: a finite input as one Spark batch job over the same kernels.

The micro-batches of a memory stream are known, and so is the watermark in force in each of them: late rows are judged as in
a streaming query. Any other finite source is one micro-batch, in which the watermark is still unset: nothing is late.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.api.aggregated import AggregatedStream
from krishiv_py.api.runner import BoundedResult
from krishiv_py.errors import PlanError, message
from krishiv_py.kernels.evaluate import apply_prefix
from krishiv_py.kernels.layout import Layout
from krishiv_py.kernels.prepare import COUNTERS, Prepare
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state import MemoryStore, Meta
from krishiv_py.kernels.timecodec import stamp
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.nodes import MemorySource, Source, source_of
from krishiv_py.spark.codec import decode, encode
from krishiv_py.spark.pack import split
from krishiv_py.spark.scan import ParquetReader, Reader, Scanned, scan
from krishiv_py.spool import Spool

_DDL: Final = "bucket int, batch int, seq bigint, kind string, blob binary"
_SCHEMA: Final = pa.schema([
    pa.field("bucket", pa.int32()), pa.field("batch", pa.int32()), pa.field("seq", pa.int64()), pa.field("kind", pa.string()),
    pa.field("blob", pa.binary()),
])  # fmt: skip
_OUT_DDL: Final = "kind string, blob binary"
_OUT: Final = pa.schema([pa.field("kind", pa.string()), pa.field("blob", pa.binary())])
_ONE_TASK_BYTES: Final = 8 << 20


def next_watermark(spec: OperatorSpec, batch: pa.RecordBatch, now_us: int) -> int:
    """The watermark after a batch of source rows."""
    rows = apply_prefix(spec.prefix, batch)
    stamped = stamp(rows.column(spec.time_column), spec.time_kind)
    usable = stamped.times[~(stamped.null | stamped.out_of_range)]
    return max(now_us, int(usable.max()) - spec.watermark.lag_us) if len(usable) else now_us


def spool_watermarks(spec: OperatorSpec, spool: Spool) -> list[int]:
    """The watermark in force in every batch of a memory stream, and the last one after all of them."""
    reader = ParquetReader(pa.schema([spec.source_schema.field(n) for n in spec.needs_columns]))
    in_force = [spec.watermark.initial_us]
    for path in spool.files():
        now = in_force[-1]
        for scanned in reader(pa.record_batch([pa.array([path])], names=["path"])):
            if scanned.control_us is not None:
                now = max(now, scanned.control_us)
            elif scanned.batch is not None:
                now = next_watermark(spec, scanned.batch, now)
        in_force.append(now)
    return in_force


@attrs.frozen(eq=False)
class BoundedPack:
    """Before the shuffle. `in_force` gives the watermark by spool file; without it the input is one batch."""

    spec: OperatorSpec
    reader: Reader
    bucket_ids: tuple[int, ...]
    in_force: dict[str, tuple[int, int]] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare, operator = Prepare(self.spec), operator_for(self.spec)
        for seq, (number, watermark, scanned) in enumerate(self._batches(batches)):
            if scanned.batch is None:
                continue
            prepared = prepare(scanned.batch, watermark)
            chunk = operator.combine(prepared.rows)
            tagged = prepared.late.replace_schema_metadata({b"counters": json.dumps(prepared.counters).encode()})
            rows = [(b, "chunk", encode(t)) for b, t in split(chunk, prepare.layout.key_names, self.bucket_ids)]
            rows.append((self.bucket_ids[0], "late", encode(tagged)))
            yield pa.RecordBatch.from_arrays(
                [pa.array([r[0] for r in rows], pa.int32()), pa.array([number] * len(rows), pa.int32()),
                 pa.array([seq] * len(rows), pa.int64()), pa.array([r[1] for r in rows]),
                 pa.array([r[2] for r in rows], pa.binary())], schema=_SCHEMA,
            )  # fmt: skip

    def _batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, Scanned]]:
        for batch in batches:
            if self.in_force is None:
                yield from ((0, self.spec.watermark.initial_us, s) for s in self.reader(batch))
                continue
            for path in batch.column(0).to_pylist():
                number, watermark = self.in_force[path.rsplit("/", 1)[-1]]
                one = pa.record_batch([pa.array([path])], names=["path"])
                yield from ((number, watermark, s) for s in self.reader(one))


@attrs.frozen(eq=False)
class BoundedSteps:
    """After the shuffle: each bucket's chunks, micro-batch by micro-batch, then the end of input."""

    spec: OperatorSpec
    in_force: tuple[int, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrived: dict[int, list[tuple[int, int, bytes]]] = {}
        counters = dict.fromkeys(COUNTERS, 0)
        for batch in batches:
            for row in batch.to_pylist():
                if row["kind"] == "late":
                    late = decode(row["blob"])
                    for name, n in json.loads(late.schema.metadata[b"counters"]).items():
                        counters[name] += n
                    if late.num_rows:
                        yield _out("late", row["blob"])
                else:
                    arrived.setdefault(row["bucket"], []).append((row["batch"], row["seq"], row["blob"]))
        yield _out("counters", json.dumps(counters).encode())
        for chunks in arrived.values():
            results = self._bucket(sorted(chunks, key=lambda c: c[:2]))
            if results.num_rows:
                yield _out("result", encode(results))

    def _bucket(self, chunks: list[tuple[int, int, bytes]]) -> pa.Table:
        operator, store = operator_for(self.spec), MemoryStore()
        meta: Meta = {}
        by_batch: dict[int, list[pa.Table]] = {}
        for number, _, blob in chunks:
            by_batch.setdefault(number, []).append(decode(blob))
        out = []
        for number, watermark in enumerate(self.in_force[:-1]):
            moved = number == 0 or watermark != self.in_force[number - 1]
            if number in by_batch or moved:
                out.append(operator.step(store, meta, by_batch.get(number, []), watermark).results)
        out.append(operator.step(store, meta, [], self.in_force[-1]).results)
        out.append(operator.step(store, meta, [], END_OF_TIME).results)
        return pa.concat_tables(out)


def _out(kind: str, blob: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([kind]), pa.array([blob], pa.binary())], schema=_OUT)


def _plan(spark: SparkSession, spec: OperatorSpec, source: Source, partitions: int) -> tuple[DataFrame, tuple[int, ...]]:
    ids = tuple(range(partitions))
    if isinstance(source, MemorySource):
        spool = Spool(source.spool)
        in_force = spool_watermarks(spec, spool)
        numbered = {p.rsplit("/", 1)[-1]: (i, w) for i, (p, w) in enumerate(zip(spool.files(), in_force[:-1], strict=True))}
        schema = pa.schema([source.schema.field(n) for n in spec.needs_columns])
        paths = spark.createDataFrame([(p,) for p in spool.files()], "path string") if spool.files() else None
        if paths is None:
            return spark.createDataFrame([], _DDL), (UNSET, UNSET)
        pack = BoundedPack(spec, ParquetReader(schema), ids, numbered)
        return paths.repartition(partitions).mapInArrow(pack.__call__, _DDL), tuple(in_force)
    found = scan(spark, source, spec.needs_columns, streaming=False)
    initial = spec.watermark.initial_us
    return found.frame.mapInArrow(BoundedPack(spec, found.reader, ids, None).__call__, _DDL), (initial, initial)


def run(spark: SparkSession, stream: AggregatedStream) -> BoundedResult:
    """Run a finite plan."""
    source = source_of(stream.node)
    if not source.bounded:
        raise PlanError(message("collect() needs an end", source.detail(), "a streaming source never ends",
                                "use start(sink), or read the same data with streaming=False"))
    spec = stream.spec()
    partitions = _partitions(spark, source)
    packed, in_force = _plan(spark, spec, source, partitions)
    shuffled = packed.repartition(partitions, "bucket") if partitions > 1 else packed.coalesce(1)
    rows: list[Any] = shuffled.mapInArrow(BoundedSteps(spec, in_force).__call__, _OUT_DDL).collect()
    layout = Layout(spec)
    counters = dict.fromkeys(COUNTERS, 0)
    for row in rows:
        if row.kind == "counters":
            for name, n in json.loads(bytes(row.blob)).items():
                counters[name] += n
    return BoundedResult(_tables(rows, "result", layout.result_schema), _tables(rows, "late", layout.late_schema), counters)


def _tables(rows: list[Any], kind: str, schema: pa.Schema) -> pa.Table:
    found = [decode(bytes(r.blob)).cast(schema) for r in rows if r.kind == kind]
    return pa.concat_tables([schema.empty_table(), *found])


def _partitions(spark: SparkSession, source: Source) -> int:
    """One task for little data: a shuffle would cost more than it spreads."""
    if isinstance(source, MemorySource) and Spool(source.spool).size() < _ONE_TASK_BYTES:
        return 1
    return int(spark.conf.get("spark.sql.shuffle.partitions") or "2")

