"""Temporary folders of a process: private, removed with it, and removed by a later one where it could not.

All lie in one folder, ``krishiv-…``, with a lock that ends with the process, however that ends. Whoever can take the lock of
such a folder, and owns it, knows that its process is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from krishiv_py.ending import heed, last

PREFIX: Final = "krishiv-"
LOCK: Final = ".owner"
_MINE: Final[dict[int, str]] = {}
"""The folder of a process, by its number: a forked child has one of its own."""
_OF_JVM: Final[dict[int, str]] = {}
_MAKING: Final = threading.Lock()


def new_folder(name: str) -> str:
    """Return a new temporary folder called after `name`, for this user only."""
    heed()
    with _MAKING:
        mine = _MINE.get(os.getpid())
        if mine is None or not os.path.isdir(mine):  # something that tidies up temporary folders may have taken it
            remove_leftovers()
            mine = _MINE[os.getpid()] = _make()
    return tempfile.mkdtemp(prefix=f"{name}-", dir=mine)


def spark_folder() -> str:
    """Return the folder of this process' JVM, which outlives its sessions."""
    folder = _OF_JVM.get(os.getpid())
    if folder is None or not os.path.isdir(folder):
        folder = _OF_JVM[os.getpid()] = new_folder("spark")
    return folder


def _make() -> str:
    folder = tempfile.mkdtemp(prefix=PREFIX)  # for nobody else: 0700
    half = os.path.join(folder, f"{LOCK}.tmp")
    handle = os.open(half, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)  # stays open, and so locked, as long as the process lives
    fcntl.flock(handle, fcntl.LOCK_EX)
    os.rename(half, os.path.join(folder, LOCK))  # never to be seen without its lock
    if not _MINE:
        last(remove_mine)
    return folder


def remove_mine() -> None:
    """Remove the temporary folders of this process."""
    mine = _MINE.pop(os.getpid(), None)
    if mine is not None:
        _remove(mine)


def remove_leftovers() -> None:
    """Remove the folders of processes that are gone: those of this user, with a lock that can be taken."""
    root = Path(tempfile.gettempdir())
    with contextlib.suppress(OSError):
        for leftover in [e.path for e in os.scandir(root) if e.name.startswith(PREFIX)]:
            _remove_if_left(leftover)


def _remove_if_left(folder: str) -> None:
    lock = os.path.join(folder, LOCK)
    try:
        if not (_private(folder, stat.S_ISDIR) and _private(lock, stat.S_ISREG)):
            return
        handle = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(folder)
    except OSError:
        return  # its process lives
    finally:
        os.close(handle)


def _private(path: str, kind: Callable[[int], bool]) -> bool:
    """Return whether it is this user's own, and of the kind it should be rather than a link to something."""
    status = os.lstat(path)
    return kind(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _remove(folder: str) -> None:
    """Remove it, its lock last: what is half removed can still be recognised as ours."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name != LOCK:
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)
        if os.listdir(folder) in ([LOCK], []):
            shutil.rmtree(folder, ignore_errors=True)
