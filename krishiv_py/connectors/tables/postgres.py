"""A table of PostgreSQL as a sink: rows by COPY, and a note of the batch in the same transaction."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from krishiv_py.connectors.sink import OutputBatch, OutputName
from krishiv_py.connectors.tables.keys import a_key, check_key, evolve, kept
from krishiv_py.connectors.tables.keys import create as a_create
from krishiv_py.connectors.tables.pgplace import Database, driver
from krishiv_py.connectors.tables.pgtable import (
    add_columns,
    check_table,
    make_ledger,
    make_refused,
    make_table,
    takes_nulls_for_one,
)
from krishiv_py.connectors.tables.pgtypes import check_types
from krishiv_py.connectors.transactional import TransactionalSink
from krishiv_py.errors import CheckpointError, OperatorError, PlanError, shown
from krishiv_py.lazy import lazy
from krishiv_py.plan.checks import a_text

if TYPE_CHECKING:
    from krishiv_py.connectors.json import texts as jsontexts
    from krishiv_py.connectors.tables import changes, texts
else:  # with the first batch: they need Arrow's functions
    changes = lazy("krishiv_py.connectors.tables.changes")
    jsontexts = lazy("krishiv_py.connectors.json.texts")
    texts = lazy("krishiv_py.connectors.tables.texts")

_STAGE, _GONE = "krishiv$put", "krishiv$gone"  # as no other table is called: they hide one of the same name


def _place(value: object) -> Database:
    return value if isinstance(value, Database) else Database.of(value)  # attrs.evolve passes what it finds


def _table(value: object) -> str:
    return _named(value, "table")


def _named(value: object, name: str) -> str:
    text = a_text(value, name, 'pass a name such as "results" or "reports.results"')
    for part in text.split("."):
        if not part or len(part.encode()) > 63 or text.count(".") > 1 or "\0" in part:
            hint = 'pass "table" or "schema.table"; each of at most 63 bytes'
            raise PlanError(f"`{name}` is not a name of a table", got=shown(value), hint=hint)
    return text


def _ledger(value: object) -> str:
    text = _named(value, "ledger")
    if "." in text:
        hint = "pass its name only: it is next to the table of results"
        raise PlanError("`ledger` is the name of a table", got=shown(value), hint=hint)
    return text


def _refused(value: object) -> str | None:
    return None if value is None else _named(value, "refused")


@attrs.define
class _Open:
    """The connection of the batch that is being written."""

    connection: Any = None
    rows: list[pa.Table] = attrs.field(factory=list)
    refused: int = 0


@attrs.frozen(eq=False)
class PostgresSink(TransactionalSink):
    """Rows into a table of PostgreSQL, exactly once; needs the extra ``postgres`` (docs/tables.md).

    Without a `key` all rows are added. With one, each key has one row: the last result, and none where a change log withdraws
    it. A batch is one transaction, with a note of it in the table `ledger`.

    Parameters
    ----------
    conninfo : str
        The database, as libpq reads it: ``postgresql://user@host/database`` or ``host=... dbname=...``. Passwords are better
        in ``~/.pgpass`` or ``PGPASSWORD``; one that is told here is shown nowhere.
    table : str
        ``table`` or ``schema.table``, upper and lower case as written.
    key : sequence of str
        The columns of which a result has one row: mostly the keys, ``window_start`` and ``window_end``.
    create : bool
        Whether the table is made if it is missing.
    ledger : str
        The table next to it that says which batches are written.
    evolve : bool
        Whether columns that the table lacks are added to it when a query starts. They are null in older rows. Without it such
        a table is refused.
    refused : str or None
        A table for rows that PostgreSQL refuses: a text with U+0000, a year after 9999, a value too long for a column, a row
        that breaks a constraint. It is created if it is missing, with the columns ``query_id``, ``output``, ``target``,
        ``batch_id``, ``reason`` and ``refused_row`` (JSON as text), and is written in the transaction of the batch. With None
        such a row stops the query.

    Raises
    ------
    PlanError
        For a text that is no `conninfo`, and for names that are none.
    MissingExtraError
        Without psycopg.
    """

    conninfo: Database = attrs.field(converter=_place)
    table: str = attrs.field(converter=_table)
    key: tuple[str, ...] = attrs.field(default=(), converter=a_key, kw_only=True)
    create: bool = attrs.field(default=True, kw_only=True, converter=a_create)
    ledger: str = attrs.field(default="krishiv_batches", kw_only=True, converter=_ledger)
    evolve: bool = attrs.field(default=False, kw_only=True, converter=evolve)
    refused: str | None = attrs.field(default=None, kw_only=True, converter=_refused)
    _open: _Open = attrs.field(factory=_Open, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self._ledger_path == self._path:
            hint = "give the ledger another name, or leave it out"
            raise PlanError("`ledger` is the table of results", got=shown(self.table), hint=hint)
        if self.refused is not None and self._refused_path in (self._path, self._ledger_path):
            hint = 'give it a name of its own: refused="refused_rows"'
            raise PlanError("`refused` is another table of the sink", got=shown(self.refused), hint=hint)

    @property
    def _ledger_path(self) -> tuple[str, ...]:
        return (*self._path[:-1], self.ledger)

    @property
    def _refused_path(self) -> tuple[str, ...]:
        return tuple((self.refused or "").split("."))

    @property
    def _path(self) -> tuple[str, ...]:
        return tuple(self.table.split("."))

    @property
    def table_id(self) -> tuple[str, ...]:
        """See :class:`~krishiv_py.connectors.tables.keys.KeyedTable`; without a schema the one that PostgreSQL begins with."""
        return "PostgreSQL", self.conninfo.title, *(self._path if len(self._path) > 1 else ("public", *self._path))

    @property
    def title(self) -> str:
        """Its kind and its table."""
        return f"PostgresSink {self.table}"

    def check(self, output: OutputName, schema: pa.Schema) -> None:
        """Make what is missing, and refuse a table that does not take every row of this `schema` of an `output`.

        Raises
        ------
        OperatorError
            When the server cannot be reached, or refuses.
        SchemaError
            For a table with other columns or types, or without an index over the key.
        PlanError
            When there is no table, and none is to be made; or rights are missing.
        """
        check_key(self.title, self.key, schema)
        columns = kept(schema, self.key)
        check_types(columns)
        with self._connected() as connection:
            if self.create:
                make_table(connection, self._path, columns, self.key)
            make_ledger(connection, self._ledger_path)
            if self.evolve:
                add_columns(connection, self._path, columns)
            if self.refused is not None:
                make_refused(connection, self._refused_path)
            check_table(connection, self._path, self._ledger_path, columns, self.key)
            connection.commit()

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        connection = self.conninfo.connect()
        try:
            with self._explained():
                yield connection
        finally:
            connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except driver().Error as problem:
            raise self.conninfo.failed(self.table, problem) from None

    def last_committed(self, batch: OutputBatch) -> int | None:
        """See :meth:`TransactionalSink.last_committed`."""
        sql = driver().sql
        query = sql.SQL("SELECT batch_id FROM {} WHERE query_id = %s AND output = %s AND target = %s")
        with self._connected() as connection:
            query = query.format(sql.Identifier(*self._ledger_path))
            found = connection.execute(query, (batch.query_id, batch.output, self.table)).fetchone()
        return None if found is None else int(found[0])

    def begin(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.begin`."""
        self._open.rows, self._open.refused = [], 0
        self._open.connection = self.conninfo.connect()

    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        """See :meth:`TransactionalSink.write`."""
        if self.key:
            self._open.rows.append(table)
        else:
            with self._explained():
                self._take(batch, table, lambda rows: self._copy(self._path, rows))

    def commit(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.commit`."""
        with self._explained():
            if self.key:
                self._merge(batch)
            self._note(batch)
            self._open.connection.commit()
        if self._open.refused:
            warnings.warn(
                f"PostgreSQL refused {self._open.refused} rows of batch {batch.batch_id} for table {self.table}; they are in "
                f"table {self.refused}, with the reason",
                RuntimeWarning,
                stacklevel=2,
            )
        self.abort(batch)

    def abort(self, batch: OutputBatch) -> None:
        """See :meth:`TransactionalSink.abort`."""
        if self._open.connection is not None:
            self._open.connection.close()
        self._open.connection, self._open.rows, self._open.refused = None, [], 0

    def _copy(self, path: Sequence[str], table: pa.Table) -> None:
        sql = driver().sql
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(*path), _names(table.schema.names))
        cursor = self._open.connection.cursor()
        with cursor.copy(statement) as copy:
            for text in texts.copied(table):
                copy.write(text)
        self._see(cursor.rowcount, table.num_rows)

    def _take(self, batch: OutputBatch, rows: pa.Table, write: Callable[[pa.Table], None]) -> None:
        """Write `rows`. With `refused`, those that PostgreSQL refuses are found by halves and go to that table."""
        if self.refused is None:
            return write(rows)
        try:
            with self._open.connection.transaction():  # a savepoint: the batch goes on without the rows of this call
                return write(rows)
        except (driver().DataError, driver().IntegrityError) as problem:
            reason = self.conninfo.clean(problem.diag.message_primary or str(problem))
        except OperatorError as problem:  # a value that PostgreSQL lacks
            reason = str(problem).splitlines()[0]
        if rows.num_rows > 1:
            half = rows.num_rows // 2
            self._take(batch, rows.slice(0, half), write)
            return self._take(batch, rows.slice(half), write)
        self._refuse(batch, rows, reason)

    def _refuse(self, batch: OutputBatch, row: pa.Table, reason: str) -> None:
        sql = driver().sql
        into = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, %s, %s, %s)").format(sql.Identifier(*self._refused_path))
        try:
            text = jsontexts.objects(row, row.schema.names)[0].as_py()
        except OperatorError:  # JSON lacks the value as well, such as a time after year 9999
            text = json.dumps(
                [str(column.cast(pa.int64())[0]) if pa.types.is_temporal(column.type) else str(column[0]) for column in row]
            )
        values = (batch.query_id, batch.output, self.table, batch.batch_id, reason.replace("\0", ""), text)
        self._open.connection.execute(into, values)
        self._open.refused += 1

    def _merge(self, batch: OutputBatch) -> None:
        """Put the last row of each key in place of what is there, and take out keys that are withdrawn."""
        changed = changes.net(self._open.rows, self.key, self.title)
        if changed.gone.num_rows:
            self._take_out(changed.gone)
        if changed.put.num_rows:
            self._take(batch, changed.put, self._put)

    def _with_null(self) -> Any:
        """The condition that keys of `t` and `s` are one key with a null in it."""
        sql = driver().sql
        nulls = sql.SQL(" OR ").join(sql.SQL("s.{} IS NULL").format(sql.Identifier(k)) for k in self.key)
        same = sql.SQL(" AND ").join(sql.SQL("t.{0} IS NOT DISTINCT FROM s.{0}").format(sql.Identifier(k)) for k in self.key)
        return sql.SQL("({}) AND {}").format(nulls, same)

    def _take_out(self, gone: pa.Table) -> None:
        sql, execute = driver().sql, self._open.connection.execute
        self._staged(_GONE, gone)
        plain = sql.SQL(" AND ").join(sql.SQL("t.{0} = s.{0}").format(sql.Identifier(k)) for k in self.key)
        statement = sql.SQL("DELETE FROM {} t USING {} s WHERE ").format(sql.Identifier(*self._path), sql.Identifier(_GONE))
        execute(statement + plain)
        if any(gone[k].null_count for k in self.key):  # no index finds these
            execute(statement + self._with_null())

    def _put(self, rows: pa.Table) -> None:
        sql, target, stage = driver().sql, driver().sql.Identifier(*self._path), driver().sql.Identifier(_STAGE)
        execute = self._open.connection.execute
        self._staged(_STAGE, rows)
        names, taken = rows.schema.names, 0
        others = [sql.Identifier(n) for n in names if n not in self.key]
        has_null = any(rows[k].null_count for k in self.key)
        if has_null and not takes_nulls_for_one(self._open.connection, self._path, self.key):
            if others:
                sets = sql.SQL(", ").join(sql.SQL("{0} = s.{0}").format(n) for n in others)
                update = sql.SQL("UPDATE {} t SET {} FROM {} s WHERE ").format(target, sets, stage)
                taken = execute(update + self._with_null()).rowcount
            execute(sql.SQL("DELETE FROM {} s USING {} t WHERE ").format(stage, target) + self._with_null())
        sets = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(n) for n in others)
        put = execute(  # in one order, lest two queries of one table wait for each other
            sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} ORDER BY {} ON CONFLICT ({}) DO ").format(
                target, _names(names), _names(names), stage, _names(self.key), _names(self.key)
            )
            + (sql.SQL("UPDATE SET ") + sets if others else sql.SQL("NOTHING"))
        )
        execute(sql.SQL("DROP TABLE pg_temp.{}").format(stage))
        if others:
            self._see(taken + put.rowcount, rows.num_rows)

    def _see(self, taken: int, rows: int) -> None:
        """Tell of rows that the table did not take."""
        if 0 <= taken < rows:
            warnings.warn(
                f"table {self.table} took {taken} of {rows} rows: a trigger or a rule of it left the others out, or put them "
                "into another table. Hint: drop it, if the table is to hold all rows",
                RuntimeWarning,
                stacklevel=2,
            )

    def _staged(self, name: str, rows: pa.Table) -> None:
        """Rows in a table that goes with the transaction, with columns as in the target."""
        sql = driver().sql
        self._open.connection.execute(
            sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
                sql.Identifier(name), _names(rows.schema.names), sql.Identifier(*self._path)
            )
        )
        self._copy(("pg_temp", name), rows)

    def _note(self, batch: OutputBatch) -> None:
        sql = driver().sql
        statement = sql.SQL(
            "INSERT INTO {} AS l VALUES (%s, %s, %s, %s) ON CONFLICT (query_id, output, target) "
            "DO UPDATE SET batch_id = EXCLUDED.batch_id WHERE l.batch_id < EXCLUDED.batch_id"
        ).format(sql.Identifier(*self._ledger_path))
        noted = self._open.connection.execute(statement, (batch.query_id, batch.output, self.table, batch.batch_id))
        if noted.rowcount != 1:
            raise CheckpointError(
                f"{self.title} holds this batch already",
                got=f"batch {batch.batch_id} of {batch.output}",
                then="another process writes the same query, and rows would be doubled",
                hint="let one query run from a checkpoint",
            )


def _names(names: Sequence[str]) -> Any:
    sql = driver().sql
    return sql.SQL(", ").join(map(sql.Identifier, names))
