"""Files of a memory stream as they lie on disk: the sends, each with its checksum, and the book of their numbers."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.storage.checksums import check_parquet, checksum, missing
from krishiv_py.storage.store import Store

INDEX_BYTES: Final = 48
RANGE: Final = "__krishiv_range"
"""The column of a file of a range log that holds what was planned."""
WAY_OUT: Final = "put the file back from a copy, or start with a new checkpoint: another memory stream and a new checkpoint"


def index_bytes(first: int, following: int, identity: bytes) -> bytes:
    """Return the book of a memory stream: its first and following number, and what tells it from others."""
    body = b"%012d %012d %s " % (first, following, identity)
    return b"%s%08x\n" % (body, checksum(body))


def read_index(data: bytes) -> tuple[int, int, bytes]:
    """First and following number and identity; nothing where a crash cut them: then the files alone tell."""
    body = data[:39]
    if len(data) != INDEX_BYTES or data != b"%s%08x\n" % (body, checksum(body)):
        return 0, 0, b""
    return int(body[:12]), int(body[13:25]), body[26:38]


def open_sent(store: Store, path: str) -> pq.ParquetFile:
    """Read a file of a spool, or a control file, and look at its checksum.

    Raises
    ------
    CheckpointError
        When it is not there, or not what was written; names the file.
    """
    try:
        with store.open(path) as file:
            data = file.read_buffer()
    except FileNotFoundError as problem:
        raise missing(path, WAY_OUT) from problem
    return opened(data, path)


def opened(data: pa.Buffer, where: str) -> pq.ParquetFile:
    """Return a file of a spool, or a control file, after a look at its checksum.

    Raises
    ------
    CheckpointError
        When it is not what was written; names the file, `where`.
    """
    check_parquet(data, where, WAY_OUT)
    return pq.ParquetFile(pa.BufferReader(data))
