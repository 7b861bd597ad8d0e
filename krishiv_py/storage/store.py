"""One interface to files of any place: a disk, HDFS, a bucket. Each kind is one file with what is different there.

In buckets files are visible whole when they are closed, folders need not exist, and a rename copies.

How this process reaches what is not on its disk is said by Spark's own settings, forwarded to Arrow and to clients of stores
and HDFS. They belong to the process, as Hadoop's file systems do: the session notes them on the driver, and :class:`Stores`
takes them to the tasks. They are in no plan, note or repr.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import posixpath
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

import attrs
import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.errors import EnvironmentSetupError, OperatorError, PlanError, cut
from krishiv_py.failures.redaction import redacted
from krishiv_py.storage.checksums import missing, sealed
from krishiv_py.storage.notes import note_in, reading

NO_ANSWER: Final = "no store answers there"
REFUSES: Final = "the store refuses"
PASSING: Final = (NO_ANSWER, REFUSES)
"""The reasons for which a store is not reached that may pass: of the second kind are its own failures, too."""
_known: Final[dict[str, str]] = {}
connections: Final[list[Callable[[], None]]] = []
"""Functions that forget how stores are reached; each module that keeps connections adds its own."""
_noting: Final = threading.Lock()


@attrs.frozen(repr=False)
class Stores:
    """The settings for object stores of the process it is made in; takes them with it when it is pickled to a task."""

    settings: Mapping[str, str] = attrs.field(factory=lambda: dict(_known))

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (dict(self.settings),)

    def __repr__(self) -> str:
        return "Stores()"


def _arrived(settings: dict[str, str]) -> Stores:
    if settings:
        use(settings)
    return Stores(settings)


def use(settings: Mapping[str, str]) -> None:
    """Reach stores by these settings from now on: names of Hadoop's, ``fs.s3a.…`` and ``fs.gs.…``."""
    with _noting:
        if dict(settings) != _known:
            _known.clear()
            _known.update(settings)
            forget_connections()


def known_settings() -> dict[str, str]:
    """Return the settings in use."""
    return dict(_known)


def noted(*names: str) -> str | None:
    """Return a setting in use by its full name, of several the first that is there; None where there is none, or it is
    empty.
    """
    return next((_known[name] for name in names if name in _known), None) or None


def forget_connections() -> None:
    """Connect again when a store is reached the next time."""
    for forget in connections:
        forget()


os.register_at_fork(after_in_child=forget_connections)


Version: TypeAlias = str | bytes
"""A value that changes whenever a file is written; each store has its own form."""
WriteRows: TypeAlias = Callable[[pa.NativeFile], None]


