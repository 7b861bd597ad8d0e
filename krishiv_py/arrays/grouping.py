"""Group numbers and bucket hashes for rows, the number of a row in its group, and work in parts of whole groups.

:func:`first_come` does not depend on batches: it counts rows that came before and are close in time.

Of equal values in a range the first one counts. So an occurrence counts in the ranges that begin after the one before it and
hold it, and these lie side by side::

    values   a b a c a       ranges 0..2 hold the first a; it counts in 0; the second in 1 and 2, where the first is out
    ranges   |-----|
               |-----|
                 |---|
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.ranges import expand, portions
from krishiv_py.arrays.sorting import hash_order, numbered, stable_order
from krishiv_py.arrays.types import (
    Hashes,
    Ints,
    Mask,
    NumPy,
    extremes,
    flags_at,
    last_rows,
    pick,
    rows_a_part,
    totals_of,
    values_at,
    whole,
)

WHOLE_BYTES: Final = 1 << 30
"""The bytes above which work is done in parts: no text column of it may reach 2 GiB, and the memory it takes is for a part."""


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


_DENSE_SLACK: Final = 1 << 20
_FEW: Final = 256
"""So many keys are numbered in Python: the way into Arrow takes longer."""
_FEW_TEXTS: Final = 32
"""The same for texts, of which Python makes objects."""
_MANY: Final = 4_096
"""So many keys are worth a table with places for others, or a look for a grid, before they are hashed."""
_SAMPLE: Final = 64
_HASHED_BYTES: Final = 1 << 22
_HASHED_ROWS: Final = 1 << 16


@attrs.frozen(eq=False)
class Groups:
    """A numbering of rows: rows with equal keys share a number.

    Attributes
    ----------
    ids : ndarray of int64
        Group number of every row, ``0 <= id < n``.
    first : ndarray of int64
        A row of every group (its first), by group number.
    n : int
        How many groups there are.
    """

    ids: Ints
    first: Ints
    n: int


def normal_key(array: pa.Array) -> pa.Array:
    """Keys as SQL groups them: -0.0 is 0.0, every NaN is the same."""
    if not pa.types.is_floating(array.type):
        return array
    values = pc.add(array, pa.scalar(0.0, array.type))
    return pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), array.type), values)


def _table_fits(bound: int, n_rows: int) -> bool:
    """Return whether a table of so many places is of use: filling a large one for a few rows takes longer than sorting."""
    return bound <= 4 * n_rows + min(64 * n_rows, _DENSE_SLACK)


def codes_of(column: pa.Array | pa.ChunkedArray | Ints) -> tuple[Ints, int, bool]:
    """Small whole numbers standing for the values of one column, a bound above them, and whether each below it occurs."""
    if isinstance(column, np.ndarray):
        if not len(column):
            return column, 1, False
        low, high = extremes(column)
        if high - low < 4 * len(column) + _DENSE_SLACK:
            return column - low, high - low + 1, False
        if (places := _on_grid(column, low, high, 4 * len(column) + _DENSE_SLACK)) is not None:
            return *places, False
        ids, first = numbered(column)
        return ids, len(first), True
    if 0 < len(column) <= _FEW_TEXTS and (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return *_in_turn([text for chunk in chunks for text in chunk.view(pa.binary()).to_pylist()]), True
    if too_long(column):
        return *_codes_of_parts(column), False
    plain = normal_key(whole(column))
    if pa.types.is_signed_integer(plain.type) and not plain.null_count and len(plain):
        values = plain.to_numpy().astype(np.int64, copy=False)
        low, high = extremes(values)
        if high - low < 2 * len(values):  # close together: the values themselves will do, no table of them is needed
            return values - low, high - low + 1, False
        if len(values) <= _FEW:
            return *_in_turn(values.tolist()), True
        if len(values) >= _MANY:
            if _table_fits(high - low + 1, len(values)):
                return values - low, high - low + 1, False
            if (places := _on_grid(values, low, high, 2 * len(values))) is not None:
                return *places, False
    came_encoded = pa.types.is_dictionary(plain.type)
    encoded = plain if came_encoded else pc.dictionary_encode(plain, null_encoding="encode")
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, max(len(encoded.dictionary), 1), not came_encoded and len(codes) > 0


def _in_turn(values: Sequence[int] | Sequence[bytes | None]) -> tuple[Ints, int]:
    """Number values in the order in which they come first; gives the number of each, and how many there are."""
    known: dict[int | bytes | None, int] = {}
    numbers = [known.setdefault(value, len(known)) for value in values]
    return np.array(numbers, np.int64), len(known)


def _on_grid(values: Ints, low: int, high: int, most: int) -> tuple[Ints, int] | None:
    """Return the places of numbers on the grid that they all lie on, as starts of windows do, and how many there are.

    None without such a grid, and for one of more than `most` places.
    """
    if high - low >= 1 << 62:
        return None
    from_low = values - low
    step = int(np.gcd.reduce(from_low[:: len(values) // _SAMPLE + 1], initial=high - low))
    while step > 1 and (high - low) // step < most:
        places = from_low // step
        rest = from_low - places * step
        if not rest.any():
            return places, (high - low) // step + 1
        step = int(np.gcd.reduce(rest[np.flatnonzero(rest)[:_SAMPLE]], initial=step))
    return None


def _codes_of_parts(column: pa.ChunkedArray) -> tuple[Ints, int]:
    """As :func:`codes_of`, of more text than one array can hold: only that of different values has to fit."""
    encoded = pc.dictionary_encode(column).unify_dictionaries()
    values = len(encoded.chunk(0).dictionary)
    codes = [chunk.indices.fill_null(values).to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
    return np.concatenate(codes).astype(np.int64), values + 1


def _first(codes: Ints, n: int) -> Ints:
    """Return the first row with each code from 0 to `n`, which all occur."""
    return values_at(codes[::-1], np.arange(len(codes) - 1, -1, -1, dtype=np.int64), n)


def _densify(codes: Ints, bound: int) -> Groups:
    n_rows = len(codes)
    if _table_fits(bound, n_rows):
        slot = values_at(codes[::-1], np.arange(n_rows - 1, -1, -1, dtype=np.int64), bound, -1)
        present = np.flatnonzero(slot >= 0)
        first = slot[present]
        slot[present] = np.arange(len(present), dtype=np.int64)
        return Groups(slot[codes], first, len(present))
    ids, first = numbered(codes)
    return Groups(ids, first, len(first))


def group(columns: list[pa.Array | pa.ChunkedArray | Ints], n_rows: int) -> Groups:
    """Number the rows by the values of several columns together; no column means one group."""
    if n_rows == 0:
        none = np.empty(0, np.int64)
        return Groups(none, none, 0)
    if not columns or n_rows == 1:
        return Groups(np.zeros(n_rows, np.int64), np.zeros(1, np.int64), 1)
    codes, bound, dense = codes_of(columns[0])
    if dense and len(columns) == 1:
        return Groups(codes, _first(codes, bound), bound)
    for column in columns[1:]:
        more, factor, _ = codes_of(column)
        if bound * factor >= 1 << 62 or not (dense or _table_fits(bound * factor, n_rows)):
            so_far = _densify(codes, bound)
            codes, bound = so_far.ids, so_far.n
        codes *= factor
        codes += more
        bound, dense = bound * factor, False
    return _densify(codes, bound)


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Return a column whose values can be grouped: nested ones by their text."""
    if not pa.types.is_nested(column.type):
        return column
    return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())


