"""Define what methods of columns are made of: calls of functions on an expression."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from krishiv_py.plan.expressions.expr import Expr, Func

Single: TypeAlias = "Callable[[Expr], object]"
Pair: TypeAlias = "Callable[[Expr, Expr], object]"
TruncUnit: TypeAlias = Literal[
    "year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond"
]


class Calls:
    """Calls of functions on an expression."""

    __slots__ = ()

    def _call(self, name: str, *more: object, subject: int = 0) -> Func:
        """Return the call of the function `name`; the expression is at the place `subject` of its arguments."""
        raise NotImplementedError

    def _in_zone(self, name: str, time_zone: object, *more: object) -> Func:
        """Return the call of a function of what a clock in the zone shows."""
        if isinstance(time_zone, str) and time_zone == "UTC":
            return self._call(name, *more)
        return self._call("from_utc_timestamp", time_zone)._call(name, *more)


def unless(value: object, default: object) -> tuple[object, ...]:
    """Return no argument for a `value` that is the `default`."""
    return () if value is default or (type(value) is type(default) and bool(value == default)) else (value,)
