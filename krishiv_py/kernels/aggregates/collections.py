"""Aggregates that keep values: collect_list, collect_set, count_distinct."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import normal_key
from krishiv_py.arrays.occurrences import Spread, added, counting_ranges, distinct_counts, neighbours
from krishiv_py.arrays.ranges import Ranges, expand, running
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.arrays.splitting import portions
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.aggregates.base import Rows, flatten, lists, numbers, valid_rows
from krishiv_py.kernels.aggregates.extremes import ranks
from krishiv_py.kernels.aggregates.generic.kernel import AggKernel, ListLimit, computes
from krishiv_py.kernels.aggregates.generic.prefixes import group_starts
from krishiv_py.kernels.aggregates.generic.ranges import OrderedInput
from krishiv_py.plan.aggregates.collections import CollectList as Listed
from krishiv_py.plan.aggregates.collections import CollectSet, CountDistinct

_PIECE: Final = 4_000_000


@attrs.frozen
class TimedLists(AggKernel):
    """Lists of values, each with its event time in a partial; a subclass says in which order, and which of them."""

    in_order: ClassVar[bool] = True
    type: pa.DataType

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.list_(pa.int64()), pa.list_(self.type)]

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(self.type)

    def picked(self, times: Ints, values: pa.Array, ids: Ints) -> Ints:
        """Positions of the values that are kept, group after group, each in its order."""
        raise NotImplementedError

    def _listed(self, times: pa.Array, values: pa.Array, ids: Ints, n: int) -> list[pa.Array]:
        kept = self.picked(numbers(times), values, ids)
        at = pa.array(kept)
        return [lists(times.take(at), ids[kept], n), lists(values.take(at), ids[kept], n)]

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        kept, ids, mask = valid_rows(rows.values, rows.ids)
        return self._listed(pa.array(rows.times if mask is None else rows.times[mask]), kept, ids, rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        times, groups = flatten(partials[0], ids)
        return self._listed(times, partials[1].flatten(), groups, n)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        return partials[1]


@attrs.frozen
class CollectListKernel(TimedLists):
    """All values in event-time order; equal times in order of arrival."""

    keeps: ClassVar[str] = "every value"

    def picked(self, times: Ints, values: pa.Array, ids: Ints) -> Ints:
        """See TimedLists."""
        return np.lexsort((times, ids))

    def range_results(self, column: OrderedInput | None, r: Ranges, holes: Ints | None, limit: ListLimit | None) -> pa.Array:
        """The values of every range in their order."""
        assert column is not None
        values, s = column.spread(r, holes)
        if limit is not None:
            limit.check("collect_list", s.lengths)
        made = []
        for start, stop in portions(s.high - s.low, _PIECE):
            at, ids = expand(s.low[start:stop], s.high[start:stop])
            if s.hole is not None:
                kept = at != s.hole[start:stop][ids]
                at, ids = at[kept], ids[kept]
            made.append(lists(values.take(pa.array(at)), ids, stop - start))
        return pa.concat_arrays(made) if made else pa.array([], pa.list_(values.type))


@attrs.frozen
class Distinct(AggKernel):
    """The sorted distinct values, or how many there are."""

    keeps: ClassVar[str] = "the distinct values"
    type: pa.DataType
    result: Literal["set", "count"]

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.list_(self.type)]

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(self.type) if self.result == "set" else pa.int64()

    def _distinct(self, values: pa.Array, ids: Ints, n: int) -> list[pa.Array]:
        rank, ordered = ranks(normal_key(values))
        width = max(len(ordered), 1)
        pairs = sorted_unique(ids * width + rank)
        return [lists(ordered.take(pa.array(pairs % width)), pairs // width, n)]

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        kept, ids, _ = valid_rows(rows.values, rows.ids)
        return self._distinct(kept, ids, rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        return self._distinct(*flatten(partials[0], ids), n)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        return partials[0] if self.result == "set" else pc.cast(pc.list_value_length(partials[0]), pa.int64())

    @property
    def holds_values(self) -> bool:
        return self.result == "count"

    def prefix_results(self, partials: list[pa.Array], ids: Ints, wanted: Ints) -> pa.Array:
        """A value counts once in a group, from its first row on."""
        starts = group_starts(ids)
        values, row = flatten(partials[0], np.arange(len(ids)))
        rank, ordered = ranks(normal_key(values))
        pair = starts[row] * max(len(ordered), 1) + rank
        order = stable_order(pair)
        fresh = np.ones(len(order), np.bool_)
        fresh[1:] = pair[order[1:]] != pair[order[:-1]]
        seen = running(np.bincount(row[order[fresh]], minlength=len(ids)))
        return pa.array(seen[wanted + 1] - seen[starts[wanted]])

    def range_results(self, column: OrderedInput | None, r: Ranges, holes: Ints | None, limit: ListLimit | None) -> pa.Array:
        assert column is not None
        values, spread = column.spread(r, holes)
        codes, ordered = ranks(normal_key(values))
        return _sets(codes, ordered, spread, limit) if self.result == "set" else pa.array(distinct_counts(codes, spread))


def _sets(codes: Ints, ordered: pa.Array, s: Spread, limit: ListLimit | None) -> pa.Array:
    """The distinct values of every range, ascending."""
    n = len(s.low)
    before, after = neighbours(codes)
    first, stop = counting_ranges(s, before, np.full(len(codes), len(codes)))
    if limit is not None:
        limit.check("collect_set", added(first, stop, None, n))
    ids, at = expand(first, stop)
    if s.hole is not None:
        kept = (at != s.hole[ids]) | (after[at] < s.high[ids])
        at, ids = at[kept], ids[kept]
    width = max(len(ordered), 1)
    order = stable_order(ids * width + codes[at])
    return lists(ordered.take(pa.array(codes[at][order])), ids[order], n)


@computes(Listed)
def _collect_list(call: Listed, type_: pa.DataType) -> AggKernel:
    return CollectListKernel(type_)


@computes(CollectSet)
def _collect_set(call: CollectSet, type_: pa.DataType) -> AggKernel:
    return Distinct(type_, "set")


@computes(CountDistinct)
def _count_distinct(call: CountDistinct, type_: pa.DataType) -> AggKernel:
    return Distinct(type_, "count")
