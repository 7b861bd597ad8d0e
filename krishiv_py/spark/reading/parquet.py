"""Parquet files, read by Arrow in the tasks: only the columns that are needed, and every file held to the schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.disk.files import file_system
from krishiv_py.errors import SchemaError
from krishiv_py.kernels.input.rows import as_batch
from krishiv_py.replay_index import open_sent
from krishiv_py.replay_log import CONTROL, control_of, sent_at
from krishiv_py.spark.reading.filereader import FileReader, Misfit, SameValue, spelt
from krishiv_py.spark.reading.listing import partitions
from krishiv_py.spark.reading.scanned import Scanned

_READ_ROWS = 1 << 18


@attrs.frozen(eq=False)
class ParquetReader(FileReader):
    """Batches of file names; Arrow reads the files. `sent` for those of a sender, whose checksums are looked at."""

    sent: bool = False

    kind: ClassVar[str] = "parquet"

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Scanned]:
        if not self.sent:
            yield from super().__call__(batch)
            return
        for uri in batch.column(0).to_pylist():
            yield from self._rows(open_sent(*file_system(uri)), uri)

    def scanned(self, found: Any, uri: str) -> Iterator[Scanned]:
        """The rows of an open file, whose checksums are looked at where its writer, as Spark does, left some."""
        parquet = pq.ParquetFile(found, coerce_int96_timestamp_unit="us", page_checksum_verification=True)
        return self._rows(parquet, uri)

    def _rows(self, parquet: pq.ParquetFile, uri: str) -> Iterator[Scanned]:
        names = parquet.schema_arrow.names
        control = control_of(parquet.read()) if names and names[0] == CONTROL else None
        if control is not None:
            yield Scanned(None, control, control.now_us)
            return
        count, groups = parquet.metadata.num_rows, parquet.metadata.num_row_groups
        if sum(parquet.metadata.row_group(n).num_rows for n in range(groups)) != count:
            raise pa.ArrowInvalid(f"its row groups do not make up the {count} rows it is said to have")
        if not count:
            if self.sent:
                yield Scanned(None, None, sent_at(parquet.schema_arrow))
            return
        now_us = sent_at(parquet.schema_arrow)
        fields = [self._field(f, parquet, uri) for f in self.schema]
        wanted = [f.name for f in fields if isinstance(f, FileColumn)]
        for part in parquet.iter_batches(_READ_ROWS, columns=wanted, use_threads=False):
            if not self.sent:
                for column in part.columns:
                    _look_at_texts(column)
            arrays = [f.of(part) for f in fields]
            yield Scanned(pa.RecordBatch.from_arrays(arrays, schema=self.schema), None, now_us)

    def _field(self, field: pa.Field, parquet: pq.ParquetFile, uri: str) -> FileColumn | SameValue:
        """Where the values of a column come from."""
        name = spelt(field.name, parquet.schema_arrow.names)
        if name is not None:
            return FileColumn(field, name, _is_int96(parquet, name, field.type))
        by_folder = partitions(uri)
        folder = spelt(field.name, list(by_folder))
        if folder is not None:
            return SameValue.by_folder(field, by_folder[folder])
        if self.rules.missing_null:
            return SameValue(pa.scalar(None, field.type))
        names = parquet.schema_arrow.names
        shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
        raise Misfit(f'no column {field.name!r}; it has: {shown or "(none)"}; missing_columns="null" would take it as null')


@attrs.frozen(eq=False)
class FileColumn:
    """A column of the file."""

    field: pa.Field
    name: str
    utc: bool

    def of(self, part: pa.RecordBatch) -> pa.Array:
        """Its values in the type of the schema; a narrower type is widened."""
        column = part.column(self.name)
        if self.utc:
            column = column.cast(self.field.type)
        try:
            fitted = as_batch(pa.RecordBatch.from_arrays([column], names=[self.field.name]), pa.schema([self.field]))
        except (SchemaError, pa.ArrowException) as problem:
            raise Misfit(
                f"column {self.name!r} is {column.type}, and its values do not fit {self.field.type} of the schema"
            ) from problem
        return fitted.column(0)


def _look_at_texts(column: pa.Array) -> None:
    """Arrow's reader lets bytes through that are no UTF-8. ASCII, the most common, is seen at a glance."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        data = column.buffers()[2]
        if data is None or np.frombuffer(data, np.uint8).max(initial=0) < 128:
            return
    elif not (pa.types.is_nested(column.type) or pa.types.is_dictionary(column.type)):
        return
    column.validate(full=True)


def _is_int96(parquet: pq.ParquetFile, name: str, wanted: pa.DataType) -> bool:
    """Whether a column has the type in which older writers keep instants, which Arrow reads without a zone."""
    found = parquet.schema_arrow.field(name).type
    if not (pa.types.is_timestamp(found) and found.tz is None and pa.types.is_timestamp(wanted) and wanted.tz):
        return False
    columns = (parquet.schema.column(i) for i in range(len(parquet.schema)))
    return any(c.path == name and c.physical_type == "INT96" for c in columns)
