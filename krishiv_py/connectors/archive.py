"""Archives of a topic: files of which a column names the lane of a row, and another one its place in it (SEMANTICS §2.8).

The files are Parquet below a path, or those of a Delta or Iceberg table. A lane is read file by file, in the order of its rows,
whatever the files are called and however rows lie in them. For that two columns of each file are read first::

    a.parquet   partition  1  0  0       lane 0:  a.parquet [offsets 7 to 8] → b.parquet [9 to 12]
                offset     4  8  7       lane 1:  a.parquet [4] → c.parquet [5 to 6]
"""

from __future__ import annotations

import itertools
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from krishiv_py.connectors.fit import (
    FILE,
    FileColumn,
    MisfitError,
    Rule,
    SameValue,
    cut_to_microseconds,
    explained,
    file_columns,
    lacking,
    open_parquet,
    spelt,
)
from krishiv_py.connectors.hive import partitions
from krishiv_py.connectors.source import JsonValue, Planned, Source
from krishiv_py.connectors.tables.source import SnapshotSource
from krishiv_py.errors import ColumnError, SourceError, failure_text, shown
from krishiv_py.failures.redaction import redacted
from krishiv_py.plan.checks import known_column
from krishiv_py.storage.files import files_at, store_at
from krishiv_py.types import type_text

ONLY = ""
"""The lane of an archive that has no column for it."""


def rule_of(missing: Literal["fail", "null"], nanoseconds: Literal["fail", "cut"]) -> Rule:
    """Return the rule for files that lack columns, or have finer times than a microsecond."""
    return attrs.evolve(FILE, missing=missing, leaf=cut_to_microseconds if nanoseconds == "cut" else FILE.leaf)


