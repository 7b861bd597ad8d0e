"""Count windows (SEMANTICS §3.7): rows of a key numbered in order of arrival, in windows over these numbers.

Row numbers are cut into slices as times are for hopping windows (:mod:`~krishiv_py.kernels.columns.times`), so that a row is
kept once however many windows it belongs to. A log by key (:mod:`~krishiv_py.kernels.state.window_log`) holds, of every key,
how many rows of its newest slices have come and their partial aggregates; entries of one slice add up.

Cost of a batch: proportional to the rows it brings and the entries of their keys; of the log, the pieces that may hold one
of these keys are read. A key once seen keeps one entry: its row number.

Count windows with triggers or discarding accumulation (SEMANTICS §3.7, §5.2).

Which rows make which window fire, and what it then holds, follows from row numbers alone::

    size 5, on_count(2)   rows 0 1 2 3 4
    early                      ^   ^        2 rows, then 4
    final                            ^      all 5, when the window is full

So state is the rows of windows that are not full, in a log by key, and what is there can be made again to withdraw it. The row
that makes a window full brings the full result only. No row of such a window is ever late.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.grouping import Groups, group, group_rows, key_hashes, rank
from krishiv_py.arrays.ranges import expand, portions
from krishiv_py.arrays.sorting import pair_order, sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask, largest_of, last_rows, pick, totals_of
from krishiv_py.kernels.columns.times import FixedAssigner
from krishiv_py.kernels.firing import FiringOperator
from krishiv_py.kernels.prefixes import cumulated, exactly
from krishiv_py.kernels.results import StateTables, StepResult, compose
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import HASH, DeadKeys, KeyedLog
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.operation import Grid
from krishiv_py.plan.windows.count import CountWindow

NUMBER: Final = "n"
"""The number of a row of its key, or of the first row of a slice."""
ROWS: Final = "c"


class _NumberingOperator(FiringOperator, ABC):
    """Numbers rows for count windows with triggers and without, and fires what is open when the input ends."""

    schema: pa.Schema

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, CountWindow)
        super().__init__(spec)
        self.window = spec.operation
        self.assigner = FixedAssigner(Grid(spec.operation.size, spec.operation.slide))

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        log = self.log(bucket)
        rows = pa.concat_tables([self.layout.row_schema.empty_table(), *chunks])
        results = [self._number(log, rows)] if rows.num_rows else []
        if moment.watermark_us == END_OF_TIME and len(log):
            results.append(self._flush(log))
            log.clear()
        table = self.emitter.concat(results)
        held = len(log)
        return StepResult(table, END_OF_TIME if held else None, held, held, table.num_rows)

    def log(self, bucket: Bucket) -> KeyedLog:
        """Return the entries of a bucket."""
        return KeyedLog(bucket, "c", self.schema, self._compact)

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        content, windows, starts = self._in_open(self.log(bucket).written())
        return self._shown(StateTables(self.layout), content, windows.ids, starts, starts + self.window.size)

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See ``KeyDropping``; counts windows that were not full. Numbers start at 0 again."""
        keys = DeadKeys.of(dead, self.layout.key_names)
        return self._in_open(self.log(bucket).remove(keys.hashes, keys.rows))[1].n

    def _in_open(self, entries: pa.Table) -> tuple[pa.Table, Groups, Ints]:
        """Return all entries of some keys in the windows that are not full."""
        keys = group([entries[k] for k in self.layout.key_names], entries.num_rows)
        return self._in_windows(entries, keys.ids, self._seen(entries, keys.ids, keys.n), None)

    def _in_windows(self, entries: pa.Table, groups: Ints, seen: Ints, now: Ints | None) -> tuple[pa.Table, Groups, Ints]:
        """Entries in the windows not full when `seen` rows of a key had come, those full at `now` or all, and their starts."""
        rows, starts = self.assigner.windows(entries[NUMBER].to_numpy())
        ends = starts + self.window.size
        wanted = (starts >= 0) & (ends > seen[groups[rows]])
        if now is not None:
            wanted &= ends <= now[groups[rows]]
        rows, starts = rows[wanted], starts[wanted]
        order = stable_order(rows)  # arrival order within a window is what first and last go by
        rows, starts = rows[order], starts[order]
        windows = group([groups[rows], starts], len(rows))
        return pick(entries, rows), windows, starts[windows.first]

    def _entries_of(self, log: KeyedLog, rows: pa.Table) -> tuple[Ints, pa.Table, Groups]:
        """Return the hash of the key of each row, the entries of these keys, and the keys of the entries, then of the rows."""
        hashes = key_hashes([rows[k] for k in self.layout.key_names], rows.num_rows)
        held = log.lookup(sorted_unique(hashes))
        return hashes, held, group_rows(self.layout.key_names, held, rows)

    @staticmethod
    @abstractmethod
    def _shown(tables: StateTables, content: pa.Table, ids: Ints, starts: Ints, ends: Ints) -> pa.Table:
        """Return windows of some entries as a state table shows them."""

    @abstractmethod
    def _seen(self, entries: pa.Table, groups: Ints, n: int) -> Ints:
        """Return how many rows of each of `n` keys have come, by the entries of them."""

    @abstractmethod
    def _number(self, log: KeyedLog, rows: pa.Table) -> pa.Table:
        """Give rows their numbers, and fire what is full."""

    @abstractmethod
    def _flush(self, log: KeyedLog) -> pa.Table:
        """Fire what is open."""

    @abstractmethod
    def _compact(self, entries: pa.Table, oldest: bool) -> pa.Table:
        """Merge entries of equal keys."""


