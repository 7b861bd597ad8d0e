"""Look-back windows (SEMANTICS §3.4, §4.2, §5): rows are kept as they came, until no row to come can meet them.

A batch reads the rows that fire and those they look back at. With updates it also reads what mildly late rows touch.

With `max_rows_per_key` a window is the newest rows of its range, as it is worked out. What is kept follows from that: rows that
no window to come can hold are looked for when twice as many rows are held as were left the last time, so that a row is read a
few times for it.

Look-back windows with a result on arrival (SEMANTICS §11.4): over what came before the row, in the batch that brings it.

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
from typing import Final, Protocol, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.grouping import by_groups, first_come, group, group_numbers, too_much
from krishiv_py.arrays.ranges import Ranges, expand, portions, running
from krishiv_py.arrays.sorting import pair_order, sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask, extremes, flags, flags_at, pick
from krishiv_py.errors import PlanError
from krishiv_py.kernels.aggregates.base import lists
from krishiv_py.kernels.columns.evaluate import evaluate
from krishiv_py.kernels.columns.layout import TIME, Layout, whole
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.firing import FiringDelay, FiringOperator, FiringSpan
from krishiv_py.kernels.results import Emitter, StateTables, StepResult, renewed
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import WRITTEN, Bucket, FiringProgress, Section
from krishiv_py.kernels.state.time_log import TimeLog, times_of
from krishiv_py.kernels.state.window_log import DeadKeys
from krishiv_py.kernels.windows.ranged.ranges import Listing, range_values
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.expressions.expr import Expr, columns_of
from krishiv_py.plan.windows.lookback import LookBackWindow

_BITS: Final = 62
_LOOKED: Final = 64
_FALLS: Final = 64
"""Of so many rows one may come before the time of the row before it: then sorting by time takes little more than a look."""


@attrs.frozen
class _Scale:
    """Key number and time as one ascending number, with room for the spans looked up on either side of every key."""

    low: int
    unit: int
    reach: int
    stride: int

    def __call__(self, ids: Ints, times: Ints) -> Ints:
        since = times - self.low
        return ids * self.stride + ((since if self.unit == 1 else since // self.unit) + self.reach)

    def split(self, places: Ints) -> tuple[Ints, Ints]:
        """Key numbers and times of places."""
        ids = places // self.stride
        return ids, (places - ids * self.stride - self.reach) * self.unit + self.low


@attrs.frozen(eq=False)
class OrderedRows:
    """Rows by key, time and arrival.

    Attributes
    ----------
    rows : pyarrow.Table
        The rows, in that order.
    ids, times : ndarray of int64
        Key number and event time (µs) of every row.
    picked : ndarray of int64
        Where each row was in the table this was made of.
    """

    rows: pa.Table
    ids: Ints
    times: Ints
    picked: Ints
    _places: Ints
    _scale: _Scale | None
    _distinct: Ints

    def start(self, ids: Ints, times: Ints) -> Ints:
        """Return the first position of a key's rows at or after a time."""
        if self._scale is not None:
            return np.searchsorted(self._places, self._scale(ids, times))
        rank = np.searchsorted(self._distinct, times, side="left")
        return np.searchsorted(self._places, ids * (len(self._distinct) + 1) + rank)

    def stop(self, ids: Ints, times: Ints) -> Ints:
        """Return the position after the last of a key's rows at or before a time."""
        if self._scale is not None:
            return np.searchsorted(self._places, self._scale(ids, times), side="right")
        rank = np.searchsorted(self._distinct, times, side="right")
        return np.searchsorted(self._places, ids * (len(self._distinct) + 1) + rank)

    def distinct(self, ids: Ints, times: Ints) -> tuple[Ints, Ints]:
        """Distinct pairs of key number and time, ascending."""
        if self._scale is not None:
            return self._scale.split(sorted_unique(self._scale(ids, times)))
        first = group([ids, times], len(ids)).first
        ids, times = ids[first], times[first]
        order = pair_order(ids, times)
        return ids[order], times[order]


