"""The plan of a query as text, with one output or several."""

from __future__ import annotations

from krishiv_py.display.text import plan_text
from krishiv_py.planner.explain import explain
from krishiv_py.planner.physical import PhysicalPlan


def plans_text(plan: PhysicalPlan) -> str:
    """Return what ``explain()`` says of a plan; of several outputs the plan of each, and which of its stages run for it."""
    if not plan.parts:
        return plan_text(explain(plan))
    said = [
        f"== output {output.name!r}: {_way(plan, output.stage)} ==\n{plan_text(explain(part))}"
        for output, part in zip(plan.outputs, plan.parts, strict=True)
    ]
    return "\n\n".join(said)


def _way(plan: PhysicalPlan, number: int) -> str:
    """Return the stages that rows go through to one, the sides of a join in brackets."""
    stage = plan.stages[number]
    before = [_way(plan, n) for n in stage.after]
    if not before:
        return stage.spec.name
    joined = before[0] if len(before) == 1 else " + ".join(f"({way})" for way in before)
    return f"{joined} -> {stage.spec.name}"
