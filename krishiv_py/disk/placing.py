"""Files that get their final names, and folders that go, on any file system: not every one has folders, or moves files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import pyarrow.fs as pafs

from krishiv_py.disk.google import rename
from krishiv_py.disk.stores import has_folders

_AT_ONCE: Final = 8
"""Requests to a store, each of which is mostly waited for."""
T = TypeVar("T")


def add_folder(system: pafs.FileSystem, path: str) -> None:
    """Make a folder, and those above it, where there are folders."""
    if has_folders(system):
        system.create_dir(path, recursive=True)


def move_files(system: pafs.FileSystem, moves: Sequence[tuple[str, str]]) -> None:
    """Give files other names, in their order, or on Google's store some at once."""
    if has_folders(system):
        for source, target in moves:
            system.move(source, target)
    else:
        _each(lambda move: rename(*move), moves)


def delete_folder(system: pafs.FileSystem, path: str) -> None:
    """Remove a folder and what is in it, if it is there."""
    if has_folders(system):
        if system.get_file_info(path).type != pafs.FileType.NotFound:
            system.delete_dir(path)
        return
    found = system.get_file_info(pafs.FileSelector(path, allow_not_found=True, recursive=True))
    _each(lambda file: _gone(system, file), [each.path for each in found if each.is_file])
    with contextlib.suppress(OSError):  # an empty object that stands for the folder, if Spark wrote one
        system.delete_dir(path)


def _gone(system: pafs.FileSystem, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        system.delete_file(path)


def _each(call: Callable[[T], None], values: Sequence[T]) -> None:
    """Call it for each value, some at once; the first error is raised when all that began are done."""
    if values:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(call, values))
