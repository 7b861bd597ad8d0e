"""A query begins from a savepoint: a new checkpoint is made of it, whole or not at all, on any engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from krishiv_py.errors import CheckpointError
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.options.query import Begin
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.evolution import Carried, StageChange, carrying, compared
from krishiv_py.planner.history import after_seam, stages_archived
from krishiv_py.planner.outline import outline_of, stage_names
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.checkpoint.begun import begin_move, end_move, is_being_made
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.evolving import Evolved, carried_over
from krishiv_py.runtime.savepoints import Savepoint, SourceState, StageState
from krishiv_py.runtime.source_changes import clocks_for, sources_paired
from krishiv_py.storage.files import store_at
from krishiv_py.storage.local import absolute


def forget_broken_off(checkpoint: str) -> None:
    """Remove what a beginning from a savepoint left that was broken off."""
    if is_being_made(checkpoint):
        store, root = store_at(checkpoint)
        store.delete_folder(root)


def begin_from(
    begin: Begin, plan: PhysicalPlan, checkpoint: str, buckets: int, engine: str, write: Callable[[Savepoint], None]
) -> None:
    """Make a checkpoint that begins from a savepoint; one that did so before goes on.

    Parameters
    ----------
    begin : Begin
        Which savepoint.
    plan : PhysicalPlan
        What is to run.
    checkpoint : str
        The new checkpoint, which the caller has leased.
    buckets : int
        In how many buckets the engine keeps state.
    engine : str
        What it is called in the note.
    write : callable
        Writes what the engine needs into the checkpoint, all but the plan note.

    Raises
    ------
    CheckpointError
        When another query began from the checkpoint, the savepoint is damaged or missing, or the plan cannot take its state.
    """
    notes, folder = CheckpointNotes(checkpoint, durable=True), absolute(begin.savepoint).rstrip("/")
    stored = notes.plan()
    if stored is not None:
        _check_same(stored, folder, checkpoint)
        return
    opened = opened_for(begin, plan)
    begin_move(checkpoint)
    write(opened.savepoint)
    begun: dict[str, Any] = {
        "savepoint": folder,
        "checkpoint": opened.savepoint.checkpoint,
        "batches": opened.batches,
    }
    begun |= {} if begin.seam is None else {"seam": begin.seam}
    note = {**opened.savepoint.note, "plan": opened.plan.fingerprint, "begun from": begun, "carried": opened.carried}
    notes.begin(note, buckets, engine)
    end_move(checkpoint)


@attrs.frozen
class Opening:
    """A savepoint for a plan.

    Attributes
    ----------
    savepoint : Evolved
        The savepoint as the plan reads it.
    plan : PhysicalPlan
        The plan that runs.
    carried : dict
        What its stages carry along, by their names.
    changes : list of StageChange
        What becomes of each stage.
    batches : int
        How many batches the query of the savepoint had published.
    """

    savepoint: Evolved
    plan: PhysicalPlan
    carried: dict[str, dict[str, Any]]
    changes: list[StageChange]
    batches: int


def with_carried(plan: PhysicalPlan, checkpoint: str) -> PhysicalPlan:
    """Return a plan as it runs from a checkpoint, which may have begun from a savepoint of another plan, or with a history."""
    note = CheckpointNotes(checkpoint).plan() or {}
    carried, seam = note.get("carried"), note.get("begun from", {}).get("seam")
    plan = carrying(plan, carried, stage_names(plan.stages)) if carried else plan
    return after_seam(plan, seam) if seam else plan


def carried_by(
    savepoint: Savepoint, plan: PhysicalPlan, changes: Sequence[StageChange], newest: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """Return what the stages of a plan carry along, by name.

    Parameters
    ----------
    savepoint : Savepoint
        What they go on from.
    plan : PhysicalPlan
        The plan, which carries nothing yet.
    changes : sequence of StageChange
        What becomes of its stages.
    newest : sequence of int
        The largest event time that came, by every clock, µs.
    """
    carried = dict[str, dict[str, Any]]()
    for change in changes:
        if change.new is None or plan.stages[change.new].stateless:
            continue
        stage = plan.stages[change.new]
        if change.fate == "rebuilt":
            continue
        if change.fate in ("kept", "migrated") and change.old is not None:
            was = savepoint.stages[change.old]
            reached_us = was.moment(savepoint.before).watermark_us
            given = Carried() if was.shape is None else carried_over(was.shape, stage, reached_us)
        else:
            given = Carried(blind_us=max((newest[clock] for clock, _ in stage.times), default=UNSET))
        if given != Carried():
            carried[change.name] = attrs.asdict(given)
    return carried


def opened_for(begin: Begin, plan: PhysicalPlan) -> Opening:
    """Open a savepoint for a plan that takes its state, and for what is new in it the state of a run over archives.

    Raises
    ------
    CheckpointError
        When it is damaged or missing, or the plan cannot take its state; names each stage concerned.
    """
    folder = absolute(begin.savepoint).rstrip("/")
    savepoint = Savepoint.open(folder)
    past = None if begin.history is None else Savepoint.open(begin.history)
    old = savepoint.note["outline"]
    new = outline_of(plan)
    changes = compared(old, new, begin, stages_archived(plan, begin.archives))
    _check_taken(begin, changes, folder)
    streams, clocks = sources_paired(old, new), clocks_for(savepoint, plan, new, changes)
    carried = carried_by(savepoint, plan, changes, clocks.newest)
    runs = carrying(plan, carried, stage_names(plan.stages))
    outline = outline_of(runs)
    stages, plans, rebuilt = list[StageState](), list[tuple[StagePlan, dict[str, Any] | None, int]](), set[int]()
    for change in sorted((c for c in changes if c.new is not None), key=lambda c: c.new or 0):
        assert change.new is not None
        described, stage = outline["stages"][change.new], runs.stages[change.new]
        kept = change.fate in ("kept", "migrated") and change.old is not None
        was = savepoint.stages[change.old] if kept and change.old is not None else StageState(**described)
        state = StageState(**described, buckets=was.buckets, counters=was.counters, left=was.left, open=was.open)
        if change.fate == "rebuilt" and past is not None:
            rebuilt.add(change.new)
            computed = past.stages[change.new]
            counted = computed if change.old is None or change.overruled else savepoint.stages[change.old]
            state = attrs.evolve(
                state, buckets=computed.buckets, open=computed.open, counters=counted.counters, left=counted.left
            )
        stages.append(state)
        plans.append((stage, was.shape if change.fate == "migrated" else None, change.old or 0))
    values = {f.name: getattr(savepoint, f.name) for f in attrs.fields(Savepoint)}
    values |= {"note": {**savepoint.note, "outline": outline}, "stages": stages}
    values |= {"clocks": clocks.clocks, "before": clocks.before}
    values["sources"] = [
        attrs.evolve(savepoint.sources[streams[number]], kind=kind) if number in streams else SourceState(kind)
        for number, kind in enumerate(outline["sources"])
    ]
    if past is not None:  # sinks that know batches by number have those of the run over archives, too
        values["batches"] = max(savepoint.batches, past.batches)
    evolved = Evolved(**values, plans=plans, streams_before=streams, past=past, rebuilt=frozenset(rebuilt))
    return Opening(evolved, runs, carried, changes, savepoint.batches)


def _check_taken(begin: Begin, changes: list[StageChange], folder: str) -> None:
    """See that no state is lost that nobody said may be lost.

    Raises
    ------
    CheckpointError
        Naming each stage.
    """
    unknown = sorted(begin.on_change.keys() - {change.name for change in changes})
    if unknown:
        raise CheckpointError(
            "on_change names a stage that is not there",
            got=", ".join(unknown),
            hint=f"the stages are {', '.join(repr(change.name) for change in changes)}",
        )
    refused = [change for change in changes if change.fate == "refused"]
    if refused:
        words = {c.name: "drop" if c.new is None else "reset" for c in refused}
        raise CheckpointError(
            f"the savepoint {folder} belongs to another plan, whose state this one cannot take",
            got="; ".join(f"{c.name}: {', '.join(c.how)}" for c in refused),
            then="this state would be lost",
            hint=f"to lose it, pass on_change={words!r}; a stage of another name keeps its state with .named(its old name)",
        )


def _check_same(stored: dict[str, Any], folder: str, checkpoint: str) -> None:
    """See that a checkpoint that is there began from this savepoint.

    Raises
    ------
    CheckpointError
        When it did not.
    """
    of = stored.get("begun from", {}).get("savepoint")
    if of == folder:
        return
    raise CheckpointError(
        f"the checkpoint {checkpoint} did not begin from this savepoint",
        got="a checkpoint that began with an empty state" if of is None else f"one that began from {of}",
        then="its state, or that of the savepoint, would be lost",
        hint="pass a new checkpoint folder; to go on from this checkpoint, leave savepoint= out",
    )
