"""Several values as one, for counting distinct combinations."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import normal_key
from krishiv_py.functions.computing.casts import cast
from krishiv_py.functions.computing.values import Value, arrays, joined, misfit


def distinct_key(values: list[Value]) -> Value:
    """Bytes that are equal if, and only if, the values are: each with its length before it; null where one is."""
    columns, single = arrays(*values)
    parts = [part for column in columns for part in _told(column)]
    return joined(pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary())), single)


def _told(column: pa.Array) -> tuple[pa.Array, pa.Scalar, pa.Array]:
    """A column as bytes, with their number before it."""
    type_ = column.type
    if pa.types.is_nested(type_):
        raise misfit(type_)
    if pa.types.is_null(type_):
        column = pa.nulls(len(column), pa.binary())
    elif pa.types.is_date(type_):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(type_):
        column = column.cast(pa.int64())
    plain = normal_key(column)  # one zero, one NaN
    if not pa.types.is_binary(plain.type):
        plain = pc.cast(cast(plain, pa.string(), named=True), pa.binary())
    length = pc.cast(pc.cast(pc.binary_length(plain), pa.string()), pa.binary())
    return length, pa.scalar(b":", pa.binary()), plain
