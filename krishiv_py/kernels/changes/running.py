"""Aggregates of all rows so far (SEMANTICS §16.5): partials by key in a table, and the net change of each key a batch.

A batch looks up the keys that it has rows of, adds its partials to theirs and writes them again. What was given before is what
the partials of before come to, so nothing else is kept. Rows that are withdrawn are taken off the sums; where an aggregate
cannot take them off, the rows of each key are kept instead, equal ones with their number::

    table       a: 5         b: 1
    batch       a: +2        c: +4
    results     -U a 5, +U a 7        +I c 4
"""

from __future__ import annotations

from typing import Final, Protocol

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import Groups, group, rank
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask, pick
from krishiv_py.kernels.changes.counted import ROWS, CountedLog, CountedRows, refuse_unmatched
from krishiv_py.kernels.changes.net import net_changes
from krishiv_py.kernels.changes.table import TableChange, TableOperator
from krishiv_py.kernels.changes.touched import TouchedKeys
from krishiv_py.kernels.columns.layout import SIGN, Layout
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.key_table import KeyTable
from krishiv_py.kernels.state.store import WRITTEN, Bucket
from krishiv_py.kernels.state.window_log import DeadKeys
from krishiv_py.plan.changes import RunningAggregation

NAME: Final = "running"


@attrs.frozen(eq=False)
class Totals:
    """Partials of some of the keys of a batch: their numbers, and the partials."""

    of: Ints
    partials: pa.Table


class RunningState(Protocol):
    """Keeps what the results of keys are made of."""

    chunk_schema: pa.Schema
    """The rows of a batch as they are shuffled."""

    def combine(self, rows: pa.Table) -> pa.Table:
        """Reduce rows before the shuffle."""

    def add(self, bucket: Bucket, touched: TouchedKeys, fresh: pa.Table, ids: Ints) -> tuple[Totals, Totals, int]:
        """Add what came of some keys; return their totals of before and of now, and how many rows could not be withdrawn."""

    def of(self, bucket: Bucket, touched: TouchedKeys) -> Totals:
        """Return the totals of some keys."""

    def everything(self, bucket: Bucket) -> tuple[pa.Table, pa.Table]:
        """Return all keys, with a column that says when they were written, and their partials."""

    def count_entries(self, bucket: Bucket) -> int:
        """Return how many entries are in state."""

    def drop(self, bucket: Bucket, dead: DeadKeys) -> int:
        """Take keys out; returns how many there were."""


