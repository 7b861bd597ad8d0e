"""Files that get their final names, and files and folders that go, on any file system; on Google's store some at once."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import pyarrow.fs as pafs

from krishiv_py.disk.stores import google
from krishiv_py.disk.stores.kinds import is_google

_AT_ONCE: Final = 8
"""Requests to a store, each of which is mostly waited for."""
T = TypeVar("T")


def add_folder(system: pafs.FileSystem, path: str) -> None:
    """Make a folder for files of the user's, and those above it, where there are folders."""
    if is_google(system):
        google.add_folder(path)
    else:
        system.create_dir(path, recursive=True)


def move_files(system: pafs.FileSystem, moves: Sequence[tuple[str, str]]) -> None:
    """Give files other names, in their order, or on Google's store some at once."""
    if is_google(system):
        _each(lambda move: google.rename(*move), moves)
        return
    for source, target in moves:
        system.move(source, target)


def move_away(system: pafs.FileSystem, source: str, target: str) -> None:
    """Move a file of the user's, on this machine also to another disk: then the target is there whole or not at all."""
    if not isinstance(system, pafs.LocalFileSystem):
        move_files(system, [(source, target)])
        return
    try:
        os.rename(source, target)
    except OSError as problem:
        if problem.errno != errno.EXDEV:
            raise
        shutil.copy2(source, f"{target}.tmp")
        os.rename(f"{target}.tmp", target)
        os.unlink(source)


def delete_folder(system: pafs.FileSystem, path: str) -> None:
    """Remove a folder and what is in it, if it is there."""
    if not is_google(system):
        if system.get_file_info(path).type != pafs.FileType.NotFound:
            system.delete_dir(path)
        return
    found = system.get_file_info(pafs.FileSelector(path, allow_not_found=True, recursive=True))
    delete_files(system, [each.path for each in found if each.is_file])
    with contextlib.suppress(OSError):  # an empty object that stands for the folder, if there is one
        system.delete_dir(path)


def delete_files(system: pafs.FileSystem, paths: Sequence[str]) -> None:
    """Remove files; one that is gone already is passed over."""
    if is_google(system):
        _each(lambda path: _delete(system, path), paths)
        return
    for path in paths:
        _delete(system, path)


def _delete(system: pafs.FileSystem, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        system.delete_file(path)


def _each(call: Callable[[T], None], values: Sequence[T]) -> None:
    """Call it for each value, some at once; the first error is raised when all that began are done."""
    if values:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(call, values))
