"""Several outputs in one query: their stages as one graph over one source, in an order in which every stage follows its own."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from krishiv_py.errors import PlanError, message
from krishiv_py.plan.expressions.expr import Alias, Col, Expr
from krishiv_py.plan.nodes import MapBatches, Project, WindowAggregate, prefix_of, root_of, stages_of
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.planner.physical import OutputPlan, PhysicalPlan, StagePlan

Named = tuple[str, PhysicalPlan]


def several(outputs: Sequence[Named]) -> PhysicalPlan:
    """One plan of several, which all read one source.

    Stages that two outputs have in common run once. All share one clock: the watermark follows the rows of every output, and
    a lag of its own keeps the stages of an output behind it.

    Parameters
    ----------
    outputs : sequence of (str, PhysicalPlan)
        Their names, and the plan of each by itself.

    Raises
    ------
    PlanError
        For outputs over several sources, and for those whose watermarks do not tell one time.
    """
    _check_source(outputs)
    timed = sorted((o for o in outputs if not o[1].keeps_nothing), key=lambda o: (_lag_us(o), -len(o[1].stages)))
    if timed:
        _check_clocks(timed)
    graph = _Graph(_lag_us(timed[0]) if timed else 0)
    for name, plan in (*timed, *(o for o in outputs if o[1].keeps_nothing)):
        graph.add(name, plan)
    named = tuple(OutputPlan(name, graph.given[name], plan.stage.layout.result_schema) for name, plan in outputs)
    first = (timed or list(outputs))[0][1]
    return PhysicalPlan(first.node, tuple(graph.stages), first.engine, tuple(plan for _, plan in outputs), named)


@attrs.define(eq=False)
class _Graph:
    """Stages in their order, found again by their node."""

    least_lag_us: int
    stages: list[StagePlan] = attrs.field(factory=list)
    at: dict[int, int] = attrs.field(factory=dict)
    given: dict[str, int] = attrs.field(factory=dict)

    def add(self, name: str, plan: PhysicalPlan) -> None:
        """Take the stages of an output that are not there yet."""
        late_us = 0 if plan.keeps_nothing else _lag_us((name, plan)) - self.least_lag_us
        before: int | None = None
        for stage in plan.stages:
            known = self.at.get(id(stage.node))
            if known is None and stage is plan.stage:
                known = self._followed(stage)
            if known is None:
                known = self.at[id(stage.node)] = len(self.stages)
                self.stages.append(_renamed(stage, name, stage.behind_us + late_us, before))
            before = known
        assert before is not None
        self.given[name] = before

    def _followed(self, last: StagePlan) -> int | None:
        """The stage that gives the results of an output's last stage to others that follow it."""
        for number, stage in enumerate(self.stages):
            if _is_one(stage, last) and set(last.layout.result_schema.names) <= set(stage.layout.result_schema.names):
                return number
        return None


def _is_one(followed: StagePlan, last: StagePlan) -> bool:
    """Whether two stages were built by the same steps, and differ in that one is followed."""
    one, other = followed.node, last.node
    if not one.hands_on or other.after or other.output is not None or followed.late is not last.late:
        return False
    parts = ((one.input, other.input), (one.window, other.window), (one.aggs, other.aggs))
    options = attrs.evolve(other.options, emit=other.options.emit_mode)  # final results are the default
    return all(a is b for a, b in parts) and (one.keys, one.options) == (other.keys, options)


def _renamed(stage: StagePlan, output: str, behind_us: int, after: int | None) -> StagePlan:
    """A stage as it stands in the graph, under a name that no stage of another output has."""
    title = f"{output}: {stage.spec.name}"
    inputs = tuple(attrs.evolve(b, spec=attrs.evolve(b.spec, name=title)) for b in stage.inputs)
    return attrs.evolve(stage, spec=attrs.evolve(stage.spec, name=title), inputs=inputs, behind_us=behind_us, after=after)


def _lag_us(output: Named) -> int:
    spec = output[1].stages[0].spec.watermark
    return spec.lag_us if isinstance(spec, WatermarkSpec) else 0


def _check_source(outputs: Sequence[Named]) -> None:
    sources = {name: root_of(plan.node) for name, plan in outputs}
    first, source = next(iter(sources.items()))
    for name, other in sources.items():
        if other is not source:
            raise PlanError(
                message(
                    "the outputs of one query read one source",
                    f"{first!r} reads {source.title} {source.detail()}, {name!r} {other.title} {other.detail()}",
                    "their batches could not be published together",
                    "branch from one stream value (session.union(...) makes one of several), or start two queries",
                )
            )


def _check_clocks(outputs: Sequence[Named]) -> None:
    first, wanted = outputs[0][0], _clock(outputs[0][1])
    for name, other in outputs[1:]:
        found = _clock(other)
        for part, value in wanted.items():
            if found[part] != value:
                raise PlanError(
                    message(
                        f"outputs of one query share one clock, and their {part} differ",
                        f"{first!r} has {value}, {name!r} has {found[part]}",
                        "rows of one output would be judged by the time of the other",
                        "give both the same watermark (lags may differ), or start two queries",
                    )
                )


def _clock(plan: PhysicalPlan) -> dict[str, str]:
    """What decides what time it is for an output: all of its watermark but the lag."""
    spec = plan.stages[0].spec
    mark = spec.watermark
    shown = attrs.evolve(mark, lag_us=0) if isinstance(mark, WatermarkSpec) else mark
    options = spec.options
    return {
        "time columns": f"{spec.time_column} ({spec.time_kind}), from {_origin(stages_of(plan.node)[0], spec.time_column)!r}",
        "watermarks": repr(shown),
        "source columns": str(spec.source_column),
        "future tolerances": f"{options.future_us} µs, {options.future_action}, {options.future_reference}",
    }


def _origin(node: WindowAggregate, column: str) -> Expr:
    """What a column is made of, in terms of the source or of a mapping function."""
    at: Expr = Col(column)
    for step in reversed(prefix_of(node)):
        if isinstance(step, MapBatches) or not isinstance(at, Col):
            break
        if isinstance(step, Project):
            at = dict(step.columns)[at.name]
            while isinstance(at, Alias):
                at = at.arg
    return at
