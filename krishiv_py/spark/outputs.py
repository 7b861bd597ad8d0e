"""File outputs that are replaceable by micro-batch, and published together.

Tasks write files of one micro-batch into a staging folder under names of their own. The driver, once all tasks are done,
removes what an earlier attempt at the same batch published, and renames the new files into place. Spark marks the batch as
done only after that, so a crash at any moment leads to the same batch being run, and its files replaced, again.
"""

from __future__ import annotations

import uuid
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from krishiv_py.spark.clocks import batch_number
from krishiv_py.spark.files import file_system

STAGING: Final = "_krishiv_staging"
Written: TypeAlias = dict[str, Any]


def staging_of(mark: str, batch_id: int) -> str:
    """Where the files of a micro-batch wait, below the sink's folder."""
    return f"{STAGING}/{mark}-{batch_id:012d}"


@attrs.frozen
class TaskOutput:
    """Where tasks write: sink folders by kind of row (``result``, ``late``); kinds without a folder go to the driver."""

    folders: dict[str, str]
    mark: str

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
        return {"kind": kind, "name": name, "rows": table.num_rows}


@attrs.define
class Publisher:
    """The driver's side of one output folder."""

    folder: str
    mark: str
    _first: bool = True

    def publish(self, batch_id: int, names: list[str]) -> None:
        """Put the files of a batch in place, replacing those of an earlier attempt at it."""
        system, root = file_system(self.folder)
        staging = f"{root}/{staging_of(self.mark, batch_id)}"
        stem = f"part-{self.mark}-{batch_id:012d}-"
        if self._first:  # only the first batch after a start can be a repetition
            system.create_dir(root, recursive=True)
            for found in system.get_file_info(pafs.FileSelector(root)):
                if found.base_name.startswith(stem):
                    system.delete_file(found.path)
            self._clean(system, root, batch_id)
            self._first = False
        for number, name in enumerate(sorted(names)):
            system.move(f"{staging}/{name}", f"{root}/{stem}{number:05d}{name[name.index('.') :]}")
        if system.get_file_info(staging).type != pafs.FileType.NotFound:
            system.delete_dir(staging)

    def _clean(self, system: pafs.FileSystem, root: str, batch_id: int) -> None:
        """Remove what crashed attempts at other batches left in the staging folder."""
        staging = f"{root}/{STAGING}"
        if system.get_file_info(staging).type == pafs.FileType.NotFound:
            return
        for found in system.get_file_info(pafs.FileSelector(staging)):
            if found.base_name.startswith(f"{self.mark}-") and not found.path.endswith(staging_of(self.mark, batch_id)):
                system.delete_dir(found.path)
