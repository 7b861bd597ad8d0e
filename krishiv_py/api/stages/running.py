"""The methods of every stream whose rows are results: run it, start it with one output or several, show its plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from krishiv_py.api.planning import changes, cut, explain, physical
from krishiv_py.api.query import BoundedResult, Query, QueryStart, Runner
from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.known import BatchConsumer, as_sink
from krishiv_py.display.html import plan_html
from krishiv_py.display.lag import LatenessProfile, checked_profile
from krishiv_py.display.progress import Show
from krishiv_py.display.text import LaidOut, plan_text
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.changes import OP
from krishiv_py.plan.checks import PathLike, a_path, a_text, is_collection
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.nodes import Node, StageDraft, Watermark
from krishiv_py.plan.operation import PlainRows
from krishiv_py.plan.options.late import LateColumns, LateEventHandler
from krishiv_py.plan.options.query import Batches, OnChange, given_batches, handed
from krishiv_py.plan.options.watermarks import WatermarkSpec

if TYPE_CHECKING:
    from krishiv_py.kernels.spec import OperatorSpec
    from krishiv_py.planner.physical import Engine, PhysicalPlan


def _a_sink(given: Sink | BatchConsumer) -> Sink:
    return as_sink(given, "results")


@attrs.frozen(eq=False)
class Output:
    """Results and where they go: what :meth:`Session.start` takes, made by ``.to(sink)``.

    Attributes
    ----------
    stream : Stream, TimedStream or ResultStream
        The pipeline.
    sink : Sink
        Where its results go.
    name : str or None
        What the output is called; None for its place, ``output 1``.

    Raises
    ------
    PlanError
        For a value that is not a pipeline or not a sink, and for a name that is not a text.

    Examples
    --------
    >>> from krishiv_py import MemorySink, count
    >>> from krishiv_py.testing import stream_of
    >>> per_minute = stream_of("at bigint").watermark("at", 0).tumbling_window("1 min").agg(count())
    >>> output = per_minute.to(MemorySink(), name="per minute")
    >>> output.name, output.sink
    ('per minute', MemorySink())
    """

    stream: RunMethods
    sink: Sink = attrs.field(converter=_a_sink)
    name: str | None = None

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.stream, RunMethods):
            raise PlanError("not a pipeline", got=shown(self.stream), hint="write stream.to(sink, name=...)")
        if self.name is not None:
            a_text(self.name, "name", "pass what the output is called, or None for its place")


def named_outputs(outputs: Iterable[Output], what: str) -> dict[str, Output]:
    """Outputs by their names.

    Raises
    ------
    PlanError
        For something else, for no output, and for two of one name.
    """
    if not is_collection(outputs):
        raise _no_outputs(what, outputs)
    named: dict[str, Output] = {}
    for number, output in enumerate(outputs, 1):
        if not isinstance(output, Output):
            raise _no_outputs(what, output)
        name = output.name or f"output {number}"
        if name in named:
            raise PlanError("two outputs have one name", got=name, hint="name them: .to(sink, name=...)")
        named[name] = output
    if not named:
        raise PlanError(f"{what} got no output", got="0 outputs", hint=f"write {what}([stream.to(sink)])")
    return named


def _no_pipeline(given: object, what: str) -> PlanError:
    """Return the error for `given` instead of a list of pipelines; a stream is called by its stage."""
    stage = type(given).__name__
    whole = isinstance(given, RunMethods)
    unfinished = not whole and stage.endswith("Stream")
    hint = f"write {what}([per_minute, rest])"
    hint += "; after keys come a window and .agg(...), after a window .agg(...)" if unfinished else ""
    return PlanError(
        f"{what} takes a list of pipelines", got=f"one {stage}" if whole or unfinished else shown(given), hint=hint
    )


def named_plans(streams: object, what: str, engine: Engine | None = None) -> list[tuple[str, PhysicalPlan]]:
    """Return the plans of pipelines, each called by its place.

    Raises
    ------
    PlanError
        For something else, and for no pipeline.
    """
    listed = list(streams) if is_collection(streams) else [streams]
    plans: list[tuple[str, PhysicalPlan]] = []
    for number, given in enumerate(listed, 1):
        if listed == [streams] or not isinstance(given, RunMethods):
            raise _no_pipeline(given, what)
        plans.append((f"output {number}", given._plan(engine)))
    if not plans:
        raise PlanError(f"{what} got no pipeline", got="0 pipelines", hint=f"write {what}([stream])")
    return plans


def _no_outputs(what: str, got: object) -> PlanError:
    hint = "end each stream with .to(sink): [per_minute.to(sink), rest.to(other)]"
    return PlanError(f"{what} takes a list of outputs", got=shown(got), hint=hint)


def with_contents(plan: PhysicalPlan, result: BoundedResult) -> BoundedResult:
    """Return the outcome of a run whose results that are tables are their contents in the end (SEMANTICS §16.1)."""
    of = {o.name: plan.stages[o.stage].spec.operation.gives_table and OP in o.schema.names for o in plan.outputs}
    if not any(of.values()):
        return result
    outputs = {name: changes.content_of(table) if of[name] else table for name, table in result.outputs.items()}
    table = changes.content_of(result.table) if next(iter(of.values())) else result.table
    return attrs.evolve(result, table=table, outputs=outputs)


def plan_of_rows(node: Node, handler: LateEventHandler, engine: Engine | None, late: LateColumns | None) -> PhysicalPlan:
    """Return the plan of the rows of a `node` as they are: no watermark is needed, and no row is late (SEMANTICS §7.4)."""
    rows = StageDraft(Watermark(node, "", WatermarkSpec(0)), handler, operation=PlainRows()).node()
    return physical.PhysicalPlan(rows, cut.stages_for(rows, late), engine)


class RunMethods:
    """Runs a stream.

    Of a stream without windows every row after the steps is a result, in the micro-batch in which it arrives. No watermark is
    needed, no row is late, and nothing is kept. Malformed input goes to the late handler.
    """

    __slots__ = ()
    _runner: Runner

    def _plan(self, engine: Engine | None = None, late: LateColumns | None = None) -> PhysicalPlan:
        """Return what an `engine` runs; `late` overrides what the late handlers want of a late row."""
        raise NotImplementedError

    def _spec(self) -> OperatorSpec:
        """Return the operator specification of the checked plan."""
        return self._plan().spec

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

        Examples
        --------
        >>> from krishiv_py import Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     _ = [sender.send([{"at": at}]) for at in (15, 3)]
        ...     sender.close()
        ...     result = stream.watermark("at", 0).tumbling_window(10).agg(count()).run()
        >>> result.table.to_pylist()
        [{'window_start': 10, 'window_end': 20, 'count': 1}]
        >>> result.counters["late"]
        1
        """
        plan = self._plan("bounded")
        return with_contents(plan, self._runner.run_bounded(plan, progress))

    def collect(self, *, progress: Show = False) -> pa.Table:
        """Return the results of :meth:`run`, with the same `progress`.

        Examples
        --------
        >>> from krishiv_py import Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     _ = sender.send([{"at": 1}, {"at": 12}])
        ...     sender.close()
        ...     stream.watermark("at", 0).tumbling_window(10).agg(count()).collect().to_pylist()
        [{'window_start': 0, 'window_end': 10, 'count': 1}, {'window_start': 10, 'window_end': 20, 'count': 1}]
        """
        return self.run(progress=progress).table

    def to_pandas(self) -> Any:
        """:meth:`collect` as a pandas DataFrame (pandas must be installed).

        Examples
        --------
        >>> from krishiv_py import Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     _ = sender.send([{"at": 1}, {"at": 12}])
        ...     sender.close()
        ...     frame = stream.watermark("at", 0).tumbling_window(10).agg(count()).to_pandas()
        >>> frame["count"].tolist()
        [1, 1]
        """
        return self.collect().to_pandas()

    def to_dataframe(
        self,
        *,
        checkpoint: PathLike | None = None,
        watermark: Duration | None = None,
        clean: bool = False,
        batches: Batches | None = None,
        name: str | None = None,
    ) -> Any:
        """Return a Spark DataFrame of the results, for use in plain Spark. It is streaming if the source is streaming.

        Without a `checkpoint` the frame is a part of the Spark query that reads it. Late rows, and rows that fail an
        expectation, are then dropped and counted per Spark task only, and no watermark of Spark's can follow: a query has one,
        the minimum of all. Files of a stream are then planned by Spark's file source, which does not notice a planned file that
        was changed or was empty (docs/sources.md).

        With a `checkpoint` a query of its own starts and hands its results over (docs/outputs.md, "Continuing in Spark"): those
        of any plan that :meth:`start` takes, chains, joins and late outputs included. The frame has one more column,
        ``window_time``, the event time of results as a timestamp. Every operator of Spark's can follow.

        Parameters
        ----------
        checkpoint : str or os.PathLike, optional
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

        Examples
        --------
        >>> from krishiv_py import count
        >>> def sums_in_spark(session):
        ...     clicks = session.read_parquet("clicks", "user string, at timestamp", streaming=True)
        ...     counts = clicks.watermark("at", "1 min").key_by("user").tumbling_window("1 hour").agg(count())
        ...     frame = counts.to_dataframe(checkpoint="handed", watermark="0 s")
        ...     return frame.groupBy("window_time").sum("count")
        """
        return self._runner.to_dataframe(self._plan().of_one_query(), handed(checkpoint, watermark, clean, batches, name))

    def start(
        self,
        sink: Sink | BatchConsumer,
        *,
        checkpoint: PathLike | None = None,
        batches: Batches | None = None,
        name: str | None = None,
        savepoint: PathLike | None = None,
        on_change: Mapping[str, OnChange] | None = None,
        trigger: Batches | None = None,
        lateness: LatenessProfile | None = None,
        keep_batches: int | None = None,
    ) -> Query:
        """Start an unbounded query.

        Parameters
        ----------
        sink : Sink or callable
            Where results go; a callable gets ``(dataframe, batch_id)``.
        checkpoint : str or os.PathLike, optional
            Folder from which the query can restart. Without one, a temporary folder is used (profile ``dev-local`` only).
        batches : Batches, optional
            When micro-batches are planned; as fast as possible by default.
        name : str, optional
            Name for logs and metrics.
        savepoint : str or os.PathLike, optional
            The folder of a savepoint that a new checkpoint begins from (docs/savepoints.md). A checkpoint that began from it
            goes on from where it is.
        on_change : dict, optional
            What may be lost where the plan is another than that of the savepoint, by the name of the stage: ``"reset"`` lets a
            stage begin without state, ``"drop"`` leaves the state of a stage aside that the plan has no more.
        trigger : Batches, optional
            The old name of `batches`.
        lateness : LatenessProfile, optional
            The profile that the lag was chosen by: ``progress`` warns when rows are later (``Query.expect_lateness``).
        keep_batches : int, optional
            How many of its last micro-batches the checkpoint can go back to, for ``session.capture(..., last=50)``
            (docs/capture.md). By default none in process, and as many as Spark keeps there.

        Raises
        ------
        PlanError
            For a sink that implements no interface of :mod:`krishiv_py.connectors`: its rows would be lost.
        CheckpointError
            When the checkpoint or the savepoint belongs to another plan whose state this one cannot take; names what changed.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(MemorySink(), name="counts")
        ...     _ = sender.send([{"at": 1}, {"at": 12}])
        ...     query.process_all_available()
        ...     query.results().to_pylist()
        [{'window_start': 0, 'window_end': 10, 'count': 1}]
        """
        target = as_sink(sink, "results")
        when = given_batches(batches, trigger, keep_batches)
        begin = savepoint, on_change
        start = QueryStart.of(lambda: self._plan("streaming").of_one_query(), (target,), checkpoint, when, name, begin)
        if lateness is not None:
            checked_profile(lateness, start.plan)
        query = self._runner.start(start)
        if lateness is not None:
            query.expect_lateness(lateness)
        return query

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
            For a value that is not a sink, and for a name that is not a text.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     rows = stream.watermark("at", 0)
        ...     seconds, minutes = (rows.tumbling_window(size).agg(count()) for size in ("1 s", "1 min"))
        ...     query = session.start([seconds.to(MemorySink(), name="seconds"), minutes.to(MemorySink(), name="minutes")])
        ...     _ = sender.send([{"at": 1_000}, {"at": 62_000}])
        ...     query.process_all_available()
        ...     query.results("minutes").to_pylist()
        [{'window_start': 0, 'window_end': 60000, 'count': 1}]
        """
        self._plan()  # says what is wrong with it
        return Output(self, sink, name)

    def explain(self, *, against: PathLike | None = None, bootstrap: Iterable[str] = ()) -> str:
        """Return the logical, checked and physical plan as text, with the route, its reason, and warnings.

        Parameters
        ----------
        against : str or os.PathLike, optional
            The folder of a checkpoint or savepoint: then the text says instead, for each stage, what becomes of its state if
            this plan begins from it: kept, migrated (how), added, or refused (why). See docs/savepoints.md.
        bootstrap : iterable of str, optional
            The sources whose archives the query would begin with, ``["orders"]`` or what ``start(bootstrap=...)`` gets: new
            stages and aggregates that read no other source are rebuilt. Needs `against`.

        Raises
        ------
        CheckpointError
            When neither is there, or it is damaged.
        PlanError
            For a name in `bootstrap` that no source of the query has.

        Examples
        --------
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import stream_of
        >>> print(stream_of("at bigint").watermark("at", "5 s").tumbling_window("1 min").agg(count()).explain())
        == Logical plan ==
        WindowAggregate tumbling 1 min by (one global key): count(*) AS count [late_rule=event, emit=final]
           └─ Watermark at: max(event time) - 5 s
              └─ MemoryStream test (1 columns)
        ...
        """
        if against is not None:
            folder = a_path(against, "against", "pass the folder of a checkpoint or savepoint")
            return self._runner.against(self._plan("streaming"), folder, _named(bootstrap))
        if _named(bootstrap):
            raise PlanError("`bootstrap` needs `against`", got="no `against`", hint="pass against=CHECKPOINT, too")
        return LaidOut(plan_text(explain.explain(self._plan(self._runner.engine))))

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: the plan, with its route and warnings."""
        return plan_html(explain.explain(self._plan(self._runner.engine)))


def _named(bootstrap: object) -> tuple[str, ...]:
    """Return the names of sources with archives."""
    hint = 'write the names of the sources that have archives: bootstrap=["orders"]'
    if not is_collection(bootstrap):
        raise PlanError("`bootstrap` is a list of sources", got=shown(bootstrap), hint=hint)
    return tuple(a_text(name, "bootstrap", hint) for name in bootstrap)
