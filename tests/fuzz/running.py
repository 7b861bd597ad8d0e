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
from krishiv_py.api.stages.untimed import KeyedUntimedStream
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


def completed(found: object) -> ResultStream | None:
    """A whole pipeline that uses what was found; None where there is none."""
    start = stream_of(SCHEMA)
    timed = start.watermark("at", 0)
    if isinstance(found, ResultStream):
        return found
    if isinstance(found, WindowedStream):
        return found.agg(count())
    if isinstance(found, KeyedStream):
        return completed(found.tumbling_window(10_000))
    if isinstance(found, (Stream, KeyedUntimedStream)):
        schema = found.schema if isinstance(found, Stream) else found._stream.schema
        name = next((f.name for f in schema if pa.types.is_timestamp(f.type) or pa.types.is_int64(f.type)), None)
        return None if name is None else completed(found.watermark(name, 0))
    if isinstance(found, AggCall):
        return timed.tumbling_window(10_000).agg(found.alias("found"))
    if isinstance(found, Expr):
        return completed(start.with_column("found", found))
    return _with_value(start, timed, found)


def _with_value(start: Stream, timed: KeyedStream, found: object) -> ResultStream | None:
    if isinstance(found, WatermarkSpec):
        return completed(start.with_watermark(found, "at"))
    if isinstance(found, MultiSourceWatermarkSpec):
        return completed(start.with_watermark(found, "at", source_column="user"))
    if isinstance(found, Trigger):
        return completed(timed.trigger(found))
    if isinstance(found, SlidingWindows):
        return completed(timed.windowed_by(found))
    if isinstance(found, TimeIntervalWindowOptions):
        return completed(timed.time_interval_window(found))
    if isinstance(found, StateTtlConfig):
        return completed(timed.with_state_ttl(found))
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
