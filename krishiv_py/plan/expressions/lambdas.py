"""Functions of the elements of lists and maps: ``transform(xs, x -> x + 1)``, ``col("xs").transform(lambda x: x + 1)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import attrs

from krishiv_py.errors import RAISED, ExpressionError, failure_text, shown
from krishiv_py.plan.expressions.expr import Expr, wrap
from krishiv_py.plan.expressions.trees import listed
from krishiv_py.plan.names import quoted

_MOST: Final = 3
_open: ContextVar[tuple[str, ...]] = ContextVar("open_lambdas", default=())


@attrs.frozen(eq=False, repr=False)
class LambdaVar(Expr):
    """A parameter of a function of elements."""

    name: str

    def _parts(self) -> tuple[Any, ...]:
        return (quoted(self.name),)


@attrs.frozen(eq=False, repr=False)
class Lambda(Expr):
    """A function of elements: its parameters, and what it gives."""

    params: tuple[str, ...]
    body: Expr

    def _parts(self) -> tuple[Any, ...]:
        names = [quoted(p) for p in self.params]
        return *(names if len(names) == 1 else ("(", *listed(names), ")")), " -> ", self.body

    def _children(self) -> tuple[Expr, ...]:
        return (self.body,)


def lambda_of(function: Callable[..., object]) -> Lambda:
    """Return the expression a function of Python gives for its parameters; it is called once, with expressions.

    Raises
    ------
    ExpressionError
        For a function with other parameters than one to three plain ones, and for one that gives no expression.
    """
    outside = _open.get()
    names = [_free(name, outside) for name in _parameters(function)]
    token = _open.set((*outside, *names))
    try:
        body = function(*map(LambdaVar, names))
    except ExpressionError:
        raise
    except RAISED as problem:
        raise ExpressionError(
            "a function of elements failed",
            got=failure_text(problem),
            then="it is called once, with expressions and not with values",
            hint="write it with the operators and methods of expressions: lambda x: x.length() + 1",
        ) from problem
    finally:
        _open.reset(token)
    return Lambda(tuple(names), wrap(body))


def _parameters(function: Callable[..., object]) -> list[str]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)
    if not plain or not 1 <= len(parameters) <= _MOST:
        raise ExpressionError(
            "a function of elements takes one to three parameters",
            got=shown(function),
            hint="write lambda x: x + 1, or lambda x, place: x * place",
        )
    return [p.name for p in parameters]


def _free(name: str, taken: tuple[str, ...]) -> str:
    """Return a name that no function around it has: the parameter of an inner one must not hide the outer one's."""
    free, n = name, 2
    while free in taken:
        free, n = f"{name}_{n}", n + 1
    return free
