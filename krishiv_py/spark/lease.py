"""One query at a time on a checkpoint.

On this machine's file systems (and mounted ones) the operating system keeps the lock, on the folder itself, whatever it is
called, and lets go when a process dies. Object stores and HDFS have none: there a note names the owner, who renews it; one that
was not renewed for a while, or whose process on this host is gone, is over.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

import attrs
import pyarrow.fs as pafs

from krishiv_py.disk import try_lock, unlock
from krishiv_py.errors import CheckpointError, message
from krishiv_py.spark.files import file_system, make_folder, read_whole, write_whole

_RENEWED_S: Final = 30
_OVER_S: Final = 120
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
    """

    path: str
    running: Callable[[], bool] = lambda: True
    _opened: int | None = None
    _key: tuple[int, int] = (0, 0)
    _over: threading.Event = attrs.field(factory=threading.Event)
    _remote: Callable[[], None] | None = None

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
        if self._remote is not None:
            self._remote()

    def forget(self) -> None:
        """In a child that was forked: the parent still holds it."""
        if self._opened is not None:
            os.close(self._opened)
            self._opened = None
        self._over.set()


def take(checkpoint: str, query: str, lost: Callable[[], None] = lambda: None) -> Lease:
    """Take a checkpoint for a query; `lost` is called should another take it while this one does not answer.

    Raises
    ------
    CheckpointError
        While another query runs from it; names query, process and host.
    """
    system, root = file_system(checkpoint)
    folder = f"{root}/krishiv"
    make_folder(system, folder)
    if isinstance(system, pafs.LocalFileSystem):
        try:
            return _locked(checkpoint, f"{folder}/lock", query)
        except OSError:  # a mounted file system without locks
            pass
    return _noted(system, checkpoint, f"{folder}/lease.json", query, lost)


def _locked(checkpoint: str, path: str, query: str) -> Lease:
    with _holding:
        opened = try_lock(path)
        if opened is None:
            found = os.stat(path)
            mine = _held.get((found.st_dev, found.st_ino))
            if mine is not None and not mine.running():  # it has ended, and nobody has been told yet
                mine.release()
                opened = try_lock(path)
        if opened is None:
            raise _in_use(checkpoint, _owner(pafs.LocalFileSystem(), path))
        os.ftruncate(opened, 0)
        os.pwrite(opened, json.dumps(_me(query)).encode(), 0)
        found = os.fstat(opened)
        lease = Lease(path, opened=opened, key=(found.st_dev, found.st_ino))
        _held[(found.st_dev, found.st_ino)] = lease
        return lease


def _noted(system: pafs.FileSystem, checkpoint: str, path: str, query: str, lost: Callable[[], None]) -> Lease:
    found = _owner(system, path)
    if found and not _is_over(found):
        raise _in_use(checkpoint, found)
    mine = {**_me(query), "token": uuid.uuid4().hex}

    def renew() -> None:
        write_whole(system, path, json.dumps({**mine, "renewed": time.time()}).encode())

    def still_mine() -> bool:
        return bool(_owner(system, path).get("token") == mine["token"])

    def end() -> None:
        if still_mine():
            system.delete_file(path)

    renew()
    if not still_mine():  # two began at once: the later note stands
        raise _in_use(checkpoint, _owner(system, path))
    lease = Lease(path, remote=end)
    threading.Thread(target=_renewing, args=(lease, renew, still_mine, lost), name="krishiv-lease", daemon=True).start()
    return lease


def _renewing(lease: Lease, renew: Callable[[], None], still_mine: Callable[[], bool], lost: Callable[[], None]) -> None:
    while not lease._over.wait(_RENEWED_S):
        try:
            if not still_mine():
                lost()
                return
            renew()
        except OSError:
            continue  # it is over for others only after several misses


def _is_over(owner: dict[str, Any]) -> bool:
    if owner.get("host") == socket.gethostname():
        return _begun(int(owner.get("pid", 0))) != owner.get("begun")
    return time.time() - float(owner.get("renewed", 0)) > _OVER_S


def _me(query: str) -> dict[str, Any]:
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    return {"query": query, "host": socket.gethostname(), "pid": os.getpid(), "begun": _begun(os.getpid()), "since": since}


def _begun(pid: int) -> str | None:
    """When a process of this host began, which tells it from a later one of the same number; None if it is gone."""
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


def _owner(system: pafs.FileSystem, path: str) -> dict[str, Any]:
    try:
        found = json.loads(read_whole(system, path) or b"{}")
    except ValueError:  # cut by a crash, or just being written
        return {}
    return found if isinstance(found, dict) else {}


def _in_use(checkpoint: str, owner: dict[str, Any]) -> CheckpointError:
    by = (
        f"query {owner['query']!r} of process {owner['pid']} on {owner['host']}, since {owner['since']}"
        if {"query", "pid", "host", "since"} <= owner.keys()
        else "another query"
    )
    return CheckpointError(
        message(
            f"the checkpoint {checkpoint} is in use",
            by,
            "two queries would undo each other's state and outputs",
            "stop that query, or use another checkpoint",
        )
    )


def _forked() -> None:
    for lease in list(_held.values()):
        lease.forget()
    _held.clear()


os.register_at_fork(after_in_child=_forked)
