"""All versions of a table as rows (SEMANTICS §16.8): from when on each was valid, and until before when.

State has the changes of each key by the time at which they begin. A change that repeats the row before it begins no version,
and one that comes late cuts the version in two that it falls into::

    changes     10: Ulm       20: Rom   30: deleted        15: Bonn comes
    versions    [10, 20) Ulm  [20, 30) Rom                 [10, 15) Ulm  [15, 20) Bonn  [20, 30) Rom
    results                                                -U [10, 20) Ulm, +U [10, 15) Ulm, +I [15, 20) Bonn
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.equality import equal_rows
from krishiv_py.arrays.grouping import group, places_among
from krishiv_py.arrays.sorting import sorted_unique
from krishiv_py.arrays.types import Ints, pick, values_at
from krishiv_py.kernels.changes.counted import ROWS, counted
from krishiv_py.kernels.changes.net import signed_changes
from krishiv_py.kernels.changes.readable import readable
from krishiv_py.kernels.changes.table import TableChange, TableOperator
from krishiv_py.kernels.changes.touched import TouchedKeys
from krishiv_py.kernels.columns.layout import Layout, whole
from krishiv_py.kernels.ordered import ranks_of, row_ranks
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import WRITTEN, Bucket
from krishiv_py.kernels.state.window_log import HASH, DeadKeys, KeyedLog
from krishiv_py.plan.changes import CHANGE, History

NAME: Final = "history"


@attrs.frozen(eq=False)
class _Changes:
    """Changes of some keys, of each key and time one: the number of the key of each, and their columns."""

    of: Ints
    rows: pa.Table


@attrs.frozen(eq=False)
class _Versions:
    """Versions as they are given, the number of the key of each, and the changes that they begin with."""

    of: Ints
    rows: pa.Table
    begun: pa.Table


class HistoryOperator(TableOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, History)
        self.operation = operation = spec.operation
        layout = Layout(spec)
        self.own = [layout.row_schema.field(name) for name in layout.own_names]
        super().__init__(spec, self.own, counts=False)
        working = dict(zip(spec.keys, self.names, strict=True)) | dict(zip(layout.own, layout.own_names, strict=True))
        self.act, self.begin = working[CHANGE], working[operation.begins]
        self.sequence = [working[name] for name in operation.sequence]
        self.columns = [working[field.name] for field in operation.row_fields(spec.row_schema)]
        """The columns of a version without its bounds."""

    def change(self, bucket: Bucket, fresh: pa.Table, moment: Moment) -> TableChange:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        rows, refused = readable(fresh, self.act, self.sequence)
        late = [self.layout.refused(part, reason, moment.watermark_us) for reason, part in refused.items()]
        counters = {"refused_changes": sum(part.num_rows for part in late)} if late else {}
        if not rows.num_rows:
            return TableChange(self.layout.result_schema.empty_table(), late, counters)
        log = self._log(bucket)
        touched, ids = TouchedKeys.of(rows, self.names)
        stored, of_stored = self._stored(log, touched)
        rows = rows.select(self.chunk_schema.names).add_column(0, HASH, pa.array(touched.hashes[ids]))
        before = self._versions(self._counting(stored, of_stored))
        both = pa.concat_tables([stored, rows.cast(stored.schema)])
        now = self._versions(self._counting(both, np.concatenate([of_stored, ids])))
        log.append(rows)
        return TableChange(self._net(before, now), late, counters)

    def count_entries(self, bucket: Bucket) -> int:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return len(self._log(bucket))

    def rows_of(self, bucket: Bucket, touched: TouchedKeys) -> pa.Table:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return self._versions(self._counting(*self._stored(self._log(bucket), touched))).rows

    def drop(self, bucket: Bucket, dead: DeadKeys) -> int:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return int(self._log(bucket).remove(dead.hashes, dead.rows).num_rows)

    def _stored(self, log: KeyedLog, touched: TouchedKeys) -> tuple[pa.Table, Ints]:
        """Return the stored changes of some keys, older ones first, and the key of each by its number."""
        rows = log.lookup(sorted_unique(touched.hashes))
        of = places_among(self.names, touched.keys, rows)
        mine = np.flatnonzero(of >= 0)  # others have the hash of one of these keys
        return pick(rows, mine), of[mine]

    def _counting(self, rows: pa.Table, of: Ints) -> _Changes:
        """Return of each key and time the change that counts: the largest sequence, and of one sequence the last to arrive."""
        groups = group([of, rows[self.begin]], rows.num_rows)
        order = np.lexsort((row_ranks(rows.select(self.sequence)),)) if self.sequence and rows.num_rows else np.arange(len(of))
        places = np.sort(values_at(groups.ids[order], order, groups.n))
        return _Changes(of[places], pick(rows, places))

    def _versions(self, changes: _Changes) -> _Versions:
        order = np.lexsort((ranks_of(whole(changes.rows[self.begin])), changes.of))
        rows, of = pick(changes.rows, order), changes.of[order]
        up = rows[self.act].to_numpy(zero_copy_only=False).astype(np.bool_)
        first = np.ones(len(of), np.bool_)
        first[1:] = of[1:] != of[:-1]
        values, later = rows.select(self.columns), np.flatnonzero(~first)
        same = np.zeros(len(of), np.bool_)
        same[later] = (up[later] == up[later - 1]) & (~up[later] | equal_rows(pick(values, later), pick(values, later - 1)))
        turns = np.flatnonzero(np.where(first, up, ~same))
        ends = np.full(len(turns), -1, np.int64)
        ends[:-1] = np.where(of[turns[1:]] == of[turns[:-1]], turns[1:], -1) if len(turns) else ends[:-1]
        begins, ends = turns[up[turns]], ends[up[turns]]
        begun = pick(rows, begins)
        until = whole(rows[self.begin]).take(pa.array(ends, mask=ends < 0))
        columns = [*begun.select(self.columns).columns, begun[self.begin], until]
        return _Versions(of[begins], pa.Table.from_arrays(columns, schema=self.row_fields), begun)

    def _net(self, before: _Versions, now: _Versions) -> pa.Table:
        """Return what changes of the versions: one that ends otherwise is updated."""
        signs = np.concatenate([np.full(len(before.of), -1), np.ones(len(now.of), np.int64)])
        both = pa.concat_tables([before.rows, now.rows]).append_column(ROWS, pa.array(signs.astype(np.int64)))
        net, of = counted(both, np.concatenate([before.of, now.of]))
        names = [*self.layout.spec.keys, self.operation.valid_from]
        rows = net.drop_columns([ROWS])
        return signed_changes(self.layout.result_schema, rows, net[ROWS].to_numpy(), of, names, withdraws=self.withdraws)

    def _compact(self, rows: pa.Table, oldest: bool) -> pa.Table:
        return self._counting(rows, group([rows[k] for k in self.names], rows.num_rows).ids).rows

    def _log(self, bucket: Bucket) -> KeyedLog:
        schema = pa.schema([pa.field(HASH, pa.int64()), *self.layout.key_fields, *self.own])
        return KeyedLog(bucket, NAME, schema, self._compact)

    def state(self, bucket: Bucket) -> pa.Table:
        """Return the versions of each key, and when the change came that each begins with."""
        rows = self._log(bucket).written()
        versions = self._versions(self._counting(rows, group([rows[k] for k in self.names], rows.num_rows).ids))
        return self.with_written(versions.rows, versions.begun[WRITTEN])
