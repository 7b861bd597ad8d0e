"""Process functions (SEMANTICS §14): rows and timers of each key go through a user's function in settled order.

What a bucket keeps are facts: rows that are not settled, by their time; of each key its state with its timers, as the newest row
of a table; and a queue that says when a key is to be looked at::

    rows     ──► held by time ──settled──► with the state of their key ──► on_row, on_timer ──► state, results
    timers   in the row of the key         ▲
    look at  (key, time) ──────due─────────┘

A timer that moves to a later time leaves the queue as it is: the key is looked at once in vain, and again when it is due. So a
batch costs what it brings and what is due, whatever is held.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import group, group_rows, key_hashes
from krishiv_py.arrays.sorting import sorted_unique
from krishiv_py.arrays.types import Ints, pick
from krishiv_py.errors import RAISED, OperatorError, PlanError, SchemaError, failure_text, shown
from krishiv_py.kernels.aggregates.base import shown_key
from krishiv_py.kernels.columns.layout import TIME, Layout, whole
from krishiv_py.kernels.columns.times import time_type, unstamp
from krishiv_py.kernels.results import StepResult
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.key_table import KeyTable
from krishiv_py.kernels.state.store import WRITTEN, Bucket, Section
from krishiv_py.kernels.state.timer_queue import DUE, DueQueue
from krishiv_py.kernels.state.window_log import HASH, DeadKeys
from krishiv_py.kernels.watermark import floor_watermark
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.processing import MOST_TIMERS, Context, Processing, row_reader, time_of
from krishiv_py.plan.row_classes import names_of, stored_value

_ARRIVED: Final = "n"
_HAS, _TIMERS, _LOOK, _CALLED, _FIRED = "__has", "__timers", "__look", "__called", "__fired"
_LOOKS: Final = pa.schema([pa.field(HASH, pa.int64()), pa.field(DUE, pa.int64())])
_STATE: Final = "s:"
"""With this the columns of the fields of state begin."""
_NEVER: Final = END_OF_TIME


@attrs.define
class _Arrived(Section):
    """How many rows have arrived: rows of equal time go to the function in this order."""

    process_arrived: int = 0


class ProcessOperator:
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        operation = spec.operation
        assert isinstance(operation, Processing)
        self.operation = operation
        self.layout = layout = Layout(spec)
        self.late_us = spec.options.allowed_lateness_us
        self.names = layout.key_names
        working = dict(zip(spec.keys, self.names, strict=True)) | dict(zip(layout.own, layout.own_names, strict=True))
        self.working = working
        self.visible = [f.name for f in spec.row_schema if f.name in working]
        self.read_row = row_reader(operation.callbacks.row_class, spec.row_schema, self.visible)
        numbers = [pa.field(_ARRIVED, pa.int64()), pa.field(DUE, pa.int64())]
        self.held_schema = pa.schema([*layout.row_schema, *numbers])
        fields = [] if operation.state is None else list(operation.state.schema)
        self.state_fields = [pa.field(f"{_STATE}{f.name}", f.type) for f in fields]
        self.values = [
            pa.field(_HAS, pa.bool_()),
            pa.field(_TIMERS, pa.map_(pa.string(), pa.int64())),
            *(pa.field(name, pa.int64()) for name in (_LOOK, _CALLED, _FIRED)),
            *self.state_fields,
        ]
        self.finest_us = max(spec.tick_us, 1 << 16)

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return the rows as they are."""
        return rows

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return _Step(self, bucket, moment).run(pa.concat_tables([self.layout.row_schema.empty_table(), *chunks]))

    def table(self, bucket: Bucket) -> KeyTable:
        """Return the state and the timers of the keys of a bucket."""
        return KeyTable(bucket, "process", self.layout.key_fields, self.values)

    def held(self, bucket: Bucket) -> DueQueue:
        """Return the rows of a bucket that are not settled."""
        return DueQueue(bucket, "process_rows", self.finest_us)

    def looks(self, bucket: Bucket) -> DueQueue:
        """Return when the keys of a bucket are to be looked at."""
        return DueQueue(bucket, "process_due", self.finest_us)

    def state(self, bucket: Bucket) -> pa.Table:
        """Return for each key its state, its timers, the rows that it holds back and when the state was written."""
        spec, kind = self.layout.spec, self.layout.spec.time_kind
        rows = self.table(bucket).rows()
        held = pa.concat_tables([self.held_schema.empty_table(), *(t.select(self.held_schema.names) for t in self.held(bucket).written())])
        groups = group_rows(self.names, rows, held.select(self.names)) if self.names else None
        n = rows.num_rows
        if groups is None:
            counts = np.array([held.num_rows] * n, np.int64)
        else:
            counts = np.bincount(groups.ids[n:], minlength=groups.n)[groups.ids[:n]]
        timers = whole(rows[_TIMERS])
        times = pa.MapArray.from_arrays(timers.offsets, timers.keys, unstamp(timers.items.to_numpy(), kind))
        taken = {*spec.keys, *(f.name.removeprefix(_STATE) for f in self.state_fields)}
        columns: dict[str, Any] = {key: rows[name] for key, name in zip(spec.keys, self.names, strict=True)}
        columns |= {f.name.removeprefix(_STATE): rows[f.name] for f in self.state_fields}
        own = {"timers": times, "held_rows": pa.array(counts), "last_update": unstamp(rows[WRITTEN].to_numpy(), "timestamp")}
        for name, column in own.items():
            columns[f"state_{name}" if name in taken else name] = column
        return pa.table(columns)

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; counts keys with timers and rows that were held."""
        gone = DeadKeys.of(dead, self.names)
        rows = self.table(bucket).drop(gone)
        held = sum(t.num_rows for t in self.held(bucket).discard(gone.rows))
        return held + sum(1 for timers in rows[_TIMERS].to_pylist() if timers)

    def shown_key(self, keys: pa.Table, place: int) -> str:
        """Return a key for the text of an error."""
        text = shown_key(self.layout.spec.keys, [keys[name][place].as_py() for name in self.names])
        return f" for {text}" if text else ""


@attrs.define(eq=False)
class _Keys:
    """The keys of a step: their rows in order, their state and their timers.

    Attributes
    ----------
    keys : pyarrow.Table
        The key columns.
    hashes : ndarray of int64
        Their hashes.
    begins : ndarray of int64
        Where the rows of each key begin, and where the last ones end.
    states : list
        Their state; None where they have none.
    timers : list of dict
        Their timers, µs.
    look : ndarray of int64
        When they are to be looked at, as the queue says.
    called, fired : list of int
        When they were called last, and how many timers have fired since their last row.
    """

    keys: pa.Table
    hashes: Ints
    begins: list[int]
    states: list[Any]
    timers: list[dict[str, int]]
    look: Ints
    called: list[int]
    fired: list[int]


class _Step:
    """One bucket in one micro-batch."""

    def __init__(self, operator: ProcessOperator, bucket: Bucket, moment: Moment) -> None:
        self.op = operator
        self.bucket = bucket
        self.moment = moment
        self.ended = moment.watermark_us == END_OF_TIME
        self.horizon = floor_watermark(moment.watermark_us, operator.late_us)
        self.table = operator.table(bucket)
        self.held = operator.held(bucket)
        self.looks = operator.looks(bucket)

    def run(self, chunk: pa.Table) -> StepResult:
        """Call the function for what is settled and due."""
        op = self.op
        settled = self._settled(chunk)
        due = self.looks.pop(self.horizon) if self.horizon != UNSET else []
        results, refused, counters = op.layout.result_schema.empty_table(), None, {}
        if settled.num_rows or due:
            keys, rows = self._keys(settled, due)
            calls = Calls(op, self.moment, self.horizon)
            calls.run(keys, rows)
            self._write(keys)
            results, counters = calls.results(keys), calls.counters
        first = self.held.earliest
        wakeups = [] if first is None else [first + 1]
        wakeups += [] if self.looks.earliest is None else [self.looks.earliest]
        wakeup = min(wakeups) + op.late_us if wakeups else None
        waiting = len(self.held) + len(self.table)
        return StepResult(results, wakeup, len(self.looks), waiting, results.num_rows, counters, refused)

    def _settled(self, chunk: pa.Table) -> pa.Table:
        """Return the rows that are settled; the others are held."""
        op, arrived = self.op, _Arrived.of(self.bucket)
        numbers = np.arange(arrived.process_arrived, arrived.process_arrived + chunk.num_rows)
        arrived.process_arrived += chunk.num_rows
        arrived.store(self.bucket)
        rows = pa.Table.from_arrays([*chunk.columns, pa.array(numbers), chunk[TIME]], schema=op.held_schema)
        if op.operation.order == "arrival":
            return rows
        reached = [] if self.horizon == UNSET else self.held.pop(self.horizon - 1)
        ready = rows[TIME].to_numpy() < self.horizon
        if not ready.all():
            self.held.insert(rows.filter(pa.array(~ready)), self.horizon)
            rows = rows.filter(pa.array(ready))
        return pa.concat_tables([*reached, rows])

    def _keys(self, rows: pa.Table, due: list[pa.Table]) -> tuple[_Keys, pa.Table]:
        """Return the keys that have rows or are due, and the rows in order of key, time and arrival."""
        names, op = self.op.names, self.op
        looked = sorted_unique(pa.concat_tables([_LOOKS.empty_table(), *due])[HASH].to_numpy())
        waiting = self.table.of_hashes(looked)
        waiting = waiting.filter(pa.array(waiting[_LOOK].to_numpy() <= self.horizon))
        every = pa.concat_tables([rows.select(names), waiting.select(names)]) if names else pa.table({})
        if names:
            groups = group_rows(names, every)
            ids, n = groups.ids[: rows.num_rows], groups.n
            keys = pick(every, groups.first)
        else:
            ids, n = np.zeros(rows.num_rows, np.int64), int(rows.num_rows + waiting.num_rows > 0)
            keys = pa.table({"": pa.nulls(n)})
        hashes = key_hashes([keys[k] for k in names], n)
        order = self._order(rows, ids)
        rows, ids = pick(rows, order), ids[order]
        begins = np.searchsorted(ids, np.arange(n + 1)).tolist()
        stored, places = self.table.lookup(keys, hashes)
        found = np.flatnonzero(places >= 0)
        mine = pick(stored, places[found])
        states, timers = [None] * n, [dict[str, int]() for _ in range(n)]
        look, called, fired = np.full(n, _NEVER), [UNSET] * n, [0] * n
        if len(found):
            look[found] = mine[_LOOK].to_numpy()
            values: list[Any] = [None] * len(found)
            if op.operation.state is not None:
                columns = {f.name.removeprefix(_STATE): mine[f.name].to_pylist() for f in op.state_fields}
                values = op.operation.state.read(columns)
            has, whens, counts = (mine[name].to_pylist() for name in (_HAS, _CALLED, _FIRED))
            for at, place in enumerate(found.tolist()):
                states[place] = values[at] if has[at] else None
                called[place], fired[place] = whens[at], counts[at]
            for place, pairs in zip(found.tolist(), mine[_TIMERS].to_pylist(), strict=True):
                if pairs:
                    timers[place] = dict(pairs)
        return _Keys(keys, hashes, begins, states, timers, look, called, fired), rows

    def _order(self, rows: pa.Table, ids: Ints) -> Ints:
        arrived = rows[_ARRIVED].to_numpy()
        if self.op.operation.order == "arrival":
            return np.lexsort((arrived, ids))
        ranks = [_ranks(whole(rows[self.op.working[name]])) for name in reversed(self.op.operation.order_by)]
        return np.lexsort((arrived, *ranks, rows[TIME].to_numpy(), ids))

    def _write(self, keys: _Keys) -> None:
        """Write what became of the keys, and see that those with timers are looked at when the first is due."""
        op, n = self.op, keys.keys.num_rows
        has = np.fromiter((state is not None for state in keys.states), np.bool_, n)
        if op.operation.state is None:
            has[:] = False
        first = np.fromiter((min(due.values(), default=_NEVER) for due in keys.timers), np.int64, n)
        if op.operation.ttl_us is not None:
            over = np.array(keys.called, np.int64) + op.operation.ttl_us
            first = np.where(has, np.minimum(first, over), first)
        live = has | np.fromiter(map(bool, keys.timers), np.bool_, n)
        arm = (first != _NEVER) & ((first < keys.look) | (keys.look <= self.horizon))
        look = np.where(arm, first, keys.look)
        if arm.any():
            entries = pa.Table.from_arrays([pa.array(keys.hashes[arm]), pa.array(first[arm])], schema=_LOOKS)
            self.looks.insert(entries, self.horizon if self.horizon != UNSET else int(first[arm].min()))
        offsets = np.zeros(n + 1, np.int32)
        np.cumsum([len(due) for due in keys.timers], out=offsets[1:])
        names = pa.array([name for due in keys.timers for name in due], pa.string())
        times = pa.array([us for due in keys.timers for us in due.values()], pa.int64())
        columns = [
            pa.array(has),
            pa.MapArray.from_arrays(pa.array(offsets), names, times),
            pa.array(look),
            pa.array(keys.called, pa.int64()),
            pa.array(keys.fired, pa.int64()),
        ]
        self.table.write(keys.keys, keys.hashes, live, [*columns, *self._state_columns(keys, has)])

    def _state_columns(self, keys: _Keys, has: Any) -> Iterator[pa.Array]:
        state = self.op.operation.state
        if state is None:
            return
        there = np.flatnonzero(has)
        values = state.written([keys.states[place] for place in there.tolist()])
        places = np.full(len(has), len(there))
        places[there] = np.arange(len(there))
        for field in state.schema:
            try:
                column = pa.array([*values[field.name], None], field.type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError) as problem:
                raise self._misfit(keys, there, field, values[field.name]) from problem
            yield column.take(pa.array(places))

    def _misfit(self, keys: _Keys, there: Ints, field: pa.Field, values: list[Any]) -> OperatorError:
        """Return the error for a value of state that its column cannot hold."""
        for place, value in zip(there.tolist(), values, strict=True):
            try:
                pa.array([value], field.type)
            except Exception:  # noqa: BLE001  # that one is to be named
                key = self.op.shown_key(keys.keys, place)
                got, hint = shown(value), f"give the field a type that holds it, or fix {self.op.operation.callbacks.name}"
                return OperatorError(f"state.{field.name} is not a {field.type}{key}", got=got, hint=hint)
        raise AssertionError(field)


class Calls:
    """Calls a function, key by key, for rows and timers in order."""

    def __init__(self, op: ProcessOperator, moment: Moment, horizon: int) -> None:
        self.op = op
        self.operation = op.operation
        self.horizon = horizon
        self.ended = moment.watermark_us == END_OF_TIME
        self.last_us = moment.newest_us
        self.counters: dict[str, int] = {}
        self._given: list[Any] = []
        self._times: list[int] = []
        self._of: list[int] = []
        calls = op.operation.callbacks
        self.on_row, self.on_timer, self.on_end = calls.on_row, calls.on_timer, calls.on_end
        self.state_class = op.operation.state
        self.ttl_us = op.operation.ttl_us
        self.clock = None if moment.begun_us is None else dt.datetime.fromtimestamp(moment.begun_us / 1e6, dt.timezone.utc)

    def run(self, keys: _Keys, rows: pa.Table) -> None:
        """Call the function for each key, in order of its rows and timers."""
        op = self.op
        times = rows[TIME].to_numpy().tolist()
        objects = op.read_row([rows[op.working[name]] for name in op.visible])
        ctx = Context(clock=self.clock)
        ctx._kind = op.layout.spec.time_kind
        ctx._fires = self.on_timer is not None
        names = [keys.keys[name].to_pylist() for name in op.names]
        values: list[Any] = names[0] if len(names) == 1 else list(zip(*names, strict=True)) if names else [None] * len(keys.states)
        for key in range(len(keys.states)):
            low, high = keys.begins[key], keys.begins[key + 1]
            ctx.key = values[key]
            self._key(keys, key, ctx, times[low:high], objects[low:high])

    def _key(self, keys: _Keys, key: int, ctx: Context, times: list[int], rows: list[Any]) -> None:
        """Call the function for the rows and the timers of one key."""
        self.keys, self.at = keys, key
        ctx._due = due = keys.timers[key]
        ctx._dropped = 0
        ctx._closing = False
        ctx._changed = False
        ctx._forgotten = False
        self.state, self.called, self.fired = keys.states[key], keys.called[key], keys.fired[key]
        arrival = self.operation.order == "arrival"
        least = min(due.values(), default=_NEVER)
        on_row = self.on_row
        for time_us, row in zip(times, rows, strict=True):
            if least <= time_us and not arrival:
                self._fire(ctx, time_us)
            self.fired = 0
            ctx._now = time_us
            try:
                given = on_row(row, self._current(time_us), ctx)
                if given is not None:
                    self._give(given, time_us)
            except RAISED as problem:
                raise self._failed("on_row", ctx, problem) from problem
            self._called(ctx, time_us)
            if ctx._changed:
                ctx._changed = False
                least = min(due.values(), default=_NEVER)
        if not self.ended:
            self._fire(ctx, self.horizon)
        else:
            self._end(ctx)
        keys.states[key], keys.called[key], keys.fired[key] = self.state, self.called, self.fired

    def _current(self, time_us: int) -> Any:
        """Return the state of the key at a time; a new one where it has none, or the old one has expired."""
        state = self.state
        if self.state_class is None:
            return None
        if state is None or (self.ttl_us is not None and time_us >= self.called + self.ttl_us):
            state = self.state = self.state_class.new()
        return state

    def _called(self, ctx: Context, time_us: int) -> None:
        """Note a call."""
        if ctx._forgotten:
            ctx._forgotten = False
            self.state = None
        self.called = time_us

    def _give(self, given: Any, time_us: int) -> None:
        if isinstance(given, (dict, str)):
            hint = "yield it, or return [row]"
            raise PlanError("a process function gives rows, one after the other", got=shown(given), hint=hint)
        before = len(self._given)
        self._given.extend(given)
        new = len(self._given) - before
        if new:
            self._times += [time_us] * new
            self._of += [self.at] * new

    def _fire(self, ctx: Context, upto_us: int) -> None:
        """Fire the timers that are due, in order of time and name, and those that are set meanwhile."""
        due = ctx._due
        while due:
            name = min(due, key=lambda each: (due[each], each))
            if due[name] > upto_us:
                break
            self._timer(ctx, name)
        ctx._changed = False

    def _timer(self, ctx: Context, name: str) -> None:
        time_us = ctx._now = max(ctx._due.pop(name), self.called)
        self.fired += 1
        if self.fired > MOST_TIMERS:
            got = f"timer {name!r}{self._place(ctx)}"
            hint = "set a timer later than ctx.time, and not in an endless loop"
            raise OperatorError(f"more than {MOST_TIMERS:_} timers of a key fired with no row between them", got=got, hint=hint)
        assert self.on_timer is not None
        try:
            given = self.on_timer(name, self._current(time_us), ctx)
            if given is not None:
                self._give(given, time_us)
        except RAISED as problem:
            raise self._failed(f"on_timer({name!r})", ctx, problem) from problem
        self._called(ctx, time_us)

    def _end(self, ctx: Context) -> None:
        """Fire what is left at the end of input (SEMANTICS §14.3)."""
        self._fire(ctx, self.last_us)
        left = dict(ctx._due)
        if self.operation.at_end == "fire":
            ctx._closing = True
            while left:
                name = min(left, key=lambda each: (left[each], each))
                us = left.pop(name)
                if ctx._due.get(name) == us:
                    self._timer(ctx, name)
            left = dict(ctx._due)
        dropped = len(left) + ctx._dropped
        if dropped:
            self.counters["timers_dropped"] = self.counters.get("timers_dropped", 0) + dropped
        ctx._due.clear()

    def _place(self, ctx: Context) -> str:
        return f"{self.op.shown_key(self.keys.keys, self.at)} at {time_of(ctx._now, ctx._kind)}"

    def _failed(self, call: str, ctx: Context, problem: BaseException) -> BaseException:
        """Return the error for a call that raised."""
        if isinstance(problem, OperatorError):
            return problem
        name = self.operation.callbacks.name
        hint = f'fix {name}, or write .process(..., on_error="side_output")'
        then = failure_text(problem)
        return OperatorError(f"{name}.{call} failed{self._place(ctx)}", got=failure_text(problem), hint=hint) if then else problem

    def results(self, keys: _Keys) -> pa.Table:
        """Return the results by time and key, nulls first, then as they were given."""
        schema = self.op.layout.result_schema
        if not self._given:
            return schema.empty_table()
        times, of = np.array(self._times, np.int64), np.array(self._of, np.int64)
        by_key = [_ranks(whole(keys.keys[name]), nulls_first=True)[of] for name in reversed(self.op.names)]
        order = np.lexsort((*by_key, times))
        columns = [pick(keys.keys[name], of[order]) for name in self.op.names]
        if self.operation.event_time is None:
            columns.append(unstamp(times[order], self.op.layout.spec.time_kind))
        given = list(map(self._given.__getitem__, order.tolist()))
        return pa.Table.from_arrays([*columns, *self._columns(given)], schema=schema)

    def _columns(self, rows: list[Any]) -> Iterator[pa.Array]:
        returns, name = self.operation.returns, self.operation.callbacks.name
        rows = [row if type(row) is dict else fields_of(row) for row in rows]
        n = len(returns)
        for row in rows:
            if len(row) != n or not all(map(row.__contains__, returns.names)):
                got, hint = shown(row), f"give rows with {', '.join(returns.names)}, or change returns="
                raise SchemaError(f"{name} gives a row that `returns` does not describe", got=got, hint=hint)
        for field in returns:
            values = [row[field.name] for row in rows]
            if pa.types.is_nested(field.type):
                values = [stored_value(value, field.type) for value in values]
            try:
                yield pa.array(values, field.type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError) as problem:
                got = failure_text(problem)
                hint = f"change {name}, or the type of {field.name} in returns="
                raise SchemaError(f"{name} gives a {field.name} that is not a {field.type}", got=got, hint=hint) from problem


def fields_of(row: Any) -> dict[str, Any]:
    """Return the fields of a row that a function gave."""
    names = names_of(type(row))
    if isinstance(row, dict):
        return row
    if names is None:
        hint = "give dicts, or objects of the class that `returns` names"
        raise SchemaError("a process function gives rows", got=shown(row), hint=hint)
    return {name: getattr(row, name) for name in names}


def _ranks(column: pa.Array, *, nulls_first: bool = False) -> Ints:
    """Return for each value its place among the different ones, in ascending order."""
    groups = group([column], len(column))
    values = column.take(pa.array(groups.first))
    ranks = np.empty(groups.n, np.int64)
    ranks[pc.sort_indices(values).to_numpy()] = np.arange(groups.n)
    if nulls_first:
        ranks[values.is_null().to_numpy(zero_copy_only=False)] = -1
    return ranks[groups.ids]
