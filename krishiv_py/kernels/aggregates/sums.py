"""Sums and means of integers and decimals."""

from __future__ import annotations

from typing import ClassVar, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.decimals import quotients
from krishiv_py.arrays.ranges import Ranges, running
from krishiv_py.arrays.types import Ints, as_arrow
from krishiv_py.errors import AggregateOverflowError
from krishiv_py.kernels.aggregates.base import Rows, numbers, present_groups, valid_rows, with_nulls
from krishiv_py.kernels.aggregates.floats import FloatAvg, FloatSum
from krishiv_py.kernels.aggregates.generic.kernel import AggKernel, computes
from krishiv_py.kernels.aggregates.generic.prefixes import cumulate, group_starts, valid, with_presence
from krishiv_py.kernels.aggregates.generic.ranges import OrderedInput, counts
from krishiv_py.plan.aggregates.sums import Avg, Sum

_LIMIT: Final = 2**63
_SAFE: Final = float(2**62)


def _running_total(partials: list[pa.Array], starts: Ints) -> list[pa.Array] | None:
    """Of sums and wraps, those of every prefix; None when they might leave 64 bits: then wraps have to be counted."""
    values = numbers(partials[0].fill_null(0))
    if numbers(partials[1]).any() or np.abs(values.astype(np.float64)).sum() >= _SAFE:
        return None
    return [with_presence(cumulate(values, starts), valid(partials[0]), starts, pa.int64()), partials[1]]


def _range_totals(column: OrderedInput | None, r: Ranges) -> list[pa.Array]:
    """Sums and wraps of every range."""
    assert column is not None
    values = column.filled(0, pa.int64())
    total = running(values)
    sums = total[r.high] - total[r.low]  # exact modulo 2**64, however often the running total wrapped
    wraps = np.zeros(len(sums), np.int32)
    widest = int((r.high - r.low).max()) if len(sums) else 0
    if len(values) and max(-int(values.min()), int(values.max())) * widest >= _LIMIT:
        low, high = running(values & 0xFFFFFFFF), running(values >> 32)
        part, rest = low[r.high] - low[r.low], high[r.high] - high[r.low]
        wraps = ((rest + (part >> 32) + (1 << 31)) >> 32).astype(np.int32)
    return [with_nulls(sums, counts(column, r) > 0, pa.int64()), pa.array(wraps)]


