"""The composition root: a session picks sources, planner and runner."""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import attrs
import pyarrow as pa

from krishiv_py.api.history import Until, history_of
from krishiv_py.api.query import Query, QueryStart
from krishiv_py.api.sender import Sender
from krishiv_py.api.session_options import DurabilityProfile, SessionOptions
from krishiv_py.api.sources import FileSources, OtherStreams, RangedSources
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.running import Output, RunMethods, named_outputs, named_plans
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.known import BatchConsumer
from krishiv_py.deprecation import deprecated
from krishiv_py.display.html import session_html
from krishiv_py.display.text import LaidOut
from krishiv_py.errors import PlanError, shown
from krishiv_py.in_process import runner as process
from krishiv_py.lazy import lazy
from krishiv_py.missing import OfOneProcess
from krishiv_py.plan.checks import PROFILES, PathLike, a_number, a_path, a_switch, a_text, file_name, is_collection, one_of
from krishiv_py.plan.durations import Duration, TimePoint, to_us
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.plan.options.query import Batches, OnChange, given_batches
from krishiv_py.plan.options.watermarks import RowsClock
from krishiv_py.plan.schema import SchemaLike, as_schema
from krishiv_py.planner import several
from krishiv_py.runtime import savepoints
from krishiv_py.runtime import session as running
from krishiv_py.storage.local import private_folder
from krishiv_py.storage.sends.log import ReplayLog
from krishiv_py.transfers import capturing, checkpoints
from krishiv_py.transfers import history as past

if TYPE_CHECKING:
    from krishiv_py import ui as web
    from krishiv_py.planner.physical import PhysicalPlan
    from krishiv_py.spark import runtime, sessions
    from krishiv_py.spark.setup import config as profiles
    from krishiv_py.sql import context
else:  # these rooms load some modules at once, and importing the package must import no Spark
    web = lazy("krishiv_py.ui")
    runtime = lazy("krishiv_py.spark.runtime")
    sessions = lazy("krishiv_py.spark.sessions")
    profiles = lazy("krishiv_py.spark.setup.config")
    context = lazy("krishiv_py.sql.context")


T = TypeVar("T")


@attrs.frozen
class SessionBuilder(SessionOptions):
    """Collects the settings of a session; every step returns a new builder.

    Examples
    --------
    >>> from krishiv_py import Session
    >>> builder = Session.builder().master("local[2]").app_name("flights").profile("single-node-durable")
    """

    def get_or_create(self) -> Session:
        """Start Spark, or reuse the running session; with ``.engine("in-process")`` a new session in this process.

        Raises
        ------
        EnvironmentSetupError
            When no Java 17 or newer is found; names the command that installs it. Or when Spark cannot be started on this
            master, or with these settings.
        PlanError
            In process, for options of Spark's and for the profile of a cluster; on Spark, for workers.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> with Session.builder().engine("in-process").get_or_create() as session:
        ...     session.queries
        []
        """
        if self._engine == "in-process":
            runner = process.ProcessRunner.of(self._profile, self._stores, self._workers or 1)
            if self._lookup_results is not None:
                runner.lookup_results = self._lookup_results
            return self._patient(runner)
        if self._lookup_results is not None:
            got, hint = f".lookup_results({self._lookup_results}) for Spark", 'leave it out, or write .engine("in-process")'
            raise PlanError("results that have left are in memory in process only", got=got, hint=hint)
        if self._workers is not None:
            what = "workers are the threads of a session in process"
            hint = 'write .master("local[2]"), or .engine("in-process")'
            raise PlanError(what, got=f".workers({self._workers}) for Spark", then="Spark would not follow it", hint=hint)
        given, profile = dict(self._settings), profiles.checked_profile(self._profile)
        spark, owned = sessions.embedded(
            self._master, self._app or "krishiv_py", given, lambda: (runtime.SparkRunner, context.SqlContext)
        )
        return self._patient(runtime.SparkRunner(spark, profile, owned=owned, given=given))

    def _patient(self, runner: runtime.SparkRunner | process.ProcessRunner) -> Session:
        if self._retry_us is not None:
            runner.retry_s = self._retry_us / 1e6
        if self._clock is not None:
            runner.rows_clock = self._clock
        return Session(runner)


