"""GROUP BY: keys, window and aggregates of the builder, and steps over results for what is computed from them."""

from __future__ import annotations

from typing import Final

import attrs
from sqlglot import expressions as sg

from krishiv_py.api.stages.results import ResultStream, results_of
from krishiv_py.errors import PlanError
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.counting import count
from krishiv_py.plan.aggregates.outputs import AggregateColumns
from krishiv_py.plan.expressions.expr import Alias, Col, Expr, col
from krishiv_py.plan.expressions.facts import columns_of, name_of
from krishiv_py.plan.expressions.parse import expr_of
from krishiv_py.plan.names import free
from krishiv_py.sql.scope import PANES, Column, Relation, dotted, role_of_mark
from krishiv_py.sql.steps.grouping import Grouping, Item, neither, read
from krishiv_py.sql.text.aggregates import aggregate, aggregates
from krishiv_py.sql.text.windows import tick_us, window_call

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
class _Made:
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
        """A node over the rows of a source as one over results."""
        found = False

        def step(part: sg.Expression) -> sg.Expression:
            nonlocal found
            direct = self.direct(part, None)
            if direct is not None:
                found = True
                return dotted([direct])
            if isinstance(part, sg.Column):
                raise neither(part)
            if (call := window_call(part, self.rows.times)) is not None:
                raise PlanError(
                    "a window is not a value",
                    got=str(call[0]),
                    hint=f"select {call[0].kind}_start(...) or {call[0].kind}_end(...)",
                )
            return part

        made = node.transform(step)
        if not found and node.find(sg.Column, sg.Star) is not None:
            raise neither(node)
        return made

    def direct(self, node: sg.Expression, alias: str | None) -> str | None:
        """The column of results that a node is, if it is one as it is."""
        role = self.grouping.role_of(node)
        if role is not None:
            return self.bounds[role]
        call = aggregate(node)
        if call is not None:
            return self.aggregate(node, call, alias)
        return next((k.column for k in self.keys if k.node == node), None)


def grouped(tree: sg.Select, rows: Relation, where: Expr | None, lag_us: int | None, *, top: bool) -> Relation | ResultStream:
    """The results of a query that groups; `top` if nothing reads them but the user."""
    grouping = read(tree, rows)
    stream = rows.stream if where is None else rows.stream.filter(where)
    keys = _keys(grouping, rows)
    window, bounds = grouping.window, {"start": "window_start", "end": "window_end", "time": "window_time"}
    if grouping.again and window.kind != "tumble":
        started = free("window_started", [*rows.schema.names, *(k.column for k in keys)])
        assert grouping.start is not None
        keys.append(Key(dotted([grouping.start]), col(grouping.start), started, started))
        bounds["start"] = started
    for key in keys:
        if key.computed:
            stream = stream.with_column(key.column, key.expr)
    taken = {*OWN, *(k.column for k in keys), *(i.alias for i in grouping.items if i.alias is not None)}
    made = _Made(rows, grouping, keys, bounds, AggregateColumns({name.lower() for name in taken}))
    outputs = [_output(item, made) for item in grouping.items]
    _distinct([o.name for o in outputs])
    having = None if grouping.having is None else made.over_results(grouping.having)
    calls = made.calls.calls or [count().alias(free("rows", made.calls.taken))]
    again = window.same_again(_tick_us(rows)) if grouping.again else window
    timed = rows.timed(stream, lag_us)
    found = again.over(timed.key_by(*(k.column for k in keys))).agg(calls)
    own = tuple((n, n) for n in found.schema.names[: len(keys) + 2 + len(calls)])
    plain = tuple((o.name, o.direct) for o in outputs)
    if top and having is None and not any("window_time" in columns_of(o.expr) for o in outputs):
        columns = tuple((o.name, o.expr) for o in outputs)
        return found if plain == own else results_of(attrs.evolve(found._stage, output=columns), found._runner)
    results = found.results()
    panes = tuple(Column(None, n, n, hidden=True) for n in PANES if n in results.schema.names)
    if having is not None:
        results = results.filter(expr_of(having))
    picked = [Alias(o.expr, o.name) if o.direct != o.name else o.expr for o in outputs]
    if plain != own:
        _distinct([*(o.name for o in outputs), *(c.name for c in panes)])
        results = results.select(*picked, *(c.name for c in panes))
    return Relation(results, (*(o.column for o in outputs), *panes, *_hidden_time(results, outputs)), window=window)


def _hidden_time(results: ResultStream, outputs: list[ResultColumn]) -> tuple[Column, ...]:
    if any(o.column.role == "time" for o in outputs):
        return ()
    return (Column(None, "window_time", "window_time", "time", hidden=True),)


def _tick_us(rows: Relation) -> int:
    start = next(c.actual for c in rows.columns if c.role == "start")
    return tick_us(rows.schema.field(start).type)


def _output(item: Item, made: _Made) -> ResultColumn:
    """An item of the SELECT list."""
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
    """The expression over rows; None where a window is named in it."""
    windows = (role_of_mark(n) or window_call(n, rows.times) for n in node.find_all(sg.Anonymous))
    return None if any(windows) else expr_of(node)


def _keys(grouping: Grouping, rows: Relation) -> list[Key]:
    """Keys in the order of GROUP BY."""
    taken = {n.lower() for n in [*rows.schema.names, *OWN]}
    keys: list[Key] = []
    for node in grouping.groups:
        if aggregates(node):
            raise PlanError("GROUP BY an aggregate", got=node.sql("spark"), hint="group by columns")
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