class ArchiveFiles(Protocol):
    """The files of an archive, each of which has a name that is noted."""

    def listed(self) -> list[tuple[str, int]]:
        """Return the names of the files, with their sizes in bytes."""

    def parts(self, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file with these columns."""

    def shown(self, name: str = "") -> str:
        """Return the text for a file, or for all, without secrets."""


@attrs.frozen(kw_only=True)
class ParquetFolder:
    """Parquet files below a path.

    Attributes
    ----------
    path : str
        The folder, file or pattern.
    literal : bool
        Whether it is one as it is.
    rule : Rule
        What is made of columns that a file lacks, and of times finer than a microsecond.
    """

    path: str
    literal: bool
    rule: Rule = FILE

    def listed(self) -> list[tuple[str, int]]:
        """See :class:`ArchiveFiles`."""
        return [(file.path, file.size) for file in files_at(self.path, literal=self.literal)]

    def parts(self, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See :class:`ArchiveFiles`."""
        return _parts(name, schema, self.rule)

    def shown(self, name: str = "") -> str:
        """See :class:`ArchiveFiles`."""
        return redacted(name or self.path)


@attrs.frozen
class TableFiles:
    """The files of a table at one of its snapshots.

    Attributes
    ----------
    table : SnapshotSource
        The table, which is read once.
    """

    table: SnapshotSource[Any]

    def listed(self) -> list[tuple[str, int]]:
        """See :class:`ArchiveFiles`."""
        return [(json.dumps(file.noted, sort_keys=True), file.size) for file in self.table.files_at_start()]

    def parts(self, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """See :class:`ArchiveFiles`."""
        return self.table.read([json.loads(name)], schema.names)

    def shown(self, name: str = "") -> str:
        """See :class:`ArchiveFiles`."""
        return f"{name} of {self.table.describe()}" if name else self.table.describe()


@attrs.frozen(order=True)
class _Piece:
    """The rows of a lane in a file: their first and last places in the lane, and the name of the file."""

    first: Any
    last: Any
    file: str


@attrs.define(eq=False)
class _LanePieces:
    """Holds the pieces of each lane. It stays behind when the source is sent to a task."""

    lanes: dict[str, list[_Piece]] | None = None
    check: int = 0

    def __reduce__(self) -> tuple[type[_LanePieces], tuple[()]]:
        return type(self), ()


@attrs.frozen(eq=False, kw_only=True)
class ArchiveSource(Source):
    """Files of an archive, read lane by lane.

    Attributes
    ----------
    files : ArchiveFiles
        The files.
    schema : pyarrow.Schema
        The columns of the files.
    lane : str or None
        The column with the lane of a row: text or a whole number. None where all rows are one lane.
    order : str
        The column by whose values the rows of a lane are ordered.
    most : int or None
        How many files of a lane a batch takes at most.
    """

    files: ArchiveFiles
    schema: pa.Schema
    lane: str | None
    order: str
    most: int | None = None
    finite: bool = True
    parallelism: int = attrs.field(factory=lambda: os.cpu_count() or 1)
    _known: _LanePieces = attrs.field(factory=_LanePieces, repr=False)

    def __attrs_post_init__(self) -> None:
        for name, column in (("lane", self.lane), ("order", self.order)):
            if column is None:
                continue
            type_ = self.schema.field(known_column(column, self.schema.names, f"{name} of an archive")).type
            numbered = pa.types.is_integer(type_) or (name == "lane" and pa.types.is_string(type_))
            if not numbered and not (name == "order" and pa.types.is_timestamp(type_)):
                hint = f"name a column such as {'partition' if name == 'lane' else 'offset'!r}"
                raise ColumnError(f"column {column!r} cannot be the {name} of rows", got=type_text(type_), hint=hint)

    def plan(self, last: JsonValue) -> Planned | None:
        """Return the next pieces of every lane."""
        lanes = self._lanes()
        done, check = (0, self._known.check) if not isinstance(last, list) else last
        if check != self._known.check:
            hint = "read an archive that stays as it is, or begin with a new checkpoint"
            raise SourceError("the archive has changed since its first batch", got=self.files.shown(), hint=hint)
        most = max(map(len, lanes.values()), default=0)
        if not isinstance(done, int) or done >= most:
            return None
        upto = most if self.most is None else min(done + self.most, most)
        ranges: list[JsonValue] = [[lane, piece.file] for lane, pieces in lanes.items() for piece in pieces[done:upto]]
        return Planned([upto, check], ranges)

    def read(self, planned: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a lane in a file, in the order of the lane."""
        lane, file = planned
        wanted = list(dict.fromkeys((*columns, *self._own())))
        schema = pa.schema([self.schema.field(name) for name in wanted])
        rows = pa.Table.from_batches([self._of_lane(part, lane) for part in self.files.parts(file, schema)], schema)
        places = rows[self.order].cast(pa.int64()).to_numpy()
        if (places[1:] < places[:-1]).any():
            rows = rows.take(pa.array(np.argsort(places, kind="stable")))
        yield from rows.select(list(columns)).combine_chunks().to_batches()

    def partition_of(self, planned: Any) -> str:
        """Return the lane of a piece."""
        return self._called(planned[0])

    def partitions_at(self, position: JsonValue) -> Iterable[str]:
        """Return all lanes of the archive."""
        return [self._called(lane) for lane in self._lanes()]

    def describe(self) -> str:
        """Return the path, and the columns that order it."""
        lanes = f"lanes by {self.lane}, " if self.lane else ""
        return f"{self.files.shown()}, {lanes}rows by {self.order}"

    def _called(self, lane: str) -> str:
        return f"{self.lane}={lane}" if self.lane else "archive"

    def _own(self) -> list[str]:
        return [name for name in (self.lane, self.order) if name is not None]

    def _of_lane(self, rows: pa.RecordBatch, lane: str) -> pa.RecordBatch:
        return rows if self.lane is None else rows.filter(pc.equal(rows.column(self.lane).cast(pa.string()), lane))

    def _lanes(self) -> dict[str, list[_Piece]]:
        """Return the pieces of each lane in their order.

        Raises
        ------
        SourceError
            Where rows of two files lie between one another, or have no place.
        """
        if self._known.lanes is None:
            found = dict[str, list[_Piece]]()
            files = self.files.listed()
            for file, _ in files:
                for lane, piece in self._pieces(file):
                    found.setdefault(lane, []).append(piece)
            for lane, pieces in found.items():
                pieces.sort()
                for before, after in itertools.pairwise(pieces):
                    if after.first < before.last:
                        self._refuse(lane, before, after)
            self._known.lanes = dict(sorted(found.items()))
            self._known.check = zlib.crc32(repr(files).encode())
        return self._known.lanes

    def _pieces(self, file: str) -> Iterator[tuple[str, _Piece]]:
        """Yield the lanes of a file, with their first and last places in it."""
        schema = pa.schema([self.schema.field(name) for name in self._own()])
        rows = pa.Table.from_batches(self.files.parts(file, schema), schema)
        for name in self._own():
            if rows[name].null_count:
                then = "its rows have no place among the others"
                hint = "read it without lane= and order=, or leave these rows out of the archive"
                raise SourceError(f"column {name!r} of an archive has nulls", got=self.files.shown(file), then=then, hint=hint)
        rows = rows.set_column(rows.schema.get_field_index(self.order), "order", rows[self.order].cast(pa.int64()))
        if not rows.num_rows:
            return
        lanes = rows[self.lane].cast(pa.string()) if self.lane else pa.array([ONLY] * rows.num_rows, pa.string())
        bounds = pa.table({"lane": lanes, "order": rows["order"]}).group_by("lane").aggregate([("order", "min_max")])
        for lane, both in zip(bounds["lane"].to_pylist(), bounds["order_min_max"].to_pylist(), strict=True):
            yield lane, _Piece(both["min"], both["max"], file)

    def _refuse(self, lane: str, before: _Piece, after: _Piece) -> None:
        places = f"{before.first} to {before.last} and {after.first} to {after.last}"
        got = f"{self._called(lane)}: {places}, in {self.files.shown(after.file)}"
        raise SourceError(
            f"rows of two files lie between one another by {self.order!r}",
            got=got,
            then="a lane is read file by file, so they would come out of order",
            hint="write the archive again so that each file has a stretch of a lane, or read it without lane= and order=",
        )


def _parts(path: str, schema: pa.Schema, rule: Rule) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file; a column may be in the names of its folders.

    Raises
    ------
    SourceError
        For a file that cannot be read or does not fit.
    """
    store, inside = store_at(path)
    try:
        with store.open(inside) as opened:
            parquet: pq.ParquetFile = open_parquet(opened)
            stored = file_columns(schema, parquet, rule)
            columns = [stored.get(field.name) or _not_stored(field, parquet, path, rule) for field in schema]
            names = [column.name for column in columns if isinstance(column, FileColumn)]
            for part in parquet.iter_batches(columns=names):
                yield pa.RecordBatch.from_arrays([column.of(part) for column in columns], schema=schema)
    except (MisfitError, OSError, pa.ArrowException) as problem:
        then = explained(problem) if isinstance(problem, MisfitError) else failure_text(problem)
        if isinstance(problem, MisfitError) and problem.lacks:
            then += '; missing_columns="null" would take it as null'
        what, got = "a file of an archive cannot be read", shown(redacted(path))
        raise SourceError(what, got=got, then=then, hint="mend or remove it") from problem


def _not_stored(field: pa.Field, parquet: pq.ParquetFile, path: str, rule: Rule) -> SameValue:
    """Return the values of a column that a file does not have.

    Raises
    ------
    MisfitError
        Where no folder names it, and a file may not lack it.
    """
    by_folder = partitions(path)
    folder = spelt(field.name, list(by_folder))
    if folder is not None:
        return SameValue.by_folder(field, by_folder[folder])
    if rule.missing == "null":
        return SameValue(pa.scalar(None, field.type))
    raise lacking(parquet.schema_arrow.names, field.name)
