"""Kernels of aggregates that select rows or values: extremes, ranks, modes and collections."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import Spread, added, counting_ranges, distinct_counts, neighbours, normal_key
from krishiv_py.arrays.ranges import Ranges, expand, portions, running
from krishiv_py.arrays.sorting import close_ranks, sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, NumPy, flags_at, last_rows, totals_of, values_at
from krishiv_py.errors import ExpressionError
from krishiv_py.kernels.aggregates.base import (
    AggKernel,
    ListLimit,
    OfType,
    OneValue,
    OrderedInput,
    Rows,
    computes,
    counts,
    flatten,
    group_starts,
    lists,
    numbers,
    valid,
    valid_rows,
)
from krishiv_py.plan.aggregates.selections import (
    BoolAnd,
    BoolOr,
    BottomK,
    CollectSet,
    CountDistinct,
    First,
    Last,
    Max,
    MaxBy,
    Min,
    MinBy,
    TopK,
    WholeSince,
)
from krishiv_py.plan.aggregates.selections import CollectList as Listed
from krishiv_py.plan.aggregates.selections import Mode as MostFrequent
from krishiv_py.types import type_text


def ranks(values: pa.Array) -> tuple[Ints, pa.Array]:
    """Whole numbers in the order of the values, and the sorted distinct values they index."""
    if pa.types.is_integer(values.type) and values.type != pa.uint64():
        close = close_ranks(numbers(values))
        if close is not None:
            return close[0], pa.array(close[1], values.type)
    encoded = pc.dictionary_encode(values)
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = last_rows(order, len(order))
    return rank[encoded.indices.to_numpy(zero_copy_only=False)], encoded.dictionary.take(pa.array(order))


def _extreme(values: NumPy, ids: Ints, n: int, side: Literal["min", "max"]) -> tuple[NumPy, NumPy]:
    """Return the extreme of every group and which groups have one. NaN counts as the largest number, as in Spark."""
    present = flags_at(ids, n)
    if values.dtype.kind == "f":
        result = np.full(n, np.nan if side == "min" else -np.inf, values.dtype)
        with np.errstate(invalid="ignore"):  # a NaN among the values is not a mistake
            (np.fmin if side == "min" else np.maximum).at(result, ids, values)
        return result + values.dtype.type(0), present  # -0.0 equals 0.0: which of them came first must not show
    info = np.iinfo(values.dtype)
    result = np.full(n, info.max if side == "min" else info.min, values.dtype)
    (np.minimum if side == "min" else np.maximum).at(result, ids, values)
    return result, present


@attrs.frozen
class Extreme(OneValue):
    """min or max of any type that can be ordered."""

    exact_prefixes: ClassVar[bool] = True

    side: Literal["min", "max"]

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        kept, groups, _ = valid_rows(partials[0], ids)
        if pa.types.is_integer(self.type) or pa.types.is_floating(self.type):
            result, present = _extreme(numbers(kept), groups, n, self.side)
            return [pa.array(result, self.type, mask=~present)]
        if pa.types.is_timestamp(self.type):
            result, present = _extreme(numbers(kept.cast(pa.int64())), groups, n, self.side)
            return [pa.array(result, pa.int64(), mask=~present).cast(self.type)]
        rank, ordered = ranks(kept)
        best, present = _extreme(rank, groups, n, self.side)
        return [ordered.take(pa.array(best, mask=~present))]

    def prefixes(self, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
        column = partials[0]
        some = valid(column)
        rank, ordered = ranks(normal_key(column.drop_null()))
        width = len(ordered) + 1
        place = values_at(some, rank + 1 if self.side == "max" else len(ordered) - rank, len(column))  # 0: no value yet
        best = np.maximum.accumulate(place + ids * width) - ids * width
        prefix_ranks = best - 1 if self.side == "max" else len(ordered) - best
        return [ordered.take(pa.array(prefix_ranks, mask=best == 0))]

    def ranges(self, column: OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        assert column is not None
        present = counts(column, r) > 0
        least = self.side == "min"
        type_ = self.type
        if pa.types.is_floating(type_) and not pa.types.is_float16(type_):
            values = column.filled(np.nan if least else -np.inf, type_)  # NaN counts as the largest number, as in Spark
            best = r.reduce(np.fmin if least else np.maximum, values) + values.dtype.type(0)  # never -0.0
            return [pa.array(best, type_, mask=~present)]
        ufunc = np.minimum if least else np.maximum
        if pa.types.is_integer(type_) or pa.types.is_timestamp(type_):
            bounds = np.iinfo(np.int64)
            values = column.filled(bounds.max if least else bounds.min, pa.int64())
            best = pa.array(np.where(present, r.reduce(ufunc, values), 0), pa.int64(), mask=~present)
            return [best.cast(type_)]
        rank, ordered = ranks(column.values.drop_null())
        values = np.full(len(column.values), len(ordered) if least else -1, np.int64)
        values[slice(None) if column.valid is None else column.valid] = rank
        return [ordered.take(pa.array(r.reduce(ufunc, values), mask=~present))]


@attrs.frozen
class ByTime(OfType):
    """first or last non-null value by event time; among equal times the earlier (later) arrival."""

    in_order: ClassVar[bool] = True

    side: Literal["min", "max"]

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.int64(), self.type]

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        return self.merge([pa.array(rows.times), rows.values], rows.ids, rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        kept, groups, mask = valid_rows(partials[1], ids)
        times = numbers(partials[0] if mask is None else partials[0].filter(pa.array(mask)))
        best, present = _extreme(times, groups, n, self.side)
        hits = np.flatnonzero(times == best[groups])
        if self.side == "min":
            hits = hits[::-1]  # of two writes to one place the last one counts: the earliest arrival
        row = values_at(groups[hits], hits, n, -1)
        return [pa.array(best, mask=~present), kept.take(pa.array(row, mask=row < 0))]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        return partials[1]

    def ranges(self, column: OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        """The rows of a range are in order of time and arrival, so first and last are its ends, bar nulls."""
        assert column is not None
        values, valid = column.values, column.valid
        places = r.low if self.side == "min" else r.high - 1
        if valid is not None:
            here = np.arange(len(valid), dtype=np.int64)
            if self.side == "min":
                places = np.minimum.accumulate(np.where(valid, here, len(valid))[::-1])[::-1][places]
            else:
                places = np.maximum.accumulate(np.where(valid, here, -1))[places]
        absent = counts(column, r) == 0
        picked = pa.array(places, mask=absent if absent.any() else None)
        return [pa.array(times).take(picked), values.take(picked)]


@computes(Min, BoolAnd)
def _least(call: Min | BoolAnd, type_: pa.DataType) -> AggKernel:
    return Extreme(type_, "min")


@attrs.frozen
class WholeKernel(Extreme):
    """False once a row came before the change of the plan that it is of; taking that row back does not make up for it."""

    def taking_back(self) -> AggKernel:
        return self

    def negated(self, partials: list[pa.Array]) -> list[pa.Array]:
        return partials


@computes(WholeSince)
def _whole(call: WholeSince, type_: pa.DataType) -> AggKernel:
    return WholeKernel(type_, "min")


@computes(Max, BoolOr)
def _greatest(call: Max | BoolOr, type_: pa.DataType) -> AggKernel:
    return Extreme(type_, "max")


@computes(First)
def _first(call: First, type_: pa.DataType) -> AggKernel:
    return ByTime(type_, "min")


@computes(Last)
def _last(call: Last, type_: pa.DataType) -> AggKernel:
    return ByTime(type_, "max")


@attrs.frozen
class ModeKernel(OfType):
    """The most frequent value, of several the smallest; partials hold the distinct values and how often each occurred."""

    keeps: ClassVar[str] = "the distinct values"

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.list_(self.type), pa.list_(pa.int64())]

    def _counted(self, values: pa.Array, counts: Ints, ids: Ints, n: int) -> list[pa.Array]:
        rank, ordered = ranks(normal_key(values))
        width = max(len(ordered), 1)
        pairs, place = np.unique(ids * width + rank, return_inverse=True)
        total = totals_of(place, counts, len(pairs))
        owners = pairs // width
        return [lists(ordered.take(pa.array(pairs % width)), owners, n), lists(pa.array(total), owners, n)]

    def create(self, rows: Rows) -> list[pa.Array]:
        kept, ids, _ = rows.valid()
        return self._counted(kept, np.ones(len(kept), np.int64), ids, rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        values, groups = flatten(partials[0], ids)
        return self._counted(values, numbers(partials[1].flatten()), groups, n)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        n = len(partials[0])
        values, groups = flatten(partials[0], np.arange(n))
        order = np.lexsort((-numbers(partials[1].flatten()), groups))  # stable: values of a group ascend
        lengths = partials[0].value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        heads = np.cumsum(lengths) - lengths
        best = values_at(lengths > 0, order[heads[lengths > 0]], n)
        return values.take(pa.array(best, mask=lengths == 0))


@computes(MostFrequent)
def _mode(call: MostFrequent, type_: pa.DataType) -> AggKernel:
    return ModeKernel(type_)


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
        rows = pa.array(kept)
        return [lists(times.take(rows), ids[kept], n), lists(values.take(rows), ids[kept], n)]

    def create(self, rows: Rows) -> list[pa.Array]:
        kept, ids, mask = rows.valid()
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
        """Return the values of every range in their order."""
        assert column is not None
        values, s = column.spread(r, holes)
        if limit is not None:
            limit.check("collect_list", s.lengths)
        made = []
        for start, stop in portions(s.high - s.low, _PIECE):
            rows, ids = expand(s.low[start:stop], s.high[start:stop])
            if s.hole is not None:
                kept = rows != s.hole[start:stop][ids]
                rows, ids = rows[kept], ids[kept]
            made.append(lists(values.take(pa.array(rows)), ids, stop - start))
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
        kept, ids, _ = rows.valid()
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
    """Return the distinct values of every range, ascending."""
    n = len(s.low)
    before, after = neighbours(codes)
    first, stop = counting_ranges(s, before, np.full(len(codes), len(codes)))
    if limit is not None:
        limit.check("collect_set", added(first, stop, None, n))
    ids, rows = expand(first, stop)
    if s.hole is not None:
        kept = (rows != s.hole[ids]) | (after[rows] < s.high[ids])
        rows, ids = rows[kept], ids[kept]
    width = max(len(ordered), 1)
    order = stable_order(ids * width + codes[rows])
    return lists(ordered.take(pa.array(codes[rows][order])), ids[order], n)


@computes(Listed)
def _collect_list(call: Listed, type_: pa.DataType) -> AggKernel:
    return CollectListKernel(type_)


@computes(CollectSet)
def _collect_set(call: CollectSet, type_: pa.DataType) -> AggKernel:
    return Distinct(type_, "set")


@computes(CountDistinct)
def _count_distinct(call: CountDistinct, type_: pa.DataType) -> AggKernel:
    return Distinct(type_, "count")


def _places(by: pa.Array, side: Literal["min", "max"]) -> Ints:
    """Whole numbers that ascend from the first rank on; nulls come last."""
    rank, ordered = ranks(normal_key(by.drop_null()))
    place = np.full(len(by), len(ordered), np.int64)
    some = slice(None) if by.null_count == 0 else by.is_valid().to_numpy(zero_copy_only=False)
    place[some] = rank if side == "min" else len(ordered) - 1 - rank
    return place


@attrs.frozen
class Ranked(TimedLists):
    """The first `k` rows of a group, as structs whose first field ranks them; ties by event time, then arrival."""

    side: Literal["min", "max"]
    k: int
    then: tuple[Literal["min", "max"], ...] = ()

    def noted(self, func: str) -> str:
        """Return a partial of fewer rows could not be read as one of more."""
        title = func if self.k == 1 else f"{func} of {self.k}"
        return f"{title}, then by {', '.join(self.then)}" if self.then else title

    def picked(self, times: Ints, values: pa.Array, ids: Ints) -> Ints:
        """See TimedLists."""
        fields = [_places(values.field(i), side) for i, side in enumerate((self.side, *self.then))]
        order = np.lexsort((times, *reversed(fields), ids))
        groups = ids[order]
        heads = np.flatnonzero(np.diff(groups, prepend=-1))
        rank = np.arange(len(groups)) - np.repeat(heads, np.diff(heads, append=len(groups)))
        return order[rank < self.k]


@attrs.frozen
class ValueBy(Ranked):
    """The second field of the first row whose first field is not null."""

    @property
    def result_type(self) -> pa.DataType:
        return self.type.field(1).type

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        lengths = partials[1].value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        heads = np.cumsum(lengths) - lengths
        by, values = partials[1].flatten().take(pa.array(heads, mask=lengths == 0)).flatten()
        return pc.if_else(by.is_valid(), values, pa.scalar(None, values.type))


@computes(TopK, BottomK, MaxBy, MinBy)
def _ranked(call: TopK | BottomK | MaxBy | MinBy, type_: pa.DataType) -> AggKernel:
    then = call.then if isinstance(call, (TopK, BottomK)) else ()
    for i in range(1 + len(then)):
        by = type_.field(i).type
        if pa.types.is_nested(by) or pa.types.is_null(by):
            got = f"`{'then' if i else 'by'}` of type {type_text(by)}"
            hint = "rank by a number, a text, a time or a field of the value"
            raise ExpressionError(f"{call.func} ranks rows by values that can be compared", got=got, hint=hint)
    side: Literal["min", "max"] = "max" if isinstance(call, (MaxBy, TopK)) else "min"
    if isinstance(call, (TopK, BottomK)):
        return Ranked(type_, side, call.k, tuple("min" if first == "smallest" else "max" for first in then))
    if pa.types.is_null(type_.field(1).type):
        raise ExpressionError(f"{call.func} takes values of some type", got="null only", hint='cast it: col("x").cast("int")')
    return ValueBy(type_, side, 1)
