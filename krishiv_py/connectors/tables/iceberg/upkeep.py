"""Keeps an Iceberg table small while batches are added: old snapshots expire, manifests and small files are merged.

pyiceberg copies the metadata of a table several times in each commit, so a commit costs more with each snapshot that the table
keeps, and with each manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from krishiv_py.connectors.tables.iceberg.place import iceberg

COMPACTED: Final = "krishiv.compaction"
"""The mark in the summary of a snapshot that only merges files and changes no rows."""
CREATED_WITH: Final[Mapping[str, str]] = {
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Properties of a table that a sink creates, where its user gives no others."""
_SLACK: Final = 10
"""Snapshots expire when there are so many too many, so that most commits have nothing to do."""
_FEWEST: Final = 5
"""So many small files of one partition are worth a rewrite."""


def prepare(table: Any, target_file_size: int) -> None:
    """Set what pyiceberg reads from the properties of this `table` object; the catalog does not get it.

    pyiceberg's own repetition of a commit is off: it would put the same rows on top of whatever was committed meanwhile, the
    same batch of another process too.
    """
    known = table.metadata.properties
    known["commit.retry.num-retries"] = "0"
    known["write.target-file-size-bytes"] = str(target_file_size)
    for name in ("commit.manifest-merge.enabled", "commit.manifest.min-count-to-merge"):
        known.setdefault(name, CREATED_WITH[name])


def expire(table: Any, transaction: Any, note: str, keep: int) -> None:
    """Let the oldest snapshots with this `note` expire, as a part of a transaction, so that about `keep` of them are left."""
    metadata = table.metadata
    protected = {ref.snapshot_id for ref in metadata.refs.values()}
    own = [snapshot.snapshot_id for snapshot in metadata.snapshots if _noted(snapshot, note)]
    old = [each for each in own[: max(0, len(own) - keep)] if each not in protected]
    if len(old) >= _SLACK:
        iceberg("table.update.snapshot").ExpireSnapshots(transaction).by_ids(old).commit()


def _noted(snapshot: Any, note: str) -> bool:
    return snapshot.summary is not None and note in snapshot.summary.additional_properties


def compact(table: Any, note: str, target_file_size: int) -> int:
    """Replace small files of each partition by larger ones, in one commit; return how many files there are less.

    Files with rows that are deleted by position stay as they are. A commit of another writer that comes first makes the
    compaction fail, and nothing has changed.
    """
    prepare(table, target_file_size)
    groups = _small(table.scan().plan_files(), target_file_size)
    if not groups:
        return 0
    io, fewer = table.io, 0
    with table.transaction() as transaction:
        summary = {note: "compaction", COMPACTED: "true"}
        with transaction.update_snapshot(snapshot_properties=summary).overwrite() as change:
            for group in groups:
                rows = _rows(table, group)
                for task in group:
                    change.delete_data_file(task.file)
                fewer += len(group)
                for written in iceberg("io.pyarrow")._dataframe_to_data_files(table.metadata, rows, io):
                    change.append_data_file(written)
                    fewer -= 1
    return fewer


def _small(tasks: Iterable[Any], target_file_size: int) -> list[Sequence[Any]]:
    """Return groups of files that are worth a rewrite, each of one partition and together not above the target."""
    waiting: dict[tuple[int, str], list[Any]] = {}
    found: list[Sequence[Any]] = []
    for task in sorted(tasks, key=lambda task: str(task.file.file_path)):
        if task.delete_files or task.file.file_size_in_bytes >= target_file_size // 2:
            continue
        place = task.file.spec_id, repr(task.file.partition)
        group = waiting.setdefault(place, [])
        if group and sum(each.file.file_size_in_bytes for each in group) + task.file.file_size_in_bytes > target_file_size:
            found.append(group)
            group = waiting[place] = []
        group.append(task)
    return [group for group in [*found, *waiting.values()] if len(group) >= _FEWEST]


def _rows(table: Any, group: Sequence[Any]) -> Any:
    scan = iceberg("io.pyarrow").ArrowScan(table.metadata, table.io, table.schema(), iceberg("expressions").AlwaysTrue())
    return scan.to_table(group)
