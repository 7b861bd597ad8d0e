"""Values of records as columns: whole chunks by Arrow, one by one where a chunk does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.connectors.json.lines import JsonLines

_FEW: Final = 16
NO_VALUE: Final = "no value (a tombstone)"
"""What is wrong with a record that has none."""


@attrs.frozen(eq=False)
class Decoded:
    """Values as rows.

    Attributes
    ----------
    batch : pyarrow.RecordBatch
        The rows of all good values, in their order.
    bad : tuple of (int, str)
        Which values are not rows, by place, and why.
    counts : numpy.ndarray or None
        How many rows each good value has; None where each is one row.
    """

    batch: pa.RecordBatch
    bad: tuple[tuple[int, str], ...] = ()
    counts: npt.NDArray[np.int64] | None = None


Decode: TypeAlias = "Callable[[Sequence[bytes | None]], Decoded]"


def decode_json(schema: pa.Schema, known: tuple[str, ...], values: Sequence[bytes | None]) -> Decoded:
    """Values that are one JSON object each, in the columns of `schema`; `known` are all columns a value may have.

    A value may begin with the number of its schema, as serializers for JSON Schema write it: a zero byte and four more. No
    JSON begins with a zero byte, so these are left out wherever an object follows.
    """
    values = [v[5:] if v is not None and v[:1] == b"\0" and v[5:6] == b"{" else v for v in values]
    lines = JsonLines.exact(schema, known)
    parts: list[pa.RecordBatch] = []
    bad: list[tuple[int, str]] = []
    waiting = [(0, len(values))]
    while waiting:
        begin, end = waiting.pop()
        batch = _block(lines, values[begin:end])
        if batch is not None:
            parts.append(batch)
        elif end - begin > _FEW:
            middle = (begin + end) // 2
            waiting += [(middle, end), (begin, middle)]
        else:
            parts.append(_singly(lines, values, begin, end, bad))
    if len(parts) == 1:
        return Decoded(parts[0], tuple(bad))
    table = pa.Table.from_batches(parts, schema).combine_chunks()
    return Decoded(table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema), tuple(bad))


def _block(lines: JsonLines, values: Sequence[bytes | None]) -> pa.RecordBatch | None:
    """Values as Arrow reads them, a line each; None where one may be no row, or more than one."""
    if None in values:
        return None
    block = b"\n".join(values)  # type: ignore[arg-type]  # there is no None
    ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) + 1) - 1  # type: ignore[arg-type]
    begins = np.concatenate([[0], ends[:-1] + 1])
    if (ends <= begins).any() or block.count(b"\n") != len(values) - 1:
        return None
    data = np.frombuffer(block, np.uint8)
    if not ((data[begins] == ord("{")).all() and (data[ends - 1] == ord("}")).all()):
        return None
    return lines.by_arrow(block)


def _singly(
    lines: JsonLines, values: Sequence[bytes | None], begin: int, end: int, bad: list[tuple[int, str]]
) -> pa.RecordBatch:
    columns: list[list[Any]] = [[] for _ in lines.schema]
    for i in range(begin, end):
        raw = values[i]
        try:
            if raw is None:
                raise ValueError(NO_VALUE)
            row = lines.one(raw)
        except ValueError as problem:
            bad.append((i, str(problem)))
            continue
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    arrays = [pa.array(array, f.type) for array, f in zip(columns, lines.schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=lines.schema)
