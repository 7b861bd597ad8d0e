"""Define what every prefix of a group comes to, also of aggregates that hold values (SEMANTICS §5.2).

The accumulators of ``count_distinct`` and ``percentile`` grow with the rows, their results do not. So results of prefixes are
worked out without accumulators (:meth:`~krishiv_py.kernels.aggregates.generic.AggKernel.prefix_results`). They ride
along with partials as columns ``__f0``, ``__f1``, …, which :meth:`Layout.finish
<krishiv_py.kernels.columns.layout.Layout.finish>` takes as they are; accumulators are made where they are kept.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.aggregates import AggKernel
from krishiv_py.kernels.aggregates.generic import group_starts
from krishiv_py.kernels.columns.layout import Layout, finished_name, whole

_FEW: Final = 3


def exactly(kernel: AggKernel) -> bool:
    """Return whether results of prefixes cost the same for every row, and are to the last bit those of whole groups."""
    return kernel.exact_prefixes or kernel.holds_values


def few_each(ids: Ints) -> bool:
    """Return whether groups have so few rows that to merge them is cheaper: what was held, and a row or two."""
    return int(np.bincount(ids).max(initial=0)) <= _FEW


def cumulated(layout: Layout, stack: pa.Table, ids: Ints, kept: Ints) -> pa.Table:
    """Of every row the merged partials of its group up to and with that row, and results of aggregates that hold values.

    Parameters
    ----------
    stack : pyarrow.Table
        Partials, rows of a group next to each other.
    ids : ndarray of int64
        The group of every row, ascending.
    kept : ndarray of int64
        Rows of which accumulators that hold values are wanted; others get empty ones.
    """
    every = np.arange(len(ids))
    columns: list[pa.Array] = []
    results: list[pa.Array] = []
    for kernel, names in zip(layout.kernels, layout.partial_names, strict=True):
        given = [whole(stack[x]) for x in names]
        if kernel.holds_values and few_each(ids):
            merged = kernel.prefixes(given, ids)
            columns += merged
            results.append(kernel.finish(merged))
        elif kernel.holds_values:
            results.append(kernel.prefix_results(given, ids, every))
            columns.append(_accumulators(kernel, given, ids, kept))
        else:
            columns += kernel.prefixes(given, ids)
    return pa.Table.from_arrays([*columns, *results], schema=pa.schema([*layout.partial_fields, *_result_fields(layout)]))


def with_results(layout: Layout, partials: pa.Table) -> pa.Table:
    """Return the partials, and next to them the results that :func:`cumulated` tells."""
    for i, (kernel, names) in enumerate(zip(layout.kernels, layout.partial_names, strict=True)):
        if kernel.holds_values:
            field = pa.field(finished_name(i), kernel.result_type)
            partials = partials.append_column(field, kernel.finish([whole(partials[x]) for x in names]))
    return partials


def _result_fields(layout: Layout) -> list[pa.Field]:
    return [pa.field(finished_name(i), k.result_type) for i, k in enumerate(layout.kernels) if k.holds_values]


def _accumulators(kernel: AggKernel, partials: list[pa.Array], ids: Ints, kept: Ints) -> pa.Array:
    rows, of = expand(group_starts(ids)[kept], kept + 1)
    merged = kernel.merge([pick(p, rows) for p in partials], of, len(kept) + 1)[0]  # the last one is empty
    place = np.full(len(ids), len(kept))
    place[kept] = np.arange(len(kept))
    return pick(merged, place)
