"""NumPy arrays by what they hold, the way between them and Arrow, and rows by their positions: taken from there, or put there.

Arrow counts the bytes of the texts of an array in 32 bits, so an array ends at 2 GiB. Columns of a table are lists of arrays
and have no such end, but Arrow joins them to one when rows are taken out of them. What is too long for it is taken in parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints: TypeAlias = npt.NDArray[np.int64]
Hashes: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]
NumPy: TypeAlias = npt.NDArray[Any]


def as_arrow(values: NumPy) -> pa.Array:
    """Return numbers of 64 or 32 bits as an Arrow array without nulls, over the same memory.

    It is what ``pa.array`` gives, in half the time: that looks for other kinds of input first.
    """
    type_ = _NUMBERS.get(values.dtype)
    if type_ is None or not values.flags.c_contiguous:
        return pa.array(values)
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


def extremes(values: NumPy) -> tuple[int, int]:
    """Return the smallest and the largest of whole numbers; there must be one."""
    if values.size == 1:  # batches of one row: NumPy takes 2 µs for each of the two
        only = int(values.item())
        return only, only
    return int(values.min()), int(values.max())


def magnitude(values: NumPy) -> int:
    """Return the largest distance of whole numbers to zero; there must be one."""
    least, most = extremes(values)
    return max(-least, most)


def numpy_type(type_: pa.DataType) -> np.dtype[Any]:
    """Return the type that NumPy has of numbers. Arrow's own method for it imports pandas."""
    none: NumPy = pa.array([], type_).to_numpy(zero_copy_only=False)
    return none.dtype


_NUMBERS: Final = {np.dtype(np.int64): pa.int64(), np.dtype(np.int32): pa.int32(), np.dtype(np.float64): pa.float64()}
_SAME_IN_NUMPY: Final = frozenset(type_.id for type_ in _NUMBERS.values())
"""Types of which :func:`as_arrow` gives back what NumPy has of an array without nulls."""


_EXACT_TENS: Final = 22  # powers of ten up to this one are exact doubles
_EXACT_INTEGER: Final = 2**53
_NONE: Final = np.zeros((0, 4), np.int64)


def words(column: pa.Array) -> tuple[Ints, Ints]:
    """Return the lower and upper 64 bits of decimals without their point; of nulls anything."""
    if not len(column):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    halves = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 2)[column.offset : column.offset + len(column)]
    return halves[:, 0], halves[:, 1]


def quotients(column: pa.Array, divisors: Ints) -> pa.Array:
    """Return the doubles nearest to decimals of 256 bits divided by positive whole numbers."""
    missing = column.is_null().to_numpy(zero_copy_only=False)
    tens, n = 10**column.type.scale, len(column)
    bits = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 4)[column.offset : column.offset + n] if n else _NONE
    low = bits[:, 0]
    short = (bits[:, 1:] == (low >> 63)[:, None]).all(axis=1) & (low <= _EXACT_INTEGER) & (low >= -_EXACT_INTEGER)
    short &= divisors <= _EXACT_INTEGER // tens
    quotient = np.zeros(n)
    np.divide(low, divisors * float(tens), out=quotient, where=short & ~missing)  # of two exact doubles: rounded once
    for row in np.flatnonzero(~short & ~missing).tolist():  # Python rounds the quotient of two integers once, too
        quotient[row] = int.from_bytes(bits[row].tobytes(), "little", signed=True) / (tens * int(divisors[row]))
    return pa.array(quotient, mask=missing)


def doubles(column: pa.Array) -> pa.Array:
    """Numbers as doubles, decimals as the nearest ones: Arrow's own cast of decimals may be off by one in the last place."""
    if not pa.types.is_decimal(column.type):
        return pc.cast(column, pa.float64(), safe=False)
    scale = column.type.scale
    missing = column.is_null().to_numpy(zero_copy_only=False)
    long = np.ones(len(column), np.bool_)
    quotient = np.zeros(len(column))
    if pa.types.is_decimal128(column.type) and 0 <= scale <= _EXACT_TENS and len(column):
        low, high = words(column)
        long = (high != low >> 63) | (low > _EXACT_INTEGER) | (low < -_EXACT_INTEGER)
        quotient = low / 10.0**scale  # both are exact, so the quotient is the nearest
    long &= ~missing
    if long.any():  # read as text, which is rounded once
        rows = np.flatnonzero(long)
        quotient[rows] = pc.cast(pc.cast(column.take(pa.array(rows)), pa.string()), pa.float64()).to_numpy()
    return pa.array(quotient, mask=missing)


Rows = TypeVar("Rows", bound=Any)
PART_BYTES: Final = 1 << 29
"""About so many bytes are a part; rows of very different length can make it larger, which is seen and mended."""
_FEW: Final = 1_024
"""So many numbers are picked by NumPy: the way into Arrow takes longer."""


def pick(rows: Rows, rows_wanted: pa.Array | Ints) -> Rows:
    """Return the rows of a table, or the values of a column, at some positions; nulls where a position is null."""
    if isinstance(rows_wanted, np.ndarray):
        if len(rows_wanted) <= _FEW and isinstance(rows, pa.Array) and not rows.null_count and rows.type.id in _SAME_IN_NUMPY:
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


def flags_at(places: Ints | Mask, n: int) -> Mask:
    """Return `n` flags, which are true at some places."""
    flags = np.zeros(n, np.bool_)
    flags[places] = True
    return flags


def values_at(places: Ints | Mask, values: Ints | int, n: int, rest: int = 0) -> Ints:
    """Return `n` numbers: each value at its place, `rest` at others. Of several at one place the last one counts."""
    put = np.full(n, rest, np.int64) if rest else np.zeros(n, np.int64)
    put[places] = values
    return put


def last_rows(ids: Ints, n: int, none: int = -1) -> Ints:
    """Return the last row of each of `n` groups, given the group of every row; of an order, the place of each row in it."""
    rows = np.full(n, none, np.int64)
    rows[ids] = np.arange(len(ids))
    return rows


def least_of(ids: Ints, values: Ints, n: int, none: int) -> Ints:
    """Return the least value of each of `n` groups, or `none` if that is less or there is no value."""
    least = np.full(n, none, np.int64)
    np.minimum.at(least, ids, values)
    return least


def largest_of(ids: Ints, values: Ints, n: int, none: int) -> Ints:
    """Return the largest value of each of `n` groups, or `none` if that is larger or there is no value."""
    largest = np.full(n, none, np.int64)
    np.maximum.at(largest, ids, values)
    return largest


def totals_of(ids: Ints, values: Ints | int, n: int) -> Ints:
    """Return the sum of the whole numbers of each of `n` groups."""
    totals = np.zeros(n, np.int64)
    np.add.at(totals, ids, values)
    return totals


def run_begins(*columns: Ints) -> Mask:
    """Return where a run of equal numbers begins, or of rows that are equal in all of these columns."""
    begins = np.ones(len(columns[0]), np.bool_)
    begins[1:] = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        begins[1:] |= column[1:] != column[:-1]
    return begins


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def flags(values: pa.Array | pa.Scalar) -> Mask:
    """Return which values are true; null is not."""
    plain: Mask = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return plain


def with_column(table: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return a table with other values of a column, in the same place and of the same type."""
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), column)


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
