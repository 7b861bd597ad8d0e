"""Results of a stage as rows: steps over them, or a further stage with its own keys and windows (SEMANTICS §7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import pyarrow as pa

from krishiv_py.api.joins.lookup import LookupKeys, LookupType, looked_up
from krishiv_py.api.planning import check, evaluate, stages
from krishiv_py.api.results.alone import ResultTime, alone, carries
from krishiv_py.api.results.keeping import KeepingColumns, reserved
from krishiv_py.api.shown import said_of, some
from krishiv_py.api.stages.aggregated import AggregatedStream
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.api.stages.unnested import unnested
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.errors import OrderError, PlanError, message, shown
from krishiv_py.plan.draft import Draft
from krishiv_py.plan.durations import Duration, to_us
from krishiv_py.plan.expressions.expr import Expr, col
from krishiv_py.plan.handed_on import in_order_of
from krishiv_py.plan.nodes import (
    AssignWatermark,
    BatchFunction,
    Filter,
    MapBatches,
    Node,
    Project,
    StageOutput,
    prefix_of,
    source_of,
)
from krishiv_py.plan.options.late import UnaskedLateEventHandler
from krishiv_py.plan.options.told import ToldOptions
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.plan.windows import Window

S = TypeVar("S", bound=WindowedStream)


@attrs.frozen(eq=False, repr=False)
class ResultStream(TimedStream):
    """The results of a stage as rows, with event time and watermark.

    Steps such as :meth:`filter` give another one. It can be run as it is, or be keyed and windowed again: a further stage in
    the same query, whose watermark follows from this one, so that no result is late there (SEMANTICS §7). A stage that
    another follows gives final results.

    Attributes
    ----------
    before : AggregatedStream
        The stage whose results these are.
    schema : pyarrow.Schema
        Its columns.
    """

    before: AggregatedStream

    def _said(self) -> list[str]:
        return [some(self.schema.names), *said_of(self.draft)]

    @property
    def _node(self) -> Node:
        return self.draft.input.input

    @property
    def _output(self) -> StageOutput:
        found = source_of(self.draft.input)
        assert isinstance(found, StageOutput)
        return found

    @property
    def result_time(self) -> str | None:
        """What the event time of results is: ``"row"`` for a column of their own, else how it follows from their window."""
        return self._output.stage.window.result_time

    @property
    def _kept(self) -> tuple[str, ...]:
        """Columns that go along although nobody named them."""
        full, time = self._row_schema().names, self._output.time_column
        op = ("op",) if "op" in full and self.before.options.emit_mode == "retractions" else ()
        return (*op, *([time] if time in full else []), *in_order_of(full))

    def _shows_time(self) -> bool:
        return self._output.time_column in self.schema.names

    def _named_columns(self) -> tuple[str, ...]:
        return tuple(self.schema.names)

    def _via(self, change: Callable[[Stream], Stream]) -> ResultStream:
        """Steps that `change` makes of rows, with the columns that go along."""
        full, kept = self._row_schema(), self._kept
        time = self._output.time_column
        usable = pa.schema([f for f in full if f.name in self.schema.names or f.name == time])
        made = change(Stream(self._node, usable, self.runner))
        names = [n for n in made.schema.names if n != time or time in self.schema.names or _names(made.node, time)]
        step = made.node
        if isinstance(step, Project):
            computed = dict(step.columns)
            for name in kept:
                if name in computed and not carries(name, computed[name], {name}):
                    raise reserved(name)
            step = attrs.evolve(step, columns=(*step.columns, *((n, col(n)) for n in kept if n not in computed)))
        assert isinstance(step, (Project, Filter))
        schema = evaluate.step_schema(step, full)
        draft = attrs.evolve(self.draft, input=attrs.evolve(self.draft.input, input=step))
        return attrs.evolve(self, draft=draft, schema=pa.schema([schema.field(n) for n in names]))

    def select(self, *columns: str | Expr, **named: Expr | str) -> ResultStream:
        """Keep and compute columns, as :meth:`Stream.select` does; the event time goes along.

        Parameters
        ----------
        *columns : str or Expr
            Column names, or expressions under the name of their alias or column.
        **named : Expr or str
            Expressions, or SQL text, by output name.
        """
        return self._via(lambda rows: rows.select(*columns, **named))

    def filter(self, condition: Expr | str) -> ResultStream:
        """Keep results for which `condition` (an expression or SQL text) is true, as HAVING does in SQL."""
        return self._via(lambda rows: rows.filter(condition))

    def with_column(self, name: str, value: Expr | str) -> ResultStream:
        """Add, or replace, the column `name` by `value`, an expression or SQL text."""
        return self._via(lambda rows: rows.with_column(name, value))

    def rename(self, **names: str) -> ResultStream:
        """Rename columns; `names` are old names with the new ones as values."""
        return self._via(lambda rows: rows.rename(**names))

    def drop(self, *columns: str) -> ResultStream:
        """Leave `columns` out."""
        return self._via(lambda rows: rows.drop(*columns))

    def map_batches(self, function: BatchFunction, schema: pa.Schema | str | None = None) -> ResultStream:
        """Apply a function to every Arrow batch of results.

        Parameters
        ----------
        function : callable
            ``RecordBatch -> RecordBatch`` (or a ``Table`` or frame) with one row for each row; it is pickled to the workers.
        schema : pyarrow.Schema or str, optional
            Schema of what it returns; by default that of what it gets.
        """
        plain = Stream(self._node, self.schema, self.runner).map_batches(function, schema)
        assert isinstance(plain.node, MapBatches)
        full = self._row_schema()
        kept = tuple(n for n in self._kept if n not in plain.schema.names)
        keeping = KeepingColumns(function, tuple(self.schema.names), kept)
        step = MapBatches(self._node, keeping, pa.schema([*plain.schema, *(full.field(n) for n in kept)]))
        draft = attrs.evolve(self.draft, input=attrs.evolve(self.draft.input, input=step))
        return attrs.evolve(self, draft=draft, schema=plain.schema)

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
        >>> driver = Driver(best.results().unnest("top", rank="place").select("n", "place"))
        >>> _ = driver.send([{"at": 1, "n": 5}, {"at": 2, "n": 7}, {"at": 3, "n": 6}])
        >>> driver.close().results.to_pylist()
        [{'n': 7, 'place': 1}, {'n': 6, 'place': 2}]
        """
        return self._unnested(column, rank, outer)

    def _unnested(self, column: str, rank: str | None, outer: bool, spread: bool = True) -> ResultStream:
        function, schema = unnested(self.schema, column, rank, outer, spread)
        for name in (n for n in self._kept if n in schema.names and n not in self.schema.names):
            raise reserved(name)
        hidden = [self._row_schema().field(n) for n in self._kept if n not in schema.names]
        step = MapBatches(self._node, function, pa.schema([*schema, *hidden]))
        draft = attrs.evolve(self.draft, input=attrs.evolve(self.draft.input, input=step))
        return attrs.evolve(self, draft=draft, schema=schema)

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
            With `reload` behind ``emit("retractions")``: a result could be withdrawn with other values than it was given with.
        """
        if reload is not None and self.before.options.emit_mode == "retractions":
            raise PlanError(
                message(
                    "results that may be withdrawn cannot be looked up in a table that changes",
                    f"reload={shown(reload)}",
                    "a result would be withdrawn with other values than it was given with",
                    'leave `reload` out, or emit("final")',
                )
            )
        full, time = self._row_schema(), self._output.time_column
        usable = pa.schema([f for f in full if f.name in self.schema.names or f.name == time])
        function, schema = looked_up(usable, table, on, columns, how, validity, at, reload)
        found = list(schema)[len(usable) :]
        step = MapBatches(self._node, function, pa.schema([*full, *found]))
        draft = attrs.evolve(self.draft, input=attrs.evolve(self.draft.input, input=step))
        return attrs.evolve(self, draft=draft, schema=pa.schema([*self.schema, *found]))

    def watermark(self, column: str, lag: Duration) -> TimedStream:
        """Let the next stage wait `lag` longer than the stage before makes it.

        Parameters
        ----------
        column : str
            The event time of results: ``window_time``, or the rows' own.
        lag : int or timedelta or str
            How much the watermark stays behind; ``int`` is milliseconds.
        """
        own = self._output.stage.window.row_time(self._output.stage.input.column)
        if not isinstance(column, str) or column not in (self._output.time_column, own):
            raise PlanError(
                message(
                    "results have the event time of their stage",
                    shown(column),
                    "another one could go against the watermark, and rows be lost",
                    f"write .watermark({self._output.time_column!r}, lag), or leave it out",
                )
            )
        self._check_followed()
        spec = WatermarkSpec(to_us(lag, "lag", allow_zero=True))
        return attrs.evolve(self, draft=attrs.evolve(self.draft, input=attrs.evolve(self.draft.input, spec=spec)))

    def key_by(self, *keys: str | Expr, **named: Expr | str) -> KeyedStream:
        """Group results by `keys`, columns or expressions, and `named` ones, for a further stage."""
        self._check_followed()
        hiding = attrs.evolve(self, draft=attrs.evolve(self.draft, hides_time=not self._shows_time()))
        return super(ResultStream, hiding).key_by(*keys, **named)

    def _windowed(self, window: Window, stage: type[S]) -> S:
        self._check_followed()
        return super()._windowed(window, stage)

    def _check_followed(self) -> None:
        check.check_followed(self._output.stage)

    def as_plan(self) -> AggregatedStream:
        """The stage before with these steps behind it, which is what runs.

        Raises
        ------
        PlanError
            When options of a further stage were set, but no window followed.
        """
        if self.draft.told != ToldOptions() or self.draft.keys:
            raise OrderError(
                message(
                    "options were set for a further stage, and no window follows",
                    "options behind the results",
                    "they would have no effect",
                    "set options of the stage before its steps: .agg(...).emit(...).filter(...)",
                )
            )
        output, shown_time = self._output, self._output.time_column in self.schema.names
        names = (*self.schema.names, *(n for n in self._kept if n == "op" and n not in self.schema.names))
        window = output.stage.window
        own = ResultTime(output.time_column, window.result_time, window.after_us, shown_time)
        steps = alone(prefix_of(self.draft.input), own, self.before.schema, names, set(self._kept))
        return self.before._with(after=steps)._given_by(self)


def of(before: AggregatedStream) -> ResultStream:
    """The results of a stage as rows."""
    told = before.draft.told
    final = attrs.evolve(before.draft, told=attrs.evolve(told, emit=told.emit or "final"), after=())
    stage = attrs.evolve(final.node(), hands_on=True)
    schema, time = stages.handed_on(stage)
    output = StageOutput(stage, before.late_handler, schema, time, source_of(stage).bounded)
    draft = Draft(AssignWatermark(output, time, WatermarkSpec(0)), UnaskedLateEventHandler())
    own = stage.window.result_time == "row" and not stage.window.hides_time
    hidden = set(in_order_of(schema.names)) | (set() if own else {time})
    return ResultStream(draft, before.runner, pa.schema([f for f in schema if f.name not in hidden]), before)


def _names(node: Node, name: str) -> bool:
    """Whether a step was asked for a column by its author."""
    return isinstance(node, Project) and node.picks and name in dict(node.columns)
