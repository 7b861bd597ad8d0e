"""Reads files of a Delta table in a task."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from krishiv_py.connectors.tables.delta.place import filesystem
from krishiv_py.errors import RAISED, SourceError, message, shown, told

_ROWS = 1 << 17
_BYTES = re.compile(r"(?:\\u00[0-9a-fA-F]{2})+")
"""Bytes as Delta's protocol says, and delta-rs writes them; Spark writes those that are a text as this text."""


@functools.lru_cache(maxsize=8)
def _folder(path: str, storage: tuple[tuple[str, str], ...]) -> pafs.FileSystem:
    return filesystem(path, dict(storage))


def rows_of(
    table: str, storage: Mapping[str, str], name: str, parts: Mapping[str, str | None], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of a file in the columns of a schema; a column that it has not, and that is no partition, is null.

    Raises
    ------
    SourceError
        When the file is gone, or is not what the log says.
    """
    try:
        with _folder(table, tuple(sorted(storage.items()))).open_input_file(unquote(name)) as opened:
            file = pq.ParquetFile(opened)
            stored = [field.name for field in schema if field.name in file.schema_arrow.names]
            for batch in file.iter_batches(_ROWS, columns=stored):
                yield pa.record_batch([_column(field, batch, parts) for field in schema], schema=schema)
    except FileNotFoundError:
        raise SourceError(
            message(
                "a file of a Delta table is gone",
                f"{shown(table)}: {name}",
                "its rows are lost to this query",
                "keep files for longer than a query stands still (VACUUM ... RETAIN), and begin with a new checkpoint",
            )
        ) from None
    except RAISED as problem:
        raise SourceError(
            message(
                "a file of a Delta table cannot be read",
                f"{shown(table)}: {name}: {told(problem)}",
                "its rows are not known",
                "restore the file; a column of another type than the table's has to be rewritten",
            )
        ) from problem


def _column(field: pa.Field, batch: pa.RecordBatch, parts: Mapping[str, str | None]) -> pa.Array:
    if field.name in parts:
        return pa.repeat(_value(parts[field.name], field.type), batch.num_rows)
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    return column if column.type == field.type else column.cast(field.type)


def _value(text: str | None, kind: pa.DataType) -> pa.Scalar[Any]:
    """A partition value of the log; an empty text is null, as Delta's protocol says."""
    if not text:
        return pa.scalar(None, kind)
    if pa.types.is_string(kind):
        return pa.scalar(text, kind)
    if pa.types.is_binary(kind):
        if _BYTES.fullmatch(text):
            return pa.scalar(bytes.fromhex(text.replace("\\u00", "")), kind)
        return pa.scalar(text.encode("utf-8", "surrogateescape"), kind)
    if pa.types.is_timestamp(kind):
        plain = pa.scalar(text.removesuffix("Z")).cast(pa.timestamp("us"))
        return plain if kind.tz is None else pc.assume_timezone(plain, "UTC").cast(kind)
    return pa.scalar(text).cast(kind)
