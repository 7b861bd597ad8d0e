"""A log of rows without a key as a table (SEMANTICS §16.2): how often each row is there, and withdrawals without their row.

A row is taken out where one like it is there. Within a batch changes count in order of arrival, so of the numbers that a row
would have one after the other none may be below 0::

    changes of a row      +1   -1   -1   +1   -1         2 are there: all are taken
    with none before       1    0   -1    0   -1         the third has no row
    numbers it has         1    0    0    1    0
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask, pick
from krishiv_py.kernels.changes.counted import ROWS
from krishiv_py.kernels.changes.net import signed_changes
from krishiv_py.kernels.changes.readable import readable
from krishiv_py.kernels.changes.table import TableChange, TableOperator
from krishiv_py.kernels.changes.touched import TouchedKeys
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.key_table import KeyTable
from krishiv_py.kernels.state.store import WRITTEN, Bucket
from krishiv_py.kernels.state.window_log import DeadKeys
from krishiv_py.plan.changes import CHANGE, UNMATCHED, RowLog

NAME: Final = "row_log"


class RowLogOperator(TableOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, RowLog)
        layout = Layout(spec)
        super().__init__(spec, [layout.row_schema.field(name) for name in layout.own_names], counts=False)
        self.act = layout.working[CHANGE]
        fields = spec.operation.result_fields(spec.row_schema, pa.null()) or []
        self.columns = [layout.working[field.name] for field in fields]
        """The columns of a row as it is given."""

    def change(self, bucket: Bucket, fresh: pa.Table, moment: Moment) -> TableChange:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        rows, refused = readable(fresh, self.act, [])
        late = [self.layout.refused(part, reason, moment.watermark_us) for reason, part in refused.items()]
        results = self.layout.result_schema.empty_table()
        if rows.num_rows:
            touched, of = TouchedKeys.of(rows, self.names)
            before = self._numbers_of(bucket, touched)
            now, unmatched = _counted(of, np.where(rows[self.act].to_numpy(zero_copy_only=False), 1, -1), before)
            if unmatched.any():
                late.append(self.layout.refused(rows.filter(pa.array(unmatched)), UNMATCHED, moment.watermark_us))
            self._table(bucket).write(touched.keys, touched.hashes, now > 0, [pa.array(now)], touched.order)
            net = np.flatnonzero(now != before)
            given = pick(self._rows(touched.keys), net)
            results = signed_changes(self.layout.result_schema, given, (now - before)[net], net, None, withdraws=self.withdraws)
        counters = {"refused_changes": sum(part.num_rows for part in late)} if late else {}
        return TableChange(results, late, counters)

    def count_entries(self, bucket: Bucket) -> int:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return len(self._table(bucket))

    def rows_of(self, bucket: Bucket, touched: TouchedKeys) -> pa.Table:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return pick(self._rows(touched.keys), np.repeat(np.arange(touched.n), self._numbers_of(bucket, touched)))

    def drop(self, bucket: Bucket, dead: DeadKeys) -> int:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return int(self._table(bucket).drop(dead).num_rows)

    def _numbers_of(self, bucket: Bucket, touched: TouchedKeys) -> Ints:
        """Return how often each of some rows is there."""
        stored, places = self._table(bucket).lookup(touched.keys, touched.hashes, touched.order)
        counts, known = np.zeros(touched.n, np.int64), np.flatnonzero(places >= 0)
        counts[known] = stored[ROWS].to_numpy()[places[known]]
        return counts

    def _rows(self, keys: pa.Table) -> pa.Table:
        """Return rows as they are given."""
        return pa.Table.from_arrays([keys[name] for name in self.columns], schema=self.row_fields)

    def _table(self, bucket: Bucket) -> KeyTable:
        return KeyTable(bucket, NAME, self.layout.key_fields, [pa.field(ROWS, pa.int64())])

    def state(self, bucket: Bucket) -> pa.Table:
        """Return the rows, each as often as it is there, and when that changed last."""
        rows = self._table(bucket).rows()
        every = pick(rows, np.repeat(np.arange(rows.num_rows), rows[ROWS].to_numpy()))
        return self.with_written(self._rows(every), every[WRITTEN])


def _counted(of: Ints, signs: Ints, before: Ints) -> tuple[Ints, Mask]:
    """Return how often each row is there after changes of the rows `of`, and which of these take out what is not there."""
    order = stable_order(of)
    key, total = of[order], np.cumsum(signs[order])
    first = np.append(True, key[1:] != key[:-1])
    begins = np.flatnonzero(first)
    would = total - np.repeat(total[begins] - signs[order][begins], np.diff(np.append(begins, len(key)))) + before[key]
    width = int(would.max() - would.min()) + 1
    least = np.minimum(np.minimum.accumulate(would - key * width) + key * width, 0)  # of each key so far
    lower = least < np.where(first, 0, np.roll(least, 1))
    unmatched = np.zeros(len(of), np.bool_)
    unmatched[order] = lower
    last = np.append(begins[1:], len(key)) - 1
    now = before.copy()
    now[key[last]] = would[last] - least[last]
    return now, unmatched
