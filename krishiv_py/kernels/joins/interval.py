"""Interval joins (SEMANTICS §9.1): a batch's rows meet one another and those held, which leave when no partner can come.

A batch reads the rows it meets and those that leave: each side is a log by key and time
(:mod:`~krishiv_py.kernels.state.time_log`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.sorting import order_in_runs, stable_order
from krishiv_py.arrays.types import Ints, Mask, flags_at, pick, totals_of
from krishiv_py.errors import OperatorError
from krishiv_py.kernels.columns.layout import TIME, Layout, place_of
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.joins.sides import GIVEN, MET, NUMBER, BatchRows, JoinOperator, JoinProgress, SideState
from krishiv_py.kernels.results import StepResult, earliest
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.time_log import SpanLog, WantedSpans
from krishiv_py.kernels.state.window_log import HASH, DeadKeys
from krishiv_py.kernels.watermark import floor_watermark
from krishiv_py.plan.joins import IntervalJoin
from krishiv_py.plan.options.watermarks import most_lag_us

NOBODY: Final = -1
_LEAST: Final = int(np.iinfo(np.int64).min)


class SideRows:
    """Rows of one side that results are made of, in one table; those that a batch brings come first."""

    def __init__(self, fresh: pa.Table) -> None:
        self.tables = [fresh]
        self.fresh = self._rows = int(fresh.num_rows)

    def add(self, rows: pa.Table) -> int:
        """Add rows; gives the place of the first."""
        begin = self._rows
        self.tables.append(rows)
        self._rows += rows.num_rows
        return begin

    def table(self) -> pa.Table:
        """Return all rows."""
        return self.tables[0] if len(self.tables) == 1 else pa.concat_tables(self.tables).combine_chunks()


class PairCount:
    """Counts the pairs of a step by the key of the new rows, and refuses too many of one."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._most = layout.spec.options.max_listed
        self._total = 0
        self._parts: list[tuple[BatchRows, Ints, Ints]] = []

    def count(self, fresh: BatchRows, numbers: Ints, counts: Ints) -> None:
        """Take in how many rows some of the seeking rows meet.

        Raises
        ------
        OperatorError
            With key, number of pairs and the way out.
        """
        total = int(counts.sum())
        if not total:
            return
        self._total += total
        self._parts.append((fresh, fresh.seeks[numbers], counts))
        if self._total > self._most:
            self._check()

    def _check(self) -> None:
        tables = [pick(f.table.select([HASH, *self._layout.key_names]), rows_of) for f, rows_of, _ in self._parts]
        counts = np.concatenate([counts for _, _, counts in self._parts])
        refuse_many(self._layout, pa.concat_tables(tables), np.arange(len(counts)), counts)


def refuse_many(layout: Layout, rows: pa.Table, rows_of: Ints, counts: Ints) -> None:
    """Refuse more pairs of one key in a step than the plan allows: how many each of some rows is in.

    Raises
    ------
    OperatorError
        With key, number of pairs and the way out.
    """
    most = layout.spec.options.max_listed
    if int(counts.sum()) <= most:
        return
    keys, ids = np.unique(rows[HASH].to_numpy()[rows_of], return_inverse=True)
    totals = totals_of(ids, counts, len(keys))
    worst = int(totals.argmax())
    pairs = int(totals[worst])
    if pairs <= most:
        return
    place = place_of(layout.spec, rows, int(rows_of[np.flatnonzero(ids == worst)[0]]))
    raise OperatorError(
        f"a join would give more than {most:,} pairs of one key in a step",
        got=f"{pairs:,} {place}",
        then="that grows with the product of its rows on both sides, and would fill the memory",
        hint="make bounds or windows narrower, join on one more column, leave the key out with .filter, or raise the limit: "
        f".max_listed({2 * pairs})",
    )


@attrs.frozen(eq=False)
class Pairs:
    """Rows that meet: places in the pools of both sides; ``NOBODY`` where a row is given alone."""

    left: Ints
    right: Ints

    def only(self, kept: Mask) -> Pairs:
        """Some of them."""
        return Pairs(self.left[kept], self.right[kept])


