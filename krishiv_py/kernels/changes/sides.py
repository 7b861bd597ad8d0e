"""Rows of a side of a join before a batch and after it.

What is stored of some keys and what came of them are numbered together, equal rows once. Where columns tell the rows of a side
apart, these alone are looked at, and the last entry of a row counts::

    stored    a: 3    b: 1                  before    a: 3    b: 1
    came     -a: 3   +a: 4   +c: 7          now       a: 4    b: 1    c: 7
"""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.equality import equal_rows
from krishiv_py.arrays.grouping import comparable, group
from krishiv_py.arrays.sorting import pair_order
from krishiv_py.arrays.types import Ints, Mask, flags_at, last_rows, pick, totals_of, values_at
from krishiv_py.kernels.changes.counted import ROWS, refuse_unmatched


@attrs.frozen(eq=False)
class SideRows:
    """Rows of some keys, which may be others now than they were before; in order of key and arrival.

    Attributes
    ----------
    of : ndarray of int64
        The key of each.
    before, now : ndarray of int64
        What each was, and what it is: a row of `rows`, or -1.
    were, are : ndarray of int64
        How often each was there, and is.
    rows : pyarrow.Table
        The columns of the side.
    """

    of: Ints
    before: Ints
    now: Ints
    were: Ints
    are: Ints
    rows: pa.Table

    @property
    def changed(self) -> Mask:
        """Return which of them are not as they were."""
        mask: Mask = (self.before != self.now) | (self.were != self.are)
        return mask

    def some(self, wanted: Mask) -> SideRows:
        """Return some of them."""
        places = self.before[wanted], self.now[wanted]
        return SideRows(self.of[wanted], *places, self.were[wanted], self.are[wanted], self.rows)

    def there(self, n: int) -> tuple[Mask, Mask]:
        """Return which of `n` keys had a row, and which have one."""
        return flags_at(self.of[self.were > 0], n), flags_at(self.of[self.are > 0], n)

    def entries(self) -> tuple[Ints, Ints, Ints]:
        """Return what a log has to take for them to be as they are: some rows, the key of each, and how many of each."""
        changed = self.some(self.changed)
        same = changed.before == changed.now
        gone, came = (changed.before >= 0) & ~same, changed.now >= 0
        counts = np.where(same, changed.are - changed.were, changed.are)[came]
        places = np.concatenate([changed.before[gone], changed.now[came]])
        return places, np.concatenate([changed.of[gone], changed.of[came]]), np.concatenate([-changed.were[gone], counts])


def side_rows(
    stored: tuple[pa.Table, Ints], came: tuple[pa.Table, Ints], looked: Mask, ids: list[str] | None, *, forgets: bool
) -> tuple[SideRows, int]:
    """Return the rows of a side, and how many were not there to be taken back.

    Parameters
    ----------
    stored, came : (pyarrow.Table, ndarray of int64)
        Entries of a log, and those of a batch: rows with their number, and the key of each.
    looked : ndarray of bool
        The keys whose stored rows are given. Of others only the change is known.
    ids : list of str or None
        The columns that tell rows of a key apart; None where nothing known does.
    forgets : bool
        Whether rows may be taken back that are not there any more.

    Raises
    ------
    OperatorError
        For a row that is taken back and was not added.
    """
    both, of = pa.concat_tables([stored[0], came[0]]).combine_chunks(), np.concatenate([stored[1], came[1]])
    counts, rows, n = both[ROWS].to_numpy(), both.drop_columns([ROWS]), len(stored[1])
    parts = _all_of_them(rows, of, counts, n, looked) if ids is None else _newest_of_them(rows, of, counts, n, looked, ids)
    side, missing = parts
    if not forgets:
        refuse_unmatched(-missing)
    return side, int(missing.sum())


def _all_of_them(rows: pa.Table, of: Ints, counts: Ints, n: int, looked: Mask) -> tuple[SideRows, Ints]:
    """Number rows by all of their columns."""
    if (counts > 0).all():  # nothing is taken back, so none has to be found
        first, were, are = np.arange(len(of)), np.where(np.arange(len(of)) < n, counts, 0), counts
    else:
        groups = group([of, *(comparable(rows[name]) for name in rows.column_names)], rows.num_rows)
        first, were = groups.first, totals_of(groups.ids[:n], counts[:n], groups.n)
        are = were + totals_of(groups.ids[n:], counts[n:], groups.n)
    order = pair_order(of[first], first)
    first, were, are = first[order], were[order], are[order]
    missing = np.where(looked[of[first]], np.maximum(-are, 0), 0)
    are = are + missing
    side = SideRows(of[first], first, first, were, are, rows)
    return side.some((were != 0) | (are != 0)), missing[missing > 0]


def _newest_of_them(rows: pa.Table, of: Ints, counts: Ints, n: int, looked: Mask, ids: list[str]) -> tuple[SideRows, Ints]:
    """Number rows by the columns that tell them apart; the last entry of each says whether it is there."""
    groups = group([of, *(rows[name] for name in ids)], rows.num_rows)
    place = np.arange(len(of))
    last_stored = last_rows(groups.ids[:n], groups.n)
    last_came = values_at(groups.ids[n:], place[n:], groups.n, -1)
    first_came = values_at(groups.ids[n:][::-1], place[n:][::-1], groups.n, -1)
    order = pair_order(of[groups.first], groups.first)
    last_stored, first_came, last_came = last_stored[order], first_came[order], last_came[order]
    keys = of[groups.first[order]]
    before = np.where((last_stored >= 0) & (counts[last_stored] > 0), last_stored, -1)
    withdrawn = (first_came >= 0) & (counts[first_came] < 0)
    missing = (withdrawn & looked[keys] & (before < 0)).astype(np.int64)
    before = np.where(withdrawn & ~looked[keys], first_came, before)
    now = np.where(last_came < 0, before, np.where(counts[last_came] > 0, last_came, -1))
    again = np.flatnonzero((before >= 0) & (now >= 0) & (before != now))
    if len(again):
        same = again[equal_rows(pick(rows, before[again]), pick(rows, now[again]))]
        now[same] = before[same]
    were, are = (before >= 0).astype(np.int64), (now >= 0).astype(np.int64)
    return SideRows(keys, before, now, were, are, rows).some((were != 0) | (are != 0)), missing[missing > 0]
