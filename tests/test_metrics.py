"""What Prometheus reads: the text of a scrape after on-time, mildly late, very late and future rows (SEMANTICS §4.5)."""

from __future__ import annotations

import json
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from krishiv_py import MemorySink, MultiSourceWatermarkSpec, ResultStream, Session, StateTtlConfig, Stream, WatermarkSpec, count
from krishiv_py.errors import MissingExtraError, PlanError
from krishiv_py.metrics import PREFIX, Observed, register, serve, unregister
from krishiv_py.plan import running
from krishiv_py.plan.running import Progress
from krishiv_py.runtime import query as query_module
from krishiv_py.testing import Driver, ManualClock, stream_of

DDL = "user string, at bigint"
Samples = dict[tuple[str, tuple[str, ...]], float]


def late_counted(stream: Stream) -> ResultStream:
    """The example of SEMANTICS §4.1: W = 200, L = 60, F = 60."""
    keyed = stream.watermark("at", 0).key_by("user").allowed_lateness(60).future_tolerance(60, reference="watermark")
    return keyed.tumbling_window(1_000).agg(count())


def rows(*times: int | None) -> list[dict[str, object]]:
    return [{"user": "a", "at": moment} for moment in times]


FIRST, SECOND = rows(200), rows(195, 140, 130, 200, 260, 261, None)
WANTED = {
    "rows_total": 8,
    "mildly_late_events_total": 2,
    "very_late_events_total": 1,
    "future_events_total": 1,
    "pending_window_count": 1,
    "last_batch_id": 1,
}


def scraped(registry: CollectorRegistry) -> Samples:
    """Samples of the text exposition by name without prefix and the values of their labels: query, operator, its own."""
    actual: Samples = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            key = (sample.name.removeprefix(PREFIX), (labels.pop("query"), labels.pop("operator"), *labels.values()))
            assert key not in actual, "one line per sample"
            actual[key] = sample.value
    return actual


def of(query: Observed, registry: CollectorRegistry, *label: str) -> dict[str, float]:
    """Samples of a query that have these more labels and no others."""
    labels = (query.name, query.operator, *label)
    return {name: value for (name, values), value in scraped(registry).items() if values == labels}


STAGES = ("stage 1", "stage 2")


def test_the_classes_of_rows_are_counted_once() -> None:
    registry, driver = CollectorRegistry(), Driver(late_counted(stream_of(DDL)))
    register(driver, registry)
    driver.send(FIRST)
    driver.send(SECOND)
    for _ in range(2):  # a scrape changes nothing
        shown = of(driver, registry)
        assert {name: shown[name] for name in WANTED} == WANTED
        assert shown["watermark_seconds"] == 0.261
        assert of(driver, registry, "late") == {"refused_events_total": 1}
        assert of(driver, registry, "null_time") == {"refused_events_total": 1}
        assert of(driver, registry, "null_key") == {"refused_events_total": 0}
    assert shown["state_rows"] == driver.progress.open_rows > 0
    assert shown["state_bytes"] == driver.progress.state_bytes > 0
    assert "ttl_dropped_total" not in shown
    driver.close()
    shown = of(driver, registry)
    assert (shown["firings_total"], shown["pending_window_count"], shown["state_bytes"]) == (1, 0, 0)
    assert shown["watermark_seconds"] == float("inf")


def test_a_restart_goes_on_counting_under_the_same_name() -> None:
    registry, driver = CollectorRegistry(), Driver(late_counted(stream_of(DDL)))
    register(driver, registry)
    driver.send(FIRST)
    again = driver.restarted()
    register(again, registry)
    again.send(SECOND)
    assert {name: of(again, registry)[name] for name in WANTED} == WANTED


def test_the_exposition_has_names_help_and_types() -> None:
    registry = CollectorRegistry()
    register(Driver(late_counted(stream_of(DDL)), name="q"), registry)
    text = generate_latest(registry).decode()
    assert "# TYPE krishiv_window_very_late_events_total counter" in text
    assert "# TYPE krishiv_window_pending_window_count untyped" in text
    assert 'krishiv_window_very_late_events_total{operator="window-aggregate",query="q"} 0.0' in text
    assert 'krishiv_window_watermark_seconds{operator="window-aggregate",query="q"} -Inf' in text


