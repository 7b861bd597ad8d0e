"""One row for each item of a list: how the rows a window ranks become rows of their own."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@attrs.frozen
class Unnest:
    """Rows with the items of a list column instead of the list.

    Attributes
    ----------
    column : str
        The list; null and empty lists give no row.
    rank : str or None
        The column for the place of an item in its list, from 1 on.
    """

    column: str
    rank: str | None

    @property
    def __name__(self) -> str:
        return f"unnest({self.column}{'' if self.rank is None else f', rank {self.rank}'})"

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        """Call it."""
        lists = batch.column(self.column)
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        parents = np.repeat(np.arange(len(lists)), lengths)
        items = lists.flatten()
        rest = batch.select([n for n in batch.schema.names if n != self.column])
        table = pa.Table.from_batches([rest]).take(pa.array(parents))
        if pa.types.is_struct(items.type):
            names = [f.name for f in items.type]
            for name, values in zip(names, items.flatten(), strict=True):
                table = table.append_column(name, values)
        else:
            table = table.append_column(self.column, items)
        if self.rank is None:
            return table
        ends = np.cumsum(lengths)
        return table.append_column(self.rank, pa.array(np.arange(len(parents)) - (ends - lengths)[parents] + 1, pa.int64()))

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        """The fields it puts in the place of the list, and behind all."""
        items = schema.field(self.column).type.value_type
        found = list(items) if pa.types.is_struct(items) else [pa.field(self.column, items)]
        return found if self.rank is None else [*found, pa.field(self.rank, pa.int64())]
