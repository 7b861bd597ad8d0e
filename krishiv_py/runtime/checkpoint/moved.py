"""A checkpoint, or a memory stream, that was moved to another folder goes on there.

Spark writes absolute paths into a checkpoint: where the schema of its state lies, and which files a source has read. They are
written again before a query goes on, and entries of files that were removed by rule are struck out. A memory stream tells by
its identity that it is the same one; of other files nobody can tell, so those that would be read a second time are refused.
"""

from __future__ import annotations

import json
import os
import re
from typing import Final
from urllib.parse import quote, unquote, urlparse

from krishiv_py.errors import CheckpointError
from krishiv_py.plan.nodes import FileSource, MemorySource, SourceNode
from krishiv_py.planner.places import place_of
from krishiv_py.runtime.checkpoint.sparklog import (
    as_line,
    batches_of,
    check_begin,
    checked_lines,
    entries_of,
    note_reader,
    rewrite,
)
from krishiv_py.storage.files import is_local_path, store_at
from krishiv_py.storage.sends.log import ReplayLog
from krishiv_py.storage.store import Store

_SCHEMA: Final = re.compile(r'"[^"]*(/state/[0-9]+/_stateSchema/[^"]*)"')
_OWN: Final = re.compile(r".*/krishiv/((?:controls|ranges/[0-9]+)/[0-9]{20}\.parquet)")
"""Control files, and the ranges of sources: they lie in the checkpoint and move with it."""
_PLAIN: Final = "/-_.!~'()*,;:$&+=@"
_NOTE: Final = "krishiv/streams.json"
_WAY_OUT: Final = "put it back from a copy of the checkpoint, or start with a new checkpoint and output folder"


def follow(checkpoint: str, sources: list[SourceNode]) -> None:
    """Write the paths in a checkpoint again where it, or a memory stream it reads, was moved.

    Raises
    ------
    CheckpointError
        When a memory stream was made again in its folder, files already read would be read again from another one, or the note
        of the memory streams is lost or damaged.
    """
    store, root = store_at(checkpoint)
    before, streams = _streams(checkpoint, sources, needed=True)
    if batches_of(checkpoint):
        moves = {old: streams[name] for name, old in before.items() if name in streams and streams[name] != old}
        _move_schema(store, root, checkpoint)
        _move_entries(store, root, checkpoint, moves, list(streams.values()))
        _check_unread(store, root, sources, list(streams.values()))
    for name, folder in streams.items():
        check_begin(checkpoint, ReplayLog(folder), name in before)
        note_reader(folder, checkpoint)
    if streams != before:
        store.write_note(f"{root}/{_NOTE}", streams)


def note_streams(checkpoint: str, sources: list[SourceNode]) -> None:
    """Note which memory streams a query in this process reads from a checkpoint.

    Raises
    ------
    CheckpointError
        When one was made again in its folder, or the note is damaged.
    """
    before, streams = _streams(checkpoint, sources, needed=False)
    if streams != before:
        store, root = store_at(checkpoint)
        store.write_note(f"{root}/{_NOTE}", streams)


