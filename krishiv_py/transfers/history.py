"""History, then live: archives run in this process, and a live query of any engine begins from the savepoint of that run.

The history is a query of its own, with a checkpoint next to that of the live query, until this one is made. So a run that was
broken off goes on where it was, and its results are in the outputs once (SEMANTICS §12.5).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.api.query import QueryStart
from krishiv_py.arrays.grouping import key_hashes
from krishiv_py.arrays.types import Ints
from krishiv_py.connectors.kafka.source import KafkaSource
from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.connectors.sink import FileSink, OnRepeat, OutputBatch, Sink, TableSink
from krishiv_py.connectors.sinks.known import SideOutputLateEventHandler
from krishiv_py.connectors.tables.delta.source import DeltaSource
from krishiv_py.connectors.tables.iceberg.source import IcebergSource
from krishiv_py.errors import CheckpointError, PlanError
from krishiv_py.in_process.runner import ProcessRunner
from krishiv_py.in_process.savepoints import save
from krishiv_py.in_process.stage import ProcessStage, Workers
from krishiv_py.plan.aggregates.selections import WholeSince
from krishiv_py.plan.durations import UNSET, show_instant
from krishiv_py.plan.nodes import FileSource, MemorySource, Node, SourceNode
from krishiv_py.plan.options.query import Batches, StartPoint
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.evolution import StageChange, compared
from krishiv_py.planner.explain import outline_of
from krishiv_py.planner.history import Archive, Seam, clocks_joined, names_of, over_archives, reads_of, stages_archived
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.beginning import SavepointOpening, opened_for
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.checkpoint.sparklog import batches_of
from krishiv_py.runtime.outputs import pass_on
from krishiv_py.runtime.savepoints import Savepoint, is_savepoint
from krishiv_py.runtime.session import SessionRunner, check_kept
from krishiv_py.storage.files import store_at
from krishiv_py.storage.local import absolute


def same_place(archive: SourceNode, live: SourceNode) -> bool:
    """Return whether a live source is what its archive is: then it goes on where that ended."""
    if isinstance(archive, FileSource) and isinstance(live, FileSource):
        return (archive.path.rstrip("/"), archive.format) == (live.path.rstrip("/"), live.format)
    if isinstance(archive, MemorySource) and isinstance(live, MemorySource):
        return archive.spool == live.spool
    if not isinstance(archive, RangeSource) or not isinstance(live, RangeSource):
        return False
    past, now = archive.source, live.source
    if isinstance(past, KafkaSource) and isinstance(now, KafkaSource):
        return (past.connection.servers, past.topics, past.pattern) == (now.connection.servers, now.topics, now.pattern)
    if isinstance(past, DeltaSource) and isinstance(now, DeltaSource):
        return past.start.table == now.start.table
    if isinstance(past, IcebergSource) and isinstance(now, IcebergSource):
        return past.name == now.name
    return past is now


def replaced(archive: Archive, source: SourceNode) -> Archive:
    """Return an archive over another source: the same steps."""
    return attrs.evolve(archive, node=_over(archive.node, source))


def ended_at(archive: Archive, offsets: Mapping[str, Mapping[str, int]]) -> Archive:
    """Return an archive up to `offsets`, the next ones by topic and partition; other archives stay as they are."""
    source = archive.source
    if not isinstance(source, RangeSource) or not isinstance(source.source, KafkaSource):
        return archive
    places = tuple(((topic, int(n)), offset) for topic, each in offsets.items() for n, offset in each.items())
    return replaced(archive, attrs.evolve(source, source=attrs.evolve(source.source, until=places)))


def _over(node: Node, source: SourceNode) -> Node:
    """Return a chain of steps over another source."""
    below = node.child
    return source if below is None else attrs.evolve(node, input=_over(below, source))  # type: ignore[misc]  # a step


@attrs.frozen(eq=False)
class NoSink(TableSink):
    """A sink that keeps nothing: results of a history that are kept back."""

    on_repeat: ClassVar[OnRepeat] = "skip"

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """Keep nothing."""


_HINT: Final = (
    "pass an archive of just the rows that the savepoint has taken, and take out what new outputs have of this one; "
    "on_change={words!r} takes what the archive gives, and without bootstrap what is new begins empty"
)


@attrs.frozen(eq=False)
class RebuiltPlan:
    """The part of a changed plan that is rebuilt.

    The whole plan runs over the archives, up to where the savepoint is. Stages and aggregates that the savepoint lacks take
    their state from that run, all others keep theirs. Both states have to agree where they tell of the same: a window that
    lacks rows in the archive would give a partial result that looks whole.

    Attributes
    ----------
    plan : PhysicalPlan
        The plan.
    begin : Begin
        Which savepoint it begins from, and which sources have archives.
    kept : Opening
        This savepoint as the plan reads it without archives.
    changes : list of StageChange
        What becomes of each stage.
    """

    plan: PhysicalPlan
    begin: StartPoint
    kept: SavepointOpening
    changes: list[StageChange]

    @classmethod
    def of(cls, plan: PhysicalPlan, begin: StartPoint) -> RebuiltPlan | None:
        """Return what is rebuilt; None where nothing is.

        Raises
        ------
        CheckpointError
            When the savepoint is damaged or missing, or the plan cannot take its state.
        PlanError
            When a stage that would be rebuilt also reads a source that has no archive.
        """
        kept = opened_for(attrs.evolve(begin, archives=()), plan)
        old, new = Savepoint.open(begin.savepoint).note["outline"], outline_of(plan)
        changes = compared(old, new, begin, stages_archived(plan, begin.archives))
        rebuilt = {change.new for change in changes if change.fate == "rebuilt"}
        for change in compared(old, new, begin, range(len(plan.stages))):
            if change.fate == "rebuilt" and change.new is not None and change.new not in rebuilt:
                lacking = reads_of(plan)[change.new] - set(begin.archives)
                if len(lacking) < len(reads_of(plan)[change.new]):
                    names = ", ".join(repr(names_of(plan.reads[number])[0]) for number in sorted(lacking))
                    raise PlanError(
                        f"the stage {change.name!r} cannot be rebuilt",
                        got=f"no archive of {names}",
                        then="its state would lack the rows of this source",
                        hint="pass an archive for each source that the stage reads, or leave bootstrap out",
                    )
        return cls(plan, begin, kept, changes) if rebuilt else None

    def upto(self, number: int, archive: Archive) -> Archive:
        """Return an archive up to where the savepoint is, if it is the place of the live source.

        Raises
        ------
        CheckpointError
            When the savepoint is in the middle of a version of a table.
        """
        state = self.kept.savepoint.sources[number]
        if state.position is None or not same_place(archive.source, self.plan.reads[number].source):
            return archive
        position, source = json.loads(state.position), archive.source
        if isinstance(source, FileSource):
            names = frozenset(path for path, _ in self.kept.savepoint.names_of(number))
            return replaced(archive, attrs.evolve(source, only=names))
        if not isinstance(source, RangeSource):
            return archive
        read = source.source
        if isinstance(read, KafkaSource):
            return ended_at(archive, position["at"])
        if isinstance(read, (DeltaSource, IcebergSource)) and position["done"] is not None:
            raise CheckpointError(
                "the savepoint is in the middle of a version of its table",
                got=f"{position['done']} files of it are read",
                then="an archive ends between two versions",
                hint="make the savepoint once the query has read all of the table, with batches=Batches.available_now()",
            )
        if isinstance(read, DeltaSource):
            version = position["version"]
            start = attrs.evolve(read.start, version=min(read.start.version, version))
            return replaced(archive, attrs.evolve(source, source=attrs.evolve(read, until=version, start=start)))
        if isinstance(read, IcebergSource):
            snapshot, first = position["snapshot"], read.start
            if first.whole:
                first = attrs.evolve(first, snapshot=snapshot, sequence=position["sequence"])
            return replaced(archive, attrs.evolve(source, source=attrs.evolve(read, until=(snapshot,), start=first)))
        return archive

    def kept_back(self, plan: PhysicalPlan, sinks: Sequence[Sink], publish: bool) -> tuple[PhysicalPlan, tuple[Sink, ...]]:
        """Return a plan over archives that gives only what is new: results and late rows of stages that are added."""
        new = {change.new for change in self.changes if change.old is None} if publish else set()
        stages = tuple(
            stage if n in new else attrs.evolve(stage, node=attrs.evolve(stage.node, late=SideOutputLateEventHandler(NoSink())))
            for n, stage in enumerate(plan.stages)
        )
        given = zip(self.plan.outputs, sinks, strict=True)
        return attrs.evolve(plan, stages=stages), tuple(s if o.stage in new else NoSink() for o, s in given)

    def check(self, history: str) -> None:
        """See that the savepoint of a run over the archives agrees with the savepoint that the query begins from.

        Raises
        ------
        CheckpointError
            When they end at another watermark, or have other state where they tell of the same.
        """
        past = Savepoint.open(history)
        kept = self.kept
        stages = self._looked_at()
        for clock in sorted({clock for n in stages for clock, _ in self.plan.stages[n].times}):
            mine, theirs = kept.savepoint.after[clock], past.after[clock]
            if mine != theirs:
                raise CheckpointError(
                    f"the archive ends {'before' if theirs < mine else 'after'} the savepoint",
                    got=f"a watermark of {show_instant(theirs)}, and {show_instant(mine)} in the savepoint",
                    then="rows in between would be lost, or come twice",
                    hint="pass an archive of just the rows that the savepoint has taken",
                )
        compared_stages = [change for change in self.changes if change.new in stages and change.old is not None]
        for change in compared_stages:
            if change.overruled or change.new is None or self.plan.stages[change.new].stateless:
                continue
            stage = kept.plan.stages[change.new]
            differ = _difference(stage, kept.savepoint, self.plan.stages[change.new], past, change.new)
            if differ is not None:
                what = f"the archive does not give the state that the savepoint has of {change.name!r}"
                then = "rows would be lost in what is rebuilt, or come twice"
                raise CheckpointError(what, got=differ, then=then, hint=_HINT.format(words={change.name: "reset"}))

    def _looked_at(self) -> set[int]:
        """Return the stages that are rebuilt, and all before them."""
        result, waiting = set[int](), [change.new for change in self.changes if change.fate == "rebuilt"]
        while waiting:
            number = waiting.pop()
            if number is not None and number not in result:
                result.add(number)
                waiting += self.plan.stages[number].after
        return result


def _difference(stage: StagePlan, kept: Savepoint, rebuilt: StagePlan, past: Savepoint, number: int) -> str | None:
    """Return in what the state of a stage differs that was kept, and that was rebuilt; None where they agree."""
    try:
        mine, theirs = (_state(plan, of, number) for plan, of in ((stage, kept), (rebuilt, past)))
    except PlanError:  # a join, or a window of whole rows: how many rows are open is all there is to look at
        was, now = (of.stages[number].open[1] for of in (kept, past))
        return None if was == now else f"{now:,} rows are open, and {was:,} in the savepoint"
    doubtful = {name for _, names in stage.spec.wholes for name in names}
    doubtful |= {call.output_name for call in stage.spec.aggs if isinstance(call, WholeSince)}
    heads = len(stage.spec.keys) + 2
    names = [
        name
        for place, name in enumerate(mine.column_names[:-1])  # the last one says when it was written
        if place < heads or (name in theirs.column_names and name not in doubtful)
    ]
    one, other = (_hashes(table.select(names)) for table in (mine, theirs))
    if len(one) == len(other) and bool((one == other).all()):
        return None
    differ = len(np.setdiff1d(one, other)), len(np.setdiff1d(other, one))
    return f"{max(differ):,} of {max(mine.num_rows, theirs.num_rows):,} windows have other values"


def _state(plan: StagePlan, savepoint: Savepoint, number: int) -> pa.Table:
    stage = ProcessStage.of(plan, Workers())
    stage.take_over(savepoint.buckets_of(number), savepoint.stages[number].open)
    return stage.state()


def _hashes(rows: pa.Table) -> Ints:
    """Return a number for each row, in an order of their own: equal tables have equal ones."""
    columns = [_plain(column) for column in rows.columns]
    return np.sort(key_hashes(columns, rows.num_rows))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values that can be hashed: nested ones as texts."""
    if not pa.types.is_nested(column.type):
        return column
    return pa.chunked_array([pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())])


