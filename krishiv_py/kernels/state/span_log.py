"""Rows by key and time, log-structured: looked up by key and span of time, taken out again in order of time.

A *run* holds rows by key hash, then time, cut into pieces; next to it lies its *clock*: the times of the same rows, ascending,
each with the place of its row. A look-up opens, of every run whose span of time fits, the pieces that may hold a wanted hash,
and finds rows in them by bisection. What is over is the front part of every clock. So both cost what they find. As in a
:class:`~krishiv_py.kernels.state.window_log.KeyedLog` a batch appends, and tails of equal size are merged::

    run     hash  3 3 3 7 7 9 ...        clock   time   10 11 11 12 15 ...
            time 11 15 20 10 12 11 ...           place   3  0  5  4  1 ...
                                                  ┊ over ┊
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.place import TIME
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import HASH
from krishiv_py.plan.durations import END_OF_TIME, UNSET

PIECE: Final = 1 << 15
_FAN: Final = 4
_TRIMMED: Final = 64
_PLACE: Final = "at"


MeetingRows: TypeAlias = "tuple[pa.Table, Ints, Ints]"


@attrs.define
class _Run:
    """Holds what is known of a run without opening it: ``first`` hashes and ``times`` are those of its pieces.

    ``over`` rows were taken out, and ``next`` is the time of the one that follows; ``high`` is the latest time.
    """

    number: int
    rows: int
    over: int
    next: int
    high: int
    first: list[int]
    times: list[int]


@attrs.frozen(eq=False)
class Wanted:
    """Spans of time of some keys: from `low` to `high`, both included; by hash, ascending."""

    hashes: Ints
    low: Ints
    high: Ints

    def between(self, start: int, stop: int, above: int) -> Wanted:
        """Some of them, without what is below a time."""
        return Wanted(self.hashes[start:stop], np.maximum(self.low[start:stop], above), self.high[start:stop])

    def ranges(self, hashes: Ints, times: Ints) -> tuple[Ints, Ints]:
        """Of every span the rows in it, as positions from and to, among rows by hash, then time."""
        start = np.searchsorted(hashes, self.hashes, side="left")
        stop = np.searchsorted(hashes, self.hashes, side="right")
        some = np.flatnonzero(start < stop)
        first, last = start[some], stop[some]
        start[some] = bisected(times, first, last, self.low[some], after=False)
        stop[some] = np.maximum(bisected(times, first, last, self.high[some], after=True), start[some])
        return start, stop


def bisected(values: Ints, start: Ints, stop: Ints, wanted: Ints, *, after: bool) -> Ints:
    """Return where each wanted value belongs in its own ascending stretch of values, before or `after` equal ones."""
    low, high = start.copy(), stop.copy()
    pending = np.flatnonzero(low < high)
    while len(pending):
        middle = (low[pending] + high[pending]) >> 1
        value = values[middle]
        below = value <= wanted[pending] if after else value < wanted[pending]
        low[pending[below]] = middle[below] + 1
        high[pending[~below]] = middle[~below]
        pending = pending[low[pending] < high[pending]]
    return low


def by_key(rows: pa.Table) -> pa.Table:
    """Return the rows by hash, then time, then as they came."""
    by_time = stable_order(rows[TIME].to_numpy())
    order = by_time[stable_order(rows[HASH].to_numpy()[by_time])]
    return pick(rows, order).combine_chunks()


class SpanLog:
    """A log of rows of one schema with ``int64`` columns ``h``, the hash of the key, and ``__t``, the event time."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        self._store = bucket.store
        self._name = name
        self._meta = bucket.meta
        self._index: list[list[Any]] = bucket.meta.setdefault(f"log:{name}", [])
        self._runs = [_Run(*entry) for entry in self._index]

    def __len__(self) -> int:
        return sum(run.rows - run.over for run in self._runs)

    @property
    def next(self) -> int | None:
        """The earliest time held."""
        return min((run.next for run in self._runs), default=None)

    def append(self, rows: pa.Table) -> None:
        """Add rows that are laid out by :func:`by_key`, merging the tail of the log where it has grown even."""
        if not rows.num_rows:
            return
        while len(self._runs) >= _FAN - 1 and _tier(self._runs[-_FAN + 1].rows) <= _tier(rows.num_rows):
            tail = self._runs[-_FAN + 1 :]
            del self._runs[-_FAN + 1 :]
            rows = by_key(pa.concat_tables([*map(self._live, tail), rows]))
            for run in tail:
                self._delete(run)
        self._write(rows)
        self._note()

    def held(self) -> Iterator[pa.Table]:
        """Yield the rows of each run, older runs first."""
        yield from map(self._live, list(self._runs))

    def adopt(self, rows: pa.Table) -> None:
        """Add a run as another log held it, perhaps with other hashes."""
        if rows.num_rows:
            self._write(by_key(rows))
            self._note()

    def meeting(self, wanted: Wanted, counted: Callable[[Ints, Ints], None] | None = None) -> Iterator[MeetingRows]:
        """Yield the rows in some spans, piece by piece: rows, and pairs of a row of these and a span.

        `counted` gets first how many rows some spans will have: numbers of spans, and counts.
        """
        for table, numbers, start, stop in self._between(wanted):
            if counted is not None:
                counted(numbers, stop - start)
            rows, spans = expand(start, stop)
            picked, rows = np.unique(rows, return_inverse=True)
            yield pick(table, picked), rows.astype(np.int64), numbers[spans]

    def counts(self, hashes: Ints) -> Ints:
        """Return how many rows there are of some hashes, which are sorted, each once."""
        counts = np.zeros(len(hashes), np.int64)
        every = Wanted(hashes, np.full(len(hashes), UNSET), np.full(len(hashes), END_OF_TIME))
        for _, numbers, start, stop in self._between(every):
            counts[numbers] += stop - start
        return counts

    def times_of(self, key: int) -> Ints:
        """Return the times of the rows of one hash."""
        every = Wanted(np.array([key]), np.array([UNSET]), np.array([END_OF_TIME]))
        times = [
            table[TIME].to_numpy()[low:high]
            for table, _, start, stop in self._between(every)
            for low, high in zip(start, stop, strict=True)
        ]
        return np.concatenate([np.empty(0, np.int64), *times])

    def all(self) -> pa.Table:
        """Return all rows; there must be some."""
        return by_key(pa.concat_tables(map(self._live, self._runs)))

    def ends_of(self, wanted: Wanted, *, last: bool) -> Iterator[MeetingRows]:
        """Of every span one row of each piece: the latest or the earliest; of equal times the one that was written last."""
        for table, numbers, start, stop in self._between(wanted):
            last_rows = stop - 1
            if not last:
                times = table[TIME].to_numpy()
                last_rows = bisected(times, start, stop, times[start], after=True) - 1
            yield pick(table, last_rows), np.arange(len(last_rows)), numbers

    def _between(self, wanted: Wanted) -> Iterator[tuple[pa.Table, Ints, Ints, Ints]]:
        """Pieces with rows in some spans; the numbers of these spans, and the positions from and to of their rows."""
        if not len(wanted.hashes):
            return
        low, high = int(wanted.low.min()), int(wanted.high.max())
        for run in self._runs:
            if run.high < low or run.next > high:
                continue
            firsts = np.array(run.first, np.int64)
            starts = np.searchsorted(wanted.hashes, firsts, side="left")
            stops = np.append(np.searchsorted(wanted.hashes, firsts[1:], side="right"), len(wanted.hashes))
            for piece in np.flatnonzero(starts < stops).tolist():
                part = wanted.between(int(starts[piece]), int(stops[piece]), run.next)
                table = self._store.get(self._piece(run, piece))
                start, stop = part.ranges(table[HASH].to_numpy(), table[TIME].to_numpy())
                some = np.flatnonzero(start < stop)
                if len(some):
                    yield table, some + starts[piece], start[some], stop[some]

    def take_before(self, horizon: int) -> Iterator[pa.Table]:
        """Take out the rows before a time."""
        for run in list(self._runs):
            if run.next >= horizon:
                continue
            places, stop = [], run.over
            first = run.over // PIECE
            for piece in range(first, len(run.times)):
                if run.times[piece] >= horizon:
                    break
                clock = self._store.get(self._clock(run, piece))
                times = clock[TIME].to_numpy()
                start, end = max(run.over - piece * PIECE, 0), int(np.searchsorted(times, horizon))
                places.append(clock[_PLACE].to_numpy()[start:end])
                stop = piece * PIECE + end
                if end < len(times):
                    run.next = int(times[end])
                    break
            else:
                run.next = run.high + 1
            if stop < run.rows and stop % PIECE == 0:
                run.next = run.times[stop // PIECE]
            yield from self._tables_of(run, np.sort(np.concatenate(places)))
            run.over = stop
            self._settle(run)
        self._note()

    def _tables_of(self, run: _Run, places: Ints) -> Iterator[pa.Table]:
        cuts = np.searchsorted(places, np.arange(len(run.first) + 1) * PIECE)
        for piece in np.flatnonzero(np.diff(cuts)).tolist():
            here = places[cuts[piece] : cuts[piece + 1]] - piece * PIECE
            yield pick(self._store.get(self._piece(run, piece)), here)

    def _settle(self, run: _Run) -> None:
        """Let a run go that is over, and write one again of which more than half is: space follows what is held."""
        if run.over == run.rows:
            self._delete(run)
            self._runs.remove(run)
        elif run.rows >= _TRIMMED and run.over * 2 > run.rows:
            self._replace(run, self._live(run))

    def remove(self, gone: Callable[[pa.Table], Mask]) -> pa.Table | None:
        """Take out the rows `gone` picks; None if there are none."""
        kept = []
        for run in list(self._runs):
            rows = self._live(run)
            picked = gone(rows)
            if picked.any():
                kept.append(rows.filter(pa.array(picked)))
                self._replace(run, rows.filter(pa.array(~picked)))
        self._note()
        return pa.concat_tables(kept) if kept else None

    def _replace(self, run: _Run, rows: pa.Table) -> None:
        index = self._runs.index(run)
        self._delete(run)
        del self._runs[index]
        if rows.num_rows:
            self._write(rows.combine_chunks(), index)

    def _live(self, run: _Run) -> pa.Table:
        rows = pa.concat_tables([self._store.get(self._piece(run, piece)) for piece in range(len(run.first))])
        return rows.filter(pa.array(rows[TIME].to_numpy() >= run.next)) if run.over else rows

    def _write(self, rows: pa.Table, index: int | None = None) -> None:
        number = self._meta.get(f"next:{self._name}", 0)
        self._meta[f"next:{self._name}"] = number + 1
        hashes, times = rows[HASH].to_numpy(), rows[TIME].to_numpy()
        order = stable_order(times)
        ascending = times[order]
        starts = range(0, rows.num_rows, PIECE)
        run = _Run(number, rows.num_rows, 0, int(ascending[0]), int(ascending[-1]), [], [])
        for piece, start in enumerate(starts):
            stop = start + PIECE
            run.first.append(int(hashes[start]))
            run.times.append(int(ascending[start]))
            clock = pa.table({TIME: pa.array(ascending[start:stop]), _PLACE: pa.array(order[start:stop])})
            self._store.put(self._piece(run, piece), rows.slice(start, PIECE))
            self._store.put(self._clock(run, piece), clock)
        self._runs.insert(len(self._runs) if index is None else index, run)

    def _delete(self, run: _Run) -> None:
        for piece in range(len(run.first)):
            self._store.delete(self._piece(run, piece))
            self._store.delete(self._clock(run, piece))

    def _note(self) -> None:
        self._index[:] = [list(attrs.astuple(run)) for run in self._runs]

    def _piece(self, run: _Run, piece: int) -> str:
        return f"{self._name}/{run.number}/{piece}"

    def _clock(self, run: _Run, piece: int) -> str:
        return f"{self._name}/{run.number}t/{piece}"


def _tier(rows: int) -> int:
    return max(rows - 1, 0).bit_length() // 2
