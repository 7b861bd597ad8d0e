"""The stateless steps of a stream over Arrow batches: projections, filters, expectations, users' functions, lists as rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.fit import COMPUTED, RETURNED, fitted_batch
from krishiv_py.connectors.frames import arrow_table
from krishiv_py.errors import (
    RAISED,
    CheckpointError,
    ExpressionError,
    OperatorError,
    SchemaError,
    SourceError,
    failure_text,
    of_library,
)
from krishiv_py.kernels.columns.evaluate import FunctionError, argument, empty_batch, evaluate, failed
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.user import Udaf, partial_of
from krishiv_py.plan.expressions.expr import python_text
from krishiv_py.plan.nodes import Expect, Filter, FilterAfter, FunctionCheck, MapBatches, Prefix, Project
from krishiv_py.types import condition_hint, type_text


def _project(step: Project, batch: pa.RecordBatch) -> pa.RecordBatch:
    arrays, names = [evaluate(e, batch) for _, e in step.columns], [n for n, _ in step.columns]
    if step.envelope:
        along = step.along(batch.schema.names)
        arrays, names = [*arrays, *(batch.column(name) for name in along)], [*names, *along]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _mask(step: Filter, batch: pa.RecordBatch) -> pa.Array:
    """Return the values of the condition of a filter; null is not true."""
    mask = evaluate(step.condition, batch)
    if not pa.types.is_boolean(mask.type):
        hint = condition_hint(python_text(step.condition), mask.type)
        raise ExpressionError("a filter must be true or false", got=type_text(mask.type), hint=hint)
    return mask


def _filter(step: Filter, batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(_mask(step, batch))


def _filter_after(step: FilterAfter, batch: pa.RecordBatch, out: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows that a filter keeps; the others, whose event times count, go `out`."""
    mask = pc.fill_null(_mask(step, batch), False)
    if mask.true_count == batch.num_rows:
        return batch
    out.append(batch.filter(pc.invert(mask)))
    return batch.filter(mask)


def _map(step: MapBatches, batch: pa.RecordBatch) -> pa.RecordBatch:
    own = of_library(step.function)
    try:
        result = step.function(batch if step.shown is None else batch.select(list(step.shown)))
    except RAISED as problem:  # user code: whatever it raises is reported with what it was given
        if own and isinstance(problem, (CheckpointError, SchemaError, SourceError)):
            raise  # of a table of lookup_join, or of what a function over results returns: the error says what to do
        failed(step.detail(), problem, _map_failed(step, batch, problem), step.on_error)
    if not isinstance(result, pa.RecordBatch):
        table = arrow_table(result)
        result = result if table is None else one_batch(table)
    if not isinstance(result, pa.RecordBatch):
        hint = "return a pyarrow RecordBatch or Table, or a frame of pandas, Polars or DuckDB"
        raise SchemaError(f"map_batches({step.detail()}) must return Arrow data", got=type(result).__name__, hint=hint)
    along = step.along(batch.schema.names)
    consequence = f"map_batches({step.detail()}) does not return what it declares"
    if step.shown is None:  # rows of a source have no envelope; a function of the library hands it on
        schema = pa.schema([*step.schema, *(batch.schema.field(name) for name in along)]) if along else step.schema
        return fitted_batch(result, schema, COMPUTED if own else RETURNED, consequence)
    if result.num_rows != batch.num_rows:
        raise SchemaError(
            "map_batches over results must return one row for each row",
            got=f"{result.num_rows} for {batch.num_rows}",
            then="the event time of the others would not be known",
            hint="filter with .filter(...), or collect the results and map them then",
        )
    rows = fitted_batch(result, step.schema, RETURNED, consequence)
    return pa.RecordBatch.from_arrays(
        [*rows.columns, *(batch.column(name) for name in along)],
        schema=pa.schema([*rows.schema, *(batch.schema.field(name) for name in along)]),
    )