Offsets: TypeAlias = "dict[str, dict[str, int]]"
"""The offset that comes next, by topic and partition."""


@attrs.frozen(eq=False)
class History:
    """The history of a query.

    Attributes
    ----------
    plan : PhysicalPlan
        The live query.
    archives : dict
        By the number of a stream of it, where its past is.
    seam : dict
        From which event time on rows are live ones, µs, by the name of the source.
    offsets : dict
        By the number of a stream, at which offsets the live source goes on.
    publish : bool
        Whether the results of the history go to the outputs.
    rebuilding : Rebuilding or None
        What is rebuilt, where the query begins from a savepoint of another plan.
    """

    plan: PhysicalPlan
    archives: Mapping[int, Archive]
    seam: Seam
    offsets: Mapping[int, Offsets]
    publish: bool
    rebuilding: RebuiltPlan | None = None

    def run(self, runner: SessionRunner[Any], sinks: Sequence[Sink], checkpoint: str, title: str) -> str:
        """Run to the end of the archives, or go on with it; gives the savepoint for the live query of a `checkpoint`.

        Raises
        ------
        SchemaError
            When an archive does not fit its source.
        PlanError
            For a sink that this process cannot write to.
        CheckpointError
            When a part of what an earlier run left is damaged.
        """
        folder = folder_of(checkpoint)
        saved = f"{folder}/savepoint"
        own = f"{folder}/checkpoint"
        if not is_savepoint(saved):
            process = runner if isinstance(runner, ProcessRunner) else ProcessRunner.next_to(runner)
            self._run(process, sinks, own, saved, title)
        if self.rebuilding is not None:
            try:
                self.rebuilding.check(saved)
            except CheckpointError:
                forget(checkpoint)  # the next start has another archive
                raise
        store, root = store_at(own)
        if store.exists(root):
            store.delete_folder(root)
        pass_on(absolute(own), checkpoint)
        return saved

    def _run(self, runner: ProcessRunner, sinks: Sequence[Sink], own: str, saved: str, title: str) -> None:
        archives = {n: self._upto(n, archive) for n, archive in self.archives.items()}
        past = over_archives(self.plan, archives, self.seam)
        none = over_archives(self.plan, {}, {}, one_batch=True)
        targets = tuple(sinks) if self.publish else tuple(NoSink() for _ in sinks)
        if self.rebuilding is not None:
            past, targets = self.rebuilding.kept_back(past, sinks, self.publish)
            none, _ = self.rebuilding.kept_back(none, sinks, self.publish)
        for sink in targets:
            if not isinstance(sink, (TableSink, FileSink)):
                then = "the history runs without Spark, and the sink needs it"
                hint = "pass ParquetSink(...) or another sink of files or tables; on Spark publish=False does, too"
                raise PlanError("the results of a history cannot go to this sink", got=sink.title, then=then, hint=hint)
        for each in (past, none):
            start = QueryStart(each, targets, own, Batches.available_now(), f"{title} (history)")
            runner.start(start).await_termination()
            if batches_of(own):  # else all archives are empty, and a batch without rows begins the query
                break
        save(own, saved, None if self.rebuilding is not None else self._change)

    def _upto(self, number: int, archive: Archive) -> Archive:
        """Return an archive up to the seam: where the savepoint is, or of a topic where the live source goes on."""
        if self.rebuilding is not None:
            return self.rebuilding.upto(number, archive)
        return ended_at(archive, self.offsets[number]) if number in self.offsets else archive

    def _change(self, result: Savepoint) -> None:
        """Let a savepoint of the history be one of the live query: where its sources go on, and what its clocks follow."""
        outline = outline_of(self.plan)
        kinds = outline["sources"]
        result.note = {**result.note, "plan": self.plan.fingerprint, "outline": outline}
        result.checkpoint = None
        for number, (read, state) in enumerate(zip(self.plan.reads, result.sources, strict=True)):
            state.ended = False
            archive, to = self.archives.get(number), self.offsets.get(number)
            if to is not None:
                state.position = json.dumps({"at": to})
            elif archive is None or state.kind != kinds[number] or not same_place(archive.source, read.source):
                state.position = None
            elif state.position is not None:  # of that place
                position = json.loads(state.position)
                if isinstance(read.source, RangeSource) and isinstance(read.source.source, KafkaSource):
                    position.pop("ends", None)
                state.position = json.dumps(position)
            state.kind = kinds[number]
        clocks = [result.clocks["tracker"], *result.clocks.get("others", [])]
        for clock in clocks_joined(self.plan, self.archives):
            sources = self.plan.clocks.clocks[clock].sources
            own = [name.rpartition(".")[2] if len(clocks) > 1 else name for name in sources]
            known, mark = clocks[clock].get("newest", {}), clocks[clock]["current"]
            newest = {name: known.get(name, UNSET) for name in own}
            clocks[clock] |= {
                "newest": newest,
                "advanced": dict.fromkeys(own, mark),
                "spoke": dict.fromkeys(own, result.now_us),
                "ended": [],
            }
        result.clocks = {"tracker": clocks[0], "others": clocks[1:]} if len(clocks) > 1 else {"tracker": clocks[0]}