def test_names_and_texts_follow_the_rules_of_prometheus() -> None:
    """Those that ``promtool check metrics`` looks at; of metrics without a type it looks at no ending."""
    registry = CollectorRegistry()
    register(_full_driver(), registry)
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert len(families) > 15
    for family in families:
        assert re.fullmatch("krishiv_window(_[a-z]+)+", family.name) and family.documentation, family.name
        words = family.name.split("_")
        assert not {"gauge", "counter", "ms", "milliseconds", "us", "minutes", "hours", "kb", "mb"} & set(words), family.name
        assert words[-1] not in ("total", "sum", "bucket", "info"), family.name
        assert "count" not in words or family.type == "unknown", family.name
        endings = {sample.name.removeprefix(family.name) for sample in family.samples}
        assert endings <= ({"_total"} if family.type == "counter" else {""}), family.name


def _full_driver() -> Driver:
    """A driver with samples of many kinds."""
    lags = MultiSourceWatermarkSpec.new(idle_timeout="30 s")
    lags = lags.source("a", WatermarkSpec.fixed_lag(0)).source("b", WatermarkSpec.fixed_lag(0))
    stream = stream_of("source string, at bigint").with_watermark(lags, "at", source_column="source")
    driver = Driver(stream.key_by("source").session_window(10, max_duration=100).agg(count()))
    driver.send([{"source": "a", "at": 1}, {"source": "b", "at": 200}, {"source": "a", "at": 200}])
    driver.send([{"source": "a", "at": 1}])
    return driver


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Prometheus")
def test_promtool_accepts_the_scrape() -> None:
    registry = CollectorRegistry()
    register(_full_driver(), registry)
    checked = subprocess.run(["promtool", "check", "metrics"], input=generate_latest(registry), capture_output=True, timeout=60)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_rows_that_leave_are_counted_by_output() -> None:
    inner = stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count())
    outer = inner.tumbling_window(20).agg(count())
    outputs = {"tens": inner.to(MemorySink(), name="tens"), "twenties": outer.to(MemorySink(), name="twenties")}
    driver, registry = Driver(outputs.values()), CollectorRegistry()
    register(driver, registry)
    driver.send([{"at": moment} for moment in (1, 2, 12, 45)])
    driver.send([{"at": 3}, {"at": 50}])
    assert driver.progress.sink_rows == {"tens": 3, "late_rows": 1, "twenties": 1}
    assert driver.restarted().progress.sink_rows == driver.progress.sink_rows
    assert {labels[-1]: v for (name, labels), v in scraped(registry).items() if name == "sink_rows_total"} == {
        "tens": 3,
        "late_rows": 1,
        "twenties": 1,
    }


def test_two_queries_share_a_header_and_leave_one_by_one() -> None:
    registry = CollectorRegistry(auto_describe=True)
    one, two = (Driver(late_counted(stream_of(DDL)), name=name) for name in ("one", "two"))
    register(one, registry)
    register(two, registry)
    one.send(FIRST)
    text = generate_latest(registry).decode()
    assert text.count("# TYPE krishiv_window_rows_total counter") == 1
    assert (of(one, registry)["rows_total"], of(two, registry)["rows_total"]) == (1, 0)
    unregister(one, registry)
    assert of(one, registry) == {}
    unregister(one, registry)
    unregister(two, CollectorRegistry())
    assert of(two, registry)["rows_total"] == 0


def test_a_watermark_per_source() -> None:
    lags = MultiSourceWatermarkSpec.new().source("a", WatermarkSpec.fixed_lag(0)).source("b", WatermarkSpec.fixed_lag(50))
    stream = stream_of("source string, at bigint").with_watermark(lags, "at", source_column="source")
    registry, driver = CollectorRegistry(), Driver(stream.tumbling_window(1_000).agg(count()))
    register(driver, registry)
    driver.send([{"source": "a", "at": 100}])
    assert of(driver, registry, "a") == {"source_watermark_seconds": 0.1, "source_idle": 0}
    assert of(driver, registry, "b") == {"source_watermark_seconds": float("-inf"), "source_idle": 0}
    driver.send([{"source": "b", "at": 80}])
    assert of(driver, registry, "b") == {"source_watermark_seconds": 0.03, "source_idle": 0}
    assert of(driver, registry)["watermark_seconds"] == 0.03


