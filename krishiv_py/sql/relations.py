"""FROM: tables, queries in brackets and window functions over them, UNION ALL, and lists as rows.

Lists in FROM: ``LATERAL VIEW explode(xs) t AS x``, ``CROSS JOIN UNNEST(xs) AS t(x)``, ``CROSS JOIN LATERAL explode(xs)``.
"""

from __future__ import annotations

from typing import Final

import attrs
import pyarrow as pa
from sqlglot import expressions as sg

from krishiv_py.api.planning import evaluate
from krishiv_py.api.sources import union_of
from krishiv_py.api.stages.stream import Stream
from krishiv_py.errors import PlanError, SchemaError
from krishiv_py.plan.expressions.expr import Alias, Expr, Func, Lambda, LambdaVar, Lit, col
from krishiv_py.plan.names import free
from krishiv_py.plan.options.late import one_handler
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, RowsClock, WatermarkSpec
from krishiv_py.plan.sides import OP
from krishiv_py.sql import patterns
from krishiv_py.sql.catalog import RegisteredStream, StaticTable, unknown_table
from krishiv_py.sql.joins import VALIDITY, How, check_bound_in_where, how_of, joined, looked_up
from krishiv_py.sql.scope import Column, Env, Inner, Relation, conjuncts
from krishiv_py.sql.statements import MATCH, PARTITION, clause_of, only, query_of, refused
from krishiv_py.sql.windows import LENGTHS, Kind, WindowCall, call_of, check_time, is_zone
from krishiv_py.types import type_text, wider


def united(tree: sg.SetOperation, env: Env, inner: Inner) -> Relation:
    """Return the rows of all queries that UNION ALL joins.

    Raises
    ------
    PlanError
        For other set operations, other numbers of columns, and rows that do not come from sources as they are.
    SchemaError
        For columns of other types.
    """
    parts = [inner(query, env) for query in _queries(tree)]
    first = parts[0]
    names = [c.name for c in first.visible]
    for rows in parts:
        _check(rows, first, tree)
    times = [i for i in range(len(names)) if all(rows.visible[i].role == "time" for rows in parts)]
    streams: dict[str, Stream] = {}
    for rows in parts:
        assert isinstance(rows.stream, Stream)
        picked = [Alias(col(c.actual), n) for c, n in zip(rows.visible, names, strict=True) if c.actual is not None]
        streams[free("a" if rows.table is None else rows.table.name, streams)] = rows.stream.select(*picked)
    source = free("source", names)
    stream = union_of(streams, source, first.stream._runner)
    columns = tuple(Column(None, n, n, "time" if i in times else None) for i, n in enumerate(names))
    if not times:
        return Relation(stream, columns)
    return Relation(stream, columns, _united_table(parts, list(streams), stream, names[times[0]], source, env))


def _queries(tree: sg.SetOperation) -> list[sg.Select | sg.SetOperation]:
    """Return the queries in their order, without recursion on the left."""
    queries: list[sg.Select | sg.SetOperation] = []
    current: object = tree
    while isinstance(current, sg.SetOperation):
        if not isinstance(current, sg.Union) or current.args.get("distinct"):
            name = f"{current.key.upper()}{' DISTINCT' if isinstance(current, sg.Union) else ''}"
            hint = "write UNION ALL"
            if isinstance(current, sg.Union):
                hint = (
                    "write SELECT DISTINCT id FROM (SELECT id, ts FROM a UNION ALL SELECT id, ts FROM b), "
                    "after SET deduplication.within = INTERVAL '1' HOUR"
                )
            elif isinstance(current, (sg.Except, sg.Intersect)):
                exists = "NOT EXISTS" if isinstance(current, sg.Except) else "EXISTS"
                hint = f"write WHERE {exists} (SELECT 1 FROM b WHERE b.id = a.id AND b.ts = a.ts), with other bounds of time"
            raise refused(name, current.sql("spark"), hint)
        only(current, frozenset({"this", "expression", "with", "with_"}))
        right = query_of(current.expression)
        if right is None:
            raise refused("this in UNION ALL", current.sql("spark"), "write queries")
        queries.append(right)
        current = query_of(current.this)
    if not isinstance(current, sg.Select):
        raise refused("this in UNION ALL", tree.sql("spark"), "write queries")
    queries.append(current)
    return queries[::-1]


