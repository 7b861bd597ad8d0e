"""A query as steps of the builder: its FROM, then filter, then the rows as they are, their groups, or their ranks."""

from __future__ import annotations

import functools
from typing import Final

import attrs
import pyarrow as pa
from sqlglot import expressions as sg

from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.errors import ExpressionError, PlanError
from krishiv_py.plan.expressions.expr import Alias, Col, Expr, Field, col, name_of
from krishiv_py.plan.names import free
from krishiv_py.sql.grouped import aggregates, grouped
from krishiv_py.sql.over import (
    around_groups,
    bounded,
    deduplicated,
    has_lag,
    has_rank,
    lagging,
    looking_back,
    qualified,
    ranking_of,
    with_named_windows,
    without,
)
from krishiv_py.sql.relations import EXISTS, from_clause, united
from krishiv_py.sql.scope import Column, Env, Relation
from krishiv_py.sql.statements import Query, check_select, clause_of, no_group, refused

_DISTINCT: Final = "write SELECT DISTINCT ... FROM (SELECT ... GROUP BY ...)"


def plan(tree: Query, env: Env) -> Stream | ResultStream:
    """Return the plan of a statement."""
    planned = rows_of(tree, env, top=True)
    if isinstance(planned, ResultStream):
        return planned
    if planned.ranking is not None:
        raise planned.ranking.unbounded()
    if planned.pending:
        then = "a row has no bounds of its own"
        hint = "add GROUP BY window_start, window_end"
        raise PlanError("rows of a window function are not grouped", got=tree.sql("spark"), then=then, hint=hint)
    stream = planned.stream
    handler = None if planned.table is None else planned.table.late_handler
    if isinstance(stream, Stream) and handler is not None:
        stream = stream.with_late_event_handler(handler)  # of malformed input
    shown = (*planned.visible, *planned.panes)
    if stream.schema.names != [c.actual for c in shown] or any(c.actual != c.name for c in shown):
        named = [(c.actual, c.name) for c in shown if c.actual is not None]
        stream = stream.select(*(col(name) if actual == name else Alias(col(actual), name) for actual, name in named))
    return stream._as_plan() if isinstance(stream, ResultStream) else stream


def rows_of(tree: Query, env: Env, *, top: bool = False) -> Relation | ResultStream:
    """Return what a query gives: rows, or at the `top` a plan that nothing is added to."""
    if isinstance(tree, sg.Select):
        tree = with_named_windows(tree)
        if tree.args.get("qualify") is not None and tree.args.get("group") is not None:
            tree = around_groups(tree)
    env = _with(tree, env)
    if isinstance(tree, sg.SetOperation):
        return united(tree, env, inner)
    assert isinstance(tree, sg.Select)
    check_select(tree)
    rows, wanted = from_clause(tree, env, inner)
    rows.check_quotes(tree, [e.alias for e in tree.expressions if e.alias])
    if rows.ranking is not None:
        table = next((c.table for c in rows.columns), None)
        ranked, wanted = bounded(rows, wanted, env)
        rows = mapped(rows.ranking.tree, ranked, None)
        rows = rows if table is None else rows.named(table)
    condition = _all_of(wanted, rows)
    aggregated = any(aggregates(e) for e in tree.expressions)
    distinct, group = tree.args.get("distinct") is not None, tree.args.get("group") is not None
    if not group and (tree.args.get("qualify") is not None or any(e.find(sg.Window) for e in tree.expressions)):
        return _over(tree, rows, condition, env)
    if distinct and (group or aggregated):
        raise refused("SELECT DISTINCT over groups", tree.sql("spark"), _DISTINCT)
    for over in [w for e in tree.expressions for w in e.find_all(sg.Window)] if group else ():
        name = "ROW_NUMBER" if isinstance(over.this, sg.RowNumber) else "OVER"
        raise refused(f"{name} with GROUP BY", over.sql("spark"), "write OVER in a query around this one, or ranks in QUALIFY")
    if group or aggregated or (distinct and (env.within_us is None or _in_windows(tree, rows))):
        tree = _with_names(tree, rows) if distinct else tree
        return grouped(tree, rows, condition, env, top=top)
    if tree.args.get("having") is not None:
        raise no_group(tree)
    rows_mapped = mapped(tree, rows, condition)
    if not distinct:
        return rows_mapped
    return deduplicated(rows_mapped, [c.actual for c in rows_mapped.visible if c.actual is not None], env)


