"""Windows over rows that change (SEMANTICS §16.6): a change enters the windows of its own row's time.

The rows of windows that have not left stay in state, equal ones once with their number: so a row can be taken back, and one
that is not there is counted. A batch reads the windows that it has rows of, and those that are due. What was given before is
what their rows of before come to, so results are not kept::

    windows       [0, 10) a: 1, 2     [10, 20) a: 5         W was 12, and is 15
    batch         -U a 2 at 4         +U a 2 at 14          allowed lateness 10
    results       -U [0, 10) 3, +U [0, 10) 1                [10, 20) a: 5, 2 waits
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import distinct, group
from krishiv_py.arrays.ranges import Components, components
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask, flags_at, last_rows, pick
from krishiv_py.kernels.changes.counted import ROWS, CountedLog, CountedRows
from krishiv_py.kernels.changes.net import net_changes
from krishiv_py.kernels.changes.touched import TouchedKeys
from krishiv_py.kernels.columns.layout import GAP, SIGN, TIME, WINDOW_END, WINDOW_START
from krishiv_py.kernels.columns.times import FixedAssigner
from krishiv_py.kernels.firing import FiringOperator, FiringSpan
from krishiv_py.kernels.results import StateTables, StepResult
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import WRITTEN, Bucket, FiringProgress, Section
from krishiv_py.kernels.state.timer_queue import DUE, DueQueue
from krishiv_py.kernels.state.window_log import BOUNDS_IN_KEY
from krishiv_py.kernels.windows.session.capped_log import walk
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.windows.session import SessionWindow

NAME: Final = "changed_windows"
_UNKNOWN_LENGTH_US: Final = 1 << 28


@attrs.define
class _Waits(Section):
    """Says what the queue has windows by: twice the time that they stay after their end, µs, and 1 more for final results."""

    waits_us: int = -1


@attrs.frozen(eq=False)
class _Windows:
    """Windows of rows: the number of the key of each, its bounds in µs, and the window of each row."""

    of: Ints
    starts: Ints
    ends: Ints
    rows: CountedRows
    ids: Ints

    def of_rows(self, wanted: Mask) -> CountedRows:
        """Return the rows of some windows."""
        return self.rows.pick(np.flatnonzero(wanted[self.ids]))


class ChangedWindowsOperator(FiringOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        layout, operation = self.layout, spec.operation
        self.withdraws = self.mode == "retractions"
        self.sessions = operation if isinstance(operation, SessionWindow) else None
        grid = operation.extent.grid
        self.assigner = None if grid is None else FixedAssigner(grid)
        self.bounds = [] if self.sessions is not None else [pa.field(name, pa.int64()) for name in BOUNDS_IN_KEY]
        self.key_fields = [*layout.key_fields, *self.bounds]
        """A window whose bounds are known by its rows is a part of the key."""
        self.names = [field.name for field in self.key_fields]
        outside = {SIGN, WINDOW_START, WINDOW_END, *self.names}
        self.own = [field for field in layout.row_schema if field.name not in outside]
        self.chunk_schema = pa.schema([*self.key_fields, *self.own, pa.field(ROWS, pa.int64())])
        self.finest_us = max((operation.extent.length_us or _UNKNOWN_LENGTH_US) >> 8, 1)
        self.due_schema = pa.schema([*self.key_fields, pa.field(DUE, pa.int64())])
        self.row_fields = pa.schema(list(layout.result_schema)[: len(layout.result_schema) - self.withdraws])

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return the rows of each window with 1 or -1 as their number."""
        if self.assigner is not None:
            places, starts = self.assigner.windows(rows[TIME].to_numpy())
            if len(self.bounds) and not np.array_equal(places, np.arange(rows.num_rows)):
                order = stable_order(places)
                places, starts = places[order], starts[order]
                rows = pick(rows, places)
            bounds = dict(zip(BOUNDS_IN_KEY, map(pa.array, (starts, starts + self.assigner.grid.size_us)), strict=True))
        elif self.bounds:
            bounds = {BOUNDS_IN_KEY[0]: rows[WINDOW_START], BOUNDS_IN_KEY[1]: rows[WINDOW_END]}
        else:
            bounds = {}
        signs = rows[SIGN].cast(pa.int64())
        columns = [bounds[name] if name in bounds else rows[name] for name in self.chunk_schema.names[:-1]]
        return pa.Table.from_arrays([*columns, signs], schema=self.chunk_schema)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        queue, log = DueQueue(bucket, f"{NAME}_due", self.finest_us, self._once), self._log(bucket)
        before, waits = FiringProgress.of(bucket).fired_at, _Waits.of(bucket)
        due = self.firing_delay.due(moment, before)
        looked = queue.pop(due.reached_us)
        armed_by = 2 * self.firing_delay.keep_us + (self.mode == "final")
        if waits.waits_us != armed_by:  # the allowed lateness or the emission is another one: all is looked at again
            looked += queue.pop(END_OF_TIME)
        left_us = self.firing_delay.over(before)
        fresh = self._open(pa.concat_tables([self.chunk_schema.empty_table(), *chunks]), left_us)
        results, missing = self.layout.result_schema.empty_table(), 0
        if fresh.num_rows or looked:
            results, missing = self._changed(log, queue, fresh, looked, due)
        FiringProgress(due.reached_us).store(bucket)
        _Waits(armed_by).store(bucket)
        counters = {"unmatched": missing} if missing else {}
        return StepResult(results, queue.earliest, len(queue), len(log), results.num_rows, counters)

    def _open(self, fresh: pa.Table, left_us: int) -> pa.Table:
        """Return rows of windows that have not left: those that end up to `left_us` fire no more."""
        if not self.bounds or not fresh.num_rows:
            return fresh
        open_ = fresh[BOUNDS_IN_KEY[1]].to_numpy() > left_us
        return fresh if open_.all() else fresh.filter(pa.array(open_))

    def _changed(
        self, log: CountedLog, queue: DueQueue, fresh: pa.Table, looked: list[pa.Table], due: FiringSpan
    ) -> tuple[pa.Table, int]:
        """Take rows in, let windows leave; returns what is given, and how many rows were not there to be taken back."""
        named = self.names or [ROWS]
        keys = [fresh.select(named), *(t.select(self.names) if self.names else _rows_of(t.num_rows) for t in looked)]
        touched, ids = TouchedKeys.of(pa.concat_tables(keys), self.names)
        of_fresh = ids[: fresh.num_rows]
        stored = log.lookup(touched)
        came = CountedRows.of_table(fresh.select([*log.own, ROWS]), of_fresh)
        rows, missing = stored.added(came).matched(forgets=True)
        was, now = self._windows(touched, stored), self._windows(touched, rows)
        changed = flags_at(of_fresh, touched.n)
        results = self._net(touched, was, now, changed, due)
        leaves = now.ends <= due.horizon_us
        if leaves.any() or missing:
            log.append(touched, now.of_rows(~leaves).added(stored.negative()))
        else:
            log.append(touched, came)
        self._arm(queue, touched, now, ~leaves, due)
        return results, missing

    def _windows(self, touched: TouchedKeys, rows: CountedRows) -> _Windows:
        if self.sessions is None:
            some, ids = np.unique(rows.of, return_inverse=True)
            starts, ends = (touched.keys[name].to_numpy()[some] for name in BOUNDS_IN_KEY)
            return _Windows(some, starts, ends, rows, ids.astype(np.int64))
        parts = self._sessions(rows)
        of = np.zeros(parts.n, np.int64)
        of[parts.ids] = rows.of
        return _Windows(of, parts.starts, parts.ends, rows, parts.ids)

    def _sessions(self, rows: CountedRows) -> Components:
        assert self.sessions is not None
        times = rows.rows[TIME].to_numpy()
        gaps = rows.rows[GAP].to_numpy() if self.sessions.gap_us is None else self.sessions.gap_us
        touching, cap_us = self.sessions.touch == "merge", self.sessions.max_duration_us
        if cap_us is None:
            return components(rows.of, times, times + gaps, touching=touching)
        return walk(rows.of, times, times + gaps, cap_us, touching=touching)

    def _net(self, touched: TouchedKeys, was: _Windows, now: _Windows, changed: Mask, due: FiringSpan) -> pa.Table:
        """Return what is given of windows: those that fire, and what changes of those that had fired."""
        stood = (was.ends <= due.from_us) & changed[was.of] if self.mode != "final" else np.zeros(len(was.of), np.bool_)
        fires = (now.ends <= due.to_us) & (changed[now.of] | (now.ends > due.from_us))
        starts, ends = (
            np.concatenate([one[stood], other[fires]]) for one, other in ((was.starts, now.starts), (was.ends, now.ends))
        )
        of = np.concatenate([was.of[stood], now.of[fires]])
        if not len(of):
            return self.layout.result_schema.empty_table()
        same = group([of, starts, ends], len(of))
        first = same.first
        ranks = last_rows(np.lexsort((of[first], starts[first], ends[first])), same.n)  # windows fire in order of their ends
        numbers = ranks[same.ids]
        split = int(np.count_nonzero(stood))
        before, of_before = self._results(touched, was, stood, numbers[:split])
        given, of_given = self._results(touched, now, fires, numbers[split:])
        return net_changes(self.layout.result_schema, before, of_before, given, of_given, same.n, withdraws=self.withdraws)

    def _results(self, touched: TouchedKeys, windows: _Windows, some: Mask, numbers: Ints) -> tuple[pa.Table, Ints]:
        """Return the results of some windows in the order of their `numbers`, and these."""
        picked = np.flatnonzero(some)[stable_order(numbers)]
        place = np.full(len(windows.of), -1, np.int64)
        place[picked] = np.arange(len(picked))
        rows = np.flatnonzero(place[windows.ids] >= 0)
        kept, ids = windows.rows.pick(rows), place[windows.ids[rows]]
        keys = pick(touched.keys.select(self.layout.key_names), windows.of[picked]) if self.layout.key_names else None
        starts, ends = windows.starts[picked], windows.ends[picked]
        heads = [] if keys is None else list(keys.columns)
        columns = [*heads, *self.emitter.bounds(starts, ends), *self._finished(kept, ids, heads, starts, ends)]
        return pa.Table.from_arrays(columns, schema=self.row_fields), np.sort(numbers)

    def _finished(self, kept: CountedRows, ids: Ints, heads: list[pa.ChunkedArray], starts: Ints, ends: Ints) -> list[pa.Array]:
        """Return the aggregates of windows, of rows each as often as it is there."""
        places = np.repeat(np.arange(len(ids)), kept.counts)
        created = self.layout.create(pick(kept.rows, places), ids[places], len(starts))
        partials = pa.Table.from_arrays(created, schema=pa.schema(self.layout.partial_fields))
        for name, column in zip(self.layout.key_names, heads, strict=True):  # an error names the key
            partials = partials.append_column(name, column)
        return self.layout.finish(partials, (starts, ends))

    def _arm(self, queue: DueQueue, touched: TouchedKeys, windows: _Windows, some: Mask, due: FiringSpan) -> None:
        """Say when windows are to be looked at: when they fire, and then when they leave."""
        of, ends = windows.of[some], windows.ends[some]
        keep_us = self.firing_delay.keep_us
        moments = np.where((ends > due.to_us) & (self.mode != "final"), ends, ends + keep_us)
        keys = pick(touched.keys.select(self.names), of).columns if self.names else []
        entries = pa.Table.from_arrays([*keys, pa.array(moments)], schema=self.due_schema)
        queue.insert(self._once(entries), due.reached_us)

    def _once(self, entries: pa.Table) -> pa.Table:
        return distinct(entries, self.due_schema.names)

    def _log(self, bucket: Bucket) -> CountedLog:
        return CountedLog(bucket, NAME, self.key_fields, self.own)

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        keys, rows = self._log(bucket).written()
        windows = self._windows(TouchedKeys(keys, np.empty(0, np.int64), keys.num_rows), rows)
        heads = pick(keys, windows.of)
        columns = [heads[name] for name in self.layout.key_names]
        values = self._finished(rows, windows.ids, columns, windows.starts, windows.ends)
        return StateTables(self.layout).finished(heads, heads[WRITTEN].to_numpy(), values, windows.starts, windows.ends)


def _rows_of(n: int) -> pa.Table:
    return pa.table({ROWS: pa.array(np.zeros(n, np.int64))})
