"""Process functions: a user's own logic over the rows and the timers of each key, in event time (SEMANTICS §14).

Rows and timers of a key reach the function as one sequence. At equal times the timer comes first::

    key a    row 0 ── row 30 ──────── timer 90 ── row 90 ──►  time
             │ timer("idle", after=60)    ▲
             └──────────── moved by the row at 30

What the function gives depends on this sequence alone, and so not on how rows were cut into batches.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError, SchemaError, failure_text, shown, unknown_column
from krishiv_py.plan.checks import a_function, a_text, is_async, one_of
from krishiv_py.plan.durations import Duration, show_instant, show_us, time_point_us, to_us
from krishiv_py.plan.operation import LateBy, Operation, OperationTraits, ResultTime, passing, refuse_firings
from krishiv_py.plan.options.late import OnError
from krishiv_py.plan.options.query import ExplicitOptions, QueryOptions
from krishiv_py.plan.process_calls import Context, Events, RoundContext, StateColumns
from krishiv_py.plan.row_classes import RecordClass, stored_value

ProcessOrder: TypeAlias = Literal["time", "arrival"]
AtEnd: TypeAlias = Literal["fire", "seen"]
LateRowsTo: TypeAlias = Literal["side_output", "pass"]
MOST_TIMERS: Final = 1_000
"""So many timers of a key may fire with no row between them."""


class RowFunction(Protocol):
    """A process function with a call for each row; ``on_timer`` is needed where it sets timers."""

    def on_row(self, row: Any, state: Any, ctx: Context, /) -> Iterable[Any] | None:
        """Take a row."""


class RoundFunction(Protocol):
    """A process function with a call for the next event of many keys."""

    def on_events(self, events: Events, state: Any, ctx: RoundContext, /) -> None:
        """Take a round."""


ProcessFn: TypeAlias = "RowFunction | RoundFunction | Callable[[Any, Any, Context], Iterable[Any] | None]"


@attrs.frozen(eq=False)
class Callbacks:
    """The calls of a process function.

    Attributes
    ----------
    function : object
        The user's object or function.
    name : str
        Its name in texts.
    version : str
        What a checkpoint knows it by.
    row_class : type or None
        The class that rows come as; None where they come as :class:`~krishiv_py.Row`.
    streams : tuple of (str, type or None)
        The streams of a union that have a call of their own, with the classes of their rows: a row is a pair of its stream and
        what the call gets.
    source : str
        The column with the name of its stream.
    """

    function: Any
    name: str
    version: str
    row_class: type | None
    streams: tuple[tuple[str, type | None], ...] = ()
    source: str = ""

    @property
    def on_events(self) -> Callable[[Events, StateColumns, RoundContext], None] | None:
        """Return the call for a round; None where rows and timers come one by one."""
        method: Callable[[Events, StateColumns, RoundContext], None] | None = getattr(self.function, "on_events", None)
        return method

    @property
    def has_on_row(self) -> bool:
        """Return whether there is a call for a row."""
        return self.on_events is None or callable(getattr(self.function, "on_row", None))

    @property
    def on_row(self) -> Callable[[Any, Any, Context], Iterable[Any] | None]:
        """Return the call for a row."""
        if self.streams:
            calls = {name: getattr(self.function, f"on_{name}") for name, _ in self.streams}
            return lambda row, state, ctx: calls[row[0]](row[1], state, ctx)
        method: Callable[[Any, Any, Context], Iterable[Any] | None] = getattr(self.function, "on_row", self.function)
        return method

    @property
    def on_late(self) -> Callable[[Any, Any, Context], Iterable[Any] | None] | None:
        """Return the call for a late row; None where the function has none."""
        method: Callable[[Any, Any, Context], Iterable[Any] | None] | None = getattr(self.function, "on_late", None)
        return method

    @property
    def on_timer(self) -> Callable[[str, Any, Context], Iterable[Any] | None] | None:
        """Return the call for a timer; None where the function has none."""
        method: Callable[[str, Any, Context], Iterable[Any] | None] | None = getattr(self.function, "on_timer", None)
        return method

    @property
    def on_end(self) -> Callable[[Any, Context], Iterable[Any] | None] | None:
        """Return the call at the end of input; None where the function has none."""
        method: Callable[[Any, Context], Iterable[Any] | None] | None = getattr(self.function, "on_end", None)
        return method


_CALLS: Final = {
    "on_row": ("row", "state", "ctx"),
    "on_timer": ("name", "state", "ctx"),
    "on_late": ("row", "state", "ctx"),
    "on_events": ("events", "state", "ctx"),
    "on_end": ("state", "ctx"),
}
"""The calls of a process function, with what each gets."""
_WRITE: Final = "give an object that has the method on_row, or a function of row, state and context"


def callbacks_of(function: object, version: str | None, streams: Sequence[str] = (), source: str = "") -> Callbacks:
    """Return the calls of a user's process function, over a union of `streams` where rows are of one.

    Raises
    ------
    PlanError
        For a class in place of an object, for what has no ``on_row``, and for ``async def``.
    """
    if inspect.isclass(function):
        raise PlanError("process() takes an object, not its class", got=function.__name__, hint=f"write {function.__name__}()")
    methods = [name for name in ("on_row", "on_events") if callable(getattr(function, name, None))]
    of_streams = [] if methods else [name for name in streams if callable(getattr(function, f"on_{name}", None))]
    if of_streams:
        return _callbacks_of_streams(function, version, streams, source)
    if not methods:
        a_function(function, "not a process function", _WRITE)
        name = getattr(function, "__qualname__", type(function).__name__)
    else:
        name = type(function).__qualname__
    for call, takes in _CALLS.items():
        method: Any = getattr(function, call, None) if methods else function if call == "on_row" else None
        if method is not None:
            _check_call(method, call, takes)
    _check_forms(function)
    if version is not None:
        a_text(version, "version", 'write version="2"')
    on_row: Any = getattr(function, "on_row", getattr(function, "on_late", None)) if methods else function
    return Callbacks(function, name, name if version is None else version, None if on_row is None else _row_class(on_row))


def _callbacks_of_streams(function: object, version: str | None, streams: Sequence[str], source: str) -> Callbacks:
    """Return the calls of a process function that has one for each stream of a union."""
    name = type(function).__qualname__
    for stream in streams:
        call = f"on_{stream}"
        if call in _CALLS:
            hint = f"give the stream another name, or write on_row and look at row.{source}"
            raise PlanError("a stream is called like another call of a process function", got=call, hint=hint)
        if not callable(method := getattr(function, call, None)):
            then, hint = "its rows would go nowhere", f"write {call}(row, state, ctx), or leave the stream out"
            raise PlanError(f"{name} has no call for a stream", got=stream, then=then, hint=hint)
        _check_call(method, call, _CALLS["on_row"])
    for call, takes in _CALLS.items():
        if (method := getattr(function, call, None)) is not None:
            _check_call(method, call, takes)
    if getattr(function, "on_late", None) is not None:
        hint = "leave on_late out, or write on_row"
        raise PlanError("on_late goes with on_row, not with a call for each stream", got=name, hint=hint)
    if version is not None:
        a_text(version, "version", 'write version="2"')
    classes = tuple((stream, _row_class(getattr(function, f"on_{stream}"))) for stream in streams)
    return Callbacks(function, name, name if version is None else version, None, classes, source)


def _check_forms(function: object) -> None:
    """Refuse an object whose calls do not go together."""
    has = {call for call in _CALLS if getattr(function, call, None) is not None}
    if "on_events" not in has:
        return
    for call in ("on_end", "on_late"):
        if call in has:
            hint = f"write it with on_row and on_timer, or leave {call} out"
            raise PlanError(f"{call} goes with on_row, not with on_events", got=type(function).__name__, hint=hint)
    if ("on_row" in has) != ("on_timer" in has):
        then = "some keys would fail, and others not: a key with many rows goes on by on_row and on_timer"
        hint = "write on_row and on_timer, or neither of them"
        raise PlanError("on_events goes with both other calls, or alone", got=type(function).__name__, then=then, hint=hint)


def _check_call(method: Callable[..., object], call: str, takes: tuple[str, ...]) -> None:
    """Refuse a function that cannot take what it gets, or is to be awaited."""
    if is_async(method):
        then = "nobody awaits it: nothing would be done"
        raise PlanError(f"{call} is async", got=f"async def {call}", then=then, hint=f"write it with def {call}")
    try:
        signature = inspect.signature(method)
    except (ValueError, TypeError):  # of a function in C that does not say
        return
    try:
        signature.bind(*takes)
    except TypeError as problem:
        name = getattr(method, "__qualname__", call)
        hint = f"let it take {', '.join(takes[:-1])} and {takes[-1]}"
        raise PlanError(f"{call} gets {len(takes)} values", got=f"{name}{signature}", then=str(problem), hint=hint) from None


def _row_class(on_row: Callable[..., object]) -> type | None:
    """Return the class that the first parameter is annotated with.

    Raises
    ------
    PlanError
        For the name of a class that cannot be looked up.
    """
    try:
        first = next(iter(inspect.signature(on_row).parameters.values()), None)
    except (ValueError, TypeError):  # of a function in C that does not say
        return None
    annotation = None if first is None or first.annotation is first.empty else first.annotation
    while isinstance(annotation, str):  # quoted, or of a module whose annotations are texts, or both
        function: Any = inspect.unwrap(getattr(on_row, "__func__", on_row))
        inside = dict(inspect.getclosurevars(function).nonlocals) if inspect.isfunction(function) else {}
        try:
            annotation = eval(annotation, dict(getattr(function, "__globals__", {})), inside)  # the user's own
        except Exception as problem:  # a name that is imported for type checkers only, or of another function
            then, hint = failure_text(problem), "import the class of rows in the module, or leave the annotation out"
            what = "the class of rows cannot be looked up"
            raise PlanError(what, got=str(annotation), then=then, hint=hint) from problem
    parts = [part for part in typing.get_args(annotation) if part is not type(None)]
    origin = typing.get_origin(annotation)
    if origin in (dict, Mapping, collections.abc.Mapping):
        return dict
    if len(parts) == 1 and origin in (typing.Union, types.UnionType):
        annotation = parts[0]
    return annotation if isinstance(annotation, type) else None


@attrs.frozen(eq=False)
class Processing(Operation):
    """Every key's rows and timers go through a user's function, as one sequence in event time.

    Attributes
    ----------
    callbacks : Callbacks
        The function.
    returns : pyarrow.Schema
        The columns that it gives, after those of the key.
    state : RecordClass or None
        The class of the state of a key.
    order : {"time", "arrival"}
        Whether rows wait until no row before them can come.
    order_by : tuple of str
        The columns that order rows of equal time, nulls last.
    at_end : {"fire", "seen"}
        Whether timers beyond the largest event time fire once when the input ends.
    on_error : {"fail", "side_output"}
        Whether a call that raises stops the query, or its row goes to the late output.
    ttl_us : int or None
        How long state lives after its last write, in event time.
    late : {"side_output", "pass"}
        Whether late rows go to the late output, or to the function.
    renamed : tuple of (str, str)
        Former names of fields of the state, with those that they have now.
    states : pyarrow.Table or None
        The states that keys have when a query begins.
    event_time : str or None
        The column of `returns` that is the event time of results; None: results have the time of the call.
    time : str
        The column that results have the time of the call in.
    """

    kind: ClassVar[str] = "process"
    nature: ClassVar[OperationTraits] = OperationTraits("Process")
    remembers: ClassVar[bool] = True
    by_clock: ClassVar[bool] = True
    waiting: ClassVar[tuple[str, str]] = (
        "nothing waits: no timer is set, and all rows have gone to the function",
        "timers, and rows that are not settled, wait for the watermark",
    )
    late_by: ClassVar[LateBy] = "time"
    callbacks: Callbacks
    returns: pa.Schema
    state: RecordClass | None = None
    order: ProcessOrder = "time"
    order_by: tuple[str, ...] = ()
    at_end: AtEnd = "fire"
    on_error: OnError = "fail"
    ttl_us: int | None = None
    event_time: str | None = None
    time: str = ""
    late: LateRowsTo = "side_output"
    renamed: tuple[tuple[str, str], ...] = ()
    states: pa.Table | None = None

    @property
    def initial(self) -> pa.Table | None:
        return self.states

    @property
    def has_clock_deadlines(self) -> bool:
        return self.callbacks.on_events is not None or self.callbacks.on_timer is not None

    @property
    def renamed_fields(self) -> Mapping[str, str]:
        return dict(self.renamed)

    @property
    def goes_by_arrival(self) -> bool:
        return self.order == "arrival"

    @property
    def reads_marks(self) -> bool:
        return self.goes_by_arrival or self.takes_late

    @property
    def takes_late(self) -> bool:
        return self.late == "pass"

    def identity(self) -> dict[str, str]:
        of_function = {"function": self.callbacks.version, "order": self.order, "order_by": repr(self.order_by)}
        return of_function | ({} if self.ttl_us is None else {"ttl_us": repr(self.ttl_us)})

    def describe(self) -> str:
        name = self.callbacks.name
        alive = "" if self.ttl_us is None else f", state for {show_us(self.ttl_us)} after its last write"
        return f"{name} over rows and timers of a key in order of {self.order}{alive}"

    def warnings(self) -> tuple[str, ...]:
        texts = []
        if self.order != "time":
            what = 'with order="arrival" results depend on the order in which rows come'
            texts.append(f'{what}, and, but for clock="row", on their batches; order="time" gives the same for every cut')
        if self.takes_late:
            texts.append('with late="pass" what on_late gives, and does to state, depends on how rows come in batches')
        return tuple(texts)

    def result_time(self, time_column: str) -> ResultTime | None:
        return ResultTime("row", self.time if self.event_time is None else self.event_time)

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        return explicit.filled(emit="final")

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options`: see :class:`~krishiv_py.plan.operation.Operation`."""
        refuse_firings(options, "a process function", "a result is given once, and is never taken back")
        if options.ttl is not None:
            hint = 'write .process(..., ttl="1 day")'
            raise PlanError("the time to live of a process function is its own", got=options.describe(), hint=hint)

    def unwaiting(self) -> str | None:
        if self.order == "time":
            return None
        return "rows go to the function in the micro-batch in which they arrive"

    def key_text(self, row: Mapping[str, Any]) -> str | None:
        parts = []
        for kind, by in (("timers", ""), ("clock_timers", " by the clock")):
            due = sorted(
                (time_point_us(at, "at"), name) for name, at in row[f"state_{kind}" if f"state_{kind}" in row else kind]
            )
            parts += [f"the timer {name!r} is due at {show_instant(us)}{by}" for us, name in due]
        held = row["state_held_rows" if "state_held_rows" in row else "held_rows"]
        return "; ".join([*parts, waiting_rows(held)] if held or not parts else parts)

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return tuple(f.name for f in passing(row) if f.name not in self.keys or pa.types.is_floating(f.type))

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        keys = [row.field(k) for k in self.keys]
        time = [] if self.event_time is not None else [pa.field(self.time, bound)]
        return [*keys, *time, *self.returns]


