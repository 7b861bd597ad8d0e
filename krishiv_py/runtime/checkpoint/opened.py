"""A checkpoint that a query may run from: private, writable, and leased until the query has ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import attrs

from krishiv_py.errors import CheckpointError
from krishiv_py.runtime.checkpoint.begun import engine_of
from krishiv_py.runtime.checkpoint.lease import Lease
from krishiv_py.storage.files import store_at
from krishiv_py.storage.folders import private_folder


@attrs.frozen
class OpenedCheckpoint:
    """A checkpoint a query may run from.

    Attributes
    ----------
    checkpoint : str
        Its path, the same for every process.
    lease : Lease
        The right to it.
    durable : bool
        Whether what is written must survive a loss of power.
    kept : bool
        Whether it stays when the session ends.
    """

    checkpoint: str
    lease: Lease
    durable: bool
    kept: bool


@contextlib.contextmanager
def writable_checkpoint(checkpoint: str, *, running: bool = False) -> Iterator[None]:
    """Say of a checkpoint that cannot be made or written what to do, when a query starts or while it is `running`.

    Raises
    ------
    CheckpointError
        Instead of an ``OSError``.
    """
    try:
        yield
    except OSError as problem:
        raise CheckpointError(
            f"the checkpoint {checkpoint} cannot be written",
            got=problem.strerror or str(problem),
            then="" if running else "the query could not go on after a restart, so it was not started",
            hint="see to room and rights there, " + ("and start the query again" if running else "or use another folder"),
        ) from problem


def make_private(checkpoint: str, folders: Iterable[str] = ()) -> None:
    """Make the checkpoint, and `folders` in it, for this user alone."""
    store, root = store_at(checkpoint)
    if store.local:
        for folder in (root, *(f"{root}/{name}" for name in folders)):
            private_folder(folder)


def check_not_in_process(checkpoint: str) -> None:
    """See that no query of ``Session.in_process()`` began from a checkpoint that Spark is to use.

    Raises
    ------
    CheckpointError
        When one did.
    """
    if engine_of(checkpoint) == "in-process":
        raise CheckpointError(
            f"the checkpoint {checkpoint} belongs to a query that runs in process",
            got="a session on Spark",
            then="its state is not in Spark's state store",
            hint=f"let it go on on Spark: `krishiv move {checkpoint} --to spark`; or start it with Session.in_process()",
        )
