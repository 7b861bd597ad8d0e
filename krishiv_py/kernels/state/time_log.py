"""Rows in arrival order, in chunks that know their span of time: what look-back and distinct-set windows keep.

Appending writes small chunks sorted by time and touches no other; eight neighbouring ones of a size are merged until a chunk
holds :data:`PIECE` rows. Reading takes only chunks that overlap the wanted span, and of those only the wanted rows. Spans come
from the data, not from a grid: a grid fine enough for windows of 10 ms would be far too fine for a batch that spans a year.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import TIME
from krishiv_py.kernels.state.store import Bucket, with_written

FAN: Final = 8
PIECE: Final = 8_192
PORTION: Final = 1_000_000
_NUMBER, _ROWS, _LOW, _HIGH, _WAITING, _NEXT, _WRITTEN = range(7)


def times_of(table: pa.Table) -> Ints:
    """Return the event times of working rows."""
    times: Ints = table[TIME].to_numpy()
    return times


def by_time(table: pa.Table) -> pa.Table:
    """Return the rows in order of time; equal times stay in order of arrival."""
    times = times_of(table)
    return table if (times[1:] >= times[:-1]).all() else pick(table, stable_order(times))


def _tier(rows: int) -> int:
    return max(rows - 1, 0).bit_length() // 3


class TimeLog:
    """The rows of one operator. In `meta`, per chunk, oldest first: ``[number, rows, low, high, waiting, next, written]``.

    ``waiting`` counts the rows not passed yet by the frontier of firing, ``next`` is the earliest of them; ``written`` is when
    the chunk was written, if known.
    """

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._store = bucket.store
        self._meta = bucket.meta
        self._now = bucket.now_ms
        self._counter = f"log_next:{prefix}"
        self._index: list[list[int]] = bucket.meta.setdefault(f"log:{prefix}", [])
        self._prefix = prefix

    @property
    def rows(self) -> int:
        """Rows held."""
        return sum(e[_ROWS] for e in self._index)

    @property
    def waiting(self) -> int:
        """Rows the frontier has not passed."""
        return sum(e[_WAITING] for e in self._index)

    @property
    def next_waiting(self) -> int | None:
        """The earliest time the frontier has not passed."""
        return min((e[_NEXT] for e in self._index if e[_WAITING]), default=None)

    @property
    def latest(self) -> int | None:
        """The largest time held."""
        return max((e[_HIGH] for e in self._index), default=None)

    def append(self, rows: pa.Table, frontier: int) -> None:
        """Add rows, of any order; those at or after `frontier` are waiting."""
        ordered = by_time(rows)
        pieces = -(-rows.num_rows // PIECE)
        step = -(-rows.num_rows // max(pieces, 1))
        for begin in range(0, rows.num_rows, max(step, 1)):
            self._put(ordered.slice(begin, step), frontier)
            while len(self._index) >= FAN and self._full(self._index[-FAN:]):
                tail = self._index[-FAN:]
                merged = by_time(pa.concat_tables([self._store.get(self._name(e)) for e in tail]))
                self._delete(tail)
                self._put(merged, frontier)

    @staticmethod
    def _full(tail: list[list[int]]) -> bool:
        return _tier(tail[0][_ROWS]) <= _tier(tail[-1][_ROWS]) and sum(e[_ROWS] for e in tail) <= PIECE

    def _put(self, table: pa.Table, frontier: int) -> None:
        times = times_of(table)
        number = self._meta.get(self._counter, 0)
        self._meta[self._counter] = number + 1
        entry = [number, table.num_rows, int(times[0]), int(times[-1]), 0, 0, *(() if self._now is None else (self._now,))]
        self._mark(entry, times, frontier)
        self._store.put(self._name(entry), table.combine_chunks())
        self._index.append(entry)

    @staticmethod
    def _mark(entry: list[int], times: Ints, frontier: int) -> None:
        passed = int(np.searchsorted(times, frontier))
        entry[_WAITING] = len(times) - passed
        entry[_NEXT] = int(times[passed]) if passed < len(times) else 0

    def _delete(self, entries: list[list[int]]) -> None:
        gone = {e[_NUMBER] for e in entries}
        for entry in entries:
            self._store.delete(self._name(entry))
        self._index[:] = [e for e in self._index if e[_NUMBER] not in gone]

    def held(self) -> Iterator[tuple[pa.Table, int, int | None]]:
        """Every chunk, oldest first, with the time from which on its rows wait, and when it was written, if that was noted."""
        for entry in self._index:
            frontier = entry[_NEXT] if entry[_WAITING] else entry[_HIGH] + 1
            yield self._store.get(self._name(entry)), frontier, entry[_WRITTEN] if len(entry) > _WRITTEN else None

    def adopt(self, rows: pa.Table, frontier: int, written_ms: int | None) -> None:
        """Add a chunk as another log held it."""
        if rows.num_rows:
            self._now = written_ms
            self._put(rows, frontier)

    def load(self, low: int, high: int) -> pa.Table | None:
        """Return all rows with ``low <= t < high``, chunks in order of arrival; None without any."""
        tables = []
        for entry in self._index:
            if entry[_HIGH] < low or entry[_LOW] >= high:
                continue
            table = self._store.get(self._name(entry))
            start, stop = 0, table.num_rows
            if entry[_LOW] < low or entry[_HIGH] >= high:
                start, stop = (int(x) for x in np.searchsorted(times_of(table), [low, high]))
            if stop > start:
                tables.append(table.slice(start, stop - start))
        return pa.concat_tables(tables) if tables else None

    def written(self) -> pa.Table | None:
        """Return all rows, chunks in order of arrival, with a column that says when they were written; None without any."""
        times = [e[_WRITTEN] if len(e) > _WRITTEN else None for e in self._index]
        tables = [self._store.get(self._name(e)) for e in self._index]
        tables_written = [with_written(table, written_us) for table, written_us in zip(tables, times, strict=True)]
        return pa.concat_tables(tables_written) if tables_written else None

    def any_between(self, low: int, high: int) -> bool:
        """Return whether some waiting row may lie in ``[low, high)``."""
        return any(e[_WAITING] and e[_NEXT] < high and e[_HIGH] >= low for e in self._index)

    def overlaps(self, low: int, high: int) -> bool:
        """Return whether some row, waiting or not, may lie in ``[low, high)``."""
        return any(e[_LOW] < high and e[_HIGH] >= low for e in self._index)

    def earliest(self, low: int) -> int | None:
        """Return a bound below the smallest time from `low` on."""
        return min((max(e[_LOW], low) for e in self._index if e[_HIGH] >= low), default=None)

    def portions(self, low: int, high: int, back: int) -> Iterator[tuple[int, int]]:
        """Cut ``[low, high)`` into spans of about :data:`PORTION` rows, or as many as lie in a span's look-back `back`."""
        touched = sorted((e[_HIGH], e[_LOW], e[_ROWS]) for e in self._index if e[_HIGH] >= low and e[_LOW] < high)
        start, held = low, 0
        for i, (top, _, rows) in enumerate(touched):
            held += rows
            if held < PORTION or i == len(touched) - 1 or not start <= top + 1 < high:
                continue
            rows_earlier = sum(r for h, _, r in touched[:i] if start - back <= h < start)
            if held >= rows_earlier:
                yield start, top + 1
                start, held = top + 1, 0
        yield start, high

    def pass_by(self, frontier: int) -> None:
        """Move the frontier of firing up."""
        for entry in self._index:
            if not entry[_WAITING] or entry[_NEXT] >= frontier:
                continue
            if entry[_HIGH] < frontier:
                entry[_WAITING] = entry[_NEXT] = 0
            else:
                self._mark(entry, times_of(self._store.get(self._name(entry))), frontier)

    def forget(self, horizon: int) -> None:
        """Drop the rows before `horizon`: whole chunks, and parts of a chunk once they are more than half of it."""
        self._delete([e for e in self._index if e[_HIGH] < horizon])
        for entry in self._index:
            # waiting rows are never before the horizon, so what waits bounds what a rewrite would keep
            if entry[_LOW] < horizon and entry[_ROWS] >= 2 * FAN and entry[_WAITING] * 2 < entry[_ROWS]:
                self._trim(entry, horizon)

    def _trim(self, entry: list[int], horizon: int) -> None:
        table = self._store.get(self._name(entry))
        gone = int(np.searchsorted(times_of(table), horizon))
        if gone * 2 > table.num_rows:
            kept = pa.concat_tables([table.slice(gone)]).combine_chunks()
            self._store.put(self._name(entry), kept)
            entry[_ROWS], entry[_LOW] = kept.num_rows, int(times_of(kept)[0])

    def replace(self, rows: pa.Table, frontier: int) -> None:
        """Hold these rows, in order of arrival, instead of all others."""
        self._delete(list(self._index))
        self.append(rows, frontier)

    def remove(self, gone: Callable[[pa.Table], Mask], frontier: int) -> pa.Table | None:
        """Take out the rows `gone` picks; returns them, chunks in order of arrival, or None without any."""
        tables = []
        for entry in list(self._index):
            table = self._store.get(self._name(entry))
            picked = gone(table)
            if not picked.any():
                continue
            tables.append(table.filter(pa.array(picked)))
            if picked.all():
                self._delete([entry])
                continue
            kept = table.filter(pa.array(~picked)).combine_chunks()
            times = times_of(kept)
            self._store.put(self._name(entry), kept)
            entry[_ROWS], entry[_LOW], entry[_HIGH] = kept.num_rows, int(times[0]), int(times[-1])
            self._mark(entry, times, frontier)
        return pa.concat_tables(tables) if tables else None

    def _name(self, entry: list[int]) -> str:
        return f"{self._prefix}/{entry[_NUMBER]}"
