"""State as a table, read from a checkpoint with Spark's ``statestore`` source (SEMANTICS §6.5).

Every bucket's chunks lie in one partition of the state store; the kernels make its open windows of them in the task that reads
it, and only these come to the driver. What is read is the state after the last finished micro-batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql import SparkSession

from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.results import in_order, keys_held
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import PAGE, Bucket, MemoryStore
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.chunk_files import ChunkFolder, chunk_of, decode, encode, plain_name
from krishiv_py.spark.setup.types import flat_type
from krishiv_py.spark.setup.workers import mapped
from krishiv_py.spark.tasks.processor import META
from krishiv_py.spark.tasks.rows import STATE
from krishiv_py.storage.files import store_at

_TYPE: Final = flat_type("blob binary")
_SCHEMA: Final = pa.schema([pa.field("blob", pa.binary())])
_PIECE: Final = 1 << 16


@attrs.frozen(eq=False)
class ReadPages:
    """Pages of large maps that are read and never written."""

    notes: dict[str, Any]

    def read(self, name: str) -> Any:
        """See Pages."""
        return self.notes[name]

    def write(self, name: str, note: Any) -> None:
        """See Pages."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """See Pages."""
        raise NotImplementedError


@attrs.frozen(eq=False)
class OpenWindowReader:
    """In a task: rows ``(bucket, name, blob)`` of the state store to encoded state tables."""

    spec: OperatorSpec
    blobs: ChunkFolder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        operator = operator_for(self.spec)
        for _, held in buckets_in(batches, self.blobs):
            rows = operator.state(held)
            pieces = [encode(rows.slice(begin, _PIECE)) for begin in range(0, rows.num_rows, _PIECE)]
            yield pa.RecordBatch.from_arrays([pa.array(pieces, pa.binary())], schema=_SCHEMA)


@attrs.frozen(eq=False)
class HeldKeys:
    """In a task: the same rows to the number of keys in each bucket."""

    names: tuple[str, ...]
    blobs: ChunkFolder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _, held in buckets_in(batches, self.blobs):
            assert isinstance(held.store, MemoryStore)
            n = keys_held(held.store.tables.values(), self.names)
            yield pa.RecordBatch.from_arrays([pa.array([b"%d" % n], pa.binary())], schema=_SCHEMA)


def buckets_in(batches: Iterator[pa.RecordBatch], blobs: ChunkFolder) -> Iterator[tuple[int, Bucket]]:
    """Yield the buckets of the rows of a partition by their numbers, to be read and never written."""
    held: dict[int, dict[str, bytes]] = {}
    for batch in batches:
        for bucket, name, blob in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            held.setdefault(bucket, {})[name] = blob
    for bucket, values in held.items():
        meta = json.loads(values.pop(META))
        folder = blobs.of_bucket(bucket)
        pages = ReadPages({name: json.loads(value) for name, value in values.items() if name.startswith(PAGE)})
        tables = {name: chunk_of(value, folder) for name, value in values.items() if not name.startswith(PAGE)}
        yield bucket, Bucket(MemoryStore(tables), meta, pages=pages)


def read_state(spark: SparkSession, plan: PhysicalPlan, notes: CheckpointNotes, stage: str | None = None) -> pa.Table:
    """Return the open windows of a stage, by default the last one, of the query with this checkpoint, running or not.

    Raises
    ------
    CheckpointError
        When no query has begun there, or one with another plan.
    PlanError
        Where the state of a window kind holds no aggregates, and for a name that no stage has.
    """
    notes.check(plan)
    number = plan.stage_called(stage)
    spec = plan.stages[number].spec
    tables = [operator_for(spec).state(Bucket(MemoryStore()))]
    if _has_batch(notes.checkpoint):
        folder = ChunkFolder(notes.checkpoint, 0, 0, stage=number)
        tables += [decode(blob) for blob in _read(spark, plan, notes, number, OpenWindowReader(spec, folder).__call__)]
    return in_order(tables, len(spec.keys))


def count_keys(spark: SparkSession, plan: PhysicalPlan, notes: CheckpointNotes) -> int:
    """Return how many keys have something in the state of the query with this checkpoint, summed over its stages."""
    notes.check(plan)
    if not _has_batch(notes.checkpoint):
        return 0
    total = 0
    for number, stage in enumerate(plan.stages):
        if not stage.stateless:
            names = tuple(Layout(stage.spec).key_names)
            task = HeldKeys(names, ChunkFolder(notes.checkpoint, 0, 0, stage=number))
            n = sum(int(blob) for blob in _read(spark, plan, notes, number, task.__call__))
            total += n if names else min(n, 1)
    return total


def _read(
    spark: SparkSession,
    plan: PhysicalPlan,
    notes: CheckpointNotes,
    number: int,
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> list[bytes]:
    """Return what a `task` makes of the rows of a stage in Spark's state store."""
    after = sum(not s.stateless for s in plan.stages[number + 1 :])
    blobs: list[bytes] = of_store(spark, notes.checkpoint, after, task, _TYPE)["blob"].to_pylist()
    return blobs


def of_store(
    spark: SparkSession,
    checkpoint: str,
    after: int,
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    type_: Any,
    batch: int | None = None,
) -> pa.Table:
    """Return what a `task` makes of rows ``(bucket, name, blob)`` of an operator that has so many `after` it.

    The state is that after a micro-batch, by default the last one.
    """
    # Spark numbers operators from the last one
    source = spark.read.format("statestore").option("stateVarName", STATE).option("operatorId", after)
    source = source if batch is None else source.option("batchId", batch)
    with plain_name(checkpoint) as path:
        chunks = source.load(path).select("key.bucket", "user_map_key.name", "user_map_value.blob")
        return mapped(chunks, task, type_).toArrow()


def _has_batch(checkpoint: str) -> bool:
    """Return whether a micro-batch was finished: before that Spark's source refuses to read."""
    store, path = store_at(f"{checkpoint}/commits")
    files = store.entries(path)
    return any(f.base_name.isdigit() for f in files)
