"""Exact sums of doubles: the same values give the same sum, in whatever order and grouping they are added (SEMANTICS §5.6).

Every value is cut at a grid common to all of them, so coarse that sums of what lies on the grid are exact in a double, however
they are ordered; what is left is cut at a finer grid. A sum is then a few doubles, which are made to overlap no more. The
idea is that of Demmel and Hida (2003) and Rump (2009). Where that takes more doubles than an accumulator has, because huge
values meet tiny ones, a sum is a whole number of any length: :mod:`krishiv_py.kernels.aggregates.exact.limbs`.
"""

from __future__ import annotations

import math
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, Mask, NumPy
from krishiv_py.kernels.aggregates.exact import limbs
from krishiv_py.kernels.aggregates.exact.expansions import distil, levels
from krishiv_py.kernels.aggregates.exact.reducers import ByGroup, Reducer

HUGE: Final = 2.0**960
"""Values from here on are summed as whole numbers: the first grid needs room above them."""
_FEW: Final = 64
_PORTION: Final = 1 << 17


@attrs.frozen(eq=False)
class Terms:
    """Exact sums: the sum of `terms`, the first of them the nearest double; or, where `wide` is not null, the number there.

    Where `terms[0]` is infinite or NaN and `wide` is null, such values were among those summed.
    """

    terms: list[NumPy]
    wide: pa.Array | None


@attrs.frozen(eq=False)
class Addends:
    """Holds what is summed: of every row the sum of `arrays`, of doubles `places` limbs up, and of a number of the state."""

    arrays: list[NumPy]
    wide: pa.Array | None = None
    lifted: list[tuple[NumPy, int]] = attrs.field(factory=list)


@attrs.frozen(eq=False)
class _Screened:
    """Addends apart: small ones (`top` bounds them), large ones, and NaN and infinities; the others are 0 in each."""

    small: list[NumPy]
    large: list[NumPy] | None
    special: NumPy | None
    top: float
    plain: bool


def _screen(addends: Addends) -> _Screened:
    arrays, special = addends.arrays, None
    large: list[NumPy] | None = None
    if addends.wide is not None:  # what these rows hold besides is not an addend, only the nearest double
        narrow = addends.wide.is_null().to_numpy(zero_copy_only=False)
        arrays = [np.where(narrow, a, 0.0) for a in arrays]
    top = _top(arrays)
    if not math.isfinite(top):
        masks = [np.isfinite(a) for a in arrays]
        with np.errstate(invalid="ignore"):
            special = np.add.reduce([np.where(m, 0.0, a) for m, a in zip(masks, arrays, strict=True)])
        arrays = [np.where(m, a, 0.0) for m, a in zip(masks, arrays, strict=True)]
        top = _top(arrays)
    small = arrays
    if top >= HUGE:
        large = [np.where(np.abs(a) >= HUGE, a, 0.0) for a in arrays]
        small = [a - x for a, x in zip(arrays, large, strict=True)]
        top = _top(small)
    return _Screened(small, large, special, top, special is None and large is None and addends.wide is None)


def _top(arrays: list[NumPy]) -> float:
    """The largest absolute value, NaN where there is one."""
    if not len(arrays[0]):
        return 0.0
    ends = [end for a in arrays for end in (float(a.max()), -float(a.min()))]
    return math.nan if any(map(math.isnan, ends)) else max(ends)


def exact_sums(addends: Addends, reducer: Reducer, n_terms: int) -> Terms:
    """Exact sums of rows, in `n_terms` doubles where those are enough."""
    screened = _screen(addends)
    if isinstance(reducer, ByGroup) and len(reducer.ids) <= _FEW and screened.plain and not addends.lifted:
        few = _few(screened.small, reducer, n_terms)
        if few is not None:
            return few
    found = levels(screened.small, screened.top, reducer)
    terms = distil(found.sums)
    rows = attrs.evolve(addends, arrays=[*(found.left or ()), *(screened.large or ())])
    wide = _wide(rows, terms[n_terms:], reducer)
    sums = Terms([t + 0.0 for t in terms[:n_terms]] + [np.zeros(reducer.n) for _ in range(n_terms - len(terms))], None)
    if wide.any():
        sums = _widened(sums.terms, terms[n_terms:], rows, reducer, np.flatnonzero(wide))
    return sums if screened.special is None else _with_special(sums, screened.special, reducer)


