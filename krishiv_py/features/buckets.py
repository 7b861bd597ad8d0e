"""A feature log by buckets of its keys: of a large one, one bucket at a time is in memory, and the others are on disk.

::

    pieces of the log ──► by hash of the key ──► 64 files ──► one bucket after the other
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import buckets
from krishiv_py.arrays.types import Ints, pick
from krishiv_py.connectors.lookup_table import in_types_of_streams

BUCKETS: Final = 64
_ROWS_IN_MEMORY: Final = 1 << 22


def bucket_of_rows(rows: pa.Table, keys: Sequence[str]) -> Ints:
    """Return the bucket of each row; keys that are equal, whole numbers of any width among them, are in one."""
    columns = in_types_of_streams(rows.select(list(keys))).columns
    wide = [column.cast(pa.int64()) if pa.types.is_integer(column.type) else column for column in columns]
    return buckets(wide, rows.num_rows, BUCKETS).astype(np.int64)


def in_buckets(pieces: Iterable[pa.Table], keys: Sequence[str]) -> Iterator[tuple[int | None, pa.Table]]:
    """Yield the rows of a log, bucket by bucket; a small one whole, without a number."""
    waiting = iter(pieces)
    first, rows = list[pa.Table](), 0
    for piece in waiting:
        first.append(piece)
        rows += piece.num_rows
        if rows > _ROWS_IN_MEMORY:
            break
    else:
        yield None, pa.concat_tables(first)
        return
    schema = first[0].schema
    with tempfile.TemporaryDirectory(prefix="krishiv-features-") as folder:
        files = [Path(folder) / f"{number}.arrow" for number in range(BUCKETS)]
        _write(itertools.chain(first, waiting), schema, keys, files)
        first.clear()
        for number, file in enumerate(files):
            with pa.OSFile(str(file), "rb") as stream:
                table = pa.ipc.open_stream(stream).read_all()
            file.unlink()
            yield number, table


def _write(pieces: Iterable[pa.Table], schema: pa.Schema, keys: Sequence[str], files: Sequence[Path]) -> None:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    writers: list[Any] = [pa.ipc.new_stream(str(file), schema, options=options) for file in files]
    try:
        for piece in pieces:
            of = bucket_of_rows(piece, keys)
            ordered = pick(piece, np.argsort(of, kind="stable"))
            ends = np.cumsum(np.bincount(of, minlength=BUCKETS)).tolist()
            for writer, begin, end in zip(writers, [0, *ends], ends, strict=False):
                if begin < end:
                    writer.write_table(ordered.slice(begin, end - begin))
    finally:
        for writer in writers:
            writer.close()
