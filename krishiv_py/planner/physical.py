"""The plan that an engine runs: sources, stages of kernels, outputs. ``explain()`` prints the same value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Literal, TypeAlias
from warnings import warn

import attrs
import pyarrow as pa

from krishiv_py.connectors.lookup_table import LookupTable
from krishiv_py.errors import PlanError, shown, users_line
from krishiv_py.failures.redaction import noted
from krishiv_py.kernels.joins.lookup import Lookup
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket, MemoryStore
from krishiv_py.kernels.watermark import ClockInput, ClockPlan, Clocks, ClockSpec, QuietSides, has_source
from krishiv_py.plan.nodes import MapBatches, MemorySource, Prefix, SourceNode, Stage, computed_in, root_of
from krishiv_py.plan.options.late import LateEventHandler, SparedLateEventHandler
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec
from krishiv_py.plan.running import TableVersion
from krishiv_py.planner.check import warnings
from krishiv_py.planner.cut import Branch, StagePlan, input_stages
from krishiv_py.planner.fingerprint import fingerprint, uses_ledger


@attrs.frozen
class OutputPlan:
    """Results that leave the query.

    Attributes
    ----------
    name : str
        What they are called.
    stage : int
        The number of the stage that gives them.
    schema : pyarrow.Schema
        Their columns; the stage may give more, to those that follow it.
    steps : tuple of nodes
        Stateless steps over the results of the stage, which are this output's own.
    reads : tuple of str
        The columns of the results that go into these steps.
    """

    name: str
    stage: int
    schema: pa.Schema
    steps: tuple[Prefix, ...] = ()
    reads: tuple[str, ...] = ()


Engine: TypeAlias = Literal["driver", "bounded", "streaming", "in_process"]
_STATE = "transformWithState keyed by bucket"
_HOW = {
    "driver": "state in memory",
    "in_process": "state in memory, its changes in the checkpoint",
    "bounded": "one Spark batch job",
    "streaming": _STATE,
}
_PREPARE = "stateless steps, assign timestamps, check lateness"
_HERE = ("driver", "in_process")
"""The engines that are one Python process."""


@attrs.frozen(eq=False)
class SourceRead:
    """A stream of a source that a query reads once.

    Attributes
    ----------
    name : str or None
        What it is called; None where there is only one.
    source : Source
        Where its rows come from.
    takers : tuple of (int, Branch)
        The stages that read it, by number, each with its own steps in front.
    """

    name: str | None
    source: SourceNode
    takers: tuple[tuple[int, Branch], ...]

    @property
    def needs_columns(self) -> tuple[str, ...]:
        """The columns that any of them needs."""
        wanted = {name for _, branch in self.takers for name in branch.spec.needs_columns}
        return tuple(name for name in self.source.schema.names if name in wanted)


@attrs.frozen
class Step:
    """One physical operator: its name, route, what it does and why it was chosen."""

    name: str
    route: str
    what: str
    why: str


@attrs.frozen(eq=False, slots=False)
class PhysicalPlan:
    """A query as an engine runs it.

    Attributes
    ----------
    node : Stage
        The logical plan it was made of.
    stages : tuple of StagePlan
        In the order in which rows go through them.
    engine : {"driver", "bounded", "streaming", "in_process"} or None
        What runs it; None while nobody has chosen.
    parts : tuple of PhysicalPlan
        Of a query with several outputs, the plan of each by itself; empty for one output.
    named : tuple of OutputPlan
        The outputs of such a query.
    """

    node: Stage
    stages: tuple[StagePlan, ...]
    engine: Engine | None = None
    parts: tuple[PhysicalPlan, ...] = ()
    named: tuple[OutputPlan, ...] = ()

    @cached_property
    def outputs(self) -> tuple[OutputPlan, ...]:
        """The results that leave the query."""
        return self.named or (OutputPlan("results", len(self.stages) - 1, self.stage.layout.result_schema),)

    @property
    def title(self) -> str:
        """Return what the query is called where nobody has named it: after its operator, or after its outputs."""
        names = [output.name for output in self.named]
        if not names:
            return self.spec.operation.title if self.spec.options.named is None else self.spec.name
        return " + ".join(names[:3]) + (f" + {len(names) - 3} more" if len(names) > 3 else "")

    @property
    def last(self) -> int:
        """The number of the stage whose rows need no number on their way to the driver: the only output's."""
        return len(self.stages) if self.named else len(self.stages) - 1

    def of_one_query(self) -> PhysicalPlan:
        """Return the plan with counters of its own for late handlers that may raise; stages that share a handler share them."""
        handlers = {id(s.late): s.late.fresh() for s in self.stages if isinstance(s.late, SparedLateEventHandler)}
        return attrs.evolve(self, stages=tuple(attrs.evolve(s, own_late=handlers.get(id(s.late))) for s in self.stages))

    def late_id(self, mark: str, number: int) -> str:
        """By what sinks know the late rows of a stage, in a query with this `mark`: two stages may share a table."""
        if number == self.last:
            return mark
        spec = self.stages[number].spec
        named = spec.options.named is not None or not spec.name.endswith(spec.operation.title)
        name = spec.name if named else f"{spec.name.removesuffix(spec.operation.title)}window-aggregate"
        return f"{mark}-{name}"  # what is in tables of sinks: all stages had this name once

    @cached_property
    def roots(self) -> tuple[int, ...]:
        """The numbers of the stages that read a source."""
        return tuple(n for n, stage in enumerate(self.stages) if stage.read)

    @cached_property
    def reads(self) -> tuple[SourceRead, ...]:
        """The streams of sources, each read once; a stage that reads one stream twice, as a union can, has two of them."""
        reads: list[SourceRead] = []
        for number in self.roots:
            stage = self.stages[number]
            for branch in stage.read:
                taker = number, branch
                index = next((n for n, r in enumerate(reads) if r.source is branch.source and r.takers[-1][0] != number), None)
                if index is None:
                    named = ".".join(part for part in (stage.path, branch.name) if part)
                    reads.append(SourceRead(named or None, branch.source, (taker,)))
                else:
                    reads[index] = attrs.evolve(reads[index], takers=(*reads[index].takers, taker))
        return tuple(reads)

    @cached_property
    def clocks(self) -> ClockPlan:
        """Return what time it is for its stages."""
        owners = [self.stages[n] for n in self.clock_owners]
        inputs = [one for read in self.reads for one in self.clock_inputs(read)]
        specs = tuple(
            ClockSpec(
                stage.path if len(owners) > 1 else "",
                stage.clock_watermark,
                tuple(dict.fromkeys(one for one in inputs if one.clock == number)),
            )
            for number, stage in enumerate(owners)
        )
        return ClockPlan(specs, tuple(filter(None, map(self._quiet, self.stages))))

    def clock_inputs(self, read: SourceRead) -> tuple[ClockInput, ...]:
        """Return a stream as each of the clocks has it that go by its rows."""
        inputs = (self.stages[number].clock_input(branch) for number, branch in read.takers)
        return tuple(dict.fromkeys(one for one in inputs if one is not None))

    def follows(self, source: str, read: SourceRead) -> bool:
        """Return whether a name that a stream says is one of a source: of the clocks that go by the stream, or a whole name."""
        marks = (self.clocks.clocks[one.clock].watermark for one in self.clock_inputs(read))
        return any(has_source(mark, source) for mark in marks) or Clocks(self.clocks).find(source) is not None

    @cached_property
    def clock_owners(self) -> tuple[int, ...]:
        """The number of the stage that each clock follows, clock by clock: the first that goes by it."""
        owners: dict[int, int] = {}
        for number in self.roots:
            clock = self.stages[number].clock
            if clock is not None and not self.stages[number].stateless:
                owners.setdefault(clock, number)
        return tuple(number for _, number in sorted(owners.items())) or (0,)

    def _quiet(self, stage: StagePlan) -> QuietSides | None:
        """Return whether a join with results of stages leaves out a side that is silent."""
        mark = stage.spec.watermark
        if not stage.after or not isinstance(mark, MultiSourceWatermarkSpec) or mark.idle_timeout_us is None:
            return None
        clocks: dict[str | None, dict[int, None]] = {}
        for branch in stage.inputs:
            clocks.setdefault(branch.part, {}).update(dict.fromkeys(self._clocks_of(stage, branch)))
        left, right = (tuple(of_side) for of_side in clocks.values())
        return QuietSides(mark.idle_timeout_us, (left, right))

    def _clocks_of(self, stage: StagePlan, branch: Branch) -> tuple[int, ...]:
        if branch.after is None:
            assert stage.clock is not None
            return (stage.clock,)
        return tuple(clock for clock, _ in self.stages[branch.after].times)

    def stage_called(self, name: str | None) -> int:
        """Return the number of a stage with state, by its name; by default the last one, or the last of all where none has
        state.

        Raises
        ------
        PlanError
            For a name that no such stage has.
        """
        kept = {stage.spec.name: n for n, stage in enumerate(self.stages) if not stage.stateless}
        if name is None:
            return max(kept.values(), default=len(self.stages) - 1)
        if not isinstance(name, str) or name not in kept:
            known = f"pass one of {', '.join(map(repr, kept))}" if kept else "its rows pass as they are"
            raise PlanError("no such stage with windows", got=shown(name), hint=known)
        return kept[name]

    def timed_stage(self, name: str | None) -> int:
        """Return the number of a stage that judges rows of a source by a watermark, by its name; by default the first one.

        Raises
        ------
        PlanError
            For a name that no such stage has, and where there is none.
        """
        judging = {
            stage.spec.name: n
            for n, stage in enumerate(self.stages)
            if n in input_stages(self.stages) and stage.spec.time_column and not stage.spec.watermark._by_clock
        }
        if not judging:
            hint = 'write .watermark("column", lag) and a window'
            raise PlanError("no stage judges rows by their event time", got=self.title, hint=hint)
        if name is None:
            return min(judging.values())
        if not isinstance(name, str) or name not in judging:
            known = f"pass one of {', '.join(map(repr, judging))}"
            raise PlanError("no such stage that reads a source", got=shown(name), hint=known)
        return judging[name]

    def drift_us(self, read: SourceRead) -> int | None:
        """Return how far ahead of others a stream may be before it is held back, µs; None where it never is."""
        number, _ = read.takers[0]
        own = self.stages[number].clock
        mark = None if own is None or self.stages[number].stateless else self.clocks.clocks[own].watermark
        return mark.max_drift_us if isinstance(mark, MultiSourceWatermarkSpec) else None

    def followers(self, number: int) -> tuple[int, ...]:
        """Return the numbers of the stages that read the results of a stage."""
        return tuple(n for n, stage in enumerate(self.stages) if number in stage.after)

    @property
    def late(self) -> LateEventHandler:
        """Return who takes the late rows of the last stage."""
        return self.stage.late

    @property
    def stage(self) -> StagePlan:
        """Its last stage, which gives the results."""
        return self.stages[-1]

    @property
    def spec(self) -> OperatorSpec:
        """The specification of the last stage."""
        return self.stage.spec

    @property
    def source(self) -> SourceNode:
        """Return where the rows of the first stage come from."""
        return root_of(self.node.input)

    @property
    def fingerprint(self) -> dict[str, str]:
        """Return what its state depends on (docs/state.md); of several stages, each part with its stage."""
        parts_by_name: dict[str, str] = {}
        for number, stage in enumerate(self.stages, 1):
            parts = fingerprint(stage.spec)
            parts |= {f"expression of {name}": noted(repr(expr)) for name, expr in computed_in(stage.node.input).items()}
            if len(self.clocks.clocks) > 1:
                parts["watermark behind clocks, in µs"] = ", ".join(f"{clock + 1}: {us}" for clock, us in stage.times)
            elif len(self.stages) > 1:
                parts["watermark behind the first stage, in µs"] = str(stage.times.clocks[0][1])
                parts = {f"stage {number}: {name}": value for name, value in parts.items()}
            parts_by_name |= parts
        sent = [n for n, r in enumerate(self.reads) if isinstance(r.source, MemorySource)]
        if any(self.drift_us(self.reads[n]) is not None for n in sent):
            parts_by_name["memory streams"] = "made to wait by max_drift"  # Spark's log is of other files
        elif any(n in self.in_lanes for n in sent):
            parts_by_name["memory streams"] = "read in lanes, for clock='row'"
        if self.watermarked:
            parts_by_name["Spark's watermark"] = "of a DataFrame"
        if self.named:
            parts_by_name["outputs"] = ", ".join(f"{o.name}: stage {o.stage + 1}" for o in self.named)
        if self.named or any(len(s.inputs) > 1 and s.after for s in self.stages):
            parts_by_name["inputs of stages"] = ", ".join(_inputs(s) for s in self.stages)
        return parts_by_name

    @property
    def stateless(self) -> bool:
        """Return whether rows pass as they are: tasks read, apply the steps and write, without a shuffle and without state."""
        return self.stages[0].stateless

    @property
    def watermarked(self) -> bool:
        """Return whether Spark's watermark is that of a source, and so cannot be the query's."""
        return any(read.source.watermarked for read in self.reads)

    @cached_property
    def in_lanes(self) -> tuple[int, ...]:
        """The numbers of the streams whose rows are classified by those before them, so that their order counts."""
        return tuple(
            n
            for n, read in enumerate(self.reads)
            if any(self.stages[number].spec.watermark.by_row for number, _ in read.takers)
        )

    @cached_property
    def keeps_ledger(self) -> bool:
        """Return whether a streaming query needs more than Spark's clock."""
        return self.watermarked or len(self.clocks.clocks) > 1 or any(uses_ledger(stage.spec) for stage in self.stages)

    @property
    def by_clock(self) -> bool:
        """Return whether rows go by the clock of the machine."""
        return any(c.watermark._by_clock for c in self.clocks.clocks)

    @property
    def dates_batches(self) -> bool:
        """Return whether a batch goes by the time at which it began, which must be on record before it runs.

        Rows go by the clock of the machine, or state lives or waits by it: the time of the batch before may be long ago.
        """
        return self.by_clock or any(
            spec.operation.by_clock or (spec.options.ttl is not None and spec.options.ttl.clock == "processing")
            for spec in (stage.spec for stage in self.stages)
        )

    @property
    def clock(self) -> str:
        """Return by whom, or where, the watermark in force of a streaming query is kept."""
        if self.engine in _HERE:
            return "by the driver" if self.engine == "driver" else "in the checkpoint"
        return "by the watermark log of the checkpoint" if self.keeps_ledger else "by Spark"

    @property
    def steps(self) -> tuple[Step, ...]:
        """Return what happens where, and why."""
        if self.stateless:
            return (self._before_windows()[0], self._rows(), self._outputs())
        return (*self._before_windows(), *map(self._windows, self.stages), self._outputs())

    @property
    def warnings(self) -> tuple[str, ...]:
        """State that may grow without bound, and settings that can lose rows."""
        return tuple(text for stage in self.stages for text in warnings(stage.spec))

    @property
    def _route(self) -> str:
        if self.engine in _HERE:
            return {"driver": "driver", "in_process": "in process"}[self.engine]
        return "bounded" if self.source.bounded and self.engine != "streaming" else "columnar"

    def _before_windows(self) -> tuple[Step, Step]:
        spec = self.stages[0].spec
        rows = spec.operation.nature.gives_rows
        what = (
            _PREPARE
            if rows
            else f"{_PREPARE}, {'combine' if self.engine in _HERE else 'map-side combine'} by key and window part"
        )
        if self.engine in _HERE:
            why = f"late rows leave whole first, and windows take {'rows in chunks' if rows else 'only partial aggregates'}"
        else:
            only = "rows travel in chunks" if rows else "only partial aggregates are shuffled"
            what, why = f"{what} (mapInArrow)", f"late rows leave whole before the shuffle, and {only}"
        return (
            Step(
                "scan",
                self._route,
                f"read {len(spec.needs_columns)} of {len(spec.source_schema)} columns as Arrow",
                "only columns that keys, time, aggregates and late rows need are read",
            ),
            Step("prepare", self._route, what, why),
        )

    def _rows(self) -> Step:
        what, why = "stateless steps, row by row as they are", "no window follows, so nothing is kept"
        if self.engine not in _HERE:
            what, why = f"{what} (mapInArrow)", "no window follows, so nothing is shuffled and nothing is kept"
        return Step("rows", self._route, what, why)

    def _windows(self, stage: StagePlan) -> Step:
        how = _HOW.get(self.engine or "")
        if how is None:
            how = f"run() and collect(): one Spark batch job; start(): {_STATE}" if self.source.bounded else _STATE
        return Step(
            "window" if len(self.stages) == 1 else stage.spec.name,
            self._route,
            f"{stage.spec.operation.describe()} over Arrow chunks, partitioned by key ({how}): {' → '.join(stage.operators)}",
            "state is moved in Arrow chunks, so a batch costs what it brings and what fires, not what is open",
        )

    def _outputs(self) -> Step:
        late = {"rows": "late rows whole", "keys": "late rows counted by key", "count": "late rows counted"}[self.late.wants]
        given = f"{len(self.stage.layout.result_schema)} columns of results, {late}"
        if self.stateless:
            given = f"{len(self.stage.layout.result_schema)} columns of rows, malformed input to the late output"
            return Step("publish", self._route, given, "both outputs of a batch are published together")
        if self.engine == "bounded":
            return Step("publish", self._route, f"{given}, all at once", "the end of the input closes every window")
        return Step(
            "publish",
            self._route,
            f"{given}; start(): batch by batch, its watermark kept {self.clock}",
            "both outputs of a batch are published together, so that a repeated batch replaces its own",
        )


