"""Define what every prefix of a group of partials comes to, for triggers that fire row by row (SEMANTICS §5.2).

Rows are ordered by group. Counts, sums and extremes have cumulative NumPy forms, in their own files. Any other aggregate is
merged by doubling: in pass ``j`` every prefix of ``2**j`` rows is joined with the one before it, so ``log2`` of the longest
group passes do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, Mask, NumPy
from krishiv_py.kernels.aggregates.failed import regrouped

Merge: TypeAlias = Callable[[list[pa.Array], Ints, int], list[pa.Array]]
"""How an aggregate merges partials by group."""


def group_starts(ids: Ints) -> Ints:
    """Return where every row's group begins."""
    first = np.ones(len(ids), np.bool_)
    first[1:] = ids[1:] != ids[:-1]
    at = np.flatnonzero(first)
    return np.repeat(at, np.diff(np.append(at, len(ids))))


def cumulate(values: NumPy, starts: Ints) -> NumPy:
    """Running sums of whole numbers, each group from its start."""
    total: NumPy = np.cumsum(values)
    cumulated: NumPy = total - (total[starts] - values[starts])
    return cumulated


def valid(column: pa.Array) -> Mask:
    """Return which values are not null."""
    mask: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return mask


def with_presence(values: NumPy, valid: Mask, starts: Ints, type_: pa.DataType) -> pa.Array:
    """Running values, null until a group has had a valid one."""
    seen = cumulate(valid.astype(np.int64), starts) > 0
    return pa.array(values, type_, mask=None if seen.all() else ~seen)


def doubling(merge: Merge, partials: list[pa.Array], starts: Ints) -> list[pa.Array]:
    """Any aggregate: of every row, the merged partials of its group up to and with that row."""
    place = np.arange(len(starts)) - starts
    step = 1
    while step <= int(place.max(initial=0)):
        later = np.flatnonzero(place >= step)
        pairs = np.column_stack([later - step, later]).ravel()
        with regrouped(later):
            joined = merge([p.take(pa.array(pairs)) for p in partials], np.repeat(np.arange(len(later)), 2), len(later))
        source = np.arange(len(starts))
        source[later] = len(starts) + np.arange(len(later))
        partials = [pa.concat_arrays([p, j]).take(pa.array(source)) for p, j in zip(partials, joined, strict=True)]
        step *= 2
    return partials
