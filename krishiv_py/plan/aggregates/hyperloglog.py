"""Estimated numbers of distinct values."""

from __future__ import annotations

from typing import ClassVar

import attrs

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.aggregates.calls import AggCall, Takes, aggregate, column_of
from krishiv_py.plan.expressions.expr import Expr


@attrs.frozen(eq=False, repr=False)
class ApproxCountDistinct(AggCall):
    """An estimate of the number of distinct values."""

    func: ClassVar[str] = "approx_count_distinct"
    _takes: ClassVar[Takes] = "comparable"
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
