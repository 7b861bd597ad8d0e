"""The plan of a query as text, with one output or several."""

from __future__ import annotations

from krishiv_py.display.text import plan_text
from krishiv_py.planner.explain import explain
from krishiv_py.planner.physical import PhysicalPlan


def plans_text(plan: PhysicalPlan) -> str:
    """What ``explain()`` says of a plan; of several outputs the plan of each, and which of its stages run for it."""
    if not plan.parts:
        return plan_text(explain(plan))
    said = []
    for output, part in zip(plan.outputs, plan.parts, strict=True):
        way, at = list[str](), output.stage
        while True:
            way.insert(0, plan.stages[at].spec.name)
            before = plan.stages[at].after
            if before is None:
                break
            at = before
        said.append(f"== output {output.name!r}: {' -> '.join(way)} ==\n{plan_text(explain(part))}")
    return "\n\n".join(said)
