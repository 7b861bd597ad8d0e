"""A table of one row a key: a log of written rows by the hash of the key, of which the newest counts.

::

    run 1    a: 3   b: 1   c: 7        table    a: 4   b: gone   c: 7
    run 2    a: 4   b: gone

A batch looks up the keys that it brings and appends what became of them; tails of equal size are merged, and keep the newest
row of a key. So a batch costs what it brings, whatever is in the table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group, places_among
from krishiv_py.arrays.sorting import sorted_unique
from krishiv_py.arrays.types import Ints, Mask, largest_of, last_rows, pick
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import HASH, DeadKeys, KeyedLog
from krishiv_py.plan.durations import UNSET

LIVE: Final = "__live"
"""False in the row of a key that was deleted."""
ROW: Final = "__n"
"""The numbers of rows of a key, ascending."""
HAS_STATE: Final = "__has"
"""False in the row of a key that has no value of the user's."""
STATE_FIELD: Final = "s:"
"""With this the columns of the fields of such a value begin."""


class KeyedRows(ABC):
    """Rows of keys in a log by the hash of the key, of which newer ones have a say about older ones.

    Parameters
    ----------
    bucket : Bucket
        Where they are.
    name : str
        What their tables are called.
    keys, values : list of pyarrow.Field
        The columns of the key, and the others.
    """

    def __init__(self, bucket: Bucket, name: str, keys: list[pa.Field], values: list[pa.Field]) -> None:
        self._names = [field.name for field in keys]
        self._schema = pa.schema([pa.field(HASH, pa.int64()), *keys, pa.field(LIVE, pa.bool_()), *values])
        self._log = KeyedLog(bucket, name, self._schema, self._left)

    def __len__(self) -> int:
        return len(self._log)

    def of_hashes(self, hashes: Ints) -> pa.Table:
        """Return the rows of the keys with these hashes."""
        return self._left(self._log.lookup(sorted_unique(hashes)), True)

    def drop(self, dead: DeadKeys) -> pa.Table:
        """Take keys out; returns their rows."""
        return self._left(self._log.remove(dead.hashes, dead.rows), True)

    @abstractmethod
    def _left(self, rows: pa.Table, oldest: bool) -> pa.Table:
        """Return the rows that count; what says that others do not is needed no more where nothing older is left."""


class KeyTable(KeyedRows):
    """See the module's docstring."""

    def lookup(self, keys: pa.Table, hashes: Ints, order: Ints | None = None) -> tuple[pa.Table, Ints]:
        """Return the rows of some keys, and of each key the position of its row among them, -1 where it has none.

        `keys` has each key once, under the names of the columns of the key, with its hash; `order` is that of the hashes.
        """
        ordered = sorted_unique(hashes) if order is None else hashes[order]
        if order is not None and len(ordered) and not (again := ordered[1:] != ordered[:-1]).all():
            ordered = ordered[np.append(again, True)]
        rows = self._log.lookup(ordered)
        places = np.full(keys.num_rows, -1, np.int64)
        if rows.num_rows:
            of_keys = places_among(self._names, keys, rows)
            mine = of_keys >= 0  # of other keys of the same hash nothing was asked
            places[of_keys[mine]] = np.flatnonzero(mine)  # of several writes to one place the last one counts
            live = rows[LIVE].to_numpy()
            places[(places >= 0) & ~live[places]] = -1
        return rows, places

    def write(
        self, keys: pa.Table, hashes: Ints, live: Mask, values: list[pa.Array | pa.ChunkedArray], order: Ints | None = None
    ) -> None:
        """Put rows in place of those of their keys, or delete the keys where `live` is false; each key once."""
        columns = [pa.array(hashes), *(keys[k] for k in self._names), pa.array(live), *values]
        rows = pa.Table.from_arrays(columns, schema=self._schema)
        self._log.append(rows if order is None else pick(rows, order))

    def rows(self) -> pa.Table:
        """Return the row of each key, with a column that says when it was written."""
        return self._left(self._log.written(), True)

    def _left(self, rows: pa.Table, oldest: bool) -> pa.Table:
        """Return the newest row of every key; deletions are not needed any more once nothing older is left."""
        groups = group([rows[k] for k in self._names], rows.num_rows)
        last = last_rows(groups.ids, groups.n)
        if oldest:
            last = last[rows[LIVE].to_numpy()[last]]
        return pick(rows, np.sort(last))


class KeyRowLog(KeyedRows):
    """Rows by key, of which the oldest go: a log of numbered rows, and of marks before which those of a key are gone.

    ::

        run 1    a1   b2   a3        rows    a3   a5   b2
        run 2    a: before 3   a5

    """

    def __init__(self, bucket: Bucket, name: str, keys: list[pa.Field], values: list[pa.Field]) -> None:
        super().__init__(bucket, name, keys, [pa.field(ROW, pa.int64()), *values])

    def append(self, rows: pa.Table, hashes: Ints) -> None:
        """Add rows with the columns of keys and values, and their numbers as ``ROW``."""
        self._add({name: rows[name] for name in self._schema.names if name not in (HASH, LIVE)}, hashes, live=True)

    def drop_before(self, keys: pa.Table, hashes: Ints, numbers: Ints) -> None:
        """Let the rows of keys with smaller numbers be gone."""
        self._add({ROW: pa.array(numbers)} | {name: keys[name] for name in self._names}, hashes, live=False)

    def _add(self, columns: dict[str, pa.Array], hashes: Ints, *, live: bool) -> None:
        n = len(hashes)
        columns |= {HASH: pa.array(hashes), LIVE: pa.array(np.full(n, live))}
        arrays = [columns[f.name] if f.name in columns else pa.nulls(n, f.type) for f in self._schema]
        self._log.append(pa.Table.from_arrays(arrays, schema=self._schema))

    def _left(self, rows: pa.Table, oldest: bool) -> pa.Table:
        """Return the rows that are not gone; marks are not needed any more once nothing older is left."""
        live, numbers = rows[LIVE].to_numpy(), rows[ROW].to_numpy()
        marks = np.flatnonzero(~live)
        if not len(marks):
            return rows
        groups = group([rows[k] for k in self._names], rows.num_rows)
        begins = largest_of(groups.ids[marks], numbers[marks], groups.n, UNSET)
        left = live & (numbers >= begins[groups.ids])
        if not oldest:
            last = np.full(groups.n, -1)
            of_largest = marks[numbers[marks] == begins[groups.ids[marks]]]
            last[groups.ids[of_largest]] = of_largest
            left[last[last >= 0]] = True
        return pick(rows, np.flatnonzero(left))
