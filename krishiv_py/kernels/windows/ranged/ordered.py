"""Rows of many keys laid out by key and time, so that a span of time of one key is a range of positions."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.sorting import pair_order, sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.state.time_log import times_of

_BITS: Final = 62


@attrs.frozen
class _Scale:
    """Key number and time as one ascending number, with room for the spans looked up on either side of every key."""

    low: int
    unit: int
    reach: int
    stride: int

    def __call__(self, ids: Ints, times: Ints) -> Ints:
        return ids * self.stride + ((times - self.low) // self.unit + self.reach)

    def split(self, places: Ints) -> tuple[Ints, Ints]:
        """Key numbers and times of places."""
        ids = places // self.stride
        return ids, (places - ids * self.stride - self.reach) * self.unit + self.low


@attrs.frozen(eq=False)
class Ordered:
    """Rows by key, time and arrival.

    Attributes
    ----------
    rows : pyarrow.Table
        The rows, in that order.
    ids, times : ndarray of int64
        Key number and event time (µs) of every row.
    picked : ndarray of int64
        Where each row stood in the table this was made of.
    """

    rows: pa.Table
    ids: Ints
    times: Ints
    picked: Ints
    _places: Ints
    _scale: _Scale | None
    _distinct: Ints

    def start(self, ids: Ints, times: Ints) -> Ints:
        """The first position of a key's rows at or after a time."""
        if self._scale is not None:
            return np.searchsorted(self._places, self._scale(ids, times))
        rank = np.searchsorted(self._distinct, times, side="left")
        return np.searchsorted(self._places, ids * (len(self._distinct) + 1) + rank)

    def stop(self, ids: Ints, times: Ints) -> Ints:
        """The position behind the last of a key's rows at or before a time."""
        if self._scale is not None:
            return np.searchsorted(self._places, self._scale(ids, times), side="right")
        rank = np.searchsorted(self._distinct, times, side="right")
        return np.searchsorted(self._places, ids * (len(self._distinct) + 1) + rank)

    def distinct(self, ids: Ints, times: Ints) -> tuple[Ints, Ints]:
        """Distinct pairs of key number and time, ascending."""
        if self._scale is not None:
            return self._scale.split(sorted_unique(self._scale(ids, times)))
        first = group([ids, times], len(ids)).first
        ids, times = ids[first], times[first]
        order = pair_order(ids, times)
        return ids[order], times[order]


def _scale(times: Ints, n_keys: int, spans: tuple[int, ...]) -> _Scale | None:
    """The finest scale that fits; milliseconds, where everything is whole in them, leave more room to sort by."""
    if not len(times):
        return _Scale(0, 1, 1, 4)
    unit = 1_000 if all(s % 1_000 == 0 for s in spans) and not (times % 1_000).any() else 1
    low, high = int(times.min()), int(times.max())
    reach = sum(spans) // unit + 2
    stride = (high - low) // unit + 2 * reach
    return _Scale(low, unit, reach, stride) if stride * max(n_keys, 1) < 1 << _BITS else None


def _sorted(places: Ints, top: int) -> tuple[Ints, Ints]:
    """Places in order, equal ones in order of arrival, and the order. With room for it, both are sorted as one number."""
    n = len(places)
    row_bits = max(n - 1, 1).bit_length()
    if top.bit_length() + row_bits <= _BITS:
        packed = np.sort((places << row_bits) | np.arange(n, dtype=np.int64))
        return packed >> row_bits, packed & ((1 << row_bits) - 1)
    order = stable_order(places)
    return places[order], order


def ordered(rows: pa.Table, keys: list[str], *spans_us: int, near: Mask | None = None) -> Ordered:
    """Lay rows out by key and time.

    Parameters
    ----------
    rows : pyarrow.Table
        Working rows, in order of arrival.
    keys : list of str
        Their key columns.
    *spans_us : int
        The spans that will be looked up: times asked for lie within their sum of the rows' own.
    near : ndarray of bool, optional
        Rows whose keys matter; rows of other keys are left out.
    """
    times = times_of(rows)
    groups = group([rows[k] for k in keys], rows.num_rows)
    ids, picked = groups.ids, None
    if near is not None:
        wanted = np.zeros(groups.n, np.bool_)
        wanted[ids[near]] = True
        if not wanted.all():
            picked = np.flatnonzero(wanted[ids])
            times, ids = times[picked], ids[picked]
    scale, distinct = _scale(times, groups.n, spans_us), times[:0]
    if scale is not None:
        places, order = _sorted(scale(ids, times), scale.stride * groups.n)
    else:  # so many keys over so long a time, to the microsecond, that one number cannot hold both: ranks can
        distinct, rank = np.unique(times, return_inverse=True)
        width = len(distinct) + 1
        places, order = _sorted(ids * width + rank, width * groups.n)
    at = order if picked is None else picked[order]
    return Ordered(pick(rows, at), ids[order], times[order], at, places, scale, distinct)
