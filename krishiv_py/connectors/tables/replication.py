"""Changes of a table of PostgreSQL, by logical replication: a slot has what was not read yet, and a publication the table.

A batch is a span of the log between two commits. Its changes are looked at, and stay in the slot until the batch is committed,
so a repeated batch reads the same; only then the slot goes on. The first batch is the table as it is, in a snapshot that stays
open for it, and the changes up to then: one that the snapshot has already comes once more, and in the end the last one counts.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from krishiv_py.connectors.source import JsonValue, Planned, Source
from krishiv_py.connectors.tables import pgoutput
from krishiv_py.connectors.tables.postgres import Database, driver
from krishiv_py.connectors.tables.source import AGAIN, FEED, with_feed
from krishiv_py.errors import KrishivError, PlanError, SourceError, shown
from krishiv_py.plan.changes import FEED_KIND, FEED_TIME, FEED_VERSION
from krishiv_py.plan.checks import a_number, a_switch, a_text, one_of
from krishiv_py.plan.schema import as_schema
from krishiv_py.storage.datasets import Dataset

OnTruncate: TypeAlias = Literal["fail", "side_output"]
ChangesPlace: TypeAlias = Literal["earliest", "latest"]
_BLOCK: Final = 8 << 20
"""Bytes of a table that become one batch of rows."""
_QUIET_BYTES: Final = 16 << 20
"""The log of other tables after which the slot goes on, so that the server can drop it."""
_WAITS_SECONDS: Final = 30.0
"""The time that a slot in use is waited for: another call of the same query may look at it."""
_SLOT: Final = re.compile("[a-z0-9_]{1,63}")
_STYLE: Final = (
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET bytea_output = 'hex'; SET IntervalStyle = 'postgres'; "
    "SET extra_float_digits = 1; SET client_encoding = 'UTF8'"
)
_PEEK: Final = (
    "PG_LOGICAL_SLOT_PEEK_BINARY_CHANGES(%(slot)s, %(upto)s::pg_lsn, %(most)s, "
    "'proto_version', '1', 'publication_names', %(publication)s)"
)
_MEANINGS: Final = {
    "42501": ("the role may not read changes", "ALTER ROLE ... REPLICATION, and GRANT SELECT on the table"),
    "42704": ("a slot or a publication of PostgreSQL is gone", f"make it again, and {AGAIN} and an empty target"),
    "55000": ("PostgreSQL does not give changes", "set wal_level = logical, and start the server again"),
    "55006": ("the slot is in use", "let one query read it"),
    "53400": ("PostgreSQL has no slot left", "drop one that nobody reads, or raise max_replication_slots"),
}


def lsn_text(place: int) -> str:
    """Return a place in the log as PostgreSQL writes it."""
    return f"{place >> 32:X}/{place & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """Return a place in the log as a number."""
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


@attrs.define(eq=False)
class _Connections:
    """Holds the connections of the driver: one for questions, and that of the snapshot of the first batch.

    They stay behind when a source is sent to a task.
    """

    connection: Any = None
    snapshot: Any = None
    seen: int = -1

    def __reduce__(self) -> tuple[type[_Connections], tuple[()]]:
        return _Connections, ()


@attrs.frozen(eq=False, kw_only=True)
class PostgresChanges(Source):
    """Made by ``session.read_postgres_changes``.

    Attributes
    ----------
    database : Database
        The server.
    path : (str, str)
        Schema and table.
    slot, publication : str
        What has the changes, and what says which.
    system : str
        The identity of the server.
    """

    schema: pa.Schema
    database: Database
    path: tuple[str, str]
    slot: str
    publication: str
    system: str
    starting: ChangesPlace
    create: bool
    most: int
    on_truncate: OnTruncate
    until: int | None = None
    poll_seconds: float = 0.2
    _connections: _Connections = attrs.field(factory=_Connections, init=False, repr=False)

    @property
    def _called(self) -> str:
        return f"{'.'.join(self.path)} in {self.database.title}"

    def describe(self) -> str:
        """See Source."""
        return f"slot {self.slot}, publication {self.publication} of {self.database.title}"

    def datasets(self) -> tuple[Dataset, ...]:
        """Return the name of the table."""
        return (Dataset(f"postgres://{self.database.server}", ".".join((self.database.name, *self.path))),)

    def until_now(self) -> PostgresChanges:
        """Up to where the log is now."""
        if self.until is not None:
            return self
        with self._explained(), contextlib.closing(connected(self.database)) as connection:
            return attrs.evolve(self, until=_log_end(connection))

    def plan(self, last: JsonValue) -> Planned | None:
        """Return the span of the log up to the last commit there is; None if it has no change of the table."""
        with self._explained():
            return self._first() if last is None else self._next(last)

    def _first(self) -> Planned:
        connection = self._connection()
        if not _exists(connection, "SELECT 1 FROM pg_publication WHERE pubname = %s", self.publication):
            self._make_publication(connection)
        if not _exists(connection, "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", self.slot):
            if not self.create:
                hint = f"SELECT PG_CREATE_LOGICAL_REPLICATION_SLOT('{self.slot}', 'pgoutput'), or leave create=True"
                raise SourceError("there is no such slot in PostgreSQL", got=self.slot, hint=hint)
            connection.execute("SELECT PG_CREATE_LOGICAL_REPLICATION_SLOT(%s, 'pgoutput')", (self.slot,))
        begin, end, ranges = self._confirmed(connection), 0, list[JsonValue]()
        if self.starting == "earliest":
            self._drop_snapshot()
            snapshot = self._connections.snapshot = connected(self.database)
            snapshot.autocommit = False
            snapshot.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            ranges.append({"snapshot": snapshot.execute("SELECT PG_EXPORT_SNAPSHOT()").fetchone()[0]})
            end = _inserted(connection)  # the log has all that the snapshot sees
            ranges.append({"begin": begin, "end": end})
        return Planned(self._position(max(begin, end)), ranges or [{"begin": begin, "end": begin}])

    def _next(self, last: JsonValue) -> Planned | None:
        assert isinstance(last, dict)
        begin = last["lsn"]
        assert isinstance(begin, int)
        if last["system"] != self.system or last["slot"] != self.slot:
            got = f"slot {self.slot} of server {self.system}; slot {last['slot']} of server {last['system']} was read"
            raise SourceError(
                "it is another database than the one that was read", got=got, hint=f"name the old one, or {AGAIN}"
            )
        if self.until is not None and begin >= self.until:
            return None
        connection = self._connection()
        now = _log_end(connection)
        if now == self._connections.seen:
            return None
        confirmed = self._confirmed(connection)
        if confirmed > begin:
            raise SourceError(
                "a slot of PostgreSQL is further on than the checkpoint",
                got=f"slot {self.slot} is at {lsn_text(confirmed)}, and {lsn_text(begin)} was read",
                then="another query read it, or the checkpoint is an older copy: changes are lost to this query",
                hint=f"give each query a slot of its own, and {AGAIN} and an empty target",
            )
        # a slot that has not gone on yet, as after a crash, also has what was read
        most = self.most if confirmed == begin else None
        end, changed = self._peeked(connection, begin, min(now, self.until or now), most)
        if changed and end > begin:
            return Planned(self._position(end), [{"begin": begin, "end": end}])
        self._connections.seen = now
        if now - begin > _QUIET_BYTES and self.until is None:  # an empty batch, after which the slot goes on
            return Planned(self._position(now), [{"begin": begin, "end": now}])
        return None

    def _peeked(self, connection: Any, begin: int, upto: int, most: int | None) -> tuple[int, bool]:
        """Return where the commit of the last transaction that is taken ends, and whether there are changes."""
        kind = "GET_BYTE(data, 0)"
        query = (
            f"SELECT MAX(lsn) FILTER (WHERE {kind} = {pgoutput.COMMIT})::text, BOOL_OR({kind} IN (73, 85, 68, 84)) FROM {_PEEK}"
        )
        parameters = self._parameters(lsn_text(upto), most)
        end, many = self._patiently(lambda: connection.execute(query, parameters).fetchone())
        return (begin if end is None else max(begin, lsn_number(end))), bool(many)

    def _parameters(self, upto: str, most: int | None) -> dict[str, Any]:
        quoted = self.publication.replace('"', '""')
        return {"slot": self.slot, "upto": upto, "most": most, "publication": f'"{quoted}"'}

    def _position(self, lsn: int) -> JsonValue:
        return {"system": self.system, "slot": self.slot, "lsn": lsn}

    def _connection(self) -> Any:
        if self._connections.connection is None or self._connections.connection.closed:
            self._connections.connection = connected(self.database)
        return self._connections.connection

    def _confirmed(self, connection: Any) -> int:
        """Return up to where the slot is read.

        Raises
        ------
        SourceError
            When there is no such slot, or it is another one, or the server dropped what it had.
        """
        query = (
            "SELECT plugin, database = CURRENT_DATABASE(), confirmed_flush_lsn::text, wal_status "
            "FROM pg_replication_slots WHERE slot_name = %s"
        )
        row = connection.execute(query, (self.slot,)).fetchone()
        if row is None:
            then, hint = "changes since then are not known", f"{AGAIN} and an empty target: it makes another slot"
            raise SourceError("the slot of PostgreSQL is gone", got=self.slot, then=then, hint=hint)
        plugin, own, confirmed, status = row
        if plugin != "pgoutput" or not own or confirmed is None:
            got = f"slot {self.slot} is of the plug-in {plugin}" if own else f"slot {self.slot} is of another database"
            raise SourceError("a slot of PostgreSQL is of another kind", got=got, hint="name another slot: it is made")
        if status in ("lost", "unreserved"):
            got = f"slot {self.slot} has the status {status}"
            hint = f"raise max_slot_wal_keep_size, drop the slot, and {AGAIN} and an empty target"
            raise SourceError("the server dropped changes of the slot", got=got, hint=hint)
        return lsn_number(confirmed)

    def _make_publication(self, connection: Any) -> None:
        sql = driver().sql
        if not self.create:
            hint = f"CREATE PUBLICATION {self.publication} FOR TABLE {'.'.join(self.path)}, or leave create=True"
            raise SourceError("there is no such publication in PostgreSQL", got=self.publication, hint=hint)
        text = sql.SQL("CREATE PUBLICATION {} FOR TABLE {}")
        connection.execute(text.format(sql.Identifier(self.publication), sql.Identifier(*self.path)))

    def finished(self, position: JsonValue) -> None:
        """Let the slot go on: what it had up to here is in a batch that is committed."""
        assert isinstance(position, dict)
        self._drop_snapshot()
        self._connections.seen = -1
        with contextlib.suppress(driver().Error, KrishivError):  # it goes on with the next batch
            query = "SELECT PG_REPLICATION_SLOT_ADVANCE(%s, %s::pg_lsn)"
            connection, lsn = self._connection(), position["lsn"]
            assert isinstance(lsn, int)
            if self._confirmed(connection) < lsn:
                self._patiently(lambda: connection.execute(query, (self.slot, lsn_text(lsn))).fetchone())

    def _drop_snapshot(self) -> None:
        if self._connections.snapshot is not None:
            self._connections.snapshot.close()
        self._connections.snapshot = None

    def _patiently(self, call: Callable[[], Any]) -> Any:
        until = time.monotonic() + _WAITS_SECONDS
        while True:
            try:
                return call()
            except driver().errors.ObjectInUse:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the snapshot, or of a span of the log."""
        assert isinstance(planned, dict)
        with self._explained(), contextlib.closing(connected(self.database)) as connection:
            if "snapshot" in planned:
                yield from self._snapshot_rows(connection, str(planned["snapshot"]), columns)
            elif planned["begin"] != planned["end"]:
                begin, end = planned["begin"], planned["end"]
                assert isinstance(begin, int) and isinstance(end, int)
                yield from self._changed_rows(connection, begin, end, columns)

    def _snapshot_rows(self, connection: Any, snapshot: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        sql = driver().sql
        connection.autocommit = False
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        try:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        except driver().Error as problem:
            raise SourceError(
                "the snapshot of the first batch is gone",
                got=f"{self._called}: {self.database.clean(str(problem))}",
                then="the query ended while it read the table as it was, and it is another one now",
                hint=f"{AGAIN} and an empty target",
            ) from None
        names = [name for name in columns if name not in FEED.names] or [self.schema.names[0]]
        picked = sql.SQL(", ").join(map(sql.Identifier, names))
        text = "COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)"
        statement = sql.SQL(text).format(picked, sql.Identifier(*self.path))
        now_us = int(connection.execute("SELECT (EXTRACT(epoch FROM NOW()) * 1000000)::bigint").fetchone()[0])
        parts, size = list[bytes](), 0
        with connection.cursor().copy(statement) as copy:
            for line in copy:
                parts.append(bytes(line))
                size += len(line)
                if size >= _BLOCK:
                    yield self._copied(b"".join(parts), names, columns, now_us)
                    parts, size = [], 0
        if parts:
            yield self._copied(b"".join(parts), names, columns, now_us)

    def _copied(self, text: bytes, names: Sequence[str], columns: Sequence[str], now_us: int) -> pa.RecordBatch:
        table = pacsv.read_csv(
            pa.BufferReader(text),
            pacsv.ReadOptions(column_names=list(names), block_size=len(text) + 1, use_threads=False),
            pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        )
        texts = {name: table[name].combine_chunks() for name in names}
        n = table.num_rows
        return self._batch(texts, n, pa.repeat("insert", n), np.zeros(n, np.int64), np.full(n, now_us), columns)

    def _batch(
        self, texts: Mapping[str, pa.Array], n: int, kinds: pa.Array, versions: Any, times: Any, columns: Sequence[str]
    ) -> pa.RecordBatch:
        made = {FEED_KIND: kinds, FEED_VERSION: pa.array(versions), FEED_TIME: pa.array(times, FEED.field(FEED_TIME).type)}
        for name in columns:
            if name not in made:
                kind = self.schema.field(name).type
                made[name] = self._value(name, texts[name], kind) if name in texts else pa.nulls(n, kind)
        return pa.record_batch([made[name] for name in columns], schema=pa.schema([self.schema.field(c) for c in columns]))

    def _value(self, name: str, texts: pa.Array, kind: pa.DataType) -> pa.Array:
        try:
            return pgoutput.values_of(texts, kind)
        except pa.ArrowInvalid as problem:
            got = f"{name} of {self._called}: {problem}"
            hint = f"cast the column to text in a view or a generated column, or change such rows, and {AGAIN}"
            raise SourceError("a value of PostgreSQL is none of its type here", got=got, hint=hint) from None

    def _changed_rows(self, connection: Any, begin: int, end: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        cursor = connection.cursor(binary=True)
        query = f"SELECT (lsn - '0/0')::bigint, data FROM {_PEEK}"
        rows = self._patiently(lambda: cursor.execute(query, self._parameters(lsn_text(end), None)).fetchall())
        if self._confirmed(connection) > begin:
            got = f"slot {self.slot} was at {lsn_text(begin)}"
            raise SourceError("changes of a batch are gone from the slot", got=got, hint=f"{AGAIN} and an empty target")
        if not rows:
            return
        places = np.fromiter((lsn for lsn, _ in rows), np.int64, len(rows))
        messages = pgoutput.Messages.of([data for _, data in rows])
        commits, times = messages.transactions()
        inside = (commits >= begin) & (commits < end)
        for part in messages.rows(lambda relation: (relation.schema, relation.name) == self.path):
            self._check_columns(part, columns)
            own = np.flatnonzero(inside[part.at])
            if len(own):
                texts = {name: part.columns[name].texts() for name in columns if name in part.columns}
                made = self._batch(
                    texts, len(part.at), pa.repeat(part.kind, len(part.at)), places[part.at], times[part.at], columns
                )
                yield made.take(pa.array(own)) if len(own) < len(part.at) else made
        yield from self._truncations(messages, inside, places, times, columns)

    def _check_columns(self, part: pgoutput.Rows, columns: Sequence[str]) -> None:
        missing = [name for name in columns if name not in part.relation.columns and name not in FEED.names]
        if missing:
            got, then = f"{self._called}: {', '.join(missing)}", "they would be null from there on"
            hint = f"{AGAIN} and the columns there are now"
            raise SourceError("a table of PostgreSQL has lost columns", got=got, then=then, hint=hint)
        if part.kind != "update_postimage":
            return
        for name in columns:
            if name in part.columns and part.columns[name].kept.any():
                raise SourceError(
                    "the log of PostgreSQL lacks a large value that an update left as it was",
                    got=f"{name} of {self._called}",
                    then="the row would have a null instead of it",
                    hint=f"ALTER TABLE {'.'.join(self.path)} REPLICA IDENTITY FULL, then drop the slot, and {AGAIN}",
                )

    def _truncations(
        self, messages: pgoutput.Messages, inside: Any, places: Any, times: Any, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        own = {oid for _, oid, relation in messages.relations() if (relation.schema, relation.name) == self.path}
        at = np.array(sorted({int(n) for oid in own for n in messages.truncated(oid) if inside[n]}), np.int64)
        if not len(at):
            return
        if self.on_truncate == "fail":
            raise SourceError(
                "a table of PostgreSQL was truncated",
                got=f"{self._called}, at {lsn_text(int(places[at[0]]))}",
                then="the log does not say which rows are gone",
                hint=f'drop the slot, and {AGAIN} and an empty target; on_truncate="side_output" goes on, with such rows',
            )
        yield self._batch({}, len(at), pa.repeat("truncate", len(at)), places[at], times[at], columns)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except driver().Error as problem:
            raise failed(self.database, self._called, problem) from None


def connected(database: Database) -> Any:
    """Return a connection whose values are written in one style."""
    connection = database.connect()
    connection.autocommit = True
    connection.execute(_STYLE)
    return connection


def failed(database: Database, called: str, problem: BaseException) -> SourceError:
    """Return the error for a statement that failed."""
    code = getattr(problem, "sqlstate", None) or ""
    gone = not code or code[:2] in ("08", "57")
    away = ("the server of PostgreSQL went away", "start the query again: it goes on where its checkpoint is")
    what, hint = away if gone else _MEANINGS.get(code, ("PostgreSQL refuses", "see the text of the server"))
    return SourceError(what, got=f"{called}: {database.clean(str(problem))}", hint=hint, transient=gone)


def _exists(connection: Any, query: str, name: str) -> bool:
    return connection.execute(query, (name,)).fetchone() is not None


def _log_end(connection: Any) -> int:
    return lsn_number(connection.execute("SELECT PG_CURRENT_WAL_FLUSH_LSN()::text").fetchone()[0])


def _inserted(connection: Any) -> int:
    """Return where the log ends, once all of it can be read: a commit may be seen before it is on disk."""
    end = lsn_number(connection.execute("SELECT PG_CURRENT_WAL_INSERT_LSN()::text").fetchone()[0])
    until = time.monotonic() + _WAITS_SECONDS
    while _log_end(connection) < end and time.monotonic() < until:
        time.sleep(0.01)
    return min(end, _log_end(connection))


def postgres_changes_source(
    conninfo: str,
    table: str,
    *,
    slot: str,
    publication: str,
    starting: ChangesPlace = "earliest",
    create: bool = True,
    max_changes_per_batch: int = 100_000,
    on_truncate: OnTruncate = "fail",
) -> PostgresChanges:
    """Return the changes of a table of PostgreSQL as a :class:`~krishiv_py.connectors.Source`;
    :meth:`krishiv_py.Session.read_postgres_changes` has the parameters.

    Raises
    ------
    PlanError
        For arguments that mean nothing, a server without logical replication, and a publication that lacks the table.
    OperatorError
        When the server cannot be reached.

    Examples
    --------
    >>> from krishiv_py.connectors import postgres_changes_source
    >>> def customers():
    ...     return postgres_changes_source("host=db dbname=shop", "customers", slot="customers", publication="customers")
    """
    one_of(starting, "starting", ("earliest", "latest"))
    one_of(on_truncate, "on_truncate", ("fail", "side_output"))
    a_switch(create, "create")
    a_number(max_changes_per_batch, "max_changes_per_batch", 1, "use 1 or more; a transaction is not divided", most=1 << 30)
    names = a_text(table, "table", 'pass "customers" or "shop.customers"').split(".")
    if len(names) > 2 or not all(names):
        raise PlanError("`table` is not a name of a table", got=shown(table), hint='pass "table" or "schema.table"')
    if not _SLOT.fullmatch(a_text(slot, "slot", 'pass a name: slot="krishiv_customers"')):
        hint = "use small letters, digits and underscores, at most 63"
        raise PlanError("`slot` is not a name of a slot", got=shown(slot), hint=hint)
    a_text(publication, "publication", 'pass a name: publication="krishiv"')
    path = (names[0], names[1]) if len(names) == 2 else ("public", names[0])
    database = Database.of(conninfo)
    try:
        with contextlib.closing(connected(database)) as connection:
            _check_server(connection)
            declared = _columns(connection, path, publication, create)
            system = str(connection.execute("SELECT system_identifier FROM PG_CONTROL_SYSTEM()").fetchone()[0])
    except driver().Error as problem:
        raise failed(database, f"{table} in {database.title}", problem) from None
    columns = as_schema(pa.schema([pa.field(name, pgoutput.column_type(kind)) for name, kind in declared.items()]))
    return PostgresChanges(
        schema=with_feed(columns, True),
        database=database,
        path=path,
        slot=slot,
        publication=publication,
        system=system,
        starting=starting,
        create=create,
        most=max_changes_per_batch,
        on_truncate=on_truncate,
    )


def _check_server(connection: Any) -> None:
    level = connection.execute("SHOW wal_level").fetchone()[0]
    if level != "logical":
        hint = "ALTER SYSTEM SET wal_level = 'logical', then start the server again"
        raise PlanError("the server of PostgreSQL keeps no log of rows", got=f"wal_level = {level}", hint=hint)


def _columns(connection: Any, path: tuple[str, str], publication: str, create: bool) -> dict[str, str]:
    """Return the columns of a table, and what PostgreSQL calls their types.

    Raises
    ------
    PlanError
        When there is no such table, or the publication has not all of its changes.
    """
    title = ".".join(path)
    query = (
        "SELECT a.attname::text, FORMAT_TYPE(CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE a.atttypid END, "
        "CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END) "
        "FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_type t ON t.oid = a.atttypid WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p') "
        "AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum"
    )
    found = connection.execute(query, path).fetchall()
    if not found:
        hint = "name schema and table; upper and lower case count, and views have no changes"
        raise PlanError("there is no such table in PostgreSQL", got=title, hint=hint)
    made = dict[str, str](found)
    query = "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = %s"
    row = connection.execute(query, (publication,)).fetchone()
    if row is None:
        if not create:
            hint = f"CREATE PUBLICATION {publication} FOR TABLE {title}, or leave create=True"
            raise PlanError("there is no such publication in PostgreSQL", got=publication, hint=hint)
        return made
    if not row[0]:
        hint = f"ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate')"
        raise PlanError("a publication leaves changes out", got=publication, hint=hint)
    query = "SELECT * FROM pg_publication_tables WHERE pubname = %s AND schemaname = %s AND tablename = %s"
    cursor = connection.execute(query, (publication, *path))
    row = cursor.fetchone()
    if row is None:
        hint = f"ALTER PUBLICATION {publication} ADD TABLE {title}; of a partitioned table also "
        hint += "SET (publish_via_partition_root = true)"
        raise PlanError("a publication does not have the table", got=f"{title} in {publication}", hint=hint)
    known = dict(zip([column.name for column in cursor.description], row, strict=True))
    if known.get("rowfilter"):
        hint = "publish the table without WHERE, and filter the table that is made of its changes"
        raise PlanError("a publication has a part of the rows only", got=f"{title}: {known['rowfilter']}", hint=hint)
    there = known.get("attnames")
    return made if there is None else {name: kind for name, kind in made.items() if name in there}
