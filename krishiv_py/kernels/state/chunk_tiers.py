"""Log-structured chunk lists: batches append, readers concatenate, full tiers are merged.

A *run* is a list of chunks under one name. Appending writes one chunk and touches no other. When eight neighbouring chunks
have grown to the same tier (powers of eight rows) they are merged into one, so a run that took n chunks holds O(log n) of
them, and every row is rewritten O(log n) times.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from krishiv_py.kernels.arrays.grouping import among
from krishiv_py.kernels.state.store import Bucket, with_written

FAN: Final = 8


def _tier(rows: int) -> int:
    return max(rows - 1, 0).bit_length() // 3


class _Index(dict[str, list[list[int]]]):
    """Run name → chunks, as it is stored, with the order of names and sums that later steps go on with."""

    def __init__(self, stored: dict[str, list[list[int]]]) -> None:
        super().__init__(stored)
        self.order = sorted(int(n) for n in stored)
        self.rows = sum(c[1] for chunks in stored.values() for c in chunks)
        self.counted: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


class Runs:
    """The runs of one operator. `meta` maps run name → list of ``[chunk number, rows, when written]``, the last if known."""

    def __init__(self, bucket: Bucket, prefix: str, merge: Callable[[pa.Table], pa.Table] | None) -> None:
        self._store = bucket.store
        stored = bucket.meta.get(f"runs:{prefix}", {})
        self._index = stored if isinstance(stored, _Index) else _Index(stored)
        bucket.meta[f"runs:{prefix}"] = self._index
        self._prefix = prefix
        self._merge = merge
        self._now: int | None = bucket.now_ms

    def __contains__(self, run: int) -> bool:
        return str(run) in self._index

    def names(self) -> list[int]:
        """All runs, in ascending order."""
        return list(self._index.order)

    def between(self, low: int, high: int, most: int | None = None) -> list[int]:
        """The runs from `low` to before `high`, in ascending order, or the first `most` of them."""
        order = self._index.order
        first, stop = bisect_left(order, low), bisect_left(order, high)
        return order[first : stop if most is None else min(stop, first + most)]

    def counted(self, count: Callable[[list[int]], int]) -> int:
        """What `count` gives for the names of all runs; it is called when a run has come or gone since the last time."""
        if self._index.counted is None:
            self._index.counted = count(self._index.order)
        return self._index.counted

    def rows(self, run: int) -> int:
        """How many (partial) rows the run holds."""
        return sum(c[1] for c in self._index[str(run)])

    def total_rows(self) -> int:
        """Rows of all runs."""
        return self._index.rows

    def append(self, run: int, table: pa.Table, compact: bool = True) -> None:
        """Add a chunk, merging full tiers unless `compact` says not to."""
        if run not in self:
            insort(self._index.order, run)
            self._index.counted = None
        chunks = self._index.setdefault(str(run), [])
        number = chunks[-1][0] + 1 if chunks else 0
        if self._merge is not None and compact:
            while len(chunks) >= FAN - 1 and _tier(chunks[-FAN + 1][1]) <= _tier(table.num_rows):
                olds = chunks[-FAN + 1 :]
                table = self._merge(pa.concat_tables([self._store.get(self._name(run, c[0])) for c in olds] + [table]))
                for old in olds:
                    self._store.delete(self._name(run, old[0]))
                    self._index.rows -= old[1]
                del chunks[-FAN + 1 :]
        self._store.put(self._name(run, number), table)
        self._index.rows += table.num_rows
        chunks.append([number, table.num_rows] if self._now is None else [number, table.num_rows, self._now])

    def load(self, run: int) -> list[pa.Table]:
        """The chunks of a run, oldest first."""
        return [self._store.get(self._name(run, c[0])) for c in self._index.get(str(run), [])]

    def written(self, run: int) -> list[pa.Table]:
        """The chunks of a run as :meth:`load` gives them, with a column that says when each was written."""
        times = [c[2] if len(c) > 2 else None for c in self._index.get(str(run), [])]
        return [with_written(table, at) for table, at in zip(self.load(run), times, strict=True)]

    def chunks(self, run: int) -> int:
        """How many chunks the run has."""
        return len(self._index.get(str(run), ()))

    def drop(self, run: int) -> None:
        """Remove a run."""
        for chunk in self._index.pop(str(run)):
            self._store.delete(self._name(run, chunk[0]))
            self._index.rows -= chunk[1]
        del self._index.order[bisect_left(self._index.order, run)]
        self._index.counted = None

    def replace(self, run: int, table: pa.Table) -> None:
        """Put one chunk in place of all of a run (or remove it, when empty)."""
        if str(run) in self._index:
            self.drop(run)
        if table.num_rows:
            self.append(run, table)

    def _name(self, run: int, number: int) -> str:
        return f"{self._prefix}/{run}/{number}"


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
