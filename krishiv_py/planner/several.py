"""Several outputs in one query: their stages as one graph over one source, in an order in which every stage follows its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs

from krishiv_py.errors import PlanError
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.expressions.expr import Col, Expr
from krishiv_py.plan.expressions.facts import unnamed
from krishiv_py.plan.nodes import MapBatches, Project, Source, Stage, prefix_of, source_of
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.physical import OutputPlan, PhysicalPlan

Named = tuple[str, PhysicalPlan]


def several(outputs: Sequence[Named]) -> PhysicalPlan:
    """One plan of several, which read the same sources.

    Stages that two outputs have in common run once, whatever steps follow their results in one of them. Outputs over one source
    share one clock: the watermark follows the rows of every output, and a lag of its own keeps the stages of an output behind
    it. Outputs with joins of results have a clock for each source, and share those of the sources that they have in common.

    Parameters
    ----------
    outputs : sequence of (str, PhysicalPlan)
        Their names, and the plan of each by itself.

    Raises
    ------
    PlanError
        For outputs without a common source, and for those whose watermarks do not tell one time.
    """
    timed = sorted((o for o in outputs if not o[1].stateless), key=lambda o: (_lag_us(o[1].stages[0]), -len(o[1].stages)))
    if all(len(plan.clocks.clocks) == 1 for _, plan in outputs) and not _joined(outputs):
        _check_source(outputs)
        _check_clocks(timed)
    else:
        _check_common(outputs)
    graph = _Graph(_clocks_of(timed), {id(s.node) for _, plan in timed for s in plan.stages if s.spec.followed})
    for name, plan in (*timed, *(o for o in outputs if o[1].stateless)):
        graph.add(name, plan)
    named = tuple(_output(name, plan, graph.given[name]) for name, plan in outputs)
    first = (timed or list(outputs))[0][1]
    plan = PhysicalPlan(first.node, tuple(graph.stages), first.engine, tuple(plan for _, plan in outputs), named)
    return attrs.evolve(plan, stages=_distinct_names(plan, graph.owners))


def _distinct_names(plan: PhysicalPlan, owners: Sequence[str]) -> tuple[StagePlan, ...]:
    """Its stages; those whose streams or sources would have the name of another under the name of their output."""
    if len(plan.clocks.clocks) == 1:
        return plan.stages
    streams = [(read.name, [n for n, _ in read.takers]) for read in plan.reads]
    sources = [(name, [n]) for n, clock in zip(plan.clock_owners, plan.clocks.clocks, strict=True) for name in clock.sources]
    unclear = {
        number
        for named in (streams, sources)
        for at, (name, numbers) in enumerate(named)
        if not name or any(name == other for other, _ in named[:at])
        for number in numbers
    }
    return tuple(
        attrs.evolve(stage, path=".".join(part for part in (owners[n], stage.path) if part)) if n in unclear else stage
        for n, stage in enumerate(plan.stages)
    )


_ClockKey: TypeAlias = "tuple[object, ...]"


def _clocks_of(outputs: Sequence[Named]) -> dict[_ClockKey, int]:
    """The clocks of all outputs: the least lag that stages have which go by each, µs."""
    found: dict[_ClockKey, int] = {}
    for _, plan in outputs:
        for number in plan.roots:
            stage = plan.stages[number]
            found[_clock_key(stage)] = min(found.get(_clock_key(stage), _lag_us(stage)), _lag_us(stage))
    return found


def _clock_key(stage: StagePlan) -> _ClockKey:
    """Return what is equal for stages that go by one clock."""
    return *(id(b.source) for b in stage.read), *_clock(stage).values(), stage.path if stage.after else ""


@attrs.define(eq=False)
class _Graph:
    """Stages in their order, found again by their node."""

    clocks: dict[_ClockKey, int]
    followed: set[int]
    """The nodes whose results other stages read, in any of the outputs."""
    numbers: dict[_ClockKey, int] = attrs.field(factory=dict)
    """The clocks that stages go by, in the order in which these came."""
    timed: dict[int, tuple[int, int]] = attrs.field(factory=dict)
    """The clock of each stage that reads a source, and how much later the stage is, µs."""
    stages: list[StagePlan] = attrs.field(factory=list)
    at: dict[int, int] = attrs.field(factory=dict)
    given: dict[str, int] = attrs.field(factory=dict)
    owners: list[str] = attrs.field(factory=list)
    """The output that each stage was made for."""

    def add(self, name: str, plan: PhysicalPlan) -> None:
        """Take the stages of an output that are not there yet."""
        placed: list[int] = []
        clocks: dict[int | None, tuple[int, int]] = {}
        for given in plan.stages:
            stage = given if given.stateless else _bare(given, id(given.node) in self.followed)
            known = self.at.get(id(stage.node))
            if stage.read:  # a stage that is there goes by the clock it has, wherever it is in this plan
                clocks[stage.clock] = self._clock_of(stage) if known is None else self.timed[known]
            if known is None:
                if stage.read:
                    self.timed[len(self.stages)] = clocks[stage.clock]
                known = self.at[id(stage.node)] = len(self.stages)
                self.stages.append(_placed(stage, name, placed, clocks))
                self.owners.append(name)
            placed.append(known)
        self.given[name] = placed[-1]

    def _clock_of(self, stage: StagePlan) -> tuple[int, int]:
        """The number of the clock that a stage goes by which reads a source, and how much later it is than that, µs."""
        if stage.stateless:
            return 0, 0
        key = _clock_key(stage)
        return self.numbers.setdefault(key, len(self.numbers)), _lag_us(stage) - self.clocks[key]


def _bare(stage: StagePlan, followed: bool) -> StagePlan:
    """A stage without the steps of one output over its results, as all outputs share it."""

    def bare(spec: OperatorSpec) -> OperatorSpec:
        return attrs.evolve(spec, after=(), followed=followed)

    inputs = tuple(attrs.evolve(b, spec=bare(b.spec)) for b in stage.inputs)
    return attrs.evolve(stage, spec=bare(stage.spec), inputs=inputs)


def _output(name: str, plan: PhysicalPlan, number: int) -> OutputPlan:
    """An output: the results of stage `number` behind its own steps."""
    last = plan.stage
    if not last.spec.after or last.stateless:
        return OutputPlan(name, number, last.layout.result_schema)
    given = Layout(attrs.evolve(last.spec, after=())).result_schema.names
    return OutputPlan(name, number, last.layout.result_schema, last.spec.after, tuple(given))


def _placed(stage: StagePlan, output: str, placed: Sequence[int], clocks: Mapping[int | None, tuple[int, int]]) -> StagePlan:
    """A stage as it is in the graph, under a name that no stage of another output has."""
    title = stage.spec.options.named or f"{output}: {stage.spec.name}"
    inputs = tuple(
        attrs.evolve(b, spec=attrs.evolve(b.spec, name=title), after=None if b.after is None else placed[b.after])
        for b in stage.inputs
    )
    times: dict[int, int] = {}
    for clock, behind_us in stage.times:
        number, later_us = clocks[clock]
        times[number] = max(times.get(number, 0), behind_us + later_us)
    own = None if stage.clock is None else clocks[stage.clock][0]
    spec = attrs.evolve(stage.spec, name=title)
    return attrs.evolve(stage, spec=spec, inputs=inputs, times=tuple(sorted(times.items())), clock=own)


def _lag_us(stage: StagePlan) -> int:
    mark = stage.watermark
    return mark.lag_us if isinstance(mark, WatermarkSpec) else 0


def _check_common(outputs: Sequence[Named]) -> None:
    """Refuse outputs some of which have no source in common with any of the others."""
    sources = {name: {id(read.source) for read in plan.reads} for name, plan in outputs}
    first, *rest = sources
    together = set(sources[first])
    while linked := [name for name in rest if sources[name] & together]:
        rest = [name for name in rest if name not in linked]
        together.update(*(sources[name] for name in linked))
    if rest:
        raise PlanError(
            "the outputs of one query have sources in common",
            got=f"{rest[0]!r} reads none of the sources of {first!r}",
            hint="start two queries",
        )


def _joined(outputs: Sequence[Named]) -> bool:
    """Return whether the outputs read joins of other streams, or in another way: each join goes by a clock of its own
    streams.
    """
    roots = {id(_first_source(plan)): plan for _, plan in outputs}
    return len(roots) > 1 and any(plan.stages[0].node.operation.joins for plan in roots.values())


def _first_source(plan: PhysicalPlan) -> Source:
    """Return what the first stage reads: where there is one clock, the only one that reads a source, whatever is joined
    behind it.
    """
    return source_of(plan.stages[0].node.input)


def _check_source(outputs: Sequence[Named]) -> None:
    sources = {name: _first_source(plan) for name, plan in outputs}
    first, source = next(iter(sources.items()))
    for name, other in sources.items():
        if other is not source:
            raise PlanError(
                "the outputs of one query read one source",
                got=f"{first!r} reads {source.title} {source.detail()}, {name!r} {other.title} {other.detail()}",
                hint="branch from one stream value (session.union(...) makes one of several), or start two queries",
            )


def _check_clocks(outputs: Sequence[Named]) -> None:
    first, wanted = ("", dict[str, str]()) if not outputs else (outputs[0][0], _clock(outputs[0][1].stages[0]))
    for name, other in outputs[1:]:
        found = _clock(other.stages[0])
        for part, value in wanted.items():
            if found[part] != value:
                raise PlanError(
                    f"outputs of one query share one clock, and their {part} differ",
                    got=f"{first!r} has {value}, {name!r} has {found[part]}",
                    hint="give both the same watermark (lags may differ where no `initial` is set), or start two queries",
                )


def _clock(stage: StagePlan) -> dict[str, str]:
    """Return what decides what time it is for a stage that reads a source: all of its watermark but the lag.

    A watermark that starts at a given time does not start behind it by a larger lag, so there the lag belongs to it.
    """
    spec, mark = stage.spec, stage.watermark
    shown = attrs.evolve(mark, lag_us=0) if isinstance(mark, WatermarkSpec) and mark.initial_us == UNSET else mark
    options = spec.options
    return {
        "time columns": f"{spec.time_column} ({spec.time_kind}), from {_origin(stage.node, spec.time_column)!r}",
        "watermarks": repr(shown),
        "source columns": str(spec.source_column),
        "future tolerances": f"{options.future_us} µs, {options.future_action}, {options.future_reference}",
    }


def _origin(node: Stage, column: str) -> Expr:
    """Return what a column is made of, in terms of the source or of a mapping function."""
    at: Expr = Col(column)
    for step in reversed(prefix_of(node.input)):
        if isinstance(step, MapBatches) or not isinstance(at, Col):
            break
        if isinstance(step, Project):
            at = unnamed(dict(step.columns)[at.name])
    return at
