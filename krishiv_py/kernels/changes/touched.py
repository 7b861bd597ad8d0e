"""The keys that a batch has rows of."""

from __future__ import annotations

from functools import cached_property

import attrs
import pyarrow as pa

from krishiv_py.arrays.grouping import group, key_hashes
from krishiv_py.arrays.sorting import hash_order
from krishiv_py.arrays.types import Ints, Mask, last_rows, pick, run_begins


@attrs.frozen(eq=False, slots=False)
class TouchedKeys:
    """The keys that a batch has rows of: each once, with its hash; `n` of them."""

    keys: pa.Table
    hashes: Ints
    n: int

    @cached_property
    def order(self) -> Ints:
        """Return the order of the keys by their hashes."""
        return hash_order(self.hashes)

    @cached_property
    def ranks(self) -> Ints:
        """Return the place of each key in this order."""
        return last_rows(self.order, self.n)

    def hashes_of(self, some: Mask | None = None) -> Ints:
        """Return the hashes of all keys, or of `some`: ascending, each once."""
        order = self.order if some is None else self.order[some[self.order]]
        ordered = self.hashes[order]
        first = run_begins(ordered)
        return ordered if first.all() else ordered[first]

    @classmethod
    def of(cls, rows: pa.Table, names: list[str]) -> tuple[TouchedKeys, Ints]:
        """Return the keys of rows, and the key of each row by its number."""
        groups = group([rows[k] for k in names], rows.num_rows)
        keys = pick(rows.select(names), groups.first) if names else pa.table({"": pa.nulls(groups.n)})
        return cls(keys, key_hashes([keys[k] for k in names], groups.n), groups.n), groups.ids
