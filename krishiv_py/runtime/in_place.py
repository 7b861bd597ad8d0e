"""A changed plan goes on from the checkpoint of the plan before it, where no state has to be written again (SEMANTICS §12.2).

The plan note is all that is written, in one step: before it the checkpoint belongs to the old plan, after it to the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from krishiv_py.errors import CheckpointError
from krishiv_py.planner.evolution import StageChange, carrying, compared, rewritten
from krishiv_py.planner.fingerprint import differences
from krishiv_py.planner.history import read_called, stages_archived
from krishiv_py.planner.outline import outline_of, stage_names
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.beginning import carried_by, with_carried
from krishiv_py.runtime.checkpoint.begun import engine_of
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.savepoints import Savepoint, is_savepoint, outlined
from krishiv_py.runtime.source_changes import clocks_for, source_changes
from krishiv_py.storage.local import absolute

_OVER: Final = ("migrated", "added", "removed")
ReadClocks: TypeAlias = "Callable[[str, dict[str, Any]], Savepoint | None]"
"""Reads the clocks of a checkpoint, by its folder and its plan note, as a savepoint without tables; None before a batch ran."""


def going_on(plan: PhysicalPlan, checkpoint: str, read: ReadClocks, *, durable: bool, on_spark: bool) -> PhysicalPlan:
    """Return a plan as it runs from a checkpoint, whose note becomes that of a changed plan where its state fits as it is.

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
    if "outline" not in note or not (note.get("carried") or differences(note["plan"], plan.fingerprint)):
        return with_carried(plan, checkpoint)
    old, new = note["outline"], outline_of(plan)
    if not _renamed(old, new) and not differences(note["plan"], with_carried(plan, checkpoint).fingerprint):
        return with_carried(plan, checkpoint)
    changes = compared(old, new)
    _check(note, plan, changes, checkpoint, on_spark=on_spark)
    clocks, carried = read(checkpoint, note), dict[str, dict[str, Any]]()
    if clocks is not None:
        carried = carried_by(clocks, plan, changes, clocks_for(clocks, plan, new, changes).newest)
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
    note: Mapping[str, Any], plan: PhysicalPlan, changes: Sequence[StageChange], checkpoint: str, *, on_spark: bool
) -> None:
    """See that the state of a checkpoint fits a plan as it is.

    Raises
    ------
    CheckpointError
        Naming what changed, and how to go on.
    """
    reasons = list(reasons_against(note, plan, changes, on_spark=on_spark))
    if not reasons:
        return
    words = {c.name: "drop" if c.new is None else "reset" for c in changes if c.fate == "refused"}
    more = f", on_change={words!r}" if words else ""
    raise CheckpointError(
        "the checkpoint belongs to another plan",
        got="; ".join(differences(note["plan"], plan.fingerprint)),
        then=f"its state cannot stay as it is: {'; '.join(reasons)}",
        hint=f"take a savepoint with `krishiv savepoint {checkpoint} SAVEPOINT`, then "
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
        yield from map(str, source_changes(old, new))
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
    changes += source_changes(old, new)
    if saved or in_place:
        return changes
    return [attrs.evolve(c, how=(*c.how, "over a savepoint")) if c.fate in _OVER else c for c in changes]
