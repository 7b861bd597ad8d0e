"""Functions of maps, by way of the lists of their keys and values."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing.checks import require
from krishiv_py.functions.computing.lists import Lists, equal_elements
from krishiv_py.functions.computing.values import Value, arrays, common, joined, misfit


@attrs.frozen(eq=False)
class Maps:
    """The entries of maps as two columns of lists, which are null where the map is."""

    keys: Lists
    values: Lists

    @classmethod
    def of(cls, column: pa.Array) -> Maps:
        """Those of a column."""
        require(pa.types.is_map, column)
        if pa.types.is_null(column.type):
            column = pa.nulls(len(column), pa.map_(pa.string(), pa.null()))
        missing = column.is_null().to_numpy(zero_copy_only=False)
        offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        low, high = offsets[:-1], np.where(missing, offsets[:-1], offsets[1:])
        counts = high - low
        at = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(low - (np.cumsum(counts) - counts), counts)
        taken = pa.array(at)
        return cls(Lists(column.keys.take(taken), counts, missing), Lists(column.items.take(taken), counts, missing))

    def column(self) -> pa.Array:
        """The maps as a column."""
        missing = self.keys.missing
        ends = np.cumsum(self.keys.counts)
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        if not missing.any():
            return pa.MapArray.from_arrays(offsets, self.keys.items, self.values.items)
        open_ = pa.array(np.concatenate([[0], ends]), pa.int32(), mask=np.concatenate([missing, [False]]))
        return pa.MapArray.from_arrays(open_, self.keys.items, self.values.items)


def at_key(value: Value, key: Value) -> Value:
    """The value of a key; null if there is none."""
    known = value.type.key_type
    if not pa.types.is_null(key.type) and common(known, key.type) != known:
        raise misfit(value.type, key.type)
    (column,), single = arrays(value)
    if isinstance(key, pa.Scalar):
        if not key.is_valid:
            return joined(pa.nulls(len(column), value.type.item_type), single)
        return pc.map_lookup(value, query_key=pc.cast(key, known), occurrence="first")
    (column, wanted), _ = arrays(value, pc.cast(key, known))
    maps = Maps.of(column)
    at = np.full(len(column), -1, np.int64)
    hits = np.flatnonzero(equal_elements(maps.keys, wanted))
    rows, first = np.unique(maps.keys.rows[hits], return_index=True)
    at[rows] = hits[first]
    return maps.values.items.take(pa.array(at, mask=at < 0))
