"""A golden case as a pipeline of the public API, and its tables in the goldens' terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import krishiv_py as kv
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.windowed import WindowedStream
from tests.goldens.cases import Case, Key, LateRow, Result, Row, Written

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("ts", pa.int64()),
        pa.field("value", pa.int64()),
        pa.field("gap", pa.int64()),
        pa.field("source", pa.string()),
    ]
)
AGGS = [
    kv.count(),
    kv.sum("value").alias("sum"),
    kv.min("value").alias("min"),
    kv.max("value").alias("max"),
    kv.collect_list("value").alias("values"),
]


def pipeline(case: Case, stream: Stream) -> ResultStream:
    """The case as its user would write it, on this project's side of the dialect."""
    keyed = _timed(case, stream)
    if case.allowed_lateness_ms:
        keyed = keyed.allowed_lateness(case.allowed_lateness_ms)
    keyed = keyed.late_rule("window").emit(case.emit)
    if case.trigger is not None:
        given = case.trigger
        keyed = keyed.trigger(kv.Trigger(early=given.early, on_time=given.on_time, late=given.late))
        keyed = keyed.accumulation(given.accumulation)
    if case.emit != "final":
        keyed = keyed.with_pane()
    return _windowed(case, keyed).agg(AGGS)


def _timed(case: Case, stream: Stream) -> KeyedStream:
    mark = case.watermark
    if mark.sources is None:
        spec = kv.WatermarkSpec.fixed_lag(mark.lag_ms or 0, initial=mark.initial_ms, idle_advance=mark.idle_advance_ms)
        return stream.with_watermark(spec, column="ts").key_by("key")
    several = kv.MultiSourceWatermarkSpec.new(
        idle_timeout=mark.idle_timeout_ms, initial=mark.initial_ms, idle_advance=mark.idle_advance_ms
    )
    for name, lag in mark.sources.items():
        several = several.source(name, kv.WatermarkSpec.fixed_lag(lag))
    return stream.with_watermark(several, column="ts", source_column="source").key_by("key")


def _windowed(case: Case, keyed: KeyedStream) -> WindowedStream:
    window = case.window
    if window.kind == "tumbling":
        return keyed.tumbling_window(window.need("size_ms"), window.offset_ms)
    if window.kind == "hopping":
        return keyed.hopping_window(window.need("size_ms"), window.need("slide_ms"), window.offset_ms, allow_gaps=True)
    if window.kind == "session":
        dynamic = any(r.gap_ms is not None for s in case.steps for r in s.batch)
        gap: int | str = "gap" if dynamic else window.need("gap_ms")
        return keyed.session_window(gap, touch="merge", max_duration=window.max_duration_ms)
    if window.kind == "sliding_event":
        return keyed.lookback_window(
            window.need("size_ms"),
            two_sided=window.two_sided,
            with_row=window.with_row,
            exclude_self=window.exclude_self,
            emit="arrival" if window.on_arrival else "watermark",
        )
    if window.kind == "sliding_kafka":
        return keyed.windowed_by(kv.SlidingWindows.of(window.need("size_ms"), clamp_zero=window.clamp_zero))
    # probes as a hopping window: one window starts at every probe + lower; its last instant is probe + upper
    low, high = window.need("lower_ms"), window.need("upper_ms")
    step = window.probes_ms[1] - window.probes_ms[0]
    return keyed.hopping_window(high - low + 1, step, low + window.probes_ms[0], allow_gaps=True)


def rows_of(case: Case, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows as a sender takes them; every row has a gap where any has."""
    return [
        {
            "key": None if r.key is None else str(r.key),
            "ts": r.ts_ms,
            "value": r.value,
            "gap": r.gap_ms if r.gap_ms is not None else case.window.gap_ms,
            "source": r.source,
        }
        for r in rows
    ]


def written(case: Case, table: pa.Table, step: int | None) -> list[Written]:
    """Results in the goldens' terms."""
    out = []
    probes = {p + (case.window.lower_ms or 0) for p in case.window.probes_ms}
    for row in table.to_pylist():
        start, end = row["window_start"], row["window_end"]
        if probes:
            if start not in probes:
                continue
            end -= 1
        values = tuple(sorted(row["values"]))
        carried = (row["ts"], row["value"]) if case.window.with_row else None
        result = Result(row["key"], start, end, row["count"], row["sum"], row["min"], row["max"], values, carried)
        out.append(Written(step, row.get("op", "+I"), row.get("pane_timing"), result))
    return out


def late(table: pa.Table, step: int | None) -> list[LateRow]:
    """Late rows in the goldens' terms, without those that have no time."""
    names: dict[str | None, Key] = {}
    return [
        LateRow(step, names.get(r["key"], r["key"]), r["ts"], r["value"], r["reason"])
        for r in table.to_pylist()
        if r["reason"] != "null_time"
    ]