def _check(rows: Relation, first: Relation, tree: sg.SetOperation) -> None:
    if not isinstance(rows.stream, Stream) or rows.pending or rows.ranking is not None:
        then = "results of stages have watermarks of their own"
        hint = "unite the streams first, and group, join or rank in a query around UNION ALL"
        raise PlanError("UNION ALL is for rows of sources as they are", got=tree.sql("spark"), then=then, hint=hint)
    ours, theirs = len(first.visible), len(rows.visible)
    if ours != theirs:
        hint = f"select {ours} columns in each of them"
        raise PlanError("the queries of UNION ALL have other columns", got=f"{ours} and {theirs}", hint=hint)
    for one, other in zip(first.visible, rows.visible, strict=True):
        types = [r.schema.field(c.actual).type for r, c in ((first, one), (rows, other)) if c.actual is not None]
        if len(types) == 2 and types[0] != types[1]:
            raise _other_types((one.name, other.name), types[0], types[1])


def _other_types(names: tuple[str, str], one: pa.DataType, other: pa.DataType) -> SchemaError:
    """Return the error for a column of UNION ALL of two types."""
    both = wider(one, other)
    casts = [
        f"CAST({name} AS {type_text(both)}) AS {names[0]} in the {place} query"
        for name, type_, place in zip(names, (one, other), ("first", "other"), strict=True)
        if both is not None and type_ != both
    ]
    got = f"{names[0]!r} is {type_text(one)} and {type_text(other)}"
    hint = f"write {', '.join(casts)}" if casts else "give the columns one type"
    return SchemaError("the queries of UNION ALL have columns of other types", got=got, hint=hint)


def _united_table(
    parts: list[Relation], names: list[str], stream: Stream, time: str, source: str, env: Env
) -> RegisteredStream:
    """Return the union as a table: its watermark is the least of theirs."""
    specs: list[tuple[str, WatermarkSpec]] = []
    clocks = set[RowsClock | None]()
    for rows, name in zip(parts, names, strict=True):
        assert rows.table is not None
        spec = rows.table.spec
        if isinstance(spec, MultiSourceWatermarkSpec):
            raise refused("UNION ALL over a stream of several sources", rows.table.name, "unite all of them with session.union")
        if spec is None and env.lag_us is None:
            rows.timed(rows.stream, None)  # says what is missing
        lag_us = env.lag_us if env.lag_us is not None or spec is None else spec.lag_us
        clocks.add(rows.table.clock or (None if spec is None else spec.clock))
        specs.append((name, attrs.evolve(spec or WatermarkSpec(0), lag_us=lag_us or 0, clock=None)))
    if len(clocks) > 1:
        hint = "SET watermark.clock = 'row' right before the query"
        raise PlanError("the streams of UNION ALL have clocks that differ", got=", ".join(sorted(map(str, clocks))), hint=hint)
    options = {repr(rows.table.explicit) for rows in parts if rows.table is not None}
    if len(options) > 1:
        hint = "set them on what sql() returns"
        raise PlanError("the streams of UNION ALL have options that differ", got=", ".join(names), hint=hint)
    first = parts[0].table
    assert first is not None
    handlers = [rows.table.late_handler for rows in parts if rows.table is not None]
    late = one_handler(handlers, "the streams of UNION ALL", "register the streams with one handler, or without")
    spec = MultiSourceWatermarkSpec(tuple(specs), clock=next(iter(clocks)))
    return RegisteredStream("union", stream, time, spec, source, first.explicit, late)


_KINDS: Final = frozenset({"explode", "posexplode", "inline", "unnest"})
_WRITE: Final = (
    "write LATERAL VIEW explode(xs) t AS x, with posexplode(xs) t AS i, x for places, LATERAL VIEW OUTER to keep all rows"
)


@attrs.frozen(eq=False)
class _Call:
    """Holds what gives rows: its `kind`, the list, names of the table and its columns, and whether rows without items stay."""

    kind: str
    value: sg.Expression
    table: str | None
    names: tuple[str, ...]
    outer: bool
    ordinality: bool


