"""A table of SQLite as a sink: rows, and a note of the batch in the same transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Final

import attrs
import pyarrow as pa

from krishiv_py.connectors.sink import OutputBatch, OutputName, TransactionalSink
from krishiv_py.connectors.tables import sqlite_values as stored
from krishiv_py.connectors.tables.keys import a_key, check_key, check_log, evolve, kept, net_changes
from krishiv_py.connectors.tables.keys import create as a_create
from krishiv_py.connectors.tables.keys import log as a_log
from krishiv_py.errors import OperatorError, PlanError, SchemaError, shown
from krishiv_py.plan.checks import PathLike, a_path, a_text
from krishiv_py.storage.datasets import Dataset
from krishiv_py.storage.local import absolute
from krishiv_py.types import storable_hint, type_text

_LOCKED_SECONDS: Final = 60.0
"""The time that a batch waits for another writer of the database."""
_ROWS: Final = 10_000
"""Rows that are Python values at a time."""
_BUSY: Final = ("locked", "busy")


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def _path(value: PathLike) -> str:
    text = a_path(value, "path", 'pass the file of a database: "out.db"')
    place = absolute(text)
    if text.startswith((":memory:", "file:")) or "://" in place:
        hint = 'pass the path of a file: "out.db"; a query opens it for each batch'
        raise PlanError("SQLite keeps a database in a file of this machine", got=shown(text), hint=hint)
    return place


def _table(value: object) -> str:
    return _named(value, "table")


def _ledger(value: object) -> str:
    return _named(value, "ledger")


def _named(value: object, name: str) -> str:
    text = a_text(value, name, 'pass a name such as "results"')
    if "\0" in text or text.lower().startswith("sqlite_"):
        hint = "pass another name; those that begin with sqlite_ are the database's own"
        raise PlanError(f"`{name}` is not a name of a table", got=shown(value), hint=hint)
    return text


@attrs.define
class _OpenDatabase:
    """The database and the rows of the batch that is being written."""

    connection: sqlite3.Connection | None = None
    rows: list[pa.Table] = attrs.field(factory=list)

    def __reduce__(self) -> tuple[type[_OpenDatabase], tuple[()]]:
        return _OpenDatabase, ()


@attrs.frozen(eq=False)
class SqliteSink(TransactionalSink):
    """Rows into a table of SQLite, exactly once (docs/tables.md).

    Without a `key` all rows are added. With one, each key has one row: the last result, and none where a change log withdraws
    it. A batch is one transaction, with a note of it in the table `ledger`.

    Parameters
    ----------
    path : str or os.PathLike
        The file of the database, which is made if it is missing.
    table : str
        The table, which is made if it is missing.
    key : sequence of str
        The columns of which a result has one row: mostly the keys, ``window_start`` and ``window_end``.
    log : bool
        Whether results that change are added as a log, with ``op``. Without it, and without a `key`, they are refused.
    create : bool
        Whether the table is made if it is missing.
    ledger : str
        The table next to it that says which batches are written.
    evolve : bool
        Whether columns that the table lacks are added to it when a query starts. They are null in older rows.

    Raises
    ------
    PlanError
        For a path that is no file of this machine, and for names that are none.

    Examples
    --------
    >>> import sqlite3
    >>> from krishiv_py import Session, SqliteSink, count
    >>> with Session.in_process() as session:
    ...     stream, sender = session.memory_stream("user string")
    ...     path = session.temporary_folder() + "/out.db"
    ...     query = stream.key_by("user").agg(count()).start(SqliteSink(path, "totals", key="user"))
    ...     for user in ("ann", "bob", "ann"):
    ...         _ = sender.send([{"user": user}])
    ...         query.process_all_available()
    ...     sqlite3.connect(path).execute("SELECT * FROM totals ORDER BY user").fetchall()
    [('ann', 2), ('bob', 1)]
    """

    path: str = attrs.field(converter=_path)
    table: str = attrs.field(converter=_table)
    key: tuple[str, ...] = attrs.field(default=(), converter=a_key, kw_only=True)
    log: bool = attrs.field(default=False, kw_only=True, converter=a_log)
    create: bool = attrs.field(default=True, kw_only=True, converter=a_create)
    ledger: str = attrs.field(default="krishiv_batches", kw_only=True, converter=_ledger)
    evolve: bool = attrs.field(default=False, kw_only=True, converter=evolve)
    _open: _OpenDatabase = attrs.field(factory=_OpenDatabase, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        check_log("SqliteSink", self.key, self.log)
        if self.ledger.lower() == self.table.lower():
            hint = "give the ledger another name, or leave it out"
            raise PlanError("`ledger` is the table of results", got=shown(self.table), hint=hint)

    @property
    def table_id(self) -> tuple[str, ...]:
        """See :class:`~krishiv_py.connectors.tables.keys.KeyedTable`."""
        return "SQLite", self.path, self.table.lower()

    @property
    def title(self) -> str:
        """Return its kind and its table."""
        return f"SqliteSink {self.table}"

    def dataset(self) -> Dataset:
        """Return the name of the table: file and table."""
        return Dataset("sqlite", f"{self.path}.{self.table}")

    def check(self, output: OutputName, schema: pa.Schema) -> None:
        """Make what is missing, and refuse a table that does not take every row of this `schema` of an `output`.

        Raises
        ------
        OperatorError
            When the file cannot be opened or written, or is no database.
        SchemaError
            For a table with other columns or types, or without a unique index over the key.
        PlanError
            When there is no table, and none is to be made.
        """
        check_key(self.title, self.key, schema)
        columns = kept(schema, self.key)
        for field in columns:
            try:
                stored.column_type(field.type)
            except KeyError:
                got, so = f"{field.name} is {type_text(field.type)}", "its values could not be written"
                hint = storable_hint(field.name, field.type)
                raise SchemaError("SQLite has no such type", got=got, then=so, hint=hint) from None
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            self._make(connection, columns)
            self._check_ledger(connection)
            self._check_table(connection, columns)
            connection.execute("COMMIT")

    def _make(self, connection: sqlite3.Connection, columns: pa.Schema) -> None:
        there = self._columns(connection, self.table)
        if self.create and not there:
            parts = [f"{quoted(f.name)} {stored.column_type(f.type)}" for f in columns]
            if self.key:
                parts.append(f"UNIQUE ({', '.join(map(quoted, self.key))})")
            connection.execute(f"CREATE TABLE {quoted(self.table)} ({', '.join(parts)})")
        elif self.evolve and there:
            for field in columns:
                if field.name.lower() not in there:
                    added = f"{quoted(field.name)} {stored.column_type(field.type)}"
                    connection.execute(f"ALTER TABLE {quoted(self.table)} ADD COLUMN {added}")
        text = "query_id TEXT, output TEXT, target TEXT, batch_id INTEGER NOT NULL, PRIMARY KEY (query_id, output, target)"
        connection.execute(f"CREATE TABLE IF NOT EXISTS {quoted(self.ledger)} ({text})")

    def _columns(self, connection: sqlite3.Connection, table: str) -> dict[str, tuple[str, bool, bool]]:
        """Return the columns of a table in small letters: type, whether a value must be given, and whether it is computed."""
        rows = connection.execute(f"PRAGMA TABLE_XINFO({quoted(table)})").fetchall()
        return {
            name.lower(): (kind, bool(needs) and default is None, hidden > 1)
            for _, name, kind, needs, default, _, hidden in rows
        }

    def _check_ledger(self, connection: sqlite3.Connection) -> None:
        noted = {"query_id", "output", "target"}
        if not {*noted, "batch_id"} <= self._columns(connection, self.ledger).keys() or not self._is_unique(
            connection, self.ledger, tuple(noted)
        ):
            hint = "pass the name of another one with ledger=: it is made if it is missing"
            raise SchemaError("`ledger` is another table", got=self.ledger, hint=hint)

    def _check_table(self, connection: sqlite3.Connection, columns: pa.Schema) -> None:
        there = self._columns(connection, self.table)
        if not there:
            hint = "create it, or leave create=True"
            raise PlanError("there is no such table in SQLite", got=f"{self.table} in {self.path}", hint=hint)
        kind = connection.execute("SELECT type FROM sqlite_master WHERE lower(name) = ?", (self.table.lower(),)).fetchone()
        if kind is None or kind[0] != "table":
            hint = "name the table that it shows"
            raise PlanError("rows can be written into a table only", got=f"{self.table} is a view", hint=hint)
        for field in columns:
            if field.name.lower() not in there:
                hint = f"add one of type {stored.column_type(field.type)}, or pass evolve=True"
                raise self._other(f"there is no column {field.name}; it has {', '.join(there)}", hint)
            declared, _, computed = there[field.name.lower()]
            if computed:
                raise self._other(f"its column {field.name} is computed", "leave the column out with .select(...)")
            if not stored.keeps(declared, field.type):
                got = f"{field.name} is {declared}, and values are {type_text(field.type)}"
                hint = f"make it {stored.column_type(field.type)}, or cast the values with .with_column or .select"
                raise self._other(got, hint)
        names = {name.lower() for name in columns.names}
        for name, (_, needs, _) in there.items():
            if needs and name not in names:
                raise self._other(f"its column {name} is NOT NULL, and rows have no such column", "give it a default")
        if self.key and not self._is_unique(connection, self.table, self.key):
            then = "results of one key could not replace each other"
            on = f"{quoted(self.table)} ({', '.join(map(quoted, self.key))})"
            hint = f"CREATE UNIQUE INDEX {quoted(f'{self.table} key')} ON {on}, without NOCASE, or let the sink make the table"
            raise SchemaError(
                f"table {self.table} has no unique index over `key`", got=", ".join(self.key), then=then, hint=hint
            )

    def _other(self, got: str, hint: str) -> SchemaError:
        return SchemaError(f"table {self.table} does not take the rows", got=got, hint=hint)

    def _is_unique(self, connection: sqlite3.Connection, table: str, key: Sequence[str]) -> bool:
        wanted = {name.lower() for name in key}
        for _, index, unique, _, partial in connection.execute(f"PRAGMA INDEX_LIST({quoted(table)})").fetchall():
            parts = [row for row in connection.execute(f"PRAGMA INDEX_XINFO({quoted(index)})").fetchall() if row[5]]
            exact = all(name is not None and collation == "BINARY" for _, _, name, _, collation, _ in parts)
            if unique and not partial and exact and {row[2].lower() for row in parts} == wanted:
                return True
        own = connection.execute(f"PRAGMA TABLE_INFO({quoted(table)})").fetchall()  # INTEGER PRIMARY KEY has no index
        keys = [(row[1].lower(), row[2].upper()) for row in own if row[5]]
        return len(keys) == 1 and keys[0][1] == stored.WHOLE and {keys[0][0]} == wanted

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with self._explained(), closing(self._connect()) as connection:
            yield connection

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=_LOCKED_SECONDS, isolation_level=None, check_same_thread=False)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as problem:
            text = str(problem)
            busy = any(word in text for word in _BUSY)
            what = "the database is held by another writer" if busy else "SQLite refuses"
            hint = "see what it says, then start the query again: the batch is written again"
            got = f"table {self.table} in {self.path}: {text}"
            raise OperatorError(what, got=got, then="the batch is not written", hint=hint, transient=busy) from None

    def last_committed(self, batch: OutputBatch) -> int | None:
        """See :meth:`TransactionalSink.last_committed`."""
        query = f"SELECT batch_id FROM {quoted(self.ledger)} WHERE query_id = ? AND output = ? AND target = ?"
        with self._connected() as connection:
            row = connection.execute(query, (batch.query_id, batch.output, self.table)).fetchone()
        return None if row is None else int(row[0])

    def begin(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.begin`."""
        self.abort(batch)
        with self._explained():
            self._open.connection = self._connect()
            self._open.connection.execute("BEGIN IMMEDIATE")

    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        """See :meth:`TransactionalSink.write`."""
        if self.key:
            self._open.rows.append(table)
        else:
            with self._explained():
                marks = ", ".join("?" * table.num_columns)
                self._execute(f"INSERT INTO {self._into(table.schema.names)} VALUES ({marks})", table, table.schema.names)

    def commit(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.commit`."""
        connection = self._open.connection
        assert connection is not None
        with self._explained():
            if self.key:
                changed = net_changes(self._open.rows, self.key, self.title)
                same = " AND ".join(f"{quoted(name)} IS ?" for name in self.key)
                self._execute(f"DELETE FROM {quoted(self.table)} WHERE {same}", changed.gone, self.key)
                self._put(changed.put, same)
            note = f"INSERT OR REPLACE INTO {quoted(self.ledger)} (query_id, output, target, batch_id) VALUES (?, ?, ?, ?)"
            connection.execute(note, (batch.query_id, batch.output, self.table, batch.batch_id))
            connection.execute("COMMIT")
        self.abort(batch)

    def abort(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.abort`; a transaction without COMMIT leaves nothing."""
        if self._open.connection is not None:
            self._open.connection.close()
        self._open.connection, self._open.rows = None, []

    def _into(self, names: Sequence[str]) -> str:
        return f"{quoted(self.table)} ({', '.join(map(quoted, names))})"

    def _put(self, rows: pa.Table, same: str) -> None:
        """Put rows in place of those of their keys; other columns of the table stay as they are."""
        names = rows.schema.names
        others = [name for name in names if name not in self.key]
        marks = ", ".join("?" * len(names))
        keys = ", ".join(map(quoted, self.key))
        taken = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in others)
        then = f"UPDATE SET {taken}" if others else "NOTHING"
        plain, odd = stored.with_nulls_apart(rows, self.key)
        self._execute(f"INSERT INTO {self._into(names)} VALUES ({marks}) ON CONFLICT ({keys}) DO {then}", plain, names)
        # a unique index tells each null from all others
        if others:
            changed = ", ".join(f"{quoted(name)} = ?" for name in others)
            self._execute(f"UPDATE {quoted(self.table)} SET {changed} WHERE {same}", odd, [*others, *self.key])
        missing = f"WHERE NOT EXISTS (SELECT 1 FROM {quoted(self.table)} WHERE {same})"
        self._execute(f"INSERT INTO {self._into(names)} SELECT {marks} {missing}", odd, [*names, *self.key])

    def _execute(self, statement: str, rows: pa.Table, names: Sequence[str]) -> None:
        """Execute a statement for each row, with its values of some columns."""
        assert self._open.connection is not None
        for begin in range(0, rows.num_rows, _ROWS):
            part = rows.slice(begin, _ROWS)
            columns = {name: stored.values_of(part[name], name) for name in dict.fromkeys(names)}
            self._open.connection.executemany(statement, zip(*(columns[name] for name in names), strict=True))
