"""Values and types of columns as SQLite has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors import json_texts
from krishiv_py.connectors.values import check_years

WHOLE, _REAL, _TEXT, _BLOB = "INTEGER", "REAL", "TEXT", "BLOB"


def column_type(kind: pa.DataType) -> str:
    """Return the type of the column that is made for values of a `kind`.

    Raises
    ------
    KeyError
        When there is none.
    """
    is_ = pa.types
    if is_.is_boolean(kind) or is_.is_signed_integer(kind) or is_.is_duration(kind):
        return WHOLE
    if is_.is_float32(kind) or is_.is_float64(kind):
        return _REAL
    if is_.is_binary(kind):
        return _BLOB
    plain = is_.is_string(kind) or is_.is_decimal(kind) or is_.is_timestamp(kind) or is_.is_date32(kind) or is_.is_null(kind)
    if plain or (is_.is_nested(kind) and json_texts.has_text(kind)):
        return _TEXT
    raise KeyError(str(kind))


def values_of(values: pa.ChunkedArray, name: str) -> list[Any]:
    """Return a column called `name` as SQLite holds it.

    Raises
    ------
    OperatorError
        For a time before year 1 or after 9999.
    """
    kind, is_ = values.type, pa.types
    if is_.is_nested(kind):
        json = json_texts.texts(values, name)
        values = pc.if_else(values.is_valid(), json, pa.scalar(None, pa.string()))
        return list(values.to_pylist())
    if is_.is_timestamp(kind):
        check_years(values, name, "SQLite")
        text = values.cast(pa.timestamp("us")).cast(pa.string())
        values = text if kind.tz is None else pc.binary_join_element_wise(text, "+00:00", "")
    elif is_.is_date32(kind):
        check_years(values, name, "SQLite")
        values = values.cast(pa.string())
    elif is_.is_duration(kind):
        values = values.cast(pa.int64())
    elif is_.is_decimal(kind):
        values = values.cast(pa.string())
    elif is_.is_floating(kind) and pc.any(pc.is_nan(values), min_count=0).as_py():  # SQLite would make it a null
        return ["NaN" if value != value else value for value in values.to_pylist()]
    return list(values.to_pylist())


def _affinity(declared: str) -> str:
    """Return what SQLite makes of values in a column of this type (its documentation, "Determination Of Column Affinity")."""
    upper = declared.upper()
    if "INT" in upper:
        return WHOLE
    if any(part in upper for part in ("CHAR", "CLOB", "TEXT")):
        return _TEXT
    if not upper or "BLOB" in upper or upper == "ANY":
        return _BLOB
    return _REAL if any(part in upper for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


_TAKES: Final = {
    WHOLE: (WHOLE, "NUMERIC", _BLOB),
    _REAL: (_REAL, _BLOB),
    _TEXT: (_TEXT, _BLOB),
    _BLOB: (WHOLE, "NUMERIC", _REAL, _TEXT, _BLOB),
}
"""The kinds of columns that keep each value as it is; bytes are as they are in all."""


def keeps(declared: str, kind: pa.DataType) -> bool:
    """Return whether a column that is declared as such keeps each value of a `kind` as it is."""
    return _affinity(declared) in _TAKES[column_type(kind)]


def with_nulls_apart(rows: pa.Table, key: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Return rows without a null in their key, and the others."""
    null = pc.is_null(rows[key[0]])
    for name in key[1:]:
        null = pc.or_(null, pc.is_null(rows[name]))
    return rows.filter(pc.invert(null)), rows.filter(null)
