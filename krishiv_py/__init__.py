"""Event-time stream processing in Python: windows, joins and late rows, in this process or on Spark.

``help(krishiv_py)`` goes on with every public name in full. Look up one name instead: ``help(krishiv_py.Session)``,
``help(krishiv_py.Session.read_kafka)``, ``help(krishiv_py.KeyedStream.tumbling_window)``. ``dir(krishiv_py)`` lists the names.

A pipeline is a chain of steps, and each step gives a value with the steps that can follow:

===================  ==================================================  ====================
Value                It has                                              A step leads to
===================  ==================================================  ====================
``Session``          sources, such as ``read_parquet``                   ``Stream``
``Stream``           ``filter``, ``with_column``, ``watermark``          ``TimedStream``
``TimedStream``      joins, deduplication, ``key_by``                    ``KeyedStream``
``KeyedStream``      windows, such as ``tumbling_window``                ``WindowedStream``
``WindowedStream``   ``agg`` with ``count()``, ``sum("x")`` and others   ``ResultStream``
``ResultStream``     ``emit``, ``collect``, ``start``                    ``Query``
``Query``            ``progress``, ``savepoint``, ``stop``
===================  ==================================================  ====================

``Session.in_process()`` needs no Java. ``krishiv_py.testing`` has a driver for tests, ``krishiv_py.connectors`` the bases of
your own sources and sinks, and ``krishiv_py.windows`` windows as values.

Importing the package starts no JVM and imports no Spark. ``from krishiv_py import *`` brings ``sum``, ``min`` and ``max`` as
aggregates; Python's own are then ``builtins.sum``, ``builtins.min`` and ``builtins.max``.
"""

import typing

import krishiv_py.numpy_sorts  # before anything else loads NumPy
import krishiv_py.windows  # noqa: F401  # for krishiv_py.windows.tumbling(...) behind a plain import
from krishiv_py import compat, deprecation
from krishiv_py.api.changes import table_view
from krishiv_py.api.query import BoundedResult, Query, QueryStatus
from krishiv_py.api.sender import Sender
from krishiv_py.api.stages.connected import ConnectedStream, connect
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.running import Output
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import KeyedUntimedStream, TimedStream
from krishiv_py.api.stages.windowed import LookBackStream, PaneStream, WindowedStream
from krishiv_py.api.subscription import Subscription
from krishiv_py.connectors.kafka.sink import KafkaSink
from krishiv_py.connectors.sinks.files import JsonSink, ParquetSink
from krishiv_py.connectors.sinks.known import ConsoleSink, ForeachBatchSink, MemorySink, SideOutputLateEventHandler
from krishiv_py.connectors.tables.delta.sink import DeltaSink
from krishiv_py.connectors.tables.iceberg.sink import IcebergSink
from krishiv_py.connectors.tables.postgres import PostgresSink
from krishiv_py.connectors.tables.sqlite import SqliteSink
from krishiv_py.display.lag import LatenessProfile, lateness_profile
from krishiv_py.errors import (
    AggregateOverflowError,
    CallError,
    CheckpointError,
    ColumnError,
    DurationError,
    EnvironmentSetupError,
    ExpressionError,
    KrishivError,
    MethodError,
    MissingExtraError,
    OperatorError,
    OrderError,
    PlanError,
    SchemaError,
    SenderClosedError,
    SessionClosedError,
    SourceError,
    SpoolError,
)
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.numbers import (
    avg,
    bit_and,
    bit_or,
    bit_xor,
    count,
    count_if,
    stddev,
    stddev_pop,
    var_pop,
    variance,
)
from krishiv_py.plan.aggregates.numbers import sum as sum
from krishiv_py.plan.aggregates.selections import (
    any_value,
    bool_and,
    bool_or,
    bottom_k,
    collect_list,
    collect_set,
    count_distinct,
    first,
    last,
    max_by,
    min_by,
    mode,
    top_k,
)
from krishiv_py.plan.aggregates.selections import max as max
from krishiv_py.plan.aggregates.selections import min as min
from krishiv_py.plan.aggregates.sketches import approx_count_distinct, approx_percentile, histogram, median, percentile
from krishiv_py.plan.aggregates.user import Aggregator, udaf
from krishiv_py.plan.described import WindowAssigner
from krishiv_py.plan.expressions.expr import Case, Expr, coalesce, col, concat, func, greatest, least, lit, when
from krishiv_py.plan.expressions.udfs import ColumnFunction, udf
from krishiv_py.plan.matching import to_first, to_last
from krishiv_py.plan.options.late import CountByKeyLateEventHandler, CountingLateEventHandler, LateEventHandler, LateRows
from krishiv_py.plan.options.query import Batches, StateTtlConfig
from krishiv_py.plan.options.triggers import Interval, OpenWindows, Trigger, WindowTrigger
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.plan.patterns import Pattern, absent, next, prev, step
from krishiv_py.plan.process_calls import Context, Events, RoundContext, Row, StateColumns
from krishiv_py.plan.running import Progress, TableVersion
from krishiv_py.plan.windows.calendar import calendar_window
from krishiv_py.plan.windows.lookback import SlidingWindows
from krishiv_py.plan.windows.panes import TimeIntervalWindowOptions
from krishiv_py.plan.windows.window import Window
from krishiv_py.process import own_process
from krishiv_py.session import Session, SessionBuilder
from krishiv_py.version import __version__ as __version__

