"""What an engine runs: sources, a stage of kernels, where late rows go. ``explain()`` prints the same value."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, TypeAlias

import attrs

from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.registry import chain
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.nodes import Source, WindowAggregate, source_of
from krishiv_py.plan.options.late import LateColumns, LateEventHandler
from krishiv_py.planner.branches import Branch, branches
from krishiv_py.planner.check import check
from krishiv_py.planner.fingerprint import uses_ledger
from krishiv_py.planner.warnings import warnings

Engine: TypeAlias = Literal["driver", "bounded", "streaming"]
_STATE = "transformWithState keyed by bucket"


@attrs.frozen(eq=False, slots=False)
class StagePlan:
    """One windowed aggregation, checked: what it reads, which operators its rows go through, what it gives.

    Attributes
    ----------
    spec : OperatorSpec
        Everything its kernels need to know.
    inputs : tuple of Branch
        The streams it reads, each with its own steps in front.
    """

    spec: OperatorSpec
    inputs: tuple[Branch, ...]

    @cached_property
    def layout(self) -> Layout:
        """Its columns: working rows, partials, late rows, results."""
        return Layout(self.spec)

    @property
    def operators(self) -> tuple[str, ...]:
        """Its operators, the one around all others first."""
        return tuple(link.title for link in chain(self.spec))

    @property
    def clock(self) -> str:
        """Who keeps the watermark in force of a streaming query."""
        return "a ledger of ours" if uses_ledger(self.spec) else "Spark"


@attrs.frozen
class Step:
    """One physical operator: its name, route, what it does and why it was chosen."""

    name: str
    route: str
    what: str
    why: str


@attrs.frozen(eq=False)
class PhysicalPlan:
    """A query as an engine runs it.

    Attributes
    ----------
    node : WindowAggregate
        The logical plan it was made of.
    stages : tuple of StagePlan
        In the order in which rows go through them; one today.
    late : LateEventHandler
        Who takes the late rows.
    engine : {"driver", "bounded", "streaming"} or None
        What runs it; None while nobody has chosen.
    """

    node: WindowAggregate
    stages: tuple[StagePlan, ...]
    late: LateEventHandler
    engine: Engine | None = None

    @property
    def stage(self) -> StagePlan:
        """Its last stage, which gives the results."""
        return self.stages[-1]

    @property
    def spec(self) -> OperatorSpec:
        """The specification of the last stage."""
        return self.stage.spec

    @property
    def source(self) -> Source:
        """Where the rows of the first stage come from."""
        return source_of(self.node)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What happens where, and why."""
        return (*self._before_windows(), self._windows(), self._outputs())

    @property
    def warnings(self) -> tuple[str, ...]:
        """State that may grow without bound, and settings that can lose rows."""
        return tuple(text for stage in self.stages for text in warnings(stage.spec))

    @property
    def _route(self) -> str:
        if self.engine == "driver":
            return "driver"
        return "bounded" if self.source.bounded and self.engine != "streaming" else "columnar"

    def _before_windows(self) -> tuple[Step, Step]:
        spec = self.stages[0].spec
        return (
            Step(
                "scan",
                self._route,
                f"read {len(spec.needs_columns)} of {len(spec.source_schema)} columns as Arrow",
                "only columns that keys, time, aggregates and late rows need are read",
            ),
            Step(
                "prepare",
                self._route,
                "stateless steps, stamp, judge, combine by key and window part (mapInArrow)",
                "late rows leave whole before the shuffle, and only partial aggregates are shuffled",
            ),
        )

    def _windows(self) -> Step:
        how = {"driver": "state in memory", "bounded": "one Spark batch job", "streaming": _STATE}.get(self.engine or "")
        if how is None:
            how = f"run() and collect(): one Spark batch job; start(): {_STATE}" if self.source.bounded else _STATE
        return Step(
            "window",
            self._route,
            f"{self.spec.window.describe()} over chunks per bucket ({how}): {' → '.join(self.stage.operators)}",
            "state is moved in Arrow chunks, so a batch costs what it brings and what fires, not what is open",
        )

    def _outputs(self) -> Step:
        late = {"rows": "late rows whole", "keys": "late rows counted by key", "count": "late rows counted"}[self.late.wants]
        given = f"{len(self.stage.layout.result_schema)} columns of results, {late}"
        if self.engine == "bounded":
            return Step("publish", self._route, f"{given}, all at once", "the end of the input closes every window")
        return Step(
            "publish",
            self._route,
            f"{given}; start(): batch by batch, its watermark kept by {self.stage.clock}",
            "both outputs of a batch are published together, so that a repeated batch replaces its own",
        )


def stage_of(node: WindowAggregate, late: LateColumns) -> StagePlan:
    """Check a logical plan; `late` says what is wanted of a late row.

    Raises
    ------
    PlanError
        With what, got, consequence and hint, for everything that cannot run.
    """
    spec = check(node, late=late)
    stage = StagePlan(spec, tuple(branches(spec, source_of(node))))
    stage.layout.result_schema  # noqa: B018  # a type that does not fit is found at the call; the layout is kept
    return stage
