"""The net change of a batch: what became of the results of before (SEMANTICS §16.3)."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.equality import equal_rows
from krishiv_py.arrays.grouping import comparable, group
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask, pick
from krishiv_py.plan.changes import AFTER, BEFORE, DELETE, INSERT, OP


def net_changes(
    schema: pa.Schema, before: pa.Table, of_before: Ints, now: pa.Table, of_now: Ints, n: int, *, withdraws: bool
) -> pa.Table:
    """Return the changes from results of before to those of now: a result is withdrawn, and then given again.

    Parameters
    ----------
    schema : pyarrow.Schema
        That of the changes: the columns of results, and the kind of the change where it `withdraws`.
    before, now : pyarrow.Table
        Results of some of `n` keys.
    of_before, of_now : ndarray of int64
        The key of each, ascending; each at most once.
    withdraws : bool
        Whether what is no longer valid is given, too.
    """
    was, is_now = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    was[of_before], is_now[of_now] = np.arange(len(of_before)), np.arange(len(of_now))
    both = np.flatnonzero((was >= 0) & (is_now >= 0))
    equal = both[equal_rows(pick(before, was[both]), pick(now, is_now[both]))]
    was[equal] = is_now[equal] = -1
    gone, given = np.flatnonzero(was >= 0), np.flatnonzero(is_now >= 0)
    if not withdraws:
        return pick(now, is_now[given]).cast(schema)
    ops = update_kinds(is_now[gone] >= 0, was[given] >= 0)
    order = np.empty(len(ops), np.int64)  # a result is withdrawn right before it is given again
    ends = np.cumsum((was >= 0).astype(np.int64) + (is_now >= 0))
    order[ends[gone] - 1 - (is_now[gone] >= 0)] = np.arange(len(gone))
    order[ends[given] - 1] = np.arange(len(gone), len(ops))
    rows = pick(pa.concat_tables([pick(before, was[gone]), pick(now, is_now[given])]), order)
    return pa.Table.from_arrays([*rows.columns, kinds_of(ops[order])], schema=schema)


_INSERT, _BEFORE, _AFTER, _DELETE = range(4)


@cache
def _kinds() -> pa.Array:  # not with the module: Arrow loads pandas for its first array of a list
    return pa.array([INSERT, BEFORE, AFTER, DELETE])


def kinds_of(numbers: Ints) -> pa.Array:
    """Return change kinds by their numbers: those of the constants above."""
    return _kinds().take(pa.array(numbers))


def update_kinds(gone: Mask, given: Mask) -> Ints:
    """Return the numbers of the kinds of what is withdrawn, and then of what is given: true is a part of an update."""
    return np.concatenate([np.where(gone, _BEFORE, _DELETE), np.where(given, _AFTER, _INSERT)])


def signed_changes(
    schema: pa.Schema, rows: pa.Table, counts: Ints, of: Ints, names: list[str] | None, *, withdraws: bool
) -> pa.Table:
    """Return changes of rows of a table without a key: of each group of rows what is withdrawn, and then what is given.

    Parameters
    ----------
    schema : pyarrow.Schema
        That of the changes.
    rows : pyarrow.Table
        The rows that change, each once.
    counts : ndarray of int64
        How many of each are given; negative for those that are withdrawn.
    of : ndarray of int64
        The group of each.
    names : list of str or None
        Columns that tell rows apart: one that is withdrawn and given with other values is updated. None where there are none.
    withdraws : bool
        Whether what is withdrawn is given, too.
    """
    gone = counts < 0
    again = np.zeros(len(counts), np.bool_)
    if names is not None and gone.any() and not gone.all():
        pairs = group([of, *(comparable(rows[name]) for name in names)], rows.num_rows)
        left, came = np.zeros(pairs.n, np.bool_), np.zeros(pairs.n, np.bool_)
        left[pairs.ids[gone]], came[pairs.ids[~gone]] = True, True
        again = (left & came)[pairs.ids]
    ops = np.where(gone, np.where(again, _BEFORE, _DELETE), np.where(again, _AFTER, _INSERT))
    order = np.lexsort((~gone, of))
    places = np.repeat(order, np.abs(counts[order]))
    if not withdraws:
        places = places[~gone[places]]
    ops_column = [kinds_of(ops[places])] if withdraws else []
    return pa.Table.from_arrays([*pick(rows, places).columns, *ops_column], schema=schema)


def without_unchanged(changes: pa.Table) -> pa.Table:
    """Return changes without rows that are withdrawn and given again as they were: a step has left out what has changed."""
    gone = pc.starts_with(changes[OP], "-").to_numpy(zero_copy_only=False)
    if not gone.any() or gone.all():
        return changes
    rows = changes.drop_columns([OP])
    groups = group([comparable(rows[name]) for name in rows.column_names], rows.num_rows)
    members = 2 * groups.ids + gone
    counts = np.bincount(members, minlength=2 * groups.n)
    order = stable_order(members)
    before = np.empty(len(order), np.int64)
    before[order] = np.arange(len(order)) - (np.cumsum(counts) - counts)[members[order]]
    left = before >= np.minimum(counts[0::2], counts[1::2])[groups.ids]
    return changes if left.all() else pick(changes, np.flatnonzero(left))
