"""The first rows of each key, as a table (SEMANTICS §16.8).

All rows stay in state where they may be taken back, else the first ones. A batch looks up the rows of the keys that it has rows of, puts them in order, and gives what changes among the first ones::

    by          9   7   5   4            6 comes:   9   7   6   5   4
    first 3     9   7   5                           9   7   6           -D 5, +I 6
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, pick
from krishiv_py.kernels.changes.counted import ROWS, CountedLog, CountedRows, counted, refuse_unmatched
from krishiv_py.kernels.changes.net import signed_changes
from krishiv_py.kernels.changes.touched import TouchedKeys
from krishiv_py.kernels.columns.layout import SIGN, Layout, whole
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.ordered import ranks_of
from krishiv_py.kernels.results import StepResult
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import WRITTEN, Bucket
from krishiv_py.kernels.state.window_log import DeadKeys
from krishiv_py.plan.changes import TopRows

NAME: Final = "top"
_RANK: Final = "__rank"


class TopRowsOperator:
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, TopRows)
        self.operation = operation = spec.operation
        self.layout = layout = Layout(spec)
        self.names = layout.key_names
        working = dict(zip(spec.keys, self.names, strict=True)) | dict(zip(layout.own, layout.own_names, strict=True))
        self.orders = [(working[name], largest) for name, largest in operation.order_columns]
        fields = operation.row_fields(spec.row_schema)
        self.columns = [working[field.name] for field in fields]
        self.own = [layout.row_schema.field(name) for name in layout.own_names]
        self.changes = bool(spec.changes)
        self.withdraws = spec.options.emit_mode == "retractions"
        self.chunk_schema = pa.schema([*layout.key_fields, *self.own, pa.field(ROWS, pa.int64())])

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return the rows, with 1 or -1 as their number."""
        signs = rows[SIGN].cast(pa.int64()) if self.changes else pa.array(np.ones(rows.num_rows, np.int64))
        return pa.Table.from_arrays([*(rows[name] for name in self.chunk_schema.names[:-1]), signs], schema=self.chunk_schema)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        log = self._log(bucket)
        fresh = pa.concat_tables([self.chunk_schema.empty_table(), *chunks])
        results = self.layout.result_schema.empty_table()
        if fresh.num_rows:
            touched, ids = TouchedKeys.of(fresh, self.names)
            before = log.lookup(touched, np.ones(touched.n, np.bool_))
            came = CountedRows.of_table(fresh.select([*log.own, ROWS]), ids)
            now = before.added(came)
            refuse_unmatched(now.counts)
            first = self._first(now)
            log.append(touched, came if self.changes else first.added(before.negative()))
            results = self._changed(touched, self._first(before), first)
        return StepResult(results, None, 0, len(log), results.num_rows)

    def _first(self, rows: CountedRows) -> CountedRows:
        """Return the first rows of each key, in their order; of equal ones as many as have a place."""
        order, before = self._places(rows)
        room = np.clip(self.operation.n - before, 0, rows.counts[order])
        return rows.pick(order[room > 0]).times(room[room > 0])

    def _places(self, rows: CountedRows) -> tuple[Ints, Ints]:
        """Return the order of rows by key and rank, and how many rows of its key come before each of these."""
        by = [_in_order(whole(rows.rows[name]), largest=largest) for name, largest in reversed(self.orders)]
        order = np.lexsort((*by, rows.of))
        counts, of = rows.counts[order], rows.of[order]
        total = np.cumsum(counts) - counts
        begins = np.searchsorted(of, of, side="left")
        return order, total - total[begins] if len(of) else total

    def _changed(self, touched: TouchedKeys, before: CountedRows, now: CountedRows) -> pa.Table:
        """Return what changes of the first rows."""
        parts = [self._shown(touched, rows, sign) for rows, sign in ((before, -1), (now, 1))]
        both = pa.concat_tables([rows for rows, _ in parts])
        net, of = counted(both, np.concatenate([of for _, of in parts]))
        names = [name for name in net.column_names if name not in (ROWS, _RANK)]
        named = names if self.operation.rank is not None else None
        rows = net.drop_columns([ROWS])
        return signed_changes(self.layout.result_schema, rows, net[ROWS].to_numpy(), of, named, withdraws=self.withdraws)

    def _shown(self, touched: TouchedKeys, rows: CountedRows, sign: int) -> tuple[pa.Table, Ints]:
        """Return first rows as they are given, with their number."""
        shown = rows.rows
        for name in self.names:
            shown = shown.append_column(name, pick(touched.keys[name], rows.of))
        table, of, counts = shown.select(self.columns), rows.of, rows.counts
        if self.operation.rank is not None:
            places = np.repeat(np.arange(len(of)), counts)
            table, of = pick(table, places), of[places]
            table = table.append_column(_RANK, pa.array(np.arange(len(of)) - np.searchsorted(of, of, side="left") + 1))
            counts = np.ones(len(of), np.int64)
        return table.append_column(ROWS, pa.array(sign * counts)), of

    def _log(self, bucket: Bucket) -> CountedLog:
        return CountedLog(bucket, NAME, self.layout.key_fields, self.own)

    def state(self, bucket: Bucket) -> pa.Table:
        """Return the first rows of each key, and when they changed last."""
        keys, rows = self._log(bucket).written()
        table, of = self._shown(TouchedKeys(keys, np.empty(0, np.int64), keys.num_rows), self._first(rows), 1)
        table = table.drop_columns([ROWS])
        fields = list(self.layout.result_schema)[: table.num_columns]
        table = pa.Table.from_arrays(table.columns, schema=pa.schema(fields))
        name = self.operation.free_name("last_update", table.column_names)
        return table.append_column(name, unstamp(keys[WRITTEN].to_numpy()[of], "timestamp"))

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; counts rows."""
        return int(self._log(bucket).drop(DeadKeys.of(dead, self.names)).num_rows)


def _in_order(column: pa.Array, *, largest: bool) -> Ints:
    """Return numbers in the order of values, the largest or the smallest first, nulls last."""
    return -ranks_of(column, nulls_first=True) if largest else ranks_of(column)
