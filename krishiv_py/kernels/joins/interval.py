"""Interval joins (SEMANTICS §9.1): a batch's rows meet one another and those held, which leave when no partner can come.

A batch reads the rows it meets and those that leave: each side is a log by key and time
(:mod:`~krishiv_py.kernels.state.span_log`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.input.lateness import floor_watermark
from krishiv_py.kernels.joins.base import Joined, JoinOperator
from krishiv_py.kernels.joins.meetings import NOBODY, Pairs, Pool, Tally, among_fresh, results, same_keys, times_of, with_held
from krishiv_py.kernels.joins.sides import GIVEN, MET, NUMBER, Fresh, Half
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results.contract import StepResult
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.expired_keys import DeadKeys
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.plan.joins.interval import IntervalJoin
from krishiv_py.plan.options.watermarks import most_lag_us


class IntervalJoinOperator(JoinOperator):
    """See the module's docstring."""

    join: IntervalJoin

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.operation, IntervalJoin)
        self.join = spec.operation
        self.reach_us = self.join.length_us + self.late_us + most_lag_us(spec.watermark)
        """How far apart two rows of a key and side may be that count for its limit: for as long one may be kept."""
        self.given = GIVEN.get(spec.operation.how, (False, False))
        self.schemas = tuple(self.schema_of(half).append(pa.field(MET, pa.bool_())) for half in self.halves)

    def _sides(self, bucket: Bucket, at: int) -> tuple[Half, Half]:
        """The state of both sides; rows of the left one are over `upper` after their time, those of the right one `-lower`."""
        horizons = self._horizons(at)
        left, right = (
            Half(half, schema, bucket, over) for half, schema, over in zip(self.halves, self.schemas, horizons, strict=True)
        )
        return left, right

    def _horizons(self, at: int) -> tuple[int, int]:
        """Before which time a row of either side meets nobody any more, by the watermark."""
        upper_us, lower_us = self.join.upper_us, self.join.lower_us
        return floor_watermark(at, self.late_us + upper_us), floor_watermark(at, self.late_us - lower_us)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        known = Joined.of(bucket)
        left, right = self._sides(bucket, known.joined_at)
        counters = {"unmatched": 0} | ({} if self.join.max_rows_per_key is None else {"limited": 0})
        brought = known.fresh(chunks, self.halves, self.schemas)
        at = known.joined_at
        fresh = self._limited(left, brought[0], at, counters), self._limited(right, brought[1], at, counters)
        known.joined_at = max(known.joined_at, moment.watermark_us)
        known.store(bucket)
        pools = Pool(fresh[0].table), Pool(fresh[1].table)
        pairs = self._met(fresh, (left, right), pools)
        tables = pools[0].table(), pools[1].table()
        pairs = pairs.only(same_keys(self.layout.key_names, *tables, pairs))
        out = [self._given(pairs, left, pools[0], tables[0])]
        for at, (half, horizon) in enumerate(zip((left, right), self._horizons(known.joined_at), strict=True)):
            met = (pairs.left, pairs.right)[at]
            alone = self._settled(half, fresh[at], pools[at], tables[at], met, horizon, at, counters)
            if self.given[at]:
                places = pools[at].add(alone) + np.arange(alone.num_rows)
                nobody = np.full(alone.num_rows, NOBODY)
                out.append(Pairs(places, nobody) if at == 0 else Pairs(nobody, places))
            else:
                counters["unmatched"] += alone.num_rows
        table = self._table(pools, out)
        held = len(left.log) + len(right.log)
        return StepResult(table, self._wakeup(left, right), held, held, table.num_rows, counters)

    def _limited(self, half: Half, fresh: Fresh, joined_at: int, counters: dict[str, int]) -> Fresh:
        """The rows of a side that take part: of a key the first to arrive, before any pair is made (SEMANTICS §9.1)."""
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
        return Fresh(fresh.table.filter(pa.array(~over)), np.flatnonzero(keyed[~over]))

    def _met(self, fresh: tuple[Fresh, Fresh], halves: tuple[Half, Half], pools: tuple[Pool, Pool]) -> Pairs:
        """All pairs with a row of this batch, by hash and time."""
        left, right = fresh
        join, tally = self.join, Tally(self.layout)
        ahead, back = left.wanted(join.lower_us, join.upper_us), right.wanted(-join.upper_us, -join.lower_us)
        found = [among_fresh(left, right, ahead, tally)]
        found += [Pairs(one, other) for one, other in with_held(left, ahead, halves[1].log, pools[1], tally)]
        found += [Pairs(other, one) for one, other in with_held(right, back, halves[0].log, pools[0], tally)]
        return Pairs(np.concatenate([p.left for p in found]), np.concatenate([p.right for p in found]))

    def _given(self, pairs: Pairs, left: Half, pool: Pool, rows: pa.Table) -> Pairs:
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
        half: Half,
        fresh: Fresh,
        pool: Pool,
        rows: pa.Table,
        places: Ints,
        horizon: int,
        side: int,
        counters: dict[str, int],
    ) -> pa.Table:
        """Keep the new rows of a side, and let go what is over; gives the rows that leave and met nobody."""
        n = fresh.table.num_rows
        met = np.zeros(n, np.bool_)
        met[places[places < n]] = True
        half.mark(pick(rows, np.unique(places[places >= n])))
        stays = fresh.times >= horizon
        seeking = np.zeros(n, np.bool_)
        seeking[fresh.seeks] = True
        if not self.given[side]:  # nobody will ask for rows that can meet nobody
            stays &= seeking
        # rows without a key have missed no partner: where there is no room for them, they leave at once
        stays &= ~half.beyond(fresh.table, stays & ~seeking, self.join.max_rows_per_key)
        leaves: Mask = ~stays & ~met
        half.keep(*_only(fresh.table, met, stays))
        return pa.concat_tables([fresh.table.filter(pa.array(leaves)), half.leaving(horizon)])

    def _table(self, pools: tuple[Pool, Pool], out: list[Pairs]) -> pa.Table:
        pairs = Pairs(np.concatenate([p.left for p in out]), np.concatenate([p.right for p in out]))
        if not len(pairs.left):
            return self.layout.result_schema.empty_table()
        left, right = pools[0].table(), pools[1].table()
        return results(self.layout, self.names, left, right, pairs, times_of(left, right, pairs))

    def _wakeup(self, left: Half, right: Half) -> int | None:
        """The next watermark at which a row leaves."""
        after = self.join.upper_us, -self.join.lower_us
        found = [h.log.next + a + self.late_us + 1 for h, a in zip((left, right), after, strict=True) if h.log.next is not None]
        return min(found, default=None)

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.wrappers.ttl.KeyDropping`; counts rows that had met nobody."""
        keys = DeadKeys.of(dead, self.layout.key_names)
        return sum(half.remove(keys.rows) for half in self._sides(bucket, Joined.of(bucket).joined_at))


def _only(rows: pa.Table, met: Mask, kept: Mask) -> tuple[pa.Table, Mask]:
    return (rows, met) if kept.all() else (rows.filter(pa.array(kept)), met[kept])
