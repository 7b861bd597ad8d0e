"""variance and stddev, by the pairwise update of Chan, Golub and LeVeque (1979)."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.kernels.aggs.base import NumPy, Rows, numbers, valid_rows
from krishiv_py.kernels.grouping import Ints


def _total(ids: Ints, weights: NumPy, n: int) -> NumPy:
    """Sums by group; of no rows at all, NumPy would make whole numbers."""
    return np.bincount(ids, weights=weights, minlength=n).astype(np.float64)


def _combine(counts: NumPy, means: NumPy, squares: NumPy, ids: Ints, n: int) -> list[pa.Array]:
    total = np.zeros(n, np.int64)
    np.add.at(total, ids, counts)
    weighted = _total(ids, counts * means, n)
    mean = np.divide(weighted, total, out=np.zeros(n), where=total > 0)
    spread = _total(ids, squares + counts * (means - mean[ids]) ** 2, n)
    return [pa.array(total), pa.array(mean), pa.array(spread)]


@attrs.frozen
class Variance:
    """Sample variance, or its root; null below two values."""

    root: bool

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.int64(), pa.float64(), pa.float64()]

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        kept, ids, _ = valid_rows(rows.values, rows.ids)
        values = numbers(pc.cast(kept, pa.float64(), safe=False))
        return _combine(np.ones(len(values), np.int64), values, np.zeros(len(values)), ids, rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        return _combine(numbers(partials[0]), numbers(partials[1]), numbers(partials[2]), ids, n)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        counts, squares = numbers(partials[0]), numbers(partials[2])
        result = np.divide(squares, counts - 1, out=np.zeros(len(counts)), where=counts > 1)
        return pa.array(np.sqrt(result) if self.root else result, mask=counts < 2)
