"""Files that the library planned and Spark reads (CSV, options of Spark's), and checkpoints in which Spark planned them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlparse

import attrs

from krishiv_py.connectors.ranges import NotedRanges
from krishiv_py.errors import PlanError
from krishiv_py.plan.nodes import SourceNode
from krishiv_py.runtime.checkpoint.moved import own_uri, spark_uri
from krishiv_py.runtime.checkpoint.sparklog import as_line, batches_of, entries_of, offsets_of, rewrite, strike_out
from krishiv_py.runtime.ranges.folders import _BATCH_MS, _ENTRY, _FIRST_MS, _PATTERN, PlannedNames
from krishiv_py.runtime.ranges.log import RangeLog
from krishiv_py.runtime.reading import arrow_scanned, planned_here
from krishiv_py.storage.files import is_local_path, passed_over, store_at
from krishiv_py.storage.local import new_folder
from krishiv_py.storage.store import Store


def convert(checkpoint: str, sources: list[SourceNode], *, durable: bool) -> None:
    """Take over what Spark has noted of files that it planned.

    Spark kept the names of all files in its log of the source (``sources/<n>/``). They are written into a part of
    :mod:`~krishiv_py.runtime.ranges.folders`, the files of the last planned batch into a file of the range log, and Spark's
    entries are written again as if it had read that file. Each step may be broken off and repeated.
    """
    batches = batches_of(checkpoint)
    if not batches or not any(planned_here(s) for s in sources):
        return
    store, root = store_at(checkpoint)
    logs = entries_of(store, root)
    upto = offsets_of(store, f"{root}/offsets/{batches[-1]}")
    before = offsets_of(store, f"{root}/offsets/{batches[-2]}") if len(batches) > 1 else {}
    for number, source in enumerate(sources):
        mine = [(path, entries) for path, entries in logs if path.rsplit("/", 2)[-2] == str(number)]
        own = f"/krishiv/ranges/{number}/"
        foreign = [e for _, entries in mine for e in entries if own not in e["path"]]
        if not planned_here(source) or number not in upto or not foreign:
            continue
        _take_over(checkpoint, number, upto[number], before.get(number, -1), foreign, durable=durable)
        for path, entries in mine:
            if arrow_scanned(source):
                _rewrite(store, path, entries, f"{checkpoint}/krishiv/ranges/{number}")
            else:
                strike_out(store, path, before.get(number, -1) + 1, timestamp=1)


def _take_over(checkpoint: str, index: int, upto: int, before: int, entries: list[dict[str, Any]], *, durable: bool) -> None:
    """Note the files in the logs of the library, unless an attempt that was broken off has."""
    log = RangeLog.open(f"{checkpoint}/krishiv/ranges/{index}", durable=durable)
    taken = PlannedNames.open(f"{checkpoint}/krishiv/files/{index}", durable=durable)
    if log.last >= upto:
        return
    files = [(*_file(e), e["batchId"]) for e in entries if not passed_over(e["path"])]
    if taken.upto < upto:
        names = {real: mtime_ns for _, real, mtime_ns, _ in files}
        taken.keep(sorted(names.items()), upto)
    planned = [[path, None, None, real] for path, real, _, number in files if before < number <= upto]
    log.begin_at(upto)
    log.note(NotedRanges(json.dumps({"files": taken.count or len(files)}), (json.dumps(planned),)))


def _file(entry: dict[str, Any]) -> tuple[str, str, int]:
    """Return how a file is opened, what tells it from others, and its modification time, ns."""
    uri, mtime_ns = entry["path"], int(entry.get("timestamp", 0)) * 1_000_000
    path = unquote(urlparse(uri).path)
    if is_local_path(uri):
        return f"file:{path}", os.path.realpath(path), mtime_ns
    shown = unquote(uri)
    return shown, shown, mtime_ns


def _rewrite(store: Store, path: str, entries: list[dict[str, Any]], folder: str) -> None:
    """One of Spark's entries for each batch that a file of its log is about."""
    last = max(int(e["batchId"]) for e in entries)
    entry = {"path": own_uri(folder, f"{last:020d}.parquet"), "timestamp": 1, "batchId": last}
    rewrite(store, path, "\n".join(["v1", as_line(entry)]))


@attrs.define(eq=False)
class FileListing:
    """The files that Spark's source finds; `folder` is that of the range log, `number` that of the source in Spark's log.

    Where a folder has the log of a file sink (``_spark_metadata``), Spark's file source takes the names of files from it and
    lists nothing. So the folder of a range log has such a log, which the library writes: the files of the batches that were
    planned and not taken yet. It is one compact entry, written as a whole, so it does not grow. The times in it only give the
    order of batches.

    Spark's source writes the names of all files it has taken into its log (``sources/<n>/``), and all of them again every tenth
    batch. It needs only those of the batch that may be repeated, so the others are struck out of a compact file.
    """

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
        hint = "give the checkpoint a name without { } [ ] * ? and \\"
        raise PlanError("Spark takes the checkpoint for a pattern", got=log, then="it would find no files", hint=hint)
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
