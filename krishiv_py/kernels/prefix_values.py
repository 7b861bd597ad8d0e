"""What some prefixes of groups of partials come to, finished, and what whole groups do (SEMANTICS §5.2)."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.kernels.aggs import AggKernel
from krishiv_py.kernels.aggs.base import numbers
from krishiv_py.kernels.aggs.moments import Variance
from krishiv_py.kernels.grouping import Ints
from krishiv_py.kernels.running import running


@attrs.frozen(eq=False)
class Prefixes:
    """Finished values of some prefixes, and the merged partials of every group."""

    values: pa.Array
    totals: list[pa.Array]


def prefixes(kernel: AggKernel, partials: list[pa.Array], ids: Ints, wanted: Ints) -> Prefixes:
    """What the prefixes that end at the rows `wanted` come to, and what every group does.

    Parameters
    ----------
    kernel : AggKernel
        The aggregate.
    partials : list of pyarrow.Array
        Its partial columns, rows of a group next to each other.
    ids : ndarray of int64
        The group of every row, ascending from 0 without gaps.
    wanted : ndarray of int64
        Rows.
    """
    folded = isinstance(kernel, Variance)
    if not len(wanted) and not folded:
        return Prefixes(kernel.finish([p.slice(0, 0) for p in partials]), kernel.merge(partials, ids, int(ids[-1]) + 1))
    found = _variance(partials, ids) if folded else running(kernel, partials, ids)
    last = pa.array(np.append(np.flatnonzero(np.diff(ids)), len(ids) - 1))
    return Prefixes(kernel.finish([p.take(pa.array(wanted)) for p in found]), [p.take(last) for p in found])


def _variance(partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
    """Counts, means and squares strictly from the left: their rounding depends on the grouping."""
    counts, means, squares = (numbers(p).tolist() for p in partials)
    group = ids.tolist()
    for i in range(1, len(group)):
        if group[i] == group[i - 1] and counts[i - 1]:
            n, m = counts[i - 1], counts[i]
            mean = (n * means[i - 1] + m * means[i]) / (n + m)
            squares[i] = (squares[i - 1] + n * (means[i - 1] - mean) ** 2) + (squares[i] + m * (means[i] - mean) ** 2)
            counts[i], means[i] = n + m, mean
    return [pa.array(counts, pa.int64()), pa.array(means, pa.float64()), pa.array(squares, pa.float64())]
