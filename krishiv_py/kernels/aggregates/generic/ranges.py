"""Partial aggregates of many overlapping ranges of rows: what aggregates share, and a way for any aggregate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.decimals import doubles
from krishiv_py.arrays.occurrences import Spread
from krishiv_py.arrays.ranges import Ranges, expand, running
from krishiv_py.arrays.splitting import portions
from krishiv_py.arrays.types import Ints, Mask, NumPy
from krishiv_py.kernels.aggregates.base import Rows, numbers
from krishiv_py.kernels.aggregates.failed import regrouped
from krishiv_py.kernels.aggregates.generic.prefixes import Merge

_PAIRS: Final = 2_000_000
SHORT: Final = 64
"""Ranges of so many rows are gone through row by row."""
Create: TypeAlias = Callable[[Rows], list[pa.Array]]
"""How an aggregate makes partials of rows by group."""


@attrs.frozen(eq=False)
class OrderedInput:
    """The input of an aggregate, laid out by key, time and arrival.

    Attributes
    ----------
    values : pyarrow.Array
        A value a row.
    valid : ndarray of bool or None
        Which values are not null; None: all.
    """

    values: pa.Array
    valid: Mask | None

    @classmethod
    def of(cls, values: pa.Array) -> OrderedInput:
        """A column of these values."""
        return cls(values, values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None)

    def filled(self, zero: Any, type_: pa.DataType) -> NumPy:
        """The values as NumPy, `zero` in place of nulls."""
        cast = doubles(self.values) if type_ == pa.float64() else pc.cast(self.values, type_, safe=False)
        return numbers(cast if self.valid is None else cast.fill_null(pa.scalar(zero, type_)))

    def spread(self, r: Ranges, holes: Ints | None) -> tuple[pa.Array, Spread]:
        """The values without nulls, and the ranges over them."""
        if self.valid is None:
            return self.values, Spread(r.low, r.high, holes)
        seen = running(self.valid.astype(np.int64))
        hole = None if holes is None else np.where(self.valid[holes], seen[holes], -1)
        return self.values.drop_null(), Spread(seen[r.low], seen[r.high], hole)


def counts(column: OrderedInput | None, r: Ranges) -> Ints:
    """Rows, or non-null values, of every range."""
    if column is None or column.valid is None:
        return r.high - r.low
    total = running(column.valid.astype(np.int64))
    return total[r.high] - total[r.low]


def any_ranges(
    create: Create, merge: Merge, types: list[pa.DataType], column: OrderedInput | None, times: Ints, r: Ranges
) -> list[pa.Array]:
    """The partial columns of any aggregate, of these `types`, for every range; one that fails is told by its range."""
    values = None if column is None else column.values
    long = np.flatnonzero(r.high - r.low > SHORT)
    if not len(long):
        return _expanded(create, types, values, times, r)
    short = np.flatnonzero(r.high - r.low <= SHORT)
    with regrouped(short):
        parts = [_expanded(create, types, values, times, Ranges(r.low[short], r.high[short], r.block))]
    with regrouped(long):
        parts.append(_doubled(create, merge, values, times, r.low[long], r.high[long]))
    order = pa.array(np.argsort(np.concatenate([short, long])))
    return [pa.concat_arrays([as_array(x) for x in pair]).take(order) for pair in zip(*parts, strict=True)]


def as_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _expanded(create: Create, types: list[pa.DataType], values: pa.Array | None, times: Ints, r: Ranges) -> list[pa.Array]:
    """Every row once for every range it is in, a bounded number at a time."""
    parts: list[list[pa.Array]] = []
    for start, stop in portions(r.high - r.low, _PAIRS):
        rows, ids = expand(r.low[start:stop], r.high[start:stop])
        taken = None if values is None else values.take(pa.array(rows))
        with regrouped(np.arange(start, stop)):
            parts.append(create(Rows(taken, times[rows], ids, stop - start)))
    if not parts:
        return [pa.array([], t) for t in types]
    return [pa.concat_arrays([as_array(p[i]) for p in parts]) for i in range(len(types))]


def _doubled(create: Create, merge: Merge, values: pa.Array | None, times: Ints, low: Ints, high: Ints) -> list[pa.Array]:
    """Long ranges: rows are merged to stretches of 2, 4, 8, …, of which a range takes at most one each.

    Which it takes follows from its length alone, so what rounds, rounds the same wherever a range lies.
    """
    base, end = int(low.min()), int(high.max())
    n, q = end - base, len(low)
    picked = None if values is None else values.slice(base, n)

    def holding(row: int) -> int:
        return int(np.flatnonzero((low <= base + row) & (base + row < high))[0])

    with regrouped(holding):
        table = [as_array(p) for p in create(Rows(picked, times[base:end], np.arange(n, dtype=np.int64), n))]
    at, lengths = low - base, high - low
    found = [pa.nulls(q, p.type) for p in table]
    some = np.zeros(q, np.bool_)
    width = 1
    while width <= int(lengths.max()):
        mine = np.flatnonzero(lengths & width)
        taken = [p.take(pa.array(at[mine])) for p in table]
        later = np.flatnonzero(some[mine])
        both = [pa.concat_arrays([f, t]) for f, t in zip(found, taken, strict=True)]
        with regrouped(mine[later]):
            joined = _in_pairs(merge, both, mine[later], q + later)
        source = np.arange(q)
        source[mine] = q + np.arange(len(mine))
        source[mine[later]] = q + len(mine) + np.arange(len(later))
        found = [pa.concat_arrays([b, j]).take(pa.array(source)) for b, j in zip(both, joined, strict=True)]
        some[mine], at = True, at + (lengths & width)
        left = np.arange(len(table[0]) - width)
        if len(left):
            with regrouped(holding):
                table = _in_pairs(merge, table, left, left + width)
        width *= 2
    return found


def _in_pairs(merge: Merge, partials: list[pa.Array], left: Ints, right: Ints) -> list[pa.Array]:
    """Lines `left` and `right` of partials merged."""
    order = pa.array(np.column_stack([left, right]).ravel())
    merged = merge([p.take(order) for p in partials], np.repeat(np.arange(len(left)), 2), len(left))
    return [as_array(p) for p in merged]
