"""count(*) and count(x)."""

from __future__ import annotations

from typing import ClassVar

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.ranges import Ranges
from krishiv_py.arrays.types import Ints, as_arrow
from krishiv_py.kernels.aggregates.base import Rows, numbers, valid_rows
from krishiv_py.kernels.aggregates.generic.kernel import AggKernel, computes
from krishiv_py.kernels.aggregates.generic.prefixes import cumulate, group_starts
from krishiv_py.kernels.aggregates.generic.ranges import OrderedInput, counts
from krishiv_py.plan.aggregates.counting import Count as Counted


@attrs.frozen
class CountKernel(AggKernel):
    """Number of rows, or of non-null values."""

    exact_prefixes: ClassVar[bool] = True

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.int64()]

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def create(self, rows: Rows) -> list[pa.Array]:
        ids = rows.ids if rows.values is None else valid_rows(rows.values, rows.ids)[1]
        return [as_arrow(np.bincount(ids, minlength=rows.n).astype(np.int64, copy=False))]

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        total = np.zeros(n, np.int64)
        np.add.at(total, ids, numbers(partials[0]))
        return [pa.array(total)]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        return partials[0]

    def prefixes(self, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
        return [pa.array(cumulate(numbers(partials[0]), group_starts(ids)))]

    def ranges(self, column: OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        return [pa.array(counts(column, r))]


@computes(Counted)
def _count(call: Counted, type_: pa.DataType) -> AggKernel:
    return CountKernel()
