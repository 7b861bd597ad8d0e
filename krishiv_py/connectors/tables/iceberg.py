"""An Iceberg table as a sink: a batch is one snapshot, whose summary says which batch it is."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa

from krishiv_py.connectors.sink import OutputBatch, OutputName
from krishiv_py.connectors.tables.delta.place import options
from krishiv_py.connectors.tables.keys import a_key, check_key, kept
from krishiv_py.connectors.tables.keys import create as told_create
from krishiv_py.connectors.transactional import TransactionalSink, written_by_another
from krishiv_py.errors import (
    RAISED,
    KrishivError,
    OperatorError,
    PlanError,
    SchemaError,
    message,
    require_extra,
    shown,
    told,
)
from krishiv_py.lazy import lazy
from krishiv_py.plan.checks import a_text
from krishiv_py.redaction import HIDDEN, is_secret, redacted, shown_settings

if TYPE_CHECKING:
    from krishiv_py.connectors import years
    from krishiv_py.connectors.tables import changes, icebergmerge
else:  # with the first batch: they need Arrow's functions
    changes = lazy("krishiv_py.connectors.tables.changes")
    icebergmerge = lazy("krishiv_py.connectors.tables.icebergmerge")
    years = lazy("krishiv_py.connectors.years")

_NOTE: Final = "krishiv.batch"
_TRIES: Final = 8
"""How often a batch is tried while others commit to the table."""


def iceberg(name: str) -> Any:
    """A module of pyiceberg.

    Raises
    ------
    MissingExtraError
        When it is not installed.
    """
    require_extra("Iceberg", ("pyiceberg",), "iceberg", "no Iceberg table can be written")
    import importlib

    return importlib.import_module(f"pyiceberg.{name}")


def _name(value: object) -> str:
    hint = 'pass namespace and name: "reports.results"'
    text = a_text(value, "table", hint)
    if text.count(".") < 1 or not all(text.split(".")):
        raise PlanError(message("`table` has no namespace", repr(text), "the catalog would not find it", hint))
    iceberg("catalog")
    return text


def _catalog(value: object) -> Mapping[str, str]:
    if isinstance(value, str):
        return {"name": a_text(value, "catalog", "pass the name of a catalog of ~/.pyiceberg.yaml, or its properties")}
    if not isinstance(value, Mapping):
        hint = 'pass {"type": "sql", "uri": ..., "warehouse": ...}, or the name of a catalog of ~/.pyiceberg.yaml'
        raise PlanError(message("`catalog` is no catalog", type(value).__name__, "the table would not be found", hint))
    return options(value)


def _shown(value: Mapping[str, str]) -> str:
    return shown_settings(value.items())


@attrs.frozen(eq=False)
class IcebergSink(TransactionalSink):
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
    create : bool
        Whether namespace and table are made if they are missing.

    Raises
    ------
    PlanError
        For what is no name or no catalog.
    MissingExtraError
        Without pyiceberg.
    """

    table: str = attrs.field(converter=_name)
    catalog: Mapping[str, str] = attrs.field(converter=_catalog, repr=_shown, kw_only=True)
    key: tuple[str, ...] = attrs.field(default=(), converter=a_key, kw_only=True)
    create: bool = attrs.field(default=True, kw_only=True, converter=told_create)
    _rows: list[pa.Table] = attrs.field(factory=list, init=False, repr=False)

    @property
    def table_id(self) -> tuple[str, ...]:
        """See :class:`~krishiv_py.connectors.tables.keys.KeyedTable`."""
        where = (self.catalog.get(name, "") for name in ("name", "type", "uri", "warehouse"))
        return "Iceberg", *where, self.table

    def _opened(self) -> Any:
        module = iceberg("catalog")
        given = dict(self.catalog)
        return module.load_catalog(given.pop("name", "default"), **given)

    def check(self, output: OutputName, schema: pa.Schema) -> None:
        """Make the table if it is missing; refuse one that does not take rows of this `schema` of an `output`.

        Raises
        ------
        ColumnError
            For a key that is no column.
        SchemaError
            For a type that Iceberg has not, and for a table with other columns.
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
            catalog = self._opened()
            if self.create:
                catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
                catalog.create_table_if_not_exists(self.table, schema=rows)
            table = catalog.load_table(self.table)
            there, parts = table.schema().as_arrow(), table.spec().fields
        except iceberg("exceptions").NoSuchTableError:
            hint = "create it, or leave create=True"
            raise PlanError(message("there is no such Iceberg table", self.table, "rows would have no place", hint)) from None
        except RAISED as problem:
            raise self._refused(problem) from None
        if not all(str(part.transform) in ("identity", "void") for part in parts):
            require_extra("partitions of Iceberg", ("pyiceberg_core",), "iceberg", "no row could be written")
        self._check_columns(there, _written(rows))

    def _check_columns(self, there: pa.Schema, rows: pa.Schema) -> None:
        for field in rows:
            if field.name not in there.names:
                raise self._other(f"no column {field.name}; it has {', '.join(there.names)}")
            if _form(there.field(field.name).type) != _form(field.type):
                raise self._other(f"{field.name} is {there.field(field.name).type}, and values are {field.type}")
            if not there.field(field.name).nullable:
                raise self._other(f"its column {field.name} is required, and values may be null")
        for field in there:
            if field.name not in rows.names and not field.nullable:
                raise self._other(f"its column {field.name} is required, and rows have no such column")

    def _other(self, got: str) -> SchemaError:
        what = f"the Iceberg table {self.table} does not take the rows"
        return SchemaError(message(what, got, "rows would be refused", "cast or rename with .select(...), or name another"))

    def _refused(self, problem: BaseException) -> OperatorError:
        text = told(problem)
        for name, value in self.catalog.items():
            if is_secret(name) and value:
                text = text.replace(value, HIDDEN)
        hint = "see that the catalog can be reached, and start the query again: the batch is written again, or recognised"
        got = f"table {self.table}: {redacted(text)}"
        return OperatorError(message("the catalog or table of Iceberg refuses", got, "the batch is not written", hint))

    def last_committed(self, batch: OutputBatch) -> int | None:
        """See :meth:`TransactionalSink.last_committed`."""
        try:
            found = self._opened().load_table(self.table).properties.get(_note(batch))
        except RAISED as problem:
            raise self._refused(problem) from None
        return None if found is None else int(found)

    def begin(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.begin`."""
        self._rows.clear()

    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        """See :meth:`TransactionalSink.write`."""
        self._rows.append(table)

    def commit(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.commit`."""
        rows = pa.concat_tables(self._rows)
        for name in rows.schema.names:
            years.check_years(rows[name], name, "Iceberg")
        net = changes.net(self._rows, self.key, self.title) if self.key else None
        try:
            for tried in range(_TRIES):
                try:
                    self._try(batch, rows, net, again=tried > 0)
                    return
                except iceberg("exceptions").CommitFailedException:
                    if tried == _TRIES - 1:
                        raise
                    time.sleep(0.1 * 2**tried)
        except KrishivError:
            raise
        except RAISED as problem:
            raise self._refused(problem) from None
        finally:
            self._rows.clear()

    def _try(self, batch: OutputBatch, rows: pa.Table, net: changes.Net | None, *, again: bool) -> None:
        """Commit on top of the table as it is now, unless the batch is there.

        When another commit came first, it is looked at the table anew. pyiceberg's own repetition would put the same rows on
        top of whatever was committed meanwhile, the same batch of another process too.
        """
        table, note = self._opened().load_table(self.table), _note(batch)
        found = table.properties.get(note)
        if again and found == str(batch.batch_id):
            return  # it was committed, although the catalog said that it was not
        if found is not None and int(found) >= batch.batch_id:
            raise written_by_another(self.title, found, batch)
        table.metadata.properties["commit.retry.num-retries"] = "0"  # of this object; the catalog does not get it
        noted = {note: str(batch.batch_id)}
        with table.transaction() as transaction:
            if net is None:
                transaction.append(rows.cast(_written(rows.schema)), snapshot_properties=noted)
            else:
                put = net.put.cast(_written(net.put.schema))
                icebergmerge.apply(table, transaction, changes.Net(put, net.gone), self.key, noted)
            transaction.set_properties(noted)

    def abort(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.abort`."""
        self._rows.clear()


def _note(batch: OutputBatch) -> str:
    return f"{_NOTE}.{batch.query_id}.{batch.output}"


def _form(kind: pa.DataType) -> str:
    """A type as Iceberg has it: whether texts are large, and how items of lists are called, does not count."""
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
            raise SchemaError(message(what, shown(name), "pyiceberg would not find its rows again", hint))


def _check_type(field: pa.Field) -> None:
    try:
        if pa.types.is_null(field.type):
            raise ValueError("unknown")
        iceberg("io.pyarrow").visit_pyarrow(pa.schema([field]), iceberg("io.pyarrow")._ConvertToIcebergWithoutIDs())
    except RAISED:
        raise SchemaError(
            message(
                "Iceberg has no such type",
                f"{field.name} is {field.type}",
                "its values could not be written",
                "cast it with .with_column or .select: a duration to a bigint, a column of nulls to a type",
            )
        ) from None