def begin_with(history: History, runner: SessionRunner[Any], start: QueryStart) -> tuple[str, QueryStart]:
    """Run a history unless its query has begun; gives the checkpoint of the live query, and how that starts.

    With a savepoint to begin from, only what the plan has new is taken from the history.

    Raises
    ------
    PlanError
        Where the profile needs a checkpoint, and for a sink that this process cannot write to.
    SchemaError
        When an archive does not fit its source.
    CheckpointError
        When the query of the checkpoint began otherwise.
    """
    check_kept(runner.profile, start.checkpoint)
    home = runner.folder("checkpoint") if start.checkpoint is None else absolute(start.checkpoint).rstrip("/")
    title, begin = start.name or start.plan.title, start.begin
    if begin is not None:
        begin = attrs.evolve(begin, archives=tuple(history.archives))
        rebuilding = None if CheckpointNotes(home).plan() is not None else RebuiltPlan.of(history.plan, begin)
        if rebuilding is not None:
            saved = attrs.evolve(history, rebuilding=rebuilding).run(runner, start.sinks, home, title)
            begin = attrs.evolve(begin, history=saved)
    elif not begun_with_history(home, history.seam):
        begin = StartPoint(history.run(runner, start.sinks, home, title), {}, history.seam)
    return home, attrs.evolve(start, checkpoint=home, begin=begin)


