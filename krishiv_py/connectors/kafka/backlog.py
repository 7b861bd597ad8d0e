"""The part of a backlog that a batch reads: records of all partitions up to one time, so that no partition runs ahead.

Records of a partition are in the order in which they were written. A batch that reads every partition up to the first record
of one time therefore reads what a live query would have read up to then. So the watermark meets the rows in the same order,
and no row is late that a live query would have taken.

A broker looks for a time in all that its log holds. The marker that ends a transaction has the broker's clock as its time, and
records of aborted transactions have times too, but a query reads neither. So the record that a broker names is fetched, and
where it is not there, the ones after it are, up to the first record that has the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from krishiv_py.connectors.kafka.client import Offsets, Place

Ranges: TypeAlias = dict[Place, tuple[int, int]]
"""The first offset and the end of each partition."""
Times: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Offsets of records of a partition, in order, and their times in ms since the epoch; -1 where a writer gave none."""
_MOST_FETCHED: Final = 20_000
_MOST_HELD: Final = 1_000_000
"""Offsets that are looked through before the ones before them are forgotten, where no batch begins there."""


@attrs.define(eq=False)
class _Run:
    """The times of the records from offset `begin` up to `end`, as far as they were fetched."""

    begin: int
    end: int
    offsets: npt.NDArray[np.int64] = attrs.field(factory=lambda: np.empty(0, np.int64))
    times: npt.NDArray[np.int64] = attrs.field(factory=lambda: np.empty(0, np.int64))

    def has(self, start: int) -> bool:
        """Return whether it goes on from an offset without a hole."""
        return self.begin <= start <= self.end

    def first(self, start: int, at_ms: int) -> int | None:
        """Return the first offset from `start` on whose record is not older than a time."""
        i = int(np.searchsorted(self.offsets, start))
        is_reached = self.times[i:] >= at_ms
        return int(self.offsets[i + int(is_reached.argmax())]) if is_reached.any() else None

    def extend(self, end: int, more: Times) -> None:
        """Add the records up to an offset."""
        self.end = end
        self.offsets, self.times = np.concatenate([self.offsets, more[0]]), np.concatenate([self.times, more[1]])

    def forget_before(self, begin: int) -> None:
        """Drop what lies before an offset."""
        i = int(np.searchsorted(self.offsets, begin))
        self.begin, self.offsets, self.times = max(begin, self.begin), self.offsets[i:], self.times[i:]


@attrs.define(eq=False)
class RecordTimes:
    """Finds times among the records that a query reads, from where the broker says on.

    Attributes
    ----------
    fetch : callable
        Gives the times of the records in ranges, without markers and what was aborted.
    """

    fetch: Callable[[Ranges], Mapping[Place, Times]]
    _runs: dict[Place, _Run] = attrs.field(factory=dict)

    def at_least(self, place: Place, start: int, at_ms: int) -> int:
        """Return the first offset from `start` on that may have the time, as far as it is known without a look."""
        run = self._runs.get(place)
        if run is None or not run.has(start):
            return start
        offset = run.first(start, at_ms)
        return run.end if offset is None else offset

    def look_at(self, starts: Offsets) -> None:
        """Fetch the record at each offset, all at once, where it is not known."""
        unknown = {place for place, start in starts.items() if self._run_of(place, start).end == start}
        self._extend({place: starts[place] + 1 for place in unknown})

    def find(self, place: Place, start: int, at_ms: int, end: int) -> int:
        """Return the offset of the first record from `start` on that is not older than a time, or the end."""
        run, n = self._run_of(place, start), 1
        while (offset := run.first(start, at_ms)) is None and run.end < end:
            self._extend({place: min(run.end + n, end)})
            n = min(4 * n, _MOST_FETCHED)
        return end if offset is None else min(offset, end)

    def first(self, at_ms: int, waiting: Ranges) -> Offsets:
        """Return for each partition the offset of the first record that is not older than a time, or its end."""
        self.look_at({place: begin for place, (begin, end) in waiting.items() if begin < end})
        offsets = {}
        for place, (offset, end) in waiting.items():
            upto = offset
            while offset == upto < end:
                self.forget_before({place: offset})
                upto = min(offset + _MOST_HELD, end)
                offset = self.find(place, offset, at_ms, upto)
            offsets[place] = offset
        return offsets

    def forget_before(self, begin: Offsets) -> None:
        """Drop what was read."""
        for place in begin.keys() & self._runs.keys():
            if self._runs[place].end < begin[place]:
                del self._runs[place]
            else:
                self._runs[place].forget_before(begin[place])

    def forget(self) -> None:
        """Drop everything: a topic is another one."""
        self._runs.clear()

    def _run_of(self, place: Place, start: int) -> _Run:
        """Return the run that an offset is in or goes on from, or a new one."""
        if place not in self._runs or not self._runs[place].has(start):
            self._runs[place] = _Run(start, start)
        return self._runs[place]

    def _extend(self, ends: Offsets) -> None:
        wanted = {place: (self._runs[place].end, end) for place, end in ends.items()}
        if wanted:
            for place, more in self.fetch(wanted).items():
                self._runs[place].extend(ends[place], more)


