"""Orders of large arrays of whole numbers.

NumPy sorts plain numbers with vector instructions, many times faster than it finds a stable order or, by hashing, what is
unique. So positions ride along in the low bits of what is sorted. Numbers that lie close together need no sort: a table with
a place for each of them is filled in one pass.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from krishiv_py.arrays.types import Ints, Mask, extremes, flags_at, values_at

_BITS = 63
_SMALL = 64
_HALF = 32
_COUNTED: Final = 1 << 16
_PLACES: Final = 4
"""A table of what there is has so many places a value at most; more would be slower than a sort."""


def stable_order(values: Ints) -> Ints:
    """Positions by ascending value; equal values keep their order."""
    n = len(values)
    if n < _SMALL:
        return np.argsort(values, kind="stable")
    low, high = extremes(values)
    if high - low < _COUNTED:
        return np.argsort((values - low).astype(np.uint16), kind="stable")  # NumPy counts numbers of 16 bits
    if high - low < 1 << _HALF:
        return _by_halves(values - low)
    if (high - low).bit_length() + n.bit_length() <= _BITS:
        return _carried(values.astype(np.int64, copy=False) - low, np.arange(n))
    if n.bit_length() > _BITS - _HALF:
        return np.argsort(values, kind="stable")
    order = _carried(values & ((1 << _HALF) - 1), np.arange(n))  # by the low half, then by the high one
    high_half = (values >> _HALF)[order]
    return order[_carried(high_half - (low >> _HALF), np.arange(n))]


def _by_halves(values: Ints) -> Ints:
    """:func:`stable_order` of numbers of 32 bits, counted by their low half, then by the high one."""
    order = np.argsort((values & (_COUNTED - 1)).astype(np.uint16), kind="stable")
    return order[np.argsort((values >> 16).astype(np.uint16)[order], kind="stable")]


def hash_order(hashes: Ints) -> Ints:
    """Positions by ascending hash; equal hashes keep their order.

    Hashes are spread over all numbers of 64 bits, so their high bits tell nearly all of them apart: these are sorted with the
    positions, and the few that are equal in them once more.
    """
    n = len(hashes)
    if n < _SMALL:
        return np.argsort(hashes, kind="stable")
    bits = n.bit_length()
    coded: Ints = ((hashes >> bits) << bits) | np.arange(n)
    coded.sort()
    order: Ints = coded & ((1 << bits) - 1)
    ordered = hashes[order]
    if (ordered[1:] >= ordered[:-1]).all():
        return order
    coded >>= bits
    same = coded[1:] == coded[:-1]
    tied = np.flatnonzero(np.append(False, same) | np.append(same, False))
    members = order[tied]
    order[tied] = members[np.lexsort((hashes[members], coded[tied]))]
    return order


def pair_order(major: Ints, minor: Ints) -> Ints:
    """Positions by `major`, then by `minor`; equal pairs keep their order."""
    if len(major) < _SMALL:
        return np.lexsort((minor, major))
    first, low = int(major.min()), int(minor.min())
    span = int(minor.max()) - low + 1
    if (int(major.max()) - first + 1) * span < 1 << (_BITS - 1):
        return stable_order((major - first) * span + (minor - low))
    return np.lexsort((minor, major))


def order_in_runs(runs: Ints, hashes: Ints, *then: Ints) -> Ints:
    """Positions by `runs`, which do not descend from 0 on, then by `hashes`, then by each of `then`.

    Runs and as many high bits of the hashes as there is room for make one number. The rest tells apart what is equal in it.
    """
    if len(runs) < _SMALL:
        return np.lexsort((*then[::-1], hashes, runs))
    spare = min(max(_BITS - len(runs).bit_length() - int(runs[-1]).bit_length(), 0), 32)
    high = (hashes >> (64 - spare)) + (1 << spare >> 1) if spare else 0
    coded: Ints = (runs << spare) + high
    order = stable_order(coded)
    ordered = coded[order]
    same = ordered[1:] == ordered[:-1]
    tied = np.flatnonzero(np.append(False, same) | np.append(same, False))
    if len(tied):
        members = order[tied]
        order[tied] = members[np.lexsort((*(column[members] for column in then[::-1]), hashes[members], ordered[tied]))]
    return order


def sorted_unique(values: Ints) -> Ints:
    """Each value once, ascending."""
    table, low = _table(values)
    if table is not None:
        return np.flatnonzero(table) + low
    ordered = np.sort(values)
    kept = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=kept[1:])
    return ordered[kept]


def numbered(values: Ints) -> tuple[Ints, Ints]:
    """Return the number of each value among the values there are, in their order; and where each of these is first."""
    n = len(values)
    low = int(values.min()) if n else 0
    bits = n.bit_length()
    if n < _SMALL or (int(values.max()) - low).bit_length() + bits > _BITS:
        _, first, ids = np.unique(values, return_index=True, return_inverse=True)
        return ids.astype(np.int64), first.astype(np.int64)
    coded = ((values.astype(np.int64, copy=False) - low) << bits) | np.arange(n)
    coded.sort()
    order = coded & ((1 << bits) - 1)
    coded >>= bits
    begins = np.append(True, coded[1:] != coded[:-1])
    ids = values_at(order, np.cumsum(begins) - 1, n)
    return ids, order[begins]


def close_ranks(values: Ints) -> tuple[Ints, Ints] | None:
    """Return the place of each value among the values there are, and these in their order; None where they lie too far
    apart.
    """
    table, low = _table(values)
    if table is None:
        return None
    places = np.cumsum(table, dtype=np.int32) - np.int32(1)
    return places[values.astype(np.int64, copy=False) - low].astype(np.int64), np.flatnonzero(table) + low


def _table(values: Ints) -> tuple[Mask | None, int]:
    """Return which numbers there are, from the least on, and the least; no table where it would have too many places."""
    n = len(values)
    if not _SMALL <= n < 1 << _HALF - 1:
        return None, 0
    low = int(values.min())
    places = int(values.max()) - low + 1
    if places > _PLACES * n:
        return None, low
    table = flags_at(values.astype(np.int64, copy=False) - low, places)
    return table, low


def _carried(values: Ints, positions: Ints) -> Ints:
    bits = len(values).bit_length()
    coded: Ints = (values << bits) | positions
    coded.sort()
    return coded & ((1 << bits) - 1)
