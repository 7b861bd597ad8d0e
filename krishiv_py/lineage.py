"""OpenLineage events of queries: which data sets they read and write, and which columns come of which.

:func:`export` looks at queries from a thread of its own and gives each run to an OpenLineage client: START, RUNNING from time
to time, then COMPLETE or FAIL. A query knows nothing of it, so a client that is slow or fails never slows or stops one.
Needs ``openlineage-python``: the extra ``openlineage``.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import pyarrow as pa

from krishiv_py.connectors.lookup_table import LookupTable
from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.connectors.sink import Sink
from krishiv_py.errors import PlanError, from_extra, shown
from krishiv_py.failures.redaction import redacted
from krishiv_py.plan.checks import PathLike, a_path, a_text
from krishiv_py.plan.durations import Duration, to_us
from krishiv_py.plan.nodes import FileSource, MemorySource, SourceNode
from krishiv_py.plan.running import Progress
from krishiv_py.planner.lineage import Lineage, Origin, late_lineage, lineage, sources_of
from krishiv_py.runtime.query import RunningQuery, all_rows, inside
from krishiv_py.runtime.session import SessionRunner
from krishiv_py.storage.datasets import Dataset, files_at
from krishiv_py.storage.ending import ClosedAtEnd, stop_at_end
from krishiv_py.types import type_text
from krishiv_py.version import __version__

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

    from krishiv_py.api.query import Query

__all__ = ["LineageExport", "export"]

_LOG: Final = logging.getLogger("krishiv_py.lineage")
_LOOK_S: Final = 1.0
_END_S: Final = 10.0
"""The longest wait for a client, at the end of the process or in ``close()``, seconds."""
_PRODUCER: Final = f"urn:krishiv_py:{__version__}"
_DIRECT: Final = ("IDENTITY", "TRANSFORMATION", "AGGREGATION")


class Client(Protocol):
    """Takes events, as an ``OpenLineageClient`` does."""

    def emit(self, event: Any) -> Any:
        """Take an event."""


class HasQueries(Protocol):
    """A session: what runs queries."""

    @property
    def queries(self) -> list[Query]:
        """Return the queries that run."""


@attrs.frozen(eq=False)
class _Output:
    """Holds what a query writes: its data set, the columns, where they come from, and how progress calls it."""

    dataset: Dataset
    schema: pa.Schema
    lineage: Lineage
    counted_as: str


@attrs.define(eq=False)
class _Run:
    """A run of a query, from the moment it is exported."""

    query: RunningQuery
    run_id: str
    began: str
    rows: int
    given: Mapping[str, int]
    shown_s: float | None = None
    """The time at which the last event was sent, s of a clock that never goes back; None before the first."""
    inputs: dict[Dataset, SourceNode | LookupTable] = attrs.field(factory=dict)
    outputs: list[_Output] = attrs.field(factory=list)
    names: dict[int, tuple[Dataset, ...]] = attrs.field(factory=dict)
    """The data sets of each source."""


class LineageExport(ClosedAtEnd):
    """Queries that are exported to OpenLineage, until :meth:`close`; made by :func:`export`.

    Attributes
    ----------
    sent : int
        How many events the client took.
    dropped : int
        How many events were lost, because the client failed.
    """

    def __init__(self, client: Client, namespace: str, every_s: float) -> None:
        self.sent: int = 0
        self.dropped: int = 0
        self._events = _Events(namespace)
        self._client, self._every_s = client, every_s
        self._lock = threading.Lock()
        self._waiting: list[_Run] = []
        self._wake, self._ending = threading.Event(), False
        self._runner: SessionRunner[Any] | None = None
        self._complained = False
        self._thread = threading.Thread(target=self._work, name="krishiv-lineage", daemon=True)

    def close(self) -> None:
        """Export these queries no more; those that have ended by now get their last event. Does nothing the second time."""
        if self._runner is not None and self._add in self._runner.watchers:
            self._runner.watchers.remove(self._add)
        self._ending = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    def __repr__(self) -> str:
        return f"<LineageExport: {self.sent} events sent, {self.dropped} dropped>"

    def stops(self) -> Iterator[Callable[[], None]]:
        """See :class:`~krishiv_py.storage.ending.Stops`: when the process ends, wait until queries have ended, and say so."""
        yield self._last

    def _last(self) -> None:
        until = time.monotonic() + _END_S
        while self._thread.is_alive() and any(run.query.status == "running" for run in self._runs()):
            if time.monotonic() > until:
                break
            time.sleep(0.02)
        self.close()

    def _begin(self, queries: Iterable[RunningQuery], runner: SessionRunner[Any] | None) -> None:
        self._runner = runner
        if runner is not None:
            runner.watchers.append(self._add)
        for query in queries:
            self._add(query)
        stop_at_end(self)
        self._thread.start()

    def _add(self, query: RunningQuery) -> None:
        """Export a query that has begun. It runs in the thread that starts the query, so it only notes it."""
        progress = query.progress
        run = _Run(query, self._events.new_id(), _now(), progress.rows, dict(progress.sink_rows))
        with self._lock:
            self._waiting = [*self._waiting, run]
        self._wake.set()

    def _runs(self) -> list[_Run]:
        with self._lock:
            return self._waiting

    def _work(self) -> None:
        while True:
            ending = self._ending
            self._wake.clear()
            over = [run for run in self._runs() if self._is_over(run)]
            with self._lock:
                self._waiting = [run for run in self._waiting if run not in over]
                done = not self._waiting and (self._runner is None or self._runner.ended)
            if ending or done:
                return
            self._wake.wait(_LOOK_S)

    def _is_over(self, run: _Run) -> bool:
        """Send the events of a run that are due; return whether it was the last."""
        if run.shown_s is None:
            self._send(run, "START")
        status = run.query.status
        if status != "running":
            self._send(run, "FAIL" if status == "failed" else "COMPLETE")
        elif time.monotonic() - (run.shown_s or 0.0) >= self._every_s:
            self._send(run, "RUNNING")
        return status != "running"

    def _send(self, run: _Run, kind: str) -> None:
        run.shown_s = time.monotonic()
        try:
            if kind == "START":
                self._events.look(run)
            self._client.emit(self._events.event(run, kind))
        except Exception as problem:  # noqa: BLE001  # whatever a client raises: the query goes on
            self.dropped += 1
            if not self._complained:
                self._complained = True
                text = redacted(f"{type(problem).__name__}: {problem}")
                _LOG.warning("an event of query %s is lost: %s", redacted(run.query.name), text)
        else:
            self.sent += 1
            self._complained = False


class _Events:
    """Makes events in the classes of the client."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._event, self._facet = _api("event_v2"), _api("facet_v2")
        self.new_id: Callable[[], str] = lambda: str(_api("uuid").generate_new_uuid())

    def look(self, run: _Run) -> None:
        """Work out what a query reads and writes."""
        plan, _ = inside(run.query)
        taken: set[str] = set()
        for source in sources_of(plan):
            run.names[id(source)] = named = _datasets(source) or (self._own(run, _name(source), taken),)
            run.inputs |= {dataset: source for dataset in named}
        rows, outputs = all_rows(run.query), {output.name: output for output in plan.outputs}
        for name, columns in rows.results.items():
            dataset = _dataset(columns.sink) or self._own(run, name, taken)
            run.outputs.append(_Output(dataset, columns.schema, lineage(plan, outputs[name]), name))
        late = {stage.spec.name: stage for stage in plan.stages}
        aside = [name for name, columns in rows.late.items() if columns.sink is not None]
        for name in aside:
            columns = rows.late[name]
            own = "late_rows" if len(aside) == 1 else f"late_rows of {name}"
            dataset = _dataset(columns.sink) or self._own(run, own, taken)
            run.outputs.append(
                _Output(dataset, columns.schema, late_lineage(late[name].node, columns.schema), own if len(aside) == 1 else "")
            )

    def _own(self, run: _Run, name: str, taken: set[str]) -> Dataset:
        """Return the name of what is in this program only: rows that it sends, or takes."""
        title, n = f"{run.query.name}.{name}", 2
        while title in taken:
            title, n = f"{run.query.name}.{name} {n}", n + 1
        taken.add(title)
        return Dataset(self._namespace, redacted(title))

    def event(self, run: _Run, kind: str) -> Any:
        """Return an event of a run."""
        query, make, facet = run.query, self._event, self._facet
        progress = None if kind == "START" else query.progress
        of_engine = facet.processing_engine_run.ProcessingEngineRunFacet(
            version=__version__, name="krishiv_py", openlineageAdapterVersion=__version__, producer=_PRODUCER
        )
        facets = {"processing_engine": of_engine}
        if kind == "FAIL":
            facets["errorMessage"] = facet.error_message_run.ErrorMessageRunFacet(
                message=redacted(str(query.exception())), programmingLanguage="PYTHON", producer=_PRODUCER
            )
        of_job = facet.job_type_job.JobTypeJobFacet(
            processingType="STREAMING", integration="KRISHIV_PY", jobType="QUERY", producer=_PRODUCER
        )
        return make.RunEvent(
            eventType=make.RunState[kind],
            eventTime=run.began if kind == "START" else _now(),
            run=make.Run(runId=run.run_id, facets=facets),
            job=make.Job(namespace=self._namespace, name=redacted(query.name), facets={"jobType": of_job}),
            inputs=[self._input(run, dataset, source, progress) for dataset, source in run.inputs.items()],
            outputs=[self._output(run, output, progress) for output in run.outputs],
            producer=_PRODUCER,
        )

    def _input(self, run: _Run, dataset: Dataset, source: SourceNode | LookupTable, progress: Progress | None) -> Any:
        counted = {}
        read = [one for one in run.inputs.values() if not isinstance(one, LookupTable)]
        if progress is not None and read == [source]:
            counted["inputStatistics"] = self._facet.input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
                rowCount=progress.rows - run.rows, producer=_PRODUCER
            )
        return self._event.InputDataset(
            namespace=dataset.namespace, name=dataset.name, facets=self._schema(source.schema), inputFacets=counted
        )

    def _output(self, run: _Run, output: _Output, progress: Progress | None) -> Any:
        counted = {}
        if progress is not None and output.counted_as in progress.sink_rows:
            rows = progress.sink_rows[output.counted_as] - run.given.get(output.counted_as, 0)
            counted["outputStatistics"] = self._facet.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                rowCount=rows, producer=_PRODUCER
            )
        columns = self._facet.column_lineage_dataset
        facets = self._schema(output.schema)
        facets["columnLineage"] = columns.ColumnLineageDatasetFacet(
            fields={name: columns.Fields(inputFields=self._origins(run, of)) for name, of in output.lineage.columns.items()},
            dataset=self._origins(run, output.lineage.rows),
            producer=_PRODUCER,
        )
        return self._event.OutputDataset(
            namespace=output.dataset.namespace, name=output.dataset.name, facets=facets, outputFacets=counted
        )

    def _origins(self, run: _Run, origins: Iterable[Origin]) -> list[Any]:
        """Return columns of data sets, each once, with all the ways in which it goes in."""
        ways: dict[tuple[str, str, str], set[str]] = {}
        for origin in origins:
            for dataset in run.names[id(origin.source)]:
                ways.setdefault((dataset.namespace, dataset.name, origin.column), set()).add(origin.how)
        columns = self._facet.column_lineage_dataset
        return [
            columns.InputField(
                namespace=namespace,
                name=name,
                field=field,
                transformations=[
                    columns.Transformation(type="DIRECT" if how in _DIRECT else "INDIRECT", subtype=how) for how in sorted(hows)
                ],
            )
            for (namespace, name, field), hows in sorted(ways.items())
        ]

    def _schema(self, schema: pa.Schema) -> dict[str, Any]:
        made = self._facet.schema_dataset
        fields = [made.SchemaDatasetFacetFields(name=field.name, type=type_text(field.type)) for field in schema]
        return {"schema": made.SchemaDatasetFacet(fields=fields, producer=_PRODUCER)}