def is_lateral(node: sg.Expression) -> bool:
    """Return whether a part of FROM is made of the columns before it."""
    return isinstance(node, (sg.Lateral, sg.Unnest))


def spread(rows: Relation, node: sg.Expression, outer: bool = False) -> Relation:
    """Return the rows once for each item of a list, with the item as a column; also those without items if `outer`.

    Raises
    ------
    PlanError
        For other functions, and names that are too few or too many.
    """
    call = _call_of(node)
    value, fields = _list_of(rows.expr(call.value), rows.schema, call, node)
    wanted = (["pos"] if call.kind == "posexplode" else []) + (fields or ["col"]) + (["pos"] if call.ordinality else [])
    names = call.names or tuple(wanted)
    if len(names) != len(wanted):
        then = f"{len(names)} are named"
        hint = f"name {len(wanted)}: AS {', '.join(wanted)}"
        raise PlanError(f"{call.kind} gives {len(wanted)} columns", got=node.sql("spark"), then=then, hint=hint)
    item = free("col", rows.schema.names)
    ranked = call.kind == "posexplode" or call.ordinality
    rank = free("pos", [*rows.schema.names, item]) if ranked else None
    stream = rows.stream.with_column(item, value)._unnested(item, rank, outer or call.outer, spread=False)
    if rank is not None and call.kind == "posexplode":  # which counts from 0
        stream = stream.with_column(rank, (col(rank) - 1).cast("int"))
    actual = [item]
    if fields:
        actual = []
        for field in fields:
            actual.append(free(field, stream.schema.names))
            stream = stream.with_column(actual[-1], col(item).field(field))
    if rank is not None:
        actual = [rank, *actual] if call.kind == "posexplode" else [*actual, rank]
    added = tuple(Column(call.table, name, made) for name, made in zip(names, actual, strict=True))
    return attrs.evolve(rows, stream=stream, columns=(*rows.columns, *added))


def _call_of(node: sg.Expression) -> _Call:
    call, outer, place = node, False, None
    if isinstance(node, sg.Lateral):
        only(node, frozenset({"this", "view", "outer", "alias"}))
        outer, call = bool(node.args.get("outer")), node.this
    else:
        only(node, frozenset({"expressions", "alias", "offset"}))
        place = node.args.get("offset")
    name = call.name.lower() if isinstance(call, sg.Anonymous) else type(call).__name__.lower().strip("_")
    kind = name.removesuffix("outer").removesuffix("_")
    lists = [e for e in (call.args.get("this"), *call.expressions) if isinstance(e, sg.Expression)]
    if kind not in _KINDS or len(lists) != 1:
        raise refused("this function in LATERAL", node.sql("spark"), _WRITE)
    alias = node.args.get("alias")
    table = alias.name if isinstance(alias, sg.TableAlias) and alias.this is not None else None
    names = tuple(c.name for c in alias.columns) if isinstance(alias, sg.TableAlias) else ()
    if names and isinstance(place, sg.Identifier):  # the parser takes the last name for that of the place
        names = (*names, place.name)
    return _Call(kind, lists[0], table, names, outer or name.endswith("outer"), bool(place))


def _list_of(value: Expr, schema: pa.Schema, call: _Call, node: sg.Expression) -> tuple[Expr, list[str]]:
    """Return the list, and the fields that become columns: of maps key and value."""
    type_ = evaluate.expr_type(value, schema)
    if pa.types.is_map(type_) and call.kind in ("explode", "posexplode", "unnest"):
        pair = Func("named_struct", (Lit("key"), LambdaVar("k"), Lit("value"), LambdaVar("v")))
        keys, values = Func("map_keys", (value,)), Func("map_values", (value,))
        return Func("zip_with", (keys, values, Lambda(("k", "v"), pair))), ["key", "value"]
    if not pa.types.is_list(type_) or (call.kind == "inline" and not pa.types.is_struct(type_.value_type)):
        what = f"{call.kind} takes {'a list of structs' if call.kind == 'inline' else 'a list or a map'}"
        raise PlanError(what, got=f"{call.value.sql('spark')} is {type_text(type_)}", hint=_WRITE)
    spreads = call.kind == "inline" or (call.kind == "unnest" and pa.types.is_struct(type_.value_type))
    return value, [f.name for f in type_.value_type] if spreads else []


