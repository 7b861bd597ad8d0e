"""Define what the snapshots of an Iceberg table brought: the files of a whole snapshot, and what one snapshot changed.

A file is a dict that can be noted as JSON: its path, size and format, the files that delete rows of it, and the values of
its partition, which old files may not hold as columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from krishiv_py.connectors.tables.iceberg.place import iceberg
from krishiv_py.connectors.tables.iceberg.upkeep import COMPACTED


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
