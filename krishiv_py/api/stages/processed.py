"""The user's own logic by key: process functions with state and timers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from krishiv_py.api.computed import with_computed
from krishiv_py.api.options import OptionMethods
from krishiv_py.api.planning import evaluate
from krishiv_py.api.several import side_by_side
from krishiv_py.connectors.lookup_table import LookupTable
from krishiv_py.display import arrivals
from krishiv_py.errors import RAISED, ColumnError, PlanError, SourceError, failure_text, shown, unknown_column
from krishiv_py.plan.absence import ANNOUNCED, COLUMNS, AbsenceClock, absence, expected_keys
from krishiv_py.plan.changes import CHANGE
from krishiv_py.plan.checks import a_function, a_text, is_collection, one_of
from krishiv_py.plan.durations import Duration, TimePoint, to_us
from krishiv_py.plan.expressions.expr import Expr, col, lit, unnamed, when
from krishiv_py.plan.nodes import Project, StageDraft, UnionSource, source_of
from krishiv_py.plan.operation import passing
from krishiv_py.plan.options.late import DefaultLateEventHandler, OnError
from krishiv_py.plan.options.query import ExplicitOptions
from krishiv_py.plan.processing import AtEnd, LateRowsTo, ProcessFn, ProcessOrder, initial_states, processing
from krishiv_py.plan.row_classes import as_values, check_row_class, row_fields, state_class
from krishiv_py.plan.schema import RESERVED, SchemaLike, as_schema, check_key_type

if TYPE_CHECKING:
    from krishiv_py.api.stages.results import ResultStream


@attrs.frozen(eq=False, repr=False)
class ProcessMethods(OptionMethods):
    """A stage whose rows can go through a user's own logic."""

    def absent(
        self,
        after: Duration,
        *,
        repeat: Duration | None = None,
        recovered: bool = True,
        forget_after: Duration | None = None,
        at_end: AtEnd = "seen",
        expected: Any = None,
        start: TimePoint | None = None,
        reload: Duration | None = None,
        idle_timeout: Duration | None = None,
        clock: AbsenceClock = "event",
    ) -> ResultStream:
        """Report keys of which no row has come for a length of event time: a dead man's switch (SEMANTICS §14.7).

        A key is absent from `after` behind its last row on, if no accepted row of it lies in between, and that is known: when
        the watermark, less the allowed lateness, has come so far. So a row that arrives out of order raises no false alarm.
        Only keys that were seen are watched, and those that are `expected`.

        Parameters
        ----------
        after : int or timedelta or str
            How long without a row; ``int`` is milliseconds. A row exactly so long after another one comes too late.
        repeat : int or timedelta or str, optional
            How often an absent key is reported again.
        recovered : bool
            Report the row that ends an absence, too.
        forget_after : int or timedelta or str, optional
            How long after its last row a key leaves state; it is reported as ``forgotten``. Without it absent keys stay.
        at_end : {"seen", "fire"}
            When the input ends, report only what is due up to the largest event time, as the end of a file is no evidence of
            silence, or every key once.
        expected : list or table or frame or stream or Expr or callable, optional
            Keys that should be there, also before their first row: a list of keys, of dicts or tuples where the key has several
            columns; a table with the columns of the key; or a function that gives one of these, and is called here. One that
            was never seen is absent `after` behind `start`, with a null for ``last_seen``. With another list a query that goes
            on watches the new keys from then on, and those that are gone no more. A keyed stream gives a key with each row, and
            a table of changes, such as ``changes.watermark("since", 0).from_changelog("upsert", key="device")``, takes keys
            back, too: they are watched from the time of the row on, and no more from that of their deletion on. An expression
            is true in the rows of this stream that name keys, ``col("source") == "devices"`` of a union. Such rows show no
            life, and come before other rows of their time.
        start : time, optional
            Since when the keys of a list are watched; the first watermark unless given.
        reload : int or timedelta or str, optional
            Call the function of `expected` again so long after it was called last, by the clock on record. What has changed
            counts from the watermark of the next batch on.
        idle_timeout : int or timedelta or str, optional
            Let no stream of expected keys, and no rows, hold the watermark back that have been silent for longer than this
            (processing time).
        clock : {"event", "processing", "both"}
            By event time; by the processing time on record, so that keys are reported while no row comes at all; or by event
            time, and by the clock for the whole input: ``no_input`` with a null key when the watermark has not moved for
            `after`, ``input`` when it moves again. Reports by the clock have its times.

        Returns
        -------
        ResultStream
            The key, the time of the report in the time column, ``state`` (``absent``, ``recovered``, ``forgotten``, and with
            ``clock="both"`` ``no_input`` and ``input``), ``since``, the first time at which the key was absent, ``last_seen``,
            and ``missing``, the time since then: milliseconds for ``bigint``, else a duration.

        Raises
        ------
        DurationError
            For zero and negative lengths, and a `forget_after` below `after`.
        PlanError
            For options that do not apply.
        ColumnError
            For a key that is called like a column of the results.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> beats = stream_of("device string, at bigint").watermark("at", 0).key_by("device")
        >>> driver = Driver(beats.absent("60 s", repeat="30 s"))
        >>> sent = [("a", 0), ("b", 95_000), ("a", 96_000)]
        >>> rows = driver.send([{"device": device, "at": at} for device, at in sent]).results
        >>> [(row["device"], row["at"], row["state"], row["missing"]) for row in rows.to_pylist()]
        [('a', 60000, 'absent', 60000), ('a', 90000, 'absent', 90000)]
        """
        time = self._draft.input.column
        if doubled := [key for key in self._draft.keys if key in COLUMNS]:
            hint = f'give the key another name: .key_by(col("{doubled[0]}").alias("device"))'
            raise ColumnError("a key has the name of a column of the results", got=shown(doubled[0]), hint=hint)
        if time in COLUMNS:
            hint = f'give it another name before .watermark(...): .rename({time}="at")'
            raise ColumnError("the time column has the name of a column of the results", got=shown(time), hint=hint)
        self._no_time_in_key(time)
        draft, keys, announced = self._draft, None, None
        if reload is not None and (not callable(expected) or isinstance(expected, Expr)):
            hint = "pass a function that returns the keys, or leave `reload` out"
            raise PlanError("keys that are loaded again need a function that loads them", got=shown(expected), hint=hint)
        if idle_timeout is not None and not isinstance(expected, OptionMethods):
            hint = "pass expected keys as a stream, or leave idle_timeout out"
            raise PlanError("`idle_timeout` is for a stream of expected keys", got=shown(expected), hint=hint)
        if expected is not None and not isinstance(expected, Expr) and not draft.keys:
            then, hint = "all rows are of one key", "write .key_by(...), or leave expected out"
            raise PlanError("expected keys need a key", got="a stream without keys", then=then, hint=hint)
        if isinstance(expected, OptionMethods):
            draft, announced = _with_list(self, expected, idle_timeout), ANNOUNCED
        elif isinstance(expected, Expr):
            schema, announced = self._row_schema(), ANNOUNCED
            if not pa.types.is_boolean(type_ := evaluate.expr_type(expected, schema)):
                hint = 'write a condition: expected=col("source") == "devices"'
                raise PlanError("`expected` is no condition", got=f"{expected!r} {type_}", hint=hint)
            draft = attrs.evolve(draft, input=with_computed(draft.input, schema, [(announced, when(unnamed(expected), 1))]))
        elif expected is not None:
            keys = _table_of_keys(expected, [self._row_schema().field(key) for key in draft.keys], reload)
        operation = absence(
            after,
            repeat=repeat,
            forget_after=forget_after,
            recovered=recovered,
            at_end=at_end,
            time=time,
            expected=None if keys is None else keys.current,
            expected_text="" if keys is None else _keys_text(keys),
            announced=announced,
            start=start,
            clock=clock,
        )
        return self._results(draft.doing(operation))

    def process(
        self,
        function: ProcessFn,
        *,
        returns: SchemaLike,
        state: type[Any] | None = None,
        order: ProcessOrder = "time",
        order_by: str | Sequence[str] = (),
        at_end: AtEnd = "fire",
        on_error: OnError = "fail",
        ttl: Duration | None = None,
        event_time: str | None = None,
        version: str | None = None,
        late: LateRowsTo = "side_output",
        renamed: Mapping[str, str] | None = None,
        initial: Any = None,
    ) -> ResultStream:
        """Call a function of your own for the rows and the timers of each key, in order of event time (SEMANTICS §14).

        A row is settled when no accepted row before it can come: when it is more than the allowed lateness behind the
        watermark. Settled rows and due timers of a key reach the function as one sequence, at equal times the timer first. So
        results are the same however rows came in batches, over restarts, on every engine.

        Parameters
        ----------
        function : object
            An object with ``on_row(row, state, ctx)`` and, where it sets timers, ``on_timer(name, state, ctx)``; or a
            function of row, state and context. Over several streams that :func:`~krishiv_py.connect` made one, there may be a
            call for each in place of ``on_row``: ``on_orders`` of a stream ``orders``. All give rows: they are generators, or
            return a list or None. A row comes as the class that the first parameter is annotated with, else as
            :class:`~krishiv_py.Row`. An optional ``on_end(state, ctx)`` is called once for each key with state, when the input
            has ended.
        returns : schema
            The columns of the rows that it gives: a text such as ``"orders bigint"``, an Arrow schema or a class.
        state : type, optional
            The class of the state of a key: a dataclass, an attrs class, a TypedDict or a pydantic model, whose fields have
            defaults or are nullable. A new one is made at the first row of a key.
        order : {"time", "arrival"}
            Wait until rows are settled, or call the function for the rows of a batch as they arrive, and for timers after them:
            then results depend on arrival. With ``clock="row"`` timers fire before the first row that comes when their time is
            over, so results depend on the order of the rows of each key, and not on batches.
        order_by : str or sequence of str
            Columns that order rows of equal time, ascending, nulls last; then rows go by arrival.
        at_end : {"fire", "seen"}
            When the input ends: fire the timers that are left once, or only those up to the largest event time. What is
            dropped is counted as ``timers_dropped``.
        on_error : {"fail", "side_output"}
            Stop the query when the function raises, or send the row to the late output and undo what the call did.
        ttl : int or timedelta or str, optional
            Forget the state of a key so long after it was written last, by event time; ``int`` is milliseconds. A call writes
            it where it leaves other values in its fields, or makes it.
        event_time : str, optional
            The column of `returns` that is the event time of results; never before the time of the call. Without it results
            have the time of the call, in a column that is called like the time column.
        version : str, optional
            What a checkpoint knows the function by; its qualified name unless given. A query whose function has another one
            does not go on from the state of this one.
        late : {"side_output", "pass"}
            Send late rows to the late output, or give them to ``on_late(row, state, ctx)``, after the other calls of the batch
            for their key: then what it gives depends on how rows come in batches. With ``clock="row"`` which rows these are
            does not.
        renamed : mapping, optional
            Former names of fields of the state, with those that they have now: ``{"orders": "count"}``. State of a savepoint
            is read by the former name where it has one. It may stay in the plan.
        initial : pyarrow.Table or frame or list of dict, optional
            States that keys have when a query begins: the columns of the key, and fields of the state; others have their
            defaults. A query that goes on from a checkpoint or a savepoint has its own.

        Returns
        -------
        ResultStream
            The columns of the key, the time, and those of `returns`. It can be run, or be windowed, joined and processed in
            another stage.

        Raises
        ------
        PlanError
            For what is no function, a class in place of an object, ``async def``, and options that do not apply.
        SchemaError
            For a class with types that no column can have.
        ColumnError
            For columns that do not exist, and names of `returns` that the key or the time has.

        Examples
        --------
        >>> import attrs
        >>> from krishiv_py.testing import Driver, stream_of
        >>> @attrs.define
        ... class Seen:
        ...     orders: int = 0
        >>> class Idle:
        ...     def on_row(self, row, state, ctx):
        ...         state.orders += 1
        ...         ctx.timer("idle", after="10 minutes")
        ...     def on_timer(self, name, state, ctx):
        ...         yield {"orders": state.orders}
        ...         ctx.forget()
        >>> orders = stream_of("user string, at bigint").watermark("at", "5 s")
        >>> idle = orders.key_by("user").process(Idle(), returns="orders bigint", state=Seen)
        >>> driver = Driver(idle)
        >>> _ = driver.send([{"user": "a", "at": 0}, {"user": "a", "at": 60_000}])
        >>> driver.close().results.to_pylist()
        [{'user': 'a', 'at': 660000, 'orders': 2}]
        """
        time = self._draft.input.column
        rows = passing(self._row_schema())
        hint = 'write order_by="id", or several columns'
        columns = [order_by] if isinstance(order_by, str) or not is_collection(order_by) else list(order_by)
        known = [f.name for f in rows]
        for name in columns:
            if a_text(name, "order_by", hint) not in known:
                raise unknown_column(name, known, "process(order_by=)")
        given = as_schema(returns)
        if event_time is not None and a_text(event_time, "event_time", "name a column of `returns`") not in given.names:
            raise unknown_column(event_time, given.names, "process(event_time=)")
        if event_time is not None and given.field(event_time).type != self._row_schema().field(time).type:
            got, type_ = f"{event_time} {given.field(event_time).type}", self._row_schema().field(time).type
            raise PlanError("the event time of results has the type of the time column", got=got, hint=f"declare it as {type_}")
        self._no_time_in_key(time)
        one_of(order, "order", ("time", "arrival"))
        if columns and order == "arrival":
            hint = 'leave order_by out, or write order="time"'
            raise PlanError("rows go by arrival, or by columns", got=f'order="arrival", order_by={columns}', hint=hint)
        for name in columns:
            check_key_type(name, self._row_schema().field(name).type, meant="ordered")
        taken = {*self._draft.keys, *(() if event_time is not None else (time,))}
        if doubled := [name for name in given.names if name in taken]:
            then = "results have the key and the time of the call anyway"
            hint = f'leave it out of `returns`, or write event_time="{doubled[0]}"' if doubled[0] == time else "leave it out"
            raise ColumnError("a column of `returns` is the key or the time", got=shown(doubled[0]), then=then, hint=hint)
        record = None if state is None else state_class(state, as_schema)
        keys = [self._row_schema().field(key) for key in self._draft.keys]
        source = source_of(self._draft.input.input)
        union = source if isinstance(source, UnionSource) and source.source_column in known else None
        operation = processing(
            function,
            given,
            record,
            order=order,
            order_by=tuple(columns),
            at_end=at_end,
            on_error=on_error,
            ttl=ttl,
            event_time=event_time,
            time=time,
            version=version,
            late=late,
            renamed=renamed,
            initial=None if initial is None else initial_states(_columns_of(initial), keys, record),
            streams=[] if union is None else [name for name, _ in union.parts],
            source="" if union is None else union.source_column,
        )
        if doubled := [f.name for f in operation.state_fields if f.name in self._draft.keys]:
            hint = "give the field another name: ctx.key has the key"
            raise ColumnError("a field of state has the name of a key", got=shown(doubled[0]), hint=hint)
        for kind in (operation.callbacks.row_class, *(kind for _, kind in operation.callbacks.streams)):
            if kind is None:
                continue
            for name in row_fields(kind) or ():
                if name not in known:
                    raise unknown_column(name, known, f"process(): {kind.__name__}")
            check_row_class(kind)
        return self._results(self._draft.doing(operation))

    def _no_time_in_key(self, time: str) -> None:
        if time in self._draft.keys:
            then = "results have the time of their call in this column, and not that of the key"
            hint = f'write .key_by(col("{time}").alias("key"))'
            raise ColumnError("the time column is a key", got=shown(time), then=then, hint=hint)


