"""Several outputs in one query: their stages as one graph over one source, in an order in which every stage follows its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import attrs

from krishiv_py.errors import PlanError
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.spec import OperatorSpec, Times
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.expressions.expr import Col, Expr, identity_of, unnamed
from krishiv_py.plan.nodes import MapBatches, Project, SourceNode, Stage, prefix_of, source_of
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec, WatermarkSpec
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
    if _one_clock(outputs):
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
    """Return its stages; those whose streams or sources would have the name of another under the name of their output."""
    if len(plan.clocks.clocks) == 1:
        return plan.stages
    streams = [(read.name, [n for n, _ in read.takers]) for read in plan.reads]
    sources = [(name, [n]) for n, clock in zip(plan.clock_owners, plan.clocks.clocks, strict=True) for name in clock.sources]
    unclear = {
        number
        for named in (streams, sources)
        for i, (name, numbers) in enumerate(named)
        if not name or any(name == other for other, _ in named[:i])
        for number in numbers
    }
    return tuple(
        attrs.evolve(stage, path=".".join(part for part in (owners[n], stage.path) if part)) if n in unclear else stage
        for n, stage in enumerate(plan.stages)
    )


@attrs.frozen
class _TimeColumn:
    """A time column, by what it is made of in terms of the source or of a mapping function."""

    name: str
    kind: str
    origin: Expr = attrs.field(eq=identity_of)

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}), from {self.origin!r}"


@attrs.frozen
class _Tolerance:
    """The limit of rows in the future, what becomes of the others, and what the future is measured from."""

    limit_us: int
    action: str
    reference: str

    def __str__(self) -> str:
        return f"{self.limit_us} µs, {self.action}, {self.reference}"


@attrs.frozen
class _Clock:
    """All that decides what time it is for a stage that reads a source: its watermark without the lag.

    A watermark that starts at a given time does not start lower for a larger lag, so there the lag belongs to it.
    """

    time_columns: _TimeColumn
    watermarks: AnyWatermarkSpec
    source_columns: str | None
    future_tolerances: _Tolerance

    @classmethod
    def of(cls, stage: StagePlan) -> _Clock:
        """Return the clock of a stage."""
        spec, mark, options = stage.spec, stage.watermark, stage.spec.options
        if isinstance(mark, WatermarkSpec) and mark.initial_us == UNSET:
            mark = attrs.evolve(mark, lag_us=0)
        column = _TimeColumn(spec.time_column, spec.time_kind, _origin(stage.node, spec.time_column))
        tolerance = _Tolerance(options.future_us, options.future_action, options.future_reference)
        return cls(column, mark, spec.source_column, tolerance)


_ClockKey: TypeAlias = tuple[tuple[int, ...], _Clock, str]


def _clock_key(stage: StagePlan) -> _ClockKey:
    """Return what is equal for stages that go by one clock; a join with results has a clock for each way that leads to it."""
    return tuple(id(b.source) for b in stage.read), _Clock.of(stage), stage.path if stage.after else ""


def _clocks_of(outputs: Sequence[Named]) -> dict[_ClockKey, int]:
    """Return the clocks of all outputs: the least lag that stages have which go by each, µs."""
    least: dict[_ClockKey, int] = {}
    for _, plan in outputs:
        for stage in (plan.stages[number] for number in plan.roots):
            key, lag_us = _clock_key(stage), _lag_us(stage)
            least[key] = min(least.get(key, lag_us), lag_us)
    return least


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
    number_of: dict[int, int] = attrs.field(factory=dict)
    given: dict[str, int] = attrs.field(factory=dict)
    owners: list[str] = attrs.field(factory=list)
    """The output that each stage was made for."""

    def add(self, name: str, plan: PhysicalPlan) -> None:
        """Take the stages of an output that are not there yet."""
        placed: list[int] = []
        clocks: dict[int | None, tuple[int, int]] = {}
        for given in plan.stages:
            stage = given if given.stateless else _bare(given, id(given.node) in self.followed)
            known = self.number_of.get(id(stage.node))
            if stage.read:  # a stage that is there goes by the clock it has, wherever it is in this plan
                clocks[stage.clock] = self._clock_of(stage) if known is None else self.timed[known]
            if known is None:
                if stage.read:
                    self.timed[len(self.stages)] = clocks[stage.clock]
                known = self.number_of[id(stage.node)] = len(self.stages)
                self.stages.append(_placed(stage, name, placed, clocks))
                self.owners.append(name)
            placed.append(known)
        self.given[name] = placed[-1]

    def _clock_of(self, stage: StagePlan) -> tuple[int, int]:
        """Return the number of the clock that a stage goes by which reads a source, and how much later it is than that, µs."""
        if stage.stateless:
            return 0, 0
        key = _clock_key(stage)
        return self.numbers.setdefault(key, len(self.numbers)), _lag_us(stage) - self.clocks[key]


def _bare(stage: StagePlan, followed: bool) -> StagePlan:
    """Return a stage without the steps of one output over its results, as all outputs share it."""

    def bare(spec: OperatorSpec) -> OperatorSpec:
        return attrs.evolve(spec, after=(), followed=followed)

    inputs = tuple(attrs.evolve(b, spec=bare(b.spec)) for b in stage.inputs)
    return attrs.evolve(stage, spec=bare(stage.spec), inputs=inputs)


def _output(name: str, plan: PhysicalPlan, number: int) -> OutputPlan:
    """Return an output: the results of stage `number` after its own steps."""
    last = plan.stage
    if not last.spec.after or last.stateless:
        return OutputPlan(name, number, last.layout.result_schema)
    given = Layout(attrs.evolve(last.spec, after=())).result_schema.names
    return OutputPlan(name, number, last.layout.result_schema, last.spec.after, tuple(given))


def _placed(stage: StagePlan, output: str, placed: Sequence[int], clocks: Mapping[int | None, tuple[int, int]]) -> StagePlan:
    """Return a stage as it is in the graph, under a name that no stage of another output has."""
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
    return attrs.evolve(stage, spec=spec, inputs=inputs, times=Times(tuple(sorted(times.items()))), clock=own)


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
        got = f"{rest[0]!r} reads none of the sources of {first!r}"
        raise PlanError("the outputs of one query have sources in common", got=got, hint="start two queries")


def _one_clock(outputs: Sequence[Named]) -> bool:
    """Return whether one clock has to do for all outputs: no join is among them that reads other streams than they do."""
    if any(len(plan.clocks.clocks) > 1 for _, plan in outputs):
        return False
    first = {id(_first_source(plan)): plan.stages[0] for _, plan in outputs}
    return len(first) == 1 or not any(stage.node.operation.nature.joins for stage in first.values())


def _first_source(plan: PhysicalPlan) -> SourceNode:
    """Return what the first stage reads: where there is one clock, no other stage reads a source."""
    return source_of(plan.stages[0].node.input)


def _check_source(outputs: Sequence[Named]) -> None:
    sources = {name: _first_source(plan) for name, plan in outputs}
    first, source = next(iter(sources.items()))
    for name, other in sources.items():
        if other is not source:
            got = f"{first!r} reads {source.title} {source.detail()}, {name!r} {other.title} {other.detail()}"
            hint = "branch from one stream value (session.union(...) makes one of several), or start two queries"
            raise PlanError("the outputs of one query read one source", got=got, hint=hint)


def _check_clocks(outputs: Sequence[Named]) -> None:
    clocks = {name: _Clock.of(plan.stages[0]) for name, plan in outputs}
    for name, clock in clocks.items():
        first, shared = next(iter(clocks.items()))
        for part in attrs.fields(_Clock):
            own, other = getattr(shared, part.name), getattr(clock, part.name)
            if own != other:
                what = f"outputs of one query share one clock, and their {part.name.replace('_', ' ')} differ"
                hint = "give both the same watermark (lags may differ where no `initial` is set), or start two queries"
                raise PlanError(what, got=f"{first!r} has {own}, {name!r} has {other}", hint=hint)


def _origin(node: Stage, column: str) -> Expr:
    """Return what a column is made of, in terms of the source or of a mapping function."""
    origin: Expr = Col(column)
    for step in reversed(prefix_of(node.input)):
        if isinstance(step, MapBatches) or not isinstance(origin, Col):
            break
        if isinstance(step, Project):
            origin = unnamed(dict(step.columns).get(origin.name, origin))
    return origin
