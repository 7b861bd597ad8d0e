"""min, max, first and last: aggregates that pick one row of the group."""

from __future__ import annotations

from typing import ClassVar, Literal

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import normal_key
from krishiv_py.arrays.ranges import Ranges
from krishiv_py.arrays.sorting import close_ranks
from krishiv_py.arrays.types import Ints, NumPy
from krishiv_py.kernels.aggregates.base import Rows, numbers, valid_rows
from krishiv_py.kernels.aggregates.generic.kernel import AggKernel, OneValue, computes
from krishiv_py.kernels.aggregates.generic.prefixes import valid
from krishiv_py.kernels.aggregates.generic.ranges import OrderedInput, counts
from krishiv_py.plan.aggregates.extremes import BoolAnd, BoolOr, First, Last, Max, Min


def ranks(values: pa.Array) -> tuple[Ints, pa.Array]:
    """Whole numbers in the order of the values, and the sorted distinct values they index."""
    if pa.types.is_integer(values.type) and values.type != pa.uint64():
        close = close_ranks(numbers(values))
        if close is not None:
            return close[0], pa.array(close[1], values.type)
    encoded = pc.dictionary_encode(values)
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[encoded.indices.to_numpy(zero_copy_only=False)], encoded.dictionary.take(pa.array(order))


def _extreme(values: NumPy, ids: Ints, n: int, side: Literal["min", "max"]) -> tuple[NumPy, NumPy]:
    """The extreme of every group and which groups have one. NaN counts as the largest number, as in Spark."""
    present = np.zeros(n, np.bool_)
    present[ids] = True
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
        place = np.zeros(len(column), np.int64)  # 0: no value yet
        place[some] = rank + 1 if self.side == "max" else len(ordered) - rank
        best = np.maximum.accumulate(place + ids * width) - ids * width
        found = best - 1 if self.side == "max" else len(ordered) - best
        return [ordered.take(pa.array(found, mask=best == 0))]

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
class ByTime(AggKernel):
    """first or last non-null value by event time; among equal times the earlier (later) arrival."""

    in_order: ClassVar[bool] = True

    type: pa.DataType
    side: Literal["min", "max"]

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.int64(), self.type]

    @property
    def result_type(self) -> pa.DataType:
        return self.type

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        return self.merge([pa.array(rows.times), rows.values], rows.ids, rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        kept, groups, mask = valid_rows(partials[1], ids)
        times = numbers(partials[0] if mask is None else partials[0].filter(pa.array(mask)))
        best, present = _extreme(times, groups, n, self.side)
        hits = np.flatnonzero(times == best[groups])
        if self.side == "min":
            hits = hits[::-1]  # of two writes to one place the last one stands: the earliest arrival
        row = np.full(n, -1, np.int64)
        row[groups[hits]] = hits
        return [pa.array(best, mask=~present), kept.take(pa.array(row, mask=row < 0))]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        return partials[1]

    def ranges(self, column: OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        """The rows of a range are in order of time and arrival, so first and last are its ends, bar nulls."""
        assert column is not None
        values, valid = column.values, column.valid
        at = r.low if self.side == "min" else r.high - 1
        if valid is not None:
            here = np.arange(len(valid), dtype=np.int64)
            if self.side == "min":
                at = np.minimum.accumulate(np.where(valid, here, len(valid))[::-1])[::-1][at]
            else:
                at = np.maximum.accumulate(np.where(valid, here, -1))[at]
        absent = counts(column, r) == 0
        picked = pa.array(at, mask=absent if absent.any() else None)
        return [pa.array(times).take(picked), values.take(picked)]


@computes(Min, BoolAnd)
def _least(call: Min | BoolAnd, type_: pa.DataType) -> AggKernel:
    return Extreme(type_, "min")


@computes(Max, BoolOr)
def _greatest(call: Max | BoolOr, type_: pa.DataType) -> AggKernel:
    return Extreme(type_, "max")


@computes(First)
def _first(call: First, type_: pa.DataType) -> AggKernel:
    return ByTime(type_, "min")


@computes(Last)
def _last(call: Last, type_: pa.DataType) -> AggKernel:
    return ByTime(type_, "max")
