"""The names of the files that a query has planned, so that none is read twice and one that comes late is read at all.

The newest names are in the files of the range log. Before one of those goes, its names are written into a part in
``<checkpoint>/krishiv/files/<source>/``, which is named by the batches it covers. Parts of about equal size are merged, so a
name is written a few times only, however many there are, and a batch costs what it brings.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container, Iterable
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.replay_index import open_sent
from krishiv_py.runtime.storage.chunk_files import NEW_CHECKPOINT
from krishiv_py.storage.checksums import missing, sealed_parquet
from krishiv_py.storage.files import store_at

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
class Taken:
    """The names that one source of a query has planned.

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
    def open(cls, folder: str, *, durable: bool) -> Taken:
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
