"""A SELECT as steps of the builder: filter, computed keys, watermark, keys, window, aggregates, output columns."""

from __future__ import annotations

import attrs
import pyarrow as pa
from sqlglot import expressions as sg

from krishiv_py.api.stages.aggregated import AggregatedStream
from krishiv_py.errors import PlanError, message, unknown_column
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.expressions.expr import Col, Expr
from krishiv_py.plan.expressions.facts import name_of
from krishiv_py.plan.expressions.parse import expr_of
from krishiv_py.plan.schema import unknown_field
from krishiv_py.sql.aggregates import aggregate
from krishiv_py.sql.catalog import Registered
from krishiv_py.sql.statements import table_of
from krishiv_py.sql.windows import WINDOW_CALLS, WindowCall, window_call

_PARTS = ("catalog", "db", "table", "this")
_OWN = ("window_start", "window_end", "op", "pane_timing", "pane_index")


@attrs.frozen(eq=False)
class Key:
    """What rows are grouped by besides the window, the column that holds it, and what the result calls it."""

    expr: Expr
    column: str
    label: str

    @property
    def computed(self) -> bool:
        """Whether the column has to be made."""
        return not isinstance(self.expr, Col)


@attrs.frozen(eq=False)
class Item:
    """One item of the SELECT list."""

    node: sg.Expression
    alias: str | None


def plan(tree: sg.Select, table: Registered, lag_us: int | None) -> AggregatedStream:
    """The plan of a checked SELECT over a table; `lag_us` is what SET said."""
    tree = tree.copy()
    items = [Item(e.unalias().unnest(), e.alias or None) for e in tree.expressions]
    groups = [_group(g.unnest(), items, table.stream.schema.names) for g in tree.args["group"].expressions]
    where = tree.args.get("where")
    alias = table_of(tree).alias or None
    for node in [i.node for i in items] + groups + ([where.this] if where is not None else []):
        _resolve(node, table, alias)
    window, keys = _window(groups, items, table), _keys(groups, items, table)
    output, aggs = _outputs(items, window, keys, table)
    stream = table.stream
    if where is not None:
        stream = stream.filter(expr_of(where.this))
    for key in keys:
        if key.computed:
            stream = stream.with_column(key.column, key.expr)
    timed = table.timed(stream, lag_us)
    found = window.over(timed.key_by(*(k.column for k in keys))).agg(aggs)
    default = tuple((n, n) for n in found.schema.names[: len(keys) + 2 + len(aggs)])
    return found if output == default else attrs.evolve(found, draft=attrs.evolve(found.draft, output=output))


def _group(node: sg.Expression, items: list[Item], columns: list[str]) -> sg.Expression:
    """A copy of what GROUP BY means: itself, the n-th item of the SELECT list, or the item of that alias."""
    if isinstance(node, sg.Literal) and not node.is_string:
        if not node.is_int or not 1 <= int(node.name) <= len(items):
            raise PlanError(
                message(
                    "GROUP BY has no such position",
                    node.name,
                    "the group is not known",
                    f"use 1 to {len(items)}, or name the column",
                )
            )
        return items[int(node.name) - 1].node.copy()
    if isinstance(node, sg.Column) and not node.table and node.name.lower() not in {c.lower() for c in columns}:
        for item in items:
            if item.alias is not None and item.alias.lower() == node.name.lower():
                return item.node.copy()
    return node


def _resolve(node: sg.Expression, table: Registered, alias: str | None) -> None:
    """Give columns the spelling they have in the stream, and take the table's name off them."""
    own = alias or table.name
    for column in node.find_all(sg.Column):
        if isinstance(column.this, sg.Star):
            raise _no_star(column)
        parts = [column.args[p].name for p in _PARTS if column.args.get(p) is not None]
        spelled = [sg.to_identifier(name) for name in _spelled(parts, own, table.stream.schema, column)]
        for part, identifier in zip(reversed(_PARTS), [*reversed(spelled), None, None, None], strict=False):
            column.set(part, identifier)


