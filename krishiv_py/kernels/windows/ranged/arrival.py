"""Look-back windows with a result on arrival (SEMANTICS §11.4): over what came before the row, in the batch that brings it.

::

    arrival   1  2  3  4        the window of row 3 ends at its time; row 4 lies in it, but came later
    time      ──●─────●──◌──●──▶
                1     2  4  3

Rows are laid out by time, so a window is a range of them unless a row in it came later in the same batch. Such a window is
*disturbed*: its rows are copied out, without those that came later, and the copy is a range again. Either way an aggregate is
worked out over the same rows in the same order, so that batches make no difference, not even in rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.ranges import Ranges, expand, running
from krishiv_py.arrays.sorting import pair_order, stable_order
from krishiv_py.arrays.splitting import portions
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.firing.due import Due, FiringDelay
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results.state_table import StateTables
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.expired_keys import DeadKeys
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.time_log import TimeLog, times_of
from krishiv_py.kernels.windows.ranged.listed import Listing
from krishiv_py.kernels.windows.ranged.lookback import LookBackOperator, shift
from krishiv_py.kernels.windows.ranged.ordered import Ordered, ordered
from krishiv_py.plan.durations import END_OF_TIME

_COPIED: Final = 2_000_000
"""How many rows are copied at a time for disturbed windows."""
_LOOKED_AT: Final = 40
"""How many times as many rows as may be listed are copied for one key in one step, at a few seconds for each time."""


class ArrivalOperator(LookBackOperator):
    """See the module's docstring. No row waits, so nothing fires by the watermark; it only says which rows are let go."""

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        held_us = self.before if self.window.max_rows_per_window is None else self.reach_us
        self.firing_delay = FiringDelay(0, spec.options.allowed_lateness_us + held_us)  # only rows to come look at what is held

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`: no row waits for its result."""
        return StateTables(self.layout).empty() if self.window.output == "aggregates" else super().state(bucket)

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.wrappers.ttl.KeyDropping`; every row has had its result."""
        TimeLog(bucket, "b").remove(DeadKeys.of(dead, self.layout.key_names).rows, END_OF_TIME)
        return 0

    def _take(self, log: TimeLog, fresh: pa.Table, due: Due) -> list[pa.Table]:
        found = self._pairs(log, fresh) if self.window.output == "pairs" else self._give(log, fresh)
        log.append(fresh, END_OF_TIME)
        return found

    def _trim(self, bucket: Bucket, log: TimeLog, settled: int, frontier: int) -> None:
        super()._trim(bucket, log, settled, END_OF_TIME)

    def _fire(self, log: TimeLog, low: int, high: int) -> list[pa.Table]:
        return []

    def _laid_out(self, log: TimeLog, fresh: pa.Table, before: int, after: int) -> tuple[Ordered, Mask]:
        """New rows and those around them by key and time, and which are new."""
        times = times_of(fresh)
        known = log.load(shift(int(times.min()), -before), shift(int(times.max()), after + 1))
        rows = fresh if known is None else pa.concat_tables([known, fresh])
        is_new = np.arange(rows.num_rows) >= rows.num_rows - fresh.num_rows
        o = ordered(rows, self.layout.key_names, self.before, self.after, near=is_new)
        return o, is_new[o.picked]

    def _give(self, log: TimeLog, fresh: pa.Table) -> list[pa.Table]:
        o, new = self._laid_out(log, fresh, self.before, self.after)
        anchors = np.flatnonzero(new)
        r = self._spans(o, anchors)
        if not self.after:
            r = attrs.evolve(r, high=anchors + 1)  # of equal times those that came later are behind it
        later = self._disturbed(o, anchors, r)
        if not later.any():
            return [self.product(o, anchors, self._newest(r, anchors), "+I", self.pane)]
        plain = np.flatnonzero(~later)
        seen = self._newest(Ranges(r.low[plain], r.high[plain], r.block), anchors[plain])
        tables = [self.product(o, anchors[plain], seen, "+I", self.pane)]
        given = [anchors[plain]]
        disturbed = np.flatnonzero(later)
        lengths = r.high[disturbed] - r.low[disturbed]
        listing = Listing(self.layout, o.rows, anchors[disturbed], o.ids[anchors[disturbed]])
        listing.check("results on arrival of rows out of order", lengths, copies=_LOOKED_AT)
        for some, copy, at, ranges in self._copies(o, anchors[disturbed], r.low[disturbed], r.high[disturbed]):
            tables.append(self.product(copy, at, ranges, "+I", self.pane))
            given.append(some)
        return [_in_order(tables, [o.times[a] for a in given], [o.picked[a] for a in given])]

    @staticmethod
    def _disturbed(o: Ordered, anchors: Ints, r: Ranges) -> Mask:
        """Windows that hold a row that came later."""
        in_turn = (np.diff(o.picked) > 0) | (np.diff(o.ids) != 0)
        if in_turn.all() and (r.high == anchors + 1).all():
            return np.zeros(len(anchors), np.bool_)
        found: Mask = r.reduce(np.maximum, o.picked) > o.picked[anchors]
        return found

    def _copies(self, o: Ordered, anchors: Ints, low: Ints, high: Ints) -> Iterator[tuple[Ints, Ordered, Ints, Ranges]]:
        """Disturbed windows, copied without what came later: their rows, the copy, and their places in it."""
        for start, stop in portions(high - low, _COPIED):
            some = anchors[start:stop]
            at, ids = expand(low[start:stop], high[start:stop])
            seen = o.picked[at] <= o.picked[some][ids]
            at, ids = at[seen], ids[seen]
            bounds = running(np.bincount(ids, minlength=len(some)))
            copy = attrs.evolve(o, rows=pick(o.rows, at), ids=o.ids[at], times=o.times[at], picked=o.picked[at])
            own = np.flatnonzero(at == some[ids])
            yield some, copy, own, self._newest(Ranges(bounds[:-1], bounds[1:], copy.times // self.block_us), own)

    def _pairs(self, log: TimeLog, fresh: pa.Table) -> list[pa.Table]:
        """Every pair of a new row and one that came before it, on whichever side of it."""
        o, new = self._laid_out(log, fresh, self.before, self.before)
        anchors = np.arange(len(o.times))
        r = self._ranges(o, anchors)
        count = running(new.astype(np.int64))
        touched = np.flatnonzero(count[r.high] > count[r.low])
        return [self.product(o, touched, Ranges(r.low[touched], r.high[touched], r.block), "+I", self.pane, new)]


def _in_order(tables: list[pa.Table], times: list[Ints], arrived: list[Ints]) -> pa.Table:
    """Results in ascending order of time, those of one time in order of arrival; each table is in order of time already."""
    ordered_by = [stable_order(t) for t in times]
    time, arrival = (np.concatenate([v[o] for v, o in zip(c, ordered_by, strict=True)]) for c in (times, arrived))
    return pick(pa.concat_tables(tables), pair_order(time, arrival))
