"""Rounds: at most one event a key a call, many keys as columns.

The rows of a step lie by key and time, and each round takes the next event of every key that has one, a row or a timer::

    key a   row 3   row 5   timer 9        round 1   a 3   b 4   c 8
    key b   row 4   timer 6                round 2   a 5   b 6
    key c   row 8                          round 3   a 9

So the calls of a key come in its sequence, and state is columns that calls read and write at the places of their keys. Where
few keys have many rows left, they go on one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Ints, Mask, last_rows, numpy_type, pick, values_at
from krishiv_py.errors import RAISED, OperatorError, PlanError, SchemaError, failure_text, shown
from krishiv_py.kernels.columns.layout import TIME, Layout, whole
from krishiv_py.kernels.ordered import NEVER, KeyRows
from krishiv_py.kernels.process.calls import Calls, Numbers, StepCalls, UndoneError, endless_timers
from krishiv_py.kernels.process.hot_keys import HotKey, OneEvent, OneEventContext, column_of
from krishiv_py.kernels.process.states import (
    CALLED,
    FIRED,
    MISFITS,
    KeyUpdates,
    by_clock,
    differs,
    field_array,
    last_writes,
    timers_of,
    unfit_state,
    unmade_state,
)
from krishiv_py.kernels.process.timer_table import TimerTable
from krishiv_py.kernels.state.key_table import HAS_STATE, STATE_FIELD
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.process_calls import CLOCK, Events, Objects, RoundContext, StateColumns, array_of, filled, times_as
from krishiv_py.plan.processing import MOST_TIMERS, Processing
from krishiv_py.plan.row_classes import Build, RecordClass, stored_value
from krishiv_py.plan.schema import TimeKind

FEW: Final = 8
"""A round costs more than its calls where so few keys have rows left, and many."""
LONG: Final = 64


class ArrayStates:
    """State and timers of keys as aligned arrays."""

    def __init__(self, operation: Processing, rows: KeyRows) -> None:
        self.operation, self.rows, n = operation, rows, rows.n
        self.called, self.fired = rows.numbers(CALLED, UNSET), rows.numbers(FIRED, 0)
        self.changed = last_writes(operation, rows)
        self.has: Mask = np.zeros(n, np.bool_)
        owners, names, times = timers_of(rows)
        clocked = by_clock(names)
        self.timers, self.clock_timers = (
            TimerTable(n, owners[mine], names.filter(pa.array(mine)), times[mine]) for mine in (~clocked, clocked)
        )
        self.fields: dict[str, npt.NDArray[Any]] = {}
        self.defaults: dict[str, Any] = {}
        if operation.state is not None:
            self.has[rows.found] = rows.stored[HAS_STATE].to_numpy()
            self._read(operation.state)

    def _read(self, state: RecordClass) -> None:
        there = self.rows.found[self.has[self.rows.found]]
        stored, fresh = self.rows.stored.filter(self.rows.stored[HAS_STATE]), state.new()
        for field in state.schema:
            column, reader = whole(stored[f"{STATE_FIELD}{field.name}"]), state.readers[field.name]
            default = value_of(fresh, field.name)
            self.defaults[field.name] = default
            if field.name not in state.nullable and default is not None and is_plain(field.type) and not column.null_count:
                values = np.full(self.rows.n, default, numpy_type(field.type))
                values[there] = column.to_numpy(zero_copy_only=False)
            else:
                values = np.empty(self.rows.n, object)
                values[there] = filled(column.to_pylist())
                if reader is not None:
                    self._make(state, reader, values, there)
            self.fields[field.name] = values

    def _make(self, state: RecordClass, reader: Build, values: Objects, keys: Ints) -> None:
        """Put what a reader makes of the values of some keys in their place."""
        for key in keys.tolist():
            try:
                values[key] = reader(values[key])
            except RAISED as problem:
                raise unmade_state(state, self.rows.shown(key), problem) from problem

    def taken(self, name: str, keys: Ints, new: Mask, *, copied: bool) -> Objects:
        """Return a field of some keys, of `new` ones its default; `copied` where a value may be changed in place."""
        state, values = self.operation.state, self.fields[name][keys]
        assert state is not None
        if copied and pa.types.is_nested(state.schema.field(name).type):
            values = copy.deepcopy(values)
        if new.any():
            default = self.defaults[name]
            shared = values.dtype != object or isinstance(default, (int, float, str, bytes, type(None)))
            n = int(np.count_nonzero(new))
            values[new] = default if shared else filled([value_of(state.new(), name) for _ in range(n)])
        return values

    def unlike(self, name: str, keys: Ints, values: Objects) -> Mask:
        """Return which values of a field are others than those of some keys."""
        state, before = self.operation.state, self.fields[name][keys]
        assert state is not None
        if before.dtype != object:
            other: Mask = (values != before) & ((values == values) | (before == before))  # what is no number stays so
            return other
        type_ = state.schema.field(name).type
        stored = ([_contents(value, type_) for value in each] for each in (before, values))
        return np.fromiter(map(differs, *stored), np.bool_, len(keys))

    def check(self, taken: Mapping[str, Objects], keys: Ints, kept: Mask) -> None:
        """Refuse values of fields that their columns do not hold, of the keys that are `kept`."""
        state = self.operation.state
        for name, values in taken.items():
            if values.dtype == object and state is not None:
                self._array(state.schema.field(name), values[kept], keys[kept])

    def _array(self, field: pa.Field, values: Objects, keys: Ints) -> pa.Array:
        """Return values of a field of some keys as its column."""
        written = []
        for key, value in zip(keys.tolist(), values, strict=True):
            try:
                written.append(stored_value(value, field.type))
            except (*MISFITS, AttributeError) as problem:
                raise unfit_state(f"state.{field.name}", self.rows.shown(key), problem) from problem
        return field_array(self.operation, field, written, keys, self.rows.shown)

    def forget(self, keys: Ints) -> None:
        """Drop state and timers of some keys."""
        self.has[keys] = False
        self.timers.clear(keys)
        self.clock_timers.clear(keys)

    def updates(self) -> KeyUpdates:
        """Return what is to be stored."""
        (owners, names, times), (others, clock_names, clock_times) = self.timers.all(), self.clock_timers.all()
        if len(others):
            owners, times = np.concatenate([owners, others]), np.concatenate([times, clock_times])
            order = np.argsort(owners, kind="stable")
            marked = pc.binary_join_element_wise(CLOCK, clock_names, "")
            owners, names, times = owners[order], pick(pa.concat_arrays([names, marked]), order), times[order]
        called, fired, changed = self.called, self.fired, self.changed
        return KeyUpdates(self.has, owners, names, times, called, fired, changed, list(self._written()))

    def _written(self) -> Iterator[pa.Array]:
        state = self.operation.state
        if state is None:
            return
        every = np.arange(self.rows.n)
        there = np.flatnonzero(self.has)
        for field in state.schema:
            values = self.fields[field.name]
            if values.dtype == object:
                places = pa.array(last_rows(there, self.rows.n), mask=~self.has)
                yield self._array(field, values[there], there).take(places)
            else:
                array = field_array(self.operation, field, values, every, self.rows.shown)
                yield array if self.has.all() else pa.array(values, field.type, mask=~self.has)


@attrs.frozen(eq=False)
class _Round:
    """Holds the events of a round: their keys, the places of their rows or the names of their timers, and their times."""

    keys: Ints
    rows: Ints
    timers: Objects
    times: Ints

    def __len__(self) -> int:
        return len(self.keys)

    def halves(self) -> Iterator[_Round]:
        """Give its two halves."""
        middle = len(self) // 2
        for half in (slice(middle), slice(middle, None)):
            yield _Round(self.keys[half], self.rows[half], self.timers[half], self.times[half])


class Rounds(StepCalls):
    """Calls for many keys at a time.

    A round that fails is repeated with halves of its events, until those that fail are single. What a call did to state is
    written back for the events that were neither refused nor failed.
    """

    def run(self) -> KeyUpdates:
        """Call the function round by round; return what is to be stored of the keys."""
        on_events = self.operation.callbacks.on_events
        assert on_events is not None
        self.on_events, self.careful = on_events, False
        state = self.operation.state
        self.nested = state is not None and any(pa.types.is_nested(type_) for type_ in state.schema.types)
        try:
            return self._rounds()
        except UndoneError:  # a call changed what it is not to change, or left what no column holds
            self.given.clear()
            self.refused.clear()
            self.counters.clear()
            self.careful = True
            return self._rounds()

    def _rounds(self) -> KeyUpdates:
        states = self.states = ArrayStates(self.operation, self.keys)
        self.place = self.keys.begins[:-1].copy()
        self.stop, self.times = self.keys.begins[1:], self.rows[TIME].to_numpy()
        self.columns = _Columns(self.layout, self.keys, self.rows)
        self.ctx = RoundContext(self.clock, self.moment.now_us)
        self.closing = False
        self.patience, self.waits = 0, LONG
        """For so many rounds keys with many rows go on by rounds, and for so many after the next run that is short."""
        everyone = np.arange(self.keys.n)
        self._all(everyone, self.last_us if self.ended else self.due_us)
        if self.ended:
            self._end(everyone)
        else:
            self._by_clock(everyone)
            if self.ttl_us is not None:
                states.has[self._expired(everyone, np.full(len(everyone), self.settled_us))] = False
        self.refused.sort(key=lambda refused: refused[0])
        try:
            return states.updates()
        except OperatorError:
            if self.goes_on and not self.careful:
                raise UndoneError from None
            raise

    def _all(self, keys: Ints, due_us: int) -> None:
        """Call the function until no key has a row left, or a timer that is due."""
        handed = self.operation.callbacks.has_on_row and self.in_time
        while len(keys):
            if handed and len(keys) <= FEW and int((self.stop[keys] - self.place[keys]).sum()) >= LONG:
                self._few(keys, due_us)
                return
            if self.patience > 0:
                self.patience -= 1
            elif (
                self.in_time
                and len(keys) <= FEW
                and int((self.stop[keys] - self.place[keys]).sum()) >= LONG
                and self._is_plain()
            ):
                for key in keys.tolist():
                    self._hot(key, due_us)
            more = self.place[keys] < self.stop[keys]
            row_us = values_at(more, self.times[self.place[keys[more]]], len(keys), NEVER)
            if self.in_time:
                limit = np.minimum(row_us, due_us)
            elif self.marks is not None:
                limit = values_at(more, self.marks[self.place[keys[more]]], len(keys), due_us)
            else:  # all rows, then timers
                limit = np.where(more, UNSET, due_us)
            timer_us, at = self.states.timers.soonest(keys)
            at = np.where(timer_us <= limit, at, -1)
            active = (at >= 0) | more
            if not active.all():
                keys, at, timer_us, row_us = (part[active] for part in (keys, at, timer_us, row_us))
            if len(keys):
                self._round(keys, at, np.where(at >= 0, np.maximum(timer_us, self.states.called[keys]), row_us))

    def _is_plain(self) -> bool:
        """Return whether state is numbers that are kept as they are, and no call is to be undone."""
        values = self.states.fields.values()
        return not self.careful and self.ttl_us is None and all(field.dtype != object for field in values)

    def _hot(self, key: int, due_us: int) -> None:
        """Take the events of a key one after the other, up to one that a round has to take."""
        states, first = self.states, int(self.place[key])
        rows, keys = self.times[first : int(self.stop[key])], np.array([key])
        cells = {name: values[keys] for name, values in states.fields.items()}
        due, context = states.timers.of_key(key), OneEventContext(self.ctx, self.operation.returns.names)
        numbers = {"called": int(states.called[key]), "fired": int(states.fired[key])}
        hot = HotKey(self.on_events, context, cells, states.defaults, due, has=bool(states.has[key]), **numbers)
        events = _EventsOfKey(self.columns, key, first, rows, self.kind)
        with self.timed():
            taken = hot.run(rows.tolist(), events.row, events.timer, due_us)
        try:
            given = self._rows_of_hot_key(hot, keys)
        except (SchemaError, OperatorError):  # a round says which event it was
            self.patience = END_OF_TIME
            return
        if hot.calls <= LONG:
            self.waits = 2 * self.waits
            self.patience = self.waits
        self.given += given
        self.count("calls", hot.calls)
        self.place[key] += taken
        states.called[key], states.fired[key] = hot.called, hot.fired
        states.has[key] = hot.has and self.operation.state is not None
        for name, cell in cells.items():
            states.fields[name][key] = cell[0]
        states.timers.clear(keys)
        for name, us in hot.due.items():
            states.timers.set(keys, name, np.array([us]))

    def _rows_of_hot_key(self, hot: HotKey, keys: Ints) -> list[tuple[Ints, Ints, list[pa.Array]]]:
        """Return the rows that the events of one key gave."""
        if not hot.emitted:
            return []
        times, arrays = np.array(hot.times, np.int64), list[pa.Array]()
        for field in self.operation.returns:
            values = [row[field.name] for row in hot.emitted]
            column = column_of(values)
            parts = (
                [self.column(field, column)] if column is not None else [self.column(field, list(value)) for value in values]
            )
            arrays.append(pa.concat_arrays(parts))
        return [(np.repeat(keys, len(times)), self.event_times(arrays, times), arrays)]

    def _round(self, keys: Ints, at: Ints, times: Ints, timers: TimerTable | None = None) -> None:
        """Take one event of each of some keys: the timer at a place, or the next row where there is none."""
        states, timers = self.states, self.states.timers if timers is None else timers
        fires = at >= 0
        names = np.full(len(keys), None, object)
        names[fires] = timers.names_at(at[fires])
        timers.remove(at[fires])
        rows = np.where(fires, -1, self.place[keys])
        self.place[keys[~fires]] += 1
        states.fired[keys] = np.where(fires, states.fired[keys] + 1, 0)
        if (endless := np.flatnonzero(states.fired[keys] > MOST_TIMERS)).size:
            place = int(endless[0])
            raise endless_timers(f"timer {names[place]!r}{self.place_of(int(keys[place]), int(times[place]))}")
        self.count("calls", len(keys))
        self._try(_Round(keys, rows, names, times))

    def _try(self, events: _Round) -> None:
        """Call the function for a round, and for halves of it where it fails, or leaves what no column holds."""
        try:
            columns = self._call(events)
        except RAISED as problem:
            if isinstance(problem, OperatorError):
                raise
            self._halve(events, problem)
            return
        reasons, kept = np.full(len(events), None, object), np.ones(len(events), np.bool_)
        for action, picked, reason, _ in self.ctx._actions:
            if action == "refuse":
                reasons[picked], kept[picked] = reason, False
        try:
            given = self._emitted(events, kept)
            if self.goes_on and self.careful:
                self.states.check(columns._taken, events.keys, kept)
        except (SchemaError, OperatorError) as problem:
            self._halve(events, problem)
            return
        self.given += given
        if not kept.all():
            self._undo()
            for place in np.flatnonzero(~kept).tolist():
                self._refuse(events, place, reasons[place])
            self.count("refused", int(np.count_nonzero(~kept)))
        self._write(events, columns, kept)
        self._act(events, kept)

    def _halve(self, events: _Round, problem: BaseException) -> None:
        """Repeat a round that failed with halves of its events; one that is alone is refused."""
        self._undo()
        if not self.goes_on:
            raise self._failed(problem, events) from problem
        if len(events) > 1:
            for half in events.halves():
                self._try(half)
        else:
            self._refuse(events, 0, failure_text(problem, placed=False))
            self.count("failed_calls", 1)

    def _undo(self) -> None:
        """Begin the step again, unless a call that is not written back leaves nothing."""
        if self.nested and not self.careful:
            raise UndoneError

    def _refuse(self, events: _Round, place: int, reason: str) -> None:
        self.refused.append((int(events.keys[place]), int(events.rows[place]), reason))

    def _call(self, events: _Round) -> StateColumns:
        """Call the function for a round; return the state as it left it."""
        states, keys = self.states, events.keys
        new = ~states.has[keys] | self._expired(keys, events.times)
        seen = Events(
            *(events.rows >= 0, events.timers.copy(), times_as(events.times, self.kind), self.columns.names),
            lambda name: self.columns.of(name, keys, events.rows),
        )
        copied = self.careful or self.ttl_us is not None
        columns = StateColumns(list(states.fields), lambda name: states.taken(name, keys, new, copied=copied))
        if new.any():
            columns._take_all()
        self.ctx._enter(events.times)
        with self.timed():
            given: Any = self.on_events(seen, columns, self.ctx)
        if given is not None:
            hint = "write ctx.emit(where=mask, n=state.n), and return nothing"
            raise PlanError("on_events gives its rows by ctx.emit", got=shown(given), hint=hint)
        return columns

    def _expired(self, keys: Ints, times: Ints) -> Mask:
        """Return of which keys the state has expired at some times."""
        written = self.states.changed[keys]
        if self.ttl_us is None:
            return np.zeros(len(keys), np.bool_)
        expired: Mask = (written != UNSET) & (times >= written + self.ttl_us)
        return expired

    def _write(self, events: _Round, columns: StateColumns, kept: Mask) -> None:
        """Write back what a call did to the state of the keys that are `kept`."""
        states, keys = self.states, events.keys[kept]
        if self.ttl_us is not None:
            times = events.times[kept]
            wrote = ~states.has[keys] | self._expired(keys, times)
            for name, values in columns._taken.items():
                wrote |= states.unlike(name, keys, values[kept])
            states.changed[keys[wrote]] = np.maximum(states.changed[keys[wrote]], times[wrote])
        for name, values in columns._taken.items():
            states.fields[name][keys] = values[kept]
        states.has[keys] = self.operation.state is not None
        states.called[keys] = np.maximum(states.called[keys], events.times[kept])

    def _act(self, events: _Round, kept: Mask) -> None:
        """Do what the function said to the context, for the events that are `kept`."""
        states, times = self.states, events.times
        for action, every, what, values in self.ctx._actions:
            mine = kept[every]
            picked = every[mine]
            keys, name = events.keys[picked], what[picked] if isinstance(what, np.ndarray) else what
            clocked = action.startswith("clock")
            if action == "forget":
                states.forget(keys)
            elif action.endswith("cancel"):
                (states.clock_timers if clocked else states.timers).cancel(keys, name)
            elif action not in ("refuse", "emit") and self.closing:
                self.count("timers_dropped", len(keys))
            elif action not in ("refuse", "emit"):
                now = np.full(len(picked), self.moment.now_us or 0) if clocked else times[picked]
                due = values[mine] + (now if action.endswith("after") else 0)
                (states.clock_timers if clocked else states.timers).set(keys, name, due)

    def _emitted(self, events: _Round, kept: Mask) -> list[tuple[Ints, Ints, list[pa.Array]]]:
        """Return the rows that a round gave for the events that are `kept`: their keys, event times and columns."""
        given = []
        for action, every, columns, _ in self.ctx._actions:
            if action == "emit":
                self._check_emit(columns, len(events))
                picked = every[kept[every]]
                if len(picked):
                    keys, called = events.keys[picked], events.times[picked]
                    times, arrays = self._rows(columns, picked, keys, called)
                    given.append((keys, times, arrays))
        return given

    def _check_emit(self, columns: dict[str, Any], n: int) -> None:
        """Refuse columns that `returns` does not describe, and arrays of another length than `n` events."""
        returns, name = self.operation.returns, self.operation.callbacks.name
        if set(columns) != set(returns.names):
            got, hint = f"emit({', '.join(columns)})", f"give {', '.join(returns.names)}, or change returns="
            raise SchemaError(f"{name} gives a row that `returns` does not describe", got=got, hint=hint)
        for column, value in columns.items():
            if _is_aligned(value) and len(value) != n:
                got, hint = f"{column} has {len(value)} values for {n} events", "give arrays aligned with all events"
                raise SchemaError(f"{name} gives an array of another length", got=got, hint=hint)

    def _rows(self, columns: dict[str, Any], picked: Ints, keys: Ints, called: Ints) -> tuple[Ints, list[pa.Array]]:
        """Return the event times and the columns of what a round gave for some of its events."""
        try:
            arrays = [self._array(field, columns[field.name], picked) for field in self.operation.returns]
            return self.event_times(arrays, called), arrays
        except (SchemaError, OperatorError):
            for event, key, us in zip(picked[:, None], keys.tolist(), called[:, None], strict=True):
                where = self.place_of(key, int(us[0]))
                one = [self._array(field, columns[field.name], event, where) for field in self.operation.returns]
                self.event_times(one, us, where)
            raise

    def _array(self, field: pa.Field, value: Any, events: Ints, where: str = "") -> pa.Array:
        """Return what a round gave for some events, as a column of results."""
        if not _is_aligned(value):
            return self.column(field, [value], where).take(pa.array(np.zeros(len(events), np.int64)))
        if isinstance(value, np.ndarray):
            return self.column(field, value[events], where)
        try:
            taken = value.take(pa.array(events))
            return (whole(taken) if isinstance(taken, pa.ChunkedArray) else taken).cast(field.type)
        except MISFITS as problem:
            raise self.unfit_column(field, problem, where) from problem

    def _few(self, keys: Ints, due_us: int) -> None:
        """Go on with a few keys that have many rows, row by row."""
        calls = Calls(self.layout, self.keys, self.rows, self.moment, self.settled_us, due_us)
        calls.checked |= set(keys.tolist() if self.careful else ())
        calls.run_rows(ArraysByKey(self.states), keys.tolist(), self.place, self.stop, careful=self.careful)
        self.place[keys] = self.stop[keys]
        self._join(calls)

    def _join(self, calls: Calls) -> None:
        """Take over what other calls gave."""
        self.given += calls.given
        self.refused += calls.refused
        for name, n in calls.counters.items():
            self.count(name, n)

    def _by_clock(self, keys: Ints) -> None:
        """Fire the timers of the clock that are due by the time on record."""
        now_us, states = self.moment.now_us, self.states
        while now_us is not None:
            soonest, at = states.clock_timers.soonest(keys)
            due = soonest <= now_us
            if not due.any():
                return
            keys = keys[due]
            self._round(keys, at[due], np.maximum(states.called[keys], self.settled_us), states.clock_timers)

    def _end(self, keys: Ints) -> None:
        """End the input (SEMANTICS §14.3)."""
        states, self.closing = self.states, self.operation.at_end == "fire"
        while self.closing and len(keys):
            soonest, at = states.timers.soonest(keys)
            due = at >= 0
            keys, soonest, at = keys[due], soonest[due], at[due]
            if len(keys):
                self._round(keys, at, np.maximum(soonest, states.called[keys]))
        for timers in (states.timers, states.clock_timers):
            left, _, _ = timers.all()
            self.count("timers_dropped", len(left))
            timers.clear(left)

    def _failed(self, problem: BaseException, events: _Round) -> BaseException:
        """Return what to raise for a round that raised."""
        if isinstance(problem, (PlanError, SchemaError)):
            return problem
        events, name = self._failing(events), self.operation.callbacks.name
        where = self.place_of(int(events.keys[0]), int(events.times[0]))
        among = where if len(events) == 1 else f" in a round of {len(events)} keys, the first{where.removeprefix(' for')}"
        hint = f'fix {name}, or write .process(..., on_error="side_output")'
        return OperatorError(f"{name}: on_events failed{among}", got=failure_text(problem), hint=hint)

    def _failing(self, events: _Round) -> _Round:
        """Return an event of a round that fails by itself, or as few as fail together."""
        for half in events.halves() if len(events) > 1 else ():
            try:
                self._call(half)
            except RAISED:
                return self._failing(half)
        return events


def _is_aligned(value: Any) -> bool:
    """Return whether a value is an array with one element for each event."""
    return isinstance(value, (pa.Array, pa.ChunkedArray)) or (isinstance(value, np.ndarray) and value.ndim == 1)


class _Columns:
    """The columns of rows and keys as arrays, made when they are asked for."""

    def __init__(self, layout: Layout, keys: KeyRows, rows: pa.Table) -> None:
        spec = layout.spec
        self.of_key = dict(zip(spec.keys, layout.key_names, strict=True))
        self.of_row = dict(zip(layout.own, layout.own_names, strict=True))
        self.names = [f.name for f in spec.row_schema if f.name in self.of_key or f.name in self.of_row]
        self.keys, self.rows = keys.keys, rows
        self.made: dict[str, Objects] = {}

    def of(self, name: str, keys: Ints, rows: Ints) -> Objects:
        """Return a column for events of some keys, whose rows have these places; -1 where there is none."""
        from_key = name in self.of_key
        if name not in self.made:
            table, column = (self.keys, self.of_key[name]) if from_key else (self.rows, self.of_row[name])
            self.made[name] = array_of(whole(table[column]))
        values = self.made[name]
        if from_key:
            return values[keys]
        lacks = rows < 0
        if not lacks.any():
            return values[rows]
        given = np.zeros(len(rows), values.dtype) if values.dtype != object else np.full(len(rows), None, object)
        given[~lacks] = values[rows[~lacks]]
        return given


class _EventsOfKey:
    """The rows and timers of one key as events."""

    def __init__(self, columns: _Columns, key: int, first: int, times: Ints, kind: TimeKind) -> None:
        self._columns, self._key, self._first, self._kind = columns, np.array([key]), first, kind
        self._n, self._times, self._made = len(times), times_as(times, kind), dict[str, Objects]()

    def row(self, place: int) -> Events:
        """Return the row at a place."""
        made = self._made

        def column(name: str) -> Objects:
            if name not in made:
                rows = np.arange(self._first, self._first + self._n)
                made[name] = self._columns.of(name, np.repeat(self._key, self._n), rows)
            return made[name][place : place + 1]

        time = self._times[place : place + 1]
        return OneEvent(_ONE_ROW.copy(), _NO_TIMER.copy(), time, self._columns.names, column)

    def timer(self, name: str, us: int) -> Events:
        """Return a timer."""
        named, time, none = np.full(1, name, object), times_as(np.array([us]), self._kind), np.full(1, -1)
        return OneEvent(np.zeros(1, np.bool_), named, time, self._columns.names, lambda n: self._columns.of(n, self._key, none))


_ONE_ROW, _NO_TIMER = np.ones(1, np.bool_), np.full(1, None, object)


class ArraysByKey:
    """State as arrays, for keys that go on row by row."""

    def __init__(self, states: ArrayStates) -> None:
        self._arrays = states
        self.clocked = bool(len(states.clock_timers.all()[0]))

    def state(self, key: int) -> Any:
        """Return the state of a key as an object."""
        arrays, state = self._arrays, self._arrays.operation.state
        if state is None or not arrays.has[key]:
            return None
        values = {name: column[key] for name, column in arrays.fields.items()}
        fields = {n: v.item() if isinstance(v, np.generic) else v for n, v in values.items()}
        try:
            return state.made(fields)
        except RAISED as problem:
            raise unmade_state(state, arrays.rows.shown(key), problem) from problem

    def due(self, key: int) -> dict[str, int]:
        """Return the timers of a key."""
        of_clock = self._arrays.clock_timers.of_key(key)
        return self._arrays.timers.of_key(key) | {f"{CLOCK}{name}": us for name, us in of_clock.items()}

    def numbers(self, key: int) -> Numbers:
        """Return when a key was called last, how many timers have fired since its last row, and its last write."""
        arrays = self._arrays
        return int(arrays.called[key]), int(arrays.fired[key]), int(arrays.changed[key])

    def put(self, key: int, state: Any, due: dict[str, int], numbers: Numbers) -> None:
        """Take back what became of a key."""
        arrays, keys = self._arrays, np.array([key])
        arrays.forget(keys)
        arrays.called[key], arrays.fired[key], arrays.changed[key] = numbers
        arrays.has[key] = state is not None
        for name, us in due.items():
            timers = arrays.clock_timers if name[:1] == CLOCK else arrays.timers
            timers.set(keys, name.removeprefix(CLOCK), np.array([us]))
        for name, values in arrays.fields.items() if state is not None else ():
            value = value_of(state, name)
            if values.dtype != object and not _holds(values.dtype, value):
                arrays.fields[name] = values = values.astype(object)  # what it is not is said where it is written
            values[key] = value


def _holds(dtype: np.dtype[Any], value: Any) -> bool:
    """Return whether an array of a type has a value as it is."""
    try:
        return value is not None and bool(np.asarray(value, dtype) == value)
    except (TypeError, ValueError, OverflowError):
        return False


def _contents(value: Any, type_: pa.DataType) -> Any:
    """Return a value of a field as Arrow takes it; as it is where no column holds it, which is said where it is stored."""
    try:
        return stored_value(value, type_)
    except (*MISFITS, AttributeError):
        return value


def value_of(state: Any, name: str) -> Any:
    """Return a field of a state."""
    return state.get(name) if isinstance(state, dict) else getattr(state, name)


def is_plain(type_: pa.DataType) -> bool:
    """Return whether NumPy has the values of a type as they are."""
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_))
