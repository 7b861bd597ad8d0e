"""An Iceberg table as a source: the driver plans data files by snapshot, tasks read them with pyiceberg and Arrow.

A snapshot has its files, or those that it changed. A file is a dict that can be noted as JSON: its path, size and format, the
files that delete rows of it, and the values of its partition, which old files may not hold as columns.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors import fit
from krishiv_py.connectors.source import JsonValue, Planned
from krishiv_py.connectors.tables.iceberg.place import COMPACTED, a_catalog, a_table, dataset, iceberg, opened, without_secrets
from krishiv_py.connectors.tables.source import (
    AGAIN,
    MOST,
    Change,
    OnChange,
    SnapshotSource,
    TableFacts,
    TableFile,
    TablePlace,
    TablePosition,
    check_arguments,
    with_feed,
)
from krishiv_py.errors import RAISED, KrishivError, PlanError, SourceError, shown
from krishiv_py.failures.redaction import shown_settings
from krishiv_py.plan.checks import Setting
from krishiv_py.plan.schema import as_schema
from krishiv_py.storage.datasets import Dataset
from krishiv_py.types import normal_type


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
        return Change((), 0)
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


def with_changes(table: Any, snapshot: Any, change: Change) -> Change:
    """Return what a snapshot did to the rows of a table: all files that are not, or not with these deletions, in both of it and
    the snapshot before.

    Its manifests alone do not say which rows of a file were deleted before.
    """
    if not change.removed:
        return change
    before, after = whole_table(table, snapshot.parent_snapshot_id), whole_table(table, snapshot.snapshot_id)
    old, new = ({json.dumps(file.noted, sort_keys=True): file for file in files} for files in (before, after))
    return Change(
        tuple(file for name, file in new.items() if name not in old),
        0,
        gone=tuple(file for name, file in old.items() if name not in new),
    )


def whole_table(table: Any, snapshot: int | None) -> list[TableFile]:
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


def _file(table: Any, file: Any, deletes: Iterable[Any]) -> TableFile:
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
    return TableFile(file.file_size_in_bytes, settings)


@attrs.define(eq=False)
class _IcebergTable(TableFacts):
    """``table`` is open; ``change`` is what the snapshot of this number did, which is being read."""

    table: Any = None
    change: tuple[int, Change] | None = None


@attrs.frozen
class _Position(TablePosition):
    """The snapshot of an empty table is None. ``sequence`` is the sequence number of the snapshot, 0 where it has none."""

    table: str
    snapshot: int | None
    sequence: int
    done: int | None
    whole: bool

    @property
    def number(self) -> int | None:
        """See TablePosition."""
        return self.snapshot


@attrs.frozen(eq=False, kw_only=True)
class IcebergSource(SnapshotSource[_Position]):
    """Made by ``session.read_iceberg`` and :func:`krishiv_py.connectors.iceberg_source`.

    Attributes
    ----------
    name : str
        Namespace and name of the table.
    catalog : mapping of str
        Properties of the catalog.
    metadata : str
        What tasks need to know of the table, as JSON: schemas, partitions, and names of columns.
    table_schema : str
        The schema of Iceberg that tasks read, as JSON: columns are found by their number, whatever they are called in a file.
    files : mapping
        Properties for reading files, with secrets.
    until : tuple of int or None
        The snapshot to end with, in a tuple.
    """

    name: str
    catalog: Mapping[str, str] = attrs.field(repr=shown_settings)
    metadata: str = attrs.field(repr=False)
    table_schema: str = attrs.field(repr=False)
    files: Mapping[str, Any] = attrs.field(repr=False)
    until: tuple[int | None] | None = None
    _known: _IcebergTable = attrs.field(factory=_IcebergTable, repr=False)

    _format = "an Iceberg"
    _unit = "snapshot"
    _parts = "files of rows"

    def _called(self) -> str:
        return self.name

    def plan(self, last: JsonValue) -> Planned | None:
        """See SnapshotSource."""
        try:
            if not self.finite:  # a finite one reads one snapshot, which does not change
                self._refresh()
            return super().plan(last)
        except KrishivError:
            raise
        except RAISED as problem:
            raise self._unread(problem) from None

    def _later(self, position: _Position) -> Iterator[_Position]:
        if self.finite and self.until is None:
            return
        table = self._table()
        head = table.metadata.current_snapshot() if self.until is None else self._snapshot(self.until[0])
        snapshots = following(table.metadata, head, position.snapshot, position.sequence)
        if snapshots is None:
            now = None if head is None else head.snapshot_id
            got = f"{self.name}: snapshot {position.snapshot} was read, and the table is at {now}"
            raise SourceError(
                "snapshots of an Iceberg table are gone",
                got=f"{got}, with none in between, or with another history",
                then="they expired or were rolled back before they were read, and their rows are not known",
                hint=f"keep more snapshots (keep_snapshots of IcebergSink, history.expire.*), and {AGAIN}",
            )
        if snapshots:
            self._check_columns(table)
        for each in snapshots:
            yield _Position(self.start.table, int(each.snapshot_id), int(each.sequence_number or 0), 0, whole=False)

    def _snapshot(self, number: int | None) -> Any:
        return None if number is None else self._table().metadata.snapshot_by_id(number)

    def _whole_table(self, position: _Position) -> list[TableFile]:
        if position.snapshot is not None and self._snapshot(position.snapshot) is None:
            raise self._expired(position.snapshot)
        return whole_table(self._table(), position.snapshot)

    def _change(self, position: _Position) -> Change:
        number = position.snapshot
        assert number is not None
        if self._known.change is None or self._known.change[0] != number:
            snapshot = self._snapshot(number)
            if snapshot is None:
                raise self._expired(number)
            change = change_of(self._table(), snapshot)
            self._known.change = number, self._with_changes(snapshot, change) if self.changes else change
        return self._known.change[1]

    def _with_changes(self, snapshot: Any, change: Change) -> Change:
        if change.removed and self._snapshot(snapshot.parent_snapshot_id) is None:
            raise SourceError(
                "a snapshot of an Iceberg table is gone",
                got=f"{self.name}: the one before {snapshot.snapshot_id}, which changes or deletes rows of it",
                then="nobody knows which rows are gone",
                hint=f"keep snapshots for longer than a query is stopped, and {AGAIN}",
            )
        return with_changes(self._table(), snapshot, change)

    def _commit(self, position: _Position) -> tuple[int, int]:
        snapshot = self._snapshot(position.snapshot)
        return position.sequence, 0 if snapshot is None else int(snapshot.timestamp_ms) * 1_000

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
        if str(table.metadata.table_uuid) != self.start.table:
            raise self._another(str(table.metadata.table_uuid))

    def _check_columns(self, table: Any) -> None:
        """Refuse a table that lost a column, or a field of a struct: it would be null in new files."""
        then, now, missing = iceberg("schema").Schema.model_validate_json(self.table_schema), table.schema(), list[str]()
        for name in then.column_names:
            inside = any(name.startswith(f"{other}.") for other in missing)
            if not inside and now.find_column_name(then.find_field(name).field_id) is None:
                missing.append(name)
        if missing:
            raise self._narrower(missing)

    def _expired(self, snapshot: int) -> SourceError:
        got = f"{self.name}: snapshot {snapshot}, of which not all files were planned"
        hint = f"keep snapshots for longer, and {AGAIN}"
        return SourceError("a snapshot of an Iceberg table is gone", got=got, then="its rows are lost to this query", hint=hint)

    def _unread(self, problem: BaseException) -> SourceError:
        got = f"{self.name}: {without_secrets(problem, self.catalog)}"
        hint = "see that catalog and warehouse can be reached, and start the query again"
        if "equality delete" in str(problem):
            hint = "rewrite the table without equality deletes (rewrite_data_files of Spark or Trino)"
        return SourceError("an Iceberg table cannot be read", got=got, hint=hint)

    def _rows(self, file: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        assert isinstance(file, dict)
        wanted = pa.schema([self.schema.field(name) for name in columns])
        settings = tuple(sorted(self.files.items()))
        try:
            for batch in rows_of(self.metadata, self.table_schema, settings, file, columns):
                yield fit.fit_batch(batch, wanted, fit.TABLE)
        except FileNotFoundError:
            raise SourceError(
                "a file of an Iceberg table is gone",
                got=f"{self.name}: {file['path']}",
                then="its rows are lost to this query",
                hint=f"keep snapshots and files for longer than a query is stopped, and {AGAIN}",
            ) from None
        except RAISED as problem:
            got = f"{self.name}: {file['path']}: {without_secrets(problem, self.catalog)}"
            hint = f"restore the file; where the type of a column has changed, {AGAIN}"
            raise SourceError("a file of an Iceberg table cannot be read", got=got, hint=hint) from problem

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


Snapshot: TypeAlias = "int | str | dt.datetime"
_SNAPSHOT: Final = "pass the number of a snapshot, the name of a tag or branch, or a datetime with a time zone"


def iceberg_source(
    table: str,
    *,
    catalog: str | Mapping[str, Setting],
    streaming: bool = False,
    snapshot: Snapshot | None = None,
    starting: TablePlace = "earliest",
    max_files_per_batch: int | None = None,
    on_change: OnChange = "fail",
    changes: bool = False,
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
    if snapshot is not None:
        _check_snapshot(snapshot)
    tasks = check_arguments("snapshot", snapshot, streaming, starting, on_change, max_files_per_batch, parallelism, changes)
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
    if snapshot is not None:
        current = metadata.snapshot_by_id(_snapshot_id(opened_table, name, snapshot))
        schema = opened_table.scan(snapshot_id=current.snapshot_id).projection()
    last, sequence = (None, 0) if current is None else (int(current.snapshot_id), int(current.sequence_number or 0))
    base, whole = last, starting == "earliest"
    if isinstance(starting, int):
        first = metadata.snapshot_by_id(starting)
        if first is None:
            raise _no_snapshot(opened_table, name, starting)
        base, sequence = first.parent_snapshot_id, int(first.sequence_number or 1) - 1
    if changes and int(metadata.format_version) < 2:
        hint = "upgrade the table to format version 2, or leave changes=True out"
        got = f"{name}: format version {metadata.format_version}"
        raise SourceError("an Iceberg table of format 1 does not say the order of its snapshots", got=got, hint=hint)
    return IcebergSource(
        name=name,
        catalog=place,
        schema=with_feed(as_schema(columns_of(schema)), changes),
        metadata=trimmed(metadata),
        table_schema=schema.model_dump_json(),
        files=dict(opened_table.io.properties),
        start=_Position(str(metadata.table_uuid), base, sequence, 0 if whole else None, whole),
        finite=not streaming,
        most=max_files_per_batch,
        on_change=on_change,
        parallelism=tasks,
        changes=changes,
        until=None if streaming or whole else (last,),
    )


def _check_snapshot(value: object) -> None:
    fits = (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST) or (
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
