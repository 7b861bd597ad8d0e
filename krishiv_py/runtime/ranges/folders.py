"""A folder of files as a source: the driver lists files and plans them by time and name, tasks read what was planned.

A range notes the path, size and modification time of its files. So when a batch is repeated, a file that has gone or was
changed meanwhile is an error and not other rows.

Files that the library planned and Spark reads (CSV, options of Spark's): how they get to Spark's own file source.

Where a folder has the log of a file sink (``_spark_metadata``), Spark's file source takes the names of files from it and lists
nothing. So the folder of a range log has such a log, which the library writes: the files of the batches that were planned and
not taken yet. It is one compact entry, written as a whole, so it does not grow. The times in it only give the order of batches.

Spark's source writes the names of all files it has taken into its log (``sources/<n>/``), and all of them again every tenth
batch. It needs only those of the batch that may be repeated, so the others are struck out of a compact file.
"""

from __future__ import annotations

import itertools
import json
import os
import posixpath
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.connectors.ranges import NotedRanges, RangeSource
from krishiv_py.connectors.source import JsonValue, Malformed, Planned, Source
from krishiv_py.errors import CheckpointError, PlanError, SourceError
from krishiv_py.plan.nodes import FileSource
from krishiv_py.runtime.checkpoint.begun import warn_if_files_changed
from krishiv_py.runtime.checkpoint.moved import spark_uri
from krishiv_py.runtime.checkpoint.sparklog import as_line, strike_out
from krishiv_py.runtime.ranges.limit import Limit
from krishiv_py.runtime.ranges.taken import Taken
from krishiv_py.runtime.reading import FileReader, Scanned, gone, shown_path
from krishiv_py.runtime.storage.folders import new_folder
from krishiv_py.storage.files import is_local_path, store_at
from krishiv_py.storage.listing import PATTERN, File, facts_of, files_at
from krishiv_py.storage.store import Store

_LEAST_S: Final = 0.02
_LEAST_FAR_S: Final = 0.2
_MOST_S: Final = 5.0
_SHARE: Final = 10
"""A listing is repeated after so many times as long as it took."""
_PAR1: Final = b"PAR1"


@attrs.define(eq=False)
class _Driver:
    """Holds what the driver knows of the folder. It stays behind when a source is sent to a task."""

    taken: Taken | None = None
    pending: list[File] = attrs.field(factory=list)
    listed_s: float = 0.0
    no_more: bool = False
    limit: Limit | None = None
    """The bytes of files that a batch takes; None for all that are there."""

    def __reduce__(self) -> tuple[type[_Driver], tuple[()]]:
        return _Driver, ()


