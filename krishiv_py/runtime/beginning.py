"""A query begins from a savepoint, or goes on from the checkpoint of another plan: whole or not at all, on any engine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from krishiv_py.engine.stage import NEWEST_ROW
from krishiv_py.errors import CheckpointError
from krishiv_py.kernels.watermark import moment_of
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.options.query import StartPoint
from krishiv_py.planner.evolution import CarriedState, StageChange, carrying, compared, rewritten
from krishiv_py.planner.explain import outline_of, stage_names
from krishiv_py.planner.fingerprint import differences
from krishiv_py.planner.history import after_seam, read_called, stages_archived
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime import evolving
from krishiv_py.runtime.checkpoint.notes import (
    CheckpointNotes,
    begin_move,
    end_move,
    engine_of,
    forget_being_made,
    is_being_made,
)
from krishiv_py.runtime.savepoints import PlanChange, Savepoint, SourceState, StageState, is_savepoint, outlined
from krishiv_py.storage.local import absolute


def prepare_beginning(begin: StartPoint, checkpoint: str) -> None:
    """Remove what a beginning from a savepoint left that was broken off, and see that the savepoint can be opened.

    Nothing is made in the checkpoint before that.

    Raises
    ------
    CheckpointError
        When there is no savepoint, or it is damaged, and the query did not begin before.
    """
    if is_being_made(checkpoint):
        forget_being_made(checkpoint)
    if CheckpointNotes(checkpoint).plan() is None:
        Savepoint.open(absolute(begin.savepoint).rstrip("/"))


def begin_from(
    begin: StartPoint, plan: PhysicalPlan, checkpoint: str, buckets: int, engine: str, write: Callable[[Savepoint], None]
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
    begun: dict[str, Any] = {"savepoint": folder, "checkpoint": opened.savepoint.checkpoint, "batches": opened.batches}
    begun |= {} if begin.seam is None else {"seam": begin.seam}
    note = {**opened.savepoint.note, "plan": opened.plan.fingerprint, "begun from": begun, "carried": opened.carried}
    notes.begin({name: one for name, one in note.items() if name != "folders"}, buckets, engine)
    end_move(checkpoint)


@attrs.frozen
class SavepointOpening:
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

    savepoint: evolving.EvolvedSavepoint
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


def plan_change(savepoint: Savepoint, changes: Sequence[StageChange], batches: int, clocks: evolving.ClocksGoOn) -> PlanChange:
    """Return the facts of a savepoint that hold until a batch has run with the plan that goes on from it.

    Parameters
    ----------
    savepoint : Savepoint
        What it goes on from.
    changes : sequence of StageChange
        What becomes of its stages.
    batches : int
        How many batches count as published.
    clocks : ClocksGoOn
        How the clocks go on.
    """
    pairs = [(c.name, c.old) for c in changes if c.new is not None and c.old is not None]
    stages = {name: attrs.asdict(savepoint.frontiers(old)) for name, old in pairs if savepoint.stages[old].shape is not None}
    return PlanChange(batches, clocks.current, stages, list(moment_of(clocks.clocks, savepoint.now_us).every))


def carried_by(
    savepoint: Savepoint, plan: PhysicalPlan, changes: Sequence[StageChange], clocks: evolving.ClocksGoOn
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
    clocks : ClocksGoOn
        How the clocks go on.
    """
    carried = dict[str, dict[str, Any]]()
    for change in changes:
        if change.new is None or plan.stages[change.new].stateless:
            continue
        stage = plan.stages[change.new]
        if change.fate == "rebuilt":
            continue
        if change.fate in ("kept", "migrated") and change.old is not None:
            shape = savepoint.stages[change.old].shape
            given = CarriedState() if shape is None else evolving.carried_over(shape, stage, clocks, savepoint, change.old)
        else:
            given = CarriedState(
                blind_us=_newest_of_stage(savepoint, change.old, [clocks.newest[clock] for clock, _ in stage.times])
            )
        if given != CarriedState():
            carried[change.name] = attrs.asdict(given)
    return carried


