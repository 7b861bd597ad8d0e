"""Variances and standard deviations (SEMANTICS §5.6)."""

from __future__ import annotations

from typing import ClassVar

import attrs

from krishiv_py.plan.aggregates.calls import AggCall, Takes, aggregate, column_of
from krishiv_py.plan.expressions.expr import Expr


@attrs.frozen(eq=False, repr=False)
class Stddev(AggCall):
    """The standard deviation of a sample."""

    func: ClassVar[str] = "stddev"
    _takes: ClassVar[Takes] = "numbers"


@aggregate("STDDEV", "STDDEV_SAMP", "STD")
def stddev(arg: Expr | str) -> AggCall:
    """Sample standard deviation (n - 1) of `arg`, ``float64``: the root of :func:`variance`; null for fewer than two values."""
    return Stddev(column_of(arg, "stddev"))


@attrs.frozen(eq=False, repr=False)
class Variance(AggCall):
    """The variance of a sample."""

    func: ClassVar[str] = "variance"
    _takes: ClassVar[Takes] = "numbers"


@aggregate("VARIANCE", "VAR_SAMP")
def variance(arg: Expr | str) -> AggCall:
    """Sample variance (n - 1) of `arg`, ``float64``; null for fewer than two values.

    Exact up to its last roundings, also far from zero, and independent of order and batches (§5.6).
    """
    return Variance(column_of(arg, "variance"))


@attrs.frozen(eq=False, repr=False)
class StddevPop(AggCall):
    """The standard deviation of all."""

    func: ClassVar[str] = "stddev_pop"
    _takes: ClassVar[Takes] = "numbers"


@aggregate("STDDEV_POP")
def stddev_pop(arg: Expr | str) -> AggCall:
    """Standard deviation of the population (n) of `arg`, ``float64``: the root of :func:`var_pop`; null without values."""
    return StddevPop(column_of(arg, "stddev_pop"))


@attrs.frozen(eq=False, repr=False)
class VarPop(AggCall):
    """The variance of all."""

    func: ClassVar[str] = "var_pop"
    _takes: ClassVar[Takes] = "numbers"


@aggregate("VAR_POP")
def var_pop(arg: Expr | str) -> AggCall:
    """Variance of the population (n) of `arg`, ``float64``; 0 for one value, null without values. Exact as :func:`variance`."""
    return VarPop(column_of(arg, "var_pop"))