@attrs.frozen
class IntSum(AggKernel):
    """Sum of integers: 64 bits that may wrap, and how often they did, so that only the *result* can overflow."""

    exact_prefixes: ClassVar[bool] = True

    label: str

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.int64(), pa.int32()]

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def _total(self, values: pa.Array, ids: Ints, n: int) -> list[pa.Array]:
        kept, groups, _ = valid_rows(values, ids)
        numeric = numbers(kept if kept.type == pa.int64() else pc.cast(kept, pa.int64()))
        total = np.zeros(n, np.int64)
        np.add.at(total, groups, numeric)
        wraps = np.zeros(n, np.int32)
        if len(numeric) and max(-int(numeric.min()), int(numeric.max())) * len(numeric) >= _LIMIT:
            low, high = np.zeros(n, np.int64), np.zeros(n, np.int64)
            np.add.at(low, groups, numeric & 0xFFFFFFFF)
            np.add.at(high, groups, numeric >> 32)
            wraps = ((high + (low >> 32) + (1 << 31)) >> 32).astype(np.int32)
        return [with_nulls(total, present_groups(groups, n), pa.int64()), as_arrow(wraps)]

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        return self._total(rows.values, rows.ids, rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        total, wraps = self._total(partials[0], ids, n)
        earlier = numbers(partials[1])
        if not earlier.any():
            return [total, wraps]
        counts = numbers(wraps).copy()
        np.add.at(counts, ids, earlier)
        return [total, pa.array(counts)]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        wraps = numbers(partials[1])
        if wraps.any():
            at = int(np.flatnonzero(wraps)[0])
            exact = partials[0][at].as_py() + (int(wraps[at]) << 64)
            raise AggregateOverflowError(
                f"{self.label} left the 64-bit range",
                got=exact,
                then="a wrapped value would be wrong",
                hint='sum col(...).cast("double") or a decimal instead',
            )
        return partials[0]

    def prefixes(self, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
        found = _running_total(partials, group_starts(ids))
        return super().prefixes(partials, ids) if found is None else found

    def ranges(self, column: OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        return _range_totals(column, r)


@attrs.frozen
class DecimalSum(AggKernel):
    """Exact sum of decimals, 38 digits. Partials have 76, so that only the *result* can overflow."""

    label: str
    scale: int

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.decimal256(76, self.scale)]

    @property
    def result_type(self) -> pa.DataType:
        return pa.decimal128(38, self.scale)

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        return self.merge([pc.cast(rows.values, self.partial_types[0])], rows.ids, rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        table = pa.table({"g": pa.array(ids), "v": partials[0]})
        summed = table.group_by("g", use_threads=False).aggregate([("v", "sum")])
        order = np.full(n, -1, np.int64)
        order[summed["g"].to_numpy()] = np.arange(len(summed))
        indices = pa.array(order, mask=order < 0)
        return [pc.cast(summed["v_sum"].combine_chunks().take(indices), self.partial_types[0])]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        try:
            return pc.cast(partials[0], self.result_type)
        except pa.ArrowInvalid as problem:
            raise AggregateOverflowError(
                f"{self.label} has more than 38 digits", got=str(problem), hint='sum col(...).cast("double") instead'
            ) from problem


@attrs.frozen
class IntAvg(AggKernel):
    """Mean of integers: the exact sum as a double, divided by the count."""

    exact_prefixes: ClassVar[bool] = True

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.int64(), pa.int32(), pa.int64()]

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        _, ids, _ = valid_rows(rows.values, rows.ids)
        return [*IntSum("").create(rows), pa.array(np.bincount(ids, minlength=rows.n).astype(np.int64))]

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        counts = np.zeros(n, np.int64)
        np.add.at(counts, ids, numbers(partials[2]))
        return [*IntSum("").merge(partials[:2], ids, n), pa.array(counts)]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        total = pc.cast(partials[0], pa.float64(), safe=False)
        wraps = numbers(partials[1])
        if wraps.any():
            exact = zip(partials[0].to_pylist(), wraps.tolist(), strict=True)
            total = pa.array([None if low is None else float(low + (high << 64)) for low, high in exact], pa.float64())
        return pc.divide(total, pc.cast(partials[2], pa.float64()))

    def prefixes(self, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
        starts = group_starts(ids)
        found = _running_total(partials[:2], starts)
        if found is None:
            return super().prefixes(partials, ids)
        return [*found, pa.array(cumulate(numbers(partials[2]), starts))]

    def ranges(self, column: OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        return [*_range_totals(column, r), pa.array(counts(column, r))]


@attrs.frozen
class DecimalAvg(AggKernel):
    """Mean of decimals: the double nearest to the exact sum divided by the count."""

    scale: int

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [*DecimalSum("", self.scale).partial_types, pa.int64()]

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        _, ids, _ = valid_rows(rows.values, rows.ids)
        counts = np.bincount(ids, minlength=rows.n).astype(np.int64)
        return [*DecimalSum("", self.scale).create(rows), pa.array(counts)]

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        counts = np.zeros(n, np.int64)
        np.add.at(counts, ids, numbers(partials[1]))
        return [*DecimalSum("", self.scale).merge(partials[:1], ids, n), pa.array(counts)]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        return quotients(partials[0], numbers(partials[1]))


@computes(Sum)
def _sum(call: Sum, type_: pa.DataType) -> AggKernel:
    if pa.types.is_integer(type_):
        return IntSum(str(call))
    return DecimalSum(str(call), type_.scale) if pa.types.is_decimal(type_) else FloatSum()


@computes(Avg)
def _avg(call: Avg, type_: pa.DataType) -> AggKernel:
    if pa.types.is_integer(type_):
        return IntAvg()
    return DecimalAvg(type_.scale) if pa.types.is_decimal(type_) else FloatAvg()