def waiting_rows(held: int) -> str:
    """Return how many rows of a key wait until they are settled."""
    if held == 1:
        return "1 row waits until no row before it can come"
    return f"{held} rows wait until no row before them can come" if held else "no timer is set, and no row waits"


def processing(
    function: object,
    returns: pa.Schema,
    state: RecordClass | None,
    *,
    order: ProcessOrder,
    order_by: tuple[str, ...],
    at_end: AtEnd,
    on_error: OnError,
    ttl: Duration | None,
    event_time: str | None,
    time: str,
    version: str | None,
    late: LateRowsTo,
    renamed: Mapping[str, str] | None,
    initial: pa.Table | None,
    streams: Sequence[str] = (),
    source: str = "",
) -> Processing:
    """Return a checked :class:`Processing`."""
    one_of(late, "late", ("side_output", "pass"))
    one_of(at_end, "at_end", ("fire", "seen"))
    one_of(on_error, "on_error", ("fail", "side_output"))
    callbacks = callbacks_of(function, version, streams, source)
    order_by = order_by or ((source,) if callbacks.streams and order == "time" else ())
    if (callbacks.on_late is not None) != (late == "pass"):
        got, hint = f"{callbacks.name} without on_late", 'give the function the method on_late, or leave late="pass" out'
        if callbacks.on_late is not None:
            got, hint = f'{callbacks.name} with on_late, and late="{late}"', 'write late="pass", or leave on_late out'
        raise PlanError("late rows go to on_late, or to the late output", got=got, hint=hint)
    return Processing(
        callbacks,
        returns,
        state,
        order,
        order_by,
        at_end,
        on_error,
        None if ttl is None else to_us(ttl, "ttl"),
        event_time,
        time,
        late,
        _renamed(renamed, [] if state is None else state.schema.names),
        initial,
    )


