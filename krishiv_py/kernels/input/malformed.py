"""Input that is no row, among the late rows: with reason ``malformed``, and where it stood instead of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from krishiv_py.kernels.columns.layout import Layout

_FIELDS: Final = (("file", pa.string()), ("line", pa.int64()), ("text", pa.string()), ("problem", pa.string()))


def late_output_schema(layout: Layout) -> pa.Schema:
    """Schema of late rows as handlers get them; columns of malformed input come before the last three."""
    inner = layout.late_schema
    if not layout.spec.malformed:
        return inner
    taken = set(inner.names)
    extra = []
    for what, type_ in _FIELDS:
        name = f"malformed_{what}"
        while name in taken:
            name = f"late_{name}"
        extra.append(pa.field(name, type_))
    return pa.schema([*list(inner)[:-3], *extra, *list(inner)[-3:]])


def late_output(layout: Layout, tables: Sequence[pa.Table]) -> pa.Table:
    """Late rows and malformed input in one table."""
    schema = late_output_schema(layout)
    return pa.concat_tables([schema.empty_table(), *tables], promote_options="default" if layout.spec.malformed else "none")


def malformed_rows(layout: Layout, columns: Sequence[Sequence[str | int | None]], watermark_us: int) -> pa.Table:
    """Malformed input as late rows; `columns` are file, line, text and problem."""
    schema, n = late_output_schema(layout), len(columns[0])
    arrays = [pa.nulls(n, field.type) for field in layout.late_schema][:-3]
    if layout.spec.malformed:
        arrays += [pa.array(c, type_) for c, (_, type_) in zip(columns, _FIELDS, strict=True)]
    arrays += layout.refusal_notes(pa.repeat(pa.scalar("malformed"), n), watermark_us)
    return pa.Table.from_arrays(arrays, schema=schema)
