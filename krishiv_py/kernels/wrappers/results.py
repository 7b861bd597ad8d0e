"""Define what happens to results last of all: what a following stage needs is added, and stateless steps are applied."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.kernels.columns.evaluate import prefixed
from krishiv_py.kernels.columns.layout import Layout, handed_columns
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results import StepResult, WindowOperator
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.plan.expressions.expr import Col
from krishiv_py.plan.nodes import Node, Project


class ProjectedOperator:
    """An operator whose results become the columns of the plan last of all, so that no kernel has to know."""

    def __init__(self, spec: OperatorSpec, inner: WindowOperator) -> None:
        assert spec.output is not None
        self.inner = inner
        self.renamed = {expr.name: name for name, expr in reversed(spec.output) if isinstance(expr, Col)}
        self.schema = Layout(spec).result_schema
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

    def combine(self, rows: pa.Table) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return self.inner.combine(rows)

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`; columns that are results have their names."""
        rows = self.inner.state(bucket)
        names = [self.renamed.get(n, n) for n in rows.schema.names]
        return rows.rename_columns(names) if len(set(names)) == len(names) else rows

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        done = self.inner.step(bucket, chunks, moment)
        return attrs.evolve(done, results=self.project(done.results))

    def project(self, results: pa.Table) -> pa.Table:
        """Return results of the inner operator as the columns of the plan."""
        if self.computes is None:
            return pa.Table.from_arrays([results.column(i) for i in self.picked], schema=self.schema)
        return prefixed((self.computes,), results).cast(self.schema) if results.num_rows else self.schema.empty_table()


class AroundOperator:
    """An operator that leaves state alone and changes results only."""

    def __init__(self, spec: OperatorSpec, inner: WindowOperator) -> None:
        self.spec = spec
        self.inner = inner
        self.schema = Layout(spec).result_schema

    def combine(self, rows: pa.Table) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return self.inner.combine(rows)

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return self.inner.state(bucket)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        done = self.inner.step(bucket, chunks, moment)
        changed = self.changed(done.results) if done.results.num_rows else self.schema.empty_table()
        return attrs.evolve(done, results=changed)

    def changed(self, results: pa.Table) -> pa.Table:
        """Return the results as they leave."""
        raise NotImplementedError


class HandingOnOperator(AroundOperator):
    """An operator whose results are the rows of a following stage."""

    def changed(self, results: pa.Table) -> pa.Table:
        """See :mod:`krishiv_py.kernels.columns.layout`."""
        return pa.Table.from_arrays([*results.columns, *handed_columns(self.spec, results)], schema=self.schema)


class StepsAfterOperator(AroundOperator):
    """An operator whose results go through stateless steps."""

    def changed(self, results: pa.Table) -> pa.Table:
        """Return the results after the steps."""
        return prefixed(self.spec.after, results).cast(self.schema)
