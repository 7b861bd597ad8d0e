"""A checkpoint of a session in process becomes a savepoint, and a savepoint such a checkpoint; so does a core in memory."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import pyarrow as pa

from krishiv_py.engine.stage import count
from krishiv_py.in_process.checkpoint import PAGE, TABLE, BatchLog, ChangedPages, Key, PlannedBatch, StateLog, of_bucket
from krishiv_py.in_process.core import Core
from krishiv_py.kernels.spec import Moment
from krishiv_py.kernels.state.spread import BucketContent
from krishiv_py.kernels.state.store import Bucket, MemoryStore
from krishiv_py.kernels.watermark import Clocks
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.options.query import StartPoint
from krishiv_py.planner.explain import outline_of
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.beginning import opened_for
from krishiv_py.runtime.checkpoint.notes import format_note
from krishiv_py.runtime.checkpoint.sparklog import PROCESS_STATE
from krishiv_py.runtime.savepoints import (
    Savepoint,
    SourceState,
    StageState,
    begin_savepoint,
    outlined,
    read_sources,
    read_streams,
    spread_stage,
    unfinished,
    write_bucket,
    write_sources,
)
from krishiv_py.storage.local import absolute


def save(
    checkpoint: str, folder: str, change: Callable[[Savepoint], None] | None = None, after: int | None = None
) -> Savepoint:
    """Write the savepoint of a checkpoint in process; no batch of its query may run meanwhile.

    What it tells can be changed before it is closed, which makes it a savepoint. With `after` it is the state after this batch,
    which the checkpoint still has, and the positions of sources are left out; then the query may run.

    Raises
    ------
    CheckpointError
        When its last batch is not finished, a part of it is damaged or missing, and when the folder is not empty.
    """
    note, folder = outlined(checkpoint), begin_savepoint(folder, checkpoint)
    log, batches = StateLog(_state(checkpoint), durable=True), BatchLog(checkpoint, len(note["outline"]["sources"]))
    values, last = log.load(only_read=True, after=after)
    begun = batches.last_planned() if after is None else batches.planned(after)
    if last is None or begun is None or begun.number != log.last:
        raise unfinished(checkpoint, None if begun is None else begun.number)
    stages = []
    for number, (kept, outline) in enumerate(zip(last["stages"], note["outline"]["stages"], strict=True)):
        stage = StageState(
            **outline, counters=kept["counters"], left=kept["left"], open=kept["open"], stepped_us=_stepped(kept)
        )
        if stage.state:
            mine = {(kind, name): value for (owner, kind, name), value in values.items() if owner == number}
            metas = [kept["meta"], *kept.get("others", ())]
            for place, meta in enumerate(metas):
                tables = _LoggedTables(log, {name: v for (kind, name), v in mine.items() if kind == of_bucket(TABLE, place)})
                pages = ChangedPages({name: v for (kind, name), v in mine.items() if kind == of_bucket(PAGE, place)})
                known = BucketContent.of(Bucket(MemoryStore(), meta, pages=pages)).meta
                write_bucket(folder, number, place, BucketContent(known, tables), stage.columns)
            stage.buckets = list(range(len(metas)))
        stages.append(stage)
    taken = {int(owner): entry for owner, entry in last["taken"].items()}
    savepoint = Savepoint(
        folder,
        note,
        log.last + 1,
        last["clocks"],
        last["before"],
        begun.now_us,
        read_sources(checkpoint, note, taken, folder)
        if after is None
        else [SourceState(k) for k in note["outline"]["sources"]],
        stages,
        read_streams(checkpoint),
        last["advances"],
        absolute(checkpoint).rstrip("/"),
    )
    if change is not None:
        change(savepoint)
    savepoint.close()
    return savepoint


@attrs.frozen(eq=False)
class _LoggedTables(Mapping[str, pa.Table]):
    """The tables of values of a state log, which are read one by one."""

    log: StateLog
    values_of: dict[str, bytes]

    def __getitem__(self, name: str) -> pa.Table:
        return self.log.table_of(self.values_of[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_of)

    def __len__(self) -> int:
        return len(self.values_of)


def read_clocks(checkpoint: str, note: dict[str, Any]) -> Savepoint | None:
    """Return what a savepoint of a checkpoint in process would say of its clocks; None before its first batch.

    Raises
    ------
    CheckpointError
        When its last batch is not finished, and when a part of it is damaged or missing.
    """
    log = StateLog(_state(checkpoint), durable=True)
    _, last = log.load(only_read=True)
    begun = BatchLog(checkpoint, len(note["outline"]["sources"])).last_planned()
    if begun is None:
        return None
    if last is None or begun.number != log.last:
        raise unfinished(checkpoint, begun.number)
    stepped = [_stepped(kept) for kept in last["stages"]]
    return Savepoint.of_clocks(note, log.last + 1, last["clocks"], last["before"], begun.now_us, stepped)


def _stepped(kept: Mapping[str, Any]) -> int | None:
    """Return the watermark of the last step of a stage; None where the clocks say it, of earlier versions."""
    watermark_us = int(kept["handed"][0])
    return None if watermark_us == UNSET else watermark_us


def save_core(core: Core, now_us: int, folder: str) -> Savepoint:
    """Write the savepoint of a core in memory, between two batches; it knows no sources.

    Raises
    ------
    CheckpointError
        When the folder is not empty.
    """
    folder, outline, stages = begin_savepoint(folder), outline_of(core.plan), []
    for number, (stage, described) in enumerate(zip(core.stages, outline["stages"], strict=True)):
        open_ = [stage.open_windows, stage.open_rows]
        stepped_us = stage.handed.watermark_us
        saved = StageState(**described, counters=stage.counters, left=stage.left, open=open_, stepped_us=stepped_us)
        if saved.state:
            for place, held in enumerate(stage.content()):
                write_bucket(folder, number, place, held, saved.columns)
            saved.buckets = list(range(len(stage.buckets)))
        stages.append(saved)
    note = {**format_note("driver"), "plan": core.plan.fingerprint, "buckets": 1, "outputs": uuid.uuid4().hex[:8]}
    note |= {"outline": outline} | ({} if core.since is None else {"since": attrs.asdict(core.since)})
    sources = [SourceState(kind) for kind in outline["sources"]]
    savepoint = Savepoint(folder, note, core.batch_id, core.clocks.saved(), list(core.before), now_us, sources, stages)
    savepoint.advances = core.advances
    savepoint.close()
    return savepoint


def restore_core(savepoint: Savepoint, core: Core) -> None:
    """Put a core in memory where a savepoint is."""
    core.batch_id, core.advances, core.since = savepoint.batches, savepoint.advances, savepoint.since
    core.clocks = Clocks.restored(core.plan.clocks, savepoint.clocks)
    core.in_force, core.before = core.clocks.moment(), tuple(savepoint.before)
    for number, (stage, saved) in enumerate(zip(core.stages, savepoint.stages, strict=True)):
        stage.take_over(savepoint.buckets_of(number), saved.open)
        stage.left = dict(saved.left)
        count(stage.counters, saved.counters)
        stage.handed = Moment(savepoint.stepped(number), savepoint.now_us)


def begun_core(begin: StartPoint, plan: PhysicalPlan, title: str, now_us: int) -> tuple[PhysicalPlan, Core]:
    """Return a core that begins from a savepoint, and the plan that it runs.

    Raises
    ------
    CheckpointError
        When the savepoint is damaged or missing, or the plan cannot take its state.
    """
    opened = opened_for(begin, plan)
    core = Core(opened.plan, title, now_us)
    restore_core(opened.savepoint, core)
    return opened.plan, core


def one_bucket(savepoint: Savepoint, stage: int) -> BucketContent:
    """Return the state of a stage as one bucket."""
    buckets = savepoint.stages[stage].buckets
    if not buckets:
        return BucketContent({}, {})
    (held,) = spread_stage(savepoint, stage, 1) if len(buckets) > 1 else savepoint.buckets_of(stage)
    return held


def restore(savepoint: Savepoint, checkpoint: str) -> None:
    """Write a checkpoint that goes on from a savepoint; all but its plan note, which makes it one."""
    number = savepoint.batches - 1
    taken = write_sources(savepoint, checkpoint)
    log = StateLog(_state(checkpoint), durable=True)
    log.load()  # makes its folders
    values, stages = dict[Key, bytes | None](), list[dict[str, Any]]()
    for index, stage in enumerate(savepoint.stages):
        held = one_bucket(savepoint, index)
        values |= {(index, TABLE, name): log.value_of(table, number) for name, table in held.tables.items()}
        handed = Moment(savepoint.stepped(index), savepoint.now_us)
        stages.append(
            {
                "meta": held.meta,
                "counters": stage.counters,
                "open": stage.open,
                "left": stage.left,
                "handed": attrs.astuple(handed),
            }
        )
    note: dict[str, Any] = {
        "query": savepoint.note["outputs"],
        "taken": {str(index): entry for index, entry in taken.items()},
        "clocks": savepoint.clocks,
        "before": savepoint.before,
        "behind": tuple(savepoint.before) != savepoint.after,
        "advances": savepoint.advances,
        "stages": stages,
    }
    batches = BatchLog(checkpoint, len(savepoint.sources), durable=True)
    batches.begin()
    batches.plan(PlannedBatch(number, savepoint.now_us, taken))
    log.commit(number, values, note)
    batches.commit(number)


def _state(checkpoint: str) -> str:
    return f"{checkpoint}/krishiv/{PROCESS_STATE}"
