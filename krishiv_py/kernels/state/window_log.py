"""The state of triggered windows: a log of entries per key and window.

An entry is either a *delta* (partials of rows that have not been part of a firing), a *snapshot* (the partials of the last
firing, exactly as it was written), or a bare flag. A snapshot replaces everything before it, deltas add up, so a firing
appends and never rewrites, and what stood can be withdrawn to the last bit::

    delta 2 rows │ delta 1 row │ snapshot (3 rows, firing 0) │ delta 1 row      pending: 1 row, standing: 3 rows

A snapshot is *lent* while its content can be read elsewhere, to the last bit; then it holds none.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.aggregates.failed import regrouped
from krishiv_py.kernels.columns.layout import Layout, whole
from krishiv_py.kernels.columns.place import WINDOW as WINDOW
from krishiv_py.plan.durations import UNSET

ROWS, FIRED, DONE, SNAP = "__u", "__f", "__c", "__s"
NEWEST = "__m"
"""The newest event time, where rows are counted: see :class:`PairLog`."""
LENT: Final = -1
"""What a lent snapshot has for its number of rows."""


@attrs.frozen(eq=False)
class KeyWindows:
    """The state of numbered (key, window) pairs, resolved.

    Attributes
    ----------
    known : ndarray of bool
        Pairs that have any entry.
    pending, fired : ndarray of int64
        Rows since the last firing, and firings so far.
    done : ndarray of bool
        Pairs that had their watermark firing, or a late one.
    lent : ndarray of bool
        Pairs whose snapshot is lent: its row of `snaps` is null.
    snap_at, pend_at : ndarray of int64
        Row of `snaps` and `pends` that holds what stands and what came since; -1 for none.
    snaps, pends : pyarrow.Table
        Partial columns.
    rows, newest : ndarray of int64
        All rows and the newest event time, where they are counted.
    """

    known: Mask
    pending: Ints
    fired: Ints
    done: Mask
    lent: Mask
    snap_at: Ints
    pend_at: Ints
    snaps: pa.Table
    pends: pa.Table
    rows: Ints
    newest: Ints


class PairLog:
    """Makes, merges and reads entries.

    Parameters
    ----------
    layout : Layout
        Names keys and partials.
    counted : bool
        Whether snapshots keep how many rows they have shown, and all entries their newest event time.
    """

    def __init__(self, layout: Layout, *, counted: bool = False) -> None:
        self.layout = layout
        self.counted = counted
        types = {ROWS: pa.int64(), FIRED: pa.int64(), DONE: pa.bool_(), SNAP: pa.bool_()}
        if counted:
            types[NEWEST] = pa.int64()
        flags = [pa.field(name, type_) for name, type_ in types.items()]
        self.partial_schema = pa.schema(layout.partial_fields)
        self.schema = pa.schema([*layout.key_fields, *flags, *layout.partial_fields])

    def entries(
        self, keys: pa.Table, rows: Ints, fired: Ints, done: Mask, snap: Mask, partials: pa.Table, newest: Ints | None = None
    ) -> pa.Table:
        """A chunk of the log; without `newest` nothing is said of it."""
        flags = [pa.array(rows), pa.array(fired), pa.array(done), pa.array(snap)]
        if self.counted:
            flags.append(pa.array(np.full(len(rows), UNSET) if newest is None else newest))
        columns = [*keys.select(self.layout.key_names).columns, *flags, *partials.columns]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def nothing(self, n: int) -> pa.Table:
        """Null partials, for flags and for snapshots nothing will be asked of."""
        return pa.Table.from_arrays([pa.nulls(n, f.type) for f in self.partial_schema], schema=self.partial_schema)

    def partials(self, columns: list[pa.Array]) -> pa.Table:
        """Partial columns as a table."""
        return pa.Table.from_arrays(columns, schema=self.partial_schema)

    def resolve(self, log: pa.Table, ids: Ints, n: int) -> KeyWindows:
        """The state of `n` pairs, given the pair of every entry; entries in order of arrival."""
        rows, snap = log[ROWS].to_numpy(), log[SNAP].to_numpy()
        place = np.arange(log.num_rows)
        last = np.full(n, -1, np.int64)
        last[ids[snap]] = place[snap]  # of two writes to one place the last one stands
        live = (rows > 0) & (place > last[ids])
        some, dense = np.unique(ids[live], return_inverse=True)
        pend_at = np.full(n, -1, np.int64)
        pend_at[some] = np.arange(len(some))
        picked = log.filter(pa.array(live)) if not live.all() else log
        pends = self.partials(self.layout.merge(picked, dense.astype(np.int64), len(some)))
        standing = np.flatnonzero(last >= 0)
        snap_at = np.full(n, -1, np.int64)
        snap_at[standing] = np.arange(len(standing))
        snaps = pick(log.select(self.partial_schema.names), last[standing])
        pending, fired = np.zeros(n, np.int64), np.zeros(n, np.int64)
        np.add.at(pending, ids[live], rows[live])
        np.maximum.at(fired, ids, log[FIRED].to_numpy())
        done, known, lent = (np.zeros(n, np.bool_) for _ in range(3))
        lent[standing] = rows[last[standing]] == LENT
        done[ids[log[DONE].to_numpy()]] = True
        known[ids] = True
        counts, newest = pending, np.full(n if self.counted else 0, UNSET)
        if self.counted:
            counts = pending.copy()
            counts[standing] += rows[last[standing]]
            np.maximum.at(newest, ids, log[NEWEST].to_numpy())
        return KeyWindows(known, pending, fired, done, lent, snap_at, pend_at, snaps, pends, counts, newest)

    def compact(self, log: pa.Table) -> pa.Table:
        """At most a snapshot and a delta per key; what a :class:`~krishiv_py.kernels.state.chunk_tiers.Runs` merges with."""
        groups = group([log[k] for k in self.layout.key_names], log.num_rows)
        found = self.resolve(log, groups.ids, groups.n)
        keys = pick(log.select([ROWS, *self.layout.key_names]), groups.first)
        zero = np.zeros(groups.n, np.int64)
        shown = np.where(found.lent, LENT, found.rows - found.pending if self.counted else zero)
        bare = (found.snap_at < 0) & (found.pend_at < 0)
        parts = []
        for at, table, is_snap, rows in (
            (found.snap_at, found.snaps, True, shown),
            (found.pend_at, found.pends, False, found.pending),
        ):
            keep = np.flatnonzero(at >= 0)
            parts.append(self._part(keys, found, keep, rows, is_snap, pick(table, at[keep])))
        keep = np.flatnonzero(bare)
        parts.append(self._part(keys, found, keep, zero, False, self.nothing(len(keep))))
        return pa.concat_tables(parts)

    def _part(self, keys: pa.Table, found: KeyWindows, keep: Ints, rows: Ints, snap: bool, partials: pa.Table) -> pa.Table:
        marks = np.full(len(keep), snap)
        newest = found.newest[keep] if self.counted else None
        return self.entries(pick(keys, keep), rows[keep], found.fired[keep], found.done[keep], marks, partials, newest)

    def total(self, found: KeyWindows, wanted: Ints) -> pa.Table:
        """Standing and pending partials of some pairs, merged; a pair without pending rows keeps its snapshot as it is.

        One that fails is told by its pair.
        """
        snap, pend = found.snap_at[wanted], found.pend_at[wanted]
        both = np.flatnonzero((snap >= 0) & (pend >= 0))
        pairs = pa.concat_tables([pick(found.snaps, snap[both]), pick(found.pends, pend[both])])
        ids = np.tile(np.arange(len(both)), 2)
        with regrouped(wanted[both]):
            merged = self.partials(self.layout.merge(pairs, ids, len(both)))
        source = np.where(snap >= 0, snap, len(found.snaps) + pend)
        source[both] = len(found.snaps) + len(found.pends) + np.arange(len(both))
        return pick(pa.concat_tables([found.snaps, found.pends, merged]), source)

    def columns(self, table: pa.Table) -> list[list[pa.Array]]:
        """Partial columns, aggregate by aggregate."""
        return [[whole(table[x]) for x in names] for names in self.layout.partial_names]
