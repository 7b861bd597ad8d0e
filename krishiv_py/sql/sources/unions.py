"""UNION ALL: rows of several streams as one, each with its own watermark."""

from __future__ import annotations

import attrs
from sqlglot import expressions as sg

from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.union import union_of
from krishiv_py.errors import PlanError
from krishiv_py.plan.expressions.expr import Alias, col
from krishiv_py.plan.names import free
from krishiv_py.plan.options.late import one_handler
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.sql.catalog import Registered
from krishiv_py.sql.env import Env, Inner
from krishiv_py.sql.scope import Column, Relation
from krishiv_py.sql.text.statements import only, query_of, refused


def united(tree: sg.SetOperation, env: Env, inner: Inner) -> Relation:
    """The rows of all queries between which UNION ALL stands.

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
    times = [at for at in range(len(names)) if all(rows.visible[at].role == "time" for rows in parts)]
    streams: dict[str, Stream] = {}
    for rows in parts:
        assert isinstance(rows.stream, Stream)
        picked = [Alias(col(c.actual), n) for c, n in zip(rows.visible, names, strict=True) if c.actual is not None]
        streams[free("a" if rows.table is None else rows.table.name, streams)] = rows.stream.select(*picked)
    source = free("source", names)
    stream = union_of(streams, source, first.stream._runner)
    columns = tuple(Column(None, n, n, "time" if at in times else None) for at, n in enumerate(names))
    if not times:
        return Relation(stream, columns)
    return Relation(stream, columns, _table(parts, list(streams), stream, names[times[0]], source, env))


def _queries(tree: sg.SetOperation) -> list[sg.Select | sg.SetOperation]:
    """The queries in their order, without recursion on the left."""
    found: list[sg.Select | sg.SetOperation] = []
    at: object = tree
    while isinstance(at, sg.SetOperation):
        if not isinstance(at, sg.Union) or at.args.get("distinct"):
            name = f"{at.key.upper()}{' DISTINCT' if isinstance(at, sg.Union) else ''}"
            raise refused(name, at.sql("spark"), "write UNION ALL, and SELECT DISTINCT around it")
        only(at, frozenset({"this", "expression", "with", "with_"}))
        right = query_of(at.expression)
        if right is None:
            raise refused("this in UNION ALL", at.sql("spark"), "write queries")
        found.append(right)
        at = query_of(at.this)
    if not isinstance(at, sg.Select):
        raise refused("this in UNION ALL", tree.sql("spark"), "write queries")
    found.append(at)
    return found[::-1]


def _check(rows: Relation, first: Relation, tree: sg.SetOperation) -> None:
    if not isinstance(rows.stream, Stream) or rows.pending or rows.ranking is not None:
        raise PlanError(
            "UNION ALL is for rows of sources as they are",
            got=tree.sql("spark"),
            then="results of stages have watermarks of their own",
            hint="unite the streams first, and group, join or rank in a query around UNION ALL",
        )
    ours, theirs = len(first.visible), len(rows.visible)
    if ours != theirs:
        hint = f"select {ours} columns in each of them"
        raise PlanError("the queries of UNION ALL have other columns", got=f"{ours} and {theirs}", hint=hint)


def _table(parts: list[Relation], names: list[str], stream: Stream, time: str, source: str, env: Env) -> Registered:
    """The union as a table: its watermark is the least of theirs."""
    specs: list[tuple[str, WatermarkSpec]] = []
    for rows, name in zip(parts, names, strict=True):
        assert rows.table is not None
        spec = rows.table.spec
        if isinstance(spec, MultiSourceWatermarkSpec):
            raise refused("UNION ALL over a stream of several sources", rows.table.name, "unite all of them with session.union")
        if spec is None and env.lag_us is None:
            rows.timed(rows.stream, None)  # says what is missing
        lag_us = env.lag_us if env.lag_us is not None or spec is None else spec.lag_us
        specs.append((name, attrs.evolve(spec or WatermarkSpec(0), lag_us=lag_us or 0)))
    options = {repr(rows.table.explicit) for rows in parts if rows.table is not None}
    if len(options) > 1:
        raise PlanError(
            "the streams of UNION ALL have options that differ", got=", ".join(names), hint="set them on what sql() returns"
        )
    first = parts[0].table
    assert first is not None
    handlers = [rows.table.late_handler for rows in parts if rows.table is not None]
    late = one_handler(handlers, "the streams of UNION ALL", "register the streams with one handler, or without")
    spec = MultiSourceWatermarkSpec(tuple(specs))
    return Registered("union", stream, time, spec, source, first.explicit, late)