if typing.TYPE_CHECKING:  # names that moved: type checkers take the old place for one release more, and so does __getattr__
    from krishiv_py.api.changes import Emit as Emit
    from krishiv_py.api.changes import Retract as Retract
    from krishiv_py.api.changes import changes as changes
    from krishiv_py.api.changes import fold as fold
    from krishiv_py.api.lateness import RowClass as RowClass
    from krishiv_py.api.lateness import SourceTracker as SourceTracker
    from krishiv_py.api.lateness import classify as classify
    from krishiv_py.plan.options.query import QueryTrigger as QueryTrigger
    from krishiv_py.plan.windows.panes import Pane as Pane
    from krishiv_py.plan.windows.panes import PaneHandler as PaneHandler

    AggregatedStream = JoinedStream = RowStream = ResultStream
    OptionMethods = TimedStream
else:
    __getattr__ = deprecation.moved(
        __name__,
        compat,
        {*compat.__all__} - {"fixed_lag_ms", "sliding_window", "try_add"},
        {**dict.fromkeys(("AggregatedStream", "JoinedStream", "RowStream"), ResultStream), "OptionMethods": TimedStream},
    )

__all__ = [
    "AggCall",
    "AggregateOverflowError",
    "Aggregator",
    "Batches",
    "BoundedResult",
    "CallError",
    "Case",
    "CheckpointError",
    "ColumnError",
    "ColumnFunction",
    "ConnectedStream",
    "ConsoleSink",
    "Context",
    "CountByKeyLateEventHandler",
    "CountingLateEventHandler",
    "DeltaSink",
    "DurationError",
    "EnvironmentSetupError",
    "Events",
    "Expr",
    "ExpressionError",
    "ForeachBatchSink",
    "IcebergSink",
    "Interval",
    "JsonSink",
    "KafkaSink",
    "KeyedStream",
    "KeyedUntimedStream",
    "KrishivError",
    "LateEventHandler",
    "LateRows",
    "LatenessProfile",
    "LookBackStream",
    "MemorySink",
    "MethodError",
    "MissingExtraError",
    "MultiSourceWatermarkSpec",
    "OpenWindows",
    "OperatorError",
    "OrderError",
    "Output",
    "PaneStream",
    "ParquetSink",
    "Pattern",
    "PlanError",
    "PostgresSink",
    "Progress",
    "Query",
    "QueryStatus",
    "ResultStream",
    "RoundContext",
    "Row",
    "SchemaError",
    "Sender",
    "SenderClosedError",
    "Session",
    "SessionBuilder",
    "SessionClosedError",
    "SideOutputLateEventHandler",
    "SlidingWindows",
    "SourceError",
    "SpoolError",
    "SqliteSink",
    "StateColumns",
    "StateTtlConfig",
    "Stream",
    "Subscription",
    "TableVersion",
    "TimeIntervalWindowOptions",
    "TimedStream",
    "Trigger",
    "WatermarkSpec",
    "Window",
    "WindowAssigner",
    "WindowTrigger",
    "WindowedStream",
    "absent",
    "any_value",
    "approx_count_distinct",
    "approx_percentile",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "bottom_k",
    "calendar_window",
    "coalesce",
    "col",
    "collect_list",
    "collect_set",
    "concat",
    "connect",
    "count",
    "count_distinct",
    "count_if",
    "first",
    "func",
    "greatest",
    "histogram",
    "last",
    "lateness_profile",
    "least",
    "lit",
    "max",
    "max_by",
    "median",
    "min",
    "min_by",
    "mode",
    "next",
    "own_process",
    "percentile",
    "prev",
    "stddev",
    "stddev_pop",
    "step",
    "sum",
    "table_view",
    "to_first",
    "to_last",
    "top_k",
    "udaf",
    "udf",
    "var_pop",
    "variance",
    "when",
]

_MODULES = (
    *("compat", "connectors", "display", "errors", "functions", "lineage", "logs", "metrics", "otel", "sql", "testing", "ui"),
    "windows",
)
"""The modules that ``dir()`` shows once they are loaded."""


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in _MODULES if name in globals())})
