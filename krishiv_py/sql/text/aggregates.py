"""Aggregate functions of SQL as aggregate calls of the builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlglot import expressions as sg

from krishiv_py.errors import PlanError, message
from krishiv_py.plan.aggregates import binned, more
from krishiv_py.plan.aggregates import calls as agg
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.expressions.expr import Expr, Lit
from krishiv_py.plan.expressions.parse import expr_of
from krishiv_py.plan.expressions.sqltext import spelled

_TYPES: Final[dict[type[sg.Expression], Callable[[Expr], AggCall]]] = {
    sg.Sum: agg.sum,
    sg.Avg: agg.avg,
    sg.Min: agg.min,
    sg.Max: agg.max,
    sg.Stddev: agg.stddev,
    sg.StddevSamp: agg.stddev,
    sg.StddevPop: more.stddev_pop,
    sg.Variance: agg.variance,
    sg.VariancePop: more.var_pop,
    sg.First: agg.first,
    sg.FirstValue: agg.first,
    sg.Last: agg.last,
    sg.LastValue: agg.last,
    sg.ApproxDistinct: agg.approx_count_distinct,
    sg.ArrayAgg: agg.collect_list,
    sg.ArrayUniqueAgg: agg.collect_set,
    sg.Median: agg.percentile,
    sg.AnyValue: more.any_value,
    sg.CountIf: more.count_if,
    sg.LogicalAnd: more.bool_and,
    sg.LogicalOr: more.bool_or,
    sg.Mode: more.mode,
}
_RANKED: Final[dict[type[sg.Expression], Callable[[Expr, Expr], AggCall]]] = {sg.ArgMax: more.max_by, sg.ArgMin: more.min_by}
_NAMES: Final[dict[str, Callable[[Expr], AggCall]]] = {
    "count_distinct": agg.count_distinct,
    "every": more.bool_and,
    "mean": agg.avg,
    "some": more.bool_or,
    "std": agg.stddev,
    "stddev_pop": more.stddev_pop,
    "var_pop": more.var_pop,
}
_WRAPPERS: Final = (sg.Filter, sg.IgnoreNulls, sg.RespectNulls, sg.WithinGroup)
_FLAGS: Final = frozenset({"this", "big_int", "nulls_excluded"})
_HINT: Final = (
    "the aggregates are COUNT, SUM, AVG, MIN, MAX, STDDEV, VARIANCE, STDDEV_POP, VAR_POP, FIRST, LAST, "
    "COUNT(DISTINCT x), APPROX_COUNT_DISTINCT, COLLECT_LIST, COLLECT_SET, PERCENTILE(x, p), APPROX_PERCENTILE(x, p), MEDIAN, "
    "MODE, COUNT_IF, BOOL_AND, BOOL_OR, ANY_VALUE, MAX_BY(x, y), MIN_BY(x, y)"
)


def _refused(node: sg.Expression, what: str, hint: str = _HINT) -> PlanError:
    return PlanError(message(what, spelled(node), "the window would have no such result", hint))


def aggregate(node: sg.Expression) -> AggCall | None:
    """The call that this very node stands for, without alias; None if it is no aggregate.

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
        return agg.percentile(_value(node, node.this), _rank(node))
    if type(node) in _TYPES:
        return _TYPES[type(node)](_argument(node))
    if type(node) in _RANKED:
        if node.args.get("count"):
            raise _refused(node, "MAX_BY and MIN_BY give one value")
        return _RANKED[type(node)](_value(node, node.this), _value(node, node.expression))
    if isinstance(node, sg.Anonymous) and node.name.lower() in _NAMES:
        if len(node.expressions) != 1:
            raise _refused(node, f"{node.name} takes one argument")
        return _NAMES[node.name.lower()](expr_of(node.expressions[0]))
    if _any(node):
        return more.bool_or(expr_of(node.this.unnest()))
    if isinstance(node, (sg.AggFunc, sg.Window, sg.WithinGroup)):
        raise _refused(node, "this aggregate is not supported")
    return None


