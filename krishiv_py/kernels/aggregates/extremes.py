"""min, max, first and last: aggregates that pick one row of the group."""

from __future__ import annotations

from typing import Literal

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.kernels.aggregates.base import Rows, numbers, valid_rows
from krishiv_py.kernels.arrays.types import Ints, NumPy


def ranks(values: pa.Array) -> tuple[Ints, pa.Array]:
    """Whole numbers in the order of the values, and the sorted distinct values they index."""
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
        with np.errstate(invalid="ignore"):  # a NaN among the values is no mistake
            (np.fmin if side == "min" else np.maximum).at(result, ids, values)
        return result + values.dtype.type(0), present  # -0.0 equals 0.0: which of them came first must not show
    info = np.iinfo(values.dtype)
    result = np.full(n, info.max if side == "min" else info.min, values.dtype)
    (np.minimum if side == "min" else np.maximum).at(result, ids, values)
    return result, present


@attrs.frozen
class Extreme:
    """min or max of any type that can be ordered."""

    type: pa.DataType
    side: Literal["min", "max"]

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [self.type]

    @property
    def result_type(self) -> pa.DataType:
        return self.type

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        return self.merge([rows.values], rows.ids, rows.n)

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

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        return partials[0]


@attrs.frozen
class ByTime:
    """first or last non-null value by event time; among equal times the earlier (later) arrival."""

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
