"""Input that is not a row, among the late rows: with reason ``malformed``, and where it was, instead of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from krishiv_py.kernels.columns.layout import Layout


def late_output_schema(layout: Layout) -> pa.Schema:
    """Schema of late rows as handlers get them; columns of malformed input come before the last three."""
    inner = layout.late_schema
    if not layout.spec.malformed:
        return inner
    taken = set(inner.names)
    extra = []
    for what, type_ in layout.spec.malformed:
        name = f"malformed_{what}"
        while name in taken:
            name = f"late_{name}"
        extra.append(pa.field(name, type_))
    return pa.schema([*list(inner)[:-3], *extra, *list(inner)[-3:]])


def late_output(layout: Layout, tables: Sequence[pa.Table]) -> pa.Table:
    """Late rows and malformed input in one table."""
    schema = late_output_schema(layout)
    return pa.concat_tables([schema.empty_table(), *tables], promote_options="default" if layout.spec.malformed else "none")


def malformed_rows(layout: Layout, columns: Mapping[str, Sequence[str | int | bytes | None]], watermark_us: int) -> pa.Table:
    """Malformed input as late rows; `columns` have all that is known of it, by name."""
    schema, n = late_output_schema(layout), len(columns["problem"])
    arrays = [pa.nulls(n, field.type) for field in layout.late_schema][:-3]
    arrays += [pa.array(columns[what], type_) for what, type_ in layout.spec.malformed]
    arrays += layout.refusal_notes(pa.repeat(pa.scalar("malformed"), n), watermark_us)
    return pa.Table.from_arrays(arrays, schema=schema)
