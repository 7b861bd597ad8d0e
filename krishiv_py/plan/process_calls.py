"""Rows, events of rounds, state as columns and the context, as the calls of a process function get them."""

from __future__ import annotations

import collections
import copy
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.errors import PlanError, shown, unknown_column
from krishiv_py.plan.checks import a_text, one_of
from krishiv_py.plan.durations import END_OF_TIME, MAX_TIME_MS, MAX_TIME_US, Duration, TimePoint, time_point_us, to_us
from krishiv_py.plan.names import encodable
from krishiv_py.plan.row_classes import RecordClass, row_fields
from krishiv_py.plan.schema import TimeKind

if TYPE_CHECKING:
    from krishiv_py.arrays.types import Ints, Mask

Objects: TypeAlias = "npt.NDArray[Any]"
"""An array of any type."""
_EVENT: Final = "event"
CLOCK: Final = "\x00"
"""With this the names of timers by the clock begin, next to those by event time."""
_ZERO: Final = dt.datetime(1970, 1, 1)
_ZERO_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_US: Final = dt.timedelta(microseconds=1)


def time_of(time_us: int, kind: TimeKind) -> Any:
    """Return a time in µs as a value of a time column: milliseconds, or a datetime with or without UTC."""
    if kind == "bigint_ms":
        return time_us // 1_000
    return (_ZERO_UTC if kind == "timestamp" else _ZERO) + time_us * _US


def _is_name(name: object) -> bool:
    """Return whether a timer can be called so: by a text that a column holds."""
    return isinstance(name, str) and name[:1] != CLOCK and encodable(name)


def _check_reason(reason: object, hint: str) -> None:
    """Refuse what is no text that the late output can hold."""
    if not isinstance(reason, str) or not reason or not encodable(reason):
        raise PlanError("a row is refused with a reason", got=shown(reason), hint=hint)


def _check_timer(name: object, after: object, at: object, clock: object) -> None:
    """Refuse a timer without a name, without a time or with two, and of another clock."""
    one_of(clock, "clock", ("event", "processing"))
    hint = 'write ctx.timer("idle", after="10 minutes")'
    if not _is_name(name):
        raise PlanError("a timer has a name", got=shown(name), hint=hint)
    if (after is None) == (at is None):
        raise PlanError("a timer has one time: `after` or `at`", got="neither" if after is None else "both", hint=hint)


