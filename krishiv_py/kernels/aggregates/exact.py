"""Exact sums of doubles: the same values give the same sum, in whatever order and grouping they are added (SEMANTICS §5.6).

Every value is cut at a grid common to all of them, so coarse that sums of what lies on the grid are exact in a double, however
they are ordered; what is left is cut at a finer grid. A sum is then a few doubles, which are made to overlap no more. The
idea is that of Demmel and Hida (2003) and Rump (2009). Where that takes more doubles than an accumulator has, because huge
values meet tiny ones, a sum is a whole number of any length.

Whole numbers of any length, many at once: sums of doubles that no few doubles can hold.

A number is a row of 32-bit limbs in 64-bit places, the lowest first, in units of ``2**-1074``, the smallest double; limb 0
of a row is at an offset that the rows share. What is kept in state is one list a number: the place of its lowest limb,
then its limbs, each with the sign of the number.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final, Protocol

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, Mask, NumPy, flags_at, last_rows, totals_of
from krishiv_py.kernels.aggregates.base import lists

TYPE: Final = pa.list_(pa.int64())
_BITS: Final = 32
_MASK: Final = (1 << _BITS) - 1
_UNIT: Final = -1074


@attrs.frozen(eq=False)
class LimbPieces:
    """Limbs that are still to be summed: the row each comes from, its place, and its signed value."""

    rows: Ints
    places: Ints
    values: Ints


def pieces(values: NumPy, places: int = 0) -> LimbPieces:
    """Finite doubles as limbs, each times ``2**(32 * places)``."""
    rows = np.flatnonzero(values)
    bits = np.ascontiguousarray(values[rows]).view(np.uint64)
    exponent = ((bits >> np.uint64(52)) & np.uint64(0x7FF)).astype(np.int64)
    mantissa = (bits & np.uint64((1 << 52) - 1)) | ((exponent > 0).astype(np.uint64) << np.uint64(52))
    shift = np.maximum(exponent, 1) - 1
    place, by = shift >> 5, (shift & 31).astype(np.uint64)
    low, high = (mantissa & np.uint64(_MASK)) << by, (mantissa >> np.uint64(_BITS)) << by
    limbs = [low & np.uint64(_MASK), (low >> np.uint64(_BITS)) + (high & np.uint64(_MASK)), high >> np.uint64(_BITS)]
    sign = np.where(bits >> np.uint64(63), -1, 1)
    terms = np.concatenate([limb.astype(np.int64) * sign for limb in limbs])
    some = np.flatnonzero(terms)  # the trailing zeros of a mantissa may lie below every limb in use
    limb_places = np.concatenate([place, place + 1, place + 2])
    return LimbPieces(np.tile(rows, 3)[some], limb_places[some] + places, terms[some])


def stored(column: pa.Array) -> LimbPieces:
    """Numbers kept in state as limbs."""
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat: Ints = column.flatten().to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    heads = np.cumsum(lengths) - lengths
    inner = np.arange(len(flat)) - heads[rows]
    body = np.flatnonzero(inner > 0)
    return LimbPieces(rows[body], flat[heads[rows[body]]] + inner[body] - 1, flat[body])


def negated(column: pa.Array) -> pa.Array:
    """Return the negatives of numbers kept in state."""
    if column.null_count == len(column):
        return column
    flat = column.flatten().to_numpy(zero_copy_only=False).copy()
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    heads = (np.cumsum(lengths) - lengths)[lengths > 0]
    places = flat[heads].copy()
    np.negative(flat, out=flat)
    flat[heads] = places
    turned = lists(pa.array(flat), np.repeat(np.arange(len(lengths)), lengths), len(lengths))
    there = pa.array(np.arange(len(lengths)), mask=column.is_null().to_numpy(zero_copy_only=False))
    return turned.take(there)


def joined(parts: list[LimbPieces]) -> LimbPieces:
    """Several lots of pieces as one."""
    if not parts:
        return LimbPieces(*(np.empty(0, np.int64) for _ in range(3)))
    return LimbPieces(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in attrs.fields(LimbPieces)))


@attrs.frozen(eq=False)
class LimbMatrix:
    """Numbers as a matrix of limbs; `base` is the place of the first column."""

    limbs: Ints
    base: int

    @classmethod
    def of(cls, sums: Ints, base: int) -> LimbMatrix:
        """Sums of limbs, carried: all limbs but the last in 0 to 2**32 - 1, the last one with the sign."""
        limbs = np.concatenate([sums, np.zeros((len(sums), 2), np.int64)], axis=1)
        for j in range(limbs.shape[1] - 1):
            limbs[:, j + 1] += limbs[:, j] >> _BITS
            limbs[:, j] &= _MASK
        return cls(limbs, base)

    @property
    def signed(self) -> tuple[Ints, Mask]:
        """Limbs of the absolute values, and which numbers are negative."""
        negative: Mask = self.limbs[:, -1] < 0
        if not negative.any():
            return self.limbs, negative
        turned = LimbMatrix.of(np.where(negative[:, None], -self.limbs, self.limbs), 0).limbs
        return turned[:, : self.limbs.shape[1]], negative

    def rounded(self) -> NumPy:
        """Return the nearest doubles, ties to even; infinite beyond the largest."""
        limbs, negative = self.signed
        n, width = limbs.shape
        used = limbs != 0
        top = width - 1 - np.argmax(used[:, ::-1], axis=1)
        below = np.argmax(used, axis=1) < top - 2
        padded = np.concatenate([np.zeros((n, 2), np.int64), limbs], axis=1).astype(np.uint64)
        row = np.arange(n)
        first, second, third = (padded[row, top + 2 - j] for j in range(3))
        by = (_BITS - np.frexp(first.astype(np.float64))[1]).astype(np.int64)
        shift = by.astype(np.uint64)
        lead = (((first << np.uint64(_BITS)) | second) << shift) | (third >> (np.uint64(_BITS) - shift))
        inexact = below | (((third << shift) & np.uint64(_MASK)) != 0)
        value = (lead | inexact.astype(np.uint64)).astype(np.float64)  # the last bit says that something lies below
        with np.errstate(over="ignore"):
            value = np.ldexp(value, (_BITS * (top - 1 + self.base) + _UNIT - by).astype(np.int32))
        value[~used.any(axis=1)] = 0.0
        signed: NumPy = np.where(negative, -value, value)
        return signed

    def less(self, values: NumPy) -> LimbMatrix:
        """These numbers less doubles that were rounded from them."""
        taken = pieces(values)
        limbs = self.limbs.copy()
        np.subtract.at(limbs, (taken.rows, taken.places - self.base), taken.values)
        return LimbMatrix.of(limbs, self.base)

    def any(self) -> Mask:
        """Return which numbers are not zero."""
        any_limb: Mask = np.logical_or.reduce(self.limbs != 0, axis=1)
        return any_limb

    def lists(self, wanted: Mask) -> pa.Array:
        """Return what is kept of the wanted ones; null for the others."""
        limbs, negative = self.signed
        used = (limbs != 0) & wanted[:, None]
        low = np.argmax(used, axis=1)
        top = limbs.shape[1] - 1 - np.argmax(used[:, ::-1], axis=1)
        column = np.arange(limbs.shape[1])
        inside = (column >= low[:, None]) & (column <= top[:, None]) & used.any(axis=1)[:, None]
        value = np.where(negative[:, None], -limbs, limbs)
        heads: Mask = inside.any(axis=1)
        both = np.concatenate([np.where(heads, low + self.base, 0)[:, None], value], axis=1)
        shown = np.concatenate([heads[:, None], inside], axis=1)
        ids = np.nonzero(shown)[0]
        encoded = lists(pa.array(both[shown]), ids, len(limbs))
        return pa.ListArray.from_arrays(encoded.offsets, encoded.values, mask=pa.array(~heads))


def as_fraction(limbs: list[int]) -> Fraction:
    """One number of the state."""
    place, *rest = limbs
    total = 0
    for limb in reversed(rest):
        total = (total << _BITS) + limb
    return total * Fraction(2) ** (_BITS * place + _UNIT)


class Reducer(Protocol):
    """Says which rows make up which of `n` sums; at most `depth` rows are ever added up."""

    @property
    def n(self) -> int: ...
    @property
    def depth(self) -> int: ...

    def zeros(self, type_: type) -> NumPy:
        """Return where sums of numbers begin."""

    def add(self, totals: NumPy, block: slice, values: NumPy) -> None:
        """Take in values of a block of rows, each block once; their sums are exact in any order."""

    def done(self, totals: NumPy) -> NumPy:
        """Return the sums."""

    def limbs(self, parts: LimbPieces, width: int) -> Ints:
        """Sums of limbs, a row of `width` for each."""

    def holding(self, rows: Mask) -> Mask:
        """Return which sums have one of the marked rows."""

    def only(self, wanted: Ints) -> tuple[Reducer, Ints | None]:
        """Return the reducer of some of the sums, and the rows it takes (None: all)."""


@attrs.frozen(eq=False)
class ByGroup:
    """A sum for every group of rows."""

    ids: Ints
    counts: Ints

    @property
    def n(self) -> int:
        return len(self.counts)

    @property
    def depth(self) -> int:
        return int(self.counts.max(initial=0))

    def zeros(self, type_: type) -> NumPy:
        return np.zeros(self.n, type_)

    def add(self, totals: NumPy, block: slice, values: NumPy) -> None:
        np.add.at(totals, self.ids[block], values)

    def done(self, totals: NumPy) -> NumPy:
        return totals

    def limbs(self, parts: LimbPieces, width: int) -> Ints:
        sums = totals_of(self.ids[parts.rows] * width + parts.places, parts.values, self.n * width)
        return sums.reshape(self.n, width)

    def holding(self, rows: Mask) -> Mask:
        return flags_at(self.ids[rows], self.n)

    def only(self, wanted: Ints) -> tuple[Reducer, Ints | None]:
        place = last_rows(wanted, self.n)
        rows = np.flatnonzero(place[self.ids] >= 0)
        return ByGroup(place[self.ids[rows]], self.counts[wanted]), rows


@attrs.frozen(eq=False)
class ByRange:
    """A sum for every range ``[low, high)`` of rows: the difference of two running totals, which are exact themselves."""

    low: Ints
    high: Ints
    rows: int

    @property
    def n(self) -> int:
        return len(self.low)

    @property
    def depth(self) -> int:
        return self.rows

    def zeros(self, type_: type) -> NumPy:
        return np.zeros(self.rows + 1, type_)

    def add(self, totals: NumPy, block: slice, values: NumPy) -> None:
        totals[block.start + 1 : block.stop + 1] = values

    def done(self, totals: NumPy) -> NumPy:
        np.cumsum(totals, out=totals)
        return totals[self.high] - totals[self.low]

    def limbs(self, parts: LimbPieces, width: int) -> Ints:
        sums = np.empty((self.n, width), np.int64)
        for place in range(width):
            here = parts.places == place
            total = totals_of(parts.rows[here] + 1, parts.values[here], self.rows + 1)
            np.cumsum(total, out=total)  # may wrap: differences are right modulo 2**64
            sums[:, place] = total[self.high] - total[self.low]
        return sums

    def holding(self, rows: Mask) -> Mask:
        total = np.zeros(self.rows + 1, np.int64)
        np.cumsum(rows, out=total[1:])
        return total[self.high] > total[self.low]

    def only(self, wanted: Ints) -> tuple[Reducer, Ints | None]:
        return ByRange(self.low[wanted], self.high[wanted], self.rows), None


_LEVELS: Final = 4
_BLOCK: Final = 32_768
_DIGITS: Final = 53
_LEAST: Final = -1074
_SPLIT: Final = 2.0**27 + 1


def two_sum(a: NumPy, b: NumPy) -> tuple[NumPy, NumPy]:
    """Return the rounded sum, and what rounding took away (Knuth)."""
    total: NumPy = a + b
    part = total - a
    rest: NumPy = (a - (total - part)) + (b - part)
    return total, rest


def distil(parts: list[NumPy]) -> list[NumPy]:
    """Return the same sums, largest term first, no term more than half a last digit of the one before it."""
    rest = list(parts)
    for _ in range(len(rest) - 1):
        for i in range(len(rest) - 1, 0, -1):
            rest[i - 1], rest[i] = two_sum(rest[i - 1], rest[i])
    return rest


def two_product(a: NumPy, b: NumPy) -> list[NumPy]:
    """Return the rounded product, and what rounding took away (Dekker)."""
    product, rest = np.empty(len(a)), np.empty(len(a))
    for start in range(0, len(a), _BLOCK):
        block = slice(start, start + _BLOCK)
        x, y = a[block], b[block]
        np.multiply(x, y, out=product[block])
        high_x, low_x = _halves(x)
        high_y, low_y = (high_x, low_x) if a is b else _halves(y)
        rest[block] = low_x * low_y - (((product[block] - high_x * high_y) - low_x * high_y) - high_x * low_y)
    return [product, rest]


def _halves(values: NumPy) -> tuple[NumPy, NumPy]:
    big = values * _SPLIT
    high: NumPy = big - (big - values)
    return high, values - high


def nearest(terms: list[NumPy]) -> NumPy:
    """Return the doubles nearest to sums of terms that do not overlap, as `distil` gives them.

    The second term is made odd where something follows it: then it cannot lie half-way, and one addition rounds rightly
    (Boldo and Melquiond 2008).
    """
    if len(terms) < 3:
        return terms[0]
    rest = terms[2]
    for term in terms[3:]:
        rest = np.where(rest == 0, term, rest)
    second = np.ascontiguousarray(terms[1])
    bits = second.view(np.int64)
    even = (rest != 0) & (second != 0) & (bits & 1 == 0)
    odd = np.where(even, bits + np.where((rest > 0) == (second > 0), 1, -1), bits).view(np.float64)
    return terms[0] + np.where(second == 0, rest, odd)


@attrs.frozen(eq=False)
class ExactLevels:
    """Exact sums, of the coarsest grid first, and of every array what is left of its rows (None: nothing)."""

    sums: list[NumPy]
    left: list[NumPy] | None


def levels(arrays: list[NumPy], top: float, reducer: Reducer) -> ExactLevels:
    """Sums of the rows of some arrays together; `top`, at most ``2**960``, bounds all values."""
    grids = _grids(top, max((reducer.depth * len(arrays)).bit_length(), 2))
    rows = len(arrays[0])
    size = min(rows, _BLOCK)
    totals = _Totals(reducer, size)
    rounded, spare = np.empty(size), [np.empty(size) for _ in arrays]
    left: list[NumPy] | None = None
    for start in range(0, rows, _BLOCK):  # a block at a time stays in the cache
        block = slice(start, min(start + _BLOCK, rows))
        size = block.stop - start
        rest, residues = [a[block] for a in arrays], [x[:size] for x in spare]
        for level, grid in enumerate(grids):
            on_grid = _cut(rest, grid, residues, rounded[:size])
            rest = residues
            more = any(map(_some, rest))
            totals.add(level, block, on_grid, last=not more)
            if not more:
                break
        else:
            left = left or [np.zeros(rows) for _ in arrays]
            for kept, x in zip(left, rest, strict=True):
                kept[block] = x
    return ExactLevels(totals.done(), left)


class _Totals:
    """Sums of all levels. Two levels are one complex number: its parts are added apart, at the price of one."""

    def __init__(self, reducer: Reducer, size: int) -> None:
        self.reducer = reducer
        self.plain: NumPy | None = None
        self.pairs: list[NumPy] = []
        self.held = np.empty(size, np.complex128)

    def add(self, level: int, block: slice, values: NumPy, last: bool) -> None:
        if last and not level:
            if self.plain is None:
                self.plain = self.reducer.zeros(np.float64)
            self.reducer.add(self.plain, block, values)
            return
        held = self.held[: len(values)]
        if level % 2:
            held.imag = values
        else:
            held.real = values
            if last:
                held.imag = 0.0
        if level % 2 or last:
            if level // 2 == len(self.pairs):
                self.pairs.append(self.reducer.zeros(np.complex128))
            self.reducer.add(self.pairs[level // 2], block, held)

    def done(self) -> list[NumPy]:
        done = self.reducer.done
        sums = [part for pair in map(done, self.pairs) for part in (pair.real.copy(), pair.imag.copy())]
        if self.plain is not None:
            plain = done(self.plain)
            sums = [plain + sums[0], *sums[1:]] if sums else [plain]
        return sums or [np.zeros(self.reducer.n)]


def _some(values: NumPy) -> bool:
    """Return whether any value is not zero; a look at the first ones mostly tells, and extremes are found by vector
    instructions.
    """
    return bool(values[:8].any()) or bool(values.max()) or bool(values.min())


def _grids(top: float, room: int) -> list[float | None]:
    """For every level the number that rounds to its grid when added and taken away; None: all that is left is on the grid."""
    grids: list[float | None] = []
    exponent = math.frexp(top)[1]
    for _ in range(_LEVELS):
        grid = exponent + room - _DIGITS
        if grid <= _LEAST:
            return [*grids, None]
        grids.append(1.5 * 2.0 ** (grid + _DIGITS - 1))
        exponent = grid - 1
    return grids


def _cut(arrays: list[NumPy], grid: float | None, residues: list[NumPy], rounded: NumPy) -> NumPy:
    """Cut all arrays at the grid: return what lies on it, and leave the rest of each in its residue."""
    for i, (array, residue) in enumerate(zip(arrays, residues, strict=True)):
        target = rounded if not i else np.empty(len(rounded))
        if grid is None:
            target[:] = array
        else:
            np.add(array, grid, out=target)
            np.subtract(target, grid, out=target)
        np.subtract(array, target, out=residue)
        if i:
            np.add(rounded, target, out=rounded)
    return rounded


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
class _AddendGroups:
    """Addends apart: small ones (`top` bounds them), large ones, and NaN and infinities; the others are 0 in each."""

    small: list[NumPy]
    large: list[NumPy] | None
    special: NumPy | None
    top: float
    plain: bool


def _screen(addends: Addends) -> _AddendGroups:
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
    return _AddendGroups(small, large, special, top, special is None and large is None and addends.wide is None)


def _top(arrays: list[NumPy]) -> float:
    """Return the largest absolute value, NaN where there is one."""
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
    totals = levels(screened.small, screened.top, reducer)
    terms = distil(totals.sums)
    rows = attrs.evolve(addends, arrays=[*(totals.left or ()), *(screened.large or ())])
    wide = _wide(rows, terms[n_terms:], reducer)
    sums = Terms([t + 0.0 for t in terms[:n_terms]] + [np.zeros(reducer.n) for _ in range(n_terms - len(terms))], None)
    if wide.any():
        sums = _widened(sums.terms, terms[n_terms:], rows, reducer, np.flatnonzero(wide))
    return sums if screened.special is None else _with_special(sums, screened.special, reducer)


def _few(arrays: list[NumPy], reducer: ByGroup, n_terms: int) -> Terms | None:
    """Return the sums of a few rows, without the fixed cost of vectors; None where it takes more terms."""
    by_group: dict[int, list[float]] = {}
    for array in arrays:
        for row, value in zip(reducer.ids.tolist(), array.tolist(), strict=True):
            by_group.setdefault(row, []).append(value)
    terms = np.zeros((n_terms, reducer.n))
    for row, values in by_group.items():
        for term in terms:
            term[row] = total = math.fsum(values)
            values.append(-total)
        if math.fsum(values):
            return None
    return Terms(list(terms + 0.0), None)


def _wide(rows: Addends, more: list[NumPy], reducer: Reducer) -> Mask:
    """Return which sums need more terms than there are, or have rows that were not added up yet."""
    wide = np.zeros(reducer.n, np.bool_)
    for term in more:
        wide |= term != 0
    marks = [a != 0 for a in (*rows.arrays, *(a for a, _ in rows.lifted))]
    if rows.wide is not None:
        marks.append(rows.wide.is_valid().to_numpy(zero_copy_only=False))
    for mark in marks:
        wide |= reducer.holding(mark)
    return wide


def _widened(terms: list[NumPy], more: list[NumPy], rows: Addends, reducer: Reducer, rows_of_more: Ints) -> Terms:
    """These sums, with what was not added up yet, as whole numbers; those that fit into doubles after all become such."""
    kept: list[pa.Array] = []
    for start in range(0, len(rows_of_more), _PORTION):
        here = rows_of_more[start : start + _PORTION]
        whole = rest = _numbers([t[here] for t in (*terms, *more)], rows, *reducer.only(here))
        for term in terms:
            rounded = rest.rounded()
            term[here] = rounded
            rest = rest.less(np.where(np.isfinite(rounded), rounded, 0.0))
        needed = rest.any() | ~np.isfinite(terms[0][here])
        for term in terms[1:]:
            term[here[needed]] = 0.0
        kept.append(whole.lists(needed))
    place = last_rows(rows_of_more, len(terms[0]))
    column = pa.concat_arrays(kept).take(pa.array(place, mask=place < 0))
    return Terms(terms, None if column.null_count == len(column) else column)


def _numbers(terms: list[NumPy], addends: Addends, reducer: Reducer, rows: Ints | None) -> LimbMatrix:
    """Sums, each so many terms and its rows, as whole numbers."""
    done = joined([pieces(t) for t in terms])
    parts = [pieces(a if rows is None else a[rows]) for a in addends.arrays]
    parts += [pieces(a if rows is None else a[rows], places) for a, places in addends.lifted]
    if addends.wide is not None:
        parts.append(stored(addends.wide if rows is None else addends.wide.take(pa.array(rows))))
    fresh = joined(parts)
    places = np.concatenate([done.places, fresh.places])
    if not len(places):
        return LimbMatrix.of(np.zeros((reducer.n, 1), np.int64), 0)
    base, width = int(places.min()), int(places.max() - places.min()) + 1
    sums = reducer.limbs(attrs.evolve(fresh, places=fresh.places - base), width)
    np.add.at(sums, (done.rows, done.places - base), done.values)
    return LimbMatrix.of(sums, base)


def _with_special(terms: Terms, special: NumPy, reducer: Reducer) -> Terms:
    """NaN and infinities take over, as in IEEE 754: both infinities make NaN."""
    nan, up, down = (reducer.holding(m) for m in (np.isnan(special), special == np.inf, special == -np.inf))
    over = nan | up | down
    value = np.where(nan | (up & down), np.nan, np.where(up, np.inf, -np.inf))
    first = np.where(over, value, terms.terms[0])
    wide = terms.wide
    if wide is not None:
        wide = wide.take(pa.array(np.arange(len(over)), mask=over))
    return Terms([first, *(np.where(over, 0.0, t) for t in terms.terms[1:])], wide)
