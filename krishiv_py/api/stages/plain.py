"""Streams without windows: they can be run as they are (SEMANTICS §7.4)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from krishiv_py.api.outputs import Output
from krishiv_py.api.query import Query
from krishiv_py.api.results.rows import RowStream
from krishiv_py.api.runner import BoundedResult, Runner
from krishiv_py.api.stages.aggregated import AggregatedStream
from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.foreach_batch import BatchConsumer
from krishiv_py.display.progress import Show
from krishiv_py.plan.draft import Draft
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.nodes import Node, Untimed
from krishiv_py.plan.options.batches import Batches, told_batches
from krishiv_py.plan.options.late import LateEventHandler
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.plan.passed_on import RowsAsTheyAre


def rows_of(node: Node, late: LateEventHandler, runner: Runner) -> RowStream:
    """The rows of `node` as a plan that can be run."""
    return RowStream(Draft(Untimed(node, "", WatermarkSpec(0)), late, window=RowsAsTheyAre()), runner)


class RunMethods:
    """Runs a stream as it is: every row behind the steps is a result, in the micro-batch in which it arrives.

    No watermark is needed, no row is late, and nothing is kept. Malformed input goes to the late handler.
    """

    __slots__ = ()

    def as_plan(self) -> AggregatedStream:
        """The plan that runs."""
        raise NotImplementedError

    def run(self, *, progress: Show = False) -> BoundedResult:
        """See :meth:`AggregatedStream.run`, with its `progress`: results are the rows."""
        return self.as_plan().run(progress=progress)

    def collect(self, *, progress: Show = False) -> pa.Table:
        """See :meth:`AggregatedStream.collect`, with its `progress`: the rows of a finite input."""
        return self.as_plan().collect(progress=progress)

    def to_pandas(self) -> Any:
        """:meth:`collect` as a pandas DataFrame (pandas must be installed)."""
        return self.collect().to_pandas()

    def to_dataframe(
        self,
        *,
        checkpoint: str | None = None,
        watermark: Duration | None = None,
        clean: bool = False,
        batches: Batches | None = None,
        name: str | None = None,
    ) -> Any:
        """See :meth:`AggregatedStream.to_dataframe`: the rows, for use in plain Spark."""
        return self.as_plan().to_dataframe(checkpoint=checkpoint, watermark=watermark, clean=clean, batches=batches, name=name)

    def start(
        self,
        sink: Sink | BatchConsumer,
        *,
        checkpoint: str | None = None,
        batches: Batches | None = None,
        name: str | None = None,
        trigger: Batches | None = None,
    ) -> Query:
        """See :meth:`AggregatedStream.start`, with its `sink`, `checkpoint`, `batches`, `name` and `trigger`."""
        return self.as_plan().start(sink, checkpoint=checkpoint, batches=told_batches(batches, trigger), name=name)

    def to(self, sink: Sink | BatchConsumer, *, name: str | None = None) -> Output:
        """See :meth:`AggregatedStream.to`, with its `sink` and `name`."""
        return self.as_plan().to(sink, name=name)

    def explain(self) -> str:
        """See :meth:`AggregatedStream.explain`."""
        return self.as_plan().explain()
