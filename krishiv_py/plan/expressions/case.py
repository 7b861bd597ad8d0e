"""``when(...).when(...).otherwise(...)``: CASE."""

from __future__ import annotations

from typing import Any

import attrs

from krishiv_py.errors import ExpressionError, shown
from krishiv_py.plan.expressions.expr import Expr, Func, wrap


@attrs.frozen(eq=False, repr=False)
class Case(Expr):
    """The value next to the first condition that is true; otherwise the last value, or null if there is none."""

    _args: tuple[Expr, ...]
    """Conditions and values by turns, then the value of ELSE if there is one."""

    def when(self, condition: Expr, value: object) -> Case:
        """Go on with another `condition`, and its `value`."""
        return Case((*self._open(), _condition(condition), wrap(value)))

    def otherwise(self, value: object) -> Case:
        """End with the `value` for rows of which no condition is true."""
        return Case((*self._open(), wrap(value)))

    def _open(self) -> tuple[Expr, ...]:
        if len(self._args) % 2:
            raise ExpressionError("otherwise(...) appears twice, or before a when(...)", got=str(self), hint="write it last")
        return self._args

    def _parts(self) -> tuple[Any, ...]:
        pairs = [(self._args[i], self._args[i + 1]) for i in range(0, len(self._args) - 1, 2)]
        texts = [part for condition, value in pairs for part in (" WHEN ", condition, " THEN ", value)]
        return "CASE", *texts, *((" ELSE ", self._args[-1]) if len(self._args) % 2 else ()), " END"

    def _children(self) -> tuple[Expr, ...]:
        return self._args


def _condition(value: object) -> Expr:
    if not isinstance(value, (Expr, bool)):
        raise ExpressionError("when takes a condition first", got=shown(value), hint='write when(col("x") > 1, value)')
    return wrap(value)


def when(condition: Expr, value: object) -> Case:
    """`value` where `condition` is true: ``when(col("x") > 9, "big").when(col("x") > 4, "middle").otherwise("small")``.

    Values are columns or constants; they meet in one type. A value is computed only for the rows that take it. Without
    ``.otherwise(...)`` other rows have null. SQL: ``CASE WHEN ... THEN ... ELSE ... END``.
    """
    return Case((_condition(condition), wrap(value)))


def coalesce(*values: object) -> Func:
    """Return the first of `values` that is not null."""
    return Func("coalesce", tuple(map(wrap, values)))


def greatest(*values: object) -> Func:
    """Return the greatest of `values`, nulls left out; null if all are. NaN is greater than every number."""
    return Func("greatest", tuple(map(wrap, values)))


def least(*values: object) -> Func:
    """Return the least of `values`, nulls left out; null if all are."""
    return Func("least", tuple(map(wrap, values)))


def concat(*values: object) -> Func:
    """`values`, texts or bytes, one after the other; null if one of them is."""
    return Func("concat", tuple(map(wrap, values)))