def group_numbers(columns: list[pa.Array | pa.ChunkedArray | Ints], n_rows: int) -> tuple[Ints, int]:
    """Number the rows as :func:`group` does, and give a bound above the numbers, some of which may be those of no row."""
    if len(columns) == 1 and n_rows > 1:
        codes, bound, _ = codes_of(columns[0])
        if bound <= 4 * n_rows:
            return codes, bound
    groups = group(columns, n_rows)
    return groups.ids, groups.n


def group_rows(names: list[str], *tables: pa.Table) -> Groups:
    """Number the rows of tables, one after the other, by the values of some columns together."""
    columns = [pa.chunked_array([c for t in tables for c in t[n].chunks], tables[0][n].type) for n in names]
    return group(list(columns), sum(t.num_rows for t in tables))


def places_among(names: list[str], keys: pa.Table, rows: pa.Table) -> Ints:
    """Return for each of the `rows` the place of its key among `keys`, which have each key once; -1 for keys not among them.

    The numbers of groups are no places: those of whole numbers go by value, or by what came first, as is quicker.
    """
    groups = group_rows(names, keys, rows)
    places = last_rows(groups.ids[: keys.num_rows], groups.n)
    return places[groups.ids[keys.num_rows :]]


def _mix(values: Hashes) -> Hashes:
    """Finaliser of splitmix64: spreads every input bit over all output bits."""
    shifted = values >> np.uint64(30)
    mixed = values ^ shifted
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= np.right_shift(mixed, np.uint64(27), out=shifted)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= np.right_shift(mixed, np.uint64(31), out=shifted)
    return mixed


