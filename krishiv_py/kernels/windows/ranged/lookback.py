"""Look-back windows (SEMANTICS §3.4, §4.2, §5): rows are kept as they came, until no row to come can meet them.

A batch reads the rows that fire and those they look back at. With updates it also reads what mildly late rows touch.

With `max_rows_per_key` a window is the newest rows of its range, as it is worked out. What is kept follows from that: rows that
no window to come can hold are looked for when twice as many rows are held as were left the last time, so that a row is read a
few times for it.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.first_come import first_come
from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.large import by_groups, too_much
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.ranges import Ranges, running
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints
from krishiv_py.errors import PlanError
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.firing.due import Due, FiringDelay
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results.changelog import renewed
from krishiv_py.kernels.results.contract import StepResult
from krishiv_py.kernels.results.emit import Emitter
from krishiv_py.kernels.results.state_table import StateTables
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.expired_keys import DeadKeys
from krishiv_py.kernels.state.sections import Fired, Section
from krishiv_py.kernels.state.store import WRITTEN, Bucket
from krishiv_py.kernels.state.time_log import TimeLog, times_of
from krishiv_py.kernels.windows.ranged.listed import Listing
from krishiv_py.kernels.windows.ranged.matches import product_for
from krishiv_py.kernels.windows.ranged.ordered import Ordered, ordered
from krishiv_py.kernels.windows.ranged.range_values import range_values
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.windows.lookback import LookBackWindow

BLOCKS: Final = 64
"""Into how many stretches of time a window of very many rows is cut to be reduced."""


_FEW: Final = 1_024
"""So many rows are never looked through for those that are not needed any more."""


@attrs.define
class _Trimmed(Section):
    """Says how many rows were left when it was last looked for those that are not needed any more."""

    rows_needed: int = 0


def shift(time_us: int, by_us: int) -> int:
    """A bound moved, without leaving the number range."""
    return max(UNSET, min(END_OF_TIME, time_us + by_us))


class LookBackOperator:
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, LookBackWindow)
        self.window = spec.operation
        self.layout = Layout(spec)
        self.emitter = Emitter(self.layout)
        self.product = product_for(self.layout, spec.operation)
        self.before, self.after = spec.operation.size_us, spec.operation.after_us
        self.mode = spec.options.emit_mode
        self.pane = "final" if self.mode == "final" else "on_time"
        found = FiringDelay.of(spec.options)
        wait_us, written_us = found.wait_us + self.after, shift(found.written_us, -self.after)
        self.firing_delay = FiringDelay(wait_us, found.keep_us + self.before + self.after, written_us=written_us)
        self.reach_us = self.before + self.after
        self.block_us = max(self.before // BLOCKS, 1)
        self._cut = 0
        """Of the results of a step, those over the newest rows of their range only."""

    def combine(self, rows: pa.Table) -> pa.Table:
        """The rows as they are: every one is needed by itself."""
        return rows

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        log, self._cut = TimeLog(bucket, "b"), 0
        due = self.firing_delay.due(moment, Fired.of(bucket).fired_at)
        fresh = pa.concat_tables(chunks) if chunks else None
        results: list[pa.Table] = []
        counters: dict[str, int] = {}
        if fresh is not None and fresh.num_rows:
            fresh, counters = self._admitted(log, fresh)
            results += self._take(log, fresh, due) if fresh.num_rows else []
        results += self._fire(log, due.from_us, due.to_us)
        Fired(due.reached_us).store(bucket)
        log.pass_by(due.to_us)
        log.forget(due.horizon_us)
        if self.window.max_rows_per_key is not None:
            counters["limited_results"] = self._cut
            self._trim(bucket, log, shift(due.horizon_us, self.before), due.to_us)
        table = pa.concat_tables([self.layout.result_schema.empty_table(), *results])
        return StepResult(table, self._wakeup(log), log.waiting, log.rows, table.num_rows, counters)

    def _take(self, log: TimeLog, fresh: pa.Table, due: Due) -> list[pa.Table]:
        """Take new rows in; gives what they change of results that were out."""
        again = self.mode != "final" and due.from_us != UNSET
        results = self._fire_again(log, fresh, due.from_us) if again else []
        log.append(fresh, due.from_us)
        return results

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`: the rows that wait for their result."""
        if self.window.output != "aggregates":
            raise PlanError("state has no aggregates to show", got=self.window.describe(), hint="read the results instead")
        rows, opened = TimeLog(bucket, "b").written(), StateTables(self.layout)
        if rows is None:
            return opened.empty()
        frontier = self.firing_delay.fired(Fired.of(bucket).fired_at)
        o = ordered(rows, self.layout.key_names, self.before, self.after)
        anchors = np.flatnonzero(o.times >= frontier)
        r, times = self._ranges(o, anchors), o.times[anchors]
        if not len(anchors):
            return opened.empty()
        updated = r.reduce(np.maximum, o.rows[WRITTEN].to_numpy())
        listing = Listing(self.layout, o.rows, anchors, o.ids[anchors])
        holes = anchors if self.window.exclude_self else None
        values = range_values(self.layout, o.rows, r, holes, listing, None, anchors)
        return opened.finished(pick(o.rows, anchors), updated, values, times - self.before, times + self.after)

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.wrappers.ttl.KeyDropping`; counts rows that had not had their result."""
        frontier = self.firing_delay.fired(Fired.of(bucket).fired_at)
        gone = TimeLog(bucket, "b").remove(DeadKeys.of(dead, self.layout.key_names).rows, frontier)
        return 0 if gone is None else int(np.count_nonzero(times_of(gone) >= frontier))

    def _spans(self, o: Ordered, anchors: Ints) -> Ranges:
        """The rows in the range of each anchor."""
        ids, times = o.ids[anchors], o.times[anchors]
        return Ranges(o.start(ids, times - self.before), o.stop(ids, times + self.after), o.times // self.block_us)

    def _newest(self, r: Ranges, anchors: Ints) -> Ranges:
        """The newest of these rows, as many as the plan allows, the anchor always among them."""
        most = self.window.max_rows_per_key
        if most is None:
            return r
        self._cut += int(np.count_nonzero(r.high - r.low > most))
        low = np.minimum(np.maximum(r.low, r.high - most), anchors)
        return Ranges(low, np.minimum(r.high, low + most), r.block)

    def _ranges(self, o: Ordered, anchors: Ints) -> Ranges:
        return self._newest(self._spans(o, anchors), anchors)

    def _fire(self, log: TimeLog, low: int, high: int) -> list[pa.Table]:
        """The rows with ``low <= t < high`` have their results now."""
        out: list[pa.Table] = []
        if low >= high or not log.any_between(low, high):
            return out
        for start, stop in log.portions(low, high, self.before + self.after):
            rows = log.load(shift(start, -self.before), shift(stop, self.after))
            found = [] if rows is None else [self._due(part, start, stop) for part in self._by_keys(rows)]
            given = [results for results in found if results is not None]
            out += self.emitter.by_end(given) if self.window.output != "pairs" else given
        return out

    def _by_keys(self, rows: pa.Table) -> list[pa.Table]:
        """Rows that are too much to be worked on at once, in parts of whole keys."""
        if not too_much(rows):
            return [rows]
        keys = group([rows[name] for name in self.layout.key_names], rows.num_rows)
        return [part for part, _, _ in by_groups(rows, keys.ids, keys.n)]

    def _due(self, rows: pa.Table, start: int, stop: int) -> pa.Table | None:
        """The results of the rows with ``start <= t < stop``, which lie among those they look back at."""
        times = times_of(rows)
        due = (times >= start) & (times < stop)
        if not due.any():
            return None
        o = ordered(rows, self.layout.key_names, self.before, self.after, near=due)
        anchors = np.flatnonzero((o.times >= start) & (o.times < stop))
        return self.product(o, anchors, self._ranges(o, anchors), "+I", self.pane)

    def _fire_again(self, log: TimeLog, fresh: pa.Table, due_from: int) -> list[pa.Table]:
        """Results that were out and that late rows changed, after their withdrawal; and results of the late rows themselves."""
        times = times_of(fresh)
        mild = times < shift(due_from, self.after)  # seen from some row that has its result
        if not mild.any():
            return []
        late = fresh.filter(pa.array(mild))
        low, high = int(times[mild].min()), int(times[mild].max())
        last = min(shift(high, self.before + 1), due_from)
        known = log.load(shift(low, -self.after - self.before), shift(last, self.after))
        rows = late if known is None else pa.concat_tables([known, late])
        is_new = np.arange(rows.num_rows) >= rows.num_rows - late.num_rows
        o = ordered(rows, self.layout.key_names, self.before, self.after, near=is_new)
        new = is_new[o.picked]
        anchors = np.flatnonzero(o.times < due_from)
        r = self._ranges(o, anchors)
        count = running(new.astype(np.int64))
        touched = count[r.high] > count[r.low]
        anchors, r = anchors[touched], Ranges(r.low[touched], r.high[touched], r.block)
        if not len(anchors):
            return []
        if self.product.additive:
            return [self.product(o, anchors, r, "+I", "late", new)]
        if self.mode == "updates":
            return [self.product(o, anchors, r, "+I", "late")]
        had = ~new[anchors]
        out = [self._withdrawn(o, anchors[had], Ranges(r.low[had], r.high[had], r.block), np.flatnonzero(~new), count)]
        return [*out, self.product(o, anchors, r, renewed(had), "late")]

    def _withdrawn(self, o: Ordered, anchors: Ints, r: Ranges, known: Ints, count: Ints) -> pa.Table:
        """Return what stood before the new rows came: the same ranges without them."""
        old = attrs.evolve(o, rows=pick(o.rows, known), ids=o.ids[known], times=o.times[known])
        ranges = Ranges(r.low - count[r.low], r.high - count[r.high], r.block[known])
        return self.product(old, anchors - count[anchors], ranges, "-U", "late")

    def _admitted(self, log: TimeLog, fresh: pa.Table) -> tuple[pa.Table, dict[str, int]]:
        """The new rows that take part, where the plan bounds windows; the others are counted (SEMANTICS §3.4).

        A row takes part when fewer rows than the limit came before it, take part, and are so close that one window may hold
        both. All of these are still in the log, so this follows from the rows and their order alone.
        """
        most = self.window.max_rows_per_window
        if most is None:
            return fresh, {}
        times = times_of(fresh)
        held = log.load(shift(int(times.min()), -self.reach_us), shift(int(times.max()), self.reach_us + 1))
        names = self.layout.key_names
        columns = [t.select([TIME, *names]) for t in ([fresh] if held is None else [held, fresh])]
        both = pa.concat_tables(columns)
        old, groups = both.num_rows - fresh.num_rows, group([both[n] for n in names], both.num_rows)
        crowded = np.bincount(groups.ids, minlength=groups.n) > most
        takes = np.ones(fresh.num_rows, np.bool_)
        if crowded[groups.ids[old:]].any():
            all_times, order = times_of(both), stable_order(groups.ids)
            bounds = np.searchsorted(groups.ids[order], np.arange(groups.n + 1))
            for key in np.unique(groups.ids[old:][crowded[groups.ids[old:]]]).tolist():
                mine = order[bounds[key] : bounds[key + 1]]  # in order of arrival, those that are held first
                new = mine[mine >= old]
                takes[new - old] = first_come(all_times[new], all_times[mine[mine < old]], most, self.reach_us)
        refused = int(np.count_nonzero(~takes))
        return fresh if not refused else fresh.filter(pa.array(takes)), {"limited": refused}

    def _trim(self, bucket: Bucket, log: TimeLog, settled: int, frontier: int) -> None:
        """Let go of rows that no window to come can hold, as so many newer ones of their key come before `settled`.

        Before it no row comes any more, and all rows have had their result.
        """
        most, noted = self.window.max_rows_per_key, _Trimmed.of(bucket)
        if most is None or self.window.max_rows_per_window is not None:  # which counts all rows, and bounds them
            return
        if log.rows <= max(2 * noted.rows_needed, _FEW):
            return
        rows = log.load(UNSET, END_OF_TIME)
        assert rows is not None
        o = ordered(rows, self.layout.key_names)
        newer = o.stop(o.ids, np.full(len(o.ids), settled - 1)) - np.arange(len(o.ids)) - 1
        kept = (o.times >= settled) | (newer < most)
        if not kept.all():
            log.replace(pick(rows, np.sort(o.picked[kept])), frontier)
        _Trimmed(log.rows).store(bucket)

    def _wakeup(self, log: TimeLog) -> int | None:
        """The next watermark at which a row has its result, else the one at which the last row is forgotten."""
        if log.next_waiting is not None:
            return log.next_waiting + self.firing_delay.wait_us + 1
        return None if log.latest is None else log.latest + self.firing_delay.keep_us + 1
