"""Late rows that only the state can tell (SEMANTICS §4.2, rule "window"), in the late layout."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_py.kernels.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.columns.times import unstamp


def refused_rows(layout: Layout, rows: pa.Table, times: Ints, refused: Mask, watermark_us: int) -> pa.Table:
    """The refused of some rows of these event times, which carry the columns the late handler wants."""
    picked = rows.filter(pa.array(refused))
    n = picked.num_rows
    carried = [picked[f"l{i}"] for i in range(len(layout.carried))]
    watermark = unstamp(np.full(n, watermark_us), layout.spec.time_kind)
    lateness = pa.array(watermark_us - times[refused])
    return pa.Table.from_arrays([*carried, pa.repeat(pa.scalar("late"), n), watermark, lateness], schema=layout.late_schema)
