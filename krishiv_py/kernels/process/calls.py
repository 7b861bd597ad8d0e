"""Calls of a user's function: the rows and the timers of each key as one sequence, key by key.

::

    row 3 ── timer 5 ── row 5 ── row 8 ── timer 9 ── ┊ settled up to 9
              at equal times the timer comes first

A call that raises, or refuses its row, is undone where the function goes on: the key begins again from its stored state, and
from then on each call works on a copy.
"""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Ints, pick
from krishiv_py.errors import RAISED, OperatorError, PlanError, SchemaError, failure_text, shown
from krishiv_py.kernels.columns.layout import TIME, Layout, whole
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.ordered import KeyRows, in_result_order
from krishiv_py.kernels.process.states import MISFITS, KeyUpdates, ObjectStates, differs, exact_array, misfit_of
from krishiv_py.kernels.spec import STOPWATCH, Moment
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.process_calls import CLOCK, Context, row_reader, time_of
from krishiv_py.plan.processing import MOST_TIMERS, Processing
from krishiv_py.plan.row_classes import RecordClass, names_of, stored_value
from krishiv_py.plan.running import CALL_US


class UndoneError(Exception):
    """A call is to be undone: its key begins again."""


class MisfitError(UndoneError):
    """Some calls left what no column holds: the step begins again, and looks at each call for these keys."""

    def __init__(self, keys: set[int]) -> None:
        super().__init__()
        self.keys = keys


