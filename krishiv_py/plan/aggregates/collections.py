"""Values of a window as a list, and how many are distinct."""

from __future__ import annotations

from typing import ClassVar

import attrs

from krishiv_py.plan.aggregates.calls import AggCall, Takes, aggregate, column_of
from krishiv_py.plan.checks import expression
from krishiv_py.plan.expressions.expr import Alias, Expr, Func
from krishiv_py.plan.expressions.facts import name_of


@attrs.frozen(eq=False, repr=False)
class CollectList(AggCall):
    """All values as a list."""

    func: ClassVar[str] = "collect_list"


@aggregate("COLLECT_LIST", "ARRAY_AGG")
def collect_list(arg: Expr | str) -> AggCall:
    """All non-null values of `arg`, in event-time order (ties: arrival), as a list; empty if there are none."""
    return CollectList(column_of(arg, "collect_list"))


@attrs.frozen(eq=False, repr=False)
class CollectSet(AggCall):
    """The distinct values as a list."""

    func: ClassVar[str] = "collect_set"
    _takes: ClassVar[Takes] = "comparable"


@aggregate("COLLECT_SET")
def collect_set(arg: Expr | str) -> AggCall:
    """The distinct non-null values of `arg`, sorted, as a list; empty if there are none."""
    return CollectSet(column_of(arg, "collect_set"))


@attrs.frozen(eq=False, repr=False)
class CountDistinct(AggCall):
    """The number of distinct values."""

    func: ClassVar[str] = "count_distinct"
    _takes: ClassVar[Takes] = "comparable"


@aggregate("COUNT_DISTINCT")
def count_distinct(arg: Expr | str, *more: Expr | str) -> AggCall:
    """Exact number of distinct non-null values of `arg`, ``int64``; with `more`, of combinations without a null."""
    value = _combined((arg, *more), "count_distinct") if more else arg
    return CountDistinct(column_of(value, "count_distinct"))


def _combined(values: tuple[Expr | str, ...], where: str) -> Expr:
    """A value that two rows share if, and only if, they have the same `values`; null where one of them is."""
    parsed = [expression(value, where) for value in values]
    return Alias(Func("distinct_key", tuple(parsed)), "_".join(map(name_of, parsed)))
