"""An Iceberg table as a source: the driver plans data files by snapshot, tasks read them with pyiceberg and Arrow.

Define what the snapshots of an Iceberg table brought: the files of a whole snapshot, and what one snapshot changed.

A file is a dict that can be noted as JSON: its path, size and format, the files that delete rows of it, and the values of
its partition, which old files may not hold as columns.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors.ranges import in_runs
from krishiv_py.connectors.source import JsonValue, Planned, Source
from krishiv_py.connectors.tables.iceberg.place import COMPACTED, a_catalog, a_table, dataset, iceberg, opened, without_secrets
from krishiv_py.errors import RAISED, KrishivError, PlanError, SourceError, shown
from krishiv_py.lazy import lazy
from krishiv_py.plan.checks import Setting, a_number, a_switch, apart, one_of
from krishiv_py.plan.schema import as_schema
from krishiv_py.redaction import shown_settings
from krishiv_py.storage.datasets import Dataset
from krishiv_py.types import normal_type

if TYPE_CHECKING:
    from krishiv_py.connectors import fit
else:
    fit = lazy("krishiv_py.connectors.fit")


@functools.lru_cache(maxsize=8)
def _parsed(metadata: str, columns: str) -> tuple[Any, Any]:
    return iceberg("table.metadata").TableMetadataUtil.parse_raw(metadata), iceberg("schema").Schema.model_validate_json(
        columns
    )


@functools.lru_cache(maxsize=8)
def _io(properties: tuple[tuple[str, Any], ...], location: str) -> Any:
    return iceberg("io").load_file_io(dict(properties), location)


def rows_of(
    metadata: str, columns: str, properties: tuple[tuple[str, Any], ...], file: Mapping[str, Any], names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, without those that are deleted, in the columns of these `names`.

    `metadata` and `columns` are the table and the schema to read, as JSON; `file` is one of
    :func:`whole_table`.
    """
    table, schema = _parsed(metadata, columns)
    wanted, io = schema.select(*names), _io(properties, table.location)
    if "spec" in file:
        spec = iceberg("partitioning").PartitionSpec.model_validate_json(file["spec"])
        table = table.model_copy(update={"partition_specs": [spec], "default_spec_id": spec.spec_id})
    task = iceberg("table").FileScanTask(_data_file(file, table), {_delete_file(*each) for each in file["deletes"]})
    read = iceberg("io.pyarrow").ArrowScan(table, io, wanted, iceberg("expressions").AlwaysTrue())
    yield from read.to_record_batches([task])


def _data_file(file: Mapping[str, Any], table: Any) -> Any:
    manifest, typedef = iceberg("manifest"), iceberg("typedef")
    from_json = iceberg("conversions").from_json
    spec = table.spec()
    values: list[Any] = []
    if "spec" in file:
        types = spec.partition_type(table.schema()).fields
        values = [None if v is None else from_json(t.field_type, v) for t, v in zip(types, file["partition"], strict=True)]
    made = manifest.DataFile.from_args(
        content=manifest.DataFileContent.DATA,
        file_path=file["path"],
        file_format=manifest.FileFormat(file["format"]),
        partition=typedef.Record(*values),
        file_size_in_bytes=file["size"],
    )
    made.spec_id = spec.spec_id if "spec" in file else -1
    return made


def _delete_file(path: str, kind: str) -> Any:
    manifest = iceberg("manifest")
    return manifest.DataFile.from_args(
        content=manifest.DataFileContent.POSITION_DELETES, file_path=path, file_format=manifest.FileFormat(kind)
    )


@attrs.frozen
class Change:
    """Holds what one snapshot did.

    Attributes
    ----------
    added : tuple of dict
        Files with new rows.
    removed : int
        How many files with rows it took out, and with deleted rows it added.
    rewrites : bool
        Whether it only writes the same rows to other files.
    """

    added: tuple[dict[str, Any], ...]
    removed: int
    rewrites: bool = False


def following(metadata: Any, head: Any, after: int | None, sequence: int) -> list[Any] | None:
    """Return the snapshots that lead from the one numbered `after` to `head`, the oldest first.

    None means that no unbroken line of snapshots does so. `after` itself may have expired. Some writers, pyiceberg among them,
    take its number out of its child then, which still has the next `sequence` number.
    """
    snapshots: list[Any] = []
    current = head
    while current is not None:
        if current.snapshot_id == after:
            return snapshots[::-1]
        snapshots.append(current)
        parent = current.parent_snapshot_id
        if parent is None:
            number = current.sequence_number or 0
            return snapshots[::-1] if number == sequence + 1 or (after is None and not number) else None
        if parent == after:
            return snapshots[::-1]
        current = metadata.snapshot_by_id(parent)
    return None if snapshots or after is not None else []


