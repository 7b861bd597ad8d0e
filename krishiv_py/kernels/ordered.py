"""Stages in settled order (SEMANTICS §14.1): rows wait until none before them can come, keys are looked at when they are due.

A bucket keeps facts: rows that are not settled, by their time; of each key what its operator keeps, as the newest row of a
table; and a queue that says when a key is to be looked at::

    rows     ──► held by time ──settled──► with what is kept of their key ──► the operator ──► results
    look at  (key, time) ──────due─────────┘

A deadline that moves to a later time leaves the queue as it is: the key is looked at once in vain, and again when it is due. So
a batch costs what it brings and what is due, whatever is held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import group, group_rows, key_hashes
from krishiv_py.arrays.sorting import sorted_unique
from krishiv_py.arrays.types import Ints, Mask, last_rows, pick, values_at
from krishiv_py.kernels.aggregates.base import shown_key
from krishiv_py.kernels.columns.layout import MARK, TIME, Layout, whole
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.results import StepResult, earliest
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.key_table import KeyTable
from krishiv_py.kernels.state.store import WRITTEN, Bucket, ClockDeadline, Section
from krishiv_py.kernels.state.timer_queue import DUE, DueQueue
from krishiv_py.kernels.state.window_log import HASH, DeadKeys
from krishiv_py.kernels.watermark import floor_each, floor_watermark
from krishiv_py.plan.durations import END_OF_TIME, UNSET

NEVER: Final = END_OF_TIME
_ARRIVED: Final = "n"
LOOK, _CLOCK = "__look", "__clock"
_LOOKS: Final = pa.schema([pa.field(HASH, pa.int64()), pa.field(DUE, pa.int64())])


@attrs.define
class ArrivalCount(Section):
    """The numbers that rows got: those of equal time go to the operator in the order in which they arrived."""

    rows_arrived: int = 0


@attrs.frozen(eq=False)
class KeyRows:
    """The keys of a step, with what is stored of each.

    Attributes
    ----------
    keys : pyarrow.Table
        The key columns.
    begins : list of int
        Where the rows of each key begin, and where the last ones end.
    stored : pyarrow.Table
        What is stored of those that are known.
    found : ndarray of int64
        Which keys these are.
    shown : callable
        Gives the text of a key for errors.
    """

    keys: pa.Table
    begins: Ints
    stored: pa.Table
    found: Ints
    shown: Callable[[int], str]

    @property
    def n(self) -> int:
        """Return how many keys there are."""
        return len(self.begins) - 1

    def part(self, low: int, high: int) -> KeyRows:
        """Return the keys from `low` to before `high`; their rows begin at 0."""
        first, stop = np.searchsorted(self.found, [low, high])
        return KeyRows(
            self.keys.slice(low, high - low),
            self.begins[low : high + 1] - self.begins[low],
            self.stored.slice(first, stop - first),
            self.found[first:stop] - low,
            lambda place: self.shown(low + place),
        )

    def numbers(self, column: str, default: int) -> Ints:
        """Return a column of numbers, with a default for keys that are not known."""
        return values_at(self.found, self.stored[column].to_numpy(), self.n, default)


class OrderedOperator:
    """An operator over rows in settled order; see the module's docstring.

    Parameters
    ----------
    spec : OperatorSpec
        Its specification.
    values : list of pyarrow.Field
        The columns that it keeps of a key.
    order_by : tuple of str
        The columns that order rows of equal time.
    in_time : bool
        Whether rows wait; else they come as they arrive.
    """

    NAME: ClassVar[str]
    """The tables of a bucket are called so."""

    def __init__(
        self, spec: OperatorSpec, values: list[pa.Field], order_by: tuple[str, ...] = (), *, in_time: bool = True
    ) -> None:
        self.layout = layout = Layout(spec)
        self.late_us = spec.options.allowed_lateness_us
        self.names = layout.key_names
        self.order_columns = [layout.working[name] for name in order_by]
        self.in_time = in_time
        kept = [field for field in layout.row_schema if field.name != MARK]
        self.held_schema = pa.schema([*kept, pa.field(_ARRIVED, pa.int64()), pa.field(DUE, pa.int64())])
        self.values = [*values, pa.field(LOOK, pa.int64()), pa.field(_CLOCK, pa.int64())]
        self.finest_us = max(spec.tick_us, 1 << 16)

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return the rows as they are."""
        return rows

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        step = OrderedStep(self, bucket, moment)
        self.begin_step(step)
        rows, due = step.settled(pa.concat_tables([self.layout.row_schema.empty_table(), *chunks])), step.due()
        results = self.layout.result_schema.empty_table()
        late, counters = None, dict[str, int]()
        if rows.num_rows or due or (step.ended and self.ends_all()):
            results, late, counters = self.run(step, *step.keys(rows, due, every=step.ended and self.ends_all()))
        return step.result(results, late, counters)

    def begin_step(self, step: OrderedStep) -> None:
        """Do what comes before the rows of a step."""

    def run(self, step: OrderedStep, keys: KeyRows, rows: pa.Table) -> tuple[pa.Table, pa.Table | None, dict[str, int]]:
        """Take rows by key in settled order, and write what is kept of the keys; give results, late rows and counters."""
        raise NotImplementedError

    def order_ranks(self, rows: pa.Table) -> list[Ints]:
        """Return what orders rows of equal time before their arrival, what comes first last."""
        return [ranks_of(whole(rows[name])) for name in reversed(self.order_columns)]

    def waiting_elsewhere(self, bucket: Bucket) -> int:
        """Return what waits in a bucket without a deadline."""
        return 0

    def ends_all(self) -> bool:
        """Return whether each key is looked at when the input ends."""
        return False

    def table(self, bucket: Bucket) -> KeyTable:
        """Return what is kept of the keys of a bucket."""
        return KeyTable(bucket, self.NAME, self.layout.key_fields, self.values)

    def late_rows(self, step: OrderedStep, rows: pa.Table) -> Mask:
        """Return which rows of a step are late, of an operation that takes late rows.

        For them all time before `horizon` was over when they came, or, with the row clock, before what each is classified by.
        """
        times = rows[TIME].to_numpy()
        if step.marks is not None:
            late: Mask = times < floor_each(step.marks_of(rows), self.late_us)
            return late
        late = (times < step.horizon) & (rows[_ARRIVED].to_numpy() >= step.first_arrival)
        return late

    def waiting_rows(self, bucket: Bucket) -> DueQueue:
        """Return the rows of a bucket that are not settled."""
        return DueQueue(bucket, f"{self.NAME}_rows", self.finest_us)

    def state_rows(self, bucket: Bucket) -> tuple[pa.Table, Ints]:
        """Return what is kept of each key, and how many rows are held of it; a key of which only rows are held comes, too."""
        rows, names = self.table(bucket).rows(), self.names
        parts = [table.select(self.held_schema.names) for table in self.waiting_rows(bucket).written()]
        held = pa.concat_tables([self.held_schema.empty_table(), *parts])
        n = rows.num_rows
        every = pa.concat_tables([rows.select(names), held.select(names)]) if names else None
        groups = group([] if every is None else list(every.columns), n + held.num_rows)
        more = np.setdiff1d(np.arange(groups.n), groups.ids[:n])
        counts = np.bincount(groups.ids[n:], minlength=groups.n)[np.concatenate([groups.ids[:n], more])]
        columns = [
            pick(every, groups.first[more])[field.name]
            if every is not None and field.name in names
            else pa.array(np.full(len(more), UNSET))
            if pa.types.is_int64(field.type) and field.name.startswith("__")
            else pa.nulls(len(more), field.type)
            for field in rows.schema
        ]
        return pa.concat_tables([rows, pa.Table.from_arrays(columns, schema=rows.schema)]), counts

    def state_table(
        self, rows: pa.Table, held: Ints, own: Mapping[str, Any], fields: Mapping[str, Any] | None = None
    ) -> pa.Table:
        """Return the state of keys as a table.

        Parameters
        ----------
        rows : pyarrow.Table
            What is stored of the keys.
        held : ndarray of int64
            How many rows of each are not settled.
        own : dict
            Columns of the operator: ``state_`` is put in front of a name that a key or a field has.
        fields : dict, optional
            Columns of the user's own.
        """
        keys = {key: rows[name] for key, name in zip(self.layout.spec.keys, self.names, strict=True)}
        columns = keys | dict(fields or {})
        last = unstamp(rows[WRITTEN].to_numpy(), "timestamp")
        more = {**own, "held_rows": pa.array(held), "last_update": last}
        return pa.table(columns | {f"state_{name}" if name in columns else name: column for name, column in more.items()})

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; counts keys with a deadline, and rows that were held."""
        gone = DeadKeys.of(dead, self.names)
        rows = self.table(bucket).drop(gone)
        held = sum(table.num_rows for table in self.waiting_rows(bucket).discard(gone.rows))
        due = (rows[LOOK].to_numpy() != NEVER) | (rows[_CLOCK].to_numpy() != NEVER)
        return int(held + np.count_nonzero(due))

    def late_table(self, rows: pa.Table, reasons: pa.Array, watermark_us: int) -> pa.Table:
        """Return rows of the operator in the late layout."""
        layout, spec = self.layout, self.layout.spec
        columns = [rows[layout.working[name]] for name in spec.late_columns]
        return pa.Table.from_arrays([*columns, *layout.refusal_notes(reasons, watermark_us)], schema=layout.late_schema)

    def shown_key(self, keys: pa.Table, place: int) -> str:
        """Return a key for the text of an error."""
        text = shown_key(self.layout.spec.keys, [keys[name][place].as_py() for name in self.names])
        return f" for {text}" if text else ""


class OrderedStep:
    """One bucket in one micro-batch."""

    def __init__(self, operator: OrderedOperator, bucket: Bucket, moment: Moment) -> None:
        self.op = operator
        self.bucket = bucket
        self.moment = moment
        self.ended = moment.watermark_us == END_OF_TIME
        self.horizon = floor_watermark(moment.watermark_us, operator.late_us)
        self.due_us = self.horizon if operator.in_time else moment.watermark_us
        self.first_arrival = 0
        """The number of the first row that came with this step."""
        self.marks: Ints | None = None
        """The watermark of each row that came with this step, with the row clock, where the operator goes by it."""
        self.table = operator.table(bucket)
        self._held = operator.waiting_rows(bucket)
        self._looks, self._by_clock = (
            DueQueue(bucket, f"{operator.NAME}_{kind}", operator.finest_us) for kind in ("due", "clock")
        )

    def settled(self, chunk: pa.Table) -> pa.Table:
        """Return the rows that are settled; the others are held."""
        self.first_arrival = ArrivalCount.of(self.bucket).rows_arrived
        op, numbers = self.op, self.numbers(chunk.num_rows)
        times = chunk[TIME].to_numpy()
        if op.layout.marked:
            self.marks = chunk[MARK].to_numpy()
            chunk = chunk.drop_columns([MARK])
        rows = pa.Table.from_arrays([*chunk.columns, pa.array(numbers), chunk[TIME]], schema=op.held_schema)
        if not op.in_time:
            return rows
        reached = [] if self.horizon == UNSET else self._held.pop(self.horizon - 1)
        ready = times < self.horizon
        if self.marks is not None:
            ready |= times < floor_each(self.marks, op.late_us)
        if not ready.all():
            self._held.insert(rows.filter(pa.array(~ready)), self.horizon)
            rows = rows.filter(pa.array(ready))
        return pa.concat_tables([*reached, rows])

    def marks_of(self, rows: pa.Table) -> Ints:
        """Return the watermark of each row, with the row clock; ``UNSET`` for those that came before this step."""
        assert self.marks is not None
        places = rows[_ARRIVED].to_numpy() - self.first_arrival
        return values_at(np.flatnonzero(places >= 0), self.marks[places[places >= 0]], len(places), UNSET)

    def numbers(self, n: int) -> Ints:
        """Return so many numbers, each of which is larger than all before it."""
        arrived = ArrivalCount.of(self.bucket)
        first = arrived.rows_arrived
        arrived.rows_arrived += n
        arrived.store(self.bucket)
        return np.arange(first, first + n)

    def due(self) -> list[pa.Table]:
        """Take out the keys that are to be looked at."""
        due = self._looks.pop(self.due_us) if self.due_us != UNSET else []
        if self.moment.now_us is not None:
            due += self._by_clock.pop(END_OF_TIME if self.ended else self.moment.now_us)
        return due

    def keys(self, rows: pa.Table, due: list[pa.Table], *, every: bool) -> tuple[KeyRows, pa.Table]:
        """Return the keys that have rows or are due, or `every` one, and the rows in order of key, time and arrival."""
        names, op = self.op.names, self.op
        if every:
            waiting = self.table.rows()
        else:
            looked = sorted_unique(pa.concat_tables([_LOOKS.empty_table(), *due])[HASH].to_numpy())
            waiting = self.table.of_hashes(looked)
            due_now = waiting[LOOK].to_numpy() <= self.due_us
            if self.moment.now_us is not None:
                due_now |= waiting[_CLOCK].to_numpy() <= (END_OF_TIME if self.ended else self.moment.now_us)
            waiting = waiting.filter(pa.array(due_now))
        if names:
            both = pa.concat_tables([rows.select(names), waiting.select(names)])
            groups = group_rows(names, both)
            ids, n = groups.ids[: rows.num_rows], groups.n
            keys = pick(both, groups.first)
        else:
            ids, n = np.zeros(rows.num_rows, np.int64), int(rows.num_rows + waiting.num_rows > 0)
            keys = pa.table({"": pa.nulls(n)})
        self.hashes = key_hashes([keys[k] for k in names], n)
        order = self._order(rows, ids)
        rows, ids = pick(rows, order), ids[order]
        stored, places = self.table.lookup(keys, self.hashes)
        found = np.flatnonzero(places >= 0)
        begins = np.searchsorted(ids, np.arange(n + 1))
        known = KeyRows(keys, begins, pick(stored, places[found]), found, partial(op.shown_key, keys))
        self._look, self._clock_look = known.numbers(LOOK, NEVER), known.numbers(_CLOCK, NEVER)
        return known, rows

    def _order(self, rows: pa.Table, ids: Ints) -> Ints:
        arrived = rows[_ARRIVED].to_numpy()
        if not self.op.in_time:
            return np.lexsort((arrived, ids))
        return np.lexsort((arrived, *self.op.order_ranks(rows), rows[TIME].to_numpy(), ids))

    def write(self, keys: KeyRows, live: Mask, columns: list[pa.Array], first: Ints, by_clock: Ints | None = None) -> None:
        """Write what is kept of the keys, and see that each is looked at when its first deadline is due.

        Parameters
        ----------
        keys : KeyRows
            The keys.
        live : ndarray of bool
            Which are kept; the others are deleted.
        columns : list of pyarrow.Array
            What the operator keeps.
        first, by_clock : ndarray of int64
            The first deadline of each, by event time and by the clock, µs; ``NEVER`` for none.
        """
        look = self._armed(self._looks, first, self._look, self.due_us)
        never = np.full(keys.n, NEVER) if by_clock is None else by_clock
        clock_look = self._armed(self._by_clock, never, self._clock_look, self.moment.now_us)
        self.table.write(keys.keys, self.hashes, live, [*columns, pa.array(look), pa.array(clock_look)])

    def add(self, keys: pa.Table, hashes: Ints, columns: list[pa.Array], first: Ints, by_clock: Ints) -> None:
        """Write keys of which nothing is stored; see :meth:`write`."""
        n = keys.num_rows
        self.hashes, self._look, self._clock_look = hashes, np.full(n, NEVER), np.full(n, NEVER)
        added = KeyRows(keys, np.zeros(n + 1, np.int64), keys.slice(0, 0), np.empty(0, np.int64), str)
        self.write(added, np.ones(n, np.bool_), columns, first, by_clock)

    def _armed(self, queue: DueQueue, first: Ints, look: Ints, reached_us: int | None) -> Ints:
        """Put keys into a queue that have a deadline before what it says of them; return what it says now."""
        reached = UNSET if reached_us is None else reached_us
        passed = look <= reached
        arm = (first != NEVER) & ((first < look) | passed)
        if arm.any():
            entries = pa.Table.from_arrays([pa.array(self.hashes[arm]), pa.array(first[arm])], schema=_LOOKS)
            queue.insert(entries, reached if reached != UNSET else int(first[arm].min()))
        return np.where(arm, first, np.where(passed, NEVER, look))

    def result(self, results: pa.Table, late: pa.Table | None, counters: dict[str, int]) -> StepResult:
        """Return what the step gave, and when there is something to do without rows."""
        late_us = self.op.late_us
        ClockDeadline(self._by_clock.earliest).store(self.bucket)
        return StepResult(
            results,
            earliest((self._held.earliest, late_us + 1), (self._looks.earliest, late_us if self.op.in_time else 0)),
            len(self._looks) + self.op.waiting_elsewhere(self.bucket),
            len(self._held) + len(self.table),
            results.num_rows,
            counters,
            late,
            self._by_clock.earliest,
            len(self._looks) + len(self._by_clock),
            len(self._held),
        )


def in_result_order(keys: pa.Table, names: list[str], of: Ints, times: Ints) -> Ints:
    """Return the order of results by time and key, nulls first, then as they were given; `of` are their keys."""
    by_key = [ranks_of(whole(keys[name]), nulls_first=True)[of] for name in reversed(names)]
    return np.lexsort((*by_key, times))


def ranks_of(column: pa.Array, *, nulls_first: bool = False) -> Ints:
    """Return for each value its place among the different ones, in ascending order, nulls last or first."""
    groups = group([column], len(column))
    values = column.take(pa.array(groups.first))
    ranks = last_rows(pc.sort_indices(values).to_numpy(), groups.n)
    if nulls_first:
        ranks[values.is_null().to_numpy(zero_copy_only=False)] = -1
    return ranks[groups.ids]


def row_ranks(columns: pa.Table) -> Ints:
    """Return for each row its place among the different ones, in ascending order, by several columns; nulls first."""
    ranks = [ranks_of(whole(column), nulls_first=True) for column in columns.columns]
    if len(ranks) == 1:
        return ranks[0]
    order = np.lexsort(tuple(reversed(ranks)))
    groups = group([*ranks], columns.num_rows)
    changed = np.ones(len(order), np.bool_)
    changed[1:] = groups.ids[order][1:] != groups.ids[order][:-1]
    result = np.empty(len(order), np.int64)
    result[order] = np.cumsum(changed) - 1
    return result
