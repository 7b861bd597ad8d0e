"""The columns of results that nobody named: their event time, what their order goes by, and which of them are withdrawn.

Steps are in the plan as they were written. Here they get these columns, of those that are needed::

    written        Stage ── filter(count > 1) ── select(user)
    followed       Stage ── filter(count > 1) ── select(user, window_time, order)       the next stage reads them (carrying)
    alone          Stage ── filter(count > 1) ── select(user)                           no stage follows (alone)
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Sequence

import attrs
import pyarrow as pa

from krishiv_py.connectors import fit
from krishiv_py.connectors.frames import arrow_table
from krishiv_py.errors import OrderError, PlanError, SchemaError
from krishiv_py.kernels.columns.steps import step_schema
from krishiv_py.kernels.joins import lookup
from krishiv_py.plan.expressions.expr import Cast, Col, Expr, Lit, col, columns_of
from krishiv_py.plan.nodes import BatchFunction, Filter, Node, Prefix, Project, Stage, UnionSource, prefix_of, source_of
from krishiv_py.plan.schema import in_order_of, order_name


def carrying(node: Node) -> Node:
    """Return a `node` whose steps hand on what a stage that reads it needs, where its rows are results.

    Raises
    ------
    PlanError
        For a column of a user's that is called like one of these.
    """
    source = source_of(node)
    if isinstance(source, Stage):
        hidden = [field for field in source.schema if field.name in hidden_names(source)]
        return _rebuilt(source, prefix_of(node), hidden)
    if isinstance(source, UnionSource) and any(isinstance(source_of(part), Stage) for _, part in source.parts):
        union, order = _both(source)
        return _rebuilt(union, prefix_of(node), order)
    return node


def row_schema(node: Node) -> pa.Schema:
    """Return the schema of the rows of a `node`, after its stateless steps."""
    schema = source_of(node).schema
    for step in prefix_of(node):
        schema = step_schema(step, schema)
    return schema


def hidden_names(stage: Stage) -> tuple[str, ...]:
    """Return the columns of a stage's results that go along although nobody names them."""
    full = stage.schema.names
    op = ("op",) if "op" in full and stage.options.emit_mode == "retractions" else ()
    return (*op, *([stage.time_column] if stage.time_column in full else []), *in_order_of(full))


def _rebuilt(bottom: Node, steps: Iterable[Prefix], hidden: Sequence[pa.Field]) -> Node:
    for step in steps:
        bottom = attrs.evolve(_handing_on(step, hidden), input=bottom)
    return bottom


def _handing_on(step: Prefix, hidden: Sequence[pa.Field]) -> Prefix:
    """Return a step over results that hands on `hidden` columns, too."""
    if isinstance(step, Filter):
        return step
    if isinstance(step, Project):
        refuse_hidden(step, [field.name for field in hidden])
        computed = dict(step.columns)
        more = tuple((field.name, col(field.name)) for field in hidden if field.name not in computed)
        return attrs.evolve(step, columns=(*step.columns, *more))
    missing = [field for field in hidden if field.name not in step.schema.names]
    function = step.function
    if isinstance(function, KeepingColumns):
        function = attrs.evolve(function, kept=tuple(field.name for field in missing))
    return attrs.evolve(step, function=function, schema=pa.schema([*step.schema, *missing]))


def refuse_hidden(step: Project, hidden: Collection[str]) -> None:
    """Refuse a step that computes a column called like a `hidden` one.

    Raises
    ------
    PlanError
        With another name as the hint.
    """
    for name, expr in step.columns:
        if name in hidden and not _carries(name, expr):
            raise reserved(name)


def reserved(name: str) -> PlanError:
    """Return the error for a column of a user's that is called like one of these."""
    then = "the next stage would take another value for it"
    hint = "give the new column another name"
    return PlanError(f"{name} is the library's own column of results", got=name, then=then, hint=hint)


