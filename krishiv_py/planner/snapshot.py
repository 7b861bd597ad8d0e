"""Determine whether what is open can be given as early results (SEMANTICS §10)."""

from __future__ import annotations

import warnings

from krishiv_py.errors import PlanError, users_line
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket, MemoryStore
from krishiv_py.planner.physical import PhysicalPlan


def check_snapshot(plan: PhysicalPlan) -> None:
    """Refuse plans whose open windows cannot be shown, and warn of those that hide which results are early.

    Raises
    ------
    PlanError
        For retractions, and where there is nothing to show: no windows, or, of a single stage, state without aggregates.
    """
    several = len(plan.stages) > 1
    if several and not any(stage.spec.operation.nature.opens_windows for stage in plan.stages):
        raise PlanError(
            "a snapshot shows open windows, and no stage has any",
            got=", ".join(stage.spec.operation.describe() for stage in plan.stages),
            hint="leave snapshot out",
        )
    outputs = {output.stage for output in plan.outputs}
    for number, stage in enumerate(plan.stages):
        _check_stage(stage.spec, several=several, output=number in outputs)


def _check_stage(spec: OperatorSpec, *, several: bool, output: bool) -> None:
    if several and spec.operation.nature.gives_rows:
        return
    if not spec.operation.nature.opens_windows:
        raise PlanError(
            "a snapshot shows open windows, and rows are in none", got=spec.operation.describe(), hint="leave snapshot out"
        )
    mode = spec.options.emit_mode
    if mode == "retractions":
        raise PlanError(
            "early results of a snapshot do not go into a change log",
            got='emit("retractions")',
            hint='use emit("final") or emit("updates"), or read query.state()',
        )
    joins = spec.operation.nature.joins
    if not several and not joins:
        operator_for(spec).state(Bucket(MemoryStore()))
    if spec.operation.handled == "results" or (several and spec.operation.handled):
        raise PlanError(
            "a snapshot tells no handler", got=spec.operation.describe(), hint="leave submits out, or read query.state()"
        )
    if output and mode == "final" and not spec.options.pane:
        hint = "write them to a sink of their own" if joins else "add .with_pane(), and tell them by pane_timing"
        warnings.warn(
            f"the early results of a snapshot look like final ones. Hint: {hint}",
            stacklevel=users_line(),
        )
