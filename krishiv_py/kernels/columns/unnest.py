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
        The list.
    rank : str or None
        The column for the place of an item in its list, from 1 on.
    outer : bool
        Whether null and empty lists give a row, with nulls.
    spread : bool
        Whether the fields of structs become columns.
    """

    column: str
    rank: str | None
    outer: bool = False
    spread: bool = True

    @property
    def __name__(self) -> str:
        return f"unnest({self.column}{'' if self.rank is None else f', rank {self.rank}'})"

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        """Call it."""
        lists = batch.column(self.column)
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        items = lists.flatten()
        starts = np.cumsum(lengths) - lengths
        rows = np.maximum(lengths, 1) if self.outer else lengths
        parents = np.repeat(np.arange(len(lists)), rows)
        places = np.arange(len(parents)) - (np.cumsum(rows) - rows)[parents]
        missing = (lengths == 0)[parents]
        if missing.any():
            items = items.take(pa.array(starts[parents] + places, mask=missing))
        positions = pa.array(parents)
        made = {n: batch.column(n).take(positions) for n in batch.schema.names if n != self.column}
        if self.spread and pa.types.is_struct(items.type):
            made |= zip([f.name for f in items.type], items.flatten(), strict=True)
        else:
            made[self.column] = items
        if self.rank is not None:
            made[self.rank] = pa.array(places + 1, pa.int64(), mask=missing)
        return pa.table(made)

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the fields it puts in the place of the list, and after all."""
        items = schema.field(self.column).type.value_type
        fields = list(items) if self.spread and pa.types.is_struct(items) else [pa.field(self.column, items)]
        return fields if self.rank is None else [*fields, pa.field(self.rank, pa.int64())]
