"""Several values as one that can be counted."""

from __future__ import annotations

from krishiv_py.plan.checks import expression
from krishiv_py.plan.expressions.expr import Alias, Expr, Func
from krishiv_py.plan.expressions.facts import name_of


def combined(values: tuple[Expr | str, ...], where: str) -> Expr:
    """A value that two rows share if, and only if, they have the same `values`; null where one of them is."""
    parsed = [expression(value, where) for value in values]
    return Alias(Func("distinct_key", tuple(parsed)), "_".join(map(name_of, parsed)))
