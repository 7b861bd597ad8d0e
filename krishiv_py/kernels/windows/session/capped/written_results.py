"""Define what has become of rows, and what their sessions wrote (SEMANTICS §5.1, §5.2).

Which rows have been written, and under which result they stand, is kept by row: sessions merge and are divided again, rows
stay what they are. So sessions that merge add up what they had counted.
"""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from krishiv_py.arrays.ranges import Components
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.windows.session.capped.log import Limits
from krishiv_py.kernels.windows.session.rows import Contents, NumberedResults
from krishiv_py.plan.options.triggers import Trigger


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
class Cut:
    """Sessions of some rows: `at` are the rows (ascending), `sessions` what they make, `groups` the key of each session."""

    at: Ints
    sessions: Components
    groups: Ints

    def where(self, mask: Mask) -> Mask:
        """Sessions with at least one of the masked rows; `mask` is over all rows of the bench."""
        chosen = np.zeros(self.sessions.n, np.bool_)
        chosen[self.sessions.ids[mask[self.at]]] = True
        return chosen


class WrittenSessions:
    """Fires sessions, and notes what was written.

    Parameters
    ----------
    limits : Limits
        What divides rows into sessions.
    standing
        Results that stand; more are added as sessions fire.
    """

    def __init__(
        self,
        state: RowState,
        limits: Limits,
        trigger: Trigger,
        standing: NumberedResults,
        contents: Contents,
        *,
        discarding: bool,
        retract: bool,
    ) -> None:
        self.state = state
        self.results = standing
        self.contents = contents
        self.present = np.ones(len(state.starts), np.bool_)
        self.limits = limits
        self.trigger = trigger
        self.discarding = discarding
        self.retract = retract

    def cut(self, wanted: Mask) -> Cut:
        """Return the sessions of the rows present of some groups."""
        return self.cut_of(np.flatnonzero(self.present & wanted[self.state.groups]))

    def cut_of(self, rows: Ints) -> Cut:
        """Return the sessions of some rows, ascending."""
        s = self.state
        groups = s.groups[rows]
        sessions = self.limits.sessions(groups, s.starts[rows], s.reaches[rows])
        of_session = np.empty(sessions.n, np.int64)
        of_session[sessions.ids] = groups
        return Cut(rows, sessions, of_session)

    def pending(self, cut: Cut) -> Ints:
        """Rows of each session that were part of no firing."""
        waiting = ~self.state.fired[cut.at]
        return np.bincount(cut.sessions.ids[waiting], minlength=cut.sessions.n).astype(np.int64)

    def standing(self, cut: Cut) -> Mask:
        """Sessions whose result stays with just their rows and bounds."""
        ids, n = cut.sessions.ids, cut.sessions.n
        if not len(self.results) or not n:
            return np.zeros(n, np.bool_)
        under = self.state.under[cut.at]
        head = np.empty(n, np.int64)
        head[ids] = under
        alike = np.ones(n, np.bool_)
        alike[ids[under != head[ids]]] = False
        r = self.results
        same = (r.starts[head] == cut.sessions.starts) & (r.ends[head] == cut.sessions.ends)
        whole: Mask = alike & (head >= 0) & same & (r.counts[head] == np.bincount(ids, minlength=n))
        return whole

    def revised(self, cut: Cut) -> Mask:
        """Sessions made of rows all written before, but not as this session: divided again."""
        if self.discarding:
            return np.zeros(cut.sessions.n, np.bool_)
        mask: Mask = (self.pending(cut) == 0) & ~self.standing(cut)
        return mask

    def tick_off(self, cut: Cut, sessions: Mask, done: bool = True) -> None:
        """Note of some sessions that they had, or are to have, their watermark firing."""
        self.state.done[cut.at[sessions[cut.sessions.ids]]] = done

    def fire(self, cut: Cut, fires: Mask, pane: npt.NDArray[np.str_], moment: Ints) -> None:
        """Fire some sessions; `pane` and `moment` are by session. Discarding, those without news write nothing."""
        s = self.state
        if self.discarding:
            fires = fires & (self.pending(cut) > 0)
        firing = np.flatnonzero(fires)
        if not len(firing):
            return
        number = np.full(cut.sessions.n, -1, np.int64)
        number[firing] = np.arange(len(firing))
        of_row = number[cut.sessions.ids]
        inside = of_row >= 0
        rows, of_row = cut.at[inside], of_row[inside]
        index = np.zeros(len(firing), np.int64)
        np.maximum.at(index, of_row, s.often[rows])
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
        mixed = np.zeros(n, np.bool_)
        mixed[of_row[written & (under != head[of_row])]] = True
        counts = np.bincount(of_row[written], minlength=n)
        whole = ~mixed & self.contents.may_follow(head) & (self.results.counts[head] == counts)
        return np.where(whole, head, -1)

    def withdraw(self, sessions: Ints, rows: Ints, of_row: Ints) -> tuple[Ints, Ints]:
        """Take away the results rows belong to, from all rows `at`. Returns their numbers, and the first firing to do so."""
        under = self.state.under[rows]
        written = under >= 0
        gone, which = np.unique(under[written], return_inverse=True)
        by = np.full(len(gone), len(rows), np.int64)
        np.minimum.at(by, which, of_row[written])
        if len(gone):
            self.state.under[sessions[np.isin(self.state.under[sessions], gone)]] = -1
        return gone, by
