"""Files that tasks write for an output, and whose a folder is.

The driver publishes them once all tasks are done (krishiv_py/connectors/staging.py). Spark marks the batch as done only after
that, so a crash at any moment leads to the same batch being run, and its files replaced, again.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.connectors.sink import FileSink, FolderSink
from krishiv_py.connectors.staging import writable, write_staged
from krishiv_py.disk.checksums import sealed, unsealed
from krishiv_py.disk.files import file_system, is_local_path, read_whole, write_whole
from krishiv_py.disk.folders import absolute
from krishiv_py.disk.settings import Stores
from krishiv_py.errors import CheckpointError, PlanError, message
from krishiv_py.planner.places import place_of

_NOTES: Final = "_krishiv_outputs"
_NOTE: Final = ".json"
Written: TypeAlias = dict[str, Any]


def claim_folder(sink: FolderSink, rows: str, mark: str, checkpoint: str | None) -> None:
    """Note beside the files of an output whose they are: which `rows`, and by which checkpoint (None for a bounded run).

    Raises
    ------
    PlanError
        Where the folder holds rows of another kind.
    CheckpointError
        When the checkpoint is a copy of one that is still there: they would replace each other's files.
    """
    folder = absolute(sink.path)
    system, root = file_system(folder)
    notes = f"{root}/{_NOTES}"
    if checkpoint is not None and is_local_path(checkpoint):
        checkpoint = os.path.realpath(file_system(checkpoint)[1])
    with writable(folder):
        there = system.get_file_info(pafs.FileSelector(notes, allow_not_found=True))
    for found in there:
        if not found.base_name.endswith(_NOTE):
            continue
        note = _noted(system, found.path)
        if note["rows"] != rows:
            raise PlanError(
                message(
                    f"{folder} holds the {note['rows']} of another query",
                    f"{rows} for it",
                    "whoever reads the folder would take the one for the other",
                    f"use another folder, or remove {notes} with all that is in {folder}",
                )
            )
        other = note["checkpoint"]
        if found.base_name == f"{mark}{_NOTE}" and checkpoint is not None and _is_copy(other, checkpoint):
            raise CheckpointError(
                message(
                    "the checkpoint is a copy of another one that is still there",
                    f"{checkpoint}, of {other}",
                    f"both would replace each other's files in {folder}",
                    f"give the copy another output folder, or remove {other} if it was moved",
                )
            )
    with writable(folder):
        write_whole(system, f"{notes}/{mark}{_NOTE}", sealed(json.dumps({"rows": rows, "checkpoint": checkpoint}).encode()))


def _is_copy(other: str | None, checkpoint: str) -> bool:
    if other is None or place_of(other) == place_of(checkpoint):
        return False
    system, root = file_system(other)
    return bool(system.get_file_info(f"{root}/krishiv/plan.json").type == pafs.FileType.File)


def _noted(system: pafs.FileSystem, path: str) -> dict[str, Any]:
    data = read_whole(system, path) or b""
    found: dict[str, Any] = json.loads(unsealed(data, path, "remove it: the query that wrote it makes it anew"))
    return found


@attrs.frozen
class TaskOutput:
    """Where tasks write: folder and sink by kind of row (``result``, ``late``); kinds without one go to the driver.

    `checkpoint` is that of the query, by which tasks know the number of the batch.
    """

    sinks: dict[str, tuple[str, FileSink]]
    mark: str
    durable: bool = False
    checkpoint: str = ""
    stores: Stores = attrs.field(factory=Stores, eq=False, repr=False)

    def write(self, kind: str, bucket: int, table: pa.Table, batch_id: int) -> Written | None:
        """Write one table of a micro-batch; returns what the driver must publish, or None when this kind has no folder."""
        if kind not in self.sinks:
            return None
        folder, sink = self.sinks[kind]
        names = write_staged(sink, folder, self.mark, batch_id, bucket, table, durable=self.durable)
        return {"kind": kind, "names": names, "rows": table.num_rows}
