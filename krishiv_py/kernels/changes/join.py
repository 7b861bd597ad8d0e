"""Regular joins (SEMANTICS §16.7): both sides are tables, and so are the results; a batch gives what changes of them.

The rows of both sides stay in state, equal ones once with their number. What a batch adds and takes back meets the rows of the
other side, which are looked up by key::

    changes     left × right as it is now,  left as it was × right
    outer       a left row is given with nulls while its key has no right row

So a change costs as many rows as it meets, whatever else is in state.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask, pick
from krishiv_py.errors import PlanError
from krishiv_py.kernels.changes.counted import ROWS, CountedLog, CountedRows, counted
from krishiv_py.kernels.changes.net import signed_changes
from krishiv_py.kernels.changes.table import TableChange, TableOperator
from krishiv_py.kernels.changes.touched import TouchedKeys
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import DeadKeys
from krishiv_py.plan.changes import RegularJoin
from krishiv_py.plan.sides import LEFT

_GIVEN_ALONE: Final = {"left": (True, False), "right": (False, True), "full": (True, True), "anti": (True, False)}
"""Of which sides a row without a partner is given."""


class RegularJoinOperator(TableOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, RegularJoin)
        self.join = spec.operation
        layout = Layout(spec)
        super().__init__(spec, [layout.row_schema.field(name) for name in layout.own_names], counts=True)
        self.side, *own = layout.own_names
        lefts = len(self.join.sides.left)
        self.own = own[:lefts], own[lefts:]
        working = dict(zip(layout.own, layout.own_names, strict=True)) | dict(zip(spec.keys, self.names, strict=True))
        self.ids = [None if names is None else [working[name] for name in names] for names in self.join.ids]

    def change(self, bucket: Bucket, fresh: pa.Table, moment: Moment) -> TableChange:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        if not fresh.num_rows:
            return TableChange(self.layout.result_schema.empty_table())
        results, expired = self._changed(self._logs(bucket), fresh)
        return TableChange(results, counters={"expired": expired} if expired else {})

    def count_entries(self, bucket: Bucket) -> int:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return sum(len(log) for log in self._logs(bucket))

    def rows_of(self, bucket: Bucket, touched: TouchedKeys) -> pa.Table:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        stored = [log.lookup(touched) for log in self._logs(bucket)]
        none = [side.pick(np.empty(0, np.int64)) for side in stored]
        parts = [] if self.join.left_only else [self._pairs(touched, stored[0], stored[1])]
        for number in (0, 1):
            if self._shows_alone(number):
                meets = self.join.how == "semi"
                has = np.zeros(touched.n, np.bool_)
                has[stored[1 - number].of] = True
                parts.append(self._lonely(touched, stored[number].of_keys(has if meets else ~has), number))
        given = pa.concat_tables(parts) if parts else self._lonely(touched, none[0], 0)
        rows = pick(given.drop_columns([_OF, ROWS]), np.repeat(np.arange(given.num_rows), given[ROWS].to_numpy()))
        return pa.Table.from_arrays(rows.columns, schema=self.row_fields)

    def drop(self, bucket: Bucket, dead: DeadKeys) -> int:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return sum(log.drop(dead).num_rows for log in self._logs(bucket))

    def _shows_alone(self, number: int) -> bool:
        """Return whether rows of a side are results of their own."""
        return _GIVEN_ALONE.get(self.join.how, (False, False))[number] or (self.join.how == "semi" and number == 0)

    def _changed(self, logs: tuple[CountedLog, CountedLog], fresh: pa.Table) -> tuple[pa.Table, int]:
        """Return what changes of the results, and how many rows were not there to be withdrawn."""
        touched, ids = TouchedKeys.of(fresh, self.names)
        is_left = pc.equal(fresh[self.side], LEFT).to_numpy()
        keyed = np.ones(touched.n, np.bool_)
        for name in self.names:  # null keys never meet
            keyed &= touched.keys[name].is_valid().to_numpy()
        came = [self._of_side(fresh, ids, is_left == bool(left), number) for number, left in enumerate((True, False))]
        met = [side.of_keys(keyed) for side in came]
        has = [np.zeros(touched.n, np.bool_) for _ in range(2)]
        for mask, side in zip(has, met, strict=True):
            mask[side.of] = True
        looks = self.join.how != "inner" or self.forgets
        wanted = [has[1] | (has[0] & looks), has[0] | (has[1] & looks)]
        stored = [log.lookup(touched, mask) for log, mask in zip(logs, wanted, strict=True)]
        expired, now = 0, list[CountedRows]()
        for number, (log, mask) in enumerate(zip(logs, wanted, strict=True)):
            side = stored[number].added(met[number])
            known, missing = side.of_keys(mask).matched(forgets=self.forgets)  # of the others nothing was looked up
            if missing:
                side, met[number] = known, known.added(stored[number].negative())
                expired += missing
            log.append(touched, met[number])
            now.append(side)
        parts: list[pa.Table] = []
        if not self.join.left_only:
            parts += [self._pairs(touched, met[0], now[1]), self._pairs(touched, stored[0], met[1])]
        for number in (0, 1):
            if self._shows_alone(number):
                parts += self._alone(touched, number, stored, now, met[number], meets=self.join.how == "semi")
                if self.join.how != "semi":
                    parts.append(self._lonely(touched, came[number].of_keys(~keyed), number))
        return self._net(touched, pa.concat_tables(parts) if parts else None), expired

    def _of_side(self, fresh: pa.Table, ids: Ints, mine: Mask, number: int) -> CountedRows:
        return CountedRows.of_table(fresh.filter(pa.array(mine)).select([*self.own[number], ROWS]), ids[mine])

    def _pairs(self, touched: TouchedKeys, left: CountedRows, right: CountedRows) -> pa.Table:
        """Return all pairs of rows of equal keys, each as often as both of its rows."""
        order = stable_order(right.of)
        ordered = right.of[order]
        low, high = np.searchsorted(ordered, left.of, side="left"), np.searchsorted(ordered, left.of, side="right")
        places, lefts = expand(low, high)
        rights = order[places]
        one, other = left.pick(lefts), right.pick(rights)
        columns = [*one.rows.columns[:-1], *other.rows.columns[:-1]]
        return self._laid_out(touched, one.of, columns, one.counts * other.counts)

    def _alone(
        self,
        touched: TouchedKeys,
        number: int,
        stored: list[CountedRows],
        now: list[CountedRows],
        came: CountedRows,
        *,
        meets: bool,
    ) -> list[pa.Table]:
        """Return what changes of the rows of a side whose key has no row of the other side, or `meets` one."""
        had, has = np.zeros(touched.n, np.bool_), np.zeros(touched.n, np.bool_)
        had[stored[1 - number].of], has[now[1 - number].of] = True, True
        shown, shows = (had, has) if meets else (~had, ~has)
        parts = [came.of_keys(shown & shows)]
        parts.append(stored[number].of_keys(shown & ~shows).negative())
        parts.append(now[number].of_keys(~shown & shows))
        return [self._lonely(touched, part, number) for part in parts]

    def _lonely(self, touched: TouchedKeys, side: CountedRows, number: int) -> pa.Table:
        """Return rows of one side as results, with nulls for the other side."""
        types = self.layout.row_schema
        nulls = [pa.nulls(len(side.of), types.field(name).type) for name in self.own[1 - number]]
        mine = side.rows.columns[:-1]
        columns = mine if self.join.left_only else [*mine, *nulls] if number == 0 else [*nulls, *mine]
        return self._laid_out(touched, side.of, columns, side.counts)

    def _laid_out(self, touched: TouchedKeys, of: Ints, columns: list[pa.ChunkedArray | pa.Array], counts: Ints) -> pa.Table:
        """Return results with the number of their key, and how many there are of each."""
        keys = pick(touched.keys, of)
        names = [*self.names, *self.own[0], *([] if self.join.left_only else self.own[1])]
        every = [*keys.columns, *columns, pa.array(of), pa.array(counts)]
        return pa.table(dict(zip([*names, _OF, ROWS], every, strict=True)))

    def _net(self, touched: TouchedKeys, changes: pa.Table | None) -> pa.Table:
        """Return the net change: of a key what is withdrawn, and then what is given."""
        schema = self.layout.result_schema
        if changes is None or not changes.num_rows:
            return schema.empty_table()
        net, of = counted(changes.drop_columns([_OF]), changes[_OF].to_numpy())
        names = None if None in self.ids else [name for ids in self.ids for name in ids or () if name in net.column_names]
        rows = net.drop_columns([ROWS])
        return signed_changes(schema, rows, net[ROWS].to_numpy(), of, names, withdraws=self.withdraws)

    def _logs(self, bucket: Bucket) -> tuple[CountedLog, CountedLog]:
        fields = self.layout.row_schema
        left, right = (
            CountedLog(bucket, name, self.layout.key_fields, [fields.field(column) for column in own])
            for name, own in zip(("tjl", "tjr"), self.own, strict=True)
        )
        return left, right

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`: refused."""
        then = "a join keeps rows of both sides"
        hint = "read the results, or how many rows are held from the progress"
        raise PlanError("state has no aggregates to show", got=self.join.describe(), then=then, hint=hint)


_OF: Final = "__of"
"""The number of the key of a result."""
