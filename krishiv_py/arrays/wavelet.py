"""The k-th smallest of many ranges of one array, and how many of a range lie below a bound: a wavelet matrix (Navarro 2014).

The array is looked at bit by bit, from the highest; all ranges follow at once. So n values and q ranges cost O((n + q) log n),
however long the ranges are.
"""

from __future__ import annotations

import numpy as np

from krishiv_py.arrays.ranges import running
from krishiv_py.arrays.types import Ints


def smallest(ranks: Ints, low: Ints, high: Ints, k: Ints) -> Ints:
    """Return the value number `k`, counted from 0 in ascending order, of every range ``ranks[low:high]``; ``0 <= k < high -
    low``.

    Parameters
    ----------
    ranks : ndarray of int64
        Whole numbers from 0.
    low, high, k : ndarray of int64
        By range.
    """
    lowest = np.zeros(len(low), np.int64)
    for bit in range(int(ranks.max(initial=0)).bit_length() - 1, -1, -1):
        ones = (ranks >> bit) & 1
        zeros = running(1 - ones)
        below, upto = zeros[low], zeros[high]
        right = k >= upto - below
        k = np.where(right, k - (upto - below), k)
        low = np.where(right, zeros[-1] + low - below, below)
        high = np.where(right, zeros[-1] + high - upto, upto)
        lowest |= right.astype(np.int64) << bit
        ranks = np.concatenate([ranks[ones == 0], ranks[ones == 1]])
    return lowest


def below(ranks: Ints, low: Ints, high: Ints, bound: Ints) -> Ints:
    """Return how many of every range ``ranks[low:high]`` are less than its `bound`, which is one of `ranks`."""
    count = np.zeros(len(low), np.int64)
    for bit in range(int(ranks.max(initial=0)).bit_length() - 1, -1, -1):
        ones = (ranks >> bit) & 1
        zeros = running(1 - ones)
        from_, upto = zeros[low], zeros[high]
        right = ((bound >> bit) & 1).astype(np.bool_)
        count += np.where(right, upto - from_, 0)
        low = np.where(right, zeros[-1] + low - from_, from_)
        high = np.where(right, zeros[-1] + high - upto, upto)
        ranks = np.concatenate([ranks[ones == 0], ranks[ones == 1]])
    return count