def among_fresh(left: BatchRows, right: BatchRows, wanted: WantedSpans, tally: PairCount) -> Pairs:
    """Pairs of two rows that a batch brings; `wanted` is what the left ones look for."""
    start, stop = wanted.ranges(right.table[HASH].to_numpy(), right.times)
    tally.count(left, np.arange(len(start)), stop - start)
    rows_of, spans = expand(start, stop)
    return Pairs(left.seeks[spans], rows_of)


def with_held(
    fresh: BatchRows, wanted: WantedSpans, log: SpanLog, pool: SideRows, tally: PairCount
) -> Iterator[tuple[Ints, Ints]]:
    """Pairs of a row that a batch brings and a row held on the other side, which is put into its pool."""
    for rows, positions, spans in log.meeting(wanted, lambda numbers, counts: tally.count(fresh, numbers, counts)):
        yield fresh.seeks[spans], positions + pool.add(rows)


def same_keys(keys: list[str], left: pa.Table, right: pa.Table, pairs: Pairs) -> Mask:
    """Pairs whose keys are equal, not only their hashes; null equals nothing."""
    same = np.ones(len(pairs.left), np.bool_)
    one, other = pa.array(pairs.left), pa.array(pairs.right)
    for key in keys:
        ours, theirs = pick(left[key], one), pick(right[key], other)
        equal = pc.fill_null(pc.equal(ours, theirs), False)
        if pa.types.is_floating(ours.type):  # SQL groups NaN with NaN
            equal = pc.or_(equal, pc.fill_null(pc.and_(pc.is_nan(ours), pc.is_nan(theirs)), False))
        same &= equal.to_numpy()
    return same


def times_of(left: pa.Table, right: pa.Table, pairs: Pairs) -> Ints:
    """Return the later time of every pair, or that of the row that is alone."""
    return np.maximum(picked(left[TIME].to_numpy(), pairs.left), picked(right[TIME].to_numpy(), pairs.right))


def picked(values: Ints, rows_of: Ints, none: int = _LEAST) -> Ints:
    """Values at some places, `none` for nobody's."""
    return np.append(values, none)[rows_of]  # NOBODY is the last place


def in_order(left: pa.Table, right: pa.Table, pairs: Pairs, times: Ints) -> Ints:
    """Pairs by time, then key (its hash), then arrival of the left, then of the right row: whatever came with what."""
    order = stable_order(times)
    ordered = times[order]
    same = ordered[1:] == ordered[:-1]
    tied = np.flatnonzero(np.append(False, same) | np.append(same, False))
    if len(tied):
        tied_rows = order[tied]
        one, other = pairs.left[tied_rows], pairs.right[tied_rows]
        hashes = np.maximum(picked(right[HASH].to_numpy(), other), picked(left[HASH].to_numpy(), one))
        arrived = picked(left[NUMBER].to_numpy(), one), picked(right[NUMBER].to_numpy(), other)
        runs = np.cumsum(np.append(0, np.diff(ordered[tied]) != 0))
        order[tied] = tied_rows[order_in_runs(runs, hashes, *arrived)]
    return order


def results(
    layout: Layout, names: tuple[list[str], list[str]], left: pa.Table, right: pa.Table, pairs: Pairs, times: Ints
) -> pa.Table:
    """Result rows in order of their `times`: keys, left and right columns, and the time if it is asked for."""
    order = in_order(left, right, pairs, times)
    one, other = (pa.array(places[order], mask=places[order] == NOBODY) for places in (pairs.left, pairs.right))
    arrays = [key_of(left[k], right[k], one, other) for k in layout.key_names]
    arrays += [pick(left[n], one) for n in names[0]] + [pick(right[n], other) for n in names[1]]
    if len(arrays) < len(layout.result_schema):
        arrays.append(unstamp(times[order], layout.spec.time_kind))
    return pa.Table.from_arrays(arrays, schema=layout.result_schema)


