"""mode: the value that occurs most often."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import normal_key
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.aggregates.base import Rows, flatten, lists, numbers, valid_rows
from krishiv_py.kernels.aggregates.extremes import ranks
from krishiv_py.kernels.aggregates.generic.kernel import AggKernel, computes
from krishiv_py.plan.aggregates.modes import Mode as MostFrequent


@attrs.frozen
class ModeKernel(AggKernel):
    """The most frequent value, of several the smallest; partials hold the distinct values and how often each occurred."""

    keeps: ClassVar[str] = "the distinct values"
    type: pa.DataType

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.list_(self.type), pa.list_(pa.int64())]

    @property
    def result_type(self) -> pa.DataType:
        return self.type

    def _counted(self, values: pa.Array, counts: Ints, ids: Ints, n: int) -> list[pa.Array]:
        rank, ordered = ranks(normal_key(values))
        width = max(len(ordered), 1)
        pairs, place = np.unique(ids * width + rank, return_inverse=True)
        total = np.zeros(len(pairs), np.int64)
        np.add.at(total, place, counts)
        owners = pairs // width
        return [lists(ordered.take(pa.array(pairs % width)), owners, n), lists(pa.array(total), owners, n)]

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        kept, ids, _ = valid_rows(rows.values, rows.ids)
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
        at = np.zeros(n, np.int64)
        at[lengths > 0] = order[heads[lengths > 0]]
        return values.take(pa.array(at, mask=lengths == 0))


@computes(MostFrequent)
def _mode(call: MostFrequent, type_: pa.DataType) -> AggKernel:
    return ModeKernel(type_)
