"""Rows as displays take them, and what a timeline draws: rows in the order they came, the watermark, and what was refused."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.connectors.frames import arrow_table
from krishiv_py.errors import KrishivError, PlanError, shown
from krishiv_py.kernels.columns.layout import whole
from krishiv_py.kernels.columns.times import stamp
from krishiv_py.kernels.watermark import ONLY, WatermarkTracker
from krishiv_py.plan.checks import known_column, microseconds
from krishiv_py.plan.durations import END_OF_TIME, UNSET, Duration, to_us
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.plan.row_classes import as_values
from krishiv_py.plan.schema import TimeKind, time_kind
from krishiv_py.types import normal_type, type_text

RowsLike: TypeAlias = "pa.Table | pa.RecordBatch | Sequence[dict[str, Any]]"
"""A table, a record batch, a list of dicts, or a frame that hands its columns on as Arrow data."""


class Collected(Protocol):
    """Holds what gives its rows when it is collected: a bounded stream, a lazy frame."""

    def collect(self) -> Any:
        """Return the rows."""


def as_table(rows: Any, what: str) -> pa.Table:
    """Return the `rows` as a table; `what` they are called in an error.

    Raises
    ------
    PlanError
        When they are not rows, or rows whose values do not agree in type.
    SchemaError
        For a frame with columns that Arrow does not have.

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
    except KrishivError:
        raise  # of a frame with columns that Arrow lacks, or of a stream that has no end
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
        raise _refused(what, rows, str(problem).splitlines()[0]) from problem
    if not isinstance(rows, (list, tuple)):
        raise _refused(what, rows, f"it is of type {type(rows).__name__}")
    listed = [as_values(row) for row in rows]
    for n, row in enumerate(listed):
        if not isinstance(row, dict):
            raise _refused(what, rows, f"item {n} is of type {type(row).__name__}")
    names = list(dict.fromkeys(name for row in listed for name in row))  # of all rows: the first may lack one
    return pa.table({name: _column([row.get(name) for row in listed], name, what, rows) for name in names})


def _column(values: list[Any], name: str, what: str, rows: object) -> pa.Array:
    """Return the values of a column whose type nobody has named."""
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
        consequence = f"the values of {shown(name)} are not of one type: {str(problem).splitlines()[0]}"
        raise _refused(what, rows, consequence) from problem


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
        hint = "pass a list with one table, or one list of dicts, per micro-batch"
        raise PlanError("`batches` is not a list of batches", got=type(batches).__name__, hint=hint)
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
        got = f"batches {names} differ from the first"
        hint = f"give each the columns {', '.join(schema.names)}"
        raise PlanError("batches with different columns", got=got, then=str(problem).splitlines()[0], hint=hint) from problem


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
    hint = "pass a pyarrow Table or RecordBatch, a list of dicts or of objects with fields, or a frame of pandas or Polars"
    return PlanError(f"`{what}` is not a table of rows", got=shown(rows), then=consequence, hint=hint)


@attrs.frozen(eq=False)
class ArrivalOrder:
    """Rows in order of arrival.

    Attributes
    ----------
    times_us : array of int64
        Event times, µs; 0 where there is none.
    usable : array of bool
        Whether a row has an event time within range, hence a place on the time axis.
    keys : tuple
        The key of every row; None for all when no key column was named.
    edges : tuple of int
        Where each micro-batch begins, and after the last where it ends: batch n is rows ``edges[n]:edges[n + 1]``.
    watermarks_us : tuple of int
        The watermark in force in every micro-batch, µs.
    reasons : tuple of (str or None)
        Why a row was refused; None for one that was taken in.
    """

    times_us: Ints
    usable: Mask
    keys: tuple[object, ...]
    edges: tuple[int, ...]
    watermarks_us: tuple[int, ...]
    reasons: tuple[str | None, ...]


def arrivals(
    batches: Sequence[pa.Table],
    time: str,
    lag: Duration | None,
    watermarks_us: Sequence[int] | None,
    late: pa.Table | None,
    key: str | None,
) -> ArrivalOrder:
    """Line up micro-batches; for the parameters see :func:`krishiv_py.display.plots.timeline`."""
    if not batches:
        raise PlanError("no batch to draw", got="0 batches", hint="pass the tables as they were sent")
    rows = pa.concat_tables(batches)
    if key is not None:
        known_column(key, rows.column_names, "timeline")
    kind = kind_of(rows, time)
    times_us, usable = instants(rows[time], kind)
    edges = tuple(int(n) for n in np.cumsum([0, *(b.num_rows for b in batches)]))
    in_force = _in_force(times_us, usable, edges, lag, watermarks_us)
    return ArrivalOrder(
        times_us,
        usable,
        (None,) * rows.num_rows if key is None else tuple(rows[key].to_pylist()),
        edges,
        in_force,
        (None,) * rows.num_rows if late is None else _reasons(rows, time, kind, edges, in_force, late),
    )