class Context:
    """The key, the time and the timers of one call of a process function.

    A query makes it. A test of a function may make one: ``Context("a", 1_000)``.

    Parameters
    ----------
    key : object
        The value of the key column; of several a tuple; None without a key.
    time : int or datetime
        The event time of the call, of the type of the time column: milliseconds for ``bigint``.
    clock : datetime, optional
        The processing time on record of the batch.

    Examples
    --------
    >>> from krishiv_py import Context
    >>> ctx = Context("a", 1_000)
    >>> ctx.timer("idle", after="10 minutes")
    >>> ctx.timers
    {'idle': 601000}
    """

    __slots__ = (
        *("_closing", "_dropped", "_due", "_fires", "_forgotten", "_kind", "_lengths", "_now", "_now_us", "_refused"),
        *("_clocked", "_named", "_open", "_replaced", "_soonest", "_state", "_touched", "clock", "key"),
    )

    def __init__(self, key: Any = None, time: TimePoint = 0, clock: dt.datetime | None = None) -> None:
        self._lengths: dict[str, int] = {}
        self._named: set[str] = set()
        """Names that were set before, and so are names."""
        self._state: Any = None
        self._now = time_point_us(time, "time")
        self.key = key
        self.clock = clock
        if clock is not None and not isinstance(clock, dt.datetime):
            hint = "leave it out, or pass a datetime with a time zone"
            raise PlanError("`clock` is not a datetime", got=shown(clock), hint=hint)
        now_us = None if clock is None else time_point_us(clock, "clock")
        kind: TimeKind = "bigint_ms"
        if isinstance(time, dt.datetime):
            kind = "timestamp_ntz" if time.tzinfo is None else "timestamp"
        self._begin(kind, fires=True, now_us=now_us)
        self._enter({})

    def _begin(self, kind: TimeKind, *, fires: bool, now_us: int | None) -> None:
        """Prepare for a step: the kind of times, whether timers can fire, and the processing time on record."""
        self._kind: TimeKind = kind
        self._fires = self._open = fires
        self._now_us = now_us
        self._clocked = False
        self._close(closing=False)

    def _enter(self, due: dict[str, int]) -> None:
        """Prepare for the calls of a key with these timers, µs."""
        self._due = due
        self._touched = self._forgotten = self._replaced = False
        self._close(closing=False)
        self._refused: str | None = None
        self._least()

    def _least(self) -> int:
        """Find again when the first timer by event time is due."""
        due = self._due
        if not due:
            self._soonest = END_OF_TIME
        elif not self._clocked:
            self._soonest = min(due.values())
        else:
            self._soonest = min((us for name, us in due.items() if name[:1] != CLOCK), default=END_OF_TIME)
        return self._soonest

    def _close(self, *, closing: bool) -> None:
        """Drop the timers that are set from now on, and count them; or do not any more."""
        self._closing, self._dropped = closing, 0
        self._open = self._fires and not closing

    def _pop_state(self) -> Any:
        state, self._state, self._replaced = self._state, None, False
        return state

    @property
    def time(self) -> Any:
        """The event time of the row or the timer, of the type of the time column; in order of time it never goes back.

        Examples
        --------
        >>> from krishiv_py import Context
        >>> Context("a", 1_000).time
        1000
        """
        return time_of(self._now, self._kind)

    @property
    def timers(self) -> Mapping[str, Any]:
        """The timers of the key that are set, with their times; those by the clock have a datetime."""
        return {
            name.removeprefix(CLOCK): time_of(us, "timestamp" if name[:1] == CLOCK else self._kind)
            for name, us in self._due.items()
        }

    @property
    def state(self) -> Any:
        """The state that this call gave in place of the one that it got; to be set where the class cannot be changed.

        Examples
        --------
        >>> import attrs
        >>> @attrs.frozen
        ... class Seen:
        ...     orders: int = 0
        >>> def count(row, state, ctx):
        ...     ctx.state = attrs.evolve(state, orders=state.orders + 1)
        """
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self._state = state
        self._replaced = self._touched = True

    def timer(
        self,
        name: str,
        *,
        after: Duration | None = None,
        at: TimePoint | None = None,
        clock: Literal["event", "processing"] = _EVENT,
    ) -> None:
        """Set a timer of the key, or move the one of this name.

        Parameters
        ----------
        name : str
            Its name; a key has one timer of a name.
        after : int or timedelta or str, optional
            How long after :attr:`time`, or :attr:`clock`; ``int`` is milliseconds.
        at : int or datetime, optional
            When, of the type of the time column. One at or before :attr:`time` is the next call of the key.
        clock : {"event", "processing"}
            Whether it fires by event time, or by the processing time on record, after the other calls of its key.

        Raises
        ------
        PlanError
            Without a name, with no time or two, and where the function has no ``on_timer``.

        Examples
        --------
        >>> from krishiv_py import Context
        >>> ctx = Context("a", 1_000)
        >>> ctx.timer("idle", after="2 s")
        >>> ctx.timer("due", at=9_000)
        >>> ctx.timers
        {'idle': 3000, 'due': 9000}
        """
        length = self._lengths.get(after) if type(after) is str else None
        if length is not None and at is None and clock is _EVENT and self._open and type(name) is str and name in self._named:
            self._set(name, self._now + length)
            return
        _check_timer(name, after, at, clock)
        if not self._fires:
            hint = "write a class that has the method on_timer, too"
            raise PlanError("a timer is set, and the function has no on_timer", got=shown(name), hint=hint)
        if self._closing:
            self._dropped += 1
            return
        now_us = self._now
        if clock != "event":
            if self._now_us is None:
                raise PlanError("no processing time is on record", got=shown(name), hint="give the context of a test a clock")
            self._due[f"{CLOCK}{name}"] = time_point_us(at, "at") if at is not None else self._now_us + self._length(after)
            self._clocked = True
            return
        self._set(name, time_point_us(at, "at") if at is not None else now_us + self._length(after))
        self._named.add(name)

    def _set(self, name: str, due_us: int) -> None:
        due = self._due
        before_us = due.get(name)
        due[name] = due_us
        if due_us <= self._soonest or len(due) == 1:
            self._soonest = due_us
        elif before_us == self._soonest:
            self._least()

    def _put(self, name: str, due_us: int) -> None:
        """Set a timer by its stored name, or count it where the input has ended."""
        if self._closing:
            self._dropped += 1
        elif name[:1] == CLOCK:
            self._due[name], self._clocked = due_us, True
        else:
            self._set(name, due_us)

    def _length(self, after: Duration | None) -> int:
        assert after is not None
        if type(after) is not str:
            return to_us(after, "after", allow_zero=True)
        length = self._lengths.get(after)
        if length is None:
            length = self._lengths[after] = to_us(after, "after", allow_zero=True)
        return length

    def cancel(self, name: str, *, clock: Literal["event", "processing"] = "event") -> None:
        """Remove a timer of the key.

        Parameters
        ----------
        name : str
            Its name; without such a timer nothing happens.
        clock : {"event", "processing"}
            The clock that it goes by.

        Examples
        --------
        >>> from krishiv_py import Context
        >>> ctx = Context("a", 1_000)
        >>> ctx.timer("idle", after="2 s")
        >>> ctx.cancel("idle")
        >>> ctx.timers
        {}
        """
        one_of(clock, "clock", ("event", "processing"))
        a_text(name, "name", 'write ctx.cancel("idle")')
        if self._due.pop(name if clock == "event" else f"{CLOCK}{name}", None) is not None:
            self._least()

    def forget(self) -> None:
        """Drop the state and the timers of the key.

        Examples
        --------
        >>> from krishiv_py import Context
        >>> ctx = Context("a", 1_000)
        >>> ctx.timer("idle", after="2 s")
        >>> ctx.forget()
        >>> ctx.timers
        {}
        """
        self._forgotten = self._touched = True
        self._due.clear()
        self._soonest = END_OF_TIME

    def refuse(self, row: Any, reason: str) -> None:
        """Send the row of this call to the late output; what the call did to state and timers, and its results, is undone.

        Parameters
        ----------
        row : object
            The row.
        reason : str
            What the late output says of it.

        Raises
        ------
        PlanError
            Without a reason.

        Examples
        --------
        >>> class Positive:
        ...     def on_row(self, row, state, ctx):
        ...         if row.amount < 0:
        ...             return ctx.refuse(row, "negative amount")
        ...         return [{"amount": row.amount}]
        """
        _check_reason(reason, 'write ctx.refuse(row, "negative amount")')
        self._refused = reason
        self._touched = True


