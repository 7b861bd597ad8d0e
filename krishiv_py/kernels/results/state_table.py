"""State as a table: open windows with their aggregates so far (SEMANTICS §6.5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.sorting import pair_order
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.aggregates.failed import failing_place
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.columns.place import place_of
from krishiv_py.kernels.columns.times import time_type, unstamp
from krishiv_py.kernels.results.emit import Emitter
from krishiv_py.kernels.state.store import WRITTEN
from krishiv_py.plan.durations import UNSET

_UPDATED = "last_update"
"""Renamed where the plan has a column of that name."""


class StateTables:
    """Makes state tables: keys, ``window_start``, ``window_end``, aggregates, ``last_update``; in ascending end order.

    ``last_update`` is processing time (UTC): when the newest of the chunks was written that hold something of the window.
    Nothing of it has changed since; it may have been quiet for longer, for chunks are merged and moved. Null if not noted.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._emitter = Emitter(layout)
        self._shown = list(range(len(layout.key_names) + 2 + len(layout.kernels) + len(layout.own)))
        fields = [self._emitter.schema.field(i) for i in self._shown]
        taken = {f.name.lower() for f in fields}
        updated = _UPDATED if _UPDATED not in taken else f"state_{_UPDATED}"
        self.schema = pa.schema([*fields, pa.field(updated, time_type("timestamp"))])

    def merged(self, stored: pa.Table, ids: Ints, starts: Ints, ends: Ints) -> pa.Table:
        """Windows of stored partials, which must be in order of arrival.

        Parameters
        ----------
        stored : pyarrow.Table
            Keys, partials, and when each was written.
        ids : ndarray of int64
            The window of every row.
        starts, ends : ndarray of int64
            Bounds of every window: µs, or row numbers of count windows.
        """
        if not len(starts):
            return self.empty()
        return self.table(*self.heads(stored, ids, len(starts)), self.layout.merge(stored, ids, len(starts)), starts, ends)

    def created(self, rows: pa.Table, ids: Ints, starts: Ints, ends: Ints) -> pa.Table:
        """Windows of working rows; see :meth:`merged`."""
        if not len(starts):
            return self.empty()
        return self.table(*self.heads(rows, ids, len(starts)), self.layout.create(rows, ids, len(starts)), starts, ends)

    @staticmethod
    def heads(rows: pa.Table, ids: Ints, n: int) -> tuple[pa.Table, Ints]:
        """A row of each of `n` windows, for its key, and when the newest of its rows was written."""
        member, updated = np.empty(n, np.int64), np.full(n, UNSET)
        member[ids] = np.arange(len(ids))
        np.maximum.at(updated, ids, rows[WRITTEN].to_numpy())
        return pick(rows, member), updated

    def table(self, heads: pa.Table, updated: Ints, partials: list[pa.Array], starts: Ints, ends: Ints) -> pa.Table:
        """Windows whose partials are known, with a row of each (for its key) and the time of its last update."""
        windows = pa.Table.from_arrays(partials, names=[f.name for f in self.layout.partial_fields])
        with failing_place(lambda n: place_of(self.layout.spec, heads, n, (int(starts[n]), int(ends[n])))):
            values = self.layout.finish(windows)
        return self.finished(heads, updated, values, starts, ends)

    def finished(self, heads: pa.Table, updated: Ints, values: list[pa.Array], starts: Ints, ends: Ints) -> pa.Table:
        """Windows whose aggregates are known; see :meth:`table`."""
        keys = [heads[k] for k in self.layout.key_names]
        own = [heads[n] for n in self.layout.own_names]
        shown = self._emitter.finished(keys, starts, ends, [*values, *own], "+I").select(self._shown)
        order = pa.array(pair_order(ends, starts))
        return pick(pa.Table.from_arrays([*shown.columns, unstamp(updated, "timestamp")], schema=self.schema), order)

    def empty(self) -> pa.Table:
        """No window."""
        return self.schema.empty_table()


def in_order(tables: list[pa.Table], n_keys: int) -> pa.Table:
    """State tables of several buckets, of `n_keys` key columns, as one in ascending end order."""
    found = pa.concat_tables(tables)
    start, end = found.schema.names[n_keys : n_keys + 2]
    return pick(found, pc.sort_indices(found, [(end, "ascending"), (start, "ascending")]))


def keys_held(tables: Iterable[pa.Table], names: Sequence[str]) -> int:
    """Count the keys that have something in these tables of a state; without key columns (`names`) 1, or 0."""
    held = [t.select(names) for t in tables if t.num_rows and set(names) <= set(t.column_names)]
    if not held or not names:
        return int(bool(held))
    keys = pa.concat_tables(held)
    return group([keys[n] for n in names], keys.num_rows).n
