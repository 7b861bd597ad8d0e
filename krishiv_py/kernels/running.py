"""Running partials: what every prefix of a group comes to, for triggers that fire row by row (SEMANTICS §5.2).

Rows are ordered by group. Counts, integer sums and extremes are cumulative NumPy forms; sums of floats are added one by one
from the left, so that a result does not depend on how rows were batched. Any other aggregate is merged by doubling: in pass
``j`` every prefix of ``2**j`` rows is joined with the one before it, so ``log2`` of the longest group passes do.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_py.kernels.aggs import AggKernel
from krishiv_py.kernels.aggs.base import Mask, NumPy, numbers
from krishiv_py.kernels.aggs.counting import Count
from krishiv_py.kernels.aggs.extremes import Extreme, ranks
from krishiv_py.kernels.aggs.sums import Avg, FloatSum, IntSum
from krishiv_py.kernels.grouping import Ints

_LONG = 64
_SAFE = float(2**62)


def group_starts(ids: Ints) -> Ints:
    """Where every row's group begins."""
    first = np.ones(len(ids), np.bool_)
    first[1:] = ids[1:] != ids[:-1]
    at = np.flatnonzero(first)
    return np.repeat(at, np.diff(np.append(at, len(ids))))


def _cumulate(values: NumPy, starts: Ints) -> NumPy:
    """Running sums of whole numbers, each group from its start."""
    total: NumPy = np.cumsum(values)
    cumulated: NumPy = total - (total[starts] - values[starts])
    return cumulated


def _fold(values: NumPy, starts: Ints) -> NumPy:
    """Running sums of floats, strictly from the left: by position over short groups, one by one over long ones."""
    out: NumPy = values.astype(np.float64)
    if not len(out):
        return out
    place = np.arange(len(out)) - starts
    heads, counts = np.unique(starts, return_counts=True)
    for head, count in zip(heads[counts > _LONG].tolist(), counts[counts > _LONG].tolist(), strict=True):
        out[head : head + count] = np.cumsum(out[head : head + count])
    length = np.repeat(counts, counts)
    for position in range(1, int(counts[counts <= _LONG].max(initial=1))):
        at = np.flatnonzero((place == position) & (length <= _LONG))
        out[at] += out[at - 1]
    return out


def _valid(column: pa.Array) -> Mask:
    mask: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _with_presence(values: NumPy, valid: Mask, starts: Ints, type_: pa.DataType) -> pa.Array:
    seen = _cumulate(valid.astype(np.int64), starts) > 0
    return pa.array(values, type_, mask=None if seen.all() else ~seen)


def _extreme(kernel: Extreme, column: pa.Array, ids: Ints) -> pa.Array:
    valid = _valid(column)
    rank, ordered = ranks(column.drop_null())
    width = len(ordered) + 1
    place = np.zeros(len(column), np.int64)  # 0: no value yet
    place[valid] = rank + 1 if kernel.side == "max" else len(ordered) - rank
    best = np.maximum.accumulate(place + ids * width) - ids * width
    found = best - 1 if kernel.side == "max" else len(ordered) - best
    return ordered.take(pa.array(found, mask=best == 0))


def _int_sum(partials: list[pa.Array], starts: Ints) -> list[pa.Array] | None:
    """None when it might leave 64 bits: then wraps have to be counted."""
    values = numbers(partials[0].fill_null(0))
    if numbers(partials[1]).any() or np.abs(values.astype(np.float64)).sum() >= _SAFE:
        return None
    return [_with_presence(_cumulate(values, starts), _valid(partials[0]), starts, pa.int64()), partials[1]]


def _doubling(kernel: AggKernel, partials: list[pa.Array], starts: Ints) -> list[pa.Array]:
    place = np.arange(len(starts)) - starts
    step = 1
    while step <= int(place.max(initial=0)):
        later = np.flatnonzero(place >= step)
        pairs = np.column_stack([later - step, later]).ravel()
        joined = kernel.merge([p.take(pa.array(pairs)) for p in partials], np.repeat(np.arange(len(later)), 2), len(later))
        source = np.arange(len(starts))
        source[later] = len(starts) + np.arange(len(later))
        partials = [pa.concat_arrays([p, j]).take(pa.array(source)) for p, j in zip(partials, joined, strict=True)]
        step *= 2
    return partials


def running(kernel: AggKernel, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
    """Of every row, the merged partials of its group up to and with that row.

    Parameters
    ----------
    kernel : AggKernel
        The aggregate.
    partials : list of pyarrow.Array
        Its partial columns, rows of a group next to each other.
    ids : ndarray of int64
        The group of every row, ascending.
    """
    starts = group_starts(ids)
    if isinstance(kernel, Count):
        return [pa.array(_cumulate(numbers(partials[0]), starts))]
    if isinstance(kernel, IntSum):
        found = _int_sum(partials, starts)
        return _doubling(kernel, partials, starts) if found is None else found
    if isinstance(kernel, Extreme):
        return [_extreme(kernel, partials[0], ids)]
    if isinstance(kernel, (FloatSum, Avg)):
        total = _with_presence(_fold(numbers(partials[0].fill_null(0.0)), starts), _valid(partials[0]), starts, pa.float64())
        return [total] if isinstance(kernel, FloatSum) else [total, pa.array(_cumulate(numbers(partials[1]), starts))]
    return _doubling(kernel, partials, starts)