class KeptTotals:
    """The partials of each key, and how many rows it has where rows may be withdrawn."""

    def __init__(self, layout: Layout, *, each: bool) -> None:
        self.layout, self.names, self.each = layout, layout.key_names, each
        self.changes = bool(layout.spec.changes)
        counted = [pa.field(ROWS, pa.int64())] if self.changes else []
        self.values = [*counted, *layout.partial_fields]
        self.chunk_schema = pa.schema([*layout.key_fields, *self.values])
        self.schema = pa.schema(self.values)
        self.partials = [field.name for field in layout.partial_fields]

    def combine(self, rows: pa.Table) -> pa.Table:
        n = rows.num_rows
        groups = Groups(np.arange(n), np.arange(n), n) if self.each else group([rows[k] for k in self.names], n)
        keys = [pick(rows[k], groups.first) for k in self.names]
        if not self.changes:
            created = self.layout.create(rows, groups.ids, groups.n)
            return pa.Table.from_arrays([*keys, *created], schema=self.chunk_schema)
        signs = rows[SIGN].to_numpy()
        counts = np.zeros(groups.n, np.int64)
        np.add.at(counts, groups.ids, signs)
        created = _signed(self.layout, rows, signs < 0, groups.ids, groups.n)
        return pa.Table.from_arrays([*keys, pa.array(counts), *created], schema=self.chunk_schema)

    def of(self, bucket: Bucket, touched: TouchedKeys) -> Totals:
        stored, places = self._table(bucket).lookup(touched.keys, touched.hashes)
        known = np.flatnonzero(places >= 0)
        return Totals(known, pick(stored.select(self.partials), places[known]))

    def add(self, bucket: Bucket, touched: TouchedKeys, fresh: pa.Table, ids: Ints) -> tuple[Totals, Totals, int]:
        table = self._table(bucket)
        stored, places = table.lookup(touched.keys, touched.hashes, touched.order)
        known = np.flatnonzero(places >= 0)
        before = pick(stored.select(self.schema.names), places[known])
        merged = self._merged(
            pa.concat_tables([before, fresh.select(self.schema.names)]), np.concatenate([known, ids]), touched.n
        )
        live = np.ones(touched.n, np.bool_)
        if self.changes:
            counts = merged[ROWS].to_numpy()
            refuse_unmatched(counts)
            live = counts > 0
        table.write(touched.keys, touched.hashes, live, list(merged.columns), touched.order)
        now = np.flatnonzero(live)
        return Totals(known, before.select(self.partials)), Totals(now, pick(merged.select(self.partials), now)), 0

    def _merged(self, both: pa.Table, ids: Ints, n: int) -> pa.Table:
        counts = []
        if self.changes:
            total = np.zeros(n, np.int64)
            np.add.at(total, ids, both[ROWS].to_numpy())
            counts = [pa.array(total)]
        return pa.Table.from_arrays([*counts, *self.layout.merge(both, ids, n)], schema=self.schema)

    def everything(self, bucket: Bucket) -> tuple[pa.Table, pa.Table]:
        rows = self._table(bucket).rows()
        return rows.select([*self.names, WRITTEN]), rows.select(self.partials)

    def count_entries(self, bucket: Bucket) -> int:
        return len(self._table(bucket))

    def drop(self, bucket: Bucket, dead: DeadKeys) -> int:
        return int(self._table(bucket).drop(dead).num_rows)

    def _table(self, bucket: Bucket) -> KeyTable:
        return KeyTable(bucket, NAME, self.layout.key_fields, self.values)


class KeptRows:
    """The rows of each key, equal ones once with their number: for aggregates that cannot take rows off their partials."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.names = layout, layout.key_names
        self.columns = [field for field in layout.row_schema if field.name not in (SIGN, *self.names)]
        self.chunk_schema = pa.schema([*layout.key_fields, *self.columns, pa.field(ROWS, pa.int64())])

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return the rows with 1 or -1 as their number: of equal ones some may be added, and some taken back."""
        columns = [rows[name] for name in self.chunk_schema.names[:-1]]
        return pa.Table.from_arrays([*columns, rows[SIGN].cast(pa.int64())], schema=self.chunk_schema)

    def of(self, bucket: Bucket, touched: TouchedKeys) -> Totals:
        return self._made(self._log(bucket).lookup(touched))

    def add(self, bucket: Bucket, touched: TouchedKeys, fresh: pa.Table, ids: Ints) -> tuple[Totals, Totals, int]:
        before, now, expired = self._log(bucket).take(touched, fresh, ids, forgets=self.layout.spec.options.ttl is not None)
        return self._made(before), self._made(now), expired

    def _made(self, kept: CountedRows) -> Totals:
        """Return the partials of rows, each as often as it is there."""
        places = np.repeat(np.arange(len(kept.of)), kept.counts)
        some, dense = np.unique(kept.of[places], return_inverse=True)
        columns = self.layout.create(pick(kept.rows, places), dense.astype(np.int64), len(some))
        return Totals(some, pa.Table.from_arrays(columns, schema=pa.schema(self.layout.partial_fields)))

    def everything(self, bucket: Bucket) -> tuple[pa.Table, pa.Table]:
        keys, rows = self._log(bucket).written()
        made = self._made(rows)
        return pick(keys, made.of), made.partials

    def count_entries(self, bucket: Bucket) -> int:
        return len(self._log(bucket))

    def drop(self, bucket: Bucket, dead: DeadKeys) -> int:
        rows = self._log(bucket).drop(dead)
        return group([rows[k] for k in self.names], rows.num_rows).n

    def _log(self, bucket: Bucket) -> CountedLog:
        return CountedLog(bucket, f"{NAME}_rows", self.layout.key_fields, self.columns)


