"""Rows by their positions, also where a column holds more text than one Arrow array can.

Arrow counts the bytes of the texts of an array in 32 bits, so an array ends at 2 GiB. Columns of a table are lists of arrays
and have no such end, but Arrow joins them to one when rows are taken out of them. What is too long for it is taken in parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, as_arrow, is_number

Rows = TypeVar("Rows", bound=Any)
PART_BYTES: Final = 1 << 29
"""About so many bytes are a part; rows of very different length can make it larger, which is seen and mended."""
_FEW: Final = 1_024
"""So many numbers are picked by NumPy: the way into Arrow takes longer."""


def pick(rows: Rows, rows_wanted: pa.Array | Ints) -> Rows:
    """Return the rows of a table, or the values of a column, at some positions; nulls where a position is null."""
    if isinstance(rows_wanted, np.ndarray):
        if len(rows_wanted) <= _FEW and isinstance(rows, pa.Array) and not rows.null_count and is_number(rows.type):
            few: Rows = as_arrow(rows.to_numpy()[rows_wanted])
            return few
        rows_wanted = as_arrow(rows_wanted)
    picked: Rows
    try:
        picked = rows.take(rows_wanted)
    except pa.ArrowInvalid:
        if isinstance(rows, pa.Table):
            picked = pa.Table.from_arrays([pick(column, rows_wanted) for column in rows.columns], schema=rows.schema)
        else:
            picked = in_parts(rows, rows_wanted)
    return picked


def rows_a_part(rows: pa.Table | pa.Array | pa.ChunkedArray) -> int:
    """Return how many of some rows are about :data:`PART_BYTES`."""
    return max(int(PART_BYTES * len(rows) // max(rows.nbytes, 1)), 1)


def in_parts(column: pa.Array | pa.ChunkedArray, rows_wanted: pa.Array) -> pa.ChunkedArray:
    """Return the values of a column at some positions, as arrays that are each small enough."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    places = rows_wanted.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    each = rows_a_part(column)
    parts = [part for low in range(0, len(places), each) for part in _parts(chunks, places[low : low + each])]
    return pa.chunked_array(parts, column.type)


def _parts(chunks: Sequence[pa.Array], places: Ints) -> Iterator[pa.Array]:
    try:
        yield _part(chunks, places)
    except pa.ArrowInvalid:
        if len(places) < 2:
            raise
        half = len(places) // 2
        yield from _parts(chunks, places[:half])
        yield from _parts(chunks, places[half:])


def _part(chunks: Sequence[pa.Array], places: Ints) -> pa.Array:
    """Return the values at `places` of the arrays `chunks` one after the other; -1 is null."""
    begins = np.cumsum([0, *map(len, chunks)])
    of_chunk = np.searchsorted(begins, places, side="right") - 1
    parts, order = [chunks[0].slice(0, 0)], []
    for number in np.unique(of_chunk[places >= 0]).tolist():
        mine = np.flatnonzero((of_chunk == number) & (places >= 0))
        parts.append(chunks[number].take(pa.array(places[mine] - begins[number])))
        order.append(mine)
    back = np.full(len(places), -1)
    if order:
        came = np.concatenate(order)
        back[came] = np.arange(len(came))
    return pa.concat_arrays(parts).take(pa.array(back, mask=back < 0))
