"""OpenTelemetry: metrics and traces as the SDK's own exporters in memory get them."""

from __future__ import annotations

import cProfile
import json
import math
import pstats
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import StatusCode
from prometheus_client import CollectorRegistry

from krishiv_py import MemorySink, ResultStream, Session, count, max
from krishiv_py.errors import KrishivError, MissingExtraError, PlanError
from krishiv_py.logs import BatchCounts, BatchLines, BatchTimes, Watch, batch_part, unwatch, watch
from krishiv_py.metrics import register
from krishiv_py.otel import export
from krishiv_py.testing import Driver, stream_of


def counted(rows: Any) -> ResultStream:
    by_second = rows.watermark("at", 0).tumbling_window(1_000).agg(count()).named("by second")
    ten: ResultStream = by_second.tumbling_window(10_000).agg(max("count")).named("by ten")
    return ten


class Kept:
    """Providers that keep all they get."""

    def __init__(self) -> None:
        self.spans, self.tracer = InMemorySpanExporter(), TracerProvider()
        self.tracer.add_span_processor(SimpleSpanProcessor(self.spans))
        self.reader = InMemoryMetricReader()
        self.meter = MeterProvider([self.reader])

    def traces(self) -> list[list[ReadableSpan]]:
        every_trace: dict[int, list[ReadableSpan]] = {}
        for span in self.spans.get_finished_spans():
            every_trace.setdefault(span.context.trace_id, []).append(span)
        return list(every_trace.values())

    def points(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        data = self.reader.get_metrics_data()
        metrics = [m for r in (data.resource_metrics if data else ()) for s in r.scope_metrics for m in s.metrics]
        return {
            (m.name, tuple(sorted((str(k), str(v)) for k, v in (p.attributes or {}).items()))): p.value  # type: ignore[union-attr]
            for m in metrics
            for p in m.data.data_points
        }


def test_a_trace_for_each_batch_with_a_span_for_each_stage() -> None:
    kept, driver = Kept(), Driver(counted(stream_of("at bigint")), name="counts")
    driver.send([{"at": 1}])
    with export(driver, meter_provider=kept.meter, tracer_provider=kept.tracer, traces_a_second=math.inf):
        driver.send([{"at": 5_000}, {"at": 25_000}])
        driver.send([{"at": 3}])
    driver.send([{"at": 4}])
    first, second = kept.traces()
    for trace in (first, second):
        (root,) = [span for span in trace if span.parent is None]
        assert root.name == "batch" and sorted(s.name for s in trace) == ["batch", "by second", "by ten"]
        for span in trace:
            assert span is root or (span.parent is not None and span.parent.span_id == root.context.span_id)
            assert root.start_time <= span.start_time <= span.end_time <= root.end_time  # type: ignore[operator]
    numbers = [dict(s.attributes or {}) for t in (first, second) for s in t if s.parent is None]
    assert [(n["krishiv.query"], n["krishiv.batch"], n["krishiv.rows"], n["krishiv.late"]) for n in numbers] == [
        ("counts", 1, 2, 0),
        ("counts", 2, 1, 1),
    ]
    for one, trace in zip(numbers, (first, second), strict=True):
        seconds = {name: float(str(one[f"krishiv.{name}_seconds"])) for name in ("pack", "step", "publish", "rest")}
        (root,) = [span for span in trace if span.parent is None]
        assert seconds["step"] > 0
        assert sum(seconds.values()) == pytest.approx((root.end_time - root.start_time) / 1e9)  # type: ignore[operator]


def test_a_trace_that_a_sampler_leaves_out_costs_no_spans() -> None:
    spans, sampled = InMemorySpanExporter(), list[str]()

    class Never(Sampler):
        def should_sample(self, parent_context: Any, trace_id: int, name: str, *more: Any, **others: Any) -> SamplingResult:
            sampled.append(name)
            return SamplingResult(Decision.DROP)

        def get_description(self) -> str:
            return "never"

    tracer, driver = TracerProvider(sampler=Never()), Driver(counted(stream_of("at bigint")))
    tracer.add_span_processor(SimpleSpanProcessor(spans))
    with export(driver, meter_provider=Kept().meter, tracer_provider=tracer):
        driver.send([{"at": 5_000}])
    assert sampled == ["batch"] and spans.get_finished_spans() == ()


def test_metrics_are_those_of_prometheus() -> None:
    kept, driver = Kept(), Driver(counted(stream_of("at bigint")), name="counts")
    registry = CollectorRegistry()
    register(driver, registry)
    exported = export([driver], meter_provider=kept.meter, tracer_provider=kept.tracer)
    assert not any(name.endswith("watermark_seconds") for name, _ in kept.points())
    driver.send([{"at": 5_000}, {"at": 25_000}])
    driver.send([{"at": 3}])
    theirs = {
        (family.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
    }
    assert kept.points() == theirs
    exported.close()
    exported.close()
    assert kept.points() == {}


def test_a_query_in_process_and_one_that_fails(tmp_path: Path) -> None:
    kept, folder = Kept(), tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps({"at": 5}) + "\n")
    with Session.in_process() as session:
        rows = session.read_json(folder, "at bigint", streaming=True).filter("100 / (at - 7) > -1000")
        query = counted(rows).start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"), name="counts")
        with export(query, meter_provider=kept.meter, tracer_provider=kept.tracer):
            query.process_all_available()
            (folder / "b.json").write_text(json.dumps({"at": 6}) + "\n")
            query.process_all_available()
            (folder / "c.json").write_text(json.dumps({"at": 7}) + "\n")
            with pytest.raises(Exception, match="zero"):
                query.process_all_available()
    (*_, good, failed) = kept.traces()
    assert sorted(span.name for span in good) == ["batch", "by second", "by ten"]
    of_parts = {name for span in good for name in span.attributes or {} if name.endswith("_seconds")}
    assert of_parts == {f"krishiv.{part}_seconds" for part in ("plan", "read", "pack", "step", "publish", "commit", "rest")}
    (root,) = [span for span in failed if span.name == "batch"]
    assert (root.status.status_code, root.status.description) == (StatusCode.ERROR, "OperatorError")


def test_traces_come_without_waiting_for_more_batches() -> None:
    kept, driver = Kept(), Driver(counted(stream_of("at bigint")))
    with export(driver, meter_provider=kept.meter, tracer_provider=kept.tracer, traces_a_second=math.inf):
        driver.send([{"at": 1}])
        until = time.monotonic() + 30
        while not kept.traces() and time.monotonic() < until:
            time.sleep(0.02)
        assert len(kept.traces()) == 1
        for at in range(200):  # made when enough wait, whatever the clock says
            driver.send([{"at": at}])
        assert len(kept.traces()) > 100
    assert len(kept.traces()) == 201


def test_of_many_batches_some_have_a_trace_and_slow_and_failed_ones_always() -> None:
    wait_s, kept = [0.0], Kept()

    def slowed(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(wait_s[0])
        if wait_s[0] < 0.01 and batch["at"][0].as_py() == 999:
            raise ValueError("a row that is not right")
        return batch

    driver = Driver(counted(stream_of("at bigint").map_batches(slowed, "at bigint")))
    with export(driver, meter_provider=kept.meter, tracer_provider=kept.tracer, traces_a_second=2):
        began = time.monotonic()
        for moment in range(50):
            driver.send([{"at": moment}])
        most = 1 + (time.monotonic() - began) * 2
        wait_s[0] = 0.6
        driver.send([{"at": 51}])  # long enough for a trace, in whichever part of a half second it begins
        driver.send([{"at": 52}])
        wait_s[0] = 0.0
        with pytest.raises(KrishivError):
            driver.send([{"at": 999}])
    roots = [span for trace in kept.traces() for span in trace if span.parent is None]
    attributes = [dict(span.attributes or {}) for span in roots]
    slow = [own for own in attributes if float(str(own.get("krishiv.seconds", 0))) > 0.5]
    assert 1 <= len(roots) - 3 <= most
    assert len(slow) == 2 and all("krishiv.rest_seconds" in own for own in slow)
    assert [span.status.status_code for span in roots].count(StatusCode.ERROR) == 1


def test_what_takes_no_times_gets_none_of_their_parts() -> None:
    seen = list[BatchTimes]()
    one_watch, lines = Watch(seen.append, spacing_ns=10**15), BatchLines("q", lambda: BatchCounts(1, 2, 0, 0, 0, 0.5))
    watch("q", one_watch)
    try:
        for _ in range(3):
            with lines.batch(), batch_part("step", "a"):
                pass
        one_watch.spacing_ns = 1  # as long as any batch takes
        one_watch._noted_ns = time.time_ns() + 10**9  # the clock of the machine was set back
        with lines.batch(), batch_part("step", "a"):
            pass
    finally:
        unwatch("q", one_watch)
    assert [[part[0] for part in times.parts] for times in seen] == [["step"], ["step"]]
    assert [times.numbers["batch"] for times in seen] == [1, 1]


@pytest.mark.parametrize("wrong", [0, -1, True, "10", None, math.nan])
def test_a_wrong_number_of_traces_is_refused(wrong: Any) -> None:
    with pytest.raises(PlanError, match="traces_a_second is above 0"):
        export(Driver(counted(stream_of("at bigint"))), traces_a_second=wrong)


def test_a_process_that_ends_loses_no_trace() -> None:
    program = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from krishiv_py import count
from krishiv_py.otel import export
from krishiv_py.testing import Driver, stream_of

tracer = TracerProvider()
tracer.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
driver = Driver(stream_of("at bigint").watermark("at", 0).tumbling_window(1_000).agg(count()).named("by second"))
exported = export(driver, tracer_provider=tracer)
driver.send([{"at": 1}])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert '"by second"' in ended.stdout and '"batch"' in ended.stdout


def test_a_query_that_is_not_exported_makes_no_calls() -> None:
    driver = Driver(counted(stream_of("at bigint")))
    export(driver, meter_provider=Kept().meter, tracer_provider=Kept().tracer).close()
    profile = cProfile.Profile()
    profile.runcall(driver.send, [{"at": 1}])
    files = {code[0] for code in pstats.Stats(profile).stats}  # type: ignore[attr-defined]
    assert any("driver.py" in one for one in files) and not [one for one in files if "opentelemetry" in one or "otel.py" in one]


def test_a_watcher_that_fails_stops_no_query(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(SimpleSpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            raise RuntimeError("the tracer is broken")

    kept, driver = Kept(), Driver(counted(stream_of("at bigint")))
    kept.tracer.add_span_processor(Broken(kept.spans))
    with export(driver, meter_provider=kept.meter, tracer_provider=kept.tracer):
        assert driver.send([{"at": 1}]).late.num_rows == 0
    assert "a watcher of query" in caplog.text


@pytest.mark.parametrize("wrong", [5, "q", [5], None])
def test_what_is_no_query_is_refused(wrong: Any) -> None:
    with pytest.raises(PlanError, match="export takes queries"):
        export(wrong)


def test_without_opentelemetry_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(MissingExtraError, match=r"\[otel\]"):
        export(Driver(counted(stream_of("at bigint"))))