def test_a_silent_source_is_idle_until_its_next_row() -> None:
    lags = MultiSourceWatermarkSpec.new(idle_timeout="30 s")
    lags = lags.source("a", WatermarkSpec.fixed_lag(0)).source("b", WatermarkSpec.fixed_lag(0))
    stream = stream_of("source string, at bigint").with_watermark(lags, "at", source_column="source")
    inner = stream.tumbling_window(10).agg(count())
    for plan in (inner, inner.tumbling_window(20).agg(count())):
        registry, driver = CollectorRegistry(), Driver(plan, clock=ManualClock())
        register(driver, registry)

        def idle(registry: CollectorRegistry = registry) -> list[float]:
            return [value for (name, _), value in sorted(scraped(registry).items()) if name == "source_idle"]

        driver.send([{"source": "a", "at": 100}, {"source": "b", "at": 80}])
        assert (idle(), driver.progress.idle_sources) == ([0, 0], ())
        driver.clock.advance("31 s")
        driver.send([{"source": "a", "at": 200}])
        driver.tick()
        assert (idle(), driver.progress.idle_sources) == ([0, 1], ("b",))
        driver.send([{"source": "b", "at": 90}])
        assert (idle(), driver.progress.idle_sources) == ([0, 0], ())


def test_stages_have_samples_of_their_own() -> None:
    inner = stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count())
    driver = Driver(inner.tumbling_window(20).agg(count()), name="chain")
    registry = CollectorRegistry()
    register(driver, registry)
    driver.send([{"at": moment} for moment in (1, 2, 12, 45)])
    late = driver.send([{"at": 3}, {"at": 50}])
    assert late.late.num_rows == 1

    def sample(metric: str, operator: str) -> float | None:
        return registry.get_sample_value(f"krishiv_window_{metric}", {"query": "chain", "operator": operator})

    actual = {stage: [sample(m, stage) for m in ("rows_total", "very_late_events_total", "firings_total")] for stage in STAGES}
    assert actual == {"stage 1": [6, 1, 3], "stage 2": [3, 0, 1]}
    assert sample("rows_total", driver.operator) == 3  # its last stage


def test_what_a_time_to_live_dropped_is_shown_where_there_is_one() -> None:
    keyed = stream_of(DDL).watermark("at", 0).key_by("user").with_state_ttl(StateTtlConfig(100, "event"))
    registry, driver = CollectorRegistry(), Driver(keyed.tumbling_window(10_000).agg(count()))
    register(driver, registry)
    driver.send([{"user": "a", "at": 1}])
    driver.send([{"user": "b", "at": 500}])
    assert of(driver, registry)["ttl_dropped_total"] == 1


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"\.\[metrics\]"):
        register(Driver(late_counted(stream_of(DDL))))


def test_a_query_on_spark_shows_what_the_driver_shows(session: Session) -> None:
    stream, sender = session.memory_stream(DDL)
    registry, driver = CollectorRegistry(), Driver(late_counted(stream_of(DDL)))
    query = late_counted(stream).start(MemorySink(), name="classified")
    register(query, registry)
    register(driver, registry)
    for batch in (FIRST, SECOND):
        sender.send(batch)
        driver.send(batch)
        query.process_all_available()
    shown, wanted = of(query, registry), of(driver, registry)
    # Spark numbers the batches without rows too, and stores what is encoded; and each has a clock of its own
    differing = {"last_batch_id", "state_bytes", "batch_duration_seconds", "last_batch_timestamp_seconds"}
    assert {n: v for n, v in shown.items() if n not in differing} == {n: v for n, v in wanted.items() if n not in differing}
    assert shown["state_bytes"] > 0
    assert of(query, registry, "late") == of(driver, registry, "late")
    for output in ("results", "late_rows"):
        assert of(query, registry, output) == of(driver, registry, output) != {}, output
    query.stop()
    assert of(query, registry) == shown


class _Query:
    name, operator, status, progress = "q", "op", "running", Driver(late_counted(stream_of(DDL))).progress


