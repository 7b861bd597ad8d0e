"""The common part of object stores: files are visible whole when they are closed, folders need not exist, a rename copies."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Final, TypeVar

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError
from krishiv_py.storage.store import Store, WriteRows

_AT_ONCE: Final = 8
"""Requests at once, each of which is mostly waited for."""
T = TypeVar("T")


def bucket_and_key(path: str) -> tuple[str, str]:
    """Split a path as Arrow writes it, ``bucket/folder/file``, into the bucket and the key in it."""
    bucket, _, key = path.partition("/")
    return bucket, key


def in_bucket(example: str, scheme: str, host: str, path: str) -> str:
    """Return a path in a bucket as Hadoop reads it.

    Raises
    ------
    PlanError
        For a path without a bucket, or with credentials; `example` is one that has a bucket.
    """
    if "@" in host:
        then = "paths are written into notes, names and errors"
        hint = 'write them into Session.builder().storage_options({"AWS_ACCESS_KEY_ID": ...}), and the path without them'
        raise PlanError("a path holds credentials", got=f"{scheme}://[redacted]@…", then=then, hint=hint)
    if not host:
        raise PlanError("a path names no bucket", got=f"{scheme}:///{path}", hint=f"write {example}")
    return f"{host}{posixpath.normpath(f'/{path}')}".rstrip("/")


@attrs.frozen
class BucketStore(Store):
    """Files of an object store."""

    needs_folders: ClassVar[bool] = False

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """See Store."""
        self.put(path, data)

    def stage(self, root: str, final: str, hidden: str, write: WriteRows) -> str | None:
        """See Store; what is closed is visible, also when `write` fails half way, so it is written in memory first."""
        self.put(hidden, written(write))
        return None


@attrs.frozen
class CopyingBucket(BucketStore):
    """An object store that copies objects without moving bytes: files are renamed by copies, some at once."""

    copies_to_rename: ClassVar[bool] = True

    def rename(self, moves: Sequence[tuple[str, str]]) -> None:
        """See Store; some at once, in any order."""
        each(lambda move: self.rename_one(*move), moves)

    def rename_one(self, source: str, target: str) -> None:
        """Give an object another name, without its bytes leaving the store; `target` must be nobody else's name."""
        raise NotImplementedError

    def add_folder(self, path: str) -> None:
        """See Store; an empty object represents the folder, as Hadoop's connectors and Arrow have it.

        Arrow's own way looks at the bucket, for which one may have no right, and would make one that does not exist.
        """
        if "/" in path:
            self.write_if(f"{path}/", b"", None)

    def delete(self, *paths: str) -> None:
        """See Store; some at once."""
        each(self.delete_one, paths)

    def delete_folder(self, path: str) -> None:
        """See Store."""
        self.delete(*(entry.path for entry in self.entries(path, recursive=True) if entry.is_file))
        with contextlib.suppress(OSError):  # an empty object that represents the folder, if there is one
            self.arrow.delete_dir(path)


def written(write: WriteRows) -> pa.Buffer:
    """Return the bytes that `write` writes."""
    held = pa.BufferOutputStream()
    write(held)
    return held.getvalue()


def each(call: Callable[[T], None], values: Sequence[T]) -> None:
    """Call it for each value, some at once; the first error is raised when all that began are done."""
    if len(values) < 2:
        list(map(call, values))
    else:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(call, values))
