"""approx_count_distinct: HyperLogLog (Flajolet et al. 2007), registers kept sparsely as a list per group."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.kernels.aggregates.base import Rows, flatten, lists, numbers, valid_rows
from krishiv_py.kernels.arrays.grouping import hash_values
from krishiv_py.kernels.arrays.sorting import sorted_unique
from krishiv_py.kernels.arrays.types import Ints, NumPy


@attrs.frozen
class HyperLogLog:
    """A register and its rank are one number, ``register * 64 + rank``; of each register the largest rank is kept."""

    precision: int

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.list_(pa.int32())]

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def _registers(self, codes: Ints, ids: Ints, n: int) -> list[pa.Array]:
        width = 64 << self.precision
        pairs = sorted_unique(ids * width + codes)
        slot = pairs >> 6
        top = np.ones(len(pairs), np.bool_)
        top[:-1] = slot[1:] != slot[:-1]  # the last entry of a register has its largest rank
        pairs = pairs[top]
        return [lists(pa.array((pairs % width).astype(np.int32)), pairs // width, n)]

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        kept, ids, _ = valid_rows(rows.values, rows.ids)
        hashes = hash_values(kept)
        register = (hashes >> np.uint64(64 - self.precision)).astype(np.int64)
        rest = (hashes << np.uint64(self.precision)) | np.uint64(1 << (self.precision - 1))
        # rank = leading zeros + 1; log2 of the top 53 bits is exact enough, for the sentinel bit bounds it from below
        rank = 64 - np.floor(np.log2((rest >> np.uint64(11)).astype(np.float64) + 0.5)).astype(np.int64) - 11
        rank = np.clip(rank, 1, 64 - self.precision + 1)
        return self._registers(register * 64 + np.minimum(rank, 63), ids, rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        codes, groups = flatten(partials[0], ids)
        return self._registers(numbers(codes).astype(np.int64), groups, n)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        used = partials[0].value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        codes, groups = flatten(partials[0], np.arange(len(used), dtype=np.int64))
        return pa.array(self.estimate(used, np.bincount(groups, weights=2.0 ** -(numbers(codes) & 63), minlength=len(used))))

    def estimate(self, used: Ints, inverse: NumPy) -> Ints:
        """Estimates, given how many registers are used and the sum of ``2 ** -rank`` over them."""
        registers = 1 << self.precision
        empty = registers - used
        alpha = {16: 0.673, 32: 0.697, 64: 0.709}.get(registers, 0.7213 / (1 + 1.079 / registers))
        raw = alpha * registers**2 / (inverse + empty)
        linear = registers * np.log(registers / np.maximum(empty, 1))
        estimate = np.where((raw <= 2.5 * registers) & (empty > 0), linear, raw)
        whole: Ints = np.rint(estimate).astype(np.int64)
        return whole
