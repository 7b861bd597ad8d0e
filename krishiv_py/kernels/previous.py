"""Rows with values of the rows of their key before them, in settled order."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import pick
from krishiv_py.kernels.columns.evaluate import evaluate
from krishiv_py.kernels.columns.layout import TIME
from krishiv_py.kernels.ordered import NEVER, KeyRows, OrderedOperator, OrderedStep, in_result_order
from krishiv_py.kernels.rows_before import RowsBefore
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.plan.previous import PreviousRows


class PreviousOperator(OrderedOperator):
    """See the module's docstring."""

    NAME: ClassVar[str] = "previous"

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, PreviousRows)
        self.operation = spec.operation
        self.before = RowsBefore(spec.operation.before, spec.row_schema)
        super().__init__(spec, self.before.stored, spec.operation.order_by)

    def run(self, step: OrderedStep, keys: KeyRows, rows: pa.Table) -> tuple[pa.Table, pa.Table | None, dict[str, int]]:
        """See :class:`~krishiv_py.kernels.ordered.OrderedOperator`."""
        named = self.layout.working
        users = pa.table([rows[name] for name in named.values()], names=list(named))
        columns, stored = self.before.of(users, keys)
        order = in_result_order(
            keys.keys, self.names, np.repeat(np.arange(keys.n), np.diff(keys.begins)), rows[TIME].to_numpy()
        )
        for field, column in zip(self.before.fields, columns, strict=True):
            users = users.append_column(field, column)
        users = pick(users, order)
        schema = self.layout.result_schema
        made = {name: evaluate(expr, users) for name, expr in self.operation.columns}
        results = pa.Table.from_arrays([made[n] if n in made else users[n] for n in schema.names], schema=schema)
        live = np.full(keys.n, not step.ended)
        step.write(keys, live, [stored[field.name] for field in self.before.stored], np.full(keys.n, NEVER))
        return results, None, {}

    def state(self, bucket: Bucket) -> pa.Table:
        """Return for each key how many rows of it are held."""
        rows, held = self.state_rows(bucket)
        return self.state_table(rows, held, {})
