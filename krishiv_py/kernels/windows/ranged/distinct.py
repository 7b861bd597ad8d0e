"""Distinct-set sliding windows (SEMANTICS §3.5): rows are kept until the last window they can be in has had its result.

Windows are not stored: those that end between two watermarks follow from the rows around that stretch of time.

Updates and retractions of distinct-set sliding windows: what new rows change, row by row or once per batch (SEMANTICS §5).

A window fires for a row that counts in it, and when the row that brings it into being comes. What it held before is worked
out from the rows known then: nothing is stored per window.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group, group_rows
from krishiv_py.arrays.ranges import Ranges, expand, portions, running
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask, flags_at, least_of, pick, run_begins
from krishiv_py.kernels.aggregates.base import FailingPlace, regrouped
from krishiv_py.kernels.columns.layout import TIME, Layout, place_of
from krishiv_py.kernels.firing import FiringOperator, FiringSpan
from krishiv_py.kernels.results import Emitter, Lines, SplitRows, StateTables, StepResult, compose, counted, split_late
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import WRITTEN, Bucket, FiringProgress
from krishiv_py.kernels.state.time_log import TimeLog, times_of
from krishiv_py.kernels.state.window_log import DeadKeys
from krishiv_py.kernels.windows.ranged.lookback import BLOCKS, OrderedRows, ordered, shift
from krishiv_py.kernels.windows.ranged.ranges import FROM, Listing, WindowSpans, range_partials, range_values
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.options.triggers import Trigger
from krishiv_py.plan.windows.lookback import DistinctWindows

_PAIRS: Final = 2_000_000


@attrs.frozen(eq=False)
class _Members:
    """Windows (key number, start, arrival of the row that brought it), and the rows that count in each, by window."""

    ids: Ints
    starts: Ints
    created: Ints
    rows: Ints
    windows: Ints

    def bounds(self, windows: Ints) -> tuple[Ints, Ints]:
        return np.searchsorted(self.windows, windows), np.searchsorted(self.windows, windows, side="right")


class Changes:
    """Works out the change log of a batch."""

    def __init__(self, layout: Layout, spans: WindowSpans) -> None:
        self.layout, self.spans = layout, spans
        self.emitter = Emitter(layout)
        self.trigger: Trigger = layout.spec.options.trigger
        self.retracts = layout.spec.options.emit_mode == "retractions"
        self.names = [f.name for f in layout.partial_fields]

    def __call__(self, known: pa.Table | None, fresh: pa.Table, watermark_us: int, due: FiringSpan) -> pa.Table:
        """Results of windows that `fresh` rows change, next to the `known` ones; windows that are over are gone."""
        rows = fresh if known is None else pa.concat_tables([known, fresh])
        base = rows.num_rows - fresh.num_rows
        is_new = np.arange(rows.num_rows) >= base
        o = ordered(rows, self.layout.key_names, self.spans.reach, self.spans.reach, near=is_new)
        m = self._members(o, base, due.horizon_us)
        windows, seqs = self._events(o, m, base, due.from_us)
        if not len(windows):
            return self.emitter.schema.empty_table()
        partials, changes = self._changes(o, m, windows, seqs, base)
        windows = windows[changes.cause]
        starts = m.starts[windows]
        row_places = pa.array(m.rows[m.bounds(windows)[0]])
        arrays = [*(pick(o.rows[k], row_places) for k in self.layout.key_names), *pick(partials, changes.result).columns]
        table = pa.Table.from_arrays(arrays, names=[*self.layout.key_names, *self.names])
        ends = starts + self.spans.size
        return self.emitter.rows(table, starts, ends, changes.op, np.where(ends < watermark_us, "late", "early"), None)

    def _members(self, o: OrderedRows, base: int, horizon: int) -> _Members:
        size = self.spans.size
        own, right = self.spans.own_start(o.times), self.spans.next_start(o.times)
        came = o.rows[FROM].to_numpy() if FROM in o.rows.column_names else o.times
        brings = own + size >= came
        starts = np.concatenate([own[brings], right])
        ids = np.concatenate([o.ids[brings], o.ids[: len(right)]])
        by = np.concatenate([o.picked[brings], o.picked[: len(right)]])
        groups = group([ids, starts], len(ids))
        created = least_of(groups.ids, by, groups.n, len(o.times) + base + 1)
        ids, starts = ids[groups.first], starts[groups.first]
        is_open = np.flatnonzero(starts + size >= horizon)
        ids, starts, created = ids[is_open], starts[is_open], created[is_open]
        low, high = o.start(ids, starts), o.stop(ids, starts + size)
        anchors = np.minimum(low, len(o.times) - 1)
        Listing(self.layout, o.rows, anchors, ids).check("windows reported row by row", high - low)
        rows, windows = expand(low, high)
        counted = came[rows] <= starts[windows] + size
        rows, windows = rows[counted], windows[counted]
        touched = created >= base
        touched[windows[o.picked[rows] >= base]] = True
        kept = touched[windows]
        return _Members(ids, starts, created, rows[kept], windows[kept])

    def _events(self, o: OrderedRows, m: _Members, base: int, fired_at: int) -> tuple[Ints, Ints]:
        """Return which windows fire after which row; a firing for the whole batch comes after the last row."""
        done = m.starts + self.spans.size < fired_at
        each = np.where(done, self.trigger.late == 1, self.trigger.early == 1)
        at_once = done & (self.trigger.late == "batch")
        last = int(o.picked.max()) + 1
        seqs = np.maximum(o.picked[m.rows], m.created[m.windows])
        windows = m.windows
        due = (seqs >= base) & (each | at_once)[windows]
        windows, seqs = windows[due], seqs[due]
        events = sorted_unique(windows * (last + 1) + np.where(at_once[windows], last, seqs))
        return events // (last + 1), events % (last + 1)

    def _content(self, o: OrderedRows, m: _Members, windows: Ints, seqs: Ints) -> tuple[pa.Table, Mask]:
        """Partials of what windows held when rows up to a number had come, and which of them held any."""
        low, high = m.bounds(windows)
        Listing(self.layout, o.rows, m.rows[low], m.ids[windows]).check("windows reported row by row", high - low)
        parts, some = [], np.zeros(len(windows), np.bool_)
        for start, stop in portions(high - low, _PAIRS):
            row_places, ids = expand(low[start:stop], high[start:stop])
            rows = m.rows[row_places]
            there = o.picked[rows] <= seqs[start:stop][ids]
            used, dense = np.unique(ids[there], return_inverse=True)
            some[start + used] = True
            held = pick(o.rows, rows[there])
            parts.append(pa.table(self.layout.create(held, dense.astype(np.int64), len(used)), names=self.names))
        return pa.concat_tables(parts), some

    def _changes(self, o: OrderedRows, m: _Members, windows: Ints, seqs: Ints, base: int) -> tuple[pa.Table, Lines]:
        """Return what firings come to and what was there before, one after the other, and the lines that tell of them."""
        partials, _ = self._content(o, m, windows, seqs)
        fires, order = np.arange(len(windows)), (m.starts[windows], seqs)
        if not self.retracts:
            return partials, compose(fires, fires[:0], fires[:0], order)
        first = run_begins(windows)
        previous = np.where(first, np.where(m.created[windows] < base, base - 1, -1), np.roll(seqs, 1))
        old, some = self._content(o, m, windows, previous)
        by = np.flatnonzero(some)
        return pa.concat_tables([partials, old]), compose(fires, len(fires) + np.arange(len(by)), by, order)


def counting_from(rows: pa.Table, *, refuses: bool) -> pa.Table:
    """Return rows of the state with the time from which they count, or without it, as an operator keeps them that `refuses`.

    A row of a rule that refuses by its own time counts in all its windows. A row that came too late for some of its windows
    came when these were over, so it counts in all that are left.
    """
    if FROM in rows.column_names:
        return rows if refuses else rows.drop_columns([FROM])
    return rows.append_column(FROM, rows[TIME]) if refuses and TIME in rows.column_names else rows


@attrs.frozen(eq=False)
class _Windows:
    """Windows by key number and start, and the positions of the rows between their bounds."""

    ids: Ints
    starts: Ints
    low: Ints
    high: Ints

    def only(self, kept: Ints) -> _Windows:
        return _Windows(self.ids[kept], self.starts[kept], self.low[kept], self.high[kept])


class DistinctOperator(FiringOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, DistinctWindows)
        super().__init__(spec)
        self.spans = WindowSpans(spec.operation, spec.tick_us)
        self.final = self.mode == "final"
        self.changes = None if self.final else Changes(self.layout, self.spans)
        withdraws = self.mode == "retractions" and spec.options.trigger.early is not None
        self.on_time = self.final or (
            spec.options.trigger.on_time and not withdraws
        )  # row by row, every change was given already
        self.by_window = spec.options.state_refuses
        self.block_us = max(self.spans.size // BLOCKS, 1)
        self.partial_names = [f.name for f in self.layout.partial_fields]

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        log = TimeLog(bucket, "d")
        due = self.firing_delay.due(moment, FiringProgress.of(bucket).fired_at)
        over_us = self.firing_delay.over(moment.classified_us)
        FiringProgress(due.reached_us).store(bucket)
        fresh = pa.concat_tables(chunks) if chunks else None
        split, results = None, []
        if fresh is not None and fresh.num_rows:
            split = self._split_late(log, fresh, max(due.horizon_us, over_us), moment.classified_us)
            rows = split.rows
            if self.changes is not None and rows.num_rows:
                times = times_of(rows)
                around = log.load(int(times.min()) - 2 * self.spans.reach, int(times.max()) + 2 * self.spans.reach + 1)
                results.append(self.changes(around, rows, moment.watermark_us, due))
            log.append(rows, self.spans.frontier(due.from_us))
        if self.on_time:
            results += self._fire(log, due.from_us, due.to_us)
        log.pass_by(self.spans.frontier(due.to_us))
        log.forget(shift(due.horizon_us, -self.spans.reach))
        table = self.emitter.concat(results)
        late = None if split is None else split.late
        return StepResult(table, self._wakeup(log, due.to_us), log.waiting, log.rows, table.num_rows, counted(late), late)

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        rows, opened = TimeLog(bucket, "d").written(), StateTables(self.layout)
        if rows is None:
            return opened.empty()
        o = ordered(rows, self.layout.key_names, self.spans.reach, self.spans.reach)
        horizon = self.firing_delay.over(FiringProgress.of(bucket).fired_at)
        w, values = self._contents(o, self._windows(o, horizon, END_OF_TIME))
        if not len(w.ids):
            return opened.empty()
        updated = Ranges(w.low, w.high, o.times // self.block_us).reduce(np.maximum, o.rows[WRITTEN].to_numpy())
        return opened.finished(pick(o.rows, w.low), updated, values, w.starts, w.starts + self.spans.size)

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; counts windows that had not ended."""
        passed = self.firing_delay.fired(FiringProgress.of(bucket).fired_at)
        keys = DeadKeys.of(dead, self.layout.key_names)
        gone = TimeLog(bucket, "d").remove(keys.rows, self.spans.frontier(passed))
        if gone is None:
            return 0
        return len(self._windows(ordered(gone, keys.names, self.spans.reach, self.spans.reach), passed, END_OF_TIME).ids)

    def _split_late(self, log: TimeLog, fresh: pa.Table, horizon: int, watermark_us: int) -> SplitRows:
        """Late rows, and the others in the layout of the state."""
        if not self.by_window:
            return SplitRows(fresh)
        times, split = times_of(fresh), SplitRows(fresh)
        if (self.spans.own_end(times) < horizon).any():
            held = log.load(shift(horizon, -self.spans.reach), shift(horizon, self.spans.size))
            held = fresh.slice(0, 0) if held is None else held
            known, keys = held.num_rows, group_rows(self.layout.key_names, held, fresh)
            refused = self.spans.late(times, keys.ids[known:], times_of(held), keys.ids[:known], keys.n, horizon)
            split, times = split_late(self.layout, fresh, times, refused, watermark_us), times[~refused]
        kept = split.rows.select([n for n in fresh.column_names if not n.startswith("l")])
        return SplitRows(kept.append_column(FROM, pa.array(np.maximum(times, horizon))), split.late)

    def _fire(self, log: TimeLog, above: int, upto: int) -> list[pa.Table]:
        """Fire all windows with ``above <= end < upto``."""
        out: list[pa.Table] = []
        back = self.spans.reach
        if above >= upto or not log.overlaps(shift(above, -back), upto):
            return out
        for start, stop in log.portions(above, upto, back):
            rows = log.load(shift(start, -back), stop)
            if rows is not None:
                o = ordered(rows, self.layout.key_names, back, back)
                out.append(self._table(o, *self._contents(o, self._windows(o, start, stop))))
        return out

    def _windows(self, o: OrderedRows, above: int, upto: int) -> _Windows:
        """Return the windows that rows bring into being and that end in time, by key and start."""
        size = self.spans.size
        own, right = self.spans.own_start(o.times), self.spans.next_start(o.times)
        ids = o.ids
        if self.by_window:  # a row that came too late for a window of its own brings only the one after it
            brings = own + size >= o.rows[FROM].to_numpy()
            own, ids = own[brings], ids[brings]
        starts, ids = np.concatenate([own, right]), np.concatenate([ids, o.ids[: len(right)]])
        ends = starts + size
        due = (ends >= above) & (ends < upto)
        ids, starts = o.distinct(ids[due], starts[due])
        windows_of = _Windows(ids, starts, o.start(ids, starts), o.stop(ids, starts + size))
        return windows_of.only(np.flatnonzero(windows_of.high > windows_of.low))

    def _contents(self, o: OrderedRows, w: _Windows) -> tuple[_Windows, list[pa.Array]]:
        """Return those of the windows that hold rows, and their aggregates."""
        block = o.times // self.block_us
        straggling = np.empty(0, np.int64)
        if self.by_window:
            straggling = np.flatnonzero(o.rows[FROM].to_numpy() > o.times)
        if not len(straggling):
            listing = Listing(self.layout, o.rows, w.low, w.ids)
            bounds = w.starts, w.starts + self.spans.size
            return w, range_values(self.layout, o.rows, Ranges(w.low, w.high, block), None, listing, bounds)
        return self._with_stragglers(o, w, straggling, block)

    def _with_stragglers(self, o: OrderedRows, w: _Windows, straggling: Ints, block: Ints) -> tuple[_Windows, list[pa.Array]]:
        """Rows that came after some of their windows were closed are distinguished, window by window, and merged in."""
        is_straggler = flags_at(straggling, len(o.times))
        count = running(is_straggler.astype(np.int64))
        prompt = np.flatnonzero(~is_straggler)
        low, high = w.low - count[w.low], w.high - count[w.high]
        some = np.flatnonzero(high > low)
        r = Ranges(low[some], high[some], block[prompt])
        with self._failing_place(o, w), regrouped(some):
            parts = [pa.table(range_partials(self.layout, pick(o.rows, prompt), r), names=self.partial_names)]
        row_places, windows = expand(count[w.low], count[w.high])
        rows = straggling[row_places]
        counted = o.rows[FROM].to_numpy()[rows] <= w.starts[windows] + self.spans.size
        rows, windows = rows[counted], windows[counted]
        single = np.arange(len(rows), dtype=np.int64)
        parts.append(pa.table(self.layout.create(pick(o.rows, rows), single, len(rows)), names=self.partial_names))
        owners = np.concatenate([some, windows])
        used, ids = np.unique(owners, return_inverse=True)
        with self._failing_place(o, w), regrouped(used):
            merged = self.layout.merge(pa.concat_tables(parts), ids.astype(np.int64), len(used))
            return w.only(used), self.layout.finish(pa.Table.from_arrays(merged, names=self.partial_names))

    def _failing_place(self, o: OrderedRows, w: _Windows) -> FailingPlace:
        """Let the error for one of the windows say which."""
        ends = w.starts + self.spans.size
        return FailingPlace(lambda n: place_of(self.layout.spec, o.rows, int(w.low[n]), (int(w.starts[n]), int(ends[n]))))

    def _table(self, o: OrderedRows, w: _Windows, values: list[pa.Array]) -> pa.Table:
        order = stable_order(w.starts)
        rows = pa.array(w.low[order])
        starts = w.starts[order]
        keys, picked = [pick(o.rows[k], rows) for k in self.layout.key_names], [pick(v, order) for v in values]
        return self.emitter.finished(
            keys, starts, starts + self.spans.size, picked, "+I", "final" if self.final else "on_time", None
        )

    def _wakeup(self, log: TimeLog, passed: int) -> int | None:
        """Return the next watermark at which a window may end; right windows may turn out to be empty, which does no harm."""
        moments = []
        if log.next_waiting is not None:
            moments.append(int(self.spans.own_end(np.array([log.next_waiting]))[0]))
        earliest = log.earliest(shift(passed, -self.spans.reach))
        if earliest is not None:
            moments.append(earliest + self.spans.reach)
        if moments:
            return min(moments) + self.firing_delay.wait_us + 1
        return None if log.latest is None else log.latest + self.spans.reach + self.firing_delay.keep_us + 1
