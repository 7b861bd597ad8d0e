"""Running partials: what every prefix of a group comes to, for triggers that fire row by row (SEMANTICS §5.2).

Rows are ordered by group. Counts, sums and extremes are cumulative NumPy forms. Any other aggregate is merged by doubling: in
pass ``j`` every prefix of ``2**j`` rows is joined with the one before it, so ``log2`` of the longest group passes do.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_py.kernels.aggregates import AggKernel
from krishiv_py.kernels.aggregates.base import numbers
from krishiv_py.kernels.aggregates.counting import Count
from krishiv_py.kernels.aggregates.exact.reducers import ByRange
from krishiv_py.kernels.aggregates.extremes import Extreme, ranks
from krishiv_py.kernels.aggregates.failed import regrouped
from krishiv_py.kernels.aggregates.floats import EXACT, FloatAvg, FloatSum, columns_of, merge_sums
from krishiv_py.kernels.aggregates.moments import Variance
from krishiv_py.kernels.aggregates.sums import IntAvg, IntSum
from krishiv_py.kernels.arrays.grouping import normal_key
from krishiv_py.kernels.arrays.types import Ints, Mask, NumPy

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


def _valid(column: pa.Array) -> Mask:
    mask: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _with_presence(values: NumPy, valid: Mask, starts: Ints, type_: pa.DataType) -> pa.Array:
    seen = _cumulate(valid.astype(np.int64), starts) > 0
    return pa.array(values, type_, mask=None if seen.all() else ~seen)


def _extreme(kernel: Extreme, column: pa.Array, ids: Ints) -> pa.Array:
    valid = _valid(column)
    rank, ordered = ranks(normal_key(column.drop_null()))
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


def _exact(partials: list[pa.Array], starts: Ints) -> list[pa.Array]:
    filled = [p.fill_null(0.0) for p in partials[:-1]]
    sums = merge_sums([*filled, partials[-1]], ByRange(starts, np.arange(1, len(starts) + 1), len(starts)))
    return columns_of(sums, _cumulate(_valid(partials[0]).astype(np.int64), starts) > 0)


def _doubling(kernel: AggKernel, partials: list[pa.Array], starts: Ints) -> list[pa.Array]:
    place = np.arange(len(starts)) - starts
    step = 1
    while step <= int(place.max(initial=0)):
        later = np.flatnonzero(place >= step)
        pairs = np.column_stack([later - step, later]).ravel()
        with regrouped(later):
            joined = kernel.merge([p.take(pa.array(pairs)) for p in partials], np.repeat(np.arange(len(later)), 2), len(later))
        source = np.arange(len(starts))
        source[later] = len(starts) + np.arange(len(later))
        partials = [pa.concat_arrays([p, j]).take(pa.array(source)) for p, j in zip(partials, joined, strict=True)]
        step *= 2
    return partials


def running(kernel: AggKernel, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
    """Of every row, the merged partials of its group up to and with that row; one that fails is told by its row.

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
    if isinstance(kernel, IntAvg):
        found = _int_sum(partials[:2], starts)
        if found is not None:
            return [*found, pa.array(_cumulate(numbers(partials[2]), starts))]
    if isinstance(kernel, Extreme):
        return [_extreme(kernel, partials[0], ids)]
    if isinstance(kernel, FloatSum):
        return _exact(partials, starts)
    if isinstance(kernel, FloatAvg):
        return [*_exact(partials[:-1], starts), pa.array(_cumulate(numbers(partials[-1]), starts))]
    if isinstance(kernel, Variance):
        cut = len(EXACT) + 1
        counts = pa.array(_cumulate(numbers(partials[0]), starts))
        return [counts, *_exact(partials[1:cut], starts), *_exact(partials[cut:], starts)]
    return _doubling(kernel, partials, starts)
