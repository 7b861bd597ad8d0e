"""Columns of parquet files as columns of a stream, for every reader of such files: of folders, of tables, in tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.connectors.fit import MisfitError, Rule, fit_column, spelt


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
        """Its values in the type of the schema.

        Raises
        ------
        MisfitError
            When they do not fit.
        """
        column = part.column(self.name)
        return fit_column(column if self.meant is None else column.cast(self.meant), self.field, self.rule)


def file_column(field: pa.Field, file: pq.ParquetFile, rule: Rule, *, instants: bool = False) -> FileColumn | None:
    """The column of a file that is meant by `field`; None where the file does not have it.

    Parameters
    ----------
    field : pyarrow.Field
        A column of the schema.
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
        When the name stands twice.
    """
    name = spelt(field.name, file.schema_arrow.names, rule.any_case)
    if name is None:
        return None
    leaves = (instants or file.schema.column(at).physical_type == "INT96" for at in range(len(file.schema)))
    meant = None
    for stored in file.schema_arrow:  # the leaves of all columns before it are passed over
        found = _zoned(stored.type, field.type if stored.name == name else None, leaves, rule)
        if stored.name == name:
            meant = found if found != stored.type else None
    return FileColumn(field, name, rule, meant)


def _zoned(given: pa.DataType, wanted: pa.DataType | None, leaves: Iterator[bool], rule: Rule) -> pa.DataType:
    """A type in which leaves that are instants have the zone that the schema gives them."""
    is_ = pa.types
    if isinstance(given, pa.BaseExtensionType):
        _zoned(given.storage_type, None, leaves, rule)
        return given
    if is_.is_struct(given):
        by_name: dict[str | None, pa.DataType] = {}
        if wanted is not None and is_.is_struct(wanted):
            names = [f.name for f in given]
            by_name = {spelt(f.name, names, rule.any_case): f.type for f in wanted}
        return pa.struct([f.with_type(_zoned(f.type, by_name.get(f.name), leaves, rule)) for f in given])
    if is_.is_map(given):
        inner = (wanted.key_type, wanted.item_type) if wanted is not None and is_.is_map(wanted) else (None, None)
        key = given.key_field.with_type(_zoned(given.key_type, inner[0], leaves, rule))
        return pa.map_(key, given.item_field.with_type(_zoned(given.item_type, inner[1], leaves, rule)))
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
    """An error in the words of files: the type that is there, and the one of the schema."""
    if problem.types is None:
        return str(problem)
    given, wanted = problem.types
    finer = pa.types.is_timestamp(given) and given.unit == "ns" and pa.types.is_timestamp(wanted)
    could = finer and (given.tz is None) == (wanted.tz is None)
    way = '; nanoseconds="cut" would cut its times to microseconds' if could else ""
    return f"{problem.where} is {given}, and its values do not fit {wanted} of the schema{way}"
