"""An Iceberg table as a source: the driver plans data files by snapshot, tasks read them with pyiceberg and Arrow."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors.source import JsonValue, Planned, Source
from krishiv_py.connectors.tables.iceberg.files import rows_of
from krishiv_py.connectors.tables.iceberg.history import Change, change_of, following, whole_table
from krishiv_py.connectors.tables.iceberg.place import dataset, iceberg, opened, shown_catalog, without_secrets
from krishiv_py.errors import RAISED, KrishivError, SourceError
from krishiv_py.lazy import lazy
from krishiv_py.storage.datasets import Dataset
from krishiv_py.types import normal_type

if TYPE_CHECKING:
    from krishiv_py.connectors import fit
else:  # importing the package must not import pyarrow.compute
    fit = lazy("krishiv_py.connectors.fit")

OnChange: TypeAlias = Literal["fail", "skip"]
_AGAIN: Final = "begin with a new checkpoint"


@attrs.define(eq=False)
class _Known:
    """The table as the driver has it open. It stays behind when a source is sent to a task.

    Attributes
    ----------
    table : Any
        The table of pyiceberg.
    whole : tuple of int and list of dict, or None
        The files of the whole table at a snapshot.
    changes : dict of int to Change
        What the snapshots did that are being read.
    """

    table: Any = None
    whole: tuple[int | None, list[dict[str, Any]]] | None = None
    changes: dict[int, Change] = attrs.field(factory=dict)

    def __reduce__(self) -> tuple[type[_Known], tuple[()]]:
        return _Known, ()


@attrs.frozen
class _Place:
    """A position: `done` files of a snapshot are planned.

    ``whole`` says that the files are those of the whole table at that snapshot, and not those the snapshot added; ``done`` is
    None when all of them are planned. The snapshot of an empty table is None. ``sequence`` is the sequence number of the
    snapshot, 0 where it has none.
    """

    table: str
    snapshot: int | None
    sequence: int
    done: int | None
    whole: bool


@attrs.frozen(eq=False)
class IcebergSource(Source):
    """Made by ``session.read_iceberg`` and :func:`krishiv_py.connectors.iceberg_source`.

    Attributes
    ----------
    name : str
        Namespace and name of the table.
    catalog : mapping of str
        Properties of the catalog.
    schema : pyarrow.Schema
        The columns of the table when the source was made, or at the snapshot that is read.
    metadata : str
        What tasks need to know of the table, as JSON: schemas, partitions, and names of columns.
    columns : str
        The schema of Iceberg that tasks read, as JSON: columns are found by their number, whatever they are called in a file.
    table : str
        Identity of the table.
    base : int or None
        The snapshot of the whole table, or the one before the first.
    sequence : int
        Its sequence number, 0 where it has none.
    """

    name: str
    catalog: Mapping[str, str] = attrs.field(repr=shown_catalog)
    schema: pa.Schema
    metadata: str = attrs.field(repr=False)
    columns: str = attrs.field(repr=False)
    files: Mapping[str, Any] = attrs.field(repr=False)
    """Properties for reading files, with secrets."""
    table: str
    base: int | None
    sequence: int
    whole: bool
    finite: bool
    most: int | None
    on_change: OnChange
    parallelism: int
    poll_seconds: float = 1.0
    until: tuple[int | None] | None = None
    """The snapshot to end with, in a tuple."""
    _known: _Known = attrs.field(factory=_Known, repr=False)

    def plan(self, last: JsonValue) -> Planned | None:
        """Return the next files. The first batch notes where the source begins, even if it has none."""
        try:
            return self._planned_after(last)
        except KrishivError:
            raise
        except RAISED as problem:
            raise self._unread(problem) from None

    def _planned_after(self, last: JsonValue) -> Planned | None:
        if not self.finite:  # a finite one reads one snapshot, which does not change
            self._refresh()
        if last is None:
            start = _Place(self.table, self.base, self.sequence, 0 if self.whole else None, self.whole)
            return self._batch(start) or self._planned(start, [])
        assert isinstance(last, dict)
        place: dict[str, Any] = last
        start = _Place(**place)
        if start.table != self.table:
            raise self._another(self.table)
        return self._batch(start)

    def _batch(self, place: _Place) -> Planned | None:
        """Return the next files after a place, at most so many; None if there are none."""
        files: list[dict[str, Any]] = []
        later: Iterator[Any] | None = iter(()) if self.finite else None
        while self.most is None or len(files) < self.most:
            if place.done is None:
                later = iter(self._later(place)) if later is None else later
                snapshot = next(later, None)
                if snapshot is None:
                    break
                place = _Place(self.table, int(snapshot.snapshot_id), int(snapshot.sequence_number or 0), 0, whole=False)
            here = self._files(place)
            assert place.done is not None
            taken = here[place.done :] if self.most is None else here[place.done : place.done + self.most - len(files)]
            files += taken
            done = place.done + len(taken)
            place = attrs.evolve(place, done=None if done >= len(here) else done)
        return self._planned(place, files) if files else None

    def _later(self, place: _Place) -> list[Any]:
        """Return the snapshots after a place, the oldest first; up to the one to end with."""
        table = self._table()
        head = table.metadata.current_snapshot() if self.until is None else self._snapshot(self.until[0])
        snapshots = following(table.metadata, head, place.snapshot, place.sequence)
        if snapshots is None:
            now = None if head is None else head.snapshot_id
            got = f"{self.name}: snapshot {place.snapshot} was read, and the table is at {now}"
            raise SourceError(
                "snapshots of an Iceberg table are gone",
                got=f"{got}, with none in between, or with another history",
                then="they expired or were rolled back before they were read, and their rows are not known",
                hint=f"keep more snapshots (keep_snapshots of IcebergSink, history.expire.*), and {_AGAIN}",
            )
        if snapshots:
            self._check_columns(table)
        return snapshots

    def _snapshot(self, number: int | None) -> Any:
        return None if number is None else self._table().metadata.snapshot_by_id(number)

    def _files(self, place: _Place) -> Sequence[dict[str, Any]]:
        table = self._table()
        if place.whole:
            if self._known.whole is None or self._known.whole[0] != place.snapshot:
                if place.snapshot is not None and table.metadata.snapshot_by_id(place.snapshot) is None:
                    raise self._expired(place.snapshot)
                self._known.whole = place.snapshot, whole_table(table, place.snapshot)
            return self._known.whole[1]
        assert place.snapshot is not None
        change = self._known.changes.get(place.snapshot)
        if change is None:
            snapshot = table.metadata.snapshot_by_id(place.snapshot)
            if snapshot is None:
                raise self._expired(place.snapshot)
            self._known.changes = {place.snapshot: (change := change_of(table, snapshot))}
        if change.rewrites:
            return ()
        return () if change.removed and self._skipped(change, place.snapshot) else change.added

    def _skipped(self, change: Change, snapshot: int) -> bool:
        """Return True for a snapshot that is passed over although it changed rows; it is an error otherwise."""
        got = f"{self.name}: snapshot {snapshot} takes {change.removed} files of rows out and adds {len(change.added)}"
        if self.on_change == "fail":
            raise SourceError(
                "rows of an Iceberg table were changed or deleted",
                got=got,
                then="a stream cannot take back what it has read",
                hint=f'pass on_change="skip" to pass over such snapshots, or {_AGAIN}',
            )
        warnings.warn(f"a snapshot that changed rows is passed over: {got}", RuntimeWarning, stacklevel=2)
        return True

    def _planned(self, place: _Place, files: Sequence[dict[str, Any]]) -> Planned:
        groups, size = [[]], 0  # type: tuple[list[list[JsonValue]], int]
        whole = sum(file["size"] for file in files)
        for file in files:
            if groups[-1] and size >= whole * len(groups) / self.parallelism:
                groups.append([])
            groups[-1].append(file)
            size += file["size"]
        position: dict[str, Any] = attrs.asdict(place)
        return Planned(position, groups)

    def _table(self) -> Any:
        if self._known.table is None:
            self._known.table = opened(self.catalog).load_table(self.name)
            self._same(self._known.table)
        return self._known.table

    def _refresh(self) -> None:
        if self._known.table is None:
            self._table()
            return
        catalog = self._known.table.catalog
        self._known.table = catalog.load_table(self.name)
        self._same(self._known.table)

    def _same(self, table: Any) -> None:
        if str(table.metadata.table_uuid) != self.table:
            raise self._another(str(table.metadata.table_uuid))

    def _check_columns(self, table: Any) -> None:
        """Refuse a table that lost a column, or a field of a struct: it would be null in new files."""
        then, now, missing = iceberg("schema").Schema.model_validate_json(self.columns), table.schema(), list[str]()
        for name in then.column_names:
            inside = any(name.startswith(f"{other}.") for other in missing)
            if not inside and now.find_column_name(then.find_field(name).field_id) is None:
                missing.append(name)
        if missing:
            raise SourceError(
                "an Iceberg table has lost columns",
                got=f"{self.name}: {', '.join(missing)}",
                then="they would be null from there on",
                hint=f"{_AGAIN} and the columns there are now",
            )

    def _another(self, table_id: str) -> SourceError:
        return SourceError(
            "it is another Iceberg table than the one that was read",
            got=f"{self.name}: its identity is {table_id} now",
            hint=_AGAIN,
        )

    def _expired(self, snapshot: int) -> SourceError:
        return SourceError(
            "a snapshot of an Iceberg table is gone",
            got=f"{self.name}: snapshot {snapshot}, of which not all files were planned",
            then="its rows are lost to this query",
            hint=f"keep snapshots for longer, and {_AGAIN}",
        )

    def _unread(self, problem: BaseException) -> SourceError:
        got = f"{self.name}: {without_secrets(problem, self.catalog)}"
        hint = "see that catalog and warehouse can be reached, and start the query again"
        if "equality delete" in str(problem):
            hint = "rewrite the table without equality deletes (rewrite_data_files of Spark or Trino)"
        return SourceError("an Iceberg table cannot be read", got=got, hint=hint)

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files of a range."""
        assert isinstance(planned, list)
        wanted = pa.schema([self.schema.field(name) for name in columns])
        for entry in planned:
            file: Any = entry
            try:
                for batch in self._rows(file, columns):
                    yield fit.fit_batch(batch, wanted, fit.TABLE)
            except FileNotFoundError:
                raise SourceError(
                    "a file of an Iceberg table is gone",
                    got=f"{self.name}: {file['path']}",
                    then="its rows are lost to this query",
                    hint=f"keep snapshots and files for longer than a query is stopped, and {_AGAIN}",
                ) from None
            except RAISED as problem:
                raise SourceError(
                    "a file of an Iceberg table cannot be read",
                    got=f"{self.name}: {file['path']}: {without_secrets(problem, self.catalog)}",
                    hint=f"restore the file; where the type of a column has changed, {_AGAIN}",
                ) from problem

    def _rows(self, file: Mapping[str, Any], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return rows_of(self.metadata, self.columns, tuple(sorted(self.files.items())), file, columns)

    def datasets(self) -> tuple[Dataset, ...]:
        """Return the table."""
        return (dataset(self.catalog, self.name),)

    def until_now(self) -> IcebergSource:
        """Up to the snapshot there is now, or to the one that it ends with."""
        if self.until is not None:
            return self
        head = opened(self.catalog).load_table(self.name).metadata.current_snapshot()
        return attrs.evolve(self, until=(None if head is None else int(head.snapshot_id),))


def columns_of(schema: Any) -> pa.Schema:
    """Return the columns of a schema of Iceberg as this library has them."""
    schema_of_table = iceberg("io.pyarrow").schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([pa.field(field.name, normal_type(field.type)) for field in schema_of_table])


def trimmed(metadata: Any) -> str:
    """Return what tasks need of the metadata of a table, as JSON; without its history."""
    metadata_ = json.loads(metadata.model_dump_json())
    for name in ("snapshots", "snapshot-log", "metadata-log", "statistics", "partition-statistics"):
        metadata_[name] = []
    metadata_["refs"], metadata_["current-snapshot-id"] = {}, None
    return json.dumps(metadata_)
