"""Files of a query on Spark: tables, and chunks of rows that tasks hand on to one another and to the driver.

Where all of them run on this machine a large chunk is a file, mapped by whoever reads it, and the JVM, which copies what passes
through it several times, sees its name. Elsewhere it sees the chunk's bytes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

import attrs
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from krishiv_py.connectors.lookup_table import LookupTable
from krishiv_py.errors import RAISED
from krishiv_py.runtime.chunk_files import chunk_of, file_value, write_plain
from krishiv_py.spark.setup.config import CHUNK_FILE_BYTES, is_connect, setting
from krishiv_py.storage.checksums import encode
from krishiv_py.storage.local import DISK


def keep_with_driver(tables: tuple[LookupTable, ...]) -> None:
    """Functions that cannot be sent to tasks stay where they are: in a query, the driver alone calls them."""
    for table in tables:
        table.driver_only = table.driver_only or not _travels(table.load)


def _travels(load: Callable[[], Any] | None) -> bool:
    try:
        cloudpickle.dumps(load)  # type: ignore[no-untyped-call]
    except RAISED:  # whatever the objects it refers to raise: a Spark session, a lock, a connection
        return False
    return True


@attrs.frozen
class ShuffleFiles:
    """Says how chunks are handed on.

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
        """Write a large chunk to a file, and return what names it; return the bytes of a small one."""
        if self.folder is None or table.nbytes < self.large_bytes:
            return encode(table)
        name = uuid.uuid4().hex
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        write_plain(DISK, f"{self.folder}/{name}", table)
        return file_value(name)

    def take(self, value: bytes) -> pa.Table:
        """Read the chunk that an entry refers to."""
        return chunk_of(value, self.folder or "")

    def of_batch(self, batch: int) -> ShuffleFiles:
        """Return the files of what is handed on within a micro-batch."""
        return self if self.folder is None else attrs.evolve(self, folder=f"{self.folder}/{batch}")

    def clear(self) -> None:
        """Remove all files: everything has arrived, or will be given again."""
        if self.folder is not None:
            rmtree(self.folder, ignore_errors=True)


def shuffle_files(spark: SparkSession, folder: str) -> ShuffleFiles:
    """By files in `folder`, if all tasks of the session run on this machine."""
    here = not is_connect(spark) and str(spark.sparkContext.master).startswith("local")
    return ShuffleFiles(folder if here else None, setting(spark, CHUNK_FILE_BYTES))


@contextmanager
def handed_over(spark: SparkSession, folder: str) -> Iterator[ShuffleFiles]:
    """For the time of the body."""
    files = shuffle_files(spark, folder)
    try:
        yield files
    finally:
        files.clear()
