"""Define what sessions with triggers wrote: results by number, and the lines of the output log in their order
(SEMANTICS §5.2).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.aggregates.failed import failing_place, first_of
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.columns.place import place_of
from krishiv_py.kernels.firing.cumulated import cumulated
from krishiv_py.kernels.results.changelog import Lines, compose
from krishiv_py.kernels.results.emit import Emitter

_FIELDS: Final = 6
_PANE: Final = "<U8"


class NumberedResults:
    """Results by number, those that stand from before first: bounds, how many rows they are made of, group of their key.

    Those written in this step also have the moment, how often the session had fired before, and the pane.
    """

    def __init__(self, starts: Ints, ends: Ints, counts: Ints, groups: Ints) -> None:
        self._n = self.n_old = len(starts)
        nothing = np.zeros(self._n, np.int64)
        self._data = np.stack([starts, ends, counts, groups, nothing, nothing]) if self._n else np.zeros((_FIELDS, 1), np.int64)
        self._panes = [np.full(self._n, "", _PANE)]
        self._gone, self._by = [nothing[:0]], [nothing[:0]]

    def __len__(self) -> int:
        return self._n

    def add(
        self, starts: Ints, ends: Ints, counts: Ints, groups: Ints, moments: Ints, index: Ints, panes: npt.NDArray[np.str_]
    ) -> int:
        """Number new results; returns the first number."""
        first, self._n = self._n, self._n + len(starts)
        if self._n > self._data.shape[1]:
            grown = np.zeros((_FIELDS, 2 * self._n), np.int64)
            grown[:, :first] = self._data[:, :first]
            self._data = grown
        self._data[:, first : self._n] = starts, ends, counts, groups, moments, index
        self._panes.append(panes.astype(_PANE, copy=False))
        return first

    def withdraw(self, gone: Ints, by: Ints) -> None:
        """Note which results are withdrawn, and the one that takes the place of each."""
        self._gone.append(gone)
        self._by.append(by)

    def lines(self) -> Lines:
        """Lines of the log: by moment, then in ascending end order, withdrawals before what replaces them."""
        bounds = self.starts, self.ends
        fires = np.arange(self.n_old, self._n)
        return compose(fires, np.concatenate(self._gone), np.concatenate(self._by), (*bounds, self._data[4, : self._n]), bounds)

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

    @property
    def index(self) -> Ints:
        """Firings before."""
        return self._data[5, : self._n]

    @property
    def panes(self) -> npt.NDArray[np.str_]:
        """Panes."""
        return np.concatenate(self._panes)


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
        """The next results, as many as there are `parents`: the result each goes on from, -1 for none, and its more rows.

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
        created = self._layout.create(pick(self._rows, at), ids - n_old, n - n_old)
        made = pa.concat_tables([self._old, pa.Table.from_arrays(created, schema=self._schema)])
        root = np.arange(n)
        parents = np.concatenate(self._parents)
        root[n_old:] = np.where(parents < 0, root[n_old:], parents)
        while (root[root] != root).any():
            root = root[root]
        order = stable_order(root)  # results of one line follow each other, the older first
        order = order[self._usable | (order >= n_old)]
        line = np.cumsum(np.concatenate([[0], np.diff(root[order]) != 0]))
        stack = pick(made, order)
        wanted = np.zeros(n, np.bool_)
        wanted[kept] = True
        row_of = first_of(ids)
        with failing_place(lambda n: place_of(self._layout.spec, self._rows, int(at[row_of(int(order[n]))]))):
            found = cumulated(self._layout, stack, line, np.flatnonzero(wanted[order]))
        place = np.arange(n)
        place[order] = n + np.arange(len(order))
        for field in list(found.schema)[len(self._schema) :]:
            made = made.append_column(field, pa.nulls(n, field.type))
        return pick(pa.concat_tables([made, found]), place)


def written(emitter: Emitter, keys: pa.Table, results: NumberedResults, contents: pa.Table) -> pa.Table:
    """Result rows of what was written in this step; `keys` has the key of every group."""
    found = results.lines()
    result, cause = found.result, found.cause
    names = emitter.layout.key_names
    columns = [pick(keys[k], results.groups[result]) for k in names]
    picked = pick(contents, result)
    merged = pa.Table.from_arrays([*columns, *picked.columns], names=[*names, *picked.schema.names])
    starts, ends = results.starts[result], results.ends[result]
    return emitter.rows(merged, starts, ends, found.op, results.panes[cause], results.index[cause])