def _few(arrays: list[NumPy], reducer: ByGroup, n_terms: int) -> Terms | None:
    """The same for a few rows, without the fixed cost of vectors; None where it takes more terms."""
    by_group: dict[int, list[float]] = {}
    for array in arrays:
        for at, value in zip(reducer.ids.tolist(), array.tolist(), strict=True):
            by_group.setdefault(at, []).append(value)
    terms = np.zeros((n_terms, reducer.n))
    for at, values in by_group.items():
        for term in terms:
            term[at] = total = math.fsum(values)
            values.append(-total)
        if math.fsum(values):
            return None
    return Terms(list(terms + 0.0), None)


def _wide(rows: Addends, more: list[NumPy], reducer: Reducer) -> Mask:
    """Return which sums need more terms than there are, or have rows that were not added up yet."""
    found = np.zeros(reducer.n, np.bool_)
    for term in more:
        found |= term != 0
    marks = [a != 0 for a in (*rows.arrays, *(a for a, _ in rows.lifted))]
    if rows.wide is not None:
        marks.append(rows.wide.is_valid().to_numpy(zero_copy_only=False))
    for mark in marks:
        found |= reducer.holding(mark)
    return found


def _widened(terms: list[NumPy], more: list[NumPy], rows: Addends, reducer: Reducer, at: Ints) -> Terms:
    """These sums, with what was not added up yet, as whole numbers; those that fit into doubles after all become such."""
    kept: list[pa.Array] = []
    for start in range(0, len(at), _PORTION):
        here = at[start : start + _PORTION]
        whole = rest = _numbers([t[here] for t in (*terms, *more)], rows, *reducer.only(here))
        for term in terms:
            rounded = rest.rounded()
            term[here] = rounded
            rest = rest.less(np.where(np.isfinite(rounded), rounded, 0.0))
        needed = rest.any() | ~np.isfinite(terms[0][here])
        for term in terms[1:]:
            term[here[needed]] = 0.0
        kept.append(whole.lists(needed))
    place = np.full(len(terms[0]), -1, np.int64)
    place[at] = np.arange(len(at))
    column = pa.concat_arrays(kept).take(pa.array(place, mask=place < 0))
    return Terms(terms, None if column.null_count == len(column) else column)


def _numbers(terms: list[NumPy], addends: Addends, reducer: Reducer, rows: Ints | None) -> limbs.LimbMatrix:
    """Sums, each so many terms and its rows, as whole numbers."""
    done = limbs.joined([limbs.pieces(t) for t in terms])
    parts = [limbs.pieces(a if rows is None else a[rows]) for a in addends.arrays]
    parts += [limbs.pieces(a if rows is None else a[rows], places) for a, places in addends.lifted]
    if addends.wide is not None:
        parts.append(limbs.stored(addends.wide if rows is None else addends.wide.take(pa.array(rows))))
    fresh = limbs.joined(parts)
    places = np.concatenate([done.places, fresh.places])
    if not len(places):
        return limbs.LimbMatrix.of(np.zeros((reducer.n, 1), np.int64), 0)
    base, width = int(places.min()), int(places.max() - places.min()) + 1
    sums = reducer.limbs(attrs.evolve(fresh, places=fresh.places - base), width)
    np.add.at(sums, (done.rows, done.places - base), done.values)
    return limbs.LimbMatrix.of(sums, base)


def _with_special(found: Terms, special: NumPy, reducer: Reducer) -> Terms:
    """NaN and infinities take over, as in IEEE 754: both infinities make NaN."""
    nan, up, down = (reducer.holding(m) for m in (np.isnan(special), special == np.inf, special == -np.inf))
    over = nan | up | down
    value = np.where(nan | (up & down), np.nan, np.where(up, np.inf, -np.inf))
    first = np.where(over, value, found.terms[0])
    wide = found.wide
    if wide is not None:
        wide = wide.take(pa.array(np.arange(len(over)), mask=over))
    return Terms([first, *(np.where(over, 0.0, t) for t in found.terms[1:])], wide)
