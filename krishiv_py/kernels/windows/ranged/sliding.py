"""Partial aggregates of many overlapping ranges of rows: no range is walked row by row where an aggregate allows better."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.kernels.aggregates.base import AggKernel, Rows, numbers, with_nulls
from krishiv_py.kernels.aggregates.counting import Count
from krishiv_py.kernels.aggregates.exact.addends import Addends, exact_sums
from krishiv_py.kernels.aggregates.exact.reducers import ByRange
from krishiv_py.kernels.aggregates.extremes import ByTime, Extreme, ranks
from krishiv_py.kernels.aggregates.failed import regrouped
from krishiv_py.kernels.aggregates.floats import FloatAvg, FloatSum, columns_of
from krishiv_py.kernels.aggregates.moments import Variance, moments
from krishiv_py.kernels.aggregates.sums import IntAvg, IntSum
from krishiv_py.kernels.arrays.ranges import Ranges, expand, portions, running
from krishiv_py.kernels.arrays.types import Ints, Mask, NumPy
from krishiv_py.kernels.columns.layout import TIME, Layout, whole

_PAIRS: Final = 2_000_000
SHORT: Final = 64
"""Ranges of so many rows are gone through row by row."""
_LIMIT: Final = 2**63
Column = tuple[pa.Array, Mask | None]


def _filled(column: Column, zero: Any, type_: pa.DataType) -> NumPy:
    """The values as NumPy, `zero` in place of nulls."""
    values, valid = column
    cast = values if values.type == type_ else pc.cast(values, type_, safe=False)
    return numbers(cast if valid is None else cast.fill_null(pa.scalar(zero, type_)))


def _counts(column: Column | None, r: Ranges) -> Ints:
    """Rows, or non-null values, of every range."""
    if column is None or column[1] is None:
        return r.high - r.low
    total = running(column[1].astype(np.int64))
    return total[r.high] - total[r.low]


def _count(_kernel: Count, column: Column | None, r: Ranges) -> list[pa.Array]:
    return [pa.array(_counts(column, r))]


def _int_sum(_kernel: IntSum | IntAvg, column: Column | None, r: Ranges) -> list[pa.Array]:
    assert column is not None
    values = _filled(column, 0, pa.int64())
    total = running(values)
    sums = total[r.high] - total[r.low]  # exact modulo 2**64, however often the running total wrapped
    wraps = np.zeros(len(sums), np.int32)
    widest = int((r.high - r.low).max()) if len(sums) else 0
    if len(values) and max(-int(values.min()), int(values.max())) * widest >= _LIMIT:
        low, high = running(values & 0xFFFFFFFF), running(values >> 32)
        part, rest = low[r.high] - low[r.low], high[r.high] - high[r.low]
        wraps = ((rest + (part >> 32) + (1 << 31)) >> 32).astype(np.int32)
    return [with_nulls(sums, _counts(column, r) > 0, pa.int64()), pa.array(wraps)]


def _int_avg(kernel: IntAvg, column: Column | None, r: Ranges) -> list[pa.Array]:
    return [*_int_sum(kernel, column, r), pa.array(_counts(column, r))]


def _float_sum(_kernel: FloatSum | FloatAvg, column: Column | None, r: Ranges) -> list[pa.Array]:
    assert column is not None
    values = _filled(column, 0.0, pa.float64())
    sums = exact_sums(Addends([values]), ByRange(r.low, r.high, len(values)), 2)
    return columns_of(sums, None if column[1] is None else _counts(column, r) > 0)


def _float_avg(kernel: FloatAvg, column: Column | None, r: Ranges) -> list[pa.Array]:
    return [*_float_sum(kernel, column, r), pa.array(_counts(column, r))]


def _variance(_kernel: Variance, column: Column | None, r: Ranges) -> list[pa.Array]:
    assert column is not None
    values, valid = column
    filled = values if valid is None else values.fill_null(pa.scalar(0, values.type))
    counts = _counts(column, r)
    return [pa.array(counts), *moments(filled, ByRange(r.low, r.high, len(values)), None if valid is None else counts > 0)]


def _extreme(kernel: Extreme, column: Column | None, r: Ranges) -> list[pa.Array]:
    assert column is not None
    present = _counts(column, r) > 0
    least = kernel.side == "min"
    type_ = kernel.type
    if pa.types.is_floating(type_) and not pa.types.is_float16(type_):
        values = _filled(column, np.nan if least else -np.inf, type_)  # NaN counts as the largest number, as in Spark
        best = r.reduce(np.fmin if least else np.maximum, values) + values.dtype.type(0)  # never -0.0
        return [pa.array(best, type_, mask=~present)]
    ufunc = np.minimum if least else np.maximum
    if pa.types.is_integer(type_) or pa.types.is_timestamp(type_):
        bounds = np.iinfo(np.int64)
        values = _filled(column, bounds.max if least else bounds.min, pa.int64())
        best = pa.array(np.where(present, r.reduce(ufunc, values), 0), pa.int64(), mask=~present)
        return [best.cast(type_)]
    rank, ordered = ranks(column[0].drop_null())
    values = np.full(len(column[0]), len(ordered) if least else -1, np.int64)
    values[slice(None) if column[1] is None else column[1]] = rank
    return [ordered.take(pa.array(r.reduce(ufunc, values), mask=~present))]


def _by_time(kernel: ByTime, column: Column | None, r: Ranges, times: Ints) -> list[pa.Array]:
    """The rows of a range are in order of time and arrival, so first and last are its ends, bar nulls."""
    assert column is not None
    values, valid = column
    at = r.low if kernel.side == "min" else r.high - 1
    if valid is not None:
        here = np.arange(len(valid), dtype=np.int64)
        if kernel.side == "min":
            at = np.minimum.accumulate(np.where(valid, here, len(valid))[::-1])[::-1][at]
        else:
            at = np.maximum.accumulate(np.where(valid, here, -1))[at]
    absent = _counts(column, r) == 0
    picked = pa.array(at, mask=absent if absent.any() else None)
    return [pa.array(times).take(picked), values.take(picked)]


def _expanded(kernel: AggKernel, values: pa.Array | None, times: Ints, r: Ranges) -> list[pa.Array]:
    """Any aggregate: every row once for every range it is in, a bounded number at a time."""
    parts: list[list[pa.Array]] = []
    for start, stop in portions(r.low, r.high, _PAIRS):
        rows, ids = expand(r.low[start:stop], r.high[start:stop])
        taken = None if values is None else values.take(pa.array(rows))
        with regrouped(np.arange(start, stop)):
            parts.append(kernel.create(Rows(taken, times[rows], ids, stop - start)))
    if not parts:
        return [pa.array([], t) for t in kernel.partial_types]
    return [pa.concat_arrays([_as_array(p[i]) for p in parts]) for i in range(len(kernel.partial_types))]


def _as_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return whole(column) if isinstance(column, pa.ChunkedArray) else column


_DIRECT: Final[dict[type, Callable[..., list[pa.Array]]]] = {
    Count: _count,
    IntSum: _int_sum,
    IntAvg: _int_avg,
    FloatSum: _float_sum,
    FloatAvg: _float_avg,
    Extreme: _extreme,
    Variance: _variance,
}


def column_of(rows: pa.Table, at: int) -> Column:
    """An aggregate input, and which of its values are not null (None: all)."""
    values = whole(rows[f"a{at}"])
    return values, values.is_valid().to_numpy(zero_copy_only=False) if values.null_count else None


def kernel_partials(kernel: AggKernel, column: Column | None, times: Ints, r: Ranges) -> list[pa.Array]:
    """The partial columns of one aggregate for every range; one that fails is told by its range."""
    if isinstance(kernel, ByTime):
        return _by_time(kernel, column, r, times)
    direct = _DIRECT.get(type(kernel))
    if direct is not None:
        return direct(kernel, column, r)
    values = None if column is None else column[0]
    long = np.flatnonzero(r.high - r.low > SHORT)
    if not len(long):
        return _expanded(kernel, values, times, r)
    short = np.flatnonzero(r.high - r.low <= SHORT)
    with regrouped(short):
        parts = [_expanded(kernel, values, times, Ranges(r.low[short], r.high[short], r.block))]
    with regrouped(long):
        parts.append(_doubled(kernel, values, times, r.low[long], r.high[long]))
    order = pa.array(np.argsort(np.concatenate([short, long])))
    return [pa.concat_arrays([_as_array(x) for x in pair]).take(order) for pair in zip(*parts, strict=True)]


def _doubled(kernel: AggKernel, values: pa.Array | None, times: Ints, low: Ints, high: Ints) -> list[pa.Array]:
    """Any aggregate over long ranges: rows are merged to stretches of 2, 4, 8, …, of which a range takes at most one each.

    Which it takes follows from its length alone, so what rounds, rounds the same wherever a range lies.
    """
    base, end = int(low.min()), int(high.max())
    n, q = end - base, len(low)
    picked = None if values is None else values.slice(base, n)

    def holding(row: int) -> int:
        return int(np.flatnonzero((low <= base + row) & (base + row < high))[0])

    with regrouped(holding):
        table = [_as_array(p) for p in kernel.create(Rows(picked, times[base:end], np.arange(n, dtype=np.int64), n))]
    at, lengths = low - base, high - low
    found = [pa.nulls(q, p.type) for p in table]
    some = np.zeros(q, np.bool_)
    width = 1
    while width <= int(lengths.max()):
        mine = np.flatnonzero(lengths & width)
        taken = [p.take(pa.array(at[mine])) for p in table]
        later = np.flatnonzero(some[mine])
        both = [pa.concat_arrays([f, t]) for f, t in zip(found, taken, strict=True)]
        with regrouped(mine[later]):
            joined = _in_pairs(kernel, both, mine[later], q + later)
        source = np.arange(q)
        source[mine] = q + np.arange(len(mine))
        source[mine[later]] = q + len(mine) + np.arange(len(later))
        found = [pa.concat_arrays([b, j]).take(pa.array(source)) for b, j in zip(both, joined, strict=True)]
        some[mine], at = True, at + (lengths & width)
        left = np.arange(len(table[0]) - width)
        if len(left):
            with regrouped(holding):
                table = _in_pairs(kernel, table, left, left + width)
        width *= 2
    return found


def _in_pairs(kernel: AggKernel, partials: list[pa.Array], left: Ints, right: Ints) -> list[pa.Array]:
    """Lines `left` and `right` of partials merged."""
    order = pa.array(np.column_stack([left, right]).ravel())
    merged = kernel.merge([p.take(order) for p in partials], np.repeat(np.arange(len(left)), 2), len(left))
    return [_as_array(p) for p in merged]


def range_partials(layout: Layout, rows: pa.Table, r: Ranges) -> list[pa.Array]:
    """The partial columns of `layout` for every range of `rows`, which are laid out by key, time and arrival."""
    times: Ints = rows[TIME].to_numpy()
    columns: dict[int, Column] = {}
    out: list[pa.Array] = []
    for kernel, at in zip(layout.kernels, layout.input_of, strict=True):
        if at is not None and at not in columns:
            columns[at] = column_of(rows, at)
        out += kernel_partials(kernel, None if at is None else columns[at], times, r)
    return out
