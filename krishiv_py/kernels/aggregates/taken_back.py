"""Sums, counts and averages of rows that may be taken back: to the last bit what the rows that are left come to (§16.5).

Exact sums know no order, so a row is taken back as its negative is added. What no sum can take back is counted next to it: that
there are values at all, NaN and the infinities.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Ints, NumPy, doubles, last_rows, totals_of
from krishiv_py.kernels.aggregates.base import AggKernel, Rows, numbers, valid_rows

_COUNTS: Final = pa.int64()
_SPECIAL: Final = 3
"""NaN, infinite and minus infinite values."""


@attrs.frozen
class TakenBack(AggKernel):
    """A kernel of sums over rows some of which are taken back.

    Attributes
    ----------
    sums : AggKernel
        The kernel of the sums, which can negate its partials.
    special : bool
        Whether values may be NaN or infinite.
    spread : bool
        Whether an infinite value makes the result NaN: it is a measure of distances.
    least : int
        How many values a result needs.
    """

    sums: AggKernel
    special: bool
    spread: bool = False
    least: int = 1

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [*self.sums.partial_types, _COUNTS, *([_COUNTS] * _SPECIAL if self.special else [])]

    @property
    def result_type(self) -> pa.DataType:
        return self.sums.result_type

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        values, ids, _ = valid_rows(rows.values, rows.ids)
        counts = [np.bincount(ids, minlength=rows.n)]
        if self.special:
            plain = numbers(doubles(values))
            kinds = (np.isnan(plain), plain == np.inf, plain == -np.inf)
            counts += [np.bincount(ids[kind], minlength=rows.n) for kind in kinds]
            if not (finite := ~np.logical_or.reduce(kinds)).all():
                values, ids = values.filter(pa.array(finite)), ids[finite]
        sums = self.sums.create(Rows(values, rows.times, ids, rows.n))
        return [*sums, *(pa.array(count.astype(np.int64)) for count in counts)]

    def negated(self, partials: list[pa.Array]) -> list[pa.Array]:
        cut = len(self.sums.partial_types)
        return [*self.sums.negated(partials[:cut]), *(pc.negate(count) for count in partials[cut:])]

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        cut = len(self.sums.partial_types)
        return [*self.sums.merge(partials[:cut], ids, n), *(_added(count, ids, n) for count in partials[cut:])]

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        cut = len(self.sums.partial_types)
        counts = [numbers(count) for count in partials[cut:]]
        some = np.flatnonzero(counts[0] > 0)
        finished = self.sums.finish([p.take(pa.array(some)) for p in partials[:cut]])
        places = last_rows(some, len(counts[0]))
        result = finished.take(pa.array(places, mask=places < 0))
        return self._with_special(result, counts) if self.special and any(c.any() for c in counts[1:]) else result

    def _with_special(self, result: pa.Array, counts: list[Ints]) -> pa.Array:
        nans, above, below = (count > 0 for count in counts[1:])
        undefined = nans | (above & below) | ((above | below) if self.spread else False)
        values: NumPy = result.fill_null(0.0).to_numpy(zero_copy_only=False).copy()
        values[above], values[below], values[undefined] = np.inf, -np.inf, np.nan
        return pa.array(values, self.result_type, mask=counts[0] < self.least)


def _added(counts: pa.Array, ids: Ints, n: int) -> pa.Array:
    total = totals_of(ids, numbers(counts), n)
    return pa.array(total)
