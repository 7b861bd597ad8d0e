"""A Delta table as a source: its versions and what they brought, planned as files on the driver."""

from __future__ import annotations

import datetime as dt
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors.ranges import in_runs
from krishiv_py.connectors.source import JsonValue, Planned, Source
from krishiv_py.connectors.tables.delta.place import a_place, delta_table, filesystem, options, without_secrets
from krishiv_py.errors import RAISED, PlanError, SourceError, shown
from krishiv_py.lazy import lazy
from krishiv_py.plan.checks import PathLike, Setting, a_number, a_switch, apart, one_of
from krishiv_py.plan.schema import as_schema
from krishiv_py.storage import datasets
from krishiv_py.storage.datasets import Dataset

if TYPE_CHECKING:
    import pyarrow.fs as pafs

    from krishiv_py.connectors.tables.delta import layout
else:
    layout = lazy("krishiv_py.connectors.tables.delta.layout")


_MAPPED: Final = "delta.columnMapping.mode"


@attrs.frozen
class DataFile:
    """A file of a table.

    Attributes
    ----------
    path : str
        As the log has it, relative to the table and URL-encoded.
    size : int
        Bytes.
    parts : mapping of str to str or None
        The values of the partition columns, as texts.
    """

    path: str
    size: int
    parts: Mapping[str, str | None]


@attrs.frozen
class Commit:
    """Holds what one version did.

    Attributes
    ----------
    added : tuple of DataFile
        Files with new rows, in the order of the log.
    removed : int
        How many files with rows it took out; compacting a table takes out none.
    table : str or None
        Identity of the table, where the version states its metadata.
    columns : tuple of str or None
        The names of its columns and of the fields inside them, as ``column.field``, likewise.
    """

    added: tuple[DataFile, ...]
    removed: int
    table: str | None
    columns: tuple[str, ...] | None = None


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


def files_at(table: Any, path: str) -> list[DataFile]:
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


