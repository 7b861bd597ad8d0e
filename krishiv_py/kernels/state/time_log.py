"""Rows that are kept by time: in order of arrival, and by key and span of time.

Look-back and distinct-set windows keep rows in arrival order, in chunks that know their span of time. Appending writes small
chunks sorted by time and touches no other; eight neighbouring ones of a size are merged until a chunk holds :data:`CHUNK`
rows. Reading takes only chunks that overlap the wanted span, and of those only the wanted rows. Spans come from the data, not
from a grid: a grid fine enough for windows of 10 ms would be far too fine for a batch that spans a year.

Rows by key and time are looked up by both, and taken out again in order of time. A *run* holds rows by key hash, then time,
cut into pieces; next to it lies its *clock*: the times of the same rows, ascending, each with the place of its row. A look-up
opens, of every run whose span of time fits, the pieces that may hold a wanted hash, and finds rows in them by bisection. What
is over is the front part of every clock. So both cost what they find. As in a
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

from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask, pick
from krishiv_py.kernels.columns.layout import TIME
from krishiv_py.kernels.state.store import FAN, Bucket, tier, with_written
from krishiv_py.kernels.state.window_log import HASH, NARROW, PIECE
from krishiv_py.plan.durations import END_OF_TIME, UNSET

CHUNK: Final = 8_192
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
        pieces = -(-rows.num_rows // CHUNK)
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
        return tier(tail[0][_ROWS]) <= tier(tail[-1][_ROWS]) and sum(e[_ROWS] for e in tail) <= CHUNK

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
class WantedSpans:
    """Spans of time of some keys: from `low` to `high`, both included; by hash, ascending."""

    hashes: Ints
    low: Ints
    high: Ints

    def between(self, start: int, stop: int, above: int) -> WantedSpans:
        """Some of them, without what is below a time."""
        return WantedSpans(self.hashes[start:stop], np.maximum(self.low[start:stop], above), self.high[start:stop])

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
        while len(self._runs) >= NARROW - 1 and tier(self._runs[-NARROW + 1].rows, NARROW) <= tier(rows.num_rows, NARROW):
            tail = self._runs[-NARROW + 1 :]
            del self._runs[-NARROW + 1 :]
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

    def meeting(self, wanted: WantedSpans, counted: Callable[[Ints, Ints], None] | None = None) -> Iterator[MeetingRows]:
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
        every = WantedSpans(hashes, np.full(len(hashes), UNSET), np.full(len(hashes), END_OF_TIME))
        for _, numbers, start, stop in self._between(every):
            counts[numbers] += stop - start
        return counts

    def times_of(self, key: int) -> Ints:
        """Return the times of the rows of one hash."""
        every = WantedSpans(np.array([key]), np.array([UNSET]), np.array([END_OF_TIME]))
        times = [
            table[TIME].to_numpy()[low:high]
            for table, _, start, stop in self._between(every)
            for low, high in zip(start, stop, strict=True)
        ]
        return np.concatenate([np.empty(0, np.int64), *times])

    def all(self) -> pa.Table:
        """Return all rows; there must be some."""
        return by_key(pa.concat_tables(map(self._live, self._runs)))

    def ends_of(self, wanted: WantedSpans, *, last: bool) -> Iterator[MeetingRows]:
        """Of every span one row of each piece: the latest or the earliest; of equal times the one that was written last."""
        for table, numbers, start, stop in self._between(wanted):
            last_rows = stop - 1
            if not last:
                times = table[TIME].to_numpy()
                last_rows = bisected(times, start, stop, times[start], after=True) - 1
            yield pick(table, last_rows), np.arange(len(last_rows)), numbers

    def _between(self, wanted: WantedSpans) -> Iterator[tuple[pa.Table, Ints, Ints, Ints]]:
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