class CountOperator(_NumberingOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        fixed = [pa.field(n, pa.int64()) for n in (HASH, NUMBER, ROWS)]
        self.schema = pa.schema([*fixed, *self.layout.key_fields, *self.layout.partial_fields])

    def _number(self, log: KeyedLog, rows: pa.Table) -> pa.Table:
        """Give rows their numbers, add them to their slices; returns the windows that became full."""
        hashes, held, keys = self._entries_of(log, rows)
        of_held, of_row = keys.ids[: held.num_rows], keys.ids[held.num_rows :]
        seen = self._seen(held, of_held, keys.n)
        slices = self.assigner.slices(seen[of_row] + rank(of_row))
        parts = group([of_row, slices], rows.num_rows)
        first = pa.array(parts.first)
        counts = np.bincount(parts.ids, minlength=parts.n)
        arrays = [pa.array(hashes[parts.first]), pa.array(slices[parts.first]), pa.array(counts)]
        arrays += [pick(rows[k], first) for k in self.layout.key_names]
        fresh = pa.Table.from_arrays([*arrays, *self.layout.create(rows, parts.ids, parts.n)], schema=self.schema)
        log.append(fresh)
        groups = np.concatenate([of_held, of_row[parts.first]])
        now = seen + np.bincount(of_row, minlength=keys.n)
        return self._windows(pa.concat_tables([held, fresh]), groups, seen, now)

    @staticmethod
    def _shown(tables: StateTables, content: pa.Table, ids: Ints, starts: Ints, ends: Ints) -> pa.Table:
        return tables.merged(content, ids, starts, ends)

    def _flush(self, log: KeyedLog) -> pa.Table:
        """Return the windows that will never be full."""
        entries = log.everything()
        keys = group([entries[k] for k in self.layout.key_names], entries.num_rows)
        return self._windows(entries, keys.ids, self._seen(entries, keys.ids, keys.n), None)

    def _windows(self, entries: pa.Table, groups: Ints, seen: Ints, now: Ints | None) -> pa.Table:
        """Results of windows not full when `seen` rows of a key had come: those full at `now`, or all of them."""
        content, windows, start = self._in_windows(entries, groups, seen, now)
        head = pick(content.select(self.layout.key_names), windows.first)
        names = [*self.layout.key_names, *(f.name for f in self.layout.partial_fields)]
        merged = pa.Table.from_arrays([*head.columns, *self.layout.merge(content, windows.ids, windows.n)], names=names)
        by_end = stable_order(start)
        start = start[by_end]
        return self.emitter.rows(pick(merged, by_end), start, start + self.window.size, "+I")

    def _seen(self, entries: pa.Table, groups: Ints, n: int) -> Ints:
        """Return how many rows of each key have come: the start of its newest slice and what is in it."""
        slices, counts = entries[NUMBER].to_numpy(), entries[ROWS].to_numpy()
        newest = largest_of(groups, slices, n, -1)
        inside = slices == newest[groups]
        total = totals_of(groups[inside], counts[inside], n)
        return np.where(newest < 0, 0, newest + total)

    def _compact(self, entries: pa.Table, oldest: bool) -> pa.Table:
        """Entries of one slice added up; slices all of whose windows are full go, but for the newest, which numbers go by."""
        keys = group([entries[k] for k in self.layout.key_names], entries.num_rows)
        slices, counts = entries[NUMBER].to_numpy(), entries[ROWS].to_numpy()
        known = self._seen(entries, keys.ids, keys.n)
        newest = largest_of(keys.ids, slices, keys.n, -1)
        kept = (self.assigner.last_end(slices) > known[keys.ids]) | (slices == newest[keys.ids])
        entries, of_key = entries.filter(pa.array(kept)), keys.ids[kept]
        slices, counts = slices[kept], counts[kept]
        parts = group([of_key, slices], len(slices))
        total = totals_of(parts.ids, counts, parts.n)
        head = pick(entries.select([HASH, NUMBER, *self.layout.key_names]), parts.first)
        arrays = [head[HASH], head[NUMBER], pa.array(total), *head.columns[2:], *self.layout.merge(entries, parts.ids, parts.n)]
        return pa.Table.from_arrays(arrays, schema=self.schema)


_PORTION: Final = 1 << 20
_WORTH: Final = 4
"""Rows are cumulated when their windows would otherwise be gone through more often than this."""


@attrs.frozen(eq=False)
class _Firings:
    """Windows that fire: key, start, number of the last row in it, order in which they are written, and what for."""

    groups: Ints
    starts: Ints
    last: Ints
    moments: Ints
    pane: npt.NDArray[np.str_]

    def only(self, wanted: Mask) -> _Firings:
        """Some of them."""
        return _Firings(*(getattr(self, f.name)[wanted] for f in attrs.fields(_Firings)))


class TriggeredCountOperator(_NumberingOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        trigger = spec.options.trigger
        assert trigger.early is None or isinstance(trigger.early, int)
        self.every = trigger.early
        self.when_full = trigger.on_time
        self.discarding = spec.options.accumulation == "discarding"
        self.retract = spec.options.emit_mode == "retractions" and not self.discarding
        self._cumulates = not self.discarding and all(exactly(kernel) for kernel in self.layout.kernels)
        self.schema = pa.schema([pa.field(HASH, pa.int64()), pa.field(NUMBER, pa.int64()), *self.layout.row_schema])

    @staticmethod
    def _shown(tables: StateTables, content: pa.Table, ids: Ints, starts: Ints, ends: Ints) -> pa.Table:
        return tables.created(content, ids, starts, ends)

    def _seen(self, entries: pa.Table, groups: Ints, n: int) -> Ints:
        """Return how many rows of each of `n` keys have come: numbers begin at 0."""
        return largest_of(groups, entries[NUMBER].to_numpy(), n, -1) + 1

    def _number(self, log: KeyedLog, rows: pa.Table) -> pa.Table:
        """Give rows their numbers, keep them, and fire what each of them makes fire."""
        hashes, held, keys = self._entries_of(log, rows)
        of_held, of_row = keys.ids[: held.num_rows], keys.ids[held.num_rows :]
        numbers = self._seen(held, of_held, keys.n)[of_row] + rank(of_row)
        arrays = [pa.array(hashes), pa.array(numbers), *rows.columns]
        fresh = pa.Table.from_arrays(arrays, schema=self.schema)
        log.append(fresh)
        row_places, starts = self.assigner.windows(numbers)
        row_places, starts = row_places[starts >= 0], starts[starts >= 0]
        n = numbers[row_places] - starts + 1
        full = (n == self.window.size) & self.when_full
        fires = full if self.every is None else full | (n % self.every == 0)
        firings = _Firings(of_row[row_places], starts, numbers[row_places], row_places, np.where(full, "final", "early"))
        return self._written(pa.concat_tables([held, fresh]), keys.ids, firings.only(fires))

    def _flush(self, log: KeyedLog) -> pa.Table:
        """Return the windows that will never be full."""
        entries = log.everything()
        keys = group([entries[k] for k in self.layout.key_names], entries.num_rows)
        last = self._seen(entries, keys.ids, keys.n) - 1
        groups, starts = self.assigner.windows(last)
        open_ = (starts >= 0) & (starts + self.window.size > last[groups] + 1) & self.when_full
        firings = _Firings(groups, starts, last[groups], starts, np.full(len(starts), "final"))
        if (self.discarding or self.retract) and self.every is not None:
            n = last[groups] - starts + 1
            open_ &= n % self.every != 0
        return self._written(entries, keys.ids, firings.only(open_), closing=True)

    def _written(self, rows: pa.Table, groups: Ints, f: _Firings, *, closing: bool = False) -> pa.Table:
        """Result rows of firings; `groups` is the key of every row. When `closing` the last row may have fired before."""
        order = pair_order(groups, rows[NUMBER].to_numpy())
        newest = last_rows(groups[order], int(groups.max(initial=-1)) + 1)
        numbers = rows[NUMBER].to_numpy()[order]
        ends = newest[f.groups] - (numbers[newest[f.groups]] - f.last)  # rows of windows not yet full lie side by side
        place = f.last - f.starts
        index = np.zeros(len(place), np.int64) if self.every is None else (place + closing) // self.every
        before = index * (self.every or 0)
        first = np.where(self.discarding, ends - place + before, ends - place)
        old = np.flatnonzero((before > 0) & self.retract)
        stops = np.concatenate([ends, (ends - place + before - 1)[old]])
        begins = np.concatenate([first, (ends - place)[old]])
        results = compose(np.arange(len(ends)), np.arange(len(ends), len(stops)), old, (f.starts, f.moments))
        merged = self._contents(rows, order, begins[results.result], stops[results.result])
        starts = f.starts[results.cause]
        pane, index = f.pane[results.cause], index[results.cause]
        return self.emitter.rows(merged, starts, starts + self.window.size, results.op, pane, index)

    def _contents(self, rows: pa.Table, order: Ints, begins: Ints, stops: Ints) -> pa.Table:
        """Keys and partials of stretches of rows, both ends inclusive, a portion of them at a time."""
        windows, window = np.unique(begins, return_inverse=True)
        longest = largest_of(window, stops + 1, len(windows), 0)
        if self._cumulates and (stops + 1 - begins).sum() > _WORTH * (longest - windows).sum():
            return self._prefixes(rows, order, windows, longest, window, stops)
        schema = pa.schema([*self.layout.key_fields, *self.layout.partial_fields])
        made = [schema.empty_table()]
        for first, after in portions(stops + 1 - begins, _PORTION):
            row_places, ids = expand(begins[first:after], stops[first:after] + 1)
            picked = pick(rows, order[row_places])
            keys = pick(rows.select(self.layout.key_names), order[begins[first:after]])
            made.append(pa.Table.from_arrays([*keys.columns, *self.layout.create(picked, ids, after - first)], schema=schema))
        return pa.concat_tables(made)

    def _prefixes(self, rows: pa.Table, order: Ints, windows: Ints, longest: Ints, window: Ints, stops: Ints) -> pa.Table:
        """Keys and contents of stretches that begin where windows do, rows of a window cumulated."""
        by_window = stable_order(window)
        made = []
        for first, after in portions(longest - windows, _PORTION):
            row_places, ids = expand(windows[first:after], longest[first:after])
            picked = pick(rows, order[row_places])
            single = self.layout.create(picked, np.arange(len(row_places)), len(row_places))
            stack = pa.Table.from_arrays(single, schema=pa.schema(self.layout.partial_fields))
            lengths = longest[first:after] - windows[first:after]
            some = by_window[np.searchsorted(window[by_window], first) : np.searchsorted(window[by_window], after)]
            place = (np.cumsum(lengths) - lengths)[window[some] - first] + stops[some] - windows[window[some]]
            prefixes = cumulated(self.layout, stack, ids, ids[:0])
            for name in reversed(self.layout.key_names):
                prefixes = prefixes.add_column(0, picked.schema.field(name), picked[name])
            made.append(pick(prefixes, place))
        back = last_rows(by_window, len(by_window))
        return pick(pa.concat_tables(made), back)

    def _compact(self, entries: pa.Table, oldest: bool) -> pa.Table:
        """Rows of windows not yet full, and the newest of every key, which numbers go by."""
        keys = group([entries[k] for k in self.layout.key_names], entries.num_rows)
        numbers = entries[NUMBER].to_numpy()
        seen = self._seen(entries, keys.ids, keys.n)[keys.ids]
        return entries.filter(pa.array((self.assigner.last_end(numbers) > seen) | (numbers == seen - 1)))


def without_rows(spec: OperatorSpec, bucket: Bucket) -> None:
    """Let count windows go on without their trigger: slices in place of rows (SEMANTICS §12.3)."""
    operator, fires = CountOperator(spec.plain), TriggeredCountOperator(spec.plain)
    log = fires.log(bucket)
    rows = log.everything()
    rows = pick(rows, stable_order(rows[NUMBER].to_numpy()))
    log.clear()
    if not rows.num_rows:
        return
    numbers = rows[NUMBER].to_numpy()
    slices = operator.assigner.slices(numbers)
    parts = group([*(rows[k] for k in operator.layout.key_names), slices], rows.num_rows)
    newest = largest_of(parts.ids, numbers, parts.n, 0)
    starts = slices[parts.first]
    heads = pick(rows.select([HASH, *operator.layout.key_names]), parts.first)
    arrays = [heads[HASH], pa.array(starts), pa.array(newest + 1 - starts), *heads.columns[1:]]
    content = operator.layout.create(rows, parts.ids, parts.n)
    operator.log(bucket).append(pa.Table.from_arrays([*arrays, *content], schema=operator.schema))
