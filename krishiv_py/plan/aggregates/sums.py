"""Sums and means (SEMANTICS §5.6)."""

from __future__ import annotations

from typing import ClassVar

import attrs

from krishiv_py.plan.aggregates.calls import AggCall, Takes, aggregate, column_of
from krishiv_py.plan.expressions.expr import Expr


@attrs.frozen(eq=False, repr=False)
class Sum(AggCall):
    """The sum."""

    func: ClassVar[str] = "sum"
    _takes: ClassVar[Takes] = "numbers"


@aggregate("SUM")
def sum(arg: Expr | str) -> AggCall:  # noqa: A001  # SQL's own name
    """Sum of the non-null values of `arg`: ``int64`` for integers (overflow is an error), ``float64``, or decimal(38).

    A sum of floats is exact, rounded once (§5.6): it depends neither on the order of the rows nor on how they were batched.
    """
    return Sum(column_of(arg, "sum"))


@attrs.frozen(eq=False, repr=False)
class Avg(AggCall):
    """The mean."""

    func: ClassVar[str] = "avg"
    _takes: ClassVar[Takes] = "numbers"


@aggregate("AVG", "MEAN")
def avg(arg: Expr | str) -> AggCall:
    """Arithmetic mean of the non-null values of `arg`, ``float64``: their exact sum, rounded, divided by their number."""
    return Avg(column_of(arg, "avg"))
