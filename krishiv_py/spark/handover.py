"""Chunks handed on within a bounded run: from task to task, and from the last ones to the driver.

Where all of them run on this machine a large chunk is a file, mapped by whoever reads it, and the JVM, which copies what passes
through it several times, sees its name. Elsewhere it sees the chunk's bytes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

import attrs
import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.spark.blobs import chunk_of, file_value, write_chunk
from krishiv_py.spark.codec import encode


@attrs.frozen
class Handover:
    """How chunks are handed on.

    Attributes
    ----------
    folder : str or None
        Where files lie that every task and the driver can read; None if there is no such place.
    large_bytes : int
        From which size on a chunk becomes a file.
    """

    folder: str | None
    large_bytes: int

    def give(self, table: pa.Table) -> bytes:
        """What stands for a chunk on its way."""
        if self.folder is None or table.nbytes < self.large_bytes:
            return encode(table)
        name = uuid.uuid4().hex
        write_chunk(pafs.LocalFileSystem(), f"{self.folder}/{name}", table)
        return file_value(name)

    def take(self, value: bytes) -> pa.Table:
        """The chunk behind what stands for it."""
        return chunk_of(value, self.folder or "")


@contextmanager
def passing_through(folder: str | None) -> Iterator[str | None]:
    """A folder that goes with what is in it."""
    try:
        yield folder
    finally:
        if folder is not None:
            rmtree(Path(folder), ignore_errors=True)
