"""The interface between the builder and a session: what runs a plan. The builder knows no Spark; sessions implement this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import attrs
import pyarrow as pa

from krishiv_py.connectors.sink import Sink
from krishiv_py.display.html import rows_html
from krishiv_py.display.progress import Show
from krishiv_py.errors import PlanError
from krishiv_py.plan.options.handed import Handed
from krishiv_py.plan.options.query import Batches, Begin
from krishiv_py.plan.running import Counters

if TYPE_CHECKING:
    from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.api.query import Query


@attrs.frozen(eq=False)
class BoundedResult:
    """The outcome of a bounded run.

    Attributes
    ----------
    table : pyarrow.Table
        Results in the order of their firing, then by key bucket.
    late : pyarrow.Table
        Late rows, with as many columns as the late handler wants.
    counters : dict
        Rows by fate, of the stages that read sources, each source once.
    late_by_stage : dict
        Late rows by the name of their stage; `late` are those of the first one.
    outputs : dict
        Results by the name of their output; `table` are those of the first one.
    counters_by_stage : dict
        Rows by fate, by the name of the stage that counted them.
    """

    table: pa.Table
    late: pa.Table
    counters: dict[str, int] = attrs.field(converter=Counters)
    late_by_stage: dict[str, pa.Table] = attrs.field(factory=dict)
    outputs: dict[str, pa.Table] = attrs.field(factory=dict)
    counters_by_stage: dict[str, dict[str, int]] = attrs.field(factory=dict)

    def _repr_html_(self) -> str:
        """Return the results and late rows as tables, of each output and stage."""
        late = {f"late rows of {name}": table for name, table in self.late_by_stage.items()} or {"late rows": self.late}
        counted = ", ".join(f"{n:,} {name}" for name, n in self.counters.items() if n)
        return rows_html("Bounded run", counted, {**(self.outputs or {"results": self.table}), **late})


class Runner(Protocol):
    """Runs plans."""

    def run_bounded(self, plan: PhysicalPlan, progress: Show = False) -> BoundedResult:
        """One batch job over a finite input, with or without a `progress` line."""
        ...

    def start(
        self,
        plan: PhysicalPlan,
        sinks: tuple[Sink, ...],
        checkpoint: str | None,
        batches: Batches,
        name: str | None,
        begin: Begin | None = None,
    ) -> Query:
        """Return an unbounded query, with a sink for each output of the plan; it may `begin` from a savepoint."""
        ...

    def against(self, plan: PhysicalPlan, folder: str) -> str:
        """Say what becomes of the state of a checkpoint or savepoint if a plan begins from it, a line for each stage."""
        ...

    def to_dataframe(self, plan: PhysicalPlan, handed: Handed | None = None) -> Any:
        """Return a Spark DataFrame of results; with `handed` of what a query of its own hands over."""
        ...


class NoRunner:
    """The runner of streams that belong to no session (``krishiv_py.testing.stream_of``)."""

    def _refuse(self, what: str) -> NoReturn:
        raise PlanError(
            f"{what} needs a session",
            got="a stream made without one",
            hint="use krishiv_py.testing.Driver, or make the stream from a Session",
        )

    def run_bounded(self, plan: PhysicalPlan, progress: Show = False) -> BoundedResult:
        """Refuse."""
        self._refuse("collect()")

    def start(
        self,
        plan: PhysicalPlan,
        sinks: tuple[Sink, ...],
        checkpoint: str | None,
        batches: Batches,
        name: str | None,
        begin: Begin | None = None,
    ) -> Query:
        """Refuse."""
        self._refuse("start()")

    def against(self, plan: PhysicalPlan, folder: str) -> str:
        """Refuse."""
        self._refuse("explain(against=...)")

    def to_dataframe(self, plan: PhysicalPlan, handed: Handed | None = None) -> Any:
        """Refuse."""
        self._refuse("to_dataframe()")
