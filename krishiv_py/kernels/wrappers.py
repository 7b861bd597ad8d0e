"""Operators around operators: firing before rows are taken in, steps over results, nulls where rows lack.

Fires windows that are over before a batch is added (SEMANTICS §4.2, rule "window").

Under this rule a row may be late for one of its windows and on time for another, or late for a session unless that has ended
without it. A query that waits for input has already run an empty batch, which fired the windows that were over. A query whose
input never pauses has not run it. This wrapper runs the missing empty step first, so both queries give the same results.
"""

from __future__ import annotations

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import with_column
from krishiv_py.kernels.changes.net import without_unchanged
from krishiv_py.kernels.columns.layout import Layout, handed_columns
from krishiv_py.kernels.columns.steps import prefixed
from krishiv_py.kernels.results import StepResult, WindowOperator
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket, Section
from krishiv_py.plan.aggregates.selections import WholeSince
from krishiv_py.plan.changes import OP, Changelog, RunningAggregation
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.expressions.expr import Col
from krishiv_py.plan.nodes import Filter, Node, Project


class WrappingOperator:
    """An operator around another one: does what that does."""

    def __init__(self, spec: OperatorSpec, inner: WindowOperator) -> None:
        self.spec = spec
        self.inner = inner

    def combine(self, rows: pa.Table) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return self.inner.combine(rows)

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return self.inner.state(bucket)


class AroundOperator(WrappingOperator):
    """An operator that leaves state alone and changes results only."""

    def __init__(self, spec: OperatorSpec, inner: WindowOperator) -> None:
        super().__init__(spec, inner)
        self.schema = Layout(spec).result_schema

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        done = self.inner.step(bucket, chunks, moment)
        return attrs.evolve(done, results=self.given(done.results))

    def given(self, results: pa.Table) -> pa.Table:
        """Return results of the inner operator as they leave."""
        return self.changed(results) if results.num_rows else self.schema.empty_table()

    def changed(self, results: pa.Table) -> pa.Table:
        """Return the results, of which there are some, as they leave."""
        raise NotImplementedError


