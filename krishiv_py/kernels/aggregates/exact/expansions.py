"""Sums of doubles without loss: what rounding takes away is kept besides."""

from __future__ import annotations

import math
from typing import Final

import attrs
import numpy as np

from krishiv_py.arrays.types import NumPy
from krishiv_py.kernels.aggregates.exact.reducers import Reducer

_LEVELS: Final = 4
_BLOCK: Final = 32_768
_DIGITS: Final = 53
_LEAST: Final = -1074
_SPLIT: Final = 2.0**27 + 1


def two_sum(a: NumPy, b: NumPy) -> tuple[NumPy, NumPy]:
    """The rounded sum, and what rounding took away (Knuth)."""
    total: NumPy = a + b
    part = total - a
    rest: NumPy = (a - (total - part)) + (b - part)
    return total, rest


def distil(parts: list[NumPy]) -> list[NumPy]:
    """The same sums, largest term first, no term more than half a last digit of the one before it."""
    found = list(parts)
    for _ in range(len(found) - 1):
        for i in range(len(found) - 1, 0, -1):
            found[i - 1], found[i] = two_sum(found[i - 1], found[i])
    return found


def two_product(a: NumPy, b: NumPy) -> list[NumPy]:
    """The rounded product, and what rounding took away (Dekker)."""
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
    """The doubles nearest to sums of terms that do not overlap, as `distil` gives them.

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
    total: NumPy = terms[0] + np.where(second == 0, rest, odd)
    return total


@attrs.frozen(eq=False)
class Levels:
    """Exact sums, of the coarsest grid first, and of every array what is left of its rows (None: nothing)."""

    sums: list[NumPy]
    left: list[NumPy] | None


def levels(arrays: list[NumPy], top: float, reducer: Reducer) -> Levels:
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
    return Levels(totals.done(), left)


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
        found = [part for pair in map(done, self.pairs) for part in (pair.real.copy(), pair.imag.copy())]
        if self.plain is not None:
            plain = done(self.plain)
            found = [plain + found[0], *found[1:]] if found else [plain]
        return found or [np.zeros(self.reducer.n)]


def _some(values: NumPy) -> bool:
    """Return whether any value is not zero; a look at the first ones mostly tells, and extremes are found by vector
    instructions.
    """
    return bool(values[:8].any()) or bool(values.max()) or bool(values.min())


def _grids(top: float, room: int) -> list[float | None]:
    """For every level the number that rounds to its grid when added and taken away; None: all that is left is on the grid."""
    found: list[float | None] = []
    exponent = math.frexp(top)[1]
    for _ in range(_LEVELS):
        grid = exponent + room - _DIGITS
        if grid <= _LEAST:
            return [*found, None]
        found.append(1.5 * 2.0 ** (grid + _DIGITS - 1))
        exponent = grid - 1
    return found


def _cut(arrays: list[NumPy], grid: float | None, residues: list[NumPy], rounded: NumPy) -> NumPy:
    """Return what lies on the grid, of all arrays together; what is left of each goes to its residue."""
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