def _newest_of_stage(savepoint: Savepoint, stage: int | None, newest: Sequence[int]) -> int:
    """Return the largest event time that a stage saw; where it is not known, as of a new stage, the `newest` of clocks."""
    buckets = [] if stage is None else savepoint.stages[stage].buckets
    noted = [savepoint.known(stage, bucket).get(NEWEST_ROW) for bucket in buckets if stage is not None]
    seen = [int(us) for us in noted if us is not None]
    return max(seen or newest, default=UNSET)


def opened_for(begin: StartPoint, plan: PhysicalPlan) -> SavepointOpening:
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
    streams, clocks = evolving.sources_paired(old, new), evolving.clocks_for(savepoint, plan, new, changes)
    carried = carried_by(savepoint, plan, changes, clocks)
    runs = carrying(plan, carried, stage_names(plan.stages))
    outline = outline_of(runs)
    stages, plans, rebuilt = list[StageState](), list[evolving.StageBefore](), set[int]()
    for change in sorted((c for c in changes if c.new is not None), key=lambda c: c.new or 0):
        assert change.new is not None
        described, stage = outline["stages"][change.new], runs.stages[change.new]
        kept = change.fate in ("kept", "migrated") and change.old is not None
        was = savepoint.stages[change.old] if kept and change.old is not None else StageState(**described)
        stepped_us = savepoint.stepped(change.old) if kept and change.old is not None else None
        state = StageState(
            **described, buckets=was.buckets, counters=was.counters, left=was.left, open=was.open, stepped_us=stepped_us
        )
        if change.fate == "rebuilt" and past is not None:
            rebuilt.add(change.new)
            computed = past.stages[change.new]
            counted = computed if change.old is None or change.overruled else savepoint.stages[change.old]
            state = attrs.evolve(
                state, buckets=computed.buckets, open=computed.open, counters=counted.counters, left=counted.left
            )
        stages.append(state)
        shape = was.shape if change.fate == "migrated" else None
        frontiers = savepoint.frontiers(change.old) if shape and change.old is not None else None
        plans.append(evolving.StageBefore(stage, shape, change.old or 0, frontiers))
    values = {f.name: getattr(savepoint, f.name) for f in attrs.fields(Savepoint)}
    batches = savepoint.batches if past is None else max(savepoint.batches, past.batches)
    since = attrs.asdict(plan_change(savepoint, changes, batches, clocks))
    values |= {"note": {**savepoint.note, "outline": outline, "since": since}, "stages": stages}
    values |= {"clocks": clocks.clocks, "before": clocks.before}
    values["sources"] = [
        attrs.evolve(savepoint.sources[streams[number]], kind=kind) if number in streams else SourceState(kind)
        for number, kind in enumerate(outline["sources"])
    ]
    values["batches"] = batches  # sinks that know batches by number have those of the run over archives, too
    evolved = evolving.EvolvedSavepoint(**values, plans=plans, streams_before=streams, past=past, rebuilt=frozenset(rebuilt))
    return SavepointOpening(evolved, runs, carried, changes, savepoint.batches)


