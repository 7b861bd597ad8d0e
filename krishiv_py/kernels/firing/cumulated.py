"""What every prefix of a group comes to, also of aggregates that hold values (SEMANTICS §5.2).

The accumulators of ``count_distinct`` and ``percentile`` grow with the rows, their results do not. So results of prefixes are
worked out without accumulators: a value counts once in a group, from its first row on, and percentiles are found in ranges of
one array (:mod:`~krishiv_py.kernels.aggregates.percentiles`). Such results ride along with partials as columns ``__f0``,
``__f1``, …, which :meth:`Layout.finish <krishiv_py.kernels.columns.layout.Layout.finish>` takes as they are; accumulators are
made where they are kept.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.kernels.aggregates import AggKernel
from krishiv_py.kernels.aggregates.base import flatten
from krishiv_py.kernels.aggregates.collections import Distinct, Percentile
from krishiv_py.kernels.aggregates.counting import Count
from krishiv_py.kernels.aggregates.extremes import Extreme, ranks
from krishiv_py.kernels.aggregates.floats import FloatAvg, FloatSum
from krishiv_py.kernels.aggregates.moments import Variance
from krishiv_py.kernels.aggregates.percentiles import percentiles
from krishiv_py.kernels.aggregates.sums import IntAvg, IntSum
from krishiv_py.kernels.arrays.grouping import normal_key
from krishiv_py.kernels.arrays.occurrences import Spread
from krishiv_py.kernels.arrays.ranges import expand
from krishiv_py.kernels.arrays.ranges import running as sums
from krishiv_py.kernels.arrays.sorting import stable_order
from krishiv_py.kernels.arrays.types import Ints
from krishiv_py.kernels.columns.layout import Layout, finished_name, whole
from krishiv_py.kernels.firing.running import group_starts, running

_EXACT: Final = (Count, Extreme, FloatAvg, FloatSum, IntAvg, IntSum, Variance)
_FEW: Final = 3


def holds_values(kernel: AggKernel) -> bool:
    """Whether the accumulators of an aggregate grow, and its results do not."""
    return isinstance(kernel, Percentile) or (isinstance(kernel, Distinct) and kernel.result == "count")


def exactly(kernel: AggKernel) -> bool:
    """Whether results of prefixes cost the same for every row, and are to the last bit those of whole groups."""
    return isinstance(kernel, _EXACT) or holds_values(kernel)


def few_each(ids: Ints) -> bool:
    """Whether groups have so few rows that to merge them is cheaper: what was held, and a row or two."""
    return int(np.bincount(ids).max(initial=0)) <= _FEW


def told(kernel: AggKernel, partials: list[pa.Array], ids: Ints, wanted: Ints) -> pa.Array:
    """Of the rows `wanted` what the prefixes that end there come to; for kernels that :func:`holds_values`."""
    starts = group_starts(ids)
    if isinstance(kernel, Percentile):
        ends = sums(partials[0].value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64))
        return percentiles(kernel.percentage, partials[0].flatten(), Spread(ends[starts[wanted]], ends[wanted + 1], None))
    values, row = flatten(partials[0], np.arange(len(ids)))
    rank, ordered = ranks(normal_key(values))
    pair = starts[row] * max(len(ordered), 1) + rank
    order = stable_order(pair)
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = pair[order[1:]] != pair[order[:-1]]
    seen = sums(np.bincount(row[order[fresh]], minlength=len(ids)))
    return pa.array(seen[wanted + 1] - seen[starts[wanted]])


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
        if holds_values(kernel) and few_each(ids):
            merged = running(kernel, given, ids)
            columns += merged
            results.append(kernel.finish(merged))
        elif holds_values(kernel):
            results.append(told(kernel, given, ids, every))
            columns.append(_accumulators(kernel, given, ids, kept))
        else:
            columns += running(kernel, given, ids)
    return pa.Table.from_arrays([*columns, *results], schema=pa.schema([*layout.partial_fields, *_result_fields(layout)]))


def with_results(layout: Layout, partials: pa.Table) -> pa.Table:
    """The partials, and beside them the results that :func:`cumulated` tells."""
    for i, (kernel, names) in enumerate(zip(layout.kernels, layout.partial_names, strict=True)):
        if holds_values(kernel):
            field = pa.field(finished_name(i), kernel.result_type)
            partials = partials.append_column(field, kernel.finish([whole(partials[x]) for x in names]))
    return partials


def _result_fields(layout: Layout) -> list[pa.Field]:
    return [pa.field(finished_name(i), k.result_type) for i, k in enumerate(layout.kernels) if holds_values(k)]


def _accumulators(kernel: AggKernel, partials: list[pa.Array], ids: Ints, kept: Ints) -> pa.Array:
    at, of = expand(group_starts(ids)[kept], kept + 1)
    merged = kernel.merge([p.take(pa.array(at)) for p in partials], of, len(kept) + 1)[0]  # the last one is empty
    place = np.full(len(ids), len(kept))
    place[kept] = np.arange(len(kept))
    return merged.take(pa.array(place))