class Row(tuple[Any, ...]):
    """A row as a process function gets it where no class is named.

    Examples
    --------
    >>> from krishiv_py.testing import Driver, stream_of
    >>> def seen(row, state, ctx):
    ...     return [{"text": f"{row.n} {row['n']} {row.as_dict()}"}]
    >>> stream = stream_of("at bigint, n bigint").watermark("at", 0).key_by("n").process(seen, returns="text string")
    >>> driver = Driver(stream)
    >>> _ = driver.send([{"at": 1, "n": 7}])
    >>> driver.close().results["text"].to_pylist()
    ["7 7 {'at': 1, 'n': 7}"]
    """

    __slots__ = ()
    _places: ClassVar[dict[str, int]] = {}

    def __getitem__(self, name: Any) -> Any:
        """Return the value of a column, by name or place."""
        return tuple.__getitem__(self, self._places[name] if type(name) is str else name)

    def __getattr__(self, name: str) -> Any:
        """Return the value of a column."""
        place = self._places.get(name)
        if place is None:
            raise AttributeError(f"the row has no column {name!r}, but {', '.join(self._places)}")
        return tuple.__getitem__(self, place)

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{n}={v!r}' for n, v in zip(self._places, self, strict=True))})"

    def as_dict(self) -> dict[str, Any]:
        """Return the values by column.

        Examples
        --------
        >>> def seen(row, state, ctx):
        ...     return [row.as_dict()]
        """
        return dict(zip(self._places, self, strict=True))


