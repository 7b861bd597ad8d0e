"""Tables and arrays in parts: by a number of every row, or in portions of a size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints


def split(table: pa.Table, numbers: Ints) -> Iterator[tuple[int, pa.Table]]:
    """The rows of every number, numbers ascending; rows keep their order."""
    if not len(numbers):
        return
    if numbers.min() == numbers.max():
        yield int(numbers[0]), table
        return
    order = stable_order(numbers)
    ordered = numbers[order]
    cuts = (np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist()
    if cuts:
        table = pick(table, order)
    for start, stop in zip([0, *cuts], [*cuts, len(order)], strict=True):
        yield int(ordered[start]), table.slice(start, stop - start)


def portions(weights: Ints, limit: int) -> list[tuple[int, int]]:
    """Cut a row of things into stretches that weigh about `limit` each; first and last, which is left out, of every one."""
    if not len(weights):
        return []
    cuts = (np.flatnonzero(np.diff(np.cumsum(weights) // limit)) + 1).tolist()
    return list(zip([0, *cuts], [*cuts, len(weights)], strict=True))
