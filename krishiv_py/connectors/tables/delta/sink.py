"""A Delta table as a sink: a batch is one version, which says itself which batch it is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.connectors.sink import OutputBatch, OutputName, written_by_another
from krishiv_py.connectors.tables.delta import layout
from krishiv_py.connectors.tables.delta.place import OpenTable, a_place, delta, opened, options, refused, without_secrets
from krishiv_py.connectors.tables.keys import (
    NetChanges,
    OneCommitSink,
    a_key,
    check_key,
    check_log,
    columns,
    compact_every,
    evolve,
    file_size,
    kept,
    log,
    net_changes,
)
from krishiv_py.errors import RAISED, KrishivError, PlanError, SchemaError, shown, unknown_column
from krishiv_py.failures.redaction import shown_settings, shown_text
from krishiv_py.plan.durations import Duration, to_us
from krishiv_py.storage import datasets
from krishiv_py.storage.datasets import Dataset
from krishiv_py.types import storable_hint, type_text

_GONE: Final = "__krishiv_gone"
_LONGEST: Final = 120
"""Bytes of the name of a partition: its folder's name, of 255 bytes at most, has the value too."""
_HOUR_US: Final = 3_600_000_000
_CREATED_WITH: Final[dict[str, str | None]] = {"delta.checkpointInterval": "25"}
"""Whoever opens a table reads the versions after its last checkpoint one by one, and a stream writes many."""


def _vacuum_us(value: Duration | None) -> int | None:
    if value is None:
        return None
    length = to_us(value, "vacuum_after")
    if length < _HOUR_US:
        hint = 'pass "7 days", or how long a reader may take'
        raise PlanError("`vacuum_after` is too short", got=shown(value), then="readers would lose files", hint=hint)
    return length


def _partition(value: object) -> tuple[str, ...]:
    return columns(value, "partition_by")


