"""Determine where results and late rows go in this process: sinks that need no Spark, and handlers of late rows."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors.publish import OutputOf, TablePublisher, blamed, check_sink
from krishiv_py.connectors.side_output import side_output
from krishiv_py.connectors.sink import FileSink, Sink, TableSink
from krishiv_py.connectors.sinks.folder import folder_of
from krishiv_py.connectors.sinks.foreach_batch import BatchConsumer
from krishiv_py.connectors.sinks.known import as_sink
from krishiv_py.connectors.sinks.memory import MemorySink
from krishiv_py.connectors.staging import Publisher, write_staged
from krishiv_py.errors import PlanError
from krishiv_py.kernels.columns.layout import late_names
from krishiv_py.kernels.input.malformed import late_output_schema
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.options.late import LateEventHandler, LateRows, hand_over
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.places import check_places

AnySink: TypeAlias = Sink | BatchConsumer


class ProcessOutput(Protocol):
    """One output of a plan that runs in this process."""

    def publish(self, batch_id: int, rows: pa.Table, *, is_replay: bool) -> None:
        """Take what one call gave."""
        ...


@attrs.frozen(eq=False)
class InMemory:
    """Rows for a memory sink, after what is there: several drivers may write into one, and no batch is repeated."""

    sink: MemorySink

    def publish(self, batch_id: int, rows: pa.Table, *, is_replay: bool) -> None:
        """See ProcessOutput."""
        if rows.num_rows:
            self.sink.put(max(self.sink.tables, default=-1) + 1, [rows])


@attrs.frozen(eq=False)
class ToTables:
    """Rows for a sink that takes tables."""

    publisher: TablePublisher

    def publish(self, batch_id: int, rows: pa.Table, *, is_replay: bool) -> None:
        """See ProcessOutput."""
        self.publisher.publish(batch_id, [rows] if rows.num_rows else [], is_replay=is_replay)


@attrs.frozen(eq=False)
class ToFiles:
    """Rows for a sink that writes files."""

    sink: FileSink
    publisher: Publisher

    def publish(self, batch_id: int, rows: pa.Table, *, is_replay: bool) -> None:
        """See ProcessOutput."""
        with blamed(self.sink, batch_id):
            to = self.publisher
            names = write_staged(self.sink, to.folder, to.mark, batch_id, 0, rows, durable=to.durable) if rows.num_rows else []
        self.publisher.publish(batch_id, names)


@attrs.frozen(eq=False)
class ToHandler:
    """Late rows for a handler that has no sink."""

    handler: LateEventHandler
    spec: OperatorSpec

    def publish(self, batch_id: int, rows: pa.Table, *, is_replay: bool) -> None:
        """See ProcessOutput."""
        if not rows.num_rows:
            return
        keys = () if self.handler.wants == "count" else self.spec.keys
        if self.handler.wants != "rows":
            why = rows.schema.names[-3:]
            rows = rows.select([*keys, *why]).rename_columns([*keys, *late_names(keys)])
        hand_over(self.handler, LateRows(rows, self.spec.name, batch_id))


@attrs.frozen(eq=False)
class Outputs:
    """The outputs of a plan that runs in this process.

    Attributes
    ----------
    results : tuple of (ProcessOutput or None)
        Where the results of each output go, in addition to the :class:`~krishiv_py.testing.StepOutput`.
    late : tuple of ProcessOutput
        Where late rows of each stage go.
    """

    results: tuple[ProcessOutput | None, ...]
    late: tuple[ProcessOutput, ...]

    def publish(self, batch_id: int, results: Sequence[pa.Table], late: Sequence[pa.Table], *, is_replay: bool = False) -> None:
        """Publish what one call gave, the results of each output first, then the `late` rows of each stage.

        `is_replay` says that the batch began in an earlier run, and may have been published then.
        """
        for to, rows in zip(self.results, results, strict=True):
            if to is not None:
                to.publish(batch_id, rows, is_replay=is_replay)
        for output, rows in zip(self.late, late, strict=True):
            output.publish(batch_id, rows, is_replay=is_replay)


def outputs(sinks: Sequence[AnySink | None], plan: PhysicalPlan, query: str) -> Outputs:
    """The outputs of a driver, one of `sinks` for each of the plan.

    Raises
    ------
    PlanError
        For a sink that needs Spark, and for folders or sinks that may not be one (see :func:`check_places`).
    """
    taken, mark = [None if sink is None else as_sink(sink, "results") for sink in sinks], uuid.uuid4().hex[:8]
    aside = [side_output(stage.late) for stage in plan.stages]
    check_places(taken[0], aside[-1], plan.source, None, aside[:-1], [sink for sink in taken[1:] if sink is not None])
    return outputs_of(plan, taken, query, mark, in_driver=True)


def outputs_of(
    plan: PhysicalPlan, sinks: Sequence[Sink | None], query: str, mark: str, *, durable: bool = False, in_driver: bool = False
) -> Outputs:
    """The outputs of a plan, one of `sinks` for each; `mark` is in the names of files.

    Raises
    ------
    PlanError
        For a sink that needs Spark.
    """
    marks = [f"{mark}-{output.name}" if plan.named else mark for output in plan.outputs]

    def output(sink: Sink, of: OutputOf) -> ProcessOutput:
        if in_driver and isinstance(sink, MemorySink):
            check_sink(sink, of.output, of.schema)
            return InMemory(sink)
        return _output(sink, of, durable=durable, in_driver=in_driver)

    late = []
    for number, stage in enumerate(plan.stages):
        to, own = side_output(stage.late), plan.late_id(mark, number)
        schema = late_output_schema(stage.layout)
        late.append(ToHandler(stage.late, stage.spec) if to is None else output(to, OutputOf(own, query, "late_rows", schema)))
    return Outputs(
        tuple(
            None if sink is None else output(sink, OutputOf(own, query, "results", of.schema))
            for sink, own, of in zip(sinks, marks, plan.outputs, strict=True)
        ),
        tuple(late),
    )


def _output(sink: Sink, output: OutputOf, *, durable: bool, in_driver: bool) -> ProcessOutput:
    check_sink(sink, output.output, output.schema)
    match sink:
        case TableSink():
            return ToTables(TablePublisher(sink, output))
        case FileSink():
            return ToFiles(sink, Publisher(folder_of(sink) or "", output.query_id, durable))
    rows, attribute = ("results", "results") if output.output == "results" else ("late rows", "late")
    read = f", or read StepOutput.{attribute}" if in_driver else ", or use Session.embedded()"
    raise PlanError(
        f"a {'Driver' if in_driver else 'session in process'} cannot write {rows} to a sink that needs Spark",
        got=sink.title,
        hint=f"pass MemorySink(), ParquetSink(...), ConsoleSink() or a TableSink{read}",
    )
