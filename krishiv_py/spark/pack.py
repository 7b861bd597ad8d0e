"""Before the shuffle: rows become judged, combined Arrow chunks per bucket (runs in ``mapInArrow``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from krishiv_py.kernels.grouping import buckets
from krishiv_py.kernels.operator import WindowOperator
from krishiv_py.kernels.prepare import COUNTERS, Prepare, Prepared
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.durations import UNSET
from krishiv_py.spark.codec import CLOCK_TYPE, clock_ms, encode, watermark_of
from krishiv_py.spark.scan import Reader, file_system

CHUNK: Final = "chunk"
LATE: Final = "late"
PACKED_DDL: Final = "bucket int, wm timestamp, kind string, seq bigint, in_force bigint, blob binary"
PACKED: Final = pa.schema([
    pa.field("bucket", pa.int32()), pa.field("wm", CLOCK_TYPE), pa.field("kind", pa.string()),
    pa.field("seq", pa.int64()), pa.field("in_force", pa.int64()), pa.field("blob", pa.binary()),
])  # fmt: skip
_FLUSH_ROWS: Final = 1 << 20


def batch_property() -> str:
    """The number of the running micro-batch, from the task."""
    context = TaskContext.get()
    assert context is not None
    number = context.getLocalProperty("streaming.sql.batchId")
    assert number is not None
    return number


@attrs.frozen
class OffsetLog:
    """Spark's write-ahead log of a query: the watermark of a batch stands in it before the batch runs."""

    checkpoint: str

    def watermark_ms(self, batch_id: str) -> int:
        """Spark's watermark in force in a batch."""
        system, path = file_system(f"{self.checkpoint}/offsets/{batch_id}")
        with system.open_input_stream(path) as stream:
            lines = stream.read().decode().splitlines()
        return int(json.loads(lines[1])["batchWatermarkMs"])


@attrs.frozen(eq=False)
class Pack:
    """The mapInArrow function of the streaming adapter. One instance is pickled to every task."""

    spec: OperatorSpec
    reader: Reader
    bucket_ids: tuple[int, ...]
    log: OffsetLog

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        spark_ms = self.log.watermark_ms(batch_property())
        in_force = max(watermark_of(spark_ms, self.spec.tick_us), self.spec.watermark.initial_us)
        task = _Task(self, in_force, context.partitionId() << 32)
        for batch in batches:
            for scanned in self.reader(batch):
                if scanned.control_us is not None:
                    task.control(scanned.control_us)
                elif scanned.batch is not None:
                    yield from task.take(scanned.batch)
        yield from task.finish()


class _Task:
    """One task's share of a micro-batch."""

    def __init__(self, pack: Pack, in_force: int, first_seq: int) -> None:
        self._pack = pack
        self._spec = pack.spec
        self._prepare = Prepare(pack.spec)
        self._operator: WindowOperator = operator_for(pack.spec)
        self._in_force = in_force
        self._next = UNSET
        self._seq = first_seq
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._late: list[pa.Table] = []
        self._counters = dict.fromkeys(COUNTERS, 0)

    def control(self, watermark_us: int) -> None:
        """Take an explicit watermark."""
        self._next = max(self._next, watermark_us)

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Judge a batch; hand chunks on when enough rows are waiting."""
        prepared: Prepared = self._prepare(batch, self._in_force)
        for name, n in prepared.counters.items():
            self._counters[name] += n
        if prepared.max_time_us != UNSET:
            self._next = max(self._next, prepared.max_time_us - self._spec.watermark.lag_us)
        if prepared.late.num_rows:
            self._late.append(prepared.late)
        if prepared.rows.num_rows:
            self._pending.append(prepared.rows)
            self._pending_rows += prepared.rows.num_rows
        if self._pending_rows >= _FLUSH_ROWS:
            yield from self._flush()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """What is left, and the late rows with the counters."""
        yield from self._flush()
        late = pa.concat_tables(self._late) if self._late else self._prepare.layout.late_schema.empty_table()
        if self._counters["rows"] or self._next != UNSET:
            tagged = late.replace_schema_metadata({b"counters": json.dumps(self._counters).encode()})
            yield self._rows([(self._pack.bucket_ids[0], LATE, encode(tagged))])

    def _flush(self) -> Iterator[pa.RecordBatch]:
        if not self._pending:
            return
        chunk = self._operator.combine(pa.concat_tables(self._pending))
        self._pending, self._pending_rows = [], 0
        yield self._rows([(b, CHUNK, encode(t)) for b, t in split(chunk, self._prepare.layout.key_names, self._pack.bucket_ids)])

    def _rows(self, rows: list[tuple[int, str, bytes]]) -> pa.RecordBatch:
        n = len(rows)
        clock = clock_ms(self._next, self._spec.tick_us) * 1_000
        self._seq += n
        return pa.RecordBatch.from_arrays(
            [pa.array([r[0] for r in rows], pa.int32()), pa.array([clock] * n, CLOCK_TYPE), pa.array([r[1] for r in rows]),
             pa.array(range(self._seq - n, self._seq), pa.int64()), pa.array([self._in_force] * n, pa.int64()),
             pa.array([r[2] for r in rows], pa.binary())], schema=PACKED,
        )  # fmt: skip


def split(chunk: pa.Table, keys: list[str], bucket_ids: tuple[int, ...]) -> list[tuple[int, pa.Table]]:
    """A chunk by bucket; rows keep their order."""
    if len(bucket_ids) == 1 or not keys:
        return [(bucket_ids[0], chunk)]
    at = buckets([chunk[k] for k in keys], chunk.num_rows, len(bucket_ids))
    order = np.argsort(at, kind="stable")
    ordered = chunk.take(pa.array(order))
    bounds = np.searchsorted(at[order], np.arange(len(bucket_ids) + 1))
    return [(bucket_ids[i], ordered.slice(a, b - a).combine_chunks())
            for i, (a, b) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)) if b > a]
