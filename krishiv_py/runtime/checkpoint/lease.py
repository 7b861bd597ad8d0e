"""A checkpoint belongs to one query at a time, and is private and writable.

On this machine's file systems (and mounted ones) the operating system keeps the lock, on the folder itself, whatever it is
called, and lets go when a process dies. Object stores and HDFS have none: there a note names the owner, who renews it; one that
was not renewed for a while, or whose process on this host is gone, is over. S3, Google's store and HDFS write the note only if
it is still the one that was read: of two that begin at once one gets it. On stores without such writes the later one stays.

A lock file or note that vanishes, or is another's, while the query runs is noticed at the next micro-batch, before its outputs
are published, and when it should be renewed: the query ends with an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.errors import CheckpointError
from krishiv_py.storage.checksums import sealed, unsealed
from krishiv_py.storage.files import store_at
from krishiv_py.storage.local import DISK, not_mounted, private_folder, unlock
from krishiv_py.storage.store import Store, Version


def is_over(owner: dict[str, Any], over_s: float) -> bool:
    """Return whether an owner is gone: its process on this host; elsewhere one that has not renewed the note for `over_s` s."""
    if owner.get("host") == socket.gethostname():
        return _begun(int(owner.get("pid", 0))) != owner.get("begun")
    return time.time() - float(owner.get("renewed", 0)) > over_s


def me(query: str) -> dict[str, Any]:
    """Return what this process writes of itself and its `query`."""
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return {
        "query": query,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "begun": _begun(os.getpid()),
        "since": since,
        "token": uuid.uuid4().hex,
    }


def _begun(pid: int) -> str | None:
    """Return when a process of this host began, which tells it from a later one of the same number; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[19].decode()
    except FileNotFoundError:
        return None if os.path.isdir("/proc/self") else _alive(pid)


