"""Sums and means of doubles, exact until they are rounded once."""

from __future__ import annotations

from typing import ClassVar, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.ranges import Ranges
from krishiv_py.arrays.types import Ints, Mask, NumPy, doubles
from krishiv_py.kernels.aggregates import exact
from krishiv_py.kernels.aggregates.base import Rows, numbers, present_groups, valid_rows, with_nulls
from krishiv_py.kernels.aggregates.exact import Addends, ByGroup, ByRange, Reducer, Terms, exact_sums
from krishiv_py.kernels.aggregates.generic import AggKernel, OrderedInput, counts, cumulate, group_starts, valid

EXACT: Final = [pa.float64(), pa.float64(), exact.TYPE]
"""Types of an exact sum in state: the nearest double, null over no value; the rest; the number, where two doubles do not do."""


def columns_of(sums: Terms, present: Mask | None) -> list[pa.Array]:
    """Exact sums as columns of the state; the first is null where not present."""
    n = len(sums.terms[0])
    first = pa.array(sums.terms[0]) if present is None else with_nulls(sums.terms[0], present, pa.float64())
    return [first, *map(pa.array, sums.terms[1:]), pa.nulls(n, exact.TYPE) if sums.wide is None else sums.wide]


def addends_of(columns: list[pa.Array]) -> Addends:
    """Columns of the state, none of them null but the last."""
    *terms, wide = columns
    arrays = [numbers(terms[0])] + [a for a in map(numbers, terms[1:]) if a.any()]
    return Addends(arrays, None if wide.null_count == len(wide) else wide)


def sum_values(values: NumPy, ids: Ints, counts: Ints) -> Terms:
    """Exact sums of values by group."""
    n = len(counts)
    if len(values) <= n and int(counts.max(initial=0)) <= 1:
        total = np.zeros(n)
        total[ids] = values
        return Terms([total + 0.0, np.zeros(n)], None)
    return exact_sums(Addends([values]), ByGroup(ids, counts), 2)


def merge_sums(columns: list[pa.Array], reducer: Reducer) -> Terms:
    """Exact sums of exact sums."""
    return exact_sums(addends_of(columns), reducer, len(columns) - 1)


def merge_groups(partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
    """Exact sums in state merged by group."""
    counts = np.bincount(ids, minlength=n)
    present = counts > 0
    if len(ids) <= n and int(counts.max(initial=0)) <= 1:
        place = np.full(n, -1, np.int64)
        place[ids] = np.arange(len(ids))
        first, *others, wide = [p.take(pa.array(place, mask=~present)) for p in partials]
        return [first, *(o.fill_null(0.0) for o in others), wide]
    if partials[0].null_count:
        valid = partials[0].is_valid().to_numpy(zero_copy_only=False)
        present = present_groups(ids[valid], n)
        partials = [*(p.fill_null(0.0) for p in partials[:-1]), partials[-1]]
    return columns_of(merge_sums(partials, ByGroup(ids, counts)), present)


def running_sums(partials: list[pa.Array], starts: Ints) -> list[pa.Array]:
    """Exact sums in state, of every prefix."""
    filled = [p.fill_null(0.0) for p in partials[:-1]]
    sums = merge_sums([*filled, partials[-1]], ByRange(starts, np.arange(1, len(starts) + 1), len(starts)))
    return columns_of(sums, cumulate(valid(partials[0]).astype(np.int64), starts) > 0)


def _range_sums(column: OrderedInput | None, r: Ranges) -> list[pa.Array]:
    assert column is not None
    values = column.filled(0.0, pa.float64())
    sums = exact_sums(Addends([values]), ByRange(r.low, r.high, len(values)), 2)
    return columns_of(sums, None if column.valid is None else counts(column, r) > 0)


def _summed(rows: Rows) -> tuple[list[pa.Array], Ints]:
    """Return the exact sum of every group, and how many values it has."""
    assert rows.values is not None
    kept, ids, _ = valid_rows(doubles(rows.values), rows.ids)
    counts = np.bincount(ids, minlength=rows.n)
    return columns_of(sum_values(numbers(kept), ids, counts), counts > 0), counts


@attrs.frozen
class FloatSum(AggKernel):
    """The double nearest to the sum: values are added exactly and rounded once."""

    exact_prefixes: ClassVar[bool] = True

    @property
    def partial_types(self) -> list[pa.DataType]:
        return EXACT

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def create(self, rows: Rows) -> list[pa.Array]:
        return _summed(rows)[0]

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        return merge_groups(partials, ids, n)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        return partials[0]

    def prefixes(self, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
        return running_sums(partials, group_starts(ids))

    def ranges(self, column: OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        return _range_sums(column, r)


@attrs.frozen
class FloatAvg(AggKernel):
    """The rounded exact sum, divided by the count."""

    exact_prefixes: ClassVar[bool] = True

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [*EXACT, pa.int64()]

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def create(self, rows: Rows) -> list[pa.Array]:
        columns, counts = _summed(rows)
        return [*columns, pa.array(counts)]

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        counts = np.zeros(n, np.int64)
        np.add.at(counts, ids, numbers(partials[-1]))
        return [*merge_groups(partials[:-1], ids, n), pa.array(counts)]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        total, _, wide, counts = partials
        mean = pc.divide(total, pc.cast(counts, pa.float64()))
        beyond = pc.and_(pc.is_valid(wide), pc.is_inf(total))
        if not wide.null_count < len(wide) or not pc.any(beyond).as_py():
            return mean
        means = mean.to_pylist()
        for row in np.flatnonzero(beyond.to_numpy(zero_copy_only=False)).tolist():  # the mean is a double, the sum is not
            means[row] = float(exact.as_fraction(wide[row].as_py()) / counts[row].as_py())
        return pa.array(means, pa.float64())

    def prefixes(self, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
        starts = group_starts(ids)
        return [*running_sums(partials[:-1], starts), pa.array(cumulate(numbers(partials[-1]), starts))]

    def ranges(self, column: OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        return [*_range_sums(column, r), pa.array(counts(column, r))]
