"""What sessions with triggers wrote: results by number, and the lines of the output log in their order (SEMANTICS §5.2)."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.kernels.aggregates.failed import first_of, told_where
from krishiv_py.kernels.arrays.sorting import stable_order
from krishiv_py.kernels.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.columns.place import place_of
from krishiv_py.kernels.firing.cumulated import cumulated
from krishiv_py.kernels.results.emit import Emitter

_FIELDS: Final = 4


class Results:
    """Results written so far, by number: bounds, how many rows they are made of, and the group of their key."""

    def __init__(self, starts: Ints, ends: Ints, counts: Ints, groups: Ints) -> None:
        self._n = len(starts)
        self._data = np.stack([starts, ends, counts, groups]) if self._n else np.zeros((_FIELDS, 1), np.int64)

    def __len__(self) -> int:
        return self._n

    def add(self, starts: Ints, ends: Ints, counts: Ints, groups: Ints) -> int:
        """Number new results; returns the first number."""
        first, self._n = self._n, self._n + len(starts)
        if self._n > self._data.shape[1]:
            grown = np.zeros((_FIELDS, 2 * self._n), np.int64)
            grown[:, :first] = self._data[:, :first]
            self._data = grown
        self._data[:, first : self._n] = starts, ends, counts, groups
        return first

    @property
    def starts(self) -> Ints:
        """First bounds."""
        return self._data[0, : self._n]

    @property
    def ends(self) -> Ints:
        """Second bounds."""
        return self._data[1, : self._n]

    @property
    def counts(self) -> Ints:
        """Rows."""
        return self._data[2, : self._n]

    @property
    def groups(self) -> Ints:
        """Key groups."""
        return self._data[3, : self._n]


class Contents:
    """Partials of results. One that takes the place of another, and has all rows of it, adds only what is new to it."""

    def __init__(self, layout: Layout, rows: pa.Table, old: pa.Table, *, known: bool) -> None:
        self._layout = layout
        self._rows = rows
        self._schema = pa.schema(layout.partial_fields)
        self._old = old
        self._usable = known
        self._ids: list[Ints] = []
        self._at: list[Ints] = []
        self._parents: list[Ints] = []
        self._next = old.num_rows

    def may_follow(self, results: Ints) -> Mask:
        """Of results by number, -1 for none, those that others can be made of: those of before only if they were kept."""
        mask: Mask = results >= (0 if self._usable else self._old.num_rows)
        return mask

    def add(self, ids: Ints, rows: Ints, parents: Ints) -> None:
        """The next results, as many as there are `parents`: the result each goes on from, -1 for none, and its further rows.

        `ids` says which of the results each row belongs to, rows in order of arrival.
        """
        self._ids.append(ids + self._next)
        self._at.append(rows)
        self._parents.append(parents)
        self._next += len(parents)

    def table(self, kept: Ints) -> pa.Table:
        """Partials of all results, by number, with the values of those `kept` (``firing.cumulated``)."""
        n_old, n = self._old.num_rows, self._next
        if n == n_old:
            return self._old
        ids, at = np.concatenate(self._ids), np.concatenate(self._at)
        created = self._layout.create(self._rows.take(pa.array(at)), ids - n_old, n - n_old)
        made = pa.concat_tables([self._old, pa.Table.from_arrays(created, schema=self._schema)])
        root = np.arange(n)
        parents = np.concatenate(self._parents)
        root[n_old:] = np.where(parents < 0, root[n_old:], parents)
        while (root[root] != root).any():
            root = root[root]
        order = stable_order(root)  # results of one line follow each other, the older first
        order = order[self._usable | (order >= n_old)]
        line = np.cumsum(np.concatenate([[0], np.diff(root[order]) != 0]))
        stack = made.take(pa.array(order))
        wanted = np.zeros(n, np.bool_)
        wanted[kept] = True
        row_of = first_of(ids)
        with told_where(lambda n: place_of(self._layout.spec, self._rows, int(at[row_of(int(order[n]))]))):
            found = cumulated(self._layout, stack, line, np.flatnonzero(wanted[order]))
        place = np.arange(n)
        place[order] = n + np.arange(len(order))
        for field in list(found.schema)[len(self._schema) :]:
            made = made.append_column(field, pa.nulls(n, field.type))
        return pa.concat_tables([made, found]).take(pa.array(place))


@attrs.frozen(eq=False)
class Lines:
    """Lines of the log.

    Attributes
    ----------
    moment : ndarray of int64
        When each was written.
    by : ndarray of int64
        Number of the result whose firing wrote it: bounds of firings at one moment ascend by it.
    result : ndarray of int64
        Number of the result it tells of.
    op, pane : ndarray of str
        What happened, and why.
    index : ndarray of int64
        How often the session had fired before.
    """

    moment: Ints
    by: Ints
    result: Ints
    op: npt.NDArray[np.str_]
    pane: npt.NDArray[np.str_]
    index: Ints


def written(emitter: Emitter, keys: pa.Table, results: Results, contents: pa.Table, blocks: list[Lines]) -> pa.Table:
    """Result rows: by moment, then in ascending end order, withdrawals before what replaces them.

    `keys` has the key of every group.
    """
    if not blocks:
        return emitter.concat([])
    moment, by, result, op, pane, index = (np.concatenate([getattr(b, f.name) for b in blocks]) for f in attrs.fields(Lines))
    adds = result == by
    order = np.lexsort((adds, by, results.starts[by], results.ends[by], moment))
    result = result[order]
    names = emitter.layout.key_names
    columns = [keys[k].take(pa.array(results.groups[result])) for k in names]
    picked = contents.take(pa.array(result))
    merged = pa.Table.from_arrays([*columns, *picked.columns], names=[*names, *picked.schema.names])
    return emitter.rows(merged, results.starts[result], results.ends[result], op[order], pane[order], index[order])