def _hash_bytes(array: pa.Array) -> Hashes:
    """Polynomial hash of variable-length values, over the bytes of many at once: numbers of 64 bits are made of each."""
    binary = pc.cast(array, pa.large_binary())
    if binary.null_count:
        binary = binary.fill_null(b"")
    offsets = np.frombuffer(binary.buffers()[1], np.int64)[binary.offset : binary.offset + len(binary) + 1]
    lengths = offsets[1:] - offsets[:-1]
    if not len(lengths) or offsets[-1] - offsets[0] < _HASHED_BYTES:
        return _hashed(binary, offsets, lengths)
    parts = portions(lengths, _HASHED_BYTES)
    return np.concatenate([_hashed(binary, offsets[low : high + 1], lengths[low:high]) for low, high in parts])


def _hashed(binary: pa.Array, offsets: Ints, lengths: Ints) -> Hashes:
    data_buffer = binary.buffers()[2]
    if data_buffer is None or not lengths.any():
        return _mix(lengths.astype(np.uint64))
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]].astype(np.uint64)
    starts = (offsets[:-1] - offsets[0]).astype(np.int64)
    position = np.arange(len(data), dtype=np.int64) - np.repeat(starts, lengths)
    powers = np.full(int(lengths.max()), 0x100000001B3, np.uint64)
    powers[0] = 1
    np.multiply.accumulate(powers, out=powers)
    weighted = (data + np.uint64(1)) * powers[position]
    filled = lengths > 0
    sums = np.zeros(len(lengths), np.uint64)
    sums[filled] = np.add.reduceat(weighted, starts[filled])
    return _mix(sums ^ (lengths.astype(np.uint64) << np.uint64(48)))


def hash_values(column: pa.Array | pa.ChunkedArray) -> Hashes:
    """Return a 64-bit hash of every value, the same in every process and release; null has one of its own."""
    if isinstance(column, pa.ChunkedArray) and column.num_chunks > 1:
        return np.concatenate([hash_values(chunk) for chunk in column.chunks])
    plain = normal_key(whole(column))
    if pa.types.is_dictionary(plain.type):
        plain = plain.dictionary_decode()
    type_: Any = plain.type
    nulls = plain.is_null().to_numpy(zero_copy_only=False) if plain.null_count else None
    if pa.types.is_floating(type_):
        bits = np.ascontiguousarray(pc.cast(plain, pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)).view(np.uint64)
        result = _mix(bits)
    elif pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        result = _mix(pc.cast(plain, pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64))
    elif pa.types.is_timestamp(type_) or pa.types.is_date64(type_) or pa.types.is_time64(type_) or pa.types.is_duration(type_):
        result = _mix(plain.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64))
    elif pa.types.is_date32(type_) or pa.types.is_time32(type_):
        result = _mix(plain.cast(pa.int32()).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64))
    elif pa.types.is_string(type_) or pa.types.is_binary(type_) or pa.types.is_large_string(type_):
        result = _hash_bytes(plain)
    else:
        result = _hash_bytes(pc.cast(plain, pa.string()))
    if nulls is not None:
        result = result.copy()
        result[nulls] = np.uint64(0x9E3779B97F4A7C15)
    return result


