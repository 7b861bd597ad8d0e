"""A checkpoint of either engine becomes a savepoint, or goes on on the other engine: over one, into a folder of its own."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from krishiv_py.errors import CheckpointError, PlanError
from krishiv_py.in_process.savepoints import restore, save
from krishiv_py.runtime.checkpoint.lease import make_private, take, writable_checkpoint
from krishiv_py.runtime.checkpoint.notes import (
    CheckpointNotes,
    Target,
    begin_move,
    check_engine,
    check_goes_on,
    end_move,
    engine_of,
    forget_being_made,
    is_being_made,
    is_free,
    moved_to,
    note_moved,
)
from krishiv_py.runtime.closings import carry_requests
from krishiv_py.runtime.savepoints import Savepoint, outlined, restore_for_spark
from krishiv_py.runtime.session import SessionRunner
from krishiv_py.storage.files import store_at
from krishiv_py.storage.local import absolute


def savepoint(runner: SessionRunner[Any], checkpoint: str, path: str) -> str:
    """Write the savepoint of a checkpoint; gives its folder.

    Raises
    ------
    CheckpointError
        While a query runs from it, when its last batch is not finished, and in process for a checkpoint of Spark.
    """
    runner._alive("savepoint()")
    home = absolute(checkpoint).rstrip("/")
    runner.check_reachable([home, absolute(path)])
    on_spark = runner.save_for_spark if engine_of(home) == "spark" else None
    if on_spark is None:
        check_engine(home, "in-process")
    with runner.as_own("session.savepoint()"):
        return _leased(home, lambda: (save(home, path) if on_spark is None else on_spark(home, path, None)).folder)


def _leased(checkpoint: str, saved: Callable[[], str]) -> str:
    """Let no query run from a checkpoint while its savepoint is written."""
    check_goes_on(checkpoint)
    outlined(checkpoint)
    lease = take(checkpoint, "session.savepoint")
    try:
        return saved()
    finally:
        lease.release()


def move(runner: SessionRunner[Any], checkpoint: str, to: Target, into: str | None, buckets: int | None) -> str:
    """Let the query of a checkpoint go on on another engine; gives the new folder.

    Raises
    ------
    CheckpointError
        As :func:`moved`.
    PlanError
        As :func:`moved`, and in process for a checkpoint of Spark.
    """
    home = absolute(checkpoint).rstrip("/")
    on_spark = engine_of(home) == "spark"
    if on_spark and runner.save_for_spark is None:
        then = "only Spark can read its state"
        hint = f"write `krishiv move {shlex.quote(home)} --to in-process`, or call move() of a session on Spark"
        raise PlanError(f"the checkpoint {home} is of a query on Spark", got="a session in process", then=then, hint=hint)
    save_for_spark = runner.save_for_spark
    if to == "spark" or not on_spark or save_for_spark is None:
        return moved(home, to, into, save, buckets or runner.new_buckets())
    runner._alive("move()")
    with runner.as_own("session.move()"):
        return moved(home, to, into, lambda checkpoint, folder: save_for_spark(checkpoint, folder, None), 1)


def moved(checkpoint: str, to: Target, into: str | None, saved: Callable[[str, str], Savepoint], buckets: int) -> str:
    """Make a checkpoint from which the query of another one goes on on another engine; may be broken off and repeated.

    Parameters
    ----------
    checkpoint : str
        The checkpoint; it stays as it is, but says where its query goes on.
    to : {"spark", "in-process"}
        The engine.
    into : str or None
        The new folder; None: next to the checkpoint, with the engine in its name.
    saved : callable
        Writes the savepoint of a checkpoint into a folder.
    buckets : int
        In how many buckets Spark keeps the state.

    Returns
    -------
    str
        The new folder.

    Raises
    ------
    CheckpointError
        While a query runs from it, when none has begun there, when its last batch is not finished, when it was moved already
        to another folder, and when the new folder has something in it.
    PlanError
        When it is of this engine.
    """
    into = f"{checkpoint}-on-spark" if into is None and to == "spark" else into or f"{checkpoint}-in-process"
    into = absolute(into).rstrip("/")
    if moved_to(checkpoint) == into:
        end_move(into)  # it was broken off at its end, or it is the second call
        return into
    check_goes_on(checkpoint)
    if engine_of(checkpoint) in (None, to):
        outlined(checkpoint)
        then = "there is nothing to move"
        hint = f"start its query with a session {'on Spark' if to == 'spark' else 'in process'}"
        raise PlanError(f"the checkpoint {checkpoint} is of this engine already", got=f"to={to!r}", then=then, hint=hint)
    store, root = store_at(into)
    with writable_checkpoint(into):
        _check_free(into)
    lease = take(checkpoint, "krishiv move")
    try:
        with writable_checkpoint(into):
            make_private(into)
            begin_move(into)
            savepoint = saved(checkpoint, f"{into}/krishiv/moving")
            if to == "spark":
                restore_for_spark(savepoint, into, buckets)
            else:
                restore(savepoint, into)
            store.delete_folder(f"{root}/krishiv/moving")
            carry_requests(checkpoint, into)
            note_moved(checkpoint, into)
            CheckpointNotes(into, durable=True).begin(savepoint.note, buckets if to == "spark" else 1, f"moved to {to}")
            end_move(into)
    finally:
        lease.release()
    return into


def _check_free(into: str) -> None:
    """See that nothing is in the new folder; what a move left there that was broken off is removed."""
    if is_being_made(into):
        forget_being_made(into)
    elif not is_free(into):
        hint = "give the query a new folder"
        then = "what is there would be mixed with it"
        raise CheckpointError("the new checkpoint is not empty", got=into, then=then, hint=hint)
