"""Event-time stream processing on Spark: Flink's semantics, a fluent builder, columnar speed.

Importing the package starts no JVM and imports no Spark. ``from krishiv_py import *`` leaves out ``sum``, ``min`` and ``max``,
so that Python's own stay what they are: name them, ``from krishiv_py import sum``, or write ``krishiv_py.sum``.
"""

from krishiv_py.api.query import Query
from krishiv_py.api.stages.aggregated import AggregatedStream
from krishiv_py.api.stages.changes import Emit, Retract, changes, fold
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.lookback import LookBackStream
from krishiv_py.api.stages.panes import PaneStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.errors import (
    AggregateOverflowError,
    CheckpointError,
    ColumnError,
    DurationError,
    EnvironmentSetupError,
    ExpressionError,
    KrishivError,
    MissingExtraError,
    OperatorError,
    OrderError,
    PlanError,
    SchemaError,
    SenderClosedError,
    SessionClosedError,
    SourceError,
)
from krishiv_py.plan.aggregates import (
    Aggregator,
    approx_count_distinct,
    avg,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    percentile,
    stddev,
    udaf,
    variance,
)
from krishiv_py.plan.aggregates import max as max
from krishiv_py.plan.aggregates import min as min
from krishiv_py.plan.aggregates import sum as sum
from krishiv_py.plan.expressions.expr import Expr, col, func, lit
from krishiv_py.plan.options.late import (
    CountByKeyLateEventHandler,
    CountingLateEventHandler,
    LateEventHandler,
    LateRows,
    SideOutputLateEventHandler,
)
from krishiv_py.plan.options.query import StateTtlConfig
from krishiv_py.plan.options.sinks import ConsoleSink, ForeachBatchSink, JsonSink, MemorySink, ParquetSink, QueryTrigger
from krishiv_py.plan.options.triggers import Interval, Trigger
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.plan.progress import Progress
from krishiv_py.plan.windows.distinct import SlidingWindows
from krishiv_py.plan.windows.panes import Pane, PaneHandler, TimeIntervalWindowOptions
from krishiv_py.session import Session, SessionBuilder
from krishiv_py.spool import Sender
from krishiv_py.version import __version__ as __version__

__all__ = [
    "AggregateOverflowError",
    "AggregatedStream",
    "Aggregator",
    "CheckpointError",
    "ColumnError",
    "ConsoleSink",
    "CountByKeyLateEventHandler",
    "CountingLateEventHandler",
    "DurationError",
    "Emit",
    "EnvironmentSetupError",
    "Expr",
    "ExpressionError",
    "ForeachBatchSink",
    "Interval",
    "JsonSink",
    "KeyedStream",
    "KrishivError",
    "LateEventHandler",
    "LateRows",
    "LookBackStream",
    "MemorySink",
    "MissingExtraError",
    "MultiSourceWatermarkSpec",
    "OperatorError",
    "OrderError",
    "Pane",
    "PaneHandler",
    "PaneStream",
    "ParquetSink",
    "PlanError",
    "Progress",
    "Query",
    "QueryTrigger",
    "Retract",
    "SchemaError",
    "Sender",
    "SenderClosedError",
    "Session",
    "SessionBuilder",
    "SessionClosedError",
    "SideOutputLateEventHandler",
    "SlidingWindows",
    "SourceError",
    "StateTtlConfig",
    "Stream",
    "TimeIntervalWindowOptions",
    "TimedStream",
    "Trigger",
    "WatermarkSpec",
    "WindowedStream",
    "approx_count_distinct",
    "avg",
    "changes",
    "col",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "first",
    "fold",
    "func",
    "last",
    "lit",
    "percentile",
    "stddev",
    "udaf",
    "variance",
]
