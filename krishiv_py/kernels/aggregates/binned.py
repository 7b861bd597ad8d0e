"""Values that fall to numbered bins, and how many did: quantiles with a relative error, and histograms.

The bins of quantiles are those of DDSketch (Masson, Rim, Lee: PVLDB 12, 2019) with its linear interpolation of the logarithm,
read off the bits of a double: exponent and fraction are one whole number, cut into parts of equal length. So bins are exact
whole-number arithmetic, the same on every machine, and merging adds counts. PyPI's ``ddsketch`` (3.0.1) takes values one by
one in Python, fails at infinity and takes NaN for zero. Apache's ``datasketches`` are not an alternative: KLL and REQ
draw random numbers without a seed, so a repeated batch would differ, and its t-digest states no bound.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from fractions import Fraction
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.decimals import doubles
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, NumPy
from krishiv_py.kernels.aggregates.base import Rows, flatten, lists, numbers, valid_rows
from krishiv_py.kernels.aggregates.generic.kernel import AggKernel, computes
from krishiv_py.plan.aggregates.binned import ApproxPercentile
from krishiv_py.plan.aggregates.binned import Histogram as Bins

_FRACTION: Final = 52
_NORMAL: Final = 1 << _FRACTION  # the bits of the smallest number with all its digits
_LARGEST: Final = (0x7FF << _FRACTION) - 1
_INFINITY: Final = 1 << 30
_NAN: Final = (1 << 31) - 1
_OFFSET: Final = 1 << 31


@attrs.frozen
class Binned(AggKernel):
    """Partials are the bins of a group in their order, and the number of values in each."""

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.list_(pa.int32()), pa.list_(pa.int64())]

    @abstractmethod
    def bins(self, values: pa.Array) -> Ints:
        """The bin of every value, none of which is null; 32 bits."""

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        kept, ids, _ = valid_rows(rows.values, rows.ids)
        codes = np.sort(_coded(ids, self.bins(kept)))
        heads = np.flatnonzero(np.concatenate([np.ones(min(len(codes), 1), np.bool_), codes[1:] != codes[:-1]]))
        return _listed(codes[heads], np.diff(heads, append=len(codes)), rows.n)

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        found, groups = flatten(partials[0], ids)
        codes = _coded(groups, numbers(found).astype(np.int64))
        order = stable_order(codes)
        codes = codes[order]
        heads = np.flatnonzero(np.concatenate([np.ones(min(len(codes), 1), np.bool_), codes[1:] != codes[:-1]]))
        counts = numbers(partials[1].flatten())[order]
        return _listed(codes[heads], np.add.reduceat(counts, heads) if len(heads) else counts, n)


def _coded(ids: Ints, bins: Ints) -> Ints:
    """Group and bin as one number, in their order."""
    coded: Ints = (ids << 32) | (bins + _OFFSET)
    return coded


def _listed(codes: Ints, counts: Ints, n: int) -> list[pa.Array]:
    owners = codes >> 32
    bins = ((codes & ((1 << 32) - 1)) - _OFFSET).astype(np.int32)
    return [lists(pa.array(bins), owners, n), lists(pa.array(counts.astype(np.int64)), owners, n)]


@attrs.frozen
class Quantiles(Binned):
    """The value of a rank, at most a relative error away; one of several ranks is a list.

    Bin k > 0 has the numbers whose bits are ``width`` on from those of the bin before; bin 0 all that is closer to zero than
    the smallest normal double. Bins of negative numbers are negative; infinities and NaN have bins of their own.
    """

    ranks: tuple[float, ...]
    error: float
    many: bool

    @property
    def width(self) -> int:
        """Bits a bin is long. One that begins at a power of two has ends of the ratio ``1 + width / 2**52``, others of less."""
        error = Fraction(self.error)
        return math.floor(2 * error / (1 - error) * _NORMAL)

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(pa.float64()) if self.many else pa.float64()

    def noted(self, func: str) -> str:
        """Bins of another length could not be added up."""
        return f"{func} with a relative error of {self.error}"

    def bins(self, values: pa.Array) -> Ints:
        """See Binned."""
        plain = np.ascontiguousarray(numbers(doubles(values)))
        bits = np.abs(plain).view(np.int64)
        place = np.where(bits < _NORMAL, 0, (bits - _NORMAL) // self.width + 1)
        special = ~np.isfinite(plain)
        if special.any():
            place[special] = np.where(np.isnan(plain[special]), _NAN, _INFINITY)
        return np.where((plain < 0), -place, place)

    def middle(self, bins: Ints) -> NumPy:
        """The number that is as far from one end of its bin as from the other, each distance measured by that end."""
        place = np.abs(bins)
        last = (_LARGEST - _NORMAL) // self.width + 1
        low = _NORMAL + (np.clip(place, 1, last) - 1) * self.width
        least, most = (x.view(np.float64) for x in (low, np.minimum(low + self.width, _LARGEST)))
        found = least * (2 / (1 + least / most))
        found[place == 0] = 0.0
        found[place == _INFINITY] = np.inf
        found[place == _NAN] = np.nan
        return np.where(bins < 0, -found, found)

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        n = len(partials[0])
        lengths = partials[0].value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        ends = np.cumsum(lengths)
        so_far = np.concatenate([[0], np.cumsum(numbers(partials[1].flatten()))])
        before, some = so_far[ends - lengths], lengths > 0
        total = so_far[ends][some] - before[some]
        bins = numbers(partials[0].flatten()).astype(np.int64)
        columns = [np.full(n, np.nan) for _ in self.ranks]
        for rank, column in zip(self.ranks, columns, strict=True):
            at = np.searchsorted(so_far, before[some] + place_of(rank, total), side="left") - 1
            column[some] = self.middle(bins[at])
        if not self.many:
            return pa.array(columns[0], mask=~some)
        flat = np.stack(columns, axis=1)[some].reshape(-1)
        offsets = np.concatenate([[0], np.cumsum(some * len(self.ranks))])
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat), mask=pa.array(~some))


def place_of(rank: float, counts: Ints) -> Ints:
    """The least number of values that are at least the part `rank` of so many, and at least one."""
    found: Ints = np.maximum(np.ceil(rank * counts), 1).astype(np.int64)
    found -= (found > 1) & ((found - 1) / counts >= rank)  # the product was rounded
    found += found / counts < rank
    return found


@attrs.frozen
class HistogramKernel(Binned):
    """Counts how many values lie below the first bound, between two, and from the last one on."""

    bounds: tuple[float, ...]

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(pa.int64())

    def noted(self, func: str) -> str:
        """Counts between other bounds could not be added up."""
        return f"{func} with bounds {', '.join(map(repr, self.bounds))}"

    def bins(self, values: pa.Array) -> Ints:
        """See Binned."""
        if not pa.types.is_integer(values.type):
            plain = numbers(doubles(values))
            return np.searchsorted(np.array(self.bounds, np.float64), plain, side="right").astype(np.int64)
        least = [math.ceil(b) for b in self.bounds]  # exact, whatever the size
        plain, kind = numbers(values), np.iinfo(values.type.to_pandas_dtype())
        inside = [b for b in least if kind.min < b <= kind.max]
        below = sum(b <= kind.min for b in least)
        return np.searchsorted(np.array(inside, plain.dtype), plain, side="right").astype(np.int64) + below

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        n, width = len(partials[0]), len(self.bounds) + 1
        bins, groups = flatten(partials[0], np.arange(n, dtype=np.int64))
        counts = np.zeros(n * width, np.int64)
        counts[groups * width + numbers(bins)] = numbers(partials[1].flatten())
        return pa.ListArray.from_arrays(pa.array(np.arange(n + 1) * width, pa.int32()), pa.array(counts))


@computes(ApproxPercentile)
def _quantiles(call: ApproxPercentile, type_: pa.DataType) -> AggKernel:
    return Quantiles(call.percentages or (call.percentage,), call.relative_error, bool(call.percentages))


@computes(Bins)
def _histogram(call: Bins, type_: pa.DataType) -> AggKernel:
    return HistogramKernel(call.bounds)
