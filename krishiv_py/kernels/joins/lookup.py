"""Lookup joins (SEMANTICS §9.3): rows of a batch against a table, by key and, on request, by when its rows are valid."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import key_hashes, normal_key
from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask, flags_at, pick, whole
from krishiv_py.kernels.columns.evaluate import evaluate
from krishiv_py.kernels.columns.times import bounds_of, stamp
from krishiv_py.kernels.joins.interval import NOBODY, Pairs, same_keys
from krishiv_py.plan.expressions.expr import Expr, columns_of
from krishiv_py.plan.joins import LookupType
from krishiv_py.plan.schema import TimeKind


@attrs.frozen
class Validity:
    """Between which times a row of the table is valid: from one column on, until before another.

    Null is not a bound: valid from the beginning, or without an end.
    """

    at: str
    at_kind: TimeKind
    starts: str
    ends: str
    kind: TimeKind


@attrs.frozen(eq=False)
class _TableIndex:
    """The index of a table: its keys, and the order of their hashes."""

    of: weakref.ref[pa.Table]
    keys: pa.Table
    hashes: Ints
    order: Ints


@attrs.define(eq=False)
class Lookup:
    """The step: a function of a batch. What is known of a table is worked out once, and goes with the table.

    Several queries in one process may share a step, and have different versions of the table.
    """

    current: Callable[[], tuple[int | str, pa.Table]]
    keys: tuple[tuple[Expr, Expr], ...]
    columns: tuple[tuple[str, str], ...]
    how: LookupType
    validity: Validity | None = None
    _known: tuple[_TableIndex, ...] = ()
    __name__ = "lookup_join"

    def __getstate__(self) -> dict[str, object]:
        return {a.name: () if a.name == "_known" else getattr(self, a.name) for a in attrs.fields(type(self))}

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def reads(self) -> frozenset[str]:
        """The columns of rows that it looks at."""
        named = frozenset[str]() if self.validity is None else frozenset([self.validity.at])
        return named.union(*(columns_of(ours) for ours, _ in self.keys))

    @property
    def looks_at(self) -> frozenset[str]:
        """The columns of the table that say which of its rows fit."""
        named = frozenset[str]() if self.validity is None else frozenset([self.validity.starts, self.validity.ends])
        return named.union(*(columns_of(theirs) for _, theirs in self.keys))

    def repeats(self) -> bool:
        """Return whether rows of the table, as it is now, have one key, so that a row may come several times."""
        if self.how in ("semi", "anti") or self.validity is not None:
            return False
        hashes = self._index(self.current()[1]).hashes
        return bool((hashes[1:] == hashes[:-1]).any())

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of the batch with the columns looked up; a row that has several partners comes once for each."""
        _, table = self.current()
        known = self._index(table)
        hashes = known.hashes
        rows = self._keys(batch, 0)
        wanted = key_hashes(list(rows.columns), batch.num_rows)
        start, stop = np.searchsorted(hashes, wanted, side="left"), np.searchsorted(hashes, wanted, side="right")
        rows_of, left = expand(start, stop)
        pairs = Pairs(left, known.order[rows_of])
        pairs = pairs.only(same_keys(rows.schema.names, rows, known.keys, pairs))
        if self.validity is not None:
            pairs = pairs.only(self._valid(self.validity, batch, table, pairs))
        if self.how in ("semi", "anti"):
            paired = flags_at(pairs.left, batch.num_rows)
            return batch.filter(pa.array(paired if self.how == "semi" else ~paired))
        if self.how == "left":
            pairs = _with_all(pairs, batch.num_rows)
        right = pa.array(pairs.right, mask=pairs.right == NOBODY)
        columns = [whole(pick(table[column], right)) for column, _ in self.columns]
        kept = [pick(c, pairs.left) for c in batch.columns]
        return pa.RecordBatch.from_arrays([*kept, *columns], names=[*batch.schema.names, *(name for _, name in self.columns)])

    def _keys(self, rows: pa.RecordBatch | pa.Table, side: int) -> pa.Table:
        """Return the key columns of rows, or of the table."""
        keys = [normal_key(evaluate(pair[side], rows)) for pair in self.keys]
        return pa.Table.from_arrays(keys, names=[f"k{i}" for i in range(len(keys))])

    def _index(self, table: pa.Table) -> _TableIndex:
        for known in self._known:
            if known.of() is table:
                return known
        keys = self._keys(table, 1)
        hashes = key_hashes(list(keys.columns), table.num_rows)
        order = stable_order(hashes)
        index = _TableIndex(weakref.ref(table), keys, hashes[order], order)
        self._known = (*(known for known in self._known if known.of() is not None), index)
        return index

    @staticmethod
    def _valid(validity: Validity, batch: pa.RecordBatch, table: pa.Table, pairs: Pairs) -> Mask:
        stamped = stamp(batch.column(validity.at), validity.at_kind)
        (starts, begins), (ends, stays) = (bounds_of(whole(table[n]), validity.kind) for n in (validity.starts, validity.ends))
        times = stamped.times[pairs.left]
        begun = begins[pairs.right] | (starts[pairs.right] <= times)
        open_ = stays[pairs.right] | (times < ends[pairs.right])
        known: Mask = ~(stamped.null | stamped.out_of_range)[pairs.left]
        return known & begun & open_


def _with_all(pairs: Pairs, n: int) -> Pairs:
    alone = np.ones(n, np.bool_)
    alone[pairs.left] = False
    some = np.flatnonzero(alone)
    left = np.concatenate([pairs.left, some])
    order = stable_order(left)
    return Pairs(left[order], np.concatenate([pairs.right, np.full(len(some), NOBODY)])[order])
