"""Spark's own log of a checkpoint, mended before a query goes on.

**Files a crash left between two logs.** Spark's file source writes down which files come next (``sources/<i>/<k>``), and only
then is the micro-batch that reads them planned (``offsets/<n>``). After a crash between the two, Spark would put those files
and the next ones into one batch: rows would be judged by another watermark than in an uninterrupted run, and more of them taken
in. So what no batch was planned for is struck out of the source's log; Spark finds the files again and plans them as it would
have.

**A first batch that was half written down.** A crash while Spark writes its very first entry leaves a temporary file, and Spark
then refuses to begin, since its log "should be empty". Where no batch was planned such files are removed.

**A source more.** Spark counts the sources of every batch it planned and refuses to go on with another number. A query that is
to read control files now and did not before gets a place for them: a dash, which says that nothing of that source was read.
"""

from __future__ import annotations

import json
from typing import Any, Final

from krishiv_py.errors import CheckpointError
from krishiv_py.runtime.storage.hadoopsums import NEW_CHECKPOINT, checked_lines, sum_of
from krishiv_py.storage.checksums import damaged, sealed, unsealed
from krishiv_py.storage.files import store_at
from krishiv_py.storage.store import Store

_ENTRY: Final = '{"path":'
_HEAD: Final = 2
"""Lines of a planned batch before those of its sources: version and metadata."""


def forget_unplanned(checkpoint: str) -> None:
    """Strike out what file sources wrote down after the last planned micro-batch. No query may be running there."""
    store, root = store_at(checkpoint)
    if not numbered(store, f"{root}/offsets"):
        _drop_unfinished(store, f"{root}/offsets")
    planned = _planned(store, root)
    sources = store.entries(f"{root}/sources")
    for source in sources:
        if not source.base_name.isdigit():
            continue
        upto = planned.get(int(source.base_name))
        entries = store.entries(source.path)
        for entry in entries:
            number = entry.base_name.removesuffix(".compact")
            if not number.isdigit() or int(number) <= (-1 if upto is None else upto):
                continue
            if upto is not None or _lists_files(store, entry.path):  # a loss of power may have cut it
                store.delete(entry.path)
                _forget_checksum(store, entry.path)


def _drop_unfinished(store: Store, log: str) -> None:
    """Remove what a writer of a log that has no entry yet left behind."""
    for file in store.entries(log):
        if file.is_file and file.base_name.startswith(".") and ".tmp" in file.base_name:
            store.delete(file.path)


def _planned(store: Store, root: str) -> dict[int, int]:
    """The last entry of every file source that a micro-batch was planned for."""
    batches = numbered(store, f"{root}/offsets")
    return offsets_of(store, f"{root}/offsets/{max(batches)}") if batches else {}


def offsets_of(store: Store, path: str) -> dict[int, int]:
    """The entry of every file source in a planned batch."""
    return logged_offsets(checked_lines(store, path), path)


def logged_offsets(lines: list[str], path: str) -> dict[int, int]:
    """The entry of every file source in the lines of a planned batch.

    Raises
    ------
    CheckpointError
        When they are none.
    """
    try:
        offsets = [json.loads(line) if line.startswith("{") else {} for line in lines[_HEAD:]]
        return {at: int(offset["logOffset"]) for at, offset in enumerate(offsets) if "logOffset" in offset}
    except (TypeError, ValueError) as problem:
        raise damaged(path, "a line that is not an offset", NEW_CHECKPOINT) from problem


def planned(checkpoint: str, batch: int) -> dict[str, Any]:
    """Return what Spark wrote down of a micro-batch before it ran: watermark, time, settings.

    Raises
    ------
    CheckpointError
        When that is damaged or missing.
    """
    store, path = store_at(f"{checkpoint}/offsets/{batch}")
    lines = checked_lines(store, path)
    try:
        found: dict[str, Any] = json.loads(lines[1])
        int(found["batchWatermarkMs"]), int(found["batchTimestampMs"])
    except (IndexError, KeyError, TypeError, ValueError) as problem:
        raise damaged(path, f"{len(lines)} lines", NEW_CHECKPOINT) from problem
    return found