def key_of(left: pa.ChunkedArray, right: pa.ChunkedArray, one: pa.Array, other: pa.Array) -> pa.ChunkedArray:
    """Keys of results: of the left row, or of the right one where there is no left one."""
    if not one.null_count:
        return pick(left, one)
    if one.null_count == len(one):
        return pick(right, other)
    return pc.if_else(one.is_valid(), pick(left, one), pick(right, other))


class IntervalJoinOperator(JoinOperator):
    """See the module's docstring."""

    join: IntervalJoin

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.operation, IntervalJoin)
        self.join = spec.operation
        self.reach_us = self.join.extent.length_us + self.late_us + most_lag_us(spec.watermark)
        """The most time between two rows of a key and side that count for its limit: for as long one may be kept."""
        self.given = GIVEN.get(spec.operation.how, (False, False))
        self.schemas = tuple(self.schema_of(half).append(pa.field(MET, pa.bool_())) for half in self.halves)

    def _sides(self, bucket: Bucket, joined_us: int) -> tuple[SideState, SideState]:
        """Return the state of both sides; rows of the left one are over `upper` after their time, those of the right one
        `-lower`.
        """
        horizons = self._horizons(joined_us)
        left, right = (
            SideState(half, schema, bucket, over)
            for half, schema, over in zip(self.halves, self.schemas, horizons, strict=True)
        )
        return left, right

    def _horizons(self, joined_us: int) -> tuple[int, int]:
        """Before which time a row of either side meets nobody any more, by the watermark."""
        upper_us, lower_us = self.join.upper_us, self.join.lower_us
        return floor_watermark(joined_us, self.late_us + upper_us), floor_watermark(joined_us, self.late_us - lower_us)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        known = JoinProgress.of(bucket)
        left, right = self._sides(bucket, known.joined_at)
        counters = {"unmatched": 0} | ({} if self.join.max_rows_per_key is None else {"limited": 0})
        brought = known.fresh(chunks, self.halves, self.schemas)
        joined_us = known.joined_at
        fresh = self._limited(left, brought[0], joined_us, counters), self._limited(right, brought[1], joined_us, counters)
        known.joined_at = max(known.joined_at, moment.watermark_us)
        known.store(bucket)
        pools = SideRows(fresh[0].table), SideRows(fresh[1].table)
        pairs = self._met(fresh, (left, right), pools)
        tables = pools[0].table(), pools[1].table()
        pairs = pairs.only(same_keys(self.layout.key_names, *tables, pairs))
        out = [self._given(pairs, left, pools[0], tables[0])]
        for joined_us, (half, horizon) in enumerate(zip((left, right), self._horizons(known.joined_at), strict=True)):
            met = (pairs.left, pairs.right)[joined_us]
            alone = self._settled(
                half, fresh[joined_us], pools[joined_us], tables[joined_us], met, horizon, joined_us, counters
            )
            if self.given[joined_us]:
                places = pools[joined_us].add(alone) + np.arange(alone.num_rows)
                nobody = np.full(alone.num_rows, NOBODY)
                out.append(Pairs(places, nobody) if joined_us == 0 else Pairs(nobody, places))
            else:
                counters["unmatched"] += alone.num_rows
        table = self._table(pools, out)
        held = len(left.log) + len(right.log)
        return StepResult(table, self._wakeup(left, right), held, held, table.num_rows, counters)

    def _limited(self, half: SideState, fresh: BatchRows, joined_at: int, counters: dict[str, int]) -> BatchRows:
        """Return the rows of a side that take part: of a key the first to arrive, before any pair is made (SEMANTICS §9.1)."""
        most = self.join.max_rows_per_key
        if most is None:
            return fresh
        takes = half.first_come(fresh, most, self.reach_us, floor_watermark(joined_at, self.late_us + self.reach_us))
        if takes.all():
            return fresh
        counters["limited"] += int(np.count_nonzero(~takes))
        keyed, over = np.zeros(fresh.table.num_rows, np.bool_), np.zeros(fresh.table.num_rows, np.bool_)
        keyed[fresh.seeks] = True
        over[fresh.seeks[~takes]] = True
        return BatchRows(fresh.table.filter(pa.array(~over)), np.flatnonzero(keyed[~over]))

    def _met(
        self, fresh: tuple[BatchRows, BatchRows], halves: tuple[SideState, SideState], pools: tuple[SideRows, SideRows]
    ) -> Pairs:
        """Return all pairs with a row of this batch, by hash and time."""
        left, right = fresh
        join, tally = self.join, PairCount(self.layout)
        ahead, back = left.wanted(join.lower_us, join.upper_us), right.wanted(-join.upper_us, -join.lower_us)
        met = [among_fresh(left, right, ahead, tally)]
        met += [Pairs(one, other) for one, other in with_held(left, ahead, halves[1].log, pools[1], tally)]
        met += [Pairs(other, one) for one, other in with_held(right, back, halves[0].log, pools[0], tally)]
        return Pairs(np.concatenate([p.left for p in met]), np.concatenate([p.right for p in met]))

    def _given(self, pairs: Pairs, left: SideState, pool: SideRows, rows: pa.Table) -> Pairs:
        """Return what is given of the pairs: all, none, or of semi joins the left rows that had not met anybody before."""
        if self.join.how == "anti":
            return Pairs(pairs.left[:0], pairs.right[:0])
        if self.join.how != "semi":
            return pairs
        first = np.unique(rows[NUMBER].to_numpy()[pairs.left], return_index=True)[1]
        places = pairs.left[first]
        held = places[places >= pool.fresh]
        if len(held):
            known = left.marked(pick(rows, held))
            places = np.concatenate([places[places < pool.fresh], held[~known]])
        return Pairs(places, np.full(len(places), NOBODY))

    def _settled(
        self,
        half: SideState,
        fresh: BatchRows,
        pool: SideRows,
        rows: pa.Table,
        places: Ints,
        horizon: int,
        side: int,
        counters: dict[str, int],
    ) -> pa.Table:
        """Keep the new rows of a side, and let go what is over; gives the rows that leave and met nobody."""
        n = fresh.table.num_rows
        met = flags_at(places[places < n], n)
        half.mark(pick(rows, np.unique(places[places >= n])))
        stays = fresh.times >= horizon
        seeking = flags_at(fresh.seeks, n)
        if not self.given[side]:  # nobody will ask for rows that can meet nobody
            stays &= seeking
        # rows without a key have missed no partner: where there is no room for them, they leave at once
        stays &= ~half.beyond(fresh.table, stays & ~seeking, self.join.max_rows_per_key)
        leaves: Mask = ~stays & ~met
        half.keep(*_only(fresh.table, met, stays))
        return pa.concat_tables([fresh.table.filter(pa.array(leaves)), half.leaving(horizon)])

    def _table(self, pools: tuple[SideRows, SideRows], out: list[Pairs]) -> pa.Table:
        pairs = Pairs(np.concatenate([p.left for p in out]), np.concatenate([p.right for p in out]))
        if not len(pairs.left):
            return self.layout.result_schema.empty_table()
        left, right = pools[0].table(), pools[1].table()
        return results(self.layout, self.names, left, right, pairs, times_of(left, right, pairs))

    def _wakeup(self, left: SideState, right: SideState) -> int | None:
        """Return the next watermark at which a row leaves."""
        after = self.join.upper_us, -self.join.lower_us
        return earliest(*((half.log.next, us + self.late_us + 1) for half, us in zip((left, right), after, strict=True)))

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; counts rows that had met nobody."""
        keys = DeadKeys.of(dead, self.layout.key_names)
        return sum(half.remove(keys.rows) for half in self._sides(bucket, JoinProgress.of(bucket).joined_at))


def _only(rows: pa.Table, met: Mask, kept: Mask) -> tuple[pa.Table, Mask]:
    return (rows, met) if kept.all() else (rows.filter(pa.array(kept)), met[kept])
