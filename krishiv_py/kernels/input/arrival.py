"""The order in which the results of a stage arrive at the next one (SEMANTICS §7.3)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.picking import pick


def in_order(rows: pa.Table, arrives_by: Sequence[str]) -> pa.Table:
    """The `rows` by end, start and key, nulls first; equal ones stay as they came."""
    if rows.num_rows < 2 or not arrives_by:
        return rows
    names = rows.column_names
    keys: list[tuple[str, str]] = []
    for name in arrives_by:
        if rows[name].null_count:  # false sorts before true
            rows = rows.append_column(f"{name}_valid", pc.is_valid(rows[name]))
            keys.append((f"{name}_valid", "ascending"))
        keys.append((name, "ascending"))
    return pick(rows, pc.sort_indices(rows, sort_keys=keys)).select(names)
