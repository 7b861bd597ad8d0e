"""variance and stddev, from the exact sums of values and of squares: what cancels is equal to the last bit (SEMANTICS §5.6)."""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.decimals import doubles
from krishiv_py.arrays.ranges import Ranges
from krishiv_py.arrays.types import Ints, NumPy
from krishiv_py.kernels.aggregates.base import Rows, numbers, valid_rows
from krishiv_py.kernels.aggregates.exact import limbs
from krishiv_py.kernels.aggregates.exact.addends import Addends, exact_sums
from krishiv_py.kernels.aggregates.exact.expansions import nearest, two_product
from krishiv_py.kernels.aggregates.exact.reducers import ByGroup, ByRange, Reducer
from krishiv_py.kernels.aggregates.floats import EXACT, columns_of, merge_groups, running_sums
from krishiv_py.kernels.aggregates.generic import ranges
from krishiv_py.kernels.aggregates.generic.kernel import AggKernel, computes
from krishiv_py.kernels.aggregates.generic.prefixes import cumulate, group_starts
from krishiv_py.plan.aggregates.moments import Stddev, StddevPop, VarPop
from krishiv_py.plan.aggregates.moments import Variance as SampleVariance

_SQUARES: Final = [*[pa.float64()] * 4, limbs.TYPE]
_LARGE: Final = 2.0**500
_SMALL: Final = 2.0**-450
_LIFT: Final = 608
_SHORT: Final = 2.0**26
_WHOLE: Final = 2**53


def addends(values: pa.Array) -> tuple[Addends, Addends]:
    """Of values without nulls, what sums up to them, and what sums up to their squares."""
    plain = numbers(values if pa.types.is_integer(values.type) else doubles(values))
    if plain.dtype.kind in "iu":
        if len(plain) and max(-int(plain.min()), int(plain.max())) > _WHOLE:
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
    """The columns of both sums."""
    plain, squares = addends(values)
    return [*columns_of(exact_sums(plain, reducer, 2), present), *columns_of(exact_sums(squares, reducer, 4), present)]


@attrs.frozen
class VarianceKernel(AggKernel):
    """Sample variance, null below two values, or that of the population, null below one; or their root."""

    exact_prefixes: ClassVar[bool] = True

    root: bool
    least: int = 2

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.int64(), *EXACT, *_SQUARES]

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        kept, ids, _ = valid_rows(rows.values, rows.ids)
        counts = np.bincount(ids, minlength=rows.n)
        return [pa.array(counts), *moments(kept, ByGroup(ids, counts), counts > 0)]

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        total = np.zeros(n, np.int64)
        np.add.at(total, ids, numbers(partials[0]))
        cut = len(EXACT) + 1
        return [pa.array(total), *merge_groups(partials[1:cut], ids, n), *merge_groups(partials[cut:], ids, n)]

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

    def ranges(self, column: ranges.OrderedInput | None, times: Ints, r: Ranges) -> list[pa.Array]:
        assert column is not None
        values, valid = column.values, column.valid
        filled = values if valid is None else values.fill_null(pa.scalar(0, values.type))
        counts = ranges.counts(column, r)
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
    for at in np.flatnonzero(long).tolist():
        result[at] = _one([p[at].as_py() for p in partials], less)
    return result


def _one(partials: list[int | float | list[int] | None], less: int) -> float:
    """The same for one group whose sums are not few doubles, or whose products leave their range."""
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
    return limbs.as_fraction(wide) if isinstance(wide, list) else sum((Fraction(t) for t in terms if t), Fraction())  # type: ignore[arg-type]


@computes(Stddev)
def _stddev(call: Stddev, type_: pa.DataType) -> AggKernel:
    return VarianceKernel(root=True)


@computes(SampleVariance)
def _variance(call: SampleVariance, type_: pa.DataType) -> AggKernel:
    return VarianceKernel(root=False)


@computes(StddevPop)
def _stddev_pop(call: StddevPop, type_: pa.DataType) -> AggKernel:
    return VarianceKernel(root=True, least=1)


@computes(VarPop)
def _var_pop(call: VarPop, type_: pa.DataType) -> AggKernel:
    return VarianceKernel(root=False, least=1)
