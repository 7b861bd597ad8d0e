"""Results that leave a query: of which stage they are, and the steps they go through on their way."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.kernels.columns.evaluate import prefixed
from krishiv_py.plan.nodes import Prefix


@attrs.frozen
class OutputPlan:
    """Results that leave the query.

    Attributes
    ----------
    name : str
        What they are called.
    stage : int
        The number of the stage that gives them.
    schema : pyarrow.Schema
        Their columns; the stage may give more, to those that follow it.
    steps : tuple of nodes
        Stateless steps over the results of the stage, which are this output's own.
    reads : tuple of str
        The columns of the results that go into these steps.
    """

    name: str
    stage: int
    schema: pa.Schema
    steps: tuple[Prefix, ...] = ()
    reads: tuple[str, ...] = ()

    def of(self, results: pa.Table) -> pa.Table:
        """What leaves of the results of the stage."""
        if not self.steps:
            return results if results.schema.names == self.schema.names else results.select(self.schema.names)
        if not results.num_rows:
            return self.schema.empty_table()
        return prefixed(self.steps, results.select(list(self.reads))).cast(self.schema)
