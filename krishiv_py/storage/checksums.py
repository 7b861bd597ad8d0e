"""The bytes of what the library keeps on disk, and checksums over them: notes, memory streams, chunks of state.

A checksum (CRC-32) finds flipped bits, cuts and mixed-up files; it does not protect against forgery. It is inside the file it
covers, so that there is no second file that could be lost or left behind.
"""

from __future__ import annotations

import base64
import io
import zlib
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.errors import CheckpointError

_NOTE: Final = b"krishiv 1 "
_PARQUET: Final = b"KRISHIV1"
_BLOCK: Final = len(_PARQUET) + 4
_END: Final = 8  # a parquet file ends with the length of its footer and a magic word of four bytes each


def checksum(data: Any, begun: int = 0) -> int:
    """CRC-32 of a bytes-like object, going on from one `begun` before."""
    return zlib.crc32(data, begun)


def block_checksum(data: Any) -> int:
    """CRC-32 over the sums of blocks of 512 words, and what is left over: for large data, at a fifth of a CRC's CPU.

    No single flipped bit escapes it, nor a cut, nor blocks lost, zeroed or exchanged.
    """
    size = len(data)
    words = np.frombuffer(data, np.uint64, size // 4096 * 512).reshape(-1, 512)
    sums = words.sum(axis=1, dtype=np.uint64)
    return checksum(b"%d" % size, checksum(memoryview(data)[size // 4096 * 4096 :], checksum(sums)))


def sealed(body: bytes) -> bytes:
    """Return a note with its checksum in the first line."""
    return b"%s%08x\n%s" % (_NOTE, checksum(body), body)


def unsealed(data: bytes, where: str, way_out: str) -> bytes:
    """Return the body of a note.

    Raises
    ------
    CheckpointError
        When it is not what was written; names the file, `where`, and the `way_out`.
    """
    head, _, body = data.partition(b"\n")
    if head != b"%s%08x" % (_NOTE, checksum(body)):
        raise damaged(where, f"{len(data)} bytes with a wrong checksum", way_out)
    return body


def damaged(where: str, got: object, way_out: str) -> CheckpointError:
    """Return the error for a file that is not what was written."""
    return CheckpointError(f"{where} is damaged", got=got, hint=way_out)


def missing(where: str, way_out: str) -> CheckpointError:
    """Return the error for a file that is not there."""
    return CheckpointError(f"{where} is missing", got="no such file", hint=way_out)


_SMALL_BYTES: Final = 1 << 14


def as_parquet(table: pa.Table) -> pa.Buffer:
    """Return a table as a parquet file; of a small one what would only help to find or to shrink rows takes longer than the
    rows.
    """
    held, small = pa.BufferOutputStream(), table.get_total_buffer_size() < _SMALL_BYTES
    pq.write_table(table, held, compression="none" if small else "lz4", use_dictionary=not small, write_statistics=not small)
    return held.getvalue()


def sealed_parquet(data: pa.Buffer) -> list[Any]:
    """Return the pieces of a parquet file with a checksum between pages and footer, where readers of parquet do not look."""
    view = memoryview(data)
    footer_start = _footer_at(view)
    pages, footer = view[:footer_start], view[footer_start:]
    return [pages, _PARQUET, checksum(footer, checksum(pages)).to_bytes(4, "little"), footer]


def check_parquet(data: pa.Buffer, where: str, way_out: str) -> None:
    """See that a parquet file is what :func:`sealed_parquet` made.

    Raises
    ------
    CheckpointError
        When it is not, or never was; names the file, `where`, and the `way_out`.
    """
    view = memoryview(data)
    footer = _footer_at(view)
    block = bytes(view[max(footer - _BLOCK, 0) : max(footer, 0)])
    if not block.startswith(_PARQUET):
        got = f"{len(view)} bytes without a checksum of ours, as if an older version or another program wrote it"
        raise damaged(where, got, way_out)
    if checksum(view[footer:], checksum(view[: footer - _BLOCK])).to_bytes(4, "little") != block[len(_PARQUET) :]:
        raise damaged(where, f"{len(view)} bytes with a wrong checksum", way_out)


def _footer_at(view: memoryview) -> int:
    """Return where the footer begins; -1 or less where none can be found."""
    if len(view) < _END:
        return -1
    return len(view) - _END - int.from_bytes(view[-_END:-4], "little")


def encode(table: pa.Table) -> bytes:
    """Return a table as one IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def decode(blob: bytes) -> pa.Table:
    """Return a table from an IPC stream, without copying the bytes."""
    return pa.ipc.open_stream(pa.py_buffer(blob)).read_all()


def as_text(table: pa.Table) -> str:
    """Return a table as a text that JSON takes; :func:`from_text` reads it."""
    return base64.b64encode(encode(table)).decode()


def from_text(text: str) -> pa.Table:
    """Return the table of a text of :func:`as_text`."""
    return decode(base64.b64decode(text))
