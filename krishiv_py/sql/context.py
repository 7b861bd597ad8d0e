"""Tables and settings of one session, and its ``sql()``; needs no Spark."""

from __future__ import annotations

from typing import Any

from sqlglot import expressions as sg

from krishiv_py.api.stages.aggregated import AggregatedStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.errors import PlanError, message
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.expressions.sqltext import quiet_parser
from krishiv_py.sql.catalog import Registered, Static, is_static, registered, static
from krishiv_py.sql.env import Env
from krishiv_py.sql.select import plan
from krishiv_py.sql.text.statements import setting_of, statement_of


class SqlContext:
    """What ``Session.register`` and ``Session.sql`` work on; of use alone in tests.

    Examples
    --------
    >>> from krishiv_py.sql import SqlContext
    >>> from krishiv_py.testing import Driver, stream_of
    >>> context = SqlContext()
    >>> context.register("events", stream_of("user string, at bigint"), event_time="at", lag=0)
    >>> per_second = context.sql(
    ...     "SELECT user, tumble_end(at, INTERVAL '1' SECOND) AS upto, COUNT(*) AS n FROM events "
    ...     "GROUP BY user, tumble_end(at, INTERVAL '1' SECOND)"
    ... )
    >>> Driver(per_second).send([{"user": "a", "at": 10}, {"user": "a", "at": 1_000}]).results.to_pylist()
    [{'user': 'a', 'upto': 1000, 'n': 1}]
    """

    def __init__(self) -> None:
        self._tables: dict[str, Registered | Static] = {}
        self._set: dict[str, int] = {}

    def register(
        self, name: str, stream: Stream | TimedStream | Any, *, event_time: str | None = None, lag: Duration | None = None
    ) -> None:
        """Let queries name a stream; a name that is taken is given to the new one.

        Parameters
        ----------
        name : str
            The table; case does not matter in queries.
        stream : Stream or TimedStream or table
            The rows. One with a watermark keeps it, and its options. Or a table that does not change, which streams are joined
            with: what :meth:`krishiv_py.Stream.lookup_join` takes.
        event_time : str, optional
            The event-time column of a plain stream; may be left out if only one column is a timestamp.
        lag : int or timedelta or str, optional
            How far rows may be out of order; without it every query needs ``SET watermark.lag`` before.

        Raises
        ------
        PlanError
            For a column that cannot be the event time, or a second watermark.
        """
        if is_static(stream):
            if event_time is not None or lag is not None:
                got = f"event_time={event_time!r}, lag={lag!r}"
                hint = f"write register({name!r}, table); validity is told in the query"
                raise PlanError(message("a table that does not change has no watermark", got, "it would have no effect", hint))
            self._tables[str(name).lower()] = static(name, stream)
            return
        found = registered(name, stream, event_time, lag)
        self._tables[name.lower()] = found

    @quiet_parser()
    def sql(self, text: str) -> AggregatedStream | None:
        """Plan a query, or make a setting for the next one (SEMANTICS §2.6).

        Parameters
        ----------
        text : str
            One query over registered streams and tables; ``SET watermark.lag = INTERVAL '5' SECOND`` or
            ``SET deduplication.within = INTERVAL '10' MINUTE``, for the next query.

        Returns
        -------
        AggregatedStream or None
            The plan of a query, to be run or given options as if built step by step; None for SET.

        Raises
        ------
        PlanError
            For text that is no SQL, unknown tables and columns, and what of SQL has no meaning over streams.
        """
        try:
            statement = statement_of(text)
            if isinstance(statement, sg.Set):
                name, value_us = setting_of(statement)
                self._set[name] = value_us
                return None
            env = Env(dict(self._tables), self._set.get("watermark.lag"), self._set.get("deduplication.within"))
            found = plan(statement, env)
            self._check_used(env, text)
        except RecursionError as problem:
            shown = f"{text[:60]}… ({len(text)} characters)"
            hint = "compute parts of it in a query in brackets"
            raise PlanError(message("the SQL is nested too deeply", shown, "it cannot be read", hint)) from problem
        self._set.clear()  # a query that was refused did not use it up
        return found

    def _check_used(self, env: Env, text: str) -> None:
        if env.within_us is not None and not env.used:
            del self._set["deduplication.within"]
            raise PlanError(
                message(
                    "deduplication.within was set, and the query drops no duplicates",
                    text.strip(),
                    "the setting had no effect, and is dropped",
                    "write SELECT DISTINCT, or ROW_NUMBER() OVER (PARTITION BY id ORDER BY ts) with rn = 1; or the query again",
                )
            )
