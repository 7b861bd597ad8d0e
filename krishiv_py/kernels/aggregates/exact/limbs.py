"""Whole numbers of any length, many at once: sums of doubles that no few doubles can hold.

A number is a row of 32-bit limbs in 64-bit places, the lowest first, in units of ``2**-1074``, the smallest double; limb 0
of a row is at an offset that the rows share. What is kept in state is one list a number: the place of its lowest limb,
then its limbs, each with the sign of the number.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, Mask, NumPy
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
    found = np.concatenate([limb.astype(np.int64) * sign for limb in limbs])
    some = np.flatnonzero(found)  # the trailing zeros of a mantissa may lie below every limb in use
    at = np.concatenate([place, place + 1, place + 2])
    return LimbPieces(np.tile(rows, 3)[some], at[some] + places, found[some])


def stored(column: pa.Array) -> LimbPieces:
    """Numbers kept in state as limbs."""
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat: Ints = column.flatten().to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    heads = np.cumsum(lengths) - lengths
    inner = np.arange(len(flat)) - heads[rows]
    body = np.flatnonzero(inner > 0)
    return LimbPieces(rows[body], flat[heads[rows[body]]] + inner[body] - 1, flat[body])


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
        """The nearest doubles, ties to even; infinite beyond the largest."""
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
        lost = below | (((third << shift) & np.uint64(_MASK)) != 0)
        value = (lead | lost.astype(np.uint64)).astype(np.float64)  # the last bit says that something lies below
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
        found: Mask = np.logical_or.reduce(self.limbs != 0, axis=1)
        return found

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
        found = lists(pa.array(both[shown]), ids, len(limbs))
        return pa.ListArray.from_arrays(found.offsets, found.values, mask=pa.array(~heads))


def as_fraction(limbs: list[int]) -> Fraction:
    """One number of the state."""
    place, *rest = limbs
    total = 0
    for limb in reversed(rest):
        total = (total << _BITS) + limb
    return total * Fraction(2) ** (_BITS * place + _UNIT)