def test_a_failed_query_is_not_shown_as_alive_and_probes_say_so() -> None:
    query, driver = _Query(), Driver(late_counted(stream_of(DDL)), name="d")
    with serve(0, [query, driver]) as server:

        def got(path: str) -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as refused:
                return refused.code, refused.read().decode()

        assert got("/healthz")[0] == 200 and got("/readyz")[0] == 503 and got("/other")[0] == 404
        assert 'query_state{operator="op",query="q",state="running"} 1.0' in got("/metrics")[1]
        query.status = "failed"
        assert got("/healthz")[0] == 503 and '"state": "failed"' in got("/healthz")[1]
        assert 'query_state{operator="op",query="q",state="failed"} 1.0' in got("/metrics")[1]
        with pytest.raises(PlanError, match="cannot be served"):
            serve(server.port, [driver])


class Standing:
    """A query whose progress a test sets."""

    name, operator, status = "q", "o", "running"

    def __init__(self, **now: Any) -> None:
        self.progress = Progress(batch_id=3, **now)


@pytest.mark.parametrize(
    ("now", "healthz", "readyz", "reason"),
    [
        ({}, 200, 200, None),
        ({"busy_seconds": 30.0}, 200, 200, None),
        ({"busy_seconds": 700.0}, 503, 503, "batch"),
        ({"trouble": "the database is away"}, 200, 503, "away"),
        ({"still_seconds": 400.0, "source_watermarks_us": {"a": 5, "b": 1}}, 200, 503, "watermark"),
        ({"stalled_seconds": 700.0}, 200, 503, "backlog"),
    ],
)
def test_probes_and_the_metric_say_that_a_query_is_stuck(
    now: dict[str, Any], healthz: int, readyz: int, reason: str | None
) -> None:
    query = Standing(**now)
    with serve(0, [query]) as served:
        codes = [answered(served.port, path)[0] for path in ("healthz", "readyz")]
        [said] = json.loads(answered(served.port, "readyz")[1])["queries"]
        text = answered(served.port, "metrics")[1]
    assert codes == [healthz, readyz]
    assert ("stuck" in said) == (reason is not None)
    stuck = re.findall(r'query_stuck\{operator="o",query="q",reason="(\w+)"\} 1.0', text)
    assert stuck == ([] if reason is None else [reason])
    assert reason != "watermark" or "source b" in said["stuck"]


def answered(port: int, path: str) -> tuple[int, str]:
    """Return the code and the text of an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_a_batch_that_hangs_is_seen_while_it_hangs() -> None:
    going_on, begun = threading.Event(), threading.Event()

    def hangs(batch: Any) -> Any:
        begun.set()
        going_on.wait(60)
        return batch

    with Session.in_process() as session:
        stream, sender = session.memory_stream("at bigint")
        query = stream.map_batches(hangs).start(MemorySink(), name="q")
        with serve(0, [query], hung_after="50ms") as served:
            sender.send([{"at": 1}])
            assert begun.wait(60)
            time.sleep(0.1)
            assert answered(served.port, "healthz")[0] == 503 and query.progress.busy_seconds > 0.05
            going_on.set()
            query.process_all_available()
            assert answered(served.port, "healthz")[0] == 200


def test_a_union_whose_other_source_is_silent_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "STILL_S", 0.2)
    monkeypatch.setattr(query_module, "STILL_S", 0.2)
    with Session.in_process() as session:
        streams = {name: session.memory_stream("at bigint") for name in ("loud", "silent")}
        spec = MultiSourceWatermarkSpec.new()
        for name in streams:
            spec = spec.source(name, WatermarkSpec.fixed_lag(0))
        union = session.union({name: stream for name, (stream, _) in streams.items()})
        marked = union.with_watermark(spec, "at", source_column="source")
        query = marked.tumbling_window(10).agg(count()).start(MemorySink())
        for moment in range(0, 100, 10):
            streams["loud"][1].send([{"at": moment}])
        query.process_all_available()
        time.sleep(0.3)
        assert "waits for the source silent" in query.progress.stuck["watermark"]
        streams["silent"][1].send([{"at": 95}])
        query.process_all_available()
        assert not query.progress.stuck


def test_a_scrape_that_has_gone_prints_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    class Slow(Standing):
        @property
        def progress(self) -> Progress:
            time.sleep(0.3)
            return Progress()

        @progress.setter
        def progress(self, _: Progress) -> None:
            pass

    with serve(0, [Slow()]) as served:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", served.port)) as scrape:
                scrape.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                scrape.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(2)
    assert "Traceback" not in capfd.readouterr().err
