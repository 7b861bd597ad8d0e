"""Stateless steps and the columns that go through them: which they need, which they compute, which they pass on as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from krishiv_py.plan.expressions.expr import Col, Expr, columns_of, lit, unnamed
from krishiv_py.plan.nodes import Filter, MapBatches, Prefix, Project


def needed_columns(prefix: tuple[Prefix, ...], wanted: set[str], schema: pa.Schema) -> tuple[str, ...]:
    """Source columns needed for `wanted` columns after the stateless steps."""
    for step in reversed(prefix):
        if isinstance(step, MapBatches):
            return tuple(schema.names)
        if isinstance(step, Filter):
            wanted = wanted | columns_of(step.condition)
        else:
            read = {c for name, e in step.columns if name in wanted for c in columns_of(e)}
            wanted = read.union(step.along([*wanted]))
    return tuple(n for n in schema.names if n in wanted) or tuple(schema.names[:1])


def pruned(prefix: tuple[Prefix, ...], wanted: set[str]) -> tuple[Prefix, ...]:
    """Return the steps, computing only what later ones read."""
    out: list[Prefix] = []
    for i in range(len(prefix) - 1, -1, -1):
        step = prefix[i]
        if isinstance(step, MapBatches):
            return (*prefix[: i + 1], *reversed(out))
        if isinstance(step, Filter):
            wanted = wanted | columns_of(step.condition)
            out.append(step)
        else:
            kept = tuple((n, e) for n, e in step.columns if n in wanted) or ((step.columns[0][0], lit(True)),)
            along = step.along([*wanted])
            wanted = {c for _, e in kept for c in columns_of(e)}.union(along)
            if not all(isinstance(e, Col) and e.name == n for n, e in kept):
                out.append(Project(step.input, kept, envelope=tuple(along)))
    return tuple(reversed(out))


def uncomputed(prefix: tuple[Prefix, ...], names: Iterable[str]) -> frozenset[str]:
    """Columns after the stateless steps that come from the source, or from a mapping function, as they are."""
    before = {name: name for name in names}  # what each of them is called before the step
    for step in reversed(prefix):
        if isinstance(step, MapBatches):
            break
        if isinstance(step, Project):
            made = {name: unnamed(expr) for name, expr in step.columns}
            made |= {name: Col(name) for name in step.along([*before.values()])}
            before = {name: expr.name for name, was in before.items() if isinstance(expr := made[was], Col)}
    return frozenset(before)


def traced(steps: Sequence[Prefix], column: str) -> str | None:
    """Return what a column is called before stateless steps; None where they compute it, or may change the rows."""
    for step in reversed(steps):
        if isinstance(step, Project):
            made_of: Expr | None = dict(step.columns).get(column, Col(column) if column in step.envelope else None)
            if not isinstance(made_of, Col):
                return None
            column = made_of.name
        elif not isinstance(step, Filter):
            return None
    return column
