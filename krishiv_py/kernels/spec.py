"""The operator specification: everything the kernels need to know of a checked plan, as one picklable value."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.outputs import Output
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.nodes import Prefix
from krishiv_py.plan.operation import Operation
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec
from krishiv_py.plan.schema import TimeKind


@attrs.frozen(eq=False)
class OperatorSpec:
    """A windowed aggregation, checked.

    Attributes
    ----------
    name : str
        Shown in errors, metrics and ``explain()``.
    source_schema, row_schema : pyarrow.Schema
        Before and after the stateless steps.
    prefix : tuple of nodes
        The stateless steps.
    time_column, time_kind : str
        The event-time column and how it is read.
    watermark, source_column
        How the watermark follows event times; with several sources, the column that names them.
    needs_columns : tuple of str
        Source columns the stateless steps and the aggregation read.
    late_columns : tuple of str
        Columns of a late row its handler wants: all for a side output, the keys for counting by key, none for counting.
    output : tuple of (str, Expr) or None
        Result columns, computed of those of the layout of SEMANTICS §5.5; None for that layout.
    malformed : tuple of (str, pyarrow.DataType)
        What the late output tells of malformed input: none, unless a source puts it aside and whole rows are wanted.
    after : tuple of nodes
        Stateless steps over the results.
    followed : bool
        Whether results have the columns that a following stage needs: event time, and what their order goes by.
    arrives_by : tuple of str
        Columns of rows that a stage before gave, which say in which order they arrive.
    kept_column : str or None
        The column that is false in rows that a filter after the watermark leaves out; None without such a filter.
    wholes : tuple of (str, tuple of str)
        Hidden aggregates that are false in windows with rows from before a savepoint, and the aggregates that came after it.
    blind_us : int
        Windows that begin before this time may lack rows, for the stage began with a savepoint; ``UNSET`` where it did not.
    """

    name: str
    source_schema: pa.Schema
    row_schema: pa.Schema
    prefix: tuple[Prefix, ...]
    time_column: str
    time_kind: TimeKind
    watermark: AnyWatermarkSpec
    source_column: str | None
    operation: Operation
    options: QueryOptions
    needs_columns: tuple[str, ...]
    late_columns: tuple[str, ...]
    output: Output | None = None
    malformed: tuple[tuple[str, pa.DataType], ...] = ()
    after: tuple[Prefix, ...] = ()
    followed: bool = False
    arrives_by: tuple[str, ...] = ()
    kept_column: str | None = None
    wholes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    blind_us: int = UNSET

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that part the rows."""
        return self.operation.keys

    @property
    def aggs(self) -> tuple[AggCall, ...]:
        """The aggregates of windows."""
        return self.operation.aggs

    @property
    def tick_us(self) -> int:
        """Resolution of the time column in microseconds."""
        return 1_000 if self.time_kind == "bigint_ms" else 1
