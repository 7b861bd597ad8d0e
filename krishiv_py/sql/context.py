"""Tables and settings of one session, and its ``sql()``; needs no Spark."""

from __future__ import annotations

from typing import Any

import attrs
from sqlglot import expressions as sg

from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.running import Output
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.known import BatchConsumer, as_sink
from krishiv_py.errors import PlanError
from krishiv_py.plan.checks import a_text
from krishiv_py.plan.durations import Duration
from krishiv_py.plan.expressions.allread import check_read
from krishiv_py.plan.expressions.sqltext import quiet_parser
from krishiv_py.sql.catalog import RegisteredStream, StaticTable, is_static, registered, static, unknown_sink
from krishiv_py.sql.scope import Env
from krishiv_py.sql.select import plan
from krishiv_py.sql.statements import TTL_OF_SIDES, Query, explained, inserted, setting_of, statement_of, statements_of


class SqlContext:
    """Holds what ``Session.register`` and ``Session.sql`` work on; of use alone in tests.

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
        self._tables: dict[str, RegisteredStream | StaticTable] = {}
        self._set: dict[str, Any] = {}
        self._sinks: dict[str, tuple[str, Sink]] = {}

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
                hint = f"write register({name!r}, table); write the validity in the query"
                raise PlanError("a table that does not change has no watermark", got=got, hint=hint)
            self._tables[str(name).lower()] = static(name, stream)
            return
        entry = registered(name, stream, event_time, lag)
        self._tables[name.lower()] = entry

    def register_sink(self, name: str, sink: Sink | BatchConsumer) -> None:
        """Let ``INSERT INTO name`` name a sink; a name that is taken is given to the new one.

        Parameters
        ----------
        name : str
            What statements call it; case does not matter. Tables have names of their own.
        sink : Sink or callable
            Where results go; a callable gets ``(dataframe, batch_id)``.

        Raises
        ------
        PlanError
            For a value that is not a sink, and for a name that is not a text.
        """
        hint = 'write register_sink("alarms", sink)'
        self._sinks[a_text(name, "name", hint).lower()] = name, as_sink(sink, "results")

    @quiet_parser()
    def sql(self, text: str) -> Stream | ResultStream | Any | None:  # Any: a str, of EXPLAIN alone
        """Plan a query, or make a setting for the next one (SEMANTICS §2.6).

        Parameters
        ----------
        text : str
            One query over registered streams and tables; ``SET watermark.lag = INTERVAL '5' SECOND``,
            ``SET deduplication.within = INTERVAL '10' MINUTE``, ``SET state.ttl = INTERVAL '1' DAY``, or ``state.ttl.left`` of
            one side of a join, for the next query. Or ``EXPLAIN`` and a query, which uses no setting up.

        Returns
        -------
        Stream or ResultStream or str or None
            The query, to be run or given options as if built step by step: rows, or results of windows and joins; the text of
            its plan for EXPLAIN; None for SET.

        Raises
        ------
        PlanError
            For text that is not SQL, unknown tables and columns, and what of SQL does not apply to streams.
        """
        try:
            query = explained(text)
            if query is not None:
                return self._planned(query, dict(self._set)).explain()
            statement = statement_of(text)
            if isinstance(statement, sg.Set):
                name, value_us = setting_of(statement)
                self._set[name] = value_us
                return None
            if isinstance(statement, sg.Insert):
                hint = "write session.start(session.sql_outputs(text)), or leave INSERT INTO out and .start(sink)"
                then = "sql() gives a plan without a sink"
                raise PlanError("INSERT INTO is for sql_outputs()", got=text.strip(), then=then, hint=hint)
            planned = self._planned(statement, self._set)
        except RecursionError as problem:
            raise _too_deep(text) from problem
        return planned

    @quiet_parser()
    def sql_outputs(self, text: str) -> list[Output]:
        """Plan the queries of ``INSERT INTO name SELECT ...`` statements, as outputs for ``session.start(...)``.

        Parameters
        ----------
        text : str
            One statement, or several with ``;`` between, into sinks of :meth:`register_sink`; and SET, for the query after it.

        Returns
        -------
        list of Output
            One for each INSERT, under the name of its sink. Those that read one registered stream can be one query.

        Raises
        ------
        PlanError
            As :meth:`sql`; for sinks that nobody has registered, or that two statements name, and for text without an INSERT.

        Examples
        --------
        >>> from krishiv_py import MemorySink
        >>> from krishiv_py.sql import SqlContext
        >>> from krishiv_py.testing import Driver, stream_of
        >>> context = SqlContext()
        >>> context.register("events", stream_of("user string, at bigint, n bigint").watermark("at", 0))
        >>> context.register_sink("large", MemorySink())
        >>> context.register_sink("users", MemorySink())
        >>> outputs = context.sql_outputs(
        ...     "INSERT INTO large SELECT * FROM events WHERE n > 9; INSERT INTO users SELECT user FROM events"
        ... )
        >>> {name: t.num_rows for name, t in Driver(outputs).send([{"user": "a", "at": 1, "n": 1}]).by_output.items()}
        {'large': 0, 'users': 1}
        """
        settings, outputs = dict(self._set), dict[str, Output]()
        try:
            for tree in statements_of(text):
                if isinstance(tree, sg.Set):
                    settings.update([setting_of(tree)])
                    continue
                name, query = inserted(tree)
                sink = self._sinks.get(name.lower())
                if sink is None:
                    raise unknown_sink(name, self._sinks)
                if name.lower() in outputs:
                    hint = "write one INSERT INTO with UNION ALL, or register the queries' sinks apart"
                    raise PlanError("two queries go to one sink", got=name, hint=hint)
                outputs[name.lower()] = self._planned(query, settings).to(sink[1], name=sink[0])
            if not outputs:
                hint = "write INSERT INTO name SELECT ..."
                raise PlanError("there is no INSERT INTO", got=text.strip(), hint=hint)
        except RecursionError as problem:
            raise _too_deep(text) from problem
        self._set = settings
        return list(outputs.values())

    def _planned(self, tree: Query, settings: dict[str, Any]) -> Stream | ResultStream:
        """Return the plan of a query, which has used up what was set for it."""
        lag_us, within_us, ttl_us = (settings.get(n) for n in ("watermark.lag", "deduplication.within", "state.ttl"))
        tables, clock = dict(self._tables), settings.get("watermark.clock")
        if clock is not None:
            tables = {
                name: attrs.evolve(table, clock=clock) if isinstance(table, RegisteredStream) else table
                for name, table in tables.items()
            }
        left_us, right_us = (settings.get(name) for name in TTL_OF_SIDES)
        env = Env(tables, lag_us, within_us, ttl_us, (left_us, right_us))
        planned = plan(tree, env)
        check_read(tree)
        text = tree.sql("spark")
        if env.lag_us is not None and planned._plan().stateless:
            hint = "SET it right before a query with windows, joins or distinct rows; or write the query again"
            raise self._dropped("watermark.lag", "has no watermark", settings, text, hint)
        if clock is not None and planned._plan().stateless:
            hint = "SET it right before a query with windows, joins or distinct rows; or write the query again"
            raise self._dropped("watermark.clock", "has no watermark", settings, text, hint)
        if env.within_us is not None and "deduplication.within" not in env.used:
            hint = "write SELECT DISTINCT, or ROW_NUMBER() OVER (PARTITION BY id ORDER BY ts) with rn = 1"
            raise self._dropped("deduplication.within", "drops no duplicates", settings, text, hint)
        if env.ttl_us is not None and "state.ttl" not in env.used:
            hint = "SET it right before a query with totals, first rows or a join without a bound of time"
            raise self._dropped("state.ttl", "has no table that changes", settings, text, hint)
        for name in TTL_OF_SIDES:
            if settings.get(name) is not None and name not in env.used:
                hint = "SET it right before a query that joins tables without a bound of time"
                raise self._dropped(name, "has no join of tables", settings, text, hint)
        settings.clear()  # a query that was refused did not use it up
        return planned

    def _dropped(self, name: str, lacks: str, settings: dict[str, Any], text: str, hint: str) -> PlanError:
        """Drop a setting that had no effect, and return the error that says so."""
        if self._set.get(name) == settings[name]:  # and not one that was set in the text
            del self._set[name]
        then = "the setting had no effect, and is dropped"
        return PlanError(f"{name} was set, and the query {lacks}", got=text, then=then, hint=hint)


def _too_deep(text: str) -> PlanError:
    shown = f"{text[:60]}… ({len(text)} characters)"
    return PlanError("the SQL is nested too deeply", got=shown, hint="compute parts of it in a query in brackets")