def _with_list(stream: OptionMethods, given: OptionMethods, idle_timeout: Duration | None) -> StageDraft:
    """Return the rows of a stream, and those of a stream or a table of changes that say which keys are expected."""
    draft = stream._draft
    stage: StageDraft | None = getattr(given, "_stage", None)
    if stage is not None:
        operation, steps = stage.operation, getattr(given, "_steps", None)
        if operation is None or not operation.changes_rows or steps or not stage.input.column:
            hint = (
                'write .key_by("device") on it, or pass changes.watermark("at", "5 s").from_changelog("upsert", key="device")'
            )
            raise PlanError(
                "`expected` takes keyed streams, and tables of changes with event time", got=shown(given), hint=hint
            )
    draft_of_keys = given._draft if stage is None else attrs.evolve(stage, operation=None)
    change: Expr = lit(1) if stage is None else when(col(CHANGE), 1).when(~col(CHANGE), 0).otherwise(2)
    mark = draft_of_keys.input
    columns = tuple((name, col(name)) for name in (*draft_of_keys.keys, mark.column))
    node = Project(mark.input, (*columns, (ANNOUNCED, change.cast("bigint"))), picks=True)
    of_keys = OptionMethods(attrs.evolve(draft_of_keys, input=attrs.evolve(mark, input=node)), given._runner)
    unset = attrs.evolve(draft, explicit=ExplicitOptions(), late_handler=DefaultLateEventHandler())
    streams = {"rows": OptionMethods(unset, stream._runner), "expected": of_keys}
    both = side_by_side(streams, f"{RESERVED}of", (ANNOUNCED,))
    if idle_timeout is not None:
        idle_us = to_us(idle_timeout, "idle_timeout")
        spec: Any = both.input.spec
        both = attrs.evolve(both, input=attrs.evolve(both.input, spec=attrs.evolve(spec, idle_timeout_us=idle_us)))
    return attrs.evolve(both, explicit=draft.explicit, late_handler=draft.late_handler)


