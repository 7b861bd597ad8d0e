"""Regular joins (SEMANTICS §16.7): both sides are tables, and so are the results; a batch gives what changes of them.

The rows of both sides stay in state. What a batch adds and takes back meets the rows of the other side, which are looked up by
key. A result is a pair of rows, so it has changed where one of these has::

    changes     changed left rows × right rows,  other left rows × changed right rows
    outer       a left row is given with nulls while its key has no right row

So a change costs as many rows as it meets, whatever else is in state.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask, flags_at, pick
from krishiv_py.errors import PlanError
from krishiv_py.kernels.changes.counted import ROWS, CountedLog
from krishiv_py.kernels.changes.net import kinds_of, update_kinds, without_unchanged
from krishiv_py.kernels.changes.sides import SideRows, side_rows
from krishiv_py.kernels.changes.table import ExpiringTable, TableChange, TableOperator
from krishiv_py.kernels.changes.touched import TouchedKeys
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.results import StepResult, WindowOperator
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import DeadKeys
from krishiv_py.kernels.ttl import OF_SIDES
from krishiv_py.plan.changes import RegularJoin
from krishiv_py.plan.options.query import StateTtlConfig
from krishiv_py.plan.sides import LEFT, RIGHT

_GIVEN_ALONE: Final = {"left": (True, False), "right": (False, True), "full": (True, True), "anti": (True, False)}
"""Of which sides a row without a partner is given."""


@attrs.frozen(eq=False)
class _Pairs:
    """Results that may have changed: the key of each, its row of either side before and now (-1: none), and how often it is."""

    of: Ints
    before: tuple[Ints, Ints]
    now: tuple[Ints, Ints]
    were: Ints
    are: Ints

    @classmethod
    def of_rows(cls, left: SideRows, lefts: Ints, right: SideRows, rights: Ints) -> _Pairs:
        """Return the pairs of some rows of both sides."""
        before, now = (left.before[lefts], right.before[rights]), (left.now[lefts], right.now[rights])
        were, are = left.were[lefts] * right.were[rights], left.are[lefts] * right.are[rights]
        return cls(left.of[lefts], before, now, were, are)

    @classmethod
    def joined(cls, parts: list[_Pairs]) -> _Pairs:
        """Return all of these."""
        every = [(p.of, *p.before, *p.now, p.were, p.are) for p in parts]
        of, left, right, left_now, right_now, were, are = map(np.concatenate, zip(*every, strict=True))
        return cls(of, (left, right), (left_now, right_now), were, are)

    def changes(self) -> tuple[Ints, Ints]:
        """Return how often each is withdrawn and given; one that is as it was only as often as it is there more or less."""
        same = (self.before[0] == self.now[0]) & (self.before[1] == self.now[1])
        more = self.are - self.were
        return np.where(same, np.maximum(-more, 0), self.were), np.where(same, np.maximum(more, 0), self.are)


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
        known = [None if names is None else [working[name] for name in names] for names in self.join.ids]
        self.ids = [None if names is None else [name for name in names if name not in self.names] for names in known]
        """The columns that tell rows of a key apart on each side."""

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
        every, sides = np.ones(touched.n, np.bool_), list[SideRows]()
        for log, ids in zip(self._logs(bucket), self.ids, strict=True):
            rows, of = log.entries(touched)
            sides.append(side_rows((rows.slice(0, 0), of[:0]), (rows, of), every, ids, forgets=True)[0])
        pairs = self._pairs(sides, every)
        _, given = pairs.changes()
        places = np.repeat(np.arange(len(given)), given)
        columns = self._columns(touched, sides, pairs.of[places], (pairs.now[0][places], pairs.now[1][places]))
        return pa.Table.from_arrays(columns, schema=self.row_fields)

    def drop(self, bucket: Bucket, dead: DeadKeys) -> int:
        """See :class:`~krishiv_py.kernels.changes.table.TableOperator`."""
        return sum(log.drop(dead).num_rows for log in self._logs(bucket))

    def forget(self, bucket: Bucket, number: int, dead: pa.Table) -> tuple[pa.Table, int]:
        """Take the rows of some keys out of one side; returns what that changes of the results, and how many rows went."""
        (touched, _), every, sides = TouchedKeys.of(dead, self.names), np.ones(dead.num_rows, np.bool_), list[SideRows]()
        for log, ids in zip(self._logs(bucket), self.ids, strict=True):
            rows, of = log.entries(touched)
            sides.append(side_rows((rows, of), (rows.slice(0, 0), of[:0]), every, ids, forgets=True)[0])
        mine, none = sides[number], np.zeros(len(sides[number].of), np.int64)
        sides[number] = attrs.evolve(mine, now=none - 1, are=none)
        results = self._results(touched, sides, self._pairs(sides, every))
        self._logs(bucket)[number].drop(DeadKeys.of(dead, self.names))
        return results, int(mine.were.sum())

    def _changed(self, logs: tuple[CountedLog, CountedLog], fresh: pa.Table) -> tuple[pa.Table, int]:
        """Return what changes of the results, and how many rows were not there to be withdrawn."""
        touched, of = TouchedKeys.of(fresh, self.names)
        keyed = np.ones(touched.n, np.bool_)
        for name in self.names:  # null keys never meet
            keyed &= touched.keys[name].is_valid().to_numpy()
        is_left = pc.equal(fresh[self.side], LEFT).to_numpy()
        mine = [np.flatnonzero(is_left), np.flatnonzero(~is_left)]
        came = [flags_at(of[rows], touched.n) for rows in mine]
        sides, expired = list[SideRows](), 0
        for number, log in enumerate(logs):
            looks = self.forgets or self._shows_alone(1 - number)  # else a row is of interest only to changes of the other side
            looked = keyed & (came[1 - number] | (came[number] & looks))
            fresh_rows = pick(fresh.select([*log.own, ROWS]), mine[number])
            stored = log.entries(touched, looked)
            side, missing = side_rows(stored, (fresh_rows, of[mine[number]]), looked, self.ids[number], forgets=self.forgets)
            log.extend(touched, side.rows, *side.some(keyed[side.of]).entries())
            sides.append(side)
            expired += missing
        return self._results(touched, sides, self._pairs(sides, keyed)), expired

    def _shows_alone(self, number: int) -> bool:
        """Return whether rows of a side are results of their own."""
        return _GIVEN_ALONE.get(self.join.how, (False, False))[number] or (self.join.how == "semi" and number == 0)

    def _pairs(self, sides: list[SideRows], keyed: Mask) -> _Pairs:
        """Return the results of which a row has changed; only rows of the keys in `keyed` meet."""
        left, right = meeting = sides if keyed.all() else [side.some(keyed[side.of]) for side in sides]
        parts, n = list[_Pairs](), len(keyed)
        if not self.join.left_only:
            changed, still, others = left.changed, np.flatnonzero(~left.changed), np.flatnonzero(right.changed)
            lefts = np.flatnonzero(changed)
            begins = _begins(right.of, n)
            rights, met = expand(begins[left.of[lefts]], begins[left.of[lefts] + 1])
            parts.append(_Pairs.of_rows(left, lefts[met], right, rights))
            begins = _begins(left.of[still], n)
            lefts, met = expand(begins[right.of[others]], begins[right.of[others] + 1])
            parts.append(_Pairs.of_rows(left, still[lefts], right, others[met]))
        parts += [
            self._alone(side, number, *meeting[1 - number].there(n))
            for number, side in enumerate(sides)
            if self._shows_alone(number)
        ]
        return _Pairs.joined(parts)

    def _alone(self, side: SideRows, number: int, had: Mask, has: Mask) -> _Pairs:
        """Return rows of a side as results of their own, where they may have changed; `had`, `has`: keys with other rows."""
        shown, shows = (had, has) if self.join.how == "semi" else (~had, ~has)
        mine = side.some(side.changed | (shown != shows)[side.of])
        none = np.full(len(mine.of), -1, np.int64)
        before, now = ((mine.before, none), (mine.now, none)) if number == 0 else ((none, mine.before), (none, mine.now))
        return _Pairs(mine.of, before, now, mine.were * shown[mine.of], mine.are * shows[mine.of])

    def _results(self, touched: TouchedKeys, sides: list[SideRows], pairs: _Pairs) -> pa.Table:
        """Return the net change: of a key what is withdrawn, and then what is given."""
        gone, came = pairs.changes()
        lost, new = np.flatnonzero(gone > 0), np.flatnonzero(came > 0)
        again = (gone > 0) & (came > 0) & (None not in self.ids)
        kinds = update_kinds(again[lost], again[new])
        of, counts = np.concatenate([pairs.of[lost], pairs.of[new]]), np.concatenate([gone[lost], came[new]])
        if not self.withdraws:
            counts[: len(lost)] = 0
        order = stable_order(2 * of + (np.arange(len(of)) >= len(lost)))
        if len(counts) and (counts != 1).any():
            order = np.repeat(order, counts[order])
        left, right = (np.concatenate([b[lost], n[new]])[order] for b, n in zip(pairs.before, pairs.now, strict=True))
        columns = self._columns(touched, sides, of[order], (left, right))
        if self.withdraws:
            columns.append(kinds_of(kinds[order]))
        results = pa.Table.from_arrays(columns, schema=self.layout.result_schema)
        blank = not self.join.left_only and any(
            self._shows_alone(number) and _has_blank_row(sides[1 - number].rows) for number in (0, 1)
        )
        return without_unchanged(results) if blank and self.withdraws else results

    def _columns(
        self, touched: TouchedKeys, sides: list[SideRows], of: Ints, places: tuple[Ints, Ints]
    ) -> list[pa.ChunkedArray]:
        """Return the columns of results by their key, and their row of either side."""
        columns = list(pick(touched.keys, of).columns) if self.names else []
        for side, rows in zip(sides[: 1 if self.join.left_only else 2], places, strict=False):
            none = rows < 0
            columns += pick(side.rows, pa.array(rows, mask=none) if none.any() else rows).columns
        return columns

    def _logs(self, bucket: Bucket) -> tuple[CountedLog, CountedLog]:
        fields = self.layout.row_schema
        left, right = (
            CountedLog(bucket, name, self.layout.key_fields, [fields.field(column) for column in own], ids)
            for name, own, ids in zip(("tjl", "tjr"), self.own, self.ids, strict=True)
        )
        return left, right

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`: refused."""
        then = "a join keeps rows of both sides"
        hint = "read the results, or how many rows are held from the progress"
        raise PlanError("state has no aggregates to show", got=self.join.describe(), then=then, hint=hint)


