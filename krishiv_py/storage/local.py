"""Files of this machine, and of disks that are mounted on it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterable
from typing import ClassVar, Final

import attrs
import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.storage import folders
from krishiv_py.storage.store import Store

_WRITTEN: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


@attrs.frozen
class Disk(Store):
    """The file system of this machine."""

    arrow: pafs.FileSystem = attrs.field(factory=pafs.LocalFileSystem)
    home: str = "file:"
    local: ClassVar[bool] = True

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
        return folders.try_lock(path)

    def make_folder(self, path: str) -> None:
        """See Store."""
        folders.private_folder(path)

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """See Store; every micro-batch writes such files, so this takes no way around."""
        folder, part = os.path.dirname(path), f"{path}.tmp"
        try:
            opened = os.open(part, _WRITTEN, 0o666)
        except FileNotFoundError:
            self.make_folder(folder)
            opened = os.open(part, _WRITTEN, 0o666)
        try:
            done = 0
            while done < len(data):
                done += os.write(opened, memoryview(data)[done:])
            if durable:
                os.fsync(opened)
        finally:
            os.close(opened)
        os.replace(part, path)
        if durable:
            folders.sync(folder)

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
            folders.sync(path)

    def create(self, path: str, pieces: Iterable[bytes], *, durable: bool, mtime_s: int) -> None:
        """See Store."""
        folder = os.path.dirname(path)
        hidden = f"{folder}/_next.tmp"
        with contextlib.suppress(FileNotFoundError):  # of a process that died
            os.unlink(hidden)
        folders.create(hidden, pieces, durable=durable, mtime_s=mtime_s)
        os.rename(hidden, path)
        if durable:
            folders.sync(folder)


DISK = Disk()
"""The only one."""
