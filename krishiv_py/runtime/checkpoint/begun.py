"""The past of a checkpoint: the savepoint that it began from, and where its query went on, so that no two go on from one state.

Spark numbers micro-batches from 0 and its state store begins empty. So micro-batch 0 reads no rows; it wakes all buckets, and
each takes what the savepoint in ``<checkpoint>/krishiv/savepoint`` has of it. Sinks are given numbers that go on.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import CheckpointError, KrishivError, failure_text, shown
from krishiv_py.plan.durations import UNSET
from krishiv_py.runtime.checkpoint.sparklog import PROCESS_STATE, numbered
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT
from krishiv_py.storage.checksums import missing, sealed, unsealed
from krishiv_py.storage.files import read_at, store_at, write_at

Target: TypeAlias = Literal["spark", "in-process"]
STATE: Final = "krishiv/savepoint"
_NOTE: Final = "krishiv/begun.json"
_MOVED: Final = "krishiv/moved.json"
_MOVING: Final = "krishiv/moving.json"
_PLAN: Final = "krishiv/plan.json"


@attrs.frozen
class Begun:
    """The past of a checkpoint, before the first micro-batch of a checkpoint.

    Attributes
    ----------
    batches : int
        How many batches were published.
    watermark_us : int
        The watermark that was in force, µs since the epoch.
    """

    batches: int = 0
    watermark_us: int = UNSET

    @property
    def elsewhere(self) -> bool:
        """Return whether the query began in another checkpoint."""
        return self.batches > 0

    @classmethod
    def of(cls, checkpoint: str) -> Begun:
        """Return the note of a checkpoint.

        Raises
        ------
        CheckpointError
            When it is damaged, or missing while the state that it tells of is there.
        """
        path = f"{checkpoint}/{_NOTE}"
        data = read_at(path)
        if data is not None:
            return cls(**json.loads(unsealed(data, path, NEW_CHECKPOINT)))
        store, root = store_at(checkpoint)
        if store.entries(f"{root}/{STATE}"):
            raise missing(path, NEW_CHECKPOINT)
        return cls()

    def write(self, checkpoint: str) -> None:
        """Write the note."""
        write_at(f"{checkpoint}/{_NOTE}", sealed(json.dumps(attrs.asdict(self)).encode()), durable=True)


def forget_state(checkpoint: str) -> None:
    """Remove what the first micro-batch has taken over."""
    store, root = store_at(checkpoint)
    if numbered(store, f"{root}/commits") and store.exists(f"{root}/{STATE}"):
        store.delete_folder(f"{root}/{STATE}")


def begin_move(checkpoint: str) -> None:
    """Note in a folder that a checkpoint is being made there: what is not finished is not a checkpoint."""
    write_at(f"{checkpoint}/{_MOVING}", sealed(b"{}"), durable=True)


def note_moved(checkpoint: str, to: str) -> None:
    """Note in a checkpoint that its query goes on from another one, once that has its plan note."""
    write_at(f"{checkpoint}/{_MOVED}", sealed(json.dumps({"to": to}).encode()), durable=True)


def end_move(checkpoint: str) -> None:
    """Note that the checkpoint is made."""
    store, path = store_at(f"{checkpoint}/{_MOVING}")
    store.delete(path)


def moved_to(checkpoint: str) -> str | None:
    """Return where the query of a checkpoint goes on; None where it goes on here, as after a move that was broken off."""
    path = f"{checkpoint}/{_MOVED}"
    data = read_at(path)
    if data is None:
        return None
    to = str(json.loads(unsealed(data, path, f"remove {path}"))["to"])
    return to if is_there(to, _PLAN) else None


def is_being_made(checkpoint: str) -> bool:
    """Return whether a move into a folder was broken off."""
    return is_there(checkpoint, _MOVING) and not is_there(checkpoint, _PLAN)


def check_goes_on(checkpoint: str) -> None:
    """See that a query can go on from a checkpoint: it was not moved to another one, and a move to it was not broken off.

    Raises
    ------
    CheckpointError
        When it was; says what to do.
    """
    to = moved_to(checkpoint)
    if to is not None:
        then = "from both, its outputs would be written twice"
        hint = f"start it with checkpoint={to!r}; to go back to the state before the move, remove {to}"
        raise CheckpointError(f"the query of {checkpoint} was moved", got=f"it goes on from {to}", then=then, hint=hint)
    if is_being_made(checkpoint):
        raise CheckpointError(
            f"the move to {checkpoint} was broken off",
            got="a checkpoint that is not finished",
            then="a part of the state would be missing",
            hint="move the checkpoint that it is made of again; until then that one is as it was",
        )


def engine_of(checkpoint: str) -> Target | None:
    """Return the engine whose query a checkpoint is of; None before a query has begun from it.

    Raises
    ------
    CheckpointError
        When it cannot be looked at.
    """
    if is_there(checkpoint, f"krishiv/{PROCESS_STATE}"):
        return "in-process"
    with looking_at(checkpoint):
        store, root = store_at(checkpoint)  # a start that was refused leaves an empty folder of state
        begun = any(is_there(checkpoint, name) for name in ("metadata", _NOTE)) or store.entries(f"{root}/state")
    return "spark" if begun else None


@contextlib.contextmanager
def looking_at(checkpoint: str) -> Iterator[None]:
    """Raise errors of the file system as ours.

    Raises
    ------
    CheckpointError
        When the folder cannot be looked at.
    """
    try:
        yield
    except KrishivError:
        raise
    except (OSError, ValueError, pa.ArrowException) as problem:
        raise CheckpointError(
            f"the folder {shown(checkpoint)} cannot be looked at",
            got=failure_text(problem),
            then="it is not known whether a query or savepoint is there",
            hint="pass the folder of a checkpoint or savepoint, from a machine that reaches it",
        ) from problem


def check_engine(checkpoint: str, here: Target) -> None:
    """See that no query of another engine than the one `here` began from a checkpoint.

    Raises
    ------
    CheckpointError
        When one did.
    """
    if engine_of(checkpoint) in (None, here):
        return
    if here == "spark":
        owner, got, then = "that runs in process", "a session on Spark", "its state is not in Spark's state store"
        way, own = "on Spark", "Session.in_process()"
    else:
        owner, got, then = "on Spark", "Session.in_process()", "its state is in Spark's state store"
        way, own = "in process", "Session.embedded()"
    hint = f"let it go on {way}: `krishiv move {checkpoint} --to {here}`; or start it with {own}"
    raise CheckpointError(f"the checkpoint {checkpoint} belongs to a query {owner}", got=got, then=then, hint=hint)


def is_there(folder: str, name: str) -> bool:
    """Return whether a folder has a file.

    Raises
    ------
    CheckpointError
        As :func:`looking_at`.
    """
    with looking_at(folder):
        store, path = store_at(f"{folder}/{name}")
        return store.exists(path)
