"""Sessions with a longest duration: walk the rows of every key in time order, all keys at once (SEMANTICS §3.3).

A row joins while it is within reach of the session and ``t - first < max_duration``; otherwise it opens the next one. Where
the next session starts, if one starts at row i, does not depend on what was before, so it is computed for every row at once;
then all keys follow these pointers together, one session of each key a round.
"""

from __future__ import annotations

import attrs
import numpy as np

from krishiv_py.arrays.intervals import Codes, Components
from krishiv_py.arrays.ranges import overlapping
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints


@attrs.frozen
class Limits:
    """Holds what divides the rows of a key into sessions: the longest duration, and whether rows at distance just a gap
    join.
    """

    cap_us: int
    touching: bool

    def sessions(self, groups: Ints, times: Ints, reaches: Ints) -> Components:
        """The sessions of rows, by group and start."""
        return walk(groups, times, reaches, self.cap_us, touching=self.touching)


def walk(groups: Ints, times: Ints, reaches: Ints, cap_us: int, *, touching: bool) -> Components:
    """Sessions of rows, numbered by group, then by start.

    Parameters
    ----------
    groups, times, reaches : ndarray of int64
        Group and time of every row, and until when it keeps a session open: its time plus its gap.
    cap_us : int
        The longest duration.
    touching : bool
        Whether a row at distance exactly its gap joins.
    """
    n = len(times)
    if n == 0:
        return Components(times, times, times, 0)
    order = stable_order(Codes(groups, times).codes)
    g, t, reach = groups[order], times[order], reaches[order]
    heads = np.flatnonzero(np.concatenate([[True], g[1:] != g[:-1]]))
    stops = np.append(heads[1:], n)
    last = np.repeat(stops, stops - heads)
    coded = Codes(np.concatenate([g, g, g]), np.concatenate([t, t + cap_us, reach])).codes
    capped = np.searchsorted(coded[:n], coded[n : 2 * n], side="left")
    beyond = np.searchsorted(coded[:n], coded[2 * n :], side="right" if touching else "left")
    follows = np.minimum(np.minimum(capped, _first_break(beyond)), last)
    opens = np.zeros(n, np.bool_)
    at = heads
    while len(at):
        opens[at] = True
        ahead = follows[at]
        at = ahead[ahead < last[at]]
    starts = np.flatnonzero(opens)
    ids = np.empty(n, np.int64)
    ids[order] = np.cumsum(opens) - 1
    ends = np.minimum(np.maximum.reduceat(reach, starts), t[starts] + cap_us)
    return Components(ids, t[starts], ends, len(starts))


def _first_break(beyond: Ints) -> Ints:
    """For every row the first row after it that none from it on reaches; `beyond` is the first one it does not reach itself.

    With one gap for all rows that is the next row its predecessor does not reach. Otherwise the reach of a row is widened to
    the farthest among the rows it covers, until nothing changes: each round doubles the length of the chains followed.
    """
    n = len(beyond)
    rows = np.arange(n, dtype=np.int64)
    if (np.diff(beyond) >= 0).all():
        breaks = np.where(beyond[:-1] <= rows[1:], rows[1:], n)
        return np.append(np.minimum.accumulate(breaks[::-1])[::-1], n)
    while True:
        wider = overlapping(np.maximum, beyond, rows, beyond)
        if np.array_equal(wider, beyond):
            return beyond
        beyond = wider
