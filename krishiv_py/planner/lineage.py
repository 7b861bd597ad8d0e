"""Trace columns of outputs to columns of sources, by the logical plan: nothing is run for it.

Where a function of the user makes columns, each of them may come from every column that the function gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors.lookup_table import LookupTable
from krishiv_py.kernels.columns.steps import Unnest
from krishiv_py.kernels.joins.lookup import Lookup
from krishiv_py.plan.expressions.expr import Col, Expr, columns_of, unnamed
from krishiv_py.plan.nodes import Filter, Node, Prefix, Project, SourceNode, Stage, UnionSource, prefix_of, source_of
from krishiv_py.planner.hidden import row_schema
from krishiv_py.planner.physical import OutputPlan, PhysicalPlan, lookups, table_of

How: TypeAlias = Literal["IDENTITY", "TRANSFORMATION", "AGGREGATION", "CONDITIONAL", "FILTER", "GROUP_BY", "JOIN", "WINDOW"]
"""The ways a column goes into another: the first three by its values, the others by which rows or values there are."""


@attrs.frozen
class Origin:
    """A column of a source, and how it goes into a column of an output, or into which rows this has.

    Attributes
    ----------
    source : Source or LookupTable
        The node of the plan, or the table of a lookup join.
    column : str
        Its column.
    how : str
        In the words of OpenLineage.
    """

    source: SourceNode | LookupTable
    column: str
    how: How

    def through(self, how: How) -> Origin:
        """Return the origin of what is made of the column: what was aggregated once stays so."""
        weaker = how == "IDENTITY" or (how == "TRANSFORMATION" and self.how != "IDENTITY")
        return self if weaker else attrs.evolve(self, how=how)


Origins: TypeAlias = "frozenset[Origin]"
_NONE: Origins = frozenset()


@attrs.frozen
class Lineage:
    """Says where columns come from, and what decided which rows there are."""

    columns: Mapping[str, Origins]
    rows: Origins = _NONE

    @property
    def every(self) -> Origins:
        """Return the origins of all columns, and of which rows there are."""
        return self.rows.union(*self.columns.values())

    def of(self, names: Iterable[str], how: How) -> Origins:
        """Return the origins of columns, as something goes on that is made of them."""
        return frozenset(origin.through(how) for name in names for origin in self.columns.get(name, _NONE))

    def through(self, expr: Expr) -> Origins:
        """Return the origins of an expression."""
        bare = unnamed(expr)
        return self.of(columns_of(bare), "IDENTITY" if isinstance(bare, Col) else "TRANSFORMATION")

    def after(self, step: Prefix) -> Lineage:
        """Return the lineage of the rows after a step without state."""
        if isinstance(step, Filter):
            return attrs.evolve(self, rows=self.rows | self.of(columns_of(step.condition), "FILTER"))
        if isinstance(step, Project):
            made = {name: self.through(expr) for name, expr in step.columns}
            return attrs.evolve(self, columns=made | {name: self.columns[name] for name in step.along([*self.columns])})
        along = step.along([*self.columns])
        function, names = step.function, [*step.schema.names, *along]
        every = frozenset(self.columns)
        kept, read, decides = frozenset[str](), every, self.of(every, "FILTER")
        if isinstance(function, Lookup):
            kept, read = every - {name for _, name in function.columns}, function.reads
            decides = self.of(read, "JOIN")
        elif isinstance(function, Unnest):
            kept, read = every - {function.column}, frozenset([function.column])
            decides = self.of(read, "FILTER")
        elif step.shown is not None:  # it gives a row for each row
            kept, read, decides = frozenset(along), frozenset(step.shown), _NONE
        made, rows = dict.fromkeys(names, self.of(read, "TRANSFORMATION")), self.rows | decides
        if isinstance(function, Lookup) and (table := table_of(function)) is not None:
            made |= {name: frozenset([Origin(table, column, "IDENTITY")]) for column, name in function.columns}
            rows |= frozenset(Origin(table, column, "JOIN") for column in function.looks_at)
        return Lineage({name: self.columns.get(name, _NONE) if name in kept else made[name] for name in names}, rows)


def lineage(plan: PhysicalPlan, output: OutputPlan) -> Lineage:
    """Return the lineage of an output of a plan."""
    stage = plan.stages[output.stage]
    results = _StageLineages().results(stage.node)
    for step in output.steps if plan.named else stage.spec.after:
        results = results.after(step)
    return Lineage({name: results.columns.get(name, _NONE) for name in output.schema.names}, results.rows)


def needed(plan: PhysicalPlan) -> Origins:
    """Return the columns that a plan needs to give the same again: those of results and rows, and of its watermarks."""
    known, origins = _StageLineages(), frozenset[Origin]().union(*(lineage(plan, output).every for output in plan.outputs))
    for stage in plan.stages:
        names = [name for name in (stage.spec.time_column, stage.spec.source_column) if name]
        origins |= known.rows(stage.node.input).of(names, "WINDOW")
    return origins


def late_lineage(stage: Stage, schema: pa.Schema) -> Lineage:
    """Return the lineage of the late rows of a stage, whose columns are those of its rows and more."""
    rows = _StageLineages().rows(stage.input)
    return Lineage({name: rows.columns.get(name, _NONE) for name in schema.names}, rows.rows)


def sources_of(plan: PhysicalPlan) -> tuple[SourceNode | LookupTable, ...]:
    """Return what a plan reads, each once: its sources as its stages read them, then the tables of lookup joins."""
    sources: dict[int, SourceNode] = {}

    def look(node: Node) -> None:
        source = source_of(node)
        if isinstance(source, Stage):
            look(source.input)
        elif isinstance(source, UnionSource):
            for _, part in source.parts:
                look(part)
        else:
            sources.setdefault(id(source), source)

    for stage in plan.stages:
        look(stage.node.input)
    tables = {id(table): table for lookup in lookups(plan) if (table := table_of(lookup)) is not None}
    return (*sources.values(), *tables.values())


@attrs.define
class _StageLineages:
    """The lineage of stages, each worked out once though several read it."""

    stages: dict[int, Lineage] = attrs.field(factory=dict)

    def rows(self, node: Node) -> Lineage:
        """Return the lineage of the rows of a node."""
        rows = self._bottom(source_of(node))
        for step in prefix_of(node):
            rows = rows.after(step)
        return rows

    def _bottom(self, source: SourceNode) -> Lineage:
        if isinstance(source, Stage):
            return self.results(source)
        if not isinstance(source, UnionSource):
            return Lineage({name: frozenset([Origin(source, name, "IDENTITY")]) for name in source.schema.names})
        parts = [self.rows(part) for _, part in source.parts]
        columns = {n: frozenset(o for p in parts for o in p.columns.get(n, _NONE)) for n in source.schema.names}
        return Lineage(columns, frozenset(origin for part in parts for origin in part.rows))

    def results(self, stage: Stage) -> Lineage:
        """Return the lineage of the results of a stage, with the columns that it hands on to the next."""
        if id(stage) not in self.stages:
            self.stages[id(stage)] = self._results(stage)
        return self.stages[id(stage)]

    def _results(self, stage: Stage) -> Lineage:
        rows, operation, time = self.rows(stage.input), stage.operation, stage.input.column
        decided = rows.rows | rows.of(operation.keys, "JOIN" if operation.nature.joins else "GROUP_BY")
        if time and not operation.nature.stateless:
            decided |= rows.of([name for name in (time, operation.extent.gap_column) if name], "WINDOW")
        timed, every = rows.of([time], "TRANSFORMATION"), rows.of(rows.columns, "TRANSFORMATION")
        columns: dict[str, Origins] = {name: rows.columns.get(name, _NONE) for name in operation.keys}
        columns |= {name: timed for name in ("window_start", "window_end")}
        given = operation.result_fields(row_schema(stage.input), pa.null())
        for field in given or ():
            if field.name not in columns:
                columns[field.name] = _of_row(field.name, rows, timed if operation.nature.joins else every)
        if given is None:
            for call in operation.aggs:
                values = rows.of(columns_of(call.arg) - {"*"}, "AGGREGATION")
                where = frozenset[str]() if call.where is None else columns_of(call.where)
                columns[call.output_name] = values | rows.of(where, "CONDITIONAL")
            columns |= {n: rows.columns.get(n, _NONE) for n in operation.carried(row_schema(stage.input))}
        if operation.condition is not None:
            decided |= Lineage(columns).of(columns_of(operation.condition), "FILTER")
        if operation.result_columns is not None:
            window = Lineage(columns)
            columns = {name: window.through(expr) for name, expr in operation.result_columns}
        return Lineage({stage.time_column: timed} | columns, decided)


def _of_row(name: str, rows: Lineage, otherwise: Origins) -> Origins:
    """Return the origins of a column of results that is one of a row, of either row of a pair, or made of the row."""
    for known in (name, name.removeprefix("left_"), name.removeprefix("right_")):
        if known in rows.columns:
            return rows.columns[known]
    return otherwise
