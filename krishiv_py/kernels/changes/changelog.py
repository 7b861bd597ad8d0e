"""Changes of rows by key as a table (SEMANTICS §16.2): the last row of each key, and the sequence it came with.

The changes of a batch are put in order of key and arrival. What a change meets is the change of its key before it that counts,
or what is stored, so all of them are decided at once::

    changes of a key, by sequence    5    3    7    7    deleted 9
    the largest so far               ·    5    5    7    7
    counts                           ●    stale ●   stale ●
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.equality import equal_rows
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask, pick
from krishiv_py.kernels.changes.net import net_changes
from krishiv_py.kernels.changes.readable import readable
from krishiv_py.kernels.changes.table import TableChange, TableOperator
from krishiv_py.kernels.changes.touched import TouchedKeys
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.ordered import row_ranks
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.key_table import KeyTable
from krishiv_py.kernels.state.store import WRITTEN, Bucket
from krishiv_py.kernels.state.timer_queue import DUE, DueQueue
from krishiv_py.kernels.state.window_log import HASH, DeadKeys
from krishiv_py.plan.changes import AFTER, BEFORE, CHANGE, DELETE, INSERT, STALE, Changelog

NAME: Final = "changelog"
_ALIVE, _GONE_AT = "__alive", "__gone"
_GRAIN_US: Final = 1_000_000
_DUE: Final = pa.schema([pa.field(HASH, pa.int64()), pa.field(DUE, pa.int64())])
_NEVER: Final = np.iinfo(np.int64).max


@attrs.frozen(eq=False)
class _KeyChanges:
    """The changes of a batch that count, in order of key and arrival.

    Attributes
    ----------
    rows : pyarrow.Table
        The changes.
    of : ndarray of int64
        The key of each.
    up : ndarray of bool
        Which of them give the key a row; the others delete it.
    """

    rows: pa.Table
    of: Ints
    up: Mask

    @property
    def first(self) -> Mask:
        """Return which of them are the first of their key."""
        mask: Mask = np.ones(len(self.of), np.bool_)
        mask[1:] = self.of[1:] != self.of[:-1]
        return mask

    @property
    def last(self) -> Ints:
        """Return the last ones of each key."""
        return np.flatnonzero(np.append(self.of[1:] != self.of[:-1], np.ones(min(len(self.of), 1), np.bool_)))


class ChangelogOperator(TableOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, Changelog)
        self.operation = operation = spec.operation
        layout = Layout(spec)
        super().__init__(spec, [layout.row_schema.field(name) for name in layout.own_names], counts=False)
        working = dict(zip(spec.keys, self.names, strict=True)) | dict(zip(layout.own, layout.own_names, strict=True))
        self.act = working[CHANGE]
        self.sequence = [working[name] for name in operation.sequence]
        fields = operation.result_fields(spec.row_schema, pa.null()) or []
        self.columns = [working[field.name] for field in fields]
        """The columns of a row as it is given."""
        self.values = [layout.row_schema.field(name) for name in layout.own_names]
        self.stored = [*self.values, pa.field(_ALIVE, pa.bool_()), pa.field(_GONE_AT, pa.int64())]

    def change(self, bucket: Bucket, fresh: pa.Table, moment: Moment) -> TableChange:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        table, due = self._table(bucket), DueQueue(bucket, f"{NAME}_gone", _GRAIN_US)
        self._forget(table, due, moment)
        results, late, counters = self.layout.result_schema.empty_table(), [], dict[str, int]()
        if fresh.num_rows:
            fresh, refused = self._readable(fresh, moment)
            late += refused
        if fresh.num_rows:
            results, refused, counters = self._changed(table, due, fresh, moment)
            late += refused
        counters = counters | {"refused_changes": sum(t.num_rows for t in late)} if late else counters
        return TableChange(results, late, counters, due.earliest)

    def count_entries(self, bucket: Bucket) -> int:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return len(self._table(bucket))

    def rows_of(self, bucket: Bucket, touched: TouchedKeys) -> pa.Table:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        stored, places = self._table(bucket).lookup(touched.keys, touched.hashes)
        rows = pick(stored, places[places >= 0])
        return self._rows(rows.filter(rows[_ALIVE]))

    def drop(self, bucket: Bucket, dead: DeadKeys) -> int:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        gone = self._table(bucket).drop(dead)
        return int(np.count_nonzero(gone[_ALIVE].to_numpy(zero_copy_only=False)))

    def _readable(self, rows: pa.Table, moment: Moment) -> tuple[pa.Table, list[pa.Table]]:
        """Part rows whose operation or sequence is not known from the others."""
        rows, refused = readable(rows, self.act, self.sequence)
        return rows, [self._aside(part, reason, moment) for reason, part in refused.items()]

    def _changed(
        self, table: KeyTable, due: DueQueue, fresh: pa.Table, moment: Moment
    ) -> tuple[pa.Table, list[pa.Table], dict[str, int]]:
        touched, ids = TouchedKeys.of(fresh, self.names)
        stored, places = table.lookup(touched.keys, touched.hashes, touched.order)
        known = np.flatnonzero(places >= 0)
        stored = pick(stored, places[known])
        order = stable_order(ids)
        stale = self._stale(fresh, ids, order, stored, known, touched.n)
        counts = order[~stale[order]]
        up = fresh[self.act].to_numpy(zero_copy_only=False).astype(np.bool_)
        decided = _KeyChanges(pick(fresh, counts), ids[counts], up[counts])
        late = [self._aside(fresh.filter(pa.array(stale)), STALE, moment)] if self._tells_stale(stale) else []
        alive = stored[_ALIVE].to_numpy(zero_copy_only=False)
        was = known[alive]
        rows_before = self._rows(pick(stored, np.flatnonzero(alive)))
        results, counters = self._changes_of(decided, rows_before, was, touched.n)
        self._write(table, due, touched, decided, moment)
        return results, late, counters | ({"stale": int(np.count_nonzero(stale))} if stale.any() else {})

    def _tells_stale(self, stale: Mask) -> bool:
        return self.operation.stale == "side_output" and bool(stale.any())

    def _stale(self, fresh: pa.Table, ids: Ints, order: Ints, stored: pa.Table, known: Ints, n: int) -> Mask:
        """Return which changes are at or below one of their key that came before."""
        stale = np.zeros(fresh.num_rows, np.bool_)
        if not self.sequence:
            return stale
        both = pa.concat_tables([stored.select(self.sequence), fresh.select(self.sequence)])
        ranks = row_ranks(both)
        before = np.full(n, -1, np.int64)
        before[known] = ranks[: len(known)]
        mine, of = ranks[len(known) :][order], ids[order]
        width = int(ranks.max(initial=0)) + 2
        reached = np.maximum.accumulate(of * width + np.maximum(mine, before[of]) + 1)
        first = np.ones(len(of), np.bool_)
        first[1:] = of[1:] != of[:-1]
        so_far = np.where(first, before[of], np.roll(reached, 1) - of * width - 1)
        stale[order] = mine <= so_far
        return stale

    def _changes_of(self, decided: _KeyChanges, before: pa.Table, was: Ints, n: int) -> tuple[pa.Table, dict[str, int]]:
        """Return the changes that are given, and what is counted of those that change nothing."""
        rows, first = self._rows(decided.rows), decided.first
        stored_at = np.full(n, -1, np.int64)
        stored_at[was] = np.arange(len(was))
        shift = before.num_rows
        place = np.arange(len(decided.of)) + shift
        met = np.where(first, stored_at[decided.of], np.where(np.roll(decided.up, 1), place - 1, -1))
        exists = met >= 0
        every = pa.concat_tables([before, rows])
        again = np.flatnonzero(decided.up & exists)
        same = np.zeros(len(met), np.bool_)
        same[again] = equal_rows(pick(every, met[again]), pick(every, place[again]))
        counters = {"unchanged": int(same.sum()), "unknown_delete": int(np.count_nonzero(~decided.up & ~exists))}
        counters = {name: count for name, count in counters.items() if count}
        if self.operation.each and self.withdraws:
            return self._one_by_one(every, decided.up, exists, same, met, place), counters
        last = decided.last
        there = last[decided.up[last]]
        seen = np.zeros(n, np.bool_)
        seen[decided.of] = True
        mine = seen[was]  # keys all of whose changes were stale stay as they are
        schema = self.layout.result_schema
        given = net_changes(
            schema,
            pick(before, np.flatnonzero(mine)),
            was[mine],
            pick(rows, there),
            decided.of[there],
            n,
            withdraws=self.withdraws,
        )
        return given, counters

    def _one_by_one(self, every: pa.Table, up: Mask, exists: Mask, same: Mask, met: Ints, place: Ints) -> pa.Table:
        gone, given = np.flatnonzero(exists & ~same), np.flatnonzero(up & ~same)
        ops = np.concatenate([np.where(up[gone], BEFORE, DELETE), np.where(exists[given], AFTER, INSERT)])
        order = stable_order(np.concatenate([2 * gone, 2 * given + 1]))
        rows = pick(every, np.concatenate([met[gone], place[given]])[order])
        return pa.Table.from_arrays([*rows.columns, pa.array(ops[order], pa.string())], schema=self.layout.result_schema)

    def _write(self, table: KeyTable, due: DueQueue, touched: TouchedKeys, decided: _KeyChanges, moment: Moment) -> None:
        last = decided.last
        if not len(last):
            return
        last = last[stable_order(touched.ranks[decided.of[last]])]  # the table has its rows in order of their hashes
        of, up, rows = decided.of[last], decided.up[last], pick(decided.rows, last)
        stays = up | bool(self.sequence)
        gone = np.full(len(last), _NEVER)
        if self.sequence and self.operation.tombstones_us is not None and moment.now_us is not None:
            gone[~up] = moment.now_us + self.operation.tombstones_us
            hashes = touched.hashes[of]
            if not up.all():
                entries = pa.Table.from_arrays([pa.array(hashes[~up]), pa.array(gone[~up])], schema=_DUE)
                due.insert(entries, moment.now_us)
        columns = [*(rows[field.name] for field in self.values), pa.array(up), pa.array(gone)]
        table.write(pick(touched.keys, of), touched.hashes[of], stays, columns)

    def _forget(self, table: KeyTable, due: DueQueue, moment: Moment) -> None:
        """Delete keys that are gone, once the time is over for which their sequence is kept."""
        if moment.now_us is None:
            return
        looked = due.pop(moment.now_us)
        if not looked:
            return
        rows = table.of_hashes(np.unique(pa.concat_tables(looked)[HASH].to_numpy()))
        over = rows.filter(pa.array(rows[_GONE_AT].to_numpy() <= moment.now_us))
        if over.num_rows:
            keys = over.select(self.names) if self.names else pa.table({"": pa.nulls(over.num_rows)})
            columns = [over[field.name] for field in self.stored]
            table.write(keys, over[HASH].to_numpy(), np.zeros(over.num_rows, np.bool_), columns)

    def _rows(self, rows: pa.Table) -> pa.Table:
        """Return rows as they are given."""
        return pa.Table.from_arrays([rows[name] for name in self.columns], schema=self.row_fields)

    def _aside(self, rows: pa.Table, reason: str, moment: Moment) -> pa.Table:
        return self.layout.refused(rows, reason, moment.watermark_us)

    def _table(self, bucket: Bucket) -> KeyTable:
        return KeyTable(bucket, NAME, self.layout.key_fields, self.stored)

    def state(self, bucket: Bucket) -> pa.Table:
        """Return the row of each key, and when it changed last."""
        rows = self._table(bucket).rows()
        rows = rows.filter(rows[_ALIVE])
        return self.with_written(self._rows(rows), rows[WRITTEN])
