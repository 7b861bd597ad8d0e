"""Logs of rows by key, and of entries by key and window: the state of triggered windows and of keys that expire.

In the log of triggered windows an entry is either a *delta* (partials of rows that have not been part of a firing), a
*snapshot* (the partials of the last firing, exactly as it was written), or a bare flag. A snapshot replaces everything before
it, deltas add up, so a firing appends and never rewrites, and what was there can be withdrawn to the last bit::

    delta 2 rows │ delta 1 row │ snapshot (3 rows, firing 0) │ delta 1 row      pending: 1 row, standing: 3 rows

A snapshot is *lent* while its content can be read elsewhere, to the last bit; then it holds none.

The logs are log-structured: batches append, readers look up a set of keys, tails of equal size are merged. A *run* is sorted
by key hash and cut into pieces. A look-up reads, of every run, only the pieces that may hold a wanted hash, and finds the
rows in them by bisection: for few keys the cost is theirs, for many it is bounded by reading the log once, without computing
on it. A row is rewritten O(log n) times, and there are O(log n) runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import among, group, key_hashes
from krishiv_py.arrays.sorting import hash_order, sorted_unique
from krishiv_py.arrays.types import Ints, Mask, last_rows, pick, values_at
from krishiv_py.kernels.aggregates.base import regrouped
from krishiv_py.kernels.columns.layout import TIME, Layout, whole
from krishiv_py.kernels.columns.layout import WINDOW as WINDOW
from krishiv_py.kernels.state.store import Bucket, tier, with_written
from krishiv_py.kernels.state.timer_queue import DueQueue
from krishiv_py.plan.durations import UNSET

ROWS, FIRED, DONE, SNAP = "__u", "__f", "__c", "__s"
NEWEST = "__m"
"""The newest event time, where rows are counted: see :class:`PairLog`."""
BOUNDS_IN_KEY: Final = ("__kws", "__kwe")
"""Columns of the bounds of a window, in a log by key and window: its hashes are of both, and say nothing of the bucket."""
LENT: Final = -1
"""The number of rows that a lent snapshot has."""


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
        Row of `snaps` and `pends` that holds what is there and what came since; -1 for none.
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
        """Return a chunk of the log; without `newest` nothing is said of it."""
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
        """Return the state of `n` pairs, given the pair of every entry; entries in order of arrival."""
        rows, snap = log[ROWS].to_numpy(), log[SNAP].to_numpy()
        place = np.arange(log.num_rows)
        last = values_at(ids[snap], place[snap], n, -1)
        live = (rows > 0) & (place > last[ids])
        some, dense = np.unique(ids[live], return_inverse=True)
        pend_at = last_rows(some, n)
        picked = log.filter(pa.array(live)) if not live.all() else log
        pends = self.partials(self.layout.merge(picked, dense.astype(np.int64), len(some)))
        standing = np.flatnonzero(last >= 0)
        snap_at = last_rows(standing, n)
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
        """At most a snapshot and a delta per key; what a :class:`~krishiv_py.kernels.state.store.Runs` merges with."""
        groups = group([log[k] for k in self.layout.key_names], log.num_rows)
        resolved = self.resolve(log, groups.ids, groups.n)
        keys = pick(log.select([ROWS, *self.layout.key_names]), groups.first)
        zero = np.zeros(groups.n, np.int64)
        shown = np.where(resolved.lent, LENT, resolved.rows - resolved.pending if self.counted else zero)
        bare = (resolved.snap_at < 0) & (resolved.pend_at < 0)
        parts = []
        for part, table, is_snap, rows in (
            (resolved.snap_at, resolved.snaps, True, shown),
            (resolved.pend_at, resolved.pends, False, resolved.pending),
        ):
            keep = np.flatnonzero(part >= 0)
            parts.append(self._part(keys, resolved, keep, rows, is_snap, pick(table, part[keep])))
        keep = np.flatnonzero(bare)
        parts.append(self._part(keys, resolved, keep, zero, False, self.nothing(len(keep))))
        return pa.concat_tables(parts)

    def _part(self, keys: pa.Table, windows: KeyWindows, keep: Ints, rows: Ints, snap: bool, partials: pa.Table) -> pa.Table:
        marks = np.full(len(keep), snap)
        newest = windows.newest[keep] if self.counted else None
        return self.entries(pick(keys, keep), rows[keep], windows.fired[keep], windows.done[keep], marks, partials, newest)

    def total(self, windows: KeyWindows, wanted: Ints) -> pa.Table:
        """Standing and pending partials of some pairs, merged; a pair without pending rows keeps its snapshot as it is.

        One that fails is named by its pair.
        """
        snap, pend = windows.snap_at[wanted], windows.pend_at[wanted]
        both = np.flatnonzero((snap >= 0) & (pend >= 0))
        pairs = pa.concat_tables([pick(windows.snaps, snap[both]), pick(windows.pends, pend[both])])
        ids = np.tile(np.arange(len(both)), 2)
        with regrouped(wanted[both]):
            merged = self.partials(self.layout.merge(pairs, ids, len(both)))
        source = np.where(snap >= 0, snap, len(windows.snaps) + pend)
        source[both] = len(windows.snaps) + len(windows.pends) + np.arange(len(both))
        return pick(pa.concat_tables([windows.snaps, windows.pends, merged]), source)

    def columns(self, table: pa.Table) -> list[list[pa.Array]]:
        """Partial columns, aggregate by aggregate."""
        return [[whole(table[x]) for x in names] for names in self.layout.partial_names]


HASH: Final = "h"
PIECE: Final = 1 << 15
NARROW: Final = 4
_ANY: Final = pa.schema([])


def _as_they_are(rows: pa.Table, oldest: bool) -> pa.Table:
    return rows


def middle_and_latest(rows: pa.Table) -> list[int]:
    """Return the middle one and the latest of the times of some rows."""
    times: Ints = rows[TIME].to_numpy()
    middle = len(times) // 2
    return [int(np.partition(times, middle)[middle]), int(times.max())]


class KeyedLog:
    """A log of rows of one schema with an ``int64`` column ``h``.

    Parameters
    ----------
    compact : callable
        Reduces merged rows (oldest first) to what still matters; its second argument says whether they reach back to the
        oldest run, so that nothing older is left for a deletion mark to act on.
    """

    def __init__(self, bucket: Bucket, name: str, schema: pa.Schema, compact: Callable[[pa.Table, bool], pa.Table]) -> None:
        self._store = bucket.store
        self._name = name
        self._schema = schema
        self._compact = compact
        self._now: int | None = bucket.now_ms
        self._runs: list[list[list[int]]] = bucket.meta.setdefault(f"log:{name}", [])
        """A run: ``[[number, rows, when written], first hashes]``, the time if known."""

    def __len__(self) -> int:
        return sum(run[0][1] for run in self._runs)

    def append(self, rows: pa.Table) -> None:
        """Add rows, merging the tail of the log where it has grown even."""
        if not rows.num_rows:
            return
        number = self._runs[-1][0][0] + 1 if self._runs else 0
        while len(self._runs) >= NARROW - 1 and tier(self._runs[-NARROW + 1][0][1], NARROW) <= tier(rows.num_rows, NARROW):
            tail = self._runs[-NARROW + 1 :]
            del self._runs[-NARROW + 1 :]
            rows = self._compact(pa.concat_tables([t for run in tail for t in self._load(run)] + [rows]), not self._runs)
            for run in tail:
                self._delete(run)
        if rows.num_rows:
            self._write(number, rows)

    def clear(self) -> None:
        """Remove all rows."""
        for run in self._runs:
            self._delete(run)
        self._runs.clear()

    def everything(self) -> pa.Table:
        """Return all rows; older runs first."""
        return pa.concat_tables([self._schema.empty_table(), *(t for run in self._runs for t in self._load(run))])

    def written(self) -> pa.Table:
        """Return all rows as :meth:`everything` gives them, with a column that says when they were written."""
        times = [run[0][2] if len(run[0]) > 2 else None for run in self._runs]
        tables = [
            with_written(t, written_us) for run, written_us in zip(self._runs, times, strict=True) for t in self._load(run)
        ]
        return pa.concat_tables([with_written(self._schema.empty_table(), None), *tables])

    @classmethod
    def held(cls, bucket: Bucket, name: str) -> Iterator[tuple[pa.Table, int | None]]:
        """Yield the rows of each run of a log, older runs first, with the time in ms it was written at, if that was noted."""
        log = KeyedLog(bucket, name, _ANY, _as_they_are)
        for run in log._runs:
            yield pa.concat_tables(log._load(run)), run[0][2] if len(run[0]) > 2 else None

    @classmethod
    def adopt(cls, bucket: Bucket, name: str, rows: pa.Table, written_ms: int | None, *, noted: bool) -> None:
        """Add a run to a log as another one held it, with what :func:`middle_and_latest` says of it where that is `noted`."""
        if rows.num_rows:
            log = KeyedLog(bucket, name, _ANY, _as_they_are)
            log._now = written_ms
            log._write(log._runs[-1][0][0] + 1 if log._runs else 0, rows)
            log._runs[-1] += [middle_and_latest(rows)] if noted else []

    def lookup(self, hashes: Ints) -> pa.Table:
        """Return all rows with one of these hashes (sorted, each once); older runs first."""
        tables = []
        for run in self._runs if len(hashes) else ():
            firsts = np.array(run[1][1:], np.int64)
            low = np.searchsorted(hashes, run[1], side="left").tolist()
            high = [*np.searchsorted(hashes, firsts, side="right").tolist(), len(hashes)]
            for piece in self._needed(run, hashes):
                table = self._store.get(self._piece(run, piece))
                picked = _positions(table[HASH].to_numpy(), hashes[low[piece] : high[piece]])
                if len(picked):
                    tables.append(pick(table, picked))
        return pa.concat_tables(tables) if tables else self._schema.empty_table()

    def remove(self, hashes: Ints, gone: Callable[[pa.Table], Mask]) -> pa.Table:
        """Take out, of the rows with one of these hashes (sorted, each once), those `gone` picks; returns them, older first."""
        removed = [self._schema.empty_table()]
        for run in self._runs if len(hashes) else ():
            for piece in self._needed(run, hashes):
                table = self._store.get(self._piece(run, piece))
                positions = _positions(table[HASH].to_numpy(), hashes)
                positions = positions[gone(pick(table, positions))] if len(positions) else positions
                if len(positions):
                    removed.append(pick(table, positions))
                    run[0][1] -= len(positions)
                    kept = np.delete(np.arange(table.num_rows), positions)
                    self._store.put(self._piece(run, piece), pick(table, kept))
        for run in [r for r in self._runs if not r[0][1]]:
            self._delete(run)
        self._runs[:] = [r for r in self._runs if r[0][1]]
        return pa.concat_tables(removed)

    def _write(self, number: int, rows: pa.Table) -> None:
        hashes = rows[HASH].to_numpy()
        ordered = rows
        if not (hashes[1:] >= hashes[:-1]).all():
            order = hash_order(hashes)
            ordered, hashes = pick(rows, order), hashes[order]
        starts = range(0, rows.num_rows, PIECE)
        head = [number, rows.num_rows] if self._now is None else [number, rows.num_rows, self._now]
        run = [head, [int(hashes[s]) for s in starts]]
        for piece, start in enumerate(starts):
            self._store.put(self._piece(run, piece), ordered.slice(start, PIECE))
        self._runs.append(run)

    def _needed(self, run: list[list[int]], hashes: Ints) -> list[int]:
        """Pieces that may hold a hash; equal hashes may run over from one piece into the next."""
        firsts = np.array(run[1], np.int64)
        low = np.maximum(np.searchsorted(firsts, hashes, side="left") - 1, 0)
        high = np.searchsorted(firsts, hashes, side="right") - 1
        marks = np.zeros(len(firsts) + 1, np.int64)
        inside = high >= 0
        np.add.at(marks, low[inside], 1)
        np.add.at(marks, high[inside] + 1, -1)
        return np.flatnonzero(np.cumsum(marks)[:-1]).tolist()

    def _load(self, run: list[list[int]]) -> list[pa.Table]:
        return [self._store.get(self._piece(run, piece)) for piece in range(len(run[1]))]

    def _delete(self, run: list[list[int]]) -> None:
        for piece in range(len(run[1])):
            self._store.delete(self._piece(run, piece))

    def _piece(self, run: list[list[int]], piece: int) -> str:
        return f"{self._name}/{run[0][0]}/{piece}"


def _positions(held: Ints, hashes: Ints) -> Ints:
    """Return where `held` (sorted) has one of `hashes` (sorted, each once)."""
    if len(hashes) * 8 > len(held):
        positions = np.minimum(np.searchsorted(hashes, held), len(hashes) - 1)
        return np.flatnonzero(hashes[positions] == held)
    low, high = np.searchsorted(held, hashes, side="left"), np.searchsorted(held, hashes, side="right")
    counts = high - low
    total = int(counts.sum())
    return np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(total, dtype=np.int64)


@attrs.frozen(eq=False)
class DeadKeys:
    """Keys as columns, and their hashes (sorted, each once)."""

    keys: pa.Table
    names: list[str]
    hashes: Ints

    @classmethod
    def of(cls, keys: pa.Table, names: list[str]) -> DeadKeys:
        """Return the keys in the columns `names` of a table."""
        return cls(keys, names, sorted_unique(key_hashes([keys[k] for k in names], keys.num_rows)))

    def hashed(self, rows: pa.Table) -> Mask:
        """Rows whose key has the hash of one of these."""
        stored = HASH in rows.column_names
        hashes = rows[HASH].to_numpy() if stored else key_hashes([rows[k] for k in self.names], rows.num_rows)
        return np.isin(hashes, self.hashes)

    def rows(self, rows: pa.Table) -> Mask:
        """Rows of these keys."""
        hashed = self.hashed(rows)
        if hashed.any():
            hashed[hashed] = among(rows.filter(pa.array(hashed)), self.keys, self.names)
        return hashed


def removed(log: KeyedLog, timers: DueQueue, dead: DeadKeys) -> pa.Table:
    """Take keys out of a log, and the timers of theirs; gives what the log had of them.

    A timer knows the hash of its key: one that another key shares stays.
    """
    removed_rows = log.remove(dead.hashes, dead.rows)
    gone = np.setdiff1d(dead.hashes, log.lookup(dead.hashes)[HASH].to_numpy())
    timers.discard(lambda rows: np.isin(rows[HASH].to_numpy(), gone))
    return removed_rows
