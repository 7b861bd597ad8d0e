"""Changes that can be read, and those whose operation or sequence is not known."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_py.plan.changes import BAD_OP, BAD_SEQUENCE


def readable(rows: pa.Table, act: str, sequence: list[str]) -> tuple[pa.Table, dict[str, pa.Table]]:
    """Return the changes that can be read, and by the reason those whose operation, or whose sequence, is not known.

    Parameters
    ----------
    rows : pyarrow.Table
        The changes.
    act : str
        The column that is true for a row, false for a deletion, and null for neither.
    sequence : list of str
        The columns of what orders changes.
    """
    bad_op = rows[act].is_null().to_numpy(zero_copy_only=False)
    unordered = np.zeros(rows.num_rows, np.bool_)
    if sequence:
        unordered = rows[sequence[0]].is_null().to_numpy(zero_copy_only=False) & ~bad_op
    refused = {
        reason: rows.filter(pa.array(mask)) for reason, mask in ((BAD_OP, bad_op), (BAD_SEQUENCE, unordered)) if mask.any()
    }
    return (rows.filter(pa.array(~(bad_op | unordered))) if refused else rows), refused
