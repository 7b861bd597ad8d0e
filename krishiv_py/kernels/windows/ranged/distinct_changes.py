"""Updates and retractions of distinct-set sliding windows: what new rows change, row by row or once per batch (SEMANTICS §5).

A window fires for a row that counts in it, and when the row that brings it into being comes. What it held before is worked
out from the rows known then: nothing is stored per window.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.kernels.arrays.grouping import group
from krishiv_py.kernels.arrays.ranges import expand, portions
from krishiv_py.kernels.arrays.sorting import pair_order, sorted_unique
from krishiv_py.kernels.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.results.emit import Emitter
from krishiv_py.kernels.windows.ranged.listed import Listing
from krishiv_py.kernels.windows.ranged.ordered import Ordered, ordered
from krishiv_py.kernels.windows.ranged.spans import FROM, Spans
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


@attrs.frozen(eq=False)
class _Written:
    """Lines of the change log: window, arrival of the row that caused it, partials, ``-`` before ``+``."""

    windows: Ints
    seqs: Ints
    partials: pa.Table
    ops: npt.NDArray[np.str_]


class Changes:
    """Works out the change log of a batch."""

    def __init__(self, layout: Layout, spans: Spans) -> None:
        self.layout, self.spans = layout, spans
        self.emitter = Emitter(layout)
        self.trigger: Trigger = layout.spec.options.trigger
        self.retracts = layout.spec.options.emit_mode == "retractions"
        self.names = [f.name for f in layout.partial_fields]

    def __call__(self, known: pa.Table | None, fresh: pa.Table, watermark_us: int, fired_at: int, horizon: int) -> pa.Table:
        """Results of windows that `fresh` rows change, beside the `known` ones; windows that ended before `horizon` are gone.

        `fired_at` is the watermark up to which windows have had their on-time firing.
        """
        rows = fresh if known is None else pa.concat_tables([known, fresh])
        base = rows.num_rows - fresh.num_rows
        is_new = np.arange(rows.num_rows) >= base
        o = ordered(rows, self.layout.key_names, self.spans.reach, self.spans.reach, near=is_new)
        m = self._members(o, base, horizon)
        windows, seqs = self._events(o, m, base, fired_at)
        if not len(windows):
            return self.emitter.schema.empty_table()
        lines = self._lines(o, m, windows, seqs, base)
        ends = m.starts + self.spans.size
        late = ends < watermark_us
        return self._table(o, m, lines, np.where(late, "late", "early"))

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
        """Which windows fire after which row; a firing for the whole batch comes after the last row."""
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
        for start, stop in portions(low, high, _PAIRS):
            at, ids = expand(low[start:stop], high[start:stop])
            rows = m.rows[at]
            there = o.picked[rows] <= seqs[start:stop][ids]
            used, dense = np.unique(ids[there], return_inverse=True)
            some[start + used] = True
            held = o.rows.take(pa.array(rows[there]))
            parts.append(pa.table(self.layout.create(held, dense.astype(np.int64), len(used)), names=self.names))
        return pa.concat_tables(parts), some

    def _lines(self, o: Ordered, m: _Members, windows: Ints, seqs: Ints, base: int) -> _Written:
        partials, _ = self._content(o, m, windows, seqs)
        if not self.retracts:
            return _Written(windows, seqs, partials, np.full(len(windows), "+I"))
        first = np.ones(len(windows), np.bool_)
        first[1:] = windows[1:] != windows[:-1]
        stood = np.where(first, np.where(m.created[windows] < base, base - 1, -1), np.roll(seqs, 1))
        old, some = self._content(o, m, windows, stood)
        order = np.argsort(np.concatenate([np.flatnonzero(some) * 2, np.arange(len(windows)) * 2 + 1]))
        ops = np.concatenate([np.full(int(some.sum()), "-U"), np.where(some, "+U", "+I")])[order]
        both = pa.concat_tables([old, partials]).take(pa.array(order))
        return _Written(np.concatenate([windows[some], windows])[order], np.concatenate([seqs[some], seqs])[order], both, ops)

    def _table(self, o: Ordered, m: _Members, lines: _Written, panes: npt.NDArray[np.str_]) -> pa.Table:
        starts = m.starts[lines.windows]
        order = pair_order(lines.seqs, starts)  # stable: a withdrawal stays before what replaces it
        starts, windows = starts[order], lines.windows[order]
        at = pa.array(m.rows[m.bounds(windows)[0]])
        picked = lines.partials.take(pa.array(order))
        arrays = [*(o.rows[k].take(at) for k in self.layout.key_names), *picked.columns]
        table = pa.Table.from_arrays(arrays, names=[*self.layout.key_names, *self.names])
        return self.emitter.rows(table, starts, starts + self.spans.size, lines.ops[order], panes[windows], None)
