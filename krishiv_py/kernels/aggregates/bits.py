"""bit_and, bit_or and bit_xor."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.aggregates.base import numbers, valid_rows, with_nulls
from krishiv_py.kernels.aggregates.generic.kernel import AggKernel, OneValue, computes
from krishiv_py.plan.aggregates.bits import BitAnd, BitOr, BitXor


@attrs.frozen
class Bits(OneValue):
    """Whole numbers combined bit by bit."""

    combine: np.ufunc

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        kept, groups, _ = valid_rows(partials[0], ids)
        order = np.argsort(groups, kind="stable")
        own = groups[order]
        heads = np.flatnonzero(np.diff(own, prepend=-1))
        values = numbers(kept)[order]
        found, present = np.zeros(n, values.dtype), np.zeros(n, np.bool_)
        if len(heads):
            found[own[heads]], present[own[heads]] = self.combine.reduceat(values, heads), True
        return [with_nulls(found, present, self.type)]


_COMBINED: Final = {BitAnd: np.bitwise_and, BitOr: np.bitwise_or, BitXor: np.bitwise_xor}


@computes(*_COMBINED)
def _bits(call: BitAnd | BitOr | BitXor, type_: pa.DataType) -> AggKernel:
    return Bits(type_, _COMBINED[type(call)])
