"""Define what the rows of a micro-batch change in a table with a key: the last line of each key counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.tables.keys import OP, is_log, kept
from krishiv_py.errors import OperatorError, shown

Numbers: TypeAlias = npt.NDArray[np.int64]
_GONE: Final = ("-U", "-D")
_ADDED: Final = ("+I", "+U")
_PLACE: Final = "__krishiv_place"


@attrs.frozen(eq=False)
class Net:
    """Holds what a micro-batch does to a table with a key.

    Attributes
    ----------
    put : pyarrow.Table
        Rows that are there afterwards, one for each key, without ``op``.
    gone : pyarrow.Table
        The keys that are not there afterwards.
    """

    put: pa.Table
    gone: pa.Table


def net(tables: Iterable[pa.Table], key: Sequence[str], sink: str) -> Net:
    """Return the changes of a micro-batch, one for each key.

    Raises
    ------
    OperatorError
        For two valid rows of one key in a change log: the key does not tell results apart, and one would be lost.
    """
    rows = one_form(pa.concat_tables(tables), key)
    schema = kept(rows.schema, key)
    if is_log(rows.schema):
        op = rows[OP].combine_chunks()
        check_marks(op)
        gone = pc.is_in(op, pa.array(_GONE))
        _check_unique(rows, key, gone, sink)
    else:
        gone = pa.repeat(False, rows.num_rows)
    last = _last(rows, key)
    removed = gone.take(last)
    return Net(
        rows.select(schema.names).take(last.filter(pc.invert(removed))), rows.select(list(key)).take(last.filter(removed))
    )


def check_marks(op: pa.Array) -> None:
    """Refuse a column ``op`` that is not the one of a change log.

    Raises
    ------
    OperatorError
        Naming what it holds.
    """
    known = pc.fill_null(pc.or_(pc.is_in(op, pa.array(_GONE)), pc.is_in(op, pa.array(_ADDED))), False)
    if not pc.all(known, min_count=0).as_py():
        row = pc.index(known, False).as_py()
        hint = "the marks are +I, -U, +U, -D; give a column of your own another name than `op`"
        raise OperatorError("a row says of itself no known change", got=shown(op[row].as_py()), hint=hint)


def one_form(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Rows with one zero and one NaN in the key: databases and Spark take all forms for one number, Arrow does not.

    NaN has many forms: that of a division of zeros is another one than that of Python.
    """
    for i, field in enumerate(rows.schema):
        if field.name in key and pa.types.is_floating(field.type):
            values = pc.add(rows[field.name], pa.scalar(0.0, field.type))
            rows = rows.set_column(i, field, pc.if_else(pc.is_nan(values), pa.scalar(math.nan, field.type), values))
    return rows


def _last(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    """Return where the last row of each key is, ascending."""
    placed = rows.select(list(key)).append_column(_PLACE, pa.array(np.arange(rows.num_rows)))
    last = placed.group_by(list(key)).aggregate([(_PLACE, "max")])[f"{_PLACE}_max"].combine_chunks()
    return last.take(pc.sort_indices(last))


def numbered(rows: pa.Table, keys: pa.Table) -> tuple[Numbers, Numbers]:
    """Return a number for each key of both tables, equal where the keys are; nulls are equal, and so are NaNs of
    :func:`one_form`.
    """
    numbers = np.zeros(rows.num_rows + keys.num_rows, np.int64)
    for name in keys.schema.names:
        column = pa.chunked_array([*rows[name].chunks, *keys[name].chunks], keys.schema.field(name).type).combine_chunks()
        codes = pc.dictionary_encode(column, null_encoding="encode").indices.to_numpy(zero_copy_only=False)
        # numbered again after each column: products of many columns would overflow
        _, numbers = np.unique(numbers * (codes.max(initial=0) + 1) + codes, return_inverse=True)
    return numbers[: rows.num_rows], numbers[rows.num_rows :]


def _check_unique(rows: pa.Table, key: Sequence[str], gone: pa.Array, sink: str) -> None:
    """In a log each key has at most one valid row: what is added is withdrawn before the next row of the key is added."""
    keys = rows.select(list(key))
    numbers, _ = numbered(keys, keys.slice(0, 0))
    order = np.argsort(numbers, kind="stable")
    numbers, added = numbers[order], ~gone.to_numpy(zero_copy_only=False)[order]
    twice = np.flatnonzero((numbers[1:] == numbers[:-1]) & added[1:] & added[:-1])
    if len(twice):
        twice_key = keys.slice(int(order[twice[0]]), 1).to_pylist()[0]
        raise OperatorError(
            f"`key` of {sink} does not tell results apart",
            got=f"several valid rows of {shown(twice_key)} in one batch",
            then="only one of them would be in the table",
            hint="name all columns that make a result what it is: the keys, and window_start and window_end",
        )
