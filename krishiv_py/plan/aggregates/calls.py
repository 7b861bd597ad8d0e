"""Aggregate calls: ``sum(col("amount")).alias("total")`` (SEMANTICS §5.6)."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import signature
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar, overload

import attrs

from krishiv_py.errors import ExpressionError, PlanError, shown
from krishiv_py.plan.checks import expression
from krishiv_py.plan.durations import Duration, show_us, to_us
from krishiv_py.plan.expressions.called import Pair, Single
from krishiv_py.plan.expressions.expr import Aggregate, Col, Expr, Func, aggregate_in, col, name_of, python_text
from krishiv_py.plan.expressions.trees import listed, render
from krishiv_py.plan.names import encodable

Takes: TypeAlias = Literal["rows", "values", "comparable", "numbers", "integers", "conditions"]
"""Inputs of an aggregate: also rows as such and columns without a type, values of any type, values that have an order,
numbers, whole numbers, or booleans."""


@attrs.frozen(eq=False, repr=False)
class AggCall(Aggregate):
    """One aggregate over the rows of a window. It is an expression, so others are computed from it: ``sum("a") / count()``.

    A subclass is one aggregate, with the parameters it has besides its argument, in the file of its family; `takes` says what
    it can be given. What computes it is in the file of the same name in ``kernels/aggregates``.

    Attributes
    ----------
    func : str
        What it is called in Python, in plans and in checkpoints: the words of the name of its class.
    arg : Expr
        What is aggregated; ``col("*")`` counts rows.
    name : str or None
        The alias, if one was given.
    where : Expr or None
        Only rows for which this is true are aggregated.
    over_us : int or None
        How far back it looks in a look-back window that looks back longer, µs.
    """

    func: ClassVar[str]
    _takes: ClassVar[Takes] = "values"
    arg: Expr
    name: str | None = None
    where: Expr | None = None
    over_us: int | None = None

    def __init_subclass__(cls, *, takes: Takes | None = None) -> None:
        if AggCall in cls.__bases__:
            cls.func = re.sub("(?<=.)(?=[A-Z])", "_", cls.__name__).lower()
        if takes is not None:
            cls._takes = takes

    def __attrs_post_init__(self) -> None:
        for part in (self.arg, self.where):
            if part is not None and (inner := aggregate_in(part)) is not None:
                hint = 'aggregate the results of a stage: .agg(sum("x").alias("n")).tumbling_window("1 h").agg(max("n"))'
                raise ExpressionError(f"{self.func} of an aggregate", got=render(inner), hint=hint)

    def alias(self, name: str) -> AggCall:
        """Call the output column `name`."""
        if not isinstance(name, str) or not name or not encodable(name):
            raise PlanError("an alias is a non-empty text", got=shown(name), hint='write .alias("n")')
        return attrs.evolve(self, name=name)

    @overload
    def filter(self, condition: Expr | str) -> AggCall: ...
    @overload
    def filter(self, condition: Single | Pair) -> Func: ...
    def filter(self, condition: Expr | str | Single | Pair) -> AggCall | Func:
        """Aggregate only rows for which `condition` is true; a function of elements leaves elements of its list out instead."""
        if callable(condition):
            return super().filter(condition)
        parsed = expression(condition, f"{self.func}().filter")
        return attrs.evolve(self, where=parsed if self.where is None else self.where & parsed)

    def over(self, size: Duration) -> AggCall:
        """Look back only so far, in a look-back window that looks back longer: several ranges in one pass (SEMANTICS §11.4).

        Parameters
        ----------
        size : int or timedelta or str
            How far; ``int`` is milliseconds. With ``two_sided``, it looks so far ahead, too.

        Raises
        ------
        DurationError
            For negative, float or boolean sizes and unreadable text.
        """
        return attrs.evolve(self, over_us=to_us(size, "size", allow_zero=True))

    @property
    def output_name(self) -> str:
        """The column name: the alias, ``count`` for ``count(*)``, else ``func_argument``; then the range of its own."""
        if self.name is not None:
            return self.name
        own = "" if self.over_us is None else "_" + show_us(self.over_us).replace(" ", "_")
        if self._counts_rows:
            return f"count{own}"
        return f"{self._title.lower()}_{name_of(self.arg)}{own}"

    @property
    def _title(self) -> str:
        """Return what plans show it as."""
        return self.func

    @property
    def _counts_rows(self) -> bool:
        """Return whether this is ``count(*)``."""
        return False

    def _written(self) -> str:
        plain = isinstance(self.arg, Col) and not self._settings() and self.where is None and self.over_us is None
        return f"{self.func}({'' if self._counts_rows else python_text(self.arg)})" if plain else "x"

    def _settings(self) -> list[str]:
        """Return what makes two calls of one aggregate different, besides argument and filter."""
        return []

    def _parts(self) -> tuple[Any, ...]:
        where = () if self.where is None else (" FILTER (WHERE ", self.where, ")")
        over = () if self.over_us is None else (f" OVER {show_us(self.over_us)}",)
        return f"{self._title}(", *listed([self.arg, *self._settings()]), ")", *where, *over

    def __str__(self) -> str:
        return f"{render(self)} AS {self.output_name}"

    def __repr__(self) -> str:
        return f"<{self}>"


@attrs.frozen
class AggregateDefinition:
    """An aggregate of the library: the function that users call, and the names it has in SQL.

    Attributes
    ----------
    function : callable
        Makes a call of its arguments. The first line of its docstring is what tables of the documentation say.
    sql : tuple of str
        Its names in SQL, the usual one first; none if SQL cannot say it.
    """

    function: Callable[..., AggCall]
    sql: tuple[str, ...]

    @property
    def arity(self) -> int:
        """Return how many values it takes."""
        given = signature(self.function).parameters.values()
        return len([p for p in given if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD])


DEFINITIONS: Final[dict[str, AggregateDefinition]] = {}
"""The aggregates of the library by their names in Python."""
F = TypeVar("F", bound=Callable[..., AggCall])


def aggregate(*sql: str) -> Callable[[F], F]:
    """Return what enters a function of users in the aggregates of the library, with its names in SQL."""

    def enter(function: F) -> F:
        DEFINITIONS[function.__name__] = AggregateDefinition(function, sql)
        return function

    return enter


def column_of(arg: Expr | str, func: str, *others: object) -> Expr:
    """Return the column that the aggregate `func` is called with; `others` are values that only Python's `func` takes.

    Raises
    ------
    ExpressionError
        For what is not one column, and for ``col("*")``, which can only be counted.
    """
    parsed = col(arg) if isinstance(arg, str) else arg
    if others or not isinstance(parsed, Expr):
        own = f"; for Python's own {func} write: import builtins, builtins.{func}(...)" if func in ("sum", "min", "max") else ""
        hint = f'write {func}("x") or {func}(col("x")){own}'
        raise ExpressionError(f"{func} takes a column", got=", ".join(map(shown, (arg, *others))), hint=hint)
    if isinstance(parsed, Col) and parsed.name == "*" and func != "count":
        raise ExpressionError(f'{func} cannot take col("*")', got="*", hint="name a column")
    return parsed
