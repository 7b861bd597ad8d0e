"""From merged partials to result rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.columns.times import unstamp


class Emitter:
    """Builds result tables in the layout of SEMANTICS §5.5."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.schema = layout.result_schema
        self.none = self.schema.empty_table()
        self._timed = not layout.spec.operation.numbered  # bounds of count windows are row numbers
        self._with_op = "op" in self.schema.names[len(layout.key_names) + 2 + len(layout.kernels) + len(layout.own) :]

    def rows(
        self,
        merged: pa.Table,
        starts: Ints,
        ends: Ints,
        op: str | npt.NDArray[np.str_],
        pane: str | npt.NDArray[np.str_] = "final",
        index: int | Ints | None = 0,
    ) -> pa.Table:
        """Result rows of merged partials with their window bounds in µs; `pane` and `index` where the plan asks for them."""
        keys = [merged[k] for k in self.layout.key_names]
        return self.finished(keys, starts, ends, self.layout.finish(merged, (starts, ends)), op, pane, index)

    def finished(
        self,
        keys: list[pa.ChunkedArray],
        starts: Ints,
        ends: Ints,
        values: Sequence[pa.Array | pa.ChunkedArray],
        op: str | npt.NDArray[np.str_],
        pane: str | npt.NDArray[np.str_] = "final",
        index: int | Ints | None = 0,
    ) -> pa.Table:
        """Result rows of finished aggregates; see :meth:`rows`."""
        kind, n = self.layout.spec.time_kind, len(starts)
        bounds = [unstamp(starts, kind), unstamp(ends, kind)] if self._timed else [pa.array(starts), pa.array(ends)]
        arrays = [*keys, *bounds, *values]
        if self._with_op:
            arrays.append(_column(op, n, pa.string()))
        if self.layout.spec.options.pane:
            arrays += [_column(pane, n, pa.string()), _column(index, n, pa.int64())]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def concat(self, tables: list[pa.Table]) -> pa.Table:
        """All results of a step."""
        return pa.concat_tables(tables) if tables else self.none

    def by_end(self, tables: list[pa.Table]) -> list[pa.Table]:
        """Results in ascending order of the ends of their windows (SEMANTICS §5.1); of one window in the order given."""
        if len(tables) < 2:
            return tables
        table = pa.concat_tables(tables)
        ends = table.column(len(self.layout.key_names) + 1).cast(pa.int64()).to_numpy()
        return [table if (ends[1:] >= ends[:-1]).all() else pick(table, stable_order(ends))]


def _column(value: str | int | npt.NDArray[Any] | None, n: int, type_: pa.DataType) -> pa.Array:
    return pa.array(value, type_) if isinstance(value, np.ndarray) else pa.repeat(pa.scalar(value, type_), n)
