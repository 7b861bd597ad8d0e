"""Intervals of many groups at once: merging what overlaps, without a loop over groups."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np

from krishiv_py.arrays.types import Ints

_ROOM: Final = 1 << 62


@attrs.frozen(eq=False)
class Components:
    """Intervals merged into components, numbered by group, then by start.

    Attributes
    ----------
    ids : ndarray of int64
        Component of every interval.
    starts, ends : ndarray of int64
        Bounds by component.
    n : int
        How many components there are.
    """

    ids: Ints
    starts: Ints
    ends: Ints
    n: int

    @property
    def row_ends(self) -> Ints:
        """Return where the component of every interval ends."""
        return self.ends[self.ids]


class Codes:
    """Pairs (group, value) as single integers in the same order, so that one sort or running maximum serves all groups."""

    def __init__(self, groups: Ints, values: Ints) -> None:
        low, high = int(values.min()), int(values.max())
        span = high - low + 1
        self._low = low
        self._ranked: Ints | None = None
        if (int(groups.max()) + 1) * span < _ROOM:
            self._span = span
            self.codes = groups * span + (values - low)
        else:
            self._ranked, rank = np.unique(values, return_inverse=True)
            self._span = len(self._ranked)
            self.codes = groups * self._span + rank

    def values(self, groups: Ints, codes: Ints) -> Ints:
        """The values back from codes of these groups."""
        rest = codes - groups * self._span
        return rest + self._low if self._ranked is None else self._ranked[rest]


def running_reach(groups: Ints, ends: Ints) -> Ints:
    """The largest end so far within each group; rows must be sorted by group."""
    coded = Codes(groups, ends)
    return coded.values(groups, np.maximum.accumulate(coded.codes))


def components(groups: Ints, starts: Ints, ends: Ints, *, touching: bool) -> Components:
    """Merge the intervals of each group that overlap, or with `touching` also those that only meet.

    Parameters
    ----------
    groups : ndarray of int64
        Group of every interval, ``0 <= group``.
    starts, ends : ndarray of int64
        Bounds; every interval has a positive length.
    touching : bool
        Whether ``[0, 5)`` and ``[5, 9)`` are one.
    """
    n = len(starts)
    if n == 0:
        none = np.empty(0, np.int64)
        return Components(none, none, none, 0)
    order = np.argsort(Codes(groups, starts).codes)  # equal ones are of one component, whatever their order
    g, a = groups[order], starts[order]
    reach = running_reach(g, ends[order])
    opens = np.ones(n, np.bool_)
    opens[1:] = (g[1:] != g[:-1]) | ((a[1:] > reach[:-1]) if touching else (a[1:] >= reach[:-1]))
    heads = np.flatnonzero(opens)
    ids = np.empty(n, np.int64)
    ids[order] = np.cumsum(opens) - 1
    return Components(ids, a[heads], reach[np.append(heads[1:], n) - 1], len(heads))
