"""Values that are first by their size or by event time, and conditions of all rows."""

from __future__ import annotations

from typing import ClassVar

import attrs

from krishiv_py.plan.aggregates.calls import AggCall, Takes, aggregate, column_of
from krishiv_py.plan.checks import expression
from krishiv_py.plan.expressions.expr import Expr, Lit
from krishiv_py.plan.expressions.facts import name_of


@attrs.frozen(eq=False, repr=False)
class Min(AggCall):
    """The smallest value."""

    func: ClassVar[str] = "min"
    _takes: ClassVar[Takes] = "comparable"


@aggregate("MIN")
def min(arg: Expr | str) -> AggCall:  # noqa: A001  # SQL's own name
    """Smallest non-null value of `arg`, in its type; NaN counts as the largest number, as in Spark."""
    return Min(column_of(arg, "min"))


@attrs.frozen(eq=False, repr=False)
class Max(AggCall):
    """The largest value."""

    func: ClassVar[str] = "max"
    _takes: ClassVar[Takes] = "comparable"


@aggregate("MAX")
def max(arg: Expr | str) -> AggCall:  # noqa: A001  # SQL's own name
    """Largest non-null value of `arg`, in its type; NaN counts as the largest number, as in Spark."""
    return Max(column_of(arg, "max"))


@attrs.frozen(eq=False, repr=False)
class First(AggCall):
    """The value with the smallest event time."""

    func: ClassVar[str] = "first"


@aggregate("FIRST", "FIRST_VALUE")
def first(arg: Expr | str) -> AggCall:
    """The non-null value of `arg` with the smallest event time; the earlier arrival wins a tie."""
    return First(column_of(arg, "first"))


@attrs.frozen(eq=False, repr=False)
class Last(AggCall):
    """The value with the largest event time."""

    func: ClassVar[str] = "last"


@aggregate("LAST", "LAST_VALUE")
def last(arg: Expr | str) -> AggCall:
    """The non-null value of `arg` with the largest event time; the later arrival wins a tie."""
    return Last(column_of(arg, "last"))


@attrs.frozen(eq=False, repr=False)
class BoolAnd(AggCall):
    """Says whether a condition is true for every row."""

    func: ClassVar[str] = "bool_and"
    _takes: ClassVar[Takes] = "conditions"


@aggregate("BOOL_AND", "EVERY")
def bool_and(condition: Expr | str) -> AggCall:
    """Return whether `condition` is true for every row; rows where it is null are left out, null if none is left."""
    return BoolAnd(column_of(expression(condition, "bool_and"), "bool_and"))


@attrs.frozen(eq=False, repr=False)
class BoolOr(AggCall):
    """Says whether a condition is true for any row."""

    func: ClassVar[str] = "bool_or"
    _takes: ClassVar[Takes] = "conditions"


@aggregate("BOOL_OR", "SOME", "ANY")
def bool_or(condition: Expr | str) -> AggCall:
    """Return whether `condition` is true for any row; rows where it is null are left out, null if none is left."""
    return BoolOr(column_of(expression(condition, "bool_or"), "bool_or"))


@aggregate("ANY_VALUE")
def any_value(arg: Expr | str) -> AggCall:
    """Some non-null value of `arg`: that of :func:`first`, so that every engine gives the same one."""
    call = first(arg)
    return attrs.evolve(call, name=f"any_value_{name_of(call.arg)}")


def whole_since(number: int, name: str) -> AggCall:
    """Return the aggregate that is true for windows without rows from before savepoint `number`, in state as false.

    Numbers make the inputs of several different expressions.
    """
    return BoolAnd(Lit(number) == Lit(number), name)
