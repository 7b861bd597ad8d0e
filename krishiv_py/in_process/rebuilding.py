"""Rebuilds what is new in a changed plan from archives, next to the state that a savepoint kept (SEMANTICS §12.2, §12.5).

The whole plan runs over the archives, up to where the savepoint is. Stages and aggregates that the savepoint lacks take their
state from that run, all others keep theirs. Both states have to agree where they tell of the same: a window that lacks rows in
the archive would give a partial result that looks whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import key_hashes
from krishiv_py.arrays.types import Ints
from krishiv_py.connectors.kafka.source import KafkaSource
from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.known import SideOutputLateEventHandler
from krishiv_py.connectors.tables.delta.source import DeltaSource
from krishiv_py.connectors.tables.iceberg.source import IcebergSource
from krishiv_py.errors import CheckpointError, PlanError
from krishiv_py.in_process.archives import NoSink, ended_at, replaced, same_place
from krishiv_py.in_process.stage import ProcessStage
from krishiv_py.in_process.workers import Workers
from krishiv_py.plan.durations import show_instant
from krishiv_py.plan.nodes import FileSource
from krishiv_py.plan.options.query import Begin
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.evolution import COMPLETE, HIDDEN, StageChange, compared
from krishiv_py.planner.history import Archive, names_of, reads_of, stages_archived
from krishiv_py.planner.outline import outline_of
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.beginning import Opening, opened_for
from krishiv_py.runtime.savepoints import Savepoint

_HINT: Final = (
    "pass an archive of just the rows that the savepoint has taken, and take out what new outputs have of this one; "
    "on_change={words!r} takes what the archive gives, and without bootstrap what is new begins empty"
)


@attrs.frozen(eq=False)
class Rebuilding:
    """The part of a changed plan that is rebuilt.

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
    begin: Begin
    kept: Opening
    changes: list[StageChange]

    @classmethod
    def of(cls, plan: PhysicalPlan, begin: Begin) -> Rebuilding | None:
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
            return replaced(
                archive, attrs.evolve(source, source=attrs.evolve(read, until=version, base=min(read.base, version)))
            )
        if isinstance(read, IcebergSource):
            ended = attrs.evolve(read, until=(position["snapshot"],))
            if read.whole:
                ended = attrs.evolve(ended, base=position["snapshot"], sequence=position["sequence"])
            return replaced(archive, attrs.evolve(source, source=ended))
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
                raise CheckpointError(
                    f"the archive does not give the state that the savepoint has of {change.name!r}",
                    got=differ,
                    then="rows would be lost in what is rebuilt, or come twice",
                    hint=_HINT.format(words={change.name: "reset"}),
                )

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
    heads = len(stage.spec.keys) + 2
    names = [
        name
        for place, name in enumerate(mine.column_names[:-1])  # the last one says when it was written
        if place < heads
        or (name in theirs.column_names and name not in doubtful and name != COMPLETE and not name.startswith(HIDDEN))
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
