"""Log-structured chunk lists: batches append, readers concatenate, full tiers are merged.

A *run* is a list of chunks under one name. Appending writes one chunk and touches no other. When eight neighbouring chunks
have grown to the same tier (powers of eight rows) they are merged into one, so a run that took n chunks holds O(log n) of
them, and every row is rewritten O(log n) times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from krishiv_py.arrays.grouping import among
from krishiv_py.kernels.state.sorted_map import SortedMap
from krishiv_py.kernels.state.store import Bucket, with_written

FAN: Final = 8


def _tier(rows: int) -> int:
    return max(rows - 1, 0).bit_length() // 3


class Runs:
    """The runs of one operator. `meta` maps run name → list of ``[chunk number, rows, when written]``, the last if known.

    Parameters
    ----------
    bucket : Bucket
        Where they are.
    prefix : str
        What the names of their tables begin with.
    merge : callable, optional
        Reduces chunks that are merged, oldest first.
    listed : str, optional
        The name of the map in `meta`, where tables of one prefix are listed in two: see :meth:`hand_over`.
    """

    def __init__(
        self, bucket: Bucket, prefix: str, merge: Callable[[pa.Table], pa.Table] | None, listed: str | None = None
    ) -> None:
        self._store = bucket.store
        listed = prefix if listed is None else listed
        self._index = bucket.map(f"runs:{listed}", int)
        sums = bucket.meta.get(f"sums:{listed}")
        if sums is None:
            sums = bucket.meta[f"sums:{listed}"] = [_rows_of(self._index), None]
        self._sums: list[Any] = sums
        """Rows of all runs, and what :meth:`counted` gave unless runs have come or gone since then."""
        self._known: int | None = None
        self._came: set[int] = set()
        self._went: set[int] = set()
        self._prefix = prefix
        self._merge = merge
        self._now: int | None = bucket.now_ms

    def __contains__(self, run: int) -> bool:
        return run in self._index

    def __len__(self) -> int:
        return len(self._index)

    def names(self) -> list[int]:
        """Return all runs, in ascending order."""
        return list(self._index)

    def between(self, low: int | None, high: int | None, most: int | None = None) -> list[int]:
        """Return the runs from `low` to before `high`, in ascending order, or the first `most` of them; None is without a
        bound.
        """
        return self._index.between(low, high, most)

    def counted(self, count: Callable[[list[int]], int]) -> int:
        """Return how many windows all runs lie in; `count` says it of some runs, which are sorted.

        It is called only for the runs that have come or gone, and their neighbours: windows of a run that lies between two
        others are those of one of these, or of no other run at all.
        """
        if self._sums[1] is not None:
            return int(self._sums[1])
        known, came, went = self._known, self._came, self._went
        if known is None or 4 * (len(came) + len(went)) > len(self._index):
            known = count(self.names())
        else:
            others = self._neighbours(came, went)
            known += count(sorted(others | came)) - count(sorted(others | went))
        self._sums[1] = known
        self._came, self._went = set(), set()
        return known

    def _changed(self, run: int, back: set[int], now: set[int]) -> None:
        """Note that a run has come or gone."""
        if self._sums[1] is not None:
            self._known, self._sums[1] = self._sums[1], None
        if run in back:
            back.discard(run)
        else:
            now.add(run)

    def _neighbours(self, came: set[int], went: set[int]) -> set[int]:
        """Of each of these the next runs on both sides that have neither come nor gone."""
        every = sorted(came | went)
        neighbours = set[int | None]()
        for ordered, next_of in ((every, self._index.before), (every[::-1], self._index.after)):
            beyond: dict[int, int | None] = {}
            for run in ordered:
                run_next = next_of(run)
                beyond[run] = beyond[run_next] if run_next in came else run_next
            neighbours.update(beyond.values())
        return {run for run in neighbours if run is not None}

    def rows(self, run: int) -> int:
        """Return how many (partial) rows the run holds."""
        return sum(c[1] for c in self._index[run])

    def total_rows(self) -> int:
        """Rows of all runs."""
        return int(self._sums[0])

    def append(self, run: int, table: pa.Table, compact: bool = True) -> None:
        """Add a chunk, merging full tiers unless `compact` says not to."""
        chunks: list[list[int]] = self._index.get(run) or []
        if not chunks:
            self._changed(run, self._went, self._came)
        number = chunks[-1][0] + 1 if chunks else 0
        if self._merge is not None and compact:
            while len(chunks) >= FAN - 1 and _tier(chunks[-FAN + 1][1]) <= _tier(table.num_rows):
                olds = chunks[-FAN + 1 :]
                table = self._merge(pa.concat_tables([self._store.get(self._name(run, c[0])) for c in olds] + [table]))
                for old in olds:
                    self._store.delete(self._name(run, old[0]))
                    self._sums[0] -= old[1]
                del chunks[-FAN + 1 :]
        self._store.put(self._name(run, number), table)
        self._sums[0] += table.num_rows
        chunks.append([number, table.num_rows] if self._now is None else [number, table.num_rows, self._now])
        self._index[run] = chunks

    def load(self, run: int) -> list[pa.Table]:
        """Return the chunks of a run, oldest first."""
        return [self._store.get(self._name(run, c[0])) for c in self._index.get(run, ())]

    def held(self) -> Iterator[tuple[int, pa.Table, int | None]]:
        """Every run's chunks, oldest first, with the time in ms each was written at, if that was noted."""
        for run in self.names():
            for chunk, table in zip(self._index[run], self.load(run), strict=True):
                yield run, table, chunk[2] if len(chunk) > 2 else None

    def adopt(self, run: int, table: pa.Table, written_ms: int | None) -> None:
        """Add a chunk as another log held it."""
        self._now = written_ms
        self.append(run, table, compact=False)

    def written(self, run: int) -> list[pa.Table]:
        """Return the chunks of a run as :meth:`load` gives them, with a column that says when each was written."""
        times = [c[2] if len(c) > 2 else None for c in self._index.get(run, ())]
        return [with_written(table, time) for table, time in zip(self.load(run), times, strict=True)]

    def chunks(self, run: int) -> int:
        """Return how many chunks the run has."""
        return len(self._index.get(run, ()))

    def drop(self, run: int) -> None:
        """Remove a run."""
        for chunk in self._index[run]:
            self._store.delete(self._name(run, chunk[0]))
            self._sums[0] -= chunk[1]
        del self._index[run]
        self._changed(run, self._came, self._went)

    def hand_over(self, run: int, to: Runs) -> None:
        """List a run among others of the same prefix, which must not have it; its tables stay as they are."""
        chunks = self._index[run]
        rows = sum(chunk[1] for chunk in chunks)
        del self._index[run]
        self._changed(run, self._came, self._went)
        to._index[run] = chunks
        to._changed(run, to._went, to._came)
        self._sums[0] -= rows
        to._sums[0] += rows

    def replace(self, run: int, table: pa.Table) -> None:
        """Put one chunk in place of all of a run (or remove it, when empty)."""
        if run in self._index:
            self.drop(run)
        if table.num_rows:
            self.append(run, table)

    def _name(self, run: int, number: int) -> str:
        return f"{self._prefix}/{run}/{number}"


def _rows_of(index: SortedMap[int]) -> int:
    return sum(chunk[1] for chunks in index.values() for chunk in chunks)


def remove_keys(runs: Runs, keys: list[str], dead: pa.Table, schema: pa.Schema, only: int | None = None) -> pa.Table:
    """Take the rows of these keys out of all runs, or of one; returns them. Runs that hold none stay as they are."""
    removed = [schema.empty_table()]
    for run in runs.names() if only is None else [only]:
        table = pa.concat_tables(runs.load(run))
        gone = among(table, dead, keys)
        removed.append(table.filter(pa.array(gone)))
        if gone.any():
            runs.replace(run, table.filter(pa.array(~gone)))
    return pa.concat_tables(removed)