@attrs.frozen
class TimeCut:
    """The time up to which a batch read, and how much time it read; where to look for the next one. Units: ms."""

    at_ms: int
    step_ms: int


@attrs.define(eq=False)
class _Search:
    """The search for the end of a batch. Up to `short_ms` it is known to be too small, from `long_ms` on too large."""

    ranges: Ranges
    most: int
    at_time: Callable[[int], Offsets]
    times: RecordTimes
    until_ms: int
    short_ms: int = 0
    long_ms: int = attrs.field(default=attrs.Factory(lambda self: self.until_ms, takes_self=True))
    answers: dict[int, Offsets] = attrs.field(factory=dict)
    known: dict[int, Offsets] = attrs.field(factory=dict)

    def before(self, at_ms: int) -> Offsets:
        """Return up to where each partition is read by a batch that ends at this time, or less where the broker says so."""
        if at_ms in (0, self.until_ms):
            return {p: ends[at_ms > 0] for p, ends in self.ranges.items()}
        if at_ms not in self.known:
            if at_ms not in self.answers:
                self.answers[at_ms] = self.at_time(at_ms)
            answer = self.answers[at_ms]
            self.known[at_ms] = {
                p: min(self.times.at_least(p, max(answer.get(p, end), begin), at_ms), end)
                for p, (begin, end) in self.ranges.items()
            }
        return self.known[at_ms]

    def size(self, upto: Offsets) -> int:
        """Return how many offsets a batch has."""
        return sum(upto[p] - begin for p, (begin, _) in self.ranges.items())

    def ends(self, at_ms: int) -> int:
        """Return 0 if a batch that ends at this time is at least half full and not too large, else -1 or 1."""
        if at_ms <= self.short_ms or at_ms >= self.long_ms:
            return -1 if at_ms <= self.short_ms else 1
        n = self.size(self.before(at_ms))
        if n > self.most:
            self.long_ms = at_ms
            return 1
        if 2 * n >= self.most:
            return 0
        self.short_ms = at_ms
        return -1

    def look_near(self, last: TimeCut) -> None:
        """Learn bounds where the last cut was: they answer most questions of the search without a look-up."""
        step = max(last.step_ms, 1)
        if self.ends(last.at_ms) == -1:
            while self.ends(last.at_ms + step) < 1:
                step *= 2

    def run(self) -> tuple[int, Ranges]:
        """Return the time and the ranges of the batch, which follow from what waits: after a restart they are the same.

        Times are halved always from the same bounds on, to the millisecond if it must be. Records of a millisecond in which a
        batch gets full are shared out.
        """
        low, high = self._halved(0, self.until_ms)
        while (upto := self._checked(low)) is None:  # the broker named markers or aborted records
            self.short_ms, self.long_ms = 0, low
            self.known.clear()
            low, high = self._halved(0, self.until_ms)
        n = self.size(upto)
        if 2 * n < self.most:
            following = self.before(high)
            rest = shares({p: (upto[p], max(following[p], upto[p])) for p in self.ranges}, self.most - n)
            upto = {p: end for p, (_, end) in rest.items()}
        return low, {p: (begin, upto[p]) for p, (begin, _) in self.ranges.items()}

    def _checked(self, at_ms: int) -> Offsets | None:
        """Return up to where each partition has records before a time, from a look at them; None if it is more than a batch."""
        upto = dict(self.before(at_ms))
        if at_ms == 0:
            return upto
        n = self.size(upto)
        self.times.look_at({p: offset for p, offset in upto.items() if offset < self.ranges[p][1]})
        for p, offset in upto.items():
            upto[p] = self.times.find(p, offset, at_ms, min(self.ranges[p][1], offset + self.most - n + 1))
            n += upto[p] - offset
            if n > self.most:
                return None
        return upto

    def _halved(self, low: int, high: int) -> tuple[int, int]:
        while high - low > 1:
            middle = (low + high) // 2
            ends = self.ends(middle)
            if ends == 0:
                return middle, high
            low, high = (middle, high) if ends < 0 else (low, middle)
        return low, high


