"""Rows of which equal ones are there once, with their number: a table without a key."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import comparable, group, places_among
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask, last_rows, pick, totals_of
from krishiv_py.errors import OperatorError
from krishiv_py.kernels.changes.touched import TouchedKeys
from krishiv_py.kernels.state.store import WRITTEN, Bucket
from krishiv_py.kernels.state.window_log import HASH, DeadKeys, KeyedLog

ROWS: Final = "__rows"
"""The number of equal rows; negative for rows that are taken back."""


def counted(rows: pa.Table, ids: Ints) -> tuple[pa.Table, Ints]:
    """Return rows of the keys `ids`, equal ones once with their number, without those of which none is left; and their keys."""
    values = [comparable(rows[name]) for name in rows.column_names if name not in (ROWS, HASH)]
    groups = group([ids, *values], rows.num_rows)
    total = totals_of(groups.ids, rows[ROWS].to_numpy(), groups.n)
    left = np.flatnonzero(total != 0)
    left = left[stable_order(groups.first[left])]  # in order of arrival
    place = rows.column_names.index(ROWS)
    picked = pick(rows, groups.first[left]).set_column(place, rows.schema.field(ROWS), pa.array(total[left]))
    return picked, ids[groups.first[left]]


def refuse_unmatched(counts: Ints) -> None:
    """Refuse rows that are withdrawn and were never added: the results would be wrong from here on.

    Raises
    ------
    OperatorError
        Where there are any.
    """
    if len(counts) and int(counts.min()) < 0:
        raise OperatorError(
            "a row is withdrawn that was not added",
            got=f"{-int(counts.min())} more of one row than came",
            then="the results would lack it for ever",
            hint="read the changes through .from_changelog(...), which puts such rows aside",
        )


@attrs.frozen(eq=False)
class CountedRows:
    """Rows of some keys, equal ones once: the number of the key of each, and their columns, the last one how many there are."""

    of: Ints
    rows: pa.Table

    @classmethod
    def of_table(cls, rows: pa.Table, ids: Ints) -> CountedRows:
        """Return rows of the keys `ids`, equal ones once."""
        both, of = counted(rows, ids)
        return cls(of, both)

    @property
    def counts(self) -> Ints:
        """Return how many there are of each."""
        counts: Ints = self.rows[ROWS].to_numpy()
        return counts

    def pick(self, places: Ints) -> CountedRows:
        """Return some of the rows, in this order."""
        return CountedRows(self.of[places], pick(self.rows, places))

    def of_keys(self, wanted: Mask) -> CountedRows:
        """Return the rows of some keys."""
        return self.pick(np.flatnonzero(wanted[self.of]))

    def times(self, counts: Ints) -> CountedRows:
        """Return as many of each as `counts` says."""
        place = self.rows.num_columns - 1
        return CountedRows(self.of, self.rows.set_column(place, self.rows.schema.field(place), pa.array(counts)))

    def negative(self) -> CountedRows:
        """Return them as rows that are taken back."""
        return self.times(-self.counts)

    def matched(self, *, forgets: bool) -> tuple[CountedRows, int]:
        """Return the rows that are there, and how many were withdrawn that were not.

        Raises
        ------
        OperatorError
            Where there are such rows and the state does not forget any.
        """
        counts = self.counts
        if not forgets:
            refuse_unmatched(counts)
            return self, 0
        return self.pick(np.flatnonzero(counts > 0)), int(-counts[counts < 0].sum())

    def added(self, more: CountedRows) -> CountedRows:
        """Return them with others, equal ones once."""
        return CountedRows.of_table(pa.concat_tables([self.rows, more.rows]), np.concatenate([self.of, more.of]))


class CountedLog:
    """The rows of each key in a bucket, equal ones with their number: a batch appends what it adds and takes back.

    Parameters
    ----------
    bucket : Bucket
        Where it is.
    name : str
        What its tables are called.
    keys, own : list of pyarrow.Field
        The columns of the key, and the others.
    ids : list of str, optional
        The columns that tell rows of a key apart, if some are known to.
    """

    def __init__(
        self, bucket: Bucket, name: str, keys: list[pa.Field], own: list[pa.Field], ids: list[str] | None = None
    ) -> None:
        self.names, self.own, self._ids = [field.name for field in keys], [field.name for field in own], ids
        self.schema = pa.schema([pa.field(HASH, pa.int64()), *keys, *own, pa.field(ROWS, pa.int64())])
        self._log = KeyedLog(bucket, name, self.schema, self._compact)

    def __len__(self) -> int:
        return len(self._log)

    def take(self, touched: TouchedKeys, fresh: pa.Table, ids: Ints, *, forgets: bool) -> tuple[CountedRows, CountedRows, int]:
        """Add what came of some keys, and take back what is withdrawn.

        Returns the rows of before and of now, and how many rows were not there to be taken back, as the state `forgets` keys.
        """
        before = self.lookup(touched)
        came = CountedRows.of_table(fresh.select([*self.own, ROWS]), ids)
        now, missing = before.added(came).matched(forgets=forgets)
        self.append(touched, now.added(before.negative()) if missing else came)
        return before, now, missing

    def lookup(self, touched: TouchedKeys) -> CountedRows:
        """Return the rows of some keys."""
        return CountedRows.of_table(*self.entries(touched))

    def entries(self, touched: TouchedKeys, some: Mask | None = None) -> tuple[pa.Table, Ints]:
        """Return what was appended of some keys, all of them or `some`, and the key of each."""
        rows = self._log.lookup(touched.hashes_of(some))
        ids = np.zeros(rows.num_rows, np.int64)
        if self.names:
            ids = places_among(self.names, touched.keys, rows)
        mine = ids >= 0  # others have the hash of one of these keys
        if some is not None:
            mine &= some[ids]
        rows = rows.select([*self.own, ROWS])
        return (rows, ids) if mine.all() else (pick(rows, np.flatnonzero(mine)), ids[mine])

    def append(self, touched: TouchedKeys, fresh: CountedRows) -> None:
        """Add what came, and what is taken back."""
        self.extend(touched, fresh.rows.drop_columns([ROWS]), np.arange(len(fresh.of)), fresh.of, fresh.counts)

    def extend(self, touched: TouchedKeys, rows: pa.Table, places: Ints, of: Ints, counts: Ints) -> None:
        """Add entries: of the keys `of` some `rows` by their places, and how many of each."""
        if not len(of):
            return
        order = stable_order(touched.ranks[of])  # the log has its rows in order of their hashes
        places, of, counts = places[order], of[order], counts[order]
        keys = pick(touched.keys.select(self.names), of).columns if self.names else []
        columns = [pa.array(touched.hashes[of]), *keys, *pick(rows, places).columns, pa.array(counts)]
        self._log.append(pa.Table.from_arrays(columns, schema=self.schema))

    def written(self) -> tuple[pa.Table, CountedRows]:
        """Return all keys, with a column that says when their rows were written last, and the rows."""
        rows = self._log.written()
        touched, ids = TouchedKeys.of(rows, self.names)
        written = np.full(touched.n, -1, np.int64)
        np.maximum.at(written, ids, rows[WRITTEN].to_numpy())
        return touched.keys.append_column(WRITTEN, pa.array(written)), CountedRows.of_table(rows.select([*self.own, ROWS]), ids)

    def drop(self, dead: DeadKeys) -> pa.Table:
        """Take keys out; returns what the log had of them."""
        return self._log.remove(dead.hashes, dead.rows)

    def _compact(self, rows: pa.Table, oldest: bool) -> pa.Table:
        counts = rows[ROWS].to_numpy()
        if self._ids is not None:
            return self._newest(rows, counts, oldest=oldest)
        if (counts > 0).all():  # nothing is taken back
            return rows
        groups = group([rows[k] for k in self.names], rows.num_rows)
        return counted(rows, groups.ids)[0]

    def _newest(self, rows: pa.Table, counts: Ints, *, oldest: bool) -> pa.Table:
        """Return of each row the last entry that adds it, and the first that takes it back while something older is left."""
        assert self._ids is not None
        groups = group([rows[name] for name in (*self.names, *self._ids)], rows.num_rows)
        last = last_rows(groups.ids, groups.n)
        kept = counts > 0
        kept[kept] = last[groups.ids[kept]] == np.flatnonzero(kept)
        if not oldest:
            first = groups.first[counts[groups.first] < 0]
            kept[first] = True
        return pick(rows, np.flatnonzero(kept))
