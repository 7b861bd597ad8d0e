"""The rows of a query's outputs, where they are in memory."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.connectors.side_output import side_output
from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.known import ReadableSink
from krishiv_py.errors import PlanError, shown
from krishiv_py.kernels.input.malformed import late_output_schema
from krishiv_py.planner.physical import PhysicalPlan


@attrs.frozen(eq=False)
class OutputColumns:
    """One output: its sink, and the columns of its rows."""

    sink: Sink | None
    schema: pa.Schema

    def table(self, what: str, wanted: str) -> pa.Table:
        """All rows so far.

        Raises
        ------
        PlanError
            For a sink that cannot be read.
        """
        if not isinstance(self.sink, ReadableSink):
            raise PlanError(
                f"{what} needs the rows in memory", got="another sink", hint=f"start with {wanted}, or read the sink's output"
            )
        found = self.sink.table()
        return self.schema.empty_table() if found is None else found


@attrs.frozen(eq=False)
class QueryRows:
    """Results by the names of outputs, late rows by those of stages; each in the order of the plan."""

    results: dict[str, OutputColumns]
    late: dict[str, OutputColumns]

    @classmethod
    def of(cls, plan: PhysicalPlan, sinks: tuple[Sink, ...]) -> QueryRows:
        """Those of a plan whose outputs go to `sinks`."""
        given = zip(plan.outputs, sinks, strict=True)
        return cls(
            {o.name: OutputColumns(sink, o.schema) for o, sink in given},
            {s.spec.name: OutputColumns(side_output(s.late), late_output_schema(s.layout)) for s in plan.stages},
        )

    def result_rows(self, output: str | None) -> pa.Table:
        """All results of an output so far.

        Raises
        ------
        PlanError
            For a name that no output has, for none where there are several, and for rows that are not in memory.
        """
        if output is None and len(self.results) > 1:
            raise PlanError("the query has several outputs", got="no name", hint=_known(self.results))
        return _found(self.results, output, "results()", "output").table("results()", "MemorySink()")

    def late_rows(self, stage: str | None) -> pa.Table:
        """All late rows of a stage so far, by default of the first one. Raises as :meth:`result_rows`."""
        found = _found(self.late, stage, "late_rows()", "stage")
        return found.table("late_rows()", "SideOutputLateEventHandler(MemorySink())")

    def late_in_memory(self) -> dict[str, pa.Table]:
        """Return the late rows so far of each stage that keeps them in memory."""
        return {n: kept.table("late_rows()", "") for n, kept in self.late.items() if isinstance(kept.sink, ReadableSink)}


def _found(kept: dict[str, OutputColumns], name: str | None, what: str, of: str) -> OutputColumns:
    if name is None:
        return next(iter(kept.values()))
    if not isinstance(name, str) or name not in kept:
        raise PlanError(f"{what}: no such {of}", got=shown(name), hint=_known(kept))
    return kept[name]


def _known(kept: dict[str, OutputColumns]) -> str:
    return f"pass one of {', '.join(map(repr, kept))}"
