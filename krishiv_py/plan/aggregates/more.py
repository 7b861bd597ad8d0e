"""Aggregate calls that rank rows, count values or ask conditions (SEMANTICS §5.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import attrs

from krishiv_py.errors import ExpressionError, PlanError, message, shown
from krishiv_py.plan.aggregates.calls import AggCall, AggName, call_of, count, first, percentile
from krishiv_py.plan.checks import a_number, expression
from krishiv_py.plan.expressions.expr import Expr, Func, col, lit
from krishiv_py.plan.expressions.facts import name_of


def count_if(condition: Expr | str) -> AggCall:
    """Number of rows for which `condition` is true, ``int64``, never null."""
    asked = expression(condition, "count_if")
    return attrs.evolve(count().filter(asked), name=f"count_if_{name_of(asked)}")


def bool_and(condition: Expr | str) -> AggCall:
    """Whether `condition` is true for every row; rows where it is null are left out, null if none is left."""
    return call_of("bool_and", expression(condition, "bool_and"))


def bool_or(condition: Expr | str) -> AggCall:
    """Whether `condition` is true for any row; rows where it is null are left out, null if none is left."""
    return call_of("bool_or", expression(condition, "bool_or"))


def any_value(arg: Expr | str) -> AggCall:
    """Some non-null value of `arg`: that of :func:`first`, so that every engine gives the same one."""
    call = first(arg)
    return attrs.evolve(call, name=f"any_value_{name_of(call.arg)}")


def median(arg: Expr | str) -> AggCall:
    """The exact median of `arg`, ``float64``: ``percentile(arg, 0.5)``, which keeps every value until the window ends."""
    call = percentile(arg)
    return attrs.evolve(call, name=f"median_{name_of(call.arg)}")


def mode(arg: Expr | str) -> AggCall:
    """The most frequent non-null value of `arg`, in its type; of several the smallest. It keeps the distinct values."""
    return call_of("mode", arg)


def max_by(arg: Expr | str, by: Expr | str) -> AggCall:
    """The value of `arg` in the row with the largest `by` (§5.6).

    Rows whose `by` is null are ignored. NaN is above all numbers. Of equal rows the one with the smaller event time counts,
    then the earlier arrival. The result may be null, as `arg` may be.
    """
    return _value_by("max_by", arg, by)


def min_by(arg: Expr | str, by: Expr | str) -> AggCall:
    """The value of `arg` in the row with the smallest `by`, see :func:`max_by`."""
    return _value_by("min_by", arg, by)


Then: TypeAlias = 'Sequence[tuple[Expr | str, Literal["smallest", "largest"]]]'
"""What ranks rows that are equal so far, and which of its values come first."""


def top_k(k: int, by: Expr | str, *columns: Expr | str, then: Then = ()) -> AggCall:
    """The `k` rows with the largest `by`, as a list of structs, the largest first (§5.6).

    Parameters
    ----------
    k : int
        How many rows at most, 1 to 10 000; the list is shorter if there are fewer, empty if there are none.
    by : Expr or str
        What ranks rows. Nulls come last, NaN is above all numbers. Equal rows go by event time, then by arrival.
    *columns : Expr or str
        What the structs contain behind the value of `by`, which is their first field. Fields are called like the columns;
        an expression is called by its alias.
    then : sequence of (Expr or str, {"smallest", "largest"}), optional
        What ranks rows whose `by` is equal, before event time does, and which of its values come first:
        ``then=[("user", "smallest")]``. Nulls come last. These are fields behind `by`.

    Raises
    ------
    PlanError
        For a `k` out of range, and for a `then` that is no such list.
    ExpressionError
        If two fields have one name.

    Examples
    --------
    >>> from krishiv_py import top_k
    >>> from krishiv_py.testing import Driver, stream_of
    >>> best = top_k(2, "n", then=[("user", "smallest")]).alias("best")
    >>> driver = Driver(stream_of("user string, n bigint, at bigint").watermark("at", 0).tumbling_window(10).agg(best))
    >>> _ = driver.send([{"user": user, "n": n, "at": 1} for user, n in [("b", 5), ("c", 7), ("a", 5)]])
    >>> driver.close().results["best"].to_pylist()
    [[{'n': 7, 'user': 'c'}, {'n': 5, 'user': 'a'}]]
    """
    return _ranking("top_k", k, by, columns, then)


def bottom_k(k: int, by: Expr | str, *columns: Expr | str, then: Then = ()) -> AggCall:
    """The `k` rows with the smallest `by`, the smallest first; `columns` and `then` are those of :func:`top_k`."""
    return _ranking("bottom_k", k, by, columns, then)


def _column(func: str, given: Expr | str) -> Expr:
    found = col(given) if isinstance(given, str) else given
    if not isinstance(found, Expr):
        raise ExpressionError(message(f"{func} takes columns", shown(given), "nothing to rank", 'write col("x")'))
    if name_of(found) == "*":
        raise ExpressionError(message(f'{func} cannot take col("*")', "*", "rows as such have no value", "name a column"))
    return found


def _value_by(func: AggName, arg: Expr | str, by: Expr | str) -> AggCall:
    value, rank = _column(func, arg), _column(func, by)
    pair = Func("named_struct", (lit("by"), rank, lit("value"), value))
    return call_of(func, pair, name=f"{func}_{name_of(value)}_{name_of(rank)}")


def _ranking(func: AggName, k: int, by: Expr | str, columns: tuple[Expr | str, ...], then: Then) -> AggCall:
    a_number(k, "k", 1, f'write {func}(10, "amount")', most=10_000)
    further = _further(func, then)
    fields = [_column(func, c) for c in (by, *(column for column, _ in further), *columns)]
    names = [name_of(f) for f in fields]
    lower = [n.lower() for n in names]
    for n, name in enumerate(names):
        if lower[n] in lower[:n]:
            raise ExpressionError(
                message(f"{func} has one name twice", f"`{name}`", "a struct has one field of a name", 'write .alias("y")')
            )
    row = Func("named_struct", tuple(e for name, f in zip(names, fields, strict=True) for e in (lit(name), f)))
    return call_of(func, row, k=k, then=tuple(first for _, first in further), name=f"{func}_{names[0]}")


def _further(func: str, then: object) -> list[tuple[Expr | str, Literal["smallest", "largest"]]]:
    """A checked `then`."""
    found: list[tuple[Expr | str, Literal["smallest", "largest"]]] = []
    for item in then if isinstance(then, (list, tuple)) else [None]:
        if not isinstance(item, (list, tuple)) or len(item) != 2 or item[1] not in ("smallest", "largest"):
            got = shown(then if item is None else item)
            hint = f'write {func}(3, "amount", then=[("user", "smallest")])'
            raise PlanError(message("`then` is a list of columns, each with what comes first", got, "rows have no order", hint))
        found.append((item[0], item[1]))
    return found


def stddev_pop(arg: Expr | str) -> AggCall:
    """Standard deviation of the population (n) of `arg`, ``float64``: the root of :func:`var_pop`; null without values."""
    return call_of("stddev_pop", arg)


def var_pop(arg: Expr | str) -> AggCall:
    """Variance of the population (n) of `arg`, ``float64``; 0 for one value, null without values. Exact as :func:`variance`."""
    return call_of("var_pop", arg)
