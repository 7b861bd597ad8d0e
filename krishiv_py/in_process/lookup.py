"""Open windows of a few keys, without a look at the others: an index for each table of the state, made at its first use.

Tables of a state are never changed, only replaced. So an index holds as long as its table is there, and after a batch only the
tables that it wrote are looked at once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import among, key_hashes
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints
from krishiv_py.in_process.stage import ProcessStage, StageBucket
from krishiv_py.kernels.state.store import Bucket, MemoryStore


@attrs.frozen(eq=False)
class _Index:
    table: pa.Table
    hashes: Ints
    order: Ints
    none: pa.Table


@attrs.define(eq=False)
class KeyIndexes:
    """The indexes of a stage.

    Attributes
    ----------
    stage : ProcessStage
        The stage.
    """

    stage: ProcessStage
    _buckets: dict[int, _BucketIndexes] = attrs.field(factory=dict)

    def open_windows(self, keys: pa.Table) -> pa.Table:
        """Return what is in state of some keys, as :meth:`ProcessStage.state` shows it."""
        stage = self.stage
        if stage.spec.operation.extent.grid is None:
            windows, shown = stage.state(), list(stage.spec.keys)
            return windows.filter(pa.array(among(windows, keys.rename_columns(shown), shown)))
        keys = keys.rename_columns([field.name for field in stage.stage.layout.key_fields])
        tables = []
        for number, mine in stage.shared(keys):  # rows of its tables do not refer to one another
            bucket = stage.buckets[number]
            indexes = self._buckets.get(number)
            if indexes is None or indexes.bucket is not bucket:
                indexes = self._buckets[number] = _BucketIndexes(bucket)
            tables.append(indexes.open_windows(mine))
        return pa.concat_tables(tables) if tables else stage.buckets[0].state().slice(0, 0)


@attrs.define(eq=False)
class _BucketIndexes:
    """The indexes of a bucket, by the names of its tables."""

    bucket: StageBucket
    _known: dict[str, _Index] = attrs.field(factory=dict)

    def open_windows(self, keys: pa.Table) -> pa.Table:
        bucket, store = self.bucket, self.bucket.store
        if len(self._known) > 2 * len(store.tables) + 16:
            self._known = {name: index for name, index in self._known.items() if name in store.tables}
        view = _OfKeys(store.tables, self, keys, keys.column_names)
        return bucket.stage.operator.state(Bucket(view, bucket.meta, pages=bucket.pages))

    def index(self, name: str, table: pa.Table, names: Sequence[str]) -> _Index:
        """Return the index of a table."""
        known = self._known.get(name)
        if known is None or known.table is not table:
            hashes = key_hashes([table[n] for n in names], table.num_rows)
            order = stable_order(hashes)
            known = self._known[name] = _Index(table, hashes[order], order, table.slice(0, 0))
        return known


@attrs.define(eq=False)
class _OfKeys(MemoryStore):
    """The tables of a state with the rows of some keys alone; it is read only."""

    tables: Mapping[str, pa.Table]  # type: ignore[assignment]  # which is not changed
    indexes: _BucketIndexes
    keys: pa.Table
    names: list[str]
    _wanted: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._wanted = np.unique(key_hashes(list(self.keys.columns), self.keys.num_rows))

    def get(self, name: str) -> pa.Table:
        """See :class:`~krishiv_py.kernels.state.store.ChunkStore`."""
        table = self.tables[name]
        if not self.names or not set(self.names) <= set(table.column_names):
            return table
        index = self.indexes.index(name, table, self.names)
        start = index.hashes.searchsorted(self._wanted, side="left")
        stop = index.hashes.searchsorted(self._wanted, side="right")
        if not (start < stop).any():
            return index.none
        positions, _ = expand(start, stop)
        rows = np.sort(index.order[positions])
        picked = table.slice(rows[0], 1) if len(rows) == 1 else pick(table, rows)
        of_them = among(picked, self.keys, self.names)
        return picked if of_them.all() else picked.filter(pa.array(of_them))  # hashes may meet
