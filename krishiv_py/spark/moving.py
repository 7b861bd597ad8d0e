"""A checkpoint of a query on Spark as a savepoint: tasks write the buckets that Spark's state store holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql import SparkSession

from krishiv_py.engine.stage import Report, count
from krishiv_py.errors import CheckpointError
from krishiv_py.kernels.state.spread import BucketContent
from krishiv_py.kernels.watermark import ONLY, moment_of
from krishiv_py.runtime.batch import stage_of
from krishiv_py.runtime.checkpoint.begun import Begun
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.checkpoint.sparklog import checked_lines, numbered, offsets_of, planned
from krishiv_py.runtime.chunk_files import ChunkFolder
from krishiv_py.runtime.clocks import LedgerClock, watermark_of
from krishiv_py.runtime.savepoints import (
    Savepoint,
    SourceState,
    StageState,
    begin_savepoint,
    outlined,
    read_sources,
    read_streams,
    unfinished,
    write_bucket,
)
from krishiv_py.spark.setup.partitioning import bucket_ids
from krishiv_py.spark.setup.types import flat_type
from krishiv_py.spark.state_reader import buckets_in, of_store
from krishiv_py.storage.files import store_at
from krishiv_py.storage.local import absolute

_TYPE: Final = flat_type("bucket int, report string")
_SCHEMA: Final = pa.schema([pa.field("bucket", pa.int32()), pa.field("report", pa.string())])


@attrs.frozen(eq=False)
class WriteBuckets:
    """In a task: rows ``(bucket, name, blob)`` of the state store to files of a savepoint; gives what was counted in each."""

    folder: str
    stage: int
    ids: tuple[int, ...]
    blobs: ChunkFolder
    columns: dict[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, bucket in buckets_in(batches, self.blobs):
            report = {"counters": bucket.meta.get("counters", {}), "given": bucket.meta.get("given", {})}
            write_bucket(self.folder, self.stage, self.ids.index(number), BucketContent.of(bucket), self.columns)
            yield pa.RecordBatch.from_arrays([pa.array([number], pa.int32()), pa.array([json.dumps(report)])], schema=_SCHEMA)


class WentOnError(CheckpointError):
    """The query ran a micro-batch while its savepoint was written."""


def save(spark: SparkSession, checkpoint: str, folder: str, after: int | None = None) -> Savepoint:
    """Write the savepoint of a checkpoint of Spark; no micro-batch may run meanwhile.

    With `after` it is the state after this micro-batch, which Spark still has, and the positions of sources are left out.

    Raises
    ------
    CheckpointError
        When its last micro-batch is not finished, a part of it is damaged or missing, and when the folder is not empty.
    WentOnError
        When a micro-batch began meanwhile; the folder can be used again.
    """
    note, begun, folder = outlined(checkpoint), Begun.of(checkpoint), begin_savepoint(folder)
    store, root = store_at(checkpoint)
    batches, finished = numbered(store, f"{root}/offsets"), numbered(store, f"{root}/commits")
    if after is None and (not batches or not finished or batches[-1] != finished[-1]):
        raise unfinished(checkpoint, batches[-1] if batches else None)
    batch, outline = batches[-1] if after is None else after, note["outline"]
    clocks, before, now_us = _clocks(checkpoint, batch, outline, begun)
    metrics = CheckpointNotes(checkpoint).metrics()
    reports = {name: Report.restored(saved) for name, saved in metrics.get("buckets", {}).items()}
    stages = []
    for number, outlined_stage in enumerate(outline["stages"]):
        stage = StageState(**outlined_stage)
        mine = [report for name, report in reports.items() if stage_of(name, outline["last"]) == number]
        if stage.state:
            operator = sum(bool(s["state"]) for s in outline["stages"][number + 1 :])
            blobs = ChunkFolder(checkpoint, 0, 0, stage=number)
            task = WriteBuckets(folder, number, bucket_ids(note["buckets"]), blobs, stage.columns)
            states = of_store(spark, checkpoint, operator, task.__call__, _TYPE, after)
            stage.buckets = sorted(task.ids.index(bucket) for bucket in states["bucket"].to_pylist())
            for report in map(json.loads, states["report"].to_pylist()):
                count(stage.counters, report["counters"])
                count(stage.left, report["given"])
            stage.open = [max((r.open_windows for r in mine), default=0), sum(r.open_rows for r in mine)]
        else:
            for report in mine:
                count(stage.counters, report.counters)
                count(stage.left, report.given)
        stages.append(stage)
    taken = offsets_of(store, f"{root}/offsets/{batch}")
    savepoint = Savepoint(
        folder,
        note,
        begun.batches + batch + 1,
        clocks,
        before,
        now_us,
        read_sources(checkpoint, note, taken, folder) if after is None else [SourceState(kind) for kind in outline["sources"]],
        stages,
        read_streams(checkpoint),
        metrics.get("advances", 0),
        absolute(checkpoint).rstrip("/"),
    )
    if after is None and numbered(store, f"{root}/offsets") != batches:
        raise WentOnError("a micro-batch began while the savepoint was written", got=checkpoint, hint="try again")
    savepoint.close()
    return savepoint


def read_clocks(checkpoint: str, note: dict[str, Any]) -> Savepoint | None:
    """Return what a savepoint of a checkpoint of Spark would say of its clocks; None before its first batch.

    Raises
    ------
    CheckpointError
        When its last micro-batch is not finished, and when a part of it is damaged or missing.
    """
    (store, root), begun = store_at(checkpoint), Begun.of(checkpoint)
    batches, finished = numbered(store, f"{root}/offsets"), numbered(store, f"{root}/commits")
    if batches[-1:] != finished[-1:] or (not batches and begun.batches):
        raise unfinished(checkpoint, batches[-1] if batches else None)
    return Savepoint.of_clocks(note, *_clocks(checkpoint, batches[-1], note["outline"], begun)) if batches else None


def _clocks(checkpoint: str, batch: int, outline: dict[str, Any], begun: Begun) -> tuple[dict[str, Any], list[int], int]:
    """Return the clocks after a micro-batch, what was in force in it, and when it was planned."""
    now_us = int(planned(checkpoint, batch)["batchTimestampMs"]) * 1_000
    if outline["ledger"]:
        ledger = LedgerClock(checkpoint, begun.watermark_us)
        clocks = ledger.read(batch + 1)
        assert clocks is not None
        before = ledger.read(batch)
        return clocks, list(moment_of(clocks if before is None else before, now_us).every), int(clocks["now_us"])
    logged = (
        json.loads(checked_lines(*store_at(f"{checkpoint}/commits/{batch}"))[1])["nextBatchWatermarkMs"],
        planned(checkpoint, batch)["batchWatermarkMs"],
    )
    after, before_us = (max(watermark_of(int(ms), outline["tick_us"]), begun.watermark_us) for ms in logged)
    return {"tracker": {"reached": {ONLY: after}, "spoke": {}, "current": after}}, [before_us], now_us
