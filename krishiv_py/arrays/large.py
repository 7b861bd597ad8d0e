"""Define what is too much to be worked on at once: parts of whole groups, slices by size, and what was made of them as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.picking import pick, rows_a_part
from krishiv_py.arrays.ranges import portions
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints

WHOLE_BYTES: Final = 1 << 30
"""What holds more is worked on in parts: no text column of it may reach 2 GiB, and the memory it takes is for a part."""


def too_long(column: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether the texts of a column may be too long for one array."""
    texts = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    return texts and isinstance(column, pa.ChunkedArray) and column.num_chunks > 1 and column.nbytes > WHOLE_BYTES


def too_much(rows: pa.Table) -> bool:
    """Return whether rows are to be worked on in parts.

    What each array takes is not added up where that cannot be: of a few rows, adding up is more than the rest of the work.
    """
    arrays = rows.num_columns * rows.num_rows  # at the most, without those that are empty; none takes more than all buffers
    return bool(arrays * rows.get_total_buffer_size() > WHOLE_BYTES and rows.nbytes > WHOLE_BYTES)


def by_groups(rows: pa.Table, ids: Ints, n: int) -> Iterator[tuple[pa.Table, Ints, int]]:
    """Rows in parts of whole groups: the rows, their groups from 0 on, and how many those are. Rows keep their order.

    `ids` are the groups of the rows, of which there are `n`.
    """
    order = stable_order(ids)
    ends = np.cumsum(np.bincount(ids, minlength=n))
    for low, high in portions(np.diff(ends, prepend=0), rows_a_part(rows)):
        begin, end = (int(ends[low - 1]) if low else 0), int(ends[high - 1])
        chosen = order[begin:end]
        yield pick(rows, chosen), ids[chosen] - low, high - low


def by_size(rows: pa.Table) -> Iterator[pa.Table]:
    """Rows in slices of about half a gigabyte: what is sent as one value may be too long for who takes it."""
    each = rows_a_part(rows)
    for low in range(0, rows.num_rows, each):
        yield rows.slice(low, each)


def joined(parts: Sequence[Sequence[pa.Array | pa.ChunkedArray]]) -> list[pa.ChunkedArray]:
    """Columns that were made in parts."""
    return [
        pa.chunked_array([c for x in column for c in (x.chunks if isinstance(x, pa.ChunkedArray) else [x])], column[0].type)
        for column in zip(*parts, strict=True)
    ]
