"""Patterns (SEMANTICS §15): the settled rows of each key are searched for matches.

Conditions are columns of bits, computed once over all rows of a step. A key of which no row is kept, and no row can begin a
match, costs nothing more. Of each other key are kept the rows from the oldest start that is undecided, and what may decide it:
a point in time, and the conditions of rows. Rows that fulfil none of these are added to what is kept, which is not read::

    a ···· waits for b, or 15 minutes        x x x  are added        b  the rows are read, and searched
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import places_among
from krishiv_py.arrays.types import Ints, Mask, flags_at, pick, run_begins, values_at
from krishiv_py.errors import OperatorError
from krishiv_py.kernels.columns.layout import TIME, whole
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.ordered import NEVER, KeyRows, OrderedOperator, OrderedStep, in_result_order
from krishiv_py.kernels.patterns.program import TAKE, Program, compiled
from krishiv_py.kernels.patterns.search import ANY_ROW, BUT, Found, KeySearch, Question, Settings, SkipError, StepRows
from krishiv_py.kernels.patterns.values import AheadAnswers, Columns, MatchRows, named_values
from krishiv_py.kernels.rows_before import RowsBefore
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.key_table import ROW, KeyRowLog
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import DeadKeys
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.matching import LIMIT, TIMED_OUT, Matching

_KEYS_AT_ONCE: Final = 1 << 15
"""So many keys are searched at a time; a search takes about a kilobyte, and so does what it finds."""
_HELD, _BITS, _START, _UNTIL, _NUMBER = "__held", "__bits", "__start", "__until", "__number"
_SEEN, _SEEN_BEFORE, _QUIET = "__seen", "__seen_before", "__quiet"


class PatternOperator(OrderedOperator):
    """See the module's docstring."""

    NAME: ClassVar[str] = "match"

    def __init__(self, spec: OperatorSpec) -> None:
        operation = spec.operation
        assert isinstance(operation, Matching)
        self.operation, self.program = operation, compiled(operation)
        self.steps = {name: number for number, name in enumerate(operation.steps)}
        every = [*operation.steps.values(), *operation.absences]
        self.conditions = every
        asked = [number for number, one in enumerate(every) if one is not None and one.values]
        self.asked = sum(1 << number for number in asked)
        self.first = _first_elements(self.program)
        self.before = RowsBefore(operation.before, spec.row_schema)
        quiet = [_SEEN, _SEEN_BEFORE] if self.program.before is not None else []
        own = [pa.field(name, pa.int64()) for name in (_HELD, _BITS, _START, _UNTIL, _NUMBER, *quiet)]
        super().__init__(spec, [*own, *self.before.stored], operation.order_by)
        self.more = list(self.before.fields)
        self.more += [pa.field(_QUIET, pa.int64())] if quiet else []
        rows = [f for f in self.layout.row_schema if f.name not in self.names]
        self.log_fields = [*rows, *self.more]
        chain = operation.pattern
        kind, name = operation.skip
        self.settings = Settings(
            self.program,
            operation.within_us,
            None if chain.after is None else chain.after.within_us,
            (kind, self.steps.get(name, -1)),
            operation.most_rows,
            self.asked,
            tuple(
                named_values(one, self.steps, number if number < len(self.steps) else None) for number, one in enumerate(every)
            ),
            operation.timeouts == "side_output",
            operation.at_end == "seen",
        )
        self.numbered = operation.rows == "all"

    def log(self, bucket: Bucket) -> KeyRowLog:
        """Return the rows of a bucket from the oldest undecided start of each key."""
        return KeyRowLog(bucket, "match_log", self.layout.key_fields, self.log_fields)

    def run(self, step: OrderedStep, keys: KeyRows, rows: pa.Table) -> tuple[pa.Table, pa.Table | None, dict[str, int]]:
        """See :class:`~krishiv_py.kernels.ordered.OrderedOperator`."""
        return _MatchStep(self, step, keys, rows).run()

    def waiting_elsewhere(self, bucket: Bucket) -> int:
        """See :class:`~krishiv_py.kernels.ordered.OrderedOperator`."""
        return len(self.log(bucket)) if self.operation.within_us is None else 0

    def ends_all(self) -> bool:
        """Return whether each key is looked at when the input ends."""
        return True

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ordered.OrderedOperator`."""
        dropped = super().drop_keys(bucket, dead, moment)
        self.log(bucket).drop(DeadKeys.of(dead, self.names))
        return dropped

    def users(self, rows: pa.Table) -> pa.Table:
        """Return rows under the names that users know, with the hidden columns."""
        names = [*self.layout.working, *(f.name for f in self.more if f.name in rows.column_names)]
        return pa.table([rows[self.layout.working.get(name, name)] for name in names], names=names)

    def state(self, bucket: Bucket) -> pa.Table:
        """Return for each key where its oldest undecided start is, when it is decided at the latest, and the rows that wait."""
        kind = self.layout.spec.time_kind
        rows, waiting = self.state_rows(bucket)
        held = rows[_HELD].to_numpy()
        undecided = np.where(held == UNSET, 0, held)
        due = rows[_UNTIL].to_numpy()
        start = rows[_START].to_numpy()
        own = {
            "start": _times(start, undecided > 0, kind),
            "due": _times(due, (undecided > 0) & (due != NEVER) & (due != UNSET), kind),
            "rows": pa.array(undecided),
        }
        return self.state_table(rows, waiting, own)


def _times(times: Ints, there: Mask, kind: Any) -> pa.Array:
    column = unstamp(np.where(there, times, 0), kind)
    return pa.array(column.to_pylist(), column.type, mask=~there) if not there.all() else column


def _first_elements(program: Program) -> int:
    """Return the conditions, as bits, that the first row of a match can fulfil."""
    pending, seen, first = [program.start], set[int](), 0
    while pending:
        place = pending.pop()
        if place in seen:
            continue
        seen.add(place)
        instruction = program.code[place]
        if instruction.kind == TAKE:
            first |= 1 << instruction.element
        else:
            pending += [p for p in (instruction.goto, instruction.other) if p >= 0]
    return first


class _MatchStep:
    """One bucket in one micro-batch."""

    def __init__(self, operator: PatternOperator, step: OrderedStep, keys: KeyRows, rows: pa.Table) -> None:
        self.op, self.step, self.keys = operator, step, keys
        self.ids = np.repeat(np.arange(keys.n), np.diff(keys.begins))
        self.counters: dict[str, int] = {}
        defaults = ((_HELD, 0), (_BITS, 0), (_START, UNSET), (_UNTIL, NEVER), (_NUMBER, 0))
        held, mask, begun, until, number = (keys.numbers(*each) for each in defaults)
        self.held, self.mask, self.begun, self.until, self.number = held, mask, begun, until, number
        self.kept: dict[str, pa.Array] = {}
        self.fresh = self._with_rows_before(rows)

    # ---- rows before a row

    def _with_rows_before(self, rows: pa.Table) -> pa.Table:
        """Return rows with the values of rows before them."""
        op = self.op
        rows = rows.select([*self.op.names, *(f.name for f in op.log_fields if f.name not in {m.name for m in op.more})])
        if op.before.fields:
            columns, self.kept = op.before.of(op.users(rows), self.keys)
            for field, column in zip(op.before.fields, columns, strict=True):
                rows = rows.append_column(field, column)
        if op.program.before is not None:
            rows = rows.append_column(_QUIET, self._seen_before(rows))
        return rows

    def _seen_before(self, rows: pa.Table) -> pa.Array:
        """Return for each row when a row that may not come before a match was seen last, before its own time."""
        op, keys = self.op, self.keys
        number = op.program.before
        assert number is not None
        times = rows[TIME].to_numpy()
        columns = Columns(op.users(rows), times, op.steps)
        holds = columns.holds(op.conditions[number])
        seen, before = (keys.numbers(name, UNSET) for name in (_SEEN, _SEEN_BEFORE))
        found = np.flatnonzero(holds)
        of, at = self.ids[found], times[found]
        first = run_begins(of, at)
        first &= at != seen[of]
        of, at = of[first], at[first]
        every_of = np.concatenate([np.arange(keys.n), np.arange(keys.n), of])
        every_at = np.concatenate([before, seen, at])
        order = np.lexsort((every_at, every_of))
        every_of, every_at = every_of[order], every_at[order]
        begins = np.searchsorted(every_of, np.arange(keys.n + 1))
        low = _last_before(every_at, begins, self.ids, times)
        last = begins[1:] - 1
        self.kept[_SEEN], self.kept[_SEEN_BEFORE] = pa.array(every_at[last]), pa.array(every_at[last - 1])
        return pa.array(low)

    # ---- the search

    def run(self) -> tuple[pa.Table, pa.Table | None, dict[str, int]]:
        """Search what the rows of the step can decide; return results, late rows and counters."""
        op, keys, fresh = self.op, self.keys, self.fresh
        times = fresh[TIME].to_numpy()
        bits = self._bits(fresh, times)
        starts = self._can_start(fresh, bits, times)
        counts = np.diff(keys.begins)
        relevant = np.zeros(keys.n, np.bool_)
        hit = starts & (self.held[self.ids] == 0)
        relevant[self.ids[hit]] = True
        wanted = self.mask[self.ids]
        unlike = bits >> np.maximum(BUT - wanted, 0) & 1 == 0
        decides = np.where(wanted > ANY_ROW, bits & wanted != 0, (wanted == ANY_ROW) | unlike) & (self.held[self.ids] > 0)
        relevant[self.ids[decides]] = True
        over = self.held + counts > op.operation.most_rows
        due = (self.until <= self.step.due_us) | self.step.ended | over
        relevant |= (self.held > 0) & due
        hashes = self.step.hashes
        numbers = self.step.numbers(fresh.num_rows)
        fresh = fresh.append_column(ROW, pa.array(numbers))
        added = (self.held[self.ids] > 0) & ~relevant[self.ids]
        self.held = self.held + np.where(relevant | (self.held == 0), 0, counts)
        log = op.log(self.step.bucket)
        found, kept_rows = _Results(op), added
        for some in _parts(relevant):
            kept_rows = kept_rows | self._search(log, fresh, bits, starts, some, numbers, found)
        places = np.flatnonzero(kept_rows)
        if len(places):
            log.append(pick(fresh, places), hashes[self.ids[places]])
        live = self.held > 0
        if op.numbered:
            live |= self.number > 0
        if op.before.fields or op.program.before is not None:
            live[:] = True
        if self.step.ended:
            live[:] = False
        self.until[self.held == 0] = NEVER
        of_key = (self.held, self.mask, self.begun, self.until, self.number)
        own = dict(zip((_HELD, _BITS, _START, _UNTIL, _NUMBER), map(pa.array, of_key), strict=True)) | self.kept
        columns = [own[field.name] for field in op.values[:-2]]
        self.step.write(keys, live, columns, self.until)
        return *found.tables(keys), self.counters

    def _bits(self, rows: pa.Table, times: Ints) -> Ints:
        """Return the conditions that each row fulfils, as bits; of one that depends on a match, the part that does not."""
        op, bits = self.op, np.zeros(rows.num_rows, np.int64)
        columns = Columns(op.users(rows), times, op.steps)
        for number, condition in enumerate(op.conditions):
            bits |= columns.may_hold(condition).astype(np.int64) << number
        return bits

    def _can_start(self, rows: pa.Table, bits: Ints, times: Ints) -> Mask:
        op = self.op
        starts: Mask = bits & op.first != 0
        before = op.operation.pattern.before
        if before is not None:
            seen = rows[_QUIET].to_numpy()
            starts &= (seen == UNSET) | (times - before.within_us >= seen)
        return starts

    def _search(
        self, log: KeyRowLog, fresh: pa.Table, bits: Ints, starts: Mask, relevant: Mask, numbers: Ints, found: _Results
    ) -> Mask:
        """Search the rows of relevant keys, and add what is found; return which of the fresh rows are kept."""
        op, keys, step = self.op, self.keys, self.step
        known = relevant & (self.held > 0)
        read = log.of_hashes(step.hashes[known]) if known.any() else None
        mine = np.flatnonzero(relevant[self.ids])
        of = self.ids[mine]
        rows = pick(fresh, mine)
        if read is not None and read.num_rows:
            names = op.names
            owner = places_among(names, keys.keys, read) if names else np.zeros(read.num_rows, np.int64)
            there = np.flatnonzero((owner >= 0) & known[owner])
            read, owner = pick(read, there), owner[there]
            read = read.select(rows.column_names)
            read_times = read[TIME].to_numpy()
            read_bits = self._bits(read, read_times)
            read_starts = self._can_start(read, read_bits, read_times)
            rows = pa.concat_tables([read, rows])
            of = np.concatenate([owner, of])
            bits = np.concatenate([read_bits, bits[mine]])
            starts = np.concatenate([read_starts, starts[mine]])
        else:
            bits, starts = bits[mine], starts[mine]
        n_read = rows.num_rows - len(mine)
        order = np.lexsort((rows[ROW].to_numpy(), of))
        rows, of, bits, starts = pick(rows, order), of[order], bits[order], starts[order]
        from_log = order < n_read
        searches = _Searches(self, rows, of, bits, starts)
        searches.run()
        begins = searches.undecided
        row_numbers = rows[ROW].to_numpy()
        which = np.flatnonzero(relevant)
        ends = np.searchsorted(of, which, side="right")
        left = np.where(begins < ends, ends - begins, 0)
        self.held[which] = left
        self.mask[which] = searches.bits
        self.until[which] = np.where(left > 0, searches.until, NEVER)
        at = rows[TIME].to_numpy()
        some = np.minimum(begins, len(at) - 1)
        self.begun[which] = np.where(left > 0, at[some], UNSET)
        gone = known[which]
        if gone.any():
            after = np.where(left > 0, row_numbers[some], row_numbers[ends - 1] + 1)
            dropped = which[gone]
            log.drop_before(pick(keys.keys, dropped), step.hashes[dropped], after[gone])
        position = np.arange(len(of))
        place_of_key = values_at(which, begins, keys.n)
        stay = (position >= place_of_key[of]) & ~from_log
        stays = flags_at(mine[order[stay] - n_read], fresh.num_rows)
        searches.results(found)
        return stays


def _parts(relevant: Mask) -> Iterator[Mask]:
    """Yield some of the relevant keys at a time."""
    keys = np.flatnonzero(relevant)
    for first in range(0, len(keys), _KEYS_AT_ONCE):
        yield flags_at(keys[first : first + _KEYS_AT_ONCE], len(relevant))


class _Results:
    """Collects what the searches of a step find, as columns."""

    def __init__(self, operator: PatternOperator) -> None:
        self.op = operator
        self._parts: list[tuple[pa.Table, Ints, Ints]] = []
        self._late: list[pa.Table] = []

    def add(self, rows: pa.Table, of: Ints, decided: Ints) -> None:
        """Add rows of results, with the key of each and when it was decided."""
        self._parts.append((rows, of, decided))

    def add_late(self, rows: pa.Table) -> None:
        """Add late rows."""
        self._late.append(rows)

    def tables(self, keys: KeyRows) -> tuple[pa.Table, pa.Table | None]:
        """Return the results by time and key, and late rows."""
        late = pa.concat_tables(self._late) if self._late else None
        if not self._parts:
            return self.op.layout.result_schema.empty_table(), late
        rows, of, decided = zip(*self._parts, strict=True)
        order = in_result_order(keys.keys, self.op.names, np.concatenate(of), np.concatenate(decided))
        return pick(pa.concat_tables(rows), order), late


def _last_before(every: Ints, begins: Ints, ids: Ints, times: Ints) -> Ints:
    """Return for each time of a key the last one before it, of those of the key in ascending order; `UNSET` for none."""
    lengths = np.diff(begins)
    of = np.concatenate([np.repeat(np.arange(len(lengths)), lengths), ids])
    at, row = np.concatenate([every, times]), np.concatenate([np.ones(len(every), np.int64), np.zeros(len(ids), np.int64)])
    order = np.lexsort((row, at, of))  # at one time the question comes before what it asks for
    seen = np.where(row[order] == 1, np.arange(len(order)), -1)
    last = np.maximum.accumulate(seen)
    asked = np.flatnonzero(row[order] == 0)
    found = last[asked]
    result = np.full(len(ids), UNSET)
    valid = (found >= 0) & (of[order][np.maximum(found, 0)] == of[order][asked])
    result[order[asked] - len(every)] = np.where(valid, at[order][np.maximum(found, 0)], UNSET)
    return result


class _Searches:
    """Run the searches of several keys side by side: what they ask is answered for all of them at once."""

    def __init__(self, parent: _MatchStep, rows: pa.Table, of: Ints, bits: Ints, starts: Mask) -> None:
        self.parent, self.op, self.rows, self.of = parent, parent.op, rows, of
        op, step = parent.op, parent.step
        self.times = rows[TIME].to_numpy()
        stops: dict[int, list[int]] = {}
        for instruction in op.program.code:
            if instruction.kind == TAKE and instruction.relaxed:
                stops[instruction.wanted] = []
        if op.program.after is not None:
            stops[1 << op.program.after] = []
        for mask in stops:
            stops[mask] = np.flatnonzero(bits & mask).tolist()
        newest = step.moment.newest_us if step.ended else None
        self.columns = Columns(op.users(rows), self.times, op.steps)
        ahead = AheadAnswers(self.columns, op.conditions)
        begins = np.flatnonzero(starts).tolist()
        self.step_rows = StepRows(self.times.tolist(), bits.tolist(), begins, stops, step.horizon, newest, ahead)
        keys, first = np.unique(of, return_index=True)
        self.keys = keys
        ends = np.append(first[1:], len(of))
        self.searches = [
            KeySearch(op.settings, self.step_rows, int(begin), int(end)) for begin, end in zip(first, ends, strict=True)
        ]

    def run(self) -> None:
        """Run the searches."""
        waiting: list[tuple[KeySearch, Any, Question]] = []
        for search in self.searches:
            self._go_on(search, search.run(), None, waiting)
        while waiting:
            waiting = self._round(waiting)
        self.undecided = np.array([search.at for search in self.searches], np.int64)
        self.until = np.array([search.until_us for search in self.searches], np.int64)
        self.bits = np.array([search.bits for search in self.searches], np.int64)
        if dropped := sum(search.dropped for search in self.searches):
            self.parent.counters["timers_dropped"] = dropped

    def _round(self, waiting: list[tuple[KeySearch, Any, Question]]) -> list[tuple[KeySearch, Any, Question]]:
        """Answer the question of each search, and let it go on."""
        further: list[tuple[KeySearch, Any, Question]] = []
        by_element: dict[int, list[tuple[KeySearch, Any, Question]]] = {}
        for each in waiting:
            by_element.setdefault(each[2].element, []).append(each)
        n_steps = len(self.op.steps)
        for element, asking in by_element.items():
            condition = self.op.conditions[element]
            assert condition is not None
            own = element if element < n_steps else None
            answers = self.columns.answers(condition, own, [question for _, _, question in asking])
            for (search, generator, _), answer in zip(asking, answers, strict=True):
                self._go_on(search, generator, answer, further)
        return further

    def _go_on(self, search: KeySearch, generator: Any, answer: Any, waiting: list[Any]) -> None:
        try:
            waiting.append((search, generator, generator.send(answer)))
        except StopIteration:
            pass
        except SkipError as problem:
            kind, name = self.op.operation.skip
            key = self.parent.keys.shown(int(self.of[search.found[-1].rows[0]]))
            hint = 'use skip="past_last" or "next_row"'
            raise OperatorError(
                f"the search cannot go on at the {kind} row of {name}{key}", got=str(problem), hint=hint
            ) from None

    # ---- what comes of it

    def _found(self) -> Iterator[Found]:
        for search in self.searches:
            yield from search.found

    def results(self, found: _Results) -> None:
        """Add the results, and late rows."""
        op, parent = self.op, self.parent
        layout, kind = op.layout, op.layout.spec.time_kind
        every = list(self._found())
        matches = [one for one in every if one.kind == "match"]
        if (late := self._late([one for one in every if one.kind != "match"])) is not None:
            found.add_late(late)
        if not matches:
            return
        decided = np.array([m.decided_us for m in matches], np.int64)
        of = self.of[[m.rows[0] for m in matches]]
        views = MatchRows.of([m.rows for m in matches], [m.steps for m in matches])
        if op.numbered:
            columns = self._each_row(views, of)
            of, decided = of[views.ids], decided[views.ids]
        else:
            columns = [pick(parent.keys.keys[name], of) for name in op.names]
            columns.append(unstamp(self.times[[m.rows[0] for m in matches]], kind))
            columns.append(unstamp(np.array([m.end_us for m in matches], np.int64), kind))
        columns.append(unstamp(decided, kind))
        ends = np.array([m.rows[-1] for m in matches], np.int64)
        for _, measure in op.operation.measures:
            each = self.columns.running_measures(measure, views) if op.numbered else self.columns.measures(measure, views, ends)
            columns.append(each)
        schema = layout.result_schema
        found.add(
            pa.Table.from_arrays([_typed(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema), of, decided
        )

    def _each_row(self, views: MatchRows, of: Ints) -> list[Any]:
        """Return the rows of matches, with the step of each and the number of its match."""
        op, parent = self.op, self.parent
        by_key = np.argsort(of, kind="stable")
        counts = np.bincount(of, minlength=parent.keys.n)
        place = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
        number = values_at(by_key, parent.number[of[by_key]] + place + 1, len(of))
        parent.number = parent.number + counts
        users, names = op.users(self.rows), pa.array(list(op.steps))
        own = [pick(whole(users[f.name]), views.rows) for f in op.layout.result_schema if f.name in op.layout.working]
        return [*own, names.take(pa.array(views.steps)), pa.array(number[views.ids])]

    def _late(self, found: list[Found]) -> pa.Table | None:
        """Return rows that were given up as starts, and rows of starts whose time is over, in the late layout."""
        if not found:
            return None
        op = self.op
        reasons = [LIMIT if one.kind == "limit" else TIMED_OUT for one in found for _ in one.rows]
        rows = pick(self.rows, np.array([row for one in found for row in one.rows], np.int64))
        return op.late_table(rows, pa.array(reasons, pa.string()), self.parent.step.moment.watermark_us)


def _typed(column: Any, type_: pa.DataType) -> Any:
    return column if column.type == type_ else column.cast(type_)