def begun_with_history(checkpoint: str, seam: Seam) -> bool:
    """Return whether the query of a checkpoint began with this history, so that it goes on from there.

    Raises
    ------
    CheckpointError
        When it began without one, or with another seam.
    """
    note = CheckpointNotes(checkpoint).plan()
    if note is None:
        return False
    begun = note.get("begun from", {})
    if "seam" not in begun:
        raise CheckpointError(
            f"the query of {checkpoint} began without a history",
            got="bootstrap for a checkpoint that has state",
            then="rows of the history would come twice, or late",
            hint="leave bootstrap out to go on, or pass a new checkpoint folder",
        )
    if begun["seam"] != seam:
        raise CheckpointError(
            f"the history of {checkpoint} ended at another time",
            got=f"{seam or 'no time'} for {begun['seam'] or 'no time'} (µs)",
            then="rows between both would be lost, or come twice",
            hint="pass the `until` of the first start, or a new checkpoint folder",
        )
    return True


def folder_of(checkpoint: str) -> str:
    """Return the folder of the history of a checkpoint."""
    return f"{checkpoint}-history"


def forget(checkpoint: str) -> None:
    """Remove what the history of a checkpoint left, once the live query has begun from it."""
    store, root = store_at(folder_of(checkpoint))
    if store.exists(root):
        store.delete_folder(root)
