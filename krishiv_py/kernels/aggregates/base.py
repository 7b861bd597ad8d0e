"""Rows by group, as aggregates get them, and small helpers."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, Mask, NumPy, as_arrow


@attrs.frozen(eq=False)
class Rows:
    """The input of one aggregate: values (None for ``count(*)``), event times, and the group of every row."""

    values: pa.Array | None
    times: Ints
    ids: Ints
    n: int


def valid_rows(values: pa.Array, ids: Ints) -> tuple[pa.Array, Ints, Mask | None]:
    """Values without nulls, with their groups, and the mask that chose them (None: all)."""
    if values.null_count == 0:
        return values, ids, None
    mask = values.is_valid().to_numpy(zero_copy_only=False)
    return values.drop_null(), ids[mask], mask


def numbers(values: pa.Array) -> NumPy:
    """A null-free numeric array as NumPy."""
    plain: NumPy = values.to_numpy(zero_copy_only=False)
    return plain


def with_nulls(values: NumPy, present: Mask, type_: pa.DataType) -> pa.Array:
    """An Arrow array of `type_`, null where not present."""
    if not present.all():
        return pa.array(values, type_, mask=~present)
    return as_arrow(values) if type_ == pa.int64() and values.dtype == np.int64 else pa.array(values, type_)


def present_groups(ids: Ints, n: int) -> Mask:
    """Return which groups have any row."""
    mask = np.zeros(n, np.bool_)
    mask[ids] = True
    return mask


def lists(values: pa.Array, ids: Ints, n: int) -> pa.Array:
    """A list column from values already ordered by group."""
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum(np.bincount(ids, minlength=n), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def flatten(column: pa.Array, ids: Ints) -> tuple[pa.Array, Ints]:
    """The values of a list column and the group of each."""
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return column.flatten(), np.repeat(ids, lengths)
