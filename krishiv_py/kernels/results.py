"""Results of an operator: rows, change logs, refused rows, state as a table, and the contract with engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.sorting import pair_order, stable_order
from krishiv_py.arrays.types import Ints, Mask, pick
from krishiv_py.kernels.aggregates.base import FailingPlace
from krishiv_py.kernels.columns.layout import Layout, place_of
from krishiv_py.kernels.columns.times import time_type, unstamp
from krishiv_py.kernels.spec import Moment
from krishiv_py.kernels.state.store import WRITTEN, Bucket
from krishiv_py.plan.durations import UNSET


@attrs.frozen(eq=False)
class SplitRows:
    """Rows that were let in, and those that were not, in the late layout."""

    rows: pa.Table
    late: pa.Table | None = None

    @property
    def counters(self) -> dict[str, int]:
        """Return what a step counts of it."""
        return counted(self.late)


def counted(late: pa.Table | None) -> dict[str, int]:
    """Return what a step counts of refused rows."""
    return {"late": late.num_rows} if late is not None and late.num_rows else {}


def split_late(layout: Layout, rows: pa.Table, times: Ints, refused: Mask, watermark_us: int) -> SplitRows:
    """Part rows of these event times, which carry the columns the late handler wants, in refused ones and others."""
    if not refused.any():
        return SplitRows(rows)
    picked = rows.filter(pa.array(refused))
    carried = [picked[f"l{i}"] for i in range(len(layout.carried))]
    notes = layout.refusal_notes(pa.repeat(pa.scalar("late"), picked.num_rows), watermark_us, times[refused])
    late = pa.Table.from_arrays([*carried, *notes], schema=layout.late_schema)
    return SplitRows(rows.filter(pa.array(~refused)), late)


def over_in_turn(ends_of: Callable[[Ints], Ints], n_held: int, n: int, horizon: int) -> Mask:
    """Rows of windows that are over, where a row taken away can move the windows of others: look until nothing changes.

    Parameters
    ----------
    ends_of : callable
        Where the window of each of some rows ends, given their positions; held rows come first and are never refused.
    """
    open_ = np.ones(n, np.bool_)
    while True:
        rows = np.flatnonzero(open_)
        shut = rows[ends_of(rows) <= horizon]
        shut = shut[shut >= n_held]
        if not len(shut):
            return ~open_[n_held:]
        open_[shut] = False


Texts: TypeAlias = npt.NDArray[np.str_]


@attrs.frozen(eq=False)
class Lines:
    """Lines in the order in which they are written.

    Attributes
    ----------
    result : ndarray of int64
        Number of the result each tells of.
    cause : ndarray of int64
        Number of the result whose firing wrote it; its own for one that is new.
    op : str or ndarray of str
        ``+I`` or, after a result of the same window, ``+U``; ``-U`` or, where the window has other bounds now, ``-D``.
    """

    result: Ints
    cause: Ints
    op: str | Texts


def compose(fires: Ints, gone: Ints, by: Ints, order: tuple[Ints, ...] = (), bounds: tuple[Ints, Ints] | None = None) -> Lines:
    """Return the lines of some firings.

    Parameters
    ----------
    fires : ndarray of int64
        Numbers of the results that are written, ascending.
    gone, by : ndarray of int64
        Numbers of the results that are withdrawn, and of the one that takes the place of each.
    order : tuple of ndarray
        What firings are ordered by, the weightiest last, by number of the result; then they go by number.
    bounds : tuple of ndarray, optional
        Start and end of the window by number of the result; None where windows never change their bounds.
    """
    if not len(gone):
        order_of_fires = fires[_ordered(order, fires)] if order else fires
        return Lines(order_of_fires, order_of_fires, "+I")
    same = np.ones(len(gone), np.bool_)
    if bounds is not None:
        same = (bounds[0][gone] == bounds[0][by]) & (bounds[1][gone] == bounds[1][by])
    again = np.isin(fires, by[same])
    result, cause = np.concatenate([gone, fires]), np.concatenate([by, fires])
    op = np.concatenate([np.where(same, "-U", "-D"), renewed(again)])
    adds = np.arange(len(cause)) >= len(gone)
    line = np.lexsort((adds, cause, *(key[cause] for key in order))) if order else stable_order(2 * cause + adds)
    return Lines(result[line], cause[line], op[line])


def renewed(again: Mask) -> Texts:
    """Return the op of results that are written, some of them in place of one of the same window."""
    return np.where(again, "+U", "+I")


def _ordered(order: tuple[Ints, ...], fires: Ints) -> Ints:
    keys = [key[fires] for key in order]
    return pair_order(keys[1], keys[0]) if len(keys) == 2 else np.lexsort(keys)


class Emitter:
    """Builds result tables in the layout of SEMANTICS §5.5."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.schema = layout.result_schema
        self.none = self.schema.empty_table()
        self._timed = not layout.spec.operation.extent.numbered  # bounds of count windows are row numbers
        self._with_op = "op" in self.schema.names[len(layout.key_names) + 2 + len(layout.kernels) + len(layout.own) :]

    def rows(
        self,
        merged: pa.Table,
        starts: Ints,
        ends: Ints,
        op: str | npt.NDArray[np.str_],
        pane: str | npt.NDArray[np.str_] = "final",
        index: int | Ints | None = 0,
    ) -> pa.Table:
        """Result rows of merged partials with their window bounds in µs; `pane` and `index` where the plan asks for them."""
        keys = [merged[k] for k in self.layout.key_names]
        return self.finished(keys, starts, ends, self.layout.finish(merged, (starts, ends)), op, pane, index)

    def finished(
        self,
        keys: list[pa.ChunkedArray],
        starts: Ints,
        ends: Ints,
        values: Sequence[pa.Array | pa.ChunkedArray],
        op: str | npt.NDArray[np.str_],
        pane: str | npt.NDArray[np.str_] = "final",
        index: int | Ints | None = 0,
    ) -> pa.Table:
        """Result rows of finished aggregates; see :meth:`rows`."""
        n = len(starts)
        arrays = [*keys, *self.bounds(starts, ends), *values]
        if self._with_op:
            arrays.append(_column(op, n, pa.string()))
        if self.layout.spec.options.pane:
            arrays += [_column(pane, n, pa.string()), _column(index, n, pa.int64())]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def bounds(self, starts: Ints, ends: Ints) -> list[pa.Array]:
        """Return the columns of the bounds of windows, which are in µs, or row numbers of count windows."""
        kind = self.layout.spec.time_kind
        return [unstamp(starts, kind), unstamp(ends, kind)] if self._timed else [pa.array(starts), pa.array(ends)]

    def concat(self, tables: list[pa.Table]) -> pa.Table:
        """Return all results of a step."""
        return pa.concat_tables(tables) if tables else self.none

    def by_end(self, tables: list[pa.Table]) -> list[pa.Table]:
        """Results in ascending order of the ends of their windows (SEMANTICS §5.1); of one window in the order given."""
        if len(tables) < 2:
            return tables
        table = pa.concat_tables(tables)
        ends = table.column(len(self.layout.key_names) + 1).cast(pa.int64()).to_numpy()
        return [table if (ends[1:] >= ends[:-1]).all() else pick(table, stable_order(ends))]


