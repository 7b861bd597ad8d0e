"""Which rows make a session fire, of many sessions at once (SEMANTICS §5.2)."""

from __future__ import annotations

import numpy as np

from krishiv_py.arrays.types import Ints, Mask


def firing(weights: Ints, every: Ints, late: Mask, head: Mask) -> Mask:
    """Rows that make their session fire: when so many rows as `every` says have come since the last firing.

    A session that is complete may come to go on, never the other way round: late rows lie before the others of their track.
    """
    if (every <= 1).all():
        ones: Mask = every == 1
        return ones
    n = len(weights)
    heads = np.flatnonzero(head)
    lengths = np.diff(np.append(heads, n))
    stop = np.repeat(heads + lengths, lengths)
    turn = np.repeat(heads + np.add.reduceat(late, heads, dtype=np.int64), lengths)
    total = np.cumsum(weights)
    late_n, early_n = int(every[late].max(initial=0)), int(every[~late].max(initial=0))

    def following(base: Ints, from_: Ints, turn: Ints, stop: Ints) -> Ints:
        """The next firing after so many rows were told of, at `from_` or later; `stop` for none."""
        second = np.maximum(np.searchsorted(total, base + early_n), np.maximum(turn, from_)) if early_n else stop
        second = np.minimum(second, stop)
        if not late_n:
            return second
        first = np.maximum(np.searchsorted(total, base + late_n), from_)
        return np.where(first < turn, first, second)

    start = following(total[heads] - weights[heads], heads, turn[heads], stop[heads]).tolist()
    ahead = following(total, np.arange(1, n + 1), turn, stop).tolist()
    fires = np.zeros(n, np.bool_)
    found = []
    for at, end in zip(start, (heads + lengths).tolist(), strict=True):
        while at < end:
            found.append(at)
            at = ahead[at]
    fires[found] = True
    return fires
