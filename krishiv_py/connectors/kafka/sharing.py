"""Determine which records of a backlog a batch reads: those of all partitions up to one time, so that no partition runs ahead.

Records of a partition are in the order in which they were written. A batch that reads every partition up to the first record
of one time therefore reads what a live query would have read up to then. So the watermark meets the rows in the same order,
and no row is late that a live query would have taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import attrs

from krishiv_py.connectors.kafka.client import Offsets, Place

Ranges: TypeAlias = dict[Place, tuple[int, int]]


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
    until_ms: int
    short_ms: int = 0
    long_ms: int = attrs.field(default=attrs.Factory(lambda self: self.until_ms, takes_self=True))
    known: dict[int, Offsets] = attrs.field(factory=dict)

    def before(self, at_ms: int) -> Offsets:
        """Return up to where each partition is read by a batch that ends at this time."""
        if at_ms not in self.known:
            offsets = self.at_time(at_ms)
            self.known[at_ms] = {p: min(max(offsets.get(p, end), begin), end) for p, (begin, end) in self.ranges.items()}
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
        """Return the time and the ranges of the batch, which follow from what waits alone: after a restart they are the same.

        Times are halved always from the same bounds on, to the millisecond if it must be. Records of a millisecond in which a
        batch gets full are shared out.
        """
        for time_ms in (0, self.until_ms):
            self.known[time_ms] = {p: ends[time_ms > 0] for p, ends in self.ranges.items()}
        low, high = self._halved(0, self.until_ms)
        upto, n = self.before(low), self.size(self.before(low))
        if 2 * n < self.most:
            following = self.before(high)
            rest = shares({p: (upto[p], following[p]) for p in self.ranges}, self.most - n)
            upto = {p: end for p, (_, end) in rest.items()}
        return low, {p: (begin, upto[p]) for p, (begin, _) in self.ranges.items()}

    def _halved(self, low: int, high: int) -> tuple[int, int]:
        while high - low > 1:
            middle = (low + high) // 2
            ends = self.ends(middle)
            if ends == 0:
                return middle, high
            low, high = (middle, high) if ends < 0 else (low, middle)
        return low, high


def in_time_order(
    ranges: Ranges, most: int | None, at_time: Callable[[int], Offsets], limit_ms: int, last: TimeCut | None = None
) -> tuple[Ranges, TimeCut | None]:
    """Return at most so many offsets of all ranges, every partition up to the same time, and where the next cut is looked for.

    Parameters
    ----------
    ranges : dict
        First offset and end of what waits in each partition.
    most : int or None
        How many offsets a batch may have.
    at_time : callable
        Gives the first offset of each partition whose record is not older than a time, ms since the epoch.
    limit_ms : int
        No record is expected from about this time on, ms since the epoch. Much later ones are read last.
    last : Cut, optional
        The last cut. It makes the search short and changes no result.

    Examples
    --------
    >>> waiting = {("a", 0): (0, 100), ("a", 1): (0, 10)}  # a record a ms, and one each 10 ms
    >>> in_time_order(waiting, 44, lambda ms: {("a", 0): ms, ("a", 1): -(-ms // 10)}, 1_000)[0]
    {('a', 0): (0, 32), ('a', 1): (0, 4)}
    """
    waiting = [p for p, (begin, end) in ranges.items() if end > begin]
    if most is None or len(waiting) < 2 or sum(ranges[p][1] - ranges[p][0] for p in waiting) <= most:
        return shares(ranges, most), last
    search = _Search(ranges, most, at_time, 1 << max(limit_ms, 1).bit_length())
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
