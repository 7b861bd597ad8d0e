"""Counters and gauges of queries for Prometheus (SEMANTICS §4.5).

This module counts nothing: a scrape reads ``progress`` of every registered query. Nothing is counted twice, and after a
restart from a checkpoint the counters continue from their last values. Needs ``prometheus-client``: the extra ``metrics``.

All names begin with ``krishiv_window_``, all samples have the labels ``query`` and ``operator``:

====================================  =======  ====================================================================
name                                  kind     meaning
====================================  =======  ====================================================================
``rows_total``                        counter  rows read
``very_late_events_total``            counter  rows with ``t < W - L``
``mildly_late_events_total``          counter  rows with ``W - L <= t < W``
``future_events_total``               counter  rows of clocks that run ahead: more than the future tolerance
``refused_events_total``              counter  rows that entered no window, by ``reason``
``firings_total``                     counter  result rows fired
``ttl_dropped_total``                 counter  windows (look-back windows: rows) dropped with the state of their key
``close_key_dropped_total``           counter  windows (look-back windows: rows) dropped by ``close_key``
``duplicate_events_total``            counter  rows that ``drop_duplicates`` did not let pass
``limited_rows_total``                counter  rows refused by ``max_rows_per_window``, or ``max_rows_per_key`` of a join
``dropped_changes_total``             counter  changes of tables that changed nothing, by ``reason``
``unmatched_events_total``            counter  rows of joins without a partner
``limited_results_total``             counter  look-back results over the newest ``max_rows_per_key`` rows of their range only
``function_calls_total``              counter  rows and timers that process functions were called for
``failed_function_calls_total``       counter  calls of process functions that raised, and were undone
``refused_function_calls_total``      counter  calls of process functions that refused their row
``dropped_timers_total``              counter  timers that were left when the input ended
``function_seconds_total``            counter  for how long process functions ran, with what goes around each call
``pending_timers``                    gauge    deadlines of process functions, absence and patterns
``held_rows``                         gauge    rows of these that wait until none before them can come
``pending_window_count``              untyped   ``progress.open_windows``
``state_rows``                        gauge    rows and partial aggregates in state; the number of keys is not known
``state_bytes``                       gauge    bytes of state
``last_batch_id``                     gauge    the last finished micro-batch, -1 before the first
``watermark_seconds``                 gauge    the watermark, s since the epoch; -Inf while unset, +Inf at the end of input
``source_watermark_seconds``          gauge    the watermark of each declared ``source``
``source_idle``                       gauge    1 for a declared ``source`` that no watermark waits for, as it is silent; else 0
``batch_duration_seconds``            gauge    how long the last finished micro-batch took
``last_batch_timestamp_seconds``      gauge    when it ended, s since the epoch; no sample before the first
``sink_rows_total``                   counter  rows that went to each ``output``
``source_backlog``                    gauge    what each ``source`` has that no micro-batch has taken: records, files
``partition_backlog``                 gauge    the same for each ``partition`` of sources that have them, such as Kafka's
``held_back_total``                   counter  how often each ``source`` had to wait for others (`max_drift`)
``batch_running_seconds``             gauge    how long the batch in hand has run, with the look for it; 0 between two batches
``backlog_age_seconds``               gauge    for how long each look has found a backlog; 0 while there is none
``query_stuck``                       gauge    1 for each ``reason`` why it does not go on: see ``progress.stuck``; else 0
``query_state``                       gauge    1 for the ``state`` it is in: ``running``, ``stopped`` or ``failed``; else 0
====================================  =======  ====================================================================

Only queries with closed keys have ``close_key_dropped_total``. Only plans that can drop such rows have ``ttl_dropped_total``,
``duplicate_events_total`` and ``limited_…``. ``function_…`` are of process functions; ``pending_timers`` and ``held_rows`` have
samples where there are some.
"""

from __future__ import annotations

import importlib
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from weakref import WeakKeyDictionary

import attrs

from krishiv_py.errors import PlanError, from_extra
from krishiv_py.failures.redaction import redacted
from krishiv_py.plan.durations import END_OF_TIME, UNSET, Duration, to_us
from krishiv_py.plan.running import Progress, failed_of
from krishiv_py.storage.ending import ClosedAtEnd

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PREFIX: Final = "krishiv_window_"
LABELS: Final = ("query", "operator")
REASONS: Final = (
    *("late", "null_time", "null_key", "time_out_of_range", "unassigned", "future_dropped"),
    *("future_side_output", "unknown_source", "malformed"),
)