def _inputs(stage: StagePlan) -> str:
    """Return what a stage reads, its sources as one."""
    return " + ".join([*(["source"] if stage.read else []), *(str(number + 1) for number in stage.after)])


def lookup_tables(plan: PhysicalPlan) -> tuple[LookupTable, ...]:
    """Return the tables of a plan that a function loads, in the order of its steps and stages."""
    tables: dict[str, LookupTable] = {}
    looks: list[Callable[[], object]] = [lookup.current for lookup in lookups(plan)]
    looks += [look for stage in plan.stages for look in stage.spec.operation.tables]
    for look in looks:
        table = table_behind(look)
        if table is not None and table.load is not None:
            tables.setdefault(table.token, table)
    return tuple(tables.values())


def table_of(lookup: Lookup) -> LookupTable | None:
    """Return the table of a lookup join; None where it is not known which table that is."""
    return table_behind(lookup.current)


def table_behind(look: Callable[[], object]) -> LookupTable | None:
    """Return the table that a function looks at; None where it is not known which table that is."""
    table = getattr(look, "__self__", None)
    return table if isinstance(table, LookupTable) else None


def reloads(look: Callable[[], object]) -> bool:
    """Return whether what a function looks at is loaded again."""
    table = table_behind(look)
    return table is not None and table.reload_us is not None