def _key_hashes(columns: list[pa.Array | pa.ChunkedArray], n_rows: int) -> Iterator[tuple[slice, Hashes]]:
    """Yield hashes of the keys of rows, block by block: they are gone over many times, and a block stays in the cache."""
    for low in range(0, n_rows, _HASHED_ROWS):
        block = columns if n_rows <= _HASHED_ROWS else [column.slice(low, _HASHED_ROWS) for column in columns]
        total = np.zeros(min(n_rows - low, _HASHED_ROWS), np.uint64)
        for column in block:
            total = _mix(total * np.uint64(31) + hash_values(column))
        yield slice(low, low + len(total)), total


def key_hashes(columns: list[pa.Array | pa.ChunkedArray], n_rows: int) -> Ints:
    """Return a 64-bit hash of the key of every row, as signed integers; no column means one key."""
    result = np.empty(n_rows, np.int64)
    for rows, hashes in _key_hashes(columns, n_rows):
        result[rows] = hashes.view(np.int64)
    return result


@attrs.frozen(eq=False)
class HashIndex:
    """Finds rows by the hash of their key.

    Attributes
    ----------
    hashes : ndarray of int64
        The hashes of all rows, ascending.
    order : ndarray of int64
        The row of each hash; of equal ones ascending.
    """

    hashes: Ints
    order: Ints

    @classmethod
    def of(cls, columns: list[pa.Array | pa.ChunkedArray], n_rows: int) -> HashIndex:
        """Return the index of rows with these key columns."""
        hashes = key_hashes(columns, n_rows)
        order = hash_order(hashes)
        return cls(hashes[order], order)

    def rows(self, wanted: Ints) -> Ints:
        """Return the rows with some hashes, which ascend; rows ascend, too."""
        start, stop = self.hashes.searchsorted(wanted), self.hashes.searchsorted(wanted, side="right")
        if len(wanted) == 1:
            return self.order[start[0] : stop[0]]
        return np.sort(self.order[expand(start, stop)[0]])


def buckets(columns: list[pa.Array | pa.ChunkedArray], n_rows: int, n_buckets: int) -> NumPy:
    """Return the bucket of every row, as whole numbers of 32 bits: equal keys always share one."""
    result = np.zeros(n_rows, np.int32)
    if n_buckets == 1 or not columns:
        return result
    is_power = n_buckets & (n_buckets - 1) == 0  # then the low bits are the remainder, and NumPy divides slowly
    for rows, hashes in _key_hashes(columns, n_rows):
        result[rows] = hashes & np.uint64(n_buckets - 1) if is_power else hashes % np.uint64(n_buckets)
    return result


def distinct(table: pa.Table, names: list[str]) -> pa.Table:
    """Return the distinct values of some columns, without nested ones."""
    picked = table.select(names)
    return pick(picked, group(list(picked.columns), table.num_rows).first)


def among(rows: pa.Table, others: pa.Table, names: list[str]) -> npt.NDArray[np.bool_]:
    """Rows whose values in these columns occur in `others`; without columns, all rows if `others` has any."""
    groups = group_rows(names, others, rows)
    wanted = flags_at(groups.ids[: others.num_rows], groups.n)
    return wanted[groups.ids[others.num_rows :]]