class StepCalls:
    """The calls of a function in a step, and what they give.

    Parameters
    ----------
    layout : Layout
        The columns of rows.
    keys : KeyRows
        The keys, with what is stored of them.
    rows : pyarrow.Table
        Rows by key, in the order of their calls.
    moment : Moment
        What is in force.
    settled_us, due_us : int
        Rows before `settled_us` have been taken; timers up to `due_us` fire.
    late_begins : ndarray of int64, optional
        Where in `rows` the late ones of each key begin, and where the last ones end.
    marks : ndarray of int64, optional
        The time up to which timers fire before each row, where rows are called in the order in which they arrive.
    """

    def __init__(
        self,
        layout: Layout,
        keys: KeyRows,
        rows: pa.Table,
        moment: Moment,
        settled_us: int,
        due_us: int,
        late_begins: Ints | None = None,
        marks: Ints | None = None,
    ) -> None:
        operation = layout.spec.operation
        assert isinstance(operation, Processing)
        self.layout, self.operation, self.keys, self.rows = layout, operation, keys, rows
        self.settled_us, self.due_us, self.moment, self.now_us = settled_us, due_us, moment, moment.now_us
        self.late_begins = None if late_begins is None or late_begins[-1] == late_begins[0] else late_begins
        self.marks = marks
        self.ended = moment.watermark_us == END_OF_TIME
        self.last_us = moment.newest_us
        self.in_time = operation.order == "time"
        self.goes_on = operation.on_error == "side_output"
        self.counters: dict[str, int] = {}
        self.refused: list[tuple[int, int, str]] = []
        """Rows that the function refused, or raised for, with the reason; a timer that raised has the row -1 - its key."""
        self.given: list[tuple[Ints, Ints, list[pa.Array]]] = []
        """Rows that were given: the key and the time of each, and their columns."""
        calls = operation.callbacks
        self.on_end = calls.on_end
        self.state_class, self.ttl_us = operation.state, operation.ttl_us
        self.kind = layout.spec.time_kind
        clock = None if moment.now_us is None else dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
        self.clock = clock if clock is None else clock + dt.timedelta(microseconds=moment.now_us or 0)

    def run(self) -> KeyUpdates:
        """Call the function; return what is to be stored of the keys."""
        raise NotImplementedError

    def count(self, name: str, n: int) -> None:
        """Count something of this step."""
        if n:
            self.counters[name] = self.counters.get(name, 0) + n

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count how long calls of the function take, with what goes around them."""
        read = STOPWATCH.get()
        begun = read()
        yield
        self.count(CALL_US, round(1e6 * (read() - begun)))

    def add(self, part: StepCalls, first_key: int, first_row: int) -> None:
        """Take what came of the calls for some of the keys, from `first_key` on, whose rows begin at `first_row`."""
        self.given += [(of + first_key, times, columns) for of, times, columns in part.given]
        for key, place, reason in part.refused:
            self.refused.append((key + first_key, place + first_row if place >= 0 else place - first_key, reason))
        for name, n in part.counters.items():
            self.count(name, n)

    def place_of(self, key: int, time_us: int) -> str:
        """Return a key and a time for the text of an error."""
        return f"{self.keys.shown(key)} at {time_of(time_us, self.kind)}"

    # ---- what comes of it

    def results(self) -> pa.Table:
        """Return the results by time and key, nulls first, then as they were given."""
        schema, names = self.layout.result_schema, self.layout.key_names
        if not self.given:
            return schema.empty_table()
        of, times = (np.concatenate(parts) for parts in ([g[0] for g in self.given], [g[1] for g in self.given]))
        columns = [
            pa.chunked_array(parts, f.type)
            for f, *parts in zip(self.operation.returns, *(g[2] for g in self.given), strict=True)
        ]
        order = in_result_order(self.keys.keys, names, of, times)
        leading = [pick(self.keys.keys[name], of[order]) for name in names]
        if self.operation.event_time is None:
            leading.append(unstamp(times[order], self.kind))
        ordered = pa.array(order)
        return pa.Table.from_arrays([*leading, *(column.take(ordered) for column in columns)], schema=schema)

    def event_times(self, columns: list[pa.Array], called: Ints, where: str = "") -> Ints:
        """Return the event times of results, none of which is before the call that gave it."""
        name = self.operation.event_time
        if name is None:
            return called
        column = columns[self.operation.returns.get_field_index(name)]
        unit, numbers = 1_000 if self.kind == "bigint_ms" else 1, column.cast(pa.int64())
        if column.null_count:
            got, hint = f"{name}=None", f"give each result its {name}"
            raise OperatorError(f"a result has no event time{where}", got=got, then="no stage could place it", hint=hint)
        times: Ints = numbers.to_numpy() * unit
        early = np.flatnonzero(times < called // unit * unit)
        if len(early):
            row = int(early[0])
            got = f"{name}={shown(column[row].as_py())} in a call at {time_of(int(called[row]), self.kind)}"
            then = "the next stage would have it late"
            hint = f"give a {name} that is not before ctx.time"
            raise OperatorError(
                f"the event time of a result is before the time of its call{where}", got=got, then=then, hint=hint
            )
        return times

    def column(self, field: pa.Field, values: Any, where: str = "") -> pa.Array:
        """Return values that the function gave as a column of results; `where` is the call of an error."""
        try:
            nested = pa.types.is_nested(field.type)
            return exact_array([stored_value(value, field.type) for value in values] if nested else values, field.type)
        except (*MISFITS, AttributeError) as problem:
            raise self.unfit_column(field, problem, where) from problem

    def unfit_column(self, field: pa.Field, problem: BaseException, where: str) -> SchemaError:
        """Return the error for values that a column of results does not hold."""
        name = self.operation.callbacks.name
        got, hint = failure_text(problem), f"change {name}, or the type of {field.name} in returns="
        return SchemaError(f"{name} gives a {field.name} that is not a {field.type}{where}", got=got, hint=hint)

    def late(self, watermark_us: int) -> pa.Table | None:
        """Return the rows that were refused, in the late layout; None without any."""
        if not self.refused:
            return None
        layout, spec = self.layout, self.layout.spec
        places = np.array([place for _, place, _ in self.refused], np.int64)
        reasons = pa.array([reason for _, _, reason in self.refused], pa.string())
        whole_rows = places >= 0
        rows = pick(self.rows, np.where(whole_rows, places, 0)) if self.rows.num_rows else None
        keys = pick(self.keys.keys, np.array([key for key, _, _ in self.refused], np.int64))
        columns = []
        for name, type_ in zip(spec.late_columns, layout.late_schema.types, strict=False):
            if name in spec.keys:
                columns.append(keys[layout.working[name]])
            elif rows is None:
                columns.append(pa.nulls(len(places), type_))
            else:
                columns.append(pc.if_else(pa.array(whole_rows), whole(rows[layout.working[name]]), pa.scalar(None, type_)))
        notes = layout.refusal_notes(reasons, watermark_us)
        return pa.Table.from_arrays([*columns, *notes], schema=layout.late_schema)


class HandedStates(Protocol):
    """State and timers of keys that another form of calls keeps."""

    clocked: bool

    def state(self, key: int) -> Any:
        """Return the state of a key as an object."""

    def due(self, key: int) -> dict[str, int]:
        """Return the timers of a key."""

    def numbers(self, key: int) -> Numbers:
        """Return when a key was called last, how many timers have fired since its last row, and its last write."""

    def put(self, key: int, state: Any, due: dict[str, int], numbers: Numbers) -> None:
        """Take back what became of a key."""


class Calls(StepCalls):
    """Calls for one row, or one timer, at a time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._given: list[dict[str, Any]] = []
        self._nested = {field.name: field.type for field in self.operation.returns if pa.types.is_nested(field.type)}
        self._times: list[int] = []
        self._of: list[int] = []
        calls = self.operation.callbacks
        self.row_class, self.on_row = calls.row_class, calls.on_row
        self.on_timer, self.on_late = calls.on_timer, calls.on_late
        self.checked = set[int]()
        """Keys of which each call is looked at: what it gives, and the state that it leaves."""

    def run(self) -> KeyUpdates:
        """Call the function for each key; return what is to be stored of the keys."""
        while True:
            try:
                return self._run()
            except MisfitError as misfit:
                self.checked |= misfit.keys
                self.given.clear()
                self.drop_results(0)
                self.refused.clear()
                self.counters.clear()

    def _run(self) -> KeyUpdates:
        states, times, objects = (
            ObjectStates(self.operation, self.keys),
            self.rows[TIME].to_numpy().tolist(),
            self._objects(self.rows),
        )
        ctx, values = self._context(clocked=states.clocked), self._key_values()
        begins = self.keys.begins.tolist()
        with self.timed():
            for key in range(self.keys.n):
                low, high = begins[key], begins[key + 1]
                ctx.key = values[key]
                self._key(states, key, ctx, times[low:high], objects[low:high])
        self.collect()
        try:
            return states.updates()
        except OperatorError:
            if self.goes_on and (keys := states.misfits() - self.checked):
                raise MisfitError(keys) from None
            raise

    def run_rows(self, states: HandedStates, keys: Sequence[int], first: Ints, stop: Ints, *, careful: bool) -> None:
        """Call the function for the rows of some keys, from the `first` to before `stop`, and the timers up to `due_us`."""
        ctx, values = self._context(clocked=states.clocked), self._key_values()
        for key in keys:
            low, high = int(first[key]), int(stop[key])
            rows = self.rows.slice(low, high - low)
            ctx.key = values[key]
            run = _KeyRun(self, key, ctx, (states.state(key), states.due(key)), states.numbers(key), low, careful=careful)
            times, objects = rows[TIME].to_numpy().tolist(), self._objects(rows)
            with self.timed():
                run.all(times, objects, ends=False)
            self.count("calls", run.made)
            states.put(key, run.state, run.due, (run.called, run.fired, run.changed))
        self.collect()

    def late_objects(self, key: int) -> list[Any]:
        """Return the late rows of a key as the objects that the function gets."""
        if self.late_begins is None or self.late_begins[key] == self.late_begins[key + 1]:
            return []
        first = int(self.late_begins[key])
        return self._objects(self.rows.slice(first, int(self.late_begins[key + 1]) - first))

    def _objects(self, rows: pa.Table) -> list[Any]:
        """Return rows as the objects that the function gets."""
        layout, spec = self.layout, self.layout.spec
        visible = [f.name for f in spec.row_schema if f.name in layout.working]
        read, names = self._reader(visible), [layout.working[name] for name in visible]
        try:
            return read([rows[name] for name in names])
        except RAISED:  # of the constructor of a user's class
            calls = self.operation.callbacks
            self.on_row = partial(_refused, calls.on_row)
            self.on_late = None if calls.on_late is None else partial(_refused, calls.on_late)
            return [self._object(read, rows.select(names).slice(place, 1)) for place in range(rows.num_rows)]

    def _reader(self, visible: list[str]) -> Callable[[list[pa.ChunkedArray]], list[Any]]:
        """Return what makes objects of rows with these columns."""
        calls, schema = self.operation.callbacks, self.layout.spec.row_schema
        if not calls.streams:
            return row_reader(self.row_class, schema, visible)
        readers = [(stream, row_reader(kind, schema, visible)) for stream, kind in calls.streams]
        place = visible.index(calls.source)

        def read(columns: list[pa.ChunkedArray]) -> list[Any]:
            sources = np.array(columns[place].to_pylist(), object)
            rows: list[Any] = [None] * len(sources)
            for stream, one in readers:
                mine = np.flatnonzero(sources == stream)
                picked = pa.array(mine)
                for n, row in zip(mine.tolist(), one([column.take(picked) for column in columns]), strict=True):
                    rows[n] = stream, row
            return rows

        return read

    def _object(self, read: Callable[[list[pa.ChunkedArray]], list[Any]], row: pa.Table) -> Any:
        """Return a row as the object that the function gets, or what its class raised."""
        try:
            return read(row.columns)[0]
        except RAISED as problem:
            return _Unreadable(problem)

    def _context(self, *, clocked: bool) -> Context:
        ctx = Context(clock=self.clock)
        ctx._begin(self.kind, fires=self.on_timer is not None, now_us=self.now_us)
        ctx._clocked = clocked
        return ctx

    def _key_values(self) -> list[Any]:
        columns = [self.keys.keys[name].to_pylist() for name in self.layout.key_names]
        values: list[Any] = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        return values if columns else [None] * self.keys.n

    def _key(self, states: ObjectStates, key: int, ctx: Context, times: list[int], rows: list[Any]) -> None:
        """Call the function for the rows and the timers of one key."""
        given, refused, before = len(self._given), len(self.refused), dict(states.timers[key])
        numbers = states.called[key], states.fired[key], states.changed[key]
        low, high = int(self.keys.begins[key]), int(self.keys.begins[key + 1])
        careful = key in self.checked
        run = _KeyRun(self, key, ctx, (states.states[key], states.timers[key]), numbers, low, careful=careful)
        try:
            run.all(times, rows)
        except UndoneError:
            self.drop_results(given)
            del self.refused[refused:]
            again = self._objects(self.rows.slice(low, high - low))  # the first try may have changed them
            run = _KeyRun(self, key, ctx, (states.stored_state(key), before), numbers, low, careful=True)
            run.all(times, again)
            states.timers[key] = before
        self.count("calls", run.made)
        states.states[key] = run.state
        states.called[key], states.fired[key], states.changed[key] = run.called, run.fired, run.changed

    def give(self, given: Any, time_us: int, key: int) -> None:
        """Take the rows that a call gives."""
        if isinstance(given, (dict, str)) or not hasattr(given, "__iter__"):
            hint = "yield it, or return [row]"
            raise PlanError("a process function gives rows, one after the other", got=shown(given), hint=hint)
        before = len(self._given)
        self._given.extend(map(self._row_values, given))
        new = len(self._given) - before
        if new:
            self._times += [time_us] * new
            self._of += [key] * new

    def drop_results(self, n: int) -> None:
        """Drop all rows but the first `n` that were given."""
        del self._given[n:], self._times[n:], self._of[n:]

    @property
    def n_results(self) -> int:
        """Return how many rows were given."""
        return len(self._given)

    def _row_values(self, row: Any) -> dict[str, Any]:
        """Return the values of a row as they are now: what comes after may change it."""
        fields = dict(row) if type(row) is dict else _fields_of(row)
        for name, type_ in self._nested.items():
            if name in fields:
                fields[name] = stored_value(fields[name], type_)
        return fields

    def collect(self) -> None:
        """Put what was given into columns."""
        if not self._given:
            return
        try:
            times, columns = self._columns_of(slice(None))
        except (SchemaError, OperatorError) as problem:
            wrong = {n: each for n in range(self.n_results) if (each := self.misfit(n, n + 1)) is not None}
            if self.goes_on and (keys := {self._of[n] for n in wrong} - self.checked):
                raise MisfitError(keys) from None
            raise next(iter(wrong.values()), problem) from problem.__cause__
        self.given.append((np.array(self._of, np.int64), times, columns))

    def misfit(self, first: int, stop: int | None = None) -> SchemaError | OperatorError | None:
        """Return what is wrong with the rows that were given from the `first` one on; None where they fit."""
        try:
            self._columns_of(
                slice(first, stop), "" if first == self.n_results else self.place_of(self._of[first], self._times[first])
            )
        except (SchemaError, OperatorError) as problem:
            return problem
        return None

    def _columns_of(self, some: slice, where: str = "") -> tuple[Ints, list[pa.Array]]:
        """Return the event times and the columns of some rows that were given."""
        rows, called = self._given[some], np.array(self._times[some], np.int64)
        returns, name = self.operation.returns, self.operation.callbacks.name
        wanted, n = returns.names, len(returns)
        for row in rows:
            if len(row) != n or not all(map(row.__contains__, wanted)):
                got, hint = shown(row), f"give rows with {', '.join(wanted)}, or change returns="
                raise SchemaError(f"{name} gives a row that `returns` does not describe{where}", got=got, hint=hint)
        columns = [self.column(field, [row[field.name] for row in rows], where) for field in returns]
        return self.event_times(columns, called, where), columns


