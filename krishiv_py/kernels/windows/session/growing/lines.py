"""The log of sessions that only grow and join: which firing withdraws which result, and all lines in order (SEMANTICS §5.4)."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.results.changelog import compose
from krishiv_py.kernels.results.emit import Emitter
from krishiv_py.kernels.windows.session.growing.assigned_rows import Tracks


@attrs.frozen(eq=False)
class WrittenLines:
    """Results in the order they were written; the first `n_old` stand from before.

    Attributes
    ----------
    tracks : ndarray of int64
        The track of each.
    rows : ndarray of int64
        The row that made it fire; -1 for old ones, one more than the last for firings after all rows.
    starts, ends : ndarray of int64
        Bounds.
    values : pyarrow.Table
        Finished aggregates.
    moments : ndarray of int64
        When each is written.
    panes : ndarray of str
        Why.
    index : ndarray of int64
        How often the session had fired before.
    """

    n_old: int
    tracks: Ints
    rows: Ints
    starts: Ints
    ends: Ints
    values: pa.Table
    moments: Ints
    panes: npt.NDArray[np.str_]
    index: Ints


def withdrawn_by(r: WrittenLines, t: Tracks) -> tuple[Ints, Ints]:
    """For every result the firing that takes its place (-1: it stands), and the track it is of in the end."""
    n = len(r.tracks)
    width = len(t.of_row) + 3
    fired = np.arange(r.n_old, n)
    codes = r.tracks[fired] * width + r.rows[fired]
    order = np.argsort(codes)
    codes = codes[order]
    by = np.full(n, -1, np.int64)
    track, after = r.tracks.copy(), r.rows.copy()
    open_ = np.arange(n)
    while len(open_):
        at = np.searchsorted(codes, track[open_] * width + after[open_], side="right")
        found = at < len(codes)
        found[found] = codes[at[found]] // width == track[open_[found]]
        by[open_[found]] = fired[order[at[found]]]
        open_ = open_[~found]
        into = t.into[track[open_]]
        open_, into = open_[into >= 0], into[into >= 0]
        track[open_], after[open_] = t.of_row[into], into - 1
    return by, track


def lines(emitter: Emitter, keys: pa.Table, r: WrittenLines, by: Ints | None) -> pa.Table:
    """Result rows by moment, then in ascending end order, withdrawals before what replaces them.

    `keys` has the key of every result; `by` says what withdraws each, None where nothing is withdrawn.
    """
    gone = np.empty(0, np.int64) if by is None else np.flatnonzero(by >= 0)
    bounds = r.starts, r.ends
    new = np.arange(r.n_old, len(r.tracks))
    found = compose(new, gone, gone if by is None else by[gone], (*bounds, r.moments), bounds)
    picked = pa.array(found.result)
    return emitter.finished(
        [pick(keys[k], picked) for k in emitter.layout.key_names],
        r.starts[found.result],
        r.ends[found.result],
        pick(r.values, picked).columns,
        found.op,
        r.panes[found.cause],
        r.index[found.cause],
    )
