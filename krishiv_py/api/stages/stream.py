"""The first stage: rows, without event time or key yet."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.api.runner import Runner
from krishiv_py.api.stages.keyed import KeyedStream, checked_keys
from krishiv_py.api.stages.order import ON_KEYED, ON_ROWS, RESULTS, WINDOWS, instead, needs
from krishiv_py.api.stages.timed import TimedStream, timed
from krishiv_py.errors import PlanError, message, shown
from krishiv_py.kernels.columns.evaluate import expr_type, step_schema
from krishiv_py.plan.checks import column_name, expression, known_column
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.expressions.expr import Expr, col
from krishiv_py.plan.expressions.facts import name_of
from krishiv_py.plan.nodes import BatchFunction, Filter, MapBatches, Node, Prefix, Project
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec, MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.plan.schema import as_schema, checked, left_out, require_columns
from krishiv_py.redaction import shown_text


@instead(ON_ROWS)
@needs('.watermark("column", lag)', "agg", *WINDOWS, *RESULTS)
@attrs.frozen(eq=False)
class Stream:
    """Rows of a source, and stateless steps over them. Immutable: every step returns a new stream."""

    node: Node = attrs.field(repr=shown_text)
    schema: pa.Schema
    runner: Runner

    def _then(self, step: Prefix) -> Stream:
        kept = None if isinstance(step, MapBatches) or (isinstance(step, Project) and step.picks) else self.schema.metadata
        return Stream(step, checked(step_schema(step, self.schema).with_metadata(kept)), self.runner)

    def select(self, *columns: str | Expr, **named: Expr | str) -> Stream:
        """Keep and compute columns: ``select("a", col("b").alias("x"), total=col("a") * 2)``.

        Parameters
        ----------
        *columns : str or Expr
            Column names, or expressions under the name of their alias or column.
        **named : Expr or str
            Expressions, or SQL text, by output name.

        Raises
        ------
        ColumnError
            For columns that do not exist, with a suggestion.
        ExpressionError
            For SQL that cannot be read, and types that do not fit.
        """
        picked: list[tuple[str, Expr]] = []
        for item in columns:
            expr = col(item) if isinstance(item, str) else expression(item, "select")
            picked.append((name_of(expr), expr))
        picked += [(name, expression(value, f"select({name})")) for name, value in named.items()]
        for name, expr in picked:
            column_name(name, "select")
            require_columns(expr, self.schema, f"select({name})")
        return self._then(Project(self.node, tuple(picked), picks=True))

    def filter(self, condition: Expr | str) -> Stream:
        """Keep rows for which `condition` (an expression or SQL text) is true; null is not true."""
        expr = expression(condition, "filter")
        require_columns(expr, self.schema, "filter")
        expr_type(expr, self.schema)
        return self._then(Filter(self.node, expr))

    def with_column(self, name: str, value: Expr | str) -> Stream:
        """Add, or replace, a column.

        Parameters
        ----------
        name : str
            The column; one that exists keeps its place.
        value : Expr or str
            An expression, or SQL text.
        """
        column_name(name, "with_column")
        expr = expression(value, f"with_column({name})")
        require_columns(expr, self.schema, f"with_column({name})")
        kept = [(n, expr if n == name else col(n)) for n in self.schema.names]
        return self._then(Project(self.node, tuple(kept if name in self.schema.names else [*kept, (name, expr)])))

    def rename(self, **names: str) -> Stream:
        """Rename columns; `names` are old names with the new ones as values: ``rename(old="new")``."""
        for old, new in names.items():
            known_column(old, self.schema.names, "rename")
            column_name(new, f"rename({old}=...)")
        return self._then(Project(self.node, tuple((names.get(n, n), col(n)) for n in self.schema.names)))

    def drop(self, *columns: str) -> Stream:
        """Leave `columns` out."""
        for name in columns:
            if column_name(name, "drop") not in left_out(self.schema):
                known_column(name, self.schema.names, "drop")
        return self._then(Project(self.node, tuple((n, col(n)) for n in self.schema.names if n not in columns)))

    def map_batches(self, function: BatchFunction, schema: pa.Schema | str | None = None) -> Stream:
        """Apply a function to every Arrow batch, of any length.

        Parameters
        ----------
        function : callable
            ``RecordBatch -> RecordBatch`` (or ``Table``); it is pickled to the workers.
        schema : pyarrow.Schema or str, optional
            Schema of what it returns; by default that of what it gets.
        """
        if not callable(function):
            raise PlanError(
                message(
                    "map_batches takes a function",
                    shown(function),
                    "no batch can be mapped",
                    "pass a function RecordBatch -> RecordBatch",
                )
            )
        return self._then(MapBatches(self.node, function, self.schema if schema is None else as_schema(schema)))

    def watermark(self, column: str, lag: Duration) -> TimedStream:
        """Declare event time: no row older than the newest minus `lag` is expected any more (SEMANTICS §2).

        Parameters
        ----------
        column : str
            A ``timestamp``, ``timestamp_ntz`` or ``bigint`` (milliseconds) column.
        lag : int or timedelta or str
            How far rows may be out of order; ``int`` is milliseconds; 0 is legal.

        Raises
        ------
        ColumnError
            For a column that does not exist or cannot be a time.
        DurationError
            For a negative, float or boolean lag.
        """
        return self.with_watermark(WatermarkSpec.fixed_lag(lag), column=column)

    def with_watermark(
        self, spec: AnyWatermarkSpec, column: str | None = None, *, source_column: str | None = None
    ) -> TimedStream:
        """:meth:`watermark` with a specification object.

        Parameters
        ----------
        spec : WatermarkSpec or MultiSourceWatermarkSpec
            One lag, or a lag by source.
        column : str, optional
            The event-time column; may be left out if only one column is a timestamp.
        source_column : str, optional
            For several sources: the text column that names the source of every row.
        """
        if not isinstance(spec, (WatermarkSpec, MultiSourceWatermarkSpec)):
            raise PlanError(
                message(
                    "not a WatermarkSpec",
                    shown(spec),
                    "the watermark cannot follow the rows",
                    "pass WatermarkSpec.fixed_lag_ms(5_000)",
                )
            )
        if column is None:
            fitting = [f.name for f in self.schema if pa.types.is_timestamp(f.type)]
            if len(fitting) != 1:
                raise PlanError(
                    message(
                        "which column is the event time?",
                        fitting or "no timestamp column",
                        "rows cannot be placed on the time axis",
                        'pass column="event_time"',
                    )
                )
            column = fitting[0]
        return timed(self.node, self.schema, column, spec, source_column, self.runner)

    def key_by(self, *keys: str) -> KeyedUntimedStream:
        """Group by the columns called `keys` before the watermark is declared; the two may come in either order."""
        return KeyedUntimedStream(self, checked_keys(keys, self.schema.names))


@instead(ON_KEYED)
@needs('.watermark("column", lag)', "agg", *WINDOWS, *RESULTS)
@attrs.frozen(eq=False)
class KeyedUntimedStream:
    """A keyed stream that still needs its event time."""

    stream: Stream
    keys: tuple[str, ...]

    def watermark(self, column: str, lag: Duration) -> KeyedStream:
        """See :meth:`Stream.watermark`."""
        return self.stream.watermark(column, lag).key_by(*self.keys)

    def with_watermark(
        self, spec: AnyWatermarkSpec, column: str | None = None, *, source_column: str | None = None
    ) -> KeyedStream:
        """See :meth:`Stream.with_watermark`."""
        return self.stream.with_watermark(spec, column, source_column=source_column).key_by(*self.keys)