def _table_of_keys(given: Any, fields: Sequence[pa.Field], reload: Duration | None) -> LookupTable:
    """Return the table of expected keys, which a function may load again."""
    reload_us = None if reload is None else to_us(reload, "reload")
    load = a_function(given, "`expected` takes keys, or a function that gives them", "") if callable(given) else None

    def loaded() -> pa.Table:
        return expected_keys(_keys_of(given if load is None else _loaded(load), [field.name for field in fields]), fields)

    loaded.__name__ = getattr(load, "__name__", "table")
    table = loaded()
    if reload_us is None:
        return LookupTable(table.schema, table)
    return LookupTable(table.schema, None, loaded, reload_us, driver_only=True, what="the table of expected keys")


def _keys_text(keys: LookupTable) -> str:
    """Return the keys of a table for people."""
    return f"those of {keys.name}" if keys.table is None else f"{keys.table.num_rows} of them"


def _loaded(load: Callable[[], Any]) -> Any:
    """Return what a function of expected keys gives."""
    try:
        return load()
    except RAISED as problem:  # user code: whatever it raises is reported
        hint = "let it take nothing, and return a list of keys: it is called here"
        raise SourceError("expected keys cannot be loaded", got=failure_text(problem), hint=hint) from problem


def _keys_of(given: Any, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the columns of expected keys: values of the only key column, tuples, rows or a table."""
    if isinstance(given, (str, bytes)):
        hint = f"write expected=[{given!r}]"
        raise PlanError("`expected` is a text, and no list of keys", got=shown(given), hint=hint)
    if isinstance(given, (list, tuple, set, frozenset)):
        items = list(given)
        if len(names) == 1 and not any(isinstance(as_values(item), dict) for item in items):
            return {names[0]: items}
        if all(isinstance(item, tuple) and len(item) == len(names) for item in items):
            return {name: [item[place] for item in items] for place, name in enumerate(names)}
        return _columns_of(items, "expected")
    return _columns_of(given, "expected")


def _columns_of(rows: Any, what: str = "initial") -> dict[str, list[Any]]:
    """Return the columns of a table, or of a list of rows, as Python lists: a dict is a map, or an object of a class."""
    listed = [as_values(row) for row in rows] if isinstance(rows, (list, tuple)) else None
    if listed is not None and all(isinstance(row, dict) for row in listed):
        return {name: [row.get(name) for row in listed] for name in dict.fromkeys(name for row in listed for name in row)}
    table = arrivals.as_table(rows, what)
    return {name: table[name].to_pylist() for name in table.column_names}
