"""Values of the rows before a row of its key, in settled order.

::

    kept   ·  4  7 │ rows   1  5  2          two rows before   4  7  1        kept from now on   5  2
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, last_rows, values_at
from krishiv_py.kernels.columns.evaluate import evaluate, expr_type
from krishiv_py.kernels.columns.layout import whole
from krishiv_py.kernels.ordered import KeyRows
from krishiv_py.plan.patterns import Prev


class RowsBefore:
    """The values of rows before that a stage reads, each under the name of a hidden column.

    Parameters
    ----------
    read : sequence of (str, Prev)
        The values, by the name of their column.
    rows : pyarrow.Schema
        The rows.
    ahead : int
        The values are those for the row that is so many rows before.
    stored : str
        With this the names of stored columns begin.

    Attributes
    ----------
    stored : list of pyarrow.Field
        What is stored of each key: the last values of each expression.
    fields : list of pyarrow.Field
        The hidden columns.
    """

    def __init__(self, read: Sequence[tuple[str, Prev]], rows: pa.Schema, ahead: int = 0, stored: str = "p") -> None:
        types = [expr_type(node.arg, rows) for _, node in read]
        self._read, self._ahead = read, ahead
        self.stored = [pa.field(f"{stored}{i}", pa.list_(type_)) for i, type_ in enumerate(types)]
        self.fields = [pa.field(name, type_) for (name, _), type_ in zip(read, types, strict=True)]

    def of(self, rows: pa.Table, keys: KeyRows, places: Ints | None = None) -> tuple[list[pa.Array], dict[str, pa.Array]]:
        """Return the values for rows by key, under the names of users, and what is stored from now on, by its name.

        The `places` of rows may have -1 for rows that never come.
        """
        columns, stored = [], {}
        for field, (_, node) in zip(self.stored, self._read, strict=True):
            values = evaluate(node.arg, rows)
            if places is not None:
                values = values.take(pa.array(np.maximum(places, 0), mask=places < 0))
            column, stored[field.name] = _shifted(values, node.rows + self._ahead, keys, whole(keys.stored[field.name]))
            columns.append(column)
        return columns, stored


def _shifted(values: pa.Array, n: int, keys: KeyRows, lists: pa.ListArray) -> tuple[pa.Array, pa.Array]:
    """Return the value `n` rows before each row, and the last `n` values of each key."""
    fresh = np.diff(keys.begins)
    ids = np.repeat(np.arange(keys.n), fresh)
    had = values_at(keys.found, np.diff(lists.offsets.to_numpy()), keys.n)
    of_had = np.repeat(np.arange(keys.n), had)
    known = lists.values.slice(lists.offsets[0].as_py(), len(of_had)) if len(lists) else values[:0]
    order = np.argsort(np.concatenate([of_had, ids]), kind="stable")
    every = pa.concat_arrays([known, values]).take(pa.array(order))
    counts = had + fresh
    ends = np.cumsum(counts)
    source = _places(order)[len(of_had) :] - n
    shifted = every.take(pa.array(np.maximum(source, 0), mask=source < (ends - counts)[ids]))
    left = np.minimum(counts, n)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(left)])
    last = np.arange(offsets[-1]) - np.repeat(offsets[:-1], left) + np.repeat(ends - left, left)
    return shifted, pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), every.take(pa.array(last)))


def _places(order: Ints) -> Ints:
    return last_rows(order, len(order))
