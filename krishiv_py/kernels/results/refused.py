"""Late rows that only the state can tell (SEMANTICS §4.2, rule "window"), in the late layout."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import Layout


@attrs.frozen(eq=False)
class SplitRows:
    """Rows that were let in, and those that were not, in the late layout."""

    rows: pa.Table
    late: pa.Table | None = None

    @property
    def counters(self) -> dict[str, int]:
        """Return what a step counts of it."""
        return counted(self.late)


def counted(late: pa.Table | None) -> dict[str, int]:
    """Return what a step counts of refused rows."""
    return {"late": late.num_rows} if late is not None and late.num_rows else {}


def split_late(layout: Layout, rows: pa.Table, times: Ints, refused: Mask, watermark_us: int) -> SplitRows:
    """Part rows of these event times, which carry the columns the late handler wants, in refused ones and others."""
    if not refused.any():
        return SplitRows(rows)
    picked = rows.filter(pa.array(refused))
    carried = [picked[f"l{i}"] for i in range(len(layout.carried))]
    notes = layout.refusal_notes(pa.repeat(pa.scalar("late"), picked.num_rows), watermark_us, times[refused])
    late = pa.Table.from_arrays([*carried, *notes], schema=layout.late_schema)
    return SplitRows(rows.filter(pa.array(~refused)), late)


def over_in_turn(ends_of: Callable[[Ints], Ints], n_held: int, n: int, horizon: int) -> Mask:
    """Rows of windows that are over, where a row taken away can move the windows of others: look until nothing changes.

    Parameters
    ----------
    ends_of : callable
        Where the window of each of some rows ends, given their positions; held rows come first and are never refused.
    """
    open_ = np.ones(n, np.bool_)
    while True:
        at = np.flatnonzero(open_)
        shut = at[ends_of(at) <= horizon]
        shut = shut[shut >= n_held]
        if not len(shut):
            return ~open_[n_held:]
        open_[shut] = False
