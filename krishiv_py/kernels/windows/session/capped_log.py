"""State and written results of sessions with a longest duration (SEMANTICS §3.3, §5.1, §5.2).

They are a log by key of rows, results that stand, and marks:

============  =========  ==========================================================================================
kind ``z``    ``a, b``   meaning
============  =========  ==========================================================================================
ROW           t, reach   partial aggregates of the rows of one key and time, until their session is closed
STANDING      bounds     a result that was written and not withdrawn
MARK          q, q       the key is looked at again when the watermark reaches ``q``
CLOSED        c, c       rows before ``c`` that had come by then are gone
============  =========  ==========================================================================================

Every step that touches a key writes one mark for it and all results that stand, so results older than the last mark (by
step number ``s``) are withdrawn. Of the closings of a key only the last matters, and those that reach beyond it: where rows of
a key come in several lanes, one of them may be ahead.

As rows come mostly in order, a step knows this of a key without reading its rows:

========  ==================================================================================================
column    meaning
========  ==================================================================================================
``a, b``  bounds of the last session, if it has not fired
``t``     rows at this time or later join that session or come after all others: the key need not be walked
``o``     the watermark at which another session of the key is due or over
``q``     the key is looked at again when the watermark reaches ``q``: there is an entry in the queue of timers
``p``     by which watermark each row that waits ahead of it would have ended a session of its own
========  ==================================================================================================

A number that says nothing is the begin of time in ``a, b, t, p`` and its end in ``o, q``.

Other keys are walked in time order, all at once. A row joins while it is within reach of the session and ``t - first <
max_duration``; otherwise it opens the next one. Where the next session starts, if one starts at row i, does not depend on
what was before, so it is computed for every row at once; then all keys follow these pointers together, one session of each
key a round.

Which rows have been written, and under which result they stand, is kept by row: sessions merge and are divided again, rows
stay what they are. So sessions that merge add up what they had counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.grouping import group, group_rows
from krishiv_py.arrays.ranges import Components, PairCodes, overlapping, running_reach
from krishiv_py.arrays.sorting import pair_order, stable_order
from krishiv_py.arrays.types import Ints, Mask, flags_at, largest_of, last_rows, least_of, pick, values_at, with_column
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import HASH, DeadKeys, KeyedLog
from krishiv_py.kernels.windows.session.rows import END, FIRED, KIND, SEQ, START, Contents, NumberedResults, SessionRows
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.options.triggers import Trigger

ROW: Final = 0
STANDING: Final = 1
MARK: Final = 2
CLOSED: Final = 3


@attrs.frozen(eq=False)
class LiveEntries:
    """Entries of some keys, sifted.

    Attributes
    ----------
    groups : ndarray of int64
        Key number of every entry.
    rows, standing, marks : ndarray of bool
        Which entries are living rows, results that stand, and the last mark and closing of their key.
    armed : ndarray of int64
        By key: when it is looked at again.
    """

    groups: Ints
    rows: Mask
    standing: Mask
    marks: Mask
    armed: Ints


class CappedLog:
    """Layout and sifting of entries."""

    def __init__(self, rows: SessionRows) -> None:
        self.key_names = rows.layout.key_names
        self.partials = [f.name for f in rows.layout.partial_fields]
        extra = [pa.field(SEQ, pa.int64()), pa.field(FIRED, pa.int64()), pa.field(KIND, pa.int8())]
        self.schema = pa.schema([*rows.schema, *extra])

    def entries(self, stored: pa.Table, seq: int, kind: int, fired: Ints | None = None) -> pa.Table:
        """Stored rows as entries; results with how often their session has fired."""
        n = stored.num_rows
        return pa.Table.from_arrays(
            [*stored.select(self.schema.names[:-3]).columns, *_extra(n, seq, kind, fired)], schema=self.schema
        )

    def marks(self, keys: pa.Table, moments: Ints, seq: int, kind: int) -> pa.Table:
        """Marks or closings for keys; `keys` has the hash and the key columns."""
        n = keys.num_rows
        nothing = [pa.nulls(n, self.schema.field(p).type) for p in self.partials]
        columns = [keys[HASH], pa.array(moments), pa.array(moments), *(keys[k] for k in self.key_names), *nothing]
        return pa.Table.from_arrays([*columns, *_extra(n, seq, kind, None)], schema=self.schema)

    def sift(self, entries: pa.Table, groups: Ints, n: int) -> LiveEntries:
        """Return which entries are alive, given the key number of each."""
        kinds, seqs, starts = entries[KIND].to_numpy(), entries[SEQ].to_numpy(), entries[START].to_numpy()
        marks, marked = _last(kinds == MARK, seqs, groups, n)
        every = kinds == CLOSED
        closings, closed = _last(every, seqs, groups, n)
        armed, upto = np.full(n, END_OF_TIME), np.full(n, UNSET)
        armed[groups[marks]] = starts[marks]
        upto[groups[closings]] = starts[closings]
        rows = (kinds == ROW) & ((seqs > closed[groups]) | (starts >= upto[groups]))
        farther = every & (starts > upto[groups])
        if farther.any():  # keys with rows of several lanes, of which one is ahead
            rows &= ~_before(farther, seqs, starts, groups)
            closings |= farther
        return LiveEntries(groups, rows, (kinds == STANDING) & (seqs == marked[groups]), marks | closings, armed)

    def compact(self, entries: pa.Table, oldest: bool) -> pa.Table:
        """Entries that still matter; a mark with nothing left under it goes when nothing older remains."""
        keys = group([entries[k] for k in self.key_names], entries.num_rows)
        alive = self.sift(entries, keys.ids, keys.n)
        kept = alive.rows | alive.standing
        if oldest:
            needed = flags_at(keys.ids[kept], keys.n)
            kept |= alive.marks & needed[keys.ids]
        else:
            kept |= alive.marks
        return entries.filter(pa.array(kept))


def _extra(n: int, seq: int, kind: int, fired: Ints | None) -> list[pa.Array]:
    often = pa.repeat(pa.scalar(0, pa.int64()), n) if fired is None else pa.array(fired)
    return [pa.repeat(pa.scalar(seq, pa.int64()), n), often, pa.repeat(pa.scalar(kind, pa.int8()), n)]


def _last(wanted: Mask, seqs: Ints, groups: Ints, n: int) -> tuple[Mask, Ints]:
    """Return the newest of the wanted entries of each key, and its step number by key (-1: none)."""
    newest = largest_of(groups[wanted], seqs[wanted], n, -1)
    return wanted & (seqs == newest[groups]), newest


def _before(closings: Mask, seqs: Ints, starts: Ints, groups: Ints) -> Mask:
    """Return which entries any of these closings of their key took out."""
    order = np.flatnonzero(closings)
    order = order[pair_order(groups[order], seqs[order])][::-1]
    upto = running_reach(groups[order].max() - groups[order], starts[order])[::-1]
    codes = PairCodes(np.append(groups, groups[order[::-1]]), np.append(seqs, seqs[order[::-1]])).codes
    place = np.searchsorted(codes[len(groups) :], codes[: len(groups)])
    of, upto = np.append(groups[order[::-1]], -1)[place], np.append(upto, UNSET)[place]
    mask: Mask = (of == groups) & (starts < upto)
    return mask


_NOTHING: Final = {START: UNSET, END: UNSET, "t": UNSET, "o": END_OF_TIME, "q": END_OF_TIME, "p": UNSET}


@attrs.define(eq=False)
class Heads:
    """Heads of some keys: a row of `keys` and an element of each array are of one key."""

    keys: pa.Table
    starts: Ints
    ends: Ints
    ordered_from: Ints
    other: Ints
    armed: Ints
    waiting_until: Ints

    @property
    def hashes(self) -> Ints:
        """The hash of each key."""
        hashes: Ints = self.keys[HASH].to_numpy()
        return hashes

    def picked(self, mask: Mask) -> Heads:
        """Return some of the heads."""
        return Heads(self.keys.filter(pa.array(mask)), *(a[mask] for a in self.arrays))

    @property
    def arrays(self) -> tuple[Ints, ...]:
        """Return the numbers, in the order of their columns."""
        return self.starts, self.ends, self.ordered_from, self.other, self.armed, self.waiting_until


class HeadLog:
    """The heads of a bucket, by key."""

    def __init__(self, bucket: Bucket, rows: SessionRows) -> None:
        self._names = [HASH, *rows.layout.key_names]
        key_fields = [pa.field(HASH, pa.int64()), *rows.layout.key_fields]
        self._schema = pa.schema([*key_fields, *(pa.field(name, pa.int64()) for name in _NOTHING)])
        self._log = KeyedLog(bucket, "h", self._schema, self._compact)

    def of(self, hashes: Ints, *rows: pa.Table) -> tuple[Heads, Mask, list[Ints]]:
        """Return the heads of the keys of some rows and of these hashes (sorted, each once).

        Returns
        -------
        Heads
            Those that are held and, for keys of rows that have none, some that say nothing.
        ndarray of bool
            Which are held.
        list of ndarray of int64
            For each table of rows the number of the head of every row.
        """
        held = self._newest(self._log.lookup(hashes))
        keys = group_rows(self._names[1:], held, *rows)
        n = keys.n
        everything = pa.concat_tables([t.select(self._names) for t in (held, *rows)])
        place = last_rows(keys.ids, n)
        cuts = np.cumsum([held.num_rows, *(t.num_rows for t in rows)])
        numbers = [np.asarray(part) for part in np.split(keys.ids, cuts[:-1])]
        arrays = []
        for name, nothing in _NOTHING.items():
            array = values_at(numbers[0], held[name].to_numpy(), n, nothing)
            arrays.append(array)
        known = flags_at(numbers[0], n)
        return Heads(pick(everything, place), *arrays), known, numbers[1:]

    def write(self, heads: Sequence[Heads]) -> None:
        """Note heads in place of those that are held of their keys."""
        noted = [pa.Table.from_arrays([*h.keys.columns, *map(pa.array, h.arrays)], schema=self._schema) for h in heads]
        self._log.append(pa.concat_tables([self._schema.empty_table(), *noted]))

    def drop(self, dead: DeadKeys) -> None:
        """Forget keys."""
        self._log.remove(dead.hashes, dead.rows)

    def look_again(self, hashes: Ints, moments: Ints, more_us: int) -> None:
        """Let keys, by their hashes (sorted, each once), be walked at these moments; rows ahead end so much later."""
        heads = self._newest(self._log.everything())
        self._log.clear()
        place = np.searchsorted(hashes, heads[HASH].to_numpy())
        known = np.append(hashes, 0)[place] == heads[HASH].to_numpy()
        until = heads["p"].to_numpy()
        columns = {
            "o": np.full(heads.num_rows, UNSET),
            "q": np.where(known, np.append(moments, END_OF_TIME)[place], END_OF_TIME),
            "p": np.where(until == UNSET, UNSET, until + more_us),
        }
        for name, column in columns.items():
            heads = with_column(heads, name, pa.array(column))
        self._log.append(heads.filter(pa.array(known)))

    def clear(self) -> None:
        """Nothing is open any more."""
        self._log.clear()

    def _newest(self, heads: pa.Table) -> pa.Table:
        keys = group_rows(self._names[1:], heads)
        if keys.n == heads.num_rows:
            return heads
        last = last_rows(keys.ids, keys.n)
        return pick(heads, np.sort(last))

    def _compact(self, heads: pa.Table, oldest: bool) -> pa.Table:
        """Return the newest of each key; those of keys that wait for nothing go when nothing older remains for them to
        replace.
        """
        kept = self._newest(heads)
        return kept.filter(pa.array(kept["q"].to_numpy() != END_OF_TIME)) if oldest else kept


@attrs.frozen
class Limits:
    """Holds what divides the rows of a key into sessions: the longest duration, and whether rows at distance just a gap
    join.
    """

    cap_us: int
    touching: bool

    def sessions(self, groups: Ints, times: Ints, reaches: Ints) -> Components:
        """Return the sessions of rows, by group and start."""
        return walk(groups, times, reaches, self.cap_us, touching=self.touching)


def walk(groups: Ints, times: Ints, reaches: Ints, cap_us: int, *, touching: bool) -> Components:
    """Sessions of rows, numbered by group, then by start.

    Parameters
    ----------
    groups, times, reaches : ndarray of int64
        Group and time of every row, and until when it keeps a session open: its time plus its gap.
    cap_us : int
        The longest duration.
    touching : bool
        Whether a row at distance exactly its gap joins.
    """
    n = len(times)
    if n == 0:
        return Components(times, times, times, 0)
    order = stable_order(PairCodes(groups, times).codes)
    g, t, reach = groups[order], times[order], reaches[order]
    heads = np.flatnonzero(np.concatenate([[True], g[1:] != g[:-1]]))
    stops = np.append(heads[1:], n)
    last = np.repeat(stops, stops - heads)
    coded = PairCodes(np.concatenate([g, g, g]), np.concatenate([t, t + cap_us, reach])).codes
    capped = np.searchsorted(coded[:n], coded[n : 2 * n], side="left")
    beyond = np.searchsorted(coded[:n], coded[2 * n :], side="right" if touching else "left")
    follows = np.minimum(np.minimum(capped, _first_break(beyond)), last)
    opens = np.zeros(n, np.bool_)
    rows = heads
    while len(rows):
        opens[rows] = True
        ahead = follows[rows]
        rows = ahead[ahead < last[rows]]
    starts = np.flatnonzero(opens)
    ids = values_at(order, np.cumsum(opens) - 1, n)
    ends = np.minimum(np.maximum.reduceat(reach, starts), t[starts] + cap_us)
    return Components(ids, t[starts], ends, len(starts))


def _first_break(beyond: Ints) -> Ints:
    """For every row the first row after it that none from it on reaches; `beyond` is the first one it does not reach itself.

    With one gap for all rows that is the next row its predecessor does not reach. Otherwise the reach of a row is widened to
    the farthest among the rows it covers, until nothing changes: each round doubles the length of the chains followed.
    """
    n = len(beyond)
    rows = np.arange(n, dtype=np.int64)
    if (np.diff(beyond) >= 0).all():
        breaks = np.where(beyond[:-1] <= rows[1:], rows[1:], n)
        return np.append(np.minimum.accumulate(breaks[::-1])[::-1], n)
    while True:
        wider = overlapping(np.maximum, beyond, rows, beyond)
        if np.array_equal(wider, beyond):
            return beyond
        beyond = wider


@attrs.define(eq=False)
class RowState:
    """By row, in order of arrival.

    Attributes
    ----------
    groups, starts, reaches : ndarray of int64
        Group of the key, time, and until when the row keeps a session open.
    fired, done : ndarray of bool
        Rows that were part of a firing, and those in a session that had its watermark firing or a late one.
    often : ndarray of int64
        How often the session of the row fired.
    under : ndarray of int64
        Number of the result the row belongs to; -1 for none.
    """

    groups: Ints
    starts: Ints
    reaches: Ints
    fired: Mask
    done: Mask
    often: Ints
    under: Ints


@attrs.frozen(eq=False)
class RowSessions:
    """Sessions of some rows: `at` are the rows (ascending), `sessions` what they make, `groups` the key of each session."""

    at: Ints
    sessions: Components
    groups: Ints

    def where(self, mask: Mask) -> Mask:
        """Sessions with at least one of the masked rows; `mask` is over all rows of the bench."""
        return flags_at(self.sessions.ids[mask[self.at]], self.sessions.n)


@attrs.define(eq=False)
class WrittenSessions:
    """Fires sessions, and notes what was written.

    Attributes
    ----------
    limits : Limits
        What divides rows into sessions.
    results : NumberedResults
        Results that stand; more are added as sessions fire.
    present : ndarray of bool
        The rows that have come.
    """

    state: RowState
    limits: Limits
    trigger: Trigger
    results: NumberedResults
    contents: Contents
    discarding: bool = attrs.field(kw_only=True)
    retract: bool = attrs.field(kw_only=True)
    present: Mask = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.present = np.ones(len(self.state.starts), np.bool_)

    def cut(self, wanted: Mask) -> RowSessions:
        """Return the sessions of the rows present of some groups."""
        return self.cut_of(np.flatnonzero(self.present & wanted[self.state.groups]))

    def cut_of(self, rows: Ints) -> RowSessions:
        """Return the sessions of some rows, ascending."""
        s = self.state
        groups = s.groups[rows]
        sessions = self.limits.sessions(groups, s.starts[rows], s.reaches[rows])
        of_session = values_at(sessions.ids, groups, sessions.n)
        return RowSessions(rows, sessions, of_session)

    def pending(self, cut: RowSessions) -> Ints:
        """Rows of each session that were part of no firing."""
        waiting = ~self.state.fired[cut.at]
        return np.bincount(cut.sessions.ids[waiting], minlength=cut.sessions.n).astype(np.int64)

    def standing(self, cut: RowSessions) -> Mask:
        """Sessions whose result stays with just their rows and bounds."""
        ids, n = cut.sessions.ids, cut.sessions.n
        if not len(self.results) or not n:
            return np.zeros(n, np.bool_)
        under = self.state.under[cut.at]
        head = values_at(ids, under, n)
        alike = np.ones(n, np.bool_)
        alike[ids[under != head[ids]]] = False
        r = self.results
        same = (r.starts[head] == cut.sessions.starts) & (r.ends[head] == cut.sessions.ends)
        whole: Mask = alike & (head >= 0) & same & (r.counts[head] == np.bincount(ids, minlength=n))
        return whole

    def revised(self, cut: RowSessions) -> Mask:
        """Sessions made of rows all written before, but not as this session: divided again."""
        if self.discarding:
            return np.zeros(cut.sessions.n, np.bool_)
        mask: Mask = (self.pending(cut) == 0) & ~self.standing(cut)
        return mask

    def tick_off(self, cut: RowSessions, sessions: Mask, done: bool = True) -> None:
        """Note of some sessions that they had, or are to have, their watermark firing."""
        self.state.done[cut.at[sessions[cut.sessions.ids]]] = done

    def fire(self, cut: RowSessions, fires: Mask, pane: npt.NDArray[np.str_], moment: Ints) -> None:
        """Fire some sessions; `pane` and `moment` are by session. Discarding, those without news write nothing."""
        s = self.state
        if self.discarding:
            fires = fires & (self.pending(cut) > 0)
        firing = np.flatnonzero(fires)
        if not len(firing):
            return
        number = last_rows(firing, cut.sessions.n)
        of_row = number[cut.sessions.ids]
        inside = of_row >= 0
        rows, of_row = cut.at[inside], of_row[inside]
        index = largest_of(of_row, s.often[rows], len(firing), 0)
        starts, ends = cut.sessions.starts[firing], cut.sessions.ends[firing]
        used = ~s.fired[rows] if self.discarding else np.ones(len(rows), np.bool_)
        counts = np.bincount(of_row[used], minlength=len(firing))
        first = self.results.add(starts, ends, counts, cut.groups[firing], moment[firing], index, pane[firing])
        parents = self.continued(rows, of_row, len(firing))
        added = used & ((parents[of_row] < 0) | (s.under[rows] != parents[of_row]))
        self.contents.add(of_row[added], rows[added], parents)
        if not self.discarding:
            gone, by = self.withdraw(cut.at, rows, of_row)
            if self.retract:
                self.results.withdraw(gone, first + by)
            s.under[rows] = first + of_row
        s.fired[rows] = True
        s.often[rows] = index[of_row] + 1

    def continued(self, rows: Ints, of_row: Ints, n: int) -> Ints:
        """For every firing the result that all its rows but new ones belong to, if that one has lost no row; else -1."""
        none = np.full(n, -1, np.int64)
        if self.discarding or not len(self.results):
            return none
        under = self.state.under[rows]
        written = under >= 0
        head = none.copy()
        head[of_row[written]] = under[written]
        mixed = flags_at(of_row[written & (under != head[of_row])], n)
        counts = np.bincount(of_row[written], minlength=n)
        whole = ~mixed & self.contents.may_follow(head) & (self.results.counts[head] == counts)
        return np.where(whole, head, -1)

    def withdraw(self, sessions: Ints, rows: Ints, of_row: Ints) -> tuple[Ints, Ints]:
        """Take away the results rows belong to, from all rows `at`. Returns their numbers, and the first firing to do so."""
        under = self.state.under[rows]
        written = under >= 0
        gone, which = np.unique(under[written], return_inverse=True)
        by = least_of(which, of_row[written], len(gone), len(rows))
        if len(gone):
            self.state.under[sessions[np.isin(self.state.under[sessions], gone)]] = -1
        return gone, by