@attrs.frozen(eq=False)
class FolderSource(Source):
    """Files below a path; made of a :class:`~krishiv_py.plan.nodes.FileSource`.

    Attributes
    ----------
    files : FileSource
        Where they are and how they are read.
    reader : FileReader or None
        Reads one; None where Spark reads the files.
    parallelism : int
        How many tasks read the files of a batch.
    """

    files: FileSource
    reader: FileReader | None
    parallelism: int
    _driver: _Driver = attrs.field(factory=_Driver, repr=False)

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return self.files.schema

    @property
    def poll_seconds(self) -> float:  # type: ignore[override]
        """A listing that takes long is not repeated soon."""
        least = _LEAST_S if is_local_path(self.files.path) else _LEAST_FAR_S
        return min(max(least, _SHARE * self._driver.listed_s), _MOST_S)

    def plans(self, taken: Taken) -> None:
        """Plan from here on, without the files that were taken."""
        self._driver.taken, self._driver.pending, self._driver.no_more = taken, [], False

    def bounded_by(self, limit: Limit) -> None:
        """Let a batch take no more bytes of files than the limit, where no number of files is set."""
        self._driver.limit = limit

    def until_now(self) -> FolderSource:
        """Return the files that are there now."""
        self._list()
        self._driver.no_more = True
        return self

    def plan(self, last: JsonValue) -> Planned | None:
        """Plan the next files."""
        if not self.any_new():
            return None
        driver = self._driver
        assert driver.taken is not None
        most = self.files.max_files_per_batch or _upto(driver.pending, driver.limit)
        batch, driver.pending = driver.pending[:most], driver.pending[most:]
        driver.taken.add((file.real, file.mtime_ns) for file in batch)
        noted = [[file.path, file.size, file.mtime_ns, file.real] for file in batch]
        return Planned({"files": driver.taken.count}, _shares(noted, self.parallelism))

    def backlog(self, position: JsonValue) -> int | None:
        """Return the number of files that no batch has taken, as the folder was listed last."""
        taken = self._driver.taken
        counted = position.get("files") if isinstance(position, dict) else None
        if taken is None or not isinstance(counted, int):
            return None
        return max(taken.count - counted, 0) + len(self._driver.pending)  # names of files that were put away are forgotten

    def any_new(self) -> bool:
        """Return whether there are files that are not planned yet."""
        driver = self._driver
        if not driver.pending and not driver.no_more:
            self._list()
        return bool(driver.pending)

    def _list(self) -> None:
        driver, begun = self._driver, time.monotonic()
        assert driver.taken is not None
        driver.pending = files_at(self.files.path, literal=self.files.literal, known=driver.taken.known)
        if self.files.only is not None:
            driver.pending = [file for file in driver.pending if file.real in self.files.only]
        if not driver.pending and not self.files.bounded:
            self._check_there()
        driver.listed_s = time.monotonic() - begun

    def _check_there(self) -> None:
        """See that the folder of a stream is still there; a pattern may match nothing, and far stores keep no empty folders.

        Raises
        ------
        SourceError
            When it is gone, or another file has its name.
        """
        store, root = store_at(self.files.path)
        if store.local and (self.files.literal or not PATTERN.search(root)) and not os.path.isdir(root):
            raise SourceError(
                "the folder of a stream is gone",
                got=shown_path(self.files.path),
                then="no other file would ever come",
                hint="put it back and start the query again: it goes on where it was",
            )

    def done(self, files: Sequence[Sequence[Any]]) -> None:
        """Move or remove files whose batch is committed. One that has gone, or was replaced since, is passed over.

        Raises
        ------
        SourceError
            When that is not possible; names the file.
        """
        taken = self._driver.taken
        assert taken is not None
        for path, size, mtime_ns, real in files if self.files.after_read != "keep" else ():
            now = facts_of(path)
            if now is not None and (size is None or now == (size, mtime_ns)):
                self._put_away(path)
            taken.forget(real)  # what is there now, or comes there later, is another file

    def _put_away(self, path: str) -> None:
        store, where = store_at(path)
        try:
            if self.files.archive is None:
                store.delete(where)
                return
            root = store_at(self.files.path)[1].rstrip("/")
            below = where[len(root) + 1 :] if where.startswith(f"{root}/") else posixpath.basename(where)
            _, home = store_at(self.files.archive)
            target = _free(store, f"{home}/{below}")
            store.add_folder(posixpath.dirname(target))
            store.move_away(where, target)
        except FileNotFoundError:
            return
        except (OSError, pa.ArrowException) as problem:
            what, hint = (
                f"a file that was read cannot be {self.files.after_read}d",
                "let this user write to the folder and the archive",
            )
            raise SourceError(what, got=f"{shown_path(path)}: {problem}", hint=hint) from problem

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch | pa.Table | Malformed]:
        """Not used: what a file gives may be malformed as a whole; see :meth:`scanned`."""
        raise NotImplementedError

    def scanned(self, planned: Any, schema: pa.Schema) -> Iterator[Scanned]:
        """Yield the rows of the files of a range, each of which is as it was planned."""
        assert self.reader is not None
        reader = attrs.evolve(self.reader, schema=schema)
        for path, size, mtime_ns, _ in planned:
            check_as_planned(path, size, mtime_ns, parquet=self.files.format == "parquet")
            yield from reader.read_file(path)


def _free(store: Store, path: str) -> str:
    """Return a path at which there is nothing: a file of that name may have been archived before."""
    stem, end = posixpath.splitext(path)
    names = itertools.chain([path], (f"{stem}-{n}{end}" for n in itertools.count(1)))
    return next(name for name in names if not store.exists(name))


def _upto(files: Sequence[File], limit: Limit | None) -> int:
    """Return how many of the first files have together no more bytes than a batch may take: one at the least."""
    if limit is None:
        return len(files)
    sizes = list(itertools.takewhile(lambda size: size <= limit.nbytes, itertools.accumulate(file.size or 0 for file in files)))
    limit.took(0, sizes[-1] if sizes else limit.nbytes)
    return max(len(sizes), 1)


def _shares(noted: list[list[Any]], most: int) -> list[list[Any]]:
    """Files in at most so many runs of about equal size."""
    whole, shares, size = sum(file[1] for file in noted), [list[Any]()], 0
    for file in noted:
        if shares[-1] and size >= whole * len(shares) / most:
            shares.append([])
        shares[-1].append(file)
        size += file[1]
    return shares


def check_as_planned(path: str, size: int | None, mtime_ns: int | None, *, parquet: bool = False) -> None:
    """See that a file is as it was planned.

    Raises
    ------
    SourceError
        When it is not; names the file.
    """
    now = facts_of(path)
    if now is None:
        raise gone(shown_path(path))
    if now == (size, mtime_ns) or (size is None and now[0]):
        return
    if parquet and size is not None and now[0] > size and not _was_whole(path, size):
        return  # it was not finished when it was planned, so no row of it was read
    then = "its size is not noted" if size is None else f"{size} bytes, modified at {_seconds(mtime_ns)}"
    raise SourceError(
        "a file was changed after a batch had planned it",
        got=f"{shown_path(path)}: {then}; now {now[0]} bytes, modified at {_seconds(now[1])}",
        then="its rows would be others than those that were planned",
        hint="put it back as it was, with its modification time (cp -p, touch -d @...), or start with a new checkpoint; "
        "a file that is still written needs a hidden name until it is complete",
    )


