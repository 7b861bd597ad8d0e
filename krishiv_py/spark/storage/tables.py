"""The tables of lookup joins in a running query: one version for all tasks of a micro-batch, also when it is repeated.

When a batch begins, the driver loads a table that is old enough. It writes the table into the checkpoint before the tasks of
the batch run, with a note of which batch has which version. A batch that is repeated after a crash finds its own note.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.connectors.lookup_table import LookupTable, as_bytes, tables_are
from krishiv_py.disk.checksums import missing, sealed, unsealed
from krishiv_py.disk.files import file_system, read_whole, write_whole
from krishiv_py.plan.running.progress import TableVersion
from krishiv_py.planner.tables import table_names
from krishiv_py.spark.storage.hadoopsums import BEGIN_ANEW

_NOTE: Final = "_in_use.json"


@attrs.define(eq=False)
class Tables:
    """What the driver of a query does for its tables.

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
    """

    checkpoint: str
    tables: tuple[LookupTable, ...]
    now: Callable[[], int]
    durable: bool = False
    _loaded: list[pa.Table | None] = attrs.field(init=False)
    _entries: list[dict[str, Any]] | None = None

    def __attrs_post_init__(self) -> None:
        self._loaded = [None for _ in self.tables]

    def begin(self, batch: int) -> dict[str, TableVersion]:
        """See that every table is there in the version of a batch, before its tasks run.

        Raises
        ------
        SourceError
            When a table cannot be loaded.
        """
        if not self.tables:
            return {}
        noted = read_note(self.checkpoint)
        entries = [] if noted is None else noted["tables"]
        known = [entry["schema"] for entry in entries] == [str(table.schema) for table in self.tables]
        if not known or noted is None or noted["batch"] != batch:
            before = entries if known else [None for _ in self.tables]
            entries = [self._current(at, entry) for at, entry in enumerate(before)]
        entries = [{**entry, "token": table.token} for entry, table in zip(entries, self.tables, strict=True)]
        told = {"batch": batch, "tables": entries}
        if told != noted:
            system, path = _at(self.checkpoint, _NOTE)
            write_whole(system, path, sealed(json.dumps(told).encode()), durable=self.durable)
            if entries != self._entries:
                self._forget_others([entry["file"] for entry in entries])
        self._entries = entries
        versions = (TableVersion(entry["version"], entry["loaded_us"], entry["rows"]) for entry in entries)
        return dict(zip(table_names(self.tables), versions, strict=True))

    def _current(self, at: int, entry: dict[str, Any] | None) -> dict[str, Any]:
        """The note of a table as it stands: as it was, or loaded anew."""
        table, held, now_us = self.tables[at], self._loaded[at], self.now()
        if held is not None and entry is not None and not table.is_old(entry["loaded_us"], now_us):
            return entry
        found = table.loaded()
        self._loaded[at] = found
        if held is not None and entry is not None and held.equals(found):
            return {**entry, "loaded_us": now_us}
        file = f"{at}-{uuid.uuid4().hex[:12]}.arrow"
        system, path = _at(self.checkpoint, file)
        write_whole(system, path, sealed(as_bytes(found)), durable=self.durable)
        version = 1 if entry is None else entry["version"] + 1
        return {
            "file": file,
            "version": version,
            "loaded_us": now_us,
            "rows": found.num_rows,
            "schema": str(table.schema),
        }

    def _forget_others(self, files: list[str]) -> None:
        """Remove the versions that no batch will see any more."""
        system, folder = _at(self.checkpoint, "")
        for found in system.get_file_info(pafs.FileSelector(folder.rstrip("/"), allow_not_found=True)):
            if found.base_name not in (*files, _NOTE) and found.type == pafs.FileType.File:
                system.delete_file(found.path)


@attrs.frozen(slots=False)
class TaskTables:
    """The tables of a micro-batch, from a task."""

    checkpoint: str
    batch: int

    @cached_property
    def files(self) -> dict[str, str]:
        """The file of each table by its token."""
        note = read_note(self.checkpoint)
        if note is None or note["batch"] != self.batch:
            raise missing(f"the note of the tables of batch {self.batch} in {self.checkpoint}", BEGIN_ANEW)
        return {entry["token"]: entry["file"] for entry in note["tables"]}

    def name(self, token: str) -> str:
        """See :class:`~krishiv_py.connectors.lookup_table.Versions`."""
        return self.files[token]

    def table(self, token: str) -> pa.Table:
        """See :class:`~krishiv_py.connectors.lookup_table.Versions`."""
        system, path = _at(self.checkpoint, self.name(token))
        data = read_whole(system, path)
        if data is None:
            raise missing(path, BEGIN_ANEW)
        return pa.ipc.open_stream(pa.py_buffer(unsealed(data, path, BEGIN_ANEW))).read_all()


def tables_of(checkpoint: str | None, batch: int | None) -> AbstractContextManager[None]:
    """Inside, rows are looked up in the tables of a micro-batch; without one, in what the process loads itself."""
    return tables_are(None if checkpoint is None or batch is None else TaskTables(checkpoint, batch))


def read_note(checkpoint: str) -> dict[str, Any] | None:
    """Which version of each table the last batch has; None before the first."""
    system, path = _at(checkpoint, _NOTE)
    data = read_whole(system, path)
    note: dict[str, Any] | None = None if data is None else json.loads(unsealed(data, path, BEGIN_ANEW))
    return note


def _at(checkpoint: str, name: str) -> tuple[pafs.FileSystem, str]:
    return file_system(f"{checkpoint}/krishiv/tables/{name}")
