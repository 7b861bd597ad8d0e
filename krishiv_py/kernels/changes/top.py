"""The first rows of each key, as a table (SEMANTICS §16.8).

All rows stay in state where they may be taken back, else the first ones. A batch looks up the rows of the keys that it has rows
of, puts them in order, and gives what changes among the first ones::

    by          9   7   5   4            6 comes:   9   7   6   5   4
    first 3     9   7   5                           9   7   6           -D 5, +I 6
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, pick
from krishiv_py.kernels.changes.counted import ROWS, CountedLog, CountedRows, counted
from krishiv_py.kernels.changes.net import signed_changes
from krishiv_py.kernels.changes.table import TableChange, TableOperator
from krishiv_py.kernels.changes.touched import TouchedKeys
from krishiv_py.kernels.columns.layout import Layout, whole
from krishiv_py.kernels.ordered import ranks_of
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import WRITTEN, Bucket
from krishiv_py.kernels.state.window_log import DeadKeys
from krishiv_py.plan.changes import TopRows

NAME: Final = "top"
_RANK: Final = "__rank"


class TopRowsOperator(TableOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, TopRows)
        self.operation = operation = spec.operation
        layout = Layout(spec)
        self.own = [layout.row_schema.field(name) for name in layout.own_names]
        super().__init__(spec, self.own, counts=True)
        working = dict(zip(spec.keys, self.names, strict=True)) | dict(zip(layout.own, layout.own_names, strict=True))
        self.orders = [(working[name], largest) for name, largest in operation.order_columns]
        self.columns = [working[field.name] for field in operation.row_fields(spec.row_schema)]
        self.changes = bool(spec.changes)

    def change(self, bucket: Bucket, fresh: pa.Table, moment: Moment) -> TableChange:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        if not fresh.num_rows:
            return TableChange(self.layout.result_schema.empty_table())
        log = self._log(bucket)
        touched, ids = TouchedKeys.of(fresh, self.names)
        if self.changes:
            before, now, expired = log.take(touched, fresh, ids, forgets=self.forgets)
            first = self._first(now)
        else:
            before, expired = log.lookup(touched), 0
            first = self._first(before.added(CountedRows.of_table(fresh.select([*log.own, ROWS]), ids)))
            log.append(touched, first.added(before.negative()))
        return TableChange(self._changed(touched, self._first(before), first), counters={"expired": expired} if expired else {})

    def count_entries(self, bucket: Bucket) -> int:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return len(self._log(bucket))

    def rows_of(self, bucket: Bucket, touched: TouchedKeys) -> pa.Table:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return self._repeated(touched, self._first(self._log(bucket).lookup(touched)))[0]

    def drop(self, bucket: Bucket, dead: DeadKeys) -> int:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return int(self._log(bucket).drop(dead).num_rows)

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

    def _repeated(self, touched: TouchedKeys, rows: CountedRows) -> tuple[pa.Table, Ints]:
        """Return first rows as often as they are given, with the number of the key of each."""
        table, of = self._shown(touched, rows, 1)
        places = np.repeat(np.arange(len(of)), table[ROWS].to_numpy())
        picked = pick(table.drop_columns([ROWS]), places)
        return pa.Table.from_arrays(picked.columns, schema=self.row_fields), of[places]

    def state(self, bucket: Bucket) -> pa.Table:
        """Return the first rows of each key, and when they changed last."""
        keys, rows = self._log(bucket).written()
        given, of = self._repeated(TouchedKeys(keys, np.empty(0, np.int64), keys.num_rows), self._first(rows))
        return self.with_written(given, keys[WRITTEN].take(pa.array(of)))


def _in_order(column: pa.Array, *, largest: bool) -> Ints:
    """Return numbers in the order of values, the largest or the smallest first, nulls last."""
    return -ranks_of(column, nulls_first=True) if largest else ranks_of(column)