def _map_failed(step: MapBatches, batch: pa.RecordBatch, problem: BaseException) -> OperatorError:
    names = ", ".join(batch.schema.names[:20]) + (", …" if len(batch.schema.names) > 20 else "")
    got = f"{batch.num_rows} rows with the columns {names}"
    hint = f"fix {step.detail()}"
    return OperatorError(f"map_batches({step.detail()}) failed", got=got, then=failure_text(problem), hint=hint)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as a single batch."""
    combined = table.combine_chunks()
    batches = combined.to_batches()
    if len(batches) == 1:
        return batches[0]
    return pa.RecordBatch.from_arrays([c.combine_chunks() for c in combined.columns], schema=table.schema)


def batches_of(table: pa.Table) -> list[pa.RecordBatch]:
    """Return a table as a single batch, or as several where its texts are too long for one; without rows an empty one."""
    return table.combine_chunks().to_batches() or [one_batch(table)]


def prefixed(prefix: tuple[Prefix, ...], table: pa.Table) -> pa.Table:
    """Return a table after stateless steps."""
    return pa.Table.from_batches([apply_prefix(prefix, batch) for batch in batches_of(table)])


S = TypeVar("S", bound=Prefix)


@attrs.frozen(eq=False)
class FailedRows:
    """Rows that a step took out: they failed an expectation, or a function failed for them.

    Attributes
    ----------
    name : str
        The name of the expectation or function, under which they are counted.
    reason : str
        Why, for the late output: the name, or what the function said.
    rows : pyarrow.RecordBatch
        The rows, with the columns that they had there.
    dropped : bool
        Whether they go nowhere.
    """

    name: str
    reason: str
    rows: pa.RecordBatch
    dropped: bool = False


LeftOut: TypeAlias = dict[int, list[pa.RecordBatch]]
"""Rows that filters after the watermark left out, by the number of the step."""


def apply_prefix(
    prefix: tuple[Prefix, ...], batch: pa.RecordBatch, aside: list[FailedRows] | None = None, left_out: LeftOut | None = None
) -> pa.RecordBatch:
    """Run the stateless steps on one batch.

    Parameters
    ----------
    prefix : tuple of nodes
        The steps, first applied first.
    batch : pyarrow.RecordBatch
        The rows.
    aside : list of Aside, optional
        Gets the rows that a step takes out because they failed.
    left_out : dict, optional
        Gets the rows that filters after the watermark leave out, by the number of the step.
    """
    for number, step in enumerate(prefix):
        if isinstance(step, Project):
            batch = _careful(step, _project, batch, aside)
        elif isinstance(step, Expect):
            batch = _careful(step, lambda expect, rows: _expect(expect, rows, aside), batch, aside)
        elif isinstance(step, FunctionCheck):
            batch = _careful(step, _tried, batch, aside)
        elif isinstance(step, FilterAfter) and left_out is not None:
            out = left_out.setdefault(number, [])
            batch = _careful(step, lambda after, rows, out=out: _filter_after(after, rows, out), batch, aside)  # type: ignore[misc]
        elif isinstance(step, Filter):
            batch = _careful(step, _filter, batch, aside)
        else:
            batch = _careful(step, _map, batch, aside)
    return batch


def _careful(
    step: S, run: Callable[[S, pa.RecordBatch], pa.RecordBatch], batch: pa.RecordBatch, aside: list[FailedRows] | None
) -> pa.RecordBatch:
    """Run a step; where a function of a user fails for a row, and may, that row goes aside and the others go on.

    The batch is cut in halves until the rows are found, so a few bad rows cost a few runs more.
    """
    begun = 0 if aside is None else len(aside)
    try:
        return run(step, batch)
    except FunctionError as problem:
        if not batch.num_rows:
            raise
        if aside is not None:
            del aside[begun:]  # what the step took out before it failed is taken out again
        if batch.num_rows == 1:
            if aside is not None:
                aside.append(FailedRows(problem.name, problem.reason, batch))
            return run(step, batch.slice(0, 0))
        half = batch.num_rows // 2
        parts = [_careful(step, run, part, aside) for part in (batch.slice(0, half), batch.slice(half))]
        return one_batch(pa.Table.from_batches(parts))


def _expect(step: Expect, batch: pa.RecordBatch, aside: list[FailedRows] | None) -> pa.RecordBatch:
    """Return the rows for which the condition is true."""
    mask = pc.fill_null(evaluate(step.condition, batch), False)
    wrong = batch.num_rows - mask.true_count
    if not wrong:
        return batch
    if step.on_fail == "fail":
        hint = 'mend the rows, or write on_fail="side_output" to keep them apart'
        raise OperatorError(f"the expectation {step.name!r} does not hold", got=f"{wrong} of {batch.num_rows} rows", hint=hint)
    if aside is not None:
        aside.append(FailedRows(step.name, step.name, batch.filter(pc.invert(mask)), step.on_fail == "drop"))
    return batch.filter(mask)


def _tried(step: FunctionCheck, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows as they are, once functions in aggregates took each of them."""
    if batch.num_rows:
        for call in step.calls:
            _try(call, batch)
    return batch