class ProjectedOperator(AroundOperator):
    """An operator whose results become the columns of the plan last of all, so that no kernel has to know."""

    def __init__(self, spec: OperatorSpec, inner: WindowOperator) -> None:
        super().__init__(spec, inner)
        assert spec.output is not None
        self.renamed = {expr.name: name for name, expr in reversed(spec.output) if isinstance(expr, Col)}
        self.layout = Layout(attrs.evolve(spec, output=None))
        """Of the results before they become these columns."""
        names = self.layout.result_schema.names
        first = len(names) - (len(self.schema) - len(spec.output))  # of the mark of changes, panes, what is handed on
        self.picked = [names.index(expr.name) for _, expr in spec.output if isinstance(expr, Col)]
        plain = len(self.picked) == len(spec.output)
        self.picked += range(first, len(names))
        more = ((own, Col(name)) for own, name in zip(self.schema.names[len(spec.output) :], names[first:], strict=True))
        self.computes = None if plain else Project(Node(), (*spec.output, *more))
        """The step that computes columns, where they are not all there."""
        left_out = {*range(first)} - {*self.picked}
        self.nets = _gives_changes(spec, self.schema) and (not plain or bool(left_out))

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`; columns that are results have their names."""
        return self.named(self.inner.state(bucket))

    def named(self, rows: pa.Table) -> pa.Table:
        """Return rows of state in which columns that are results have their names."""
        names = [self.renamed.get(n, n) for n in rows.schema.names]
        return rows.rename_columns(names) if len(set(names)) == len(names) else rows

    def changed(self, results: pa.Table) -> pa.Table:
        """Return the results as the columns of the plan."""
        if self.computes is None:
            given = pa.Table.from_arrays([results.column(i) for i in self.picked], schema=self.schema)
        else:
            given = prefixed((self.computes,), results).cast(self.schema)
        return without_unchanged(given) if self.nets else given


class HandingOnOperator(AroundOperator):
    """An operator whose results are the rows of a following stage."""

    def changed(self, results: pa.Table) -> pa.Table:
        """See :mod:`krishiv_py.kernels.columns.layout`."""
        return pa.Table.from_arrays([*results.columns, *handed_columns(self.spec, results)], schema=self.schema)


class StepsAfterOperator(AroundOperator):
    """An operator whose results go through stateless steps."""

    def __init__(self, spec: OperatorSpec, inner: WindowOperator) -> None:
        super().__init__(spec, inner)
        self.nets = _gives_changes(spec, self.schema) and not all(isinstance(step, Filter) for step in spec.after)

    def changed(self, results: pa.Table) -> pa.Table:
        """Return the results after the steps."""
        given = prefixed(self.spec.after, results).cast(self.schema)
        return without_unchanged(given) if self.nets else given


def _gives_changes(spec: OperatorSpec, schema: pa.Schema) -> bool:
    """Return whether results are the net change of a table, which says nothing of rows that are as they were (§16.3)."""
    each = isinstance(spec.operation, (Changelog, RunningAggregation)) and spec.operation.each
    return spec.operation.gives_table and OP in schema.names and not each


class WholeOperator(WrappingOperator):
    """An operator whose results are null where they are not whole, and say so where that is wanted.

    State keeps of each row before which change it came. That a result is complete follows from it, for the aggregates that the
    plan has now.
    """

    def __init__(self, spec: OperatorSpec, inner: WindowOperator) -> None:
        super().__init__(spec, inner)
        self.hidden = [name for name, _ in spec.wholes]
        marks = [call.output_name for call in spec.aggs if isinstance(call, WholeSince)]
        self.shown = [name for name in marks if name not in self.hidden]

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        rows = self.blanked(self.inner.state(bucket))
        return rows.drop_columns([name for name in self.hidden if name in rows.column_names])

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        done = self.inner.step(bucket, chunks, moment)
        return attrs.evolve(done, results=self.blanked(done.results)) if done.results.num_rows else done

    def blanked(self, results: pa.Table) -> pa.Table:
        """Return results with null for aggregates that are not whole."""
        complete = pa.chunked_array([pa.repeat(pa.scalar(True), results.num_rows)])
        for whole, names in self.spec.wholes:
            known = pc.fill_null(results[whole], fill_value=True)
            complete, lacks = pc.and_(complete, known), pc.invert(known)
            for name in names:
                results = _without(results, name, lacks)
        for name in self.shown:
            results = with_column(results, name, complete)
        if self.spec.blind_us == UNSET or self.spec.operation.kind == "count" or "window_start" not in results.column_names:
            return results
        first = -(-self.spec.blind_us // self.spec.tick_us)
        lacks = pc.less(results["window_start"].cast(pa.int64()), pa.scalar(first, pa.int64()))
        for name in [call.output_name for call in self.spec.aggs]:
            if name in self.shown:
                results = with_column(results, name, pc.and_(results[name], pc.invert(lacks)))
            elif name not in self.hidden:
                results = _without(results, name, lacks)
        return results


def _without(results: pa.Table, name: str, lacks: pa.ChunkedArray) -> pa.Table:
    """Return results without some values of a column."""
    column = results[name]
    return with_column(results, name, pc.if_else(lacks, pa.scalar(None, column.type), column))


@attrs.define
class _StepProgress(Section):
    """The watermark of the last step, and the allowed lateness in it; -1 where an earlier version did not note it."""

    stepped_at: int = UNSET
    stepped_late: int = -1


class PunctualOperator(WrappingOperator):
    """See the module's docstring."""

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """One step, or two if there are rows and the watermark has moved, or a smaller lateness makes windows be over."""
        last, lateness_us = _StepProgress.of(bucket), self.spec.options.allowed_lateness_us
        moved = moment.watermark_us > last.stepped_at or lateness_us < last.stepped_late
        _StepProgress(moment.watermark_us, lateness_us).store(bucket)
        first = moved and any(c.num_rows for c in chunks)
        over = self.inner.step(bucket, [], moment.without_rows) if first else None
        done = self.inner.step(bucket, chunks, moment)
        if over is None:
            return done
        counters = dict(over.counters)
        for name, n in done.counters.items():
            counters[name] = counters.get(name, 0) + n
        results = pa.concat_tables([over.results, done.results])
        return attrs.evolve(done, results=results, firings=over.firings + done.firings, counters=counters)
