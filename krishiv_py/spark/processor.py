"""The stateful operator: kernels inside ``transformWithState``, keyed by bucket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from krishiv_py.errors import OperatorError
from krishiv_py.kernels.prepare import COUNTERS
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state import Meta
from krishiv_py.spark.codec import decode, encode, wakeup_ms, watermark_of
from krishiv_py.spark.outputs import TaskOutput
from krishiv_py.spark.pack import CHUNK

OUT_DDL: Final = "kind string, bucket int, blob binary"
RESULT: Final = "result"
LATE_ROWS: Final = "late"
METRICS: Final = "metrics"
FILE: Final = "file"
_META: Final = "meta"


class SparkStore:
    """Chunks in a Spark map state; sizes are kept in the meta dictionary."""

    def __init__(self, state: Any, sizes: dict[str, int]) -> None:
        self._state = state
        self._sizes = sizes

    def get(self, name: str) -> pa.Table:
        """See ChunkStore."""
        return decode(bytes(self._state.getValue((name,))[0]))

    def put(self, name: str, table: pa.Table) -> None:
        """See ChunkStore."""
        blob = encode(table)
        self._sizes[name] = len(blob)
        self._state.updateValue((name,), (blob,))

    def delete(self, name: str) -> None:
        """See ChunkStore."""
        del self._sizes[name]
        self._state.removeKey((name,))


class BucketProcessor(StatefulProcessor):
    """One instance per task; every bucket is one grouping key."""

    def __init__(self, spec: OperatorSpec, output: TaskOutput | None) -> None:
        self._spec = spec
        self._output = output

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the one state variable."""
        self._handle = handle
        self._state = handle.getMapState("chunks", "name string", "blob binary")
        self._operator = operator_for(self._spec)
        self._stepped: dict[int, int] = {}

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Fold the bucket's chunks in and fire."""
        bucket = int(key[0])
        in_force = self._in_force(timerValues)
        arrived = sorted(rows, key=lambda r: r.seq)
        chunks: list[pa.Table] = []
        late: list[pa.Table] = []
        for row in arrived:
            if row.in_force != in_force:
                raise OperatorError(f"{self._spec.name}: a batch was judged by watermark {row.in_force} but runs under {in_force}: "
                                    "its late rows would be wrong. Hint: this is a bug in krishiv_py, please report it")
            (chunks if row.kind == CHUNK else late).append(decode(bytes(row.blob)))
        yield from self._step(bucket, in_force, chunks, late)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Fire what is due although no row came."""
        bucket = int(key[0])
        in_force = self._in_force(timerValues)
        if self._stepped.get(bucket) != in_force:
            yield from self._step(bucket, in_force, [], [])

    def close(self) -> None:
        """Nothing is held."""

    def _in_force(self, timers: Any) -> int:
        found = watermark_of(timers.getCurrentWatermarkInMs(), self._spec.tick_us)
        return max(found, self._spec.watermark.initial_us)

    def _load(self) -> Meta:
        if not self._state.containsKey((_META,)):
            return {}
        loaded: Meta = json.loads(bytes(self._state.getValue((_META,))[0]))
        return loaded

    def _step(self, bucket: int, in_force: int, chunks: list[pa.Table], late: list[pa.Table]) -> Iterator[Row]:
        meta = self._load()
        counters = meta.setdefault("counters", dict.fromkeys([*COUNTERS, "firings"], 0))
        sizes = meta.setdefault("sizes", {})
        step = self._operator.step(SparkStore(self._state, sizes), meta, chunks, in_force)
        for table in late:
            for name, n in json.loads(table.schema.metadata[b"counters"]).items():
                counters[name] += n
        counters["firings"] += step.firings
        self._set_timer(meta, step.wakeup_us, in_force)
        self._state.updateValue((_META,), (json.dumps(meta).encode(),))
        self._stepped[bucket] = in_force
        yield from self._emit(RESULT, bucket, step.results)
        refused = [t for t in late if t.num_rows]
        if refused:
            yield from self._emit(LATE_ROWS, bucket, pa.concat_tables(refused))
        metrics = {"counters": counters, "open_windows": step.open_windows, "open_rows": step.open_rows,
                   "state_bytes": sum(sizes.values()), "watermark": in_force}
        yield Row(kind=METRICS, bucket=bucket, blob=json.dumps(metrics).encode())

    def _emit(self, kind: str, bucket: int, table: pa.Table) -> Iterator[Row]:
        if not table.num_rows:
            return
        written = self._output.write(kind, bucket, table) if self._output is not None else None
        if written is None:
            yield Row(kind=kind, bucket=bucket, blob=encode(table))
        else:
            yield Row(kind=FILE, bucket=bucket, blob=json.dumps(written).encode())

    def _set_timer(self, meta: Meta, wakeup_us: int | None, in_force: int) -> None:
        wanted = None if wakeup_us is None else wakeup_ms(wakeup_us, self._spec.tick_us)
        armed = meta.get("timer")
        if armed is not None and watermark_of(armed, self._spec.tick_us) <= in_force:
            armed = None  # it goes off in this very batch, or has
        if wanted != armed:
            if armed is not None:
                self._handle.deleteTimer(armed)
            if wanted is not None:
                self._handle.registerTimer(wanted)
        meta["timer"] = wanted
