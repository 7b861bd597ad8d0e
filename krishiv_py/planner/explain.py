"""``explain()``: the logical, checked and physical plan as text."""

from __future__ import annotations

from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.nodes import Node, WindowAggregate, chain, source_of
from krishiv_py.planner.physical import physical


def _tree(node: Node) -> list[str]:
    lines = []
    for depth, at in enumerate(chain(node)):
        lines.append("   " * depth + ("└─ " if depth else "") + f"{at.title} {at.detail()}".rstrip())
    return lines


def explain(node: WindowAggregate, spec: OperatorSpec) -> str:
    """Three sections and the warnings."""
    lines = ["== Logical plan ==", *_tree(node), "", "== Checked plan =="]
    shown = [f"{f.name}: {f.type}" for f in spec.row_schema]
    lines.append(f"rows      {', '.join(shown[:12])}" + (f", … ({len(shown)} columns)" if len(shown) > 12 else ""))
    lines.append(f"reads     {', '.join(spec.needs_columns[:12])}" + (" …" if len(spec.needs_columns) > 12 else ""))
    lines.append(f"time      {spec.time_column} ({spec.time_kind}, resolution {spec.tick_us} µs)")
    plan = physical(spec, bounded=source_of(node).bounded)
    lines += ["", "== Physical plan ==", *(f"{s.name:<9} {s.route:<9} {s.what}\n{'':<20}because {s.why}" for s in plan.stages)]
    if plan.warnings:
        lines += ["", "== Warnings ==", *(f"! {w}" for w in plan.warnings)]
    return "\n".join(lines)
