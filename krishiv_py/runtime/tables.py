"""The tables of lookup joins in a running query: one version for all tasks of a micro-batch, also when it is repeated.

When a batch begins, the driver (in process: the thread of the query) loads a table that is old enough. It writes the table
into the checkpoint before the tasks of the batch run, with a note of which batch has which version. A batch that is repeated
after a crash finds its own note. The note of the plan says that there is one, so that a note that was lost is not taken for one
that was never written.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Final

import attrs
import pyarrow as pa
from typing_extensions import NotRequired, TypedDict

from krishiv_py.connectors.lookup_table import LookupTable, tables_are
from krishiv_py.plan.running import TableVersion
from krishiv_py.planner.physical import table_names
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT
from krishiv_py.storage.checksums import checksum, damaged, decode, encode, missing, sealed, unsealed
from krishiv_py.storage.files import store_at
from krishiv_py.storage.store import Store

_NOTE: Final = "_in_use.json"


class VersionNote(TypedDict):
    """A version of a table: its file, the checksum of that, and the first batch that had it."""

    file: str
    sum: NotRequired[int]
    since: NotRequired[int]


class TableNote(VersionNote):
    """The version of a table that is in force, and those before it that are kept."""

    token: NotRequired[str]
    version: int
    loaded_us: int
    rows: int
    schema: str
    earlier: NotRequired[list[VersionNote]]


class TablesNote(TypedDict):
    """The tables of a batch, in the order of the plan."""

    batch: int
    tables: list[TableNote]


@attrs.define(eq=False)
class LookupTables:
    """The tables of a query, as its driver loads and keeps them.

    Attributes
    ----------
    checkpoint : str
        The checkpoint of the query.
    tables : tuple of LookupTable
        The tables, in the order of the plan.
    now : callable
        The clock of the query, µs.
    durable : bool
        Whether what is written must survive a loss of power.
    begun : int
        The last micro-batch that was begun in an earlier run: it and those before were tried already.
    on_record : callable
        Whether the plan note says that there is a note of tables.
    record : callable
        Let it say so.
    kept : int
        The versions that so many of the last batches had stay in the checkpoint.
    """

    checkpoint: str
    tables: tuple[LookupTable, ...]
    now: Callable[[], int]
    durable: bool = False
    begun: int = -1
    on_record: Callable[[], bool] = lambda: False
    record: Callable[[], None] = lambda: None
    kept: int = 0
    _loaded: list[pa.Table | None] = attrs.field(init=False)
    _entries: list[TableNote] | None = None
    _again: dict[str, pa.Table] = attrs.field(factory=dict)
    """Tables of a batch that is repeated, by their files: this process did not load them."""

    def __attrs_post_init__(self) -> None:
        self._loaded = [None for _ in self.tables]

    def again(self, begun: int) -> LookupTables:
        """Return the tables as a new process has them, whose query goes on after a batch that has `begun`."""
        return LookupTables(self.checkpoint, self.tables, self.now, self.durable, begun, self.on_record, self.record, self.kept)

    def begin(self, batch: int) -> dict[str, TableVersion]:
        """See that every table is there in the version of a batch, before its tasks run.

        Raises
        ------
        CheckpointError
            When it is damaged or lost which version a batch had that is repeated.
        SourceError
            When a table cannot be loaded.
        """
        if not self.tables:
            return {}
        noted = self._read_note(batch)
        entries = [] if noted is None else noted["tables"]
        known = [entry["schema"] for entry in entries] == [str(table.schema) for table in self.tables]
        if not known or noted is None or noted["batch"] != batch:
            before = entries if known else [None for _ in self.tables]
            entries = [self._current(number, entry, batch) for number, entry in enumerate(before)]
        entries = [{**entry, "token": table.token} for entry, table in zip(entries, self.tables, strict=True)]
        notes = {"batch": batch, "tables": entries}
        if notes != noted:
            store, path = _place(self.checkpoint, _NOTE)
            store.write_note(path, notes, durable=self.durable)
            if entries != self._entries:
                self._forget_others([each["file"] for entry in entries for each in versions_in(entry)])
        if self._entries is None:
            self.record()
        self._entries = entries
        files = [entry["file"] for entry in entries]
        self._again = {file: table for file, table in self._again.items() if file in files}
        versions = (TableVersion(entry["version"], entry["loaded_us"], entry["rows"]) for entry in entries)
        return dict(zip(table_names(self.tables), versions, strict=True))

    def name(self, token: str) -> str:
        """See :class:`~krishiv_py.connectors.lookup_table.Versions`; of the batch that began last."""
        file: str = self._entry(token)[1]["file"]
        return file

    def table(self, token: str) -> pa.Table:
        """See :class:`~krishiv_py.connectors.lookup_table.Versions`: as it was loaded, or as the note of the batch has it."""
        number, entry = self._entry(token)
        loaded = self._loaded[number]
        if loaded is not None:
            return loaded
        if entry["file"] not in self._again:
            self._again[entry["file"]] = read_version(self.checkpoint, entry)
        return self._again[entry["file"]]

    def _entry(self, token: str) -> tuple[int, TableNote]:
        return next((number, entry) for number, entry in enumerate(self._entries or ()) if entry["token"] == token)

    def _read_note(self, batch: int) -> TablesNote | None:
        """Return the last note, as far as it can tell which versions a batch had that is repeated."""
        noted = read_note(self.checkpoint)
        if noted is None:
            if self.on_record():
                raise missing(_place(self.checkpoint, _NOTE)[1], NEW_CHECKPOINT)
        elif noted["batch"] != batch <= self.begun:
            # what a note names is removed only once there is a later one, which was lost
            for entry in noted["tables"]:
                store, path = _place(self.checkpoint, entry["file"])
                if not store.is_file(path):
                    raise missing(path, NEW_CHECKPOINT)
        return noted

    def _current(self, number: int, entry: TableNote | None, batch: int) -> TableNote:
        """Return the note of a table as it was, or loaded again for a `batch`."""
        table, held, now_us = self.tables[number], self._loaded[number], self.now()
        if held is not None and entry is not None and not table.is_old(entry["loaded_us"], now_us):
            return entry
        loaded = table.loaded()
        if held is not None and entry is not None and held.equals(loaded):
            return {**entry, "loaded_us": now_us}
        self._loaded[number] = loaded
        file = f"{number}-{uuid.uuid4().hex[:12]}.arrow"
        store, path = _place(self.checkpoint, file)
        data = sealed(encode(loaded))
        store.write(path, data, durable=self.durable)
        changed = entry is None or entry.get("sum") != checksum(data)
        return {
            "file": file,
            "sum": checksum(data),
            "version": (0 if entry is None else entry["version"]) + changed,
            "since": batch if entry is None or changed else entry.get("since", batch),
            "loaded_us": now_us,
            "rows": loaded.num_rows,
            "schema": str(table.schema),
            "earlier": [] if entry is None else self._earlier(entry, batch) if changed else entry.get("earlier", []),
        }

    def _earlier(self, entry: TableNote, batch: int) -> list[VersionNote]:
        """Return the versions before the one that comes with a `batch` that batches which are kept had."""
        every = versions_in(entry)
        until = [*(one.get("since", 0) for one in every[1:]), batch]
        return [_version(one) for one, end in zip(every, until, strict=True) if end > batch - self.kept + 1]

    def _forget_others(self, files: list[str]) -> None:
        """Remove the versions that no batch will see any more."""
        store, folder = _place(self.checkpoint, "")
        for file in store.entries(folder.rstrip("/")):
            if file.base_name not in (*files, _NOTE) and file.is_file:
                store.delete(file.path)


@attrs.frozen(slots=False)
class TaskTables:
    """The tables of a micro-batch, from a task."""

    checkpoint: str
    batch: int

    @cached_property
    def entries(self) -> dict[str, TableNote]:
        """Return what the note says of each table, by its token."""
        note = read_note(self.checkpoint)
        if note is None or note["batch"] != self.batch:
            raise missing(f"the note of the tables of batch {self.batch} in {self.checkpoint}", NEW_CHECKPOINT)
        return {entry["token"]: entry for entry in note["tables"]}

    def name(self, token: str) -> str:
        """See :class:`~krishiv_py.connectors.lookup_table.Versions`."""
        name: str = self.entries[token]["file"]
        return name

    def table(self, token: str) -> pa.Table:
        """See :class:`~krishiv_py.connectors.lookup_table.Versions`."""
        return read_version(self.checkpoint, self.entries[token])


def read_version(checkpoint: str, entry: VersionNote) -> pa.Table:
    """Return the table of an entry of the note.

    Raises
    ------
    CheckpointError
        When its file is damaged or missing.
    """
    store, path = _place(checkpoint, entry["file"])
    data = store.read(path)
    if data is None:
        raise missing(path, NEW_CHECKPOINT)
    body = unsealed(data, path, NEW_CHECKPOINT)
    if entry.get("sum", checksum(data)) != checksum(data):  # a note of an early version has none
        raise damaged(path, f"{len(data)} bytes that are of another table, or of another version", NEW_CHECKPOINT)
    return decode(body)


def tables_of(checkpoint: str | None, batch: int | None) -> AbstractContextManager[None]:
    """Inside, rows are looked up in the tables of a micro-batch; without one, in what the process loads itself."""
    return tables_are(None if checkpoint is None or batch is None else TaskTables(checkpoint, batch))


def _version(entry: VersionNote) -> VersionNote:
    """Return the note of a version that another one has replaced."""
    version = VersionNote(file=entry["file"])
    if "sum" in entry:
        version["sum"] = entry["sum"]
    if "since" in entry:
        version["since"] = entry["since"]
    return version


def versions_in(entry: TableNote) -> list[VersionNote]:
    """Return the versions of a table that are in the checkpoint, by the entry of the note: the one in force is the last one."""
    return [*entry.get("earlier", ()), entry]


def versions_at(checkpoint: str, batch: int) -> list[VersionNote | None]:
    """Return the entries of the tables that a batch had, in the order of the plan; None for one that is not kept."""
    note = read_note(checkpoint)
    if note is None:
        return []
    known = [[one for one in versions_in(entry) if one.get("since", note["batch"]) <= batch] for entry in note["tables"]]
    return [versions[-1] if versions else None for versions in known]


def read_note(checkpoint: str) -> TablesNote | None:
    """Return which version of each table the last batch has; None before the first."""
    store, path = _place(checkpoint, _NOTE)
    return store.read_note(path, TablesNote, NEW_CHECKPOINT)


def _place(checkpoint: str, name: str) -> tuple[Store, str]:
    return store_at(f"{checkpoint}/krishiv/tables/{name}")
