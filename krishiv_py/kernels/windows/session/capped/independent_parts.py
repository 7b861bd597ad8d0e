"""Determine which rows of a batch can come together, where sessions have a longest duration (SEMANTICS §3.3).

A row *divides again* when its coming changes which of the rows before it form a session. All other rows join a session or begin
one, and many of them in a row can be counted at once. So the rows of each key are cut into pieces: rows that come together,
and rows that come alone::

    cap 10, gap 5     arrival  1   2   3   4   5   6         pieces  1 2 3 │ 4 │ 5 6
                      time     3   8  12  -1   9  14         4 is first now: [3, 13) becomes [-1, 9) and [9, …)

Rows in order of time never divide again: what was before them stays as it is. Rows of other keys are walked through by hand.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import attrs
import numpy as np

from krishiv_py.arrays.intervals import running_reach
from krishiv_py.arrays.ranking import rank
from krishiv_py.arrays.sorting import pair_order, stable_order
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.windows.session.capped.built_sessions import Limits

if TYPE_CHECKING:
    from krishiv_py.kernels.windows.session.capped.written_results import RowState


_FEW, _MANY = 16, 2_048
"""Keys of few rows each, but of many together, come row by row: rounds over all keys are cheaper than walking by hand."""


@attrs.frozen(eq=False)
class Pieces:
    """By row: the number of its piece among those of its key, and whether it comes alone."""

    turn: Ints
    alone: Mask


def pieces(state: RowState, held: Ints, coming: Ints, limits: Limits) -> Pieces:
    """The pieces of the rows `coming`, in order of arrival, to those `held`."""
    groups, times = state.groups[coming], state.starts[coming]
    n = int(groups.max()) + 1
    newest = np.full(n, np.iinfo(np.int64).min)
    of_held = state.groups[held]
    known = of_held < n
    np.maximum.at(newest, of_held[known], state.starts[held[known]])
    order = stable_order(groups)
    g, t = groups[order], times[order]
    behind = (t < running_reach(g, t)) | (t < newest[g])
    turn = np.zeros(len(coming), np.int64)
    astray = np.zeros(n, np.bool_)
    astray[g[behind]] = True
    counts = np.bincount(groups, minlength=n)
    few = astray & (counts <= _FEW)
    if int(counts[few].sum()) < _MANY:
        few &= counts == 1
    alone = few[groups]
    turn[alone] = rank(groups[alone])
    by_hand = np.flatnonzero(astray & ~few)
    if len(by_hand):
        _by_hand(state, held, coming, limits, by_hand, n, turn, alone)
    return Pieces(turn, alone)


def _by_hand(state: RowState, held: Ints, coming: Ints, limits: Limits, wanted: Ints, n: int, turn: Ints, alone: Mask) -> None:
    """Fill in the pieces of the rows of some keys."""
    examined = np.zeros(n, np.bool_)
    examined[wanted] = True
    of_held, of_coming = state.groups[held], state.groups[coming]
    held = held[of_held < n]
    held = held[examined[state.groups[held]]]
    held = held[pair_order(state.groups[held], state.starts[held])]
    at = np.flatnonzero(examined[of_coming])
    at = at[stable_order(of_coming[at])]
    bounds = np.append(wanted, n)
    held_cuts = np.searchsorted(state.groups[held], bounds).tolist()
    cuts = np.searchsorted(of_coming[at], bounds).tolist()
    t0, r0 = state.starts[held].tolist(), state.reaches[held].tolist()
    t1, r1 = state.starts[coming[at]].tolist(), state.reaches[coming[at]].tolist()
    turns, alones = [], []
    for i in range(len(wanted)):
        a, b = held_cuts[i], held_cuts[i + 1]
        key = _Key(t0[a:b], r0[a:b], limits)
        number, was = 0, False
        for k in range(cuts[i], cuts[i + 1]):
            divides = key.divides(t1[k], r1[k])
            if (divides or was) and k > cuts[i]:
                number += 1
            turns.append(number)
            alones.append(divides)
            was = divides
    turn[at], alone[at] = turns, alones


class _Key:
    """The sessions of one key as rows come: first time, last time and reach of each, ascending; and all rows by time."""

    def __init__(self, times: list[int], reaches: list[int], limits: Limits) -> None:
        self._times, self._reaches = times, reaches
        self._cap, self._more = limits.cap_us, int(limits.touching)
        self._first: list[int] = []
        self._last: list[int] = []
        self._reach: list[int] = []
        if times:
            self._walk(0, 0)

    def divides(self, t: int, reach: int) -> bool:
        """Let a row come; whether it divides others again."""
        firsts = self._first
        at = bisect_right(firsts, t) - 1
        joins = at >= 0 and (t <= self._last[at] or (t < self._reach[at] + self._more and t - firsts[at] < self._cap))
        place = bisect_right(self._times, t)
        self._times.insert(place, t)
        self._reaches.insert(place, reach)
        first = firsts[at] if joins else t
        if at + 1 < len(firsts) and firsts[at + 1] < reach + self._more and firsts[at + 1] - first < self._cap:
            at += not joins
            self._walk(at, bisect_left(self._times, first))
            return True
        if not joins:
            at += 1
            firsts.insert(at, t)
            self._last.insert(at, t)
            self._reach.insert(at, reach)
        else:
            self._last[at] = max(self._last[at], t)
            self._reach[at] = max(self._reach[at], reach)
        return False

    def _walk(self, at: int, place: int) -> None:
        """Divide the rows from `place` on again, as the sessions from number `at` on, until one begins where one began."""
        times, reaches = self._times, self._reaches
        old, stop = self._first, at
        firsts, lasts, ends = [times[place]], [times[place]], [reaches[place]]
        for t, reach in zip(times[place + 1 :], reaches[place + 1 :], strict=True):
            if t < ends[-1] + self._more and t - firsts[-1] < self._cap:
                lasts[-1] = t
                ends[-1] = max(ends[-1], reach)
                continue
            while stop < len(old) and old[stop] < t:
                stop += 1
            if stop < len(old) and old[stop] == t:
                break
            firsts.append(t)
            lasts.append(t)
            ends.append(reach)
        else:
            stop = len(old)
        self._first[at:stop], self._last[at:stop], self._reach[at:stop] = firsts, lasts, ends
