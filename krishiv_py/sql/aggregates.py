"""Aggregate functions of SQL as aggregate calls of the builder."""

from __future__ import annotations

from functools import cache
from typing import Final

import sqlglot
from sqlglot import expressions as sg

from krishiv_py.errors import PlanError
from krishiv_py.plan.aggregates.calls import DEFINITIONS, AggCall, AggregateDefinition
from krishiv_py.plan.aggregates.numbers import count
from krishiv_py.plan.aggregates.selections import bool_or, count_distinct
from krishiv_py.plan.aggregates.sketches import approx_percentile, percentile
from krishiv_py.plan.expressions.expr import Expr, Lit
from krishiv_py.plan.expressions.parse import expr_of
from krishiv_py.plan.expressions.sqltext import quiet_parser, spelled

_WRAPPERS: Final = (sg.Filter, sg.IgnoreNulls, sg.RespectNulls, sg.WithinGroup)
_FLAGS: Final = frozenset({"big_int", "nulls_excluded"})
_READ: Final = (sg.Count, sg.Quantile, sg.ApproxQuantile, sg.Any)
"""Aggregates with arguments that are not plain values."""


@cache
def _known() -> tuple[dict[type[sg.Expression], AggregateDefinition], dict[str, AggregateDefinition]]:
    """Return the aggregates by the node that the parser makes of a name in SQL, and by the names it makes no node of."""
    nodes: dict[type[sg.Expression], AggregateDefinition] = {}
    names: dict[str, AggregateDefinition] = {}
    with quiet_parser():
        for definition in DEFINITIONS.values():
            for name in definition.sql:
                node = sqlglot.parse_one(f"{name}({', '.join('x' * definition.arity)})", dialect="spark")
                if isinstance(node, sg.Anonymous):
                    names[name.lower()] = definition
                elif type(node) not in _READ:
                    nodes[type(node)] = definition  # type: ignore[index]  # it says Expr, which has what is used here
    return nodes, names


def _refused(node: sg.Expression, what: str, hint: str | None = None) -> PlanError:
    if hint is None:
        hint = f"the aggregates are {', '.join(name for d in DEFINITIONS.values() for name in d.sql[:1])}, COUNT(DISTINCT x)"
    return PlanError(what, got=spelled(node), hint=hint)


def aggregate(node: sg.Expression) -> AggCall | None:
    """Return the call that this very node stands for, without alias; None if it is not an aggregate.

    Raises
    ------
    PlanError
        For aggregates the library does not have.
    """
    if isinstance(node, sg.Filter):
        call = aggregate(node.this)
        if call is None:
            raise _refused(node, "FILTER belongs to an aggregate")
        return call.filter(expr_of(node.expression.this))
    if isinstance(node, (sg.IgnoreNulls, sg.RespectNulls)):
        return _of_nulls(node)
    if isinstance(node, sg.WithinGroup) and isinstance(node.this, sg.PercentileCont):
        return _within_group(node)
    if isinstance(node, sg.Count):
        return _count(node)
    if isinstance(node, sg.ApproxQuantile):
        return _approximate(node)
    if isinstance(node, sg.Quantile):
        return percentile(_value(node, node.this), _rank(node))
    nodes, names = _known()
    if type(node) in nodes:
        return _call(nodes[type(node)], node, _arguments(node))
    if isinstance(node, sg.Anonymous) and node.name.lower() in names:
        return _call(names[node.name.lower()], node, node.expressions)
    if _any(node):
        return bool_or(expr_of(node.this.unnest()))
    if isinstance(node, (sg.AggFunc, sg.Window, sg.WithinGroup)):
        raise _refused(node, "this aggregate is not supported")
    return None


def aggregates(node: sg.Expression) -> bool:
    """Return whether an aggregate is part of an expression, outside of OVER."""
    nodes = node.find_all(sg.AggFunc, *_WRAPPERS, sg.Anonymous, sg.Any)
    return any(is_aggregate(n) and not isinstance(n.parent, (sg.Window, *_WRAPPERS)) for n in nodes)


def is_aggregate(node: object) -> bool:
    """Return whether a node is an aggregate, one the library has or not."""
    named = isinstance(node, sg.Anonymous) and node.name.lower() in _known()[1]
    return named or type(node) in _known()[0] or isinstance(node, (sg.AggFunc, *_WRAPPERS)) or _any(node)


def _any(node: object) -> bool:
    """Return whether a node is ``ANY(condition)``, and not what a side of ``LIKE ANY (...)`` is compared with."""
    if not isinstance(node, sg.Any) or not isinstance(node.this, sg.Paren):
        return False
    compares = isinstance(node.parent, sg.Binary) and not isinstance(node.parent, sg.Connector)
    return not (compares and node.arg_key == "expression")


