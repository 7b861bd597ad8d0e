"""Functions of lists, maps and calendars in SQL text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from sqlglot import expressions as sg

from krishiv_py.plan.expressions.constants import spreading
from krishiv_py.plan.expressions.expr import Expr, Func, Lit
from krishiv_py.plan.expressions.lambdas import Lambda, LambdaVar
from krishiv_py.plan.expressions.spans import span_of

Read: TypeAlias = Callable[[sg.Expression], Expr]

_SPREADING: Final = frozenset({"Explode", "ExplodeOuter", "Posexplode", "PosexplodeOuter", "Inline", "Unnest"})


def of_collections(kind: str, node: sg.Expression, read: Read) -> Expr | None:
    """Return the expression of a node, by the name of its class; None for one that is not known here."""
    if kind == "Lambda":
        return Lambda(tuple(e.name for e in node.expressions), read(node.this))
    if kind == "Identifier":  # what a function of elements calls its parameters
        return LambdaVar(node.name)
    if kind.strip("_") in _SPREADING:
        raise spreading(node.sql("spark"))
    if kind == "Tuple":
        named = [(e.name if isinstance(e, sg.Column) else f"col{i}", e) for i, e in enumerate(node.expressions, 1)]
        return Func("named_struct", tuple(x for name, e in named for x in (Lit(name), read(e))))
    if kind in ("ArrayAppend", "ArrayPrepend") and node.args.get("expression") is not None:
        one = (read(node.this), Func("array", (read(node.expression),)))
        return Func("concat", one if kind == "ArrayAppend" else one[::-1])
    if kind == "GenerateSeries":
        return _sequence(node, read)
    if kind in ("ArraySort", "SortArray"):
        return _sorted(kind, node, read)
    if kind == "VarMap" and type(node.args["keys"]).__name__ == type(node.args["values"]).__name__ == "Array":
        pairs = zip(node.args["keys"].expressions, node.args["values"].expressions, strict=True)
        return Func("map", tuple(read(e) for pair in pairs for e in pair))
    if kind in ("TimestampAdd", "DateAdd") and node.args.get("unit") is not None:
        return Func("timestampadd", (Lit(node.args["unit"].name.lower()), read(node.expression), read(_plain(node.this))))
    return None


def _sequence(node: sg.Expression, read: Read) -> Expr:
    """``sequence(start, stop, step)``, by months of its own."""
    step = node.args.get("step")
    ends = (read(node.args["start"]), read(node.args["end"]))
    if step is None:
        return Func("sequence", ends)
    span = span_of(step)
    return (
        Func("sequence", (*ends, read(step)))
        if span is None or not span.months
        else Func("sequence_months", (*ends, Lit(span.months)))
    )


def _sorted(kind: str, node: sg.Expression, read: Read) -> Expr:
    """``sort_array``, which has nulls first, and ``array_sort``, which has them last."""
    if node.args.get("expression") is not None:
        return Func("array_sort", (read(node.this), read(node.expression)))
    ascending, nulls_first = node.args.get("asc"), node.args.get("nulls_first")
    first = isinstance(nulls_first, sg.Boolean) and bool(nulls_first.this)
    if kind == "ArraySort" and ascending is None and not first:  # the parser up to 30.23 says nothing of nulls
        return Func("array_sort", (read(node.this),))
    return Func("sort_array", (read(node.this), *(() if ascending is None else (read(ascending),))))


def _plain(node: sg.Expression) -> sg.Expression:
    """Without the conversion sqlglot puts around a date."""
    return node.this if isinstance(node, sg.TsOrDsToDate) and not node.args.get("safe") else node
