"""Files of an output, replaceable by micro-batch: what any engine does with a :class:`~krishiv_py.connectors.FileSink`.

Files of one micro-batch are written into a staging folder under names of their own. Once all are there, what an earlier attempt
at the same batch published is removed, and the new files are renamed into place.

On S3 a rename would copy: there tasks upload files under their final names and leave the uploads open, and the driver completes
them (krishiv_py/disk/uploads.py). To whoever lists the folder both look the same.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.connectors.sink import FileSink
from krishiv_py.disk.files import file_system, sync_files
from krishiv_py.disk.stores import is_store
from krishiv_py.disk.uploads import Upload, abort_others, complete, upload

STAGING: Final = "_krishiv_staging"
_NAMED: Final = re.compile("part-([0-9a-f]+)-([0-9]{12})-")


def staging_of(mark: str, batch_id: int) -> str:
    """Where the files of a micro-batch wait, below the sink's folder."""
    return f"{STAGING}/{mark}-{batch_id:012d}"


def stem_of(mark: str, batch_id: int) -> str:
    """How the names of the files of a micro-batch begin."""
    return f"part-{mark}-{batch_id:012d}-"


def write_staged(
    sink: FileSink, folder: str, mark: str, batch_id: int, part: int, table: pa.Table, *, durable: bool = False
) -> str:
    """Write one table of a micro-batch where nobody sees it; `part` tells the tables of a batch apart.

    Gives what :meth:`Publisher.publish` is to be told of the file.
    """
    name = f"{part:05d}-{uuid.uuid4().hex}{sink.suffix}"
    # without chunks that have no rows, for which Arrow's CSV writer writes bytes of a used buffer
    rows = pa.Table.from_batches([b for b in table.to_batches() if b.num_rows], table.schema)
    system, root = file_system(folder)
    if is_store(system):
        held = pa.BufferOutputStream()
        sink.write_table(rows, held)
        return upload(root, f"{stem_of(mark, batch_id)}{name}", held.getvalue()).told()
    staging = f"{root}/{staging_of(mark, batch_id)}"
    system.create_dir(staging, recursive=True)
    with system.open_output_stream(f"{staging}/{name}") as stream:
        sink.write_table(rows, stream)
    if durable:
        sync_files(system, [f"{staging}/{name}"])
    return name


@attrs.define
class Publisher:
    """Publishes the files of one output in its folder."""

    folder: str
    mark: str
    durable: bool = False
    _first: bool = True

    def publish(self, batch_id: int, names: list[str]) -> None:
        """Put the files of a batch in place, replacing those of an earlier attempt at it."""
        system, root = file_system(self.folder)
        if self._first:  # only the first batch after a start can be a repetition
            system.create_dir(root, recursive=True)
            for found in system.get_file_info(pafs.FileSelector(root)):
                if self._repeated(found.base_name, batch_id):
                    system.delete_file(found.path)
            self._clean(system, root, batch_id)
        uploads = [Upload.of(name) for name in names if name.startswith("{")]
        for each in uploads:
            complete(root, each)
        if self._first and is_store(system):
            abort_others(root, f"part-{self.mark}-", {each.upload for each in uploads})
        self._first = False
        if not uploads:  # files of Spark's are staged in a bucket, too
            self._move(system, root, batch_id, names)

    def _move(self, system: pafs.FileSystem, root: str, batch_id: int, names: list[str]) -> None:
        """Give staged files their names, and remove the staging folder."""
        staging = f"{root}/{staging_of(self.mark, batch_id)}"
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
