"""Files that the library planned and Spark reads (CSV, options of Spark's): how they get to Spark's own file source.

Where a folder has the log of a file sink (``_spark_metadata``), Spark's file source takes the names of files from it and lists
nothing. So the folder of a range log has such a log, which the library writes: the files of the batches that were planned and
not taken yet. It is one compact entry, written as a whole, so it does not grow. The times in it only give the order of batches.

Spark's source writes the names of all files it has taken into its log (``sources/<n>/``), and all of them again every tenth
batch. It needs only those of the batch that may be repeated, so the others are struck out of a compact file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import attrs

from krishiv_py.errors import PlanError
from krishiv_py.runtime.checkpoint.moved import spark_uri
from krishiv_py.runtime.checkpoint.sparklog import as_line, strike_out
from krishiv_py.runtime.storage.folders import new_folder
from krishiv_py.storage.files import is_local_path, store_at

_ENTRY: Final = "_spark_metadata/0.compact"
_FIRST_MS: Final = 1_000_000_000_000
_BATCH_MS: Final = 1_000
MAX_FILE_AGE: Final = "1000s"
"""Spark's source forgets the names of files that are so much older than its newest one: 1000 batches, as the times here go."""
_PATTERN: Final = frozenset("{}[]*?\\")


@attrs.define(eq=False)
class Listed:
    """The files that Spark's source finds; `folder` is that of the range log, `at` the number of the source in Spark's log."""

    folder: str
    checkpoint: str
    at: int
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
        path = f"{root}/sources/{self.at}/{number}.compact"
        if store.is_file(path):
            strike_out(store, path, min(number, self._first))


def spark_folder(log: str) -> str:
    """The folder of a range log under a name that Spark does not take for a pattern.

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
