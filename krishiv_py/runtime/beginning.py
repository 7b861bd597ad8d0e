"""A query begins from a savepoint: a new checkpoint is made of it, whole or not at all, on any engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from krishiv_py.disk.files import store_at
from krishiv_py.disk.folders import absolute
from krishiv_py.errors import CheckpointError
from krishiv_py.plan.options.begin import Begin
from krishiv_py.planner.fingerprint import differences
from krishiv_py.planner.outline import outline_of
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.checkpoint.begun import begin_move, end_move, is_being_made
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.savepoints import Savepoint


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
    savepoint = opened_for(begin, plan)
    begin_move(checkpoint)
    write(savepoint)
    begun = {"savepoint": folder, "checkpoint": savepoint.checkpoint, "batches": savepoint.batches}
    note = {**savepoint.note, "plan": plan.fingerprint, "outline": outline_of(plan), "begun from": begun}
    notes.begin(note, buckets, engine)
    end_move(checkpoint)


def opened_for(begin: Begin, plan: PhysicalPlan) -> Savepoint:
    """Open a savepoint for a plan that takes its state.

    Raises
    ------
    CheckpointError
        When it is damaged or missing, or the plan cannot take its state.
    """
    folder = absolute(begin.savepoint).rstrip("/")
    savepoint = Savepoint.open(folder)
    changed = differences(savepoint.note["plan"], plan.fingerprint)
    if changed:
        raise CheckpointError(
            "the savepoint belongs to another plan", got="; ".join(changed), hint=f"start the plan that {folder} was made of"
        )
    return savepoint


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