def _scale(times: Ints, n_keys: int, spans: tuple[int, ...]) -> _Scale | None:
    """Return the finest scale that fits; milliseconds, where everything is whole in them, leave more room to sort by."""
    if not len(times):
        return _Scale(0, 1, 1, 4)
    whole = all(s % 1_000 == 0 for s in spans) and not (times[:_LOOKED] % 1_000).any() and not (times % 1_000).any()
    unit = 1_000 if whole else 1
    low, high = extremes(times)
    reach = sum(spans) // unit + 2
    stride = (high - low) // unit + 2 * reach
    return _Scale(low, unit, reach, stride) if stride * max(n_keys, 1) < 1 << _BITS else None


def _sorted(places: Ints, top: int) -> tuple[Ints, Ints]:
    """Places in order, equal ones in order of arrival, and the order. With room for it, both are sorted as one number."""
    n = len(places)
    row_bits = max(n - 1, 1).bit_length()
    if top.bit_length() + row_bits <= _BITS:
        packed = np.sort((places << row_bits) | np.arange(n, dtype=np.int64))
        return packed >> row_bits, packed & ((1 << row_bits) - 1)
    order = stable_order(places)
    return places[order], order


def _by_key(ids: Ints, times: Ints) -> Ints | None:
    """Return the order by key and time of rows that came in order of time, or nearly so; None for others."""
    falls = int(np.count_nonzero(times[1:] < times[:-1]))
    if not falls:
        return stable_order(ids)
    if falls * _FALLS > len(times):
        return None
    by_time = np.argsort(times, kind="stable")
    return by_time[stable_order(ids[by_time])]


def ordered(rows: pa.Table, keys: list[str], *spans_us: int, near: Mask | None = None) -> OrderedRows:
    """Lay rows out by key and time.

    Parameters
    ----------
    rows : pyarrow.Table
        Working rows, in order of arrival.
    keys : list of str
        Their key columns.
    *spans_us : int
        The spans that will be looked up: times asked for lie within their sum of the rows' own.
    near : ndarray of bool, optional
        Rows whose keys matter; rows of other keys are left out.
    """
    times = times_of(rows)
    ids, n_keys = group_numbers([rows[k] for k in keys], rows.num_rows)
    picked = None
    if near is not None:
        wanted = flags_at(ids[near], n_keys)
        if not wanted.all():
            picked = np.flatnonzero(wanted[ids])
            times, ids = times[picked], ids[picked]
    scale, distinct = _scale(times, n_keys, spans_us), times[:0]
    by_key = None if scale is None else _by_key(ids, times)
    if scale is not None and by_key is not None:
        order, ids, times = by_key, ids[by_key], times[by_key]
        places = scale(ids, times)
    else:
        if scale is not None:
            places, order = _sorted(scale(ids, times), scale.stride * n_keys)
        else:  # so many keys over so long a time, to the microsecond, that one number cannot hold both: ranks can
            distinct, rank = np.unique(times, return_inverse=True)
            width = len(distinct) + 1
            places, order = _sorted(ids * width + rank, width * n_keys)
        ids, times = ids[order], times[order]
    picked_rows = order if picked is None else picked[order]
    return OrderedRows(pick(rows, picked_rows), ids, times, picked_rows, places, scale, distinct)


Op: TypeAlias = "str | npt.NDArray[np.str_]"
_PAIRS: Final = 2_000_000


class Product(Protocol):
    """Results of anchor rows, in ascending order of window end; ``additive`` if a new row never changes an old result."""

    additive: bool

    def __call__(self, o: OrderedRows, anchors: Ints, r: Ranges, op: Op, pane: str, fresh: Mask | None = None) -> pa.Table:
        """Result rows for the rows at `anchors`, whose windows are `r`; `fresh` tells new rows from known ones."""


