"""History, then live: a query over archives in this process, whose savepoint a live query of any engine begins from.

The history is a query of its own, with a checkpoint next to that of the live query, until this one is made. So a run that was
broken off goes on where it was, and its results are in the outputs once (SEMANTICS §12.5).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from krishiv_py.connectors.kafka.source import KafkaSource
from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.connectors.sink import FileSink, Sink, TableSink
from krishiv_py.errors import CheckpointError, PlanError
from krishiv_py.in_process.archives import NoSink, ended_at, same_place
from krishiv_py.in_process.moving import save
from krishiv_py.in_process.rebuilding import Rebuilding
from krishiv_py.in_process.runner import ProcessRunner
from krishiv_py.plan.options.query import Batches, Begin
from krishiv_py.planner.history import Archive, Seam, clocks_joined, over_archives
from krishiv_py.planner.outline import outline_of
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.checkpoint.sparklog import batches_of
from krishiv_py.runtime.savepoints import Savepoint, is_savepoint
from krishiv_py.runtime.session import SessionRunner, check_kept
from krishiv_py.runtime.sinks_in_use import pass_on
from krishiv_py.storage.files import store_at
from krishiv_py.storage.local import absolute

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
    rebuilding: Rebuilding | None = None

    def run(self, runner: ProcessRunner, sinks: Sequence[Sink], checkpoint: str, title: str) -> str:
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
            self._run(runner, sinks, own, saved, title)
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
                raise PlanError(
                    "the results of a history cannot go to this sink",
                    got=sink.title,
                    then="the history runs without Spark, and the sink needs it",
                    hint="pass publish=False, or a sink of files or tables",
                )
        for each in (past, none):
            runner.start(each, targets, own, Batches.available_now(), f"{title} (history)").await_termination()
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
            mark = clocks[clock]["current"]
            clocks[clock] |= {"reached": dict.fromkeys(own, mark), "spoke": dict.fromkeys(own, result.now_us)}
        result.clocks = {"tracker": clocks[0], "others": clocks[1:]} if len(clocks) > 1 else {"tracker": clocks[0]}


def begin_with(
    history: History, runner: SessionRunner[Any], sinks: Sequence[Sink], checkpoint: str | None, title: str, begin: Begin | None
) -> tuple[str, Begin | None]:
    """Run a history unless its query has begun; gives the checkpoint of the live query, and what that begins from.

    With a savepoint to `begin` from, only what the plan has new is taken from the history.

    Raises
    ------
    PlanError
        Where the profile needs a checkpoint, and for a sink that this process cannot write to.
    SchemaError
        When an archive does not fit its source.
    CheckpointError
        When the query of the checkpoint began otherwise.
    """
    check_kept(runner.profile, checkpoint)
    home = runner.folder("checkpoint") if checkpoint is None else absolute(checkpoint).rstrip("/")
    if begin is not None:
        return home, _rebuilt(history, attrs.evolve(begin, archives=tuple(history.archives)), runner, sinks, home, title)
    if begun_with_history(home, history.seam):
        return home, None
    own = runner if isinstance(runner, ProcessRunner) else ProcessRunner.next_to(runner)
    return home, Begin(history.run(own, sinks, home, title), {}, history.seam)


def _rebuilt(history: History, begin: Begin, runner: SessionRunner[Any], sinks: Sequence[Sink], home: str, title: str) -> Begin:
    """Return a beginning from a savepoint with what is new in the plan rebuilt, unless its query has begun."""
    if CheckpointNotes(home).plan() is not None:
        return begin
    rebuilding = Rebuilding.of(history.plan, begin)
    if rebuilding is None:
        return begin
    own = runner if isinstance(runner, ProcessRunner) else ProcessRunner.next_to(runner)
    saved = attrs.evolve(history, rebuilding=rebuilding).run(own, sinks, home, title)
    return attrs.evolve(begin, history=saved)


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