def row_reader(kind: type | None, schema: pa.Schema, names: Sequence[str]) -> Callable[[list[pa.ChunkedArray]], list[Any]]:
    """Return what makes objects of rows whose columns have these `names`, of a `schema`."""
    fields = None if kind is None else row_fields(kind)
    if kind is not None and fields is not None:
        record = RecordClass(kind, pa.schema([schema.field(name) for name in fields]))
        places = {name: names.index(name) for name in fields}
        return lambda columns: record.read({name: values_of(columns[place]) for name, place in places.items()})
    if kind is dict:
        return lambda columns: [dict(zip(names, row, strict=True)) for row in zip(*map(values_of, columns), strict=True)]
    members = {"__slots__": (), "_places": {name: place for place, name in enumerate(names)}}
    row_type: Any = type("Row", (Row, collections.namedtuple("Row", names, rename=True)), members)
    return lambda columns: list(map(row_type._make, zip(*map(values_of, columns), strict=True)))


def _as_now(values: Any) -> Any:
    """Return values as they are now, whatever is done to them later."""
    if isinstance(values, np.ndarray):
        return copy.deepcopy(values) if values.dtype == object else values.copy()
    return values if isinstance(values, (pa.Array, pa.ChunkedArray)) else copy.deepcopy(values)


def whole_numbers(values: Objects, name: str, kind: Literal["m", "M"]) -> Ints:
    """Return times or lengths of an array in µs; numbers are milliseconds.

    Raises
    ------
    PlanError
        For an array of another kind.
    """
    if values.dtype.kind == kind:
        times = values.astype("timedelta64[us]" if kind == "m" else "datetime64[us]").astype(np.int64)
    elif values.dtype.kind in "iu":
        times = np.clip(values, -MAX_TIME_MS - 1, MAX_TIME_MS + 1).astype(np.int64) * 1_000
    else:
        hint = f"give whole milliseconds, or {'timedelta64' if kind == 'm' else 'datetime64'}"
        raise PlanError(f"`{name}` is not an array of times", got=str(values.dtype), hint=hint)
    least = 0 if kind == "m" else -MAX_TIME_US
    if len(times) and not least <= int(times.min()) <= int(times.max()) <= MAX_TIME_US:
        got, hint = str(values[(times < least) | (times > MAX_TIME_US)][0]), "pick these events out with where="
        raise PlanError(f"`{name}` has values out of the supported range of time", got=got, hint=hint)
    return times


def times_as(times: Ints, kind: TimeKind) -> Objects:
    """Return times in µs as an array of the type of a time column."""
    return times // 1_000 if kind == "bigint_ms" else times.astype("datetime64[us]")


def array_of(column: pa.Array) -> Objects:
    """Return a column as a round has it: numbers without nulls, times, or objects."""
    type_ = column.type
    if pa.types.is_timestamp(type_):
        times: Objects = column.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False)
        return times
    plain = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_)
    if plain and not column.null_count:
        numbers: Objects = column.to_numpy(zero_copy_only=False)
        return numbers
    return filled(column.to_pylist())