def _datasets(source: SourceNode | LookupTable) -> tuple[Dataset, ...]:
    if isinstance(source, FileSource):
        return (_clean(files_at(source.path, literal=source.literal)),)
    given = source.source.datasets() if isinstance(source, RangeSource) else ()
    return tuple(_clean(one) for one in given)


def _dataset(sink: Sink | None) -> Dataset | None:
    own = None if sink is None else sink.dataset()
    return None if own is None else _clean(own)


def _clean(dataset: Dataset) -> Dataset:
    return Dataset(redacted(dataset.namespace), redacted(dataset.name))


def _name(source: SourceNode | LookupTable) -> str:
    return source.name if isinstance(source, RangeSource | MemorySource | LookupTable) else source.title


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def export(
    queries: HasQueries | Query | Iterable[Query],
    to: OpenLineageClient | Client | PathLike | None = None,
    *,
    namespace: str = "krishiv_py",
    every: Duration = "1 minute",
) -> LineageExport:
    """Export what queries read and write as OpenLineage events, with the columns of sources that each output column comes from.

    Parameters
    ----------
    queries : Session, Query, or iterable of queries
        What is exported; of a session every query that runs, and those that start later.
    to : OpenLineageClient, str or path, optional
        Who takes the events: a client, the address of a server such as ``"http://marquez:5000"``, or a file, to which each
        event is appended as a line of JSON. By default what the environment says: ``OPENLINEAGE_URL``, or ``openlineage.yml``.
    namespace : str
        The namespace of the jobs, and of data that is in this program only. A job is called as its query.
    every : int or timedelta or str
        How often a query that runs gives an event; ``int`` is milliseconds.

    Raises
    ------
    MissingExtraError
        When ``openlineage-python`` is not installed; names the extra that brings it.
    PlanError
        For a value that is not a query, and for a file that cannot be written.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> from krishiv_py import MemorySink, Session, lineage, sum
    >>> events = pathlib.Path(tempfile.mkdtemp()) / "events.jsonl"
    >>> with Session.in_process() as session, lineage.export(session, events):
    ...     orders, send = session.memory_stream("user string, at bigint, amount double", name="orders")
    ...     totals = orders.watermark("at", 0).key_by("user").tumbling_window(1_000).agg(sum("amount").alias("total"))
    ...     totals.start(MemorySink(), name="totals").stop()
    >>> last = json.loads(events.read_text().splitlines()[-1])
    >>> last["eventType"], [(one["name"], one["field"])
    ...     for one in last["outputs"][0]["facets"]["columnLineage"]["fields"]["total"]["inputFields"]]
    ('COMPLETE', [('totals.orders', 'amount')])
    """
    every_s = to_us(every, "every") / 1e6
    job_namespace = a_text(namespace, "namespace", 'pass a text such as "shop"')
    runner = getattr(queries, "_runner", None) if hasattr(queries, "queries") else None
    if isinstance(runner, SessionRunner):
        given: Iterable[object] = [query for query in runner.queries if query.status == "running"]
    else:
        runner = None
        given = [queries] if isinstance(queries, RunningQuery) or not isinstance(queries, Iterable) else list(queries)
    running: list[RunningQuery] = []
    for query in given:
        if not isinstance(query, RunningQuery):
            hint = "pass the session, or the query that start() gave"
            raise PlanError("export takes a session or queries", got=shown(query), hint=hint)
        running.append(query)
    exported = LineageExport(_client(to), job_namespace, every_s)
    exported._begin(running, runner)
    return exported


