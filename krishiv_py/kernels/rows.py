"""Rows as they are: no state, nothing is combined, nothing fires."""

from __future__ import annotations

import pyarrow as pa

from krishiv_py.errors import PlanError
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results import StepResult
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket


class RowsOperator:
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.layout = Layout(spec)

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return the rows as they are."""
        return rows

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        schema = self.layout.result_schema
        given = [pa.Table.from_arrays(c.select(self.layout.own_names).columns, schema=schema) for c in chunks]
        results = pa.concat_tables([schema.empty_table(), *given])
        return StepResult(results, None, 0, 0, results.num_rows)

    def state(self, bucket: Bucket) -> pa.Table:
        """Refused: there is none."""
        raise PlanError(
            "a stream without windows keeps no state",
            got=self.layout.spec.operation.describe(),
            hint="read the results instead",
        )