def filled(values: Sequence[Any]) -> Objects:
    """Return values of any kind as an array of objects."""
    array = np.empty(len(values), object)
    for place, value in enumerate(values):
        array[place] = value
    return array


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as Python has them."""
    if pa.types.is_map(column.type):
        return [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]
    plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    values: list[Any] = column.to_numpy().tolist() if plain and not column.null_count else column.to_pylist()
    return values


class Events:
    """The events of a round: rows and timers, at most one of each key, as columns.

    ``events["amount"]`` and ``events.amount`` are a column of the rows or of the key, ``len(events)`` how many events there
    are. Numbers without nulls are NumPy arrays of their type, times are ``datetime64[us]``, and all others are arrays of
    objects. The columns of a row have no meaning where the event is a timer: they are zero, or None.

    Attributes
    ----------
    is_row : ndarray of bool
        Which events are rows; the others are timers.
    timer : ndarray of object
        The name of each timer; None where the event is a row.
    time : ndarray
        The event time of each event: int64 in milliseconds for ``bigint``, else ``datetime64[us]``.

    Examples
    --------
    >>> class Large:
    ...     def on_events(self, events, state, ctx):
    ...         ctx.emit(amount=events.amount, where=events.is_row & (events.amount > 100))
    """

    __slots__ = ("_column", "_names", "is_row", "time", "timer")

    def __init__(
        self, is_row: Mask, timer: Objects, time: Objects, names: Sequence[str], column: Callable[[str], Objects]
    ) -> None:
        self.is_row, self.timer, self.time = is_row, timer, time
        self._names, self._column = names, column

    def __len__(self) -> int:
        return len(self.is_row)

    def __getitem__(self, name: str) -> Objects:
        """Return a column of the rows."""
        if name not in self._names:
            raise unknown_column(name, self._names, "events")
        return self._column(name)

    def __getattr__(self, name: str) -> Objects:
        """Return a column of the rows."""
        if name.startswith("__") or name not in self._names:
            raise AttributeError(f"the events have no column {name!r}, but {', '.join(self._names)}")
        return self._column(name)


class StateColumns:
    """The state of the keys of a round: one array for each field, aligned with the events.

    A field is read, assigned whole or changed in place.

    Examples
    --------
    >>> class Count:
    ...     def on_events(self, events, state, ctx):
    ...         state.orders[events.is_row] += 1
    ...         state.total = state.total + events.amount
    """

    __slots__ = ("_names", "_take", "_taken")
    _names: Sequence[str]
    _take: Callable[[str], Objects]
    _taken: dict[str, Objects]

    def __init__(self, names: Sequence[str], take: Callable[[str], Objects]) -> None:
        object.__setattr__(self, "_names", names)
        object.__setattr__(self, "_take", take)
        object.__setattr__(self, "_taken", {})

    def __getattr__(self, name: str) -> Objects:
        """Return a field of the keys of the events."""
        taken = self._taken
        if name not in taken:
            if name not in self._names:
                raise AttributeError(f"the state has no field {name!r}, but {', '.join(self._names) or 'none'}")
            taken[name] = self._take(name)
        return taken[name]

    def __setattr__(self, name: str, values: Any) -> None:
        mine = getattr(self, name)
        if values is mine:
            return
        given = np.asarray(values) if mine.dtype != object else values
        if mine.dtype != object and not np.can_cast(given.dtype, mine.dtype, "same_kind"):
            raise TypeError(f"state.{name} holds {mine.dtype}, and {given.dtype} was assigned")
        mine[:] = given

    def _take_all(self) -> None:
        """Take each field, so that all are written back."""
        for name in self._names:
            getattr(self, name)


class RoundContext:
    """The timers and the results of a round; each method works on the events that `where` picks, on all without it.

    Attributes
    ----------
    clock : datetime or None
        The processing time on record of the batch.

    Examples
    --------
    >>> class Idle:
    ...     def on_events(self, events, state, ctx):
    ...         ctx.timer("idle", after="10 minutes", where=events.is_row)
    ...         ctx.emit(last=events.time, where=~events.is_row)
    """

    __slots__ = ("_actions", "_n", "_now", "_now_us", "clock")

    def __init__(self, clock: dt.datetime | None = None, now_us: int | None = None) -> None:
        self.clock = clock
        self._now_us = now_us
        self._enter(np.empty(0, np.int64))

    def _enter(self, now: Ints) -> None:
        self._now, self._n = now, len(now)
        self._actions: list[tuple[str, Ints, Any, Any]] = []

    def _where(self, where: Any) -> Ints:
        if where is None:
            return np.arange(self._n)
        picked = np.asarray(where)
        if picked.shape != (self._n,) or picked.dtype != np.bool_:
            got = f"{picked.dtype} of shape {picked.shape} for {self._n} events"
            raise PlanError(
                "`where` is not a mask of the events", got=got, hint="write where=events.is_row, or another comparison"
            )
        return np.flatnonzero(picked)

    def timer(
        self,
        name: str | Objects,
        *,
        after: Any = None,
        at: Any = None,
        where: Any = None,
        clock: Literal["event", "processing"] = "event",
    ) -> None:
        """Set a timer of the keys, or move the one of this name.

        Parameters
        ----------
        name : str or ndarray of str
            Its name, or one for each event.
        after : int or timedelta or str or ndarray, optional
            How long after the time of each event; numbers are milliseconds.
        at : int or datetime or ndarray, optional
            When, of the type of the time column.
        where : ndarray of bool, optional
            The events whose keys get it.
        clock : {"event", "processing"}
            The clock that it goes by.

        Examples
        --------
        >>> class Idle:
        ...     def on_events(self, events, state, ctx):
        ...         ctx.timer("idle", after="10 minutes", where=events.is_row)
        """
        events, action = self._where(where), "at" if after is None else "after"
        name = self._named(name, events)
        _check_timer("" if isinstance(name, np.ndarray) else name, after, at, clock)
        given = self._moment(at) if after is None else self._length(after)
        if isinstance(given, np.ndarray) and given.shape != (self._n,):
            got, hint = f"{action} of shape {given.shape} for {self._n} events", "give a value for each event, or one for all"
            raise PlanError("the times of timers are not aligned with the events", got=got, hint=hint)
        when = np.broadcast_to(given, (self._n,))[events]
        self._actions.append((action if clock == "event" else f"clock {action}", events, name, when))

    def _named(self, name: Any, events: Ints) -> Any:
        """Return a name, or the names of some events among those of all."""
        if not isinstance(name, np.ndarray):
            return name
        hint = "give a name for each event, or one for all"
        if name.shape != (self._n,):
            got = f"names of shape {name.shape} for {self._n} events"
            raise PlanError("the names of timers are not aligned with the events", got=got, hint=hint)
        for each in name[events].tolist():
            if not _is_name(each):
                raise PlanError("a timer has a name", got=shown(each), hint=hint)
        return name.astype(object)

    def _length(self, after: Any) -> Any:
        if isinstance(after, np.ndarray):
            return whole_numbers(after, "after", "m")
        return to_us(after, "after", allow_zero=True)

    def _moment(self, at: Any) -> Any:
        if isinstance(at, np.ndarray):
            return whole_numbers(at, "at", "M")
        return time_point_us(at, "at")

    def cancel(self, name: str | Objects, *, where: Any = None, clock: Literal["event", "processing"] = "event") -> None:
        """Remove a timer of the keys.

        Parameters
        ----------
        name : str or ndarray of str
            Its name, or one for each event.
        where : ndarray of bool, optional
            The events whose keys lose it.
        clock : {"event", "processing"}
            The clock that it goes by.

        Examples
        --------
        >>> class Idle:
        ...     def on_events(self, events, state, ctx):
        ...         ctx.cancel("idle", where=events.is_row)
        """
        one_of(clock, "clock", ("event", "processing"))
        events = self._where(where)
        name = self._named(name, events)
        if not isinstance(name, np.ndarray):
            a_text(name, "name", 'write ctx.cancel("idle")')
        self._actions.append(("cancel" if clock == "event" else "clock cancel", events, name, None))

    def forget(self, *, where: Any = None) -> None:
        """Drop the state and the timers of the keys.

        Parameters
        ----------
        where : ndarray of bool, optional
            The events whose keys are forgotten.

        Examples
        --------
        >>> class Idle:
        ...     def on_events(self, events, state, ctx):
        ...         ctx.forget(where=~events.is_row)
        """
        self._actions.append(("forget", self._where(where), None, None))

    def emit(self, columns: Mapping[str, Any] | None = None, *, where: Any = None, **more: Any) -> None:
        """Give a row for each event: values, or arrays aligned with all events.

        Parameters
        ----------
        columns : mapping, optional
            The columns by name.
        where : ndarray of bool, optional
            The events that give a row.
        **more : object
            Further columns.

        Examples
        --------
        >>> class Idle:
        ...     def on_events(self, events, state, ctx):
        ...         ctx.emit(orders=state.orders, where=~events.is_row)
        """
        given = {**(columns or {}), **more}  # arrays may change after the call
        given = {name: _as_now(values) for name, values in given.items()}
        self._actions.append(("emit", self._where(where), given, None))

    def refuse(self, reason: str, *, where: Any = None) -> None:
        """Send rows to the late output; what this round did for their keys is undone.

        Parameters
        ----------
        reason : str
            What the late output says of them.
        where : ndarray of bool, optional
            The events whose rows are refused.

        Raises
        ------
        PlanError
            Without a reason.

        Examples
        --------
        >>> class Positive:
        ...     def on_events(self, events, state, ctx):
        ...         ctx.refuse("negative amount", where=events.is_row & (events.amount < 0))
        """
        _check_reason(reason, 'write ctx.refuse("negative", where=mask)')
        events = self._where(where)
        if len(events):
            self._actions.append(("refuse", events, reason, None))
