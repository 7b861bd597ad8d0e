"""Lookup joins: a stateless step that adds columns of a table to rows (SEMANTICS §9.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from krishiv_py.api.planning import evaluate, fit, lookup
from krishiv_py.connectors.lookup_table import LookupTable, as_table
from krishiv_py.errors import RAISED, ColumnError, PlanError, SchemaError, SourceError, failure_text, shown
from krishiv_py.plan.checks import column_name, known_column, one_of
from krishiv_py.plan.durations import Duration, to_us
from krishiv_py.plan.expressions.expr import Col, Expr, col
from krishiv_py.plan.expressions.facts import columns_of, unnamed
from krishiv_py.plan.nodes import BatchFunction
from krishiv_py.plan.schema import check_key_type, checked, is_key_type, require_columns, time_kind
from krishiv_py.types import type_text

LookupType: TypeAlias = Literal["left", "inner"]
"""Whether rows that find nothing stay."""
LookupKeys: TypeAlias = "str | Expr | Sequence[str | Expr | tuple[str | Expr, str | Expr]] | Mapping[str, str]"
"""What of a row is equal to what of a table: columns, or expressions."""


def looked_up(
    schema: pa.Schema,
    table: Any,
    on: LookupKeys,
    columns: Sequence[str] | Mapping[str, str] | None,
    how: str,
    validity: tuple[str, str] | None,
    at: str | None,
    reload: Duration | None,
) -> tuple[BatchFunction, pa.Schema]:
    """The step over rows of `schema`, and the schema it makes."""
    one_of(how, "how", ("left", "inner"))
    found = _table(table, reload)
    keys = _keys(on, schema, found.schema)
    valid = _validity(validity, at, schema, found.schema)
    picked = _picked(columns, found.schema, keys, () if valid is None else (valid.starts, valid.ends))
    taken = {n.lower() for n in schema.names}
    twice = [name for _, name in picked if name.lower() in taken]
    if twice:
        raise SchemaError(
            "rows have columns of these names already",
            got=", ".join(twice),
            hint=f'name them otherwise: columns={{"{twice[0]}": "{twice[0]}_found"}}',
        )
    step = lookup.Lookup(found.current, keys, picked, how == "left", valid)
    fields = [found.schema.field(column).with_name(name).with_nullable(True) for column, name in picked]
    return step, pa.schema([*schema, *fields])


def _table(table: Any, reload: Duration | None) -> LookupTable:
    load: Callable[[], Any] | None = table if callable(table) and not hasattr(table, "toArrow") else None
    reload_us = None if reload is None else to_us(reload, "reload")
    if reload_us is not None and load is None:
        raise PlanError(
            "a table that is loaded again needs a function that loads it",
            got=shown(table),
            hint="pass a function that returns a pyarrow.Table, or leave `reload` out",
        )
    try:
        given = table if load is None else _first(load)
        driver_only = load is not None and hasattr(given, "toArrow")  # a Spark session is not there in the tasks
        if driver_only and reload_us is None:
            load = None
        found = as_table(given)
    except TypeError as problem:
        raise PlanError(
            "lookup_join takes a table",
            got=str(problem),
            hint="pass a pyarrow.Table, a frame of pandas, Polars or DuckDB, a static Spark DataFrame, or a function that "
            "returns one; streams are joined with .interval_join, .asof_join or .window_join",
        ) from problem
    schema = checked(found.schema.remove_metadata())
    try:
        whole = fit.fit_table(found, schema, fit.LOOKUP)
    except fit.MisfitError as problem:
        raise problem.error("no row can be looked up in the table") from None
    return LookupTable(schema, None if load is not None else whole, load, reload_us, driver_only)


def _first(load: Callable[[], Any]) -> Any:
    """Return what a function loads now, for its columns."""
    try:
        return load()
    except RAISED as problem:  # user code: whatever it raises is reported
        hint = "let it return a pyarrow.Table: it is called here for the columns of the table"
        raise SourceError("the table of a lookup_join cannot be loaded", got=failure_text(problem), hint=hint) from problem


def _keys(on: object, rows: pa.Schema, table: pa.Schema) -> tuple[tuple[Expr, Expr], ...]:
    """Return what of a row is equal to what of the table, checked."""
    found = []
    for ours, theirs in _pairs(on):
        pair = _key(ours, rows, "lookup_join(on)"), _key(theirs, table, "lookup_join(on), table")
        one, other = evaluate.expr_type(pair[0], rows), evaluate.expr_type(pair[1], table)
        if one != other:
            raise ColumnError(
                "the key of rows and table has other types",
                got=f"{_named(pair[0])} is {type_text(one)}, {_named(pair[1])} is {type_text(other)}",
                hint=f'cast one of them: on=[(col("a").cast("{type_text(other)}"), "b")]',
            )
        found.append(pair)
    return tuple(found)


def _pairs(on: object) -> list[tuple[object, object]]:
    listed = list(on.items()) if isinstance(on, Mapping) else [on] if isinstance(on, (str, Expr)) else _items(on)
    if not listed:
        raise PlanError(
            "lookup_join has no key", got=shown(on), then="every row would find the whole table", hint='write on="user"'
        )
    if len(listed) == 2 and all(isinstance(e, Expr) for e in listed):  # as for joins of streams: of rows, and of the table
        return [(listed[0], listed[1])]
    return [e if isinstance(e, tuple) else (e, e) for e in listed]


def _items(on: object) -> list[Any]:
    def names(e: object) -> bool:
        return isinstance(e, (str, Expr)) or (
            isinstance(e, tuple) and len(e) == 2 and all(isinstance(n, (str, Expr)) for n in e)
        )

    if isinstance(on, Sequence) and all(map(names, on)):
        return list(on)
    hint = 'write "user", ["user", "shop"], {"user": "customer"}, or for computed keys [(col("user").lower(), "customer")]'
    raise PlanError("`on` names no columns", got=shown(on), hint=hint)


def _key(key: object, schema: pa.Schema, where: str) -> Expr:
    """A key of one side, of columns it has and a type that can be compared."""
    if isinstance(key, str):
        if key not in schema.names and "." in key:
            require_columns(col(key), schema, where)  # says what is written for a field
        name = known_column(key, schema.names, where)
        check_key_type(name, schema.field(name).type, meant="compared")
        return Col(name)
    if isinstance(key, Expr):
        key = unnamed(key)
    if not isinstance(key, Expr) or not columns_of(key) or "*" in columns_of(key):
        raise PlanError(f"{where}: a constant is not a key", got=repr(key), hint="leave it out")
    require_columns(key, schema, where)
    type_ = evaluate.expr_type(key, schema)
    if not is_key_type(type_):
        hint = 'name a field, [(col("a").field("x"), col("b").field("x"))]' if pa.types.is_struct(type_) else "cast it"
        what, consequence = f"{where}: {key!r} cannot be a key", "only plain values can be compared"
        raise ColumnError(what, got=type_text(type_), then=consequence, hint=hint)
    return key


def _named(key: Expr) -> str:
    """A key in an error."""
    return repr(key.name) if isinstance(key, Col) else repr(key)


def _listed(names: object) -> list[str]:
    if isinstance(names, Sequence) and all(isinstance(n, str) for n in names):
        return list(names)
    hint = 'write "user", ["user", "shop"], or {"user": "customer"} where the table has other names'
    raise PlanError("columns are named by texts", got=shown(names), hint=hint)


def _picked(
    columns: object, table: pa.Schema, keys: tuple[tuple[Expr, Expr], ...], bounds: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    if columns is None:
        left_out = set(bounds).union(*(columns_of(theirs) for _, theirs in keys))
        return tuple((n, n) for n in table.names if n not in left_out)
    pairs = list(columns.items()) if isinstance(columns, Mapping) else [(n, n) for n in _listed(columns)]
    for column, name in pairs:
        known_column(column, table.names, "lookup_join(columns), table")
        column_name(name, "lookup_join(columns)")
    return tuple(pairs)


def _validity(validity: object, at: str | None, rows: pa.Schema, table: pa.Schema) -> Any:
    if validity is None and at is None:
        return None
    if not isinstance(validity, (tuple, list)) or len(validity) != 2 or at is None:
        raise PlanError(
            "a lookup by time needs the time of rows, and two columns of the table",
            got=f"at={shown(at)}, validity={shown(validity)}",
            hint='write at="event_time", validity=("valid_from", "valid_to")',
        )
    starts, ends = (known_column(name, table.names, "lookup_join(validity), table") for name in validity)
    kinds = time_kind(rows, at), time_kind(table, starts), time_kind(table, ends)
    if kinds[1] != kinds[2]:
        raise ColumnError(
            "the bounds of validity have other types",
            got=f"{starts!r} is {kinds[1]}, {ends!r} is {kinds[2]}",
            hint="cast one of them",
        )
    return lookup.Validity(at, kinds[0], starts, ends, kinds[1])
