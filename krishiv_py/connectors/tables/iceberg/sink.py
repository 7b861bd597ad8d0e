"""An Iceberg table as a sink: a batch is one snapshot, whose summary says which batch it is."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.connectors import values as exact
from krishiv_py.connectors.sink import OutputBatch, OutputName, written_by_another
from krishiv_py.connectors.tables.iceberg import place, snapshots
from krishiv_py.connectors.tables.iceberg.place import a_catalog, a_table, iceberg, opened, properties, without_secrets
from krishiv_py.connectors.tables.keys import (
    NetChanges,
    OneCommitSink,
    a_key,
    check_key,
    check_log,
    compact_every,
    evolve,
    file_size,
    kept,
    log,
    net_changes,
    often,
)
from krishiv_py.connectors.tables.keys import create as a_create
from krishiv_py.errors import RAISED, KrishivError, OperatorError, PlanError, SchemaError, require_extra, shown
from krishiv_py.failures.redaction import shown_settings
from krishiv_py.storage.datasets import Dataset
from krishiv_py.types import storable_hint, type_text

_NOTE: Final = "krishiv.batch"


def _kept_snapshots(value: object) -> int | None:
    return often(value, "keep_snapshots")


@attrs.frozen(eq=False)
class IcebergSink(OneCommitSink):
    """Rows into an Iceberg table, exactly once; needs the extra ``iceberg`` (docs/tables.md).

    Without a `key` all rows are added. With one, each key has one row: the last result, and none where a change log withdraws
    it. A batch is one commit to the catalog. The summary of its snapshot and a property of the table note query and batch, so
    that a batch is recognised also after snapshots expire.

    Parameters
    ----------
    table : str
        Namespace and name, such as ``reports.results``.
    catalog : str or mapping of str
        The name of a catalog in ``~/.pyiceberg.yaml``, or its properties: ``{"type": "sql", "uri": ..., "warehouse": ...}``.
        Secrets are not shown.
    key : sequence of str
        The columns of which a result has one row: mostly the keys, ``window_start`` and ``window_end``.
    log : bool
        Whether results that change are added as a log, with ``op``. Without it, and without a `key`, they are refused.
    create : bool
        Whether namespace and table are created if they are missing.
    evolve : bool
        Whether columns that the table lacks are added to it when a query starts. They are null in older rows. Without it such
        a table is refused.
    keep_snapshots : int or None
        How many snapshots of this output are kept, from 1; None keeps all, and then each batch costs more than the one before.
        Snapshots of other writers, and those with a tag or a branch, are never expired. Files that only expired snapshots
        needed are removed, unless the table has the property ``gc.enabled=false``.
    compact_every : int or None
        After how many batches small files are replaced by files of `target_file_size`, from 1; None never does.
    target_file_size : int
        Bytes of a file that is written, from 1 MiB.
    properties : mapping of str
        Properties of a table that is created. One that is there keeps its own.

    Raises
    ------
    PlanError
        For a value that is not a name or not a catalog.
    MissingExtraError
        Without pyiceberg.

    Examples
    --------
    >>> from krishiv_py import IcebergSink
    >>> catalog = {"type": "rest", "uri": "http://localhost:8181"}
    >>> IcebergSink("lake.per_user", catalog=catalog, key=["user", "window_start"]).on_repeat
    'skip'
    """

    table: str = attrs.field(converter=a_table)
    catalog: Mapping[str, str] = attrs.field(converter=a_catalog, repr=shown_settings, kw_only=True)
    key: tuple[str, ...] = attrs.field(default=(), converter=a_key, kw_only=True)
    log: bool = attrs.field(default=False, kw_only=True, converter=log)
    create: bool = attrs.field(default=True, kw_only=True, converter=a_create)
    evolve: bool = attrs.field(default=False, kw_only=True, converter=evolve)
    keep_snapshots: int | None = attrs.field(default=20, kw_only=True, converter=_kept_snapshots)
    compact_every: int | None = attrs.field(default=None, kw_only=True, converter=compact_every)
    target_file_size: int = attrs.field(default=128 << 20, kw_only=True, converter=file_size)
    properties: Mapping[str, str] = attrs.field(factory=dict, converter=properties, repr=shown_settings, kw_only=True)

    def __attrs_post_init__(self) -> None:
        check_log("IcebergSink", self.key, self.log)

    @property
    def table_id(self) -> tuple[str, ...]:
        """See :class:`~krishiv_py.connectors.tables.keys.KeyedTable`."""
        where = (self.catalog.get(name, "") for name in ("name", "type", "uri", "warehouse"))
        return "Iceberg", *where, self.table

    def dataset(self) -> Dataset:
        """Return the name of the table."""
        return place.dataset(self.catalog, self.table)

    def check(self, output: OutputName, schema: pa.Schema) -> None:
        """Make the table if it is missing; refuse one that does not take rows of this `schema` of an `output`.

        Raises
        ------
        ColumnError
            For a key that is not a column.
        SchemaError
            For a type that Iceberg does not have, and for a table with other columns.
        PlanError
            When there is no such table, and none is to be made.
        OperatorError
            When the catalog does not answer.
        MissingExtraError
            For a table with partitions by day, bucket and so on, without pyiceberg-core.
        """
        check_key(self.title, self.key, schema)
        rows = kept(schema, self.key)
        for field in rows:
            _check_type(field)
        _check_names(self.key)
        try:
            catalog = opened(self.catalog)
            if self.create:
                catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
                created_with = {**snapshots.CREATED_WITH, **self.properties}
                catalog.create_table_if_not_exists(self.table, schema=rows, properties=created_with)
            table = catalog.load_table(self.table)
            if self.evolve:
                table = self._evolved(table, _written(rows))
            there, parts = table.schema().as_arrow(), table.spec().fields
        except iceberg("exceptions").NoSuchTableError:
            hint = "create it, or leave create=True"
            raise PlanError("there is no such Iceberg table", got=self.table, hint=hint) from None
        except RAISED as problem:
            raise self._refused(problem) from None
        if not all(str(part.transform) in ("identity", "void") for part in parts):
            require_extra("partitions of Iceberg", ("pyiceberg_core",), "iceberg", "no row could be written")
        self._check_columns(there, _written(rows))

    def _evolved(self, table: Any, rows: pa.Schema) -> Any:
        """Add the columns of `rows` that the table lacks; return the table as it is then."""
        there = table.schema().as_arrow().names
        added = [field for field in rows if field.name not in there]
        if not added:
            return table
        convert = iceberg("io.pyarrow").visit_pyarrow
        with table.update_schema() as change:
            for field in added:
                kind = convert(pa.schema([field]), iceberg("io.pyarrow")._ConvertToIcebergWithoutIDs()).fields[0].field_type
                change.add_column((field.name,), kind)
        return opened(self.catalog).load_table(self.table)

    def _check_columns(self, there: pa.Schema, rows: pa.Schema) -> None:
        for field in rows:
            if field.name not in there.names:
                raise self._other(f"no column {field.name}; it has {', '.join(there.names)}")
            if _form(there.field(field.name).type) != _form(field.type):
                raise self._other(
                    f"{field.name} is {type_text(there.field(field.name).type)}, and values are {type_text(field.type)}"
                )
            if not there.field(field.name).nullable:
                raise self._other(f"its column {field.name} is required, and values may be null")
        for field in there:
            if field.name not in rows.names and not field.nullable:
                raise self._other(f"its column {field.name} is required, and rows have no such column")

    def _other(self, got: str) -> SchemaError:
        what = f"the Iceberg table {self.table} does not take the rows"
        return SchemaError(what, got=got, hint="cast or rename with .select(...), or name another")

    def _refused(self, problem: BaseException) -> OperatorError:
        hint = "see that the catalog can be reached, and start the query again: the batch is written again, or recognised"
        got = f"table {self.table}: {without_secrets(problem, self.catalog)}"
        return OperatorError("the catalog or table of Iceberg refuses", got=got, then="the batch is not written", hint=hint)

    def last_committed(self, batch: OutputBatch) -> int | None:
        """See :meth:`TransactionalSink.last_committed`."""
        try:
            note_value = opened(self.catalog).load_table(self.table).properties.get(_note(batch))
        except RAISED as problem:
            raise self._refused(problem) from None
        return None if note_value is None else int(note_value)

    def commit(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.commit`."""
        rows = pa.concat_tables(self._rows)
        for name in rows.schema.names:
            exact.check_years(rows[name], name, "Iceberg")
        net = net_changes(self._rows, self.key, self.title) if self.key else None
        try:
            conflict = iceberg("exceptions").CommitFailedException
            self._commit(lambda tried: self._try(batch, rows, net, again=tried > 0), conflict)
        except KrishivError:
            raise
        except RAISED as problem:
            raise self._refused(problem) from None
        finally:
            self._rows.clear()
        if self.compact_every is not None and (batch.batch_id + 1) % self.compact_every == 0:
            self._compact(batch)

    def _compact(self, batch: OutputBatch) -> None:
        """Merge small files after a batch. The batch is committed, so what goes wrong here is a warning."""
        try:
            snapshots.compact(opened(self.catalog).load_table(self.table), _note(batch), self.target_file_size)
        except iceberg("exceptions").CommitFailedException:
            return  # another writer came first; the next compaction takes these files too
        except RAISED as problem:
            got = without_secrets(problem, self.catalog)
            warnings.warn(f"small files of the Iceberg table {self.table} were not merged: {got}", RuntimeWarning, stacklevel=2)

    def _try(self, batch: OutputBatch, rows: pa.Table, net: NetChanges | None, *, again: bool) -> None:
        """Commit on top of the table as it is now, unless the batch is there.

        When another commit came first, the table is loaded again.
        """
        table, note = opened(self.catalog).load_table(self.table), _note(batch)
        committed = table.properties.get(note)
        if again and committed == str(batch.batch_id):
            return  # it was committed, although the catalog said that it was not
        if committed is not None and int(committed) >= batch.batch_id:
            raise written_by_another(self.title, committed, batch)
        snapshots.prepare(table, self.target_file_size)
        noted, expired = {note: str(batch.batch_id)}, list[Any]()
        with table.transaction() as transaction:
            if net is None:
                transaction.append(rows.cast(_written(rows.schema)), snapshot_properties=noted)
            else:
                put = net.put.cast(_written(net.put.schema))
                snapshots.apply(table, transaction, NetChanges(put, net.gone), self.key, noted)
            transaction.set_properties(noted)
            if self.keep_snapshots is not None:
                expired = snapshots.expire(table, transaction, note, self.keep_snapshots)
        if expired:
            self._clean(table, expired)

    def _clean(self, table: Any, expired: Sequence[Any]) -> None:
        """Remove files of expired snapshots. The batch is committed, so what goes wrong here is a warning."""
        try:
            snapshots.clean(table, expired)
        except RAISED as problem:
            got = without_secrets(problem, self.catalog)
            what = f"files of expired snapshots of the Iceberg table {self.table} were not removed"
            warnings.warn(f"{what}: {got}. Hint: remove_orphan_files of Spark or Trino", RuntimeWarning, stacklevel=2)