def initial_states(given: Mapping[str, list[Any]], keys: Sequence[pa.Field], state: RecordClass | None) -> pa.Table:
    """Return states that keys begin with, in the types of the key and the state; fields that are not given have defaults.

    Raises
    ------
    PlanError
        Without a class of state, and for two states of one key.
    SchemaError
        For a column that is missing, is none of them, or has values that its type does not hold.
    """
    if state is None:
        raise PlanError(
            "initial states need a class of state", got="initial= without state=", hint="give the class: state=Seen"
        )
    fields = [*keys, *state.schema]
    names, wanted = [field.name for field in keys], [field.name for field in fields]
    for name in given:
        if name not in wanted:
            raise unknown_column(name, wanted, "process(initial=)")
    given = given or {name: [] for name in wanted}
    default = state.written([state.new()])
    columns = []
    for field in fields:
        if field.name in names and field.name not in given:
            hint = f"give {', '.join(names)}, and fields of the state"
            raise SchemaError("initial states lack a column of the key", got=f"no column {field.name}", hint=hint)
        values = given[field.name] if field.name in given else default[field.name] * len(next(iter(given.values())))
        try:
            columns.append(pa.array([stored_value(value, field.type) for value in values], field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError) as problem:
            hint = f"give {field.name} as {field.type}"
            raise SchemaError("initial states do not fit", got=failure_text(problem), hint=hint) from problem
    table = pa.Table.from_arrays(columns, names=wanted)
    counts = table.group_by(names).aggregate([([], "count_all")]) if names else None
    several = table.num_rows > 1 if counts is None else counts.num_rows < table.num_rows
    if several:
        then, hint = "it could not be said which of them it has", "give one row for each key"
        raise PlanError("a key has two initial states", got=f"{table.num_rows} rows", then=then, hint=hint)
    return table


def _renamed(renamed: object, fields: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return former names of fields with those that they have now."""
    if renamed is None:
        return ()
    hint = 'write renamed={"orders": "count"}, the former name with the one that the field has now'
    if not isinstance(renamed, Mapping):
        raise PlanError("`renamed` is not a dictionary of names", got=shown(renamed), hint=hint)
    for old, new in renamed.items():
        a_text(old, "renamed", hint)
        if a_text(new, "renamed", hint) not in fields:
            raise unknown_column(new, fields, "process(renamed=)")
        if old in fields:
            then = "it could not be said whose values these were"
            raise PlanError(
                "a field was renamed, and is there", got=f"state.{old}", then=then, hint=f"leave {old!r} out of renamed="
            )
    return tuple(renamed.items())
