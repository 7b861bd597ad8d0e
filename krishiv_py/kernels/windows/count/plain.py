"""Count windows (SEMANTICS §3.7): rows of a key numbered in order of arrival, in windows over these numbers.

Row numbers are cut into slices as times are for hopping windows (:mod:`~krishiv_py.kernels.columns.assign`), so that a row is
kept once however many windows it belongs to. A log by key (:mod:`~krishiv_py.kernels.state.keyed_log`) holds, of every key,
how many rows of its newest slices have come and their partial aggregates; entries of one slice add up.

Cost of a batch: proportional to the rows it brings and the entries of their keys; of the log, the pieces that may hold one
of these keys are read. A key once seen keeps one entry: its row number.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import Groups, group, key_hashes
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.ranking import rank
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.columns.assign import FixedAssigner
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results.contract import StepResult
from krishiv_py.kernels.results.emit import Emitter
from krishiv_py.kernels.results.state_table import StateTables
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.expired_keys import DeadKeys
from krishiv_py.kernels.state.keyed_log import HASH, KeyedLog
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.operation import Grid
from krishiv_py.plan.windows.count import CountWindow

SLICE: Final = "n"
ROWS: Final = "c"


class CountOperator:
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, CountWindow)
        self.window = spec.operation
        self.layout = Layout(spec)
        self.emitter = Emitter(self.layout)
        self.assigner = FixedAssigner(Grid(spec.operation.size, spec.operation.slide))
        fixed = [pa.field(n, pa.int64()) for n in (HASH, SLICE, ROWS)]
        self.schema = pa.schema([*fixed, *self.layout.key_fields, *self.layout.partial_fields])

    def combine(self, rows: pa.Table) -> pa.Table:
        """The rows themselves: what number a row has is known only where the rows of its key meet."""
        return rows

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        log = KeyedLog(bucket, "c", self.schema, self._compact)
        rows = pa.concat_tables([self.layout.row_schema.empty_table(), *chunks])
        results = [self._number(log, rows)] if rows.num_rows else []
        if moment.watermark_us == END_OF_TIME and len(log):
            results.append(self._flush(log))
            log.clear()
        table = self.emitter.concat(results)
        held = len(log)
        return StepResult(table, END_OF_TIME if held else None, held, held, table.num_rows)

    def _number(self, log: KeyedLog, rows: pa.Table) -> pa.Table:
        """Give rows their numbers, add them to their slices; returns the windows that became full."""
        names = self.layout.key_names
        hashes = key_hashes([rows[k] for k in names], rows.num_rows)
        held = log.lookup(sorted_unique(hashes))
        both = pa.concat_tables([held.select(names), rows.select(names)])
        keys = group([both[k] for k in names], held.num_rows + rows.num_rows)
        of_held, of_row = keys.ids[: held.num_rows], keys.ids[held.num_rows :]
        seen = _seen(held, of_held, keys.n)
        slices = self.assigner.slices(seen[of_row] + rank(of_row))
        parts = group([of_row, slices], rows.num_rows)
        first = pa.array(parts.first)
        counts = np.bincount(parts.ids, minlength=parts.n)
        arrays = [pa.array(hashes[parts.first]), pa.array(slices[parts.first]), pa.array(counts)]
        arrays += [pick(rows[k], first) for k in names]
        fresh = pa.Table.from_arrays([*arrays, *self.layout.create(rows, parts.ids, parts.n)], schema=self.schema)
        log.append(fresh)
        groups = np.concatenate([of_held, of_row[parts.first]])
        now = seen + np.bincount(of_row, minlength=keys.n)
        return self._windows(pa.concat_tables([held, fresh]), groups, seen, now)

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        entries = KeyedLog(bucket, "c", self.schema, self._compact).written()
        keys = group([entries[k] for k in self.layout.key_names], entries.num_rows)
        content, windows, starts = self._contents(entries, keys.ids, _seen(entries, keys.ids, keys.n), None)
        return StateTables(self.layout).merged(content, windows.ids, starts, starts + self.window.size)

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See ``KeyDropping``; counts windows that were not full. Numbers start at 0 again."""
        keys = DeadKeys.of(dead, self.layout.key_names)
        entries = KeyedLog(bucket, "c", self.schema, self._compact).remove(keys.hashes, keys.rows)
        groups = group([entries[k] for k in self.layout.key_names], entries.num_rows)
        rows, starts = self.assigner.windows(entries[SLICE].to_numpy())
        of_window = groups.ids[rows]
        seen = _seen(entries, groups.ids, groups.n)
        open_ = (starts >= 0) & (starts + self.window.size > seen[of_window])
        return group([of_window[open_], starts[open_]], int(open_.sum())).n

    def _flush(self, log: KeyedLog) -> pa.Table:
        """The windows that will never be full."""
        entries = log.everything()
        keys = group([entries[k] for k in self.layout.key_names], entries.num_rows)
        return self._windows(entries, keys.ids, _seen(entries, keys.ids, keys.n), None)

    def _contents(self, entries: pa.Table, groups: Ints, seen: Ints, now: Ints | None) -> tuple[pa.Table, Groups, Ints]:
        """Entries in the windows not full when `seen` rows of a key had come, those full at `now` or all, and their starts."""
        rows, starts = self.assigner.windows(entries[SLICE].to_numpy())
        ends = starts + self.window.size
        wanted = (starts >= 0) & (ends > seen[groups[rows]])
        if now is not None:
            wanted &= ends <= now[groups[rows]]
        rows, starts = rows[wanted], starts[wanted]
        order = stable_order(rows)  # arrival order within a window is what first and last go by
        rows, starts = rows[order], starts[order]
        windows = group([groups[rows], starts], len(rows))
        return pick(entries, rows), windows, starts[windows.first]

    def _windows(self, entries: pa.Table, groups: Ints, seen: Ints, now: Ints | None) -> pa.Table:
        """Results of windows not full when `seen` rows of a key had come: those full at `now`, or all of them."""
        content, windows, start = self._contents(entries, groups, seen, now)
        head = pick(content.select(self.layout.key_names), windows.first)
        names = [*self.layout.key_names, *(f.name for f in self.layout.partial_fields)]
        merged = pa.Table.from_arrays([*head.columns, *self.layout.merge(content, windows.ids, windows.n)], names=names)
        by_end = stable_order(start)
        start = start[by_end]
        return self.emitter.rows(pick(merged, by_end), start, start + self.window.size, "+I")

    def _compact(self, entries: pa.Table, oldest: bool) -> pa.Table:
        """Entries of one slice added up; slices all of whose windows are full go, but for the newest, which numbers go by."""
        keys = group([entries[k] for k in self.layout.key_names], entries.num_rows)
        slices, counts = entries[SLICE].to_numpy(), entries[ROWS].to_numpy()
        known = _seen(entries, keys.ids, keys.n)
        newest = np.full(keys.n, -1, np.int64)
        np.maximum.at(newest, keys.ids, slices)
        kept = (self.assigner.last_end(slices) > known[keys.ids]) | (slices == newest[keys.ids])
        entries, of_key = entries.filter(pa.array(kept)), keys.ids[kept]
        slices, counts = slices[kept], counts[kept]
        parts = group([of_key, slices], len(slices))
        total = np.zeros(parts.n, np.int64)
        np.add.at(total, parts.ids, counts)
        head = pick(entries.select([HASH, SLICE, *self.layout.key_names]), parts.first)
        arrays = [head[HASH], head[SLICE], pa.array(total), *head.columns[2:], *self.layout.merge(entries, parts.ids, parts.n)]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _seen(entries: pa.Table, groups: Ints, n: int) -> Ints:
    """Return how many rows of each key have come: the start of its newest slice and what is in it."""
    slices, counts = entries[SLICE].to_numpy(), entries[ROWS].to_numpy()
    newest = np.full(n, -1, np.int64)
    np.maximum.at(newest, groups, slices)
    inside = slices == newest[groups]
    total = np.zeros(n, np.int64)
    np.add.at(total, groups[inside], counts[inside])
    return np.where(newest < 0, 0, newest + total)
