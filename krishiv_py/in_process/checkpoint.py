"""The checkpoint of a query that runs in this process: what a micro-batch reads, and then what it changed of the state.

A batch is planned on disk before it runs, so that a repeated batch is the same. Its file of the state commits it.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa
from typing_extensions import NotRequired, TypedDict

from krishiv_py.errors import CheckpointError
from krishiv_py.kernels.state.store import MemoryStore
from krishiv_py.runtime.checkpoint.notes import ClocksNote
from krishiv_py.runtime.checkpoint.sparklog import as_noted, batches_of, checked_lines, logged_offsets, numbered, plan_of
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT, chunk_of, file_value, write_chunk
from krishiv_py.storage.checksums import damaged, encode, missing, sealed, unsealed
from krishiv_py.storage.files import store_at
from krishiv_py.storage.notes import in_shape, no_folder, reading
from krishiv_py.storage.store import Store

_KEPT: Final = 20
_OURS: Final = "krishiv"


@attrs.frozen
class PlannedBatch:
    """A micro-batch that was planned.

    Attributes
    ----------
    number : int
        Its number, from 0.
    now_us : int
        The clock when it began, µs since the epoch.
    taken : dict
        The last entry of the range log that each source has given so far, by the place of the source.
    ended, snapshot : bool
        Whether the input counts as ended after it, and whether it shows what is open.
    ranges : dict
        The entry that each source has given last, the position after it and its ranges, for sources whose log is here.
    """

    number: int
    now_us: int
    taken: dict[int, int]
    ended: bool = False
    snapshot: bool = False
    ranges: Mapping[int, tuple[int, str, Sequence[str]]] = attrs.field(factory=dict)


class _OfBatch(TypedDict):
    """The part of a batch's plan that is not in Spark's form."""

    now_us: int
    ended: bool
    snapshot: bool


class _StageNote(TypedDict):
    """The note of a stage: facts of its buckets next to tables, open windows and rows, counters, and what it handed on."""

    meta: dict[str, Any]
    others: NotRequired[list[dict[str, Any]]]
    open: list[int]
    counters: dict[str, int]
    left: dict[str, int]
    handed: list[Any]


class _Commit(TypedDict):
    """The note of a commit, next to the values of state."""

    stages: list[_StageNote]
    clocks: ClocksNote
    before: list[int]
    advances: int
    taken: dict[str, int]


class _Head(TypedDict):
    """The head of a file of state: its batch, its values and their sizes, the first file that the state needs, and a note."""

    number: NotRequired[int]
    entries: list[list[Any]]
    first: int
    note: _Commit


@attrs.frozen
class BatchLog:
    """The log of planned and finished batches in a checkpoint.

    The plan of a batch is ``offsets/<batch>``, as Spark writes it for a query, so that everything that reads a checkpoint reads
    both kinds. It also holds what each source gives, where that has no log of its own: the newest plan says it of all of them.
    The file of the state commits the batch; ``commits/<batch>`` is written when the query ends.
    """

    checkpoint: str
    sources: int
    durable: bool = False
    kept: int = 0
    """The number of last batches that can be gone back to."""

    def begin(self) -> None:
        """Make the folders."""
        for name in ("offsets", "commits"):
            store, path = store_at(f"{self.checkpoint}/{name}")
            store.make_folder(path)

    def plan(self, batch: PlannedBatch) -> None:
        """Note a batch before it runs."""
        head = {"batchWatermarkMs": 0, "batchTimestampMs": batch.now_us // 1_000, "conf": {}}
        ours = {"now_us": batch.now_us, "ended": batch.ended, "snapshot": batch.snapshot, **as_noted(batch.ranges)}
        given = (batch.taken.get(index) for index in range(self.sources))
        lines = ["-" if number is None else json.dumps({"logOffset": number}, separators=(",", ":")) for number in given]
        old = batch.number - 1 - max(_KEPT, self.kept + 1)  # of those kept, the one before them says where their sources began
        self._write("offsets", batch.number, plan_of(batch.number, head, ours, lines), old if old >= 0 else None)

    def commit(self, number: int) -> None:
        """Note that a batch is finished, when the query ends: then a file of its state that is lost is missed."""
        self._write("commits", number, b'v1\n{"nextBatchWatermarkMs":0}')
        store, root = store_at(f"{self.checkpoint}/commits")
        for earlier in numbered(store, root)[:-1]:
            store.delete(f"{root}/{earlier}")

    def last_planned(self) -> PlannedBatch | None:
        """Return the batch that was planned last.

        Raises
        ------
        CheckpointError
            When its entry is damaged.
        """
        numbers = batches_of(self.checkpoint)
        return self.planned(numbers[-1]) if numbers else None

    def planned(self, number: int) -> PlannedBatch:
        """Return a batch that was planned.

        Raises
        ------
        CheckpointError
            When its entry is damaged or missing.
        """
        store, path = store_at(f"{self.checkpoint}/offsets/{number}")
        lines = checked_lines(store, path)
        with reading(path, NEW_CHECKPOINT):
            ours = in_shape(json.loads(lines[1])[_OURS], _OfBatch)
            return PlannedBatch(number, ours["now_us"], logged_offsets(lines, path), ours["ended"], ours["snapshot"])

    def is_committed(self, number: int) -> bool:
        """Return whether a batch is noted as finished."""
        store, path = store_at(f"{self.checkpoint}/commits/{number}")
        return store.is_file(path)

    def _write(self, name: str, number: int, data: bytes, old: int | None = None) -> None:
        store, folder = store_at(f"{self.checkpoint}/{name}")
        over = None if old is None else f"{folder}/{old}"
        store.write_over(over, f"{folder}/{number}", data, durable=self.durable)


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
_SPARE: Final = 2
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


Entries: TypeAlias = list[tuple[Key, int, bytes | None]]
"""The values of a file with the place of each; None for one that was taken out."""


@attrs.define(eq=False)
class StateLog:
    """The log of what micro-batches changed of the state of a query.

    A file holds what its batch changed, so a commit costs what the batch brings, not what is open. Its last write is the commit
    of the batch: a batch whose file is not there did not happen, and is repeated.

        state/000000000007.state   header, then the values that batch 7 wrote or took out
        state/000000000008.state
        state/000000000005.spare   a file that is needed no longer, which a next batch writes over: see Store.write_over
        state/chunks/8-1f0c…       a value above 64 KB; the log has its name, size and checksum

    Old values are in the way after a while. So each commit takes the oldest file, if what is still valid in it is small next to
    what the batch writes, copies that into its own file and removes the old one: a log cleaner that is paid for by the batch. A
    query that keeps its last batches removes what their states need only when it has run so many more.

    Attributes
    ----------
    folder : str
        Where it is, below the checkpoint.
    durable : bool
        Whether a commit must survive a loss of power.
    kept : int
        How many of the last batches can be gone back to, to the state before them.
    last : int
        The number of the last committed micro-batch; -1 before the first.
    """

    folder: str
    durable: bool = False
    kept: int = 0
    last: int = -1
    _files: deque[_File] = attrs.field(factory=deque)
    _where: dict[Key, _File] = attrs.field(factory=dict)
    _chunks: dict[Key, str] = attrs.field(factory=dict)
    _budget: int = 0
    _retired: deque[tuple[int, list[str]]] = attrs.field(factory=deque)
    """Files that the state after a batch, and those after it, no longer need, by the number of the batch."""
    _spare: deque[str] = attrs.field(factory=deque)
    """Files that no state needs, for the next commits to write over."""

    def load(self, *, only_read: bool = False, after: int | None = None) -> tuple[dict[Key, bytes], dict[str, Any] | None]:
        """Read the state after the last committed micro-batch, and clear away what is of no use, unless it is `only_read`.

        Parameters
        ----------
        only_read : bool
            Whether nothing is removed.
        after : int, optional
            Read the state after this batch instead; with `only_read`.

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
        there = self._numbers(store, root)
        if after is not None:
            there = [number for number in there if number <= after]
            if after not in there:
                raise missing(self._path(root, after), WAY_OUT)
        values: dict[Key, bytes] = {}
        note: dict[str, Any] | None = None
        first = self._read(store, root, there[-1])[2] if there else 0
        numbers = [number for number in there if number >= first]
        read = list[tuple[int, Entries, int]]()
        for i, number in enumerate(numbers):
            if number != numbers[0] + i:
                raise missing(self._path(root, numbers[0] + i), WAY_OUT)
            entries, note, begins = self._read(store, root, number)
            if self.kept:
                read.append((number, entries, begins))
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
            self._clear(store, root, [number for number in there if number < first], read)
        return values, note

    def whole(self) -> list[int]:
        """Return the batches after which the state can still be read, ascending.

        Raises
        ------
        CheckpointError
            When a file is damaged, or is removed meanwhile.
        """
        store, root = store_at(self.folder)
        there = {file.base_name for file in store.entries(f"{root}/chunks")}
        whole, begun, chunks = list[int](), 0, dict[Key, str]()
        for last, number in pairwise([-1, *self._numbers(store, root)]):
            if number != last + 1:
                begun, chunks = number, {}
            entries, _, first = self._read(store, root, number)
            _follow(chunks, entries)
            if first >= begun and there.issuperset(chunks.values()):
                whole.append(number)
        return whole

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
        self._retire(
            store, [self._path(root, self._files.popleft().number) for _ in over], [f"{root}/chunks/{n}" for n in dropped]
        )

    def _retire(self, store: Store, files: list[str], chunks: list[str]) -> None:
        """Remove what the last state needs no longer: at once, or when no state that is kept needs it."""
        if files or chunks:
            self._retired.append((self.last, files + chunks))
        while self._retired and self._retired[0][0] <= self.last - self.kept:
            for path in self._retired.popleft()[1]:
                if store.local and path.endswith(".state") and len(self._spare) < _SPARE:
                    spare = f"{path.removesuffix('.state')}.spare"
                    with contextlib.suppress(FileNotFoundError):
                        store.rename([(path, spare)])
                        self._spare.append(spare)
                else:
                    store.delete(path)

    def _place(self, key: Key, file: _File, place: tuple[int, int] | None) -> None:
        before = self._where.pop(key, None)
        if before is not None:
            before.nbytes -= before.valid.pop(key)[1]
        if place is not None:
            file.valid[key] = place
            file.nbytes += place[1]
            self._where[key] = file

    def _write(
        self, store: Store, root: str, number: int, entries: Mapping[Key, bytes | None], note: dict[str, Any], first: int
    ) -> dict[Key, tuple[int, int]]:
        listed = [[*key, -1 if value is None else len(value)] for key, value in entries.items()]
        noted = {"number": number, "entries": listed, "first": first, "note": note}
        head = json.dumps(noted, separators=(",", ":")).encode()
        places, offset = dict[Key, tuple[int, int]](), len(head) + 1
        for key, value in entries.items():
            if value is not None:
                places[key] = offset, len(value)
                offset += len(value)
        body = b"".join([head, b"\n", *(value for value in entries.values() if value is not None)])
        over = self._spare.popleft() if self._spare else None
        store.write_over(over, self._path(root, number), sealed(body), durable=self.durable)
        return places

    def _read(self, store: Store, root: str, number: int) -> tuple[Entries, dict[str, Any], int]:
        body = self._body(store, root, number)
        head, _, _ = body.partition(b"\n")
        with reading(self._path(root, number), WAY_OUT):
            noted = in_shape(json.loads(head), _Head)
            if noted.get("number", number) != number:  # files of earlier versions do not say it
                raise damaged(self._path(root, number), f"the file of batch {noted['number']}", WAY_OUT)
            entries, offset = Entries(), len(head) + 1
            for stage, kind, name, size in noted["entries"]:
                key = in_shape(stage, int), in_shape(kind, str), in_shape(name, str)
                entries.append((key, offset, None if size < 0 else body[offset : offset + size]))
                offset += max(size, 0)
            return entries, {**noted["note"]}, noted["first"]

    def _body(self, store: Store, root: str, number: int) -> bytes:
        path = self._path(root, number)
        with no_folder(path, WAY_OUT):
            data = store.read(path)
        if data is None:
            raise missing(path, WAY_OUT)
        return unsealed(data, path, WAY_OUT)

    def _clear(self, store: Store, root: str, older: Sequence[int], read: list[tuple[int, Entries, int]]) -> None:
        """Remove what no state needs that can be gone back to: a process that died left it.

        Parameters
        ----------
        older : sequence of int
            The files before those that the last state needs.
        read : list of tuple
            These files, where earlier states are kept: number, values, and the first file that the state after it needs.
        """
        begins, number = {number: first for number, _, first in read}, older[-1] if older else -1
        while self.kept and number in older and number >= begins.get(self.last - self.kept, 0):
            try:
                entries, _, begins[number] = self._read(store, root, number)
            except CheckpointError:  # the query goes on without it, and what came before it cannot be gone back to
                break
            read.insert(0, (number, entries, begins[number]))
            number -= 1
        store.delete(*(self._path(root, n) for n in older if n <= number))
        self._spare.extend(file.path for file in store.entries(root) if file.base_name.endswith(".spare"))
        chunks, waiting = dict[Key, str](), deque[int]()
        for number, entries, first in read:
            files = list[str]()
            while waiting and waiting[0] < first:
                files.append(self._path(root, waiting.popleft()))
            waiting.append(number)
            dropped = [f"{root}/chunks/{name}" for name in _follow(chunks, entries)]
            if files or dropped:
                self._retired.append((number, files + dropped))
        known = {*self._chunks.values(), *(path.rpartition("/")[2] for _, paths in self._retired for path in paths)}
        orphans = [file.path for file in store.entries(f"{root}/chunks") if file.base_name not in known]
        store.delete(*orphans)
        self._retire(store, [], [])

    @staticmethod
    def _numbers(store: Store, root: str) -> list[int]:
        return sorted(int(m[1]) for f in store.entries(root) if (m := _NAME.fullmatch(f.base_name)))

    @property
    def path(self) -> str:
        """Return the file of the last commit."""
        return self._path(self.folder, self.last)

    @staticmethod
    def _path(root: str, number: int) -> str:
        return f"{root}/{number:012d}.state"


def _follow(chunks: dict[Key, str], entries: Entries) -> list[str]:
    """Bring the `chunks` that values are in up to date with a file; gives those that it put others in the place of."""
    dropped = list[str]()
    for key, _, value in entries:
        before = chunks.pop(key, None)
        if value is not None and value.startswith(b"file:"):
            chunks[key] = _chunk_name(value)
        if before is not None and before != chunks.get(key):
            dropped.append(before)
    return dropped


def _chunk_name(value: bytes) -> str:
    return value.removeprefix(b"file:").decode().partition(".")[0]
