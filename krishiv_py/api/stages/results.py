"""The results of a stage: rows with event time, for steps over them or another stage with its own keys and windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, final

import attrs
import pyarrow as pa
from typing_extensions import Self

from krishiv_py.api.computed import unnested
from krishiv_py.api.joins import LookupKeys, looked_up, reloads
from krishiv_py.api.planning import check, cut, hidden, physical
from krishiv_py.api.query import Runner
from krishiv_py.api.stages.changing import changes_of, history_of, united
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.shown import said_of, some
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.api.stages.windowed import WindowedStream, aggregated
from krishiv_py.errors import OrderError, PlanError, shown
from krishiv_py.plan.aggregates.numbers import count
from krishiv_py.plan.changes import OP
from krishiv_py.plan.checks import one_of
from krishiv_py.plan.durations import Duration, to_us
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.joins import LookupType
from krishiv_py.plan.nodes import (
    BatchFunction,
    Expect,
    Filter,
    MapBatches,
    Node,
    Prefix,
    Project,
    Stage,
    StageDraft,
    Watermark,
    prefix_of,
    source_of,
    stages_of,
)
from krishiv_py.plan.operation import Operation
from krishiv_py.plan.options.late import DefaultLateEventHandler, LateColumns
from krishiv_py.plan.options.query import EmitMode, ExplicitOptions
from krishiv_py.plan.options.watermarks import RowsClock, WatermarkSpec
from krishiv_py.plan.windows import WindowOperation

if TYPE_CHECKING:
    from krishiv_py.api.stages.changing import TableSide
    from krishiv_py.planner.cut import StagePlan
    from krishiv_py.planner.physical import Engine, PhysicalPlan

S = TypeVar("S", bound=WindowedStream)


@final
@attrs.frozen(eq=False, repr=False, slots=False)
class ResultStream(TimedStream):
    """The results of windows, of a join or of deduplication, as rows with event time and watermark.

    It can be run as it is. Steps such as :meth:`filter` give another one (HAVING). Keys, windows and joins make another
    stage in the same query, whose watermark follows from this one, so that no result is late there (SEMANTICS §7). A stage
    that another follows gives final results.

    The event time of a result is the column ``window_time``: the end of its window less one unit of the time column. Rows of
    look-back windows, joins and deduplication have their own time (SEMANTICS §7.1).

    An option that is set first, such as :meth:`emit`, belongs to the stage whose results these are. One after a step, or
    after :meth:`results`, belongs to the stage that follows. The plan was checked when the results were made, so a run cannot
    fail because of it.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns: keys, ``window_start``, ``window_end``, aggregates, ``op`` for retractions; for joins and deduplication
        those of the rows.

    Examples
    --------
    >>> from krishiv_py import count, max
    >>> from krishiv_py.testing import Driver, stream_of
    >>> clicks = stream_of("user string, at bigint").watermark("at", 0).key_by("user")
    >>> per_second = clicks.tumbling_window("1 s").agg(count())
    >>> busiest = per_second.filter("count > 1").key_by("user").tumbling_window("1 min").agg(max("count").alias("peak"))
    >>> driver = Driver(busiest)
    >>> _ = driver.send([{"user": user, "at": at} for user, at in [("a", 0), ("a", 500), ("b", 1_000)]])
    >>> [(row["user"], row["peak"]) for row in driver.close().results.to_pylist()]
    [('a', 2)]
    """

    _kind = "results"

    _stage: StageDraft
    _stage_node: Stage
    _made: list[Stage]
    """The stages that options have made of the same windows and aggregates so far."""
    _alone: pa.Schema
    """The columns of results that no step and no stage follows."""
    _of_stage: bool = True
    """True while options still belong to the stage before."""

    def _said(self) -> list[str]:
        return said_of(self._stage) if self._of_stage else [some(self.schema.names), *said_of(self._draft)]

    def _optional(self) -> StageDraft:
        return self._stage if self._of_stage else self._draft

    def _with(self, **changes: Any) -> Self:
        if not self._of_stage:
            return super()._with(**changes)
        stream = results_of(attrs.evolve(self._stage, **changes), self._runner, self._made)
        if not self._steps:
            return stream
        if any(reloads(step) for step in self._steps):
            stream._check_reloading("a lookup_join with `reload`, and then an option that withdraws results")
        node: Node = stream._output
        for step in self._steps:
            kept = step if "op" in stream._output.schema.names else hidden.without(step, {"op"})
            node = attrs.evolve(kept, input=node)
        only_filters = all(isinstance(step, Filter) for step in self._steps)
        return stream._over(node, stream.schema.names if only_filters else self.schema.names)._as_plan()

    @property
    def _node(self) -> Node:
        return self._draft.input.input

    @property
    def _output(self) -> Stage:
        source = source_of(self._draft.input)
        assert isinstance(source, Stage)
        return source

    @property
    def _steps(self) -> tuple[Prefix, ...]:
        return prefix_of(self._draft.input)

    @property
    def _result_time(self) -> str | None:
        """Return where event times come from: ``"row"`` for a column of their own, else how they follow from the window."""
        return None if self._stage_node.time is None else self._stage_node.time.of

    def _over(self, node: Node, names: Sequence[str]) -> Self:
        """Return the rows of a `node` over these results, whose columns with these `names` later steps can name."""
        draft = attrs.evolve(self._draft, input=attrs.evolve(self._draft.input, input=node))
        stream = attrs.evolve(self, draft=draft, of_stage=False)
        full = stream._row_schema()
        return attrs.evolve(stream, schema=pa.schema([full.field(n) for n in names if n in full.names]))

    def _then(self, change: Callable[[Stream], Stream]) -> Self:
        full, time = self._row_schema(), self._output.time_column
        usable = pa.schema([f for f in full if f.name in self.schema.names or f.name == time])
        made = change(Stream(self._node, usable, self._runner))
        node, named = made._node, time in self.schema.names or _names(made._node, time)
        if isinstance(node, Project):
            hidden.refuse_hidden(node, self._output)
            node = node if named else hidden.without(node, {time})
        if isinstance(node, Expect) and node.on_fail != "fail":
            hint = "write it before the window, or leave results out with .filter(condition)"
            raise PlanError("an expectation of results can only fail", got=f"on_fail={shown(node.on_fail)}", hint=hint)
        return self._over(node, [n for n in made.schema.names if n != time or named])

    def map_batches(self, function: BatchFunction, schema: pa.Schema | str | None = None) -> ResultStream:
        """Apply a function to every Arrow batch of results.

        Parameters
        ----------
        function : callable
            ``RecordBatch -> RecordBatch`` (or a ``Table`` or frame) with one row for each row; it is pickled to the workers.
        schema : pyarrow.Schema or str, optional
            Schema of what it returns; by default that of what it gets.

        Examples
        --------
        >>> import pyarrow.compute as pc
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> counts = stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count())
        >>> def doubled(batch):
        ...     return batch.set_column(batch.schema.get_field_index("count"), "count", pc.multiply(batch["count"], 2))
        >>> Driver(counts.map_batches(doubled)).send([{"at": 1}, {"at": 12}]).results.to_pylist()
        [{'window_start': 0, 'window_end': 10, 'count': 2}]
        """
        full = self._row_schema()
        shown = pa.schema([f for f in self.schema if f.name in full.names])
        plain = Stream(self._node, shown, self._runner).map_batches(function, schema)
        assert isinstance(plain._node, MapBatches)
        return self._over(attrs.evolve(plain._node, shown=tuple(shown.names)), plain.schema.names)

    def unnest(self, column: str, *, rank: str | None = None, outer: bool = False) -> ResultStream:
        """Give one row for each item of a list, as :func:`~krishiv_py.top_k` makes it.

        Parameters
        ----------
        column : str
            A column of lists. The fields of structs become columns, other items keep its name. A result with an empty list
            gives no row.
        rank : str, optional
            A column for the place of an item in its list, ``int64``, from 1 on.
        outer : bool, default False
            Keep a result whose list is empty or null, with nulls.

        Raises
        ------
        ColumnError
            For a column that does not exist, or has no lists.
        SchemaError
            For columns of one name.

        Examples
        --------
        >>> from krishiv_py import top_k
        >>> from krishiv_py.testing import Driver, stream_of
        >>> best = stream_of("at bigint, n bigint").watermark("at", 0).tumbling_window(10).agg(top_k(2, "n").alias("top"))
        >>> driver = Driver(best.unnest("top", rank="place").select("n", "place"))
        >>> _ = driver.send([{"at": 1, "n": 5}, {"at": 2, "n": 7}, {"at": 3, "n": 6}])
        >>> driver.close().results.to_pylist()
        [{'n': 7, 'place': 1}, {'n': 6, 'place': 2}]
        """
        return self._unnested(column, rank, outer)

    def _unnested(self, column: str, rank: str | None, outer: bool, spread: bool = True) -> ResultStream:
        full = self._row_schema()
        named = pa.schema([f for f in self.schema if f.name in full.names])
        function, schema = unnested(named, column, rank, outer, spread)
        for name in self._output.envelope:
            if name in schema.names and name not in named.names:
                raise hidden.reserved(name)
        return self._over(MapBatches(self._node, function, schema), schema.names)

    def lookup_join(
        self,
        table: Any,
        on: LookupKeys,
        *,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        how: LookupType = "left",
        validity: tuple[str, str] | None = None,
        at: str | None = None,
        reload: Duration | None = None,
    ) -> ResultStream:
        """See :meth:`Stream.lookup_join`: add columns of a table to results.

        Raises
        ------
        PlanError
            With `reload` after ``emit("retractions")``: a result could be withdrawn with other values than it was given with.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from krishiv_py import count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> shops = pa.table({"shop": ["a", "b"], "city": ["Ulm", "Rom"]})
        >>> sold = stream_of("shop string, at bigint").watermark("at", 0).key_by("shop").tumbling_window(10).agg(count())
        >>> driver = Driver(sold.lookup_join(shops, "shop").select("city", "count"))
        >>> driver.send([{"shop": "a", "at": 1}, {"shop": "b", "at": 12}]).results.to_pylist()
        [{'city': 'Ulm', 'count': 1}]
        """
        if reload is not None:
            self._check_reloading(f"reload={shown(reload)}")
        full, time = self._row_schema(), self._output.time_column
        usable = pa.schema([f for f in full if f.name in self.schema.names or f.name == time])
        function, schema = looked_up(usable, table, on, columns, how, validity, at, reload)
        named = [full.field(name) for name in self.schema.names if name in full.names]
        step = MapBatches(self._node, function, pa.schema([*named, *list(schema)[len(usable) :]]))
        return self._over(step, step.schema.names)

    def _check_reloading(self, got: str) -> None:
        if self._stage_node.options.emit_mode == "retractions":
            what = "results that may be withdrawn cannot be looked up in a table that changes"
            then = "a result would be withdrawn with other values than it was given with"
            raise PlanError(what, got=got, then=then, hint='leave `reload` out, or emit("final")')

    def watermark(self, column: str, lag: Duration, *, clock: RowsClock | None = None) -> TimedStream:
        """Let the next stage wait `lag` longer than the stage before makes it.

        Results are never late, so they have no clock of their own: by which clock rows are classified is said where the rows
        of a source get their watermark.

        Parameters
        ----------
        column : str
            The event time of results: ``window_time``, or the rows' own.
        lag : int or timedelta or str
            How much the watermark stays behind; ``int`` is milliseconds.
        clock : {"batch", "row"}, optional
            That of the rows of the sources, which may be named again; another one is refused.

        Raises
        ------
        PlanError
            For another column than the event time, another clock, and a table.

        Examples
        --------
        >>> from krishiv_py import count, sum
        >>> from krishiv_py.testing import Driver, stream_of
        >>> seconds = stream_of("at bigint").watermark("at", 0).tumbling_window(1_000).agg(count())
        >>> minutes = seconds.watermark("window_time", "5 s").tumbling_window("1 min").agg(sum("count").alias("rows"))
        >>> driver = Driver(minutes)
        >>> [driver.send([{"at": at}]).results.num_rows for at in (1_000, 61_000, 66_000)]
        [0, 0, 1]
        """
        time = self._stage_node.time
        own = time.column if time is not None and time.of_row else None
        known = self._output.time_column
        if self._output.operation.gives_table:
            of_changes = self._output.operation.change_time(self._output.input.column)
            if of_changes is None:
                hint = "leave .watermark(...) out: what follows a table goes by its changes"
                raise PlanError("a table has no event time", got=shown(column), hint=hint)
            known = of_changes
        else:
            self._check_followed()
        if not isinstance(column, str) or column not in (known, own):
            then = "another one could go against the watermark, and rows be lost"
            hint = f"write .watermark({known!r}, lag), or leave it out"
            raise PlanError("results have the event time of their stage", got=shown(column), then=then, hint=hint)
        self._check_clock(clock)
        spec = WatermarkSpec(to_us(lag, "lag", allow_zero=True))
        return attrs.evolve(self, draft=attrs.evolve(self._draft, input=attrs.evolve(self._draft.input, spec=spec)))

    def _check_clock(self, clock: RowsClock | None) -> None:
        """Refuse a clock that is not the one by which the rows of the sources are classified."""
        if clock is None:
            return
        one_of(clock, "clock", ("batch", "row"))
        if clock != ("row" if any(node.input.spec.by_row for node in stages_of(self._stage_node)) else "batch"):
            then = "the rows of the sources are classified by the other one, and their results are never late"
            hint = f'write clock="{clock}" in the .watermark(...) of the source, and leave it out here'
            raise PlanError("results have no clock of their own", got=f'clock="{clock}"', then=then, hint=hint)

    def key_by(self, *keys: str | Expr, **named: Expr | str) -> KeyedStream:
        """Group results by `keys`, columns or expressions, and `named` ones, for another stage.

        Examples
        --------
        >>> from krishiv_py import count, sum
        >>> from krishiv_py.testing import Driver, stream_of
        >>> pages = stream_of("user string, page string, at bigint").watermark("at", 0).key_by("user", "page")
        >>> per_page = pages.tumbling_window(10).agg(count().alias("n"))
        >>> driver = Driver(per_page.key_by("page").tumbling_window(10).agg(count().alias("users"), sum("n")))
        >>> _ = driver.send([{"user": user, "page": "home", "at": 1} for user in ("ann", "bob", "ann")])
        >>> [(row["page"], row["users"], row["sum_n"]) for row in driver.close().results.to_pylist()]
        [('home', 2, 3)]
        """
        of = self._output.operation
        if self._output.options.emit_mode != "retractions" and (of.gives_table or of.late_by != "never"):
            self._check_followed()  # else an aggregate without a window may follow
        return super().key_by(*keys, **named)

    def _windowed(self, window: WindowOperation, stage: type[S]) -> S:
        self._check_followed(window)
        return super()._windowed(window, stage)

    def _check_followed(self, operation: Operation | None = None) -> None:
        check.check_followed(self._output, operation)

    def to_changelog(self, op: str = OP) -> ResultStream:
        """Give results that change as a log: each change is a row that is only added, with its kind in a column (§16.1).

        The content is not taken any more, by nobody: :meth:`collect` gives all changes, sinks with a key take them as rows
        unless the column is called ``op``, and aggregates after it count changes.

        Parameters
        ----------
        op : str
            The column of the kind: ``+I`` for a new row, ``-U`` and ``+U`` for one that changes, ``-D`` for one that is gone.

        Raises
        ------
        PlanError
            For results that are only added.
        ColumnError
            For the name of a column that rows have.

        Examples
        --------
        >>> from krishiv_py import count, sum
        >>> from krishiv_py.testing import Driver, stream_of
        >>> totals = stream_of("user string, n bigint").key_by("user").agg(total=sum("n"))
        >>> log = totals.to_changelog(op="kind").filter("kind in ('+I', '+U')")
        >>> driver = Driver(log)
        >>> [driver.send([{"user": "ann", "n": n}]).results.to_pylist() for n in (5, 2)]
        [[{'user': 'ann', 'total': 5, 'kind': '+I'}], [{'user': 'ann', 'total': 7, 'kind': '+U'}]]
        """
        if self._output.options.emit_mode != "retractions":
            alone = self._stage_node.options.emit_mode
            hint = "leave .to_changelog out" if alone == "final" else 'write .emit("retractions") before'
            raise PlanError("these results are only added: they have no kinds", got=f"emit({alone!r})", hint=hint)
        return changes_of(self._draft.input, self.schema.names, op, self.late_handler, self._runner)

    def history(self, valid_from: str = "valid_from", valid_to: str = "valid_to") -> ResultStream:
        """Give all versions that the rows of a table had, with their bounds: a slowly changing dimension of type 2 (§16.8).

        A version begins with a change of its key that gives another row, and ends with the next one, or with a deletion. No
        change is late: one that comes after its time cuts the version in two that it falls into, which is withdrawn.

        Parameters
        ----------
        valid_from, valid_to : str
            The columns of the bounds: valid from the one on, until before the other; null where a version is still valid. They
            are event times where the changes have any, and `valid_from` then takes the place of their column; else values of
            the sequence.

        Returns
        -------
        ResultStream
            The columns of the table, the bounds, and ``op``. The key and `valid_from` tell versions apart.

        Raises
        ------
        PlanError
            For anything but ``.from_changelog(...)`` or ``.latest(...)`` before it, and for changes that have neither event
            time nor a sequence of one column.
        ColumnError
            For the names of other columns.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> changes = stream_of("id bigint, city string, at bigint").watermark("at", 0)
        >>> versions = changes.from_changelog("upsert", key="id").history()
        >>> driver = Driver(versions)
        >>> _ = driver.send([{"id": 7, "city": "Ulm", "at": 10}, {"id": 7, "city": "Rom", "at": 20}])
        >>> late = driver.send([{"id": 7, "city": "Bonn", "at": 15}]).results
        >>> [(row["op"], row["city"], row["valid_from"], row["valid_to"]) for row in late.to_pylist()]
        [('-U', 'Ulm', 10, 20), ('+U', 'Ulm', 10, 15), ('+I', 'Bonn', 15, 20)]
        """
        if self._steps or not self._stage_node.operation.changes_rows:
            hint = "write it right after .from_changelog(...), and steps after it: .history().filter(...)"
            raise PlanError("history() is of a table of changes", got=shown(self), hint=hint)
        return history_of(self._stage, valid_from, valid_to, self._runner)

    def union(self, other: TableSide) -> ResultStream:
        """Give the rows of this table and of another one, each as often as both have it (SEMANTICS §16.8).

        Parameters
        ----------
        other : ResultStream or Stream
            A table with the same columns, or rows that are only added.

        Raises
        ------
        SchemaError
            For other columns.
        PlanError
            For something else than a table or a stream.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> north, south = (stream_of("id bigint, city string").from_changelog("upsert", key="id") for _ in range(2))
        >>> driver = Driver(north.union(south).distinct())
        >>> driver.send({"left": [{"id": 1, "city": "Ulm"}], "right": [{"id": 1, "city": "Ulm"}]}).results.to_pylist()
        [{'id': 1, 'city': 'Ulm', 'op': '+I'}]
        """
        return united(self, other)

    def distinct(self) -> ResultStream:
        """Give each row of this table once: it is there as long as one like it is (SEMANTICS §16.8).

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> cities = stream_of("id bigint, city string").from_changelog("upsert", key="id").select("city").distinct()
        >>> driver = Driver(cities)
        >>> driver.send([{"id": 1, "city": "Ulm"}, {"id": 2, "city": "Ulm"}]).results.to_pylist()
        [{'city': 'Ulm', 'op': '+I'}]
        >>> [driver.send([{"id": number}]).results.to_pylist() for number in (1, 2)]
        [[], [{'city': 'Ulm', 'op': '-D'}]]
        """
        names = [name for name in self.schema.names if name != OP]
        rows = self.key_by(*names).agg(count().alias(Operation.free_name("rows", map(str.lower, names))))
        return rows.select(*names)

    def collect_with_aggs(self, aggs: Sequence[Expr]) -> pa.Table:
        """:meth:`collect` with other aggregates, `aggs`, over the same windows.

        Raises
        ------
        OrderError
            For results of joins and deduplication, and after steps over results.

        Examples
        --------
        >>> from krishiv_py import Session, count, sum
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("n bigint, at bigint")
        ...     _ = sender.send([{"n": 4, "at": 1}, {"n": 5, "at": 2}])
        ...     sender.close()
        ...     counts = stream.watermark("at", 0).tumbling_window(10).agg(count())
        ...     counts.collect_with_aggs([sum("n")]).to_pylist()
        [{'window_start': 0, 'window_end': 10, 'sum_n': 9}]
        """
        if self._stage_node.operation.nature.gives_rows or self._steps:
            hint = "call .tumbling_window(...) or another window first, or .collect() for the rows"
            raise OrderError(".collect_with_aggs() is not a step of this stage", got=f"a {type(self).__name__}", hint=hint)
        return results_of(aggregated(self._stage, self._spec().row_schema, [aggs]), self._runner).collect()

    def results(self) -> ResultStream:
        """Return the results as the rows of another stage, to which all options that follow belong.

        Steps, keys, windows and joins need no such call: they make another stage of the results by themselves.

        Examples
        --------
        >>> from krishiv_py import count, sum
        >>> from krishiv_py.testing import Driver, stream_of
        >>> counts = stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count())
        >>> late_ones = counts.results().allowed_lateness(20)  # of the next stage, not of the counts
        >>> driver = Driver(late_ones.tumbling_window(20).agg(sum("count").alias("rows")))
        >>> [driver.send([{"at": at}]).results.column("rows").to_pylist() for at in (1, 22)]
        [[], [1]]
        """
        return self._over(self._node, self.schema.names)

    def _as_plan(self) -> ResultStream:
        """Return the results, steps over them included, so that options that follow belong to the stage before.

        Raises
        ------
        OrderError
            When options of another stage were set, but no window followed.
        """
        self._check_options()
        return attrs.evolve(self, of_stage=True, schema=self._stages[-1].layout.result_schema)

    def _check_options(self) -> None:
        handled = not isinstance(self._draft.late_handler, DefaultLateEventHandler)
        if self._draft.explicit != ExplicitOptions() or handled:
            what = "options were set for another stage, and no window follows"
            got, option = ("a late handler", "with_late_event_handler") if handled else ("options", "emit")
            hint = f"set options of the stage before its steps: .agg(...).{option}(...).filter(...)"
            raise OrderError(what, got=f"{got} after the results", then="they would have no effect", hint=hint)

    @property
    def _after(self) -> tuple[Prefix, ...]:
        """The steps over the results, as they run where no stage follows."""
        if not self._steps:
            return ()
        node = self._stage_node
        op = ("op",) if "op" in node.envelope and "op" not in self.schema.names else ()
        return hidden.alone(self._steps, node, self._alone, (*self.schema.names, *op))

    @cached_property
    def _stages(self) -> tuple[StagePlan, ...]:
        """The stages that run, the last one with the steps over its results."""
        return cut.stages_for(self._stage_node, after=self._after)

    def with_pane(self) -> ResultStream:
        """See :meth:`WindowedStream.with_pane`.

        Raises
        ------
        OrderError
            After steps over results that have left the columns out.

        Examples
        --------
        >>> from krishiv_py import Trigger, count
        >>> from krishiv_py.testing import Driver, stream_of
        >>> counts = stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count()).trigger(Trigger.on_count(2))
        >>> driver = Driver(counts.with_pane())
        >>> out = driver.send([{"at": 1}, {"at": 2}]).results
        >>> out.select(["count", "pane_timing", "pane_index"]).to_pylist()
        [{'count': 2, 'pane_timing': 'early', 'pane_index': 0}]
        """
        stream = super().with_pane()
        if stream._of_stage and not {"pane_timing", "pane_index"} <= set(stream.schema.names):
            raise OrderError(
                "steps over results came before the option, and left its columns out",
                got="with_pane() after .select(...) or HAVING",
                then="pane_timing and pane_index would not be shown",
                hint="set it after .agg(...): .agg(...).with_pane().filter(...); for SQL, on the stream that is registered",
            )
        return stream

    def _plan(self, engine: Engine | None = None, late: LateColumns | None = None) -> PhysicalPlan:
        """Return what an `engine` runs; `late` overrides what the late handlers want of a late row."""
        self._check_options()
        stages = self._stages
        if late is not None:
            stages = cut.stages_for(self._stage_node, late, self._after)
        return physical.PhysicalPlan(self._stage_node, stages, engine)


def results_of(stage: StageDraft, runner: Runner, made: list[Stage] | None = None) -> ResultStream:
    """Return the checked results of a `stage` that has its window and what it computes.

    Parameters
    ----------
    stage : Draft
        What was said of it.
    runner : Runner
        What runs it.
    made : list of Stage, optional
        The stages that options have made of the same windows and aggregates before. One that would be the same again is taken,
        so that the outputs of a query share it.

    Raises
    ------
    PlanError
        For a plan that cannot run, with what, got, consequence and hint.
    """
    made = [] if made is None else made
    node = _one(made, stage.node())
    checked = cut.stages_for(node)  # the call that was wrong raises the error
    alone = checked[-1].layout.result_schema
    emit: EmitMode = "final" if node.time is not None or not node.operation.gives_table else node.options.emit_mode
    followed = attrs.evolve(stage, explicit=attrs.evolve(stage.explicit, emit=stage.explicit.emit or emit))
    before = _one(made, followed.node())
    time = before.time_column
    draft = StageDraft(Watermark(before, time, WatermarkSpec(0)), DefaultLateEventHandler())
    stream = ResultStream(draft, runner, alone, stage, node, made, alone)
    object.__setattr__(stream, "_stages", checked)
    return stream


def _one(made: list[Stage], node: Stage) -> Stage:
    """Return the stage among those `made` that is the same as `node`, or else this one, which is one of them from now on."""
    for one in made:
        same = one.options == node.options and one.input.spec == node.input.spec and one.operation == node.operation
        if one.late is node.late and same:
            return one
    made.append(cut.followable(node))
    return made[-1]


def _names(node: Node, name: str) -> bool:
    """Return whether the author of a step named a column."""
    return isinstance(node, Project) and node.picks and name in dict(node.columns)
