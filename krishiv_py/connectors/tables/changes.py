"""Find the last line of each key in a change log, and compare keys as databases do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import comparable, group
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import pick
from krishiv_py.connectors.tables.keys import OP, is_log
from krishiv_py.errors import OperatorError, shown

Numbers: TypeAlias = npt.NDArray[np.int64]
WITHDRAWN: Final = ("-U", "-D")
"""The marks of rows that are not valid any more."""
_ADDED: Final = ("+I", "+U")


def last_changes(rows: pa.Table, key: Sequence[str], name: str) -> tuple[pa.Array, pa.Array]:
    """Return where the last line of each key is, ascending: of the keys that have a row then, and of those that have none.

    Raises
    ------
    OperatorError
        As :func:`~krishiv_py.connectors.net_changes` does.
    """
    numbers = group([rows[column] for column in key], rows.num_rows).ids
    last = _last(numbers)
    if not is_log(rows.schema):
        return last, last.slice(0, 0)
    op = rows[OP].combine_chunks()
    check_marks(op)
    gone = pc.is_in(op, pa.array(WITHDRAWN))
    _check_unique(rows.select(list(key)), numbers, gone, name)
    removed = gone.take(last)
    return last.filter(pc.invert(removed)), last.filter(removed)


def newest_changes(rows: pa.Table, key: Sequence[str], by: str) -> tuple[pa.Table, pa.Table]:
    """Return the newest row of each key by a column, of equal ones the last: those to put, and those that are withdrawn.

    In a log a row that takes the place of another one says so by itself: what it withdraws tells nothing more.
    """
    rows = one_form(rows, key)
    if is_log(rows.schema):
        check_marks(rows[OP].combine_chunks())
        rows = rows.filter(pc.not_equal(rows[OP], "-U"))
    order = pa.table({"valid": pc.is_valid(rows[by]), "by": rows[by]})  # a row without a value is the oldest
    rows = rows.take(pc.sort_indices(order, [("valid", "ascending"), ("by", "ascending")]))
    newest = rows.take(_last(group([rows[column] for column in key], rows.num_rows).ids))
    if not is_log(rows.schema):
        return newest, newest.slice(0, 0)
    gone = pc.equal(newest[OP], "-D")
    return newest.filter(pc.invert(gone)), newest.filter(gone)


def last_lines(rows: pa.Table, key: Sequence[str], name: str) -> pa.Table:
    """Return the last line of each key, in order; see :func:`last_changes`."""
    there, gone = last_changes(one_form(rows, key), key, name)
    return rows.take(pa.array(np.sort(np.concatenate([there.to_numpy(), gone.to_numpy()]))))


def check_marks(op: pa.Array) -> None:
    """Refuse a column ``op`` that is not the one of a change log.

    Raises
    ------
    OperatorError
        Naming what it holds.
    """
    known = pc.fill_null(pc.or_(pc.is_in(op, pa.array(WITHDRAWN)), pc.is_in(op, pa.array(_ADDED))), False)
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


def _last(numbers: Numbers) -> pa.Array:
    """Return where the last row of each key is, ascending, by the number of the key of each row."""
    last = np.zeros(numbers.max(initial=-1) + 1, np.int64)
    last[numbers] = np.arange(len(numbers))
    return pa.array(np.sort(last))


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


def _check_unique(keys: pa.Table, numbers: Numbers, gone: pa.Array, name: str) -> None:
    """In a log each key has at most one valid row: what is added is withdrawn before the next row of the key is added."""
    order = np.argsort(numbers, kind="stable")
    numbers, added = numbers[order], ~gone.to_numpy(zero_copy_only=False)[order]
    twice = np.flatnonzero((numbers[1:] == numbers[:-1]) & added[1:] & added[:-1])
    if len(twice):
        twice_key = keys.slice(int(order[twice[0]]), 1).to_pylist()[0]
        raise OperatorError(
            f"`key` of {name} does not tell results apart",
            got=f"several valid rows of {shown(twice_key)} in one batch",
            then="only one of them would be in the table",
            hint="name all columns that make a result what it is: the keys, and window_start and window_end",
        )


def content_of(changes: pa.Table) -> pa.Table:
    """Return the rows that are left after some changes, in the order in which they were given last, without their kind."""
    rows = changes.drop_columns([OP])
    groups = group([comparable(rows[name]) for name in rows.column_names], rows.num_rows)
    adds = ~pc.starts_with(changes[OP], "-").to_numpy(zero_copy_only=False)
    left = np.zeros(groups.n, np.int64)
    np.add.at(left, groups.ids, np.where(adds, 1, -1))
    last = np.full(groups.n, -1, np.int64)
    last[groups.ids[adds]] = np.flatnonzero(adds)
    there = np.flatnonzero(left > 0)
    there = there[stable_order(last[there])]
    return pick(rows, np.repeat(last[there], left[there]))
