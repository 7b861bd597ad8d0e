"""Define what there is to say about a plan, as one value; ``krishiv_py.display`` makes text or HTML of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from krishiv_py.plan.nodes import Node, Stage, chain, prefix_of, source_of, stages_of
from krishiv_py.plan.schema import RESERVED
from krishiv_py.plan.sides import TIME
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.physical import PhysicalPlan


@attrs.frozen
class Part:
    """One piece of a plan: what it is, and its particulars."""

    title: str
    detail: str


@attrs.frozen
class Checked:
    """A stage as it was checked.

    Attributes
    ----------
    name : str
        What it is called.
    rows : tuple of (str, str)
        Columns after its stateless steps, with their types.
    reads : tuple of str
        Columns it reads from its source, or from the stage before.
    time : str
        The event-time column, its kind and resolution.
    keeps : tuple of str
        The aggregates whose state grows with the rows of a window, and what it holds.
    """

    name: str
    rows: tuple[tuple[str, str], ...]
    reads: tuple[str, ...]
    time: str
    keeps: tuple[str, ...] = ()


@attrs.frozen
class Explained:
    """A plan, ready to be shown.

    Attributes
    ----------
    logical : tuple of Part
        The nodes of the logical plan, last one first.
    flow : tuple of Part
        What rows go through, in their order: source, stateless steps, watermark, key, window, aggregates, options.
    checked : tuple of Checked
        What each stage reads, the first one first.
    physical : PhysicalPlan
        What is run, with routes, reasons and warnings.
    """

    logical: tuple[Part, ...]
    flow: tuple[Part, ...]
    checked: tuple[Checked, ...]
    physical: PhysicalPlan


_WHAT: Final = {"Join": "join", "Deduplicate": "deduplication"}
"""What the flow calls operations that are not windows, by their heading."""


def named_time(text: str) -> str:
    """Return a text of a plan without the name that the library has for the event time of both sides of a join."""
    return text.replace(TIME, "event time")


def explain(plan: PhysicalPlan) -> Explained:
    """Gather what there is to say about a plan, of a running query or of one that may be run."""
    stages = stages_of(plan.node)
    return Explained(
        logical=tuple(
            Part(n.heading, named_time(n.detail()))
            for n in (*reversed(plan.spec.after), *(n for stage in reversed(stages) for n in _nodes(stage)))
            if n.heading
        ),
        flow=(
            *(part for i, stage in enumerate(stages) for part in _flow(stage)[bool(i) :]),
            *(Part(step.title.lower(), step.detail()) for step in plan.spec.after),
        ),
        checked=tuple(map(_checked, plan.stages)),
        physical=plan,
    )


def _part(node: Node) -> Part:
    return Part(node.heading, named_time(node.detail()))


def _nodes(stage: Stage) -> Iterator[Node]:
    """Yield the nodes of a stage; the one below, whose results it reads, stands for itself."""
    yield stage
    yield from (node for node in chain(stage.input) if not isinstance(node, Stage))


def _checked(stage: StagePlan) -> Checked:
    spec = stage.spec
    time = named_time(spec.time_column or "")
    return Checked(
        name=spec.name,
        rows=tuple((f.name, str(f.type)) for f in spec.row_schema if not f.name.startswith(RESERVED)),
        reads=tuple(name for name in spec.needs_columns if not name.startswith(RESERVED)),
        time=f"{time} ({spec.time_kind}, resolution {spec.tick_us} µs)" if time else "none is needed",
        keeps=tuple(f"{k.keeps} of {c}" for c, k in zip(spec.aggs, stage.layout.kernels, strict=True) if k.keeps),
    )


def _flow(node: Stage) -> tuple[Part, ...]:
    source, steps = source_of(node.input), prefix_of(node.input)
    if not node.input.column:
        parts = (Part(step.title.lower(), step.detail()) for step in steps)
        return (Part("source", f"{source.title} {source.detail()}".rstrip()), *parts)
    return (
        Part("source", f"{source.title} {source.detail()}".rstrip()),
        *(Part(step.title.lower(), step.detail()) for step in steps),
        Part("watermark", named_time(node.input.detail())),
        Part("key", node.shown_keys),
        Part(_WHAT.get(node.heading, "window"), node.operation.describe()),
        *([Part("aggregates", node.shown_aggs)] if node.shown_aggs else []),
        Part("options", node.options.describe()),
    )
