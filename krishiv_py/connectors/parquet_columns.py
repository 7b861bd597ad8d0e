"""Columns of parquet files as columns of a stream, for every reader of such files: of folders, of tables, in tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.connectors.fit import MisfitError, Rule, fit_column, other_zone, places
from krishiv_py.types import type_text


def open_parquet(file: Any) -> pq.ParquetFile:
    """Open a file, whose checksums are looked at where its writer, as Spark does, left some."""
    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us", page_checksum_verification=True)


@attrs.frozen(eq=False)
class FileColumn:
    """A column of a file.

    Attributes
    ----------
    field : pyarrow.Field
        The column of the schema.
    name : str
        Its name in the file.
    rule : Rule
        What is made of other fields and types.
    meant : pyarrow.DataType or None
        Its type with a zone for the instants that the file keeps without one; None where there are none.
    """

    field: pa.Field
    name: str
    rule: Rule
    meant: pa.DataType | None = None

    def of(self, part: pa.RecordBatch) -> pa.Array:
        """Return its values in the type of the schema.

        Raises
        ------
        MisfitError
            When they do not fit.
        """
        column = part.column(self.name)
        return fit_column(column if self.meant is None else column.cast(self.meant), self.field, self.rule)


def file_columns(schema: pa.Schema, file: pq.ParquetFile, rule: Rule, *, instants: bool = False) -> dict[str, FileColumn]:
    """Return the columns of a file that are meant by those of a schema, by the names of the schema.

    Parameters
    ----------
    schema : pyarrow.Schema
        The wanted columns.
    file : pyarrow.parquet.ParquetFile
        The file.
    rule : Rule
        What is made of other names and types.
    instants : bool
        Whether all times without a zone are instants where the schema has a zone, as in a table whose log has the types.
        Otherwise only those are that older writers keep as INT96.

    Raises
    ------
    MisfitError
        When a name appears twice.
    """
    stored = file.schema_arrow
    columns = {}
    for field, i in zip(schema, places(schema.names, stored.names, any_case=rule.any_case), strict=True):
        if i is not None:
            columns[i] = FileColumn(field, stored.names[i], rule)
    if any(_has_zone(column.field.type) for column in columns.values()):
        leaves = [file.schema.column(i).physical_type == "INT96" for i in range(len(file.schema))]
        if instants or any(leaves):
            following = iter([True] * len(leaves) if instants else leaves)
            for i, field in enumerate(stored):  # the leaves of columns that are not wanted are passed over
                column = columns.get(i)
                meant = _zoned(field.type, None if column is None else column.field.type, following, rule)
                if column is not None and meant != field.type:
                    columns[i] = attrs.evolve(column, meant=meant)
    return {column.field.name: column for column in columns.values()}


def _has_zone(type_: pa.DataType) -> bool:
    if pa.types.is_timestamp(type_):
        return type_.tz is not None
    return any(_has_zone(type_.field(i).type) for i in range(type_.num_fields))


def _zoned(given: pa.DataType, wanted: pa.DataType | None, leaves: Iterator[bool], rule: Rule) -> pa.DataType:
    """Return a type in which leaves that are instants have the zone that the schema gives them."""
    is_ = pa.types
    if isinstance(given, pa.BaseExtensionType):
        _zoned(given.storage_type, None, leaves, rule)
        return given
    if is_.is_struct(given):
        inner: dict[int | None, pa.DataType] = {}
        if wanted is not None and is_.is_struct(wanted):
            indices = places([f.name for f in wanted], [f.name for f in given], any_case=rule.any_case)
            inner = {types: f.type for types, f in zip(indices, wanted, strict=True)}
        return pa.struct([f.with_type(_zoned(f.type, inner.get(types), leaves, rule)) for types, f in enumerate(given)])
    if is_.is_map(given):
        pair = (wanted.key_type, wanted.item_type) if wanted is not None and is_.is_map(wanted) else (None, None)
        key = given.key_field.with_type(_zoned(given.key_type, pair[0], leaves, rule))
        return pa.map_(key, given.item_field.with_type(_zoned(given.item_type, pair[1], leaves, rule)))
    if is_.is_list(given) or is_.is_large_list(given) or is_.is_fixed_size_list(given):
        inside = wanted.value_type if wanted is not None and is_.is_list(wanted) else None
        field = given.value_field.with_type(_zoned(given.value_type, inside, leaves, rule))
        if is_.is_fixed_size_list(given):
            return pa.list_(field, given.list_size)
        return pa.list_(field) if is_.is_list(given) else pa.large_list(field)
    instant = next(leaves, False)
    zone = wanted is not None and is_.is_timestamp(wanted) and wanted.tz is not None
    if instant and zone and is_.is_timestamp(given) and given.tz is None:
        return pa.timestamp(given.unit, "UTC")
    return given


def explained(problem: MisfitError) -> str:
    """Return an error in the words of files: the type that is there, and the one of the schema."""
    if problem.types is None:
        return str(problem)
    given, wanted = problem.types
    way = ""
    if other := other_zone(given, wanted):
        way = f"; declare it {other} there"
    elif pa.types.is_timestamp(given) and given.unit == "ns" and pa.types.is_timestamp(wanted):
        way = '; nanoseconds="cut" would cut its times to microseconds'
    return f"{problem.where} is {type_text(given)}, and its values do not fit {type_text(wanted)} of the schema{way}"
