"""Rows with values of the rows of their key before and after them, in settled order.

A row with values of rows after it waits for the last one of these, and is read as a row before that one::

    rows      5   7   4   6         at the 6, with two rows ahead: the row is 7, before it 5, after it 4 and 6
                  ▲───────┘
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, pick
from krishiv_py.kernels.columns.evaluate import evaluate
from krishiv_py.kernels.columns.layout import TIME
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.ordered import NEVER, KeyRows, OrderedOperator, OrderedStep, in_result_order
from krishiv_py.kernels.rows_before import RowsBefore
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.plan.expressions.expr import Col
from krishiv_py.plan.patterns import Prev
from krishiv_py.plan.previous import KNOWN, PreviousRows
from krishiv_py.plan.schema import RESERVED

_AT: Final = f"{RESERVED}at"
"""The event time of a row, µs."""


class PreviousOperator(OrderedOperator):
    """See the module's docstring."""

    NAME: ClassVar[str] = "previous"

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, PreviousRows)
        self.operation = spec.operation
        self.ahead, self.before = spec.operation.ahead, RowsBefore(spec.operation.before, spec.row_schema, spec.operation.ahead)
        stored = list(self.before.stored)
        if self.ahead:
            rows = [f for f in spec.row_schema if f.name in {*spec.operation.carried(spec.row_schema), *spec.keys}]
            read = [(f.name, Prev(Col(f.name), 0)) for f in rows] + [(_AT, Prev(Col(_AT), 0))]
            self.waiting = RowsBefore(read, pa.schema([*rows, pa.field(_AT, pa.int64())]), self.ahead, "w")
            stored += self.waiting.stored
        super().__init__(spec, stored, spec.operation.order_by)

    def ends_all(self) -> bool:
        """Return whether each key is looked at when the input ends."""
        return self.ahead > 0

    def run(self, step: OrderedStep, keys: KeyRows, rows: pa.Table) -> tuple[pa.Table, pa.Table | None, dict[str, int]]:
        """See :class:`~krishiv_py.kernels.ordered.OrderedOperator`."""
        named = self.layout.working
        users = pa.table([rows[name] for name in named.values()], names=list(named))
        users = users.append_column(_AT, rows[TIME])
        users, of, times, stored = self._ahead_of(users, keys, step) if self.ahead else self._at_once(users, keys)
        order = in_result_order(keys.keys, self.names, of, times)
        users, times = pick(users, order), times[order]
        schema = self.layout.result_schema
        made: dict[str, Any] = {name: evaluate(expr, users) for name, expr in self.operation.columns}
        if self.ahead:
            made[KNOWN] = unstamp(times, self.layout.spec.time_kind)
        results = pa.Table.from_arrays([made[n] if n in made else users[n] for n in schema.names], schema=schema)
        live = np.full(keys.n, not step.ended)
        columns = [stored[field.name] for field in self.values[:-2]]
        step.write(keys, live, columns, np.full(keys.n, NEVER))
        return results, None, {}

    def _at_once(self, users: pa.Table, keys: KeyRows) -> tuple[pa.Table, Ints, Ints, dict[str, pa.Array]]:
        """Return the rows with values of rows before them, the key and the time of each, and what is stored."""
        columns, stored = self.before.of(users, keys)
        for field, column in zip(self.before.fields, columns, strict=True):
            users = users.append_column(field, column)
        return users, np.repeat(np.arange(keys.n), np.diff(keys.begins)), users[_AT].to_numpy(), stored

    def _ahead_of(self, users: pa.Table, keys: KeyRows, step: OrderedStep) -> tuple[pa.Table, Ints, Ints, dict[str, pa.Array]]:
        """Return the rows for which the last row after them has come, or the input has ended."""
        last = step.moment.newest_us
        counts, places = np.diff(keys.begins), np.arange(users.num_rows)
        if step.ended:
            places = np.insert(places, np.repeat(keys.begins[1:], self.ahead), -1)
            counts = counts + self.ahead
            keys = attrs.evolve(keys, begins=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))
        times = np.where(places < 0, last, users[_AT].to_numpy()[places] if users.num_rows else last)
        of = np.repeat(np.arange(keys.n), counts)
        waited, stored = self.waiting.of(users, keys, places)
        columns, more = self.before.of(users, keys, places)
        fields = [*self.waiting.fields, *self.before.fields]
        every = pa.Table.from_arrays([*waited, *columns], schema=pa.schema(fields))
        there = np.flatnonzero(every[_AT].is_valid().to_numpy())
        return pick(every, there), of[there], times[there], stored | more

    def state(self, bucket: Bucket) -> pa.Table:
        """Return for each key how many rows of it are held."""
        rows, held = self.state_rows(bucket)
        return self.state_table(rows, held, {})
