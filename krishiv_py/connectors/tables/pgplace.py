"""Determine where a PostgreSQL database is: connections, what is said of it, and what its errors mean."""

from __future__ import annotations

from typing import Any, Final

import attrs

from krishiv_py.errors import OperatorError, PlanError, missing_extra, require_extra
from krishiv_py.plan.checks import a_text
from krishiv_py.redaction import HIDDEN, is_secret, redacted

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
    "40P01": ("another transaction stood in the way", "start the query again: the batch is written again"),
    "53100": ("the disk of the server is full", "make room, and start the query again: the batch is written again"),
}
_AWAY: Final = ("the server went away", "start the query again: the batch is written again, or recognised if it is there")


def driver() -> Any:
    """The module ``psycopg``.

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
    title : str
        What people read: database, host and port.
    """

    address: str = attrs.field(repr=False)
    title: str

    @classmethod
    def of(cls, address: object) -> Database:
        """The database that a user told.

        Raises
        ------
        PlanError
            For a text that libpq cannot read.
        """
        text = a_text(address, "conninfo", 'pass for instance "postgresql://user@host/database"')
        psycopg = driver()
        try:
            found = psycopg.conninfo.conninfo_to_dict(text)
        except psycopg.Error:  # whose text quotes what it could not read
            raise PlanError(
                "`conninfo` cannot be read",
                got=f"a text of {len(text)} characters",
                hint='pass "postgresql://user@host/database" or "host=... dbname=... user=..."; encode signs as URLs need',
            ) from None
        host = found.get("host") or found.get("hostaddr") or "localhost"
        return cls(text, f"{found.get('dbname', 'the default database')} at {host}:{found.get('port', 5432)}")

    def connect(self) -> Any:
        """A connection with a transaction that is begun by its first statement.

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
            raise OperatorError(
                "PostgreSQL cannot be reached",
                got=f"{self.title}: {self.clean(str(problem))}",
                hint="see that the server runs, and that address, user and password are right",
            ) from None

    def failed(self, table: str, problem: BaseException) -> OperatorError:
        """The error for a statement that failed."""
        code = getattr(problem, "sqlstate", None) or ""
        lost = code[:2] in ("08", "57") or not code
        what, hint = _AWAY if lost else _MEANINGS.get(code, ("PostgreSQL refuses rows", "see the text of the server"))
        got = f"table {table} in {self.title}: {self.clean(str(problem))}"
        return OperatorError(what, got=got, then="the batch is not written", hint=hint)

    def clean(self, text: str) -> str:
        """One line of a `text` without secrets."""
        for name, value in driver().conninfo.conninfo_to_dict(self.address).items():
            if is_secret(name) and value:
                text = text.replace(str(value), HIDDEN)
        return redacted(" ".join(text.split())[:500])
