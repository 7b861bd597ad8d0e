"""Rows in the memory of the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs
import pyarrow as pa

from krishiv_py.connectors.sink import OnRepeat, OutputBatch, TableSink
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_number


@attrs.frozen(eq=False)
class MemorySink(TableSink):
    """Arrow tables in the driver's memory: :meth:`table` gives all rows so far.

    Attributes
    ----------
    tables : dict
        The tables of each micro-batch, by its number.
    """

    tables: dict[int, list[pa.Table]] = attrs.field(factory=dict, repr=False)
    on_repeat: ClassVar[OnRepeat] = "replace"
    exclusive: ClassVar[bool] = True

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """Take (or replace) the rows `tables` of one `batch`."""
        self.put(batch.batch_id, list(tables))

    def put(self, batch_id: int, tables: list[pa.Table]) -> None:
        """Take (or replace) the rows of one micro-batch.

        Parameters
        ----------
        batch_id : int
            Number of the micro-batch, from 0.
        tables : list of pyarrow.Table
            Its rows; an empty list removes what an earlier attempt put.
        """
        a_number(batch_id, "batch_id", 0, "pass the number of the micro-batch", most=(1 << 63) - 1)
        if not isinstance(tables, list) or not all(isinstance(t, pa.Table) for t in tables):
            raise PlanError("a memory sink takes a list of Arrow tables", got=shown(tables), hint="pass for instance [table]")
        if tables:
            self.tables[batch_id] = tables
        else:
            self.tables.pop(batch_id, None)

    def table(self) -> pa.Table | None:
        """All rows in the order of their micro-batches; None if there are none yet."""
        parts = [t for batch in sorted(self.tables) for t in self.tables[batch]]
        return pa.concat_tables(parts) if parts else None
