"""What is open, as early results (SEMANTICS §10)."""

from __future__ import annotations

import pyarrow as pa

from krishiv_py.kernels.columns.layout import Layout, whole
from krishiv_py.kernels.columns.times import stamp


def early_results(layout: Layout, opened: pa.Table, watermark_us: int) -> pa.Table:
    """Results of the windows of a state table that have not had theirs.

    Parameters
    ----------
    layout : Layout
        Of an operator that gives results under their own names.
    opened : pyarrow.Table
        What its ``state`` gives.
    watermark_us : int
        The watermark in force. With updates, a window it has passed has its result already.
    """
    spec, schema = layout.spec, layout.result_schema
    fires_often = spec.options.emit_mode != "final" and spec.options.trigger.on_time and not spec.operation.numbered
    if fires_often and opened.num_rows:
        ends = stamp(whole(opened.column(len(spec.keys) + 1)), spec.time_kind).times
        opened = opened.filter(pa.array(ends >= watermark_us if spec.operation.inclusive else ends > watermark_us))
    n = opened.num_rows
    arrays = list(opened.columns[:-1])
    if spec.options.pane:
        arrays += [pa.repeat(pa.scalar("early"), n), pa.nulls(n, pa.int64())]
    return pa.Table.from_arrays(arrays, schema=schema)
