"""Rows that overlapping windows hold together: by slice, once, until the last window that needs them is over.

::

    slices      │ a │ b │ c │ d │ e │ f │
    over          ▔   ▔                      all windows over them have ended, some are not over
    open                  ▔   ▔   ▔   ▔      some window over them is open
                                  │ watermark

An open window has nothing of its own. In the step in which it ends it gets entries in the log of its own, but no rows: its
snapshots are lent (:mod:`~krishiv_py.kernels.state.window_log`). A pair that late rows come to gets its rows first. So the rows
of a slice that a lent snapshot is made of never change.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import among, group
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.ranges import split
from krishiv_py.arrays.sorting import sorted_unique
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.firing.due import Due
from krishiv_py.kernels.state.chunk_tiers import Runs, remove_keys
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import WINDOW, KeyWindows, PairLog
from krishiv_py.kernels.windows.fixed.plain import SLICE, FixedOperator
from krishiv_py.plan.durations import END_OF_TIME, UNSET

_PREFIX: Final = "sl"
_OVER: Final = "sl over"


class SharedRows:
    """See the module's docstring."""

    def __init__(self, bucket: Bucket, slices: FixedOperator, log: PairLog) -> None:
        self._slices, self._log = slices, log
        self._size_us = slices.window.size_us
        self._open = Runs(bucket, _PREFIX, slices.merge)
        self._over = Runs(bucket, _PREFIX, slices.merge, _OVER)

    def between(self, low: int | None, high: int | None) -> list[int]:
        """See :class:`~krishiv_py.kernels.windows.fixed.plain.SliceRows`; slices whose windows have all ended come first."""
        return [*self._over.between(low, high), *self._open.between(low, high)]

    def rows(self, run: int) -> int:
        """See :class:`~krishiv_py.kernels.windows.fixed.plain.SliceRows`."""
        return (self._open if run in self._open else self._over).rows(run)

    def load(self, run: int) -> list[pa.Table]:
        """See :class:`~krishiv_py.kernels.windows.fixed.plain.SliceRows`."""
        return (self._open if run in self._open else self._over).load(run)

    def written(self, run: int) -> list[pa.Table]:
        """See :class:`~krishiv_py.kernels.windows.fixed.plain.SliceRows`."""
        return (self._open if run in self._open else self._over).written(run)

    def total_rows(self) -> int:
        """Rows of all slices."""
        return self._open.total_rows() + self._over.total_rows()

    def ending(self, due: Due) -> list[int]:
        """Return the windows over some slice that end in this step."""
        return self._slices.windows_of(self._open.between(due.from_us - self._size_us, due.to_us), due.from_us, due.to_us)

    def opened(self, own: Runs, due: Due) -> int:
        """Return how many open windows hold their rows here, and no entries of their `own`."""
        every = self._open.counted(lambda names: len(self._slices.windows_of(names, UNSET, END_OF_TIME)))
        ended = self._slices.windows_of(self._open.between(None, due.to_us), UNSET, due.to_us)
        both = [w for w in self.apart(own, due) if self._open.between(w, w + self._size_us, most=1)]
        return every - len(ended) - len(both)

    def apart(self, own: Runs, due: Due) -> list[int]:
        """Open windows with entries of their own: those of a state from before rows were shared, which go on so."""
        return own.between(due.to_us - self._size_us + 1, None)

    def next_end(self, due: Due) -> int | None:
        """Return when the next window ends."""
        return self._slices.next_end(self._open, due.to_us)

    def entries(self, windows: list[int]) -> list[pa.Table]:
        """Return what some windows hold, as entries that have not been part of a firing, with the start of the window."""
        content = self._slices.content(self, windows) if windows else None
        if content is None:
            return []
        merged = self._slices.merged(content)
        none, ones = np.zeros(merged.num_rows, np.bool_), np.ones(merged.num_rows, np.int64)
        partials = merged.select(self._log.partial_schema.names)
        return [self._log.entries(merged, ones, 0 * ones, none, none, partials).append_column(WINDOW, merged["w"])]

    def sizes(self, windows: list[int]) -> Ints:
        """Return how many rows some windows have, given in ascending order."""
        names = self.between(windows[0], windows[-1] + self._size_us)
        counts = np.cumsum(np.array([0, *(self.rows(s) for s in names)], np.int64))
        starts = np.array(windows, np.int64)
        row_counts: Ints = counts[np.searchsorted(names, starts + self._size_us)] - counts[np.searchsorted(names, starts)]
        return row_counts

    def given(self, windows: KeyWindows, keys: pa.Table) -> KeyWindows:
        """Return the state of pairs with the content of lent snapshots; `keys` has the window and the key of each pair."""
        lent = np.flatnonzero(windows.lent)
        if not len(lent):
            return windows
        wanted = pick(keys.select([WINDOW, *self._log.layout.key_names]), lent)
        starts = sorted_unique(wanted[WINDOW].to_numpy()).tolist()
        content = self._slices.content(self, starts)
        assert content is not None, "of windows that have rows"
        merged = self._slices.merged(content.filter(pa.array(among(content, wanted, wanted.column_names))))
        both = pa.concat_tables([wanted, merged.select(wanted.column_names)])
        groups = group([both[n].to_numpy() if n == WINDOW else both[n] for n in wanted.column_names], both.num_rows)
        place = np.empty(groups.n, np.int64)
        place[groups.ids[len(lent) :]] = np.arange(merged.num_rows)
        source = np.arange(len(windows.snaps))
        source[windows.snap_at[lent]] = len(windows.snaps) + place[groups.ids[: len(lent)]]
        partials = merged.select(windows.snaps.column_names)
        return attrs.evolve(
            windows, lent=np.zeros_like(windows.lent), snaps=pick(pa.concat_tables([windows.snaps, partials]), source)
        )

    def append(self, fresh: pa.Table, due: Due) -> None:
        """Take in the rows that some open window has."""
        slices = fresh[SLICE].to_numpy()
        waits = self._slices.assigner.last_end(slices) > due.to_us
        for name, part in split(fresh.filter(pa.array(waits)), slices[waits]):
            # what lent snapshots are made of stays as it was: merged in another order, floats differ in the last bit
            lends = due.horizon_us < due.to_us and bool(self._slices.windows_of([name], UNSET, due.to_us))
            self._open.append(name, part, compact=not lends)

    def forget(self, due: Due) -> None:
        """Let go of the slices whose windows are all over, after the firings of a step."""
        over, horizon = self._over, due.horizon_us
        for name in over.between(None, max(horizon, UNSET // 2) - self._size_us + self._slices.window.slide_us):
            if self._last_end(name) <= horizon:
                over.drop(name)
        for name in self._open.between(None, due.to_us):
            if self._last_end(name) <= horizon:
                self._open.drop(name)
            elif self._last_end(name) <= due.to_us:
                self._open.hand_over(name, over)

    def shown(self, own: Runs, fired_at: int) -> pa.Table:
        """Return the open windows as a state table shows them, without those that have entries of their `own`."""
        starts = [w for w in self._slices.windows_of(self._open.names(), fired_at, END_OF_TIME) if w not in own]
        return self._slices.shown(self, starts)

    def remove(self, dead: pa.Table, fired_at: int) -> pa.Table:
        """Take keys out; gives start and key of each open window that had some of their rows."""
        names, schema = self._log.layout.key_names, self._slices.chunk_schema
        gone = [remove_keys(runs, names, dead, schema) for runs in (self._open, self._over)]
        return self._slices.spread(pa.concat_tables(gone), fired_at)

    def _last_end(self, name: int) -> int:
        return int(self._slices.assigner.last_end(np.array(name, np.int64)))
