"""Tables, frames and relations of any library as Arrow tables, for rows that are sent and tables that are looked up in."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from krishiv_py.errors import SchemaError, failure_text


def arrow_table(rows: Any) -> pa.Table | None:
    """Return a table from what holds Arrow data, or hands its columns on as such; None for anything else.

    That is a Table, a RecordBatch, a pandas frame (without its index), what has Arrow's PyCapsule interface
    (``__arrow_c_stream__`` or ``__arrow_c_array__``: Polars, DuckDB, a RecordBatchReader), a Dataset or Scanner of Arrow, a
    lazy frame of Polars, a NumPy array of records, and a list or generator of any of these.

    Raises
    ------
    SchemaError
        When its columns are nothing that Arrow has, or what gives them fails.
    """
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if in_turn(rows):
        rows = list(rows)
    if not holds_arrow(rows):
        return None
    if of_pandas(rows) and not hasattr(rows, "columns"):
        raise SchemaError("a Series is one column", got=f"a Series of {len(rows)} values", hint='pass series.to_frame("at")')
    try:
        return _read(rows)
    except SchemaError:
        raise
    except Exception as problem:  # each library has kinds of its own
        what, hint = f"the {type(rows).__name__} cannot be read as Arrow data", "mend what it reads, and pass it again"
        if isinstance(problem, (pa.ArrowException, TypeError, ValueError)):
            hint = "give every column a name, and values of one type"
        raise SchemaError(what, got=failure_text(problem), hint=hint) from problem


def _read(rows: Any) -> pa.Table:
    if isinstance(rows, (list, tuple)):
        tables: list[Any] = [arrow_table(part) for part in rows]
        schema = tables[0].schema
        return pa.concat_tables([t if t.schema.equals(schema) else t.select(schema.names).cast(schema) for t in tables])
    if of_pandas(rows):
        return pa.Table.from_pandas(rows, preserve_index=False)
    if _is_records(rows):
        return pa.table({name: rows[name] for name in rows.dtype.names})
    if _of(rows, "pyarrow", "count_rows", "to_table"):  # a Dataset or Scanner
        return rows.to_table()
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    if hasattr(rows, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(rows)])
    return pa.table(rows.collect())


def holds_arrow(rows: object) -> bool:
    """Return whether :func:`arrow_table` can make a table of it; a generator it would have to read."""
    if isinstance(rows, (list, tuple)):
        return bool(rows) and all(map(holds_arrow, rows))
    return (
        isinstance(rows, (pa.Table, pa.RecordBatch))
        or hasattr(rows, "__arrow_c_stream__")
        or hasattr(rows, "__arrow_c_array__")
        or of_pandas(rows)
        or _is_records(rows)
        or _of(rows, "pyarrow", "count_rows", "to_table")
        or _of(rows, "polars", "collect", "collect_schema")
    )


def in_turn(rows: object) -> bool:
    """Return whether rows or tables are taken one by one, and once, as those of a generator are."""
    return isinstance(rows, Iterator) and not hasattr(rows, "__arrow_c_stream__")


def in_async_turn(rows: object) -> bool:
    """Return whether rows are taken one by one with ``async for``."""
    return isinstance(rows, AsyncIterable)


def _is_records(rows: object) -> bool:
    return isinstance(rows, np.ndarray) and rows.ndim == 1 and bool(rows.dtype.names)


def _of(rows: object, library: str, *methods: str) -> bool:
    """Return whether something is of a library, whatever class it has there, and has these methods."""
    return type(rows).__module__.partition(".")[0] == library and all(hasattr(rows, method) for method in methods)


def of_pandas(rows: object) -> bool:
    """Return whether it is a frame or series of pandas; version 3 calls their module ``pandas``, others what is below it."""
    return type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "to_dict")
