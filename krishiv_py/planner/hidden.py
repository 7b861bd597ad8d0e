"""The columns of results that nobody named: their event time, what their order goes by, and which of them are withdrawn.

They go along with every step (:attr:`~krishiv_py.plan.nodes.Stage.envelope`). Where no stage follows, results have their event
time if a step reads it, or if its author named it::

    followed       Stage ── filter(count > 1) ── select(user)                              and window_time, order
    alone          Stage ── window_time ── filter(window_time > ...) ── select(user)       user
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence

import attrs
import pyarrow as pa

from krishiv_py.errors import OrderError, PlanError
from krishiv_py.kernels.columns.steps import step_schema
from krishiv_py.kernels.joins import lookup
from krishiv_py.plan.expressions.expr import Col, Expr, col, columns_of
from krishiv_py.plan.nodes import Filter, MapBatches, Node, Prefix, Project, Stage, prefix_of, source_of, with_envelope


def row_schema(node: Node) -> pa.Schema:
    """Return the schema of the rows of a `node`, after its stateless steps."""
    schema = source_of(node).schema
    for step in prefix_of(node):
        schema = step_schema(step, schema)
    return schema


def refuse_hidden(step: Project, stage: Stage) -> None:
    """Refuse a step that computes a column called like one that goes along with results of a `stage`.

    Raises
    ------
    PlanError
        With another name as the hint.
    """
    for name, expr in step.columns:
        if name in stage.envelope and not _hands_on(name, expr):
            raise reserved(name)


def reserved(name: str) -> PlanError:
    """Return the error for a column of a user's that is called like one of these."""
    then = "the next stage would take another value for it"
    hint = "give the new column another name"
    return PlanError(f"{name} is the library's own column of results", got=name, then=then, hint=hint)


def alone(steps: Sequence[Prefix], stage: Stage, results: pa.Schema, names: tuple[str, ...]) -> tuple[Prefix, ...]:
    """Return the `steps` as they run over the `results` of a `stage` that no other stage follows.

    They end with the columns `names`.
    """
    time, shown = stage.time_column, stage.time_column in names
    adds_time = not stage.time_of_row and (shown or any(time in _names_in(step) for step in steps))
    above = [*([_timed(stage, results)] if adds_time else []), *(with_envelope(step, stage.envelope) for step in steps)]
    if (adds_time or stage.time_of_row) and not shown:
        above.append(Project(Node(), tuple((n, col(n)) for n in names)))
    return tuple(above)


def _hands_on(name: str, expr: Expr) -> bool:
    """Return whether a column of a step is handed on as it is."""
    return isinstance(expr, Col) and expr.name == name


def _names_in(step: Prefix) -> frozenset[str]:
    """Return the columns that a step names."""
    if isinstance(step, Filter):
        return columns_of(step.condition)
    if isinstance(step, Project):
        return frozenset(name for _, expr in step.columns for name in columns_of(expr))
    if step.shown is not None:
        return frozenset(step.shown)
    return step.function.reads if isinstance(step.function, lookup.Lookup) else frozenset()


def without(step: Prefix, hidden: Collection[str]) -> Prefix:
    """Return a step that does not hand on `hidden` columns by name."""
    if isinstance(step, Project):
        return attrs.evolve(step, columns=tuple((n, e) for n, e in step.columns if n not in hidden or not _hands_on(n, e)))
    if isinstance(step, MapBatches):
        return attrs.evolve(step, schema=pa.schema([f for f in step.schema if f.name not in hidden]))
    return step


def _timed(stage: Stage, results: pa.Schema) -> Prefix:
    """Return a step that adds the event time of results (SEMANTICS §7.1)."""
    if stage.time is None:
        then = "windows that go by the number of rows have no event time"
        hint = "leave it out, or use windows by time"
        raise OrderError(f"{stage.time_column} is not known", got="a count window", then=then, hint=hint)
    in_ms = pa.types.is_integer(results.field(stage.time.column).type)
    before_us = stage.time.before_us(1_000 if in_ms else 1)
    end, before = col(stage.time.column), before_us // 1_000 if in_ms else dt.timedelta(microseconds=before_us)
    own = [(n, col(n)) for n in results.names]
    return Project(Node(), (*own, (stage.time_column, end - before if before else end)))
