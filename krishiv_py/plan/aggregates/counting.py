"""Numbers of rows and of values."""

from __future__ import annotations

from typing import ClassVar

import attrs

from krishiv_py.plan.aggregates.calls import AggCall, Takes, aggregate, column_of
from krishiv_py.plan.checks import expression
from krishiv_py.plan.expressions.expr import Col, Expr
from krishiv_py.plan.expressions.facts import name_of


@attrs.frozen(eq=False, repr=False)
class Count(AggCall):
    """The number of rows or of values."""

    func: ClassVar[str] = "count"
    _takes: ClassVar[Takes] = "rows"

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