def aggregates(node: sg.Expression) -> bool:
    """Whether an aggregate stands in an expression, outside of OVER."""
    found = node.find_all(sg.AggFunc, *_WRAPPERS, sg.Anonymous, sg.Any)
    return any(is_aggregate(n) and not isinstance(n.parent, (sg.Window, *_WRAPPERS)) for n in found)


def is_aggregate(node: object) -> bool:
    """Whether a node is an aggregate, one the library has or not."""
    named = isinstance(node, sg.Anonymous) and node.name.lower() in _NAMES
    return named or isinstance(node, (sg.AggFunc, *_WRAPPERS)) or _any(node)


def _any(node: object) -> bool:
    """Whether a node is ``ANY(condition)``, and not what a side of ``LIKE ANY (...)`` is compared with."""
    if not isinstance(node, sg.Any) or not isinstance(node.this, sg.Paren):
        return False
    compares = isinstance(node.parent, sg.Binary) and not isinstance(node.parent, sg.Connector)
    return not (compares and node.arg_key == "expression")


def _argument(node: sg.Expression) -> Expr:
    """The one argument."""
    more = [key for key, value in node.args.items() if value and key not in _FLAGS]
    if more:
        raise _refused(node, "this aggregate takes one argument")
    if isinstance(node.this, sg.Distinct):
        raise _refused(node, "DISTINCT is for COUNT only", "write COUNT(DISTINCT x), or COLLECT_SET(x)")
    if not isinstance(node.this, sg.Expression):
        raise _refused(node, "this aggregate takes one argument")
    return expr_of(node.this)


def _value(node: sg.Expression, part: object) -> Expr:
    """An argument that the parser lets be left out."""
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
    return agg.percentile(_value(node, by[0].this), 1 - part if by[0].args.get("desc") else part)


def _count(node: sg.Count) -> AggCall:
    """``COUNT(*)``, ``COUNT(1)``, ``COUNT(x)``, ``COUNT(DISTINCT x)``, ``COUNT(DISTINCT x, y)``."""
    if isinstance(node.this, sg.Distinct):
        if not node.this.expressions or node.expressions:
            raise _refused(node, "COUNT(DISTINCT ...) takes values", "write COUNT(DISTINCT x), or COUNT(DISTINCT x, y)")
        return agg.count_distinct(*map(expr_of, node.this.expressions))
    if isinstance(node.this, sg.Literal) and not node.expressions:
        return agg.count()
    return agg.count(_argument(node))


def _rank(node: sg.Quantile) -> float:
    quantile = node.args.get("quantile")
    if not isinstance(quantile, sg.Literal) or quantile.is_string:
        raise _refused(node, "PERCENTILE takes one constant rank", "write PERCENTILE(x, 0.95)")
    return _number(quantile)


def _number(node: sg.Literal) -> float:
    found = expr_of(node)
    assert isinstance(found, Lit) and isinstance(found.value, (int, float))
    return float(found.value)


def _approximate(node: sg.ApproxQuantile) -> AggCall:
    """``APPROX_PERCENTILE(x, 0.95)``, ``APPROX_PERCENTILE(x, ARRAY(0.5, 0.95))``."""
    more_args = [key for key, value in node.args.items() if value and key not in ("this", "quantile")]
    if more_args:
        hint = "leave it out: the relative error is 0.01; or use approx_percentile(col, p, relative_error) of the builder"
        raise _refused(node, "the accuracy of APPROX_PERCENTILE is that of values here, not of ranks", hint)
    asked = node.args.get("quantile")
    found = asked.expressions if isinstance(asked, sg.Array) else [asked]
    ranks = [_number(rank) for rank in found if isinstance(rank, sg.Literal) and not rank.is_string]
    if len(ranks) < len(found):
        raise _refused(node, "APPROX_PERCENTILE takes constant ranks", "write APPROX_PERCENTILE(x, 0.95)")
    return binned.approx_percentile(_value(node, node.this), ranks if isinstance(asked, sg.Array) else ranks[0])