class Observed(Protocol):
    """Holds what can be registered: a :class:`~krishiv_py.Query` or a :class:`~krishiv_py.testing.Driver`."""

    @property
    def name(self) -> str:
        """The label ``query``."""

    @property
    def operator(self) -> str:
        """The label ``operator`` of a query with one stage; of several each stage has its own."""

    @property
    def progress(self) -> Progress:
        """Return where it is."""


__all__ = ["Served", "register", "seconds", "serve", "unregister"]


@attrs.frozen
class Reading:
    """A query or one of its stages as it is now.

    Attributes
    ----------
    labels : tuple of str
        The values of :data:`LABELS`.
    progress : Progress
        Where it is.
    state : str or None
        The state of a query; None for a stage.
    """

    labels: tuple[str, str]
    progress: Progress
    state: str | None


@attrs.frozen
class MetricSamples:
    """One metric: its name without prefix, and its samples by the value of its own label (``""`` where it has none)."""

    name: str
    text: str
    kind: Literal["counter", "gauge", "untyped"]
    of: Callable[[Progress], dict[str, float]] | Callable[[Progress, str], dict[str, float]]
    label: str | None = None
    whole: bool = False
    """True where a query of several stages has it once; then the state of the query counts, too."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its labels."""
        return LABELS if self.label is None else (*LABELS, self.label)

    def samples(self, readings: Iterable[Reading]) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the values of its labels, each with the sample."""
        for reading in readings:
            if self.whole == (reading.state is not None):
                given = (reading.progress, reading.state) if self.whole else (reading.progress,)
                for value, sample in self.of(*given).items():
                    yield reading.labels if self.label is None else (*reading.labels, value), sample


def seconds(time_us: int) -> float:
    """Seconds since the epoch; unset and the end of input are the infinities.

    Examples
    --------
    >>> from krishiv_py.plan.durations import END_OF_TIME, UNSET
    >>> seconds(1_500_000), seconds(UNSET), seconds(END_OF_TIME)
    (1.5, -inf, inf)
    """
    if time_us in (UNSET, END_OF_TIME):
        return float("-inf") if time_us == UNSET else float("inf")
    return time_us / 1_000_000


def _counted(name: str, text: str, counter: str, *, always: bool = True) -> MetricSamples:
    def samples(progress: Progress) -> dict[str, float]:
        return {"": progress.counters.get(counter, 0)} if always or counter in progress.counters else {}

    return MetricSamples(name, text, "counter", samples)


def _gauge(name: str, text: str, value: Callable[[Progress], float]) -> MetricSamples:
    return MetricSamples(name, text, "gauge", lambda progress: {"": value(progress)})


def _by(
    label: str, name: str, text: str, kind: Literal["counter", "gauge"], of: Callable[[Progress], Mapping[str, float]]
) -> MetricSamples:
    return MetricSamples(
        name, text, kind, lambda progress: {redacted(one): value for one, value in of(progress).items()}, label
    )


def _refused(progress: Progress) -> dict[str, float]:
    refused: dict[str, float] = {reason: progress.counters.get(reason, 0) for reason in REASONS}
    refused.update(failed_of(progress.counters))
    return refused


REASONS_OF_CHANGES: Final = ("stale", "refused_changes", "unknown_delete", "expired")
"""Counters of changes of tables that changed nothing."""


def _dropped_changes(progress: Progress) -> dict[str, float]:
    return {reason: progress.counters[reason] for reason in REASONS_OF_CHANGES if reason in progress.counters}


def _by_source(progress: Progress) -> dict[str, float]:
    marks = progress.source_watermarks_us.items()
    return {redacted(source): seconds(us) for source, us in marks if source}  # the only one has no name


def _idle(progress: Progress) -> dict[str, float]:
    return {redacted(s): float(s in progress.idle_sources) for s in progress.source_watermarks_us if s}


def _ended(progress: Progress) -> dict[str, float]:
    return {} if progress.batch_ended_us is None else {"": progress.batch_ended_us / 1_000_000}


STATES: Final = ("running", "stopped", "failed")
REASONS_STUCK: Final = ("away", "batch", "watermark", "backlog")


def _states(_progress: Progress, now: str) -> dict[str, float]:
    return {state: float(state == now) for state in STATES}


def _stuck(progress: Progress, state: str) -> dict[str, float]:
    reasons = progress.stuck if state == "running" else {}
    return {reason: float(reason in reasons) for reason in REASONS_STUCK}


def _busy(progress: Progress, _state: str) -> dict[str, float]:
    return {"": progress.busy_seconds}


def _waiting(progress: Progress, _state: str) -> dict[str, float]:
    return {"": progress.backlog_seconds}


def _ran(progress: Progress) -> dict[str, float]:
    return {"": progress.call_seconds} if "calls" in progress.counters else {}


def _of_ordered(progress: Progress, n: int) -> dict[str, float]:
    return {"": n} if progress.timers or progress.held_rows or "calls" in progress.counters else {}


SHOWN: Final = (
    _counted("rows", "Rows read", "rows"),
    _counted("very_late_events", "Rows with event time below watermark minus allowed lateness", "very_late"),
    _counted("mildly_late_events", "Rows behind the watermark by no more than the allowed lateness", "mildly_late"),
    _counted("future_events", "Rows of clocks that run ahead of the future tolerance", "future"),
    MetricSamples("refused_events", "Rows that entered no window, by reason", "counter", _refused, "reason"),
    _counted("firings", "Result rows fired", "firings"),
    _counted("ttl_dropped", "Windows (look-back windows: rows) dropped with their key", "ttl_dropped", always=False),
    _counted("close_key_dropped", "Windows (look-back windows: rows) dropped by close_key", "close_key_dropped", always=False),
    _counted("duplicate_events", "Rows that drop_duplicates did not let pass", "duplicates", always=False),
    MetricSamples("dropped_changes", "Changes of tables that changed nothing", "counter", _dropped_changes, "reason"),
    _counted("unmatched_events", "Rows of joins without a partner", "unmatched", always=False),
    _counted("limited_rows", "Rows refused by max_rows_per_window, or by max_rows_per_key of a join", "limited", always=False),
    _counted("limited_results", "Results over the newest max_rows_per_key rows only", "limited_results", always=False),
    _counted("function_calls", "Rows and timers that process functions were called for", "calls", always=False),
    _counted("failed_function_calls", "Calls of process functions that raised, and were undone", "failed_calls", always=False),
    _counted("refused_function_calls", "Calls of process functions that refused their row", "refused", always=False),
    _counted("dropped_timers", "Timers that were left when the input ended", "timers_dropped", always=False),
    MetricSamples("function_seconds", "For how long process functions ran", "counter", _ran),
    MetricSamples("pending_timers", "Deadlines that are pending", "gauge", lambda p: _of_ordered(p, p.timers)),
    MetricSamples(
        "held_rows", "Rows that wait until none before them can come", "gauge", lambda p: _of_ordered(p, p.held_rows)
    ),
    # a gauge but in name: the ending is one of histograms, which Prometheus' own check lets pass only where no type is given
    MetricSamples("pending_window_count", "Windows open, as in the progress", "untyped", lambda p: {"": p.open_windows}),
    _gauge("state_rows", "Rows and partial aggregates in state", lambda p: p.open_rows),
    _gauge("state_bytes", "Bytes of state", lambda p: p.state_bytes),
    _gauge("last_batch_id", "The last finished micro-batch, -1 before the first", lambda p: p.batch_id),
    _gauge("watermark_seconds", "Watermark, seconds since the epoch; -Inf while unset", lambda p: seconds(p.watermark_us)),
    _gauge("batch_duration_seconds", "How long the last finished micro-batch took", lambda p: p.batch_seconds),
    MetricSamples("last_batch_timestamp_seconds", "When the last micro-batch ended, seconds since the epoch", "gauge", _ended),
    MetricSamples(
        "source_watermark_seconds", "Watermark of a declared source, seconds since the epoch", "gauge", _by_source, "source"
    ),
    MetricSamples("source_idle", "1 for a declared source that no watermark waits for, else 0", "gauge", _idle, "source"),
    _by("output", "sink_rows", "Rows that went to an output, late rows among them", "counter", lambda p: p.sink_rows),
    _by("source", "source_backlog", "Records or files of a source that no micro-batch has taken", "gauge", lambda p: p.backlog),
    _by("partition", "partition_backlog", "The same by partition of a source", "gauge", lambda p: p.partition_backlog),
    _by("source", "held_back", "How often a source had to wait for others", "counter", lambda p: p.held_back),
    MetricSamples("query_state", "1 for the state a query is in, else 0", "gauge", _states, "state", whole=True),
    MetricSamples("query_stuck", "1 for each reason why a query does not go on, else 0", "gauge", _stuck, "reason", whole=True),
    MetricSamples("batch_running_seconds", "How long the batch in hand has run", "gauge", _busy, whole=True),
    MetricSamples("backlog_age_seconds", "For how long there has been a backlog", "gauge", _waiting, whole=True),
)


def status_of(query: Observed) -> str:
    """Return where a query is; a driver of tests always runs."""
    return str(getattr(query, "status", "running"))


def readings(query: Observed) -> list[Reading]:
    """Return a query, and its stages one by one, so that sums over ``operator`` count nothing twice."""
    name, progress, operator = redacted(query.name), query.progress, redacted(query.operator)
    stages = progress.stages or {query.operator: progress}
    each = [Reading((name, redacted(stage)), one, None) for stage, one in stages.items()]
    return [*each, Reading((name, operator), progress, status_of(query))]


@attrs.define(eq=False)
class QueryCollector:
    """The registered queries of one registry, as one collector: however many queries show it, a metric has one header."""

    _client: Any
    _queries: dict[str, Observed] = attrs.field(factory=dict)
    _lock: Any = attrs.field(factory=threading.Lock)

    def add(self, query: Observed) -> None:
        """Export a query. It replaces an earlier query with the same name."""
        with self._lock:
            self._queries[query.name] = query

    def remove(self, query: Observed) -> None:
        """Stop exporting a query. Does nothing if it is not exported."""
        with self._lock:
            if self._queries.get(query.name) is query:
                del self._queries[query.name]

    def describe(self) -> Iterator[Any]:
        """Names without samples: what a registry asks for, so that registering reads no query."""
        yield from self._families([])

    def collect(self) -> Iterator[Any]:
        """One reading of every query."""
        yield from self._families([reading for query in self.queries for reading in readings(query)])

    @property
    def queries(self) -> list[Observed]:
        """Return what is exported."""
        with self._lock:
            return list(self._queries.values())

    def _families(self, seen: list[Reading]) -> Iterator[Any]:
        client = self._client
        makers = {
            "counter": client.CounterMetricFamily,
            "gauge": client.GaugeMetricFamily,
            "untyped": client.UntypedMetricFamily,
        }
        for shown in SHOWN:
            family = makers[shown.kind](PREFIX + shown.name, shown.text, labels=shown.labels)
            for labels, sample in shown.samples(seen):
                family.add_metric(labels, sample)
            yield family


_COLLECTORS: WeakKeyDictionary[CollectorRegistry, QueryCollector] = WeakKeyDictionary()
_LOCK: Final = threading.Lock()


def _client() -> Any:
    return from_extra("prometheus_client", "prometheus-client", "metrics", "no query can be scraped")


def register(query: Observed, registry: CollectorRegistry | None = None) -> None:
    """Export a query to Prometheus.

    Parameters
    ----------
    query : Query or Driver
        A query, running or stopped. It replaces a query that was registered under the same name, so a restarted query
        replaces the query it continues.
    registry : prometheus_client.CollectorRegistry, optional
        Where to register; the client's own registry by default, which ``prometheus_client.start_http_server(port)`` serves.

    Raises
    ------
    MissingExtraError
        When ``prometheus-client`` is not installed; names the extra that brings it.

    Examples
    --------
    >>> from prometheus_client import CollectorRegistry
    >>> from krishiv_py import count
    >>> from krishiv_py.metrics import register
    >>> from krishiv_py.testing import Driver, stream_of
    >>> driver = Driver(stream_of("at bigint").watermark("at", 0).tumbling_window(1_000).agg(count()))
    >>> registry = CollectorRegistry()
    >>> register(driver, registry)
    >>> _ = driver.send([{"at": 5_000}])
    >>> _ = driver.send([{"at": 100}, {"at": 5_100}])
    >>> registry.get_sample_value("krishiv_window_very_late_events_total", {"query": driver.name, "operator": driver.operator})
    1
    """
    client = _client()
    target = client.REGISTRY if registry is None else registry
    with _LOCK:
        collector = _COLLECTORS.get(target)
        if collector is None:
            collector = QueryCollector(importlib.import_module("prometheus_client.metrics_core"))
            target.register(collector)
            _COLLECTORS[target] = collector
    collector.add(query)


def unregister(query: Observed, registry: CollectorRegistry | None = None) -> None:
    """Stop exporting a `query`; `registry` as in :func:`register`. Does nothing if the query is not registered."""
    target = _client().REGISTRY if registry is None else registry
    with _LOCK:
        collector = _COLLECTORS.get(target)
    if collector is not None:
        collector.remove(query)


class Served(ClosedAtEnd):
    """A server of :func:`serve`, in a thread of its own until :meth:`close`."""

    def __init__(self, server: ThreadingHTTPServer, name: str) -> None:
        self._server = server
        threading.Thread(target=server.serve_forever, name=name, daemon=True).start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


def serve(port: int, queries: Iterable[Observed], *, host: str = "127.0.0.1", hung_after: Duration = "10 min") -> Served:
    """Serve ``/metrics``, ``/healthz`` and ``/readyz`` of some `queries`.

    ``/healthz`` answers 200 while no query has failed and no batch hangs, else 503; ``/readyz`` answers 200 once each query
    runs and has finished a micro-batch, and while none is stuck (``progress.stuck``). Both give the state and the last
    micro-batch of each query as JSON, and why it is stuck.

    Parameters
    ----------
    port : int
        Where to listen; 0 takes a free port (:attr:`Served.port`).
    queries : iterable of Query or Driver
        What is served.
    host : str
        The address to listen on; only this machine by default. In a container write ``"0.0.0.0"``.
    hung_after : duration
        How long a batch may run until ``/healthz`` says that it hangs, so that whoever watches may start the job again.

    Raises
    ------
    MissingExtraError
        When ``prometheus-client`` is not installed.
    PlanError
        When the port cannot be listened on.
    """
    client, served, hung_s = _client(), list(queries), to_us(hung_after, "hung_after") / 1e6
    registry = client.CollectorRegistry()
    for query in served:
        register(query, registry)

    class Handler(Answers):
        def get(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self.answer(200, client.CONTENT_TYPE_LATEST, client.generate_latest(registry))
            elif path in ("/healthz", "/readyz"):
                states = [(q.name, status_of(q), q.progress) for q in served]
                fits = _lives if path == "/healthz" else _is_ready
                good = all(fits(state, progress, hung_s) for _, state, progress in states)
                body = json.dumps({"ok": good, "queries": [_probed(*one) for one in states]}).encode()
                self.answer(200 if good else 503, "application/json", body)
            else:
                self.answer(404, "text/plain", b"/metrics, /healthz and /readyz\n")

    try:
        return Served(server_at(host, port, Handler), "krishiv-metrics")
    except (OSError, OverflowError, TypeError, UnicodeError) as problem:
        hint = "pass a port from 1 to 65535 that nobody listens on, or 0 for a free one"
        raise PlanError("metrics cannot be served", got=f"{host}:{port}: {problem}", hint=hint, transient=False) from problem


def _lives(state: str, progress: Progress, hung_s: float) -> bool:
    return state != "failed" and not (state == "running" and progress.busy_seconds >= hung_s)


def _is_ready(state: str, progress: Progress, hung_s: float) -> bool:
    return state == "running" and progress.batch_id >= 0 and not progress.stuck and progress.busy_seconds < hung_s


def _probed(name: str, state: str, progress: Progress) -> dict[str, object]:
    said: dict[str, object] = {"query": redacted(name), "state": state, "last_batch": progress.batch_id}
    stuck = progress.stuck if state == "running" else {}
    return {**said, "stuck": redacted("; ".join(stuck.values()))} if stuck else said


class Answers(BaseHTTPRequestHandler):
    """A handler of requests that says nothing of each on standard error."""

    def do_GET(self) -> None:
        """Call what answers."""
        self.get()

    def get(self) -> None:
        """Answer a request."""
        raise NotImplementedError

    def answer(self, code: int, kind: str, body: bytes, *more: tuple[str, str]) -> None:
        """Answer with a `body` of this `kind`, and `more` headers."""
        self.send_response(code)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), *more):
            self.send_header(name, value)
        try:
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # the client has gone, as a scrape does that waited for too long
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def server_at(host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """Return a server that listens at an address of IPv4 or IPv6, or at a name."""

    class Server(ThreadingHTTPServer):
        address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]

    return Server((host, port), handler)


def __dir__() -> list[str]:
    return __all__
