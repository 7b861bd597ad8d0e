"""File outputs that are replaceable by micro-batch, and published together.

Tasks write files of one micro-batch into a staging folder under names of their own. The driver, once all tasks are done,
removes what an earlier attempt at the same batch published, and renames the new files into place. Spark marks the batch as
done only after that, so a crash at any moment leads to the same batch being run, and its files replaced, again.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from krishiv_py.errors import CheckpointError, PlanError, message
from krishiv_py.plan.options.sinks import JsonSink, ParquetSink
from krishiv_py.seals import sealed, unsealed
from krishiv_py.spark.checkpoint.places import place_of
from krishiv_py.spark.clock.clocks import batch_number
from krishiv_py.spark.setup.config import is_local_path
from krishiv_py.spark.storage.files import file_system, read_whole, sync_files, write_whole

_NOTES: Final = "_krishiv_outputs"
_NOTE: Final = ".json"
STAGING: Final = "_krishiv_staging"
_NAMED: Final = re.compile("part-([0-9a-f]+)-([0-9]{12})-")
Written: TypeAlias = dict[str, Any]


def staging_of(mark: str, batch_id: int) -> str:
    """Where the files of a micro-batch wait, below the sink's folder."""
    return f"{STAGING}/{mark}-{batch_id:012d}"


def stem_of(mark: str, batch_id: int) -> str:
    """How the names of the files of a micro-batch begin."""
    return f"part-{mark}-{batch_id:012d}-"


def claim_folder(sink: ParquetSink | JsonSink, rows: str, mark: str, checkpoint: str | None) -> None:
    """Note beside the files of an output whose they are: which `rows`, and by which checkpoint (None for a bounded run).

    Raises
    ------
    PlanError
        Where the folder holds rows of another kind.
    CheckpointError
        When the checkpoint is a copy of one that is still there: they would replace each other's files.
    """
    system, root = file_system(sink.path)
    notes = f"{root}/{_NOTES}"
    if checkpoint is not None and is_local_path(checkpoint):
        checkpoint = os.path.realpath(file_system(checkpoint)[1])
    for found in system.get_file_info(pafs.FileSelector(notes, allow_not_found=True)):
        if not found.base_name.endswith(_NOTE):
            continue
        note = _noted(system, found.path)
        if note["rows"] != rows:
            raise PlanError(
                message(
                    f"{sink.path} holds the {note['rows']} of another query",
                    f"{rows} for it",
                    "whoever reads the folder would take the one for the other",
                    f"use another folder, or remove {notes} with all that is in {sink.path}",
                )
            )
        other = note["checkpoint"]
        if found.base_name == f"{mark}{_NOTE}" and checkpoint is not None and _is_copy(other, checkpoint):
            raise CheckpointError(
                message(
                    "the checkpoint is a copy of another one that is still there",
                    f"{checkpoint}, of {other}",
                    f"both would replace each other's files in {sink.path}",
                    f"give the copy another output folder, or remove {other} if it was moved",
                )
            )
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
    """Where tasks write: sink folders by kind of row (``result``, ``late``); kinds without a folder go to the driver."""

    folders: dict[str, str]
    mark: str
    durable: bool = False

    def write(self, kind: str, bucket: int, table: pa.Table) -> Written | None:
        """Write one table; returns what the driver must publish, or None when this kind has no folder."""
        folder = self.folders.get(kind)
        if folder is None:
            return None
        batch_id = batch_number()
        name = f"{bucket:05d}-{uuid.uuid4().hex}.parquet"
        system, root = file_system(folder)
        staging = f"{root}/{staging_of(self.mark, batch_id)}"
        system.create_dir(staging, recursive=True)
        with system.open_output_stream(f"{staging}/{name}") as stream:
            pq.write_table(table, stream, compression="snappy", store_schema=False)
        if self.durable:
            sync_files(system, [f"{staging}/{name}"])
        return {"kind": kind, "name": name, "rows": table.num_rows}


@attrs.define
class Publisher:
    """The driver's side of one output folder."""

    folder: str
    mark: str
    durable: bool = False
    _first: bool = True

    def publish(self, batch_id: int, names: list[str]) -> None:
        """Put the files of a batch in place, replacing those of an earlier attempt at it."""
        system, root = file_system(self.folder)
        staging = f"{root}/{staging_of(self.mark, batch_id)}"
        if self._first:  # only the first batch after a start can be a repetition
            system.create_dir(root, recursive=True)
            for found in system.get_file_info(pafs.FileSelector(root)):
                if self._repeated(found.base_name, batch_id):
                    system.delete_file(found.path)
            self._clean(system, root, batch_id)
            self._first = False
        for number, name in enumerate(sorted(names)):
            system.move(f"{staging}/{name}", f"{root}/{stem_of(self.mark, batch_id)}{number:05d}{name[name.index('.') :]}")
        if self.durable and names:
            sync_files(system, [root])
        if system.get_file_info(staging).type != pafs.FileType.NotFound:
            system.delete_dir(staging)

    def _repeated(self, name: str, batch_id: int) -> bool:
        """Whether a file is of this micro-batch or a later one, which a checkpoint put back from a copy runs again."""
        found = _NAMED.match(name)
        return found is not None and found[1] == self.mark and int(found[2]) >= batch_id

    def _clean(self, system: pafs.FileSystem, root: str, batch_id: int) -> None:
        """Remove what crashed attempts at other batches left in the staging folder."""
        staging = f"{root}/{STAGING}"
        if system.get_file_info(staging).type == pafs.FileType.NotFound:
            return
        for found in system.get_file_info(pafs.FileSelector(staging)):
            if found.base_name.startswith(f"{self.mark}-") and not found.path.endswith(staging_of(self.mark, batch_id)):
                system.delete_dir(found.path)
