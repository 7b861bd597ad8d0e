"""Calls of aggregates over numbers: counts, sums, moments and bits."""

from __future__ import annotations

import attrs
from typing_extensions import Never

from krishiv_py.plan.aggregates.calls import AggCall, aggregate, column_of
from krishiv_py.plan.checks import expression
from krishiv_py.plan.expressions.expr import Col, Expr, name_of


class Count(AggCall, takes="rows"):
    """The number of rows or of values."""

    @property
    def _counts_rows(self) -> bool:
        return isinstance(self.arg, Col) and self.arg.name == "*"


@aggregate("COUNT")
def count(arg: Expr | str = "*") -> AggCall:
    """Number of rows (`arg` is ``col("*")``, the default) or of non-null values of `arg`. Type ``int64``, never null."""
    return Count(column_of(arg, "count"))


@aggregate("COUNT_IF")
def count_if(condition: Expr | str) -> AggCall:
    """Number of rows for which `condition` is true, ``int64``, never null."""
    predicate = expression(condition, "count_if")
    return attrs.evolve(count().filter(predicate), name=f"count_if_{name_of(predicate)}")


class Sum(AggCall, takes="numbers"):
    """The sum."""


@aggregate("SUM")
def sum(arg: Expr | str, *_others: Never) -> AggCall:  # noqa: A001  # SQL's own name
    """Sum of the non-null values of `arg`: ``int64`` for integers (overflow is an error), ``float64``, or decimal(38).

    A sum of floats is exact, rounded once (§5.6): it depends neither on the order of the rows nor on how they were batched.
    """
    return Sum(column_of(arg, "sum", *_others))


class Avg(AggCall, takes="numbers"):
    """The mean."""


@aggregate("AVG", "MEAN")
def avg(arg: Expr | str) -> AggCall:
    """Arithmetic mean of the non-null values of `arg`, ``float64``: their exact sum, rounded, divided by their number."""
    return Avg(column_of(arg, "avg"))


class Stddev(AggCall, takes="numbers"):
    """The standard deviation of a sample."""


@aggregate("STDDEV", "STDDEV_SAMP", "STD")
def stddev(arg: Expr | str) -> AggCall:
    """Sample standard deviation (n - 1) of `arg`, ``float64``: the root of :func:`variance`; null for fewer than two values."""
    return Stddev(column_of(arg, "stddev"))


class Variance(AggCall, takes="numbers"):
    """The variance of a sample."""


@aggregate("VARIANCE", "VAR_SAMP")
def variance(arg: Expr | str) -> AggCall:
    """Sample variance (n - 1) of `arg`, ``float64``; null for fewer than two values.

    Exact up to its last roundings, also far from zero, and independent of order and batches (§5.6).
    """
    return Variance(column_of(arg, "variance"))


class StddevPop(AggCall, takes="numbers"):
    """The standard deviation of all."""


@aggregate("STDDEV_POP")
def stddev_pop(arg: Expr | str) -> AggCall:
    """Standard deviation of the population (n) of `arg`, ``float64``: the root of :func:`var_pop`; null without values."""
    return StddevPop(column_of(arg, "stddev_pop"))


class VarPop(AggCall, takes="numbers"):
    """The variance of all."""


@aggregate("VAR_POP")
def var_pop(arg: Expr | str) -> AggCall:
    """Variance of the population (n) of `arg`, ``float64``; 0 for one value, null without values. Exact as :func:`variance`."""
    return VarPop(column_of(arg, "var_pop"))


class BitAnd(AggCall, takes="integers"):
    """The bits that all numbers have."""


@aggregate("BIT_AND")
def bit_and(arg: Expr | str) -> AggCall:
    """Bits that all non-null values of `arg` have, in its type, which is one of whole numbers; null without values.

    Examples
    --------
    >>> from krishiv_py import bit_and, bit_or, bit_xor
    >>> from krishiv_py.testing import Driver, stream_of
    >>> windows = stream_of("flags int, at bigint").watermark("at", 0).tumbling_window(10)
    >>> driver = Driver(windows.agg(every=bit_and("flags"), any=bit_or("flags"), odd=bit_xor("flags")))
    >>> _ = driver.send([{"flags": flags, "at": 1} for flags in (0b111, 0b110, 0b010)])
    >>> [row] = driver.close().results.to_pylist()
    >>> bin(row["every"]), bin(row["any"]), bin(row["odd"])
    ('0b10', '0b111', '0b11')
    """
    return BitAnd(column_of(arg, "bit_and"))


class BitOr(AggCall, takes="integers"):
    """The bits that any number has."""


@aggregate("BIT_OR")
def bit_or(arg: Expr | str) -> AggCall:
    """Bits that any non-null value of `arg` has, in its type, which is one of whole numbers; null without values."""
    return BitOr(column_of(arg, "bit_or"))


class BitXor(AggCall, takes="integers"):
    """The bits that an odd number of numbers have."""


@aggregate("BIT_XOR")
def bit_xor(arg: Expr | str) -> AggCall:
    """Bits that an odd number of non-null values of `arg` have, in its type, one of whole numbers; null without values."""
    return BitXor(column_of(arg, "bit_xor"))
