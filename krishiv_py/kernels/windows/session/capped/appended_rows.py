"""Rows that come together, none of which divides others again: each takes its session one step on (SEMANTICS §3.3, §5.2).

What would happen row by row is told all at once. Along a session, from what was held on, bounds are running values, rows that
no firing told of are counted up to the next firing, and each firing goes on from the one before::

    session    held  held │ row   row   row   row           on_count(2), one row untold
    untold      .     1   │  2     1     2     1
    fires                 │  ^ A         ^ B                A withdraws what stood, B withdraws A; the last row waits
"""

from __future__ import annotations

import attrs
import numpy as np

from krishiv_py.arrays.intervals import running_reach
from krishiv_py.arrays.ranking import rank
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.windows.session.capped.written_results import Cut, WrittenSessions
from krishiv_py.kernels.windows.session.rows import firing


@attrs.frozen(eq=False)
class _Line:
    """The rows of sessions that rows come to, session by session, in order of arrival: positions are along this line.

    Attributes
    ----------
    at : ndarray of int64
        Row.
    session : ndarray of int64
        From 0 without gaps, ascending.
    heads : ndarray of int64
        Where each session begins.
    groups : ndarray of int64
        Group of each session.
    starts, ends : ndarray of int64
        Bounds of the session when the row has come; of no use at rows that were there.
    new : ndarray of bool
        Rows that come.
    """

    at: Ints
    session: Ints
    heads: Ints
    groups: Ints
    starts: Ints
    ends: Ints
    new: Mask


@attrs.frozen(eq=False)
class _Firings:
    """Firings along the line: where, of which session, how many of it there were before, and their number by arrival."""

    place: Ints
    session: Ints
    nth: Ints
    number: Ints

    @property
    def lead(self) -> Mask:
        """The first of each session."""
        mask: Mask = self.nth == 0
        return mask


def fire_by_row(ledger: WrittenSessions, cut: Cut, came: Mask, watermark_us: int) -> None:
    """Let rows come that divide none again; `cut` has the sessions they come to, `came` masks them among all rows."""
    s = ledger.state
    line = _line(ledger, cut, came)
    late = line.ends <= watermark_us
    f = _fired(ledger, line, late)
    if not len(f.place):
        return
    index = np.maximum.reduceat(s.often[line.at], line.heads)[f.session] + f.nth
    of_firing, tells = _first_firings(line, f)
    used = ~s.fired[line.at] if ledger.discarding else np.ones(len(line.at), np.bool_)
    counts = _counts(line, f, used, fresh=ledger.discarding)
    order = np.argsort(f.number)
    place = f.place[order]
    first = ledger.results.add(
        line.starts[place],
        line.ends[place],
        counts[order],
        line.groups[f.session[order]],
        line.at[place],
        index[order],
        np.where(late[place], "late", "early"),
    )
    _contents(ledger, line, f, of_firing, tells & used, first)
    if not ledger.discarding:
        gone, by = _withdrawn(ledger, cut, line, f, first)
        if ledger.retract:
            ledger.results.withdraw(gone, first + by)
    _note(ledger, line, f, late, index, first)


def _counts(line: _Line, f: _Firings, used: Mask, *, fresh: bool) -> Ints:
    """Of every firing the rows that are used, from the beginning or `fresh` after each firing."""
    seen: Ints = np.cumsum(used)
    before = seen[line.heads] - used[line.heads]
    counts = seen[f.place]
    return counts - np.where(f.lead | (not fresh), before[f.session], np.roll(counts, 1))


def _line(ledger: WrittenSessions, cut: Cut, came: Mask) -> _Line:
    s, ids = ledger.state, cut.sessions.ids
    inside = np.flatnonzero(cut.where(came)[ids])
    order = inside[stable_order(ids[inside])]
    at, of = cut.at[order], ids[order]
    heads = np.flatnonzero(np.concatenate([[True], of[1:] != of[:-1]]))
    session = np.repeat(np.arange(len(heads)), np.diff(np.append(heads, len(of))))
    starts = cut.sessions.starts[of]
    ends = np.minimum(running_reach(session, s.reaches[at]), starts + ledger.limits.cap_us)
    return _Line(at, session, heads, cut.groups[of[heads]], starts, ends, came[at])