Before: TypeAlias = tuple[Any, dict[str, int]]
"""The state and the timers of a key before a step."""
Numbers: TypeAlias = tuple[int, int, int]
"""The last call of a key, how many timers have fired since its last row, and the last write of its state."""


class _KeyRun:
    """The calls for one key.

    Parameters
    ----------
    calls : Calls
        Collects results.
    first : int
        The place of the first row that it is called for.
    careful : bool
        Whether each call works on a copy of the state, so that it can be undone.
    """

    __slots__ = ("called", "calls", "careful", "changed", "contents", "ctx", "due", "fired", "first", "key", "made", "state")

    def __init__(
        self, calls: Calls, key: int, ctx: Context, before: Before, numbers: Numbers, first: int, *, careful: bool = False
    ) -> None:
        self.calls, self.key, self.ctx, self.first, self.careful = calls, key, ctx, first, careful
        self.state, self.due = before
        self.called, self.fired, self.changed = numbers
        self.contents: Any = None
        self.made = 0
        """The number of rows and timers that were handed to the function."""
        ctx._enter(self.due)

    def all(self, times: list[int], rows: list[Any], *, ends: bool = True) -> None:
        """Make all calls; `ends` says whether the step ends with them for this key."""
        calls, ctx = self.calls, self.ctx
        on_row = calls.on_row
        self.made += len(times)
        plain = not self.careful and calls.ttl_us is None
        least = ctx._least()
        for place, (time_us, upto_us, row) in enumerate(zip(times, self._limits(times), rows, strict=True)):
            if least <= upto_us:
                self._fire(upto_us)
            self.fired = 0
            if plain:  # what _call does, for each row of a busy key
                ctx._now = time_us
                try:
                    state = self.state
                    given = on_row(row, self._current(time_us) if state is None else state, ctx)
                    if given is not None:
                        calls.give(given, time_us, self.key)
                except RAISED as problem:
                    raise self._failed("on_row", problem) from problem
                if ctx._touched:
                    self._after()
                self.called = time_us if time_us > self.called else self.called
            else:
                self._call(time_us, "on_row", partial(_swapped, on_row, row, ctx), place)
            least = ctx._soonest
        if not ends:
            self._fire(calls.due_us)
        elif calls.ended:
            self._end()
        else:
            self._fire(calls.due_us)
            if calls.late_begins is not None and (objects := calls.late_objects(self.key)):
                self.first = int(calls.late_begins[self.key])
                self.late(objects)
            self._by_clock()
            if self.state is not None and self._expired(calls.settled_us):
                self.state = None

    def _limits(self, times: list[int]) -> list[int]:
        """Return up to which time timers fire before each row."""
        if self.calls.in_time:
            return times
        marks = self.calls.marks
        return [UNSET] * len(times) if marks is None else marks[self.first : self.first + len(times)].tolist()

    def late(self, rows: list[Any]) -> None:
        """Call the function for late rows: at the last call of the key, or where all is settled, whichever is later."""
        calls, ctx = self.calls, self.ctx
        on_late = calls.on_late
        assert on_late is not None
        self.made += len(rows)
        for place, row in enumerate(rows):
            self.fired = 0
            self._call(max(self.called, calls.settled_us), "on_late", partial(_swapped, on_late, row, ctx), place)
            self._fire(calls.due_us)

    def _expired(self, time_us: int) -> bool:
        ttl_us = self.calls.ttl_us
        return ttl_us is not None and self.changed != UNSET and time_us >= self.changed + ttl_us

    def _current(self, time_us: int) -> Any:
        """Return the state of the key at a time; a new one where it has none, or the old one has expired."""
        state_class = self.calls.state_class
        if state_class is None:
            return None
        new = self.state is None or self._expired(time_us)
        if new:
            self.state = state_class.new()
        if self.calls.ttl_us is not None:
            self.contents = None if new else self._now_holds(state_class)
        return self.state

    def _now_holds(self, state_class: RecordClass) -> Any:
        """Return the contents of the state; None for what no column holds, which is said where it is stored."""
        try:
            return state_class.contents(self.state)
        except (*MISFITS, AttributeError):
            return None

    def _made(self, time_us: int) -> None:
        """Note that a call was made, and whether it wrote the state: whether its contents are others than before."""
        calls = self.calls
        self.called = max(self.called, time_us)
        if calls.ttl_us is not None and calls.state_class is not None and self.state is not None:
            now = self._now_holds(calls.state_class)
            if self.contents is None or differs(self.contents, now):
                self.changed = max(self.changed, time_us)

    def _after(self) -> None:
        """Follow what the call said besides its results."""
        ctx = self.ctx
        ctx._touched = False
        if ctx._refused is not None:
            raise UndoneError
        if ctx._replaced:
            self.state = ctx._pop_state()
        if ctx._forgotten:
            ctx._forgotten = False
            self.state = None

    def _call(self, time_us: int, name: str, call: Callable[[Any], Any], place: int = -1) -> None:
        """Make a call; one that is for a row has its place among those of the key."""
        if self.careful:
            self._carefully(time_us, name, call, place)
            return
        ctx = self.ctx
        ctx._now = time_us
        try:
            given = call(self._current(time_us))
            if given is not None:
                self.calls.give(given, time_us, self.key)
        except RAISED as problem:
            raise self._failed(name, problem) from problem
        if ctx._touched:
            self._after()
        self._made(time_us)

    def _carefully(self, time_us: int, name: str, call: Callable[[Any], Any], place: int) -> None:
        """Make a call that leaves nothing where it raises or refuses its row."""
        calls, ctx = self.calls, self.ctx
        ctx._now = time_us
        before, due, n = copy.deepcopy(self.state), dict(self.due), calls.n_results
        reason = None
        try:
            given = call(self._current(time_us))
            if given is not None:
                calls.give(given, time_us, self.key)
        except RAISED as problem:
            if not calls.goes_on or isinstance(problem, OperatorError):
                raise self._failed(name, problem) from problem
            reason = failure_text(problem, placed=False)
            calls.count("failed_calls", 1)
        else:
            if ctx._refused is not None:
                reason = ctx._refused
                calls.count("refused", 1)
            elif self.key in calls.checked and (misfit := self._misfit(n)) is not None:
                reason = failure_text(misfit, placed=False)
                calls.count("failed_calls", 1)
        ctx._touched, ctx._refused = False, None
        if reason is None:
            ctx._touched = True
            self._after()
            self._made(time_us)
            return
        ctx._forgotten = ctx._replaced = False
        self.state = before
        self.due.clear()
        self.due.update(due)
        ctx._least()
        calls.drop_results(n)
        calls.refused.append((self.key, self.first + place if place >= 0 else -1, reason))

    def _misfit(self, first: int) -> Exception | None:
        """Return what is wrong with what a call left: the results from the `first` one on, and the state."""
        calls, ctx = self.calls, self.ctx
        state = None if ctx._forgotten else ctx._state if ctx._replaced else self.state
        return calls.misfit(first) or misfit_of(calls.operation, state)

    def _fire(self, upto_us: int) -> None:
        """Fire the timers that are due, in order of time and name, and those that are set meanwhile."""
        ctx, due = self.ctx, self.due
        while ctx._soonest <= upto_us:
            if len(due) == 1:
                ((name, at),) = due.items()
            else:
                at, name = min((us, name) for name, us in due.items() if name[:1] != CLOCK)
            self._timer(name, max(at, self.called))

    def _timer(self, name: str, time_us: int, shown_name: str | None = None) -> None:
        calls, ctx, said = self.calls, self.ctx, name if shown_name is None else shown_name
        del self.due[name]
        ctx._least()
        self.fired += 1
        self.made += 1
        if self.fired > MOST_TIMERS:
            ctx._now = time_us
            raise endless_timers(f"timer {said!r}{self._place()}")
        on_timer = calls.on_timer
        if on_timer is None:  # the function had one when the timer was set
            got, hint = f"timer {said!r}{self._place()}", "give the function the method on_timer again"
            raise OperatorError(f"{calls.operation.callbacks.name} has no on_timer", got=got, hint=hint)
        self._call(time_us, f"on_timer({said!r})", lambda state: on_timer(said, state, ctx))

    def _by_clock(self) -> None:
        """Fire the timers of the clock that are due by the time on record: they come after all else."""
        calls = self.calls
        if calls.now_us is None or not self.ctx._clocked:
            return
        time_us = max(self.called, calls.settled_us)
        while due := [(us, name) for name, us in self.due.items() if name[:1] == CLOCK and us <= calls.now_us]:
            name = min(due)[1]
            self._timer(name, time_us, name[1:])

    def _end(self) -> None:
        """End the input (SEMANTICS §14.3)."""
        calls, ctx, due = self.calls, self.ctx, self.due
        self._fire(calls.last_us)
        ctx._close(closing=calls.operation.at_end == "fire")
        if calls.operation.at_end == "fire":
            for us, name in sorted((us, name) for name, us in due.items() if name[:1] != CLOCK):
                if due.get(name) == us:
                    self._timer(name, max(us, self.called))
        on_end = calls.on_end
        if on_end is not None and self.state is not None and not self._expired(max(self.called, calls.last_us)):
            ctx._closing, ctx._open = True, False
            self._call(max(self.called, calls.last_us), "on_end", lambda state: on_end(state, ctx))
        calls.count("timers_dropped", len(due) + ctx._dropped)
        ctx._close(closing=False)
        due.clear()

    def _place(self) -> str:
        return self.calls.place_of(self.key, self.ctx._now)

    def _failed(self, call: str, problem: BaseException) -> BaseException:
        """Return what to raise for a call that raised."""
        calls = self.calls
        if isinstance(problem, (OperatorError, UndoneError)):
            return problem
        if calls.goes_on:
            return UndoneError()
        name = calls.operation.callbacks.name
        hint = f'fix {name}, or write .process(..., on_error="side_output")'
        return OperatorError(f"{name}: {call} failed{self._place()}", got=failure_text(problem), hint=hint)


