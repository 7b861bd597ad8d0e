"""A folder of files as a source: the driver lists files and plans them by time and name, tasks read what was planned.

A range notes the path, size and modification time of its files. So when a batch is repeated, a file that has gone or was
changed meanwhile is an error and not other rows.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import json
import os
import posixpath
import re
import time
import warnings
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.connectors.polling import PollBackoff
from krishiv_py.connectors.ranges import NotedRanges, RangeSource, in_runs
from krishiv_py.connectors.source import JsonValue, Malformed, Planned, Source
from krishiv_py.errors import CheckpointError, SourceError, users_line
from krishiv_py.failures.redaction import shown_text
from krishiv_py.plan.nodes import FileSource
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT
from krishiv_py.runtime.ranges.limits import Limit
from krishiv_py.runtime.reading import FileReader, ScannedRows, gone, shown_path
from krishiv_py.storage.checksums import missing, sealed_parquet
from krishiv_py.storage.files import PATTERN, File, QuietFolders, facts_of, files_at, is_local_path, store_at
from krishiv_py.storage.sends.segments import open_sent
from krishiv_py.storage.store import Store

_NAMED: Final = 3
_MOST_LOOKED_AT: Final = 20_000
_PART: Final = re.compile(r"([0-9]{20})-([0-9]{20})\.parquet")
_SCHEMA: Final = pa.schema([("path", pa.string()), ("mtime_ns", pa.int64())])
_MOST: Final = (1 << 63) - 1
_ALIKE: Final = 8
"""So many parts of about one size are merged."""
Name = tuple[str, int]
"""The path that tells a file from others, and its modification time, ns."""


@attrs.define
class _Part:
    """The names of some batches: from the first to the last one."""

    first: int
    last: int
    path: str
    rows: int


@attrs.define(eq=False)
class PlannedNames:
    """The names that one source of a query has planned.

    The newest names are in the files of the range log. Before one of those goes, its names are written into a part in
    ``<checkpoint>/krishiv/files/<source>/``, which is named by the batches it covers. Parts of about equal size are merged, so
    a name is written a few times only, however many there are, and a batch costs what it brings.

    Attributes
    ----------
    folder : str
        Where its parts are.
    durable : bool
        Whether they must survive a loss of power.
    count : int
        How many names there are.
    """

    folder: str
    durable: bool
    count: int = 0
    loaded: list[Name] = attrs.field(factory=list)
    """The names that were there when it was opened, until somebody has looked at them."""
    _by_folder: dict[str, set[str]] = attrs.field(factory=dict)
    _parts: list[_Part] = attrs.field(factory=list)

    @classmethod
    def open(cls, folder: str, *, durable: bool) -> PlannedNames:
        """Read the parts.

        Raises
        ------
        CheckpointError
            When one is damaged or missing.
        """
        taken = cls(folder, durable)
        store, root = store_at(folder)
        parts = [
            _Part(int(match[1]), int(match[2]), each.path, 0)
            for each in store.entries(root)
            if (match := _PART.fullmatch(each.base_name))
        ]
        for part in sorted(parts, key=lambda p: (p.first, -p.last)):
            if taken._parts and part.last <= taken._parts[-1].last:  # it was merged, and a crash left it
                store.delete(part.path)
                continue
            taken._check(part.first)
            names = open_sent(store, part.path).read()
            part.rows = names.num_rows
            taken._parts.append(part)
            taken.loaded += zip(*(c.to_pylist() for c in names.columns), strict=True)
        taken.add(taken.loaded)
        return taken

    @property
    def upto(self) -> int:
        """The last batch whose names are in a part; -1 without one."""
        return self._parts[-1].last if self._parts else -1

    def known(self, folder: str) -> Container[str]:
        """Return the names in a folder."""
        return self._by_folder.get(folder, ())

    def folders(self) -> Iterable[tuple[str, set[str]]]:
        """Return the folders, and the names in each."""
        return self._by_folder.items()

    def add(self, names: Iterable[Name]) -> None:
        """Take note of names, in memory."""
        for path, _ in names:
            folder, name = posixpath.split(path)
            of_folder = self._by_folder.setdefault(folder, set())
            self.count += name not in of_folder
            of_folder.add(name)

    def forget(self, path: str) -> None:
        """Read a file of this name when it comes again: the one that was read is there no more."""
        folder, name = posixpath.split(path)
        self._by_folder.get(folder, set()).discard(name)

    def keep(self, names: list[Name], last: int) -> None:
        """Write the names of all batches up to the last one that are in no part yet."""
        rows = [pa.table([[p for p, _ in names], [max(-_MOST, min(t, _MOST)) for _, t in names]], schema=_SCHEMA)]
        first, merged = self.upto + 1, list[_Part]()
        size = len(names)
        while len(like := self._like(size, len(merged))) >= _ALIKE - 1:
            merged = [*like, *merged]
            size = len(names) + sum(part.rows for part in merged)
            first = merged[0].first
        store, root = store_at(self.folder)
        rows = [open_sent(store, part.path).read() for part in merged] + rows
        table, out = pa.concat_tables(rows).sort_by("path"), pa.BufferOutputStream()
        pq.write_table(table, out, compression="zstd", use_dictionary=False, column_encoding=_ENCODED)
        path = f"{root}/{first:020d}-{last:020d}.parquet"
        store.write(path, b"".join(sealed_parquet(out.getvalue())), durable=self.durable)
        store.delete(*(part.path for part in merged))
        self._parts[len(self._parts) - len(merged) :] = [_Part(first, last, path, table.num_rows)]

    def check(self, first: int) -> None:
        """See that the names of all batches before the first one of the range log are there.

        Raises
        ------
        CheckpointError
            When some are missing.
        """
        if first > self.upto + 1:
            self._check(first)

    def _like(self, size: int, merged: int) -> list[_Part]:
        """Return the last parts that are not much larger than what is to be written."""
        rest = self._parts[: len(self._parts) - merged]
        begin = len(rest)
        while begin and rest[begin - 1].rows <= _ALIKE * max(size, 1):
            begin -= 1
        return rest[begin:]

    def _check(self, first: int) -> None:
        if first > self.upto + 1:
            raise missing(f"{self.folder}/{self.upto + 1:020d}-{first - 1:020d}.parquet", NEW_CHECKPOINT)


_ENCODED: Final = {"path": "DELTA_BYTE_ARRAY", "mtime_ns": "DELTA_BINARY_PACKED"}


_LEAST_S: Final = 0.02
_LEAST_FAR_S: Final = 0.2
_MOST_S: Final = 5.0
_SHARE: Final = 10
"""A listing is repeated after so many times as long as it took."""
_PAR1: Final = b"PAR1"


@attrs.define(eq=False)
class _Driver:
    """Holds what the driver knows of the folder. It stays behind when a source is sent to a task."""

    taken: PlannedNames | None = None
    pending: list[File] = attrs.field(factory=list)
    listed_s: float = 0.0
    no_more: bool = False
    limit: Limit | None = None
    """The bytes and rows of files that a batch takes; None for all that are there."""
    rows_per_byte: float | None = None
    """The rows a byte of the files that were listed last, about; None while nobody has looked."""
    quiet: QuietFolders = attrs.field(factory=QuietFolders)
    backoff: PollBackoff = attrs.field(factory=lambda: PollBackoff(_LEAST_S))

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
        least_s = 0.0 if is_local_path(self.files.path) else _LEAST_FAR_S
        return max(self._driver.backoff.wait_s, least_s, min(_SHARE * self._driver.listed_s, _MOST_S))

    def plans(self, taken: PlannedNames) -> None:
        """Plan from here on, without the files that were taken."""
        self._driver.taken, self._driver.pending, self._driver.no_more = taken, [], False
        self._driver.quiet.forget()

    def bounded_by(self, limit: Limit) -> None:
        """Let a batch take no more bytes and rows of files than the limit, where no number of files is set."""
        self._driver.limit = limit

    def _upto_limit(self) -> int:
        """Return how many of the first pending files a batch may take together: one at the least."""
        driver, limit = self._driver, self._driver.limit
        if limit is None or self.reader is None:
            return len(driver.pending)
        sums = list(itertools.accumulate(file.size or 0 for file in driver.pending))
        if sums[-1] > limit.rows and driver.rows_per_byte is None:  # a row may be as short as a byte
            first = driver.pending[0]
            driver.rows_per_byte = self.reader.rows_per_byte(first.path, first.size)
        most = min(limit.nbytes, int(limit.rows / driver.rows_per_byte)) if driver.rows_per_byte else limit.nbytes
        fits = bisect.bisect_right(sums, most)
        limit.took(0, limit.nbytes if fits < len(sums) else 0)
        return max(fits, 1)

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
        most = self.files.max_files_per_batch or self._upto_limit()
        batch, driver.pending = driver.pending[:most], driver.pending[most:]
        driver.taken.add((file.real, file.mtime_ns) for file in batch)
        runs = in_runs(batch, self.parallelism, lambda file: file.size)
        noted: list[Any] = [[[file.path, file.size, file.mtime_ns, file.real] for file in run] for run in runs]
        return Planned({"files": driver.taken.count}, noted)

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
        driver.pending = files_at(self.files.path, literal=self.files.literal, known=driver.taken.known, quiet=driver.quiet)
        if self.files.only is not None:
            driver.pending = [file for file in driver.pending if file.real in self.files.only]
        if not driver.pending and not self.files.bounded:
            self._check_there()
        driver.rows_per_byte = None
        if driver.pending:
            driver.backoff.found()
        driver.listed_s = time.monotonic() - begun - driver.quiet.waited_s

    def _check_there(self) -> None:
        """See that the folder of a stream is still there; a pattern may match nothing, and far stores keep no empty folders.

        Raises
        ------
        SourceError
            When it is gone, or another file has its name.
        """
        store, root = store_at(self.files.path)
        if store.local and (self.files.literal or not PATTERN.search(root)) and not os.path.isdir(root):
            then = "no other file would ever come"
            hint = "put it back and start the query again: it goes on where it was"
            what = "the folder of a stream is gone"
            raise SourceError(what, got=shown_path(self.files.path), then=then, hint=hint, transient=True)

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
            self._driver.quiet.forget()

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

    def scanned(self, planned: Any, schema: pa.Schema) -> Iterator[ScannedRows]:
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


def check_as_planned(path: str, size: int | None, mtime_ns: int | None, *, parquet: bool = False) -> None:
    """See that a file is as it was planned.

    Raises
    ------
    SourceError
        When it is not; names the file.
    """
    now = facts_of(path)
    then = "its size is not noted" if size is None else f"{size} bytes, modified at {_seconds(mtime_ns)}"
    if now is None:
        raise gone(f"{shown_path(path)}: {then}")
    if now == (size, mtime_ns) or (size is None and now[0]):
        return
    if parquet and size is not None and now[0] > size and not _was_whole(path, size):
        return  # it was not finished when it was planned, so no row of it was read
    raise SourceError(
        "a file was changed after a batch had planned it",
        got=f"{shown_path(path)}: {then}; now {now[0]} bytes, modified at {_seconds(now[1])}",
        then="its rows would be others than those that were planned",
        hint=f"put it back as it was, with its modification time (touch -d @{_moment(mtime_ns)}), or start with a new "
        "checkpoint; for a malformed line that was mended in place see docs/sources.md; "
        "a file that is still written needs a hidden name until it is complete",
    )


def _seconds(mtime_ns: int | None) -> str:
    return "an unknown time" if mtime_ns is None else f"{_moment(mtime_ns)} s"


def _moment(mtime_ns: int | None) -> str:
    return "..." if mtime_ns is None else f"{mtime_ns // 10**9}.{mtime_ns % 10**9:09d}"


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


def check_place(source: FileSource, names: PlannedNames) -> None:
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
            what = f"files were read from {folder}, and are in {source.path} now"
            hint = "give the source the folder it had, or start with a new checkpoint and output folder"
            raise CheckpointError(what, got=f"{same} in both", then="they would be read a second time", hint=hint)


_ENTRY: Final = "_spark_metadata/0.compact"
_FIRST_MS: Final = 1_000_000_000_000
_BATCH_MS: Final = 1_000
MAX_FILE_AGE: Final = "1000s"
"""Spark's source forgets the names of files that are so much older than its newest one: 1000 batches, as the times here go."""
_PATTERN: Final = frozenset("{}[]*?\\")


def warn_if_files_changed(names: Iterable[tuple[str, int]]) -> None:
    """Warn where the modification time of a local file is not the one it was read with, ns; 0 where that is not known.

    Parameters
    ----------
    names : iterable of (str, int)
        Paths of files that were planned, and their times.
    """
    newest = heapq.nlargest(_MOST_LOOKED_AT, (name for name in names if name[1]), key=lambda name: name[1])
    changed = sorted(path for path, mtime_ns in newest if _is_other(path, mtime_ns))
    if changed:
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        warnings.warn(
            f"input files were changed after they were read: {', '.join(shown_text(p) for p in changed[:_NAMED])}{more}. "
            "They are not read again, and a batch that has to be repeated stops over them. "
            "Hint: write new rows into files of other names",
            RuntimeWarning,
            stacklevel=users_line(),
        )


def _is_other(path: str, mtime_ns: int) -> bool:
    """Return whether a file is there with another modification time (ms) than it was read with."""
    try:
        return os.stat(path).st_mtime_ns // 1_000_000 != mtime_ns // 1_000_000
    except OSError:
        return False  # gone, as files may be once they were read
