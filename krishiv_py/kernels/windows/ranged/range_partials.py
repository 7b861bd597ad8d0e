"""Partial aggregates of many overlapping ranges of rows: no range is walked row by row where an aggregate allows better."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from krishiv_py.arrays.ranges import Ranges
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.aggregates import AggKernel
from krishiv_py.kernels.aggregates.generic.ranges import OrderedInput
from krishiv_py.kernels.columns.layout import TIME, Layout, whole


def range_partials(layout: Layout, rows: pa.Table, r: Ranges) -> list[pa.Array]:
    """The partial columns of `layout` for every range of `rows`, which are laid out by key, time and arrival."""
    times: Ints = rows[TIME].to_numpy()
    return [p for kernel, column in inputs(layout, rows) for p in kernel.ranges(column, times, r)]


def inputs(layout: Layout, rows: pa.Table) -> Iterator[tuple[AggKernel, OrderedInput | None]]:
    """Every aggregate with the column it reads; aggregates of one column share it."""
    columns: dict[int, OrderedInput] = {}
    for kernel, at in zip(layout.kernels, layout.input_of, strict=True):
        if at is not None and at not in columns:
            columns[at] = OrderedInput.of(whole(rows[f"a{at}"]))
        yield kernel, None if at is None else columns[at]