def _alive(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "?"


def parsed(data: bytes | None) -> dict[str, Any]:
    """Return what was written; nothing where it is not there, or not whole."""
    try:
        note = json.loads(data or b"{}")
    except ValueError:  # just being written
        return {}
    return note if isinstance(note, dict) else {}


def is_here(owner: dict[str, Any]) -> bool:
    """Return whether an owner is a query of this process."""
    return owner.get("host") == socket.gethostname() and owner.get("pid") == os.getpid()


def named(owner: dict[str, Any]) -> str:
    """Return an owner, for people."""
    if {"query", "pid", "host", "since"} <= owner.keys():
        here = ", which is this one" if is_here(owner) else ""
        return f"query {owner['query']!r} of process {owner['pid']} on {owner['host']}, since {owner['since']}{here}"
    return "another query"


_RENEWED_S: Final = 30
_OVER_S: Final = 120
_LOOK_S: Final = 1.0
"""For how long a look at the note is good: short micro-batches have one look at most."""
_AGAIN_S: Final = 1.0
"""After how long a missing note is looked for again: some stores replace a file by removing it first."""
_FAILED: Final = (OSError, pa.ArrowException)
"""The errors that Arrow raises when a store does not answer; where credentials cannot be renewed, it is not an OSError."""
_held: Final[dict[tuple[int, int], Lease]] = {}
_holding: Final = threading.RLock()


@attrs.define(eq=False)
class Lease:
    """The right to run from a checkpoint, until :meth:`release`.

    Attributes
    ----------
    path : str
        The lock file or note.
    running : callable
        Whether the query it was taken for still runs; set once that has begun.
    on_lost : callable
        Called with the error when the note is found to be lost between micro-batches; set with `running`.
    """

    path: str
    running: Callable[[], bool] = lambda: True
    on_lost: Callable[[CheckpointError], None] = lambda problem: None
    _opened: int | None = None
    _key: tuple[int, int] = (0, 0)
    _said: bytes = b""  # some file systems do not keep their numbers of files, which are the key
    _over: threading.Event = attrs.field(factory=threading.Event)
    _note: Note | None = None

    def check(self) -> None:
        """See that it still holds: at the begin of a micro-batch, and before its outputs are published.

        Raises
        ------
        CheckpointError
            When its lock file or note is gone, or another's: who goes on might undo what that one did.
        """
        if self._over.is_set():
            return
        if self._note is not None:
            self._note.check()
        elif not self._is_there():
            raise _lease_lost(self.path, "its lock file was removed or replaced")

    def _is_there(self) -> bool:
        with writable_checkpoint(self.path.rpartition("/krishiv/")[0], running=True):
            return _inode(self.path) == self._key or DISK.read(self.path) == self._said

    def release(self) -> None:
        """Let others run from the checkpoint; releasing twice is harmless."""
        with _holding:
            if self._over.is_set():
                return
            self._over.set()
            if self._opened is not None:
                _held.pop(self._key, None)
                unlock(self._opened)
                self._opened = None
        if self._note is not None:
            self._note.remove()

    def forget(self) -> None:
        """In a child that was forked: the parent still holds it."""
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None
        self._over.set()


def take(checkpoint: str, query: str, of: str = "") -> Lease:
    """Take a checkpoint for a query; `of` tells apart the rights of several processes to it.

    Raises
    ------
    CheckpointError
        While another query runs from it; names query, process and host.
    """
    store, root = store_at(checkpoint)
    folder = f"{root}/krishiv"
    store.make_folder(folder)
    try:
        return _locked(store, checkpoint, f"{folder}/{of}lock", query)
    except OSError:  # there are no locks
        pass
    return _noted(store, checkpoint, f"{folder}/{of}lease.json", query)


def _locked(store: Store, checkpoint: str, path: str, query: str) -> Lease:
    with _holding:
        opened = store.try_lock(path)
        if opened is None:
            mine = _held.get(_inode(path))
            if mine is not None and not mine.running():  # it has ended, and nobody knows yet
                mine.release()
                opened = store.try_lock(path)
        if opened is None:
            raise _in_use(checkpoint, parsed(DISK.read(path)))
        os.ftruncate(opened, 0)
        said = json.dumps(me(query)).encode()
        os.pwrite(opened, said, 0)
        own = os.fstat(opened)
        lease = Lease(path, opened=opened, key=(own.st_dev, own.st_ino), said=said)
        _held[(own.st_dev, own.st_ino)] = lease
        return lease


def _inode(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return (0, 0)
    return status.st_dev, status.st_ino


@attrs.define(eq=False)
class Note:
    """The note of an owner, where there are no locks."""

    store: Store
    path: str
    says: dict[str, Any]
    _seen: float = 0.0
    _version: Version | None = None
    """The version of the note as this owner wrote it, where it is renewed only in place of that one."""

    def begin(self, instead_of: Version | None) -> bool:
        """Write it for the first time, only in place of this version where the store can do that. False if another is there."""
        try:
            version = self.store.write_if(self.path, self._text(), instead_of)
        except NotImplementedError:
            self.renew()
            return True
        if version is None and self.is_mine():  # by a request whose answer was lost
            version = self.store.version(self.path)
        self._seen = time.monotonic()
        self._version = version if self.store.replaces_if else None
        return version is not None

    def renew(self) -> None:
        """Write it again.

        Raises
        ------
        CheckpointError
            When it is another owner's by now.
        """
        if self._version is None:
            self.store.write(self.path, self._text())
        else:
            version = self.store.write_if(self.path, self._text(), self._version)
            if version is None:  # it is another's, or it is ours by a request whose answer was lost
                again = self.store.version(self.path)
                self.look()
                version = self.store.write_if(self.path, self._text(), again)
            if version is None:
                raise _lease_lost(self.path, f"it is of {named(self.owner())}")
            self._version = version
        self._seen = time.monotonic()

    def _text(self) -> bytes:
        return sealed(json.dumps({**self.says, "renewed": time.time()}).encode())

    def owner(self) -> dict[str, Any]:
        """Return what it says now, whoever wrote it; nothing where there is none, or one cut by a crash: who wrote it
        finds out.
        """
        data = self.store.read(self.path)
        try:
            return {} if data is None else parsed(unsealed(data, self.path, ""))
        except CheckpointError:
            return {}

    def owner_again(self) -> dict[str, Any]:
        """Return the owner, looked for twice where there is none: the note may be gone for a moment while it is replaced."""
        owner = self.owner()
        if not owner:
            time.sleep(_AGAIN_S)
            owner = self.owner()
        return owner

    def is_mine(self) -> bool:
        """Return whether it is there, and this owner's."""
        return bool(self.owner_again().get("token") == self.says["token"])

    def check(self) -> None:
        """See :meth:`Lease.check`."""
        if time.monotonic() - self._seen >= _LOOK_S:
            self.look()

    def look(self) -> None:
        """The same, at any time. While a store does not answer, the note is as good as it is for others without renewal."""
        since = time.monotonic() - self._seen
        try:
            owner = self.owner_again()
        except _FAILED as problem:
            if since < _OVER_S:
                return
            raise _lease_lost(self.path, f"it could not be read for {since:.0f} s: {problem}") from problem
        if owner.get("token") != self.says["token"]:
            raise _lease_lost(self.path, f"it is of {named(owner)}" if owner else "it was removed or damaged")
        self._seen = time.monotonic()

    def remove(self) -> None:
        """Let others run, unless one does already."""
        if self.owner().get("token") == self.says["token"]:
            self.store.delete(self.path)


def _noted(store: Store, checkpoint: str, path: str, query: str) -> Lease:
    note = Note(store, path, me(query))
    version = store.version(path)  # before it is read: whatever is written after that is noticed
    owner = note.owner()
    if owner and not is_over(owner, _OVER_S):
        raise _in_use(checkpoint, owner)
    if not note.begin(version) or not note.is_mine():  # two began at once: the later note counts
        raise _in_use(checkpoint, note.owner())
    lease = Lease(path, note=note)
    threading.Thread(target=_renewing, args=(lease, note), name="krishiv-lease", daemon=True).start()
    return lease


def _renewing(lease: Lease, note: Note) -> None:
    while not lease._over.wait(_RENEWED_S):
        try:
            note.look()
            note.renew()
        except CheckpointError as problem:
            lease.on_lost(problem)
            return
        except _FAILED:
            continue  # it is over for others only after several misses


def _in_use(checkpoint: str, owner: dict[str, Any]) -> CheckpointError:
    then = "two queries would undo each other's state and outputs"
    hint = "stop that query, or use another checkpoint"
    if is_here(owner):
        stopped = f"[query.stop() for query in Session.all_queries() if query.name == {owner.get('query')!r}]"
        hint = f"stop that query: {stopped}; or use another checkpoint"
    what, passes = f"the checkpoint {checkpoint} is in use", not is_here(owner)  # who holds it elsewhere may be ending
    return CheckpointError(what, got=named(owner), then=then, hint=hint, transient=passes)


def _lease_lost(path: str, got: str) -> CheckpointError:
    then = "another query may run from it, and two would undo each other's state and outputs"
    hint = "see that one query runs from it, and start this one again; it goes on where the last finished micro-batch ended"
    return CheckpointError(f"the right to the checkpoint was lost: {path}", got=got, then=then, hint=hint, transient=True)


def _forked() -> None:
    for lease in list(_held.values()):
        lease.forget()
    _held.clear()


os.register_at_fork(after_in_child=_forked)


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
    """

    checkpoint: str
    lease: Lease
    durable: bool


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
        if running and isinstance(problem, FileNotFoundError):
            raise CheckpointError(
                f"the checkpoint {checkpoint} is gone",
                got=problem.strerror or str(problem),
                then="the query does not know what it has read and written",
                hint="put it back from a copy, or start with a new checkpoint and a new output folder",
                transient=True,
            ) from problem
        raise CheckpointError(
            f"the checkpoint {checkpoint} cannot be written",
            got=problem.strerror or str(problem),
            then="" if running else "the query could not go on after a restart, so it was not started",
            hint="see to room and rights there, " + ("and start the query again" if running else "or use another folder"),
            transient=True if not_mounted(checkpoint, problem) else None,
        ) from problem


def make_private(checkpoint: str, folders: Iterable[str] = ()) -> None:
    """Make the checkpoint, and `folders` in it, for this user alone."""
    store, root = store_at(checkpoint)
    if store.local:
        for folder in (root, *(f"{root}/{name}" for name in folders)):
            private_folder(folder)