@attrs.frozen
class Store:
    """Files of one place, over a file system of Arrow's. What is here holds where folders exist and a rename moves no bytes.

    Attributes
    ----------
    arrow : pyarrow.fs.FileSystem
        The file system that Arrow's readers and writers take.
    home : str
        What a URI of this store begins with: ``file:``, ``s3a://``, ``hdfs://host:port``.
    """

    arrow: pafs.FileSystem
    home: str

    local: ClassVar[bool] = False
    """True where paths are of this machine: they can be mapped into memory, linked, locked."""
    needs_folders: ClassVar[bool] = True
    """True where a folder must be there before a file is written into it."""
    copies_to_rename: ClassVar[bool] = False
    """True where a rename is a copy, which may be repeated: then a final name must not be used twice."""
    replaces_if: ClassVar[bool] = True
    """True where :meth:`write_if` replaces a file in one step, so that it can be used while others read the file."""

    def uri(self, path: str) -> str:
        """Return a path of this store as users and Spark write it."""
        return f"{self.home}{path}"

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file; None if it does not exist."""
        try:
            with self.arrow.open_input_stream(path) as stream:
                return bytes(stream.read())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, path: str) -> pa.NativeFile:
        """Open a file to read any part of it."""
        return self.arrow.open_input_file(path)

    def map(self, path: str) -> pa.NativeFile:
        """Open a file that nobody changes or cuts; on this machine it is mapped into memory and not copied."""
        return self.open(path)

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder."""
        return bool(self.arrow.get_file_info(path).type != pafs.FileType.NotFound)

    def is_file(self, path: str) -> bool:
        """Return whether there is a file."""
        return bool(self.arrow.get_file_info(path).is_file)

    def facts(self, path: str) -> tuple[int, int] | None:
        """Return the size of a file and its modification time in ns; None if it does not exist."""
        info = self.arrow.get_file_info(path)
        return (info.size, info.mtime_ns or 0) if info.is_file else None

    def entries(self, folder: str, *, recursive: bool = False) -> list[pafs.FileInfo]:
        """List what is in a folder; nothing if it does not exist."""
        selected = pafs.FileSelector(folder, allow_not_found=True, recursive=recursive)
        return list(self.arrow.get_file_info(selected))

    def put(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write a small file. A crash may leave a part of it, except where files become visible whole."""
        with self.arrow.open_output_stream(path) as stream:
            stream.write(data)

    def write(self, path: str, data: bytes, *, durable: bool = False) -> None:
        """Write a file, or replace it, whole or not at all; its folder is made if need be.

        With `durable` it survives a loss of power once this has returned (HDFS and object stores always do that).
        """
        folder, part = path.rpartition("/")[0], f"{path}.tmp"
        self.make_folder(folder)
        self.put(part, data)
        if durable:
            self.sync(part)
        self.arrow.move(part, path)
        if durable:
            self.sync(folder)

    def write_note(self, path: str, value: Any, *, durable: bool = False) -> None:
        """Write a note as :meth:`write` does: JSON with a checksum."""
        self.write(path, sealed(json.dumps(value).encode()), durable=durable)

    def read_note(self, path: str, shape: type[T], way_out: str, *, needed: bool = False) -> T | None:
        """Return what a note says; None if it does not exist.

        Raises
        ------
        CheckpointError
            When it is damaged or of another `shape`, or missing though it is `needed`; names it, and the `way_out`.
        """
        with reading(path, way_out):
            data = self.read(path)
        if data is None and needed:
            raise missing(path, way_out)
        return None if data is None else note_in(data, shape, path, way_out)

    def write_over(self, old: str | None, path: str, data: bytes, *, durable: bool = False) -> None:
        """Write a file as :meth:`write` does, in the place of an `old` one that nobody needs: that is gone afterwards."""
        self.write(path, data, durable=durable)
        if old is not None:
            self.delete_one(old)

    def version(self, path: str) -> Version | None:
        """Return the version of a file; None if it does not exist, or the store has none."""
        return None

    def write_if(self, path: str, data: bytes, version: Version | None) -> Version | None:
        """Write a file in place of the one with this version, or of none. Gives its new version; None if another one is there.

        Raises
        ------
        NotImplementedError
            Where the store knows no such writes.
        OSError
            When the store does not answer.
        """
        raise NotImplementedError

    def try_lock(self, path: str) -> int | None:
        """Take the lock of a file. Gives the descriptor that holds it; None while another process holds it.

        Raises
        ------
        OSError
            Where there are no locks.
        """
        raise OSError(errno.ENOTSUP, "there are no locks", path)

    def make_folder(self, path: str) -> None:
        """Make a folder of the library's own, and those above it; on this machine for this user alone."""
        self.add_folder(path)

    def add_folder(self, path: str, *, above: bool = True) -> None:
        """Make a folder for files of the user's, and those `above` it, which have to be there otherwise."""
        self.arrow.create_dir(path, recursive=above)

    def rename(self, moves: Sequence[tuple[str, str]]) -> None:
        """Give files other names, in this order."""
        for source, target in moves:
            self.arrow.move(source, target)

    def move_away(self, source: str, target: str) -> None:
        """Move a file of the user's to another folder."""
        self.rename([(source, target)])

    def delete(self, *paths: str) -> None:
        """Remove files; one that does not exist is passed over."""
        for path in paths:
            self.delete_one(path)

    def delete_one(self, path: str) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.arrow.delete_file(path)

    def delete_folder(self, path: str) -> None:
        """Remove a folder and what is in it, if it exists."""
        if self.exists(path):
            self.arrow.delete_dir(path)

    def sync(self, *paths: str) -> None:
        """Let files, or the names in folders, survive a loss of power."""

    def create(self, path: str, pieces: Iterable[bytes], *, durable: bool, mtime_s: int) -> None:
        """Write a new file whole or not at all, on this machine with a modification time."""
        self.write(path, b"".join(pieces), durable=durable)

    def stage(self, root: str, final: str, hidden: str, write: WriteRows) -> str | None:
        """Write a file that no reader of the folder `root` sees until it is published.

        Parameters
        ----------
        root : str
            The folder of the output.
        final : str
            The name the file will have there.
        hidden : str
            The path where it may wait.
        write : callable
            Writes its bytes.

        Returns
        -------
        str or None
            What :meth:`publish` needs to make it visible; None where it waits at `hidden`, to be renamed.
        """
        with self.arrow.open_output_stream(hidden) as stream:
            write(stream)
        return None

    def publish(self, root: str, staged: str) -> None:
        """Make a file visible that :meth:`stage` has a text for."""
        raise NotImplementedError

    def give_up(self, root: str, stem: str, kept: Sequence[str]) -> int:
        """Give up files that other attempts have staged for a folder, without those that are `kept`.

        Gives how many of those that are `kept` were given up by another process; then nothing else is.
        """
        return 0


Open: TypeAlias = Callable[[str, str, str], tuple[Store, str]]
"""Makes a store and a path in it of scheme, host and path of a URI."""


@attrs.frozen
class StoreKind:
    """A kind of store.

    Attributes
    ----------
    schemes : tuple of str
        Schemes of its paths as Spark writes them.
    others : tuple of str
        Schemes that Spark does not know.
    named : str
        What it is called in errors.
    open : callable
        Makes a store.
    check : callable
        Sees that a place answers: its path, and whether files are to be written there.
    is_setting : callable
        Whether a setting of Hadoop's says how it is reached.
    by_path : bool
        Whether each path is checked; otherwise one of each host.
    """

    schemes: tuple[str, ...]
    others: tuple[str, ...]
    named: str
    open: Open
    check: Callable[[str, bool], None]
    is_setting: Callable[[str], bool]
    by_path: bool = False


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
        """Give an object another name, without its bytes leaving the store; `target` must be nobody else's name.

        Raises
        ------
        OperatorError
            When it is gone, or the store refuses.
        """
        with failing("a file cannot be published", target):
            try:
                self.copy_one(source, target)
            except FileNotFoundError:
                if self.version(target) is None:
                    raise
                return  # by a request whose answer was lost
            self.delete_one(source)

    def copy_one(self, source: str, target: str) -> None:
        """Copy an object in the store; one that is at `target` is of a request whose answer was lost."""
        raise NotImplementedError

    def add_folder(self, path: str, *, above: bool = True) -> None:
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


def first_line(problem: BaseException) -> str:
    """Return what a client of a store says, as one line without secrets."""
    return redacted(cut((str(problem).splitlines() or [type(problem).__name__])[0], 300))


@contextlib.contextmanager
def as_os_errors() -> Iterator[None]:
    """Raise what a client of a store raises as an OSError: such clients have many kinds of errors."""
    try:
        yield
    except ImportError:
        raise
    except OSError as problem:
        raise type(problem)(first_line(problem)) from problem
    except Exception as problem:
        raise OSError(first_line(problem)) from problem


@contextlib.contextmanager
def failing(what: str, path: str) -> Iterator[None]:
    """Raise what a client of a store raises as an OperatorError."""
    try:
        yield
    except Exception as problem:
        hint = "see what the store says; start the query again: the batch is written again"
        got = f"{path}: {first_line(problem)}"
        raise OperatorError(what, got=got, then="the batch is not published", hint=hint) from problem


def has_sign(text: str, sign: str) -> bool:
    """Return whether the text of an error has a sign, such as ``403``, as a word: a duration has digits, too.

    Examples
    --------
    >>> has_sign("status 403", "403"), has_sign("GET in 101.84031ms", "403"), has_sign("NoSuchBucketError", "NoSuchBucket")
    (True, False, True)
    """
    return re.search(rf"\b{sign}\b", text) is not None if sign.isdigit() else sign in text


def not_reached(path: str, why: str, got: str, place: str, variable: str, settings: str) -> EnvironmentSetupError:
    """Return the error for a `place`, such as a bucket, that does not answer; names an option and the settings of Spark."""
    hint = (
        f'see to the {place}, and to Session.builder().storage_options({{"{variable}": ...}}) or Spark\'s settings '
        f"spark.hadoop.{settings}…"
    )
    return EnvironmentSetupError(f"{path} cannot be reached: {why}", got=got, hint=hint, transient=why in PASSING)


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
