"""Rows in the files of a Delta table: as delta-rs takes them, without values that would not come back, and read in a task."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from krishiv_py.connectors.fit import TABLE, FileColumn, MisfitError, explained, file_columns, open_parquet
from krishiv_py.connectors.tables.delta.place import filesystem
from krishiv_py.connectors.tables.keys import NetChanges
from krishiv_py.connectors.values import check_years
from krishiv_py.errors import RAISED, OperatorError, SourceError, failure_text, shown

_NULLS: Final = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts that a partition gives back as a null."""


def laid_out(rows: pa.Table) -> pa.Table:
    """Rows without slices of structs in structs: Arrow in Rust ends the process when it is handed one (arrow-data 59)."""
    for i, field in enumerate(rows.schema):
        if any(map(_is_slice, rows[field.name].chunks)):
            rows = rows.set_column(i, field, rows[field.name].take(pa.array(np.arange(rows.num_rows))))
    return rows


def _is_slice(values: pa.Array) -> bool:
    """Return whether lists, maps or structs, or such values in them, begin in the middle of a buffer."""
    if not pa.types.is_nested(values.type):
        return False
    if pa.types.is_struct(values.type):
        inner = [values.field(i) for i in range(values.type.num_fields)]
    else:
        inner = [values.keys, values.items] if pa.types.is_map(values.type) else [values.values]
    return values.offset > 0 or any(map(_is_slice, inner))


def check_rows(rows: pa.Table, parts: Sequence[str]) -> None:
    """Refuse days, and times in partitions, whose texts in the log nobody can read: the table could not be read any more.

    Raises
    ------
    OperatorError
        Naming the column.
    """
    for field in rows.schema:
        if pa.types.is_date32(field.type) or field.name in parts:
            check_years(rows[field.name], field.name, "a Delta table")


def check_parts_of_key(net: NetChanges, parts: Sequence[str]) -> None:
    """Refuse what would come back as a null: as part of a key it would never be found again.

    Raises
    ------
    OperatorError
        Naming the column.
    """
    for name in parts:
        if name in net.gone.schema.names and pa.types.is_string(net.put.schema.field(name).type):
            rows = pa.chunked_array([*net.put[name].chunks, *net.gone[name].chunks], pa.string())
            for text in pc.unique(rows.filter(pc.is_in(rows, pa.array(_NULLS)))).to_pylist():
                empty = "an empty text" if not text else "such a text"
                hint = "partition by other columns, or give the rows another text"
                what, got = f"{empty} cannot be in a key that is a partition", f"{name} is {shown(text)}"
                raise OperatorError(what, got=got, then="Delta keeps it as a null, and rows would be doubled", hint=hint)


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
