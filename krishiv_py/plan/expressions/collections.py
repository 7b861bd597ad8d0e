"""Functions of lists, maps and calendars in SQL text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from sqlglot import expressions as sg

from krishiv_py.plan.expressions.constants import SPREADING, spreading
from krishiv_py.plan.expressions.expr import Expr, Func, Lit
from krishiv_py.plan.expressions.lambdas import Lambda, LambdaVar
from krishiv_py.plan.expressions.spans import span_of

Read: TypeAlias = Callable[[sg.Expression], Expr]

_PARTS: Final[dict[str, tuple[str, tuple[str, ...], int]]] = {
    "ArrayCompact": ("array_compact", ("this",), 1),
    "ArrayDistinct": ("array_distinct", ("this",), 1),
    "ArrayExcept": ("array_except", ("this", "expression"), 2),
    "ArrayFilter": ("filter", ("this", "expression"), 2),
    "ArrayJoin": ("array_join", ("this", "expression", "null"), 2),
    "ArrayMax": ("array_max", ("this",), 1),
    "ArrayMin": ("array_min", ("this",), 1),
    "ArrayOverlaps": ("arrays_overlap", ("this", "expression"), 2),
    "ArrayPosition": ("array_position", ("this", "expression"), 2),
    "ArrayRemove": ("array_remove", ("this", "expression"), 2),
    "ArraySlice": ("slice", ("this", "start", "end"), 3),
    "ArrayToString": ("array_join", ("this", "expression", "null"), 2),
    "BitwiseLeftShift": ("shiftleft", ("this", "expression"), 2),
    "BitwiseRightShift": ("shiftright", ("this", "expression"), 2),
    "DateFromParts": ("make_date", ("year", "month", "day"), 3),
    "Exists": ("exists", ("this", "expression"), 2),
    "Flatten": ("flatten", ("this",), 1),
    "Map": ("map_from_arrays", ("keys", "values"), 2),
    "MapContainsKey": ("map_contains_key", ("this", "key"), 2),
    "MapKeys": ("map_keys", ("this",), 1),
    "MonthsBetween": ("months_between", ("this", "expression", "roundoff"), 2),
    "Reduce": ("aggregate", ("this", "initial", "merge", "finish"), 3),
    "TimestampFromParts": ("make_timestamp", ("year", "month", "day", "hour", "min", "sec"), 6),
    "Transform": ("transform", ("this", "expression"), 2),
}
"""By the name of sqlglot's class: the function, the parts of the node that are its arguments, how many of them it needs."""
_SAID: Final = frozenset({"null_propagation", "is_length"})
"""Parts of nodes that say what Spark does in any case."""
_SPREADING: Final = frozenset({"Explode", "ExplodeOuter", "Posexplode", "PosexplodeOuter", "Inline", "Unnest"})
NAMED: Final = frozenset(
    {name for name, _, _ in _PARTS.values()} - {"slice"}
    | {"array_union", "array_intersect", "map_values", "map", "map_filter", "transform_values", "zip_with", "forall", "slice"}
    | {"array_repeat", "sort_array", "array_sort", "shiftrightunsigned"}
)
"""Functions that sqlglot may have no class for."""


def of_collections(kind: str, node: sg.Expression, read: Read) -> Expr | None:
    """The expression of a node, by the name of its class; None for one that is not known here."""
    if kind == "Lambda":
        return Lambda(tuple(e.name for e in node.expressions), read(node.this))
    if kind == "Identifier":  # what a function of elements calls its parameters
        return LambdaVar(node.name)
    told = {key: value for key, value in node.args.items() if value not in (None, [], False) and key not in _SAID}
    if kind in _PARTS:
        name, parts, least = _PARTS[kind]
        if set(told) - set(parts) or not set(parts[:least]) <= set(told):
            return None
        return Func(name, tuple(read(told[part]) for part in parts if part in told))
    if kind.strip("_") in _SPREADING:
        raise spreading(node.sql("spark"))
    if kind == "Tuple":
        named = [(e.name if isinstance(e, sg.Column) else f"col{at}", e) for at, e in enumerate(node.expressions, 1)]
        return Func("named_struct", tuple(x for name, e in named for x in (Lit(name), read(e))))
    if kind in ("ArrayAppend", "ArrayPrepend") and set(told) == {"this", "expression"}:
        one = (read(node.this), Func("array", (read(node.expression),)))
        return Func("concat", one if kind == "ArrayAppend" else one[::-1])
    if kind == "GenerateSeries":
        return _sequence(node, read)
    if kind == "ArrayIntersect":
        return Func("array_intersect", tuple(map(read, node.expressions)))
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


def named_collection(name: str, args: list[Expr]) -> Expr | None:
    """The expression of a function that sqlglot has no class for; None for another one."""
    if name in SPREADING:
        raise spreading(name)
    if name == "reduce":
        name = "aggregate"
    return Func(name, tuple(args)) if name in NAMED else None
