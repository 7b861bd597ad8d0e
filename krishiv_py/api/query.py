"""A running query, as the user sees it, and the interface of what runs a plan; sessions implement it."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.api.subscription import Subscription, WhenSlow
from krishiv_py.arrays.capsules import ArrowRows
from krishiv_py.connectors.sink import Sink
from krishiv_py.display.html import rows_html
from krishiv_py.display.lag import LatenessProfile
from krishiv_py.display.progress import Show
from krishiv_py.errors import PlanError
from krishiv_py.plan.checks import PathLike, a_path, a_text
from krishiv_py.plan.durations import Duration, TimePoint
from krishiv_py.plan.options.query import Batches, HandoverOptions, OnChange, StartPoint, given_begin
from krishiv_py.plan.options.watermarks import RowsClock
from krishiv_py.plan.running import Counters, Progress

if TYPE_CHECKING:
    from krishiv_py.planner.physical import Engine, PhysicalPlan


QueryStatus: TypeAlias = Literal["running", "stopped", "failed"]
"""The state of a query: ``running``, ``stopped`` (by ``stop()``, or as all its input is read) or ``failed``."""


class Query(Protocol):
    """Handle of a query started with ``start()``.

    Examples
    --------
    >>> from krishiv_py import MemorySink, Session, count
    >>> with Session.in_process() as session:
    ...     stream, sender = session.memory_stream("user string, at bigint")
    ...     minutes = stream.watermark("at", "5 s").key_by("user").tumbling_window("1 minute").agg(count())
    ...     query = minutes.start(MemorySink(), name="minutes")
    ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "ann", "at": 70_000}])
    ...     query.process_all_available()
    ...     print(query.name, query.status, query.watermark)
    ...     print(query.progress)
    ...     query.results().to_pylist()
    minutes running 1970-01-01T00:01:05Z
    batch 0: watermark 1970-01-01T00:01:05Z, 2 rows, late: none, 1 open window, ... state bytes, 1 firings
    [{'user': 'ann', 'window_start': 0, 'window_end': 60000, 'count': 1}]
    >>> query.status, query.exception()
    ('stopped', None)
    """

    @property
    def name(self) -> str:
        """The name given at the start."""

    @property
    def id(self) -> str:
        """Spark's query id, kept across restarts from one checkpoint.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", "5 s").key_by("user").tumbling_window("1 min").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 70_000}])
        ...     query.process_all_available()
        ...     len(query.id)
        36
        """

    @property
    def operator(self) -> str:
        """The name of its operator, as in late rows and ``explain()``.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", "5 s").key_by("user").tumbling_window("1 min").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 70_000}])
        ...     query.process_all_available()
        ...     query.operator
        'window-aggregate'
        """

    @property
    def status(self) -> QueryStatus:
        """``running``, ``stopped`` (by :meth:`stop`, or as all its input is read) or ``failed``."""

    @property
    def progress(self) -> Progress:
        """Watermark, late counts, open windows, state."""

    def lateness(self, stage: str | None = None) -> LatenessProfile:
        """Return how late rows have come so far, and what other lags would have lost; it costs next to nothing.

        Rows are counted by how far they come after the newest row of the micro-batches before, in steps that people set as a
        lag (1, 2 and 5 s and so on), over all restarts from one checkpoint. What the steps and the lag of the query itself lose
        is exact; between them more is shown than would be lost. Of several sources with lags of their own, a step stands for
        the change of all of them, and is shown as that of the largest one.

        Parameters
        ----------
        stage : str, optional
            The stage of this name; by default the first that judges rows of a source.

        Raises
        ------
        PlanError
            For a name that no such stage has, and where no stage judges rows by their event time.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", "5 s").key_by("user").tumbling_window("1 min").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 70_000}])
        ...     query.process_all_available()
        ...     print(query.lateness())
        2 rows by 'at', in the order of the micro-batches: 0 came after a newer row, at most 0 s
        lag  late rows  share
        0 s          0    0 %
        5 s          0    0 %
        """

    def expect_lateness(self, profile: LatenessProfile, stage: str | None = None) -> None:
        """Warn in ``progress.doubts`` when rows that come from now on are later than a `profile` says.

        Compared are stretches of up to 50 000 rows, when :attr:`progress` is asked for: at each step of :meth:`lateness` no
        larger share may be late than in the profile, beyond chance. The warning goes when a stretch fits again. Say it again
        after a restart; ``start(sink, lateness=profile)`` says it at once.

        Parameters
        ----------
        profile : LatenessProfile
            The profile that the lag was chosen by.
        stage : str, optional
            The stage of this name; by default the first that judges rows of a source.

        Raises
        ------
        PlanError
            For a value that is not a profile, a name that no such stage has, and where no stage has a watermark.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count, lateness_profile
        >>> profile = lateness_profile([{"at": at} for at in range(0, 60_000, 100)], "at")  # in order: no row is late
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     query = stream.watermark("at", "1 s").tumbling_window("1 minute").agg(count()).start(MemorySink())
        ...     query.expect_lateness(profile)
        ...     _ = sender.send([{"at": 60_000}])
        ...     query.process_all_available()
        ...     _ = sender.send([{"at": at} for at in range(30_000, 60_000, 100)])
        ...     query.process_all_available()
        ...     print(*query.progress.doubts)
        66.4 % of the last 301 rows came more than 10 s after a newer row, and 0 % in the lateness profile. Hint: ...
        """

    def await_termination(self, timeout: dt.timedelta | str | None = None) -> bool:
        """Wait for the end, at most `timeout`; True if the query ended. Raises the error if the query failed.

        A query ends when it is stopped, or with ``Batches.available_now()`` when all is read. It does not end with its sources.

        `timeout` is a ``timedelta`` or a text such as ``"2 s"``. A bare number is refused: Spark reads it as seconds, and
        this library reads durations as milliseconds.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", "5 s").key_by("user").tumbling_window("1 min").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 70_000}])
        ...     query.process_all_available()
        ...     query.await_termination("10 ms")  # it still runs
        False
        """

    def process_all_available(self, *, progress: Show = False) -> None:
        """Wait until everything sent so far is processed and the query is idle.

        In process it returns while more is sent, if all sources are memory streams. On Spark, and with other sources, it waits
        until there is nothing more to read.

        Parameters
        ----------
        progress : bool or None
            Whether to show batch, rows, watermark and late rows on standard error while waiting. None shows them if standard
            error is a terminal and tqdm (the extra ``progress``) is installed.
        """

    def exception(self) -> Exception | None:
        """Return the error that made the query fail; it names operator and row. None if it did not fail.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", "5 s").key_by("user").tumbling_window("1 min").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 70_000}])
        ...     query.process_all_available()
        ...     _ = sender.send([{"user": "cy", "at": 80_000}])
        ...     print(query.exception())
        None
        """

    def stop(self) -> None:
        """Stop the query; a later start from the same checkpoint continues it.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", "5 s").key_by("user").tumbling_window("1 min").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 70_000}])
        ...     query.process_all_available()
        ...     query.stop()
        ...     query.status
        'stopped'
        """

    def watch(self, *, every: Duration = "1 s", timeout: Duration | None = None) -> None:
        """Show the query until it has ended, for at most `timeout`, or until Ctrl-C, which leaves the query running.

        In a notebook it is one card that is drawn again in place, in a terminal a table (needs rich, which the extra
        ``progress`` installs), elsewhere a line for each micro-batch.

        Parameters
        ----------
        every : duration
            How long it is between two looks: milliseconds, ``timedelta``, or a text such as ``"1 s"``.
        timeout : duration, optional
            How long to show it at most.

        Raises
        ------
        MissingExtraError
            In a terminal without rich.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     query = stream.watermark("at", 0).tumbling_window("10 s").agg(count()).start(MemorySink(), name="counts")
        ...     _ = sender.send([{"at": 1_000}])
        ...     query.process_all_available()
        ...     query.stop()
        ...     query.watch()
        counts, batch 0: 1 rows, watermark 1970-01-01T00:00:01Z, no late rows; stopped
        """

    def __enter__(self) -> Query:
        """Return the query, which is stopped when the body of ``with`` ends."""

    def __exit__(self, *raised: object) -> None:
        """Stop the query."""

    def results(self, output: str | None = None) -> pa.Table:
        """Return all results so far, of the `output` of this name where there are several; for a memory sink only.

        Raises
        ------
        PlanError
            For a sink that is not in memory, a name that no output has, and no name where there are several outputs.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", "5 s").key_by("user").tumbling_window("1 min").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 70_000}])
        ...     query.process_all_available()
        ...     query.results().to_pylist()
        [{'user': 'ann', 'window_start': 0, 'window_end': 60000, 'count': 1}]
        """

    def late_rows(self, stage: str | None = None) -> pa.Table:
        """Return all late rows so far, of the first stage or of the `stage` of this name; for a memory side output only.

        Raises
        ------
        PlanError
            For a side output that is not in memory, and a name that no stage has.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, SideOutputLateEventHandler, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("at bigint")
        ...     timed = stream.watermark("at", 0).with_late_event_handler(SideOutputLateEventHandler(MemorySink()))
        ...     query = timed.tumbling_window("1 minute").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"at": 70_000}])
        ...     query.process_all_available()
        ...     _ = sender.send([{"at": 1_000}])
        ...     query.process_all_available()
        ...     query.late_rows().to_pylist()
        [{'at': 1000, 'reason': 'late', 'watermark': 70000, 'lateness': 69000}]
        """

    def state(self, stage: str | None = None) -> pa.Table:
        """Return the windows in state after the last finished micro-batch: keys, bounds, aggregates so far, ``last_update``.

        Of several stages those of the last one with windows, or of the `stage` of this name (as in ``progress.stages``).
        Works for running and stopped queries, as long as the checkpoint exists (SEMANTICS §6.5).

        Raises
        ------
        CheckpointError
            When the checkpoint no longer exists: :meth:`stop` deletes a temporary one.
        PlanError
            For look-back windows with ``matches()`` or ``pairs(...)``, whose state holds no aggregates; for a name that no
            stage has.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", "5 s").key_by("user").tumbling_window("1 min").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 70_000}])
        ...     query.process_all_available()
        ...     query.state().select(["user", "window_end", "count"]).to_pylist()
        [{'user': 'bob', 'window_end': 120000, 'count': 1}]
        """

    def lookup(
        self,
        key: Any,
        *,
        window: TimePoint | None = None,
        stage: str | None = None,
        last: int | None = None,
        max_age: Duration = "10 s",
    ) -> pa.Table:
        """Return the open windows of one `key`, or of a list of keys, as :meth:`state` shows them.

        On Spark it reads the whole state in a job of its own, as :meth:`state` does, and keeps that snapshot: later calls
        take it from memory as long as it is not older than `max_age`. The metadata of the table says how old it is:
        ``int(found.schema.metadata[b"age_ms"])``.

        Of a table that changes, such as a running total, it gives the rows of the content that have the key; of a join none
        for a null key.

        In process what it costs does not depend on how many keys are open, but the first call builds an index. A lookup waits
        until the micro-batch in hand is finished. Session, count, look-back and distinct-set windows, and windows of an
        assigner, are found by a look at all keys.

        With `last` it gives the newest results of each key that have left for the sink, in the order in which they left. It
        waits for no batch. The newest million results, or 64 MB of them, are kept in memory; after a restart there are none
        until the next ones leave. The sink has all of them.

        Parameters
        ----------
        key : value, tuple or list
            One key; a tuple for several key columns; a list of keys.
        window : int, datetime or str, optional
            Only windows that hold this time: milliseconds since the epoch, a datetime, or text as ``why_not_fired`` prints it.
        stage : str, optional
            The stage of this name; by default the last one with windows.
        last : int, optional
            How many results of each key, from 1; leave it out for open windows. In process only.
        max_age : int, str or timedelta
            How old a snapshot may be that Spark gives: milliseconds, or a text such as ``"10 s"``. In process the answer is
            always of the last finished batch; with 0 it has all that was sent to memory streams before the call, and waits for
            the micro-batches that take it.

        Raises
        ------
        PlanError
            For a value that cannot be a key of this query, a name that no stage has, windows whose state holds no aggregates,
            results without the columns of the key, and `last` on Spark.
        CheckpointError
            On Spark, when the checkpoint no longer exists: :meth:`stop` deletes a temporary one.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", 0).key_by("user").tumbling_window(60_000).agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "a", "at": 1_000}, {"user": "b", "at": 2_000}, {"user": "a", "at": 3_000}])
        ...     query.process_all_available()
        ...     query.lookup("a").select(["user", "window_end", "count"]).to_pylist()
        [{'user': 'a', 'window_end': 60000, 'count': 2}]

        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", 0).key_by("user").tumbling_window(60_000).agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "a", "at": 1_000}, {"user": "a", "at": 130_000}])
        ...     query.process_all_available()
        ...     query.lookup("a", last=1).select(["user", "window_end", "count"]).to_pylist()
        [{'user': 'a', 'window_end': 60000, 'count': 1}]
        """

    def subscribe(self, output: str | None = None, *, buffer: int = 100_000, when_slow: WhenSlow = "fail") -> Subscription:
        """Return what the query gives from now on, for a loop or an asynchronous loop in this process; in process only.

        Each item is a table: the results of a micro-batch, with ``op`` where they change, after it was committed. Many may
        subscribe. The query never waits for them: rows that were not read yet wait in memory, up to `buffer`. Then a
        subscription gives what waits and ends with an error, or with ``when_slow="drop"`` forgets the oldest tables, and
        counts their rows in ``dropped``. It ends when the query does.

        Whoever needs the rows of before, too, subscribes first and then reads :meth:`state`: a change that both have puts the
        same row.

        Parameters
        ----------
        output : str, optional
            The output of this name, where there are several.
        buffer : int
            How many rows may wait, from 1.
        when_slow : {"fail", "drop"}
            What becomes of a reader that does not keep up.

        Raises
        ------
        PlanError
            For a name that no output has, no name where there are several, other values, and on Spark.

        Examples
        --------
        >>> import asyncio
        >>> from krishiv_py import MemorySink, Session, sum
        >>> async def totals(changes):
        ...     async for table in changes:
        ...         print(table.to_pylist())
        >>> with Session.in_process() as session:
        ...     orders, sender = session.memory_stream("user string, amount bigint")
        ...     query = orders.key_by("user").agg(total=sum("amount")).start(MemorySink())
        ...     changes = query.subscribe()
        ...     _ = sender.send([{"user": "ann", "amount": 5}])
        ...     query.process_all_available()
        ...     query.stop()
        ...     asyncio.run(totals(changes))
        [{'user': 'ann', 'total': 5, 'op': '+I'}]
        """

    @property
    def pending_keys(self) -> int:
        """Return the number of keys with something in state after the last finished micro-batch, summed over all stages.

        The state is read for it, in a job of its own, as for :meth:`state`; rows that nothing needs any more may stay for a
        while.

        Raises
        ------
        CheckpointError
            When the checkpoint no longer exists: :meth:`stop` deletes a temporary one.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", "5 s").key_by("user").tumbling_window("1 min").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 70_000}])
        ...     query.process_all_available()
        ...     query.pending_keys
        1
        """

    def close_key(self, key: Any, stage: str | None = None) -> None:
        """Forget a `key`, for which no more rows come, without results; a tuple names a key of several columns.

        Look-back, session, count and distinct-set windows, deduplication and joins are kept by key. Every stage that reads the
        source forgets it, or only the `stage` of this name. It happens in the next micro-batch that reads rows, before that
        takes them in: rows of the key that come later start again. The call is noted in the checkpoint before it returns, so a
        batch that is repeated after a crash closes the same keys, and a call that no batch has seen holds for the next run.
        Windows (of look-back windows: rows) that have no result because of it are counted as ``close_key_dropped``.

        Raises
        ------
        PlanError
            For a value that cannot be a key of this query, for windows that end by themselves, and for stages with different
            keys where none is named.
        OperatorError
            When the query does not run.
        CheckpointError
            When the call cannot be noted in the checkpoint.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", 0).key_by("user").session_window("1 hour").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 2_000}])
        ...     query.process_all_available()
        ...     query.close_key("ann")
        ...     _ = sender.send([{"user": "bob", "at": 3_000}])
        ...     query.process_all_available()
        ...     query.state().column("user").to_pylist(), query.progress.counters["close_key_dropped"]
        (['bob'], 1)
        """

    def savepoint(self, path: PathLike) -> str:
        """Write a savepoint into the new folder `path`: the state as values, of no engine (docs/savepoints.md).

        It is the state between two micro-batches; no batch begins while it is written. A query that has ended is read from its
        checkpoint. ``start(..., savepoint=path, checkpoint=new)`` begins from it, on any engine. Returns the folder.

        Raises
        ------
        CheckpointError
            When the folder has something in it or cannot be written, and when the checkpoint no longer exists.
        PlanError
            Over Spark Connect.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     counted = stream.watermark("at", 0).key_by("user").tumbling_window(60_000).agg(count())
        ...     query = counted.start(MemorySink())
        ...     _ = sender.send([{"user": "a", "at": 1_000}])
        ...     query.process_all_available()
        ...     path = query.savepoint(session.temporary_folder() + "/savepoint")
        ...     query.stop()
        ...     query = counted.start(MemorySink(), savepoint=path)
        ...     _ = sender.send([{"user": "a", "at": 2_000}, {"user": "a", "at": 60_000}])
        ...     query.process_all_available()
        ...     query.results().to_pylist()
        [{'user': 'a', 'window_start': 0, 'window_end': 60000, 'count': 2}]
        """

    def why_not_fired(self, window_end: TimePoint | None = None, stage: str | None = None) -> str:
        """Say what the window that ends at `window_end` is waiting for; without it the oldest window that waits.

        An end is milliseconds since the epoch, a datetime, or the text that this method prints.
        Of several stages the last one with windows is asked, or the `stage` of this name.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", "5 s").key_by("user").tumbling_window("1 min").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 70_000}])
        ...     query.process_all_available()
        ...     print(query.why_not_fired("1970-01-01T00:02:00Z").split(";")[0])
        the window that ends at 1970-01-01T00:02:00Z fires when the watermark reaches 1970-01-01T00:02:00Z
        """

    def why(self, key: Any = None, time: TimePoint | None = None, stage: str | None = None) -> str:
        """Say what became of a `key` at a `time`, a line for each of its windows.

        The first line has the watermark: since when it has not moved, and which source holds it. The second says where a row of
        that time would go now, and why. Then each window that the time belongs to is open, fired, closed or never seen, and
        what it waits for. Whether a closed window fired is known where the sink is in memory. Without both it is
        :meth:`why_not_fired`; of a stopped query ask ``session.why(checkpoint, stream, ...)`` or ``krishiv why CHECKPOINT``.

        Parameters
        ----------
        key : value or tuple, optional
            A key; a tuple for several key columns. Without it all keys.
        time : int, datetime or str, optional
            An event time: milliseconds since the epoch, a datetime, or the text that this method prints. Without it all
            windows that are open.
        stage : str, optional
            The stage of this name; by default the last one with windows.

        Raises
        ------
        PlanError
            For a value that cannot be a key of this query, and a name that no stage has.
        DurationError
            For a value that is not a time.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", "5 s").key_by("user").tumbling_window("1 min").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 70_000}])
        ...     query.process_all_available()
        ...     print(query.why("bob", 70_000).splitlines()[1])
        a row of 1970-01-01T00:01:10Z is on time.
        """

    @property
    def watermark(self) -> str:
        """The watermark that is in force, as text; of several clocks that of the last stage, which waits for all."""

    def explain(self) -> str:
        r"""Return the plan of the query as text.

        Examples
        --------
        >>> from krishiv_py import MemorySink, Session, count
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("user string, at bigint")
        ...     query = stream.watermark("at", "5 s").key_by("user").tumbling_window("1 min").agg(count()).start(MemorySink())
        ...     _ = sender.send([{"user": "ann", "at": 1_000}, {"user": "bob", "at": 70_000}])
        ...     query.process_all_available()
        ...     print(*query.explain().splitlines()[:3], sep="\n")
        == Logical plan ==
        WindowAggregate tumbling 1 min by user: count(*) AS count [late_rule=event, emit=final]
           └─ Watermark at: max(event time) - 5 s
        """


@attrs.frozen(eq=False)
class BoundedResult(ArrowRows):
    r"""The outcome of a bounded run.

    Attributes
    ----------
    table : pyarrow.Table
        Results in the order of their firing, then by key bucket.
    late : pyarrow.Table
        Late rows, with as many columns as the late handler wants.
    counters : dict
        Rows by fate, of the stages that read sources, each source once.
    late_by_stage : dict
        Late rows by the name of their stage; `late` are those of the first one.
    outputs : dict
        Results by the name of their output; `table` are those of the first one.
    counters_by_stage : dict
        Rows by fate, by the name of the stage that counted them.

    Examples
    --------
    >>> import pathlib
    >>> from krishiv_py import Session, count
    >>> with Session.in_process() as session:
    ...     folder = pathlib.Path(session.temporary_folder())
    ...     _ = (folder / "a.json").write_text('{"at": 1000}\n{"at": null}\n')
    ...     result = session.read_json(folder, "at bigint").watermark("at", 0).tumbling_window("1 minute").agg(count()).run()
    >>> result.table.to_pylist(), result.counters["null_time"]
    ([{'window_start': 0, 'window_end': 60000, 'count': 1}], 1)
    """

    table: pa.Table
    late: pa.Table
    counters: dict[str, int] = attrs.field(converter=Counters)
    late_by_stage: dict[str, pa.Table] = attrs.field(factory=dict)
    outputs: dict[str, pa.Table] = attrs.field(factory=dict)
    counters_by_stage: dict[str, dict[str, int]] = attrs.field(factory=dict)

    def _arrow(self) -> pa.Table:
        return self.table

    def _repr_html_(self) -> str:
        """Return the results and late rows as tables, of each output and stage."""
        late = {f"late rows of {name}": table for name, table in self.late_by_stage.items()} or {"late rows": self.late}
        counted = ", ".join(f"{n:,} {name}" for name, n in self.counters.items() if n)
        return rows_html("Bounded run", counted, {**(self.outputs or {"results": self.table}), **late})


@attrs.frozen(eq=False)
class QueryStart:
    """Holds what starts a query, whichever engine runs it.

    Attributes
    ----------
    plan : PhysicalPlan
        What runs.
    sinks : tuple of Sink
        Where results go: one for each output of the plan.
    checkpoint : str or None
        The folder of its checkpoint; None for a temporary one.
    batches : Batches
        When batches are planned.
    name : str or None
        What the query is called.
    begin : StartPoint or None
        The savepoint that it begins from.
    title : str
        The name, or one that is made of the plan.
    """

    plan: PhysicalPlan
    sinks: tuple[Sink, ...]
    checkpoint: str | None
    batches: Batches
    name: str | None
    begin: StartPoint | None = None
    title: str = attrs.field(init=False)

    @title.default
    def _title(self) -> str:
        return self.name or f"{self.plan.title}-{uuid.uuid4().hex[:8]}"

    @classmethod
    def of(
        cls,
        plan: Callable[[], PhysicalPlan],
        sinks: tuple[Sink, ...],
        checkpoint: PathLike | None,
        batches: Batches,
        name: str | None,
        begin: tuple[PathLike | None, Mapping[str, OnChange] | None],
    ) -> QueryStart:
        """Return what a user says of a start, once it is checked; the `plan` is made after that.

        Raises
        ------
        PlanError
            For a checkpoint that is no path, a name that is no text, and a savepoint to `begin` from that cannot be one.
        """
        if checkpoint is not None:
            checkpoint = a_path(checkpoint, "checkpoint", "pass a folder, or leave it out for a temporary one")
        if name is not None:
            a_text(name, "name", "pass a text, or None for a generated name")
        start = given_begin(*begin)
        return cls(plan(), sinks, checkpoint, batches, name, start)


class Runner(Protocol):
    """Runs plans."""

    rows_clock: RowsClock
    """The clock of rows where a watermark does not name one."""

    @property
    def engine(self) -> Engine | None:
        """Return the engine that runs them; None where it depends on how they are run."""

    def run_bounded(self, plan: PhysicalPlan, progress: Show = False) -> BoundedResult:
        """One batch job over a finite input, with or without a `progress` line."""

    def start(self, start: QueryStart) -> Query:
        """Start an unbounded query."""

    def against(self, plan: PhysicalPlan, folder: str, bootstrap: Iterable[str]) -> str:
        """Say what becomes of the state of a checkpoint or savepoint if a plan begins from it, a line for each stage.

        Sources named by `bootstrap` have archives.
        """

    def to_dataframe(self, plan: PhysicalPlan, handed: HandoverOptions | None = None) -> Any:
        """Return a Spark DataFrame of results; with `handed` of what a query of its own hands over."""


class NoRunner:
    """The runner of streams that belong to no session (``krishiv_py.testing.stream_of``)."""

    engine: Engine | None = None
    rows_clock: RowsClock = "batch"

    def _refuse(self, what: str) -> NoReturn:
        hint = "use krishiv_py.testing.Driver, or make the stream from a Session"
        raise PlanError(f"{what} needs a session", got="a stream made without one", hint=hint)

    def run_bounded(self, plan: PhysicalPlan, progress: Show = False) -> BoundedResult:
        """Refuse."""
        self._refuse("collect()")

    def start(self, start: QueryStart) -> Query:
        """Refuse."""
        self._refuse("start()")

    def against(self, plan: PhysicalPlan, folder: str, bootstrap: Iterable[str]) -> str:
        """Refuse."""
        self._refuse("explain(against=...)")

    def to_dataframe(self, plan: PhysicalPlan, handed: HandoverOptions | None = None) -> Any:
        """Refuse."""
        self._refuse("to_dataframe()")
