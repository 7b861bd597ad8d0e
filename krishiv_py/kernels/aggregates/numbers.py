"""Kernels of aggregates over numbers: counts, sums, means, moments and bits.

Variances and deviations are made of the exact sums of values and of squares: what cancels is equal to the last bit
(SEMANTICS §5.6).
"""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.ranges import Ranges, running
from krishiv_py.arrays.types import Ints, Mask, NumPy, as_arrow, doubles, flags_at, last_rows, magnitude, quotients, totals_of
from krishiv_py.errors import AggregateOverflowError
from krishiv_py.kernels.aggregates import base, exact
from krishiv_py.kernels.aggregates.base import (
    AggKernel,
    OneValue,
    OrderedInput,
    Rows,
    computes,
    counts,
    cumulate,
    group_starts,
    numbers,
    valid,
    valid_rows,
    with_nulls,
    with_presence,
)
from krishiv_py.kernels.aggregates.exact import Addends, ByGroup, ByRange, Reducer, Terms, exact_sums, nearest, two_product
from krishiv_py.kernels.aggregates.taken_back import TakenBack
from krishiv_py.plan.aggregates.numbers import Avg, BitAnd, BitOr, BitXor, Stddev, StddevPop, Sum, VarPop
from krishiv_py.plan.aggregates.numbers import Count as Counted
from krishiv_py.plan.aggregates.numbers import Variance as SampleVariance

EXACT: Final = [pa.float64(), pa.float64(), exact.TYPE]
"""Types of an exact sum in state: the nearest double, null over no value; the rest; the number, where two doubles do not do."""


def columns_of(sums: Terms, present: Mask | None) -> list[pa.Array]:
    """Exact sums as columns of the state; the first is null where not present."""
    n = len(sums.terms[0])
    first = pa.array(sums.terms[0]) if present is None else with_nulls(sums.terms[0], present, pa.float64())
    return [first, *map(pa.array, sums.terms[1:]), pa.nulls(n, exact.TYPE) if sums.wide is None else sums.wide]


def addends_of(columns: list[pa.Array]) -> Addends:
    """Columns of the state, none of them null but the last."""
    *terms, wide = columns
    arrays = [numbers(terms[0])] + [a for a in map(numbers, terms[1:]) if a.any()]
    return Addends(arrays, None if wide.null_count == len(wide) else wide)


def sum_values(values: NumPy, ids: Ints, counts: Ints) -> Terms:
    """Exact sums of values by group."""
    n = len(counts)
    if len(values) <= n and int(counts.max(initial=0)) <= 1:
        total = np.zeros(n)
        total[ids] = values
        return Terms([total + 0.0, np.zeros(n)], None)
    return exact_sums(Addends([values]), ByGroup(ids, counts), 2)


def merge_sums(columns: list[pa.Array], reducer: Reducer) -> Terms:
    """Exact sums of exact sums."""
    return exact_sums(addends_of(columns), reducer, len(columns) - 1)