class Aggregates:
    """One aggregated row per anchor."""

    additive = False

    def __init__(self, layout: Layout, window: LookBackWindow) -> None:
        self.layout, self.window = layout, window
        self.emitter = Emitter(layout)

    def __call__(self, o: OrderedRows, anchors: Ints, r: Ranges, op: Op, pane: str, fresh: Mask | None = None) -> pa.Table:
        """See :class:`Product`."""
        listing = Listing(self.layout, o.rows, anchors, o.ids[anchors])
        times = o.times[anchors]
        bounds = times - self.window.size_us, times + self.window.after_us
        values = range_values(self.layout, o.rows, r, anchors if self.window.exclude_self else None, listing, bounds, anchors)
        order = stable_order(times)
        picked, anchor_rows = pa.array(order), pa.array(anchors[order])
        keys, own = ([pick(o.rows[n], anchor_rows) for n in names] for names in (self.layout.key_names, self.layout.own_names))
        times = times[order]
        return self.emitter.finished(
            keys,
            times - self.window.size_us,
            times + self.window.after_us,
            [*(pick(v, picked) for v in values), *own],
            op if isinstance(op, str) else op[order],
            pane,
            None,
        )


class Matches:
    """The row itself, and the list of the other rows in its window."""

    additive = False

    def __init__(self, layout: Layout, window: LookBackWindow) -> None:
        self.layout, self.window = layout, window
        self.schema = layout.result_schema

    def __call__(self, o: OrderedRows, anchors: Ints, r: Ranges, op: Op, pane: str, fresh: Mask | None = None) -> pa.Table:
        """See :class:`Product`."""
        kind = self.layout.spec.time_kind
        times = o.times[anchors]
        order = stable_order(times)
        anchors, times = anchors[order], times[order]
        low, high = r.low[order], r.high[order]
        Listing(self.layout, o.rows, anchors, o.ids[anchors]).check("matches()", high - low - 1)
        structs = whole(o.rows["a0"])
        met: list[pa.Array] = []
        for start, stop in portions(high - low, _PAIRS):
            rows, ids = expand(low[start:stop], high[start:stop])
            others = rows != anchors[start:stop][ids]
            met.append(lists(pick(structs, rows[others]), ids[others], stop - start))
        anchor_rows = pa.array(anchors)
        arrays = [pick(o.rows[k], anchor_rows) for k in self.layout.key_names]
        arrays += [unstamp(times - self.window.size_us, kind), unstamp(times + self.window.after_us, kind)]
        arrays += [pick(structs, anchor_rows), pa.chunked_array(met, self.schema.field("matches").type)]
        return _finished(arrays, self.schema, op if isinstance(op, str) else op[order])


class MatchedPairs:
    """Every two rows that met and for which the condition holds, once; the earlier row is the left one."""

    additive = True

    def __init__(self, layout: Layout, window: LookBackWindow) -> None:
        self.layout, self.condition = layout, window.condition
        self.schema = layout.result_schema
        self.names = layout.spec.row_schema.names

    def __call__(self, o: OrderedRows, anchors: Ints, r: Ranges, op: Op, pane: str, fresh: Mask | None = None) -> pa.Table:
        """See :class:`Product`."""
        columns = dict(zip(self.names, whole(o.rows["a0"]).flatten(), strict=True))
        Listing(self.layout, o.rows, anchors, o.ids[anchors]).check("pairs()", anchors - r.low)
        lefts, rights = [], []
        for start, stop in portions(anchors - r.low, _PAIRS):
            left, ids = expand(r.low[start:stop], anchors[start:stop])
            right = anchors[start:stop][ids]
            if fresh is not None:
                new = fresh[left] | fresh[right]
                left, right = left[new], right[new]
            if self.condition is not None:
                kept = self._holds(self.condition, columns, left, right)
                left, right = left[kept], right[kept]
            lefts.append(left)
            rights.append(right)
        none = np.empty(0, np.int64)
        left, right = np.concatenate([none, *lefts]), np.concatenate([none, *rights])
        order = stable_order(o.times[right])
        sides = [(columns[n], side[order]) for side in (left, right) for n in self.names]
        return _finished([pick(column, rows) for column, rows in sides], self.schema, op)

    @staticmethod
    def _holds(condition: Expr, columns: dict[str, pa.Array], left: Ints, right: Ints) -> Mask:
        sides = {"left": pa.array(left), "right": pa.array(right)}
        needed = sorted(columns_of(condition)) or ["left_" + next(iter(columns))]
        arrays = [pick(columns[n.split("_", 1)[1]], sides[n.split("_", 1)[0]]) for n in needed]
        return flags(evaluate(condition, pa.RecordBatch.from_arrays(arrays, names=needed)))


