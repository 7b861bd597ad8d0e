"""Calls of aggregates that select rows or values: extremes, ranks, modes and collections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import attrs
from typing_extensions import Never

from krishiv_py.errors import ExpressionError, PlanError, shown
from krishiv_py.plan.aggregates.calls import AggCall, aggregate, column_of
from krishiv_py.plan.checks import a_number, expression
from krishiv_py.plan.expressions.expr import Alias, Expr, Func, Lit, col, lit, name_of


class Min(AggCall, takes="comparable"):
    """The smallest value."""


@aggregate("MIN")
def min(arg: Expr | str, *_others: Never) -> AggCall:  # noqa: A001  # SQL's own name
    """Smallest non-null value of `arg`, in its type; NaN counts as the largest number, as in Spark."""
    return Min(column_of(arg, "min", *_others))


class Max(AggCall, takes="comparable"):
    """The largest value."""


@aggregate("MAX")
def max(arg: Expr | str, *_others: Never) -> AggCall:  # noqa: A001  # SQL's own name
    """Largest non-null value of `arg`, in its type; NaN counts as the largest number, as in Spark."""
    return Max(column_of(arg, "max", *_others))


@attrs.frozen(eq=False, repr=False)
class First(AggCall):
    """The value with the smallest event time; in a pattern that of the row `offset` places after the first one."""

    offset: int = 0

    def _settings(self) -> list[str]:
        return [str(self.offset)] if self.offset else []


@aggregate("FIRST", "FIRST_VALUE")
def first(arg: Expr | str, offset: int = 0) -> AggCall:
    """Return the non-null value of `arg` with the smallest event time; the earlier arrival wins a tie.

    In a pattern it is the value, null or not, of the first row of a step, ``first("up.price")``, or of the match; with an
    `offset` that of the row so many places after it.
    """
    return First(column_of(arg, "first"), offset=a_number(offset, "offset", 0, 'write first("up.price", 1)'))


@attrs.frozen(eq=False, repr=False)
class Last(AggCall):
    """The value with the largest event time; in a pattern that of the row `offset` places before the last one."""

    offset: int = 0

    def _settings(self) -> list[str]:
        return [str(self.offset)] if self.offset else []


@aggregate("LAST", "LAST_VALUE")
def last(arg: Expr | str, offset: int = 0) -> AggCall:
    """Return the non-null value of `arg` with the largest event time; the later arrival wins a tie.

    In a pattern it is the value, null or not, of the last row of a step so far, ``last("up.price")``, or of the match; with an
    `offset` that of the row so many places before it.
    """
    return Last(column_of(arg, "last"), offset=a_number(offset, "offset", 0, 'write last("up.price", 1)'))


class BoolAnd(AggCall, takes="conditions"):
    """Says whether a condition is true for every row."""


@aggregate("BOOL_AND", "EVERY")
def bool_and(condition: Expr | str) -> AggCall:
    """Return whether `condition` is true for every row; rows where it is null are left out, null if none is left."""
    return BoolAnd(column_of(expression(condition, "bool_and"), "bool_and"))


class BoolOr(AggCall, takes="conditions"):
    """Says whether a condition is true for any row."""


@aggregate("BOOL_OR", "SOME", "ANY")
def bool_or(condition: Expr | str) -> AggCall:
    """Return whether `condition` is true for any row; rows where it is null are left out, null if none is left."""
    return BoolOr(column_of(expression(condition, "bool_or"), "bool_or"))


@aggregate("ANY_VALUE")
def any_value(arg: Expr | str) -> AggCall:
    """Some non-null value of `arg`: that of :func:`first`, so that every engine gives the same one."""
    call = first(arg)
    return attrs.evolve(call, name=f"any_value_{name_of(call.arg)}")


COMPLETE: Final = "complete"
"""The column that says whether all aggregates of a result are whole."""
HIDDEN: Final = "__krishiv_whole_"
"""The beginning of names of marks: which windows have all rows of the aggregates added over one savepoint."""


class WholeSince(BoolAnd):
    """The mark of windows without rows from before a savepoint; a class, as an aggregate of the user may have its name."""


def whole_since(number: int, name: str) -> AggCall:
    """Return the aggregate that is true for windows without rows from before savepoint `number`, in state as false.

    Numbers make the inputs of several different expressions.
    """
    return WholeSince(Lit(number) == Lit(number), name)


class MaxBy(AggCall):
    """The value of the row with the largest other value; the argument is a struct of that one and the value."""


class MinBy(AggCall):
    """The value of the row with the smallest other value; the argument is a struct of that one and the value."""


@attrs.frozen(eq=False, repr=False)
class TopK(AggCall):
    """The rows with the largest value, which is the first field of the argument."""

    k: int = 1
    then: tuple[Literal["smallest", "largest"], ...] = ()
    """The order of rows that are equal so far, by the second field, the third and so on."""

    def _settings(self) -> list[str]:
        return [f"k={self.k}", *([f"then by {', '.join(self.then)}"] if self.then else [])]


@attrs.frozen(eq=False, repr=False)
class BottomK(AggCall):
    """The rows with the smallest value, which is the first field of the argument."""

    k: int = 1
    then: tuple[Literal["smallest", "largest"], ...] = ()
    """The order of rows that are equal so far, by the second field, the third and so on."""

    def _settings(self) -> list[str]:
        return [f"k={self.k}", *([f"then by {', '.join(self.then)}"] if self.then else [])]


@aggregate("MAX_BY")
def max_by(arg: Expr | str, by: Expr | str) -> AggCall:
    """Return the value of `arg` in the row with the largest `by` (§5.6).

    Rows whose `by` is null are ignored. NaN is above all numbers. Of equal rows the one with the smaller event time counts,
    then the earlier arrival. The result may be null, as `arg` may be.
    """
    return _value_by(MaxBy, arg, by)


@aggregate("MIN_BY")
def min_by(arg: Expr | str, by: Expr | str) -> AggCall:
    """Return the value of `arg` in the row with the smallest `by`, see :func:`max_by`."""
    return _value_by(MinBy, arg, by)


Then: TypeAlias = 'Sequence[tuple[Expr | str, Literal["smallest", "largest"]]]'
"""Expressions that rank rows that are equal so far, and which of their values come first."""


@aggregate()
def top_k(k: int, by: Expr | str, *columns: Expr | str, then: Then = ()) -> AggCall:
    """Return the `k` rows with the largest `by`, as a list of structs, the largest first (§5.6).

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
        ``then=[("user", "smallest")]``. Nulls come last. These are fields after `by`.

    Raises
    ------
    PlanError
        For a `k` out of range, and for a `then` that is not such a list.
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
    return _ranking(TopK, k, by, columns, then)


