"""A user's function over results, beside which the columns go along that a further stage needs."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.connectors.frames import arrow_table
from krishiv_py.errors import PlanError, SchemaError
from krishiv_py.plan.nodes import BatchFunction


@attrs.frozen(eq=False)
class KeepingColumns:
    """A function over batches that is not shown some columns; they are put beside what it returns."""

    function: BatchFunction
    shown: tuple[str, ...]
    kept: tuple[str, ...]

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        """Call it."""
        given = self.function(batch.select(list(self.shown)))
        table = arrow_table(given)
        if table is None or table.num_rows != batch.num_rows:
            raise SchemaError(
                "map_batches over results must return one row for each row",
                got=f"{getattr(table, 'num_rows', type(given).__name__)} for {batch.num_rows}",
                then="the event time of the others would not be known",
                hint="filter with .filter(...), or collect the results and map them then",
            )
        for name in self.kept:
            table = table.append_column(batch.schema.field(name), batch.column(name))
        return table


def reserved(name: str) -> PlanError:
    """The error for a column of a user's that is called like one of these."""
    return PlanError(
        f"{name} is the library's own column of results",
        got=name,
        then="the next stage would take another value for it",
        hint="give the new column another name",
    )
