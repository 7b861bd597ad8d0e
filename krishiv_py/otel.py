"""Metrics and traces of queries for OpenTelemetry.

This module counts nothing: when a meter provider collects, ``progress`` of every exported query is read. Names are those of
:mod:`krishiv_py.metrics`, without the endings of Prometheus. A micro-batch gives one trace: a span ``batch`` with the seconds
of its parts, and below it a span for each stage; on Spark, where one job runs all stages, there is none. Spans cost more than
all else here. So the other parts have none of their own, and the spans of many micro-batches are made at once, while their code
is in the caches of the processor; of hundreds of micro-batches a second only some have a trace. A query that is not exported
costs nothing.
Needs ``opentelemetry-api``: the extra ``otel``.
"""

from __future__ import annotations

import atexit
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from krishiv_py.errors import PlanError, from_extra, shown
from krishiv_py.logs import BatchTimes, Watch, hand, unwatch, watch
from krishiv_py.metrics import PREFIX, SHOWN, MetricSamples, Observed, readings
from krishiv_py.storage.ending import ClosedAtEnd
from krishiv_py.version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["Exported", "export"]

_SCOPE: Final = "krishiv_py"
_TOGETHER: Final = 64
"""The number of micro-batches whose traces are made at once."""
_HELD_S: Final = 1.0
"""The longest time that a micro-batch waits for others, s."""


class Exported(ClosedAtEnd):
    """Queries that are exported to OpenTelemetry, until :meth:`close`; made by :func:`export`."""

    def __init__(self, queries: Iterable[Observed], meter_provider: Any, tracer_provider: Any, spacing_ns: int) -> None:
        self._queries: tuple[Observed, ...] = tuple(queries)
        self._metrics = _api("metrics")
        self._trace = _api("trace")
        self._no_context = _api("context").Context()
        meter = self._metrics.get_meter(_SCOPE, __version__, meter_provider)
        self._tracer = self._trace.get_tracer(_SCOPE, __version__, tracer_provider)
        for one in SHOWN:
            make = meter.create_observable_counter if one.kind == "counter" else meter.create_observable_gauge
            make(PREFIX + one.name, callbacks=[self._observed(one)], description=one.text)
        self._making = Watch(self._batch)
        self._held, self._closed = deque[BatchTimes](), threading.Event()
        self._watches = [(query.name, Watch(self._hold, spacing_ns=spacing_ns)) for query in self._queries]
        for name, one_watch in self._watches:
            watch(name, one_watch)
        atexit.register(self.close)  # runs before the provider, which is older, sends its last spans
        threading.Thread(target=self._work, name="krishiv-otel", daemon=True).start()

    def close(self) -> None:
        """Export these queries no more; their last traces are made. Does nothing the second time."""
        self._queries = ()
        for name, one_watch in self._watches:
            unwatch(name, one_watch)
        self._closed.set()
        self._make()
        atexit.unregister(self.close)

    def _observed(self, one: MetricSamples) -> Callable[[Any], Iterator[Any]]:
        def observe(_: Any) -> Iterator[Any]:
            for query in self._queries:
                for labels, sample in one.samples(readings(query)):
                    if math.isfinite(sample):  # many back ends have no infinities: a watermark that is unset has no point
                        yield self._metrics.Observation(sample, dict(zip(one.labels, labels, strict=True)))

        return observe

    def _hold(self, batch: BatchTimes) -> None:
        self._held.append(batch)
        if len(self._held) >= _TOGETHER:
            self._make()

    def _work(self) -> None:
        while not self._closed.wait(_HELD_S):
            self._make()

    def _make(self) -> None:
        """Make the traces of the micro-batches that wait."""
        for _ in range(len(self._held)):
            try:
                batch = self._held.popleft()
            except IndexError:  # another thread makes them, too
                return
            hand(batch.numbers["query"], (self._making,), batch)

    def _batch(self, batch: BatchTimes) -> None:
        """Make the trace of a micro-batch that has ended."""
        attributes = {f"krishiv.{name}": value for name, value in batch.numbers.items()}
        for part, seconds in batch.seconds().items():
            attributes[f"krishiv.{part}_seconds"] = seconds
        start = self._tracer.start_span
        root = start("batch", context=self._no_context, start_time=batch.began_ns, attributes=attributes)  # a trace of its own
        if root.is_recording():  # a sampler may leave the trace out
            below = self._trace.set_span_in_context(root, self._no_context)
            for stage, (began_ns, ended_ns) in batch.stages().items():
                start(stage, below, start_time=began_ns).end(ended_ns)
        if batch.problem is not None:
            root.set_status(self._trace.Status(self._trace.StatusCode.ERROR, batch.problem))
        root.end(end_time=batch.ended_ns)


def export(
    queries: Observed | Iterable[Observed],
    *,
    meter_provider: MeterProvider | None = None,
    tracer_provider: TracerProvider | None = None,
    traces_a_second: float = 10.0,
) -> Exported:
    """Export metrics and traces of queries through OpenTelemetry.

    Parameters
    ----------
    queries : Query, Driver, or iterable of them
        What is exported. Over Spark Connect batches run in the server, so there are metrics only.
    meter_provider : opentelemetry.metrics.MeterProvider, optional
        Who takes the metrics; the global one by default.
    tracer_provider : opentelemetry.trace.TracerProvider, optional
        Who takes the traces; the global one by default.
    traces_a_second : float
        How many micro-batches of a query begin a trace in a second at most. Of more, one that fails, or that takes as long as
        lies between two traces, has one too, without the seconds of its parts. ``math.inf``: each has one, which takes up to a
        tenth of the CPU of a query of small micro-batches.

    Raises
    ------
    MissingExtraError
        When OpenTelemetry is not installed; names the extra that brings it.
    PlanError
        For a value that is not a query, and for a number of traces that is not above 0.

    Examples
    --------
    >>> from opentelemetry.sdk.trace import TracerProvider
    >>> from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    >>> from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    >>> from krishiv_py import count
    >>> from krishiv_py.otel import export
    >>> from krishiv_py.testing import Driver, stream_of
    >>> spans, provider = InMemorySpanExporter(), TracerProvider()
    >>> provider.add_span_processor(SimpleSpanProcessor(spans))
    >>> stream = stream_of("at bigint").watermark("at", 0).tumbling_window(1_000).agg(count()).named("by second")
    >>> driver = Driver(stream, name="counts")
    >>> with export(driver, tracer_provider=provider):
    ...     _ = driver.send([{"at": 5_000}])
    >>> {span.name for span in spans.get_finished_spans()} >= {"batch", "by second"}
    True
    """
    given: object = [queries] if hasattr(queries, "progress") else queries
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise PlanError("export takes queries", got=shown(queries), hint="pass the query that start() gave, or a list of them")
    every = list(given)
    for query in every:
        if not hasattr(query, "progress"):
            raise PlanError("export takes queries", got=shown(query), hint="pass the query that start() gave")
    if isinstance(traces_a_second, bool) or not isinstance(traces_a_second, (int, float)) or not traces_a_second > 0:
        hint = "write traces_a_second=10, or math.inf for a trace of each micro-batch; a sampler of the SDK can refuse all"
        raise PlanError("traces_a_second is above 0", got=shown(traces_a_second), hint=hint)
    return Exported(every, meter_provider, tracer_provider, int(min(1e9 / traces_a_second, 1e18)))


def _api(part: str) -> Any:
    return from_extra(f"opentelemetry.{part}", "opentelemetry-api", "otel", "no metrics and traces leave by it")


def __dir__() -> list[str]:
    return __all__
