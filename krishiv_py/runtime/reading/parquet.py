"""Parquet files, read by Arrow in the tasks: only the columns that are needed, and every file held to the schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.connectors.fit import FILE, MisfitError, Rule, cut_to_microseconds, lacking, spelt
from krishiv_py.connectors.hive import partitions
from krishiv_py.connectors.parquet_columns import FileColumn, explained, file_columns, open_parquet
from krishiv_py.replay_index import open_sent
from krishiv_py.replay_log import CONTROL, control_of, sent_at
from krishiv_py.runtime.reading.filereader import FileReader, SameValue
from krishiv_py.runtime.reading.scanned import Scanned
from krishiv_py.storage.files import store_at

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
            yield from self._rows(open_sent(*store_at(uri)), uri)

    def scanned(self, found: Any, uri: str) -> Iterator[Scanned]:
        """The rows of an open file."""
        return self._rows(open_parquet(found), uri)

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
        stored = file_columns(self.schema, parquet, self._rule())
        fields = [stored.get(f.name) or self._field(f, parquet, uri) for f in self.schema]
        wanted = [f.name for f in fields if isinstance(f, FileColumn)]
        for part in parquet.iter_batches(_READ_ROWS, columns=wanted, use_threads=False):
            if not self.sent:
                for column in part.columns:
                    _look_at_texts(column)
            try:
                arrays = [f.of(part) for f in fields]
            except MisfitError as problem:
                raise self._refused(problem) from problem
            yield Scanned(pa.RecordBatch.from_arrays(arrays, schema=self.schema), None, now_us)

    def _field(self, field: pa.Field, parquet: pq.ParquetFile, uri: str) -> SameValue:
        """Return the values of a column that the file does not have."""
        by_folder = partitions(uri)
        folder = spelt(field.name, list(by_folder))
        if folder is not None:
            return SameValue.by_folder(field, by_folder[folder])
        if self.rules.missing_null:
            return SameValue(pa.scalar(None, field.type))
        raise self._refused(lacking(parquet.schema_arrow.names, field.name))

    def _rule(self) -> Rule:
        """Return the rule for other names and types, of columns and of fields inside them."""
        leaf = cut_to_microseconds if self.rules.cut else FILE.leaf
        return attrs.evolve(FILE, missing="null" if self.rules.missing_null else "fail", leaf=leaf)

    def _refused(self, problem: MisfitError) -> MisfitError:
        """The same error with the types, or with the option that would take the file."""
        way = '; missing_columns="null" would take it as null' if problem.lacks else ""
        return MisfitError(explained(problem) + way, "", problem.hint)


def _look_at_texts(column: pa.Array) -> None:
    """Arrow's reader lets bytes through that are no UTF-8. ASCII, the most common, is seen at a glance."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        data = column.buffers()[2]
        if data is None or np.frombuffer(data, np.uint8).max(initial=0) < 128:
            return
    elif not (pa.types.is_nested(column.type) or pa.types.is_dictionary(column.type)):
        return
    column.validate(full=True)
