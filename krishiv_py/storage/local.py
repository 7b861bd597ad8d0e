"""Files of this machine: a store, private and temporary folders, and files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs
import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.errors import PlanError
from krishiv_py.storage.ending import last
from krishiv_py.storage.store import Store

_PRIVATE: Final = 0o700
_ONE_SLASH: Final = re.compile("([A-Za-z][A-Za-z0-9+.-]+):/")
_NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_LOCKS: Final = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


def private_folder(path: str | Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone; one that is there stays as it is."""
    if not os.path.isdir(path):
        above = Path(path).parent
        if not above.exists():
            private_folder(above)
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.mkdir(path, _PRIVATE)


def not_mounted(path: str, problem: BaseException) -> bool:
    """Return whether a place on this machine cannot be reached as a folder above it is missing, which a mount may bring."""
    if "://" in path and not path.startswith("file:"):
        return False
    if isinstance(problem, FileNotFoundError):
        return True
    if getattr(problem, "errno", None) not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return False
    try:
        Path(path.removeprefix("file:")).parent.stat()
    except OSError as above:  # a folder that may not be looked into is there
        return isinstance(above, FileNotFoundError)
    return False


def sync(path: str) -> None:
    """Let a file, or the names in a folder, survive a loss of power."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def create(path: str, pieces: Iterable[Any], *, durable: bool, mtime_s: int | None = None) -> None:
    """Write a new file, or none when that fails; FileExistsError if there is one.

    `durable` says whether it must survive a loss of power."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(opened, "wb") as out:
            for piece in pieces:
                out.write(piece)
            out.flush()
            if mtime_s is not None:
                os.utime(opened, (mtime_s, mtime_s))
            if durable:
                os.fsync(opened)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)  # on a full disk a part of it is all that there is
        raise


def take_name(hidden: str, final: str) -> bool:
    """Give a file its `final` name, which it may not take from another; False if that name is taken."""
    try:
        os.link(hidden, final)
    except FileExistsError:
        return False
    except OSError as problem:
        if problem.errno not in _NO_LINKS:
            raise
        if os.path.exists(final):
            return False
        os.rename(hidden, final)
        return True
    os.unlink(hidden)
    return True