def inner(tree: Query, env: Env) -> Relation:
    """Return a query in brackets."""
    planned = rows_of(tree, env)
    assert isinstance(planned, Relation)
    return planned


def _with(tree: Query, env: Env) -> Env:
    """Return the environment with the queries of WITH."""
    clause = clause_of(tree, "with")
    if clause is None:
        return env
    if clause.args.get("recursive"):
        raise refused("WITH RECURSIVE", clause.sql("spark"), "write each step as a query of its own")
    names = [item.alias.lower() for item in clause.expressions]
    for item in clause.expressions:
        name = item.alias
        if names.count(name.lower()) > 1:
            raise refused("WITH of one name twice", item.sql("spark"), "name one otherwise")
        if item.alias_column_names:
            raise refused("renaming columns in WITH", item.sql("spark"), "name them with AS in the query")
        if not isinstance(item.this, (sg.Select, sg.SetOperation)):
            raise refused("WITH over something else than a query", item.sql("spark"))
        env = env.knowing(name, inner(item.this, env))
    return env


def _all_of(wanted: list[sg.Expression], rows: Relation) -> Expr | None:
    """Return what must hold, as one condition."""
    return _condition(functools.reduce(lambda a, b: sg.And(this=a, expression=b), wanted), rows) if wanted else None


def _condition(where: sg.Expression, rows: Relation) -> Expr:
    if where.find(sg.Query) is not None:
        raise refused("a query inside of a condition", where.sql("spark"), EXISTS)
    if aggregates(where):
        hint = "write it in HAVING, after GROUP BY: WHERE is about rows"
        raise ExpressionError("an aggregate in WHERE", got=where.sql("spark"), hint=hint)
    return rows.expr(where)


def _in_windows(tree: sg.Select, rows: Relation) -> bool:
    """Return whether the items name both bounds of the windows that rows are in."""
    if rows.window is None:
        return False
    roles = {rows.find(c)[0].role for e in tree.expressions if isinstance(c := e.unalias().unnest(), sg.Column)}
    return {"start", "end"} <= roles


def mapped(tree: sg.Select, rows: Relation, condition: Expr | None) -> Relation:
    """Rows as they are, with the columns of the SELECT list."""
    stream = rows.stream if condition is None else rows.stream.filter(condition)
    columns: list[Column] = []
    picked: list[Expr] = []
    for column, expr in _items(tree, rows):
        columns.append(column)
        if expr is not None:
            picked.append(expr)
    for pane in (c for c in rows.panes if c.actual not in {e.name for e in picked if isinstance(e, Col)}):
        columns.append(pane)
        picked.append(col(pane.name))
    _distinct(columns)
    given = {c.role for c in columns if c.actual is None}
    if rows.pending and "rank" not in given and not {"start", "end"} <= given:
        then = "a row would come once for each of its windows, and no window would be known"
        hint = "select window_start and window_end, too, or leave the window function out"
        raise PlanError("a window function without the bounds of its windows", got=tree.sql("spark"), then=then, hint=hint)
    time = rows.event_time
    result_time = isinstance(stream, ResultStream)
    if time is not None and not any(c.role == "time" and c.actual for c in columns):
        kept = time if result_time else free(time, [c.name for c in columns])
        columns.append(Column(None, kept, kept, "time", hidden=True))
        if not result_time:
            picked.append(col(time) if kept == time else Alias(col(time), kept))
    table = rows.table
    source = None if table is None else table.source_column
    if table is not None and source is not None and not any(isinstance(e, Col) and e.name == source for e in picked):
        own = free(source, [c.name for c in columns])  # each source has a watermark of its own
        columns.append(Column(None, own, own, hidden=True))
        picked.append(col(source) if own == source else Alias(col(source), own))
        table = attrs.evolve(table, source_column=own)
    if not picked or [name_of(e) for e in picked] != stream.schema.names or not all(isinstance(e, Col) for e in picked):
        stream = stream.select(*picked)
    return attrs.evolve(rows, stream=stream, columns=tuple(columns), table=table)


