"""GROUP BY: keys, window and aggregates of the builder, and steps over results for what is computed from them."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import attrs
import sqlglot
from sqlglot import expressions as sg

from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream, results_of
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import KeyedUntimedStream
from krishiv_py.errors import ExpressionError, PlanError, unknown_column
from krishiv_py.plan.aggregates.calls import DEFINITIONS, AggCall, AggregateDefinition
from krishiv_py.plan.aggregates.numbers import count
from krishiv_py.plan.aggregates.outputs import AggregateColumns
from krishiv_py.plan.aggregates.selections import bool_or, count_distinct
from krishiv_py.plan.aggregates.sketches import approx_percentile, percentile
from krishiv_py.plan.expressions.expr import Alias, Col, Expr, Lit, col, columns_of, name_of
from krishiv_py.plan.expressions.parse import expr_of
from krishiv_py.plan.expressions.sqltext import quiet_parser, spelled
from krishiv_py.plan.names import free
from krishiv_py.sql.scope import PANES, Column, Env, Relation, Role, computed_bound, dotted, mark, role_of_mark
from krishiv_py.sql.windows import (
    SPARKS,
    WINDOW_CALLS,
    WINDOW_TIME,
    WindowCall,
    bound_of_row,
    is_struct_call,
    tick_us,
    window_call,
)

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
        raise _refused(node, "this aggregate is not supported", _INSTEAD.get(type(node).__name__))
    return None


_INSTEAD: Final = {
    "GroupConcat": "write array_join(COLLECT_LIST(CAST(x AS string)), ','), in the order of the event time",
    "PercentileDisc": "write PERCENTILE(x, 0.5), which goes between two values",
    **dict.fromkeys(("Lag", "Lead"), "write LAG(x) OVER (PARTITION BY user ORDER BY ts), with the event time as ts"),
    **dict.fromkeys(
        ("Rank", "DenseRank", "Ntile", "PercentRank", "CumeDist"),
        "write ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY n DESC) AS rn, and rn <= 3 in QUALIFY",
    ),
}
"""The text that is written in the place of an aggregate, by the name of its node."""


def check_not_nested(node: sg.Expression) -> None:
    """Refuse an aggregate with another one in it.

    Raises
    ------
    ExpressionError
        With the query in brackets that it takes.
    """
    inner = node
    while isinstance(inner, _WRAPPERS):
        inner = inner.this
    condition = node.expression if isinstance(node, sg.Filter) else None
    for part in (*inner.walk(), *(() if condition is None else condition.walk())):
        if part is not inner and is_aggregate(part):
            hint = (
                "an aggregate of an aggregate is another stage: SELECT MAX(n) FROM (SELECT SUM(x) AS n, window_start, "
                "window_end FROM ... GROUP BY k, window_start, window_end) GROUP BY window_start, window_end"
            )
            raise ExpressionError("an aggregate in an aggregate", got=spelled(node), hint=hint)


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


_STRUCT: Final = ("start", "end")


@attrs.frozen(eq=False)
class Item:
    """One item of the SELECT list; `text` is what it is called without an alias."""

    node: sg.Expression
    alias: str | None
    text: str


@attrs.frozen(eq=False)
class Grouping:
    """A query that groups.

    Attributes
    ----------
    rows : Rows
        What it reads.
    items : tuple of Item
        The SELECT list.
    groups : tuple of Expression
        What rows are grouped by besides the window.
    having : Expression or None
        What results have to fulfil.
    window : WindowCall or None
        The window; None for groups of all rows so far.
    again : bool
        Whether it is the window rows came out of (Flink's cascading windows).
    """

    rows: Relation
    items: tuple[Item, ...]
    groups: tuple[sg.Expression, ...]
    having: sg.Expression | None
    window: WindowCall | None
    again: bool

    @property
    def start(self) -> str | None:
        """The column with the start of the windows rows came out of."""
        return next((c.actual for c in self.rows.columns if c.role == "start"), None)

    def role_of(self, node: sg.Expression) -> Role | None:
        """Return the bound of the window that a node is."""
        role = _bound(node, self.rows)
        return role if role is not None else _kept(node, self.rows) if self.again else None


def read(tree: sg.Select, rows: Relation) -> Grouping:
    """Return the grouping of a SELECT; with DISTINCT, its items are the groups."""
    items = [Item(e.unalias().unnest(), e.alias or None, _text(e)) for e in tree.expressions]
    for item in items:
        _refuse_stars(item.node)
    group = tree.args.get("group")
    if group is None:
        groups = [i.node for i in items] if tree.args.get("distinct") is not None else []
    else:
        groups = [_group(g, items, rows) for g in _flat(group.expressions)]
    having = tree.args.get("having")
    condition = None if having is None else _with_aliases(having.this, items, groups, rows)
    structs = {i.alias.lower() for i in items if i.alias is not None and is_struct_call(i.node)}
    structs |= {n.name.lower() for n in [*groups, *(i.node for i in items)] if is_struct_call(n)}

    def over_columns(node: sg.Expression, *, opened: bool = True) -> sg.Expression:
        return rows.resolved(_structs(node, structs, rows, opened=opened), bounds=True)

    items_read = [attrs.evolve(i, node=over_columns(i.node)) for i in items]
    nodes = [over_columns(g, opened=False) for g in groups]
    resolved = None if condition is None else over_columns(condition)
    window, again = _window(nodes, [*(i.node for i in items_read), *([] if resolved is None else [resolved])], rows)
    keys = [n for n in nodes if not _of_window(n, rows, again)]
    if rows.pending and rows.window is not None and rows.window.kind == "session":
        _check_partition(keys, rows)
    if window is not None:
        items_read = [attrs.evolve(i, node=_of_rows(i.node, window, rows)) for i in items_read]
        resolved = None if resolved is None else _of_rows(resolved, window, rows)
    return Grouping(rows, tuple(items_read), tuple(keys), resolved, window, again)


def _of_rows(node: sg.Expression, window: WindowCall, rows: Relation) -> sg.Expression:
    """Return a node whose aggregates have the bounds of each row's window computed from the row."""

    def bound(part: sg.Expression) -> sg.Expression:
        role = _bound(part, rows)
        if role is None or role == "rank":
            return part
        return bound_of_row(window, role, dotted([str(rows.event_time)]), rows.schema)

    def step(part: sg.Expression) -> sg.Expression:
        return part.copy().transform(bound) if is_aggregate(part) else part

    return node.transform(step)


def _flat(groups: list[Any]) -> list[sg.Expression]:
    """Groups without brackets: ``GROUP BY (a, b), ()`` is ``GROUP BY a, b``."""
    flat: list[sg.Expression] = []
    for group in groups:
        node = group.unnest()
        flat += _flat(node.expressions) if isinstance(node, sg.Tuple) else [node]
    return flat


def _text(item: sg.Expression) -> str:
    """Return what an item without an alias is called: Spark's ``window`` by its name alone."""
    node = item
    while isinstance(node, (sg.Alias, sg.Paren)):
        node = node.this
    named = is_struct_call(node) or (isinstance(node, sg.Column) and not node.table)
    return node.name if named else item.sql("spark")


def neither(node: sg.Expression) -> PlanError:
    """Return the error for what a window holds many values of."""
    plain = isinstance(node, sg.Column) and not node.table
    text = node.name if plain else node.sql("spark")
    what = f"column {text!r} is neither grouped nor aggregated" if plain else "an expression is neither grouped nor aggregated"
    hint = f"add it to GROUP BY, or take one of its values: FIRST({text})"
    return PlanError(what, got=text, then="a window holds many values of it", hint=hint)


def _refuse_stars(node: sg.Expression) -> None:
    for star in node.find_all(sg.Star):
        if not isinstance(star.parent, sg.Count):
            then = "a window holds many rows"
            hint = "name keys, window functions and aggregates"
            raise PlanError("SELECT * cannot be used over windows", got=node.sql("spark"), then=then, hint=hint)


def _group(node: sg.Expression, items: list[Item], rows: Relation) -> sg.Expression:
    """Return a copy of what GROUP BY means: itself, the n-th item of the SELECT list, or the item of that alias."""
    if isinstance(node, sg.Literal) and not node.is_string:
        if not node.is_int or not 1 <= int(node.name) <= len(items):
            raise PlanError("GROUP BY has no such position", got=node.name, hint=f"use 1 to {len(items)}, or name the column")
        return items[int(node.name) - 1].node.copy()
    if isinstance(node, sg.Column) and not node.table and node.name.lower() not in {c.name.lower() for c in rows.columns}:
        for item in items:
            if item.alias is not None and item.alias.lower() == node.name.lower():
                return item.node.copy()
    return node


def _with_aliases(node: sg.Expression, items: list[Item], groups: list[sg.Expression], rows: Relation) -> sg.Expression:
    """HAVING with what aliases of the SELECT list stand for; inside of aggregates names are columns."""
    named = {i.alias.lower(): i.node for i in items if i.alias is not None}
    columns = {g.name.lower() for g in groups if isinstance(g, sg.Column)}
    known = {*SPARKS, *(c.name.lower() for c in rows.columns)}

    def step(part: sg.Expression) -> sg.Expression:
        if is_aggregate(part):
            return part.copy()  # a new node is not gone into
        if isinstance(part, sg.Column) and not part.table and part.name.lower() not in {*named, *known}:
            raise unknown_column(part.name, [*(i.alias for i in items if i.alias), *(c.name for c in rows.visible)], "sql")
        if not isinstance(part, sg.Column) or part.table or part.name.lower() not in named:
            return part
        meant = named[part.name.lower()]
        if part.name.lower() in columns and not (isinstance(meant, sg.Column) and meant.name.lower() == part.name.lower()):
            hint = "give the column of the result another name with AS"
            raise PlanError("HAVING names both a group and another column of the result", got=part.sql("spark"), hint=hint)
        return sg.Paren(this=meant.copy())

    return node.transform(step)


def _pair(bounds: list[sg.Expression]) -> sg.Expression:
    pairs = zip(_STRUCT, bounds, strict=True)
    return sg.Struct(expressions=[sg.PropertyEQ(this=sg.to_identifier(b), expression=node) for b, node in pairs])


def _structs(node: sg.Expression, names: set[str], rows: Relation, *, opened: bool) -> sg.Expression:
    """Spark's ``window``, ``window.start`` and ``window.end`` as marks; a call of it, `opened`, as the struct it gives."""
    taken = {c.name.lower() for c in rows.columns} | {c.table.lower() for c in rows.columns if c.table is not None}

    def step(part: sg.Expression) -> sg.Expression:
        if isinstance(part, sg.Dot) and is_struct_call(part.this):
            return part.copy()
        if isinstance(part, sg.Anonymous) and part.name.lower() == WINDOW_TIME and len(part.expressions) == 1:
            of = part.expressions[0]
            if is_struct_call(of):
                return part.copy()
            if isinstance(of, sg.Column) and not of.table and of.name.lower() in names - taken:
                return mark("time")
        if opened and is_struct_call(part):
            return _pair([sg.Dot(this=part.copy(), expression=sg.to_identifier(b)) for b in _STRUCT])
        if not isinstance(part, sg.Column):
            return part
        head = (part.table or part.name).lower()
        if head not in names or head in taken or part.args.get("db") is not None:
            return part
        if not part.table:
            return _pair([mark(b) for b in _STRUCT])
        if part.name.lower() not in _STRUCT:
            raise PlanError("a window has no such field", got=part.sql("spark"), hint=f"write {head}.start")
        return mark(part.name.lower())

    return node.transform(step)


def _bound(node: sg.Expression, rows: Relation) -> Role | None:
    role = role_of_mark(node)
    call = None if role is not None else window_call(node, rows.times)
    return role if call is None else call[1]


def _roles(node: sg.Expression) -> set[str]:
    """Return the bounds that are named by a mark, or by Spark's struct of two marks."""
    nodes = [e.expression for e in node.expressions] if isinstance(node, sg.Struct) else [node]
    return {role for n in nodes if (role := role_of_mark(n))}


def _kept(node: sg.Expression, rows: Relation) -> Role | None:
    """Return the role of a column of results."""
    return rows.role_of(node.name) if isinstance(node, sg.Column) and not node.table else None


def _of_window(node: sg.Expression, rows: Relation, again: bool) -> bool:
    if _roles(node) or window_call(node, rows.times) is not None:
        return True
    return again and _kept(node, rows) is not None


def _window(groups: list[sg.Expression], items: list[sg.Expression], rows: Relation) -> tuple[WindowCall | None, bool]:
    """Return the one window of the query, None for groups of all rows so far, and whether rows came out of it."""
    calls = {call[0] for g in groups if (call := window_call(g, rows.times))}
    marks = {role for g in groups for role in _roles(g)}
    kept = {role for g in groups if (role := _kept(g, rows))} & {"start", "end"} if rows.window is not None else set()
    labels = marks | kept if not calls else set()
    if labels and rows.window is not None:
        if not {"start", "end"} <= labels:
            shown = ", ".join(sorted(f"window_{role}" for role in labels))
            raise PlanError("GROUP BY names one bound of the windows only", got=shown, hint="group by window_start, window_end")
        calls = {rows.window}
    named = {call[0] for item in items for n in item.walk() if (call := window_call(n, rows.times))}
    if not calls and not named and not rows.pending:
        return None, False
    if not calls:
        shown = ", ".join(g.sql("spark") for g in groups)
        raise PlanError(
            "GROUP BY names no window, and the query does",
            got=shown or "no GROUP BY",
            hint=f"group by one of {', '.join(WINDOW_CALLS)}, {', '.join(SPARKS)}, "
            "or by window_start, window_end of TABLE(TUMBLE(...))",
        )
    windows = calls | ({rows.window} if rows.pending and rows.window is not None else set())
    windows |= named
    if len(windows) > 1:
        shown = " and ".join(sorted(map(str, windows)))
        hint = "make all window functions of SELECT and GROUP BY agree"
        raise PlanError("the query has more than one window", got=shown, hint=hint)
    return windows.pop(), bool(kept) and not marks and bool(labels)


def _check_partition(keys: list[sg.Expression], rows: Relation) -> None:
    """Sessions are those of the keys; a window function that divides rows otherwise would have others."""
    named = sorted(k.name if isinstance(k, sg.Column) else k.sql("spark") for k in keys)
    partition = sorted(rows.partition or ())
    if named != partition:
        hint = f"write PARTITION BY {', '.join(named)}" if named else "leave PARTITION BY out"
        raise PlanError(
            "sessions are divided otherwise than groups",
            got=f"PARTITION BY {', '.join(partition) or '(nothing)'}, GROUP BY {', '.join(named) or 'the window alone'}",
            then="a group would hold parts of sessions",
            hint=f"{hint} in TABLE(SESSION(...)), after the table",
        )


OWN: Final = ("window_start", "window_end", "window_time", "op", "pane_timing", "pane_index")


@attrs.frozen(eq=False)
class Key:
    """Holds what rows are grouped by besides the window, the column that holds it, and what the result calls it."""

    node: sg.Expression
    expr: Expr
    column: str
    label: str

    @property
    def computed(self) -> bool:
        """Return whether the column has to be made."""
        return not (isinstance(self.expr, Col) and self.expr.name == self.column)


@attrs.frozen(eq=False)
class ResultColumn:
    """A column of the result: its name, what it is computed of, and the column where it is there without computing."""

    name: str
    expr: Expr
    direct: str | None
    column: Column


@attrs.define(eq=False)
class _GroupedItems:
    """Holds what the items of a query have asked for so far."""

    rows: Relation
    grouping: Grouping
    keys: list[Key]
    bounds: dict[str, str]
    calls: AggregateColumns
    known: list[tuple[sg.Expression, str]] = attrs.field(factory=list)

    def aggregate(self, node: sg.Expression, call: AggCall, alias: str | None) -> str:
        """Return the column of an aggregate: of one that was there before, unless it has an alias of its own."""
        for known, name in self.known:
            if known == node and alias is None:
                return name
        self.known.append((node, self.calls.add(call, alias)))
        return self.known[-1][1]

    def over_results(self, node: sg.Expression) -> sg.Expression:
        """Return a node over the rows of a source as one over results."""
        has_call = False

        def step(part: sg.Expression) -> sg.Expression:
            nonlocal has_call
            direct = self.direct(part, None)
            if direct is not None:
                has_call = True
                return dotted([direct])
            if isinstance(part, sg.Column):
                raise neither(part)
            if (call := window_call(part, self.rows.times)) is not None:
                hint = f"select {call[0].kind}_start(...) or {call[0].kind}_end(...)"
                raise PlanError("a window is not a value", got=str(call[0]), hint=hint)
            return part

        made = node.transform(step)
        if not has_call and node.find(sg.Column, sg.Star) is not None:
            raise neither(node)
        return made

    def direct(self, node: sg.Expression, alias: str | None) -> str | None:
        """Return the column of results that a node is, if it is one as it is."""
        role = self.grouping.role_of(node)
        if role is not None:
            return self.bounds[role]
        if is_aggregate(node):
            check_not_nested(node)
        call = aggregate(node)
        if call is not None:
            return self.aggregate(node, call, alias)
        return next((k.column for k in self.keys if k.node == node), None)


def grouped(tree: sg.Select, rows: Relation, where: Expr | None, env: Env, *, top: bool) -> Relation | ResultStream:
    """Return the results of a query that groups; `top` if nothing reads them but the user."""
    grouping = read(tree, rows)
    stream = rows.stream if where is None else rows.stream.filter(where)
    keys = _keys(grouping, rows)
    window, bounds = grouping.window, {"start": "window_start", "end": "window_end", "time": "window_time"}
    if window is not None and grouping.again and window.kind != "tumble":
        started = free("window_started", [*rows.schema.names, *(k.column for k in keys)])
        assert grouping.start is not None
        keys.append(Key(dotted([grouping.start]), col(grouping.start), started, started))
        bounds["start"] = started
    for key in keys:
        if key.computed:
            stream = stream.with_column(key.column, key.expr)
    taken = {*OWN, *(k.column for k in keys), *(i.alias for i in grouping.items if i.alias is not None)}
    made = _GroupedItems(rows, grouping, keys, bounds, AggregateColumns({name.lower() for name in taken}))
    outputs = [_output(item, made) for item in grouping.items]
    _distinct([o.name for o in outputs])
    having = None if grouping.having is None else made.over_results(grouping.having)
    calls = made.calls.calls or [count().alias(free("rows", made.calls.taken))]
    by = [k.column for k in keys]
    if window is None:
        again_grouped = env.with_ttl(_all_so_far(rows, stream, env.lag_us, by).agg(calls))
    else:
        again = window.same_again(_tick_us(rows)) if grouping.again else window
        again_grouped = again.over(rows.timed(stream, env.lag_us).key_by(*by)).agg(calls)
    bounds_shown = 0 if window is None else 2
    own = tuple((n, n) for n in again_grouped.schema.names[: len(keys) + bounds_shown + len(calls)])
    plain = tuple((o.name, o.direct) for o in outputs)
    if top and having is None and not any("window_time" in columns_of(o.expr) for o in outputs):
        columns = tuple((o.name, o.expr) for o in outputs)
        if plain == own:
            return again_grouped
        grouped: Any = again_grouped._stage.operation
        return results_of(again_grouped._stage.doing(attrs.evolve(grouped, result_columns=columns)), again_grouped._runner)
    results = again_grouped.results()
    panes = tuple(Column(None, n, n, hidden=True) for n in PANES if n in results.schema.names)
    if having is not None:
        results = results.filter(expr_of(having))
    picked = [Alias(o.expr, o.name) if o.direct != o.name else o.expr for o in outputs]
    if plain != own:
        _distinct([*(o.name for o in outputs), *(c.name for c in panes)])
        results = results.select(*picked, *(c.name for c in panes))
    times = () if window is None else _hidden_time(results, outputs)
    return Relation(results, (*(o.column for o in outputs), *panes, *times), window=window)


def _all_so_far(
    rows: Relation, stream: Stream | ResultStream, lag_us: int | None, by: list[str]
) -> KeyedStream | Stream | KeyedUntimedStream:
    """Return rows that are aggregated without a window."""
    made = rows.of_all_time(stream, lag_us)
    return made.key_by(*by) if by else made


def _hidden_time(results: ResultStream, outputs: list[ResultColumn]) -> tuple[Column, ...]:
    if any(o.column.role == "time" for o in outputs):
        return ()
    return (Column(None, "window_time", "window_time", "time", hidden=True),)


def _tick_us(rows: Relation) -> int:
    start = next(c.actual for c in rows.columns if c.role == "start")
    return tick_us(rows.schema.field(start).type)


def _output(item: Item, made: _GroupedItems) -> ResultColumn:
    """Return an item of the SELECT list."""
    role = made.grouping.role_of(item.node)
    key = next((k for k in made.keys if k.node == item.node), None)
    if key is None and role is None and not aggregates(item.node) and item.node.find(sg.Window) is None:
        expr = _read(item.node, made.rows)
        key = None if expr is None else next((k for k in made.keys if expr.same_as(k.expr)), None)
    clashes = item.alias is not None and item.alias.lower() in {*OWN, *(k.column.lower() for k in made.keys)}
    direct = key.column if key is not None and role is None else made.direct(item.node, None if clashes else item.alias)
    if direct is None:
        name = item.alias or item.text
        return ResultColumn(name, expr_of(made.over_results(item.node)), None, Column(None, name, name))
    if role is not None:
        kept = made.rows.label(col(item.node.name)) if isinstance(item.node, sg.Column) else f"window_{role}"
        name = item.alias or kept
    elif key is not None:
        name = item.alias or key.label
    else:
        name = item.alias or direct
    counts = isinstance(item.node, (sg.Count, sg.CountIf, sg.ApproxDistinct))
    return ResultColumn(name, Col(direct), direct, Column(None, name, name, role, sure=role is not None or counts))


def _read(node: sg.Expression, rows: Relation) -> Expr | None:
    """Return the expression over rows; None where a window is named in it."""
    windows = (role_of_mark(n) or window_call(n, rows.times) for n in node.find_all(sg.Anonymous))
    return None if any(windows) else expr_of(node)


def _keys(grouping: Grouping, rows: Relation) -> list[Key]:
    """Keys in the order of GROUP BY."""
    taken = {n.lower() for n in [*rows.schema.names, *OWN]}
    keys: list[Key] = []
    for node in grouping.groups:
        if aggregates(node):
            raise PlanError("GROUP BY an aggregate", got=node.sql("spark"), hint="group by columns")
        for part in node.find_all(sg.Anonymous, sg.Dot):
            if (role := _bound(part, rows)) is not None:
                raise computed_bound("GROUP BY", role)
        expr = expr_of(node)
        if not columns_of(expr):
            hint = "leave it out of GROUP BY; a column in quotes is written in backquotes: `customerId`"
            raise PlanError("GROUP BY a constant", got=node.sql("spark"), hint=hint)
        if any(expr.same_as(k.expr) for k in keys):
            continue
        item = next((i for i in grouping.items if i.node == node), None)
        name = item.alias if item is not None else None
        if isinstance(expr, Col) and expr.name.lower() not in OWN:
            name = expr.name
        else:
            name = name_of(expr) if name is None or name.lower() in taken else name
            name = free(name, taken)
        taken.add(name.lower())
        keys.append(Key(node, expr, name, rows.label(expr)))
    return keys


def _distinct(names: list[str]) -> None:
    lowered = [n.lower() for n in names]
    if "op" in lowered:
        raise PlanError("a result column has a name of the library's own", got="op", hint="name it otherwise with AS")
    for name in lowered:
        if lowered.count(name) > 1:
            raise PlanError("two columns of the result have one name", got=name, hint="name one with AS")
