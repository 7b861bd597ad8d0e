"""What was accepted must run: whatever a call returned is completed to a pipeline and given a few rows."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import pyarrow as pa

from krishiv_py import (
    MultiSourceWatermarkSpec,
    SlidingWindows,
    StateTtlConfig,
    TimeIntervalWindowOptions,
    Trigger,
    WatermarkSpec,
    count,
)
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import KeyedUntimedStream
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.testing import Driver, ManualClock, stream_of


def _second(number: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(number, dt.timezone.utc)


SCHEMA = "user string, amount double, n int, at bigint, when timestamp, tags array<string>, flag boolean"
ROWS: Final[list[dict[str, Any]]] = [
    {"user": "a", "amount": 1.5, "n": 1, "at": 1_000, "when": _second(1), "tags": ["x"], "flag": True},
    {"user": None, "amount": None, "n": None, "at": 2_000, "when": _second(2), "tags": None, "flag": None},
    {"user": "b", "amount": -1.0, "n": 3, "at": None, "when": None, "tags": [], "flag": False},
    {"user": "a", "amount": 2.5, "n": 2, "at": 90_000, "when": _second(90), "tags": ["y", None], "flag": True},
]


def completed(actual: object) -> ResultStream | None:
    """A whole pipeline that uses what was found; None where there is none."""
    start = stream_of(SCHEMA)
    timed = start.watermark("at", 0)
    if isinstance(actual, ResultStream):
        return actual
    if isinstance(actual, WindowedStream):
        return actual.agg(count())
    if isinstance(actual, KeyedStream):
        return completed(actual.tumbling_window(10_000))
    if isinstance(actual, (Stream, KeyedUntimedStream)):
        schema = actual.schema if isinstance(actual, Stream) else actual._stream.schema
        name = next((f.name for f in schema if pa.types.is_timestamp(f.type) or pa.types.is_int64(f.type)), None)
        return None if name is None else completed(actual.watermark(name, 0))
    if isinstance(actual, AggCall):
        return timed.tumbling_window(10_000).agg(actual.alias("found"))
    if isinstance(actual, Expr):
        return completed(start.with_column("found", actual))
    return _with_value(start, timed, actual)


def _with_value(start: Stream, timed: KeyedStream, actual: object) -> ResultStream | None:
    if isinstance(actual, WatermarkSpec):
        return completed(start.with_watermark(actual, "at"))
    if isinstance(actual, MultiSourceWatermarkSpec):
        return completed(start.with_watermark(actual, "at", source_column="user"))
    if isinstance(actual, Trigger):
        return completed(timed.trigger(actual))
    if isinstance(actual, SlidingWindows):
        return completed(timed.windowed_by(actual))
    if isinstance(actual, TimeIntervalWindowOptions):
        return completed(timed.time_interval_window(actual))
    if isinstance(actual, StateTtlConfig):
        return completed(timed.with_state_ttl(actual))
    return None


def run(stream: ResultStream) -> None:
    """Two batches, a moved clock, an explicit watermark and the end, on the driver; and all its texts."""
    stream.explain()
    stream._repr_html_()
    clock = ManualClock()
    driver = Driver(stream, clock=clock)
    known = set(driver._spec.source_schema.names)
    rows = [{k: v for k, v in row.items() if k in known} for row in ROWS]
    names = [part.name for part in driver._plan.stage.inputs if part.name is not None]
    driver.send(dict.fromkeys(names, ROWS) if names else rows)
    clock.advance("1 h")
    driver.tick()
    driver.send(dict.fromkeys(names, ROWS[:2]) if names else rows[:2])
    driver.close()
    driver.progress.__str__()