class ExpiringSide(ExpiringTable):
    """The time to live of the rows of one side: the results are then the join of what is left (SEMANTICS §16.7).

    Each side has such an operator around the join, and that of the right side is within that of the left one.
    """

    number: int

    @classmethod
    def around(cls, spec: OperatorSpec, inner: Any) -> WindowOperator:
        """Return an operator with one of these for each side that has a time to live."""
        assert spec.options.ttl is not None
        for side, us in zip((_ExpiringRight, _ExpiringLeft), reversed(spec.options.ttl._sides or ()), strict=True):
            inner = inner if us is None else side(spec, inner)
        within: WindowOperator = inner
        return within

    def ttl_of(self, ttl: StateTtlConfig) -> int:
        """See :class:`~krishiv_py.kernels.ttl.Expiring`."""
        us = (ttl._sides or ())[self.number]
        assert us is not None
        return us

    def combine(self, rows: pa.Table) -> pa.Table:
        """See :class:`~krishiv_py.kernels.ttl.Expiring`: the clock says when a row came, so nothing is added."""
        return self.inner.combine(rows)

    def chunks_within(self, chunks: list[pa.Table]) -> list[pa.Table]:
        """See :class:`~krishiv_py.kernels.ttl.Expiring`."""
        return chunks

    def touching(self, chunks: list[pa.Table]) -> pa.Table:
        """See :class:`~krishiv_py.kernels.ttl.Expiring`: the keys of rows of the side."""
        rows = pa.concat_tables(chunks)
        is_mine = pc.equal(rows[self._join.side], (LEFT, RIGHT)[self.number])
        return rows.select(self.layout.key_names).filter(is_mine)

    @property
    def _join(self) -> RegularJoinOperator:
        inner = self.inner
        while isinstance(inner, ExpiringSide):
            inner = inner.inner
        assert isinstance(inner, RegularJoinOperator)
        return inner

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.ttl.Expiring`: what one side gives and the other takes back is not given."""
        done = super().step(bucket, chunks, moment)
        if not self._withdrawn or not self._join.withdraws:
            return done
        results = without_unchanged(done.results)
        return attrs.evolve(done, results=results, firings=results.num_rows)

    def _drop(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.Expiring`: counts rows."""
        results, gone = self._join.forget(bucket, self.number, dead)
        self._withdrawn.append(results)
        return gone


class _ExpiringLeft(ExpiringSide):
    """The time to live of left rows."""

    names, number = OF_SIDES[0], 0


class _ExpiringRight(ExpiringSide):
    """The time to live of right rows."""

    names, number = OF_SIDES[1], 1


def _begins(of: Ints, n: int) -> Ints:
    """Return where each of `n` keys begins among ascending ones, and their end."""
    begins = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(of, minlength=n), out=begins[1:])
    return begins


def _has_blank_row(rows: pa.Table) -> bool:
    """Return whether a row is null in all columns: with it a result looks as without any."""
    blank = np.ones(rows.num_rows, np.bool_)
    for column in rows.columns:
        if not column.null_count:
            return False
        blank &= column.is_null().to_numpy()
    return bool(blank.any())