def _fired(ledger: WrittenSessions, line: _Line, late: Mask) -> _Firings:
    """Return which rows make their session fire."""
    early_n, late_n = (x if isinstance(x, int) else 0 for x in (ledger.trigger.early, ledger.trigger.late))
    at = np.flatnonzero(line.new)
    session = line.session[at]
    head = np.concatenate([[True], session[1:] != session[:-1]])
    weights = np.ones(len(at), np.int64)
    waiting = line.session[~line.new & ~ledger.state.fired[line.at]]
    weights[head] += np.bincount(waiting, minlength=len(line.heads))
    fires = firing(weights, np.where(late[at], late_n, early_n), late[at], head)
    place, session = at[fires], session[fires]
    number = np.empty(len(place), np.int64)
    number[np.argsort(line.at[place])] = np.arange(len(place))
    return _Firings(place, session, rank(session), number)


def _first_firings(line: _Line, f: _Firings) -> tuple[Ints, Mask]:
    """By row the firing that tells of it first, counted along the line, and whether there is one."""
    fires = np.zeros(len(line.at), np.int64)
    fires[f.place] = 1
    of_firing = np.cumsum(fires) - fires
    beyond = of_firing == len(f.place)
    of_firing[beyond] = 0
    tells: Mask = ~beyond & (f.session[of_firing] == line.session)
    return of_firing, tells


def _contents(ledger: WrittenSessions, line: _Line, f: _Firings, of_firing: Ints, wanted: Mask, first: int) -> None:
    """Say what each firing is made of: the first of a session of what stood, if that is whole, each other of the one before."""
    under = ledger.state.under[line.at]
    parents = np.full(len(f.place), -1, np.int64)
    if not ledger.discarding:
        parents[f.lead] = ledger.continued(line.at, line.session, len(line.heads))[f.session[f.lead]]
        follows = np.flatnonzero(~f.lead)
        parents[follows] = first + f.number[follows - 1]
        written = (under >= 0) & (under == parents[of_firing])
        wanted = wanted & ~written
    rows = np.flatnonzero(wanted)
    of_number = np.empty(len(parents), np.int64)
    of_number[f.number] = parents
    ledger.contents.add(f.number[of_firing[rows]], line.at[rows], of_number)


def _withdrawn(ledger: WrittenSessions, cut: Cut, line: _Line, f: _Firings, first: int) -> tuple[Ints, Ints]:
    """Take away what stood and, one after the other, what firings wrote; numbers of results, and which firing does it."""
    lead = np.full(len(line.heads), -1, np.int64)
    lead[f.session[f.lead]] = f.number[f.lead]
    of_row = lead[line.session]
    inside = of_row >= 0
    gone, by = ledger.withdraw(cut.at, line.at[inside], of_row[inside])
    follows = np.flatnonzero(~f.lead)
    return np.append(gone, first + f.number[follows - 1]), np.append(by, f.number[follows])


def _note(ledger: WrittenSessions, line: _Line, f: _Firings, late: Mask, index: Ints, first: int) -> None:
    """Keep by row what has become of it."""
    s = ledger.state
    last = np.full(len(line.heads), -1, np.int64)
    last[f.session] = np.arange(len(f.place))  # of several writes to one place the last one stands
    of_row = last[line.session]
    within = (of_row >= 0) & (np.arange(len(of_row)) <= f.place[of_row])
    rows, of_row = line.at[within], of_row[within]
    s.fired[rows] = True
    s.often[rows] = index[of_row] + 1
    if not ledger.discarding:
        s.under[rows] = first + f.number[of_row]
    over = np.full(len(line.heads), -1, np.int64)
    fired_late = late[f.place]
    over[f.session[fired_late]] = f.place[fired_late]
    s.done[line.at[np.arange(len(line.at)) <= over[line.session]]] = True