@contextlib.contextmanager
def locked(path: str, *, is_made: bool = True) -> Iterator[int]:
    """Hold the lock file at `path`, which `is_made` where it is missing; yields its descriptor.

    It waits for the lock. A process that dies lets go by itself.
    """
    opened = os.open(path, os.O_RDWR | (os.O_CREAT if is_made else 0) | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
        except OSError as problem:
            if problem.errno not in _NO_LOCKS:  # names are still taken by one only, see take_name()
                raise
        yield opened
    finally:
        os.close(opened)


def has_locks(opened: int) -> bool:
    """Return whether the file system of an open file knows locks."""
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
    except OSError as problem:
        if problem.errno not in _NO_LOCKS:
            raise
        return False
    return True


def try_lock(path: str) -> int | None:
    """Lock the file at `path`, and return the descriptor that holds it; None while another holds it.

    Raises
    ------
    OSError
        Where the file system knows no locks.
    """
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        return None
    except OSError:
        os.close(opened)
        raise
    return opened


def unlock(opened: int) -> None:
    """Let go of what :func:`try_lock` holds, also if a child that was just forked has its descriptor still."""
    fcntl.flock(opened, fcntl.LOCK_UN)
    os.close(opened)


def absolute(path: str) -> str:
    """Return a path that means the same to processes in other folders; one with a scheme, as ``s3a://``, stays as it is.

    Raises
    ------
    PlanError
        For a scheme with one slash.
    """
    if "://" in path or path.startswith("file:"):
        return path
    return os.path.join(os.getcwd(), of_this_machine(path))


def of_this_machine(path: str) -> str:
    """Return a path without ``://``.

    Raises
    ------
    PlanError
        For a scheme with one slash, which Hadoop takes: here it would be a folder of this machine, ``./dbfs:/``.
    """
    match = _ONE_SLASH.match(path)
    if match is None or match[1].lower() == "file":
        return path
    scheme, rest = match[1].lower(), path[match.end() :]
    hint = f"write {scheme}://host/{rest}; a folder of this machine with that name is ./{path}"
    if scheme == "dbfs":
        hint = f"write /dbfs/{rest}, where Databricks mounts it, or a path of a volume: /Volumes/catalog/schema/volume/{rest}"
    elif scheme in ("s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss"):
        hint = f"write {scheme}://{rest}; a folder of this machine with that name is ./{path}"
    raise PlanError("a path has one slash after its scheme", got=path, hint=hint)


_WRITTEN: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


def _reopened(old: str, path: str) -> int | None:
    """Give a file another name and open it to be written again; None if there is no such file, or if it has a second name."""
    try:
        os.rename(old, path)
    except FileNotFoundError:
        return None
    opened = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    if os.fstat(opened).st_nlink == 1:
        return opened
    os.close(opened)  # a copy of the folder by hard links keeps what it holds
    os.unlink(path)
    return None


@attrs.frozen
class Disk(Store):
    """The file system of this machine."""

    arrow: pafs.FileSystem = attrs.field(factory=pafs.LocalFileSystem)
    home: str = "file:"
    local: ClassVar[bool] = True

    def read(self, path: str) -> bytes | None:
        """See Store; a stream of Arrow has the bytes twice for a moment."""
        try:
            return Path(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def map(self, path: str) -> pa.NativeFile:
        """See Store."""
        return pa.memory_map(path)

    def facts(self, path: str) -> tuple[int, int] | None:
        """See Store; Arrow's times would end in the year 2262."""
        try:
            facts = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return (facts.st_size, facts.st_mtime_ns) if stat.S_ISREG(facts.st_mode) else None

    def try_lock(self, path: str) -> int | None:
        """See Store."""
        return try_lock(path)

    def make_folder(self, path: str) -> None:
        """See Store."""
        private_folder(path)

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """See Store; every micro-batch writes such files, so this takes no way around."""
        self.write_over(None, path, data, durable=durable)

    def write_over(self, old: str | None, path: str, data: bytes, *, durable: bool = False) -> None:
        """See Store; the `old` file is written again under the new name.

        A log that makes a file and removes one with each batch is slow on ext4: it leaves the places of files that were removed
        in the last minutes alone, and looks at all of them for each new file.
        """
        folder, part = os.path.dirname(path), f"{path}.tmp"
        opened = None if old is None else _reopened(old, part)
        if opened is None:
            try:
                opened = os.open(part, _WRITTEN, 0o666)
            except FileNotFoundError:
                self.make_folder(folder)
                opened = os.open(part, _WRITTEN, 0o666)
        try:
            done = 0
            while done < len(data):
                done += os.write(opened, memoryview(data)[done:])
            if old is not None:
                os.ftruncate(opened, len(data))
            if durable:
                os.fsync(opened)
        finally:
            os.close(opened)
        os.replace(part, path)
        if durable:
            sync(folder)

    def delete_one(self, path: str) -> None:
        """See Store."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def move_away(self, source: str, target: str) -> None:
        """See Store; also to another disk, where the target is there whole or not at all."""
        try:
            os.rename(source, target)
        except OSError as problem:
            if problem.errno != errno.EXDEV:
                raise
            shutil.copy2(source, f"{target}.tmp")
            os.rename(f"{target}.tmp", target)
            os.unlink(source)

    def sync(self, *paths: str) -> None:
        """See Store."""
        for path in paths:
            sync(path)

    def create(self, path: str, pieces: Iterable[bytes], *, durable: bool, mtime_s: int) -> None:
        """See Store."""
        folder = os.path.dirname(path)
        hidden = f"{folder}/_next.tmp"
        with contextlib.suppress(FileNotFoundError):  # of a process that died
            os.unlink(hidden)
        create(hidden, pieces, durable=durable, mtime_s=mtime_s)
        os.rename(hidden, path)
        if durable:
            sync(folder)


DISK = Disk()
"""The only one."""


PREFIX: Final = "krishiv-"
_HALF: Final = ".krishiv-"
"""The name of a folder that has no lock yet begins so."""
_HALF_MADE_S: Final = 3_600
"""A folder that had none for so long has none to come: to make one takes no time."""
LOCK: Final = ".owner"
_MINE: Final[dict[int, str]] = {}
"""The folder of a process, by its number: a forked child has one of its own."""
_OF_JVM: Final[dict[int, str]] = {}
_MAKING: Final = threading.Lock()


def new_folder(name: str) -> str:
    """Return a new temporary folder called after `name`, for this user only.

    All lie in one folder, ``krishiv-…``, with a lock that ends with the process, however that ends. Whoever can take the lock
    of such a folder, and owns it, knows that its process is gone.
    """
    with _MAKING:
        mine = _MINE.get(os.getpid())
        if mine is None or not os.path.isdir(mine):  # something that tidies up temporary folders may have taken it
            remove_leftovers()
            mine = _MINE[os.getpid()] = _make()
    return tempfile.mkdtemp(prefix=f"{name}-", dir=mine)


def is_temporary(path: str) -> bool:
    """Return whether a path is in the temporary folders of this process, which go with it."""
    mine = _MINE.get(os.getpid())
    return mine is not None and os.path.abspath(path).startswith(f"{mine}/")


def spark_folder() -> str:
    """Return the folder of this process' JVM, which outlives its sessions."""
    folder = _OF_JVM.get(os.getpid())
    if folder is None or not os.path.isdir(folder):
        folder = _OF_JVM[os.getpid()] = new_folder("spark")
    return folder


def _make() -> str:
    half = tempfile.mkdtemp(prefix=_HALF)  # for nobody else: 0700
    lock = os.path.join(half, LOCK)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)  # stays open, and so locked, as long as the process lives
    fcntl.flock(handle, fcntl.LOCK_EX)
    root, name = os.path.split(half)
    folder = os.path.join(root, PREFIX + name.removeprefix(_HALF))
    os.rename(half, folder)  # never to be seen without its lock
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
        for entry in [e for e in os.scandir(root) if e.name.startswith((PREFIX, _HALF))]:
            if entry.name.startswith(PREFIX):
                _remove_if_left(entry.path)
            else:
                _remove_half_made(entry.path)


def _remove_half_made(folder: str) -> None:
    """Remove a folder whose process was killed before the folder had its lock."""
    with contextlib.suppress(OSError):
        old = os.lstat(folder).st_mtime < time.time() - _HALF_MADE_S
        if old and _private(folder, stat.S_ISDIR) and os.listdir(folder) in ([LOCK], []):
            shutil.rmtree(folder, ignore_errors=True)


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