def change_of(table: Any, snapshot: Any) -> Change:
    """Return what a snapshot did, by the manifests that it wrote."""
    summary = snapshot.summary
    replace = iceberg("table.snapshots").Operation.REPLACE
    if summary is not None and (summary.operation == replace or COMPACTED in summary.additional_properties):
        return Change((), 0, rewrites=True)
    status = iceberg("manifest").ManifestEntryStatus
    added, removed = [], 0
    for entry, of_deletes in _entries(table, snapshot, written_by=snapshot.snapshot_id):
        if entry.snapshot_id != snapshot.snapshot_id:
            continue
        if entry.status == status.ADDED and not of_deletes:
            added.append(_file(table, entry.data_file, ()))
        elif entry.status == status.DELETED or (entry.status == status.ADDED and of_deletes):
            removed += 1
    return Change(tuple(added), removed)


def whole_table(table: Any, snapshot: int | None) -> list[dict[str, Any]]:
    """Return the files of a snapshot, the oldest first."""
    if snapshot is None:
        return []
    entries = _entries(table, table.metadata.snapshot_by_id(snapshot))
    ages = {entry.data_file.file_path: entry.sequence_number or 0 for entry, of_deletes in entries if not of_deletes}
    tasks = sorted(
        table.scan(snapshot_id=snapshot).plan_files(), key=lambda t: (ages.get(t.file.file_path, 0), t.file.file_path)
    )
    return [_file(table, task.file, task.delete_files) for task in tasks]


def _entries(table: Any, snapshot: Any, written_by: int | None = None) -> Iterator[tuple[Any, bool]]:
    """Yield the entries of the manifests of a snapshot, and for each whether it is of a file that deletes rows."""
    content = iceberg("manifest").ManifestContent
    for manifest in snapshot.manifests(table.io):
        if written_by is None or manifest.added_snapshot_id == written_by:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=written_by is None):
                yield entry, manifest.content == content.DELETES