def _client(to: object) -> Client:
    if hasattr(to, "emit"):
        _api("event_v2")
        taker: Client = to
        return taker
    make = _api("client").OpenLineageClient
    if to is None:
        return _made(make)
    hint = 'pass an OpenLineageClient, "http://host:5000", or the path of a file'
    text = a_path(to, "to", hint)
    if text.startswith(("http://", "https://")):
        return _made(make, config={"transport": {"type": "http", "url": text}})
    path = os.path.abspath(text)
    if "://" in text or os.path.isdir(path) or not os.access(os.path.dirname(path), os.W_OK):
        raise PlanError("events cannot be written to this file", got=redacted(text), hint=hint)
    return _made(make, config={"transport": {"type": "file", "log_file_path": path, "append": True}})


def _made(make: Callable[..., Client], **settings: Any) -> Client:
    try:
        return make(**settings)
    except Exception as problem:  # noqa: BLE001  # whatever a transport raises for its settings
        hint = "see the settings of OpenLineage's client, or pass a client that is made"
        got = redacted(f"{type(problem).__name__}: {problem}")
        raise PlanError("the OpenLineage client cannot be made", got=got, hint=hint) from None


def _api(part: str) -> Any:
    return from_extra(f"openlineage.client.{part}", "openlineage-python", "openlineage", "no lineage leaves by it")


def __dir__() -> list[str]:
    return __all__
