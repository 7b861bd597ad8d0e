"""Rows of sessions as they are stored, mini-sessions, and results as they were written (SEMANTICS §3.3, §5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.grouping import group, key_hashes
from krishiv_py.arrays.ranges import components
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask, flags_at, largest_of, last_rows, least_of, pick
from krishiv_py.kernels.aggregates.base import FailingPlace, first_of
from krishiv_py.kernels.columns.layout import DOUBT, GAP, TIME, Layout, place_of
from krishiv_py.kernels.prefixes import cumulated
from krishiv_py.kernels.results import Emitter, Lines, compose
from krishiv_py.kernels.state.window_log import HASH
from krishiv_py.plan.windows.session import SessionWindow


def firing(weights: Ints, every: Ints, late: Mask, head: Mask) -> Mask:
    """Rows that make their session fire: when so many rows as `every` says have come since the last firing.

    A session that is complete may come to go on, never the other way round: late rows lie before the others of their track.
    """
    if (every <= 1).all():
        ones: Mask = every == 1
        return ones
    n = len(weights)
    heads = np.flatnonzero(head)
    lengths = np.diff(np.append(heads, n))
    stop = np.repeat(heads + lengths, lengths)
    turn = np.repeat(heads + np.add.reduceat(late, heads, dtype=np.int64), lengths)
    total = np.cumsum(weights)
    late_n, early_n = int(every[late].max(initial=0)), int(every[~late].max(initial=0))

    def following(base: Ints, from_: Ints, turn: Ints, stop: Ints) -> Ints:
        """Return the next firing after so many reported rows, at `from_` or later; `stop` for none."""
        second = np.maximum(np.searchsorted(total, base + early_n), np.maximum(turn, from_)) if early_n else stop
        second = np.minimum(second, stop)
        if not late_n:
            return second
        first = np.maximum(np.searchsorted(total, base + late_n), from_)
        return np.where(first < turn, first, second)

    start = following(total[heads] - weights[heads], heads, turn[heads], stop[heads]).tolist()
    ahead = following(total, np.arange(1, n + 1), turn, stop).tolist()
    fires = np.zeros(n, np.bool_)
    parts = []
    for row, end in zip(start, (heads + lengths).tolist(), strict=True):
        while row < end:
            parts.append(row)
            row = ahead[row]
    fires[parts] = True
    return fires


START: Final = "a"
END: Final = "b"
SEQ: Final = "s"
KIND: Final = "z"
FIRED: Final = "f"


class SessionRows:
    """Everything about one row or one batch of rows of a session window; knows no state.

    A stored row has a key hash ``h``, the interval ``[a, b)`` it spans, the keys, and partial aggregates. Under the rule
    "window" only the state knows which rows are late, and late rows leave whole. So a row whose own reach is over is
    shuffled alone, with what the late output wants of it; where rows do not tell (``Layout.doubts``), all are shuffled
    as they are.
    """

    def __init__(self, layout: Layout) -> None:
        window = layout.spec.operation
        assert isinstance(window, SessionWindow)
        self.layout = layout
        self.window = window
        self.touching = window.touch == "merge"
        self.by_window = layout.spec.options.state_refuses
        self.as_they_are = self.by_window and not layout.doubts
        fixed = [pa.field(HASH, pa.int64()), pa.field(START, pa.int64()), pa.field(END, pa.int64())]
        self.schema = pa.schema([*fixed, *layout.key_fields, *layout.partial_fields])
        self.shuffled = layout.row_schema if self.as_they_are else pa.schema([*self.schema, *layout.carried_fields])

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return what is shuffled: mini-sessions, and rows that may be refused."""
        if self.as_they_are:
            return rows
        if not self.by_window:
            return self.reduce(rows)
        doubt = self._alone(rows)
        sure = self.reduce(rows.filter(pa.array(~doubt)))
        nothing = [pa.nulls(sure.num_rows, f.type) for f in self.layout.carried_fields]
        alone = rows.filter(pa.array(doubt))
        carried = [alone[f.name] for f in self.layout.carried_fields]
        each = self._minis(alone, np.arange(alone.num_rows), alone[TIME].to_numpy(), self.ends(alone))
        pairs = ((each, carried), (sure, nothing))
        return pa.concat_tables([pa.Table.from_arrays([*t.columns, *more], schema=self.shuffled) for t, more in pairs])

    def _alone(self, rows: pa.Table) -> Mask:
        """Return which rows may be refused; with a gap of each row, those of the same key and time too, in their order."""
        doubt: Mask = rows[DOUBT].to_numpy()
        if self.window.gap_us is not None or not doubt.any():
            return doubt
        moments = group([*(rows[k] for k in self.layout.key_names), rows[TIME]], rows.num_rows)
        doubtful = flags_at(moments.ids[doubt], moments.n)
        return doubtful[moments.ids]

    def turns(self, chunks: Sequence[pa.Table]) -> Ints:
        """Return numbers that ascend as rows of chunks arrived that may be of one time.

        Of one chunk, these are rows that were shuffled alone and have gaps of their own.
        """
        lengths = np.array([chunk.num_rows for chunk in chunks], np.int64)
        if self.by_window and self.window.gap_us is None:
            return np.arange(lengths.sum())
        return np.repeat(np.arange(len(chunks)), lengths)

    def empty(self) -> pa.Table:
        """No rows as :meth:`combine` gives them."""
        return self.shuffled.empty_table()

    def spans(self, shuffled: pa.Table) -> tuple[Ints, Ints]:
        """Return where what is shuffled begins and ends."""
        if self.as_they_are:
            return shuffled[TIME].to_numpy(), self.ends(shuffled)
        return shuffled[START].to_numpy(), shuffled[END].to_numpy()

    def hashes(self, shuffled: pa.Table) -> Ints:
        """Return the hash of the key of each."""
        if self.as_they_are:
            return key_hashes([shuffled[k] for k in self.layout.key_names], shuffled.num_rows)
        hashes: Ints = shuffled[HASH].to_numpy()
        return hashes

    def admitted(self, shuffled: pa.Table) -> pa.Table:
        """Return what is shuffled, once it is not refused, as mini-sessions."""
        return self.reduce(shuffled) if self.as_they_are else shuffled.select(self.schema.names)

    def ends(self, rows: pa.Table) -> Ints:
        """Return where the reach of every row ends."""
        times: Ints = rows[TIME].to_numpy()
        gap = self.window.gap_us
        return times + (rows[GAP].to_numpy() if gap is None else gap)

    def reduce(self, rows: pa.Table) -> pa.Table:
        """Mini-sessions: rows of one key that overlap, merged. With a longest duration only rows of equal time are."""
        if not rows.num_rows:
            return self.schema.empty_table()
        keys = group([rows[k] for k in self.layout.key_names], rows.num_rows)
        times, ends = rows[TIME].to_numpy(), self.ends(rows)
        if self.window.max_duration_us is None:
            parts = components(keys.ids, times, ends, touching=self.touching)
            ids, starts, reaches = parts.ids, parts.starts, parts.ends
        else:
            moments = group([keys.ids, times], rows.num_rows)
            ids, starts = moments.ids, times[moments.first]
            reaches = largest_of(ids, ends, moments.n, np.iinfo(np.int64).min)
        return self._minis(rows, ids, starts, reaches)

    def _minis(self, rows: pa.Table, ids: Ints, starts: Ints, ends: Ints) -> pa.Table:
        n = len(starts)
        member = last_rows(ids, n)
        picked = pa.array(member)
        columns = [pick(rows[k], picked) for k in self.layout.key_names]
        arrays = [pa.array(key_hashes(columns, n)), pa.array(starts), pa.array(ends), *columns]
        return pa.Table.from_arrays([*arrays, *self.layout.create(rows, ids, n)], schema=self.schema)

    def merge(self, stored: pa.Table, ids: Ints, n: int) -> pa.Table:
        """One stored row of each group of stored rows, which must be in order of arrival."""
        member = last_rows(ids, n)
        head = pick(stored.select([HASH, *self.layout.key_names]), member)
        starts = least_of(ids, stored[START].to_numpy(), n, np.iinfo(np.int64).max)
        ends = largest_of(ids, stored[END].to_numpy(), n, np.iinfo(np.int64).min)
        arrays = [head[HASH], pa.array(starts), pa.array(ends), *head.columns[1:], *self.layout.merge(stored, ids, n)]
        return pa.Table.from_arrays(arrays, schema=self.schema)


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
        return results >= (0 if self._usable else self._old.num_rows)

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
        ids, rows = np.concatenate(self._ids), np.concatenate(self._at)
        created = self._layout.create(pick(self._rows, rows), ids - n_old, n - n_old)
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
        wanted = flags_at(kept, n)
        row_of = first_of(ids)
        with FailingPlace(lambda n: place_of(self._layout.spec, self._rows, int(rows[row_of(int(order[n]))]))):
            contents = cumulated(self._layout, stack, line, np.flatnonzero(wanted[order]))
        place = np.arange(n)
        place[order] = n + np.arange(len(order))
        for field in list(contents.schema)[len(self._schema) :]:
            made = made.append_column(field, pa.nulls(n, field.type))
        return pick(pa.concat_tables([made, contents]), place)


def written(emitter: Emitter, keys: pa.Table, results: NumberedResults, contents: pa.Table) -> pa.Table:
    """Result rows of what was written in this step; `keys` has the key of every group."""
    results_written = results.lines()
    result, cause = results_written.result, results_written.cause
    names = emitter.layout.key_names
    columns = [pick(keys[k], results.groups[result]) for k in names]
    picked = pick(contents, result)
    merged = pa.Table.from_arrays([*columns, *picked.columns], names=[*names, *picked.schema.names])
    starts, ends = results.starts[result], results.ends[result]
    return emitter.rows(merged, starts, ends, results_written.op, results.panes[cause], results.index[cause])
