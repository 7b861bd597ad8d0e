"""Aggregates that keep values: collect_list, collect_set, count_distinct, percentile."""

from __future__ import annotations

from typing import Literal

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.kernels.aggregates.base import Rows, flatten, lists, numbers, valid_rows
from krishiv_py.kernels.aggregates.extremes import ranks
from krishiv_py.kernels.arrays.grouping import normal_key
from krishiv_py.kernels.arrays.sorting import sorted_unique
from krishiv_py.kernels.arrays.types import Ints, NumPy


@attrs.frozen
class CollectList:
    """All values in event-time order; equal times in order of arrival."""

    type: pa.DataType

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.list_(pa.int64()), pa.list_(self.type)]

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(self.type)

    def _ordered(self, times: pa.Array, values: pa.Array, ids: Ints, n: int) -> list[pa.Array]:
        order = np.lexsort((numbers(times), ids))
        picked = pa.array(order)
        return [lists(times.take(picked), ids[order], n), lists(values.take(picked), ids[order], n)]

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        kept, ids, mask = valid_rows(rows.values, rows.ids)
        return self._ordered(pa.array(rows.times if mask is None else rows.times[mask]), kept, ids, rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        times, groups = flatten(partials[0], ids)
        return self._ordered(times, partials[1].flatten(), groups, n)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        return partials[1]


@attrs.frozen
class Distinct:
    """The sorted distinct values, or how many there are."""

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


@attrs.frozen
class Percentile:
    """Exact percentile, interpolated between the two nearest values."""

    percentage: float

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.list_(pa.float64())]

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def _sorted(self, values: pa.Array, ids: Ints, n: int) -> list[pa.Array]:
        order = np.lexsort((numbers(values), ids))
        return [lists(values.take(pa.array(order)), ids[order], n)]

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        kept, ids, _ = valid_rows(rows.values, rows.ids)
        return self._sorted(normal_key(pc.cast(kept, pa.float64(), safe=False)), ids, rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        return self._sorted(*flatten(partials[0], ids), n)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        lengths = partials[0].value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        values = numbers(partials[0].flatten())
        starts = np.cumsum(lengths) - lengths
        spot = self.percentage * np.maximum(lengths - 1, 0)
        low = np.floor(spot).astype(np.int64)
        high = np.minimum(low + 1, np.maximum(lengths - 1, 0))
        result = np.full(len(lengths), np.nan)
        some = lengths > 0
        result[some] = between(values[(starts + low)[some]], values[(starts + high)[some]], (spot - low)[some])
        return pa.array(result, mask=~some)


def between(below: NumPy, above: NumPy, part: NumPy) -> NumPy:
    """The values that lie so far on the way from `below` to `above`; both weighted where their distance is no number."""
    with np.errstate(invalid="ignore", over="ignore"):
        distance = above - below
        way = below + distance * part
        far = ~np.isfinite(distance)
        if far.any():
            way[far] = below[far] * (1 - part[far]) + above[far] * part[far]
    return np.where((part == 0) | (below == above), below, way)