_FUNCTIONS: Final[dict[str, Kind]] = {"tumble": "tumble", "hop": "hop", "cumulate": "cumulate", "session": "session"}
EXISTS: Final = (
    "write EXISTS (SELECT 1 FROM b WHERE b.id = a.id AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' HOUR), alone or after AND"
)
NOT_EXISTS: Final = EXISTS.replace("EXISTS", "NOT EXISTS", 1)
_LATERAL: Final = (
    "write CROSS JOIN UNNEST(xs) AS t(x), or LEFT JOIN UNNEST(xs) AS t(x) ON TRUE to keep rows without items; other conditions "
    "belong in WHERE"
)
_BRACKETS: Final = "register the stream, and name it in FROM"


def from_clause(tree: sg.Select, env: Env, inner: Inner) -> tuple[Relation, list[sg.Expression]]:
    """Return the rows a query reads, and the parts of WHERE that are still to be fulfilled."""
    clause = clause_of(tree, "from")
    assert clause is not None
    conditions = conjuncts(tree.args["where"].this if tree.args.get("where") is not None else None)
    wanted = conditions
    rows = source(clause.this, env, inner)
    if rows.ranking is not None and (tree.args.get("joins") or tree.args.get("laterals")):
        raise rows.ranking.unbounded()  # what is added to these rows would be lost where their ranks are bounded
    for join in tree.args.get("joins") or ():
        rows, wanted = _join(rows, join, wanted, env, inner)
    for lateral in tree.args.get("laterals") or ():
        rows = spread(rows, lateral)
    for taken in (p for p in conditions if all(p is not q for q in wanted)):
        rows.resolved(taken, bounds=True)  # a name in WHERE is looked for in all tables, and one that several have is refused
    return _exists(rows, wanted, env, inner)


def _join(
    left: Relation, join: sg.Join, wanted: list[sg.Expression], env: Env, inner: Inner
) -> tuple[Relation, list[sg.Expression]]:
    only(join, frozenset({"this", "on", "using", "method", "side", "kind"}))
    how, version, item = how_of(join), None, join.this
    if is_lateral(item):
        on = join.args.get("on")
        if (
            how not in ("inner", "left")
            or join.args.get("using")
            or not (on is None or (isinstance(on, sg.Boolean) and on.this))
        ):
            raise refused("such a join with the items of a list", join.sql("spark"), _LATERAL)
        return spread(left, item, outer=how == "left"), wanted
    if isinstance(item, sg.Table) and item.args.get("version") is not None:
        version = _version(item)
        item = item.copy()
        item.set("version", None)
    table = named_relation(item, env) if isinstance(item, sg.Table) and isinstance(item.this, sg.Identifier) else None
    alias = item.alias or item.name
    parts = conjuncts(join.args.get("on"))
    if isinstance(table, StaticTable):
        columns = _columns_of(table, item)
    else:
        right = source(item, env, inner)
        columns = right.columns
    parts += [_equal(name, left.columns, columns, join) for name in join.args.get("using") or ()]
    in_where = [p for p in wanted if _joins(p, left, attrs.evolve(left, columns=(*left.columns, *columns)))]
    if how == "inner" and (version is None or not parts):  # of a version other keys would find other ones
        wanted = [p for p in wanted if all(p is not q for q in in_where)]
        parts += in_where
    elif version is None and not isinstance(table, StaticTable):
        check_bound_in_where(left, right, parts, in_where, how)
    if isinstance(table, StaticTable):
        if version is not None:
            raise refused("AS OF for a table that does not change", join.sql("spark"), VALIDITY)
        made = looked_up(left, table, alias, parts, how, join)
    else:
        made = joined(left, right, parts, how, version, env)
    using = [i.name.lower() for i in join.args.get("using") or ()]
    if using and how in ("right", "full"):
        raise refused(f"USING in a {how} join", join.sql("spark"), "write ON, and COALESCE(a.id, b.id)")
    return _once(made, using, {c.table for c in columns}), wanted