def _note(batch: OutputBatch) -> str:
    return f"{_NOTE}.{batch.query_id}.{batch.output}"


def _form(kind: pa.DataType) -> str:
    """Return a type as Iceberg has it: whether texts are large, and how items of lists are called, does not count."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{_form(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{_form(kind.key_type)}, {_form(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{f.name}: {_form(f.type)}' for f in kind)}>"
    return str(kind).removeprefix("large_")


def _wide(kind: pa.DataType) -> pa.DataType:
    """Iceberg's smallest whole number has 32 bits."""
    if pa.types.is_list(kind):
        return pa.list_(_wide(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_wide(kind.key_type), _wide(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_wide(f.type)) for f in kind])
    return pa.int32() if pa.types.is_int8(kind) or pa.types.is_int16(kind) else kind


def _written(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(f.name, _wide(f.type)) for f in schema])


def _check_names(key: Sequence[str]) -> None:
    """Refuse a key with a dot in its name: pyiceberg takes it for a field of a struct when it looks for rows."""
    for name in key:
        if "." in name:
            what, hint = "a column of `key` has a dot in its name", "rename it with .alias(...) or .rename(...)"
            raise SchemaError(what, got=shown(name), hint=hint)


def _check_type(field: pa.Field) -> None:
    try:
        if pa.types.is_null(field.type):
            raise ValueError("unknown")
        iceberg("io.pyarrow").visit_pyarrow(pa.schema([field]), iceberg("io.pyarrow")._ConvertToIcebergWithoutIDs())
    except RAISED:
        hint = storable_hint(field.name, field.type)
        raise SchemaError("Iceberg has no such type", got=f"{field.name} is {type_text(field.type)}", hint=hint) from None
