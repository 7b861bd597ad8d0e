"""Define what the versions of a Delta table brought: the files of a snapshot, and the actions of one commit."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa

from krishiv_py.connectors.tables.delta.place import delta_table, without_secrets
from krishiv_py.errors import RAISED, SourceError, shown

if TYPE_CHECKING:
    import pyarrow.fs as pafs

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
    return SourceError(
        "the Delta table cannot be read without Spark's own reader",
        got=f"{shown(path)}: {why}",
        hint="rewrite the table without them (REORG TABLE ... APPLY (PURGE) for deletion vectors), or use from_dataframe",
    )
