"""Before the shuffle: rows become judged, combined Arrow chunks per bucket (runs in ``mapInArrow``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from krishiv_py.kernels.arrays.grouping import buckets
from krishiv_py.kernels.arrays.sorting import stable_order
from krishiv_py.kernels.columns.evaluate import apply_prefix
from krishiv_py.kernels.input.malformed import late_output, malformed_rows
from krishiv_py.kernels.input.prepare import COUNTERS, Prepare, Prepared
from krishiv_py.kernels.input.watermark import WatermarkTracker
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.results.contract import WindowOperator
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.durations import UNSET
from krishiv_py.spark.clock.clocks import Clock, batch_number
from krishiv_py.spark.reading.malformed import Malformed, in_columns
from krishiv_py.spark.reading.scan import Reader
from krishiv_py.spark.reading.scanned import Scanned
from krishiv_py.spark.setup.workers import release_memory, settle_worker
from krishiv_py.spark.storage.codec import CLOCK_TYPE, clock_ms, encode
from krishiv_py.spark.storage.handover import Handover
from krishiv_py.spark.tasks.failures import in_task

CHUNK: Final = "chunk"
LATE: Final = "late"
TICK: Final = "tick"
RAW: Final = "raw"
PACKED_DDL: Final = "bucket int, wm timestamp, kind string, seq bigint, in_force bigint, blob binary"
PACKED: Final = pa.schema(
    [
        pa.field("bucket", pa.int32()),
        pa.field("wm", CLOCK_TYPE),
        pa.field("kind", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("in_force", pa.int64()),
        pa.field("blob", pa.binary()),
    ]
)
_FLUSH_ROWS: Final = 1 << 18
_NOTES: Final = b"krishiv_notes"


@attrs.define
class Notes:
    """What one task has to say of a micro-batch beside its rows.

    Attributes
    ----------
    counters : dict
        Rows by fate.
    maxima : dict
        Largest event time by source, µs.
    controls : list
        Watermark, source and time of every control file.
    """

    counters: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(COUNTERS, 0))
    maxima: dict[str, int] = attrs.field(factory=dict)
    controls: list[list[Any]] = attrs.field(factory=list)

    def take(self, prepared: Prepared) -> None:
        """Add what was learnt of a batch."""
        for name, n in prepared.counters.items():
            self.counters[name] += n
        for source, time_us in prepared.maxima.items():
            self.maxima[source] = max(self.maxima.get(source, UNSET), time_us)

    def refuse(self, n: int) -> None:
        """Count malformed input."""
        self.counters["rows"] += n
        self.counters["malformed"] += n

    def latest_us(self) -> int:
        """The latest processing time a control told, µs; 0 without controls."""
        return max((c[2] for c in self.controls), default=0)

    def metadata(self) -> dict[bytes, bytes]:
        """As Arrow schema metadata."""
        return {_NOTES: json.dumps(attrs.asdict(self)).encode()}


def notes_of(table: pa.Table) -> Notes:
    """The notes that travel with a table of late rows."""
    return Notes(**json.loads(table.schema.metadata[_NOTES]))


@attrs.frozen(eq=False)
class Pack:
    """The mapInArrow function of the streaming adapter. One instance is pickled to every task."""

    spec: OperatorSpec
    reader: Reader
    bucket_ids: tuple[int, ...]
    clock: Clock
    handover: Handover
    source: str | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker("pack")
        context = TaskContext.get()
        assert context is not None
        number = batch_number()
        with in_task(self.spec.name, "prepare", number):
            task = _Task(self, number, context.partitionId() << 32)
            for batch in batches:
                for scanned in self.reader(batch):
                    yield from task.take(scanned)
            yield from task.finish()
        release_memory()


class _Task:
    """One task's share of a micro-batch."""

    def __init__(self, pack: Pack, batch: int, first_seq: int) -> None:
        self._pack = pack
        self._spec = pack.spec
        self._prepare = Prepare(pack.spec)
        self._operator: WindowOperator = operator_for(pack.spec)
        self._batch = batch
        self._give = pack.handover.of_batch(batch).give
        self._in_force = pack.clock.in_force(batch)
        self._tracker = WatermarkTracker(pack.spec.watermark)
        self._notes = Notes()
        self._seq = first_seq
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._late: list[pa.Table] = []
        self._any = False

    def take(self, scanned: Scanned) -> Iterator[pa.RecordBatch]:
        """Judge a batch, or note a control; hand chunks on when enough rows are waiting."""
        self._any = True
        if scanned.control is not None:
            source = scanned.control.source or self._pack.source
            self._notes.controls.append([scanned.control.watermark_us, source, scanned.control.now_us])
            self._tracker.advance(scanned.control.watermark_us, source, 0)
            return
        if scanned.malformed:
            self._refuse(scanned.malformed)
        if scanned.batch is None:
            return
        prepared: Prepared = self._prepare(scanned.batch, self._in_force.watermark_us, self._in_force.now_us)
        self._notes.take(prepared)
        self._tracker.saw(prepared.maxima, 0)
        if prepared.late.num_rows:
            self._late.append(prepared.late)
        if prepared.rows.num_rows:
            self._pending.append(prepared.rows)
            self._pending_rows += prepared.rows.num_rows
        if self._pending_rows >= _FLUSH_ROWS:
            yield from self._flush()

    def _refuse(self, malformed: tuple[Malformed, ...]) -> None:
        """Put input aside that is no row."""
        self._notes.refuse(len(malformed))
        self._late.append(malformed_rows(self._prepare.layout, in_columns(malformed), self._in_force.watermark_us))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """What is left, and the late rows with the notes."""
        yield from self._flush()
        if not self._any:
            return
        late = late_output(self._prepare.layout, self._late)
        yield self._rows([(self._pack.bucket_ids[0], LATE, self._give(late.replace_schema_metadata(self._notes.metadata())))])
        if self._notes.controls:  # every bucket has something to do when the time moves
            now = str(self._notes.latest_us()).encode()
            yield self._rows([(b, TICK, now) for b in self._pack.bucket_ids[1:]])

    def _flush(self) -> Iterator[pa.RecordBatch]:
        if not self._pending:
            return
        chunk = self._operator.combine(pa.concat_tables(self._pending))
        self._pending, self._pending_rows = [], 0
        yield self._rows(
            [(b, CHUNK, self._give(t)) for b, t in split(chunk, self._prepare.layout.key_names, self._pack.bucket_ids)]
        )

    def _rows(self, rows: list[tuple[int, str, bytes]]) -> pa.RecordBatch:
        n = len(rows)
        clock = self._pack.clock.spark_ms(self._batch, self._tracker.settle(0)) * 1_000
        self._seq += n
        return pa.RecordBatch.from_arrays(
            [
                pa.array([r[0] for r in rows], pa.int32()),
                pa.array([clock] * n, CLOCK_TYPE),
                pa.array([r[1] for r in rows]),
                pa.array(range(self._seq - n, self._seq), pa.int64()),
                pa.array([self._in_force.watermark_us] * n, pa.int64()),
                pa.array([r[2] for r in rows], pa.binary()),
            ],
            schema=PACKED,
        )


