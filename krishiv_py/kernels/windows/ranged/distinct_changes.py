"""Updates and retractions of distinct-set sliding windows: what new rows change, row by row or once per batch (SEMANTICS §5).

A window fires for a row that counts in it, and when the row that brings it into being comes. What it held before is worked
out from the rows known then: nothing is stored per window.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.sorting import sorted_unique
from krishiv_py.arrays.splitting import portions
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.firing.due import Due
from krishiv_py.kernels.results.changelog import Lines, compose
from krishiv_py.kernels.results.emit import Emitter
from krishiv_py.kernels.windows.ranged.listed import Listing
from krishiv_py.kernels.windows.ranged.ordered import Ordered, ordered
from krishiv_py.kernels.windows.ranged.window_bounds import FROM, WindowSpans
from krishiv_py.plan.options.triggers import Trigger

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

    def __call__(self, known: pa.Table | None, fresh: pa.Table, watermark_us: int, due: Due) -> pa.Table:
        """Results of windows that `fresh` rows change, next to the `known` ones; windows that are over are gone."""
        rows = fresh if known is None else pa.concat_tables([known, fresh])
        base = rows.num_rows - fresh.num_rows
        is_new = np.arange(rows.num_rows) >= base
        o = ordered(rows, self.layout.key_names, self.spans.reach, self.spans.reach, near=is_new)
        m = self._members(o, base, due.horizon_us)
        windows, seqs = self._events(o, m, base, due.from_us)
        if not len(windows):
            return self.emitter.schema.empty_table()
        partials, found = self._changes(o, m, windows, seqs, base)
        windows = windows[found.cause]
        starts = m.starts[windows]
        at = pa.array(m.rows[m.bounds(windows)[0]])
        arrays = [*(pick(o.rows[k], at) for k in self.layout.key_names), *pick(partials, found.result).columns]
        table = pa.Table.from_arrays(arrays, names=[*self.layout.key_names, *self.names])
        ends = starts + self.spans.size
        return self.emitter.rows(table, starts, ends, found.op, np.where(ends < watermark_us, "late", "early"), None)

    def _members(self, o: Ordered, base: int, horizon: int) -> _Members:
        size = self.spans.size
        own, right = self.spans.own_start(o.times), self.spans.next_start(o.times)
        came = o.rows[FROM].to_numpy() if FROM in o.rows.column_names else o.times
        brings = own + size >= came
        starts = np.concatenate([own[brings], right])
        ids = np.concatenate([o.ids[brings], o.ids[: len(right)]])
        by = np.concatenate([o.picked[brings], o.picked[: len(right)]])
        groups = group([ids, starts], len(ids))
        created = np.full(groups.n, len(o.times) + base + 1, np.int64)
        np.minimum.at(created, groups.ids, by)
        ids, starts = ids[groups.first], starts[groups.first]
        is_open = np.flatnonzero(starts + size >= horizon)
        ids, starts, created = ids[is_open], starts[is_open], created[is_open]
        low, high = o.start(ids, starts), o.stop(ids, starts + size)
        anchors = np.minimum(low, len(o.times) - 1)
        Listing(self.layout, o.rows, anchors, ids).check("windows told row by row", high - low)
        rows, windows = expand(low, high)
        counted = came[rows] <= starts[windows] + size
        rows, windows = rows[counted], windows[counted]
        touched = created >= base
        touched[windows[o.picked[rows] >= base]] = True
        kept = touched[windows]
        return _Members(ids, starts, created, rows[kept], windows[kept])

    def _events(self, o: Ordered, m: _Members, base: int, fired_at: int) -> tuple[Ints, Ints]:
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

    def _content(self, o: Ordered, m: _Members, windows: Ints, seqs: Ints) -> tuple[pa.Table, Mask]:
        """Partials of what windows held when rows up to a number had come, and which of them held any."""
        low, high = m.bounds(windows)
        Listing(self.layout, o.rows, m.rows[low], m.ids[windows]).check("windows told row by row", high - low)
        parts, some = [], np.zeros(len(windows), np.bool_)
        for start, stop in portions(high - low, _PAIRS):
            at, ids = expand(low[start:stop], high[start:stop])
            rows = m.rows[at]
            there = o.picked[rows] <= seqs[start:stop][ids]
            used, dense = np.unique(ids[there], return_inverse=True)
            some[start + used] = True
            held = pick(o.rows, rows[there])
            parts.append(pa.table(self.layout.create(held, dense.astype(np.int64), len(used)), names=self.names))
        return pa.concat_tables(parts), some

    def _changes(self, o: Ordered, m: _Members, windows: Ints, seqs: Ints, base: int) -> tuple[pa.Table, Lines]:
        """Return what firings come to and what stood before, one after the other, and the lines that tell of them."""
        partials, _ = self._content(o, m, windows, seqs)
        fires, order = np.arange(len(windows)), (m.starts[windows], seqs)
        if not self.retracts:
            return partials, compose(fires, fires[:0], fires[:0], order)
        first = np.ones(len(windows), np.bool_)
        first[1:] = windows[1:] != windows[:-1]
        previous = np.where(first, np.where(m.created[windows] < base, base - 1, -1), np.roll(seqs, 1))
        old, some = self._content(o, m, windows, previous)
        by = np.flatnonzero(some)
        return pa.concat_tables([partials, old]), compose(fires, len(fires) + np.arange(len(by)), by, order)
