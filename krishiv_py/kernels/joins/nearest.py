"""The row of a log that is nearest in time to each of some wanted ones."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import TIME
from krishiv_py.kernels.joins.meetings import NOBODY, Pairs, same_keys
from krishiv_py.kernels.joins.sides import NUMBER
from krishiv_py.kernels.state.keyed_log import HASH
from krishiv_py.kernels.state.span_log import SpanLog, Wanted


class Candidates:
    """Rows that were found, and which of them is the best for each of the left rows so far.

    Parameters
    ----------
    lefts : pyarrow.Table
        The left rows.
    schema : pyarrow.Schema
        Right rows.
    keys : list of str
        The key columns of both.
    """

    def __init__(self, lefts: pa.Table, schema: pa.Schema, keys: list[str]) -> None:
        self._lefts = lefts
        self._keys = keys
        self._times: Ints = lefts[TIME].to_numpy()
        self._tables = [schema.empty_table()]
        self._rows = 0
        self._rank = np.full((3, lefts.num_rows), np.iinfo(np.int64).max)
        self.places = np.full(lefts.num_rows, NOBODY)

    def table(self) -> pa.Table:
        """All rows that were found."""
        return pa.concat_tables(self._tables).combine_chunks()

    def offer(self, rows: pa.Table, at: Ints, lefts: Ints) -> Mask:
        """Take rows in where they are better than what there is: pairs of a row of these, and a left row.

        The nearer row is better, of two equally near ones the earlier, of equal times the later arrival. Gives which pairs have
        equal keys.
        """
        right = rows.select(self._tables[0].column_names)
        equal = same_keys(self._keys, self._lefts, right, Pairs(lefts, at))
        at, lefts = at[equal], lefts[equal]
        if not len(at):
            return equal
        times = right[TIME].to_numpy()[at]
        rank = np.stack([np.abs(times - self._times[lefts]), times, -right[NUMBER].to_numpy()[at]])
        order = np.lexsort((rank[2], rank[1], rank[0], lefts))
        first = order[np.append(True, lefts[order][1:] != lefts[order][:-1])]
        at, lefts, rank = at[first], lefts[first], rank[:, first]
        better = _less(rank, self._rank[:, lefts])
        self._rank[:, lefts[better]] = rank[:, better]
        self.places[lefts[better]] = at[better] + self._rows
        self._tables.append(right)
        self._rows += right.num_rows
        return equal


def _less(one: Ints, other: Ints) -> Mask:
    found: Mask = one[0] < other[0]
    same = one[0] == other[0]
    for mine, theirs in zip(one[1:], other[1:], strict=True):
        found |= same & (mine < theirs)
        same &= mine == theirs
    return found


@attrs.frozen(eq=False)
class Seekers:
    """Left rows that look for a partner, by hash: their places, and between which times they look."""

    places: Ints
    wanted: Wanted

    def offer_ends(self, log: SpanLog, candidates: Candidates, *, last: bool) -> None:
        """Offer the latest, or the earliest, row of a log for each."""
        shadowed: list[Ints] = []
        for rows, at, spans in log.ends_of(self.wanted, last=last):
            shadowed.append(spans[~candidates.offer(rows, at, self.places[spans])])
        missed = np.unique(np.concatenate([np.empty(0, np.int64), *shadowed]))
        if len(missed):  # a row of another key with the same hash lay at the end
            again = self.only(missed)
            for rows, at, spans in log.meeting(again.wanted):
                candidates.offer(rows, at, again.places[spans])

    def offer_all(self, rows: pa.Table, candidates: Candidates) -> None:
        """Offer rows that are laid out by :func:`~krishiv_py.kernels.state.span_log.by_key`."""
        start, stop = self.wanted.ranges(rows[HASH].to_numpy(), rows[TIME].to_numpy())
        at, spans = expand(start, stop)
        candidates.offer(rows, at, self.places[spans])

    def only(self, kept: Ints) -> Seekers:
        """Some of them."""
        w = self.wanted
        return Seekers(self.places[kept], Wanted(w.hashes[kept], w.low[kept], w.high[kept]))