def _items(tree: sg.Select, rows: Relation) -> list[tuple[Column, Expr | None]]:
    columns: list[tuple[Column, Expr | None]] = []
    for item in tree.expressions:
        node = item.unalias().unnest()
        if isinstance(node, sg.Star) or (isinstance(node, sg.Column) and isinstance(node.this, sg.Star)):
            columns += _fields(node, rows) or [_taken(c, None) for c in _starred(node, rows)]
            continue
        if isinstance(node, sg.Column):
            column, fields = rows.find(node)
            if not fields:
                columns.append(_taken(column, item.alias or None))
                continue
        bound = rows.bound_of_both(node)
        if bound is not None:
            columns.append(_taken(bound, item.alias or bound.name))
            continue
        expr = rows.expr(node)
        name = item.alias or (name_of(expr) if isinstance(node, sg.Column) else node.sql("spark"))
        columns.append((Column(None, name, name), Alias(expr, name)))
    return columns


def _taken(column: Column, alias: str | None) -> tuple[Column, Expr | None]:
    """Return a column under its name, or under an alias."""
    name = alias or column.name
    if column.actual is None:
        return attrs.evolve(column, table=None, name=name, hidden=False), None
    expr = col(column.actual) if column.actual == name else Alias(col(column.actual), name)
    return attrs.evolve(column, table=None, name=name, actual=name, hidden=False), expr


def _fields(node: sg.Expression, rows: Relation) -> list[tuple[Column, Expr | None]]:
    """Return the fields of a struct, ``place.*``; none where that is a table, or no struct."""
    name, db = (node.table.lower(), node.args.get("db")) if isinstance(node, sg.Column) else ("", None)
    tables = {c.table.lower() for c in rows.visible if c.table is not None}
    named = [c for c in rows.visible if c.name.lower() == name and (db is None or (c.table or "").lower() == db.name.lower())]
    if (db is None and name in tables) or len(named) != 1 or named[0].actual is None:
        return []
    type_ = rows.schema.field(named[0].actual).type
    if not pa.types.is_struct(type_):
        return []
    return [(Column(None, f.name, f.name), Alias(Field(col(named[0].actual), f.name), f.name)) for f in type_]


def _starred(node: sg.Expression, rows: Relation) -> list[Column]:
    star = node if isinstance(node, sg.Star) else node.this
    if any(star.args.values()):
        raise refused("SELECT * with changes", node.sql("spark"), "name the columns")
    if isinstance(node, sg.Star):
        return list(rows.visible)
    assert isinstance(node, sg.Column)
    columns = [c for c in rows.visible if c.table is not None and c.table.lower() == node.table.lower()]
    if not columns:
        tables = sorted({c.table for c in rows.visible if c.table})
        raise PlanError("this is not a table of the query", got=node.sql("spark"), hint=f"the tables are: {', '.join(tables)}")
    return columns


def _with_names(tree: sg.Select, rows: Relation) -> sg.Select:
    """Return a query with the names of the columns in the place of ``*``."""
    items: list[sg.Expression] = []
    for item in tree.expressions:
        node = item.unalias().unnest()
        if isinstance(node, sg.Star) or (isinstance(node, sg.Column) and isinstance(node.this, sg.Star)):
            items += [sg.column(c.name, table=c.table, quoted=True) for c in _starred(node, rows)]
        else:
            items.append(item)
    changed = tree.copy()
    changed.set("expressions", items)
    return changed


def _distinct(columns: list[Column]) -> None:
    lowered = [c.name.lower() for c in columns]
    for name in lowered:
        if lowered.count(name) > 1:
            raise PlanError("two columns of the result have one name", got=name, hint="name one with AS")


def _over(tree: sg.Select, rows: Relation, condition: Expr | None, env: Env) -> Relation:
    """Return a query with OVER: ranks, which QUALIFY or the query around it bounds, or look-back windows."""
    if tree.args.get("distinct") is not None or tree.args.get("having") is not None:
        raise refused("DISTINCT or HAVING with OVER", tree.sql("spark"), "put a query around this one")
    filtered = attrs.evolve(rows, stream=rows.stream if condition is None else rows.stream.filter(condition))
    shown, wanted, added = qualified(tree)
    if any([has_rank(e.unalias().unnest(), e.alias or None) for e in shown.expressions]):
        ranking = ranking_of(shown, filtered)
        with_ranks = attrs.evolve(mapped(ranking.tree, ranking.rows, None), ranking=ranking)
        if tree.args.get("qualify") is None:
            return with_ranks
        ranked, wanted = bounded(with_ranks, wanted, env)
        planned = mapped(ranking.tree, ranked, None)
    else:
        looked, changed = (lagging if has_lag(shown) else looking_back)(shown, filtered, env)
        planned = mapped(changed, looked, None)
    condition = _all_of(wanted, planned)
    return without(planned if condition is None else attrs.evolve(planned, stream=planned.stream.filter(condition)), added)