def lookups(plan: PhysicalPlan) -> Iterator[Lookup]:
    """Yield the lookup joins of a plan, in the order of its steps."""
    for number, stage in enumerate(plan.stages):
        own = [step for output in plan.outputs if output.stage == number for step in output.steps]
        steps = [step for spec in (*(b.spec for b in stage.inputs), stage.spec) for step in (*spec.prefix, *spec.after, *own)]
        for step in steps:
            if isinstance(step, MapBatches) and isinstance(step.function, Lookup):
                yield step.function


def table_names(tables: tuple[LookupTable, ...]) -> list[str]:
    """Return what tables are called in progress: as the functions that load them, numbered where that is not enough."""
    names: list[str] = []
    for table in tables:
        name, n = table.name, 2
        while name in names:
            name, n = f"{table.name} {n}", n + 1
        names.append(name)
    return names


def tables_seen(tables: tuple[LookupTable, ...], clock: object) -> dict[str, TableVersion]:
    """Return the version of each table in which rows are looked up where tables age by a clock, by the name of the table."""
    seen = [table.seen(clock) for table in tables]
    return {name: one for name, one in zip(table_names(tables), seen, strict=True) if one is not None}


def check_snapshot(plan: PhysicalPlan) -> None:
    """Refuse plans whose open windows cannot be shown, and warn of those that hide which results are early.

    Raises
    ------
    PlanError
        For retractions, and where there is nothing to show: no windows, or, of a single stage, state without aggregates.
    """
    several = len(plan.stages) > 1
    if several and not any(stage.spec.operation.nature.opens_windows for stage in plan.stages):
        what = "a snapshot shows open windows, and no stage has any"
        hint = "leave snapshot out"
        raise PlanError(what, got=", ".join(stage.spec.operation.describe() for stage in plan.stages), hint=hint)
    outputs = {output.stage for output in plan.outputs}
    for number, stage in enumerate(plan.stages):
        _check_stage(stage.spec, several=several, output=number in outputs)


def _check_stage(spec: OperatorSpec, *, several: bool, output: bool) -> None:
    if several and spec.operation.nature.gives_rows:
        return
    if not spec.operation.nature.opens_windows:
        hint = "leave snapshot out"
        raise PlanError("a snapshot shows open windows, and rows are in none", got=spec.operation.describe(), hint=hint)
    mode = spec.options.emit_mode
    if mode == "retractions":
        hint = 'use emit("final") or emit("updates"), or read query.state()'
        raise PlanError("early results of a snapshot do not go into a change log", got='emit("retractions")', hint=hint)
    joins = spec.operation.nature.joins
    if not several and not joins:
        operator_for(spec).state(Bucket(MemoryStore()))
    if spec.operation.handled == "results" or (several and spec.operation.handled):
        hint = "leave submits out, or read query.state()"
        raise PlanError("a snapshot tells no handler", got=spec.operation.describe(), hint=hint)
    if output and mode == "final" and not spec.options.pane:
        hint = "write them to a sink of their own" if joins else "add .with_pane(), and tell them by pane_timing"
        warn(f"the early results of a snapshot look like final ones. Hint: {hint}", stacklevel=users_line())
