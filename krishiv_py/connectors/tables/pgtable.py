"""The table of a sink in PostgreSQL: made where it is missing, and held against the rows that are to come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from krishiv_py.connectors.tables.pgplace import driver
from krishiv_py.connectors.tables.pgtypes import column_type, takes
from krishiv_py.errors import PlanError, SchemaError
from krishiv_py.types import type_text

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
    found = connection.execute("SELECT to_regclass(%s)::oid", (name,)).fetchone()
    return None if found[0] is None else int(found[0])


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
        hint = "name the table behind it"
        raise PlanError("rows can be copied into a table only", got=f"{title} is not a table", hint=hint)
    needed = ["SELECT", "INSERT", *(["UPDATE", "DELETE"] if key else [])]
    _check_rights(connection, title, oid, needed)
    found = _oid(connection, ledger)
    assert found is not None
    _check_rights(connection, ".".join(ledger), found, ["SELECT", "INSERT", "UPDATE"])
    _check_ledger(connection, found, ".".join(ledger))
    _check_columns(connection, title, oid, columns, key)
    if key and not _is_unique(connection, oid, key):
        names, quoted = ", ".join(key), driver().sql.SQL(", ").join(map(driver().sql.Identifier, key)).as_string(connection)
        table = driver().sql.Identifier(*path).as_string(connection)
        raise SchemaError(
            f"table {title} has no unique index over `key`",
            got=names,
            then="results of one key could not replace each other",
            hint=f"CREATE UNIQUE INDEX ON {table} ({quoted}) NULLS NOT DISTINCT, or let the sink make the table",
        )


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
    found = _oid(connection, path)
    return found is not None and _is_unique(connection, found, key, "AND i.indnullsnotdistinct ")


def _is_unique(connection: Any, oid: int, key: Sequence[str], condition: str = "") -> bool:
    query = (
        "SELECT array_agg(a.attname::text) FROM pg_index i "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1]) "
        "WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL "
        f"AND i.indexprs IS NULL {condition}GROUP BY i.indexrelid"
    )
    return any(set(found) == set(key) for (found,) in connection.execute(query, (oid,)).fetchall())