def endless_timers(got: str) -> OperatorError:
    """Return the error for a key whose timers fire on and on."""
    hint = "set a timer later than ctx.time, and not in an endless loop"
    return OperatorError(f"more than {MOST_TIMERS:_} timers of a key fired with no row between them", got=got, hint=hint)


def _swapped(on_row: Callable[[Any, Any, Context], Any], row: Any, ctx: Context, state: Any) -> Any:
    return on_row(row, state, ctx)


@attrs.frozen(eq=False)
class _Unreadable:
    """A row that its class refused; the call for it raises what the class did."""

    problem: BaseException


def _refused(on_row: Callable[[Any, Any, Context], Any], row: Any, state: Any, ctx: Context) -> Any:
    if isinstance(row, _Unreadable):
        raise row.problem
    return on_row(row, state, ctx)


def _fields_of(row: Any) -> dict[str, Any]:
    """Return the fields of a row that a function gave."""
    if isinstance(row, dict):
        return row
    names = names_of(type(row))
    if names is None:
        as_dict = getattr(row, "as_dict", None)
        if as_dict is not None:
            fields: dict[str, Any] = as_dict()
            return fields
        hint = "give dicts, or objects of the class that `returns` names"
        raise SchemaError("a process function gives rows", got=shown(row), hint=hint)
    return {name: getattr(row, name) for name in names}
