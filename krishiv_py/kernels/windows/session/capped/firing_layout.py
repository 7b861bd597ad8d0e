"""Rows of some keys laid out to fire the sessions they make, one by one or all at once (SEMANTICS §5.1, §5.2)."""

from __future__ import annotations

import numpy as np

from krishiv_py.arrays.ranges import components
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.windows.session.capped.plain import fire_by_row, pieces
from krishiv_py.kernels.windows.session.capped.written_results import Cut, RowState, WrittenSessions


class SessionLedger(WrittenSessions):
    """A ledger that lets rows come one by one, or several at once where that is the same."""

    def one_by_one(self, fresh: int, watermark_us: int) -> None:
        """Let rows from number `fresh` on come one by one, and fire what their coming makes fire.

        In round i the i-th piece of every key comes. Where only late sessions count, keys whose rows are all on time wait.
        """
        s = self.state
        n = len(s.starts)
        n_groups = int(s.groups.max(initial=-1)) + 1
        counted = np.zeros(n_groups, np.bool_)
        early = s.starts[fresh:] < watermark_us
        counted[s.groups[fresh:] if isinstance(self.trigger.early, int) else s.groups[fresh:][early]] = True
        coming = fresh + np.flatnonzero(counted[s.groups[fresh:]])
        if not len(coming):
            return
        held = np.flatnonzero(counted[s.groups[:fresh]])
        cut = pieces(s, held, coming, self.limits)
        order = stable_order(cut.turn)
        turns = np.split(order, np.cumsum(np.bincount(cut.turn))[:-1])
        self.present[coming] = False
        rounds = _Rounds(self, n_groups, held, watermark_us) if cut.alone.any() else None
        for turn in turns:
            rows, alone = coming[turn], cut.alone[turn]
            together = rows[~alone]
            if rounds is not None:
                rounds.narrow(rows)
            if len(together):
                self.present[together] = True
                came = np.zeros(n, np.bool_)
                came[together] = True
                wanted = np.zeros(n_groups, np.bool_)
                wanted[s.groups[together]] = True
                now = self.cut(wanted)
                fire_by_row(self, now, came, watermark_us)
                if rounds is not None:
                    rounds.note(now)
            if alone.any():
                assert rounds is not None
                rounds.come(rows[alone])


class _Rounds:
    """Rows that may divide sessions again, one of each key a round."""

    def __init__(self, ledger: SessionLedger, n_groups: int, held: Ints, watermark_us: int) -> None:
        self._ledger = ledger
        self._n_groups = n_groups
        self._watermark_us = watermark_us
        self._before = np.full((3, len(ledger.state.starts)), -1, np.int64)
        self._near = _Nearby(ledger.state, held)
        self.note(ledger.cut_of(held))

    def narrow(self, rows: Ints) -> None:
        """Keys of which nothing comes have no more turns."""
        self._near.narrow(rows, self._n_groups)

    def note(self, cut: Cut) -> None:
        """Note what sessions are now, after rows came together."""
        self._changed(cut)
        self._near.link(cut.at)

    def come(self, rows: Ints) -> None:
        """Let rows come, one of a key, and fire what changed."""
        ledger = self._ledger
        ledger.present[rows] = True
        moment = np.zeros(self._n_groups, np.int64)
        moment[ledger.state.groups[rows]] = rows
        cut = ledger.cut_of(self._near.rows(rows, ledger.present, self._n_groups))
        complete = cut.sessions.ends <= self._watermark_us
        early, late = (x if isinstance(x, int) else 0 for x in (ledger.trigger.early, ledger.trigger.late))
        every = np.where(complete, late, early)
        fires = self._changed(cut) & (every > 0) & (ledger.pending(cut) >= every)
        if fires.any():
            ledger.fire(cut, fires, np.where(complete, "late", "early"), moment[cut.groups])
            ledger.tick_off(cut, fires & complete)

    def _changed(self, cut: Cut) -> Mask:
        """Sessions that have other rows or bounds than before; notes what they are now."""
        before, ids, n = self._before, cut.sessions.ids, cut.sessions.n
        counts = np.bincount(ids, minlength=n)
        now = np.stack([cut.sessions.starts, cut.sessions.ends, counts])[:, ids]
        changed = np.zeros(n, np.bool_)
        changed[ids[(before[:, cut.at] != now).any(axis=0)]] = True
        before[:, cut.at] = now
        return changed


class _Nearby:
    """Finds the rows whose session the coming of a row may change: those it is linked with by reaches that meet.

    `low` and `high` are the bounds of all that a row is linked with; rows beyond them neither join it nor divide it.
    """

    def __init__(self, state: RowState, held: Ints) -> None:
        self._state = state
        self._low, self._high = state.starts.copy(), state.reaches.copy()
        self._pool = np.arange(len(state.starts))
        self.link(held)

    def link(self, rows: Ints) -> None:
        """Work out the bounds of rows, all those present of some groups."""
        s = self._state
        linked = components(s.groups[rows], s.starts[rows], s.reaches[rows], touching=True)
        self._low[rows], self._high[rows] = linked.starts[linked.ids], linked.ends[linked.ids]

    def narrow(self, turn: Ints, n_groups: int) -> None:
        """Forget groups that none of the rows of this turn is of."""
        groups = self._state.groups
        wanted = np.zeros(n_groups, np.bool_)
        wanted[groups[turn]] = True
        if not wanted.all():
            self._pool = self._pool[wanted[groups[self._pool]]]

    def rows(self, turn: Ints, present: Mask, n_groups: int) -> Ints:
        """Return the rows present that matter now that those of `turn` come, one of a group."""
        groups, low, high = self._state.groups, self._low, self._high
        first = np.full(n_groups, np.iinfo(np.int64).max)
        last = np.full(n_groups, np.iinfo(np.int64).min)
        first[groups[turn]], last[groups[turn]] = low[turn], high[turn]
        pool = self._pool
        of = groups[pool]
        rows: Ints = pool[present[pool] & (low[pool] <= last[of]) & (high[pool] >= first[of])]
        np.minimum.at(first, groups[rows], low[rows])
        np.maximum.at(last, groups[rows], high[rows])
        low[rows], high[rows] = first[groups[rows]], last[groups[rows]]
        return rows
