"""The stateful operator: kernels inside ``transformWithState``, keyed by bucket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from krishiv_py.errors import OperatorError
from krishiv_py.kernels.input.malformed import late_output
from krishiv_py.kernels.input.prepare import COUNTERS, Prepare
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.results.contract import StepResult
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import NOW_MS, Meta
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.spark.clock.clocks import Clock, InForce, batch_number
from krishiv_py.spark.clock.marks import MarkCheck
from krishiv_py.spark.setup.workers import release_memory, settle_worker
from krishiv_py.spark.storage.blobs import BlobFolder, BucketBlobs
from krishiv_py.spark.storage.codec import decode, encode, wakeup_ms, watermark_of
from krishiv_py.spark.storage.handover import Handover
from krishiv_py.spark.tasks.failures import in_task
from krishiv_py.spark.tasks.outputs import TaskOutput
from krishiv_py.spark.tasks.pack import CHUNK, RAW, TICK, Notes, notes_of

OUT_DDL: Final = "kind string, bucket int, blob binary"
RESULT: Final = "result"
LATE_ROWS: Final = "late"
METRICS: Final = "metrics"
FILE: Final = "file"
STATE: Final = "chunks"
META: Final = "meta"


class SparkStore:
    """Chunks in a Spark map state, large ones in files it names; sizes are kept in the meta dictionary."""

    def __init__(self, state: Any, sizes: dict[str, int], blobs: BucketBlobs | None) -> None:
        self._state = state
        self._sizes = sizes
        self._blobs = blobs

    def get(self, name: str) -> pa.Table:
        """See ChunkStore."""
        mapped = self._blobs.read(name) if self._blobs is not None else None
        return decode(bytes(self._state.getValue((name,))[0])) if mapped is None else mapped

    def put(self, name: str, table: pa.Table) -> None:
        """See ChunkStore."""
        written = self._blobs.write(name, table) if self._blobs is not None else None
        if written is None:
            blob = encode(table)
            written = blob, len(blob)
        self._sizes[name] = written[1]
        self._state.updateValue((name,), (written[0],))

    def delete(self, name: str) -> None:
        """See ChunkStore."""
        if self._blobs is not None:
            self._blobs.drop(name)
        del self._sizes[name]
        self._state.removeKey((name,))


class BucketProcessor(StatefulProcessor):
    """One instance per task; every bucket is one grouping key."""

    def __init__(
        self,
        spec: OperatorSpec,
        output: TaskOutput | None = None,
        clock: Clock | None = None,
        blobs: BlobFolder | None = None,
        handover: Handover | None = None,
    ) -> None:
        self._spec = spec
        self._output = output
        self._clock = clock
        self._blobs = blobs
        self._handover = handover

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the one state variable."""
        settle_worker("operator")
        self._handle = handle
        self._state = handle.getMapState(STATE, "name string", "blob binary")
        self._operator = operator_for(self._spec)
        self._prepare = Prepare(attrs.evolve(self._spec, prefix=()))
        self._stepped: set[int] = set()
        mark = self._spec.watermark
        self._mark = MarkCheck(self._spec.name, self._spec.tick_us, mark.lag_us if isinstance(mark, WatermarkSpec) else 0)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        """Fold the bucket's chunks in and fire."""
        batch = batch_number()
        with in_task(self._spec.name, f"window step of bucket {key[0]}", batch):
            yield from self._fold(int(key[0]), batch, rows, timerValues)

    def _fold(self, bucket: int, batch: int, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        in_force = self._in_force(batch, timerValues)
        chunks: list[pa.Table] = []
        late: list[pa.Table] = []
        now_us = in_force.now_us
        take = decode if self._handover is None else self._handover.of_batch(batch).take
        for row in sorted(rows, key=lambda r: r.seq):
            if row.kind == RAW:
                judged = self._judge(bytes(row.blob), in_force)
                chunks.append(judged[0])
                late.append(judged[1])
                continue
            if self._clock is not None and row.in_force != in_force.watermark_us:
                raise OperatorError(
                    f"{self._spec.name}: a batch was judged by watermark {row.in_force} but runs under "
                    f"{in_force.watermark_us}: its late rows would be wrong. "
                    "Hint: this is a bug in krishiv_py, please report it"
                )
            if row.kind == TICK:
                now_us = max(now_us, int(bytes(row.blob)))
            else:
                (chunks if row.kind == CHUNK else late).append(take(bytes(row.blob)))
        yield from self._step(bucket, batch, InForce(in_force.watermark_us, now_us), chunks, late)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Fire what is due although no row came."""
        bucket = int(key[0])
        if bucket not in self._stepped:
            batch = batch_number()
            with in_task(self._spec.name, f"window step of bucket {bucket}", batch):
                yield from self._step(bucket, batch, self._in_force(batch, timerValues), [], [])

    def close(self) -> None:
        """The task is over."""
        release_memory()

    def _in_force(self, batch: int, timers: Any) -> InForce:
        if self._clock is not None:
            return self._clock.in_force(batch)
        self._mark.spark_ms = timers.getCurrentWatermarkInMs()
        found = watermark_of(self._mark.spark_ms, self._spec.tick_us)
        return InForce(max(found, self._spec.watermark.initial_us), 0)

    def _judge(self, blob: bytes, in_force: InForce) -> tuple[pa.Table, pa.Table]:
        """Rows that came unjudged: combined, and the late ones with their notes."""
        notes = Notes()
        late, rows = [], []
        for part in decode(blob).to_batches():
            prepared = self._prepare(part, in_force.watermark_us, in_force.now_us)
            notes.take(prepared)
            rows.append(prepared.rows)
            late.append(prepared.late)
        layout = self._prepare.layout
        refused = pa.concat_tables([layout.late_schema.empty_table(), *late])
        combined = self._operator.combine(pa.concat_tables([layout.row_schema.empty_table(), *rows]))
        return combined, refused.replace_schema_metadata(notes.metadata())

    def _load(self) -> Meta:
        stored: Any = self._state.getValue((META,))
        if stored is None:
            return {}
        loaded: Meta = json.loads(bytes(stored[0]))
        return loaded

    def _step(self, bucket: int, batch: int, in_force: InForce, chunks: list[pa.Table], late: list[pa.Table]) -> Iterator[Row]:
        meta = self._load()
        counters = meta.setdefault("counters", dict.fromkeys([*COUNTERS, "firings"], 0))
        sizes = meta.setdefault("sizes", {})
        notes = [notes_of(table) for table in late]
        if self._clock is None:
            self._mark(meta, [n.maxima for n in notes])
        now_us = max([in_force.now_us, *(n.latest_us() for n in notes)])
        meta[NOW_MS] = now_us // 1_000 or None  # 0: no clock has been read yet
        blobs = BucketBlobs(self._blobs, bucket, batch, meta) if self._blobs is not None else None
        store = SparkStore(self._state, sizes, blobs)
        step = self._operator.step(store, meta, chunks, in_force.watermark_us, now_us)
        if blobs is not None:
            blobs.tidy()
        for counted in [*(n.counters for n in notes), step.counters, {"firings": step.firings}]:
            for name, n in counted.items():
                counters[name] = counters.get(name, 0) + n
        self._set_timer(meta, self._timer_ms(batch, step))
        self._state.updateValue((META,), (json.dumps(meta).encode(),))
        self._stepped.add(bucket)
        yield from self._emit(RESULT, bucket, step.results)
        refused = [t.replace_schema_metadata(None) for t in [*late, step.late] if t is not None and t.num_rows]
        if refused:
            yield from self._emit(LATE_ROWS, bucket, late_output(self._prepare.layout, refused))
        metrics = {
            "counters": counters,
            "open_windows": step.open_windows,
            "open_rows": step.open_rows,
            "state_bytes": sum(sizes.values()),
            "notes": [[n.maxima, n.controls] for n in notes],
            "wakeup_now": step.wakeup_now_us,
        }
        yield Row(kind=METRICS, bucket=bucket, blob=json.dumps(metrics).encode())

    def _emit(self, kind: str, bucket: int, table: pa.Table) -> Iterator[Row]:
        if not table.num_rows:
            return
        written = self._output.write(kind, bucket, table) if self._output is not None else None
        if written is None:
            yield Row(kind=kind, bucket=bucket, blob=encode(table))
        else:
            yield Row(kind=FILE, bucket=bucket, blob=json.dumps(written).encode())

    def _timer_ms(self, batch: int, step: StepResult) -> int | None:
        if self._clock is not None:
            return self._clock.timer_ms(batch, step.wakeup_us, step.wakeup_now_us)
        return None if step.wakeup_us is None else wakeup_ms(step.wakeup_us, self._spec.tick_us)

    def _set_timer(self, meta: Meta, wanted: int | None) -> None:
        armed = meta.get("timer")
        if wanted != armed:
            if armed is not None and armed in set(self._handle.listTimers()):
                self._handle.deleteTimer(armed)
            if wanted is not None:
                self._handle.registerTimer(wanted)
        meta["timer"] = wanted