def kind_of(rows: pa.Table, time: str) -> TimeKind:
    """Return how the time column of some rows is to be read."""
    fields = [f.with_type(normal_type(f.type)) if f.name == time else f for f in rows.schema]
    return time_kind(pa.schema(fields), time)


def instants(column: pa.ChunkedArray, kind: TimeKind) -> tuple[Ints, Mask]:
    """Times in µs, and which of them can be placed on a time axis."""
    stamped = stamp(whole(column.cast(normal_type(column.type))), kind)
    return stamped.times, ~(stamped.null | stamped.out_of_range)


def sequence(column: pa.ChunkedArray, name: str) -> pa.Array:
    """Return where rows are in the order of a column."""
    hint = "pass a column of numbers, times or texts without nulls"
    if column.null_count:
        raise PlanError(f"{name!r} does not say in which order rows arrived", got=f"{column.null_count} nulls", hint=hint)
    try:
        return pc.sort_indices(column)
    except pa.ArrowException as problem:
        raise PlanError(f"{name!r} cannot be sorted", got=type_text(column.type), hint=hint) from problem


def _in_force(
    times: Ints, usable: Mask, edges: tuple[int, ...], lag: Duration | None, given: Sequence[int] | None
) -> tuple[int, ...]:
    if (lag is None) == (given is None):
        got = "neither" if lag is None else "both"
        hint = 'pass lag="10 seconds", as in the plan'
        raise PlanError("a timeline takes either `lag` or `watermarks_us`", got=got, hint=hint)
    if given is not None:
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise PlanError("`watermarks_us` is a sequence", got=shown(given), hint="pass whole microseconds, one per batch")
        if len(given) != len(edges) - 1:
            got = f"{len(given)} for {len(edges) - 1} batches"
            hint = "pass the one that was in force in each batch"
            raise PlanError("`watermarks_us` needs one watermark per batch", got=got, hint=hint)
        return tuple(microseconds(us, "watermarks_us", UNSET, END_OF_TIME) for us in given)
    tracker = WatermarkTracker(WatermarkSpec(to_us(lag or 0, "lag", allow_zero=True)))
    in_force = []
    for begin, end in itertools.pairwise(edges):
        in_force.append(tracker.current)
        seen = times[begin:end][usable[begin:end]]
        tracker.saw({ONLY: int(seen.max())} if len(seen) else {}, 0)
        tracker.settle(0)
    return tuple(in_force)


def _reasons(
    rows: pa.Table, time: str, kind: TimeKind, edges: tuple[int, ...], in_force: tuple[int, ...], late: pa.Table
) -> tuple[str | None, ...]:
    """Find every late row among those that came: equal in all columns both have, and in the watermark it met.

    Rows that agree in all of that share their fate, so it does not matter which of them is taken.
    """
    own, (reason, watermark, _) = late.column_names[:-3], late.column_names[-3:]
    shared = [name for name in own if name in rows.column_names]
    if time not in shared:
        hint = "collect whole late rows: SideOutputLateEventHandler(MemorySink())"
        raise PlanError(f"the late rows have no column {time!r}", got=", ".join(late.column_names), hint=hint)
    met, known = instants(late[watermark], kind)
    tick = 1_000 if kind == "bigint_ms" else 1
    marks = [int(us) if ok else UNSET for us, ok in zip(met, known, strict=True)]
    labels = [_label(row) for row in late.select(shared).to_pylist()]
    wanted = Counter(zip(labels, marks, late[reason].to_pylist(), strict=True))
    reasons: list[str | None] = [None] * rows.num_rows
    batch_of = np.repeat(np.arange(len(in_force)), np.diff(edges))
    by_row: dict[tuple[str, int], list[str]] = {}
    for (label, mark, why), n in wanted.items():
        by_row.setdefault((label, mark), []).extend([why] * n)
    for index, row in enumerate(rows.select(shared).to_pylist()):
        in_batch = in_force[int(batch_of[index])]
        waiting = by_row.get((_label(row), in_batch if in_batch == UNSET else in_batch // tick * tick))
        if waiting:
            reasons[index] = waiting.pop()
    late_count = sum(map(len, by_row.values()))
    if late_count:
        hint = "pass the batches as they were sent, and the lag, or watermarks_us, of the query"
        raise PlanError("late rows that came in no batch", got=f"{late_count} of {late.num_rows}", hint=hint)
    return tuple(reasons)


def _label(row: dict[str, object]) -> str:
    return repr(tuple(row.values()))  # values may be unhashable, and a NaN is not equal to itself