def _finished(arrays: list[pa.Array], schema: pa.Schema, op: Op) -> pa.Table:
    """Return the table, with an ``op`` column where the plan asks for one."""
    if len(schema) > len(arrays):
        arrays = [*arrays, pa.repeat(pa.scalar(op), len(arrays[0])) if isinstance(op, str) else pa.array(op, pa.string())]
    return pa.Table.from_arrays(arrays, schema=schema)


def product_for(layout: Layout, window: LookBackWindow) -> Product:
    """Return what the window's results are made by."""
    kinds: dict[str, type[Aggregates] | type[Matches] | type[MatchedPairs]]
    kinds = {"aggregates": Aggregates, "matches": Matches, "pairs": MatchedPairs}
    return kinds[window.output](layout, window)


BLOCKS: Final = 64
"""Into how many stretches of time a window of very many rows is cut to be reduced."""
_FEW: Final = 1_024
"""So many rows are never looked through for those that are not needed any more."""


@attrs.define
class _TrimProgress(Section):
    """Says how many rows were left when it was last looked for those that are not needed any more."""

    rows_needed: int = 0


def shift(time_us: int, by_us: int) -> int:
    """Return a bound moved, without leaving the number range."""
    return max(UNSET, min(END_OF_TIME, time_us + by_us))