def _once(rows: Relation, using: list[str], tables: set[str | None]) -> Relation:
    """Return the columns of USING once and first among ``*``, as in Spark: those of the left side, not of the right
    `tables`.
    """
    columns = [attrs.evolve(c, hidden=c.hidden or (c.table in tables and c.name.lower() in using)) for c in rows.columns]
    first = [c for name in using for c in columns if c.name.lower() == name and not c.hidden]
    return attrs.evolve(rows, columns=(*first, *(c for c in columns if not any(c is f for f in first))))


def _joins(node: sg.Expression, left: Relation, both: Relation) -> bool:
    """Return whether a part of WHERE is about both sides, and no table that is joined later."""
    if node.find(sg.Query) is not None:
        return False
    try:
        own = [any(both.find(c)[0] is k for k in left.columns) for c in node.find_all(sg.Column)]
    except PlanError:
        return False
    return any(own) and not all(own)


def _equal(name: sg.Identifier, left: tuple[Column, ...], right: tuple[Column, ...], join: sg.Join) -> sg.Expression:
    """Return what USING says of a column."""
    tables = []
    for columns in (left, right):
        table = next((c.table for c in columns if c.name.lower() == name.name.lower() and not c.hidden), None)
        if table is None:
            raise refused(
                "USING a column that one side does not have, or has without a table's name", join.sql("spark"), "write ON"
            )
        tables.append(table)
    one, other = (sg.column(name.copy(), table=t, quoted=True) for t in tables)
    return sg.EQ(this=one, expression=other)


def _version(table: sg.Table) -> sg.Expression:
    version = table.args["version"]
    time: sg.Expression | None = version.expression
    if version.args.get("kind") != "AS OF" or version.name != "TIMESTAMP" or time is None:
        raise refused("this version of a table", table.sql("spark"), "write JOIN b FOR SYSTEM_TIME AS OF a.ts ON a.id = b.id")
    return time


def _exists(rows: Relation, wanted: list[sg.Expression], env: Env, inner: Inner) -> tuple[Relation, list[sg.Expression]]:
    """Rows with a partner (EXISTS, and IN for a table) or without one (NOT EXISTS)."""
    rest: list[sg.Expression] = []
    for part in wanted:
        anti = isinstance(part, sg.Not)
        node = part.this.unnest() if isinstance(part, sg.Not) else part
        member = isinstance(node, sg.In) and node.args.get("query") is not None
        if not member and (not isinstance(node, sg.Exists) or node.args.get("expression") is not None):  # of elements of a list
            rest.append(part)
            continue
        tree = query_of(node.args["query"] if member else node.this)
        clause = None if tree is None else clause_of(tree, "from")
        if not isinstance(tree, sg.Select) or clause is None:
            raise refused("this EXISTS", node.sql("spark"), EXISTS)
        only(tree, frozenset({"expressions", "from", "from_", "where"}))
        named = clause.this if isinstance(clause.this, sg.Table) and isinstance(clause.this.this, sg.Identifier) else None
        table = None if named is None else named_relation(named, env)
        if member and (anti or not isinstance(table, StaticTable) or len(tree.expressions) != 1):
            raise refused("a query inside of a condition", part.sql("spark"), NOT_EXISTS if anti else EXISTS)
        where = tree.args.get("where")
        parts = conjuncts(None if where is None else where.this)
        how: How = "anti" if anti else "semi"
        if not isinstance(table, StaticTable):
            right = source(clause.this, env, inner)
            rows = joined(rows, right, [_own_first(p, right.columns) for p in parts], how, None, env)
            continue
        own = _columns_of(table, clause.this)
        parts = [_own_first(p, own) for p in parts]
        if member:
            outer = tuple(c for c in rows.columns if c.table is not None)
            key = _own_first(tree.expressions[0].unalias(), own)
            parts.append(sg.EQ(this=_own_first(node.this, outer), expression=key))
        rows = looked_up(rows, table, clause.this.alias_or_name, parts, how, node)
    return rows, rest


