"""Exact percentiles of many ranges of values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.kernels.aggregates.base import numbers
from krishiv_py.kernels.aggregates.collections import between
from krishiv_py.kernels.arrays.occurrences import Spread
from krishiv_py.kernels.arrays.wavelet import below, smallest


def percentiles(percentage: float, values: pa.Array, s: Spread) -> pa.Array:
    """The percentile of every range of `values`, which have no nulls; null where a range is empty. Bounds may lie anyhow."""
    plain = numbers(pc.cast(values, pa.float64(), safe=False))
    order = np.argsort(plain, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    lengths = s.lengths
    some = np.flatnonzero(lengths > 0)
    spot = percentage * (lengths[some] - 1)
    least = np.floor(spot).astype(np.int64)
    most = np.minimum(least + 1, lengths[some] - 1)
    low, high = s.low[some], s.high[some]
    skip = None
    if s.hole is not None:
        hole = s.hole[some]
        inside = hole >= 0
        skip = np.where(inside, below(rank, low, high, rank[np.where(inside, hole, 0)]) if len(rank) else 0, lengths[some])
    found = [plain[order[smallest(rank, low, high, k if skip is None else k + (k >= skip))]] for k in (least, most)]
    result = np.full(len(lengths), np.nan)
    result[some] = between(found[0], found[1], spot - least)
    return pa.array(result, mask=lengths == 0)