def in_time_order(
    ranges: Ranges,
    most: int | None,
    at_time: Callable[[int], Offsets],
    times: RecordTimes,
    limit_ms: int,
    last: TimeCut | None = None,
) -> tuple[Ranges, TimeCut | None]:
    """Return at most so many offsets of all ranges, every partition up to the same time, and where the next cut is looked for.

    Parameters
    ----------
    ranges : dict
        First offset and end of what waits in each partition.
    most : int or None
        How many offsets a batch may have.
    at_time : callable
        Gives the first offset of each partition at which the broker has something that is not older than a time, ms since the
        epoch.
    times : RecordTimes
        Finds the records that are meant.
    limit_ms : int
        No record is expected from about this time on, ms since the epoch. Much later ones are read last.
    last : Cut, optional
        The last cut. It makes the search short and changes no result.

    Examples
    --------
    >>> waiting = {("a", 0): (0, 100), ("a", 1): (0, 10)}  # a record a ms, and one each 10 ms
    >>> times = RecordTimes(lambda ranges: {p: (np.arange(*r), np.arange(*r) * (10 if p[1] else 1)) for p, r in ranges.items()})
    >>> in_time_order(waiting, 44, lambda ms: {("a", 0): ms, ("a", 1): -(-ms // 10)}, times, 1_000)[0]
    {('a', 0): (0, 32), ('a', 1): (0, 4)}
    """
    waiting = [p for p, (begin, end) in ranges.items() if end > begin]
    if most is None or len(waiting) < 2 or sum(ranges[p][1] - ranges[p][0] for p in waiting) <= most:
        return shares(ranges, most), last
    times.forget_before({place: begin for place, (begin, _) in ranges.items()})
    search = _Search(ranges, most, at_time, times, 1 << max(limit_ms, 1).bit_length())
    if last is not None:
        search.look_near(last)
    at_ms, offsets = search.run()
    return offsets, TimeCut(at_ms, max(at_ms - last.at_ms if last is not None else 1, 1))


def shares(ranges: dict[Place, tuple[int, int]], most: int | None) -> dict[Place, tuple[int, int]]:
    """At most so many offsets of all ranges, each partition in proportion to what waits in it.

    >>> shares({("a", 0): (0, 90), ("a", 1): (5, 15)}, 10)
    {('a', 0): (0, 9), ('a', 1): (5, 6)}
    """
    waiting = sum(end - begin for begin, end in ranges.values())
    if most is None or waiting <= most:
        return ranges
    taken, seen, given = {}, 0, 0
    for place, (begin, end) in ranges.items():
        seen += end - begin
        upto = seen * most // waiting  # of all so far: what is cut off a share goes to a later one
        taken[place] = (begin, begin + upto - given)
        given = upto
    return taken
