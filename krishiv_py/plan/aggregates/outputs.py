"""The columns of ``.agg(...)`` and of SELECT: aggregates, and what is computed of aggregates, keys and bounds of the window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import attrs

from krishiv_py.errors import ColumnError, PlanError, unknown_column
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.user import Udaf
from krishiv_py.plan.expressions.expr import Col, Expr, columns_of, identity_of, name_of, replaced, unnamed
from krishiv_py.plan.expressions.trees import walk
from krishiv_py.plan.names import free

BOUNDS: Final = ("window_start", "window_end")
Output: TypeAlias = "tuple[tuple[str, Expr], ...]"
"""Result columns: their names, and what each is computed of: keys, bounds and aggregates by the names these have."""


@attrs.define(eq=False)
class AggregateColumns:
    """The aggregates that columns of a result need, each once, and the names of their columns.

    Attributes
    ----------
    taken : set of str
        Names, in lower case, that no other column can get.
    named : tuple of AggCall
        Aggregates that are columns of the result anyway, in the place where they come.
    calls : list of AggCall
        The aggregates so far, all with names.
    """

    taken: set[str]
    named: tuple[AggCall, ...] = ()
    calls: list[AggCall] = attrs.field(factory=list)

    def add(self, call: AggCall, name: str | None = None) -> str:
        """Take an aggregate under a `name`, by default one that is free; return the name of its column."""
        if name is None and call.output_name.lower() in self.taken:
            name = free(call.output_name, self.taken)
        self.calls.append(call if name is None else call.alias(name))
        self.taken.add(self.calls[-1].output_name.lower())
        return self.calls[-1].output_name

    def column(self, call: AggCall) -> str:
        """Return the column of an aggregate that others are computed from."""
        identity = _identity(call)
        for known in (*self.calls, *self.named):
            if _identity(known) == identity:
                return known.output_name
        return self.add(call)

    def over_results(self, expr: Expr) -> Expr:
        """Return an expression with the columns of aggregates in the place of the aggregates."""
        names = {id(node): self.column(node) for node in walk(expr) if isinstance(node, AggCall)}  # in the order of the text
        return replaced(expr, lambda node: Col(names[id(node)]) if isinstance(node, AggCall) else node)


def _identity(call: AggCall) -> tuple[object, ...]:
    """Return a value that calls share only if they give the same, whatever they are called."""
    return (*identity_of(attrs.evolve(call, name=None)), id(call.udaf) if isinstance(call, Udaf) else 0)


def identity_of_aggs(calls: tuple[AggCall, ...]) -> tuple[object, ...]:
    """Return a hashable value that lists of aggregates share only if they give the same columns."""
    return tuple((call.output_name, _identity(call)) for call in calls)


def identity_of_columns(columns: Output | None) -> tuple[object, ...] | None:
    """Return a hashable value that result columns share only if they are built alike."""
    return None if columns is None else tuple((name, identity_of(expr)) for name, expr in columns)


def outputs(
    items: Sequence[Expr], keys: Sequence[str], rows: Sequence[str], more: Sequence[str] = (), bounds: Sequence[str] = BOUNDS
) -> tuple[tuple[AggCall, ...], Output | None]:
    """Return the aggregates that the columns `items` need, and the columns where they are more than these aggregates.

    Parameters
    ----------
    items : sequence of Expr
        The columns, each under the name of its alias or its text.
    keys : sequence of str
        The keys, which expressions can name as well as the bounds of the window.
    rows : sequence of str
        The columns of rows.
    more : sequence of str
        Columns of the result that follow the aggregates.
    bounds : sequence of str
        The bounds of the window; none where there is no window.

    Raises
    ------
    ColumnError
        For a column that is neither a key nor a part of an aggregate.
    PlanError
        For two columns of one name, and for columns of which none is aggregated.
    """
    plain = tuple(item for item in items if isinstance(item, AggCall))
    if len(plain) == len(items):
        return plain, None
    known = (*keys, *bounds)
    names = [item.output_name if isinstance(item, AggCall) else name_of(item) for item in items]
    _check_names(names, known)
    calls = AggregateColumns({n.lower() for n in (*names, *known, *more)}, plain)
    columns: list[tuple[str, Expr]] = [(n, Col(n)) for n in known]
    for name, item in zip(names, items, strict=True):
        if isinstance(item, AggCall):
            columns.append((name, Col(calls.add(item, name))))
        else:
            _check_columns(item, known, rows)
            columns.append((name, calls.over_results(unnamed(item))))
    if not calls.calls:
        raise PlanError("agg() got no aggregate", got=", ".join(names), hint="add one, such as count()")
    return tuple(calls.calls), (*columns, *((n, Col(n)) for n in more))


def computed(output: Output, keys: Sequence[str]) -> list[str]:
    """Return the names of the columns that are neither keys nor bounds of the window as they are."""
    return [name for name, expr in output if not (isinstance(expr, Col) and expr.name in (*keys, *BOUNDS))]


def _check_columns(item: Expr, known: Sequence[str], rows: Sequence[str]) -> None:
    for name in sorted(columns_of(item) - set(known)):
        if name not in rows:
            raise unknown_column(name, [*known, *rows], "agg")
        then = "a window holds many values of it"
        hint = f'add it to key_by, or take one of its values: first("{name}")'
        raise ColumnError(f"column {name!r} is neither a key nor aggregated", got=repr(item), then=then, hint=hint)


def _check_names(names: Sequence[str], known: Sequence[str]) -> None:
    lowered = [n.lower() for n in names]
    others = {n.lower() for n in known}
    for name in lowered:
        if lowered.count(name) > 1 or name in others:
            twice = "two columns of the result have one name"
            what = twice if lowered.count(name) > 1 else "a column of the result is named like a key or a bound of the window"
            raise PlanError(what, got=name, hint='give one another name with .alias("other")')
