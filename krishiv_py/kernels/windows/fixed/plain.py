"""Tumbling and hopping windows over slices (SEMANTICS §3.1, §3.2, §5), and the rows that overlapping windows share.

A run of chunks per slice holds partial aggregates by key. A batch appends one chunk to every slice it touches; slices are
read only when one of their windows fires, fires again, or is withdrawn. What is open but quiet costs nothing.

Rows that overlapping windows hold together: by slice, once, until the last window that needs them is over.

::

    slices      │ a │ b │ c │ d │ e │ f │
    over          ▔   ▔                      all windows over them have ended, some are not over
    open                  ▔   ▔   ▔   ▔      some window over them is open
                                  │ watermark

An open window has nothing of its own. In the step in which it ends it gets entries in the log of its own, but no rows: its
snapshots are lent (:mod:`~krishiv_py.kernels.state.window_log`). A pair that late rows come to gets its rows first. So the rows
of a slice that a lent snapshot is made of never change.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final, Protocol

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import Groups, among, distinct, group
from krishiv_py.arrays.ranges import expand, portions, split
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask, as_arrow, flags_at, largest_of, last_rows, pick
from krishiv_py.kernels.columns.layout import TIME
from krishiv_py.kernels.columns.times import FixedAssigner
from krishiv_py.kernels.firing import FiringOperator, FiringSpan
from krishiv_py.kernels.results import StateTables, StepResult, earliest, renewed
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket, FiringProgress, Runs, remove_keys
from krishiv_py.kernels.state.window_log import NEWEST, ROWS, WINDOW, KeyWindows, PairLog
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.windows.fixed import HoppingWindow

SLICE: Final = "s"
_PIECE_ROWS: Final = 64
_FIRE_ROWS: Final = 4_000_000
_COPIED_ROWS: Final = 1 << 14
_FEW_SLICES: Final = 4
_FEW_PIECES: Final = 16


class SliceRows(Protocol):
    """Rows by slice."""

    def between(self, low: int | None, high: int | None) -> list[int]:
        """Return the slices from `low` to before `high`, in ascending order."""

    def rows(self, run: int) -> int:
        """Return how many rows a slice holds."""

    def load(self, run: int) -> list[pa.Table]:
        """Return the chunks of a slice, oldest first."""

    def written(self, run: int) -> list[pa.Table]:
        """Return the chunks of a slice with a column that says when each was written."""

    def total_rows(self) -> int:
        """Return how many rows all slices hold."""


class FixedOperator(FiringOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec, *, counted: bool = False) -> None:
        assert isinstance(spec.operation, HoppingWindow)
        self.counted = counted
        self.window = spec.operation
        super().__init__(spec)
        self.assigner = FixedAssigner(spec.operation.grid)
        counts = [pa.field(name, pa.int64()) for name in (ROWS, NEWEST)] if counted else []
        self.chunk_schema = pa.schema(
            [pa.field(SLICE, pa.int64()), *self.layout.key_fields, *self.layout.partial_fields, *counts]
        )

    @cached_property
    def opened(self) -> StateTables:
        """Return what makes tables of open windows."""
        return StateTables(self.layout)

    def combine(self, rows: pa.Table) -> pa.Table:
        """Partial aggregates by key and slice."""
        columns = [_column(rows, k) for k in self.layout.key_names]
        first, step, places = self.assigner.places(rows[TIME].to_numpy())
        groups = group(columns if places is None else [places, *columns], rows.num_rows)
        heads = np.full(groups.n, first) if places is None else first + places[groups.first] * step
        keys = [pick(column, groups.first) for column in columns]
        arrays = [as_arrow(heads), *keys, *self.layout.create(rows, groups.ids, groups.n)]
        return pa.Table.from_arrays(arrays + self.counts(rows, groups), schema=self.chunk_schema)

    def counts(self, rows: pa.Table, groups: Groups) -> list[pa.Array]:
        """Return how many rows groups have, and the newest event time of each, if that is counted."""
        if not self.counted:
            return []
        newest = largest_of(groups.ids, rows[TIME].to_numpy(), groups.n, UNSET)
        return [pa.array(np.bincount(groups.ids, minlength=groups.n)), pa.array(newest)]

    def merge(self, partials: pa.Table) -> pa.Table:
        """Partials with equal key and slice become one."""
        if partials.num_rows <= _COPIED_ROWS:
            partials = partials.combine_chunks()  # once, and not for each that reads a column
        keys = [_column(partials, n) for n in self.layout.key_names]
        slices = _column(partials, SLICE)
        groups = group([*keys, slices], partials.num_rows)
        heads = [pick(column, groups.first) for column in (slices, *keys)]
        return pa.Table.from_arrays([*heads, *self.layout.merge(partials, groups.ids, groups.n)], schema=self.chunk_schema)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        runs = Runs(bucket, SLICE, self.merge)
        due = self.firing_delay.due(moment, FiringProgress.of(bucket).fired_at)
        fresh = pa.concat_tables(chunks) if chunks else None
        results = []
        if fresh is not None and fresh.num_rows:
            again = [] if self.mode == "final" else self._fired_by(fresh, due.from_us)
            previous = self.content(runs, again) if again and self.mode == "retractions" else None
            self._append(runs, fresh, due.from_us)
            if again:
                results += self._fire_again(runs, fresh, again, previous)
        results += self._fire(runs, due)
        FiringProgress(due.reached_us).store(bucket)
        self._forget(runs, due.horizon_us)
        table = self.emitter.concat(results)
        return StepResult(table, self._wakeup(runs, moment.watermark_us), self._open(runs), runs.total_rows(), table.num_rows)

    def _fired_by(self, fresh: pa.Table, fired_at: int) -> list[int]:
        """Windows this batch touches that had fired and are still in state."""
        if fired_at == UNSET:
            return []
        slices = sorted_unique(fresh[SLICE].to_numpy()).tolist()
        return self.windows_of(slices, self.firing_delay.over(fired_at), fired_at)

    def _append(self, runs: Runs, fresh: pa.Table, fired_at: int) -> None:
        """Append the batch to its slices."""
        for name, rows in split(fresh, fresh[SLICE].to_numpy()):
            # what a fired window was summed up from stays as it was: merged in another order, floats differ in the last bit
            frozen = self.mode == "retractions" and fired_at != UNSET and bool(self.windows_of([name], UNSET, fired_at))
            runs.append(name, rows, compact=not frozen)

    def windows_of(self, slices: list[int], above: int, upto: int) -> list[int]:
        """Starts of the windows over these slices with ``above < end <= upto``, ascending."""
        if not slices:
            return []
        above, upto = max(above, UNSET // 2), max(min(upto, END_OF_TIME // 2), UNSET // 2)
        if len(slices) <= _FEW_SLICES:  # a step that fires nothing sees that without arrays
            end = self.assigner.next_end(slices, above)
            if end is None or end > upto:
                return []
        first, last = above - self.window.size_us + 1, upto - self.window.size_us
        kept: list[int] = self.assigner.starts(np.array(slices, np.int64), first, last).tolist()
        return kept

    def content(
        self, runs: SliceRows, starts: list[int], load: Callable[[int], list[pa.Table]] | None = None
    ) -> pa.Table | None:
        """Partials of these windows: columns ``w`` (start), keys, partials, and what else `load` gives."""
        slices = runs.between(starts[0], starts[-1] + self.window.size_us)
        chunks = [(load or runs.load)(s) for s in slices]
        # slice by slice: arrival order within a window is what first and last go by
        row_places, windows = self.assigner.windows_between(np.array(slices, np.int64), starts[0], starts[-1])
        due = _occurs(windows, np.array(starts, np.int64))
        row_places, windows = row_places[due], windows[due]
        rows = np.array([sum(t.num_rows for t in tables) for tables in chunks], np.int64)
        taken = rows[row_places]
        total = int(taken.sum())
        if not total:
            return None
        if len(row_places) <= _FEW_PIECES or total >= _PIECE_ROWS * len(row_places):
            stacked = pa.concat_tables([table for i in row_places.tolist() for table in chunks[i]])
        else:
            begins = np.cumsum(rows) - rows
            every = pa.concat_tables([table for tables in chunks for table in tables])
            stacked = pick(every, expand(begins[row_places], begins[row_places] + taken)[0])
        return stacked.set_column(0, "w", as_arrow(np.repeat(windows, taken)))

    def merged(self, content: pa.Table) -> pa.Table:
        names = ["w", *self.layout.key_names]
        groups = group([content["w"].to_numpy(), *(content[k] for k in self.layout.key_names)], content.num_rows)
        head = pick(content.select(names), groups.first)
        arrays = [*head.columns, *self.layout.merge(content, groups.ids, groups.n)]
        merged = pa.Table.from_arrays(arrays, names=[*names, *(f.name for f in self.layout.partial_fields)])
        windows = merged["w"].to_numpy()
        in_order = bool((windows[1:] >= windows[:-1]).all())  # of one window for sure: no second copy of all its rows
        return merged if in_order else pick(merged, stable_order(windows))

    def portions_of(self, runs: SliceRows, starts: list[int]) -> list[list[int]]:
        """Windows in groups small enough to merge in one go."""
        if runs.total_rows() * len(starts) < _FIRE_ROWS:
            return [starts]
        sizes = {s: runs.rows(s) for s in runs.between(starts[0], starts[-1] + self.window.size_us)}
        names = np.array(list(sizes), np.int64)
        counts = np.cumsum(np.array([0, *sizes.values()], np.int64))
        low = np.searchsorted(names, starts)
        high = np.searchsorted(names, np.array(starts, np.int64) + self.window.size_us)
        return [starts[a:b] for a, b in portions(counts[high] - counts[low], _FIRE_ROWS)]

    def _fire(self, runs: Runs, due: FiringSpan) -> list[pa.Table]:
        if due.to_us <= due.from_us:
            return []
        starts = self.windows_of(runs.between(due.from_us - self.window.size_us, due.to_us), due.from_us, due.to_us)
        out = []
        for portion in self.portions_of(runs, starts) if starts else ():
            content = self.content(runs, portion)
            if content is not None:
                merged = self.merged(content)
                out.append(self.emitter.rows(merged, *self._bounds(merged), "+I"))
        return out

    def _fire_again(self, runs: Runs, fresh: pa.Table, starts: list[int], before: pa.Table | None) -> list[pa.Table]:
        """Windows that had fired and were changed by this batch: their new value, after the old one's withdrawal."""
        rows, window = self.assigner.windows(fresh[SLICE].to_numpy())
        touched = np.isin(window, np.array(starts, np.int64))
        changed = pick(fresh.select([SLICE, *self.layout.key_names]), rows[touched])
        changed = changed.set_column(0, "w", pa.array(window[touched]))
        now = self.content(runs, starts)
        assert now is not None
        new = self.merged(self._only(now, changed))
        out = []
        if self.mode == "retractions":
            previous = self._only(before, changed) if before is not None else None
            if previous is not None and previous.num_rows:
                old = self.merged(previous)
                out.append(self.emitter.rows(old, *self._bounds(old), "-U"))
                known = self._pairs_in(new, old)
                out.append(self.emitter.rows(new, *self._bounds(new), renewed(known)))
                return out
        out.append(self.emitter.rows(new, *self._bounds(new), "+I"))
        return out

    def _only(self, content: pa.Table, changed: pa.Table) -> pa.Table:
        """Rows of `content` whose window and key occur in `changed`."""
        return content.filter(pa.array(self._pairs_in(content, changed)))

    def _pairs_in(self, content: pa.Table, other: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        names = ["w", *self.layout.key_names]
        both = pa.concat_tables([other.select(names), content.select(names)])
        groups = group([both["w"].to_numpy(), *(both[k] for k in self.layout.key_names)], both.num_rows)
        wanted = flags_at(groups.ids[: other.num_rows], groups.n)
        return wanted[groups.ids[other.num_rows :]]

    def _bounds(self, merged: pa.Table) -> tuple[Ints, Ints]:
        starts = merged["w"].to_numpy()
        return starts, starts + self.window.size_us

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        runs = Runs(bucket, SLICE, self.merge)
        horizon = self.firing_delay.over(FiringProgress.of(bucket).fired_at)
        starts = self.windows_of(runs.names(), horizon, END_OF_TIME)
        return self.shown(runs, starts)

    def shown(self, runs: SliceRows, starts: list[int]) -> pa.Table:
        """Some windows as :meth:`state` shows them."""
        opened, tables = self.opened, list[pa.Table]()
        for portion in self.portions_of(runs, starts) if starts else ():
            content = self.content(runs, portion, runs.written)
            if content is not None:
                windows = content["w"].to_numpy()
                groups = group([windows, *(content[k] for k in self.layout.key_names)], content.num_rows)
                begin = windows[groups.first]
                tables.append(opened.merged(content, groups.ids, begin, begin + self.window.size_us))
        return pa.concat_tables(tables) if tables else opened.empty()

    def drop_windows(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> pa.Table:
        """See :class:`~krishiv_py.kernels.ttl.WindowDropping`."""
        runs = Runs(bucket, SLICE, self.merge)
        gone = remove_keys(runs, self.layout.key_names, dead, self.chunk_schema)
        return self.spread(gone, self.firing_delay.over(moment.watermark_us))

    def spread(self, rows: pa.Table, after: int) -> pa.Table:
        """Start and key of each window that has some of these rows and ends after a point in time."""
        row_places, windows = self.assigner.windows(rows[SLICE].to_numpy())
        open_ = windows + self.window.size_us > after
        spread = pick(rows, row_places[open_]).set_column(0, "w", pa.array(windows[open_]))
        return distinct(spread, ["w", *self.layout.key_names])

    def _forget(self, runs: Runs, horizon: int) -> None:
        past = max(horizon, UNSET // 2) - self.window.size_us + self.window.slide_us
        ended = runs.between(2 * UNSET, past)
        names = np.array(ended, np.int64)
        for name in names[self.assigner.last_end(names) <= horizon].tolist() if ended else ():
            runs.drop(name)

    def _wakeup(self, runs: Runs, watermark_us: int) -> int | None:
        """Return the next watermark at which a window fires or a slice is over."""
        watermark_us = max(watermark_us, UNSET // 2)
        fires, keep_us = self.next_end(runs, watermark_us), self.firing_delay.keep_us
        if not keep_us:
            return fires
        over = self.next_end(runs, watermark_us - keep_us)
        return earliest((fires, 0), (over, keep_us))

    def next_end(self, runs: Runs, after: int) -> int | None:
        """Return the next end of a window: at most two slices begin within a slide, so the first few names are enough."""
        names = runs.between(after - self.window.size_us, 2 * END_OF_TIME, most=4)
        return self.assigner.next_end(names, after)

    def _open(self, runs: Runs) -> int:
        return runs.counted(lambda names: len(self.windows_of(names, UNSET, END_OF_TIME)))


def _occurs(values: Ints, among: Ints) -> Mask:
    """Return which values occur in others, which ascend and of which there are some."""
    places = among.searchsorted(values)
    equal: Mask = among[np.minimum(places, len(among) - 1)] == values
    return equal


def _column(table: pa.Table, name: str) -> pa.Array | pa.ChunkedArray:
    """Return a column as an array where it is one."""
    column = table[name]
    return column.chunk(0) if column.num_chunks == 1 else column


_PREFIX: Final = "sl"
_OVER: Final = "sl over"


class SharedRows:
    """See the module's docstring."""

    def __init__(self, bucket: Bucket, slices: FixedOperator, log: PairLog) -> None:
        self._slices, self._log = slices, log
        self._size_us = slices.window.size_us
        self._open = Runs(bucket, _PREFIX, slices.merge)
        self._over = Runs(bucket, _PREFIX, slices.merge, _OVER)

    def between(self, low: int | None, high: int | None) -> list[int]:
        """See :class:`~krishiv_py.kernels.windows.fixed.plain.SliceRows`; slices whose windows have all ended come first."""
        return [*self._over.between(low, high), *self._open.between(low, high)]

    def rows(self, run: int) -> int:
        """See :class:`~krishiv_py.kernels.windows.fixed.plain.SliceRows`."""
        return (self._open if run in self._open else self._over).rows(run)

    def load(self, run: int) -> list[pa.Table]:
        """See :class:`~krishiv_py.kernels.windows.fixed.plain.SliceRows`."""
        return (self._open if run in self._open else self._over).load(run)

    def written(self, run: int) -> list[pa.Table]:
        """See :class:`~krishiv_py.kernels.windows.fixed.plain.SliceRows`."""
        return (self._open if run in self._open else self._over).written(run)

    def total_rows(self) -> int:
        """Rows of all slices."""
        return self._open.total_rows() + self._over.total_rows()

    def ending(self, due: FiringSpan) -> list[int]:
        """Return the windows over some slice that end in this step."""
        return self._slices.windows_of(self._open.between(due.from_us - self._size_us, due.to_us), due.from_us, due.to_us)

    def opened(self, own: Runs, due: FiringSpan) -> int:
        """Return how many open windows hold their rows here, and no entries of their `own`."""
        every = self._open.counted(lambda names: len(self._slices.windows_of(names, UNSET, END_OF_TIME)))
        ended = self._slices.windows_of(self._open.between(None, due.to_us), UNSET, due.to_us)
        both = [w for w in self.apart(own, due) if self._open.between(w, w + self._size_us, most=1)]
        return every - len(ended) - len(both)

    def apart(self, own: Runs, due: FiringSpan) -> list[int]:
        """Open windows with entries of their own: those of a state from before rows were shared, which go on so."""
        return own.between(due.to_us - self._size_us + 1, None)

    def next_end(self, due: FiringSpan) -> int | None:
        """Return when the next window ends."""
        return self._slices.next_end(self._open, due.to_us)

    def entries(self, windows: list[int]) -> list[pa.Table]:
        """Return what some windows hold, as entries that have not been part of a firing, with the start of the window."""
        content = self._slices.content(self, windows) if windows else None
        if content is None:
            return []
        merged = self._slices.merged(content)
        none, ones = np.zeros(merged.num_rows, np.bool_), np.ones(merged.num_rows, np.int64)
        partials = merged.select(self._log.partial_schema.names)
        return [self._log.entries(merged, ones, 0 * ones, none, none, partials).append_column(WINDOW, merged["w"])]

    def sizes(self, windows: list[int]) -> Ints:
        """Return how many rows some windows have, given in ascending order."""
        names = self.between(windows[0], windows[-1] + self._size_us)
        counts = np.cumsum(np.array([0, *(self.rows(s) for s in names)], np.int64))
        starts = np.array(windows, np.int64)
        return counts[np.searchsorted(names, starts + self._size_us)] - counts[np.searchsorted(names, starts)]

    def given(self, windows: KeyWindows, keys: pa.Table) -> KeyWindows:
        """Return the state of pairs with the content of lent snapshots; `keys` has the window and the key of each pair."""
        lent = np.flatnonzero(windows.lent)
        if not len(lent):
            return windows
        wanted = pick(keys.select([WINDOW, *self._log.layout.key_names]), lent)
        starts = sorted_unique(wanted[WINDOW].to_numpy()).tolist()
        content = self._slices.content(self, starts)
        assert content is not None, "of windows that have rows"
        merged = self._slices.merged(content.filter(pa.array(among(content, wanted, wanted.column_names))))
        both = pa.concat_tables([wanted, merged.select(wanted.column_names)])
        groups = group([both[n].to_numpy() if n == WINDOW else both[n] for n in wanted.column_names], both.num_rows)
        place = last_rows(groups.ids[len(lent) :], groups.n)
        source = np.arange(len(windows.snaps))
        source[windows.snap_at[lent]] = len(windows.snaps) + place[groups.ids[: len(lent)]]
        partials = merged.select(windows.snaps.column_names)
        return attrs.evolve(
            windows, lent=np.zeros_like(windows.lent), snaps=pick(pa.concat_tables([windows.snaps, partials]), source)
        )

    def append(self, fresh: pa.Table, due: FiringSpan) -> None:
        """Take in the rows that some open window has."""
        slices = fresh[SLICE].to_numpy()
        waits = self._slices.assigner.last_end(slices) > due.to_us
        for name, part in split(fresh.filter(pa.array(waits)), slices[waits]):
            # what lent snapshots are made of stays as it was: merged in another order, floats differ in the last bit
            lends = due.horizon_us < due.to_us and bool(self._slices.windows_of([name], UNSET, due.to_us))
            self._open.append(name, part, compact=not lends)

    def forget(self, due: FiringSpan) -> None:
        """Let go of the slices whose windows are all over, after the firings of a step."""
        over, horizon = self._over, due.horizon_us
        for name in over.between(None, max(horizon, UNSET // 2) - self._size_us + self._slices.window.slide_us):
            if self._last_end(name) <= horizon:
                over.drop(name)
        for name in self._open.between(None, due.to_us):
            if self._last_end(name) <= horizon:
                self._open.drop(name)
            elif self._last_end(name) <= due.to_us:
                self._open.hand_over(name, over)

    def shown(self, own: Runs, fired_at: int) -> pa.Table:
        """Return the open windows as a state table shows them, without those that have entries of their `own`."""
        starts = [w for w in self._slices.windows_of(self._open.names(), fired_at, END_OF_TIME) if w not in own]
        return self._slices.shown(self, starts)

    def remove(self, dead: pa.Table, fired_at: int) -> pa.Table:
        """Take keys out; gives start and key of each open window that had some of their rows."""
        names, schema = self._log.layout.key_names, self._slices.chunk_schema
        gone = [remove_keys(runs, names, dead, schema) for runs in (self._open, self._over)]
        return self._slices.spread(pa.concat_tables(gone), fired_at)

    def _last_end(self, name: int) -> int:
        return int(self._slices.assigner.last_end(np.array(name, np.int64)))