@attrs.frozen(eq=False)
class DeltaSink(OneCommitSink):
    """Rows into a Delta table, exactly once; needs the extra ``delta`` (docs/tables.md).

    Without a `key` all rows are added. With one, each key has one row: the last result, and none where a change log withdraws
    it. A batch is one version of the table, and the version names query and batch (an application transaction).

    Parameters
    ----------
    path : str or os.PathLike
        Folder or address of the table; it is made if it is missing.
    key : sequence of str
        The columns of which a result has one row: mostly the keys, ``window_start`` and ``window_end``.
    log : bool
        Whether results that change are added as a log, with ``op``. Without it, and without a `key`, they are refused.
    partition_by : sequence of str
        Columns by which a table that is made is partitioned. One that is there keeps its own.
    storage_options : mapping of str
        What delta-rs needs to reach an object store. Secrets are not shown.
    evolve : bool
        Whether columns that the table lacks are added to it when a query starts. They are null in older rows. Without it such
        a table is refused.
    compact_every : int or None
        After how many batches small files are replaced by files of `target_file_size` (``OPTIMIZE``), from 1; None never does.
    target_file_size : int
        Bytes of a file that compacting writes, from 1 MiB.
    vacuum_after : duration or None
        With `compact_every`: files that no version needs are deleted when they are older, at least one hour. Queries that read
        the table must not be further back. None deletes none.

    Raises
    ------
    PlanError
        For paths, columns and options that are none.
    MissingExtraError
        Without deltalake.

    Examples
    --------
    >>> import deltalake
    >>> from krishiv_py import DeltaSink, Session, count
    >>> with Session.in_process() as session:
    ...     folder = session.temporary_folder()
    ...     stream, sender = session.memory_stream("user string, at bigint")
    ...     per_user = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
    ...     query = per_user.start(DeltaSink(folder, key=["user", "window_start"]))
    ...     _ = sender.send([{"user": "ann", "at": 1}, {"user": "bob", "at": 12}])
    ...     query.process_all_available()
    ...     deltalake.DeltaTable(folder).to_pyarrow_table().select(["user", "count"]).to_pylist()
    [{'user': 'ann', 'count': 1}]
    """

    path: str = attrs.field(converter=a_place, repr=shown_text)
    key: tuple[str, ...] = attrs.field(default=(), converter=a_key, kw_only=True)
    log: bool = attrs.field(default=False, kw_only=True, converter=log)
    partition_by: tuple[str, ...] = attrs.field(default=(), converter=_partition, kw_only=True)
    storage_options: Mapping[str, str] = attrs.field(factory=dict, converter=options, repr=shown_settings, kw_only=True)
    evolve: bool = attrs.field(default=False, kw_only=True, converter=evolve)
    compact_every: int | None = attrs.field(default=None, kw_only=True, converter=compact_every)
    target_file_size: int = attrs.field(default=128 << 20, kw_only=True, converter=file_size)
    vacuum_after: int | None = attrs.field(default=None, kw_only=True, converter=_vacuum_us)
    _held: OpenTable = attrs.field(factory=OpenTable, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        check_log("DeltaSink", self.key, self.log)
        if self.vacuum_after is not None and self.compact_every is None:
            hint = "pass compact_every=100 as well"
            raise PlanError("`vacuum_after` needs `compact_every`", got="none", hint=hint)

    @property
    def table_id(self) -> tuple[str, ...]:
        """See :class:`~krishiv_py.connectors.tables.keys.KeyedTable`."""
        return "Delta", self.path.rstrip("/")

    def dataset(self) -> Dataset:
        """Return the name of the folder of the table."""
        return datasets.files_at(self.path)

    def check(self, output: OutputName, schema: pa.Schema) -> None:
        """Refuse columns of the `schema` of an `output` that Delta does not have, and a table that has others.

        Raises
        ------
        ColumnError
            For a key or partition that is not a column.
        SchemaError
            For a type that Delta does not have, and for a table with other columns.
        """
        check_key(self.title, self.key, schema)
        rows = kept(schema, self.key)
        for name in self.partition_by:
            if name not in rows.names:
                raise unknown_column(name, rows.names, "`partition_by` of DeltaSink")
            _check_partition(rows.field(name))
        if set(self.partition_by) >= set(rows.names):
            got = ", ".join(self.partition_by)
            raise SchemaError("all columns are partitions", got=got, hint="leave one out")
        for field in rows:
            _check_type(field)
            if "\0" in field.name:
                hint = "rename it with .alias(...) or .rename(...)"
                raise SchemaError("Delta has no such name", got=shown(field.name), then="delta-rs would cut it", hint=hint)
        lower = [name.lower() for name in rows.names]
        if len(set(lower)) < len(lower):
            got = ", ".join(name for name in rows.names if lower.count(name.lower()) > 1)
            hint = "rename one with .alias(...) or .rename(...)"
            raise SchemaError("Delta tells no upper from lower case", got=got, hint=hint)
        table = opened(self.path, self.storage_options)
        if table is not None:
            if self.evolve:
                table = self._evolved(table, rows)
            self._check_table(table, rows)
        else:
            _check_hidden_times(rows)

    def _evolved(self, table: Any, rows: pa.Schema) -> Any:
        """Add the columns of `rows` that the table lacks; return the table as it is then."""
        has = {field.name for field in table.schema().fields}
        added = [field for field in delta().Schema.from_arrow(rows).fields if field.name not in has]
        if not added:
            return table
        try:
            table.alter.add_columns(added)
        except RAISED as problem:
            raise refused(self.path, problem, self.storage_options) from None
        return opened(self.path, self.storage_options)

    def _check_table(self, table: Any, rows: pa.Schema) -> None:
        there = delta().Schema.from_arrow(rows)
        has = {field.name: field for field in table.schema().fields}
        for field in there.fields:
            if field.name not in has:
                raise self._other(f"no column {field.name}; it has {', '.join(has)}")
            if _plain(has[field.name].type) != _plain(field.type):
                raise self._other(f"{field.name} is {type_text(has[field.name].type)}, and values are {type_text(field.type)}")
        for name, field in has.items():
            if name not in rows.names and not field.nullable:
                raise self._other(f"its column {name} takes no nulls, and rows have no such column")
        if self.key and table.metadata().configuration.get("delta.appendOnly") == "true":
            raise self._other("it takes new rows only (delta.appendOnly), and with `key` rows are replaced")
        parts = tuple(table.metadata().partition_columns)
        for name in parts:
            if name in rows.names:
                _check_partition(rows.field(name))
        if self.partition_by and parts != self.partition_by:
            raise self._other(f"partitions {shown(parts)}, and the sink says {shown(self.partition_by)}")

    def _other(self, got: str) -> SchemaError:
        what = f"the Delta table {self.path} does not take the rows"
        return SchemaError(what, got=got, hint="cast or rename with .select(...), or use another path")

    def last_committed(self, batch: OutputBatch) -> int | None:
        """See :meth:`TransactionalSink.last_committed`."""
        table = self._held.current(self.path, self.storage_options)
        version = None if table is None else table.transaction_version(_app(batch))
        return None if version is None else int(version)

    def commit(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.commit`."""
        rows = layout.laid_out(pa.concat_tables(self._rows))
        net = net_changes(self._rows, self.key, self.title) if self.key else None
        try:
            self._commit(lambda tried: self._try(batch, rows, net, again=tried > 0), delta().exceptions.CommitFailedError)
        except KrishivError:
            raise
        except RAISED as problem:
            self._held.forget()
            raise refused(self.path, problem, self.storage_options) from None
        finally:
            self._rows.clear()
        if self.compact_every is not None and (batch.batch_id + 1) % self.compact_every == 0:
            self._compact()

    def _compact(self) -> None:
        """Merge small files after a batch. The batch is committed, so what goes wrong here is a warning."""
        try:
            table = self._held.current(self.path, self.storage_options)
            table.optimize.compact(target_size=self.target_file_size)
            if self.vacuum_after is not None:
                hours = -(-self.vacuum_after // _HOUR_US)
                table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
        except delta().exceptions.CommitFailedError:
            self._held.forget()  # another writer came first; the next compaction takes these files too
        except RAISED as problem:
            self._held.forget()
            got = without_secrets(problem, self.storage_options)
            warnings.warn(f"small files of the Delta table {self.path} were not merged: {got}", RuntimeWarning, stacklevel=2)

    def _try(self, batch: OutputBatch, rows: pa.Table, net: NetChanges | None, *, again: bool) -> None:
        """Commit on top of the table as it is now, unless the batch is there: delta-rs would not see that it is."""
        if again:
            self._held.forget()
        module, table = delta(), self._held.current(self.path, self.storage_options)
        version = None if table is None else table.transaction_version(_app(batch))
        if version is not None and int(version) >= batch.batch_id:
            raise written_by_another(self.title, version, batch)
        parts = self.partition_by if table is None else table.metadata().partition_columns
        layout.check_rows(rows, parts)
        if net is not None:
            layout.check_parts_of_key(net, parts)
        noted = module.CommitProperties(app_transactions=[module.Transaction(_app(batch), batch.batch_id)])
        if net is None:
            self._append(table, rows, noted)
        elif table is None:
            self._append(table, net.put, noted)
        else:
            self._merge(table, net, noted)

    def _append(self, table: Any, rows: pa.Table, noted: Any) -> None:
        """Add rows; columns that only the table has are null, which delta-rs does not do by itself."""
        there = pa.schema([]) if table is None else pa.schema(table.schema().to_arrow())
        for field in there:
            if field.name not in rows.schema.names:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        delta().write_deltalake(
            self.path if table is None else table,
            rows,
            mode="append",
            partition_by=list(self.partition_by) or None,
            storage_options=(dict(self.storage_options) or None) if table is None else None,
            configuration=_CREATED_WITH if table is None else None,
            commit_properties=noted,
        )

    def _merge(self, table: Any, changed: NetChanges, noted: Any) -> None:
        """Put the last row of each key in place of what is there, and take out keys that are withdrawn, in one version."""
        gone = changed.gone
        nulls = [
            pa.nulls(gone.num_rows, f.type) if f.name not in gone.schema.names else gone[f.name] for f in changed.put.schema
        ]
        removed = pa.table(nulls, schema=changed.put.schema)
        marks = pa.chunked_array([pa.repeat(False, changed.put.num_rows), pa.repeat(True, removed.num_rows)])
        rows = pa.concat_tables([changed.put, removed]).append_column(_GONE, marks)
        names = {_named(name): _named(name, "s") for name in changed.put.schema.names}
        same = " AND ".join(f"({_named(k, 't')} IS NOT DISTINCT FROM {_named(k, 's')})" for k in self.key)
        merge = table.merge(rows, predicate=same, source_alias="s", target_alias="t", commit_properties=noted)
        merge = merge.when_matched_delete(f"s.{_GONE}")
        merge.when_matched_update(names).when_not_matched_insert(names, predicate=f"NOT s.{_GONE}").execute()


def _named(name: str, table: str | None = None) -> str:
    quoted = '"' + name.replace('"', '""') + '"'
    return quoted if table is None else f"{table}.{quoted}"


def _app(batch: OutputBatch) -> str:
    return f"krishiv/{batch.query_id}/{batch.output}"


def _plain(kind: Any) -> str:
    return str(kind.to_json())


def _check_partition(field: pa.Field) -> None:
    got = f"{field.name} is {type_text(field.type)}"
    if not field.name.isprintable() or len(field.name.encode()) > _LONGEST:
        got = f"{shown(field.name)}: {len(field.name.encode())} bytes"
        hint = f"rename it with .alias(...) or .rename(...): at most {_LONGEST} bytes, no line break or tab"
        raise SchemaError("a table cannot be partitioned by it", got=got, then="folders have its name", hint=hint)
    if pa.types.is_nested(field.type):
        raise SchemaError("a table cannot be partitioned by it", got=got, hint="name another")
    if pa.types.is_binary(field.type):
        consequence = "delta-rs would not know its bytes again, and double rows of a key"
        hint = f'write .with_column({field.name!r}, col({field.name!r}).cast("string")) of UTF-8, or name another'
        raise SchemaError("a table cannot be partitioned by it", got=got, then=consequence, hint=hint)
    if pa.types.is_decimal(field.type) and field.type.scale:
        consequence = "delta-rs writes negative fractions so that nobody can read the table again"
        hint = f'write .with_column({field.name!r}, col({field.name!r}).cast("string")), or name another'
        raise SchemaError("a table cannot be partitioned by it", got=got, then=consequence, hint=hint)


def _check_type(field: pa.Field) -> None:
    try:
        if _has_nulls_only(field.type):
            raise ValueError("void")
        delta().Schema.from_arrow(pa.schema([field]))
    except RAISED:
        hint = storable_hint(field.name, field.type)
        raise SchemaError("Delta has no such type", got=f"{field.name} is {type_text(field.type)}", hint=hint) from None


def _has_nulls_only(kind: pa.DataType) -> bool:
    return bool(pa.types.is_null(kind)) or any(_has_nulls_only(kind.field(i).type) for i in range(kind.num_fields))


def _has_local_time(kind: pa.DataType) -> bool:
    """Return whether delta-rs sees a time without a zone in it: it does not look into maps."""
    if pa.types.is_map(kind):
        return False
    return kind == pa.timestamp("us") or any(_has_local_time(kind.field(i).type) for i in range(kind.num_fields))


def _has_hidden_time(kind: pa.DataType) -> bool:
    """Return whether there is one in a map."""
    parts = [kind.field(i).type for i in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return any(_has_local_time(part) or _has_hidden_time(part) for part in (kind.key_type, kind.item_type))
    return any(map(_has_hidden_time, parts))


def _check_hidden_times(rows: pa.Schema) -> None:
    """Refuse a new table of which delta-rs does not note that it has times without a zone: no row could be written."""
    if any(_has_local_time(field.type) for field in rows):
        return
    for field in rows:
        if _has_hidden_time(field.type):
            what, got = "delta-rs makes no table with such a map", f"{field.name} is {type_text(field.type)}"
            hint = "give its times a zone, or have another column of times without one"
            raise SchemaError(what, got=got, hint=hint)
