"""Sends of a memory stream that no query will read again: found by what the queries that read it have finished."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse

from krishiv_py.errors import CheckpointError
from krishiv_py.replay_index import RANGE, open_sent
from krishiv_py.replay_log import ReplayLog
from krishiv_py.runtime.checkpoint.sparklog import entries_of, numbered, offsets_of
from krishiv_py.storage.checksums import checksum, sealed, unsealed
from krishiv_py.storage.files import store_at
from krishiv_py.storage.local import DISK

_READER: Final = "_krishiv_reader_"


def note_reader(spool: str, checkpoint: str) -> None:
    """Note next to the sends that a query reads them: what it has not read stays, as long as its checkpoint."""
    mark = f"{checksum(checkpoint.encode()):08x}"
    data = sealed(json.dumps({"checkpoint": checkpoint}).encode())
    DISK.write(f"{spool}/{_READER}{mark}.json", data)


def trim(spool: str) -> int:
    """Remove the sends all queries that read a memory stream have finished; see :meth:`krishiv_py.Session.trim`."""
    readers = [c for c in map(_checkpoint, sorted(Path(spool).glob(f"{_READER}*.json"))) if c is not None]
    return ReplayLog(spool).drop_before(min((_finished(c, spool) for c in readers), default=0))


def check_begin(checkpoint: str, stream: ReplayLog, known: bool) -> None:
    """See that nothing was removed that a query from this checkpoint has not read.

    Raises
    ------
    CheckpointError
        When it was.
    """
    first = stream.first()
    numbers = [*_read(checkpoint, stream.folder), *_planned(checkpoint, stream.folder)] if known else []
    read = max((number for _, number in numbers), default=-1) + 1
    if first > read:
        raise CheckpointError(
            f"the sends before {first} were removed from {stream.folder}",
            got=f"read so far: {read}",
            then="their rows would be missing",
            hint="go on from a checkpoint that has read them, or send them again to another memory stream",
        )


def _checkpoint(note: Path) -> str | None:
    """The checkpoint of a reader; None, and no note any more, if that is gone."""
    data = unsealed(note.read_bytes(), str(note), "remove it, and start the query that wrote it once more")
    checkpoint = str(json.loads(data)["checkpoint"])
    store, root = store_at(checkpoint)
    if not store.exists(f"{root}/krishiv/plan.json"):
        note.unlink()
        return None
    return checkpoint


def _finished(checkpoint: str, spool: str) -> int:
    """The first send a query may yet read: what the oldest batch Spark could go back to had not read."""
    store, root = store_at(checkpoint)
    batches, commits = numbered(store, f"{root}/offsets"), numbered(store, f"{root}/commits")
    if not batches or not commits or batches[0] >= commits[-1]:
        return 0
    upto = offsets_of(store, f"{root}/offsets/{batches[0]}")
    by_spark = max((n for (source, entry), n in _read(checkpoint, spool) if entry <= upto.get(source, -1)), default=-1) + 1
    return max(by_spark, min((first for first, _ in _planned(checkpoint, spool)), default=0))


def _planned(checkpoint: str, spool: str) -> list[tuple[int, int]]:
    """The first and the last send in what is kept of the range log of each source that reads a stream."""
    store, root = store_at(f"{checkpoint}/krishiv/ranges")
    identity, by_source = ReplayLog(spool).identity(), dict[str, list[Any]]()
    for entry in sorted(store.entries(root, recursive=True), key=lambda found: found.path):
        source, name = entry.path.split("/")[-2:]
        if name.endswith(".parquet") and name[:20].isdigit():
            noted = open_sent(store, entry.path).read()
            ranges = noted[RANGE].to_pylist() if RANGE in noted.column_names else []
            by_source.setdefault(source, []).extend(map(json.loads, ranges))
    found = list[tuple[int, int]]()
    for sends in by_source.values():
        ours: list[dict[str, Any]] = [one for one in sends if isinstance(one, dict) and one.get("stream") == identity]
        if ours:
            found.append((ours[0].get("first", ours[0]["send"]), ours[-1]["send"]))
    return found


def _read(checkpoint: str, spool: str) -> list[tuple[tuple[int, int], int]]:
    """Source and entry, and number, of every send of a stream in the log of a checkpoint."""
    store, root = store_at(checkpoint)
    found = []
    for path, entries in entries_of(store, root):
        source = int(path.rsplit("/", 2)[-2])
        for entry in entries:
            folder, name = os.path.split(unquote(urlparse(entry["path"]).path))
            if folder == spool and name[:12].isdigit():
                found.append(((source, int(entry["batchId"])), int(name[:12])))
    return found
