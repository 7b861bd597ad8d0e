"""A plan over several streams, as one operator specification per stream."""

from __future__ import annotations

import attrs

from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.expressions.expr import Expr, col, lit
from krishiv_py.plan.nodes import Node, Project, Source, UnionSource, prefix_of, source_of
from krishiv_py.planner.prune import needed_columns, pruned


@attrs.frozen(eq=False)
class Branch:
    """One stream of a plan.

    Attributes
    ----------
    name : str or None
        Its name in a union; None where there is only one stream.
    source : Source
        Where its rows come from.
    spec : OperatorSpec
        The plan's specification with this stream's own steps in front.
    after : int or None
        The number of the stage whose results it is; None for rows of a source.
    """

    name: str | None
    source: Source
    spec: OperatorSpec
    after: int | None = None


def branches(spec: OperatorSpec, source: Source) -> list[Branch]:
    """The streams below a plan."""
    if not isinstance(source, UnionSource):
        return [Branch(None, source, spec)]
    return [_branch(spec, source, name, node) for name, node in source.parts]


def _branch(spec: OperatorSpec, union: UnionSource, name: str, node: Node) -> Branch:
    own, kept = source_of(node), [n for n in spec.needs_columns if n != union.source_column]
    columns: tuple[tuple[str, Expr], ...] = (*((n, col(n)) for n in kept), (union.source_column, lit(name)))
    steps = (*pruned(prefix_of(node), set(kept)), Project(Node(), columns), *spec.prefix)
    detached = tuple(attrs.evolve(step, input=Node()) for step in steps)
    needs = needed_columns(prefix_of(node), set(kept), own.schema)
    return Branch(name, own, attrs.evolve(spec, source_schema=own.schema, prefix=detached, needs_columns=needs))