def _check_taken(begin: StartPoint, changes: list[StageChange], folder: str) -> None:
    """See that no state is lost that nobody said may be lost.

    Raises
    ------
    CheckpointError
        Naming each stage.
    """
    unknown = sorted(begin.on_change.keys() - {change.name for change in changes})
    if unknown:
        hint = f"the stages are {', '.join(repr(change.name) for change in changes)}"
        raise CheckpointError("on_change names a stage that is not there", got=", ".join(unknown), hint=hint)
    refused = [change for change in changes if change.fate == "refused"]
    if refused:
        words = {c.name: "drop" if c.new is None else "reset" for c in refused}
        raise CheckpointError(
            f"the savepoint {folder} belongs to another plan, whose state this one cannot take",
            got="; ".join(f"{c.name}: {', '.join(c.how)}" for c in refused),
            then="this state would be lost",
            hint=f'to lose it, pass on_change={words!r}; a stage of another name keeps its state with .named("OLD_NAME")',
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


_OVER: Final = ("migrated", "added", "removed")
ReadClocks: TypeAlias = "Callable[[str, dict[str, Any]], Savepoint | None]"
"""Reads the clocks of a checkpoint, by its folder and its plan note, as a savepoint without tables; None before a batch ran."""


def going_on(plan: PhysicalPlan, checkpoint: str, read: ReadClocks, *, durable: bool, on_spark: bool) -> PhysicalPlan:
    """Return a plan as it runs from a checkpoint, whose note becomes that of a changed plan where its state fits as it is.

    The plan note is all that is written, in one step: before it the checkpoint belongs to the old plan, after it to the new
    one.

    Parameters
    ----------
    plan : PhysicalPlan
        What is to run.
    checkpoint : str
        Its checkpoint, which the caller has leased.
    read : callable
        Reads the clocks of the checkpoint.
    durable : bool
        Whether the note must survive a loss of power.
    on_spark : bool
        Whether Spark keeps the state; it knows stages by their number only.

    Raises
    ------
    CheckpointError
        When the state has to be written again, or would be lost; names what changed, and how to go on.
    """
    notes = CheckpointNotes(checkpoint, durable)
    note = notes.plan()
    if note is None:
        return plan
    if "outline" not in note:
        return with_carried(plan, checkpoint)
    old, new = note["outline"], outline_of(plan)
    same = old.get("clocks") in (None, new["clocks"]) and not _renamed(old, new)  # the fingerprint is without lags
    if same and not differences(note["plan"], with_carried(plan, checkpoint).fingerprint):
        return with_carried(plan, checkpoint)
    changes = compared(old, new)
    _check(reasons_against(note, plan, changes, on_spark=on_spark), note, plan, changes, checkpoint)
    clocks, carried = read(checkpoint, note), dict[str, dict[str, Any]]()
    if clocks is not None:
        _check(_fired_otherwise(clocks, new, changes), note, plan, changes, checkpoint)
        go_on = evolving.clocks_for(clocks, plan, new, changes)
        carried = carried_by(clocks, plan, changes, go_on)
        note = {**note, "since": attrs.asdict(plan_change(clocks, changes, clocks.batches, go_on))}
    runs = carrying(plan, carried, stage_names(plan.stages))
    notes.change({**note, "plan": runs.fingerprint, "outline": outline_of(runs), "carried": carried})
    return with_carried(plan, checkpoint)


def _renamed(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether aggregates have other names, by which hidden ones know them."""
    pairs = zip(old["stages"], new["stages"], strict=False)
    return any(
        [a["name"] for a in was["shape"]["aggregates"] if not a["name"].startswith("__")]
        != [a["name"] for a in now["shape"]["aggregates"]]
        for was, now in pairs
        if "shape" in was and "shape" in now
    )


def _check(
    reasons: Iterable[str], note: Mapping[str, Any], plan: PhysicalPlan, changes: Sequence[StageChange], checkpoint: str
) -> None:
    """See that there are no reasons why the state of a checkpoint cannot stay as it is.

    Raises
    ------
    CheckpointError
        Naming what changed, and how to go on.
    """
    if not (whys := list(reasons)):
        return
    words = {c.name: "drop" if c.new is None else "reset" for c in changes if c.fate == "refused"}
    more = f", on_change={words!r}" if words else ""
    raise CheckpointError(
        "the checkpoint belongs to another plan",
        got="; ".join(differences(note["plan"], plan.fingerprint)),
        then=f"its state cannot stay as it is: {'; '.join(whys)}",
        hint=f"take a savepoint with `krishiv savepoint {shlex.quote(checkpoint)} SAVEPOINT`, then "
        f"start(..., savepoint=SAVEPOINT, checkpoint=NEW{more}); or use a new checkpoint folder instead of {checkpoint}",
    )


def reasons_against(
    note: Mapping[str, Any], plan: PhysicalPlan, changes: Sequence[StageChange], *, on_spark: bool
) -> Iterator[str]:
    """Yield the reasons why state cannot stay as it is."""
    old, new = note["outline"], outline_of(plan)
    for change in changes:
        why = _reason(change, old, new, on_spark=on_spark)
        if why:
            yield f"{change.name}: {why}"
    if "reads" in old and "clocks" in old:
        yield from map(str, evolving.source_changes(old, new))
        if [c["stage"] for c in old["clocks"]] != [c["stage"] for c in new["clocks"]]:
            yield "the stages follow other clocks"
    elif len(old["sources"]) != len(new["sources"]):
        yield "the plan reads another number of sources"
    if on_spark and (old["ledger"], old["last"]) != (new["ledger"], new["last"]):
        yield "the clock is kept elsewhere" if old["last"] == new["last"] else "outputs have names, or have none any more"
    was, now = note["plan"], plan.fingerprint
    for part in ("memory streams", "Spark's watermark"):
        if was.get(part) != now.get(part):
            yield f"{part}: {was.get(part, '(none)')}, and now {now.get(part, '(none)')}"
    if not now.get("inputs of stages", "").startswith(was.get("inputs of stages", "")):
        yield "stages read other stages"


def _reason(change: StageChange, old: Mapping[str, Any], new: Mapping[str, Any], *, on_spark: bool) -> str:
    """Return why the state of a stage cannot stay as it is; empty where it can."""
    if change.fate in ("refused", "reset", "dropped", "rebuilt"):
        return ", ".join(change.how)
    if change.new is None or change.old is None:
        return "it is a new stage" if on_spark or (change.new or 0) < len(old["stages"]) else ""
    was, now = old["stages"][change.old], new["stages"][change.new]
    if change.old != change.new:
        return f"it was stage {change.old + 1} and is stage {change.new + 1}"
    if [list(t) for t in was["times"]] != [list(t) for t in now["times"]]:
        return "its watermark follows its clock at another distance"
    return ", ".join(rewritten(was["shape"], now["shape"])) if "shape" in was and "shape" in now else ""


def _fired_otherwise(clocks: Savepoint, new: Mapping[str, Any], changes: Sequence[StageChange]) -> Iterator[str]:
    """Yield the stages whose state, written again by a savepoint since the last batch, says for another plan what has fired."""
    for change in changes if clocks.since is not None else ():
        if change.new is not None and change.old is not None:
            was, now = clocks.stages[change.old].shape, new["stages"][change.new].get("shape")
            if was is not None and now is not None and not clocks.frontiers(change.old).fires_alike(was, now):
                yield f"{change.name}: which windows have fired"


def changes_against(folder: str, plan: PhysicalPlan, bootstrap: Iterable[str] = ()) -> list[StageChange]:
    """Return what becomes of each stage if a plan begins from a checkpoint or savepoint, which is only looked at.

    What is new and reads only sources with archives, named by `bootstrap`, is rebuilt; that needs a savepoint.

    Raises
    ------
    CheckpointError
        When neither is there, or it is damaged.
    PlanError
        For a name that none of its sources has, or several have.
    """
    archives = {read_called(plan, name, "bootstrap") for name in bootstrap}
    where = absolute(folder).rstrip("/")
    saved = is_savepoint(where)
    note = Savepoint.open(where).note if saved else outlined(where)
    old, new = note["outline"], outline_of(plan)
    changes = compared(old, new, None, stages_archived(plan, archives))
    in_place = not saved and not any(reasons_against(note, plan, changes, on_spark=engine_of(where) == "spark"))
    changes += evolving.source_changes(old, new)
    if saved or in_place:
        return changes
    return [attrs.evolve(c, how=(*c.how, "over a savepoint")) if c.fate in _OVER else c for c in changes]