def merge_groups(partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
    """Exact sums in state merged by group."""
    counts = np.bincount(ids, minlength=n)
    present = counts > 0
    if len(ids) <= n and int(counts.max(initial=0)) <= 1:
        place = last_rows(ids, n)
        first, *others, wide = [p.take(pa.array(place, mask=~present)) for p in partials]
        return [first, *(o.fill_null(0.0) for o in others), wide]
    if partials[0].null_count:
        valid = partials[0].is_valid().to_numpy(zero_copy_only=False)
        present = flags_at(ids[valid], n)
        partials = [*(p.fill_null(0.0) for p in partials[:-1]), partials[-1]]
    return columns_of(merge_sums(partials, ByGroup(ids, counts)), present)


def negated_sums(partials: list[pa.Array]) -> list[pa.Array]:
    """Return the negatives of exact sums in state."""
    return [*(pc.negate(p) for p in partials[:-1]), exact.negated(partials[-1])]


def running_sums(partials: list[pa.Array], starts: Ints) -> list[pa.Array]:
    """Exact sums in state, of every prefix."""
    filled = [p.fill_null(0.0) for p in partials[:-1]]
    sums = merge_sums([*filled, partials[-1]], ByRange(starts, np.arange(1, len(starts) + 1), len(starts)))
    return columns_of(sums, cumulate(valid(partials[0]).astype(np.int64), starts) > 0)


def _range_sums(column: OrderedInput | None, r: Ranges) -> list[pa.Array]:
    assert column is not None
    values = column.filled(0.0, pa.float64())
    sums = exact_sums(Addends([values]), ByRange(r.low, r.high, len(values)), 2)
    return columns_of(sums, None if column.valid is None else counts(column, r) > 0)


def _summed(rows: Rows) -> tuple[list[pa.Array], Ints]:
    """Return the exact sum of every group, and how many values it has."""
    assert rows.values is not None
    kept, ids, _ = valid_rows(doubles(rows.values), rows.ids)
    counts = np.bincount(ids, minlength=rows.n)
    return columns_of(sum_values(numbers(kept), ids, counts), counts > 0), counts


@attrs.frozen
class FloatSum(AggKernel):
    """The double nearest to the sum: values are added exactly and rounded once."""

    partial_types: ClassVar[list[pa.DataType]] = EXACT
    result_type: ClassVar[pa.DataType] = pa.float64()
    exact_prefixes: ClassVar[bool] = True
    joins_columns: ClassVar[bool] = True

    def create(self, rows: Rows) -> list[pa.Array]:
        return _summed(rows)[0]

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        return merge_groups(partials, ids, n)

    def taking_back(self) -> AggKernel:
        return TakenBack(self, special=True)

    def negated(self, partials: list[pa.Array]) -> list[pa.Array]:
        return negated_sums(partials)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        return partials[0]

    def prefixes(self, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
        return running_sums(partials, group_starts(ids))

    def ranges(self, column: OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        return _range_sums(column, r)


@attrs.frozen
class CountKernel(AggKernel):
    """Number of rows, or of non-null values."""

    partial_types: ClassVar[list[pa.DataType]] = [pa.int64()]
    result_type: ClassVar[pa.DataType] = pa.int64()
    exact_prefixes: ClassVar[bool] = True
    joins_columns: ClassVar[bool] = True

    def create(self, rows: Rows) -> list[pa.Array]:
        ids = rows.ids if rows.values is None else valid_rows(rows.values, rows.ids)[1]
        return [as_arrow(np.bincount(ids, minlength=rows.n).astype(np.int64, copy=False))]

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        total = totals_of(ids, numbers(partials[0]), n)
        return [pa.array(total)]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        return partials[0]

    def taking_back(self) -> AggKernel:
        return self

    def negated(self, partials: list[pa.Array]) -> list[pa.Array]:
        return [pc.negate(partials[0])]

    def prefixes(self, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
        return [pa.array(cumulate(numbers(partials[0]), group_starts(ids)))]

    def ranges(self, column: OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        return [pa.array(counts(column, r))]


_COUNT: Final = CountKernel()


@computes(Counted)
def _count(call: Counted, type_: pa.DataType) -> AggKernel:
    return _COUNT


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
    if len(values) and magnitude(values) * widest >= _LIMIT:
        low, high = running(values & 0xFFFFFFFF), running(values >> 32)
        part, rest = low[r.high] - low[r.low], high[r.high] - high[r.low]
        wraps = ((rest + (part >> 32) + (1 << 31)) >> 32).astype(np.int32)
    return [with_nulls(sums, counts(column, r) > 0, pa.int64()), pa.array(wraps)]


@attrs.frozen
class IntSum(AggKernel):
    """Sum of integers: 64 bits that may wrap, and how often they did, so that only the *result* can overflow."""

    partial_types: ClassVar[list[pa.DataType]] = [pa.int64(), pa.int32()]
    result_type: ClassVar[pa.DataType] = pa.int64()
    exact_prefixes: ClassVar[bool] = True
    joins_columns: ClassVar[bool] = True

    label: str = attrs.field(eq=False)

    def _total(self, values: pa.Array, ids: Ints, n: int) -> list[pa.Array]:
        kept, groups, _ = valid_rows(values, ids)
        numeric = numbers(kept if kept.type == pa.int64() else pc.cast(kept, pa.int64()))
        total = totals_of(groups, numeric, n)
        wraps = np.zeros(n, np.int32)
        if len(numeric) and magnitude(numeric) * len(numeric) >= _LIMIT:
            low, high = np.zeros(n, np.int64), np.zeros(n, np.int64)
            np.add.at(low, groups, numeric & 0xFFFFFFFF)
            np.add.at(high, groups, numeric >> 32)
            wraps = ((high + (low >> 32) + (1 << 31)) >> 32).astype(np.int32)
        return [with_nulls(total, flags_at(groups, n), pa.int64()), as_arrow(wraps)]

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

    def taking_back(self) -> AggKernel:
        return TakenBack(self, special=False)

    def negated(self, partials: list[pa.Array]) -> list[pa.Array]:
        total, wraps = partials
        values = numbers(total.fill_null(0))
        least = values == np.iinfo(np.int64).min  # its negative is one wrap further
        turned = pa.array(np.negative(values), mask=total.is_null().to_numpy(zero_copy_only=False))
        return [turned, pa.array(least.astype(np.int32) - numbers(wraps))]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        wraps = numbers(partials[1])
        if wraps.any():
            row = int(np.flatnonzero(wraps)[0])
            exact = partials[0][row].as_py() + (int(wraps[row]) << 64)
            then = "a wrapped value would be wrong"
            hint = 'sum col(...).cast("double") or a decimal instead'
            raise AggregateOverflowError(f"{self.label} left the 64-bit range", got=exact, then=then, hint=hint)
        return partials[0]

    def prefixes(self, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
        totals = _running_total(partials, group_starts(ids))
        return super().prefixes(partials, ids) if totals is None else totals

    def ranges(self, column: OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        return _range_totals(column, r)


@attrs.frozen
class DecimalSum(AggKernel):
    """Exact sum of decimals, 38 digits. Partials have 76, so that only the *result* can overflow."""

    label: str = attrs.field(eq=False)
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
        order = last_rows(summed["g"].to_numpy(), n)
        indices = pa.array(order, mask=order < 0)
        return [pc.cast(summed["v_sum"].combine_chunks().take(indices), self.partial_types[0])]

    def taking_back(self) -> AggKernel:
        return TakenBack(self, special=False)

    def negated(self, partials: list[pa.Array]) -> list[pa.Array]:
        return [pc.negate(partials[0])]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        try:
            return pc.cast(partials[0], self.result_type)
        except pa.ArrowInvalid as problem:
            hint = 'sum col(...).cast("double") instead'
            raise AggregateOverflowError(f"{self.label} has more than 38 digits", got=str(problem), hint=hint) from problem


@attrs.frozen
class Average(AggKernel):
    """A sum, divided by the count of its values."""

    result_type: ClassVar[pa.DataType] = pa.float64()
    total: AggKernel

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [*self.total.partial_types, pa.int64()]

    def create(self, rows: Rows) -> list[pa.Array]:
        return [*self.total.create(rows), *_COUNT.create(rows)]

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        return [*self.total.merge(partials[:-1], ids, n), *_COUNT.merge(partials[-1:], ids, n)]

    def taking_back(self) -> AggKernel:
        return TakenBack(self, special=isinstance(self.total, FloatSum))

    def negated(self, partials: list[pa.Array]) -> list[pa.Array]:
        return [*self.total.negated(partials[:-1]), *_COUNT.negated(partials[-1:])]

    def prefixes(self, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
        return [*self.total.prefixes(partials[:-1], ids), *_COUNT.prefixes(partials[-1:], ids)]

    def ranges(self, column: OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        return [*self.total.ranges(column, times, r), *_COUNT.ranges(column, times, r)]


@attrs.frozen
class FloatAvg(Average):
    """The rounded exact sum, divided by the count."""

    exact_prefixes: ClassVar[bool] = True
    joins_columns: ClassVar[bool] = True
    ranges = Average.ranges  # of the same partials

    def create(self, rows: Rows) -> list[pa.Array]:
        columns, counts = _summed(rows)
        return [*columns, pa.array(counts)]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        total, _, wide, counts = partials
        mean = pc.divide(total, pc.cast(counts, pa.float64()))
        beyond = pc.and_(pc.is_valid(wide), pc.is_inf(total))
        if not wide.null_count < len(wide) or not pc.any(beyond).as_py():
            return mean
        means = mean.to_pylist()
        for row in np.flatnonzero(beyond.to_numpy(zero_copy_only=False)).tolist():  # the mean is a double, the sum is not
            means[row] = float(exact.as_fraction(wide[row].as_py()) / counts[row].as_py())
        return pa.array(means, pa.float64())


@attrs.frozen
class IntAvg(Average):
    """Mean of integers: the exact sum as a double, divided by the count."""

    exact_prefixes: ClassVar[bool] = True
    joins_columns: ClassVar[bool] = True

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        total = pc.cast(partials[0], pa.float64(), safe=False)
        wraps = numbers(partials[1])
        if wraps.any():
            exact = zip(partials[0].to_pylist(), wraps.tolist(), strict=True)
            total = pa.array([None if low is None else float(low + (high << 64)) for low, high in exact], pa.float64())
        return pc.divide(total, pc.cast(partials[2], pa.float64()))


@attrs.frozen
class DecimalAvg(Average):
    """Mean of decimals: the double nearest to the exact sum divided by the count."""

    joins_columns: ClassVar[bool] = True

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
        return IntAvg(IntSum(""))
    return DecimalAvg(DecimalSum("", type_.scale)) if pa.types.is_decimal(type_) else FloatAvg(FloatSum())


_SQUARES: Final = [*[pa.float64()] * 4, exact.TYPE]
_LARGE: Final = 2.0**500
_SMALL: Final = 2.0**-450
_LIFT: Final = 608
_SHORT: Final = 2.0**26
_WHOLE: Final = 2**53


def addends(values: pa.Array) -> tuple[Addends, Addends]:
    """Of values without nulls, what sums up to them, and what sums up to their squares."""
    plain = numbers(values if pa.types.is_integer(values.type) else doubles(values))
    if plain.dtype.kind in "iu":
        if len(plain) and magnitude(plain) > _WHOLE:
            return _of_long(plain)
        plain = plain.astype(np.float64)
    return Addends([plain]), _squares(plain)


def _of_long(values: NumPy) -> tuple[Addends, Addends]:
    """Integers of more digits than a double has, as two doubles."""
    high, low = ((values >> 32) << 32).astype(np.float64), (values & 0xFFFFFFFF).astype(np.float64)
    squares = [*two_product(high, high), *two_product(2 * high, low), *two_product(low, low)]
    return Addends([high, low]), Addends(squares)


def _squares(values: NumPy) -> Addends:
    size = np.abs(values)
    top = float(size.max(initial=0.0))
    if top < _SHORT and bool((values == np.rint(values)).all()):
        return Addends([values * values])
    if not top < _LARGE:
        values = np.where(np.isfinite(values), values, 0.0)  # the sum of the values tells of these
        size = np.abs(values)
    lifted: list[tuple[NumPy, int]] = []
    for mask, by in ((size >= _LARGE, -_LIFT), ((size < _SMALL) & (size > 0), _LIFT)):  # their squares are not doubles
        if mask.any():
            moved = np.where(mask, values, 0.0) * 2.0**by
            lifted += [(term, -2 * by // 32) for term in two_product(moved, moved)]
            values = np.where(mask, 0.0, values)
    return Addends(two_product(values, values), None, lifted)


def moments(values: pa.Array, reducer: Reducer, present: NumPy | None) -> list[pa.Array]:
    """Return the columns of both sums."""
    plain, squares = addends(values)
    return [*columns_of(exact_sums(plain, reducer, 2), present), *columns_of(exact_sums(squares, reducer, 4), present)]


@attrs.frozen
class VarianceKernel(AggKernel):
    """Sample variance, null below two values, or that of the population, null below one; or their root."""

    partial_types: ClassVar[list[pa.DataType]] = [pa.int64(), *EXACT, *_SQUARES]
    result_type: ClassVar[pa.DataType] = pa.float64()
    exact_prefixes: ClassVar[bool] = True

    root: bool
    least: int = 2

    def create(self, rows: Rows) -> list[pa.Array]:
        kept, ids, _ = rows.valid()
        counts = np.bincount(ids, minlength=rows.n)
        return [pa.array(counts), *moments(kept, ByGroup(ids, counts), counts > 0)]

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        total = totals_of(ids, numbers(partials[0]), n)
        cut = len(EXACT) + 1
        return [pa.array(total), *merge_groups(partials[1:cut], ids, n), *merge_groups(partials[cut:], ids, n)]

    def taking_back(self) -> AggKernel:
        return TakenBack(self, special=True, spread=True, least=self.least)

    def negated(self, partials: list[pa.Array]) -> list[pa.Array]:
        cut = len(EXACT) + 1
        return [pc.negate(partials[0]), *negated_sums(partials[1:cut]), *negated_sums(partials[cut:])]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        counts = numbers(partials[0])
        some = np.flatnonzero(counts >= self.least)
        result = np.zeros(len(counts))
        if len(some):
            picked = partials if len(some) == len(counts) else [p.take(pa.array(some)) for p in partials]
            result[some] = _variances(picked, self.least - 1)
        return pa.array(np.sqrt(result) if self.root else result, mask=counts < self.least)

    def prefixes(self, partials: list[pa.Array], ids: Ints) -> list[pa.Array]:
        starts, cut = group_starts(ids), len(EXACT) + 1
        counts = pa.array(cumulate(numbers(partials[0]), starts))
        return [counts, *running_sums(partials[1:cut], starts), *running_sums(partials[cut:], starts)]

    def ranges(self, column: base.OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        assert column is not None
        values, valid = column.values, column.valid
        filled = values if valid is None else values.fill_null(pa.scalar(0, values.type))
        counts = base.counts(column, r)
        return [pa.array(counts), *moments(filled, ByRange(r.low, r.high, len(values)), None if valid is None else counts > 0)]


def _variances(partials: list[pa.Array], less: int) -> NumPy:
    """(n * sum of squares - square of the sum) / n / (n - `less`), the numerator rounded once."""
    n = numbers(partials[0]).astype(np.float64)
    (a, b), wide = map(numbers, partials[1:3]), partials[3]
    squares, wide_squares = [numbers(p) for p in partials[4:-1]], partials[-1]
    long = ~pc.and_(wide.is_null(), wide_squares.is_null()).to_numpy(zero_copy_only=False)
    bad = ~np.isfinite(a) & wide.is_null().to_numpy(zero_copy_only=False)
    for term in (a, b):
        long |= (term != 0) & (np.abs(term) < 2.0**-480)
    long = (long | (squares[0] > 2.0**900)) & ~bad
    apart = long | bad
    if apart.any():
        a, b, *squares = (np.where(apart, 0.0, term) for term in (a, b, *squares))
    products = [two_product(n, t) for t in squares if t.any()]
    products += [two_product(x, y) for x, y in ((-a, a), (-2 * a, b), (-b, b)) if y.any()]
    terms = [t for pair in products for t in pair if t.any()]
    each = ByGroup(np.arange(len(n)), np.ones(len(n), np.int64))
    spread = nearest(exact_sums(Addends(terms), each, 4).terms) if terms else np.zeros(len(n))
    result: NumPy = spread / n / (n - less)
    result[bad] = np.nan
    for row in np.flatnonzero(long).tolist():
        result[row] = _one([p[row].as_py() for p in partials], less)
    return result


def _one(partials: list[int | float | list[int] | None], less: int) -> float:
    """Return the variance of one group whose sums are not few doubles, or whose products leave their range."""
    n, *columns = partials
    assert isinstance(n, int)
    cut = len(EXACT)
    total, squares = _exact(columns[:cut]), _exact(columns[cut:])
    spread = n * squares - total * total
    if spread == 0 or Fraction(2) ** -1000 < spread < Fraction(2) ** 1020:
        return float(spread) / n / (n - less)
    try:
        return float(spread / (n * (n - less)))
    except OverflowError:
        return float("inf")


def _exact(columns: list[int | float | list[int] | None]) -> Fraction:
    *terms, wide = columns
    return exact.as_fraction(wide) if isinstance(wide, list) else sum((Fraction(t) for t in terms if t), Fraction())  # type: ignore[arg-type]


_SPREADS: Final = {
    Stddev: VarianceKernel(root=True),
    SampleVariance: VarianceKernel(root=False),
    StddevPop: VarianceKernel(root=True, least=1),
    VarPop: VarianceKernel(root=False, least=1),
}


@computes(*_SPREADS)
def _spread(call: Stddev | SampleVariance | StddevPop | VarPop, type_: pa.DataType) -> AggKernel:
    return _SPREADS[type(call)]


@attrs.frozen
class Bits(OneValue):
    """Whole numbers combined bit by bit."""

    combine: np.ufunc

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        kept, groups, _ = valid_rows(partials[0], ids)
        order = np.argsort(groups, kind="stable")
        own = groups[order]
        heads = np.flatnonzero(np.diff(own, prepend=-1))
        values = numbers(kept)[order]
        merged, present = np.zeros(n, values.dtype), np.zeros(n, np.bool_)
        if len(heads):
            merged[own[heads]], present[own[heads]] = self.combine.reduceat(values, heads), True
        return [with_nulls(merged, present, self.type)]


_COMBINED: Final = {BitAnd: np.bitwise_and, BitOr: np.bitwise_or, BitXor: np.bitwise_xor}


@computes(*_COMBINED)
def _bits(call: BitAnd | BitOr | BitXor, type_: pa.DataType) -> AggKernel:
    return Bits(type_, _COMBINED[type(call)])
