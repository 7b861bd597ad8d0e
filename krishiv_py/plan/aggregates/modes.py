"""The most frequent value."""

from __future__ import annotations

from typing import ClassVar

import attrs

from krishiv_py.plan.aggregates.calls import AggCall, Takes, aggregate, column_of
from krishiv_py.plan.expressions.expr import Expr


@attrs.frozen(eq=False, repr=False)
class Mode(AggCall):
    """The most frequent value."""

    func: ClassVar[str] = "mode"
    _takes: ClassVar[Takes] = "comparable"


@aggregate("MODE")
def mode(arg: Expr | str) -> AggCall:
    """The most frequent non-null value of `arg`, in its type; of several the smallest. It keeps the distinct values."""
    return Mode(column_of(arg, "mode"))