def _column(value: str | int | npt.NDArray[Any] | None, n: int, type_: pa.DataType) -> pa.Array:
    return pa.array(value, type_) if isinstance(value, np.ndarray) else pa.repeat(pa.scalar(value, type_), n)


@attrs.frozen(eq=False)
class StepResult:
    """Holds what one bucket gave in one micro-batch.

    Attributes
    ----------
    results : pyarrow.Table
        Rows in the result schema, windows in ascending end order.
    wakeup_us : int or None
        The watermark at which this bucket has something to do even without rows.
    open_windows, open_rows, firings : int
        Windows still open, rows (or partials) held for them, and results fired in this step.
    late : pyarrow.Table or None
        Rows refused by the state itself (rule "window" of merging windows), in the late layout.
    counters : dict
        What else was counted in this step, such as ``ttl_dropped``.
    wakeup_now_us : int or None
        The processing time at which this bucket has something to do even without rows (intervals, TTL).
    timers, held_rows : int
        Of a stage in settled order, deadlines that are pending, and rows that are not settled.
    """

    results: pa.Table
    wakeup_us: int | None
    open_windows: int
    open_rows: int
    firings: int
    counters: dict[str, int] = attrs.field(factory=dict)
    late: pa.Table | None = None
    wakeup_now_us: int | None = None
    timers: int = 0
    held_rows: int = 0


def earliest(*moments: tuple[int | None, int]) -> int | None:
    """Return the first of some moments, each so long after a time, of which there may be none."""
    return min((time_us + after_us for time_us, after_us in moments if time_us is not None), default=None)


class WindowOperator(Protocol):
    """A window kind. One instance serves all buckets; what it knows of a bucket is in the state it is given."""

    def combine(self, rows: pa.Table) -> pa.Table:
        """Reduce accepted working rows to what is shuffled and stored. Stateless."""

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """Fold combined chunks in, fire what is due under the watermark, forget what is over (SEMANTICS §2.3).

        Parameters
        ----------
        bucket : Bucket
            The state of the bucket, changed in place.
        chunks : list of pyarrow.Table
            What :meth:`combine` made of the rows of this batch, in order of arrival.
        moment : Moment
            What is in force.
        """

    def state(self, bucket: Bucket) -> pa.Table:
        """Return the windows that are in state, with their aggregates so far; changes nothing (SEMANTICS §6.5).

        Parameters
        ----------
        bucket : Bucket
            The state of the bucket, as the last step left it.

        Returns
        -------
        pyarrow.Table
            In the layout of :class:`~krishiv_py.kernels.results.StateTables`.

        Raises
        ------
        PlanError
            Where the state of a window kind holds no aggregates.
        """


