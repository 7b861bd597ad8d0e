"""Results under other names and in another order, for plans that say so (SQL)."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results.contract import StepResult, WindowOperator
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket


class ProjectedOperator:
    """An operator whose results are renamed and put in order last of all, so that no kernel has to know."""

    def __init__(self, spec: OperatorSpec, inner: WindowOperator) -> None:
        assert spec.output is not None
        self.inner = inner
        self.renamed = {source: name for name, source in reversed(spec.output)}
        self.schema = Layout(spec).result_schema
        self.layout = Layout(attrs.evolve(spec, output=None))
        """Of the results before they are renamed."""
        names = self.layout.result_schema.names
        picked = [names.index(source) for _, source in spec.output]
        n_more = len(self.schema) - len(picked)
        self.picked = [*picked, *range(len(names) - n_more, len(names))]

    def combine(self, rows: pa.Table) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        return self.inner.combine(rows)

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`; columns that are results have their names."""
        found = self.inner.state(bucket)
        names = [self.renamed.get(n, n) for n in found.schema.names]
        return found.rename_columns(names) if len(set(names)) == len(names) else found

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        found = self.inner.step(bucket, chunks, moment)
        return attrs.evolve(found, results=self.project(found.results))

    def project(self, results: pa.Table) -> pa.Table:
        """Results of the inner operator under their other names."""
        return pa.Table.from_arrays([results.column(i) for i in self.picked], schema=self.schema)
