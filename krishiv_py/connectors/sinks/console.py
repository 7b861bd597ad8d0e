"""Rows as lines of text on standard output."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pyarrow as pa

from krishiv_py.connectors.sink import OutputBatch, TableSink
from krishiv_py.plan.checks import a_number


@attrs.frozen
class ConsoleSink(TableSink):
    """Prints every non-empty micro-batch; a repeated batch is printed again."""

    max_rows: int = attrs.field(default=20)

    @max_rows.validator
    def _shows_rows(self, _attribute: object, value: object) -> None:
        a_number(value, "max_rows", 1, "pass how many rows of a micro-batch are printed, from 1")

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """Print the first rows of `tables` under the name of the query and the number of the `batch`."""
        if tables:
            rows = pa.concat_tables(tables)
            late = ": late" if batch.output == "late_rows" else ""
            more = " (more rows not shown)" if rows.num_rows > self.max_rows else ""
            print(f"-- {batch.query}{late}, batch {batch.batch_id}{more}")
            for row in rows.slice(0, self.max_rows).to_pylist():
                print("   ", ", ".join(f"{k}={v}" for k, v in row.items()))
