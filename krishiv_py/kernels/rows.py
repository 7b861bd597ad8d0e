"""What users send, as one Arrow batch of the stream's schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from krishiv_py.errors import SchemaError, message
from krishiv_py.kernels.evaluate import one_batch


def _from_dicts(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    known = set(schema.names)
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaError(message(f"row {at} is no mapping", repr(row)[:200], "its columns are unknown", "send dicts"))
        extra = [k for k in row if k not in known]
        if extra:
            raise SchemaError(message(f"row {at} has a column the stream has not", extra[0], "its value would be lost",
                                      f"the columns are: {', '.join(schema.names[:20])}"))
    arrays = [_column([row.get(f.name) for row in rows], f) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError) as problem:
        for at, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
                raise SchemaError(message(f"row {at}, column {field.name!r}: not a {field.type}", repr(value)[:200],
                                          "the batch was not sent", f"send {field.type} values")) from problem
        raise SchemaError(message(f"column {field.name!r}: not {field.type}", str(problem), "the batch was not sent",
                                  f"send {field.type} values")) from problem


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    given, wanted = set(batch.schema.names), set(schema.names)
    missing = [n for n in schema.names if n not in given]
    extra = [n for n in batch.schema.names if n not in wanted]
    if missing or extra:
        raise SchemaError(message("the batch has other columns than the stream",
                                  f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(extra) or 'none'}",
                                  "the batch was not sent", f"the columns are: {', '.join(schema.names[:20])}"))
    arrays = []
    for field in schema:
        column = batch.column(field.name)
        if column.type != field.type and not _harmless(column.type, field.type):
            raise SchemaError(message(f"column {field.name!r} has the wrong type",
                                      f"{column.type}, the stream has {field.type}", "the batch was not sent",
                                      f"cast the column to {field.type}"))
        try:
            arrays.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowInvalid as problem:
            raise SchemaError(message(f"column {field.name!r} does not fit {field.type}", str(problem),
                                      "the batch was not sent", f"cast the column to {field.type}")) from problem
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _harmless(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a checked cast keeps the meaning: wider numbers, another time unit, another string layout, all null."""
    types = pa.types
    if types.is_null(given):
        return True
    if types.is_dictionary(given):
        return _harmless(given.value_type, wanted) or given.value_type == wanted
    if types.is_timestamp(given) and types.is_timestamp(wanted):
        return bool(given.tz) == bool(wanted.tz)
    if types.is_integer(given) and types.is_integer(wanted):
        return True
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    if any(t(given) for t in texts) and any(t(wanted) for t in texts):
        return True
    if types.is_nested(given) and types.is_nested(wanted):
        return True
    return bool((types.is_float32(given) or types.is_float16(given)) and types.is_float64(wanted))


def as_batch(rows: Any, schema: pa.Schema) -> pa.RecordBatch:
    """One batch of `schema` from a RecordBatch, a Table, a list of dicts or a pandas DataFrame.

    Raises
    ------
    SchemaError
        Naming the column, the wrong type and, for dicts, the row.
    """
    if isinstance(rows, pa.Table):
        return _fitted(one_batch(rows), schema)
    if isinstance(rows, pa.RecordBatch):
        return _fitted(rows, schema)
    if isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)):
        return _from_dicts(rows, schema)
    if type(rows).__module__.startswith("pandas") and hasattr(rows, "to_dict"):
        return _fitted(pa.RecordBatch.from_pandas(rows, preserve_index=False), schema)
    raise SchemaError(message("not a batch", type(rows).__name__, "nothing was sent",
                              "send a pyarrow RecordBatch or Table, a list of dicts, or a pandas DataFrame"))
