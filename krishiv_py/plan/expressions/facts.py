"""Define what can be said of an expression: the columns it reads, what makes it another one, its name."""

from __future__ import annotations

from collections.abc import Callable

from krishiv_py.plan.expressions.expr import Aggregate, Alias, Col, Expr, Field
from krishiv_py.plan.expressions.trees import flat, identity, rebuilt, walk


def columns_of(expr: Expr) -> frozenset[str]:
    """Names of the columns an expression reads."""
    return frozenset(node.name for node in walk(expr) if isinstance(node, Col))


def identity_of(expr: Expr) -> tuple[object, ...]:
    """Return a hashable value that only expressions share that are built alike."""
    return identity(expr, Expr)


def aggregate_in(expr: Expr) -> Aggregate | None:
    """Return an aggregate that is a part of an expression, None if there is none."""
    return next((node for node in walk(expr) if isinstance(node, Aggregate)), None)


def replaced(expr: Expr, swap: Callable[[Expr], Expr]) -> Expr:
    """Return the expression with what `swap` gives in the place of each node."""
    expr_replaced: Expr = rebuilt(flat(expr, Expr, swap))
    return expr_replaced


def unnamed(expr: Expr) -> Expr:
    """Return an expression without the names given to it."""
    while isinstance(expr, Alias):
        expr = expr.arg
    return expr


def name_of(expr: Expr) -> str:
    """Return the output name of an expression: its alias, its column or field, or its text."""
    return expr.name if isinstance(expr, (Alias, Col, Field)) else repr(expr).replace("`", "")
