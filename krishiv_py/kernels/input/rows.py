"""Rows that users send, as one Arrow batch of the stream's schema, and input that is not a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from krishiv_py.connectors.fit import SENT, fitted, fitted_batch
from krishiv_py.connectors.frames import arrow_table
from krishiv_py.connectors.values import UnfitError, column
from krishiv_py.errors import SchemaError, shown
from krishiv_py.kernels.columns.evaluate import batches_of, one_batch
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.plan.row_classes import as_values, names_of
from krishiv_py.types import type_text

_NOT_SENT: Final = "the batch was not sent"


def _from_dicts(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    known = set(schema.names)
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaError(f"row {i} is not a mapping", got=shown(row), hint="send dicts")
        if not row.keys() <= known:
            extra = next(k for k in row if k not in known)
            raise SchemaError(
                f"row {i} has a column that is not in the stream",
                got=extra,
                hint=f"the columns are: {', '.join(schema.names[:20])}",
            )
    arrays = [fitted(_column([row.get(f.name) for row in rows], f), f, SENT, _NOT_SENT) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return column(values, field.type)
    except UnfitError as problem:
        inside = f" at {problem.path}" if problem.path else ""
        raise SchemaError(
            f"row {problem.at}, column {field.name!r}: not a {type_text(problem.type)}{inside}",
            got=shown(problem.value),
            then=f"{problem.why}; {_NOT_SENT}",
            hint=problem.hint,
        ) from None


def as_batch(rows: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Return what :func:`as_batches` gives, as one batch."""
    batches = as_batches(rows, schema)
    return batches[0] if len(batches) == 1 else one_batch(pa.Table.from_batches(batches))


def as_batches(rows: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return a batch of `schema` from a list of dicts or whatever holds Arrow data (:func:`arrow_table`).

    They are several where the texts of a table are too long for one.

    Raises
    ------
    SchemaError
        Naming the column, the wrong type and, for dicts, the row.
    """
    if isinstance(rows, pa.RecordBatch):
        return [fitted_batch(rows, schema, SENT, _NOT_SENT)]
    if isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)):
        nested = any(pa.types.is_nested(type_) for type_ in schema.types)
        if nested or any(names_of(type(row)) is not None for row in rows):
            rows = [as_values(row) for row in rows]
        return [_from_dicts(rows, schema)]
    table = arrow_table(rows)
    if table is not None:
        return [fitted_batch(batch, schema, SENT, _NOT_SENT) for batch in batches_of(table)]
    raise SchemaError(
        "not a batch",
        got=type(rows).__name__,
        hint="send a pyarrow RecordBatch or Table, a list of dicts or objects, or a frame of pandas, Polars or DuckDB",
    )


def late_output_schema(layout: Layout) -> pa.Schema:
    """Schema of late rows as handlers get them; columns of malformed input come before the last three."""
    inner = layout.late_schema
    if not layout.spec.malformed:
        return inner
    taken = set(inner.names)
    extra = []
    for what, type_ in layout.spec.malformed:
        name = f"malformed_{what}"
        while name in taken:
            name = f"late_{name}"
        extra.append(pa.field(name, type_))
    return pa.schema([*list(inner)[:-3], *extra, *list(inner)[-3:]])


def late_output(layout: Layout, tables: Sequence[pa.Table]) -> pa.Table:
    """Late rows and malformed input in one table."""
    schema = late_output_schema(layout)
    return pa.concat_tables([schema.empty_table(), *tables], promote_options="default" if layout.spec.malformed else "none")


def malformed_rows(layout: Layout, columns: Mapping[str, Sequence[str | int | bytes | None]], watermark_us: int) -> pa.Table:
    """Malformed input as late rows; `columns` have all that is known of it, by name."""
    schema, n = late_output_schema(layout), len(columns["problem"])
    arrays = [pa.nulls(n, field.type) for field in layout.late_schema][:-3]
    arrays += [pa.array(columns[what], type_) for what, type_ in layout.spec.malformed]
    arrays += layout.refusal_notes(pa.repeat(pa.scalar("malformed"), n), watermark_us)
    return pa.Table.from_arrays(arrays, schema=schema)
