"""Formats of changelogs: which row a change gives its key, and what says that it deletes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Final

import pyarrow as pa

from krishiv_py.api.computed import Named
from krishiv_py.errors import PlanError, SchemaError, shown
from krishiv_py.plan.changes import FEED_KIND, FEED_TIME, FEED_VERSION, ChangelogFormat
from krishiv_py.plan.checks import known_column
from krishiv_py.plan.expressions.expr import Expr, Field, coalesce, col, columns_of, lit, when
from krishiv_py.types import type_text

_UP: Final = ("+I", "+U", "I", "U", "insert", "update")
_DOWN: Final = ("-U", "-D", "D", "delete")
_FEED: Final[Mapping[str, bool]] = {"insert": True, "update_postimage": True, "delete": False, "update_preimage": False}
_DEBEZIUM: Final[Mapping[str, bool]] = {"c": True, "r": True, "u": True, "d": False}


def read_changes(
    written: ChangelogFormat,
    rows: pa.Schema,
    keys: tuple[str, ...],
    op: str,
    ops: Mapping[str, str] | None,
    times: tuple[str, ...],
    sequence: Sequence[Expr],
) -> tuple[list[Named], Expr, Expr | None]:
    """Return the columns of the table that changes of a format make, what they do, and which rows are changes.

    Parameters
    ----------
    written : {"log", "upsert", "debezium", "cdf"}
        How a change is written.
    rows : pyarrow.Schema
        The columns of the changes.
    keys : tuple of str
        The columns of the key, of the table.
    op : str
        The column of the operation, in a log.
    ops : dict, optional
        The operations of a log, each with ``"+I"``, ``"-U"``, ``"+U"`` or ``"-D"``.
    times : tuple of str
        The event time of a change, and what names its source.
    sequence : sequence of Expr
        What orders the changes of a key. A deletion has these columns, too.

    Raises
    ------
    SchemaError, ColumnError, PlanError
        For changes without the columns of their format, and for operations that are none.
    """
    if written == "debezium":
        return _debezium(rows, keys, times)
    if written == "cdf":
        own = {FEED_KIND, FEED_VERSION, FEED_TIME}.difference(times)
        return [(name, col(name)) for name in rows.names if name not in own], _meaning(col(FEED_KIND), _FEED), None
    if written == "upsert":
        known = {*keys, *times}.union(*map(columns_of, sequence))
        values = [col(name).is_null() for name in rows.names if name not in known]
        gone = reduce(and_, values) if values else lit(False)
        return [(name, col(name)) for name in rows.names], ~gone, None
    known_column(op, rows.names, "from_changelog(op)")
    return [(name, col(name)) for name in rows.names if name != op], _meaning(col(op), _operations(ops)), None


def order_of_feed(rows: pa.Schema, sequence: object) -> tuple[Expr, Expr]:
    """Return what orders the changes of a feed of a table: by commit, and in one commit rows that go before rows that come.

    Raises
    ------
    SchemaError
        For rows that are no feed.
    PlanError
        For a `sequence`: a deletion has that of the row before it, and would be stale.
    """
    for name, fits in ((FEED_KIND, pa.types.is_string), (FEED_VERSION, pa.types.is_integer)):
        if name not in rows.names or not fits(rows.field(name).type):
            got = type_text(rows.field(name).type) if name in rows.names else f"the columns {', '.join(rows.names[:20])}"
            hint = "read the table with changes=True"
            raise SchemaError(f"a change feed of a table has {name!r}", got=got, hint=hint)
    if sequence is not None:
        hint = f"leave sequence out: {FEED_VERSION} orders the changes of a feed"
        raise PlanError("a change feed of a table has its own order", got=f"sequence={shown(sequence)}", hint=hint)
    return col(FEED_VERSION), col(FEED_KIND).isin(*(kind for kind, adds in _FEED.items() if adds))


def _operations(ops: Mapping[str, str] | None) -> dict[str, bool]:
    if ops is None:
        return dict.fromkeys(_UP, True) | dict.fromkeys(_DOWN, False)
    known = {"+I": True, "+U": True, "-U": False, "-D": False}
    if not isinstance(ops, Mapping) or not ops or not all(isinstance(k, str) and v in known for k, v in ops.items()):
        hint = 'write ops={"ins": "+I", "upd": "+U", "del": "-D"}'
        raise PlanError("`ops` says what each operation does", got=shown(ops), hint=hint)
    return {name: known[kind] for name, kind in ops.items()}


def _meaning(op: Expr, meaning: Mapping[str, bool]) -> Expr:
    """Return an expression that is true, false or null by the operation."""
    up, down = ([name for name, adds in meaning.items() if adds is kind] for kind in (True, False))
    return when(op.isin(*up) if up else lit(False), True).when(op.isin(*down) if down else lit(False), False)


def _debezium(rows: pa.Schema, keys: tuple[str, ...], times: tuple[str, ...]) -> tuple[list[Named], Expr, Expr | None]:
    base: Expr | None = None
    fields = rows
    if "payload" in rows.names and pa.types.is_struct(rows.field("payload").type):
        base, fields = col("payload"), pa.schema(list(rows.field("payload").type))
    part = {name: col(name) if base is None else Field(base, name) for name in fields.names}
    for name, kind in (("op", pa.types.is_string), ("before", pa.types.is_struct), ("after", pa.types.is_struct)):
        if name not in fields.names or not kind(fields.field(name).type):
            got = type_text(fields.field(name).type) if name in fields.names else f"the columns {', '.join(fields.names[:20])}"
            hint = 'read it with "op string, before struct<id: bigint, ...>, after struct<id: bigint, ...>"'
            raise SchemaError(f"changes of Debezium have {name!r}", got=got, hint=hint)
    before, after = fields.field("before").type, fields.field("after").type
    table = [field.name for field in after]
    of_before = {field.name for field in before}
    for key in keys:
        known_column(key, table, "from_changelog(key)")
        if key not in of_before:
            hint = f"read `before` with the column {key}"
            raise SchemaError("a deletion says its key in `before`", got=f"no {key!r} in it", hint=hint)
    columns: list[Named] = []
    for name in table:
        value: Expr = Field(part["after"], name)
        columns.append((name, coalesce(value, Field(part["before"], name)) if name in keys else value))
    twice = next((name for name in times if name in table), None)
    if twice is not None:
        hint = f'give the time of the change another name before: .rename({twice}="changed_at")'
        raise SchemaError("changes of Debezium, and their rows, have a column of one name", got=shown(twice), hint=hint)
    columns += [(name, col(name)) for name in times]
    said = part["op"].is_not_null() & (part["op"] != "m")  # a message that a program wrote to the log of the database
    is_change = said | part["after"].is_not_null() | part["before"].is_not_null()
    return columns, _meaning(part["op"], _DEBEZIUM), is_change
