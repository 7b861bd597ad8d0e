"""Values of columns in the names of folders, as Hive and Spark have them: ``day=2026-11-26/user=7/part-0.parquet``.

A null is ``__HIVE_DEFAULT_PARTITION__``. Signs that mean something in paths are written as ``%`` and two digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from krishiv_py.connectors.values import check_years, not_written
from krishiv_py.errors import SchemaError, shown, unknown_column
from krishiv_py.types import storable_hint, type_text

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_FOLDER: Final = re.compile(r"/([^/=]+)=([^/]*)(?=/)")
_ESCAPED: Final = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{}\[\]^]""")
_UNFINISHED: Final = "._COPYING_"
_MOST_BYTES: Final = 255
"""Of the name of a folder, on most file systems."""


def partitions(path: str) -> dict[str, str | None]:
    """Return what the folders of a path say of all rows of the file: ``.../user=7/...``."""
    return {unquote(name): None if value == NULL_PARTITION else unquote(value) for name, value in _FOLDER.findall(path)}


def _otherwise(name: str, type_: pa.DataType) -> str:
    """Return what to write for a column of another type."""
    if pa.types.is_floating(type_) or pa.types.is_binary(type_):
        return f'write .with_column({name!r}, col({name!r}).cast("string"))'
    return storable_hint(name, type_)


def check_partitions(sink: str, names: Sequence[str], schema: pa.Schema) -> None:
    """Refuse columns that cannot be folders of the files of a `sink`.

    Raises
    ------
    ColumnError
        For a name that is not a column.
    SchemaError
        For types that have no text, and when no column is left for the files.
    """
    for name in names:
        if name not in schema.names:
            raise unknown_column(name, schema.names, f"`partition_by` of {sink}")
        if not _fits(schema.field(name).type):
            type_ = schema.field(name).type
            got = f"{name} is {type_text(type_)}"
            hint = f"use text, whole numbers, decimals, booleans, dates or times; {_otherwise(name, type_)}"
            raise SchemaError(f"`partition_by` of {sink} is a column that has no name as a folder", got=got, hint=hint)
    if names and len(names) == len(schema.names):
        hint = "leave one column out"
        then = "files would be empty"
        raise SchemaError(f"`partition_by` of {sink} has all columns", got=", ".join(names), then=then, hint=hint)


def _fits(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32, pa.types.is_timestamp)
    return any(test(kind) for test in (*tests, pa.types.is_decimal))


def parted(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the folder of each combination of values, and its rows without these columns, in their order.

    Raises
    ------
    OperatorError
        For a date or time that has no name, and a text that is too long for one.
    """
    codes, folders = np.zeros(table.num_rows, np.int64), [""]
    for name in names:
        folder_texts = _texts(table[name], name).combine_chunks().dictionary_encode(null_encoding="encode")
        texts = [_folder(name, text) for text in folder_texts.dictionary.to_pylist()]
        codes = codes * len(texts) + folder_texts.indices.to_numpy(zero_copy_only=False)
        used, codes = np.unique(codes, return_inverse=True)
        folders = [f"{folders[i // len(texts)]}/{texts[i % len(texts)]}".lstrip("/") for i in used.tolist()]
    order = np.argsort(codes, kind="stable")
    rows = table.drop_columns(list(names)).take(pa.array(order))
    begins = np.searchsorted(codes[order], np.arange(len(folders) + 1))
    for i, folder in enumerate(folders):
        yield folder, rows.slice(begins[i], begins[i + 1] - begins[i])


def _texts(values: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Values as texts, of which `partitions` and a cast make the same values again."""
    check_years(values, name, "the name of a folder")
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz))
        values = values.cast(pa.int64()).cast(pa.timestamp("us"))  # a time with a zone is that in UTC
    return values.cast(pa.string())


def _folder(name: str, text: str | None) -> str:
    value = NULL_PARTITION if not text else _escaped(text)
    if value.endswith(_UNFINISHED):
        value = value.removesuffix(_UNFINISHED) + _UNFINISHED.replace(".", "%2E")
    column = _escaped(name)
    folder = f"{'%2E' + column[1:] if column.startswith('.') else column}={value}"
    if len(folder.encode()) > _MOST_BYTES:
        got = f"a text of {len((text or '').encode())} bytes"
        raise not_written(name, "the name of a folder", got, f"shorten it, or leave {shown(name)} out of partition_by")
    return folder


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)