def _columns_of(table: StaticTable, node: sg.Expression) -> tuple[Column, ...]:
    return tuple(Column(node.alias_or_name, n, n) for n in table.schema.names)


def source(node: sg.Expression, env: Env, inner: Inner) -> Relation:
    """Return the rows of one table, query or window function."""
    if isinstance(node, sg.Subquery):
        return _query(node, env, inner)
    if isinstance(node, sg.Table) and isinstance(node.this, sg.Identifier):
        return _table(node, env)
    if isinstance(node, sg.Table) and isinstance(node.this, sg.Anonymous):
        return _function(node, env, inner)
    raise refused("this in FROM", node.sql("spark"), _BRACKETS)


def _query(node: sg.Subquery, env: Env, inner: Inner) -> Relation:
    tree = query_of(node.this)
    if tree is None or node.args.get("joins"):
        raise refused("brackets around a join in FROM", node.sql("spark"), "leave the brackets out, or write a query in them")
    only(node, frozenset({"this", "alias"}))
    _no_renaming(node)
    rows = inner(tree, env)
    return rows.named(node.alias) if node.alias else rows


def _no_renaming(node: sg.Expression) -> None:
    if node.alias_column_names:
        raise refused("renaming columns in FROM", node.sql("spark"), "name them with AS in a query in brackets")


def named_relation(node: sg.Table, env: Env) -> RegisteredStream | StaticTable | Relation:
    """Return the stream of a name in FROM."""
    only(node, frozenset({"this", "alias", "version"}))
    _no_renaming(node)
    name = node.name.lower()
    known = env.queries.get(name) or env.tables.get(name)
    if known is None:
        raise unknown_table(node.name, [*(t.name for t in env.tables.values()), *env.queries])
    return known


def _table(node: sg.Table, env: Env) -> Relation:
    table = named_relation(node, env)
    if node.args.get("version"):
        hint = "leave it out: a stream has one version; FOR SYSTEM_TIME AS OF a.ts belongs to the right side of a JOIN"
        raise refused("AS OF", node.sql("spark"), hint)
    if isinstance(table, Relation):
        return table.named(node.alias or node.name)
    if isinstance(table, StaticTable):
        hint = f"look rows of a stream up in it: FROM events JOIN {table.name} ON events.id = {table.name}.id"
        raise PlanError("a table that does not change is not a stream", got=table.name, hint=hint)
    return rows_of_table(table, node.alias or table.name)


def rows_of_table(table: RegisteredStream, alias: str) -> Relation:
    """Return the rows of a registered stream."""
    names = [n for n in table.stream.schema.names if table.event_time or n != OP]
    columns = (Column(alias, n, n, "time" if n == table.event_time else None) for n in names)
    return Relation(table.stream, tuple(columns), table)


def _function(node: sg.Table, env: Env, inner: Inner) -> Relation:
    """``TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), size))``, and the same without TABLE around."""
    only(node, frozenset({"this", "alias"}))
    _no_renaming(node)
    call = node.this
    if call.name.lower() == MATCH:
        rows = _data(call.expressions[0], env, inner)
        return patterns.matched(call, rows, node.alias or None, env)
    if call.name.upper() == "TABLE" and len(call.expressions) == 1:
        call = call.expressions[0]
    kind = _FUNCTIONS.get(call.name.lower()) if isinstance(call, sg.Anonymous) else None
    if kind is None:
        raise refused("a function in FROM", node.sql("spark"), f"{_BRACKETS}; window functions are {', '.join(_FUNCTIONS)}")
    data, item, partition, lengths = _arguments(kind, call)
    rows = _data(data, env, inner)
    if rows.ranking is not None:
        raise rows.ranking.unbounded()
    if rows.window is not None and rows.pending:
        raise refused("a window function over another", node.sql("spark"), "group by the inner windows first")
    if not isinstance(item, sg.Anonymous) or item.name.lower() != "descriptor" or len(item.expressions) != 1:
        raise _no_call(kind, call)
    check_time(rows.resolved(item.expressions[0]), rows.times, call.name.lower())
    rows = _with_bounds(rows, call_of(kind, lengths, call.name.lower()), call)
    named = tuple(_name_of(rows.resolved(p.this if isinstance(p, sg.Paren) else p)) for p in partition)
    return attrs.evolve(rows, partition=named).named(node.alias) if node.alias else attrs.evolve(rows, partition=named)


