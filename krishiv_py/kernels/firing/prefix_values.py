"""What some prefixes of groups of partials come to, finished, and what whole groups do (SEMANTICS §5.2)."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.aggregates import AggKernel
from krishiv_py.kernels.aggregates.failed import regrouped
from krishiv_py.kernels.firing.cumulated import few_each


@attrs.frozen(eq=False)
class Prefixes:
    """Finished values of some prefixes, and the merged partials of every group."""

    values: pa.Array
    totals: list[pa.Array]


def prefixes(kernel: AggKernel, partials: list[pa.Array], ids: Ints, wanted: Ints) -> Prefixes:
    """Return what the prefixes that end at the rows `wanted` come to, and what every group does.

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
    if not len(wanted):
        return Prefixes(kernel.finish([p.slice(0, 0) for p in partials]), kernel.merge(partials, ids, int(ids[-1]) + 1))
    if kernel.holds_values and not few_each(ids):
        return Prefixes(kernel.prefix_results(partials, ids, wanted), kernel.merge(partials, ids, int(ids[-1]) + 1))
    with regrouped(ids):
        found = kernel.prefixes(partials, ids)
    last = pa.array(np.append(np.flatnonzero(np.diff(ids)), len(ids) - 1))
    with regrouped(ids[wanted]):
        values = kernel.finish([pick(p, wanted) for p in found])
    return Prefixes(values, [pick(p, last) for p in found])