class LookBackOperator(FiringOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, LookBackWindow)
        super().__init__(spec)
        self.window = spec.operation
        self.product = product_for(self.layout, spec.operation)
        self.before, self.after = spec.operation.size_us, spec.operation.after_us
        self.pane = "final" if self.mode == "final" else "on_time"
        delay = self.firing_delay
        wait_us, written_us = delay.wait_us + self.after, shift(delay.written_us, -self.after)
        self.firing_delay = FiringDelay(wait_us, delay.keep_us + self.before + self.after, written_us=written_us)
        self.reach_us = self.before + self.after
        self.block_us = max(self.before // BLOCKS, 1)
        self._cut = 0
        """Of the results of a step, those over the newest rows of their range only."""

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        log, self._cut = TimeLog(bucket, "b"), 0
        due = self.firing_delay.due(moment, FiringProgress.of(bucket).fired_at)
        fresh = pa.concat_tables(chunks) if chunks else None
        results: list[pa.Table] = []
        counters: dict[str, int] = {}
        if fresh is not None and fresh.num_rows:
            fresh, counters = self._admitted(log, fresh)
            results += self._take(log, fresh, due) if fresh.num_rows else []
        results += self._fire(log, due.from_us, due.to_us)
        FiringProgress(due.reached_us).store(bucket)
        log.pass_by(due.to_us)
        log.forget(due.horizon_us)
        if self.window.max_rows_per_key is not None:
            counters["limited_results"] = self._cut
            self._trim(bucket, log, shift(due.horizon_us, self.before), due.to_us)
        table = pa.concat_tables([self.layout.result_schema.empty_table(), *results])
        return StepResult(table, self._wakeup(log), log.waiting, log.rows, table.num_rows, counters)

    def _take(self, log: TimeLog, fresh: pa.Table, due: FiringSpan) -> list[pa.Table]:
        """Take new rows in; gives what they change of results that were out."""
        again = self.mode != "final" and due.from_us != UNSET
        results = self._fire_again(log, fresh, due.from_us) if again else []
        log.append(fresh, due.from_us)
        return results

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`: the rows that wait for their result."""
        if self.window.output != "aggregates":
            raise PlanError("state has no aggregates to show", got=self.window.describe(), hint="read the results instead")
        rows, opened = TimeLog(bucket, "b").written(), StateTables(self.layout)
        if rows is None:
            return opened.empty()
        frontier = self.firing_delay.fired(FiringProgress.of(bucket).fired_at)
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
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; counts rows that had not had their result."""
        frontier = self.firing_delay.fired(FiringProgress.of(bucket).fired_at)
        gone = TimeLog(bucket, "b").remove(DeadKeys.of(dead, self.layout.key_names).rows, frontier)
        return 0 if gone is None else int(np.count_nonzero(times_of(gone) >= frontier))

    def _spans(self, o: OrderedRows, anchors: Ints) -> Ranges:
        """Return the rows in the range of each anchor."""
        ids, times = o.ids[anchors], o.times[anchors]
        return Ranges(o.start(ids, times - self.before), o.stop(ids, times + self.after), o.times // self.block_us)

    def _newest(self, r: Ranges, anchors: Ints) -> Ranges:
        """Return the newest of these rows, as many as the plan allows, the anchor always among them."""
        most = self.window.max_rows_per_key
        if most is None:
            return r
        self._cut += int(np.count_nonzero(r.high - r.low > most))
        low = np.minimum(np.maximum(r.low, r.high - most), anchors)
        return Ranges(low, np.minimum(r.high, low + most), r.block)

    def _ranges(self, o: OrderedRows, anchors: Ints) -> Ranges:
        return self._newest(self._spans(o, anchors), anchors)

    def _fire(self, log: TimeLog, low: int, high: int) -> list[pa.Table]:
        """The rows with ``low <= t < high`` have their results now."""
        out: list[pa.Table] = []
        if low >= high or not log.any_between(low, high):
            return out
        for start, stop in log.portions(low, high, self.before + self.after):
            rows = log.load(shift(start, -self.before), shift(stop, self.after))
            due = [] if rows is None else [self._due(part, start, stop) for part in self._by_keys(rows)]
            given = [results for results in due if results is not None]
            out += self.emitter.by_end(given) if self.window.output != "pairs" else given
        return out

    def _by_keys(self, rows: pa.Table) -> list[pa.Table]:
        """Rows that are too much to be worked on at once, in parts of whole keys."""
        if not too_much(rows):
            return [rows]
        keys = group([rows[name] for name in self.layout.key_names], rows.num_rows)
        return [part for part, _, _ in by_groups(rows, keys.ids, keys.n)]

    def _due(self, rows: pa.Table, start: int, stop: int) -> pa.Table | None:
        """Return the results of the rows with ``start <= t < stop``, which lie among those they look back at."""
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

    def _withdrawn(self, o: OrderedRows, anchors: Ints, r: Ranges, known: Ints, count: Ints) -> pa.Table:
        """Return what was there before the new rows came: the same ranges without them."""
        old = attrs.evolve(o, rows=pick(o.rows, known), ids=o.ids[known], times=o.times[known])
        ranges = Ranges(r.low - count[r.low], r.high - count[r.high], r.block[known])
        return self.product(old, anchors - count[anchors], ranges, "-U", "late")

    def _admitted(self, log: TimeLog, fresh: pa.Table) -> tuple[pa.Table, dict[str, int]]:
        """Return the new rows that take part, where the plan bounds windows; the others are counted (SEMANTICS §3.4).

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
        most, noted = self.window.max_rows_per_key, _TrimProgress.of(bucket)
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
        _TrimProgress(log.rows).store(bucket)

    def _wakeup(self, log: TimeLog) -> int | None:
        """Return the next watermark at which a row has its result, else the one at which the last row is forgotten."""
        if log.next_waiting is not None:
            return log.next_waiting + self.firing_delay.wait_us + 1
        return None if log.latest is None else log.latest + self.firing_delay.keep_us + 1


_COPIED: Final = 2_000_000
"""The number of rows that are copied at a time for disturbed windows."""
_LOOKED_AT: Final = 40
"""The most rows copied for one key in one step, as a multiple of those that may be listed; each takes a few seconds."""


class ArrivalOperator(LookBackOperator):
    """See the module's docstring. No row waits, so nothing fires by the watermark; it only says which rows are let go."""

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        held_us = self.before if self.window.max_rows_per_window is None else self.reach_us
        self.firing_delay = FiringDelay(0, spec.options.allowed_lateness_us + held_us)  # only rows to come look at what is held

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`: no row waits for its result."""
        return StateTables(self.layout).empty() if self.window.output == "aggregates" else super().state(bucket)

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; every row has had its result."""
        TimeLog(bucket, "b").remove(DeadKeys.of(dead, self.layout.key_names).rows, END_OF_TIME)
        return 0

    def _take(self, log: TimeLog, fresh: pa.Table, due: FiringSpan) -> list[pa.Table]:
        results = self._pairs(log, fresh) if self.window.output == "pairs" else self._give(log, fresh)
        log.append(fresh, END_OF_TIME)
        return results

    def _trim(self, bucket: Bucket, log: TimeLog, settled: int, frontier: int) -> None:
        super()._trim(bucket, log, settled, END_OF_TIME)

    def _fire(self, log: TimeLog, low: int, high: int) -> list[pa.Table]:
        return []

    def _laid_out(self, log: TimeLog, fresh: pa.Table, before: int, after: int) -> tuple[OrderedRows, Mask]:
        """New rows and those around them by key and time, and which are new."""
        times = times_of(fresh)
        known = log.load(shift(int(times.min()), -before), shift(int(times.max()), after + 1))
        rows = fresh if known is None else pa.concat_tables([known, fresh])
        is_new = np.zeros(rows.num_rows, np.bool_)
        is_new[rows.num_rows - fresh.num_rows :] = True
        o = ordered(rows, self.layout.key_names, self.before, self.after, near=is_new)
        return o, is_new[o.picked]

    def _give(self, log: TimeLog, fresh: pa.Table) -> list[pa.Table]:
        o, new = self._laid_out(log, fresh, self.before, self.after)
        anchors = np.flatnonzero(new)
        r = self._spans(o, anchors)
        if not self.after:
            r = attrs.evolve(r, high=anchors + 1)  # of equal times those that came later are after it
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
        for some, copy, anchor_rows, ranges in self._copies(o, anchors[disturbed], r.low[disturbed], r.high[disturbed]):
            tables.append(self.product(copy, anchor_rows, ranges, "+I", self.pane))
            given.append(some)
        return [_in_order(tables, [o.times[a] for a in given], [o.picked[a] for a in given])]

    @staticmethod
    def _disturbed(o: OrderedRows, anchors: Ints, r: Ranges) -> Mask:
        """Windows that hold a row that came later."""
        in_turn = (np.diff(o.picked) > 0) | (np.diff(o.ids) != 0)
        if in_turn.all() and (r.high == anchors + 1).all():
            return np.zeros(len(anchors), np.bool_)
        return r.reduce(np.maximum, o.picked) > o.picked[anchors]

    def _copies(self, o: OrderedRows, anchors: Ints, low: Ints, high: Ints) -> Iterator[tuple[Ints, OrderedRows, Ints, Ranges]]:
        """Disturbed windows, copied without what came later: their rows, the copy, and their places in it."""
        for start, stop in portions(high - low, _COPIED):
            some = anchors[start:stop]
            rows, ids = expand(low[start:stop], high[start:stop])
            seen = o.picked[rows] <= o.picked[some][ids]
            rows, ids = rows[seen], ids[seen]
            bounds = running(np.bincount(ids, minlength=len(some)))
            copy = attrs.evolve(o, rows=pick(o.rows, rows), ids=o.ids[rows], times=o.times[rows], picked=o.picked[rows])
            own = np.flatnonzero(rows == some[ids])
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
