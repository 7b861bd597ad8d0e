"""Limits that do not depend on batches: who finds room among those that came before, close to it in time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Final

import numpy as np

from krishiv_py.arrays.types import Ints, Mask

_REFUSED: Final = 64


def first_come(times: Ints, held: Ints, most: int, reach_us: int) -> Mask:
    """Return which times find fewer than `most` others within `reach_us`, of those held and those that came before.

    Examples
    --------
    >>> first_come(np.array([10, 11, 12, 25, 20]), np.array([9]), 2, 10).tolist()
    [True, False, False, True, False]
    """
    takes = np.zeros(len(times), np.bool_)
    taken: list[int] = sorted(held.tolist())
    at, refused = 0, 0
    while at < len(times):
        time = int(times[at])
        if bisect_right(taken, time + reach_us) - bisect_left(taken, time - reach_us) < most:
            insort(taken, time)
            takes[at], refused = True, 0
            at += 1
            continue
        at, refused = at + 1, refused + 1
        if refused >= _REFUSED:  # whoever is refused stays refused: look for the next that is not among many at once
            ahead, known = times[at : at + refused], np.array(taken)
            within = np.searchsorted(known, ahead + reach_us, side="right") - np.searchsorted(known, ahead - reach_us)
            free = np.flatnonzero(within < most)
            step = int(free[0]) if len(free) else len(ahead)
            at, refused = at + step, refused + step
    return takes