def commit_of(files: pafs.FileSystem, path: str, version: int) -> Commit | None:
    """Return what a version did; None if the log has no such version.

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
    added, removed, table, columns = [], 0, None, None
    for action in _actions(text, path, version):
        if (new := action.get("add")) is not None and new.get("dataChange", True):
            if new.get("deletionVector"):
                raise _unreadable(path, f"version {version} deletes rows by deletion vectors")
            added.append(_file(path, new["path"], int(new["size"]), new.get("partitionValues") or {}))
        elif (gone := action.get("remove")) is not None and gone.get("dataChange", True):
            removed += 1
        elif (data := action.get("metaData")) is not None:
            table = str(data["id"])
            if "schemaString" in data:
                columns = tuple(_names(json.loads(data["schemaString"])))
            if (data.get("configuration") or {}).get(_MAPPED, "none") != "none":
                raise _unreadable(path, "its columns are mapped (delta.columnMapping.mode)")
    return Commit(tuple(added), removed, table, columns)


def _actions(text: bytes, path: str, version: int) -> Iterator[dict[str, Any]]:
    try:
        yield from (json.loads(line) for line in text.splitlines() if line.strip())
    except ValueError as problem:
        got = f"{shown(path)}, version {version}: {problem}"
        hint = "restore the file of the log, or begin behind it with a new checkpoint"
        raise SourceError("an entry of a Delta log is damaged", got=got, hint=hint) from problem


def _file(table: str, path: str, size: int, parts: Mapping[str, str | None]) -> DataFile:
    if "://" in path or path.startswith("/"):
        raise _unreadable(table, f"the file {path} lies outside of it (a shallow clone)")
    return DataFile(path, size, parts)


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


OnChange: TypeAlias = Literal["fail", "skip"]


@attrs.define(eq=False)
class _Known:
    """Holds what the driver knows of the table for a while. It stays behind when a source is sent to a task.

    ``empty``: the versions after the first number, up to the second one, bring no rows.
    """

    files: pafs.FileSystem | None = None
    snapshot: tuple[int, list[DataFile]] | None = None
    empty: tuple[int, int] = (0, -1)

    def behind(self, version: int) -> int:
        """Return the last version after which there may be rows."""
        return self.empty[1] if self.empty[0] <= version <= self.empty[1] else version

    def __reduce__(self) -> tuple[type[_Known], tuple[()]]:
        return _Known, ()


@attrs.frozen
class _Place:
    """Says where the source is: `done` files of version `version` are planned.

    ``whole`` says that the files are those of the whole table at that version, and not those the version added; ``done`` is
    None when the version is behind.
    """

    table: str
    version: int
    done: int | None
    whole: bool


@attrs.frozen(eq=False)
class DeltaSource(Source):
    """Made by ``session.read_delta`` and :func:`krishiv_py.connectors.delta_source`.

    Attributes
    ----------
    path : str
        Folder or address of the table.
    schema : pyarrow.Schema
        The columns of the table when the source was made.
    columns_at : int
        The version whose columns these are.
    base : int
        The version of the whole table, or the one before the first.
    """

    path: str
    schema: pa.Schema
    table: str
    columns_at: int
    base: int
    whole: bool
    finite: bool
    most: int | None
    on_change: OnChange
    parallelism: int
    storage: Mapping[str, str] = attrs.field(repr=False)
    poll_seconds: float = 1.0
    until: int | None = None
    _known: _Known = attrs.field(factory=_Known, repr=False)

    def plan(self, last: JsonValue) -> Planned | None:
        """Return the next files. The first batch notes where the source begins, even if it has none."""
        if last is None:
            start = _Place(self.table, self.base, 0 if self.whole else None, self.whole)
            return self._batch(start) or self._planned(start, [])
        assert isinstance(last, dict)
        place: dict[str, Any] = last
        start = _Place(**place)
        if start.table != self.table:
            raise self._another(self.table)
        return self._batch(start)

    def _batch(self, place: _Place) -> Planned | None:
        """Return the next files after a place, at most so many; None if there are none."""
        files: list[DataFile] = []
        begin = place.version
        while self.most is None or len(files) < self.most:
            if place.done is None:
                following = self._next_version(self._known.behind(place.version))
                if following is None:
                    break
                place = following
            here = self._files(place)
            assert place.done is not None
            taken = here[place.done :] if self.most is None else here[place.done : place.done + self.most - len(files)]
            files += taken
            done = place.done + len(taken)
            place = attrs.evolve(place, done=None if done >= len(here) else done)
            if not files:
                self._known.empty = begin, place.version
        return self._planned(place, files) if files else None

    def _next_version(self, version: int) -> _Place | None:
        if self.finite or (self.until is not None and version >= self.until):
            return None
        commit = commit_of(self._folder(), self.path, version + 1)
        if commit is None:
            table = table_at(self.path, self.storage)
            if str(table.metadata().id) != self.table:
                raise self._another(str(table.metadata().id))
            latest = int(table.version())
            if latest > version and commit_of(self._folder(), self.path, version + 1) is None:
                raise SourceError(
                    "versions of a Delta table are gone",
                    got=f"{shown(self.path)} is at {latest}, and the log has no version {version + 1}, which is next",
                    then="their rows are lost to this query",
                    hint="keep the log for longer (delta.logRetentionDuration), and begin with a new checkpoint",
                )
            if latest < version:
                raise self._shorter(version, latest)
            return None
        return _Place(self.table, version + 1, 0, whole=False)

    def _files(self, place: _Place) -> Sequence[DataFile]:
        if place.whole:
            if self._known.snapshot is None or self._known.snapshot[0] != place.version:
                self._known.snapshot = place.version, files_at(table_at(self.path, self.storage, place.version), self.path)
            return self._known.snapshot[1]
        commit = commit_of(self._folder(), self.path, place.version)
        if commit is None:
            raise self._shorter(place.version, place.version - 1)
        if commit.table is not None and commit.table != self.table:
            raise self._another(commit.table)
        # versions before the source was made may not have had all columns yet
        if (
            commit.columns is not None
            and place.version > self.columns_at
            and (missing := [name for name in names_in(self.schema) if name.lower() not in map(str.lower, commit.columns)])
        ):
            raise self._narrower(place.version, missing)
        return () if commit.removed and self._skipped(commit, place.version) else commit.added

    def _skipped(self, commit: Commit, version: int) -> bool:
        """Return whether a version that changed rows is passed over; it is an error otherwise."""
        got = f"{shown(self.path)}: version {version} takes {commit.removed} files out and adds {len(commit.added)}"
        if self.on_change == "fail":
            then = "a stream cannot take back what it has read"
            hint = 'pass on_change="skip" to pass over such versions, or begin with a new checkpoint'
            raise SourceError("rows of a Delta table were changed or deleted", got=got, then=then, hint=hint)
        warnings.warn(f"a version that changed rows is passed over: {got}", RuntimeWarning, stacklevel=2)
        return True

    def _planned(self, place: _Place, files: Sequence[DataFile]) -> Planned:
        position: dict[str, Any] = attrs.asdict(place)
        groups = in_runs(files, self.parallelism, lambda file: file.size)
        return Planned(position, [[[file.path, dict(file.parts)] for file in group] for group in groups])

    def _folder(self) -> pafs.FileSystem:
        if self._known.files is None:
            self._known.files = filesystem(self.path, self.storage)
        return self._known.files

    def _another(self, table_id: str) -> SourceError:
        got = f"{shown(self.path)}: its id is {table_id} now"
        return SourceError("it is another Delta table than the one that was read", got=got, hint="begin with a new checkpoint")

    def _narrower(self, version: int, missing: Sequence[str]) -> SourceError:
        got = f"{shown(self.path)}: {', '.join(missing)}, in version {version}"
        hint = "begin with a new checkpoint and the columns there are now"
        return SourceError("a Delta table has lost columns", got=got, then="they would be null from there on", hint=hint)

    def _shorter(self, version: int, latest: int) -> SourceError:
        return SourceError(
            "a Delta table has fewer versions than were read of it",
            got=f"{shown(self.path)}: version {version} was read, and it ends at {latest}",
            then="it was restored from an older copy, and nobody knows which rows were read",
            hint="begin with a new checkpoint",
        )

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files of a range."""
        assert isinstance(planned, list)
        wanted = pa.schema([self.schema.field(name) for name in columns])
        for entry in planned:
            assert isinstance(entry, list)
            name, parts = entry
            assert isinstance(name, str) and isinstance(parts, dict)
            yield from layout.rows_of(self.path, self.storage, name, parts, wanted)

    def datasets(self) -> tuple[Dataset, ...]:
        """Return the folder of the table."""
        return (datasets.files_at(self.path),)

    def until_now(self) -> DeltaSource:
        """Up to the version there is now, or to the one that it ends with."""
        if self.until is not None:
            return self
        return attrs.evolve(self, until=int(table_at(self.path, self.storage).version()))


