"""Determine which column of PostgreSQL takes which type."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from krishiv_py.errors import SchemaError
from krishiv_py.types import type_text

_WHOLE: Final = ("smallint", "integer", "bigint", "numeric")
_TEXTS: Final = ("text", "character varying", "character", "json", "jsonb", "uuid", "citext", "USER-DEFINED")
_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "bool": ("boolean",),
    "int8": _WHOLE,
    "int16": _WHOLE,
    "int32": _WHOLE[1:],
    "int64": _WHOLE[2:],
    "float": ("real", "double precision", "numeric"),
    "double": ("double precision", "numeric"),
    "string": _TEXTS,
    "binary": ("bytea",),
    "date32[day]": ("date",),
    "timestamp[us, tz=UTC]": ("timestamp with time zone",),
    "timestamp[us]": ("timestamp without time zone",),
    "duration[us]": ("interval",),
}
"""The first is the column that is made; the others take every value too."""


def check_types(columns: pa.Schema) -> None:
    """Refuse types that no column takes.

    Raises
    ------
    SchemaError
        Naming the column.
    """
    for field in columns:
        try:
            column_type(field.type)
        except KeyError:
            got, so = f"{field.name} is {type_text(field.type)}", "its values could not be written"
            raise SchemaError(
                "PostgreSQL has no such type", got=got, then=so, hint="cast it with .with_column or .select"
            ) from None


def column_type(kind: pa.DataType) -> str:
    """The type of the column that is made for values of a `kind`."""
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_null(kind):
        return "text"
    if pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type):
        return f"{column_type(kind.value_type)}[]"
    return "jsonb" if pa.types.is_nested(kind) else _KINDS[str(kind)][0]


def takes(column: str, kind: pa.DataType) -> bool:
    """Return whether a column of this type, as ``format_type`` shows it, takes every value of a `kind`."""
    base = column.partition("(")[0] if not column.endswith("[]") else column
    if pa.types.is_null(kind):
        return True
    if pa.types.is_decimal(kind):
        return _takes_decimal(column, kind)
    if pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type):
        return column.endswith("[]") and takes(column[:-2], kind.value_type)
    if pa.types.is_nested(kind):
        return base in ("jsonb", "json")
    if pa.types.is_string(kind):
        return not column.endswith("[]") and base not in _NO_TEXTS
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):  # timestamp(3) with time zone and interval(0) would round
        return column in _KINDS[str(kind)]
    if base == "numeric" and column != base:
        return False
    return base in _KINDS[str(kind)]


_NO_TEXTS: Final = {
    *("character", '"char"', "name", "money", "tsvector", "tsquery", "xid"),  # they pad, cut or rewrite texts
    *_WHOLE,
    *(taken for kind in _KINDS.values() for taken in kind if kind != _TEXTS),
    *("timestamp", "time", "time with time zone", "time without time zone"),
}


def _takes_decimal(column: str, kind: pa.DataType) -> bool:
    if column == "numeric":
        return True
    if not column.startswith("numeric("):
        return False
    precision, scale = (int(n) for n in column[8:-1].split(","))
    return bool(scale >= kind.scale and precision - scale >= kind.precision - kind.scale)
