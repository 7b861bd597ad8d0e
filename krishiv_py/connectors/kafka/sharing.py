"""Which records of a backlog a batch reads: those of all partitions up to one time, so that no partition runs ahead.

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
class Cut:
    """The time up to which a batch read, and how much time it read; where to look for the next one. Units: ms."""

    at_ms: int
    step_ms: int


@attrs.define(eq=False)
class _Search:
    """The bounds of the time to find: at `low_ms` a batch is not too large, at `high_ms` it is."""

    ranges: Ranges
    most: int
    at_time: Callable[[int], Offsets]
    low_ms: int
    high_ms: int
    low: Offsets
    high: Offsets

    def enough(self, at_ms: int) -> bool:
        """Return whether a batch up to this time is at least half full and not too large; else note it as a bound."""
        found = self.at_time(at_ms)
        upto = {p: min(max(found.get(p, end), begin), end) for p, (begin, end) in self.ranges.items()}
        n = self._size(upto)
        if n > self.most:
            self.high_ms, self.high = at_ms, upto
        else:
            self.low_ms, self.low = at_ms, upto
        return self.most <= 2 * n and n <= self.most

    def _size(self, upto: Offsets) -> int:
        return sum(upto[p] - begin for p, (begin, _) in self.ranges.items())

    def near(self, last: Cut) -> bool:
        """Look where the last cut says; return whether the time is found."""
        step = max(last.step_ms, 1)
        if not self.low_ms < last.at_ms < self.high_ms:
            return False
        while (at := last.at_ms + step) < self.high_ms:
            if self.enough(at):
                return True
            step *= 2
        return self.low_ms < last.at_ms and self.enough(last.at_ms)

    def halve(self) -> None:
        """Find the time between the bounds, to the millisecond if it must be."""
        while self.high_ms - self.low_ms > 1 and not self.enough((self.low_ms + self.high_ms) // 2):
            pass

    def found(self) -> Ranges:
        """Return the ranges: records of the millisecond in which a batch gets full are shared out."""
        upto, n = self.low, self._size(self.low)
        if 2 * n < self.most:
            rest = shares({p: (upto[p], self.high[p]) for p in self.ranges}, self.most - n)
            upto = {p: end for p, (_, end) in rest.items()}
        return {p: (begin, upto[p]) for p, (begin, _) in self.ranges.items()}


def in_time_order(
    ranges: Ranges, most: int | None, at_time: Callable[[int], Offsets], limit_ms: int, last: Cut | None = None
) -> tuple[Ranges, Cut | None]:
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
        No record is expected from this time on, ms since the epoch. Later ones are read last.
    last : Cut, optional
        The last cut. It makes the search short and changes no result that matters.

    Examples
    --------
    >>> waiting = {("a", 0): (0, 100), ("a", 1): (0, 10)}  # a record a ms, and one each 10 ms
    >>> in_time_order(waiting, 44, lambda ms: {("a", 0): ms, ("a", 1): -(-ms // 10)}, 1_000)[0]
    {('a', 0): (0, 31), ('a', 1): (0, 4)}
    """
    waiting = [p for p, (begin, end) in ranges.items() if end > begin]
    if most is None or len(waiting) < 2 or sum(ranges[p][1] - ranges[p][0] for p in waiting) <= most:
        return shares(ranges, most), last
    begins, ends = {p: r[0] for p, r in ranges.items()}, {p: r[1] for p, r in ranges.items()}
    search = _Search(ranges, most, at_time, 0, max(limit_ms, 1), begins, ends)
    if last is None or not search.near(last):
        search.halve()
    step = search.low_ms - last.at_ms if last is not None else 1
    return search.found(), Cut(search.low_ms, max(step, 1))


def shares(ranges: dict[Place, tuple[int, int]], most: int | None) -> dict[Place, tuple[int, int]]:
    """At most so many offsets of all ranges, each partition in proportion to what waits in it.

    >>> shares({("a", 0): (0, 90), ("a", 1): (5, 15)}, 10)
    {('a', 0): (0, 9), ('a', 1): (5, 6)}
    """
    waiting = sum(end - begin for begin, end in ranges.values())
    if most is None or waiting <= most:
        return ranges
    found, seen, given = {}, 0, 0
    for place, (begin, end) in ranges.items():
        seen += end - begin
        upto = seen * most // waiting  # of all so far: what is cut off a share goes to a later one
        found[place] = (begin, begin + upto - given)
        given = upto
    return found
