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

from krishiv_py.connectors.fit import TABLE, FileColumn, MisfitError, explained, file_columns, open_parquet
from krishiv_py.connectors.tables.delta.place import filesystem
from krishiv_py.errors import RAISED, SourceError, failure_text, shown

_ROWS = 1 << 17
_UNKNOWN = "its rows are not known"
_BYTES = re.compile(r"(?:\\u00[0-9a-fA-F]{2})+")
"""Bytes as Delta's protocol says, and delta-rs writes them; Spark writes those that are a text as this text."""


@functools.lru_cache(maxsize=8)
def _folder(path: str, storage: tuple[tuple[str, str], ...]) -> pafs.FileSystem:
    return filesystem(path, dict(storage))


def rows_of(
    table: str, storage: Mapping[str, str], name: str, parts: Mapping[str, str | None], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in the columns of a schema; a column that it does not have, and that is not a partition, is
    null.

    Raises
    ------
    SourceError
        When the file is gone, or is not what the log says.
    """
    try:
        with _folder(table, tuple(sorted(storage.items()))).open_input_file(unquote(name)) as opened:
            file = open_parquet(opened)
            plain = pa.schema([field for field in schema if field.name not in parts])
            stored = file_columns(plain, file, TABLE, instants=True)
            for batch in file.iter_batches(_ROWS, columns=[column.name for column in stored.values()]):
                yield pa.record_batch([_column(f, batch, parts, stored.get(f.name)) for f in schema], schema=schema)
    except FileNotFoundError:
        raise SourceError(
            "a file of a Delta table is gone",
            got=f"{shown(table)}: {name}",
            then="its rows are lost to this query",
            hint="keep files for longer than a query is stopped (VACUUM ... RETAIN), and begin with a new checkpoint",
        ) from None
    except MisfitError as problem:
        hint = "rewrite the file with the types of the table"
        got = f"{shown(table)}: {name}: {explained(problem)}"
        raise SourceError("a file of a Delta table does not fit its columns", got=got, then=_UNKNOWN, hint=hint) from problem
    except RAISED as problem:
        raise SourceError(
            "a file of a Delta table cannot be read",
            got=f"{shown(table)}: {name}: {failure_text(problem)}",
            then=_UNKNOWN,
            hint="restore the file",
        ) from problem


def _column(field: pa.Field, batch: pa.RecordBatch, parts: Mapping[str, str | None], stored: FileColumn | None) -> pa.Array:
    if field.name in parts:
        return pa.repeat(_value(parts[field.name], field.type), batch.num_rows)
    return pa.nulls(batch.num_rows, field.type) if stored is None else stored.of(batch)


def _value(text: str | None, kind: pa.DataType) -> pa.Scalar[Any]:
    """Return a partition value of the log; an empty text is null, as Delta's protocol says."""
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
