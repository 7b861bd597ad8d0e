"""Rounds: at most one event a key a call, many keys as columns.

The rows of a step lie by key and time, and each round takes the next event of every key that has one, a row or a timer::

    key a   row 3   row 5   timer 9        round 1   a 3   b 4   c 8
    key b   row 4   timer 6                round 2   a 5   b 6
    key c   row 8                          round 3   a 9

So the calls of a key come in its sequence, and state is columns that calls read and write at the places of their keys. Where
few keys have many rows left, they go on one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.types import Ints, Mask, numpy_type
from krishiv_py.errors import RAISED, OperatorError, PlanError, SchemaError, failure_text, shown
from krishiv_py.kernels.columns.layout import TIME, Layout, whole
from krishiv_py.kernels.ordered import NEVER, KeyRows
from krishiv_py.kernels.process.calls import Calls, StepCalls, UndoneError, endless_timers
from krishiv_py.kernels.process.states import CALLED, FIRED, MISFITS, KeyUpdates, field_array, timers_of
from krishiv_py.kernels.state.key_table import HAS_STATE, STATE_FIELD
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.process_calls import (
    CLOCK,
    Context,
    Events,
    Objects,
    RoundContext,
    StateColumns,
    array_of,
    filled,
    times_as,
)
from krishiv_py.plan.processing import MOST_TIMERS, Processing
from krishiv_py.plan.row_classes import RecordClass, stored_value

FEW: Final = 8
"""A round costs more than its calls where so few keys have rows left, and many."""
LONG: Final = 64


class ArrayStates:
    """State and timers of keys as aligned arrays."""

    def __init__(self, operation: Processing, rows: KeyRows) -> None:
        self.operation, self.rows, n = operation, rows, rows.n
        self.called, self.fired = rows.numbers(CALLED, UNSET), rows.numbers(FIRED, 0)
        self.has: Mask = np.zeros(n, np.bool_)
        self.timers: dict[str, Ints] = {}
        owners, names, times = timers_of(rows)
        if len(owners):
            texts = np.array(names, object)
            for name in sorted(set(names)):
                mine = texts == name
                self.of(name)[owners[mine]] = times[mine]
        self.fields: dict[str, npt.NDArray[Any]] = {}
        self.defaults: dict[str, Any] = {}
        if operation.state is not None:
            self.has[rows.found] = rows.stored[HAS_STATE].to_numpy()
            self._read(operation.state)

    def of(self, name: str) -> Ints:
        """Return when each key has a timer of a name."""
        if name not in self.timers:
            self.timers[name] = np.full(self.rows.n, NEVER, np.int64)
            self.timers = dict(sorted(self.timers.items()))
        return self.timers[name]

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
                values[there] = filled(column.to_pylist() if reader is None else list(map(reader, column.to_pylist())))
            self.fields[field.name] = values

    def renew(self, keys: Ints) -> None:
        """Give keys a new state."""
        state = self.operation.state
        if state is None or not len(keys):
            return
        self.has[keys] = True
        made: list[Any] = []
        for name, values in self.fields.items():
            if values.dtype != object or isinstance(self.defaults[name], (int, float, str, bytes, type(None))):
                values[keys] = self.defaults[name]
                continue
            made = made or [state.new() for _ in range(len(keys))]
            values[keys] = filled([value_of(each, name) for each in made])

    def updates(self) -> KeyUpdates:
        """Return what is to be stored."""
        owners, names, times = [np.empty(0, np.int64)], list[str](), [np.empty(0, np.int64)]
        for name, when in self.timers.items():
            mine = np.flatnonzero(when != NEVER)
            owners.append(mine)
            times.append(when[mine])
            names += [name] * len(mine)
        every = np.concatenate(owners)
        order = np.argsort(every, kind="stable")
        named = [names[place] for place in order.tolist()] if len(self.timers) > 1 else names
        return KeyUpdates(
            self.has, every[order], named, np.concatenate(times)[order], self.called, self.fired, list(self._written())
        )

    def _written(self) -> Iterator[pa.Array]:
        state = self.operation.state
        if state is None:
            return
        every = np.arange(self.rows.n)
        there = np.flatnonzero(self.has)
        for field in state.schema:
            values = self.fields[field.name]
            if values.dtype == object:
                written: Any = [None] * self.rows.n
                for key in there.tolist():
                    written[key] = stored_value(values[key], field.type)
                yield field_array(self.operation, field, written, every, self.rows.shown)
            else:
                array = field_array(self.operation, field, values, every, self.rows.shown)
                yield array if self.has.all() else pa.array(values, field.type, mask=~self.has)


class Rounds(StepCalls):
    """Calls for many keys at a time."""

    def run(self) -> KeyUpdates:
        """Call the function round by round; return what is to be stored of the keys."""
        calls, n_late, counters = self.operation.callbacks, len(self.refused), dict(self.counters)
        assert calls.on_events is not None
        self.on_events = calls.on_events
        try:
            return self._rounds()
        except UndoneError:  # a call is to be undone, which may be that of any key
            self.given.clear()
            del self.refused[n_late:]
            self.counters = counters
            return self._one_by_one()

    def _one_by_one(self) -> KeyUpdates:
        """Call the function for one event at a time."""
        calls = _SingleEvents(self).calls()
        updates = calls.run()
        self._join(calls)
        return updates

    def _rounds(self) -> KeyUpdates:
        states = self.states = ArrayStates(self.operation, self.keys)
        self.place = self.keys.begins[:-1].copy()
        self.stop, self.times = self.keys.begins[1:], self.rows[TIME].to_numpy()
        self.columns = _Columns(self.layout, self.keys, self.rows)
        self.ctx = RoundContext(self.clock, self.moment.now_us)
        self.left: dict[str, Ints] | None = None
        everyone = np.arange(self.keys.n)
        self._all(everyone, self.last_us if self.ended else self.due_us)
        if self.ended:
            self._end(everyone)
        else:
            self._by_clock(everyone)
            if self.ttl_us is not None:
                over = states.has & (states.called != UNSET)
                over[over] = states.called[over] + self.ttl_us <= self.settled_us
                states.has[over] = False
        return states.updates()

    def _all(self, keys: Ints, due_us: int, *, only_timers: bool = False) -> None:
        """Call the function until no key has a row left, or a timer that is due."""
        handed = self.operation.callbacks.has_on_row and self.in_time
        while len(keys):
            if handed and len(keys) <= FEW and int((self.stop[keys] - self.place[keys]).sum()) >= LONG:
                self._few(keys, due_us)
                return
            more = self.place[keys] < self.stop[keys]
            row_us = np.full(len(keys), NEVER)
            row_us[more] = self.times[self.place[keys[more]]]
            if self.in_time:
                limit = np.minimum(row_us, due_us)
            else:  # all rows, then timers
                limit = np.where(more, UNSET, due_us)
            timer_us, names = self._soonest(keys)
            fires = (timer_us <= limit) & (timer_us != NEVER)
            active = fires | more
            if not active.all():
                keys, fires, timer_us, names, row_us = (part[active] for part in (keys, fires, timer_us, names, row_us))
            if len(keys):
                self._round(keys, fires, np.where(fires, np.maximum(timer_us, self.states.called[keys]), row_us), names)

    def _soonest(self, keys: Ints, among: dict[str, Ints] | None = None) -> tuple[Ints, Objects]:
        """Return when the first timer by event time of each key is due, and its name."""
        soonest, names = np.full(len(keys), NEVER), np.full(len(keys), None, object)
        for name, when in (self.states.timers if among is None else among).items():
            if name[:1] != CLOCK:
                mine = when[keys]
                first = mine < soonest
                soonest[first], names[first] = mine[first], name
        return soonest, names

    def _round(self, keys: Ints, fires: Mask, times: Ints, names: Objects) -> None:
        """Call the function for one event of each of some keys."""
        states, ctx = self.states, self.ctx
        rows = np.where(fires, -1, self.place[keys])
        self.place[keys[~fires]] += 1
        names = names.copy()
        names[~fires] = None
        self._fired(keys, fires, names, times)
        new = ~states.has[keys]
        if self.ttl_us is not None:
            alive = ~new & (states.called[keys] != UNSET)
            new[alive] = times[alive] >= states.called[keys[alive]] + self.ttl_us
        states.renew(keys[new])
        events = Events(
            *(~fires, names, times_as(times, self.kind), self.columns.names), lambda name: self.columns.of(name, keys, rows)
        )
        columns = StateColumns(states.fields, keys)
        ctx._enter(times)
        try:
            self._nothing(self.on_events(events, columns, ctx))
        except RAISED as problem:
            if self.goes_on and not isinstance(problem, OperatorError):
                raise UndoneError from problem
            raise self._failed(problem, keys, times) from problem
        for name, values in columns._changed().items():
            states.fields[name][keys] = values
        states.called[keys] = np.maximum(states.called[keys], times)
        self._act(keys, times)

    def _fired(self, keys: Ints, fires: Mask, names: Objects, times: Ints) -> None:
        states = self.states
        states.fired[keys[~fires]] = 0
        fired = keys[fires]
        if not len(fired):
            return
        states.fired[fired] += 1
        for name in set(names[fires].tolist()):
            states.of(name if name in states.timers else f"{CLOCK}{name}")[fired[names[fires] == name]] = NEVER
        if (endless := np.flatnonzero(states.fired[keys] > MOST_TIMERS)).size:
            place = int(endless[0])
            got = f"timer {names[place]!r}{self.place_of(int(keys[place]), int(times[place]))}"
            raise endless_timers(got)

    def _nothing(self, given: Any) -> None:
        if given is not None:
            hint = "write ctx.emit(where=mask, n=state.n), and return nothing"
            raise PlanError("on_events gives its rows by ctx.emit", got=shown(given), hint=hint)

    def _act(self, keys: Ints, times: Ints) -> None:
        """Do what the function said to the context."""
        states = self.states
        for action, events, what, values in self.ctx._actions:
            mine = keys[events]
            if action == "emit":
                self._emit(mine, times[events], events, what, len(keys))
            elif action == "refuse":
                raise UndoneError
            elif action == "forget":
                states.has[mine] = False
                for when in states.timers.values():
                    when[mine] = NEVER
            elif action == "cancel":
                states.of(what)[mine] = NEVER
            elif self.operation.callbacks.on_events is not None and self.left is not None:
                self.count("timers_dropped", len(mine))
            elif action == "after":
                states.of(what)[mine] = times[events] + values
            elif action == "clock after":
                states.of(f"{CLOCK}{what}")[mine] = (self.moment.now_us or 0) + values
            else:
                states.of(what if action == "at" else f"{CLOCK}{what}")[mine] = values

    def _emit(self, keys: Ints, times: Ints, events: Ints, columns: dict[str, Any], n: int) -> None:
        returns, name = self.operation.returns, self.operation.callbacks.name
        if set(columns) != set(returns.names):
            got, hint = f"emit({', '.join(columns)})", f"give {', '.join(returns.names)}, or change returns="
            raise SchemaError(f"{name} gives a row that `returns` does not describe", got=got, hint=hint)
        if not len(keys):
            return
        arrays = []
        for field in returns:
            value = columns[field.name]
            if isinstance(value, (pa.Array, pa.ChunkedArray)) or (isinstance(value, np.ndarray) and value.ndim == 1):
                if len(value) != n:
                    got, hint = f"{field.name} has {len(value)} values for {n} events", "give arrays aligned with all events"
                    raise SchemaError(f"{name} gives an array of another length", got=got, hint=hint)
                arrays.append(self._picked(field, value, events))
            else:
                one = self.column(field, [stored_value(value, field.type)])
                arrays.append(one.take(pa.array(np.zeros(len(keys), np.int64))))
        self.given.append((keys, times, arrays))

    def _picked(self, field: pa.Field, values: Any, events: Ints) -> pa.Array:
        """Return the values of some events, as a column of results."""
        if isinstance(values, np.ndarray):
            picked = values[events]
            nested = pa.types.is_nested(field.type)
            return self.column(field, [stored_value(value, field.type) for value in picked] if nested else picked)
        try:
            taken = values.take(pa.array(events))
            return (whole(taken) if isinstance(taken, pa.ChunkedArray) else taken).cast(field.type)
        except MISFITS as problem:
            name = self.operation.callbacks.name
            got, hint = failure_text(problem), f"change {name}, or the type of {field.name} in returns="
            raise SchemaError(f"{name} gives a {field.name} that is not a {field.type}", got=got, hint=hint) from problem

    def _few(self, keys: Ints, due_us: int) -> None:
        """Go on with a few keys that have many rows, row by row."""
        calls = Calls(self.layout, self.keys, self.rows, self.moment, self.settled_us, due_us)
        calls.run_rows(ArraysByKey(self.states), keys.tolist(), self.place, self.stop)
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
            named = {name: when for name, when in states.timers.items() if name[:1] == CLOCK}
            soonest, names = np.full(len(keys), NEVER), np.full(len(keys), None, object)
            for name, when in named.items():
                first = when[keys] < soonest
                soonest[first], names[first] = when[keys][first], name[1:]
            due = soonest <= now_us
            if not due.any():
                return
            keys, names = keys[due], names[due]
            times = np.maximum(states.called[keys], self.settled_us)
            self._round(keys, np.ones(len(keys), np.bool_), times, names)

    def _end(self, keys: Ints) -> None:
        """End the input (SEMANTICS §14.3)."""
        states, left = self.states, {name: when.copy() for name, when in self.states.timers.items() if name[:1] != CLOCK}
        if self.operation.at_end == "fire":
            self.left = left
            while len(keys):
                for name, when in left.items():
                    when[states.of(name) != when] = NEVER
                soonest, names = self._soonest(keys, left)
                due = soonest != NEVER
                keys, soonest, names = keys[due], soonest[due], names[due]
                if len(keys):
                    times = np.maximum(soonest, states.called[keys])
                    self._round(keys, np.ones(len(keys), np.bool_), times, names)
        for when in states.timers.values():
            self.count("timers_dropped", int(np.count_nonzero(when != NEVER)))
            when[:] = NEVER

    def _failed(self, problem: BaseException, keys: Ints, times: Ints) -> BaseException:
        """Return what to raise for a round that raised."""
        if isinstance(problem, (OperatorError, PlanError, SchemaError)):
            return problem
        name = self.operation.callbacks.name
        where = self.place_of(int(keys[0]), int(times[0]))
        among = where if len(keys) == 1 else f" in a round of {len(keys)} keys, the first{where.removeprefix(' for')}"
        hint = f'fix {name}, or write .process(..., on_error="side_output")'
        return OperatorError(f"{name}: on_events failed{among}", got=failure_text(problem), hint=hint)


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


class ArraysByKey:
    """State as arrays, for keys that go on row by row."""

    def __init__(self, states: ArrayStates) -> None:
        self._arrays = states
        self.clocked = any(name[:1] == CLOCK for name in states.timers)

    def state(self, key: int) -> Any:
        """Return the state of a key as an object."""
        arrays, state = self._arrays, self._arrays.operation.state
        if state is None or not arrays.has[key]:
            return None
        values = {name: column[key] for name, column in arrays.fields.items()}
        return state.made({n: v.item() if isinstance(v, np.generic) else v for n, v in values.items()})

    def due(self, key: int) -> dict[str, int]:
        """Return the timers of a key."""
        return {name: int(when[key]) for name, when in self._arrays.timers.items() if when[key] != NEVER}

    def numbers(self, key: int) -> tuple[int, int]:
        """Return when a key was called last, and how many timers have fired since its last row."""
        return int(self._arrays.called[key]), int(self._arrays.fired[key])

    def put(self, key: int, state: Any, due: dict[str, int], called: int, fired: int) -> None:
        """Take back what became of a key."""
        arrays = self._arrays
        arrays.called[key], arrays.fired[key], arrays.has[key] = called, fired, state is not None
        for when in arrays.timers.values():
            when[key] = NEVER
        for name, us in due.items():
            arrays.of(name)[key] = us
        for name, values in arrays.fields.items() if state is not None else ():
            value = value_of(state, name)
            if values.dtype != object and (value is None or np.asarray(value, values.dtype) != value):
                arrays.fields[name] = values = values.astype(object)  # what it is not is said where it is written
            values[key] = value


class _SingleEvents:
    """Calls ``on_events`` for one event: for a key whose calls may have to be undone."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds, self._columns = rounds, _Columns(rounds.layout, rounds.keys, rounds.rows)
        self._calls: Calls | None = None

    def calls(self) -> Calls:
        """Return the calls of the keys of the step, one by one."""
        r = self._rounds
        self._calls = Calls(
            *(r.layout, r.keys, r.rows, r.moment, r.settled_us, r.due_us), adapted=(self._on_row, self._on_timer)
        )
        return self._calls

    def _on_row(self, place: int, state: Any, ctx: Context) -> list[dict[str, Any]]:
        return self._call(place, None, state, ctx)

    def _on_timer(self, name: str, state: Any, ctx: Context) -> list[dict[str, Any]]:
        return self._call(-1, name, state, ctx)

    def _call(self, place: int, name: str | None, state: Any, ctx: Context) -> list[dict[str, Any]]:
        rounds, calls = self._rounds, self._calls
        assert rounds.operation.callbacks.on_events is not None and calls is not None
        key, row, now = np.array([calls.at]), np.array([place]), np.array([ctx._now])
        kind = rounds.operation.state
        fields = {} if kind is None else {f.name: as_column(kind, f, [value_of(state, f.name)]) for f in kind.schema}
        columns = StateColumns(fields, np.zeros(1, np.int64))
        events = Events(
            *(np.array([name is None]), filled([name]), times_as(now, rounds.kind), self._columns.names),
            lambda column: self._columns.of(column, key, row),
        )
        context = RoundContext(ctx.clock, ctx._now_us)
        context._enter(now)
        rounds._nothing(rounds.operation.callbacks.on_events(events, columns, context))
        if kind is not None and columns._changed():
            now_values = {n: columns._changed().get(n, values)[0] for n, values in fields.items()}
            ctx.state = kind.made({n: v.item() if isinstance(v, np.generic) else v for n, v in now_values.items()})
        return self._acted(context, ctx)

    def _acted(self, context: RoundContext, ctx: Context) -> list[dict[str, Any]]:
        given = []
        for action, events, what, values in context._actions:
            if not len(events):
                continue
            if action == "emit":
                given.append(
                    {n: v[0] if isinstance(v, (np.ndarray, pa.Array, pa.ChunkedArray)) else v for n, v in what.items()}
                )
            elif action == "refuse":
                ctx.refuse(None, what)
            elif action == "forget":
                ctx.forget()
            elif action == "cancel":
                ctx.cancel(what.removeprefix(CLOCK), clock="processing" if what[:1] == CLOCK else "event")
            else:
                now_us = int(ctx._now if action == "after" else ctx._now_us or 0)
                due_us = int(values[0]) + (now_us if action.endswith("after") else 0)
                ctx._put(what if not action.startswith("clock") else f"{CLOCK}{what}", due_us)
        return [
            {
                n: v.item() if isinstance(v, np.generic) else v.as_py() if isinstance(v, pa.Scalar) else v
                for n, v in each.items()
            }
            for each in given
        ]


def value_of(state: Any, name: str) -> Any:
    """Return a field of a state."""
    return state[name] if isinstance(state, dict) else getattr(state, name)


def as_column(state: RecordClass, field: pa.Field, values: list[Any]) -> Objects:
    """Return values of a field as a round has them: numbers that are never null as NumPy has them, all else as objects."""
    if not is_plain(field.type) or field.name in state.nullable or None in values:
        return filled(values)
    return np.array(values, numpy_type(field.type))


def is_plain(type_: pa.DataType) -> bool:
    """Return whether NumPy has the values of a type as they are."""
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_))
