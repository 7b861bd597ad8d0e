"""Keys that ``query.close_key`` closes: all tasks of a micro-batch forget the same ones, also when the batch is repeated.

A call writes a request into the checkpoint. When a batch begins, the driver notes in the checkpoint which requests it takes,
before the tasks run, and lets them know that there is such a note. They wake the buckets of these keys, which forget
them before they take the rows of the batch. A batch without rows runs no task that could wake a bucket: then the next
one takes the requests. A batch that is repeated after a crash finds its own note, or takes none if it had none.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs
import pyarrow as pa
from typing_extensions import NotRequired, TypedDict

from krishiv_py.arrays.grouping import buckets, normal_key
from krishiv_py.arrays.ranges import split
from krishiv_py.errors import CheckpointError, failure_text
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT
from krishiv_py.storage.checksums import as_text, encode, from_text, missing
from krishiv_py.storage.files import store_at
from krishiv_py.storage.notes import no_folder, reading
from krishiv_py.storage.store import Store

CLOSED: Final = "closed"
"""Rows that say that the tasks of a batch have seen its note."""
_REQUESTS: Final = "closing"
_NOTE: Final = "closed_keys.json"


class ClosedKeys(TypedDict):
    """The note of the last batch that closed keys: as texts by the number of the stage, and those of batches before it."""

    batch: int
    seen: bool
    requests: list[str]
    keys: dict[str, list[str]]
    earlier: NotRequired[dict[str, dict[str, list[str]]]]


def request(checkpoint: str, keys: Mapping[int, pa.Table], *, durable: bool) -> None:
    """Write a request to close keys, by the number of the stage that is to forget them.

    Raises
    ------
    CheckpointError
        When the checkpoint cannot be written to; then the keys are not closed.
    """
    try:
        store, path = _place(checkpoint, f"{_REQUESTS}/{uuid.uuid4().hex}.json")
        store.write_note(path, {str(stage): [as_text(table)] for stage, table in keys.items()}, durable=durable)
    except OSError as problem:
        hint = "see to the space and rights of the checkpoint's folder, and call close_key(...) again"
        got = f"{checkpoint}: {failure_text(problem)}"
        raise CheckpointError("the keys to close could not be noted", got=got, then="they stay open", hint=hint) from problem


@attrs.define(eq=False)
class Closings:
    """Holds what the driver of a query does with the requests.

    Attributes
    ----------
    checkpoint : str
        The checkpoint of the query.
    durable : bool
        Whether what is written must survive a loss of power.
    begun : int
        The last micro-batch that was begun in an earlier run: it and those before were tried already.
    requested : threading.Event
        Set when there may be requests; None where another process writes them, so that each batch looks.
    kept : int
        Of how many of the last batches it stays noted which keys they closed.
    """

    checkpoint: str
    durable: bool = False
    begun: int = -1
    requested: threading.Event | None = None
    kept: int = 0
    _note: ClosedKeys | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._note = _read_note(self.checkpoint)
        if self.requested is not None:
            self.requested.set()  # an earlier run may have left some

    def again(self, begun: int) -> Closings:
        """Return the requests as a new process has them, whose query goes on after a batch that has `begun`."""
        return Closings(self.checkpoint, self.durable, begun, self.requested, self.kept)

    def begin(self, batch: int) -> bool:
        """Note what a batch takes, before its tasks run; gives whether there is anything, which tasks are to know.

        Raises
        ------
        CheckpointError
            When a request is damaged.
        """
        if self._note is None or self._note["batch"] != batch:
            taken = self._waiting() if batch > self.begun else {}
            if not taken:
                return False
            self._forget_done()
            earlier = self._earlier(batch)
            keys = _merged(taken)
            self._write({"batch": batch, "seen": False, "requests": sorted(taken), "keys": keys, "earlier": earlier})
        return True

    def _earlier(self, batch: int) -> dict[str, dict[str, list[str]]]:
        """Return the keys that the batches before `batch` closed which stay noted, by the number of the batch."""
        known = {} if self._note is None else _closed_by_batch(self._note)
        return {number: keys for number, keys in known.items() if int(number) > batch - self.kept}

    def published(self, batch: int, kinds: set[str]) -> None:
        """A batch is published; `kinds` of the rows that its tasks gave say whether they saw the note.

        What it took is done before Spark marks the batch as done. Until then the note keeps the keys for a repetition.
        """
        if self._note is None or self._note["batch"] != batch:
            return
        if CLOSED in kinds:
            self._write({**self._note, "seen": True})
            self._forget_done()
        elif self.requested is not None:
            self.requested.set()

    def _waiting(self) -> dict[str, dict[str, list[str]]]:
        """Return the requests that no batch has done, by name."""
        if self.requested is not None:
            if not self.requested.is_set():
                return {}
            self.requested.clear()  # before looking: what is written from now on sets it again
        store, folder = _place(self.checkpoint, _REQUESTS)
        listed = store.entries(folder)
        names = sorted({f.base_name for f in listed if f.base_name.endswith(".json")} - self._done)
        shape, requests = dict[str, list[str]], dict[str, dict[str, list[str]]]()
        for name in names:
            requests[name] = store.read_note(f"{folder}/{name}", shape, NEW_CHECKPOINT, needed=True) or {}
        return requests

    @property
    def _done(self) -> set[str]:
        """The requests that the last batch with any has done; their files may be there still."""
        return set(self._note["requests"]) if self._note is not None and self._note["seen"] else set()

    def _forget_done(self) -> None:
        for name in self._done:
            store, path = _place(self.checkpoint, f"{_REQUESTS}/{name}")
            with no_folder(path, NEW_CHECKPOINT):
                store.delete(path)

    def _write(self, note: ClosedKeys) -> None:
        store, path = _place(self.checkpoint, _NOTE)
        store.write_note(path, note, durable=self.durable)
        self._note = note


def carry_requests(checkpoint: str, to: str) -> None:
    """Let the requests that no batch of a checkpoint has done wait in another checkpoint."""
    for name, keys in Closings(checkpoint)._waiting().items():
        store, path = _place(to, f"{_REQUESTS}/{name}")
        store.write_note(path, keys, durable=True)


def noted_keys(checkpoint: str, batch: int) -> dict[int, pa.Table]:
    """In a task: the keys that a batch closes, by the number of the stage; for batches that have a note.

    Raises
    ------
    CheckpointError
        When the note of the batch is damaged or lost.
    """
    note = _read_note(checkpoint)
    if note is None or note["batch"] != batch:
        raise missing(f"the note of the keys that batch {batch} closes in {checkpoint}", NEW_CHECKPOINT)
    return {int(stage): keys_as_table(texts) for stage, texts in note["keys"].items()}


def closed_in(checkpoint: str, batch: int) -> dict[str, list[str]]:
    """Return the keys that a batch has closed, as texts by the number of the stage; known of the last batch with any.

    Those of earlier batches are known as far as the query keeps them.
    """
    note = _read_note(checkpoint)
    return {} if note is None else _closed_by_batch(note).get(str(batch), {})


def _closed_by_batch(note: ClosedKeys) -> dict[str, dict[str, list[str]]]:
    """Return what a note says of the batches that closed keys: the last one, and those before it that stay noted."""
    last = {str(note["batch"]): note["keys"]} if note["seen"] else {}
    return {**note.get("earlier", {}), **last}


def keys_as_table(texts: Iterable[str]) -> pa.Table:
    """Return keys of :func:`closed_in` as a table."""
    return pa.concat_tables(map(from_text, texts))


def by_bucket(keys: pa.Table, bucket_ids: tuple[int, ...]) -> Iterator[tuple[int, bytes]]:
    """Yield the keys of each bucket, encoded."""
    columns: list[pa.Array | pa.ChunkedArray] = [normal_key(c.combine_chunks()) for c in keys.columns]
    bucket_of_row = buckets(columns, keys.num_rows, len(bucket_ids))
    for number, part in split(keys, bucket_of_row):
        yield bucket_ids[number], encode(part.combine_chunks())


def _merged(requests: Mapping[str, Mapping[str, list[str]]]) -> dict[str, list[str]]:
    merged: dict[str, list[str]] = {}
    for keys in requests.values():
        for stage, texts in keys.items():
            merged.setdefault(stage, []).extend(texts)
    return merged


def _read_note(checkpoint: str) -> ClosedKeys | None:
    """Return the note of the last batch that closed keys; None before the first."""
    store, path = _place(checkpoint, _NOTE)
    note = store.read_note(path, ClosedKeys, NEW_CHECKPOINT)
    with reading(path, NEW_CHECKPOINT):
        for number in () if note is None else (*note["keys"], *note.get("earlier", {})):
            int(number)
    return note


def _place(checkpoint: str, name: str) -> tuple[Store, str]:
    return store_at(f"{checkpoint}/krishiv/{name}")
