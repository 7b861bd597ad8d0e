"""One row for each item of a list, as a step."""

from __future__ import annotations

import pyarrow as pa

from krishiv_py.api.planning import unnest
from krishiv_py.errors import ColumnError
from krishiv_py.plan.checks import a_switch, column_name, known_column
from krishiv_py.plan.nodes import BatchFunction
from krishiv_py.plan.schema import checked


def unnested(
    schema: pa.Schema, column: str, rank: str | None, outer: bool, spread: bool = True
) -> tuple[BatchFunction, pa.Schema]:
    """Return the step over rows of `schema`, and the schema it makes."""
    known_column(column, schema.names, "unnest")
    if not pa.types.is_list(schema.field(column).type):
        hint = "name a column of lists, such as that of top_k"
        raise ColumnError(f"column {column!r} has no lists", got=schema.field(column).type, hint=hint)
    function = unnest.Unnest(
        column, None if rank is None else column_name(rank, "unnest(rank)"), a_switch(outer, "outer"), spread
    )
    kept = [f for f in schema if f.name != column]
    return function, checked(pa.schema([*kept, *function.fields(schema)]))
