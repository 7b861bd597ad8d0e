"""What happens to results last of all: what a following stage needs is added, and stateless steps are applied."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.kernels.columns.evaluate import prefixed
from krishiv_py.kernels.columns.handed_on import handed_columns
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results.contract import StepResult, WindowOperator
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket


class AroundOperator:
    """An operator that leaves state alone and changes results only."""

    def __init__(self, spec: OperatorSpec, inner: WindowOperator) -> None:
        self.spec = spec
        self.inner = inner
        self.schema = Layout(spec).result_schema

    def combine(self, rows: pa.Table) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        return self.inner.combine(rows)

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        return self.inner.state(bucket)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        found = self.inner.step(bucket, chunks, moment)
        changed = self.changed(found.results) if found.results.num_rows else self.schema.empty_table()
        return attrs.evolve(found, results=changed)

    def changed(self, results: pa.Table) -> pa.Table:
        """The results as they leave."""
        raise NotImplementedError


class HandingOnOperator(AroundOperator):
    """An operator whose results are the rows of a following stage."""

    def changed(self, results: pa.Table) -> pa.Table:
        """See :mod:`krishiv_py.kernels.columns.handed_on`."""
        return pa.Table.from_arrays([*results.columns, *handed_columns(self.spec, results)], schema=self.schema)


class StepsAfterOperator(AroundOperator):
    """An operator whose results go through stateless steps."""

    def changed(self, results: pa.Table) -> pa.Table:
        """The results behind the steps."""
        return prefixed(self.spec.after, results).cast(self.schema)
