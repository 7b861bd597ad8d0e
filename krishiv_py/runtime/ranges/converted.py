"""Checkpoints of versions in which Spark planned files: the names it has read become names that a query has planned.

Spark kept the names of all files in its log of the source (``sources/<n>/``). They are written into a part of
:mod:`~krishiv_py.runtime.ranges.taken`, the files of the last planned batch into a file of the range log, and Spark's
entries are written again as if it had read that file. Each step may be broken off and repeated.
"""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import unquote, urlparse

from krishiv_py.connectors.ranges import NotedRanges
from krishiv_py.plan.nodes import SourceNode
from krishiv_py.runtime.checkpoint.moved import own_uri
from krishiv_py.runtime.checkpoint.sparklog import as_line, batches_of, entries_of, offsets_of, rewrite, strike_out
from krishiv_py.runtime.ranges.planning import RangeLog
from krishiv_py.runtime.ranges.taken import Taken
from krishiv_py.runtime.reading import arrow_scanned, planned_here
from krishiv_py.storage.files import is_local_path, store_at
from krishiv_py.storage.listing import passed_over
from krishiv_py.storage.store import Store


def convert(checkpoint: str, sources: list[SourceNode], *, durable: bool) -> None:
    """Take over what Spark has noted of files that it planned."""
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
    taken = Taken.open(f"{checkpoint}/krishiv/files/{index}", durable=durable)
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
