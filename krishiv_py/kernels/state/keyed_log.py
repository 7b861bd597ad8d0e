"""Rows by key hash, log-structured: batches append, readers look up a set of keys, tails of equal size are merged.

A *run* is sorted by key hash and cut into pieces. A look-up reads, of every run, only the pieces that may hold a wanted
hash, and finds the rows in them by bisection: for few keys the cost is theirs, for many it is bounded by reading the log
once, without computing on it. A row is rewritten O(log n) times, and there are O(log n) runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.place import TIME
from krishiv_py.kernels.state.store import Bucket, with_written

HASH: Final = "h"
_PIECE: Final = 1 << 15
_FAN: Final = 4


_ANY: Final = pa.schema([])


def _as_they_are(rows: pa.Table, oldest: bool) -> pa.Table:
    return rows


def middle_and_latest(rows: pa.Table) -> list[int]:
    """The middle one and the latest of the times of some rows."""
    times: Ints = rows[TIME].to_numpy()
    middle = len(times) // 2
    return [int(np.partition(times, middle)[middle]), int(times.max())]


def _tier(rows: int) -> int:
    return max(rows - 1, 0).bit_length() // 2


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
        while len(self._runs) >= _FAN - 1 and _tier(self._runs[-_FAN + 1][0][1]) <= _tier(rows.num_rows):
            tail = self._runs[-_FAN + 1 :]
            del self._runs[-_FAN + 1 :]
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
        """All rows; older runs first."""
        return pa.concat_tables([self._schema.empty_table(), *(t for run in self._runs for t in self._load(run))])

    def written(self) -> pa.Table:
        """All rows as :meth:`everything` gives them, with a column that says when they were written."""
        times = [run[0][2] if len(run[0]) > 2 else None for run in self._runs]
        found = [with_written(t, at) for run, at in zip(self._runs, times, strict=True) for t in self._load(run)]
        return pa.concat_tables([with_written(self._schema.empty_table(), None), *found])

    @classmethod
    def held(cls, bucket: Bucket, name: str) -> Iterator[tuple[pa.Table, int | None]]:
        """The rows of each run of a log, older runs first, with the time in ms it was written at, if that was noted."""
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
        """All rows with one of these hashes (sorted, each once); older runs first."""
        found = []
        for run in self._runs if len(hashes) else ():
            firsts = np.array(run[1][1:], np.int64)
            low = np.searchsorted(hashes, run[1], side="left").tolist()
            high = [*np.searchsorted(hashes, firsts, side="right").tolist(), len(hashes)]
            for piece in self._needed(run, hashes):
                table = self._store.get(self._piece(run, piece))
                picked = _positions(table[HASH].to_numpy(), hashes[low[piece] : high[piece]])
                if len(picked):
                    found.append(pick(table, picked))
        return pa.concat_tables(found) if found else self._schema.empty_table()

    def remove(self, hashes: Ints, gone: Callable[[pa.Table], Mask]) -> pa.Table:
        """Take out, of the rows with one of these hashes (sorted, each once), those `gone` picks; returns them, older first."""
        found = [self._schema.empty_table()]
        for run in self._runs if len(hashes) else ():
            for piece in self._needed(run, hashes):
                table = self._store.get(self._piece(run, piece))
                at = _positions(table[HASH].to_numpy(), hashes)
                at = at[gone(pick(table, at))] if len(at) else at
                if len(at):
                    found.append(pick(table, at))
                    run[0][1] -= len(at)
                    kept = np.delete(np.arange(table.num_rows), at)
                    self._store.put(self._piece(run, piece), pick(table, kept))
        for run in [r for r in self._runs if not r[0][1]]:
            self._delete(run)
        self._runs[:] = [r for r in self._runs if r[0][1]]
        return pa.concat_tables(found)

    def _write(self, number: int, rows: pa.Table) -> None:
        hashes = rows[HASH].to_numpy()
        ordered = rows
        if not (hashes[1:] >= hashes[:-1]).all():
            order = stable_order(hashes)
            ordered, hashes = pick(rows, order), hashes[order]
        starts = range(0, rows.num_rows, _PIECE)
        head = [number, rows.num_rows] if self._now is None else [number, rows.num_rows, self._now]
        run = [head, [int(hashes[s]) for s in starts]]
        for piece, start in enumerate(starts):
            self._store.put(self._piece(run, piece), ordered.slice(start, _PIECE))
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
        needed: list[int] = np.flatnonzero(np.cumsum(marks)[:-1]).tolist()
        return needed

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
        at = np.minimum(np.searchsorted(hashes, held), len(hashes) - 1)
        return np.flatnonzero(hashes[at] == held)
    low, high = np.searchsorted(held, hashes, side="left"), np.searchsorted(held, hashes, side="right")
    counts = high - low
    total = int(counts.sum())
    return np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(total, dtype=np.int64)
