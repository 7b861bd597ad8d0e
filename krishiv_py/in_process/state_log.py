"""The state of a query that runs in this process: in memory, with what a micro-batch changed, and on disk as a log of that.

A file holds what its batch changed, so a commit costs what the batch brings, not what is open. Its last write is the commit
of the batch: a batch whose file is not there did not happen, and is repeated.

    state/000000000007.state   header, then the values that batch 7 wrote or took out
    state/000000000008.state
    state/chunks/8-1f0c…       a value above 64 KB; the log has its name, size and checksum

Old values are in the way after a while. So each commit takes the oldest file, if what is still valid in it is small next to
what the batch writes, copies that into its own file and removes the old one: a log cleaner that is paid for by the batch.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.kernels.state.store import MemoryStore
from krishiv_py.runtime.storage.chunk_files import chunk_of, encode, file_value, write_chunk
from krishiv_py.storage.checksums import damaged, missing, sealed, unsealed
from krishiv_py.storage.files import store_at
from krishiv_py.storage.store import Store

Key: TypeAlias = tuple[int, str, str]
"""The number of a stage, ``table`` or ``page`` as :func:`of_bucket` says it, and a name."""

TABLE: Final = "table"
PAGE: Final = "page"


def of_bucket(kind: str, bucket: int) -> str:
    """Return what a kind of value is called in a key, for a bucket of the stage: the first one adds nothing."""
    return f"{kind}.{bucket}" if bucket else kind


WAY_OUT: Final = (
    "it is a piece of the query's state: put it back from a copy of the checkpoint, or start with a new checkpoint and a new "
    "output folder"
)
_LARGE: Final = 64 << 10
_NAME: Final = re.compile(r"([0-9]{12})\.state")
_FILES_KEPT: Final = 8
_LARGEST_BUDGET: Final = 1 << 26
_ALLOWANCE: Final = 4 << 10
"""Bytes that each batch may copy out of old files, in addition to twice what it writes."""


@attrs.define(eq=False)
class ChangedStore(MemoryStore):
    """Tables in memory, and the names of those that were written or removed since the last commit."""

    changed: set[str] = attrs.field(factory=set, init=False)

    def put(self, name: str, table: pa.Table) -> None:
        """See :class:`~krishiv_py.kernels.state.store.ChunkStore`."""
        MemoryStore.put(self, name, table)
        self.changed.add(name)

    def delete(self, name: str) -> None:
        """See :class:`~krishiv_py.kernels.state.store.ChunkStore`."""
        MemoryStore.delete(self, name)
        self.changed.add(name)


@attrs.define(eq=False)
class ChangedPages:
    """Pages of large maps as bytes, and the names of those that were written or removed since the last commit."""

    notes: dict[str, bytes] = attrs.field(factory=dict)
    changed: set[str] = attrs.field(factory=set, init=False)

    def read(self, name: str) -> Any:
        """See :class:`~krishiv_py.kernels.state.store.Pages`."""
        return json.loads(self.notes[name])

    def write(self, name: str, note: Any) -> None:
        """See :class:`~krishiv_py.kernels.state.store.Pages`."""
        self.notes[name] = json.dumps(note, separators=(",", ":")).encode()
        self.changed.add(name)

    def remove(self, name: str) -> None:
        """See :class:`~krishiv_py.kernels.state.store.Pages`."""
        del self.notes[name]
        self.changed.add(name)


@attrs.define(eq=False)
class _File:
    """One file of the log, with the place of each value in it that is still valid."""

    number: int
    valid: dict[Key, tuple[int, int]] = attrs.field(factory=dict)
    nbytes: int = 0


@attrs.define(eq=False)
class StateLog:
    """The log of one query.

    Attributes
    ----------
    folder : str
        Where it is, below the checkpoint.
    durable : bool
        Whether a commit must survive a loss of power.
    last : int
        The number of the last committed micro-batch; -1 before the first.
    """

    folder: str
    durable: bool = False
    last: int = -1
    _files: deque[_File] = attrs.field(factory=deque)
    _where: dict[Key, _File] = attrs.field(factory=dict)
    _chunks: dict[Key, str] = attrs.field(factory=dict)
    _budget: int = 0

    def load(self, *, only_read: bool = False) -> tuple[dict[Key, bytes], dict[str, Any] | None]:
        """Read the state after the last committed micro-batch, and clear away what is of no use, unless it is `only_read`.

        Returns
        -------
        tuple of dict and (dict or None)
            The values by their keys, and what the last commit noted with them; None before the first.

        Raises
        ------
        CheckpointError
            When a file is damaged or missing; names it.
        """
        store, root = store_at(self.folder)
        if not only_read:
            store.make_folder(root)
            store.make_folder(f"{root}/chunks")
        files = store.entries(root)
        numbers = sorted(int(m[1]) for f in files if (m := _NAME.fullmatch(f.base_name)))
        values: dict[Key, bytes] = {}
        note: dict[str, Any] | None = None
        first = self._read(store, root, numbers[-1])[2] if numbers else 0
        for number in [n for n in numbers if n < first]:  # a process that died did not remove them
            if not only_read:
                store.delete(self._path(root, number))
            numbers.remove(number)
        for i, number in enumerate(numbers):
            if number != numbers[0] + i:
                raise missing(self._path(root, numbers[0] + i), WAY_OUT)
            entries, note, _ = self._read(store, root, number)
            file = _File(number)
            self._files.append(file)
            for key, offset, value in entries:
                self._place(key, file, None if value is None else (offset, len(value)))
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
        if numbers and first < numbers[0]:
            raise missing(self._path(root, numbers[0] - 1), WAY_OUT)
        self.last = numbers[-1] if numbers else -1
        self._chunks = {key: _chunk_name(value) for key, value in values.items() if value.startswith(b"file:")}
        if not only_read:
            self._remove_orphans(store, root)
        return values, note

    def value_of(self, table: pa.Table, number: int) -> bytes:
        """Return what the log holds for a table of batch `number`: its bytes, or the name of a file with them."""
        if table.nbytes < _LARGE:
            return encode(table)
        store, root = store_at(self.folder)
        name = f"{number}-{uuid.uuid4().hex[:12]}"
        path = f"{root}/chunks/{name}"
        size, check = write_chunk(store, path, table)
        if self.durable:
            store.sync(path, f"{root}/chunks")
        return file_value(f"{name}.{size:x}.{check:08x}")

    def table_of(self, value: bytes) -> pa.Table:
        """Return the table of a value of :meth:`load`."""
        return chunk_of(value, f"{self.folder}/chunks")

    def commit(self, number: int, changed: Mapping[Key, bytes | None], note: dict[str, Any]) -> None:
        """Commit micro-batch `number`: values that it `changed`, None for those it took out, and a `note` with them."""
        store, root = store_at(self.folder)
        entries, over = dict(changed), list[_File]()
        written = sum(len(value) for value in changed.values() if value is not None)
        most = max(self._files[0].nbytes, _LARGEST_BUDGET) if self._files else _LARGEST_BUDGET
        self._budget = min(self._budget + 2 * written + _ALLOWANCE, most)
        copied: dict[Key, bytes] = {}
        while len(self._files) - len(over) > _FILES_KEPT:
            oldest = self._files[len(over)]
            if oldest.nbytes > self._budget:  # at the most what this batch replaces is less
                break
            still = {key: place for key, place in oldest.valid.items() if key not in changed}
            size = sum(n for _, n in still.values())
            self._budget -= size
            over.append(oldest)
            if still:
                body = self._body(store, root, oldest.number)
                copied |= {key: body[offset : offset + n] for key, (offset, n) in still.items()}
        entries = {**copied, **entries}
        first = self._files[len(over)].number if len(over) < len(self._files) else number
        dropped = [name for key in changed if (name := self._chunks.get(key)) is not None]
        places = self._write(store, root, number, entries, note, first)
        file = _File(number)
        self._files.append(file)
        for key, value in entries.items():
            self._place(key, file, places.get(key))
            if value is not None and value.startswith(b"file:"):
                self._chunks[key] = _chunk_name(value)
            else:
                self._chunks.pop(key, None)
        self.last = number
        for old in over:
            self._files.popleft()
            store.delete(self._path(root, old.number))
        for name in dropped:
            store.delete(f"{root}/chunks/{name}")

    def _place(self, key: Key, file: _File, place: tuple[int, int] | None) -> None:
        before = self._where.pop(key, None)
        if before is not None:
            before.nbytes -= before.valid.pop(key)[1]
        if place is not None:
            file.valid[key] = place
            file.nbytes += place[1]
            self._where[key] = file

    def _write(
        self,
        store: Store,
        root: str,
        number: int,
        entries: Mapping[Key, bytes | None],
        note: dict[str, Any],
        first: int,
    ) -> dict[Key, tuple[int, int]]:
        listed = [[*key, -1 if value is None else len(value)] for key, value in entries.items()]
        head = json.dumps({"entries": listed, "first": first, "note": note}, separators=(",", ":")).encode()
        places, offset = dict[Key, tuple[int, int]](), len(head) + 1
        for key, value in entries.items():
            if value is not None:
                places[key] = offset, len(value)
                offset += len(value)
        body = b"".join([head, b"\n", *(value for value in entries.values() if value is not None)])
        store.write(self._path(root, number), sealed(body), durable=self.durable)
        return places

    def _read(self, store: Store, root: str, number: int) -> tuple[list[tuple[Key, int, bytes | None]], dict[str, Any], int]:
        body = self._body(store, root, number)
        head, _, _ = body.partition(b"\n")
        try:
            noted = json.loads(head)
            entries, offset = list[tuple[Key, int, bytes | None]](), len(head) + 1
            for stage, kind, name, size in noted["entries"]:
                entries.append(((stage, kind, name), offset, None if size < 0 else body[offset : offset + size]))
                offset += max(size, 0)
            return entries, noted["note"], noted["first"]
        except (KeyError, TypeError, ValueError) as problem:
            raise damaged(self._path(root, number), "a header that cannot be read", WAY_OUT) from problem

    def _body(self, store: Store, root: str, number: int) -> bytes:
        path = self._path(root, number)
        data = store.read(path)
        if data is None:
            raise missing(path, WAY_OUT)
        return unsealed(data, path, WAY_OUT)

    def _remove_orphans(self, store: Store, root: str) -> None:
        """Remove chunks that no state names: a process that died left them."""
        known = set(self._chunks.values())
        for file in store.entries(f"{root}/chunks"):
            if file.base_name not in known:
                store.delete(file.path)

    @staticmethod
    def _path(root: str, number: int) -> str:
        return f"{root}/{number:012d}.state"


def _chunk_name(value: bytes) -> str:
    return value.removeprefix(b"file:").decode().partition(".")[0]
