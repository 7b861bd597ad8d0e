"""Rows by key: what is shown of the state or of results, for those who look a key up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import attrs
import pyarrow as pa

from krishiv_py.arrays.grouping import among, key_hashes
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints
from krishiv_py.errors import PlanError
from krishiv_py.kernels.columns.times import bounds_of
from krishiv_py.kernels.spec import OperatorSpec

AGE_MS: Final = b"age_ms"
"""The name in the metadata of a table under which the age of a snapshot is, in milliseconds."""


@attrs.define(eq=False)
class KeyedRows:
    """Rows in their order, and an index of them by key, which is made when somebody looks."""

    table: pa.Table
    hashes: Ints | None = None
    order: Ints | None = None

    @property
    def nbytes(self) -> int:
        return int(self.table.get_total_buffer_size())

    def rows_of(self, key: pa.Table, mark: int, names: Sequence[str], most: int) -> pa.Table | None:
        """Return the newest rows of a key with this hash, `most` at the most; None if there are none."""
        if self.hashes is None or self.order is None:
            hashes = key_hashes([self.table[name] for name in names], self.table.num_rows)
            self.order = stable_order(hashes)
            self.hashes = hashes[self.order]
        start, stop = self.hashes.searchsorted(mark, side="left"), self.hashes.searchsorted(mark, side="right")
        if start == stop:
            return None
        rows = pick(self.table, self.order[max(start, stop - most) : stop])
        if not among(rows, key, list(names)).all():  # hashes may meet
            rows = pick(self.table, self.order[start:stop])
            rows = rows.filter(pa.array(among(rows, key, list(names))))
        return rows.slice(max(rows.num_rows - most, 0))


@attrs.define(eq=False)
class StateSnapshot:
    """The windows in state of a stage at one time, with an index by key.

    Attributes
    ----------
    rows : KeyedRows
        Keys, bounds and aggregates so far.
    names : tuple of str
        The key columns.
    taken_s : float
        When it was taken, by the clock that never goes back.
    """

    rows: KeyedRows
    names: tuple[str, ...]
    taken_s: float = attrs.field(factory=time.monotonic)

    @property
    def age_s(self) -> float:
        """Return how old it is, in seconds."""
        return time.monotonic() - self.taken_s

    def of(self, keys: pa.Table) -> pa.Table:
        """Return the windows of some keys; the metadata of the table says how old they are."""
        keys, table = keys.rename_columns(list(self.names)), self.rows.table
        marks = key_hashes(list(keys.columns), keys.num_rows).tolist()
        tables = [self.rows.rows_of(keys.slice(i, 1), mark, self.names, table.num_rows) for i, mark in enumerate(marks)]
        rows = pa.concat_tables([table.slice(0, 0), *(some for some in tables if some is not None)])
        return rows.replace_schema_metadata({AGE_MS: str(round(self.age_s * 1_000)).encode()})


def holding(rows: pa.Table, at_us: int, spec: OperatorSpec) -> pa.Table:
    """Return the windows that hold a time, µs since the epoch.

    Raises
    ------
    PlanError
        For windows whose bounds are not times.
    """
    if spec.operation.extent.numbered:
        raise PlanError("count windows hold no time", got=spec.operation.describe(), hint="leave `window` out")
    n = len(spec.keys)
    starts, ends = (bounds_of(joined(rows.column(i)), spec.time_kind) for i in (n, n + 1))
    within = (starts[1] | (starts[0] <= at_us)) & (ends[1] | (ends[0] > at_us))
    return rows.filter(pa.array(within))


def joined(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece."""
    return pa.concat_arrays([*column.chunks, pa.array([], column.type)])
