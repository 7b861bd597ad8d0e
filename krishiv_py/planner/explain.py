"""What there is to say about a plan, as one value; ``krishiv_py.display`` makes text or HTML of it."""

from __future__ import annotations

import attrs

from krishiv_py.plan.nodes import WindowAggregate, chain, prefix_of, source_of
from krishiv_py.planner.physical import PhysicalPlan


@attrs.frozen
class Part:
    """One piece of a plan: what it is, and its particulars."""

    title: str
    detail: str


@attrs.frozen
class Explained:
    """A plan, ready to be shown.

    Attributes
    ----------
    logical : tuple of Part
        The nodes of the logical plan, last one first.
    flow : tuple of Part
        What rows go through, in their order: source, stateless steps, watermark, key, window, aggregates, options.
    rows : tuple of (str, str)
        Columns after the stateless steps, with their types.
    reads : tuple of str
        Columns read from the source.
    time : str
        The event-time column, its kind and resolution.
    physical : PhysicalPlan
        What is run, with routes, reasons and warnings.
    """

    logical: tuple[Part, ...]
    flow: tuple[Part, ...]
    rows: tuple[tuple[str, str], ...]
    reads: tuple[str, ...]
    time: str
    physical: PhysicalPlan


def explain(plan: PhysicalPlan) -> Explained:
    """Gather what there is to say about a plan, of a running query or of one that may be run."""
    spec = plan.spec
    return Explained(
        logical=tuple(Part(n.title, n.detail()) for n in chain(plan.node)),
        flow=_flow(plan.node),
        rows=tuple((f.name, str(f.type)) for f in spec.row_schema),
        reads=spec.needs_columns,
        time=f"{spec.time_column} ({spec.time_kind}, resolution {spec.tick_us} µs)",
        physical=plan,
    )


def _flow(node: WindowAggregate) -> tuple[Part, ...]:
    source = source_of(node)
    return (
        Part("source", f"{source.title} {source.detail()}".rstrip()),
        *(Part(step.title.lower(), step.detail()) for step in prefix_of(node)),
        Part("watermark", node.input.detail()),
        Part("key", node.shown_keys),
        Part("window", node.window.describe()),
        Part("aggregates", node.shown_aggs),
        Part("options", node.options.describe()),
    )
