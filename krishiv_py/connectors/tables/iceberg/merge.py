"""Changes of a micro-batch in an Iceberg table with a key: which rows they touch, and what is written instead.

pyiceberg deletes by a condition and rewrites the files that hold such rows. A condition for each key would be as long as the
batch, so it is a span of each column of the key, and rows of the span that nothing touches are written again as they were.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.tables.changes import Net, Numbers, numbered, one_form
from krishiv_py.errors import OperatorError

_FEW: Final = 200
"""Up to so many values a condition names each one, and not only the least and the greatest."""


def apply(table: Any, transaction: Any, changed: Net, key: Sequence[str], noted: Mapping[str, str]) -> None:
    """Make the changes a part of a transaction of this `table`; its snapshots have `noted` in their summaries."""
    put, names = changed.put, list(key)
    keys = pa.schema([put.schema.field(name) for name in names])
    touched = pa.concat_tables([put.select(names), changed.gone.select(names).cast(keys)])
    stored = table.scan(row_filter=span(touched), selected_fields=tuple(key)).to_arrow()
    there = one_form(stored.select(names).cast(keys), names)
    hits = there.filter(pa.array(np.isin(*numbered(there, touched))))
    if not hits.num_rows:
        if put.num_rows:
            transaction.append(put, snapshot_properties=dict(noted))
        return
    where = span(hits)
    old = table.scan(row_filter=where).to_arrow()
    old_keys = one_form(old.select(names).cast(keys), names)
    untouched = old.filter(pa.array(~np.isin(*numbered(old_keys, touched))))
    extra = [name for name in old.schema.names if name not in put.schema.names]
    if extra:  # columns that are not ours stay as they are
        places = _places(*numbered(put.select(names), old_keys))
        for name in extra:
            put = put.append_column(old.schema.field(name), old[name].take(places))
    rows = pa.concat_tables([untouched, put.select(old.schema.names).cast(old.schema)])
    before = _rows(table.metadata)
    transaction.overwrite(rows, overwrite_filter=where, snapshot_properties=dict(noted))
    _check(transaction, before, changed.put.num_rows - hits.num_rows)


def _rows(metadata: Any) -> int | None:
    """Return how many rows a table has, as its snapshot says; None where that is not known."""
    snapshot = metadata.current_snapshot()
    summary = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
    known = summary.get("total-records")
    return None if known is None or int(summary.get("total-position-deletes", 0)) else int(known)


def _check(transaction: Any, before: int | None, more: int) -> None:
    """Hold the number of rows against what it must be: what is read and what is deleted go by two filters."""
    after = _rows(transaction.table_metadata)
    if before is not None and after is not None and after != before + more:
        raise OperatorError(
            "an Iceberg table would have another number of rows than it must",
            got=f"{after} instead of {before + more}",
            then="rows would be lost or doubled; nothing was committed",
            hint="report it, with the versions of pyiceberg and pyarrow and the types of the key",
        )


def _places(numbers: Numbers, among: Numbers) -> pa.Array:
    """Return the place of each number in the others; null if it is not among them."""
    order = np.argsort(among, kind="stable")
    position = np.minimum(np.searchsorted(among[order], numbers), len(among) - 1)
    return pa.array(order[position], mask=among[order[position]] != numbers)


def span(keys: pa.Table) -> Any:
    """Return a condition of pyiceberg that all `keys` meet: of each column the values, or the least and the greatest."""
    made = importlib.import_module("pyiceberg.expressions")
    span_filter: Any = made.AlwaysTrue()
    for name in keys.schema.names:
        span_filter = made.And(span_filter, _column(made, name, keys[name].combine_chunks()))
    return span_filter


def _column(made: Any, name: str, values: pa.Array) -> Any:
    if pa.types.is_floating(values.type):
        return made.AlwaysTrue()  # Arrow passes over a NaN whose row group has other numbers, and pyiceberg would delete it
    condition: Any = made.IsNull(name) if values.null_count else made.AlwaysFalse()
    plain = _comparable(pc.unique(values.drop_null()))
    if 0 < len(plain) <= _FEW:
        return made.Or(condition, made.In(name, plain.to_pylist()))
    if len(plain):
        ends = plain.take(pc.sort_indices(plain)).take(pa.array([0, len(plain) - 1])).to_pylist()
        condition = made.Or(condition, made.And(made.GreaterThanOrEqual(name, ends[0]), made.LessThanOrEqual(name, ends[1])))
    return condition


def _comparable(values: pa.Array) -> pa.Array:
    """Times and days as whole numbers: Python has none before year 1 or after 9999."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
    return values.cast(pa.int32()) if pa.types.is_date32(values.type) else values
