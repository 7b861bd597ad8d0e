"""The number of every row among those of its group."""

from __future__ import annotations

import numpy as np

from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints


def rank(groups: Ints) -> Ints:
    """Numbers from 0, in the order given."""
    if not len(groups):
        return groups
    order = stable_order(groups)
    ordered = groups[order]
    heads = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    lengths = np.diff(np.append(heads, len(groups)))
    numbers = np.empty(len(groups), np.int64)
    numbers[order] = np.arange(len(groups)) - np.repeat(heads, lengths)
    return numbers
