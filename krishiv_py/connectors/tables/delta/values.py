"""Rows as delta-rs can take them, and values that would not come back from a Delta table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.tables.changes import Net
from krishiv_py.connectors.values import check_years
from krishiv_py.errors import OperatorError, shown

_NULLS: Final = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts that a partition gives back as a null."""


def laid_out(rows: pa.Table) -> pa.Table:
    """Rows without slices of structs in structs: Arrow in Rust ends the process when it is handed one (arrow-data 59)."""
    for i, field in enumerate(rows.schema):
        if any(map(_is_slice, rows[field.name].chunks)):
            rows = rows.set_column(i, field, rows[field.name].take(pa.array(np.arange(rows.num_rows))))
    return rows


def _is_slice(values: pa.Array) -> bool:
    """Return whether lists, maps or structs, or such values in them, begin in the middle of a buffer."""
    if not pa.types.is_nested(values.type):
        return False
    if pa.types.is_struct(values.type):
        inner = [values.field(i) for i in range(values.type.num_fields)]
    else:
        inner = [values.keys, values.items] if pa.types.is_map(values.type) else [values.values]
    return values.offset > 0 or any(map(_is_slice, inner))


def check_rows(rows: pa.Table, parts: Sequence[str]) -> None:
    """Refuse days, and times in partitions, whose texts in the log nobody can read: the table could not be read any more.

    Raises
    ------
    OperatorError
        Naming the column.
    """
    for field in rows.schema:
        if pa.types.is_date32(field.type) or field.name in parts:
            check_years(rows[field.name], field.name, "a Delta table")


def check_parts_of_key(net: Net, parts: Sequence[str]) -> None:
    """Refuse what would come back as a null: as part of a key it would never be found again.

    Raises
    ------
    OperatorError
        Naming the column.
    """
    for name in parts:
        if name in net.gone.schema.names and pa.types.is_string(net.put.schema.field(name).type):
            rows = pa.chunked_array([*net.put[name].chunks, *net.gone[name].chunks], pa.string())
            for text in pc.unique(rows.filter(pc.is_in(rows, pa.array(_NULLS)))).to_pylist():
                empty = "an empty text" if not text else "such a text"
                hint = "partition by other columns, or give the rows another text"
                what, got = f"{empty} cannot be in a key that is a partition", f"{name} is {shown(text)}"
                raise OperatorError(what, got=got, then="Delta keeps it as a null, and rows would be doubled", hint=hint)
