"""Determine which of some rows pass, in order of arrival: those that no row of their identity that passed is close to.

What a row is compared with depends on the rows before it, so rows are decided in rounds: the first undecided row of every
identity passes, and the rows close to it do not. Where an identity has many rows that pass in one batch, a few rounds are not
enough. Its rows in order of time and arrival are then gone through by jumps from one that passes to the next::

    rows in order of time   ●  ×  ×  ●  ×  ●
    jumps by `within`       └───────►└────►

and only rows that arrive out of that order one by one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from krishiv_py.arrays.sorting import pair_order, sorted_unique
from krishiv_py.arrays.types import Ints, Mask

ROUNDS: Final = 4
_LARGEST: Final = 1 << 62


def first_arrivals(ids: Ints, times: Ints, held_ids: Ints, held_times: Ints, within: int) -> Mask:
    """Rows that pass, by SEMANTICS §8.

    Parameters
    ----------
    ids, times : ndarray of int64
        Identity, as a number from 0, and event time of each row, in order of arrival.
    held_ids, held_times : ndarray of int64
        The same of rows that passed before.
    within : int
        Rows less than so far apart are duplicates.
    """
    passed = np.zeros(len(ids), np.bool_)
    n = 1 + max(int(ids.max(initial=-1)), int(held_ids.max(initial=-1)))
    left = np.flatnonzero(~_close(ids, times, held_ids, held_times, within, n))
    for _ in range(ROUNDS):
        if not len(left):
            return passed
        mine, first = ids[left], np.full(n, -1, np.int64)
        first[mine[::-1]] = left[::-1]  # of several writes to one place the last one stands
        passed[first[first >= 0]] = True
        left = left[np.abs(times[left] - times[first[mine]]) >= within]
    if len(left):
        passed[left[_in_turn(ids[left], times[left], within)]] = True
    return passed


def _close(ids: Ints, times: Ints, held_ids: Ints, held_times: Ints, within: int, n: int) -> Mask:
    """Rows that a held row of their identity is close to."""
    if not len(held_ids):
        return np.zeros(len(ids), np.bool_)
    if int(np.bincount(held_ids, minlength=n).max()) == 1:
        at = np.full(n, -1, np.int64)
        at[held_ids] = np.arange(len(held_ids))
        mine = at[ids]
        close: Mask = (mine >= 0) & (np.abs(times - held_times[mine]) < within)
        return close
    moments = sorted_unique(held_times)
    width = len(moments) + 1
    held = np.sort(held_ids * width + np.searchsorted(moments, held_times))
    low = ids * width + np.searchsorted(moments, times - within, side="right")
    high = ids * width + np.searchsorted(moments, times + within, side="left")
    found: Mask = np.searchsorted(held, high) > np.searchsorted(held, low)
    return found


def _in_turn(ids: Ints, times: Ints, within: int) -> Ints:
    """Positions of rows that pass, none of which a row that passed before is close to."""
    order = pair_order(ids, times)
    arrival, ordered = order, times[order]
    gaps = np.diff(ordered)
    apart = (np.diff(ids[order]) != 0) | (gaps >= within)
    starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(apart) + 1])
    part = np.zeros(len(ids), np.int64)
    part[1:] = np.cumsum(apart)
    turned = np.zeros(len(starts), np.bool_)
    turned[part[1:][~apart & (np.diff(arrival) < 0)]] = True
    if len(starts) * within >= _LARGEST:
        turned[:] = True
    straight = np.flatnonzero(~turned[part])
    crooked = np.sort(arrival[turned[part]])
    part_of = np.empty(len(ids), np.int64)
    part_of[order] = part
    found = [
        arrival[straight][_jumps(ordered[straight], part[straight], within)],
        crooked[_one_by_one(part_of[crooked], times[crooked], within)],
    ]
    return np.concatenate(found)


def _jumps(times: Ints, parts: Ints, within: int) -> Ints:
    """Positions that pass of rows in order of time and arrival; rows of different parts are not close."""
    if not len(times):
        return times
    steps = np.where(np.diff(parts) != 0, within, np.diff(times))
    line = np.concatenate([np.zeros(1, np.int64), np.cumsum(steps)])  # parts follow one another, just far enough apart
    following = np.searchsorted(line, line + within).tolist()
    found, at = [], 0
    while at < len(following):
        found.append(at)
        at = following[at]
    return np.array(found, np.int64)


def _one_by_one(parts: Ints, times: Ints, within: int) -> Ints:
    """Positions that pass, in order of arrival. At most one row passes in a stretch of `within`."""
    passed: dict[tuple[int, int], int] = {}
    found = []
    for at, (part, time) in enumerate(zip(parts.tolist(), times.tolist(), strict=True)):
        stretch = time // within
        before, after = passed.get((part, stretch - 1)), passed.get((part, stretch + 1))
        if (part, stretch) in passed or (before is not None and time - before < within):
            continue
        if after is None or after - time >= within:
            passed[part, stretch] = time
            found.append(at)
    return np.array(found, np.int64)
