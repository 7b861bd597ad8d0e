"""A plan as plain text."""

from __future__ import annotations

from krishiv_py.planner.explain import Explained, Part
from krishiv_py.redaction import redacted

_COLUMNS = 12  # as many names as a line of a terminal holds


def plan_text(plan: Explained) -> str:
    """The logical, checked and physical plan, each stage with its reason, and the warnings.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import stream_of
    >>> print(stream_of("at bigint").watermark("at", "5 s").tumbling_window("1 min").agg(count()).explain())
    == Logical plan ==
    WindowAggregate tumbling 1 min by (one global key): count(*) AS count [late_rule=event, emit=final]
       └─ Watermark at: max(event time) - 5 s
          └─ MemoryStream test (1 columns)
    ...
    """
    shown = [f"{name}: {type_}" for name, type_ in plan.rows]
    more = f", … ({len(shown)} columns)" if len(shown) > _COLUMNS else ""
    lines = ["== Logical plan ==", *_tree(plan.logical), "", "== Checked plan =="]
    lines.append(f"rows      {', '.join(shown[:_COLUMNS])}{more}")
    lines.append(f"reads     {', '.join(plan.reads[:_COLUMNS])}{' …' if len(plan.reads) > _COLUMNS else ''}")
    lines.append(f"time      {plan.time}")
    lines += ["", "== Physical plan =="]
    lines += [f"{s.name:<9} {s.route:<9} {s.what}\n{'':<20}because {s.why}" for s in plan.physical.steps]
    if plan.physical.warnings:
        lines += ["", "== Warnings ==", *(f"! {w}" for w in plan.physical.warnings)]
    return redacted("\n".join(lines))


def _tree(logical: tuple[Part, ...]) -> list[str]:
    return ["   " * depth + ("└─ " if depth else "") + f"{p.title} {p.detail}".rstrip() for depth, p in enumerate(logical)]
