"""Arrow values as columns: each value is an IPC stream, or an IPC file, of any number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.connectors.fit import fit_batch
from krishiv_py.connectors.kafka.formats.decoding import NO_VALUE, Decoded
from krishiv_py.connectors.kafka.formats.rows import RECORD, one_batch

_FILE: Final = b"ARROW1\0\0"
"""What an IPC file begins with."""


def decode_arrow(schema: pa.Schema, values: Sequence[bytes | None]) -> Decoded:
    """Return the rows of all values, in the columns of `schema`."""
    parts: list[pa.RecordBatch] = []
    bad: list[tuple[int, str]] = []
    counts: list[int] = []
    for i, value in enumerate(values):
        try:
            if value is None:
                raise ValueError(NO_VALUE)
            batch, count = _rows(value, schema)
        except (pa.ArrowException, ValueError, OSError, MemoryError) as problem:  # Arrow's errors are of all these kinds
            bad.append((i, str(problem) or type(problem).__name__))
            continue
        parts += batch
        counts.append(count)
    return Decoded(one_batch(parts, schema), tuple(bad), np.array(counts, np.int64))


def _rows(value: bytes, schema: pa.Schema) -> tuple[list[pa.RecordBatch], int]:
    """Return the rows of a value, and how many they are, which batches without columns do not know."""
    source = pa.BufferReader(value)
    is_file = value.startswith(_FILE)
    with pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source) as reader:
        names = reader.schema.names
        for name in schema.names:
            if names.count(name) > 1:
                raise ValueError(f"two columns are called {name!r}")
        if schema.names and not any(name in names for name in schema.names):
            raise ValueError(f"none of the columns {', '.join(schema.names[:20])}; it has: {', '.join(names[:20])}")
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)] if is_file else list(reader)
        if not is_file and source.tell() < len(value):
            raise ValueError(f"{len(value) - source.tell()} bytes are left over after the rows")
    return [_columns(batch, schema) for batch in batches], sum(batch.num_rows for batch in batches)


def _columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of a value in the columns of the stream; one that it does not have is null."""
    batch.validate(full=True)  # lengths and offsets come from outside
    return fit_batch(batch, schema, RECORD)