class Session(FileSources, RangedSources, OtherStreams, OfOneProcess):
    """Makes streams and runs queries.

    Make one with :meth:`in_process`, :meth:`embedded`, :meth:`builder`, :meth:`connect` or :meth:`from_spark`. It is also a
    context manager.

    Examples
    --------
    >>> from krishiv_py import MemorySink, Session, count
    >>> with Session.in_process() as session:
    ...     stream, sender = session.memory_stream("user string, at bigint")
    ...     query = stream.watermark("at", "5 s").key_by("user").tumbling_window("1 min").agg(count()).start(MemorySink())
    ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "ann", "at": 70_000}])
    ...     query.process_all_available()
    ...     query.results().to_pylist()
    [{'user': 'ann', 'window_start': 0, 'window_end': 60000, 'count': 1}]
    """

    _kind = "session"
    _instead = ("threads, queries and folders of this process", "open a session in the other process: Session.in_process()")

    _runner: runtime.SparkRunner | process.ProcessRunner

    def __init__(self, runner: runtime.SparkRunner | process.ProcessRunner) -> None:
        self._runner = runner
        self._pages: list[web.Page] = []
        self._senders: weakref.WeakSet[Sender[Any]] = weakref.WeakSet()

    @functools.cached_property
    def _sql(self) -> context.SqlContext:
        """Tables and settings for :meth:`sql`; made at first use, as the parser takes longer to load than a first result."""
        return context.SqlContext()

    @classmethod
    def embedded(cls) -> Session:
        """Start a local Spark in this process, tuned for micro-batches, or reuse the running one.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> session = Session.embedded()  # doctest: +SKIP
        """
        return SessionBuilder().get_or_create()

    @classmethod
    def in_process(
        cls,
        *,
        profile: DurabilityProfile = "dev-local",
        workers: int = 1,
        lookup_results: int = 1_000_000,
        clock: RowsClock = "batch",
    ) -> Session:
        """Return a session that runs its queries in this process: no Spark, no Java, the first result in a second.

        All windows, joins, sinks and sources run that need no Spark; the answers are those of Spark, as the same kernels
        compute them. A query with a checkpoint goes on after a crash with every row in its results once. For more than one
        machine use :meth:`embedded` or :meth:`builder`: the pipeline is the same. ``Session.builder().engine("in-process")``
        makes the same session, and takes ``storage_options``.

        Parameters
        ----------
        profile : {"dev-local", "single-node-durable"}
            What survives a loss of power (SEMANTICS §6.2).
        workers : int
            How many threads share the keys of a query, and read files and Kafka. More than one is of use for large batches
            on several cores; functions of yours may then be called by several threads at once.
        lookup_results : int
            How many of its results each query keeps in memory for ``lookup(last=...)``, about, and never more than 64 MB; 0
            where nobody asks for them.
        clock : {"batch", "row"}
            What rows are classified by where a watermark does not say it; see :meth:`Stream.watermark`.

        Raises
        ------
        PlanError
            For the profile of a cluster, which this process is not, and for numbers that cannot be.

        Examples
        --------
        >>> from krishiv_py import Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     per_minute = stream.watermark("at", 5_000).key_by("user").tumbling_window(60_000).agg(count())
        ...     _ = sender.send([{"user": "a", "at": 1_000}, {"user": "a", "at": 2_000}])
        ...     per_minute.collect().to_pylist()
        [{'user': 'a', 'window_start': 0, 'window_end': 60000, 'count': 2}]
        """
        builder = SessionBuilder().engine("in-process").profile(profile).workers(workers).clock(clock)
        return builder.lookup_results(lookup_results).get_or_create()

    @classmethod
    def builder(cls) -> SessionBuilder:
        """Return a builder: set options, then call ``get_or_create()``.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> Session.builder().master("local[2]").app_name("orders")
        SessionBuilder(_master='local[2]', _app='orders', ...)
        """
        return SessionBuilder()

    @classmethod
    def connect(cls, url: str, *, profile: DurabilityProfile = "dev-local") -> Session:
        """Return a session on the Spark Connect server at `url` (``sc://host``), with a durability `profile` (SEMANTICS §6.2).

        Raises
        ------
        EnvironmentSetupError
            When no server answers there within 30 s.
        PlanError
            For an address that is none.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> session = Session.connect("sc://localhost:15002", profile="distributed-durable")  # doctest: +SKIP
        """
        one_of(profile, "profile", PROFILES)
        if not isinstance(url, str) or not (url == "local" or url.startswith(("sc://", "local[", "local-cluster["))):
            raise PlanError("not a Spark Connect address", got=shown(url), hint='write Session.connect("sc://host:15002")')
        return cls(runtime.SparkRunner(sessions.connected(url), profile, owned=True))

    @classmethod
    def from_spark(cls, spark: Any, *, profile: DurabilityProfile = "dev-local") -> Session:
        """Return a session over your own `spark` session, which outlives it, with a durability `profile`.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> session = Session.from_spark(spark)  # doctest: +SKIP
        """
        one_of(profile, "profile", PROFILES)
        if not hasattr(spark, "readStream"):
            raise PlanError("not a SparkSession", got=type(spark).__name__, hint="pass a SparkSession")
        return cls(runtime.SparkRunner(spark, profile, owned=False))

    @property
    def spark(self) -> Any:
        """The Spark session that is used.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> Session.embedded().spark.read.json("orders").printSchema()  # doctest: +SKIP
        """
        return self._runner.spark

    @overload
    def memory_stream(
        self,
        schema: type[T],
        *,
        name: str = ...,
        spool: PathLike | None = ...,
        linger: Duration | None = ...,
        max_batch_rows: int | None = ...,
    ) -> tuple[Stream, Sender[T]]: ...
    @overload
    def memory_stream(
        self,
        schema: pa.Schema | str | Any,
        *,
        name: str = ...,
        spool: PathLike | None = ...,
        linger: Duration | None = ...,
        max_batch_rows: int | None = ...,
    ) -> tuple[Stream, Sender[Any]]: ...
    def memory_stream(
        self,
        schema: SchemaLike | Any,
        *,
        name: str = "memory",
        spool: PathLike | None = None,
        linger: Duration | None = None,
        max_batch_rows: int | None = None,
    ) -> tuple[Stream, Sender[Any]]:
        """Return a stream fed by hand.

        Parameters
        ----------
        schema : pyarrow.Schema or StructType or str or class
            Columns; a text is DDL: ``"user_id bigint, event_time timestamp"``. Of a class of rows (dataclass, attrs, TypedDict,
            NamedTuple, pydantic) they are the fields, and the sender takes objects of it, which type checkers check.
        name : str
            Shown in plans.
        spool : str or os.PathLike, optional
            Folder of the replay log, from which a restarted query reads all sends again; temporary by default. An existing
            folder is continued.
        linger : int or timedelta or str, optional
            Let rows wait so long for others, ``int`` is milliseconds: what comes meanwhile is one micro-batch.
        max_batch_rows : int, optional
            Do not wait any longer when so many rows have come. A send is never divided.

        Returns
        -------
        tuple of Stream and Sender
            The stream, and the sender that feeds it.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     clicks, sender = session.memory_stream("user string, at bigint", name="clicks")
        ...     query = clicks.watermark("at", 0).key_by("user").tumbling_window(10).agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann", "at": 1}, {"user": "ann", "at": 12}])
        ...     query.process_all_available()
        ...     query.results().to_pylist()
        [{'user': 'ann', 'window_start': 0, 'window_end': 10, 'count': 1}]
        """
        checked = as_schema(schema)
        linger_us = 0 if linger is None else to_us(linger, "linger")
        if max_batch_rows is not None:
            a_number(max_batch_rows, "max_batch_rows", 1, "pass a positive whole number, or None for no limit")
            if not linger_us:
                got, hint = shown(max_batch_rows), 'write linger="50 ms", too'
                raise PlanError("`max_batch_rows` needs linger", got=got, then="each send is a micro-batch", hint=hint)
        a_text(name, "name", 'write memory_stream(schema, name="events")')
        self._runner.check_open("memory_stream()")
        given = a_path(spool, "spool", "pass a folder") if spool is not None else self._runner.folder("spool")
        if "://" in given:
            then = "HDFS and object stores have no locks, and do not keep the order of what is sent"
            hint = "give a folder of this machine, or a mounted one; checkpoint and outputs may be on s3a://, gs:// or hdfs://"
            raise PlanError("the spool of a memory stream needs a file system", got=shown(given), then=then, hint=hint)
        folder = str(Path(given).absolute())
        if spool is not None and not ReplayLog(folder).is_there:
            savepoints.check_around(folder, "spool")
        private_folder(folder)
        durable = spool is not None and self._runner.profile != "dev-local"
        stream = Stream(MemorySource(name, checked, folder), checked, self._runner)
        spooled, runner = ReplayLog(folder, durable, self._runner.sends_in_segments), self._runner
        waiting, temporary = (linger_us, max_batch_rows), spool is None
        sender = Sender(spooled, checked, lambda: runner.clock(), runner.trim, *waiting, runner.check_source, temporary)
        self._senders.add(sender)
        return stream, sender

    def start(
        self,
        outputs: Iterable[Output],
        *,
        checkpoint: PathLike | None = None,
        batches: Batches | None = None,
        name: str | None = None,
        savepoint: PathLike | None = None,
        on_change: Mapping[str, OnChange] | None = None,
        bootstrap: Mapping[str, Stream] | None = None,
        until: Until | None = None,
        publish: bool = True,
        keep_batches: int | None = None,
    ) -> Query:
        """Start one unbounded query with several outputs: the source is read once, and every batch is published to all of them.

        The pipelines branch from one stream value. Stages that they have in common run once. They share one clock: the
        watermark follows the rows of all outputs, and an output with a larger lag stays behind it (docs/several-outputs.md).

        Parameters
        ----------
        outputs : iterable of Output
            Pipelines with their sinks: ``[per_minute.to(sink), rest.to(other, name="rest")]``.
        checkpoint : str or os.PathLike, optional
            Folder from which the query can restart, with the same outputs. Without one, a temporary folder is used (profile
            ``dev-local`` only).
        batches : Batches, optional
            When micro-batches are planned; as fast as possible by default.
        name : str, optional
            Name for logs and metrics.
        savepoint, on_change : optional
            As in :meth:`ResultStream.start`.
        bootstrap : dict, optional
            Where the past of sources is, by the name of the source: a finite stream of rows with the columns of that source,
            such as ``{"orders": session.read_parquet("archive")}``. The query first runs over it, in this process, then goes
            on with the live sources: state and watermark go through, and the input does not end with the archive
            (docs/history.md). A checkpoint that began so goes on from where it is. With a `savepoint`, what it lacks of the
            plan is rebuilt: stages and aggregates. The archives then hold just the rows that the savepoint has taken.
        until : int or datetime or str or dict, optional
            Where the history ends: rows before this event time are those of the archives, rows from it on those of the live
            sources. Or for each source, by name: an event time, or the offsets of a topic that come next. Without it all of the
            archive is taken; a live source that reads the same place goes on where that ended, another one begins as usual.
        publish : bool
            Whether the results of the history go to the outputs; late rows go to theirs in any case.
        keep_batches : int, optional
            As in :meth:`ResultStream.start`.

        Raises
        ------
        PlanError
            For outputs over several sources, with watermarks that tell different times, under one name, or into one sink; for a
            history of a source that the query does not read, and one whose results this process cannot write to the sink.
        SchemaError
            When an archive lacks a column of its source, or has it in another type.
        CheckpointError
            When the checkpoint belongs to another plan; names what changed.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     timed = stream.watermark("at", 0)
        ...     per_user = timed.key_by("user").tumbling_window("10 s").agg(count())
        ...     total = timed.tumbling_window("10 s").agg(count())
        ...     query = session.start([per_user.to(MemorySink(), name="users"), total.to(MemorySink(), name="total")])
        ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 12_000}])
        ...     query.process_all_available()
        ...     query.results("users").to_pylist(), query.results("total").column("count").to_pylist()
        ([{'user': 'ann', 'window_start': 0, 'window_end': 10000, 'count': 1}], [1])
        """
        named = named_outputs(outputs, "session.start")
        when = given_batches(batches, None, keep_batches)
        sinks = tuple(output.sink for output in named.values())
        begin = savepoint, on_change
        start = QueryStart.of(lambda: _one_plan(named).of_one_query(), sinks, checkpoint, when, name, begin)
        given = history_of(start.plan, bootstrap, until, publish)
        if given is None:
            return self._runner.start(start)
        if start.begin is not None and until is not None:
            hint = "leave `until` out, and pass archives of just the rows that the savepoint has taken"
            raise PlanError("a savepoint says where the history ends", got="until with a savepoint", hint=hint)
        history = past.History(start.plan, given.archives, given.seam, given.offsets, given.publish)
        home, start = past.begin_with(history, self._runner, start)
        query = self._runner.start(start)
        past.forget(home)
        return query

    def collect(self, streams: Iterable[RunMethods]) -> list[pa.Table]:
        """Return the results of several pipelines over a finite input, which is read once (:meth:`Stream.collect`).

        `streams` branch from one stream value and share one clock, as the outputs of :meth:`start` do. Gives a table for each.

        Raises
        ------
        PlanError
            For no pipelines, an input that never ends, and pipelines that cannot be one query.

        Examples
        --------
        >>> import pathlib
        >>> from krishiv_py import Session, count, sum
        >>> with Session.in_process() as session:
        ...     folder = pathlib.Path(session.temporary_folder())
        ...     _ = (folder / "a.json").write_text('{"at": 1000, "amount": 5}')
        ...     timed = session.read_json(folder, "at bigint, amount bigint").watermark("at", 0).tumbling_window("10 s")
        ...     [table.to_pylist() for table in session.collect([timed.agg(count()), timed.agg(sum("amount"))])]
        [[{'window_start': 0, 'window_end': 10000, 'count': 1}], [{'window_start': 0, 'window_end': 10000, 'sum_amount': 5}]]
        """
        plan = several.several(named_plans(streams, "session.collect", "bounded"))
        return list(self._runner.run_bounded(plan).outputs.values())

    def register(
        self, name: str, stream: Stream | TimedStream | Any, *, event_time: str | None = None, lag: Duration | None = None
    ) -> None:
        """Register `stream` as the table `name` for :meth:`sql`; `event_time` and `lag` are for one without a watermark.

        A ``pyarrow.Table``, a static Spark DataFrame, or a function that returns one is a table streams can be joined with.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session
        >>> with Session.in_process() as session:
        ...     orders, sender = session.memory_stream("shop string, amount bigint, at bigint")
        ...     session.register("orders", orders, event_time="at", lag="5 s")
        ...     session.sql("SELECT shop, amount FROM orders WHERE amount > 10")
        <Stream shop, amount; from MemoryStream>
        """
        self._sql.register(name, stream, event_time=event_time, lag=lag)

    def register_sink(self, name: str, sink: Sink | BatchConsumer) -> None:
        """Register `sink` under the `name` that ``INSERT INTO`` has for it in :meth:`sql_outputs`.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session
        >>> with Session.in_process() as session:
        ...     orders, sender = session.memory_stream("shop string, amount bigint, at bigint")
        ...     session.register("orders", orders, event_time="at", lag="5 s")
        ...     session.register_sink("large", MemorySink())
        ...     query = session.start(session.sql_outputs("INSERT INTO large SELECT shop, amount FROM orders WHERE amount > 9"))
        ...     _ = sender.send([{"shop": "a", "amount": 5, "at": 1_000}, {"shop": "b", "amount": 50, "at": 2_000}])
        ...     query.process_all_available()
        ...     query.results().to_pylist()
        [{'shop': 'b', 'amount': 50}]
        """
        self._sql.register_sink(name, sink)

    def sql(self, text: str) -> Stream | ResultStream | Any | None:  # Any: a str, of EXPLAIN alone
        """Plan the query in `text` over registered streams, or, with SET, make a setting for the next one (SEMANTICS §2.6).

        With EXPLAIN before a query the text of its plan is returned, as :meth:`~krishiv_py.ResultStream.explain` gives it.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session
        >>> with Session.in_process() as session:
        ...     orders, sender = session.memory_stream("shop string, amount bigint, at bigint")
        ...     session.register("orders", orders, event_time="at", lag="5 s")
        ...     totals = session.sql(
        ...         "SELECT window_start, shop, sum(amount) AS total FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), "
        ...         "INTERVAL '1' MINUTE)) GROUP BY window_start, window_end, shop"
        ...     )
        ...     query = totals.start(MemorySink())
        ...     _ = sender.send([{"shop": "a", "amount": 5, "at": 1_000}, {"shop": "a", "amount": 5, "at": 70_000}])
        ...     query.process_all_available()
        ...     query.results().to_pylist()
        [{'window_start': 0, 'shop': 'a', 'total': 5}]
        """
        return self._sql.sql(text)

    def sql_outputs(self, text: str) -> list[Output]:
        """Plan the ``INSERT INTO name SELECT ...`` statements in `text`, for :meth:`start`: ``start(sql_outputs(text))``.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session
        >>> with Session.in_process() as session:
        ...     orders, sender = session.memory_stream("shop string, amount bigint, at bigint")
        ...     session.register("orders", orders, event_time="at", lag="5 s")
        ...     session.register_sink("large", MemorySink())
        ...     query = session.start(session.sql_outputs("INSERT INTO large SELECT shop, amount FROM orders WHERE amount > 9"))
        ...     _ = sender.send([{"shop": "a", "amount": 5, "at": 1_000}, {"shop": "b", "amount": 50, "at": 2_000}])
        ...     query.process_all_available()
        ...     query.results().to_pylist()
        [{'shop': 'b', 'amount': 50}]
        """
        return self._sql.sql_outputs(text)

    def read_state(self, checkpoint: PathLike, stream: RunMethods | Iterable[Output], stage: str | None = None) -> pa.Table:
        """Return the state a query keeps in its `checkpoint`, running or not, as a table (SEMANTICS §6.5).

        `stream` is the plan the query was started with, or the list of its outputs; it says how to read the state, of its
        last `stage` or of the one of this name. See :meth:`krishiv_py.Query.state`.

        Raises
        ------
        CheckpointError
            When the checkpoint has no state, or belongs to another plan; names the differences.
        PlanError
            For what is neither, and for a name that no stage has.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     counts = stream.watermark("at", 0).key_by("user").tumbling_window("10 s").agg(count())
        ...     query = counts.start(MemorySink(), checkpoint=(checkpoint := session.temporary_folder()), name="counts")
        ...     _ = sender.send([{"user": "ann", "at": 1_000}])
        ...     query.process_all_available()
        ...     session.read_state(checkpoint, counts).select(["user", "window_end", "count"]).to_pylist()
        [{'user': 'ann', 'window_end': 10000, 'count': 1}]
        """
        folder, plan = self._kept(checkpoint, stream, stage, "session.read_state")
        return self._runner.read_state(plan, folder, stage)

    def _kept(
        self, checkpoint: PathLike, stream: RunMethods | Iterable[Output], stage: str | None, what: str
    ) -> tuple[str, PhysicalPlan]:
        """Return the folder of a checkpoint, and the plan that says how to read it."""
        if not isinstance(stream, RunMethods) and not is_collection(stream):
            hint = "pass the stream the query was started with, or the list of its outputs"
            raise PlanError("not an aggregated stream", got=shown(stream), hint=hint)
        folder = a_path(checkpoint, "checkpoint", "pass the folder of the checkpoint")
        if stage is not None:
            a_text(stage, "stage", "pass the name of a stage, or None for the last one")
        if isinstance(stream, RunMethods):
            return folder, stream._plan()
        return folder, _one_plan(named_outputs(stream, what))

    def why(
        self,
        checkpoint: PathLike,
        stream: RunMethods | Iterable[Output],
        key: Any = None,
        time: TimePoint | None = None,
        stage: str | None = None,
    ) -> str:
        """Say what became of a `key` at a `time` in the query of a `checkpoint`, running or not (:meth:`Query.why`).

        `stream` is the plan the query was started with, or the list of its outputs; `stage` the stage of this name. Without
        key and time all open windows are described, the oldest ones first.

        Raises
        ------
        CheckpointError
            When the checkpoint has no state, or belongs to another plan; names the differences.
        PlanError
            As :meth:`read_state` and :meth:`Query.why`.
        DurationError
            For a value that is not a time.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     counts = stream.watermark("at", 0).key_by("user").tumbling_window("10 s").agg(count())
        ...     query = counts.start(MemorySink(), checkpoint=(checkpoint := session.temporary_folder()), name="counts")
        ...     _ = sender.send([{"user": "ann", "at": 1_000}])
        ...     query.process_all_available()
        ...     query.stop()
        ...     print(session.why(checkpoint, counts, "ann", 1_000).splitlines()[-1].split(";")[0])
        window 1970-01-01T00:00:00Z to 1970-01-01T00:00:10Z: open
        """
        folder, plan = self._kept(checkpoint, stream, stage, "session.why")
        return LaidOut(self._runner.why(plan, folder, key, time, stage))

    def savepoint(self, checkpoint: PathLike, path: PathLike) -> str:
        """Write a savepoint of a `checkpoint` from which no query runs: its state as values, of no engine (docs/savepoints.md).

        A query is started from it with ``start(..., savepoint=path, checkpoint=new)``, on any engine. The checkpoint stays as
        it is. The savepoint of a query that runs is written by :meth:`krishiv_py.Query.savepoint`.

        Parameters
        ----------
        checkpoint : str or os.PathLike
            The folder of the checkpoint.
        path : str or os.PathLike
            A new folder.

        Returns
        -------
        str
            The folder of the savepoint.

        Raises
        ------
        CheckpointError
            While a query runs from the checkpoint, when none has begun there, when its last batch is not finished, when a part
            of it is damaged, and when the folder has something in it.
        PlanError
            For a checkpoint of Spark in a session in process: only Spark can read its state.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     counts = stream.watermark("at", 0).key_by("user").tumbling_window("10 s").agg(count())
        ...     query = counts.start(MemorySink(), checkpoint=(checkpoint := session.temporary_folder()), name="counts")
        ...     _ = sender.send([{"user": "ann", "at": 1_000}])
        ...     query.process_all_available()
        ...     query.stop()
        ...     path = session.savepoint(checkpoint, session.temporary_folder() + "/savepoint")
        ...     minutes = stream.watermark("at", "5 s").key_by("user").tumbling_window("10 s").agg(count())  # another lag
        ...     query = minutes.start(MemorySink(), savepoint=path)
        ...     _ = sender.send([{"user": "ann", "at": 2_000}, {"user": "ann", "at": 15_000}])
        ...     query.process_all_available()
        ...     query.results().to_pylist()
        [{'user': 'ann', 'window_start': 0, 'window_end': 10000, 'count': 2}]
        """
        folder = a_path(checkpoint, "checkpoint", "pass the folder of the checkpoint")
        return checkpoints.savepoint(self._runner, folder, a_path(path, "path", "pass a new folder for the savepoint"))

    def capture(
        self,
        checkpoint: PathLike,
        stream: RunMethods | Iterable[Output],
        path: PathLike,
        *,
        last: int | None = None,
        savepoint: PathLike | None = None,
        leave_out: Iterable[str] = (),
        hashes: Iterable[str] = (),
    ) -> str:
        """Write a capture of a query, running or not: the state before its last batches, and the rows that these read.

        ``Driver.from_capture(path, stream)`` runs them again, in a test or a debugger, without Spark and without the sources
        (docs/capture.md).

        Parameters
        ----------
        checkpoint : str or os.PathLike
            The folder of the checkpoint.
        stream : stream or iterable of Output
            The plan that the query was started with, or the list of its outputs; it says how the sources are read.
        path : str or os.PathLike
            A new folder.
        last : int, optional
            The last so many batches; all that are still known by default. A query in process keeps its last state only, unless
            it was started with ``keep_batches``: the capture begins with the first batch of the query, or with a savepoint.
        savepoint : str or os.PathLike, optional
            Capture the batches after this savepoint of the query.
        leave_out : iterable of str
            Columns of sources that are null in the capture. Keys, event time and inputs of aggregates are refused.
        hashes : iterable of str
            Columns of sources (text, binary or bigint) whose values are replaced by hashes: equal values stay equal.

        Returns
        -------
        str
            The folder of the capture.

        Raises
        ------
        CheckpointError
            When no query has begun there, it has another plan, or its state or what its batches read is gone.
        PlanError
            For columns that cannot be hidden.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> from krishiv_py.testing import Driver
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     counts = stream.watermark("at", 0).key_by("user").tumbling_window("10 s").agg(count())
        ...     query = counts.start(MemorySink(), checkpoint=(checkpoint := session.temporary_folder()), name="counts")
        ...     _ = sender.send([{"user": "ann", "at": 1_000}])
        ...     query.process_all_available()
        ...     query.stop()
        ...     capture = session.capture(checkpoint, counts, session.temporary_folder() + "/capture", hashes=["user"])
        ...     Driver.from_capture(capture, counts).batches_left
        1
        """
        folder, plan = self._kept(checkpoint, stream, None, "session.capture")
        if last is not None:
            a_number(last, "last", 1, "pass how many batches, or None for all that are known")
        if savepoint is not None:
            savepoint = a_path(savepoint, "savepoint", "pass the folder of a savepoint, or None")
        hidden = [_columns(given, name) for given, name in ((leave_out, "leave_out"), (hashes, "hashes"))]
        where = a_path(path, "path", "pass a new folder for the capture")
        return capturing.capture(self._runner, plan, folder, where, capturing.CaptureOptions(last, savepoint, *hidden))

    def rescale(self, checkpoint: PathLike, tasks: int) -> None:
        """Let the query of a `checkpoint` go on with so many `tasks`: 1 to the buckets of its state, ``spark.krishiv.buckets``.

        No query may run from it. The next ``start()`` goes on where the last one ended, with the same answers (docs/state.md).

        Raises
        ------
        CheckpointError
            While a query runs from it, when none has begun there, and when its last micro-batch is not finished.
        PlanError
            When it has fewer buckets, or no state, and over Spark Connect.
        EnvironmentSetupError
            Before Spark 4.2.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> Session.embedded().rescale("/data/orders", tasks=4)  # doctest: +SKIP
        """
        folder = a_path(checkpoint, "checkpoint", "pass the folder of the checkpoint")
        self._runner.rescale(folder, a_number(tasks, "tasks", 1, "pass how many tasks share the state"))

    def move(
        self,
        checkpoint: PathLike,
        to: Literal["spark", "in-process"],
        into: PathLike | None = None,
        *,
        buckets: int | None = None,
    ) -> str:
        """Let the query of a `checkpoint` go on on another engine: Spark, or a session in process (docs/in-process.md).

        No query may run from it. The new checkpoint has the state, where each source is, the counters and the number of the
        last batch, so the next ``start()`` from it goes on with the same answers, and sinks get nothing twice. The old one
        stays as it is, and says where its query went on.

        Parameters
        ----------
        checkpoint : str or os.PathLike
            The folder of the checkpoint.
        to : {"spark", "in-process"}
            The engine.
        into : str or os.PathLike, optional
            A new folder; without it one next to the checkpoint, with the engine in its name.
        buckets : int, optional
            In how many buckets Spark is to keep the state: as many tasks can share it. By default as a new query of this
            session on Spark has, or one for each core.

        Returns
        -------
        str
            The folder of the new checkpoint.

        Raises
        ------
        CheckpointError
            While a query runs from it, when none has begun there, when its last batch is not finished, when it was moved
            already, and when the new folder has something in it.
        PlanError
            When it is of that engine; in process for a checkpoint of Spark, which only Spark can read.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     counts = stream.watermark("at", 0).key_by("user").tumbling_window("10 s").agg(count())
        ...     query = counts.start(MemorySink(), checkpoint=(checkpoint := session.temporary_folder()), name="counts")
        ...     _ = sender.send([{"user": "ann", "at": 1_000}])
        ...     query.process_all_available()
        ...     query.stop()
        ...     moved = session.move(checkpoint, "spark", session.temporary_folder() + "/moved")
        ...     moved.rpartition("/")[2]
        'moved'
        """
        folder = a_path(checkpoint, "checkpoint", "pass the folder of the checkpoint")
        one_of(to, "to", ("spark", "in-process"))
        target = None if into is None else a_path(into, "into", "pass a new folder")
        many = None if buckets is None else a_number(buckets, "buckets", 1, "pass how many tasks share the state", most=4_096)
        return checkpoints.move(self._runner, folder, to, target, many)

    def adopt(self, checkpoint: PathLike, other: Session, into: PathLike | None = None, *, buckets: int | None = None) -> str:
        """Let the query of a `checkpoint` that the `other` session began go on with this one.

        It is :meth:`move`, said from where the query goes on: ``spark.adopt("/data/orders", other=in_process)`` is
        ``in_process.move("/data/orders", "spark")``.

        Parameters
        ----------
        checkpoint : str or os.PathLike
            The folder of the checkpoint.
        other : Session
            A session of the engine that began it; it reads the state.
        into : str or os.PathLike, optional
            A new folder; without it one next to the checkpoint, with the engine in its name.
        buckets : int, optional
            As for :meth:`move`.

        Returns
        -------
        str
            The folder of the new checkpoint, from which the query is started with this session.

        Raises
        ------
        CheckpointError
            As for :meth:`move`.
        PlanError
            When both sessions are of one engine.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> with Session.in_process() as old, Session.embedded() as session:  # doctest: +SKIP
        ...     checkpoint = session.adopt("/data/orders", old)
        """
        if not isinstance(other, Session):
            hint = "pass the session whose engine began the checkpoint: Session.in_process(), or one on Spark"
            raise PlanError("`other` is not a session", got=shown(other), hint=hint)
        return other.move(checkpoint, "in-process" if self._runner.sends_in_segments else "spark", into, buckets=buckets)

    @property
    def queries(self) -> list[Query]:
        """The queries of this session that are still running.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     counts = stream.watermark("at", 0).key_by("user").tumbling_window("10 s").agg(count())
        ...     query = counts.start(MemorySink(), checkpoint=(checkpoint := session.temporary_folder()), name="counts")
        ...     _ = sender.send([{"user": "ann", "at": 1_000}])
        ...     query.process_all_available()
        ...     [query.name for query in session.queries]
        ['counts']
        """
        return [q for q in self._runner.queries if q.status == "running"]

    @classmethod
    def all_queries(cls) -> list[Query]:
        """Return the running queries of all sessions of this process, also of sessions that the program has dropped.

        A cell of a notebook that is run again makes a second session, and nothing refers to the first one any more; its
        queries run on, and their checkpoints are in use.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     query = stream.start(MemorySink(), name="rows")
        ...     for running in Session.all_queries():
        ...         if running.name == "rows":
        ...             running.stop()
        ...     query.status
        'stopped'
        """
        return [query for runner in running.sessions_of_process() for query in runner.queries if query.status == "running"]

    @property
    def streams(self) -> list[Query]:
        """The old name of :attr:`queries`."""
        deprecated("Session.streams", "Session.queries")
        return self.queries

    def temporary_folder(self, name: str = "folder") -> str:
        """Return a new temporary folder with `name` in its name, which the session deletes at its end.

        Examples
        --------
        >>> import pathlib
        >>> from krishiv_py import Session
        >>> with Session.in_process() as session:
        ...     folder = pathlib.Path(session.temporary_folder("orders"))
        ...     folder.is_dir(), "orders" in folder.name
        (True, True)
        >>> folder.exists()
        False
        """
        return self._runner.folder(file_name(name))

    def use_clock(self, clock: Callable[[], int]) -> None:
        """Take processing time (µs since the epoch) from `clock` instead of the wall clock; for tests.

        Over Spark Connect a query that is started gets a copy of `clock` in the server's process: one that can be set reads its
        time from a file that both see.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     session.use_clock(lambda: 1_717_200_000_000_000)
        ...     stream, sender = session.memory_stream("user string")
        ...     query = stream.processing_time().tumbling_window("1 min").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann"}])
        ...     query.process_all_available()
        ...     query.state().column("window_start").cast("int64").to_pylist()
        [1717200000000000]
        """
        if not callable(clock):
            raise PlanError("a clock is a function", got=shown(clock), hint="pass one without arguments")
        self._runner.clock = clock

    def ui(
        self, port: int = 8321, *, host: str = "127.0.0.1", late_rows: bool = False, leave_out: Iterable[str] = ()
    ) -> web.Page:
        """Serve a page for the browser that shows what this session runs, until the session ends.

        It shows each query: its sources, stages and outputs as a drawing, watermark, rates and state as they change, late rows
        with their reasons, and what looks wrong. Of several queries it has an overview, with those that failed or are stuck on
        top. It is read only, needs no network, and costs nothing until it is served.

        Parameters
        ----------
        port : int
            Where to listen; 0 takes a free port.
        host : str
            The address to listen on; only this machine by default. The page asks for no password: with another address
            everybody who reaches it reads the numbers, and the late rows if they are shown.
        late_rows : bool
            Whether it shows values of the last late rows that are kept in memory; else only their numbers and reasons.
        leave_out : iterable of str
            Columns of late rows that are not shown, such as those of persons.

        Returns
        -------
        Page
            With the address (``url``), and ``close()``. It is a context manager.

        Raises
        ------
        PlanError
            When the port cannot be listened on, and for columns to leave out where no late rows are shown.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> with Session.in_process() as session, session.ui(port=0) as page:
        ...     page.url.startswith("http://127.0.0.1:")
        True
        """
        a_number(port, "port", 0, "pass a port that nobody listens on, or 0 for a free one", most=65_535)
        address = a_text(host, "host", 'pass "127.0.0.1", or "0.0.0.0" for every address of the machine')
        a_switch(late_rows, "late_rows")
        hidden = frozenset(_columns(leave_out, "leave_out"))
        if hidden and not late_rows:
            raise PlanError("`leave_out` is of late rows", got="late_rows=False", hint="write late_rows=True, or leave it out")
        served = web.Page(
            f"krishiv_py: {self._runner.profile} session",
            lambda: self._runner.queries,
            address,
            port,
            late_rows=late_rows,
            leave_out=hidden,
        )
        self._pages.append(served)
        return served

    def stop(self) -> None:
        """Stop all queries, and Spark if this session started it.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> session = Session.in_process()
        >>> session.stop()
        """
        while self._pages:
            self._pages.pop().close()
        try:
            for sender in list(self._senders):
                sender._end()
        finally:
            self._runner.stop()

    def __del__(self) -> None:
        """Warn where queries run on, which nobody stops."""
        runner = self.__dict__.get("_runner")
        if runner is None or getattr(runner, "ended", True) or sys.is_finalizing():  # its making may have failed
            return
        names = [query.name for query in runner.queries if query.status == "running"]
        if names:
            text = f"a session was dropped while its queries run on: {', '.join(map(repr, names))}. Hint: write "
            text += "`with Session...:` or session.stop(); Session.all_queries() has them"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the profile, and the queries that run."""
        return session_html(self._runner.profile, [(q.name, q.status, q.progress) for q in self.queries])

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _one_plan(outputs: dict[str, Output]) -> PhysicalPlan:
    return several.several([(name, output.stream._plan("streaming")) for name, output in outputs.items()])


def _columns(given: object, name: str) -> tuple[str, ...]:
    """Return names of columns."""
    hint = f'pass a list of columns: {name}=["email"]'
    if not is_collection(given):
        raise PlanError(f"`{name}` is a list of columns", got=shown(given), hint=hint)
    return tuple(a_text(column, name, hint) for column in given)