def _call(
    definition: AggregateDefinition, node: sg.Expression, arguments: list[sg.Expression], takes: int | None = None
) -> AggCall:
    """Return the aggregate of a name that takes nothing but values, by default as many as its function needs."""
    wanted = definition.arity if takes is None else takes
    if 0 < len(arguments) < wanted:
        raise _refused(node, "an argument of this aggregate is left out")
    if len(arguments) != wanted:
        raise _refused(node, f"this aggregate takes {'one argument' if wanted == 1 else f'{wanted} arguments'}")
    return definition.function(*map(expr_of, arguments))


def _arguments(node: sg.Expression) -> list[sg.Expression]:
    """Return the values a node is called with."""
    arguments: list[sg.Expression] = []
    for key, value in node.args.items():
        if isinstance(value, sg.Distinct):
            raise _refused(node, "DISTINCT is for COUNT only", "write COUNT(DISTINCT x), or COLLECT_SET(x)")
        if value and key not in _FLAGS:
            arguments += value if isinstance(value, list) else [value]
    return arguments


def _value(node: sg.Expression, part: object) -> Expr:
    """Return an argument that the parser lets be left out."""
    if not isinstance(part, sg.Expression):
        raise _refused(node, "an argument of this aggregate is left out")
    return expr_of(part)


def _of_nulls(node: sg.IgnoreNulls | sg.RespectNulls) -> AggCall:
    """``FIRST(x) IGNORE NULLS``, ``FIRST(x, true)``: aggregates skip nulls in any case."""
    call = aggregate(node.this)
    if call is None:
        raise _refused(node, "IGNORE NULLS belongs to an aggregate")
    if isinstance(node, sg.RespectNulls):
        hint = "write MIN_BY(x, ts) for the first value and MAX_BY(x, ts) for the last one, null or not"
        raise _refused(node, "aggregates skip nulls", hint)
    return call


def _within_group(node: sg.WithinGroup) -> AggCall:
    """``PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY x)``."""
    by, rank = node.expression.expressions, node.this.this
    if len(by) != 1 or not isinstance(rank, sg.Literal) or rank.is_string:
        raise _refused(node, "PERCENTILE_CONT takes one constant rank, and one value", "write PERCENTILE(x, 0.95)")
    part = _number(rank)
    return percentile(_value(node, by[0].this), 1 - part if by[0].args.get("desc") else part)


def _count(node: sg.Count) -> AggCall:
    """``COUNT(*)``, ``COUNT(1)``, ``COUNT(x)``, ``COUNT(DISTINCT x)``, ``COUNT(DISTINCT x, y)``."""
    if isinstance(node.this, sg.Distinct):
        if not node.this.expressions or node.expressions:
            raise _refused(node, "COUNT(DISTINCT ...) takes values", "write COUNT(DISTINCT x), or COUNT(DISTINCT x, y)")
        return count_distinct(*map(expr_of, node.this.expressions))
    if isinstance(node.this, sg.Literal) and not node.expressions:
        return count()
    return _call(DEFINITIONS["count"], node, _arguments(node), 1)


def _rank(node: sg.Quantile) -> float:
    quantile = node.args.get("quantile")
    if not isinstance(quantile, sg.Literal) or quantile.is_string:
        raise _refused(node, "PERCENTILE takes one constant rank", "write PERCENTILE(x, 0.95)")
    return _number(quantile)


def _number(node: sg.Literal) -> float:
    number = expr_of(node)
    assert isinstance(number, Lit) and isinstance(number.value, (int, float))
    return float(number.value)


def _approximate(node: sg.ApproxQuantile) -> AggCall:
    """``APPROX_PERCENTILE(x, 0.95)``, ``APPROX_PERCENTILE(x, ARRAY(0.5, 0.95))``."""
    more_args = [key for key, value in node.args.items() if value and key not in ("this", "quantile")]
    if more_args:
        hint = "leave it out: the relative error is 0.01; or use approx_percentile(col, p, relative_error) of the builder"
        raise _refused(node, "the accuracy of APPROX_PERCENTILE is that of values here, not of ranks", hint)
    quantile = node.args.get("quantile")
    quantiles = quantile.expressions if isinstance(quantile, sg.Array) else [quantile]
    ranks = [_number(rank) for rank in quantiles if isinstance(rank, sg.Literal) and not rank.is_string]
    if len(ranks) < len(quantiles):
        raise _refused(node, "APPROX_PERCENTILE takes constant ranks", "write APPROX_PERCENTILE(x, 0.95)")
    return approx_percentile(_value(node, node.this), ranks if isinstance(quantile, sg.Array) else ranks[0])
