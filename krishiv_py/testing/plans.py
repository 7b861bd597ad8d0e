"""Define what a driver is given to run, as a plan and the sinks of its outputs."""

from __future__ import annotations

from collections.abc import Iterable

from krishiv_py.api.outputs import Output, named_outputs
from krishiv_py.api.stages.running import RunMethods
from krishiv_py.errors import PlanError, shown
from krishiv_py.in_process.outputs import AnySink
from krishiv_py.plan.checks import is_collection
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.several import several


def run_by_driver(given: RunMethods | Iterable[Output], sink: AnySink | None) -> tuple[PhysicalPlan, list[AnySink | None]]:
    """The plan, and a sink for each of its outputs.

    Raises
    ------
    PlanError
        For a value that is not a pipeline, for outputs that cannot be one query, and for a `sink` next to those of outputs.
    """
    if isinstance(given, RunMethods):
        return given._plan("driver", late="shown"), [sink]
    if not is_collection(given):
        raise PlanError("a Driver runs an aggregated stream", got=shown(given), hint="end the pipeline with .agg(...)")
    outputs = named_outputs(given, "Driver")
    if sink is not None:
        raise PlanError("outputs have sinks of their own", got=shown(sink), hint="leave sink out: .to(sink)")
    plan = several([(name, output.stream._plan("driver", late="shown")) for name, output in outputs.items()])
    return plan, [output.sink for output in outputs.values()]
