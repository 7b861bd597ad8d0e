"""The common part of sinks with a key: net changes of a batch; of tables one commit, columns, how often files are merged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, runtime_checkable

import attrs
import pyarrow as pa

from krishiv_py.connectors.sink import OutputBatch, TransactionalSink
from krishiv_py.connectors.tables import changes
from krishiv_py.errors import PlanError, SchemaError, shown, unknown_column
from krishiv_py.plan.checks import MOST_ROWS, a_number, a_switch, a_text
from krishiv_py.types import type_text

OP: Final = "op"
"""The column of a change log that says what a row does (SEMANTICS §5.4)."""
OWN: Final = "__krishiv_"
"""The beginning of the names of columns that the library adds for itself."""


@runtime_checkable
class KeyedTable(Protocol):
    """A sink that is a table of another system: rows are added, or each value of the key has one row."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the key; none where rows are added."""

    @property
    def table_id(self) -> tuple[str, ...]:
        """System, place and name: sinks of one table have one, unless its place is written in two ways."""

    @property
    def log(self) -> bool:
        """Return whether changes are added as rows, with ``op``."""


_TRIES: Final = 8
"""The number of tries of a commit that another writer came before."""


@attrs.frozen(eq=False)
class OneCommitSink(TransactionalSink):
    """A sink that takes the rows of a micro-batch in one commit on top of the table as it is then."""

    _rows: list[pa.Table] = attrs.field(factory=list, init=False, repr=False)

    def begin(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.begin`."""
        self._rows.clear()

    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        """See :meth:`TransactionalSink.write`."""
        self._rows.append(table)

    def abort(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.abort`."""
        self._rows.clear()

    def _commit(self, attempt: Callable[[int], None], conflict: type[Exception]) -> None:
        """Call `attempt`, with how often it was tried; again after a `conflict`, when another writer came first."""
        for tried in range(_TRIES):
            try:
                attempt(tried)
                break
            except conflict:
                if tried == _TRIES - 1:
                    raise
                time.sleep(0.1 * 2**tried)


def a_key(value: object) -> tuple[str, ...]:
    """Return the `key` of a table: names of columns."""
    return columns(value, "key")


def log(value: object) -> bool:
    """Return whether a table without a key keeps changes as rows."""
    return a_switch(value, "log")


def check_log(sink: str, key: Sequence[str], log: bool) -> None:
    """Refuse a table that has one row for each key, and is to keep all changes as well."""
    if log and key:
        hint = "leave one of them out, or write two outputs: one with a key, and one with log=True"
        raise PlanError(f"{sink} holds the content by a key, or the changes", got=f"key={list(key)}, log=True", hint=hint)


def create(value: object) -> bool:
    """Return whether a table is made if it is missing."""
    return a_switch(value, "create")


def evolve(value: object) -> bool:
    """Return the switch by which columns that a table lacks are added to it."""
    return a_switch(value, "evolve")


def often(value: object, name: str) -> int | None:
    """Return `value`, a number of batches or snapshots from 1; None means never, or all.

    Raises
    ------
    PlanError
        For anything else.
    """
    return None if value is None else a_number(value, name, 1, "pass a whole number, or None", most=MOST_ROWS)


def compact_every(value: object) -> int | None:
    """Return after how many batches small files are merged; None means never."""
    return often(value, "compact_every")


def file_size(value: object) -> int:
    """Return `value`, a size of files in bytes.

    Raises
    ------
    PlanError
        For anything but a whole number from 1 MiB to 64 GiB.
    """
    hint = "pass bytes: target_file_size=128 * 1024 * 1024"
    return a_number(value, "target_file_size", 1 << 20, hint, most=1 << 36)


def columns(value: object, name: str) -> tuple[str, ...]:
    """Names of columns, each once.

    Raises
    ------
    PlanError
        For anything else.
    """
    hint = f'pass a list of names: {name}=["user", "window_start"]'
    names = [value] if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else None
    if names is None or len(set(map(str, names))) < len(names):
        raise PlanError(f"`{name}` is not a list of columns", got=shown(value), hint=hint)
    return tuple(a_text(each, name, hint) for each in names)


def kept(schema: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """Return the columns of a table that takes rows of this `schema`: with a `key`, changes are applied and ``op`` is not
    kept.
    """
    fields = [field for field in schema if not (key and is_log(schema) and field.name == OP)]
    return pa.schema(fields)


def is_log(schema: pa.Schema) -> bool:
    """Return whether rows of this `schema` are a change log."""
    return OP in schema.names and pa.types.is_string(schema.field(OP).type)


@attrs.frozen(eq=False)
class NetChanges:
    """Holds what the rows of a micro-batch do to a table with a key; :func:`net_changes` makes it.

    Attributes
    ----------
    put : pyarrow.Table
        Rows that are there afterwards, one for each key, without ``op``, in the order in which the last of each came.
    gone : pyarrow.Table
        The keys that are not there afterwards.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from krishiv_py.connectors import net_changes
    >>> net_changes([pa.table({"user": ["ann", "ann"], "n": [1, 2]})], ["user"]).put.to_pylist()
    [{'user': 'ann', 'n': 2}]
    """

    put: pa.Table
    gone: pa.Table


def net_changes(tables: Iterable[pa.Table], key: Sequence[str], name: str = "the table") -> NetChanges:
    """Return what the rows of a micro-batch do to a table with a key: the last line of each key counts.

    Of a change log (column ``op``) a key whose last line is ``+I`` or ``+U`` has that row, one whose last line is ``-U`` or
    ``-D`` has none. Without ``op`` the last row of a key counts. Nulls are equal, and so are both zeros and all forms of NaN.

    Parameters
    ----------
    tables : iterable of pyarrow.Table
        The rows, in order, at least one table.
    key : sequence of str
        The columns of which the table has one row, none of lists, structs or maps.
    name : str
        What errors call the table.

    Raises
    ------
    OperatorError
        For two valid rows of one key in a change log: the key does not tell results apart, and one would be lost. For a row
        whose ``op`` is none.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from krishiv_py.connectors import net_changes
    >>> log = pa.table({"user": ["ann", "bob", "ann", "ann"], "n": [1, 5, 1, 2], "op": ["+I", "-U", "-U", "+U"]})
    >>> changed = net_changes([log], ["user"])
    >>> changed.put.to_pylist(), changed.gone.to_pylist()
    ([{'user': 'ann', 'n': 2}], [{'user': 'bob'}])
    """
    rows = changes.one_form(pa.concat_tables(tables), key)
    columns = kept(rows.schema, key).names
    there, gone = changes.last_changes(rows, key, name)
    return NetChanges(rows.select(columns).take(there), rows.select(list(key)).take(gone))


def newest_changes(tables: Iterable[pa.Table], key: Sequence[str], by: str) -> NetChanges:
    """Return what the rows of a micro-batch do to a table that keeps the newest row of each key, by a column.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from krishiv_py.connectors.tables.keys import newest_changes
    >>> rows = pa.table({"user": ["ann", "ann"], "at": [20, 10]})
    >>> newest_changes([rows], ["user"], "at").put.to_pylist()
    [{'user': 'ann', 'at': 20}]
    """
    rows = pa.concat_tables(tables)
    put, gone = changes.newest_changes(rows, key, by)
    return NetChanges(put.select(kept(rows.schema, key).names), gone.select([*key, by]))


def check_newest_by(sink: str, key: Sequence[str], by: str, schema: pa.Schema) -> None:
    """Refuse a column by which rows of an output have no order.

    Raises
    ------
    ColumnError
        For a name that is not a column.
    SchemaError
        For lists, structs and maps, and columns of nulls only.
    """
    columns = kept(schema, key)
    if by not in columns.names:
        raise unknown_column(by, columns.names, f"`newest_by` of {sink}")
    kind = columns.field(by).type
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        hint = "name a column of times or numbers"
        raise SchemaError("`newest_by` is a column without an order", got=f"{by} is {type_text(kind)}", hint=hint)


def check_key(sink: str, key: Sequence[str], schema: pa.Schema) -> None:
    """Refuse a key that the rows of an output do not have, or that cannot be compared.

    Raises
    ------
    ColumnError
        For a name that is not a column.
    SchemaError
        For lists, structs and maps, and columns of nulls only; for names that the library has for columns of its own.
    """
    columns = kept(schema, key)
    for name in columns.names if key else ():
        if name.startswith(OWN):
            what, hint = f"a column of {sink} has a name of the library", "rename it with .alias(...) or .rename(...)"
            raise SchemaError(what, got=shown(name), hint=hint)
    for name in key:
        if name not in columns.names:
            raise unknown_column(name, columns.names, f"`key` of {sink}")
        kind = columns.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_null(kind):
            hint = "name plain columns, such as the keys and window_start"
            raise SchemaError(
                f"`key` of {sink} is a column that cannot be compared", got=f"{name} is {type_text(kind)}", hint=hint
            )
