"""A Delta table as a source: its versions and what they brought, planned as files on the driver."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa

from krishiv_py.connectors.source import JsonValue
from krishiv_py.connectors.tables.delta import layout
from krishiv_py.connectors.tables.delta.place import a_place, delta_table, filesystem, options, without_secrets
from krishiv_py.connectors.tables.source import (
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
from krishiv_py.errors import RAISED, PlanError, SourceError, shown
from krishiv_py.plan.checks import PathLike, Setting, a_number
from krishiv_py.plan.schema import as_schema
from krishiv_py.storage import datasets
from krishiv_py.storage.datasets import Dataset

if TYPE_CHECKING:
    import pyarrow.fs as pafs


_MAPPED: Final = "delta.columnMapping.mode"


@attrs.frozen
class Commit(Change):
    """Holds what one version did.

    Attributes
    ----------
    table : str or None
        Identity of the table, where the version states its metadata.
    columns : tuple of str or None
        The names of its columns and of the fields inside them, as ``column.field``, likewise.
    time_ms : int or None
        When it was made, where it says so.
    """

    table: str | None = None
    columns: tuple[str, ...] | None = None
    time_ms: int | None = None


def _names(type_: Any, path: str = "") -> Iterator[str]:
    """Yield the names inside a type of the log; items of lists, and keys and values of maps have the path of the list or
    map.
    """
    if isinstance(type_, dict):
        for field in type_.get("fields", ()):
            yield path + field["name"]
            yield from _names(field["type"], f"{path}{field['name']}.")
        for inner in ("elementType", "keyType", "valueType"):
            yield from _names(type_.get(inner), path)


def names_in(schema: pa.Schema) -> Iterator[str]:
    """Yield the names of columns, and of the fields inside them, as those of a :class:`Commit`."""
    for field in schema:
        yield field.name
        yield from _inside(field.type, f"{field.name}.")


def _inside(type_: pa.DataType, path: str) -> Iterator[str]:
    if pa.types.is_struct(type_):
        for field in type_:
            yield path + field.name
            yield from _inside(field.type, f"{path}{field.name}.")
    elif pa.types.is_map(type_):
        yield from _inside(type_.key_type, path)
        yield from _inside(type_.item_type, path)
    elif pa.types.is_list(type_):
        yield from _inside(type_.value_type, path)


def table_at(path: str, storage: Mapping[str, str], version: int | None = None) -> Any:
    """Return the table at a version, or the last one.

    Raises
    ------
    SourceError
        When there is no table, no such version, or one that cannot be read here.
    """
    try:
        table = delta_table(path, storage, version)
    except RAISED as problem:
        where = shown(path) if version is None else f"{shown(path)}, version {version}"
        got = f"{where}: {without_secrets(problem, storage)}"
        hint = "see what delta-rs says" if version is None else "use a version that the log still has"
        raise SourceError("the Delta table cannot be read", got=got, hint=hint) from None
    if table is None:
        raise SourceError("there is no Delta table", got=shown(path), hint="check the path, and write the table first")
    if (table.metadata().configuration or {}).get(_MAPPED, "none") != "none":
        raise _unreadable(path, "its columns are mapped (delta.columnMapping.mode)")
    return table


def files_at(table: Any, path: str) -> list[TableFile]:
    """Return the files of a snapshot, the oldest first.

    Raises
    ------
    SourceError
        When rows are taken out by deletion vectors.
    """
    if pa.table(table.deletion_vectors()).num_rows:
        raise _unreadable(path, "rows are deleted by deletion vectors")
    actions = pa.table(table.get_add_actions())
    # without the least and the greatest values, which Python may not have
    known = [name for name in ("path", "size_bytes", "modification_time", "partition") if name in actions.schema.names]
    try:
        rows = actions.select(known).to_pylist()
    except (OverflowError, ValueError) as problem:
        raise _unreadable(path, f"a partition has a time before year 1 or after 9999 ({problem})") from None
    rows.sort(key=lambda row: (row["modification_time"], row["path"]))
    return [_file(path, row["path"], row["size_bytes"], _texts(row.get("partition") or {})) for row in rows]


def commit_of(files: pafs.FileSystem, path: str, version: int, changes: bool = False) -> Commit | None:
    """Return what a version did, with the files of its `changes` if asked; None if the log has no such version.

    Raises
    ------
    SourceError
        When its entry is damaged, or has deletion vectors.
    """
    try:
        with files.open_input_stream(f"_delta_log/{version:020d}.json") as entry:
            text = entry.read()
    except FileNotFoundError:
        return None
    added, gone, feed = list[TableFile](), list[TableFile](), list[TableFile]()
    removed, table, columns, time_ms = 0, None, None, None
    for action in _actions(text, path, version):
        if (new := action.get("add")) is not None and new.get("dataChange", True):
            if new.get("deletionVector"):
                raise _unreadable(path, f"version {version} deletes rows by deletion vectors")
            added.append(_file(path, new["path"], int(new["size"]), new.get("partitionValues") or {}))
        elif (old := action.get("remove")) is not None and old.get("dataChange", True):
            removed += 1
            if changes:
                gone.append(_gone(path, version, old))
        elif changes and (rows := action.get("cdc")) is not None:
            feed.append(_file(path, rows["path"], int(rows["size"]), rows.get("partitionValues") or {}))
        elif (info := action.get("commitInfo")) is not None:
            time_ms = info.get("inCommitTimestamp", info.get("timestamp"))
        elif (data := action.get("metaData")) is not None:
            table = str(data["id"])
            if "schemaString" in data:
                columns = tuple(_names(json.loads(data["schemaString"])))
            if (data.get("configuration") or {}).get(_MAPPED, "none") != "none":
                raise _unreadable(path, "its columns are mapped (delta.columnMapping.mode)")
    return Commit(tuple(added), removed, table, columns, time_ms, gone=tuple(gone), feed=tuple(feed))


def _gone(path: str, version: int, old: Mapping[str, Any]) -> TableFile:
    """Return a file that a version took out.

    Raises
    ------
    SourceError
        When the log does not say enough of it to read its rows.
    """
    if old.get("deletionVector"):
        raise _unreadable(path, f"version {version} takes out a file with deletion vectors")
    parts = old.get("partitionValues")
    if parts is None and not old.get("extendedFileMetadata"):
        raise _unreadable(path, f"version {version} does not say the partition of the file {old['path']} that it takes out")
    return _file(path, old["path"], int(old.get("size") or 0), parts or {})


def _actions(text: bytes, path: str, version: int) -> Iterator[dict[str, Any]]:
    try:
        yield from (json.loads(line) for line in text.splitlines() if line.strip())
    except ValueError as problem:
        got = f"{shown(path)}, version {version}: {problem}"
        hint = "restore the file of the log, or begin behind it with a new checkpoint"
        raise SourceError("an entry of a Delta log is damaged", got=got, hint=hint) from problem


def _file(table: str, path: str, size: int, parts: Mapping[str, str | None]) -> TableFile:
    """Return a file by its path in the log, which is relative to the table and URL-encoded, and its partition values."""
    if "://" in path or path.startswith("/"):
        raise _unreadable(table, f"the file {path} lies outside of it (a shallow clone)")
    return TableFile(size, [path, dict(parts)])


def _texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    """Partition values as the log writes them."""
    return {name: _text(value) for name, value in values.items()}


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    return str(value)


def _unreadable(path: str, why: str) -> SourceError:
    hint = "rewrite the table without them (REORG TABLE ... APPLY (PURGE) for deletion vectors), or use from_dataframe"
    return SourceError("the Delta table cannot be read without Spark's own reader", got=f"{shown(path)}: {why}", hint=hint)


@attrs.define(eq=False)
class _DeltaTable(TableFacts):
    """``empty``: the versions after the first number, up to the second one, bring no rows."""

    files: pafs.FileSystem | None = None
    empty: tuple[int, int] = (0, -1)

    def behind(self, version: int) -> int:
        """Return the last version after which there may be rows."""
        return self.empty[1] if self.empty[0] <= version <= self.empty[1] else version


@attrs.frozen
class _Position(TablePosition):
    table: str
    version: int
    done: int | None
    whole: bool

    @property
    def number(self) -> int:
        """See TablePosition."""
        return self.version


@attrs.frozen(eq=False, kw_only=True)
class DeltaSource(SnapshotSource[_Position]):
    """Made by ``session.read_delta`` and :func:`krishiv_py.connectors.delta_source`.

    Attributes
    ----------
    path : str
        Folder or address of the table.
    columns_at : int
        The version whose columns the source has.
    """

    path: str
    columns_at: int
    storage: Mapping[str, str] = attrs.field(repr=False)
    until: int | None = None
    _known: _DeltaTable = attrs.field(factory=_DeltaTable, repr=False)

    _format = "a Delta"
    _unit = "version"

    def _called(self) -> str:
        return shown(self.path)

    def _passed(self, begin: _Position, end: _Position) -> None:
        self._known.empty = begin.version, end.version

    def _later(self, position: _Position) -> Iterator[_Position]:
        version = self._known.behind(position.version)
        once = self.finite and self.until is None
        while not once and (self.until is None or version < self.until) and self._is_there(version + 1):
            version += 1
            yield _Position(self.start.table, version, 0, whole=False)

    def _is_there(self, version: int) -> bool:
        """Return whether the log has a version; one that lacks while there are later ones is an error."""
        if commit_of(self._folder(), self.path, version) is not None:
            return True
        table = table_at(self.path, self.storage)
        if str(table.metadata().id) != self.start.table:
            raise self._another(str(table.metadata().id))
        latest = int(table.version())
        if latest >= version and commit_of(self._folder(), self.path, version) is None:
            raise SourceError(
                "versions of a Delta table are gone",
                got=f"{self._called()} is at {latest}, and the log has no version {version}, which is next",
                then="their rows are lost to this query",
                hint="keep the log for longer (delta.logRetentionDuration), and begin with a new checkpoint",
            )
        if latest < version - 1:
            raise self._shorter(version - 1, latest)
        return False

    def _whole_table(self, position: _Position) -> list[TableFile]:
        return files_at(table_at(self.path, self.storage, position.version), self.path)

    def _change(self, position: _Position) -> Commit:
        commit = commit_of(self._folder(), self.path, position.version, self.changes)
        if commit is None:
            raise self._shorter(position.version, position.version - 1)
        if commit.table is not None and commit.table != self.start.table:
            raise self._another(commit.table)
        # versions before the source was made may not have had all columns yet
        if commit.columns is not None and position.version > self.columns_at:
            there = {name.lower() for name in commit.columns}
            if missing := [name for name in names_in(self.columns) if name.lower() not in there]:
                raise self._narrower(missing, f", in version {position.version}")
        return commit

    def _folder(self) -> pafs.FileSystem:
        if self._known.files is None:
            self._known.files = filesystem(self.path, self.storage)
        return self._known.files

    def _shorter(self, version: int, latest: int) -> SourceError:
        return SourceError(
            "a Delta table has fewer versions than were read of it",
            got=f"{self._called()}: version {version} was read, and it ends at {latest}",
            then="it was restored from an older copy, and nobody knows which rows were read",
            hint="begin with a new checkpoint",
        )

    def _commit(self, position: _Position) -> tuple[int, int]:
        commit = commit_of(self._folder(), self.path, position.version)
        time_ms = None if commit is None else commit.time_ms
        if time_ms is None:  # the log no longer has the version, or another writer says nothing
            time_ms = table_at(self.path, self.storage).metadata().created_time
        return position.version, int(time_ms or 0) * 1_000

    def _rows(self, file: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        assert isinstance(file, list)
        name, parts = file
        assert isinstance(name, str) and isinstance(parts, dict)
        wanted = pa.schema([self.schema.field(column) for column in columns])
        yield from layout.rows_of(self.path, self.storage, name, parts, wanted)

    def datasets(self) -> tuple[Dataset, ...]:
        """Return the folder of the table."""
        return (datasets.files_at(self.path),)

    def until_now(self) -> DeltaSource:
        """Up to the version there is now, or to the one that it ends with."""
        if self.until is not None:
            return self
        return attrs.evolve(self, until=int(table_at(self.path, self.storage).version()))


def delta_source(
    path: PathLike,
    *,
    streaming: bool = False,
    version: int | None = None,
    starting: TablePlace = "earliest",
    max_files_per_batch: int | None = None,
    on_change: OnChange = "fail",
    changes: bool = False,
    parallelism: int | None = None,
    storage_options: Mapping[str, Setting] | None = None,
) -> DeltaSource:
    """Return a Delta table as a :class:`~krishiv_py.connectors.Source`; :meth:`krishiv_py.Session.read_delta` has the
    parameters.

    For the test driver: ``krishiv_py.testing.micro_batches(delta_source(...))``.

    Raises
    ------
    PlanError
        For arguments that mean nothing or do not go together.
    SchemaError
        For a column of a type that the library does not have.
    SourceError
        When there is no table, no such version, or one that cannot be read without Spark's own reader.
    MissingExtraError
        When deltalake is not installed.

    Examples
    --------
    >>> import tempfile
    >>> import deltalake
    >>> import pyarrow as pa
    >>> from krishiv_py.connectors import delta_source
    >>> from krishiv_py.testing import micro_batches
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     deltalake.write_deltalake(folder, pa.table({"user": ["ann", "bob"]}))
    ...     [batch.to_pylist() for batch in micro_batches(delta_source(folder))]
    [[{'user': 'ann'}, {'user': 'bob'}]]
    """
    place, storage = a_place(path), options(storage_options or {})
    if version is not None:
        a_number(version, "version", 0, "pass a version of the table, from 0", most=MOST)
    tasks = check_arguments("version", version, streaming, starting, on_change, max_files_per_batch, parallelism, changes)
    table = table_at(place, storage, version)
    latest = int(table.version())
    if isinstance(starting, int) and starting > latest + 1:
        hint = f'use at most {latest + 1}, or "latest"'
        raise PlanError("`starting` lies after the last version", got=f"{starting}, and the table is at {latest}", hint=hint)
    base, whole = starting - 1 if isinstance(starting, int) else latest, starting == "earliest"
    return DeltaSource(
        path=place,
        schema=with_feed(as_schema(pa.schema(table.schema().to_arrow())), changes),
        columns_at=latest,
        start=_Position(str(table.metadata().id), base, 0 if whole else None, whole),
        finite=not streaming,
        most=max_files_per_batch,
        on_change=on_change,
        parallelism=tasks,
        storage=storage,
        changes=changes,
        until=None if streaming or whole else latest,
    )
