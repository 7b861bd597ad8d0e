"""Define what all readers of files have in common: what cannot be read fails the query, or is set aside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.fit import MisfitError, spelt
from krishiv_py.connectors.hive import partitions
from krishiv_py.connectors.malformed import Malformed
from krishiv_py.errors import SourceError
from krishiv_py.runtime.reading.malformed import UNREADABLE, Rules, opened, readable, shown_path
from krishiv_py.runtime.reading.scanned import Scanned
from krishiv_py.storage.files import store_at
from krishiv_py.storage.listing import passed_over
from krishiv_py.storage.settings import Stores
from krishiv_py.types import type_text


@attrs.frozen(eq=False)
class FileReader:
    """Batches of file names; Arrow reads the files."""

    schema: pa.Schema
    rules: Rules = attrs.field(factory=Rules)
    stores: Stores = attrs.field(factory=Stores, eq=False, repr=False, kw_only=True)

    kind: ClassVar[str]
    as_lines: ClassVar[bool] = False

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Scanned]:
        for path in batch.column(0).to_pylist():
            if not passed_over(path):
                yield from self.read_file(path)

    def read_file(self, uri: str) -> Iterator[Scanned]:
        """The rows of a file, and what of it is set aside."""
        store, path = store_at(uri)
        shown, rows = shown_path(uri), 0
        with opened(store, path, shown, as_lines=self.as_lines) as found:
            try:
                for scanned in self.scanned(found, uri):
                    yield scanned
                    rows += 0 if scanned.batch is None else scanned.batch.num_rows
            except (*UNREADABLE, MisfitError) as problem:
                if not isinstance(problem, MisfitError) and not readable(store, path):
                    raise SourceError(
                        "a file cannot be read", got=f"{shown}: {problem}", hint="see that every worker can read it"
                    ) from problem
                what = str(problem) if isinstance(problem, MisfitError) else f"not a whole {self.kind} file ({problem})"
                yield self.put_aside([Malformed(shown, None, None, what + (f", after {rows} rows" if rows else ""))])

    def put_aside(self, malformed: list[Malformed]) -> Scanned:
        """Return what is set aside.

        Raises
        ------
        SourceError
            When nothing may be.
        """
        if not self.rules.aside:
            raise malformed[0].error()
        return Scanned(None, malformed=tuple(malformed))

    def scanned(self, found: Any, uri: str) -> Iterator[Scanned]:
        """The rows of an open file."""
        raise NotImplementedError


@attrs.frozen(eq=False)
class SameValue:
    """One value for all rows of the file."""

    value: pa.Scalar

    @classmethod
    def by_folder(cls, field: pa.Field, text: str | None) -> SameValue:
        """The value that the name of a folder gives."""
        try:
            return cls(_of_text(text, field.type))
        except pa.ArrowException as problem:
            raise MisfitError(
                f"the folder {field.name}={text} gives no {type_text(field.type)}", "", "rename the folder"
            ) from problem

    def of(self, part: pa.RecordBatch) -> pa.Array:
        """As many values as there are rows."""
        return pa.repeat(self.value, part.num_rows) if self.value.is_valid else pa.nulls(part.num_rows, self.value.type)


def _of_text(text: str | None, type_: pa.DataType) -> pa.Scalar:
    """A value as the name of a folder has it; a time without a zone is UTC."""
    written = pa.scalar(text, pa.string())
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        try:
            return written.cast(pa.timestamp(type_.unit)).cast(type_)
        except pa.ArrowInvalid:  # it has one
            return written.cast(type_)
    return written.cast(type_)


def by_folders(batch: pa.RecordBatch, uri: str, rows: pa.Array | None = None) -> pa.RecordBatch:
    """Rows of a file, in which a folder of its path says what they do not: row by row, wherever a batch ends.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        The rows, in the columns of the schema.
    uri : str
        The path of the file.
    rows : pyarrow.Array, optional
        Which rows are of this file; all of them by default.

    Raises
    ------
    MisfitError
        When a folder names no value of the column's type.
    """
    named = partitions(uri)
    for at, field in enumerate(batch.schema):
        folder = spelt(field.name, list(named)) if named and batch.column(at).null_count else None
        if folder is not None:
            column, value = batch.column(at), SameValue.by_folder(field, named[folder]).value
            unsaid = column.is_null() if rows is None else pc.and_(column.is_null(), rows)
            batch = batch.set_column(at, field, pc.if_else(unsaid, value, column))
    return batch
