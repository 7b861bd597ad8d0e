"""The last stage: a complete windowed aggregation that can be run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import pyarrow as pa
from typing_extensions import Self

from krishiv_py.api.options import OptionMethods
from krishiv_py.api.query import Query
from krishiv_py.api.runner import BoundedResult, Runner
from krishiv_py.api.stages.order import ON_RESULTS, instead
from krishiv_py.display.html import plan_html
from krishiv_py.display.progress import Show
from krishiv_py.display.text import plan_text
from krishiv_py.errors import PlanError, message, shown
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.aggregates import AggCall
from krishiv_py.plan.checks import a_text
from krishiv_py.plan.nodes import WindowAggregate
from krishiv_py.plan.options.late import LateColumns, LateEventHandler
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.options.sinks import BatchConsumer, ForeachBatchSink, QueryTrigger, Sink, known_sink
from krishiv_py.planner.explain import explain
from krishiv_py.planner.physical import Engine, PhysicalPlan, StagePlan, stage_of
from krishiv_py.redaction import shown_text


def as_aggs(aggs: Sequence[AggCall | Sequence[AggCall]]) -> tuple[AggCall, ...]:
    """Aggregates from varargs or one list."""
    flat: list[AggCall] = []
    for item in aggs:
        for call in item if isinstance(item, Iterable) and not isinstance(item, str) else [item]:
            if not isinstance(call, AggCall):
                raise PlanError(
                    message(
                        "not an aggregate",
                        shown(call),
                        "the window would have no such result",
                        'pass calls such as count() or sum(col("x"))',
                    )
                )
            flat.append(call)
    if not flat:
        raise PlanError(
            message("agg() got no aggregate", "0 aggregates", "a window would have no result", "write .agg(count())")
        )
    return tuple(flat)


@instead(ON_RESULTS)
@attrs.frozen(eq=False)
class AggregatedStream(OptionMethods):
    """A checked windowed aggregation.

    The plan was checked when this object was made; running it cannot fail for reasons of the plan.
    """

    node: WindowAggregate = attrs.field(repr=shown_text)
    late_handler: LateEventHandler
    runner: Runner
    _stage: StagePlan = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.node, WindowAggregate):
            raise PlanError(message("not a plan", shown(self.node), "there is nothing to run", "end a stream with .agg(...)"))
        object.__setattr__(self, "_stage", stage_of(self.node, self.late_handler.wants))

    @property
    def options(self) -> QueryOptions:
        """The options in force."""
        return self.node.options

    def _with_options(self, options: QueryOptions) -> Self:
        return attrs.evolve(self, node=attrs.evolve(self.node, options=self.node.window.settled(options)))

    def _with_handler(self, handler: LateEventHandler) -> Self:
        return attrs.evolve(self, late_handler=handler)

    def plan(self, engine: Engine | None = None, late: LateColumns | None = None) -> PhysicalPlan:
        """What an `engine` runs; `late` overrides what the late handler wants of a late row."""
        stage = self._stage if late in (None, self.late_handler.wants) else stage_of(self.node, late or self.late_handler.wants)
        return PhysicalPlan(self.node, (stage,), self.late_handler, engine)

    def spec(self) -> OperatorSpec:
        """The operator specification of the checked plan."""
        return self._stage.spec

    @property
    def schema(self) -> pa.Schema:
        """Schema of the results: keys, ``window_start``, ``window_end``, aggregates, ``op`` for retractions."""
        return self._stage.layout.result_schema

    def run(self, *, progress: Show = False) -> BoundedResult:
        """Run over a finite input as one Spark batch job and return results, late rows and counters.

        The end of the input fires every window. Late rows are the same as in a streaming query over the same batches: those
        of a memory stream, and of files read with ``max_files_per_batch`` (docs/sources.md); else all there is is one batch.

        Parameters
        ----------
        progress : bool or None
            Whether to show on standard error how many of Spark's tasks are done, and at the end rows and late rows; None
            for yes where that is a terminal and tqdm (the extra ``progress``) is installed.

        Raises
        ------
        PlanError
            For a source that never ends: use :meth:`start`.
        MissingExtraError
            For ``progress=True`` without tqdm.
        """
        return self.runner.run_bounded(self.plan("bounded"), progress)

    def collect(self, *, progress: Show = False) -> pa.Table:
        """The results of :meth:`run`, `progress` being what it is there."""
        return self.run(progress=progress).table

    def collect_with_aggs(self, aggs: Sequence[AggCall]) -> pa.Table:
        """:meth:`collect` with other aggregates, `aggs`, over the same windows."""
        node = attrs.evolve(self.node, aggs=as_aggs([aggs]), output=None)  # which may name the aggregates replaced
        return attrs.evolve(self, node=node).collect()

    def to_pandas(self) -> Any:
        """:meth:`collect` as a pandas DataFrame (pandas must be installed)."""
        return self.collect().to_pandas()

    def to_dataframe(self) -> Any:
        """A Spark DataFrame of results, streaming when the source is, to go on with in plain Spark.

        Late rows are dropped and counted by Spark task only; use :meth:`start` for a late output.

        A query has one watermark, the least of all. So ``withWatermark`` cannot follow the frame of a stream: such a query
        stops with an error in the second micro-batch. Write the results, and read them as a stream of their own.
        """
        return self.runner.to_dataframe(self.plan())

    def start(
        self,
        sink: Sink | BatchConsumer,
        *,
        checkpoint: str | None = None,
        trigger: QueryTrigger | None = None,
        name: str | None = None,
    ) -> Query:
        """Start an unbounded query.

        Parameters
        ----------
        sink : Sink or callable
            Where results go; a callable gets ``(dataframe, batch_id)``.
        checkpoint : str, optional
            Folder the query can be restarted from. Without one (profile ``dev-local`` only) a temporary one is used.
        trigger : QueryTrigger, optional
            When micro-batches are planned; as fast as possible by default.
        name : str, optional
            Name for logs and metrics.

        Raises
        ------
        PlanError
            For a sink that is none of those in :mod:`krishiv_py.plan.options.sinks`: its rows would vanish.
        CheckpointError
            When the checkpoint belongs to another plan; names what changed.
        """
        target = known_sink(sink, "results") if isinstance(sink, (Sink, type)) else ForeachBatchSink(sink)
        when = QueryTrigger.as_fast_as_possible() if trigger is None else trigger
        if not isinstance(when, QueryTrigger):
            hint = 'pass QueryTrigger.every("10 s"); when windows fire is set by .trigger(...) on the stream'
            raise PlanError(message("start() takes a QueryTrigger", shown(trigger), "no batch would be planned", hint))
        if checkpoint is not None:
            a_text(checkpoint, "checkpoint", "pass a folder as text, or None for a temporary one")
        if name is not None:
            a_text(name, "name", "pass a text, or None for a generated name")
        return self.runner.start(self.plan("streaming"), target, checkpoint, when, name)

    def explain(self) -> str:
        """The logical, checked and physical plan as text, with the route, its reason, and warnings."""
        return plan_text(explain(self.plan()))

    def _repr_html_(self) -> str:
        """What a notebook shows: the plan, with its route and warnings."""
        return plan_html(explain(self.plan()))
