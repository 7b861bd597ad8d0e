"""The open windows of a few keys of a query in this process, without a look at the others.

The operator computes them, as it does for all keys, over a view of its state that has the rows of these keys alone. Large
tables have an index by the hash of the key. Small ones are searched, all at once: others soon take their place.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import HashIndex, among, key_hashes
from krishiv_py.arrays.types import Ints, Mask, pick
from krishiv_py.in_process.stage import ProcessStage, StageBucket
from krishiv_py.kernels.columns.layout import whole
from krishiv_py.kernels.registry import content_of_keys
from krishiv_py.kernels.state.store import Bucket, MemoryStore

_SEARCHED: Final = 512
"""The rows of a small table."""
_FEW_KEYS: Final = 64
"""Tables are searched for so many keys at the most."""


@attrs.define(eq=False)
class KeyIndexes:
    """Finds open windows of a stage by their keys.

    Tables of a state are never changed, only replaced. So an index, made at its first use, holds as long as its table is there,
    and after a batch only the tables that it wrote are looked at once more.

    Attributes
    ----------
    stage : ProcessStage
        The stage.
    """

    stage: ProcessStage
    _buckets: dict[int, _BucketIndexes] = attrs.field(factory=dict)

    def open_windows(self, keys: pa.Table) -> pa.Table:
        """Return what is in state of some keys, as :meth:`ProcessStage.state` shows it; of a table its rows alone."""
        stage = self.stage
        content = self._content(keys) if stage.spec.operation.gives_table else None
        if content is not None:
            return content
        if stage.spec.operation.extent.grid is None:
            windows, shown = stage.state(), list(stage.spec.keys)
            return windows.filter(pa.array(among(windows, keys.rename_columns(shown), shown)))
        keys = keys.rename_columns(stage.stage.layout.key_names)
        tables = []
        for number, mine in stage.shared(keys):  # rows of its tables do not refer to one another
            bucket = stage.buckets[number]
            indexes = self._buckets.get(number)
            if indexes is None or indexes.bucket is not bucket:
                indexes = self._buckets[number] = _BucketIndexes(bucket)
            tables.append(indexes.open_windows(mine))
        if len(tables) == 1:
            return tables[0]
        return pa.concat_tables(tables) if tables else stage.buckets[0].state().slice(0, 0)

    def _content(self, keys: pa.Table) -> pa.Table | None:
        """Return the rows of some keys of a table; None where they are found by a look at all of them."""
        tables = []
        for number, mine in self.stage.shared(keys.rename_columns(self.stage.stage.layout.key_names)):
            bucket = self.stage.buckets[number]
            rows = content_of_keys(bucket.stage.operator, Bucket(bucket.store, bucket.meta, pages=bucket.pages), mine)
            if rows is None:
                return None
            tables.append(rows)
        return pa.concat_tables(tables) if tables else None


@attrs.define(eq=False)
class _BucketIndexes:
    """The tables of a bucket as far as somebody looked at them, by name."""

    bucket: StageBucket
    _known: dict[str, _StateTable] = attrs.field(factory=dict)

    def open_windows(self, keys: pa.Table) -> pa.Table:
        bucket, tables, wanted = self.bucket, self.bucket.store.tables, _LookupKeys(keys)
        if len(self._known) > 2 * len(tables) + 16:
            self._known = {name: held for name, held in self._known.items() if name in tables}
        view = _OfKeys(tables, self, wanted)
        windows = bucket.stage.operator.state(Bucket(view, bucket.meta, pages=bucket.pages))
        of_them = wanted.among(windows, bucket.stage.spec.keys)
        return windows if of_them.all() else windows.filter(pa.array(of_them))  # hashes may meet

    def held(self, name: str, table: pa.Table, names: Sequence[str]) -> _StateTable:
        """Return what is known of a table."""
        known = self._known.get(name)
        if known is None or known.table is not table:
            known = self._known[name] = _StateTable.of(table, names)
        return known


@attrs.define(eq=False)
class _StateTable:
    """A table of the state.

    Attributes
    ----------
    table : pyarrow.Table
        The table.
    keys : list of list of pyarrow.Array
        The chunks of its key columns; nothing where it lacks one, or there are none.
    none : pyarrow.Table
        The table without its rows.
    """

    table: pa.Table
    keys: list[list[pa.Array]]
    none: pa.Table
    _index: HashIndex | None = None

    @classmethod
    def of(cls, table: pa.Table, names: Sequence[str]) -> _StateTable:
        """Return what is held of a table with key columns of these names."""
        keyed = set(names) <= set(table.column_names)
        return cls(table, [table[name].chunks for name in names] if keyed else [], table.slice(0, 0))

    def picked(self, rows: Ints) -> pa.Table:
        """Return some of the rows."""
        if len(rows) < 2:
            return self.table.slice(rows[0], 1) if len(rows) else self.none
        return pick(self.table, rows)

    def looked_up(self, keys: pa.Table, marks: Ints) -> pa.Table:
        """Return the rows of keys with these hashes, which ascend."""
        if self._index is None:
            self._index = HashIndex.of([self.table[name] for name in keys.column_names], self.table.num_rows)
        return self.picked(self._index.rows(marks))


@attrs.define(eq=False)
class _LookupKeys:
    """Keys that are looked up.

    Attributes
    ----------
    keys : pyarrow.Table
        Their columns, under the names that state has for them.
    is_searched : bool
        Whether equal keys are equal bytes, and so few that rows are searched for them.
    """

    keys: pa.Table
    is_searched: bool = attrs.field(init=False)
    _columns: list[pa.Array] = attrs.field(init=False)
    _marks: Ints | None = None

    def __attrs_post_init__(self) -> None:
        self._columns = [whole(column) for column in self.keys.columns]
        plain = all(_is_plain(column.type) for column in self._columns)
        self.is_searched = plain and bool(self._columns) and 0 < self.keys.num_rows <= _FEW_KEYS

    @property
    def marks(self) -> Ints:
        """Return the hashes of the keys, ascending, each once."""
        if self._marks is None:
            hashes = key_hashes(list(self._columns), self.keys.num_rows)
            self._marks = np.unique(hashes) if len(hashes) > 1 else hashes
        return self._marks

    def matches(self, columns: Sequence[pa.ChunkedArray]) -> Mask:
        """Return which rows have the value of one of the keys in every column: those of the keys, and others of several."""
        of_them: Any = True
        for column, values in zip(columns, self._columns, strict=True):
            of_them = pc.is_in(column, value_set=values).to_numpy() & of_them
        mask: Mask = of_them
        return mask

    def among(self, windows: pa.Table, names: Sequence[str]) -> Mask:
        """Return which windows are of these keys, which are in columns of these names."""
        if self.is_searched and (self.keys.num_rows == 1 or len(names) == 1):
            return self.matches([windows[name] for name in names])
        return among(windows, self.keys.rename_columns(list(names)), list(names))


@attrs.define(eq=False)
class _OfKeys(MemoryStore):
    """The tables of a state with the rows of some keys, and maybe of a few others; it is read only."""

    tables: Mapping[str, pa.Table]  # type: ignore[assignment]  # which is not changed
    indexes: _BucketIndexes
    wanted: _LookupKeys
    _read: dict[str, pa.Table] | None = attrs.field(init=False, default=None)

    def get(self, name: str) -> pa.Table:
        """See :class:`~krishiv_py.kernels.state.store.ChunkStore`."""
        if self._read is None:
            self._read = self._searched() if self.wanted.is_searched else {}
        table = self._read.get(name)
        if table is None:
            keys = self.wanted.keys
            held = self.indexes.held(name, self.tables[name], keys.column_names)
            table = self._read[name] = held.looked_up(keys, self.wanted.marks) if held.keys else held.table
        return table

    def _searched(self) -> dict[str, pa.Table]:
        """Return the rows of the keys in small tables."""
        small, by_name = dict[str, _StateTable](), dict[str, pa.Table]()
        names, types = self.wanted.keys.column_names, self.wanted.keys.schema.types
        for name, table in self.tables.items():
            if table.num_rows <= _SEARCHED:
                held = self.indexes.held(name, table, names)
                if held.keys:
                    small[name], by_name[name] = held, held.none
        if not small:
            return by_name
        columns = [pa.chunked_array([c for held in small.values() for c in held.keys[i]], t) for i, t in enumerate(types)]
        rows = self.wanted.matches(columns).nonzero()[0]
        if len(rows):
            begins = np.array([0, *itertools.accumulate(held.table.num_rows for held in small.values())])
            cuts = itertools.pairwise(rows.searchsorted(begins).tolist())
            for (name, held), begin, (low, high) in zip(small.items(), begins.tolist(), cuts, strict=False):
                if low < high:
                    by_name[name] = held.picked(rows[low:high] - begin)
        return by_name


def _is_plain(type_: pa.DataType) -> bool:
    """Return whether equal values of a type are equal bytes."""
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_binary, pa.types.is_boolean, pa.types.is_temporal)
    return any(is_kind(type_) for is_kind in kinds)