def _spelled(parts: list[str], own: str, schema: pa.Schema, column: sg.Column) -> list[str]:
    """A column, or a column and fields below it, as the stream spells them; the table's name in front is taken off."""
    known = {n.lower(): n for n in schema.names}
    if len(parts) > 1 and parts[0].lower() == own.lower() and (parts[1].lower() in known or parts[0].lower() not in known):
        parts = parts[1:]
    elif len(parts) > 1 and parts[0].lower() not in known:
        raise PlanError(
            message(
                "this column belongs to no table of the query",
                column.sql("spark"),
                "its values are not known",
                f"the table is {own!r}; a field of a struct is named by its column: column.field",
            )
        )
    if parts[0].lower() not in known:
        raise unknown_column(parts[0], schema.names, "sql")
    spelled = [known[parts[0].lower()]]
    type_ = schema.field(spelled[0]).type
    for name in parts[1:]:
        fields = {f.name.lower(): f for f in type_} if pa.types.is_struct(type_) else {}
        if name.lower() not in fields:
            raise unknown_field(name, type_, f"sql: {'.'.join(spelled)}")
        spelled.append(fields[name.lower()].name)
        type_ = fields[name.lower()].type
    return spelled


def _window(groups: list[sg.Expression], items: list[Item], table: Registered) -> WindowCall:
    """The one window of the query."""
    grouped = {call[0] for g in groups if (call := window_call(g, table.event_time))}
    if not grouped:
        shown = ", ".join(g.sql("spark") for g in groups)
        raise PlanError(
            message(
                "GROUP BY names no window",
                shown,
                "a group of an endless stream would never be complete",
                f"group by one of {', '.join(WINDOW_CALLS)}",
            )
        )
    found = grouped | {call[0] for i in items if (call := window_call(i.node, table.event_time))}
    if len(found) > 1:
        shown = " and ".join(sorted(map(str, found)))
        raise PlanError(
            message(
                "the query has more than one window",
                shown,
                "a row of the result has one window",
                "make all window functions of SELECT and GROUP BY agree",
            )
        )
    return found.pop()


def _keys(groups: list[sg.Expression], items: list[Item], table: Registered) -> list[Key]:
    """Keys in the order of GROUP BY."""
    taken = {n.lower() for n in [*table.stream.schema.names, *_OWN]}
    keys: list[Key] = []
    for node in groups:
        if window_call(node, table.event_time):
            continue
        if aggregate(node) is not None:
            raise PlanError(
                message("GROUP BY an aggregate", node.sql("spark"), "it is known only after grouping", "group by columns")
            )
        expr = expr_of(node)
        if any(expr.same_as(k.expr) for k in keys):
            continue
        name = next((i.alias for i in items if i.alias and i.node == node), None)
        if isinstance(expr, Col):
            name = expr.name
        else:
            name = name_of(expr) if name is None or name.lower() in taken else name
            while name.lower() in taken:  # the column of that name is still needed as it is
                name += "_"
        taken.add(name.lower())
        keys.append(Key(expr, name, name_of(expr)))
    return keys


def _outputs(
    items: list[Item], window: WindowCall, keys: list[Key], table: Registered
) -> tuple[tuple[tuple[str, str], ...], list[AggCall]]:
    """Output columns as (name, column of the default layout), and the aggregates among them."""
    output: list[tuple[str, str]] = []
    aggs: list[AggCall] = []
    for item in items:
        call = window_call(item.node, table.event_time)
        if call is not None:
            output.append((item.alias or f"window_{call[1]}", f"window_{call[1]}"))
            continue
        found = aggregate(item.node)
        if found is not None:
            aggs.append(found if item.alias is None else found.alias(item.alias))
            output.append((aggs[-1].output_name, aggs[-1].output_name))
        else:
            key = _key_of(item.node, keys)
            output.append((item.alias or key.label, key.column))
    if not aggs:
        shown = ", ".join(i.node.sql("spark") for i in items)
        raise PlanError(message("SELECT has no aggregate", shown, "a window would have no result", "add COUNT(*) AS n"))
    names = [name.lower() for name, _ in output]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(
                message("two columns of the result have one name", name, "one would hide the other", "name one with AS")
            )
    return tuple(output), aggs


def _no_star(node: sg.Expression) -> PlanError:
    return PlanError(
        message(
            "SELECT * has no meaning over windows",
            node.sql("spark"),
            "a window holds many rows",
            "name keys, window functions and aggregates",
        )
    )


def _key_of(node: sg.Expression, keys: list[Key]) -> Key:
    if isinstance(node, sg.Star):
        raise _no_star(node)
    expr = expr_of(node)
    for key in keys:
        if expr.same_as(key.expr):
            return key
    what = f"column {expr.name!r}" if isinstance(expr, Col) else "an expression"
    raise PlanError(
        message(
            f"{what} is neither grouped nor aggregated",
            node.sql("spark"),
            "a window holds many values of it",
            f"add it to GROUP BY, or take one of its values: FIRST({node.sql('spark')})",
        )
    )