def _signed(layout: Layout, rows: pa.Table, minus: Mask, ids: Ints, n: int) -> list[pa.Array]:
    """Return partials of rows, some of which are taken back."""
    if not minus.any():
        return layout.create(rows, ids, n)
    made = [layout.create(rows.filter(pa.array(mask)), ids[mask], n) for mask in (~minus, minus)]
    schema, turned, at = pa.schema(layout.partial_fields), list[pa.Array](), 0
    for kernel in layout.kernels:
        width = len(kernel.partial_types)
        turned += kernel.negated(made[1][at : at + width])
        at += width
    both = pa.concat_tables([pa.Table.from_arrays(columns, schema=schema) for columns in (made[0], turned)])
    return layout.merge(both, np.tile(np.arange(n), 2), n)


class RunningOperator(TableOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec, [], counts=False)
        layout = self.layout
        rows_needed = not layout.takes_back or (
            bool(spec.changes) and self.forgets
        )  # else nobody knows which row was forgotten
        assert isinstance(spec.operation, RunningAggregation)
        self.each = spec.operation.each
        self.totals: RunningState = KeptRows(layout) if rows_needed else KeptTotals(layout, each=self.each)
        self.chunk_schema = self.totals.chunk_schema

    def combine(self, rows: pa.Table) -> pa.Table:
        """Reduce rows to what is shuffled."""
        return self.totals.combine(rows)

    def change(self, bucket: Bucket, fresh: pa.Table, moment: Moment) -> TableChange:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        if not fresh.num_rows:
            return TableChange(self.layout.result_schema.empty_table())
        if self.each:
            return self._one_by_one(bucket, fresh)
        return self._changed(bucket, fresh)

    def _one_by_one(self, bucket: Bucket, fresh: pa.Table) -> TableChange:
        """Take the first row of every key, then the second, and so on: what is given is in order of key and arrival."""
        groups = group([fresh[k] for k in self.names], fresh.num_rows)
        turns = rank(groups.ids)
        done = [self._changed(bucket, fresh.filter(pa.array(turns == turn))) for turn in range(int(turns.max()) + 1)]
        results = pa.concat_tables([one.results for one in done])
        keys = group([results[k] for k in self.layout.spec.keys], results.num_rows)
        expired = sum(one.counters.get("expired", 0) for one in done)
        return TableChange(pick(results, stable_order(keys.ids)), counters={"expired": expired} if expired else {})

    def _changed(self, bucket: Bucket, fresh: pa.Table) -> TableChange:
        """Take rows, and give the net change of each key."""
        schema = self.layout.result_schema
        touched, ids = TouchedKeys.of(fresh, self.names)
        before, now, expired = self.totals.add(bucket, touched, fresh, ids)
        given, gives = self._results(touched.keys, before), self._results(touched.keys, now)
        results = net_changes(schema, given, before.of, gives, now.of, touched.n, withdraws=self.withdraws)
        return TableChange(results, counters={"expired": expired} if expired else {})

    def rows_of(self, bucket: Bucket, touched: TouchedKeys) -> pa.Table:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return self._results(touched.keys, self.totals.of(bucket, touched))

    def count_entries(self, bucket: Bucket) -> int:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return self.totals.count_entries(bucket)

    def drop(self, bucket: Bucket, dead: DeadKeys) -> int:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return self.totals.drop(bucket, dead)

    def _results(self, keys: pa.Table, totals: Totals) -> pa.Table:
        return self._finished(pick(keys, totals.of), totals.partials)

    def _finished(self, keys: pa.Table, partials: pa.Table) -> pa.Table:
        """Return the results of keys with these partials, without the kind of their change."""
        heads, named = [keys[name] for name in self.names], partials
        for name, column in zip(self.names, heads, strict=True):  # an error names the key
            named = named.append_column(name, column)
        return pa.Table.from_arrays([*heads, *self.layout.finish(named)], schema=self.row_fields)

    def state(self, bucket: Bucket) -> pa.Table:
        """Return the result of each key, and when it changed last."""
        keys, partials = self.totals.everything(bucket)
        return self.with_written(self._finished(keys, partials), keys[WRITTEN])