_UPDATED = "last_update"
"""Renamed where the plan has a column of that name."""


class StateTables:
    """Makes state tables: keys, ``window_start``, ``window_end``, aggregates, ``last_update``; in ascending end order.

    ``last_update`` is processing time (UTC): when the newest of the chunks was written that hold something of the window.
    Nothing of it has changed since; it may have been quiet for longer, for chunks are merged and moved. Null if not noted.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._bounds = Emitter(layout).bounds
        shown = len(layout.key_names) + 2 + len(layout.kernels) + len(layout.own)
        fields = [layout.result_schema.field(i) for i in range(shown)]
        taken = {f.name.lower() for f in fields}
        updated = _UPDATED if _UPDATED not in taken else f"state_{_UPDATED}"
        self.schema = pa.schema([*fields, pa.field(updated, time_type("timestamp"))])

    def merged(self, stored: pa.Table, ids: Ints, starts: Ints, ends: Ints) -> pa.Table:
        """Windows of stored partials, which must be in order of arrival.

        Parameters
        ----------
        stored : pyarrow.Table
            Keys, partials, and when each was written.
        ids : ndarray of int64
            The window of every row.
        starts, ends : ndarray of int64
            Bounds of every window: µs, or row numbers of count windows.
        """
        if not len(starts):
            return self.empty()
        return self.table(*self.heads(stored, ids, len(starts)), self.layout.merge(stored, ids, len(starts)), starts, ends)

    def created(self, rows: pa.Table, ids: Ints, starts: Ints, ends: Ints) -> pa.Table:
        """Windows of working rows; see :meth:`merged`."""
        if not len(starts):
            return self.empty()
        return self.table(*self.heads(rows, ids, len(starts)), self.layout.create(rows, ids, len(starts)), starts, ends)

    @staticmethod
    def heads(rows: pa.Table, ids: Ints, n: int) -> tuple[pa.Table, Ints]:
        """Return a row of each of `n` windows, for its key, and when the newest of its rows was written."""
        places, written = np.arange(len(ids)), rows[WRITTEN].to_numpy()
        if n == len(ids) and (ids == places).all():
            return rows, written
        member, updated = np.empty(n, np.int64), np.full(n, UNSET)
        member[ids] = places
        np.maximum.at(updated, ids, written)
        return pick(rows, member), updated

    def table(self, heads: pa.Table, updated: Ints, partials: list[pa.Array], starts: Ints, ends: Ints) -> pa.Table:
        """Windows whose partials are known, with a row of each (for its key) and the time of its last update."""
        windows = pa.Table.from_arrays(partials, names=[f.name for f in self.layout.partial_fields])
        with FailingPlace(lambda n: place_of(self.layout.spec, heads, n, (int(starts[n]), int(ends[n])))):
            values = self.layout.finish(windows)
        return self.finished(heads, updated, values, starts, ends)

    def finished(self, heads: pa.Table, updated: Ints, values: list[pa.Array], starts: Ints, ends: Ints) -> pa.Table:
        """Windows whose aggregates are known; see :meth:`table`."""
        keys = [heads[k] for k in self.layout.key_names]
        own = [heads[n] for n in self.layout.own_names]
        columns = [*keys, *self._bounds(starts, ends), *values, *own, unstamp(updated, "timestamp")]
        windows = pa.Table.from_arrays(columns, schema=self.schema)
        order = pair_order(ends, starts)
        return windows if (order == np.arange(len(order))).all() else pick(windows, order)

    def empty(self) -> pa.Table:
        """No window."""
        return self.schema.empty_table()


def in_order(tables: list[pa.Table], n_keys: int) -> pa.Table:
    """State tables of several buckets, of `n_keys` key columns, as one in ascending end order."""
    table = pa.concat_tables(tables)
    start, end = table.schema.names[n_keys : n_keys + 2]
    return pick(table, pc.sort_indices(table, [(end, "ascending"), (start, "ascending")]))


def keys_held(tables: Iterable[pa.Table], names: Sequence[str]) -> int:
    """Count the keys that have something in these tables of a state; without key columns (`names`) 1, or 0."""
    held = [t.select(names) for t in tables if t.num_rows and set(names) <= set(t.column_names)]
    if not held or not names:
        return int(bool(held))
    keys = pa.concat_tables(held)
    return group([keys[n] for n in names], keys.num_rows).n