def _arguments(kind: Kind, call: sg.Anonymous) -> tuple[sg.Expression, sg.Expression, list[sg.Expression], list[sg.Expression]]:
    """Table, time, columns to divide by, and lengths of a window function, by place or by name."""
    names = ("data", "timecol", *LENGTHS[kind], *(() if kind == "session" else ("offset", "time_zone")))
    given: dict[str, sg.Expression] = {}
    partition: list[sg.Expression] = []
    for node in call.expressions:
        if isinstance(node, sg.Anonymous) and node.name.lower() == PARTITION and kind == "session":
            partition = node.expressions
        elif isinstance(node, sg.Kwarg):
            if node.this.name.lower() in given:
                raise _no_call(kind, call)
            given[node.this.name.lower()] = node.expression
        elif len(given) < len(names):
            given[names[len(given)]] = node
        else:
            raise _no_call(kind, call)
    if set(given) - set(names) or not set(names) - {"offset", "time_zone"} <= set(given):
        raise _no_call(kind, call)
    if "time_zone" in given and not is_zone(given["time_zone"]):
        raise _no_call(kind, call)
    return given["data"], given["timecol"], partition, [given[n] for n in names[2:] if n in given]


def _name_of(node: sg.Expression) -> str:
    """Return what a key is called where PARTITION BY and GROUP BY are compared."""
    return node.name if isinstance(node, sg.Column) else node.sql("spark")


def _no_call(kind: Kind, call: sg.Expression) -> PlanError:
    lengths = ", ".join(f"INTERVAL '1' MINUTE /* {n} */" for n in LENGTHS[kind])
    by = " PARTITION BY user" if kind == "session" else ""
    hint = f"write TABLE({kind.upper()}(TABLE events{by}, DESCRIPTOR(ts), {lengths}))"
    return PlanError(f"the arguments of {kind.upper()} cannot be read", got=call.sql("spark"), hint=hint)


def _data(node: sg.Expression, env: Env, inner: Inner) -> Relation:
    if isinstance(node, sg.Column) and not node.table:
        return _table(sg.Table(this=node.this.copy()), env)
    tree = query_of(node)
    if tree is None:
        raise refused("this as the table of a window function", node.sql("spark"), "write TABLE events, or a query in brackets")
    return inner(tree, env)


def _with_bounds(rows: Relation, window: WindowCall, call: sg.Expression) -> Relation:
    """Rows with the columns a window function adds, which are known after grouping."""
    added = {"window_start": "start", "window_end": "end", "window_time": "time"}
    taken = [c.name for c in rows.visible if c.name.lower() in added]
    if taken:
        then = "a window function adds its own"
        hint = f"name them otherwise with AS in a query in brackets: {call.name.upper()}((SELECT ... FROM ...), ...)"
        raise PlanError("the table has columns of these names already", got=", ".join(taken), then=then, hint=hint)
    table = next((c.table for c in rows.visible), None)
    plain = tuple(attrs.evolve(c, role=None) if c.role in ("start", "end") else c for c in rows.columns)
    plain = tuple(attrs.evolve(c, name="\0time") if c.hidden and c.name.lower() in added else c for c in plain)
    bounds = (Column(table, name, None, role) for name, role in added.items())  # type: ignore[arg-type]
    return attrs.evolve(rows, columns=(*plain, *bounds), window=window)


def _own_first(node: sg.Expression, own: tuple[Column, ...]) -> sg.Expression:
    """Return a condition of an inner query, whose names mean its `own` columns before those of the query around it."""
    tables = {c.name.lower(): c.table for c in own if not c.hidden}

    def step(part: sg.Expression) -> sg.Expression:
        table = tables.get(part.name.lower()) if isinstance(part, sg.Column) and not part.table else None
        return part if table is None else sg.column(part.this.copy(), table=table, quoted=True)

    return node.transform(step)