def _file(table: Any, file: Any, deletes: Iterable[Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "path": file.file_path,
        "size": file.file_size_in_bytes,
        "format": file.file_format.value,
        "deletes": sorted([each.file_path, each.file_format.value] for each in deletes),
    }
    spec = table.metadata.specs().get(file.spec_id)
    if spec is not None and any(str(field.transform) == "identity" for field in spec.fields):
        to_json = iceberg("conversions").to_json
        types = spec.partition_type(table.schema()).fields
        values = [file.partition[i] for i in range(len(types))]
        settings["spec"] = spec.model_dump_json()
        settings["partition"] = [None if v is None else to_json(t.field_type, v) for t, v in zip(types, values, strict=True)]
    return settings


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
    catalog: Mapping[str, str] = attrs.field(repr=shown_settings)
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
            then = "a stream cannot take back what it has read"
            hint = f'pass on_change="skip" to pass over such snapshots, or {_AGAIN}'
            raise SourceError("rows of an Iceberg table were changed or deleted", got=got, then=then, hint=hint)
        warnings.warn(f"a snapshot that changed rows is passed over: {got}", RuntimeWarning, stacklevel=2)
        return True

    def _planned(self, place: _Place, files: Sequence[dict[str, Any]]) -> Planned:
        position: dict[str, Any] = attrs.asdict(place)
        runs = in_runs(files, self.parallelism, lambda file: int(file["size"]))
        return Planned(position, runs)

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
            got = f"{self.name}: {', '.join(missing)}"
            hint = f"{_AGAIN} and the columns there are now"
            raise SourceError("an Iceberg table has lost columns", got=got, then="they would be null from there on", hint=hint)

    def _another(self, table_id: str) -> SourceError:
        got = f"{self.name}: its identity is {table_id} now"
        return SourceError("it is another Iceberg table than the one that was read", got=got, hint=_AGAIN)

    def _expired(self, snapshot: int) -> SourceError:
        got = f"{self.name}: snapshot {snapshot}, of which not all files were planned"
        hint = f"keep snapshots for longer, and {_AGAIN}"
        return SourceError("a snapshot of an Iceberg table is gone", got=got, then="its rows are lost to this query", hint=hint)

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
                got = f"{self.name}: {file['path']}: {without_secrets(problem, self.catalog)}"
                hint = f"restore the file; where the type of a column has changed, {_AGAIN}"
                raise SourceError("a file of an Iceberg table cannot be read", got=got, hint=hint) from problem

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


IcebergPlace: TypeAlias = "Literal['earliest', 'latest'] | int"
Snapshot: TypeAlias = "int | str | dt.datetime"
_MOST: Final = (1 << 63) - 1
_SNAPSHOT: Final = "pass the number of a snapshot, the name of a tag or branch, or a datetime with a time zone"


def iceberg_source(
    table: str,
    *,
    catalog: str | Mapping[str, Setting],
    streaming: bool = False,
    snapshot: Snapshot | None = None,
    starting: IcebergPlace = "earliest",
    max_files_per_batch: int | None = None,
    on_change: OnChange = "fail",
    parallelism: int | None = None,
) -> IcebergSource:
    """Return an Iceberg table as a :class:`~krishiv_py.connectors.Source`; :meth:`krishiv_py.Session.read_iceberg` has the
    parameters.

    For the test driver: ``krishiv_py.testing.micro_batches(iceberg_source(...))``.

    Raises
    ------
    PlanError
        For arguments that mean nothing or do not go together.
    SchemaError
        For a column of a type that the library does not have.
    SourceError
        When there is no table, no such snapshot, or the catalog does not answer.
    MissingExtraError
        When pyiceberg is not installed.

    Examples
    --------
    >>> from krishiv_py.connectors import iceberg_source
    >>> from krishiv_py.testing import micro_batches
    >>> def replayed(driver):
    ...     events = iceberg_source("lake.events", catalog={"type": "rest", "uri": "http://localhost:8181"})
    ...     return [driver.send(batch).results for batch in micro_batches(events)]
    """
    name, place = a_table(table), a_catalog(catalog)
    a_switch(streaming, "streaming")
    one_of(on_change, "on_change", ("fail", "skip"))
    if max_files_per_batch is not None:
        a_number(max_files_per_batch, "max_files_per_batch", 1, "use 1 or more, or leave it out for all files that are there")
    if parallelism is not None:
        a_number(parallelism, "parallelism", 1, "pass how many tasks read at once, from 1", most=10_000)
    if snapshot is not None:
        _check_snapshot(snapshot)
    begin = _starting(starting)
    if streaming and snapshot is not None:
        raise apart("snapshot", "streaming=True", "use starting= for the snapshot with which a stream begins")
    if not streaming and begin != "earliest":
        raise apart("starting", "a table that is read once", "use snapshot=, or streaming=True")
    try:
        opened_table = opened(place).load_table(name)
    except iceberg("exceptions").NoSuchTableError:
        hint = "check namespace and name, and write the table first"
        raise SourceError("there is no such Iceberg table", got=name, hint=hint) from None
    except RAISED as problem:
        got = f"{name}: {without_secrets(problem, place)}"
        hint = "see that the catalog can be reached, and how its properties are spelt"
        raise SourceError("the catalog of Iceberg does not answer", got=got, hint=hint) from None
    metadata = opened_table.metadata
    schema, current = opened_table.schema(), metadata.current_snapshot()
    base, sequence = (None, 0) if current is None else (int(current.snapshot_id), int(current.sequence_number or 0))
    if snapshot is not None:
        base = _snapshot_id(opened_table, name, snapshot)
        schema = opened_table.scan(snapshot_id=base).projection()
    elif isinstance(begin, int):
        first = metadata.snapshot_by_id(begin)
        if first is None:
            raise _no_snapshot(opened_table, name, begin)
        base, sequence = first.parent_snapshot_id, int(first.sequence_number or 1) - 1
    return IcebergSource(
        name=name,
        catalog=place,
        schema=as_schema(columns_of(schema)),
        metadata=trimmed(metadata),
        columns=schema.model_dump_json(),
        files=dict(opened_table.io.properties),
        table=str(metadata.table_uuid),
        base=base,
        sequence=sequence,
        whole=begin == "earliest",
        finite=not streaming,
        most=max_files_per_batch,
        on_change=on_change,
        parallelism=parallelism or os.cpu_count() or 1,
    )


def _starting(value: object) -> IcebergPlace:
    if value == "earliest" or value == "latest":
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        hint = 'use "earliest" for the whole table and what follows, "latest", or the number of a snapshot'
        raise PlanError("`starting` is not a place in a table", got=shown(value), hint=hint)
    return value


def _check_snapshot(value: object) -> None:
    fits = (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST) or (
        isinstance(value, str) and bool(value)
    )
    if not fits and not (isinstance(value, dt.datetime) and value.tzinfo is not None):
        raise PlanError("`snapshot` is not a snapshot", got=shown(value), hint=_SNAPSHOT)


def _snapshot_id(table: Any, name: str, wanted: Snapshot) -> int:
    """Return the number of a snapshot."""
    if isinstance(wanted, dt.datetime):
        snapshot = table.snapshot_as_of_timestamp(int(wanted.timestamp() * 1_000))
    elif isinstance(wanted, str):
        snapshot = table.snapshot_by_name(wanted)
    else:
        snapshot = table.snapshot_by_id(wanted)
    if snapshot is None:
        raise _no_snapshot(table, name, wanted)
    return int(snapshot.snapshot_id)


def _no_snapshot(table: Any, name: str, wanted: Snapshot) -> SourceError:
    there = [str(each.snapshot_id) for each in table.metadata.snapshots]
    shown_some = ", ".join(there[-5:]) if there else "none"
    got = f"{name}: {shown(wanted)}; the last ones are {shown_some}"
    hint = "use one that the table still has; old ones expire"
    return SourceError("the Iceberg table has no such snapshot", got=got, hint=hint)
