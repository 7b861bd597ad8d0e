"""The last stage: a complete windowed aggregation that can be run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
from typing_extensions import Self

from krishiv_py.api.options import OptionMethods
from krishiv_py.api.outputs import Output
from krishiv_py.api.planning import explain, physical, stages
from krishiv_py.api.query import Query
from krishiv_py.api.results.follow import FollowMethods
from krishiv_py.api.runner import BoundedResult
from krishiv_py.api.stages.order import ON_RESULTS, instead
from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.foreach_batch import BatchConsumer
from krishiv_py.connectors.sinks.known import as_sink
from krishiv_py.display.html import plan_html
from krishiv_py.display.progress import Show
from krishiv_py.display.text import plan_text
from krishiv_py.errors import OrderError, PlanError, message, shown
from krishiv_py.lazy import lazy
from krishiv_py.plan.aggregates.outputs import outputs
from krishiv_py.plan.checks import a_text, column_name
from krishiv_py.plan.draft import Draft
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.handed_on import without_order
from krishiv_py.plan.nodes import WindowAggregate
from krishiv_py.plan.options.batches import Batches, told_batches
from krishiv_py.plan.options.handed import handed
from krishiv_py.plan.options.late import LateColumns

if TYPE_CHECKING:
    from krishiv_py.api.results import stream as results
    from krishiv_py.api.results.stream import ResultStream
    from krishiv_py.kernels.spec import OperatorSpec
    from krishiv_py.planner.physical import Engine, PhysicalPlan
    from krishiv_py.planner.stages import StagePlan
else:
    results = lazy("krishiv_py.api.results.stream")


def _checked(item: object) -> Expr:
    if not isinstance(item, Expr):
        hint = 'pass calls such as count() or sum("x"), or expressions of them: (sum("x") / count()).alias("mean")'
        raise PlanError(message("not an aggregate", shown(item), "the window would have no such result", hint))
    return item


def aggregated(
    draft: Draft, rows: pa.Schema, aggs: Sequence[Expr | Sequence[Expr]], named: Mapping[str, Expr] | None = None
) -> Draft:
    """Return a draft with the columns `aggs`, varargs or one list, and the `named` ones, over the `rows` of its window."""
    items: list[Expr] = []
    for given in aggs:
        listed = given if isinstance(given, Iterable) and not isinstance(given, (str, Expr)) else [given]
        items += map(_checked, listed)
    items += [_checked(item).alias(column_name(name, "agg")) for name, item in (named or {}).items()]
    if not items:
        raise PlanError(
            message("agg() got no aggregate", "0 aggregates", "a window would have no result", "write .agg(count())")
        )
    assert draft.window is not None
    rows = without_order(rows)
    calls, output = outputs(items, draft.keys, rows.names, draft.window.carried(draft.keys, rows))
    return attrs.evolve(draft, aggs=calls, output=output)


@instead(ON_RESULTS)
@attrs.frozen(eq=False, repr=False)
class AggregatedStream(FollowMethods, OptionMethods):
    """A checked windowed aggregation.

    The plan was checked when this object was made, so a run cannot fail because of the plan.
    """

    node: WindowAggregate = attrs.field(init=False, repr=False)
    _stages: tuple[StagePlan, ...] = attrs.field(init=False, repr=False)
    _given: ResultStream | None = attrs.field(init=False, repr=False, default=None)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.draft, Draft) or self.draft.window is None:
            raise PlanError(message("not a plan", shown(self.draft), "there is nothing to run", "end a stream with .agg(...)"))
        object.__setattr__(self, "node", self.draft.node())
        object.__setattr__(self, "_stages", stages.stages_for(self.node, self.late_handler))
        if self.draft.after and self.node.options.emit_mode == "retractions" and "op" not in self.schema.names:
            preset = None if self.draft.told.emit is not None else self.draft.told.preset
            raise OrderError(
                message(
                    "steps over results left out what says which results are withdrawn"
                    if preset
                    else "steps over results came before the option, and left out what says which results are withdrawn",
                    f"preset({preset!r}), which withdraws results, and nothing else was said"
                    if preset
                    else 'emit("retractions") behind .select(...) or HAVING',
                    "withdrawn results would look like valid ones",
                    'write it behind .agg(...): .agg(...).emit("retractions").select(...), or .emit("final"); '
                    "for SQL, on the stream that is registered",
                )
            )

    def with_pane(self) -> Self:
        """See :meth:`WindowedStream.with_pane`.

        Raises
        ------
        OrderError
            Behind steps over results that have left the columns out.
        """
        told = super().with_pane()
        if told.draft.after and not {"pane_timing", "pane_index"} <= set(told.schema.names):
            raise OrderError(
                message(
                    "steps over results came before the option, and left its columns out",
                    "with_pane() behind .select(...) or HAVING",
                    "pane_timing and pane_index would not be shown",
                    "set it behind .agg(...): .agg(...).with_pane().filter(...); for SQL, on the stream that is registered",
                )
            )
        return told

    def plan(self, engine: Engine | None = None, late: LateColumns | None = None) -> PhysicalPlan:
        """What an `engine` runs; `late` overrides what the late handlers want of a late row."""
        found = self._stages if late is None else stages.stages_for(self.node, self.late_handler, late)
        return physical.PhysicalPlan(self.node, found, engine)

    def spec(self) -> OperatorSpec:
        """The operator specification of the checked plan."""
        return self._stages[-1].spec

    @property
    def schema(self) -> pa.Schema:
        """Schema of the results: keys, ``window_start``, ``window_end``, aggregates, ``op`` for retractions."""
        return self._stages[-1].layout.result_schema

    def results(self) -> ResultStream:
        """The results as rows: for steps over them (HAVING), or for a further stage with its own keys and windows.

        The event time of a result is the column ``window_time``: the end of its window less one unit of the time column. Rows
        of look-back windows and of stages without windows have their own time (SEMANTICS §7.1).

        Raises
        ------
        OrderError
            Where an option was set behind steps over results.
        """
        if self._given is None:  # so that stages behind it know that they read the same results
            if self.draft.after:
                raise OrderError(
                    message(
                        "options came between steps over results",
                        "an option behind .as_plan() or a SQL query with steps over its results, and then a further step",
                        "the steps before the option would be lost",
                        "set options of the stage before its steps: .agg(...).emit(...).filter(...)",
                    )
                )
            object.__setattr__(self, "_given", results.of(self))
        assert self._given is not None
        return self._given

    def _given_by(self, steps: ResultStream) -> Self:
        """This plan, which is that of `steps` over results: more of them come behind these."""
        object.__setattr__(self, "_given", steps)
        return self

    def run(self, *, progress: Show = False) -> BoundedResult:
        """Run over a finite input as one Spark batch job and return results, late rows and counters.

        The end of the input fires every window. Late rows are the same as in a streaming query over the same batches: those
        of a memory stream, and of files read with ``max_files_per_batch`` (docs/sources.md). Otherwise all input is one batch.

        Parameters
        ----------
        progress : bool or None
            Whether to show the number of finished Spark tasks on standard error, and at the end rows and late rows. None shows
            them if standard error is a terminal and tqdm (the extra ``progress``) is installed.

        Raises
        ------
        PlanError
            For a source that never ends: use :meth:`start`.
        MissingExtraError
            For ``progress=True`` without tqdm.
        """
        return self.runner.run_bounded(self.plan("bounded"), progress)

    def collect(self, *, progress: Show = False) -> pa.Table:
        """The results of :meth:`run`, with the same `progress`."""
        return self.run(progress=progress).table

    def collect_with_aggs(self, aggs: Sequence[Expr]) -> pa.Table:
        """:meth:`collect` with other aggregates, `aggs`, over the same windows."""
        return attrs.evolve(self, draft=aggregated(self.draft, self.spec().row_schema, [aggs])).collect()

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
        """A Spark DataFrame of the results, for use in plain Spark. It is streaming if the source is streaming.

        Without a `checkpoint` the frame is a part of the Spark query that reads it. Late rows are then dropped and counted per
        Spark task only, and no watermark of Spark's can follow: a query has one, the minimum of all.

        With a `checkpoint` a query of its own starts and hands its results over (docs/outputs.md, "Continuing in Spark"): those
        of any plan that :meth:`start` takes, chains, joins and late outputs included. The frame has one more column,
        ``window_time``, the event time of results as a timestamp. Every operator of Spark's can follow.

        Parameters
        ----------
        checkpoint : str, optional
            Folder from which the query that hands results over can restart. Restart it together with the query that reads.
        watermark : int or timedelta or str, optional
            Let the frame have a watermark on ``window_time``: that of the results (SEMANTICS §7.2), less this much. It goes on
            also where no result comes, to the end of input. Without it, write ``.withWatermark("window_time", ...)``.
        clean : bool
            Delete what the query that reads the frame has read. No other query can read it then.
        batches : Batches, optional
            When micro-batches are planned. With ``Batches.available_now()`` this call waits until all input is handed over.
        name : str, optional
            Name of the query among ``session.queries``.

        Raises
        ------
        PlanError
            For options without a checkpoint, and for a watermark where results have no event time.
        """
        return self.runner.to_dataframe(self.plan(), handed(checkpoint, watermark, clean, batches, name))

    def start(
        self,
        sink: Sink | BatchConsumer,
        *,
        checkpoint: str | None = None,
        batches: Batches | None = None,
        name: str | None = None,
        trigger: Batches | None = None,
    ) -> Query:
        """Start an unbounded query.

        Parameters
        ----------
        sink : Sink or callable
            Where results go; a callable gets ``(dataframe, batch_id)``.
        checkpoint : str, optional
            Folder from which the query can restart. Without one, a temporary folder is used (profile ``dev-local`` only).
        batches : Batches, optional
            When micro-batches are planned; as fast as possible by default.
        name : str, optional
            Name for logs and metrics.
        trigger : Batches, optional
            The old name of `batches`.

        Raises
        ------
        PlanError
            For a sink that implements no interface of :mod:`krishiv_py.connectors`: its rows would be lost.
        CheckpointError
            When the checkpoint belongs to another plan; names what changed.
        """
        target = as_sink(sink, "results")
        when = told_batches(batches, trigger)
        if checkpoint is not None:
            a_text(checkpoint, "checkpoint", "pass a folder as text, or None for a temporary one")
        if name is not None:
            a_text(name, "name", "pass a text, or None for a generated name")
        return self.runner.start(self.plan("streaming"), (target,), checkpoint, when, name)

    def to(self, sink: Sink | BatchConsumer, *, name: str | None = None) -> Output:
        """Say where the results go, for a query with several outputs: ``session.start([a.to(...), b.to(...)])``.

        Parameters
        ----------
        sink : Sink or callable
            Where results go; a callable gets ``(dataframe, batch_id)``.
        name : str, optional
            What the output is called; by default ``output 1`` and so on, by its place.

        Raises
        ------
        PlanError
            For what is no sink, and for a name that is no text.
        """
        return Output(self, sink, name)

    def explain(self) -> str:
        """The logical, checked and physical plan as text, with the route, its reason, and warnings."""
        return plan_text(explain.explain(self.plan()))

    def _repr_html_(self) -> str:
        """What a notebook shows: the plan, with its route and warnings."""
        return plan_html(explain.explain(self.plan()))