def _streams(checkpoint: str, sources: list[SourceNode], *, needed: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Return the folders of the memory streams that a checkpoint notes, and of those that are there, by their identity."""
    store, root = store_at(checkpoint)
    streams = {ReplayLog(s.spool).identity(): s.spool for s in sources if isinstance(s, MemorySource)}
    begun = bool(batches_of(checkpoint))
    before = store.read_note(f"{root}/{_NOTE}", dict[str, str], _WAY_OUT, needed=needed and begun and bool(streams)) or {}
    for name, folder in streams.items():
        if begun and name not in before and folder in before.values():
            raise CheckpointError(
                f"the memory stream in {folder} was made again",
                got="another stream in the same folder",
                then="sends of the one that the query has read would be missing, as where a mount is missing",
                hint="mount the folder, or put it back; a new stream needs another folder, or a new checkpoint",
                transient=True,
            )
    return before, streams


def _move_schema(store: Store, root: str, checkpoint: str) -> None:
    home = f"file:{root}" if is_local_path(checkpoint) else checkpoint
    for entry in store.entries(f"{root}/state", recursive=True):
        if "/_metadata/" not in entry.path or not entry.is_file or entry.base_name.startswith("."):
            continue
        text = "\n".join(checked_lines(store, entry.path))
        moved = _SCHEMA.sub(lambda m: json.dumps(home + m[1], ensure_ascii=False), text)
        if moved != text:
            rewrite(store, entry.path, moved)


def _move_entries(store: Store, root: str, checkpoint: str, moves: dict[str, str], streams: list[str]) -> None:
    home = _uri(f"{root}/krishiv") if is_local_path(checkpoint) else f"{checkpoint}/krishiv"

    def moved(uri: str) -> str:
        own = _OWN.fullmatch(uri)
        if own is not None:
            return f"{home}/{own[1]}"
        folder, _, name = unquote(urlparse(uri).path).rpartition("/")
        return f"{_uri(moves[folder])}/{name}" if folder in moves else uri

    for path, entries in entries_of(store, root):
        new = [{**e, "path": moved(e["path"])} for e in entries]
        if path.endswith(".compact"):  # what is gone cannot be read again; the newest entry says where the log is
            new = [e for e in new[:-1] if not _gone(e["path"], streams)] + new[-1:]
        if new != entries:
            rewrite(store, path, "\n".join(["v1", *map(as_line, new)]))


def _check_unread(store: Store, root: str, sources: list[SourceNode], streams: list[str]) -> None:
    """Refuse a folder that holds, under the same names, files that were read in another folder."""
    files = [s for s in sources if isinstance(s, FileSource) and is_local_path(s.path)]
    if not files:
        return
    here = [(s.path, place_of(store_at(s.path)[1]), store_at(s.path)[1].rstrip("/")) for s in files]
    read = {unquote(urlparse(e["path"]).path) for _, entries in entries_of(store, root) for e in entries}
    for path in sorted(p for p in read if not _OWN.fullmatch(p) and os.path.dirname(p) not in streams):
        name = os.path.basename(path)
        for given, _, folder in here:
            again = os.path.join(folder if os.path.isdir(folder) else os.path.dirname(folder), name)
            if again != path and os.path.exists(again) and not any(_below(path, f) for _, _, f in here):
                what = f"files were read from {os.path.dirname(path)}, and are in {given} now"
                hint = "give the source the folder it had, or start with a new checkpoint and output folder"
                raise CheckpointError(what, got=f"{name} in both", then="Spark would read them a second time", hint=hint)


def _below(path: str, folder: str) -> bool:
    head = re.split(r"[*?\[{]", folder)[0]
    return path.startswith(head if head != folder else folder + "/") or path == folder


def _gone(uri: str, streams: list[str]) -> bool:
    """Return whether a control file, noted ranges, or a send that was trimmed, are no longer there."""
    path = unquote(urlparse(uri).path)
    ours = _OWN.fullmatch(path) is not None or os.path.dirname(path) in streams
    return ours and uri.startswith("file:") and not os.path.exists(path)


def own_uri(folder: str, name: str) -> str:
    """Return a file of the library's own as Spark writes it into its log."""
    return f"{_uri(store_at(folder)[1])}/{name}" if is_local_path(folder) else f"{folder}/{name}"


def spark_uri(path: str) -> str:
    """Return a file of the user's as Spark writes it into its log."""
    if is_local_path(path):
        return _uri(store_at(path)[1])
    scheme, _, rest = path.partition("://")
    host, slash, below = rest.partition("/")
    return f"{scheme}://{host}{slash}{_encoded(below)}"


def _uri(folder: str) -> str:
    """Return a local folder as Spark writes it into its log: Java leaves letters of all scripts as they are."""
    return f"file://{_encoded(folder)}"


def _encoded(path: str) -> str:
    kept = {c for c in path if ord(c) > 127 and c.isprintable() and not c.isspace()}
    return "".join(c if c in kept else quote(c, safe=_PLAIN) for c in path)