def _seconds(mtime_ns: int | None) -> str:
    return "an unknown time" if mtime_ns is None else f"{mtime_ns // 10**9}.{mtime_ns % 10**9:09d} s"


def _was_whole(path: str, size: int) -> bool:
    store, where = store_at(path)
    with store.open(where) as file:
        file.seek(max(size - len(_PAR1), 0))
        return bool(file.read(len(_PAR1)) == _PAR1)


def as_folder(source: FileSource, reader: FileReader | None, parallelism: int) -> RangeSource:
    """Files as a source that plans ranges."""
    most = source.max_files_per_batch or parallelism
    folder = FolderSource(source, reader, min(parallelism, most))
    return RangeSource(source.detail(), folder, source.schema, False)


def files_in(noted: NotedRanges | Sequence[str]) -> list[list[Any]]:
    """Return the files of noted ranges."""
    ranges = noted.ranges if isinstance(noted, NotedRanges) else noted
    return [file for text in ranges for file in json.loads(text)]


def check_place(source: FileSource, names: Taken) -> None:
    """Refuse a folder that has, under the same names, files that were read in another folder; warn of files that were changed.

    Raises
    ------
    CheckpointError
        For the first of them.
    """
    if not is_local_path(source.path):
        return
    if source.after_read == "keep":
        warn_if_files_changed(names.loaded)
    names.loaded = []
    if not source.literal:
        return
    root = os.path.realpath(store_at(source.path)[1])
    folders = list(names.folders())
    if any(folder == root or folder.startswith(f"{root}/") for folder, _ in folders):
        return
    for folder, owner in folders:
        same = next((name for name in sorted(owner) if os.path.exists(f"{root}/{name}")), None)
        if same is not None:
            raise CheckpointError(
                f"files were read from {folder}, and are in {source.path} now",
                got=f"{same} in both",
                then="they would be read a second time",
                hint="give the source the folder it had, or start with a new checkpoint and output folder",
            )


_ENTRY: Final = "_spark_metadata/0.compact"
_FIRST_MS: Final = 1_000_000_000_000
_BATCH_MS: Final = 1_000
MAX_FILE_AGE: Final = "1000s"
"""Spark's source forgets the names of files that are so much older than its newest one: 1000 batches, as the times here go."""
_PATTERN: Final = frozenset("{}[]*?\\")


@attrs.define(eq=False)
class Listed:
    """The files that Spark's source finds; `folder` is that of the range log, `number` that of the source in Spark's log."""

    folder: str
    checkpoint: str
    number: int
    _batches: list[tuple[int, list[str]]] = attrs.field(factory=list)
    _first: int = 0

    def begin(self) -> None:
        """Begin without any file."""
        self._batches, self._first = [], 0
        self.write()

    def add(self, number: int, files: Sequence[Sequence[Any]]) -> None:
        """Take note of the files of a planned batch; :meth:`write` shows them to Spark."""
        self._batches.append((number, [file[0] for file in files]))

    def taken(self, number: int) -> None:
        """Forget the files of batches up to this one, where they are half of what is listed."""
        rest = [batch for batch in self._batches if batch[0] > number]
        if 2 * len(rest) <= len(self._batches):
            self._batches, self._first = rest, number + 1
            self.write()
        self._strike_out(number)

    def write(self) -> None:
        """Let Spark find the files."""
        lines = [_line(path, number) for number, files in self._batches for path in files]
        store, root = store_at(self.folder)
        store.make_folder(f"{root}/{os.path.dirname(_ENTRY)}")
        store.write(f"{root}/{_ENTRY}", "\n".join(["v1", *lines]).encode())

    def _strike_out(self, number: int) -> None:
        """Leave no more than the last batches in the compact file that Spark has just written: its thread waits here."""
        store, root = store_at(self.checkpoint)
        path = f"{root}/sources/{self.number}/{number}.compact"
        if store.is_file(path):
            strike_out(store, path, min(number, self._first))


def spark_folder(log: str) -> str:
    """Return the folder of a range log under a name that Spark does not take for a pattern.

    Raises
    ------
    PlanError
        Where it looks like one and there are no links.
    """
    if not _PATTERN & set(log):
        return log
    if not is_local_path(log):
        raise PlanError(
            "Spark takes the checkpoint for a pattern",
            got=log,
            then="it would find no files",
            hint="give the checkpoint a name without { } [ ] * ? and \\",
        )
    link = f"{new_folder('files')}/log"
    os.symlink(store_at(log)[1], link)
    return link


def _line(path: str, number: int) -> str:
    entry = {
        "path": spark_uri(path),
        "size": 1,
        "isDir": False,
        "modificationTime": _FIRST_MS + number * _BATCH_MS,
        "blockReplication": 1,
        "blockSize": 1,
        "action": "add",
    }
    return as_line(entry)
