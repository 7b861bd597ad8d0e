"""Exact percentiles."""

from __future__ import annotations

from typing import ClassVar

import attrs

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.aggregates.calls import AggCall, Takes, aggregate, column_of
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.expressions.facts import name_of


@attrs.frozen(eq=False, repr=False)
class Percentile(AggCall):
    """The exact percentile."""

    func: ClassVar[str] = "percentile"
    _takes: ClassVar[Takes] = "numbers"
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
    """The exact median of `arg`, ``float64``: ``percentile(arg, 0.5)``, which keeps every value until the window ends."""
    call = percentile(arg)
    return attrs.evolve(call, name=f"median_{name_of(call.arg)}")
