"""The change log of sessions: what stood is withdrawn, then the new result is written (SEMANTICS §5.4)."""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.results.changelog import compose
from krishiv_py.kernels.results.emit import Emitter
from krishiv_py.kernels.windows.session.rows import END, START
from krishiv_py.plan.options.query import EmitMode


@attrs.frozen(eq=False)
class Firing:
    """Sessions that fire, as stored rows, with the name of the pane and how often each fired before."""

    sessions: pa.Table
    pane: npt.NDArray[np.str_]
    index: Ints


def pane_names(mode: EmitMode, changed: Mask) -> npt.NDArray[np.str_]:
    """``final``; or ``late`` for sessions that rows of this batch changed after their end, ``on_time`` for the others."""
    if mode == "final":
        return np.full(len(changed), "final")
    return np.where(changed, "late", "on_time")


def change_log(emitter: Emitter, old: pa.Table, replaced_by: Ints, new: Firing) -> pa.Table:
    """Results in ascending end order, each after the withdrawal of those it replaces.

    A result with the bounds of the one it replaces is ``-U``, ``+U``. Where bounds changed the old one is ``-D``, for it is
    another window, and the new one ``+I``.

    Parameters
    ----------
    emitter : Emitter
        Makes the rows.
    old : pyarrow.Table
        Results that stand and are to be withdrawn, as stored rows.
    replaced_by : ndarray of int64
        For every old result the number of the session that takes its place.
    new : Firing
        The sessions that fire.
    """
    names = [*emitter.layout.key_names, START, END, *(f.name for f in emitter.layout.partial_fields)]
    both = new.sessions.select(names)
    if old.num_rows:
        both = pa.concat_tables([old.select(names), both])
    first = old.num_rows
    bounds = both[START].to_numpy(), both[END].to_numpy()
    found = compose(np.arange(first, both.num_rows), np.arange(first), first + replaced_by, bounds, bounds)
    starts, ends = (b[found.result] for b in bounds)
    by = found.cause - first
    return emitter.rows(pick(both, found.result), starts, ends, found.op, new.pane[by], new.index[by])