def _try(call: AggCall, rows: pa.RecordBatch) -> None:
    if call._counts_rows:
        if call.where is not None:
            evaluate(call.where, rows)
        return
    values = argument(call.arg, call.where, rows)
    if not isinstance(call, Udaf) or call.udaf is None or call.on_error == "fail":
        return
    values, partial = values.drop_null(), partial_of(call.udaf)
    try:
        if partial is not None:
            partial(values, np.zeros(len(values), np.int64), 1)
            return
        for value in values.to_pylist():
            call.udaf.add(call.udaf.create(), value)
    except RAISED as problem:  # user code: whatever it raises is reported with what it was given
        error = OperatorError(f"{call!r} failed", hint="fix the function of the aggregate")  # its text is in the late output
        failed(call._title, problem, error, call.on_error)


def step_schema(step: Prefix, schema: pa.Schema) -> pa.Schema:
    """Return the schema a stateless step makes of `schema`, found by running it on no rows."""
    if isinstance(step, MapBatches):
        return pa.schema([*step.schema, *map(schema.field, step.along(schema.names))])
    return apply_prefix((step,), empty_batch(schema)).schema


@attrs.frozen
class Unnest:
    """Rows with the items of a list column instead of the list.

    Attributes
    ----------
    column : str
        The list.
    rank : str or None
        The column for the place of an item in its list, from 1 on.
    outer : bool
        Whether null and empty lists give a row, with nulls.
    spread : bool
        Whether the fields of structs become columns.
    """

    column: str
    rank: str | None
    outer: bool = False
    spread: bool = True

    @property
    def __name__(self) -> str:
        return f"unnest({self.column}{'' if self.rank is None else f', rank {self.rank}'})"

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        """Call it."""
        lists = batch.column(self.column)
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        items = lists.flatten()
        starts = np.cumsum(lengths) - lengths
        rows = np.maximum(lengths, 1) if self.outer else lengths
        parents = np.repeat(np.arange(len(lists)), rows)
        places = np.arange(len(parents)) - (np.cumsum(rows) - rows)[parents]
        missing = (lengths == 0)[parents]
        if missing.any():
            items = items.take(pa.array(starts[parents] + places, mask=missing))
        positions = pa.array(parents)
        made = {n: batch.column(n).take(positions) for n in batch.schema.names if n != self.column}
        if self.spread and pa.types.is_struct(items.type):
            made |= zip([f.name for f in items.type], items.flatten(), strict=True)
        else:
            made[self.column] = items
        if self.rank is not None:
            made[self.rank] = pa.array(places + 1, pa.int64(), mask=missing)
        return pa.table(made)

    def fields(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the fields it puts in the place of the list, and after all."""
        items = schema.field(self.column).type.value_type
        fields = list(items) if self.spread and pa.types.is_struct(items) else [pa.field(self.column, items)]
        return fields if self.rank is None else [*fields, pa.field(self.rank, pa.int64())]
