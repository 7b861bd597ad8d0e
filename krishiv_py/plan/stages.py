"""The stages of a logical plan: which read the results of others, and what they compute for their keys."""

from __future__ import annotations

from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.nodes import Node, Project, StageOutput, UnionSource, WindowAggregate, prefix_of, source_of


def stages_read(node: Node) -> tuple[tuple[str | None, StageOutput], ...]:
    """The results of stages that a stage reads: of a join those of a side, with its name."""
    source = source_of(node)
    if isinstance(source, StageOutput):
        return ((None, source),)
    parts = source.parts if isinstance(source, UnionSource) else ()
    return tuple((name, found) for name, part in parts if isinstance(found := source_of(part), StageOutput))


def only_results(node: Node) -> bool:
    """Whether a stage reads results of stages and no rows of a source; of a join on both sides."""
    source = source_of(node)
    parts = source.parts if isinstance(source, UnionSource) else ()
    read = [source_of(part) for _, part in parts] or [source]
    return all(isinstance(each, StageOutput) for each in read)


def stages_of(node: WindowAggregate) -> list[WindowAggregate]:
    """The stages of a plan, each once, behind those whose results it reads."""
    found: dict[int, WindowAggregate] = {}
    for _, before in stages_read(node):
        found |= {id(stage): stage for stage in stages_of(before.stage)}
    return [*found.values(), node]


def computed_in(node: Node) -> dict[str, Expr]:
    """Columns of keys, identities and gaps that are expressions, by name; of this stage, of all streams it reads."""
    found: dict[str, Expr] = {}
    source = source_of(node)
    for side, part in source.parts if isinstance(source, UnionSource) else ():
        found |= {f"{name} of {side}": expr for name, expr in computed_in(part).items()}
    for step in prefix_of(node):
        if isinstance(step, Project):
            found |= {name: expr for name, expr in step.columns if name in step.computes}
    return found