@aggregate()
def bottom_k(k: int, by: Expr | str, *columns: Expr | str, then: Then = ()) -> AggCall:
    """Return the `k` rows with the smallest `by`, the smallest first; `columns` and `then` are those of :func:`top_k`."""
    return _ranking(BottomK, k, by, columns, then)


def _column(func: str, given: Expr | str) -> Expr:
    expr = col(given) if isinstance(given, str) else given
    if not isinstance(expr, Expr):
        raise ExpressionError(f"{func} takes columns", got=shown(given), hint='write col("x")')
    if name_of(expr) == "*":
        raise ExpressionError(f'{func} cannot take col("*")', got="*", hint="name a column")
    return expr


def _value_by(call: type[MaxBy | MinBy], arg: Expr | str, by: Expr | str) -> AggCall:
    value, rank = _column(call.func, arg), _column(call.func, by)
    pair = Func("named_struct", (lit("by"), rank, lit("value"), value))
    return call(pair, name=f"{call.func}_{name_of(value)}_{name_of(rank)}")


def _ranking(call: type[TopK | BottomK], k: int, by: Expr | str, columns: tuple[Expr | str, ...], then: Then) -> AggCall:
    func = call.func
    a_number(k, "k", 1, f'write {func}(10, "amount")', most=10_000)
    ties = _ties(func, then)
    fields = [_column(func, c) for c in (by, *(column for column, _ in ties), *columns)]
    names = [name_of(f) for f in fields]
    lower = [n.lower() for n in names]
    for n, name in enumerate(names):
        if lower[n] in lower[:n]:
            raise ExpressionError(f"{func} has one name twice", got=f"`{name}`", hint='write .alias("y")')
    row = Func("named_struct", tuple(e for name, f in zip(names, fields, strict=True) for e in (lit(name), f)))
    return call(row, k=k, then=tuple(first for _, first in ties), name=f"{func}_{names[0]}")


def _ties(func: str, then: object) -> list[tuple[Expr | str, Literal["smallest", "largest"]]]:
    """Return a checked `then`."""
    ties: list[tuple[Expr | str, Literal["smallest", "largest"]]] = []
    for item in then if isinstance(then, (list, tuple)) else [None]:
        if not isinstance(item, (list, tuple)) or len(item) != 2 or item[1] not in ("smallest", "largest"):
            got = shown(then if item is None else item)
            hint = f'write {func}(3, "amount", then=[("user", "smallest")])'
            raise PlanError("`then` is a list of columns, each with what comes first", got=got, hint=hint)
        ties.append((item[0], item[1]))
    return ties


class Mode(AggCall, takes="comparable"):
    """The most frequent value."""


@aggregate("MODE")
def mode(arg: Expr | str) -> AggCall:
    """Return the most frequent non-null value of `arg`, in its type; of several the smallest. It keeps the distinct values."""
    return Mode(column_of(arg, "mode"))


class CollectList(AggCall):
    """All values as a list."""


@aggregate("COLLECT_LIST", "ARRAY_AGG")
def collect_list(arg: Expr | str) -> AggCall:
    """Return all non-null values of `arg`, in event-time order (ties: arrival), as a list; empty if there are none."""
    return CollectList(column_of(arg, "collect_list"))


class CollectSet(AggCall, takes="comparable"):
    """The distinct values as a list."""


@aggregate("COLLECT_SET")
def collect_set(arg: Expr | str) -> AggCall:
    """Return the distinct non-null values of `arg`, sorted, as a list; empty if there are none."""
    return CollectSet(column_of(arg, "collect_set"))


class CountDistinct(AggCall, takes="comparable"):
    """The number of distinct values."""


@aggregate("COUNT_DISTINCT")
def count_distinct(arg: Expr | str, *more: Expr | str) -> AggCall:
    """Exact number of distinct non-null values of `arg`, ``int64``; with `more`, of combinations without a null."""
    value = _combined((arg, *more), "count_distinct") if more else arg
    return CountDistinct(column_of(value, "count_distinct"))


def _combined(values: tuple[Expr | str, ...], where: str) -> Expr:
    """Return a value that two rows share if, and only if, they have the same `values`; null where one of them is."""
    parsed = [expression(value, where) for value in values]
    return Alias(Func("distinct_key", tuple(parsed)), "_".join(map(name_of, parsed)))
