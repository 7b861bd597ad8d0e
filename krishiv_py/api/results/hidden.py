"""Columns that go along unseen with results: their event time, and what the next stage needs of their order.

A step over results hands them on. Where no stage follows, the steps run without them (:func:`alone`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import attrs
import pyarrow as pa

from krishiv_py.api.planning import fit, lookup, unnest
from krishiv_py.connectors.frames import arrow_table
from krishiv_py.errors import OrderError, PlanError, SchemaError
from krishiv_py.plan.expressions.expr import Col, Expr, col
from krishiv_py.plan.expressions.facts import columns_of
from krishiv_py.plan.nodes import BatchFunction, Filter, MapBatches, Node, Prefix, Project
from krishiv_py.plan.operation import ResultTime as TimeOf

_END = "window_end"


@attrs.frozen
class ResultTime:
    """The event time of results: its name, where it is, whether its author asked for it."""

    name: str
    of: TimeOf | None
    shown: bool

    @property
    def of_row(self) -> bool:
        """Whether the results have it as a column."""
        return self.of is not None and self.of.of_row


def alone(
    steps: Sequence[Prefix], time: ResultTime, results: pa.Schema, names: tuple[str, ...], kept: set[str]
) -> tuple[Prefix, ...]:
    """The `steps` as they run over `results`.

    They end with the columns `names`. What was `kept` for a further stage is left out; the event time is computed where a step
    reads it, or its author named it.
    """
    asked = not time.of_row and (time.shown or any(time.name in _read(step) for step in steps))
    hidden = kept - {"op", *((time.name,) if asked or time.of_row else ())}
    found: list[Prefix] = [_timed(time, results)] if asked else []
    found += [without(step, hidden) for step in steps]
    if (asked or time.of_row) and not time.shown:
        found.append(Project(Node(), tuple((n, col(n)) for n in names)))
    return tuple(found)


def carries(name: str, expr: Expr, hidden: set[str]) -> bool:
    """Whether a column of a step is only there to go along."""
    return name in hidden and isinstance(expr, Col) and expr.name == name


def _read(step: Prefix) -> frozenset[str]:
    """The columns a step reads, besides those that it hands on as they are."""
    if isinstance(step, Filter):
        return columns_of(step.condition)
    if isinstance(step, Project):
        return frozenset(n for name, e in step.columns if not carries(name, e, {name}) for n in columns_of(e))
    return step.function.reads if isinstance(step.function, lookup.Lookup) else frozenset()


def without(step: Prefix, hidden: set[str]) -> Prefix:
    """A step that does not hand on `hidden` columns."""
    if isinstance(step, Filter):
        return step
    if isinstance(step, Project):
        return attrs.evolve(step, columns=tuple((n, e) for n, e in step.columns if not carries(n, e, hidden)))
    schema = pa.schema([f for f in step.schema if f.name not in hidden])
    if isinstance(step.function, unnest.Unnest | lookup.Lookup):
        return MapBatches(step.input, step.function, schema)
    assert isinstance(step.function, KeepingColumns)
    kept = tuple(n for n in step.function.kept if n not in hidden)
    return MapBatches(step.input, attrs.evolve(step.function, kept=kept), schema)


def _timed(time: ResultTime, results: pa.Schema) -> Prefix:
    """A step that adds the event time of results (SEMANTICS §7.1)."""
    if time.of is None:
        raise OrderError(
            f"{time.name} is not known",
            got="a count window",
            then="windows that go by the number of rows have no event time",
            hint="leave it out, or use windows by time",
        )
    in_ms = pa.types.is_integer(results.field(_END).type)
    before_us = time.of.before_us(1_000 if in_ms else 1)
    end, before = col(_END), before_us // 1_000 if in_ms else dt.timedelta(microseconds=before_us)
    own = [(n, col(n)) for n in results.names]
    return Project(Node(), (*own, (time.name, end - before if before else end)))


@attrs.frozen(eq=False)
class KeepingColumns:
    """A function over batches that is not shown some columns; they are put next to what it returns."""

    function: BatchFunction
    gives: pa.Schema
    shown: tuple[str, ...]
    kept: tuple[str, ...]

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        """Call it."""
        given = self.function(batch.select(list(self.shown)))
        table = arrow_table(given)
        if table is None or table.num_rows != batch.num_rows:
            raise SchemaError(
                "map_batches over results must return one row for each row",
                got=f"{getattr(table, 'num_rows', type(given).__name__)} for {batch.num_rows}",
                then="the event time of the others would not be known",
                hint="filter with .filter(...), or collect the results and map them then",
            )
        try:
            table = fit.fit_table(table, self.gives, fit.RETURNED)
        except fit.MisfitError as problem:
            raise problem.error(f"map_batches({self.__name__}) does not return what it declares") from None
        for name in self.kept:
            table = table.append_column(batch.schema.field(name), batch.column(name))
        return table


def reserved(name: str) -> PlanError:
    """The error for a column of a user's that is called like one of these."""
    return PlanError(
        f"{name} is the library's own column of results",
        got=name,
        then="the next stage would take another value for it",
        hint="give the new column another name",
    )
