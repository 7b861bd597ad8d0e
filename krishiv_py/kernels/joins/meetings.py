"""Determine which rows of both sides meet, and the results that are made of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.sorting import order_in_runs, stable_order
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.errors import OperatorError
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.columns.place import place_of
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.joins.sides import NUMBER, Fresh
from krishiv_py.kernels.state.keyed_log import HASH
from krishiv_py.kernels.state.span_log import SpanLog, Wanted

NOBODY: Final = -1
_LEAST: Final = int(np.iinfo(np.int64).min)


class Pool:
    """Rows of one side that results are made of, in one table; those that a batch brings come first."""

    def __init__(self, fresh: pa.Table) -> None:
        self.tables = [fresh]
        self.fresh = self._rows = int(fresh.num_rows)

    def add(self, rows: pa.Table) -> int:
        """Add rows; gives the place of the first."""
        at = self._rows
        self.tables.append(rows)
        self._rows += rows.num_rows
        return at

    def table(self) -> pa.Table:
        """All rows."""
        return self.tables[0] if len(self.tables) == 1 else pa.concat_tables(self.tables).combine_chunks()


class Tally:
    """Counts the pairs of a step by the key of the new rows, and refuses too many of one."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._most = layout.spec.options.max_listed
        self._total = 0
        self._parts: list[tuple[Fresh, Ints, Ints]] = []

    def count(self, fresh: Fresh, numbers: Ints, counts: Ints) -> None:
        """Take in how many rows some of the seeking rows meet.

        Raises
        ------
        OperatorError
            With key, number of pairs and the way out.
        """
        total = int(counts.sum())
        if not total:
            return
        self._total += total
        self._parts.append((fresh, fresh.seeks[numbers], counts))
        if self._total > self._most:
            self._check()

    def _check(self) -> None:
        tables = [pick(f.table.select([HASH, *self._layout.key_names]), at) for f, at, _ in self._parts]
        counts = np.concatenate([counts for _, _, counts in self._parts])
        refuse_many(self._layout, pa.concat_tables(tables), np.arange(len(counts)), counts)


def refuse_many(layout: Layout, rows: pa.Table, at: Ints, counts: Ints) -> None:
    """Refuse more pairs of one key in a step than the plan allows: how many each of some rows is in.

    Raises
    ------
    OperatorError
        With key, number of pairs and the way out.
    """
    most = layout.spec.options.max_listed
    if int(counts.sum()) <= most:
        return
    keys, ids = np.unique(rows[HASH].to_numpy()[at], return_inverse=True)
    totals = np.zeros(len(keys), np.int64)
    np.add.at(totals, ids, counts)
    worst = int(totals.argmax())
    pairs = int(totals[worst])
    if pairs <= most:
        return
    place = place_of(layout.spec, rows, int(at[np.flatnonzero(ids == worst)[0]]))
    raise OperatorError(
        f"a join would give more than {most:,} pairs of one key in a step",
        got=f"{pairs:,} {place}",
        then="that grows with the product of its rows on both sides, and would fill the memory",
        hint="make bounds or windows narrower, join on one more column, leave the key out with .filter, or raise the limit: "
        f".max_listed({2 * pairs})",
    )


@attrs.frozen(eq=False)
class Pairs:
    """Rows that meet: places in the pools of both sides; ``NOBODY`` where a row is given alone."""

    left: Ints
    right: Ints

    def only(self, kept: Mask) -> Pairs:
        """Some of them."""
        return Pairs(self.left[kept], self.right[kept])


def among_fresh(left: Fresh, right: Fresh, wanted: Wanted, tally: Tally) -> Pairs:
    """Pairs of two rows that a batch brings; `wanted` is what the left ones look for."""
    start, stop = wanted.ranges(right.table[HASH].to_numpy(), right.times)
    tally.count(left, np.arange(len(start)), stop - start)
    at, spans = expand(start, stop)
    return Pairs(left.seeks[spans], at)


def with_held(fresh: Fresh, wanted: Wanted, log: SpanLog, pool: Pool, tally: Tally) -> Iterator[tuple[Ints, Ints]]:
    """Pairs of a row that a batch brings and a row held on the other side, which is put into its pool."""
    for rows, at, spans in log.meeting(wanted, lambda numbers, counts: tally.count(fresh, numbers, counts)):
        yield fresh.seeks[spans], at + pool.add(rows)


def same_keys(keys: list[str], left: pa.Table, right: pa.Table, pairs: Pairs) -> Mask:
    """Pairs whose keys are equal, not only their hashes; null equals nothing."""
    same = np.ones(len(pairs.left), np.bool_)
    one, other = pa.array(pairs.left), pa.array(pairs.right)
    for key in keys:
        ours, theirs = pick(left[key], one), pick(right[key], other)
        equal = pc.fill_null(pc.equal(ours, theirs), False)
        if pa.types.is_floating(ours.type):  # SQL groups NaN with NaN
            equal = pc.or_(equal, pc.fill_null(pc.and_(pc.is_nan(ours), pc.is_nan(theirs)), False))
        same &= equal.to_numpy()
    return same


def times_of(left: pa.Table, right: pa.Table, pairs: Pairs) -> Ints:
    """The later time of every pair, or that of the row that is alone."""
    return np.maximum(picked(left[TIME].to_numpy(), pairs.left), picked(right[TIME].to_numpy(), pairs.right))


def picked(values: Ints, at: Ints, none: int = _LEAST) -> Ints:
    """Values at some places, `none` for nobody's."""
    found: Ints = np.append(values, none)[at]  # NOBODY is the last place
    return found


def in_order(left: pa.Table, right: pa.Table, pairs: Pairs, times: Ints) -> Ints:
    """Pairs by time, then key (its hash), then arrival of the left, then of the right row: whatever came with what."""
    order = stable_order(times)
    ordered = times[order]
    same = ordered[1:] == ordered[:-1]
    tied = np.flatnonzero(np.append(False, same) | np.append(same, False))
    if len(tied):
        at = order[tied]
        one, other = pairs.left[at], pairs.right[at]
        hashes = np.maximum(picked(right[HASH].to_numpy(), other), picked(left[HASH].to_numpy(), one))
        arrived = picked(left[NUMBER].to_numpy(), one), picked(right[NUMBER].to_numpy(), other)
        runs = np.cumsum(np.append(0, np.diff(ordered[tied]) != 0))
        order[tied] = at[order_in_runs(runs, hashes, *arrived)]
    return order


def results(
    layout: Layout, names: tuple[list[str], list[str]], left: pa.Table, right: pa.Table, pairs: Pairs, times: Ints
) -> pa.Table:
    """Result rows in order of their `times`: keys, left and right columns, and the time if it is asked for."""
    order = in_order(left, right, pairs, times)
    one, other = (pa.array(at[order], mask=at[order] == NOBODY) for at in (pairs.left, pairs.right))
    arrays = [key_of(left[k], right[k], one, other) for k in layout.key_names]
    arrays += [pick(left[n], one) for n in names[0]] + [pick(right[n], other) for n in names[1]]
    if len(arrays) < len(layout.result_schema):
        arrays.append(unstamp(times[order], layout.spec.time_kind))
    return pa.Table.from_arrays(arrays, schema=layout.result_schema)


def key_of(left: pa.ChunkedArray, right: pa.ChunkedArray, one: pa.Array, other: pa.Array) -> pa.ChunkedArray:
    """Keys of results: of the left row, or of the right one where there is no left one."""
    if not one.null_count:
        return pick(left, one)
    if one.null_count == len(one):
        return pick(right, other)
    return pc.if_else(one.is_valid(), pick(left, one), pick(right, other))
