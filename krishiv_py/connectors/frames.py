"""Tables, frames and relations of any library as Arrow tables, for rows that are sent and tables that are looked up in."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from krishiv_py.errors import SchemaError, failure_text


def arrow_table(rows: Any) -> pa.Table | None:
    """Return a table from what holds Arrow data, or hands its columns on as such; None for anything else.

    That is a Table, a RecordBatch, a pandas frame (without its index), and a frame or relation of another library that has
    Arrow's PyCapsule interface (``__arrow_c_stream__``): Polars, DuckDB, a RecordBatchReader.

    Raises
    ------
    SchemaError
        When its columns are nothing that Arrow has.
    """
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if not holds_arrow(rows):
        return None
    if of_pandas(rows) and not hasattr(rows, "columns"):
        raise SchemaError("a Series is one column", got=f"a Series of {len(rows)} values", hint='pass series.to_frame("at")')
    try:
        return pa.Table.from_pandas(rows, preserve_index=False) if of_pandas(rows) else pa.table(rows)
    except Exception as problem:  # each library has kinds of its own
        what = f"the {type(rows).__name__} cannot be read as Arrow data"
        raise SchemaError(what, got=failure_text(problem), hint="give every column values of one type") from problem


def holds_arrow(rows: object) -> bool:
    """Return whether :func:`arrow_table` can make a table of it."""
    return isinstance(rows, (pa.Table, pa.RecordBatch)) or of_pandas(rows) or hasattr(rows, "__arrow_c_stream__")


def of_pandas(rows: object) -> bool:
    """Return whether it is a frame or series of pandas; version 3 calls their module ``pandas``, others what is below it."""
    return type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "to_dict")
