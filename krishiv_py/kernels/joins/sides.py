"""The two sides of a join: their layouts, new rows, the rows they keep, and which have met a row of the other side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import first_come, key_hashes
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask, pick
from krishiv_py.errors import PlanError
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket, Section
from krishiv_py.kernels.state.time_log import SpanLog, WantedSpans, by_key
from krishiv_py.kernels.state.window_log import HASH, KeyedLog
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.joins import Join
from krishiv_py.plan.sides import LEFT

IS_LEFT: Final = "s"
NUMBER: Final = "n"
"""The number of a row among those of its side, in order of arrival."""
MET: Final = "m"
"""The column that says that a row met another in the batch that brought it."""
GIVEN: Final = {"left": (True, False), "right": (False, True), "full": (True, True), "anti": (True, False)}
"""Of which sides a row that met nobody is given."""
_MARKS: Final = pa.schema([pa.field(HASH, pa.int64()), pa.field(TIME, pa.int64())])


@attrs.frozen
class SideLayout:
    """Holds what is kept of the rows of a side: keys, and the columns it brings to results."""

    is_left: bool
    keys: tuple[str, ...]
    own: tuple[str, ...]

    @property
    def prefix(self) -> str:
        """Return what its tables are called."""
        return "jl" if self.is_left else "jr"

    def of(self, chunk: pa.Table) -> pa.Table:
        """Return the rows of this side in a combined chunk."""
        mine = chunk[IS_LEFT] if self.is_left else pc.invert(chunk[IS_LEFT])
        picked = mine.to_numpy()
        if not picked.any():
            return chunk.select([]).slice(0, 0)
        rows = chunk.select([HASH, TIME, *self.keys, *self.own])
        return rows if picked.all() else rows.filter(mine)


def combined(layout: Layout, rows: pa.Table, left: SideLayout, right: SideLayout, side: str, left_name: str) -> pa.Table:
    """Working rows as they are shuffled: with the hash of their key; of one side only its own columns, if all are of one."""
    is_left = pc.equal(rows[side], left_name)
    mask = is_left.to_numpy()
    both = mask.any() and not mask.all()
    own = [*left.own, *right.own] if both else list(left.own if mask.any() else right.own)
    hashes = key_hashes([rows[k] for k in layout.key_names], rows.num_rows)
    names = [TIME, *layout.key_names, *own]
    return pa.Table.from_arrays(
        [pa.array(hashes), is_left, *(rows[n] for n in names)],
        schema=pa.schema([pa.field(HASH, pa.int64()), pa.field(IS_LEFT, pa.bool_()), *(rows.schema.field(n) for n in names)]),
    )


@attrs.frozen(eq=False)
class BatchRows:
    """The rows a batch brings to a side, by key hash, then time, then arrival.

    Attributes
    ----------
    table : pyarrow.Table
        Hash, time, number, keys, own columns.
    seeks : ndarray of int64
        Positions of those whose keys are all there: the others meet nobody.
    """

    table: pa.Table
    seeks: Ints

    @property
    def times(self) -> Ints:
        """Event times."""
        times: Ints = self.table[TIME].to_numpy()
        return times

    def wanted(self, before_us: int, after_us: int) -> WantedSpans:
        """Return what they look for on the other side: from so far before their time until so far after it."""
        times = self.times[self.seeks]
        return WantedSpans(self.table[HASH].to_numpy()[self.seeks], times + before_us, times + after_us)


def fresh_rows(layout: SideLayout, schema: pa.Schema, chunks: list[pa.Table], arrived: int) -> BatchRows:
    """Return the rows of a side in a batch, as rows of that `schema`, numbered from `arrived` on."""
    tables = [t for t in map(layout.of, chunks) if t.num_rows]
    if not tables:
        return BatchRows(schema.empty_table(), np.empty(0, np.int64))
    rows = pa.concat_tables(tables)
    numbers = pa.array(np.arange(arrived, arrived + rows.num_rows, dtype=np.int64))
    rows = rows.add_column(2, NUMBER, numbers)
    if MET in schema.names:
        rows = rows.append_column(MET, pa.repeat(pa.scalar(False), rows.num_rows))
    rows = by_key(rows)
    null = np.zeros(rows.num_rows, np.bool_)
    for key in layout.keys:
        if rows[key].null_count:
            null |= rows[key].is_null().to_numpy()
    return BatchRows(rows, np.flatnonzero(~null))


class SideState:
    """The state of one side in one bucket."""

    def __init__(self, layout: SideLayout, schema: pa.Schema, bucket: Bucket, over: int) -> None:
        self.layout = layout
        self.schema = schema
        self.log = SpanLog(bucket, layout.prefix)
        self._bucket = bucket
        self._marks = KeyedLog(bucket, f"{layout.prefix}m", _MARKS, lambda rows, _: _still_of_use(rows, over))

    def beyond(self, rows: pa.Table, stays: Mask, most: int | None) -> Mask:
        """Return which of the rows that would stay find no room, since their key has `most` rows; the first to arrive
        have it.
        """
        over = np.zeros(rows.num_rows, np.bool_)
        row_places = np.flatnonzero(stays)
        if most is None or not len(row_places):
            return over
        hashes = rows[HASH].to_numpy()[row_places]
        order = np.lexsort((rows[NUMBER].to_numpy()[row_places], hashes))
        keys, first, ids = np.unique(hashes[order], return_index=True, return_inverse=True)
        rank = np.arange(len(row_places)) - first[ids]
        over[row_places[order]] = rank >= most - self.log.counts(keys)[ids]
        return over

    def first_come(self, fresh: BatchRows, most: int, reach_us: int, over: int) -> Mask:
        """Return which keyed rows of a batch take part: those that find fewer than `most` rows of their key within `reach_us`.

        Counted are rows that arrived before and take part themselves, whatever side of it in time they are on. Times before
        `over` are forgotten: no row comes that could count them. So it follows from the rows and their order alone.
        """
        name = f"{self.layout.prefix}c"
        older = f"log:{name}" not in self._bucket.meta
        known = SpanLog(self._bucket, name)
        if older and len(self.log):  # a state from before times were kept
            known.append(self.log.all().select([HASH, TIME]))
        for _ in known.take_before(over):
            pass
        takes = np.ones(len(fresh.seeks), np.bool_)
        hashes, times = fresh.table[HASH].to_numpy()[fresh.seeks], fresh.times[fresh.seeks]
        keys, first, counts = np.unique(hashes, return_index=True, return_counts=True)
        crowded = counts + known.counts(keys) > most
        arrived = fresh.table[NUMBER].to_numpy()[fresh.seeks]
        for row in np.flatnonzero(crowded).tolist():
            of_key = slice(first[row], first[row] + counts[row])
            held = known.times_of(int(keys[row]))
            order = stable_order(arrived[of_key])
            chosen = np.empty(counts[row], np.bool_)
            chosen[order] = first_come(times[of_key][order], held, most, reach_us)
            takes[of_key] = chosen
        admitted = pa.table({HASH: pa.array(hashes[takes]), TIME: pa.array(times[takes])})
        known.append(admitted)  # as all rows of a batch, by hash, then time
        return takes

    def keep(self, rows: pa.Table, met: Mask) -> None:
        """Add rows, with whether they met another."""
        self.log.append(rows.set_column(rows.num_columns - 1, MET, pa.array(met)))

    def mark(self, rows: pa.Table) -> None:
        """Note that held rows met another."""
        rows = rows.filter(pc.invert(rows[MET]))
        if not rows.num_rows:
            return
        numbers, first = np.unique(rows[NUMBER].to_numpy(), return_index=True)
        times = rows[TIME].to_numpy()[first]
        self._marks.append(pa.Table.from_arrays([pa.array(numbers), pa.array(times)], schema=_MARKS))

    def marked(self, rows: pa.Table) -> Mask:
        """Return whether held rows met another, in the batch that brought them or later."""
        met: Mask = rows[MET].to_numpy().copy()
        numbers = rows[NUMBER].to_numpy()
        marks = self._marks.lookup(sorted_unique(numbers[~met]))
        if marks.num_rows:
            met |= np.isin(numbers, marks[HASH].to_numpy())
        return met

    def leaving(self, horizon: int) -> pa.Table:
        """Take out the rows before `horizon`; gives those that met nobody."""
        unmet = []
        for rows in self.log.take_before(horizon):
            alone = ~self.marked(rows)
            if alone.any():
                unmet.append(rows.filter(pa.array(alone)))
        if not len(self.log):
            self._marks.clear()
        return pa.concat_tables([self.schema.empty_table(), *unmet])

    def remove(self, gone: Callable[[pa.Table], Mask]) -> int:
        """Take out the rows `gone` picks; gives how many of them had met nobody."""
        rows = self.log.remove(gone)
        if rows is not None:
            hashes = rows[HASH].to_numpy()
            SpanLog(self._bucket, f"{self.layout.prefix}c").remove(lambda known: np.isin(known[HASH].to_numpy(), hashes))
        return 0 if rows is None else int(np.count_nonzero(~self.marked(rows)))


def _still_of_use(marks: pa.Table, over: int) -> pa.Table:
    """Each row once, and none that is over."""
    kept = np.unique(marks[HASH].to_numpy(), return_index=True)[1]
    kept = kept[marks[TIME].to_numpy()[kept] >= over]
    return pick(marks, kept)


Both: TypeAlias = tuple[BatchRows, BatchRows]


@attrs.define
class JoinProgress(Section):
    """Up to which watermark rows have left, and how many have arrived on each side."""

    joined_at: int = UNSET
    arrived_left: int = 0
    arrived_right: int = 0

    def fresh(self, chunks: list[pa.Table], halves: tuple[SideLayout, SideLayout], schemas: tuple[pa.Schema, ...]) -> Both:
        """Return the rows that a batch brings to both sides, which are numbered on."""
        left, right = (
            fresh_rows(half, schema, chunks, arrived)
            for half, schema, arrived in zip(halves, schemas, (self.arrived_left, self.arrived_right), strict=True)
        )
        self.arrived_left += left.table.num_rows
        self.arrived_right += right.table.num_rows
        return left, right


def columns_of(layout: Layout, side: str) -> slice:
    """Return where the columns of a side, "left" or "right", are among the own columns of a join."""
    assert isinstance(layout.spec.operation, Join)
    lefts = 1 + len(layout.spec.operation.sides.left)  # the first names the side
    return slice(1, lefts) if side == "left" else slice(lefts, None)


class JoinOperator:
    """Base of the operators: both sides come as one stream of rows, of which each has the columns of its own side."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, Join)
        self.join = spec.operation
        self.layout = Layout(spec)
        self.late_us = spec.options.allowed_lateness_us
        keys, own = tuple(self.layout.key_names), self.layout.own_names[1:]
        lefts = len(spec.operation.sides.left)
        self.halves = SideLayout(True, keys, tuple(own[:lefts])), SideLayout(False, keys, tuple(own[lefts:]))

    def schema_of(self, half: SideLayout) -> pa.Schema:
        """Return the rows of a side as they are kept: hash, time, number, keys, own columns."""
        own = [pa.field(n, pa.int64()) for n in (HASH, TIME, NUMBER)]
        return pa.schema([*own, *(self.layout.row_schema.field(n) for n in (*half.keys, *half.own))])

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The columns of each side that results have."""
        return list(self.halves[0].own), list(self.halves[1].own)

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return the rows as they are, with the hash of their key, without the columns of the other side."""
        return combined(self.layout, rows, *self.halves, self.layout.own_names[0], LEFT)

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`: refused."""
        then = "a join keeps rows of both sides"
        hint = "read the results, or how many rows are held from the progress"
        raise PlanError("state has no aggregates to show", got=self.join.describe(), then=then, hint=hint)
