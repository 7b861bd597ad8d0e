"""Results of windows that lack rows from before a savepoint: null, and never a partial number (SEMANTICS §12.2)."""

from __future__ import annotations

from typing import Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results import StepResult, WindowOperator
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.plan.durations import UNSET

COMPLETE: Final = "complete"


class WholeOperator:
    """An operator whose results are null where they are not whole."""

    def __init__(self, spec: OperatorSpec, inner: WindowOperator) -> None:
        self.inner = inner
        self.spec = spec
        self.hidden = [name for name, _ in spec.wholes]

    def combine(self, rows: pa.Table) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return self.inner.combine(rows)

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
        for whole, names in self.spec.wholes:
            lacks = pc.invert(pc.fill_null(results[whole], fill_value=True))
            for name in names:
                results = _without(results, name, lacks)
        if self.spec.blind_us == UNSET or self.spec.operation.kind == "count" or "window_start" not in results.column_names:
            return results
        first = -(-self.spec.blind_us // self.spec.tick_us)
        lacks = pc.less(results["window_start"].cast(pa.int64()), pa.scalar(first, pa.int64()))
        for call in self.spec.aggs:
            name = call.output_name
            if name == COMPLETE:
                index = results.column_names.index(name)
                results = results.set_column(index, results.schema.field(index), pc.and_(results[name], pc.invert(lacks)))
            elif name not in self.hidden:
                results = _without(results, name, lacks)
        return results


def _without(results: pa.Table, name: str, lacks: pa.ChunkedArray) -> pa.Table:
    """Return results without some values of a column."""
    index = results.column_names.index(name)
    field = results.schema.field(index)
    return results.set_column(index, field, pc.if_else(lacks, pa.scalar(None, field.type), results.column(index)))
