"""Spark's own files of a checkpoint, looked at before a query goes on from them.

Spark trusts what it finds: with an entry of a source's log gone it reads a file a second time, with all planned batches gone it
begins again over the state there is, and a changed digit of the watermark is a changed watermark. On local folders Hadoop keeps
checksums next to the files; they are checked here, where the error can name the file, and the files are checked against each
other, which needs no checksum. State is checked when it is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from krishiv_py.errors import CheckpointError
from krishiv_py.runtime.checkpoint.sparklog import entries_in, logged_offsets, numbered
from krishiv_py.runtime.storage.hadoopsums import NEW_CHECKPOINT, checked, checked_lines
from krishiv_py.storage.checksums import damaged, missing
from krishiv_py.storage.files import store_at
from krishiv_py.storage.store import Store

_DESCRIBED: Final = ("_metadata", "_stateSchema")
"""Where Spark describes an operator's state: a few small files."""


def check_log(checkpoint: str, sources: int) -> None:
    """See that Spark's log is whole: planned and finished micro-batches, what sources wrote down, the query's identity.

    `sources` is how many the query has; its log may have one more, for control files.

    Raises
    ------
    CheckpointError
        Naming the file that is damaged or missing.
    """
    store, root = store_at(checkpoint)
    batches, finished = numbered(store, f"{root}/offsets"), numbered(store, f"{root}/commits")
    if not batches:
        if finished or _has_state(store, root):
            raise missing(f"{root}/offsets", NEW_CHECKPOINT)
        return
    last = batches[-1]
    _check_identity(store, f"{root}/metadata")
    if finished and finished[-1] > last:
        raise missing(f"{root}/offsets/{finished[-1]}", NEW_CHECKPOINT)
    if last and last - 1 not in batches:
        raise missing(f"{root}/offsets/{last - 1}", NEW_CHECKPOINT)
    lines = checked_lines(store, f"{root}/offsets/{last}")
    watermark = _number(lines, "batchWatermarkMs", f"{root}/offsets/{last}")
    if len(lines) - 2 not in (sources, sources + 1):
        raise CheckpointError(
            f"{root}/offsets/{last} is of a query with another number of sources, or damaged",
            got=f"{len(lines) - 2}, now {sources}",
            hint=NEW_CHECKPOINT,
        )
    for batch in finished[-2:]:
        path = f"{root}/commits/{batch}"
        reached = _number(checked_lines(store, path), "nextBatchWatermarkMs", path)
        if batch == last - 1 and reached != watermark:
            raise damaged(path, f"watermark {reached}, which the next batch has as {watermark}", NEW_CHECKPOINT)
    for at, upto in logged_offsets(lines, f"{root}/offsets/{last}").items():
        _check_source(store, f"{root}/sources/{at}", upto)
    for operator in store.entries(f"{root}/state"):
        for name in _DESCRIBED:
            for path in _damaged_files(store, f"{operator.path}/{name}"):
                raise damaged(path, "a wrong checksum", NEW_CHECKPOINT)


def damaged_state(checkpoint: str) -> str | None:
    """The first file of state that is not what its checksum says, for an error of Spark's that does not name it."""
    store, root = store_at(checkpoint)
    return next(_damaged_files(store, f"{root}/state"), None)


def _damaged_files(store: Store, folder: str) -> Iterator[str]:
    """The files below a folder that are there and not what their checksums say; Spark reads state without a look at them."""
    found = store.entries(folder, recursive=True)
    for path in sorted(f.path for f in found if f.is_file and not f.base_name.startswith(".")):
        try:
            checked(store, path)
        except CheckpointError:
            yield path


def _has_state(store: Store, root: str) -> bool:
    found = store.entries(f"{root}/state", recursive=True)
    return any(f.is_file for f in found)


def _check_identity(store: Store, path: str) -> None:
    try:
        identity = json.loads(checked(store, path))["id"]
        if not isinstance(identity, str):
            raise TypeError
    except (KeyError, TypeError, ValueError) as problem:
        raise damaged(path, "no identity of a query", NEW_CHECKPOINT) from problem


def _check_source(store: Store, folder: str, upto: int) -> None:
    """The log of a file source: from its last compact entry on without a gap."""
    found = {f.base_name for f in store.entries(folder)}
    compact = [int(n.removesuffix(".compact")) for n in found if n.endswith(".compact") and not n.startswith(".")]
    begin = max((n for n in compact if n <= upto), default=0)
    for number in range(begin, upto + 1):
        name = f"{number}.compact" if number in compact else str(number)
        entries_in(checked_lines(store, f"{folder}/{name}"), f"{folder}/{name}")


def _number(lines: list[str], name: str, path: str) -> int:
    try:
        if lines[0] != "v1":
            raise ValueError
        found: Any = json.loads(lines[1])[name]
        return int(found)
    except (IndexError, KeyError, TypeError, ValueError) as problem:
        raise damaged(path, f"{len(lines)} lines without {name}", NEW_CHECKPOINT) from problem