DeltaPlace: TypeAlias = "Literal['earliest', 'latest'] | int"
_MOST: Final = (1 << 63) - 1


def delta_source(
    path: PathLike,
    *,
    streaming: bool = False,
    version: int | None = None,
    starting: DeltaPlace = "earliest",
    max_files_per_batch: int | None = None,
    on_change: OnChange = "fail",
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
    a_switch(streaming, "streaming")
    one_of(on_change, "on_change", ("fail", "skip"))
    if max_files_per_batch is not None:
        a_number(max_files_per_batch, "max_files_per_batch", 1, "use 1 or more, or leave it out for all files that are there")
    if parallelism is not None:
        a_number(parallelism, "parallelism", 1, "state how many tasks read at once, from 1", most=10_000)
    if version is not None:
        a_number(version, "version", 0, "pass a version of the table, from 0", most=_MOST)
    begin = _starting(starting)
    if streaming and version is not None:
        raise apart("version", "streaming=True", "use starting= to say with which version a stream begins")
    if not streaming and begin != "earliest":
        raise apart("starting", "a table that is read once", "use version=, or streaming=True")
    table = table_at(place, storage, version)
    latest = int(table.version())
    if isinstance(begin, int) and begin > latest + 1:
        hint = f'use at most {latest + 1}, or "latest"'
        raise PlanError("`starting` lies after the last version", got=f"{begin}, and the table is at {latest}", hint=hint)
    return DeltaSource(
        path=place,
        schema=as_schema(pa.schema(table.schema().to_arrow())),
        table=str(table.metadata().id),
        columns_at=latest,
        base=begin - 1 if isinstance(begin, int) else latest,
        whole=begin == "earliest",
        finite=not streaming,
        most=max_files_per_batch,
        on_change=on_change,
        parallelism=parallelism or os.cpu_count() or 1,
        storage=storage,
    )


def _starting(value: object) -> DeltaPlace:
    if value == "earliest" or value == "latest":
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        hint = 'use "earliest" for the whole table and what follows, "latest", or a version from 0'
        raise PlanError("`starting` says nothing", got=shown(value), hint=hint)
    return value