_REFUSED: Final = 64


def first_come(times: Ints, held: Ints, most: int, reach_us: int) -> Mask:
    """Return which times find fewer than `most` others within `reach_us`, of those held and those that came before.

    Examples
    --------
    >>> first_come(np.array([10, 11, 12, 25, 20]), np.array([9]), 2, 10).tolist()
    [True, False, False, True, False]
    """
    takes = np.zeros(len(times), np.bool_)
    taken: list[int] = sorted(held.tolist())
    end, refused = 0, 0
    while end < len(times):
        time = int(times[end])
        if bisect_right(taken, time + reach_us) - bisect_left(taken, time - reach_us) < most:
            insort(taken, time)
            takes[end], refused = True, 0
            end += 1
            continue
        end, refused = end + 1, refused + 1
        if refused >= _REFUSED:  # whoever is refused stays refused: look for the next that is not among many at once
            ahead, known = times[end : end + refused], np.array(taken)
            within = np.searchsorted(known, ahead + reach_us, side="right") - np.searchsorted(known, ahead - reach_us)
            free = np.flatnonzero(within < most)
            step = int(free[0]) if len(free) else len(ahead)
            end, refused = end + step, refused + step
    return takes


@attrs.frozen(eq=False)
class Spread:
    """Ranges ``[low, high)`` over values without nulls; `hole` is a position each leaves out, -1 for none.

    A range may be empty; `low` and `high` ascend.
    """

    low: Ints
    high: Ints
    hole: Ints | None

    @property
    def lengths(self) -> Ints:
        """Return how many values each holds."""
        whole: Ints = self.high - self.low
        return whole if self.hole is None else whole - (self.hole >= 0)


def neighbours(codes: Ints) -> tuple[Ints, Ints]:
    """For every position the one before and the one after it of the same code; -1 and the length where there is none."""
    n = len(codes)
    before, after = np.full(n, -1, np.int64), np.full(n, n, np.int64)
    order = stable_order(codes)
    same = codes[order[1:]] == codes[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    after[order[:-1][same]] = order[1:][same]
    return before, after


def counting_ranges(s: Spread, after: Ints, until: Ints) -> tuple[Ints, Ints]:
    """For every position the ranges that hold it, begin after `after` and end at or before `until`: first, and one past."""
    here = np.arange(len(after), dtype=np.int64)
    first = np.maximum(np.searchsorted(s.low, after, side="right"), np.searchsorted(s.high, here, side="right"))
    stop = np.minimum(np.searchsorted(s.low, here, side="right"), np.searchsorted(s.high, until, side="right"))
    return first, np.maximum(first, stop)


def added(first: Ints, stop: Ints, weights: NumPy | None, n: int) -> Ints:
    """Of every range the sum of the whole weights (None: 1 each) of what counts in it."""
    total = totals_of(first, 1 if weights is None else weights, n + 1)
    np.subtract.at(total, stop, 1 if weights is None else weights)
    return np.cumsum(total)[:n]


def distinct_counts(codes: Ints, s: Spread) -> Ints:
    """Return how many distinct codes every range holds."""
    before, after = neighbours(codes)
    first, stop = counting_ranges(s, before, np.full(len(codes), len(codes)))
    counts = added(first, stop, None, len(s.low))
    if s.hole is not None:
        some = np.flatnonzero(s.hole >= 0)
        hole = s.hole[some]
        counts[some] -= (before[hole] < s.low[some]) & (after[hole] >= s.high[some])
    return counts


def rank(groups: Ints) -> Ints:
    """Numbers from 0, in the order given."""
    if not len(groups):
        return groups
    order = stable_order(groups)
    ordered = groups[order]
    heads = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.append(heads, len(groups)))
    return values_at(order, np.arange(len(groups)) - np.repeat(heads, lengths), len(groups))
