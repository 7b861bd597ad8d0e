"""A queue of rows by the watermark at which they are due, kept in chunks: a radix heap (Ahuja et al. 1990) over columns.

Rows lie in blocks of time. The block of a row is the wider, the farther off it is: its width is that of the highest
base-16 digit in which its due time differs from the time of insertion::

    now |b|b|b|b|....b....|....b....|....b....|..............b..............|
        finest blocks       16 times as wide         256 times as wide

A block is read when the first of its rows is due; what is not due yet moves to narrower blocks. So every row is read a
few times in all, however many rows wait, and a batch appends to a handful of blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.ranges import split
from krishiv_py.arrays.sorting import sorted_unique
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.state.store import Bucket, Runs
from krishiv_py.plan.durations import UNSET

DUE: Final = "q"
_DIGIT: Final = 4


def _joined(table: pa.Table) -> pa.Table:
    return table.combine_chunks()


class DueQueue:
    """Rows with an ``int64`` column ``q``: the time at which each is due, in microseconds.

    `merge` reduces the chunks of a block, oldest first.
    """

    def __init__(self, bucket: Bucket, name: str, finest_us: int, merge: Callable[[pa.Table], pa.Table] = _joined) -> None:
        self._runs = Runs(bucket, name, merge)
        self._first: dict[str, int] = bucket.meta.setdefault(f"due:{name}", {})
        self._shift = max(finest_us.bit_length() - 1, 0)

    def __len__(self) -> int:
        return self._runs.total_rows()

    @property
    def earliest(self) -> int | None:
        """Return when the first row is due."""
        return min(self._first.values(), default=None)

    def written(self) -> list[pa.Table]:
        """Return all rows, left where they are, with a column that says when they were written."""
        return [table for name in self._runs.names() for table in self._runs.written(name)]

    def insert(self, rows: pa.Table, now: int) -> None:
        """Add rows; `now` is the watermark, near which blocks are narrow."""
        if not rows.num_rows:
            return
        due = rows[DUE].to_numpy()
        for name, part in split(rows, self._blocks(due, int(due.min()) if now == UNSET else now)):
            first = int(part[DUE].to_numpy().min())
            self._runs.append(name, part)
            self._first[str(name)] = min(self._first.get(str(name), first), first)

    def pop(self, upto: int) -> list[pa.Table]:
        """Take out all rows due at or before `upto`."""
        ready, early = [], []
        for name in [int(n) for n, first in self._first.items() if first <= upto]:
            for table in self._take(name):
                due = table[DUE].to_numpy() <= upto
                ready.append(table if due.all() else table.filter(pa.array(due)))
                if not due.all():
                    early.append(table.filter(pa.array(~due)))
        if early:
            self.insert(pa.concat_tables(early), upto)
        return ready

    def extract(self, column: str, wanted: Ints, due: Ints) -> list[pa.Table]:
        """Take out the rows whose pair (`column`, due time) is among the given pairs."""
        pairs = sorted_unique(_pair(wanted, due))
        moments = sorted_unique(due)
        parts = []
        for name in self._runs.names():
            low, high = self._range(name)
            index = int(np.searchsorted(moments, low))
            if index < len(moments) and int(moments[index]) < high:
                parts += self._split(name, lambda t: np.isin(_pair(t[column].to_numpy(), t[DUE].to_numpy()), pairs))
        return parts

    def remove(self, low: Ints, high: Ints, gone: Callable[[pa.Table], Mask]) -> list[pa.Table]:
        """Take out the rows `gone` picks, each of which is due within one of the spans from `low` to `high`, both included."""
        parts = []
        for name in self._runs.names():
            first, end = self._range(name)
            if ((low < end) & (high >= first)).any():
                parts += self._split(name, gone)
        return parts

    def discard(self, gone: Callable[[pa.Table], Mask]) -> list[pa.Table]:
        """Take out the rows `gone` picks, whenever they are due; all blocks are read."""
        return [table for name in self._runs.names() for table in self._split(name, gone)]

    def _split(self, name: int, wanted: Callable[[pa.Table], Mask]) -> list[pa.Table]:
        tables = self._runs.load(name)
        hits = [wanted(t) for t in tables]
        if not any(hit.any() for hit in hits):
            return []
        self._take(name)
        rest = pa.concat_tables([t.filter(pa.array(~hit)) for t, hit in zip(tables, hits, strict=True)])
        if rest.num_rows:
            self._runs.append(name, rest)
            self._first[str(name)] = int(rest[DUE].to_numpy().min())
        return [t.filter(pa.array(hit)) for t, hit in zip(tables, hits, strict=True) if hit.any()]

    def _take(self, name: int) -> list[pa.Table]:
        tables = self._runs.load(name)
        self._runs.drop(name)
        del self._first[str(name)]
        return tables

    def _blocks(self, due: Ints, now: int) -> Ints:
        """Names of the blocks: number of the block in its level, then the level in the lowest five bits."""
        differing = ((due ^ np.int64(now)) >> self._shift).view(np.uint64)
        bits = np.frexp(differing.astype(np.float64))[1]
        level = np.clip((bits - 1) // _DIGIT, 0, (58 - self._shift) // _DIGIT).astype(np.int64)
        names: Ints = ((due >> (self._shift + _DIGIT * level)) << 5) | level
        return names

    def _range(self, name: int) -> tuple[int, int]:
        shift = self._shift + _DIGIT * (name & 31)
        return (name >> 5) << shift, ((name >> 5) + 1) << shift


def _pair(left: Ints, right: Ints) -> Ints:
    """One number for two; that two pairs share one is as likely as a collision of 64-bit hashes."""
    with np.errstate(over="ignore"):
        return left * np.int64(-7046029254386353131) + right
