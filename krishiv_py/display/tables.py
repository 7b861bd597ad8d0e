"""Rows as displays take them: tables, batches, or lists of dicts, as a sender does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.frames import arrow_table
from krishiv_py.errors import KrishivError, PlanError, SchemaError, shown

RowsLike: TypeAlias = "pa.Table | pa.RecordBatch | Sequence[dict[str, Any]]"
"""A table, a record batch, a list of dicts, or a frame that hands its columns on as Arrow data."""


class Collected(Protocol):
    """Holds what gives its rows when it is collected: a bounded stream, a lazy frame."""

    def collect(self) -> Any:
        """Return the rows."""
        ...


def as_table(rows: Any, what: str) -> pa.Table:
    """Return the `rows` as a table; `what` they are called in an error.

    Raises
    ------
    PlanError
        When they are not rows, or rows whose values do not agree in type.

    Examples
    --------
    >>> as_table([{"at": 1}, {"at": 2}], "late").num_rows
    2
    """
    try:
        if of_spark(rows) and not rows.isStreaming:
            return rows.toArrow()
        table = arrow_table(rows)
        if table is None and not isinstance(rows, type) and callable(getattr(rows, "collect", None)) and not of_spark(rows):
            table = arrow_table(rows.collect())
        if table is not None:
            return table
        if isinstance(rows, (list, tuple)) and all(isinstance(r, dict) for r in rows):
            names = list(dict.fromkeys(name for row in rows for name in row))  # of all rows: the first may lack one
            return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    except KrishivError as problem:
        if not isinstance(problem, SchemaError):
            raise  # of a stream that is collected: it has no end, or its source is wrong
        raise _refused(what, rows, str(problem).splitlines()[0]) from problem
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
        raise _refused(what, rows, str(problem).splitlines()[0]) from problem
    raise _refused(what, rows, "there are no rows in it")


def of_spark(rows: object) -> bool:
    """Return whether it is a DataFrame of Spark."""
    return type(rows).__module__.startswith("pyspark.") and hasattr(rows, "toArrow")


def as_tables(batches: Any) -> list[pa.Table]:
    """Batches as tables of equal columns, those without rows left out of the question what the columns are.

    Raises
    ------
    PlanError
        For one table instead of a list of them, and for batches with different columns.
    """
    if isinstance(batches, (pa.Table, pa.RecordBatch, dict, str, bytes)) or not isinstance(batches, Sequence):
        raise PlanError(
            "`batches` is not a list of batches",
            got=type(batches).__name__,
            hint="pass a list with one table, or one list of dicts, per micro-batch",
        )
    if batches and all(isinstance(b, dict) for b in batches):
        raise PlanError("`batches` is one batch", got="a list of dicts", hint="pass a list of batches: [first, second]")
    tables = [as_table(b, f"batches[{n}]") for n, b in enumerate(batches)]
    schema = next((t.schema for t in tables if t.num_columns), None)
    if schema is None:
        return []
    try:
        return [t.select(schema.names).cast(schema) if t.num_columns else schema.empty_table() for t in tables]
    except (pa.ArrowException, KeyError, ValueError) as problem:
        names = [n for n, t in enumerate(tables) if t.num_columns and not t.schema.equals(schema)]
        raise PlanError(
            "batches with different columns",
            got=f"batches {names} differ from the first",
            then=str(problem).splitlines()[0],
            hint=f"give each the columns {', '.join(schema.names)}",
        ) from problem


def late_table(late: Any) -> pa.Table:
    """Return the late rows as a table that ends in the columns every late output ends in, with the lateness in µs.

    Raises
    ------
    PlanError
        When it does not.
    PlanError
        For values that are not rows.
    """
    table = as_table(late, "late")
    names = table.column_names[-3:]
    if [name.removeprefix("late_") for name in names] != ["reason", "watermark", "lateness"]:
        raise PlanError("no table of late rows", got=", ".join(table.column_names), hint="pass run().late")
    numbers = table[names[1]].type
    unit = 1_000 if pa.types.is_integer(numbers) or pa.types.is_floating(numbers) else 1  # that of the time column
    try:
        lateness = table[names[2]].cast(pa.int64())  # from dicts a column of nulls has no type of its own
    except pa.ArrowException as problem:
        raise _refused("late", table[names[2]].type, "a lateness is a number of milli- or microseconds") from problem
    lateness = lateness if unit == 1 else pc.multiply(lateness, unit)
    return table.set_column(table.num_columns - 1, names[2], lateness)


def require_name(name: object, what: str) -> None:
    """Refuse what cannot be the name of a column."""
    if not isinstance(name, str):
        raise PlanError(f"`{what}` is not a column", got=shown(name), hint="pass its name, a text")


def _refused(what: str, rows: object, consequence: str) -> PlanError:
    return PlanError(
        f"`{what}` is not a table of rows",
        got=shown(rows),
        then=consequence,
        hint="pass a pyarrow Table or RecordBatch, a list of dicts, or a frame of pandas or Polars",
    )
