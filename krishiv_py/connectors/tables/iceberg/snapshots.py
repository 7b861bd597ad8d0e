"""Snapshots of an Iceberg table as a sink makes them: changes by key are merged, and old ones expire.

pyiceberg deletes by a condition and rewrites the files that hold such rows. For the changes of a micro-batch a condition for
each key would be as long as the batch, so it is a span of each column of the key, and rows of the span that nothing touches
are written again as they were.

pyiceberg copies the metadata of a table several times in each commit, so a commit costs more with each snapshot that the table
keeps, and with each manifest. So old snapshots expire with the files that only they need, and manifests and small files are
merged.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.tables.changes import Numbers, numbered, one_form
from krishiv_py.connectors.tables.iceberg.place import COMPACTED, iceberg
from krishiv_py.connectors.tables.keys import NetChanges
from krishiv_py.errors import OperatorError

_FEW: Final = 200
"""Up to so many values a condition names each one, and not only the least and the greatest."""


def apply(table: Any, transaction: Any, changed: NetChanges, key: Sequence[str], noted: Mapping[str, str]) -> None:
    """Make the changes a part of a transaction of this `table`; its snapshots have `noted` in their summaries."""
    put, names = changed.put, list(key)
    keys = pa.schema([put.schema.field(name) for name in names])
    touched = pa.concat_tables([put.select(names), changed.gone.select(names).cast(keys)])
    stored = table.scan(row_filter=span(touched), selected_fields=tuple(key)).to_arrow()
    there = one_form(stored.select(names).cast(keys), names)
    hits = there.filter(pa.array(np.isin(*numbered(there, touched))))
    if not hits.num_rows:
        if put.num_rows:
            transaction.append(put, snapshot_properties=dict(noted))
        return
    where = span(hits)
    old = table.scan(row_filter=where).to_arrow()
    old_keys = one_form(old.select(names).cast(keys), names)
    untouched = old.filter(pa.array(~np.isin(*numbered(old_keys, touched))))
    extra = [name for name in old.schema.names if name not in put.schema.names]
    if extra:  # columns that are not ours stay as they are
        places = _places(*numbered(put.select(names), old_keys))
        for name in extra:
            put = put.append_column(old.schema.field(name), old[name].take(places))
    rows = pa.concat_tables([untouched, put.select(old.schema.names).cast(old.schema)])
    before = _rows(table.metadata)
    transaction.overwrite(rows, overwrite_filter=where, snapshot_properties=dict(noted))
    _check(transaction, before, changed.put.num_rows - hits.num_rows)


def _rows(metadata: Any) -> int | None:
    """Return how many rows a table has, as its snapshot says; None where that is not known."""
    snapshot = metadata.current_snapshot()
    summary = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
    known = summary.get("total-records")
    return None if known is None or int(summary.get("total-position-deletes", 0)) else int(known)


def _check(transaction: Any, before: int | None, more: int) -> None:
    """Hold the number of rows against what it must be: what is read and what is deleted go by two filters."""
    after = _rows(transaction.table_metadata)
    if before is not None and after is not None and after != before + more:
        raise OperatorError(
            "an Iceberg table would have another number of rows than it must",
            got=f"{after} instead of {before + more}",
            then="rows would be lost or doubled; nothing was committed",
            hint="report it, with the versions of pyiceberg and pyarrow and the types of the key",
        )


def _places(numbers: Numbers, among: Numbers) -> pa.Array:
    """Return the place of each number in the others; null if it is not among them."""
    order = np.argsort(among, kind="stable")
    position = np.minimum(np.searchsorted(among[order], numbers), len(among) - 1)
    return pa.array(order[position], mask=among[order[position]] != numbers)


def span(keys: pa.Table) -> Any:
    """Return a condition of pyiceberg that all `keys` meet: of each column the values, or the least and the greatest."""
    made = importlib.import_module("pyiceberg.expressions")
    span_filter: Any = made.AlwaysTrue()
    for name in keys.schema.names:
        span_filter = made.And(span_filter, _column(made, name, keys[name].combine_chunks()))
    return span_filter


def _column(made: Any, name: str, values: pa.Array) -> Any:
    if pa.types.is_floating(values.type):
        return made.AlwaysTrue()  # Arrow passes over a NaN whose row group has other numbers, and pyiceberg would delete it
    condition: Any = made.IsNull(name) if values.null_count else made.AlwaysFalse()
    plain = _comparable(pc.unique(values.drop_null()))
    if 0 < len(plain) <= _FEW:
        return made.Or(condition, made.In(name, plain.to_pylist()))
    if len(plain):
        ends = plain.take(pc.sort_indices(plain)).take(pa.array([0, len(plain) - 1])).to_pylist()
        condition = made.Or(condition, made.And(made.GreaterThanOrEqual(name, ends[0]), made.LessThanOrEqual(name, ends[1])))
    return condition


def _comparable(values: pa.Array) -> pa.Array:
    """Times and days as whole numbers: Python has none before year 1 or after 9999."""
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())
    return values.cast(pa.int32()) if pa.types.is_date32(values.type) else values


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


def expire(table: Any, transaction: Any, note: str, keep: int) -> list[Any]:
    """Let the oldest snapshots with this `note` expire, as a part of a transaction, so that about `keep` of them are left.

    Return the snapshots that expire.
    """
    metadata = table.metadata
    protected = {ref.snapshot_id for ref in metadata.refs.values()}
    own = [snapshot for snapshot in metadata.snapshots if _noted(snapshot, note)]
    old = [each for each in own[: max(0, len(own) - keep)] if each.snapshot_id not in protected]
    if len(old) < _SLACK:
        return []
    iceberg("table.update.snapshot").ExpireSnapshots(transaction).by_ids([each.snapshot_id for each in old]).commit()
    return old


def clean(table: Any, expired: Sequence[Any]) -> int:
    """Remove the files that only `expired` snapshots needed, once they are expired; return how many.

    Manifests go when no snapshot of the table lists them. A data file goes when an expired snapshot took it out of the table
    and all snapshots that are left came after that one, in one line. So what a branch, a tag or an older snapshot of another
    writer may need stays, and so does everything in a table with ``gc.enabled=false``.
    """
    metadata, io = table.metadata, table.io
    if str(metadata.properties.get("gc.enabled", "true")).lower() == "false":
        return 0
    needed = {manifest.manifest_path for snapshot in metadata.snapshots for manifest in snapshot.manifests(io)}
    taken_out, manifests, lists = set[str](), set[str](), set[str]()
    first = min((snapshot.sequence_number or 0 for snapshot in metadata.snapshots), default=0) if _in_one_line(metadata) else 0
    for snapshot in expired:
        for manifest in snapshot.manifests(io):
            if manifest.added_snapshot_id == snapshot.snapshot_id and (snapshot.sequence_number or first) < first:
                taken_out |= _taken_out(io, manifest)
            if manifest.manifest_path not in needed:
                manifests.add(manifest.manifest_path)
        if snapshot.manifest_list:
            lists.add(snapshot.manifest_list)
    gone = 0
    for path in (*sorted(taken_out), *sorted(manifests), *sorted(lists)):
        with contextlib.suppress(FileNotFoundError):
            io.delete(path)
            gone += 1
    return gone


def _taken_out(io: Any, manifest: Any) -> set[str]:
    """Return the data files that a manifest takes out of the table."""
    if manifest.deleted_files_count == 0:
        return set()
    deleted = iceberg("manifest").ManifestEntryStatus.DELETED
    entries = manifest.fetch_manifest_entry(io, discard_deleted=False)
    return {e.data_file.file_path for e in entries if e.status == deleted and e.snapshot_id == manifest.added_snapshot_id}


def _in_one_line(metadata: Any) -> bool:
    """Return True if all snapshots of a table lead to the current one, and no tag or other branch names one."""
    left, current = {snapshot.snapshot_id for snapshot in metadata.snapshots}, metadata.current_snapshot()
    if any(name != "main" for name in metadata.refs):
        return False
    while current is not None:
        left.discard(current.snapshot_id)
        parent = current.parent_snapshot_id
        current = None if parent is None else metadata.snapshot_by_id(parent)
    return not left


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
                rows = _rows_of(table, group)
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
    small: list[Sequence[Any]] = []
    for task in sorted(tasks, key=lambda task: str(task.file.file_path)):
        if task.delete_files or task.file.file_size_in_bytes >= target_file_size // 2:
            continue
        place = task.file.spec_id, repr(task.file.partition)
        group = waiting.setdefault(place, [])
        if group and sum(each.file.file_size_in_bytes for each in group) + task.file.file_size_in_bytes > target_file_size:
            small.append(group)
            group = waiting[place] = []
        group.append(task)
    return [group for group in [*small, *waiting.values()] if len(group) >= _FEWEST]


def _rows_of(table: Any, group: Sequence[Any]) -> Any:
    scan = iceberg("io.pyarrow").ArrowScan(table.metadata, table.io, table.schema(), iceberg("expressions").AlwaysTrue())
    return scan.to_table(group)
