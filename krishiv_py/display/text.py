"""A plan as plain text, and text of several lines in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from krishiv_py.failures.redaction import redacted

if TYPE_CHECKING:
    from krishiv_py.planner.explain import CheckedStage, Part, PlanOutline


class LaidOut(str):
    """Text that a notebook shows line by line, as ``print`` does, and not as the ``repr`` of a text."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Printer, cycle: bool) -> None:
        printer.text(str(self))


class Printer(Protocol):
    """The printer of IPython."""

    def text(self, obj: str) -> None:
        """Write a text as it is."""


_COLUMNS = 12  # as many names as a line of a terminal holds


def plan_text(plan: PlanOutline) -> str:
    """Return the logical, checked and physical plan, each stage with its reason, and the warnings."""
    lines = ["== Logical plan ==", *_tree(plan.logical), "", "== Checked plan =="]
    for stage in plan.checked:
        lines += [*([stage.name] if len(plan.checked) > 1 else []), *_checked(stage)]
    lines += ["", "== Physical plan =="]
    wide = max(9, *(len(step.route) for step in plan.physical.steps))
    lines += [f"{s.name:<9} {s.route:<{wide}} {s.what}\n{'':<{11 + wide}}because {s.why}" for s in plan.physical.steps]
    if plan.physical.warnings:
        lines += ["", "== Warnings ==", *(f"! {w}" for w in plan.physical.warnings)]
    return redacted("\n".join(lines))


def _checked(stage: CheckedStage) -> list[str]:
    shown = [f"{name}: {type_}" for name, type_ in stage.rows]
    more = f", … ({len(shown)} columns)" if len(shown) > _COLUMNS else ""
    return [
        f"rows      {', '.join(shown[:_COLUMNS])}{more}",
        f"reads     {', '.join(stage.reads[:_COLUMNS])}{' …' if len(stage.reads) > _COLUMNS else ''}",
        f"time      {stage.time}",
        *([f"takes     {stage.takes}", f"gives     {stage.gives}"] if stage.gives else []),
        *([f"keeps     {'; '.join(stage.keeps)}"] if stage.keeps else []),
        *([f"depends   on {', and '.join(stage.depends)}"] if stage.depends else []),
    ]


def _tree(logical: tuple[Part, ...]) -> list[str]:
    return ["   " * depth + ("└─ " if depth else "") + f"{p.title} {p.detail}".rstrip() for depth, p in enumerate(logical)]