@attrs.frozen(eq=False)
class RawPack:
    """For frames that go on in plain Spark: nobody knows their checkpoint, so rows travel unjudged to the operator."""

    spec: OperatorSpec
    reader: Reader
    bucket_ids: tuple[int, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker("pack")
        context = TaskContext.get()
        assert context is not None
        with in_task(self.spec.name, "prepare"):
            yield from self._rows(batches, context.partitionId() << 32)
        release_memory()

    def _rows(self, batches: Iterator[pa.RecordBatch], seq: int) -> Iterator[pa.RecordBatch]:
        prepare, tracker = Prepare(self.spec), WatermarkTracker(self.spec.watermark)
        for batch in batches:
            for scanned in self.reader(batch):
                chunks: list[tuple[int, pa.Table | None]] = [(self.bucket_ids[0], None)]
                if scanned.malformed:
                    raise scanned.malformed[0].error()  # nobody would see it: such a frame has one output
                if scanned.control is not None:
                    tracker.advance(scanned.control.watermark_us, scanned.control.source, 0)
                else:
                    assert scanned.batch is not None
                    rows = pa.Table.from_batches([apply_prefix(self.spec.prefix, scanned.batch)])
                    tracker.saw(prepare.maxima(scanned.batch, UNSET, 0), 0)
                    chunks = [(b, t) for b, t in split(rows, list(self.spec.keys), self.bucket_ids)]
                clock = clock_ms(tracker.settle(0), self.spec.tick_us) * 1_000
                for bucket, table in chunks:
                    kind = TICK if table is None else RAW
                    yield pa.RecordBatch.from_arrays(
                        [
                            pa.array([bucket], pa.int32()),
                            pa.array([clock], CLOCK_TYPE),
                            pa.array([kind]),
                            pa.array([seq], pa.int64()),
                            pa.array([UNSET], pa.int64()),
                            pa.array([b"0" if table is None else encode(table)], pa.binary()),
                        ],
                        schema=PACKED,
                    )
                    seq += 1


def split(chunk: pa.Table, keys: list[str], bucket_ids: tuple[int, ...]) -> list[tuple[int, pa.Table]]:
    """A chunk by bucket; rows keep their order."""
    if len(bucket_ids) == 1 or not keys:
        return [(bucket_ids[0], chunk)]
    at = buckets([chunk[k] for k in keys], chunk.num_rows, len(bucket_ids))
    order = stable_order(at)
    ordered = chunk.take(pa.array(order))
    bounds = np.searchsorted(at[order], np.arange(len(bucket_ids) + 1))
    return [
        (bucket_ids[i], ordered.slice(a, b - a).combine_chunks())
        for i, (a, b) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
        if b > a
    ]
