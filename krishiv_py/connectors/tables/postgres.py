"""A table of PostgreSQL as a sink: rows by COPY, and a note of the batch in the same transaction."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.connectors import json_texts as jsontexts
from krishiv_py.connectors.sink import OutputBatch, OutputName, TransactionalSink
from krishiv_py.connectors.tables import texts
from krishiv_py.connectors.tables.keys import (
    a_key,
    check_key,
    check_log,
    check_newest_by,
    evolve,
    kept,
    net_changes,
    newest_changes,
)
from krishiv_py.connectors.tables.keys import create as a_create
from krishiv_py.connectors.tables.keys import log as a_log
from krishiv_py.errors import CheckpointError, OperatorError, PlanError, SchemaError, missing_extra, require_extra, shown
from krishiv_py.failures.redaction import HIDDEN, is_secret, redacted
from krishiv_py.failures.transient import verdict
from krishiv_py.plan.checks import a_text
from krishiv_py.storage.datasets import Dataset
from krishiv_py.types import storable_hint, type_text

_WHOLE: Final = ("smallint", "integer", "bigint", "numeric")
_TEXTS: Final = ("text", "character varying", "character", "json", "jsonb", "uuid", "citext", "USER-DEFINED")
_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "bool": ("boolean",),
    "int8": _WHOLE,
    "int16": _WHOLE,
    "int32": _WHOLE[1:],
    "int64": _WHOLE[2:],
    "float": ("real", "double precision", "numeric"),
    "double": ("double precision", "numeric"),
    "string": _TEXTS,
    "binary": ("bytea",),
    "date32[day]": ("date",),
    "timestamp[us, tz=UTC]": ("timestamp with time zone",),
    "timestamp[us]": ("timestamp without time zone",),
    "duration[us]": ("interval",),
}
"""The first is the column that is made; the others take every value too."""


def check_types(columns: pa.Schema) -> None:
    """Refuse types that no column takes.

    Raises
    ------
    SchemaError
        Naming the column.
    """
    for field in columns:
        try:
            column_type(field.type)
        except KeyError:
            got, so = f"{field.name} is {type_text(field.type)}", "its values could not be written"
            hint = storable_hint(field.name, field.type)
            raise SchemaError("PostgreSQL has no such type", got=got, then=so, hint=hint) from None


def column_type(kind: pa.DataType) -> str:
    """Return the type of the column that is made for values of a `kind`."""
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_null(kind):
        return "text"
    if pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type):
        return f"{column_type(kind.value_type)}[]"
    return "jsonb" if pa.types.is_nested(kind) else _KINDS[str(kind)][0]


def takes(column: str, kind: pa.DataType) -> bool:
    """Return whether a column of this type, as ``format_type`` shows it, takes every value of a `kind`."""
    base = column.partition("(")[0] if not column.endswith("[]") else column
    if pa.types.is_null(kind):
        return True
    if pa.types.is_decimal(kind):
        return _takes_decimal(column, kind)
    if pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type):
        return column.endswith("[]") and takes(column[:-2], kind.value_type)
    if pa.types.is_nested(kind):
        return base in ("jsonb", "json")
    if pa.types.is_string(kind):
        return not column.endswith("[]") and base not in _NO_TEXTS
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):  # timestamp(3) with time zone and interval(0) would round
        return column in _KINDS[str(kind)]
    if base == "numeric" and column != base:
        return False
    return base in _KINDS[str(kind)]


_NO_TEXTS: Final = {
    *("character", '"char"', "name", "money", "tsvector", "tsquery", "xid"),  # they pad, cut or rewrite texts
    *_WHOLE,
    *(taken for kind in _KINDS.values() for taken in kind if kind != _TEXTS),
    *("timestamp", "time", "time with time zone", "time without time zone"),
}


def _takes_decimal(column: str, kind: pa.DataType) -> bool:
    if column == "numeric":
        return True
    if not column.startswith("numeric("):
        return False
    precision, scale = (int(n) for n in column[8:-1].split(","))
    return bool(scale >= kind.scale and precision - scale >= kind.precision - kind.scale)


_DEFAULTS: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "tcp_user_timeout": "60000",
    "application_name": "krishiv_py",
}
"""So that a server that is gone is noticed: a minute at the most."""
_MEANINGS: Final = {
    "42501": ("the role may not do this", "grant the role SELECT, INSERT, UPDATE and DELETE on the table"),
    "42P01": ("the table is gone", "make it again with what it held, or start with another checkpoint"),
    "42703": ("the table has lost a column", "add the column again, with the type it had"),
    "42P10": ("the table has no unique index over `key`", "create one: CREATE UNIQUE INDEX ON table (columns of the key)"),
    "3F000": ("there is no such schema in PostgreSQL", "create it: CREATE SCHEMA name; upper and lower case count"),
    "22003": ("a column of the table is too narrow", "make it as wide as the values, then start the query again"),
    "23514": ("a rule of the table refuses a row", "add the partition, or drop the rule, then start the query again"),
    "23505": (
        "rows of the table have one value where it must be unique",
        "name the unique columns with key=, or drop the index",
    ),
    "23502": ("a column of the table takes no nulls", "drop its NOT NULL, or filter such rows"),
    "40P01": ("another transaction was in the way", "start the query again: the batch is written again"),
    "53100": ("the disk of the server is full", "make room, and start the query again: the batch is written again"),
}
_REFUSES_US: Final = re.compile(
    r"password|authentication failed|pg_hba\.conf|role .* (?:does not exist|is not permitted)|database .* does not exist|"
    r"certificate|invalid connection option|SSL (?:error|was required)|no such user"
)
"""Words of a server that refuses, in English; a code comes with no refused connection, so other words may pass."""
_AWAY: Final = ("the server went away", "start the query again: the batch is written again, or recognised if it is there")


def driver() -> Any:
    """Return the module ``psycopg``.

    Raises
    ------
    MissingExtraError
        When it is not installed.
    """
    consequence = "no table of PostgreSQL can be written"
    require_extra("PostgreSQL", ("psycopg",), "postgres", consequence)
    try:
        import psycopg
    except ImportError:  # psycopg without its binary part, and no libpq on the machine
        raise missing_extra("libpq (PostgreSQL)", "postgres", consequence) from None
    return psycopg


@attrs.frozen
class Database:
    """A database.

    Attributes
    ----------
    address : str
        How libpq reaches it: an address or settings. It may hold a password, and is never shown.
    name : str
        What it is called.
    server : str
        Host and port.
    """

    address: str = attrs.field(repr=False)
    name: str
    server: str

    @property
    def title(self) -> str:
        """Return what people read: database, host and port."""
        return f"{self.name} at {self.server}"

    @classmethod
    def of(cls, address: object) -> Database:
        """Return the database that a user gave.

        Raises
        ------
        PlanError
            For a text that libpq cannot read.
        """
        text = a_text(address, "conninfo", 'pass for instance "postgresql://host/database"')
        psycopg = driver()
        try:
            settings = psycopg.conninfo.conninfo_to_dict(text)
        except psycopg.Error:  # whose text quotes what it could not read
            hint = 'pass "postgresql://host/database" or "host=... dbname=... user=..."; encode signs as URLs need'
            raise PlanError("`conninfo` cannot be read", got=f"a text of {len(text)} characters", hint=hint) from None
        host = settings.get("host") or settings.get("hostaddr") or "localhost"
        return cls(text, str(settings.get("dbname", "the default database")), f"{host}:{settings.get('port', 5432)}")

    def connect(self) -> Any:
        """Open a connection, whose first statement begins a transaction.

        Raises
        ------
        OperatorError
            When the server does not answer, or does not let us in.
        """
        psycopg = driver()
        try:
            known = psycopg.conninfo.conninfo_to_dict(self.address)
            return psycopg.connect(self.address, **{k: v for k, v in _DEFAULTS.items() if k not in known})
        except psycopg.Error as problem:
            got = f"{self.title}: {self.clean(str(problem))}"
            hint = "see that the server runs, and that address, user and password are right"
            passes = not _REFUSES_US.search(str(problem))
            raise OperatorError("PostgreSQL cannot be reached", got=got, hint=hint, transient=passes) from None

    def failed(self, table: str, problem: BaseException) -> OperatorError:
        """Return the error for a statement that failed."""
        code = getattr(problem, "sqlstate", None) or ""
        is_gone = code[:2] in ("08", "57") or not code
        what, hint = _AWAY if is_gone else _MEANINGS.get(code, ("PostgreSQL refuses rows", "see the text of the server"))
        got = f"table {table} in {self.title}: {self.clean(str(problem))}"
        passes = is_gone or verdict(problem) == "transient"
        return OperatorError(what, got=got, then="the batch is not written", hint=hint, transient=passes)

    def clean(self, text: str) -> str:
        """One line of a `text` without secrets."""
        for name, value in driver().conninfo.conninfo_to_dict(self.address).items():
            if is_secret(name) and value:
                text = text.replace(str(value), HIDDEN)
        return redacted(" ".join(text.split())[:500])


_LONGEST = 63
_NOTED = ("query_id", "output", "target")
_LOOSE = ("citext", "character(", "bpchar", "public.citext")
_TABLES = ("r", "p", "f")  # ordinary, partitioned, foreign


def make_table(connection: Any, path: Sequence[str], columns: pa.Schema, key: Sequence[str]) -> None:
    """Make the table, with an index over its key, unless it is there."""
    if _exists(connection, path):
        return
    sql = driver().sql
    for name in columns.names:
        if len(name.encode()) > _LONGEST:
            hint = "give the column a shorter name with .alias(...) or .rename(...)"
            raise SchemaError("a name is too long for PostgreSQL", got=f"{name}: more than {_LONGEST} bytes", hint=hint)
    parts = [sql.SQL("{} {}").format(sql.Identifier(f.name), sql.SQL(column_type(f.type))) for f in columns]
    if key:
        same = " NULLS NOT DISTINCT" if connection.info.server_version >= 150_000 else ""
        names = sql.SQL(", ").join(map(sql.Identifier, key))
        parts.append(sql.SQL("UNIQUE{} ({})").format(sql.SQL(same), names))
    _make(connection, sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(sql.Identifier(*path), sql.SQL(", ").join(parts)))


def make_ledger(connection: Any, path: Sequence[str]) -> None:
    """Make the table that notes batches, unless it is there."""
    if _exists(connection, path):
        return
    sql = driver().sql
    text = "CREATE TABLE IF NOT EXISTS {} (query_id text, output text, target text, batch_id bigint NOT NULL, "
    _make(connection, sql.SQL(text + "PRIMARY KEY (query_id, output, target))").format(sql.Identifier(*path)))


def make_refused(connection: Any, path: Sequence[str]) -> None:
    """Create the table for rows that PostgreSQL refuses, unless it is there."""
    if _exists(connection, path):
        return
    text = "CREATE TABLE IF NOT EXISTS {} (query_id text, output text, target text, batch_id bigint, "
    text += "reason text, refused_row text)"
    _make(connection, driver().sql.SQL(text).format(driver().sql.Identifier(*path)))


def add_columns(connection: Any, path: Sequence[str], columns: pa.Schema) -> None:
    """Add the `columns` that a table lacks; two queries may do so at once."""
    sql = driver().sql
    if not _exists(connection, path):
        return
    parts = [
        sql.SQL("ADD COLUMN IF NOT EXISTS {} {}").format(sql.Identifier(f.name), sql.SQL(column_type(f.type))) for f in columns
    ]
    query = "SELECT attname::text FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
    there = {name for (name,) in connection.execute(query, (_oid(connection, path),)).fetchall()}
    if not there.issuperset(columns.names):
        _make(connection, sql.SQL("ALTER TABLE {} {}").format(sql.Identifier(*path), sql.SQL(", ").join(parts)))


def _make(connection: Any, query: Any) -> None:
    """Two queries may make one table at once: the one that comes second finds it made."""
    try:
        connection.execute(query)
        connection.commit()
    except driver().errors.UniqueViolation:
        connection.rollback()


def _oid(connection: Any, path: Sequence[str]) -> int | None:
    name = driver().sql.Identifier(*path).as_string(connection)
    row = connection.execute("SELECT to_regclass(%s)::oid", (name,)).fetchone()
    return None if row[0] is None else int(row[0])


def _exists(connection: Any, path: Sequence[str]) -> bool:
    return _oid(connection, path) is not None


def check_table(connection: Any, path: Sequence[str], ledger: Sequence[str], columns: pa.Schema, key: Sequence[str]) -> None:
    """Refuse a table that does not take the rows.

    Raises
    ------
    PlanError
        When it does not exist, or may not be written.
    SchemaError
        For other columns or types, and for a key without an index.
    """
    title, oid = ".".join(path), _oid(connection, path)
    if oid is None:
        hint = "create it, or leave create=True; upper and lower case count"
        raise PlanError("there is no such table in PostgreSQL", got=title, hint=hint)
    kind = connection.execute("SELECT relkind::text FROM pg_class WHERE oid = %s", (oid,)).fetchone()[0]
    if kind not in _TABLES:
        hint = "name the table that it shows"
        raise PlanError("rows can be copied into a table only", got=f"{title} is not a table", hint=hint)
    needed = ["SELECT", "INSERT", *(["UPDATE", "DELETE"] if key else [])]
    _check_rights(connection, title, oid, needed)
    table_oid = _oid(connection, ledger)
    assert table_oid is not None
    _check_rights(connection, ".".join(ledger), table_oid, ["SELECT", "INSERT", "UPDATE"])
    _check_ledger(connection, table_oid, ".".join(ledger))
    _check_columns(connection, title, oid, columns, key)
    if key and not _is_unique(connection, oid, key):
        names, quoted = ", ".join(key), driver().sql.SQL(", ").join(map(driver().sql.Identifier, key)).as_string(connection)
        table = driver().sql.Identifier(*path).as_string(connection)
        then = "results of one key could not replace each other"
        hint = f"CREATE UNIQUE INDEX ON {table} ({quoted}) NULLS NOT DISTINCT, or let the sink make the table"
        raise SchemaError(f"table {title} has no unique index over `key`", got=names, then=then, hint=hint)


def _check_ledger(connection: Any, oid: int, title: str) -> None:
    query = "SELECT attname::text FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
    names = {name for (name,) in connection.execute(query, (oid,)).fetchall()}
    if not names >= {*_NOTED, "batch_id"} or not _is_unique(connection, oid, _NOTED):
        hint = "pass the name of another one with ledger=: it is made if it is missing"
        raise SchemaError("`ledger` is another table", got=title, hint=hint)


def _check_columns(connection: Any, title: str, oid: int, columns: pa.Schema, key: Sequence[str]) -> None:
    query = (
        "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '', "
        "attgenerated <> '' OR (attidentity = 'a' AND %s), coalesce(collisdeterministic, true) "
        "FROM pg_attribute LEFT JOIN pg_collation c ON c.oid = attcollation "
        "WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    found_columns = connection.execute(query, (bool(key), oid)).fetchall()
    there = {name: (kind, needs) for name, kind, needs, _, _ in found_columns}
    computed = {name for name, _, _, is_computed, _ in found_columns if is_computed}
    loose = {name for name, kind, _, _, exact in found_columns if not exact or kind.startswith(_LOOSE)}
    for field in columns:
        if field.name not in there:
            has = ", ".join(there)
            raise _other(title, f"there is no column {field.name}; it has {has}", f"add one of type {column_type(field.type)}")
        if field.name in computed:
            raise _other(title, f"its column {field.name} is computed", "leave the column out with .select(...)")
        if field.name in key and field.name in loose:
            got = f"{field.name} is {there[field.name][0]}, and takes several texts of a key for one"
            raise _other(title, got, "make it text, with a collation that tells all texts apart")
        if not takes(there[field.name][0], field.type):
            got = f"{field.name} is {there[field.name][0]}, and values are {type_text(field.type)}"
            raise _other(title, got, f"make it {column_type(field.type)}, or cast the values with .with_column or .select")
    for name, (_, needs) in there.items():
        if needs and name not in columns.names:
            raise _other(title, f"its column {name} is NOT NULL, and rows have no such column", "give it a default")


def _other(title: str, got: str, hint: str) -> SchemaError:
    return SchemaError(f"table {title} does not take the rows", got=got, hint=hint)


def _check_rights(connection: Any, title: str, oid: int, needed: Sequence[str]) -> None:
    for right in needed:
        if not connection.execute("SELECT has_table_privilege(%s::oid, %s)", (oid, right)).fetchone()[0]:
            role = connection.info.user
            hint = f"GRANT {', '.join(needed)} ON {title} TO {role}"
            raise PlanError("a right is missing in PostgreSQL", got=f"{right} on {title} for {role}", hint=hint)


def takes_nulls_for_one(connection: Any, path: Sequence[str], key: Sequence[str]) -> bool:
    """Return whether an index over the key finds nulls: one that users made may tell each null from all others."""
    if connection.info.server_version < 150_000:
        return False
    oid = _oid(connection, path)
    return oid is not None and _is_unique(connection, oid, key, "AND i.indnullsnotdistinct ")


def _is_unique(connection: Any, oid: int, key: Sequence[str], condition: str = "") -> bool:
    query = (
        "SELECT array_agg(a.attname::text) FROM pg_index i "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1]) "
        "WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL "
        f"AND i.indexprs IS NULL {condition}GROUP BY i.indexrelid"
    )
    return any(set(columns) == set(key) for (columns,) in connection.execute(query, (oid,)).fetchall())


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


def _newest_by(value: object) -> str | None:
    return None if value is None else a_text(value, "newest_by", 'pass the name of a column: newest_by="at"')


@attrs.define
class _OpenConnection:
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
        The database, as libpq reads it: ``postgresql://host/database`` or ``host=... dbname=...``. Passwords are better
        in ``~/.pgpass`` or ``PGPASSWORD``; one that is given here is shown nowhere.
    table : str
        ``table`` or ``schema.table``, upper and lower case as written.
    key : sequence of str
        The columns of which a result has one row: mostly the keys, ``window_start`` and ``window_end``.
    log : bool
        Whether results that change are added as a log, with ``op``. Without it, and without a `key`, they are refused.
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
    newest_by : str or None
        A column, such as the event time: a row takes the place of another one of its key, or takes it out, only where its
        value there is not smaller. So what comes late or is written once more by another query replaces nothing newer. With
        None the row that comes last stays.

    Raises
    ------
    PlanError
        For a text that is not a `conninfo`, and for names that are none.
    MissingExtraError
        Without psycopg.

    Examples
    --------
    >>> from krishiv_py import PostgresSink
    >>> sink = PostgresSink("postgresql://app:secret@localhost/shop", "per_user", key=["user", "window_start"])
    >>> sink.title, "secret" in repr(sink)
    ('PostgresSink per_user', False)
    """

    conninfo: Database = attrs.field(converter=_place)
    table: str = attrs.field(converter=_table)
    key: tuple[str, ...] = attrs.field(default=(), converter=a_key, kw_only=True)
    log: bool = attrs.field(default=False, kw_only=True, converter=a_log)
    create: bool = attrs.field(default=True, kw_only=True, converter=a_create)
    ledger: str = attrs.field(default="krishiv_batches", kw_only=True, converter=_ledger)
    evolve: bool = attrs.field(default=False, kw_only=True, converter=evolve)
    refused: str | None = attrs.field(default=None, kw_only=True, converter=_refused)
    newest_by: str | None = attrs.field(default=None, kw_only=True, converter=_newest_by)
    _open: _OpenConnection = attrs.field(factory=_OpenConnection, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        check_log("PostgresSink", self.key, self.log)
        if self._ledger_path == self._path:
            hint = "give the ledger another name, or leave it out"
            raise PlanError("`ledger` is the table of results", got=shown(self.table), hint=hint)
        if self.newest_by is not None and (not self.key or self.newest_by in self.key):
            hint = 'name the key, and a column that is none of it: key="user", newest_by="at"'
            raise PlanError("`newest_by` says which row of a key stays", got=f"key={list(self.key)}", hint=hint)
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
        """Return its kind and its table."""
        return f"PostgresSink {self.table}"

    def dataset(self) -> Dataset:
        """Return the name of the table: database, schema and table."""
        return Dataset(f"postgres://{self.conninfo.server}", ".".join((self.conninfo.name, *self.table_id[2:])))

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
        if self.newest_by is not None:
            check_newest_by(self.title, self.key, self.newest_by, schema)
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
            row = connection.execute(query, (batch.query_id, batch.output, self.table)).fetchone()
        return None if row is None else int(row[0])

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
        """Put the last row of each key, or the newest, in place of what is there, and take out keys that are withdrawn."""
        rows, by = self._open.rows, self.newest_by
        changed = net_changes(rows, self.key, self.title) if by is None else newest_changes(rows, self.key, by)
        if changed.gone.num_rows:
            self._take_out(changed.gone)
        if changed.put.num_rows:
            self._take(batch, changed.put, self._put)

    def _with_null(self) -> Any:
        """Return the condition that keys of `t` and `s` are one key with a null in it."""
        sql = driver().sql
        nulls = sql.SQL(" OR ").join(sql.SQL("s.{} IS NULL").format(sql.Identifier(k)) for k in self.key)
        same = sql.SQL(" AND ").join(sql.SQL("t.{0} IS NOT DISTINCT FROM s.{0}").format(sql.Identifier(k)) for k in self.key)
        return sql.SQL("({}) AND {}").format(nulls, same)

    def _not_newer(self, rows: str, form: str) -> Any:
        """Return the condition that the table has no newer row of the key than `rows`, in a `form`; nothing where all count."""
        sql = driver().sql
        if self.newest_by is None:
            return sql.SQL("")
        names = sql.Identifier("t", self.newest_by), sql.Identifier(rows, self.newest_by)
        return sql.SQL(form).format(sql.SQL("({0} IS NULL OR {0} <= {1})").format(*names))

    def _take_out(self, gone: pa.Table) -> None:
        sql, execute = driver().sql, self._open.connection.execute
        self._staged(_GONE, gone)
        plain = sql.SQL(" AND ").join(sql.SQL("t.{0} = s.{0}").format(sql.Identifier(k)) for k in self.key)
        statement = sql.SQL("DELETE FROM {} t USING {} s WHERE ").format(sql.Identifier(*self._path), sql.Identifier(_GONE))
        statement += self._not_newer("s", "{} AND ")
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
                taken = execute(update + self._not_newer("s", "{} AND ") + self._with_null()).rowcount
            execute(sql.SQL("DELETE FROM {} s USING {} t WHERE ").format(stage, target) + self._with_null())
        sets = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(n) for n in others)
        put = execute(  # in one order, lest two queries of one table wait for each other
            sql.SQL("INSERT INTO {} AS t ({}) SELECT {} FROM {} ORDER BY {} ON CONFLICT ({}) DO ").format(
                target, _names(names), _names(names), stage, _names(self.key), _names(self.key)
            )
            + (sql.SQL("UPDATE SET ") + sets + self._not_newer("excluded", " WHERE {}") if others else sql.SQL("NOTHING"))
        )
        execute(sql.SQL("DROP TABLE pg_temp.{}").format(stage))
        if others and self.newest_by is None:
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
