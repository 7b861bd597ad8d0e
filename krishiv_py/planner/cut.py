"""Cut a logical plan into its stages: what each reads, whose results it takes, which clocks its watermark follows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import attrs

from krishiv_py.errors import PlanError
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.registry import chain
from krishiv_py.kernels.spec import FIRST_CLOCK, OperatorSpec, Times
from krishiv_py.kernels.watermark import ONLY, ClockInput
from krishiv_py.plan.expressions.expr import Expr, col, lit
from krishiv_py.plan.nodes import Node, Prefix, Project, SourceNode, Stage, UnionSource, prefix_of, source_of, stages_read
from krishiv_py.plan.options.late import LateColumns, LateEventHandler, wanted_of
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec, MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.plan.schema import time_name
from krishiv_py.plan.steps import needed_columns, pruned, traced
from krishiv_py.planner.check import check


@attrs.frozen(eq=False)
class Branch:
    """One stream of a plan.

    Attributes
    ----------
    name : str or None
        Its name in a union; None where there is only one stream.
    source : Source
        Where its rows come from.
    spec : OperatorSpec
        The plan's specification with this stream's own steps in front.
    after : int or None
        The number of the stage whose results it is; None for rows of a source.
    part : str or None
        The part of the union or the side of the join that its rows are of; of a union that is a side, several streams have one.
    """

    name: str | None
    source: SourceNode
    spec: OperatorSpec
    after: int | None = None
    part: str | None = None


def branches(spec: OperatorSpec, source: SourceNode) -> list[Branch]:
    """Return the streams below a plan."""
    if not isinstance(source, UnionSource):
        return [Branch(None, source, spec)]
    return [branch for name, node in source.parts for branch in _branches(spec, source, name, node)]


def _branches(spec: OperatorSpec, union: UnionSource, name: str, node: Node) -> list[Branch]:
    own, kept = source_of(node), [n for n in spec.needs_columns if n != union.source_column]
    columns: tuple[tuple[str, Expr], ...] = (*((n, col(n)) for n in kept), (union.source_column, lit(name)))
    steps = (*pruned(prefix_of(node), set(kept)), Project(Node(), columns), *spec.prefix)
    detached = tuple(attrs.evolve(step, input=Node()) for step in steps)
    needs = needed_columns(prefix_of(node), set(kept), own.schema)
    below = branches(attrs.evolve(spec, source_schema=own.schema, prefix=detached, needs_columns=needs), own)
    return [attrs.evolve(b, name=f"{name}.{b.name}" if b.name else name, part=name) for b in below]


@attrs.frozen(eq=False, slots=False)
class StagePlan:
    """One windowed aggregation, checked: what it reads, which operators its rows go through, what it gives.

    Attributes
    ----------
    node : Stage
        The logical plan of it.
    spec : OperatorSpec
        Everything its kernels need to know.
    inputs : tuple of Branch
        The streams it reads, each with its own steps in front.
    times : Times
        The clocks its watermark follows, and how far it is behind each, µs (SEMANTICS §7.2).
    clock : int or None
        The clock that the rows of a source go by which it reads; None for a stage that reads results only.
    path : str
        The sides of joins between it and the end of the plan: what its clock and its streams are called by.
    own_late : LateEventHandler or None
        Who takes its late rows in the query that runs it, in place of the handler that all queries of the stream share.
    """

    node: Stage
    spec: OperatorSpec
    inputs: tuple[Branch, ...]
    times: Times = FIRST_CLOCK
    clock: int | None = 0
    path: str = ""
    own_late: LateEventHandler | None = None

    @cached_property
    def layout(self) -> Layout:
        """Its columns: working rows, partials, late rows, results."""
        return Layout(self.spec)

    @property
    def late(self) -> LateEventHandler:
        """Return who takes its late rows."""
        return self.own_late or self.node.late

    @property
    def operators(self) -> tuple[str, ...]:
        """Its operators, the one around all others first."""
        return tuple(link.title for link in chain(self.spec))

    @property
    def stateless(self) -> bool:
        """Return whether rows pass as they are."""
        return self.spec.operation.nature.stateless

    @property
    def read(self) -> tuple[Branch, ...]:
        """The streams it reads from sources."""
        return tuple(b for b in self.inputs if b.after is None)

    @cached_property
    def after(self) -> tuple[int, ...]:
        """The numbers of the stages whose results it reads."""
        return tuple(b.after for b in self.inputs if b.after is not None)

    @property
    def watermark(self) -> AnyWatermarkSpec:
        """Return how its own clock follows the rows of sources: of a join with results, those of the other side."""
        mark = self.spec.watermark
        if not self.after or not isinstance(mark, MultiSourceWatermarkSpec):
            return mark
        names = [b.part for b in self.read]
        return attrs.evolve(mark, sources=tuple(s for s in mark.sources if s[0] in names), idle_timeout_us=None)

    def clock_input(self, branch: Branch) -> ClockInput | None:
        """Return a stream that it reads as its clock has it; None where no clock goes by the rows."""
        if self.clock is None or self.stateless or _is_passive(self.spec, branch):
            return None
        lane, partitioned = branch.spec.stream, branch.source.partitioned
        return ClockInput(self.clock, branch.name or ONLY, self._clock_source(branch), lane, partitioned)

    def _clock_source(self, branch: Branch) -> str | None:
        """Return the source of its clock that all rows of a stream are of; None where they may be of any."""
        mark, by = self.watermark, self.node.input.source_column
        if isinstance(mark, WatermarkSpec) or by is None:
            return ONLY
        union, column = source_of(self.node.input), traced(prefix_of(self.node.input), by)
        unclear = column is None and any(name == branch.part for name, _ in mark.sources)
        named = isinstance(union, UnionSource) and (column == union.source_column or unclear)
        return branch.part if named else None

    @property
    def clock_watermark(self) -> AnyWatermarkSpec:
        """Return how the clock follows the rows of the source that this stage reads: by the least lag of all stages on it.

        The clock may be that of several outputs; this stage is then behind it by what its lag is larger (:attr:`times`).
        """
        mark = self.watermark
        if not isinstance(mark, WatermarkSpec):
            return mark
        later_us = next((by_us for clock, by_us in self.times if clock == self.clock), 0)
        return attrs.evolve(mark, lag_us=mark.lag_us - later_us)


def _is_passive(spec: OperatorSpec, branch: Branch) -> bool:
    """Return whether a stream does not move the watermark of the stage that reads it."""
    mark = spec.watermark
    return isinstance(mark, MultiSourceWatermarkSpec) and branch.part in mark.passive


def _in_lanes(mark: AnyWatermarkSpec, inputs: tuple[Branch, ...]) -> tuple[Branch, ...]:
    """Return streams with the lane of each: of several with one watermark, or of one source, each is a lane."""
    parts = [b.part for b in inputs]
    several = len(inputs) > 1 if isinstance(mark, WatermarkSpec) else len(set(parts)) < len(parts)
    return tuple(attrs.evolve(b, spec=attrs.evolve(b.spec, stream=b.name or "")) if several else b for b in inputs)


def stages_for(node: Stage, late: LateColumns | None = None, after: Sequence[Prefix] = ()) -> tuple[StagePlan, ...]:
    """Check the stages of a logical plan.

    Parameters
    ----------
    node : Stage
        The last one.
    late : {"rows", "keys", "count", "shown"}, optional
        What is wanted of a late row; by default what the handler of each stage wants.
    after : sequence of nodes
        Stateless steps over the results of the last stage, first applied first.

    Raises
    ------
    PlanError
        With what, got, consequence and hint, for everything that cannot run.
    """
    graph = _Graph()
    wanted = _shown(node.late) if late == "shown" else late or wanted_of(node.late)
    graph.add(node, wanted, (), shown=late is not None, after=after, followed=False)
    stages = tuple(graph.stages)
    if sum(1 for stage in stages if stage.read) == 1:  # one clock, however many ways lead to it
        stages = tuple(attrs.evolve(stage, path="") for stage in stages)
    return stages


def input_stages(stages: Sequence[StagePlan]) -> tuple[int, ...]:
    """Return the numbers of the stages that count input rows: of each source the first that reads it.

    A stage that takes results too is not among them, for it counts both as rows.
    """
    inputs, known = [], set[int]()
    for number, stage in enumerate(stages):
        sources = {id(branch.source) for branch in stage.read}
        if not stage.after and not sources <= known:
            inputs.append(number)
            known |= sources
    return tuple(inputs)


def leading_stage(stages: Sequence[StagePlan]) -> int:
    """Return the number of the stage whose watermark is the one of the query: the first; of several clocks the last."""
    return len(stages) - 1 if len({clock for stage in stages for clock, _ in stage.times}) > 1 else 0


@attrs.define(eq=False)
class _Graph:
    """Stages in an order in which each comes after those whose results it reads; each once."""

    stages: list[StagePlan] = attrs.field(factory=list)
    numbers: dict[int, int] = attrs.field(factory=dict)
    clocks: int = 0

    def add(
        self,
        node: Stage,
        wanted: LateColumns,
        path: tuple[str, ...],
        *,
        shown: bool,
        after: Sequence[Prefix] = (),
        followed: bool = True,
    ) -> int:
        """Check a stage and those before it; gives its number. `shown`: more is wanted of late rows than handlers want."""
        if id(node) in self.numbers:
            return self.numbers[id(node)]
        numbers: dict[str | None, int] = {}
        for name, before in stages_read(node.input):
            wants = _shown(before.late) if shown else wanted_of(before.late)
            numbers[name] = self.add(before, wants, (*path, *([name] if name else [])), shown=shown)
        number = self.numbers[id(node)] = len(self.stages)
        spec = check(node, late=wanted, after=after, followed=followed)
        named = node.options.named
        if named is not None and any(stage.spec.name == named for stage in self.stages):
            raise PlanError("two stages have one name", got=repr(named), hint="give each stage a name of its own: .named(...)")
        if (number or followed) and named is None:
            spec = attrs.evolve(spec, name=f"stage {number + 1}")
        inputs = tuple(attrs.evolve(b, after=numbers.get(b.name)) for b in branches(spec, source_of(node.input)))
        if spec.watermark.by_row:
            inputs = _in_lanes(spec.watermark, inputs)
        reads = any(b.after is None and not _is_passive(spec, b) for b in inputs)
        clock = self.clocks if reads else None
        self.clocks += reads
        stage = StagePlan(node, spec, inputs, self._times(spec, inputs, clock), clock, ".".join(path))
        stage.layout.result_schema  # noqa: B018  # a type that does not fit is found at the call; the layout is kept
        self.stages.append(stage)
        return number

    def _times(self, spec: OperatorSpec, inputs: Sequence[Branch], clock: int | None) -> Times:
        times: dict[int, int] = {} if clock is None else {clock: 0}
        for branch in inputs:
            if branch.after is None or _is_passive(spec, branch):
                continue
            before = self.stages[branch.after]
            hold_us = before.spec.operation.hold_back_us(before.spec.options) + _lag_us(spec, branch.name)
            for number, behind_us in before.times:
                times[number] = max(times.get(number, 0), behind_us + hold_us)
        return Times(tuple(sorted(times.items())))


def followable(node: Stage) -> Stage:
    """Return a stage with the columns that another one gets, whether or not it may be followed."""
    spec = attrs.evolve(check(node), output=node.operation.result_columns, followed=True)
    schema = Layout(spec).result_schema
    if node.time is not None and node.time.of_row:
        return attrs.evolve(node, schema=schema, time_column=node.time.column)
    if node.time is None and not node.operation.nature.opens_windows:
        return attrs.evolve(node, schema=schema, time_column="")
    own = Layout(attrs.evolve(spec, followed=False, output=None)).result_schema.names
    time = time_name([*own, *(name for name, _ in node.operation.result_columns or ())])
    return attrs.evolve(node, schema=schema, time_column=time)


def _shown(handler: LateEventHandler) -> LateColumns:
    return "rows" if handler.wants == "rows" else "shown"


def _lag_us(spec: OperatorSpec, name: str | None) -> int:
    """Return how much a stage takes off the watermark of results it reads."""
    mark = spec.watermark
    own = dict(mark.sources)[str(name)] if isinstance(mark, MultiSourceWatermarkSpec) else mark
    return own.lag_us