def _both(union: UnionSource) -> tuple[UnionSource, list[pa.Field]]:
    """Return a join's rows of both sides with what the order of results goes by, those of the left side first."""
    below = [carrying(part.input) if isinstance(part, Project) else part for _, part in union.parts]
    given = [row_schema(node) for node in below]
    names = [in_order_of(rows.names) for rows in given]
    of_sides = [(side, name) for side, own in enumerate(names) for name in own]
    order = [pa.field(order_name(n), given[side].field(name).type) for n, (side, name) in enumerate(of_sides)]
    parts = []
    for side, ((name, part), node) in enumerate(zip(union.parts, below, strict=True)):
        assert isinstance(part, Project)
        own: list[tuple[str, Expr]] = [
            (field.name, Col(theirs) if of_side == side else Cast(Lit(None), field.type))
            for field, (of_side, theirs) in zip(order, of_sides, strict=True)
        ]
        parts.append((name, attrs.evolve(part, input=node, columns=(*part.columns, *own))))
    return attrs.evolve(union, parts=tuple(parts), schema=pa.schema([*union.schema, *order])), order


def alone(steps: Sequence[Prefix], stage: Stage, results: pa.Schema, names: tuple[str, ...]) -> tuple[Prefix, ...]:
    """Return the `steps` as they run over the `results` of a `stage` that no other stage follows.

    They end with the columns `names`. The event time is computed where a step reads it, or its author named it.
    """
    time, shown = stage.time_column, stage.time_column in names
    adds_time = not stage.time_of_row and (shown or any(time in _read(step) for step in steps))
    timed = adds_time or stage.time_of_row
    above: list[Prefix] = [_timed(stage, results)] if adds_time else []
    hidden = [stage.schema.field(name) for name in hidden_names(stage) if name == "op" or (name == time and timed)]
    above += [_handing_on(step if timed else without(step, {time}), hidden) for step in steps]
    if timed and not shown:
        above.append(Project(Node(), tuple((n, col(n)) for n in names)))
    return tuple(above)


def _carries(name: str, expr: Expr) -> bool:
    """Return whether a column of a step is handed on as it is."""
    return isinstance(expr, Col) and expr.name == name


def _read(step: Prefix) -> frozenset[str]:
    """Return the columns a step reads, besides those that it hands on as they are."""
    if isinstance(step, Filter):
        return columns_of(step.condition)
    if isinstance(step, Project):
        return frozenset(n for name, e in step.columns if not _carries(name, e) for n in columns_of(e))
    if isinstance(step.function, KeepingColumns):
        return frozenset(step.function.shown)
    return step.function.reads if isinstance(step.function, lookup.Lookup) else frozenset()


def without(step: Prefix, hidden: Collection[str]) -> Prefix:
    """Return a step that does not hand on `hidden` columns."""
    if isinstance(step, Filter):
        return step
    if isinstance(step, Project):
        kept = tuple((n, e) for n, e in step.columns if n not in hidden or not _carries(n, e))
        return attrs.evolve(step, columns=kept)
    return attrs.evolve(step, schema=pa.schema([f for f in step.schema if f.name not in hidden]))


def _timed(stage: Stage, results: pa.Schema) -> Prefix:
    """Return a step that adds the event time of results (SEMANTICS §7.1)."""
    if stage.time is None:
        then = "windows that go by the number of rows have no event time"
        hint = "leave it out, or use windows by time"
        raise OrderError(f"{stage.time_column} is not known", got="a count window", then=then, hint=hint)
    in_ms = pa.types.is_integer(results.field(stage.time.column).type)
    before_us = stage.time.before_us(1_000 if in_ms else 1)
    end, before = col(stage.time.column), before_us // 1_000 if in_ms else dt.timedelta(microseconds=before_us)
    own = [(n, col(n)) for n in results.names]
    return Project(Node(), (*own, (stage.time_column, end - before if before else end)))


@attrs.frozen(eq=False)
class KeepingColumns:
    """A function over batches that is shown the columns its author knows; others are put next to what it returns."""

    function: BatchFunction
    gives: pa.Schema
    shown: tuple[str, ...]
    kept: tuple[str, ...] = ()

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        """Call it."""
        given = self.function(batch.select(list(self.shown)))
        table = arrow_table(given)
        if table is None or table.num_rows != batch.num_rows:
            raise SchemaError(
                "map_batches over results must return one row for each row",
                got=f"{getattr(table, 'num_rows', type(given).__name__)} for {batch.num_rows}",
                then="the event time of the others would not be known",
                hint="filter with .filter(...), or collect the results and map them then",
            )
        try:
            table = fit.fit_table(table, self.gives, fit.RETURNED)
        except fit.MisfitError as problem:
            raise problem.error(f"map_batches({self.__name__}) does not return what it declares") from None
        for name in self.kept:
            table = table.append_column(batch.schema.field(name), batch.column(name))
        return table
