"""``OVER (PARTITION BY ...)``: the first rows of each window or identity, and look-back windows over a range.

``QUALIFY`` and ``WINDOW w AS (...)``: shorter words for a query around OVER, and for what comes after it.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import attrs
import pyarrow as pa
from sqlglot import expressions as sg

from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.errors import PlanError
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.selections import Then
from krishiv_py.plan.expressions.expr import Alias, Col, Expr, col, lit, name_of
from krishiv_py.plan.expressions.parse import expr_of
from krishiv_py.plan.names import free
from krishiv_py.plan.patterns import next as next_row
from krishiv_py.plan.patterns import prev
from krishiv_py.plan.previous import KNOWN
from krishiv_py.sql.grouped import aggregate, aggregates
from krishiv_py.sql.scope import Column, Env, Ranking, Relation, Role, computed_bound, conjuncts, dotted, role_of_mark
from krishiv_py.sql.statements import only, refused
from krishiv_py.sql.windows import interval_us, tick_us

_SHOW: Final = "write ROW_NUMBER() OVER (PARTITION BY window_start, window_end, user ORDER BY n DESC)"
_UPPER: Final[dict[type[sg.Expression], int]] = {sg.LTE: 0, sg.LT: -1, sg.EQ: 0}
_TURNED: Final[dict[type[sg.Expression], type[sg.Expression]]] = {sg.GTE: sg.LTE, sg.GT: sg.LT, sg.EQ: sg.EQ}


def has_rank(node: sg.Expression, alias: str | None) -> bool:
    """Return whether an item asks for ranks.

    Raises
    ------
    PlanError
        For ranks with gaps, and ranks without a name.
    """
    if not isinstance(node, sg.Window) or not isinstance(node.this, (sg.RowNumber, sg.Rank, sg.DenseRank)):
        return False
    if not isinstance(node.this, sg.RowNumber):
        hint = f"{_SHOW}: equal rows go by event time, then by arrival"
        raise refused(f"{node.this.sql('spark')} OVER", node.sql("spark"), hint)
    if alias is None:
        raise PlanError("a rank has no name", got=node.sql("spark"), hint="name it: ... AS rn")
    only(node, frozenset({"this", "partition_by", "order", "over"}))
    return True


def ranking_of(tree: sg.Select, rows: Relation) -> Ranking:
    """Return the ranking of a query, one of whose items asks for it; `rows` is what it reads."""
    if len([w for e in tree.expressions for w in e.find_all(sg.Window)]) > 1:
        raise refused("several OVER with ROW_NUMBER", tree.sql("spark"), "rank in a query around this one")
    changed = tree.copy()
    item = next(e for e in changed.expressions if e.find(sg.Window) is not None)
    node, name = item.unalias().unnest(), item.alias
    assert isinstance(node, sg.Window)
    taken = {c.name.lower() for c in rows.columns}
    if name.lower() in taken:
        hint = f"name it otherwise than {name}"
        raise PlanError("a rank has the name of a column", got=name, hint=hint)
    column = sg.Column(this=sg.to_identifier(name, quoted=True))
    changed.set("expressions", [column if e is item else e for e in changed.expressions])
    columns = (*rows.columns, Column(None, name, None, "rank", hidden=True))
    return Ranking(node, name, changed, attrs.evolve(rows, columns=columns))


def bounded(rows: Relation, wanted: list[sg.Expression], env: Env) -> tuple[Relation, list[sg.Expression]]:
    """Return the rows a ranking gives whose ranks WHERE bounds, and what else it wants."""
    ranking = rows.ranking
    assert ranking is not None
    most: int | None = None
    rest: list[sg.Expression] = []
    for part in wanted:
        upper, whole = _upper(part, rows)
        if upper is not None:
            most = upper if most is None else min(most, upper)
        if upper is None or not whole:
            rest.append(part)
    if most is None:
        raise ranking.unbounded()
    if most < 1:
        hint = f"write {ranking.name} <= 1, or more"
        raise PlanError("the rank is bounded below 1", got=str(most), hint=hint)
    return _first(ranking.rows, ranking, most, env), rest


def _upper(node: sg.Expression, rows: Relation) -> tuple[int | None, bool]:
    """Return the bound a part of WHERE sets, and whether it says no more than that."""
    if isinstance(node, sg.Between) and _is_rank(node.this, rows):
        return _number(node.args["high"]), _number(node.args["low"]) == 1
    kind: type[sg.Expression] = type(node)
    if not isinstance(node, sg.Binary):
        return None, False
    rank, bound = node.this, node.expression
    if _is_rank(bound, rows):
        if kind not in _TURNED:
            return None, False
        kind, rank, bound = _TURNED[kind], bound, rank
    number = _number(bound) if kind in _UPPER and _is_rank(rank, rows) else None
    if number is None:
        return None, False
    return number + _UPPER[kind], kind is not sg.EQ or number == 1


def _is_rank(node: object, rows: Relation) -> bool:
    return isinstance(node, sg.Column) and not isinstance(node.this, sg.Star) and rows.find(node)[0].role == "rank"


def _number(node: object) -> int | None:
    return int(node.name) if isinstance(node, sg.Literal) and node.is_int else None


@attrs.frozen(eq=False)
class _Order:
    by: Expr
    smallest: bool


def _first(rows: Relation, ranking: Ranking, most: int, env: Env) -> Relation:
    partition = [rows.resolved(p, bounds=True) for p in ranking.node.args.get("partition_by") or ()]
    roles = {_role(p, rows) for p in partition}
    if rows.window is not None and {"start", "end"} <= roles:
        return _of_windows(rows, ranking, most, [p for p in partition if _role(p, rows) is None], env)
    if {"start", "end"} & roles or rows.pending:
        then = "such ranks would never be final"
        hint = "put both window_start and window_end into PARTITION BY"
        raise PlanError("rows are ranked over more than one window", got=ranking.node.sql("spark"), then=then, hint=hint)
    return _of_rows(rows, ranking, most, partition, env)


def _role(node: sg.Expression, rows: Relation) -> Role | None:
    mark_role = role_of_mark(node)
    if mark_role is None and isinstance(node, sg.Column) and not node.table and rows.window is not None:
        role = rows.role_of(node.name)
        return role if role in ("start", "end") or (role == "time" and not isinstance(rows.stream, Stream)) else None
    return mark_role


def _orders(ranking: Ranking) -> list[sg.Ordered]:
    order = ranking.node.args.get("order")
    if order is None:
        hint = f"{_SHOW}; equal rows go by event time, then by arrival"
        raise PlanError("ranks without ORDER BY", got=ranking.node.sql("spark"), hint=hint)
    orders: list[sg.Ordered] = order.expressions
    return orders


def _ranked_by(rows: Relation, ranking: Ranking) -> list[_Order]:
    """Return what ranks rows; an expression that is there already adds nothing."""
    orders: list[_Order] = []
    for ordered in _orders(ranking):
        by = expr_of(rows.resolved(ordered.this))
        if not any(by.same_as(before.by) for before in orders):
            orders.append(_one_order(rows, ordered, by))
    return orders


def _one_order(rows: Relation, ordered: sg.Ordered, expr: Expr) -> _Order:
    descending = bool(ordered.args.get("desc"))
    sure = isinstance(expr, Col) and any(c.actual == expr.name and (c.sure or c.role == "time") for c in rows.columns)
    if ordered.args.get("nulls_first") and not sure:
        hint = f"write ORDER BY {ordered.this.sql('spark')}{' DESC' if descending else ''} NULLS LAST"
        raise PlanError("nulls come first in this order", got=ordered.sql("spark") or ordered.this.sql("spark"), hint=hint)
    return _Order(expr, not descending)


def _of_windows(rows: Relation, ranking: Ranking, most: int, partition: list[sg.Expression], env: Env) -> Relation:
    """Return the first rows of each key and window, as results of a stage of their own."""
    assert rows.window is not None
    orders, stream = _ranked_by(rows, ranking), rows.stream
    taken = [*rows.schema.names, "window_start", "window_end", "window_time"]
    keys: dict[str, str] = {}
    for node in partition:
        role = next((r for n in node.walk() if (r := role_of_mark(n)) is not None), None)
        if role is not None:
            raise computed_bound("PARTITION BY", role)
        expr = expr_of(node)
        name = expr.name if isinstance(expr, Col) else free("ranked_key", taken)
        if not isinstance(expr, Col) or name.lower() in ("window_start", "window_end"):
            name = free(name, taken)
            stream = stream.with_column(name, expr)
        taken.append(name)
        keys[expr.name if isinstance(expr, Col) else name] = name
    again, bounds = not rows.pending, {"start": "window_start", "end": "window_end", "time": "window_time"}
    if again and rows.window.kind != "tumble":
        start = next(c.actual for c in rows.columns if c.role == "start" and c.actual)
        bounds["start"] = free("window_started", taken)
        stream = stream.with_column(bounds["start"], col(start))
        keys[bounds["start"]] = bounds["start"]
    by: list[Expr] = []
    for order in orders:
        plain = isinstance(order.by, Col) and order.by.name not in keys
        by.append(order.by if plain else Alias(order.by, free("ranked_by", taken)))
        taken.append(name_of(by[-1]))
    needed = _needed(ranking) - {None}
    carried: list[str] = [
        c.actual
        for c in rows.columns
        if c.actual is not None
        and c.actual in needed
        and c.actual not in keys
        and not (again and c.role in bounds)
        and not any(_same(c, b) for b in by)
    ]
    rank = free(ranking.name, [*taken, *bounds.values()])
    timed = rows.timed(stream, env.lag_us).key_by(*dict.fromkeys(keys.values()))
    window = rows.window.same_again(tick_us(_type_of_start(rows))) if again else rows.window
    then: Then = [(b, "smallest" if o.smallest else "largest") for b, o in zip(by[1:], orders[1:], strict=True)]
    top = window.over(timed).top_rows
    calls = top(most, by[0], *dict.fromkeys(carried), rank=rank, smallest=orders[0].smallest, then=then)
    columns = tuple(_ranked_column(c, keys, bounds, rank, again=again) for c in rows.columns)
    return Relation(calls, _with_time(columns), window=rows.window)


def _needed(ranking: Ranking) -> set[str | None]:
    """Return the columns that the query with the ranking gives."""
    nodes = [n for e in ranking.tree.expressions for n in e.find_all(sg.Column, sg.Star)]
    if any(isinstance(n, sg.Star) and not isinstance(n.parent, sg.Count) for n in nodes):
        return {c.actual for c in ranking.rows.visible}
    return {ranking.rows.find(n)[0].actual for n in nodes if isinstance(n, sg.Column)}


def _same(column: Column, by: Expr) -> bool:
    return isinstance(by, Col) and column.actual == by.name


def _type_of_start(rows: Relation) -> pa.DataType:
    return rows.schema.field(next(c.actual for c in rows.columns if c.role == "start" and c.actual)).type


def _ranked_column(column: Column, keys: dict[str, str], bounds: dict[str, str], rank: str, *, again: bool) -> Column:
    if column.role == "rank":
        return attrs.evolve(column, actual=rank, role=None, sure=True)
    if column.role in bounds and (again or column.actual is None):
        return attrs.evolve(column, actual=bounds[column.role], hidden=column.hidden or (column.role == "time" and not again))
    role = None if column.role == "time" else column.role
    return attrs.evolve(column, actual=keys.get(column.actual or "", column.actual), role=role)


def _with_time(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    if any(c.role == "time" for c in columns):
        return columns
    return (*columns, Column(None, "window_time", "window_time", "time", hidden=True))


def _of_rows(rows: Relation, ranking: Ranking, most: int, partition: list[sg.Expression], env: Env) -> Relation:
    """Return the first rows of each partition: the first arrival of an identity, or a table that changes."""
    orders = _ranked_by(rows, ranking)
    first = len(orders) == 1 and orders[0].smallest and isinstance(orders[0].by, Col) and orders[0].by.name in rows.times
    deduplicates = most == 1 and first and partition and env.within_us is not None
    stream, names = _keyed(partition, rows.stream, list(rows.schema.names))
    rank = free(ranking.name, stream.schema.names)
    if deduplicates:
        results = deduplicated(attrs.evolve(rows, stream=stream, ranking=None), names, env)
        columns = tuple(attrs.evolve(c, actual=rank, role=None) if c.role == "rank" else c for c in results.columns)
        return attrs.evolve(results, stream=results.stream.with_column(rank, lit(1)), columns=columns)
    every = rows.of_all_time(stream, env.lag_us)
    keyed = every.key_by(*names) if names else every
    table = keyed._as_table()._top_rows(most, [(order.by, not order.smallest) for order in orders], rank)
    return Relation(
        env.with_ttl(table),
        tuple(attrs.evolve(c, actual=rank if c.role == "rank" else c.actual, role=None) for c in rows.columns),
    )


def deduplicated(rows: Relation, names: list[str], env: Env) -> Relation:
    """Return the first arrival of each identity, within what SET said."""
    assert env.within_us is not None
    env.used.append("deduplication.within")
    within = dt.timedelta(microseconds=env.within_us)
    timed = rows.timed(rows.stream, env.lag_us)
    results: ResultStream = timed.drop_duplicates(*dict.fromkeys(names), within=within).results()
    return attrs.evolve(rows, stream=results, table=None)


_PARTS: Final = ("partition_by", "order", "spec")


def with_named_windows(tree: sg.Select) -> sg.Select:
    """Return the query with the definitions of its WINDOW clause in the place of their names.

    Raises
    ------
    PlanError
        For names that are not defined, or twice, or by one another; and for OVER that adds to a name.
    """
    given = {}
    for node in tree.args.get("windows") or ():
        name = node.name.lower()
        if name in given:
            raise refused("a WINDOW of one name twice", node.sql("spark"), "name one otherwise")
        given[name] = node
    over = [w for w in _of(tree) if w.args.get("alias")]
    if not given and not over:
        return tree
    changed = tree.copy()
    changed.set("windows", None)
    for window in (w for w in _of(changed) if w.args.get("alias")):
        if any(window.args.get(part) for part in _PARTS):
            raise refused("OVER that adds to a WINDOW", window.sql("spark"), "write all of it in the WINDOW, or after OVER")
        definition = _defined(window, given)
        window.set("alias", None)
        for part in _PARTS:
            value = definition.args.get(part)
            window.set(part, [v.copy() for v in value] if isinstance(value, list) else value and value.copy())
    return changed


def _of(tree: sg.Select) -> list[sg.Window]:
    """OVER in the items of a query and in its QUALIFY."""
    qualify = tree.args.get("qualify")
    return [w for e in (*tree.expressions, *([] if qualify is None else [qualify])) for w in e.find_all(sg.Window)]


def _defined(window: sg.Window, given: dict[str, sg.Window]) -> sg.Window:
    """Return the definition of a name, which may be another name."""
    alias, seen = window.args["alias"].name.lower(), set[str]()
    while True:
        if alias not in given or alias in seen:
            known = ", ".join(given) or "none"
            raise refused(f"OVER {alias}, which no WINDOW defines", f"defined: {known}", f"write WINDOW {alias} AS (...)")
        seen.add(alias)
        definition = given[alias]
        if not definition.args.get("alias"):
            only(definition, frozenset({"this", *_PARTS}))
            return definition
        if any(definition.args.get(part) for part in _PARTS):
            raise refused("a WINDOW that adds to another one", definition.sql("spark"), "write all of it in each")
        alias = definition.args["alias"].name.lower()


def _check_over(tree: sg.Select) -> None:
    if not _of(tree):
        text = tree.args["qualify"].sql("spark").strip()
        raise refused("QUALIFY without OVER", text, "write WHERE, or HAVING after GROUP BY")


def around_groups(tree: sg.Select) -> sg.Select:
    """Return a query with GROUP BY and QUALIFY as two: the groups, and one around them that ranks.

    Raises
    ------
    PlanError
        For items without a name, and aggregates that QUALIFY needs and the query does not give.
    """
    _check_over(tree)
    if tree.args.get("distinct") is not None:
        raise refused("DISTINCT with QUALIFY", tree.sql("spark"), "leave it out: groups are distinct")
    inside: list[sg.Expression] = []
    named: dict[str, str] = {}
    for item in tree.expressions:
        if item.find(sg.Window) is not None:
            continue
        node = item.unalias().unnest()
        if not item.alias and not (isinstance(node, sg.Column) and not isinstance(node.this, sg.Star)):
            raise refused("an item without a name with GROUP BY and QUALIFY", item.sql("spark"), "name it with AS")
        named[_said(node)] = item.alias or node.name
        inside.append(item.copy())

    for key in _unselected(tree, named):
        named[_said(key)] = key.name
        inside.append(key)

    def outside(node: sg.Expression) -> sg.Expression:
        whole = not isinstance(node, (sg.Identifier, sg.Order, sg.Ordered))  # which may be written as what they hold
        name = named.get(_said(node)) if whole else None
        return node if name is None else sg.column(name, quoted=True)

    over = [e.find(sg.Window) is not None for e in tree.expressions]
    names = [sg.column(e.alias or e.unalias().unnest().name, quoted=True) for e in tree.expressions]
    items = [e.copy().transform(outside) if w else n for e, w, n in zip(tree.expressions, over, names, strict=True)]
    condition = tree.args["qualify"].this.copy().transform(outside)
    for part in (*items, condition):
        if aggregates(part):
            hint = "select the aggregate under a name: SUM(x) AS total, and ORDER BY total"
            raise refused("an aggregate in QUALIFY, or OVER, that is not an item", part.sql("spark"), hint)
    groups = tree.copy()
    groups.set("qualify", None)
    groups.set("expressions", inside)
    query = sg.select(*items).from_(groups.subquery())
    query.set("qualify", sg.Qualify(this=condition))
    return query


def _unselected(tree: sg.Select, named: dict[str, str]) -> list[sg.Expression]:
    """Return the columns of GROUP BY that no item gives, which OVER may name all the same."""
    taken = {name.lower() for name in named.values()}
    group = tree.args.get("group")
    keys = [g.copy() for g in (group.expressions if group is not None else ()) if isinstance(g, sg.Column)]
    return [k for k in keys if _said(k) not in named and k.name.lower() not in taken]


def _said(node: sg.Expression) -> str:
    """Return what an expression says: the case of names does not matter, that of texts in it does."""
    query_node = node.copy()
    for name in query_node.find_all(sg.Identifier):
        name.replace(sg.to_identifier(name.name.lower(), quoted=True))
    for call in query_node.find_all(sg.Anonymous):
        call.set("this", call.name.lower())
    return query_node.sql("spark")


def qualified(tree: sg.Select) -> tuple[sg.Select, list[sg.Expression], tuple[str, ...]]:
    """Return a query whose QUALIFY asks for its items only: what it wants of them, and the names of items that were added for
    it.

    Raises
    ------
    PlanError
        Where neither an item nor QUALIFY has OVER.
    """
    qualify = tree.args.get("qualify")
    if qualify is None:
        return tree, [], ()
    _check_over(tree)
    known = {e.unalias().unnest().sql("spark"): e.alias for e in tree.expressions if e.alias}
    taken = [e.alias_or_name for e in tree.expressions]
    added: list[sg.Expression] = []

    def step(node: sg.Expression) -> sg.Expression:
        if not isinstance(node, sg.Window):
            return node
        text = node.sql("spark")
        if text not in known:
            known[text] = free(f"qualified_{len(added) + 1}", taken)
            taken.append(known[text])
            added.append(sg.Alias(this=node.copy(), alias=sg.to_identifier(known[text], quoted=True)))
        return sg.column(known[text], quoted=True)

    wanted = [part.transform(step) for part in conjuncts(qualify.this.copy())]
    changed = tree.copy()
    changed.set("qualify", None)
    changed.set("expressions", [*changed.expressions, *added])
    return changed, wanted, tuple(e.alias for e in added)


def without(rows: Relation, names: tuple[str, ...]) -> Relation:
    """Rows whose added columns are not among those of ``*``."""
    return attrs.evolve(rows, columns=tuple(attrs.evolve(c, hidden=c.hidden or c.name in names) for c in rows.columns))


_RANGE: Final = (
    "write SUM(x) OVER (PARTITION BY user ORDER BY ts RANGE BETWEEN INTERVAL '1' MINUTE PRECEDING AND CURRENT ROW), "
    "with the event time as ts"
)
_SPEC: Final = frozenset({"kind", "start", "start_side", "end", "end_side", "exclude"})


@attrs.frozen
class _Frame:
    size_us: int
    two_sided: bool
    excludes: bool


_LAG: Final = "write LAG(price) OVER (PARTITION BY symbol ORDER BY ts), with the event time as ts"


def has_lag(tree: sg.Select) -> bool:
    """Return whether an item asks for a row before."""
    return any(isinstance(w.this, (sg.Lag, sg.Lead)) for e in tree.expressions for w in e.find_all(sg.Window))


def lagging(tree: sg.Select, rows: Relation, env: Env) -> tuple[Relation, sg.Select]:
    """Rows with a column for each LAG and LEAD, and the query with these columns in the place of OVER.

    Raises
    ------
    PlanError
        For another order than that of the event time, several partitions, and other functions next to LAG.
    """
    before: dict[str, Any] = {}
    partitions: list[list[sg.Expression]] = []
    taken, columns = list(rows.schema.names), list(rows.columns)

    def step(node: sg.Expression) -> sg.Expression:
        if not isinstance(node, sg.Window):
            return node
        only(node, frozenset({"this", "partition_by", "order", "spec", "over"}))
        call, spec = node.this, node.args.get("spec")
        if not isinstance(call, (sg.Lag, sg.Lead)) or spec is not None:
            raise refused("LAG with other functions OVER, or with a range", tree.sql("spark"), "write a query for each")
        word, look = ("LAG", prev) if isinstance(call, sg.Lag) else ("LEAD", next_row)
        if call.args.get("default") is not None:
            raise refused(f"a third argument of {word}", node.sql("spark"), f"write COALESCE({word}(x) OVER (...), 0)")
        _by_time(node, rows, _LAG)
        offset = call.args.get("offset")
        if offset is not None and not (isinstance(offset, sg.Literal) and offset.is_int):
            raise PlanError(f"{word} goes by a number of rows", got=node.sql("spark"), hint=f"write {word}(x, 2)")
        name = free(f"{word.lower()}_{len(before) + 1}", taken)
        before[name] = look(rows.expr(call.this), 1 if offset is None else int(offset.name))
        partitions.append([rows.resolved(p) for p in node.args.get("partition_by") or ()])
        taken.append(name)
        columns.append(Column(None, name, name, hidden=True))
        return dotted([name])

    changed = tree.copy()
    changed.set("expressions", [_named(e).transform(step) for e in changed.expressions])
    if any(p != partitions[0] for p in partitions):
        raise refused("LAG with several partitions", tree.sql("spark"), "write a query for each")
    source, keys = _keyed(partitions[0], rows.stream, taken)
    stream = rows.timed(source, env.lag_us).key_by(*keys).with_previous(**before)
    if any(value.rows < 0 for value in before.values()):  # rows wait, and have another event time
        columns = [attrs.evolve(c, role=None) if c.role == "time" else c for c in columns]
        columns.append(Column(None, KNOWN, KNOWN, "time", hidden=True))
    return Relation(stream, tuple(columns)), changed


def _keyed(partition: list[sg.Expression], source: Any, taken: list[str]) -> tuple[Any, list[str]]:
    """Return rows with a column for each expression that parts them, and the names of what parts them."""
    keys: list[str] = []
    for node in partition:
        expr = expr_of(node)
        keys.append(expr.name if isinstance(expr, Col) else free("partition", taken))
        if not isinstance(expr, Col):
            taken.append(keys[-1])
            source = source.with_column(keys[-1], expr)
    return source, list(dict.fromkeys(keys))


def _by_time(node: sg.Window, rows: Relation, hint: str) -> None:
    order = node.args.get("order")
    by = order.expressions if order is not None else []
    if len(by) != 1 or by[0].args.get("desc") or rows.resolved(by[0].this) not in [dotted([t]) for t in rows.times]:
        raise refused("OVER in another order than that of the event time", node.sql("spark"), hint)


def looking_back(tree: sg.Select, rows: Relation, env: Env) -> tuple[Relation, sg.Select]:
    """Rows with a column for each OVER, and the query with these columns in the place of OVER.

    Raises
    ------
    PlanError
        For ranges that are not by event time, and several partitions.
    """
    if rows.window is not None and rows.pending:
        hint = "group by window_start, window_end, or leave the window function out"
        raise refused("OVER in a window", tree.sql("spark"), hint)
    calls: list[AggCall] = []
    frames: list[_Frame] = []
    partitions: list[list[sg.Expression]] = []
    taken = [*rows.schema.names, "window_start", "window_end"]
    columns = list(rows.columns)

    def step(node: sg.Expression) -> sg.Expression:
        if not isinstance(node, sg.Window):
            return node
        only(node, frozenset({"this", "partition_by", "order", "spec", "over"}))
        call = aggregate(rows.resolved(node.this))
        if call is None:
            raise refused("this function OVER", node.sql("spark"), _RANGE)
        frames.append(_frame(node, rows))
        partitions.append([rows.resolved(p) for p in node.args.get("partition_by") or ()])
        name = free(f"over_{len(calls) + 1}", taken)
        taken.append(name)
        calls.append(call.alias(name))
        columns.append(Column(None, name, name, hidden=True))
        return dotted([name])

    changed = tree.copy()
    changed.set("expressions", [_named(e).transform(step) for e in changed.expressions])
    if any(p != partitions[0] for p in partitions) or len({(f.two_sided, f.excludes) for f in frames}) > 1:
        raise refused("OVER with several partitions or kinds of ranges", tree.sql("spark"), "write a query for each")
    source, keys = _keyed(partitions[0], rows.stream, taken)
    longest = max(f.size_us for f in frames)
    ranged = [_ranged(c, f.size_us, longest) for c, f in zip(calls, frames, strict=True)]
    windowed = rows.timed(source, env.lag_us).key_by(*keys)
    stream = windowed.lookback_window(
        dt.timedelta(microseconds=longest), with_row=True, two_sided=frames[0].two_sided, exclude_self=frames[0].excludes
    ).agg(ranged)
    return Relation(stream.results(), tuple(columns)), changed


def _ranged(call: AggCall, size_us: int, longest_us: int) -> AggCall:
    return call if size_us == longest_us else call.over(dt.timedelta(microseconds=size_us))


def _named(item: sg.Expression) -> sg.Expression:
    """Return an item that keeps the name it would have had."""
    if isinstance(item, sg.Alias) or item.find(sg.Window) is None:
        return item
    return sg.Alias(this=item.copy(), alias=sg.to_identifier(item.sql("spark"), quoted=True))


def _frame(node: sg.Window, rows: Relation) -> _Frame:
    _by_time(node, rows, _RANGE)
    spec = node.args.get("spec")
    if spec is None or spec.args.get("kind") != "RANGE" or spec.args.get("start_side") != "PRECEDING":
        raise refused("OVER without a range of time", node.sql("spark"), _RANGE)
    only(spec, _SPEC)
    exclude = spec.args.get("exclude")
    if exclude is not None and exclude.name.upper() not in ("CURRENT ROW", "NO OTHERS"):
        raise refused("EXCLUDE of other rows", node.sql("spark"), "EXCLUDE CURRENT ROW leaves the row itself out")
    size_us, end = _length(spec.args["start"], node, rows), spec.args.get("end")
    excludes = exclude is not None and exclude.name.upper() == "CURRENT ROW"
    if end in (None, "CURRENT ROW"):  # RANGE INTERVAL '1' MINUTE PRECEDING
        return _Frame(size_us, False, excludes)
    if spec.args.get("end_side") != "FOLLOWING" or _length(end, node, rows) != size_us:
        hint = f"end with CURRENT ROW, or with as long a time FOLLOWING; {_SHOW}"
        raise refused("OVER with other ends", node.sql("spark"), hint)
    return _Frame(size_us, True, excludes)


def _length(node: object, over: sg.Window, rows: Relation) -> int:
    """Return a length of time; a number is of milliseconds, over a column of milliseconds."""
    if not isinstance(node, sg.Expression):
        raise PlanError("the range has no length", got=over.sql("spark"), then="every row would have to be kept", hint=_RANGE)
    time = rows.event_time
    if isinstance(node, sg.Literal) and node.is_int and time is not None and tick_us(rows.schema.field(time).type) == 1_000:
        return int(node.name) * 1_000
    return interval_us(node, "OVER", allow_zero=True)
