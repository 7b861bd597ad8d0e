"""The change log of sessions: what stood is withdrawn, then the new result is written (SEMANTICS §5.4)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_py.kernels.emit import Emitter
from krishiv_py.kernels.grouping import Ints
from krishiv_py.kernels.session_rows import END, START


def change_log(emitter: Emitter, old: pa.Table, replaced_by: Ints, new: pa.Table) -> pa.Table:
    """Results in ascending end order, each after the withdrawal of those it replaces.

    A result with the bounds of the one it replaces is ``-U``, ``+U``. Where bounds changed the old one is ``-D``, for it is
    another window, and the new one ``+I``.

    Parameters
    ----------
    emitter : Emitter
        Makes the rows.
    old, new : pyarrow.Table
        Stored rows: results that stand, and sessions that fire.
    replaced_by : ndarray of int64
        For every old result the number of the session that takes its place.
    """
    names = [*emitter.layout.key_names, START, END, *(f.name for f in emitter.layout.partial_fields)]
    both = pa.concat_tables([old.select(names), new.select(names)])
    session = np.concatenate([replaced_by, np.arange(new.num_rows, dtype=np.int64)])
    starts, ends = both[START].to_numpy(), both[END].to_numpy()
    fresh_start, fresh_end = starts[old.num_rows :], ends[old.num_rows :]
    same = (starts[: old.num_rows] == fresh_start[replaced_by]) & (ends[: old.num_rows] == fresh_end[replaced_by])
    again = np.zeros(new.num_rows, np.bool_)
    again[replaced_by[same]] = True
    ops = np.concatenate([np.where(same, "-U", "-D"), np.where(again, "+U", "+I")])
    adds = np.arange(len(session)) >= old.num_rows
    order = np.lexsort((adds, session, fresh_start[session], fresh_end[session]))
    return emitter.rows(both.take(pa.array(order)), starts[order], ends[order], ops[order])
