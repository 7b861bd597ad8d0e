"""Calls of approximate aggregates and of percentiles: HyperLogLog, quantiles and bins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import attrs

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.aggregates.calls import AggCall, aggregate, column_of
from krishiv_py.plan.expressions.expr import Expr, name_of


@attrs.frozen(eq=False, repr=False)
class ApproxCountDistinct(AggCall, takes="comparable"):
    """An estimate of the number of distinct values."""

    precision: int = 12
    """There are ``2**precision`` registers."""

    def _settings(self) -> list[str]:
        return [f"precision={self.precision}"]


@aggregate("APPROX_COUNT_DISTINCT", "APPROX_DISTINCT")
def approx_count_distinct(arg: Expr | str, precision: int = 12) -> AggCall:
    """HyperLogLog estimate of the number of distinct non-null values, ``int64``.

    Parameters
    ----------
    arg : Expr or str
        The column.
    precision : int
        4 to 16; the relative standard error is about ``1.04 / sqrt(2**precision)`` (1.6 % at 12).
    """
    if isinstance(precision, bool) or not isinstance(precision, int) or not 4 <= precision <= 16:
        raise PlanError("`precision` is out of range", got=shown(precision), hint="use a whole number from 4 to 16")
    return ApproxCountDistinct(column_of(arg, "approx_count_distinct"), precision=precision)


@attrs.frozen(eq=False, repr=False)
class Percentile(AggCall, takes="numbers"):
    """The exact percentile."""

    percentage: float = 0.5

    def _settings(self) -> list[str]:
        return [repr(self.percentage)]


@aggregate("PERCENTILE", "MEDIAN")
def percentile(arg: Expr | str, percentage: float = 0.5) -> AggCall:
    """Exact percentile with linear interpolation, ``float64``.

    Parameters
    ----------
    arg : Expr or str
        A numeric column.
    percentage : float
        The rank, from 0 (minimum) to 1 (maximum).
    """
    if isinstance(percentage, bool) or not isinstance(percentage, (int, float)) or not 0 <= percentage <= 1:
        raise PlanError("`percentage` is out of range", got=shown(percentage), hint="use 0 to 1")
    return Percentile(column_of(arg, "percentile"), percentage=float(percentage))


@aggregate()
def median(arg: Expr | str) -> AggCall:
    """Return the exact median of `arg`, ``float64``: ``percentile(arg, 0.5)``; every value is kept until the end."""
    call = percentile(arg)
    return attrs.evolve(call, name=f"median_{name_of(call.arg)}")


_MOST = 10_000


@attrs.frozen(eq=False, repr=False)
class ApproxPercentile(AggCall, takes="numbers"):
    """Values close to those of ranks."""

    percentage: float = 0.5
    percentages: tuple[float, ...] = ()
    """Several ranks, which make a list of the result."""
    relative_error: float = 0.01

    def _settings(self) -> list[str]:
        ranks = list(self.percentages) if self.percentages else self.percentage
        return [repr(ranks), f"relative_error={self.relative_error}"]


@aggregate("APPROX_PERCENTILE", "PERCENTILE_APPROX")
def approx_percentile(arg: Expr | str, percentage: float | Sequence[float] = 0.5, relative_error: float = 0.01) -> AggCall:
    """Return a value at most `relative_error` away from the one of a rank, ``float64``: a DDSketch of bounded size.

    The rank is Spark's: the smallest value such that at least the part `percentage` of all values is as small or smaller. For
    a value ``x`` of that rank the result is between ``x * (1 - relative_error)`` and ``x * (1 + relative_error)``. Zero,
    infinities and NaN, which is above all numbers, come back as they are; numbers closer to zero than 2.3e-308 count as zero.
    Results do not depend on order, batches, engine or kind of window. Spark's third argument is another one: it bounds the
    error of the rank.

    Parameters
    ----------
    arg : Expr or str
        A numeric column; decimals are read as the nearest doubles.
    percentage : float or sequence of float
        The rank, from 0 (minimum) to 1 (maximum). For several the result is a list, from one sketch.
    relative_error : float
        0.0001 to 0.25. State holds one count for each bin that has values: at 0.01, at most 165 for every factor of ten
        between the smallest and the largest value.

    Raises
    ------
    PlanError
        For ranks and errors out of range.

    Examples
    --------
    >>> from krishiv_py import approx_percentile
    >>> from krishiv_py.testing import Driver, stream_of
    >>> ranks = approx_percentile("ms", [0.5, 0.99], 0.02).alias("ranks")
    >>> driver = Driver(stream_of("ms bigint, at bigint").watermark("at", 0).tumbling_window(1_000).agg(ranks))
    >>> _ = driver.send([{"ms": ms, "at": ms} for ms in range(1, 1_000)])
    >>> [round(value) for value in driver.close().results["ranks"].to_pylist()[0]]
    [501, 993]
    """
    several = not isinstance(percentage, (int, float, str)) and isinstance(percentage, Sequence)
    ranks = list(percentage) if several and isinstance(percentage, Sequence) else [percentage]
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, (int, float)) or not 0 <= rank <= 1:
            raise PlanError("`percentage` is out of range", got=shown(rank), hint="use 0 to 1")
    if not ranks or len(ranks) > _MOST:
        hint = "name one rank, or up to 10 000: [0.5, 0.99]"
        raise PlanError("`percentage` names no ranks", got=f"{len(ranks)} ranks", hint=hint)
    error = relative_error
    if isinstance(error, bool) or not isinstance(error, (int, float)) or not 0.0001 <= error <= 0.25:
        hint = "use 0.0001 to 0.25; percentile(...) is exact, and keeps every value"
        raise PlanError("`relative_error` is out of range", got=shown(error), hint=hint)
    value = column_of(arg, "approx_percentile")
    if several:
        return ApproxPercentile(value, percentages=tuple(map(float, ranks)), relative_error=float(error))  # type: ignore[arg-type]
    return ApproxPercentile(value, percentage=float(ranks[0]), relative_error=float(error))  # type: ignore[arg-type]


@attrs.frozen(eq=False, repr=False)
class Histogram(AggCall, takes="numbers"):
    """Says how many values are in each bin."""

    bounds: tuple[float, ...] = ()
    """The places at which bins begin."""

    def _settings(self) -> list[str]:
        return [repr(list(self.bounds))]


@aggregate()
def histogram(arg: Expr | str, bounds: Sequence[float]) -> AggCall:
    """Return how many values lie in each bin, a list of ``int64``.

    The bins are: below ``bounds[0]``, from each bound to the next, and from the last on. A value equal to a bound is in the bin
    that begins there; NaN is in the last bin. Without values all counts are 0.

    Parameters
    ----------
    arg : Expr or str
        A numeric column; decimals are read as the nearest doubles.
    bounds : sequence of float
        1 to 10 000 ascending numbers; the list is one longer.

    Raises
    ------
    PlanError
        For bounds that do not ascend, or are not numbers.

    Examples
    --------
    >>> from krishiv_py import histogram
    >>> from krishiv_py.testing import Driver, stream_of
    >>> windows = stream_of("ms bigint, at bigint").watermark("at", 0).tumbling_window(10)
    >>> driver = Driver(windows.agg(histogram("ms", [10, 100])))
    >>> _ = driver.send([{"ms": ms, "at": 1} for ms in (3, 10, 99, 100, 7)])
    >>> driver.close().results["histogram_ms"].to_pylist()
    [[2, 2, 1]]
    """
    hint = "write histogram(col, [0, 10, 100])"
    if isinstance(bounds, (str, bytes)) or not isinstance(bounds, Sequence) or not 1 <= len(bounds) <= _MOST:
        raise PlanError(f"`bounds` is not a list of 1 to {_MOST:,} numbers", got=shown(bounds), hint=hint)
    for bound in bounds:
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not math.isfinite(bound):
            raise PlanError("a bound is not a number", got=shown(bound), hint=hint)
    for below, above in itertools.pairwise(bounds):
        if not below < above:
            got = f"{below!r}, {above!r}"
            raise PlanError("`bounds` do not ascend", got=got, hint=hint)
    return Histogram(column_of(arg, "histogram"), bounds=tuple(bounds))