def add_source(checkpoint: str) -> None:
    """Make room for one more source, the last, in every batch that was planned. May be broken off and repeated.

    Raises
    ------
    CheckpointError
        When Spark wrote its log in a form this does not know.
    """
    store, root = store_at(checkpoint)
    batches = numbered(store, f"{root}/offsets")
    if not batches:
        return
    note = f"{root}/krishiv/sources"  # how many there are to be: what an attempt that was broken off began with
    if not store.exists(note):
        store.write(note, sealed(str(len(_planned_lines(store, root, max(batches))) - _HEAD + 1).encode()))
    wanted = int(unsealed(store.read(note) or b"", note, NEW_CHECKPOINT))
    for batch in batches:
        lines = _planned_lines(store, root, batch)
        if len(lines) - _HEAD < wanted:
            rewrite(store, f"{root}/offsets/{batch}", "\n".join([*lines, "-"]))


def sources_of(checkpoint: str) -> int:
    """Return how many sources the last planned micro-batch had; 0 before the first."""
    store, root = store_at(checkpoint)
    batches = numbered(store, f"{root}/offsets")
    return len(checked_lines(store, f"{root}/offsets/{max(batches)}")) - _HEAD if batches else 0


def entries_of(store: Store, root: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """The log of every file source, from its last compact file on, which has all before: its files, and what they say."""
    found = store.entries(f"{root}/sources", recursive=True)
    logs: dict[str, list[tuple[int, bool, str]]] = {}
    for file in found:
        number = file.base_name.removesuffix(".compact")
        if file.is_file and number.isdigit():
            logs.setdefault(file.path.rpartition("/")[0], []).append((int(number), number != file.base_name, file.path))
    entries = []
    for log in logs.values():
        begin = max((n for n, compact, _ in log if compact), default=0)
        read = [(path, checked_lines(store, path)) for n, _, path in sorted(log) if n >= begin]
        entries += [(path, entries_in(lines, path)) for path, lines in read if _ENTRY in "".join(lines)]
    return entries


def entries_in(lines: list[str], path: str) -> list[dict[str, Any]]:
    """Return what the lines of a file source's log say of the files that were read.

    Raises
    ------
    CheckpointError
        When one of them is not an entry.
    """
    try:
        entries = [json.loads(line) for line in lines[1:] if line]
        sound = all(isinstance(e["path"], str) and isinstance(e["batchId"], int) for e in entries)
    except (KeyError, TypeError, ValueError) as problem:
        raise damaged(path, "a line that is not an entry", NEW_CHECKPOINT) from problem
    if lines[0] != "v1" or not entries or not sound:
        raise damaged(path, f"{len(lines)} lines", NEW_CHECKPOINT)
    return entries


def strike_out(store: Store, path: str, first: int, **others: Any) -> None:
    """Leave in a file of a source's log what it says of batches from the first one on, and of its last one.

    Parameters
    ----------
    system : pyarrow.fs.FileSystem
        Where it is.
    path : str
        The file.
    first : int
        The first batch that may be repeated.
    **others : object
        Values for all that is left.
    """
    entries = entries_in(checked_lines(store, path), path)
    last = max(int(e["batchId"]) for e in entries)
    kept = [{**e, **others} for e in entries if int(e["batchId"]) >= min(first, last)]
    if kept != entries:
        rewrite(store, path, "\n".join(["v1", *map(as_line, kept)]))


def as_line(entry: dict[str, Any]) -> str:
    """An entry as Spark writes it."""
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=False)


def _planned_lines(store: Store, root: str, batch: int) -> list[str]:
    lines = checked_lines(store, f"{root}/offsets/{batch}")
    if lines[0] != "v1":
        raise CheckpointError(
            "the checkpoint was begun without control files",
            got=f"Spark's log in version {lines[0]}",
            hint="use a new checkpoint folder",
        )
    return lines


def batches_of(checkpoint: str) -> list[int]:
    """The micro-batches Spark has written down."""
    store, root = store_at(checkpoint)
    return numbered(store, f"{root}/offsets")


def numbered(store: Store, folder: str) -> list[int]:
    """The numbers that are names of files in a folder, ascending."""
    found = store.entries(folder)
    return sorted(int(f.base_name) for f in found if f.base_name.isdigit())


def rewrite(store: Store, path: str, text: str) -> None:
    """Write one of Spark's files again; may be broken off and repeated."""
    _forget_checksum(store, path)
    store.write(path, text.encode())


def _forget_checksum(store: Store, path: str) -> None:
    store.delete(sum_of(path))


def _lists_files(store: Store, path: str) -> bool:
    """Return whether this is the log of a file source; others keep other things in their folder."""
    return _ENTRY.encode() in (store.read(path) or b"")
