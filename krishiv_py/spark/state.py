"""The state in a checkpoint of Spark: as a table, as a savepoint, and spread over another number of tasks."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql import SparkSession

from krishiv_py.engine.stage import Report, count
from krishiv_py.errors import CheckpointError, EnvironmentSetupError, PlanError
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.results import in_order, keys_held
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.spread import BucketContent
from krishiv_py.kernels.state.store import PAGE, Bucket, MemoryStore
from krishiv_py.kernels.watermark import ONLY, moment_of
from krishiv_py.plan.durations import UNSET
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.batch import stage_of
from krishiv_py.runtime.checkpoint.lease import take
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes, CheckpointOrigin
from krishiv_py.runtime.checkpoint.sparklog import checked_lines, numbered, offsets_of, planned
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT, ChunkFolder, chunk_of
from krishiv_py.runtime.clocks import STEPPED, LedgerClock, RaisedWatermarks, SparkClock, watermark_of
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
from krishiv_py.spark import internals
from krishiv_py.spark.setup.config import BUCKETS, bucket_ids
from krishiv_py.spark.setup.types import flat_type
from krishiv_py.spark.setup.workers import mapped
from krishiv_py.spark.tasks.processor import META
from krishiv_py.spark.tasks.rows import STATE
from krishiv_py.storage.checksums import decode, encode
from krishiv_py.storage.files import is_local_path, store_at
from krishiv_py.storage.local import absolute, new_folder
from krishiv_py.storage.store import Store

_NOTE: Final = "krishiv/rescaling.json"
_AGAIN: Final = "call session.rescale(...) again, with the same number of tasks"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"


def rescale(spark: SparkSession, checkpoint: str, tasks: int, *, durable: bool) -> None:
    """Spread the state of a checkpoint over `tasks` partitions. May be broken off and repeated.

    A checkpoint has a fixed number of buckets, and every partition of Spark's state store holds some of them. Spark moves whole
    buckets in a micro-batch of its own that reads nothing: after batch n it is batch n+1, and the query goes on with n+2. The
    ledger, which has an entry for every micro-batch, is moved on by one: what batch n+1 would have gone by, n+2 goes by.

    Raises
    ------
    CheckpointError
        While a query runs from it, when no query has begun there, and when its last micro-batch is not finished.
    PlanError
        When it has no state, or fewer buckets than `tasks`.
    EnvironmentSetupError
        Before Spark 4.2.
    """
    manager = internals.checkpoint_manager(spark)
    if manager is None:
        then = "the checkpoint stays as it is"
        hint = "use Spark 4.2 or newer"
        raise EnvironmentSetupError("this Spark cannot spread state again", got=f"Spark {spark.version}", then=then, hint=hint)
    work = Rescaling(checkpoint, tasks, durable=durable)
    work.check()
    lease = take(checkpoint, "session.rescale")
    try:
        work.run(manager)
    finally:
        lease.release()


def check_rescaled(checkpoint: str, *, durable: bool) -> None:
    """See that no rescaling was broken off, before a query goes on; what only the ledger lacks is done here.

    Raises
    ------
    CheckpointError
        When the state lies between two numbers of tasks.
    """
    store, root = store_at(checkpoint)
    note = _noted(store, root)
    if note is None:
        return
    batch = note["batch"]
    if batch in numbered(store, f"{root}/commits"):
        _moved_on(store, root, batch, durable=durable)
    elif batch in numbered(store, f"{root}/offsets"):
        what = f"{checkpoint} is half spread over {note['tasks']} tasks"
        raise CheckpointError(what, got="a rescaling that was broken off", then="its state cannot be read", hint=_AGAIN)
    else:
        store.delete(f"{root}/{_NOTE}")


def _noted(store: Store, root: str) -> dict[str, Any] | None:
    return store.read_note(f"{root}/{_NOTE}", dict[str, Any], NEW_CHECKPOINT)


def _ledger(root: str, batch: int) -> str:
    return f"{root}/krishiv/ledger/{batch:012d}.json"


def _moved_on(store: Store, root: str, batch: int, *, durable: bool) -> None:
    """The micro-batch that only moved state is classified, by stages that follow others, as the one before."""
    entry = store.read(_ledger(root, batch - 1))
    if entry is not None:
        store.write(_ledger(root, batch), entry, durable=durable)
    store.delete(f"{root}/{_NOTE}")


class Rescaling:
    """One call; `tasks` is the number wanted."""

    def __init__(self, checkpoint: str, tasks: int, *, durable: bool) -> None:
        self.checkpoint = checkpoint
        self.tasks = tasks
        self._durable = durable
        self._store, self._root = store_at(checkpoint)

    def check(self) -> None:
        """See that there is state, in buckets enough."""
        stored = CheckpointNotes(self.checkpoint).plan()
        if stored is None or not self._logged("offsets"):
            hint = "pass the folder of start(..., checkpoint=...), after a first micro-batch"
            raise CheckpointError("no query has kept its state here", got=self.checkpoint, hint=hint)
        if not self._store.exists(f"{self._root}/state/0/_metadata"):
            hint = f'set the session\'s "{_PARTITIONS}" instead'
            raise PlanError("the query of this checkpoint keeps no state", got=self.checkpoint, hint=hint)
        if self.tasks > stored["buckets"]:
            what = f"the state of this checkpoint has {stored['buckets']} buckets, each for one task"
            hint = f'pass at most {stored["buckets"]}; a new checkpoint can have more: .config("{BUCKETS}", 64)'
            raise PlanError(what, got=f"{self.tasks} tasks", then="the others would have nothing to do", hint=hint)

    def run(self, manager: Any) -> None:
        """Note what is about to happen, let Spark move the state, and move the ledger on."""
        batch = self._broken_off()
        if batch is None:
            batch = self._finished() + 1
            if int(planned(self.checkpoint, batch - 1)["conf"][_PARTITIONS]) == self.tasks:
                return
            self._announce(batch)
        if batch not in self._logged("commits"):
            with plain_name(self.checkpoint) as path:
                manager.repartition(path, self.tasks)
        _moved_on(self._store, self._root, batch, durable=self._durable)

    def _broken_off(self) -> int | None:
        """Return the micro-batch of an earlier call that did not end."""
        note = _noted(self._store, self._root)
        if note is not None and note["tasks"] == self.tasks and note["batch"] in self._logged("offsets"):
            return int(note["batch"])
        check_rescaled(self.checkpoint, durable=self._durable)
        return None

    def _finished(self) -> int:
        last = self._logged("offsets")[-1]
        if last not in self._logged("commits"):
            hint = "start the query once more, with available_now(), then call session.rescale(...)"
            raise CheckpointError("the last micro-batch of this checkpoint is not finished", got=f"batch {last}", hint=hint)
        return last

    def _announce(self, batch: int) -> None:
        entry = self._store.read(_ledger(self._root, batch))
        if entry is not None:
            self._store.write(_ledger(self._root, batch + 1), entry, durable=self._durable)
        self._store.write_note(f"{self._root}/{_NOTE}", {"batch": batch, "tasks": self.tasks}, durable=self._durable)

    def _logged(self, what: str) -> list[int]:
        return numbered(self._store, f"{self._root}/{what}")


_PLAIN: Final = re.compile(r"[\w/.:=-]+", re.ASCII)


@contextmanager
def plain_name(checkpoint: str) -> Iterator[str]:
    """A path under which Spark's readers of state find a checkpoint: for a local one with an odd name, a link to it.

    Raises
    ------
    PlanError
        For one with an odd name elsewhere, where there are no links.
    """
    if _PLAIN.fullmatch(checkpoint):
        yield checkpoint
        return
    if not is_local_path(checkpoint):
        then = "Spark looks for it under another name; queries run from it all the same"
        hint = "give checkpoints in HDFS and in buckets names of letters, digits and . = - _"
        raise PlanError("the state of a checkpoint of this name cannot be read", got=checkpoint, then=then, hint=hint)
    folder = new_folder("link")
    try:
        link = f"{folder}/checkpoint"
        os.symlink(store_at(checkpoint)[1], link)
        yield link
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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

    Every bucket's chunks lie in one partition of the state store; the kernels make its open windows of them in the task that
    reads it, and only these come to the driver. What is read is the state after the last finished micro-batch.

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


_COUNTED_TYPE: Final = flat_type("bucket int, report string")
_COUNTED: Final = pa.schema([pa.field("bucket", pa.int32()), pa.field("report", pa.string())])


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
            yield pa.RecordBatch.from_arrays([pa.array([number], pa.int32()), pa.array([json.dumps(report)])], schema=_COUNTED)


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
    note, begun, folder = outlined(checkpoint), CheckpointOrigin.of(checkpoint), begin_savepoint(folder, checkpoint)
    store, root = store_at(checkpoint)
    batches, finished = numbered(store, f"{root}/offsets"), numbered(store, f"{root}/commits")
    if after is None and (not batches or not finished or batches[-1] != finished[-1]):
        raise unfinished(checkpoint, batches[-1] if batches else None)
    batch, outline = batches[-1] if after is None else after, note["outline"]
    clocks, before, now_us = _clocks(checkpoint, batch, note, begun)
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
            states = of_store(spark, checkpoint, operator, task.__call__, _COUNTED_TYPE, after)
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
    (store, root), begun = store_at(checkpoint), CheckpointOrigin.of(checkpoint)
    batches, finished = numbered(store, f"{root}/offsets"), numbered(store, f"{root}/commits")
    if batches[-1:] != finished[-1:] or (not batches and begun.batches):
        raise unfinished(checkpoint, batches[-1] if batches else None)
    if not batches:
        return None
    clocks, before, now_us = _clocks(checkpoint, batches[-1], note, begun)
    stepped: list[int | None] = [None] * len(note["outline"]["stages"])
    return Savepoint.of_clocks(note, begun.batches + batches[-1] + 1, clocks, before, now_us, stepped)


def _clocks(
    checkpoint: str, batch: int, note: dict[str, Any], begun: CheckpointOrigin
) -> tuple[dict[str, Any], list[int], int]:
    """Return the clocks after a micro-batch, what was in force in it, and when it was planned."""
    now_us, outline, raised = (
        int(planned(checkpoint, batch)["batchTimestampMs"]) * 1_000,
        note["outline"],
        RaisedWatermarks.of(note, begun),
    )
    ledger = LedgerClock(checkpoint, begun.watermark_us, begun=begun, raised=raised)
    if outline["ledger"]:
        clocks = ledger.read(batch + 1)
        assert clocks is not None
        before = raised.over(moment_of(ledger.read(batch) or clocks, now_us), batch)
        return clocks, list(clocks.get(STEPPED, before.every)), int(clocks["now_us"])
    next_ms = json.loads(checked_lines(*store_at(f"{checkpoint}/commits/{batch}"))[1])["nextBatchWatermarkMs"]
    before = SparkClock(checkpoint, outline["tick_us"], UNSET, begun, raised).in_force(batch)
    after_us = max(watermark_of(int(next_ms), outline["tick_us"]), before.watermark_us, begun.watermark_us)
    facts = ledger.read(batch + 1, needed=False) or {"tracker": {"reached": {ONLY: after_us}, "spoke": {}}}
    return {"tracker": {**facts["tracker"], "current": after_us}}, [before.watermark_us], now_us
