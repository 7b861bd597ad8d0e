"""Absence (SEMANTICS §14.7): keys without a row for a length of time, found between the settled rows of each key.

Two neighbouring times of a key say whether it was absent, whatever happened before: a row and the next one, or the last row
and the point up to which all is settled. So a step computes with arrays, and each row of a busy key costs a difference::

    rows of a key      3   5   9 ············ 40            after 10
    neighbours         3─5─5─9─9──────────────40─40──►      9 to 40: absent at 19, recovered at 40

Of each key are kept: the time of its last row, since when it is absent, and the last deadline that was reported. A key that is
expected, and of which no row has come, is like one with a row when it was announced, which no result shows.

By the clock a row counts when its batch runs: then there are no neighbours, as a batch has one time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import group_rows, key_hashes, normal_key
from krishiv_py.arrays.types import Ints, Mask, flags_at, pick
from krishiv_py.kernels.columns.layout import TIME, whole
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.ordered import NEVER, KeyRows, OrderedOperator, OrderedStep, in_result_order
from krishiv_py.kernels.results import StepResult
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket, ClockDeadline, Section
from krishiv_py.kernels.watermark import floor_watermark
from krishiv_py.plan.absence import EXPECTED, LAST_SEEN, SINCE, STATE, Absence
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.options.watermarks import WatermarkSpec

_SEEN, _SINCE, _REPORTED, _LISTED = "__seen", "__since", "__reported", "__listed"
_STATES: Final = pa.array(["absent", "recovered", "forgotten", "no_input", "input"])
_REMOVED, _ADDED, _BAD, _ROW = range(4)
_ABSENT, _RECOVERED, _FORGOTTEN, _NO_INPUT, _INPUT = range(5)


@attrs.define
class ExpectedKeys(Section):
    """A number of the keys that a bucket expects, other for another list; None before it has any."""

    expected_keys: int | None = None


@attrs.define
class InputSilence(Section):
    """The watermark, when it moved by the clock, since when there is no input, and the last report of that, µs."""

    input_silence: list[int] | None = None


class AbsenceOperator(OrderedOperator):
    """See the module's docstring."""

    NAME: ClassVar[str] = "absence"

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, Absence)
        self.operation = operation = spec.operation
        self.by_clock = operation.clock == "processing"
        values = [pa.field(name, pa.int64()) for name in (_SEEN, _SINCE, _REPORTED, _LISTED)]
        super().__init__(spec, values, in_time=not self.by_clock)
        self.announced = None if operation.announced is None else self.layout.own_names[0]
        self.version = 0
        """A number of the keys that are expected, other for other keys."""
        self.of_version: object = None

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        result = super().step(bucket, chunks, moment)
        ended = moment.watermark_us == END_OF_TIME
        if self.operation.clock == "both" and not bucket.share[0] and not ended:
            result = self._with_silence(bucket, moment, result)
        if result.wakeup_us is None and not ended and self.operation.clock != "event":
            result = attrs.evolve(result, wakeup_us=END_OF_TIME)  # each step may be the one that the clock has asked for
        return result

    def begin_step(self, step: OrderedStep) -> None:
        """See that the keys that are expected are those of now, once it is known since when."""
        bucket = step.bucket
        if self.operation.expected is None:
            return
        self._follow_list(*self.operation.expected())
        if ExpectedKeys.of(bucket).expected_keys == self.version:
            return
        start = self._start(step, first=ExpectedKeys.of(bucket).expected_keys is None)
        if start is None:
            return
        mine = np.flatnonzero(bucket.has(self.expected_hashes, keyed=True))
        keys, hashes, known = pick(self.expected, mine), self.expected_hashes[mine], step.table.rows()
        ids = group_rows(self.names, keys, known).ids
        mentioned, new = np.isin(ids[len(mine) :], ids[: len(mine)]), ~np.isin(ids[: len(mine)], ids[len(mine) :])
        gone = (known[_LISTED].to_numpy() == 1) & ~mentioned
        for rows, live, listed in ((known.filter(pa.array(mentioned)), True, 1), (known.filter(pa.array(gone)), False, 0)):
            n = rows.num_rows
            columns = [pa.array(np.full(n, listed)) if f.name == _LISTED else rows[f.name] for f in self.values]
            of_rows = key_hashes([rows[name] for name in self.names], n)
            step.table.write(rows.select(self.names), of_rows, np.full(n, live), columns)
        n = int(np.count_nonzero(new))
        unset, first = np.full(n, UNSET), np.full(n, start + self._first_us())
        numbers = [pa.array(x) for x in (unset, unset, np.full(n, start), np.ones(n, np.int64))]
        places, never = np.flatnonzero(new), np.full(n, NEVER)
        step.add(pick(keys, places), hashes[places], numbers, *((never, first) if self.by_clock else (first, never)))
        ExpectedKeys(self.version).store(bucket)

    def _follow_list(self, version: object, listed: pa.Table) -> None:
        """See that the keys are those of a version of the list."""
        if version == self.of_version:
            return
        pairs = zip(self.layout.spec.keys, self.names, strict=True)
        keys = pa.table({name: normal_key(whole(listed[key])) for key, name in pairs})
        self.expected = pick(keys, group_rows(self.names, keys).first)
        self.expected_hashes = key_hashes(list(self.expected.columns), self.expected.num_rows)
        digest = hashlib.sha256(np.sort(self.expected_hashes).tobytes()).digest()
        self.version, self.of_version = int.from_bytes(digest[:7], "little"), version

    def _first_us(self) -> int:
        """Return how long after it was seen last something is due of a key that is not absent."""
        return min(us for us in (self.operation.after_us, self.operation.forget_us) if us is not None)

    def _start(self, step: OrderedStep, *, first: bool) -> int | None:
        """Return since when keys are expected, of the first list or of a later one; None where that is not known yet."""
        moment, operation = step.moment, self.operation
        if self.by_clock:
            return moment.now_us
        if operation.start_us is not None and (first or step.horizon == UNSET):
            return operation.start_us
        if not step.ended:
            return None if moment.watermark_us == UNSET else moment.watermark_us
        mark = self.layout.spec.watermark  # the input has ended in its first batch: as if its watermark had been in force
        return None if moment.newest_us == UNSET else moment.newest_us - (mark.lag_us if isinstance(mark, WatermarkSpec) else 0)

    def run(self, step: OrderedStep, keys: KeyRows, rows: pa.Table) -> tuple[pa.Table, pa.Table | None, dict[str, int]]:
        """See :class:`~krishiv_py.kernels.ordered.OrderedOperator`."""
        operation, results = self.operation, _Results()
        seen, since, reported = (keys.numbers(name, UNSET) for name in (_SEEN, _SINCE, _REPORTED))
        listed = np.maximum(keys.numbers(_LISTED, 0), 0)
        base = np.where(seen != UNSET, seen, np.where(since != UNSET, since - operation.after_us, reported))
        upto = step.moment.newest_us if step.ended else step.due_us
        kinds, late = np.full(rows.num_rows, _ROW), None
        if self.announced is not None:
            keys, rows, kinds, late = self._changes_of_list(keys, rows, base, step)
        if self.by_clock:
            now = step.moment.now_us or 0
            upto = UNSET if step.ended else now
            came, dropped_now, named = self._by_clock(keys, kinds)
            base, seen, since, reported = (np.where(dropped_now, UNSET, x) for x in (base, seen, since, reported))
            new = named & (base == UNSET) & ~came
            base, reported = np.where(new, now, base), np.where(new, now, reported)
            back = np.flatnonzero(came & (since != UNSET))
            if operation.recovered:
                results.add(back, np.full(len(back), now), _RECOVERED, since[back], seen[back])
            seen, base = np.where(came, now, seen), np.where(came, now, base)
            since, reported = np.where(came, UNSET, since), np.where(came, UNSET, reported)
            keys, rows, kinds = attrs.evolve(keys, begins=np.zeros(keys.n + 1, np.int64)), rows.slice(0, 0), kinds[:0]
        gaps = _Gaps.between(keys, rows, kinds, base, since, reported, upto, seen != UNSET)
        dropped = 0
        gaps.report(operation.after_us, operation.repeat_us, operation.forget_us, results)
        if operation.recovered:
            gaps.recover(results)
        last = gaps.last
        seen, since, reported, gone = (
            gaps.seen[last],
            gaps.since[last],
            gaps.reported[last],
            gaps.gone[last] | ~gaps.watched[last],
        )
        first = np.where(since == UNSET, seen + operation.after_us, NEVER)
        if operation.repeat_us is not None:
            first = np.where(since == UNSET, first, reported + operation.repeat_us)
        if operation.forget_us is not None:
            first = np.minimum(first, seen + operation.forget_us)
        if step.ended:
            due = ~gone & (first != NEVER)
            if operation.at_end == "fire":
                some = np.flatnonzero(due & (since == UNSET))
                results.add(some, first[some], _ABSENT, first[some], gaps.shown[last][some])
            else:
                dropped = int(np.count_nonzero(due))
            first = np.full(keys.n, NEVER)
        first[gone] = NEVER
        shown, never = gaps.shown[last], np.full(keys.n, NEVER)
        reported = np.where((shown == UNSET) & (since == UNSET), seen, reported)
        numbers = [pa.array(x) for x in (shown, since, reported, listed)]
        step.write(keys, ~gone, numbers, *((never, first) if self.by_clock else (first, never)))
        of, times, states, since, seen = results.arrays()
        order = in_result_order(keys.keys, self.names, of, times)
        leading = [pick(keys.keys[name], of[order]) for name in self.names]
        given = self._table(leading, [column[order] for column in (times, states, since, seen)], step.horizon)
        return given, late, {"timers_dropped": dropped} if dropped else {}

    def order_ranks(self, rows: pa.Table) -> list[Ints]:
        """See :class:`~krishiv_py.kernels.ordered.OrderedOperator`: changes of the list come before rows of their time."""
        return [] if self.announced is None else [whole(rows[self.announced]).is_null().to_numpy(zero_copy_only=False)]

    def _changes_of_list(
        self, keys: KeyRows, rows: pa.Table, base: Ints, step: OrderedStep
    ) -> tuple[KeyRows, pa.Table, Ints, pa.Table | None]:
        """Take out the changes of the list of keys that change nothing; return what each row is, and changes that are none.

        A key may have several changes in a step, and whether one changes anything follows from those before it: so the first
        one of each key is looked at, then the second one.
        """
        kinds = pc.fill_null(whole(rows[self.announced]), _ROW).to_numpy().astype(np.int64)
        bad = kinds == _BAD
        late = None
        if bad.any():
            late = self._no_changes(keys, rows, np.flatnonzero(bad), step.moment.watermark_us)
        kept = ~bad
        if not self.by_clock:
            places = np.flatnonzero(kinds < _ROW)
            of = np.searchsorted(keys.begins, places, side="right") - 1
            number = np.arange(len(places)) - np.searchsorted(of, of)
            times, start, after = rows[TIME].to_numpy(), base.copy(), keys.begins[:-1].copy()
            for turn in range(int(number.max(initial=-1)) + 1):
                at, key = places[number == turn], of[number == turn]
                had_row = at > after[key]
                start[key] = np.where(had_row, times[at - had_row], start[key])
                known = start[key] != UNSET
                if self.operation.forget_us is not None:
                    known &= start[key] + self.operation.forget_us > times[at]
                adds = kinds[at] == _ADDED
                kept[at] = adds != known
                start[key] = np.where(~adds, UNSET, np.where(known, start[key], times[at]))
                after[key] = at + 1
        if kept.all():
            return keys, rows, kinds, late
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])[keys.begins]
        return attrs.evolve(keys, begins=before), rows.filter(pa.array(kept)), kinds[kept], late

    def _no_changes(self, keys: KeyRows, rows: pa.Table, places: Ints, watermark_us: int) -> pa.Table:
        """Return rows that change the list, and do not say how, in the late layout: their key and their time."""
        layout, spec = self.layout, self.layout.spec
        of = np.searchsorted(keys.begins, places, side="right") - 1
        columns: list[Any] = []
        for name, type_ in zip(spec.late_columns, layout.late_schema.types, strict=False):
            if name in spec.keys:
                columns.append(pick(keys.keys[layout.working[name]], of))
            elif name == spec.time_column:
                columns.append(unstamp(rows[TIME].to_numpy()[places], spec.time_kind))
            else:
                columns.append(pa.nulls(len(places), type_))
        reasons = pa.array(["bad_op" for _ in places.tolist()], pa.string())
        return pa.Table.from_arrays([*columns, *layout.refusal_notes(reasons, watermark_us)], schema=layout.late_schema)

    def _by_clock(self, keys: KeyRows, kinds: Ints) -> tuple[Mask, Mask, Mask]:
        """Return which keys have a row, which ones the list has left, and which ones it names, at the end of a batch."""
        of, places = np.repeat(np.arange(keys.n), np.diff(keys.begins)), np.arange(len(kinds))
        removed = np.full(keys.n, -1)
        removed[of[kinds == _REMOVED]] = places[kinds == _REMOVED]
        counts = places > removed[of]
        came, named = (flags_at(of[counts & (kinds == kind)], keys.n) for kind in (_ROW, _ADDED))
        return came, removed >= 0, named

    def _table(self, leading: list[pa.ChunkedArray], numbers: Sequence[Ints], horizon: int) -> pa.Table:
        """Return results: their times, states, since when, and when seen last.

        Those by the clock have their own time, or that up to which all is settled, if it is later.
        """
        times, states, since, seen = numbers
        kind, schema = self.layout.spec.time_kind, self.layout.result_schema
        missing = pa.array((times // 1_000 - seen // 1_000) if kind == "bigint_ms" else times - seen, mask=seen == UNSET)
        by_clock = (states >= _NO_INPUT) | self.by_clock
        times = np.where(by_clock & (horizon != END_OF_TIME), np.maximum(times, horizon), times)
        moments = [unstamp(column, kind) for column in (since, seen)]
        columns = [*leading, unstamp(times, kind), _STATES.take(pa.array(states)), *moments]
        return pa.Table.from_arrays([*columns, missing.cast(schema.field(len(schema) - 1).type)], schema=schema)

    def _with_silence(self, bucket: Bucket, moment: Moment, result: StepResult) -> StepResult:
        """Report that the watermark has not moved for so long, by the clock, and that it moves again."""
        now, mark, repeat = moment.now_us or 0, moment.watermark_us, self.operation.repeat_us
        marked, moved, since, reported = InputSilence.of(bucket).input_silence or [mark, now, UNSET, UNSET]
        rows = list[tuple[int, int, int, int]]()
        if mark != marked:
            rows += [(now, _INPUT, since, moved)] if since != UNSET else []
            marked, moved, since, reported = mark, now, UNSET, UNSET
        due = moved + self.operation.after_us if since == UNSET else NEVER if repeat is None else reported + repeat
        if due <= now:
            since = due if since == UNSET else since
            times = [due] if repeat is None else range(due, now + 1, repeat)
            rows += [(us, _NO_INPUT, since, moved) for us in times]
            reported, due = times[-1], NEVER if repeat is None else times[-1] + repeat
        InputSilence([marked, moved, since, reported]).store(bucket)
        wakeup = min(us for us in (due, result.wakeup_now_us) if us is not None)
        ClockDeadline(None if wakeup == NEVER else wakeup).store(bucket)
        result = attrs.evolve(result, wakeup_now_us=None if wakeup == NEVER else wakeup)
        if not rows:
            return result
        leading = [pa.chunked_array([pa.nulls(len(rows), field.type)]) for field in self.layout.key_fields]
        given = self._table(leading, list(np.array(rows, np.int64).T), floor_watermark(mark, self.late_us))
        both = pa.concat_tables([given, result.results])
        column = both[len(leading)]
        order = np.argsort(column.cast(pa.int64()).to_numpy(), kind="stable")
        return attrs.evolve(result, results=pick(both, order), firings=result.firings + len(rows))

    def state(self, bucket: Bucket) -> pa.Table:
        """Return for each key its state, when it was seen last, since when it is absent, and how many rows of it are held."""
        kind = self.layout.spec.time_kind
        rows, held = self.state_rows(bucket)
        since = rows[_SINCE].to_numpy()
        announced = (rows[_SEEN].to_numpy() == UNSET) & (rows[_REPORTED].to_numpy() != UNSET)
        words = np.where(since == UNSET, np.where(announced, EXPECTED, "present"), "absent")
        states = pa.array(words.tolist(), pa.string())
        times = {LAST_SEEN: unstamp(rows[_SEEN].to_numpy(), kind), SINCE: unstamp(since, kind)}
        return self.state_table(rows, held, {STATE: states, **times})


class _Results:
    """Rows of results in the making."""

    def __init__(self) -> None:
        self._parts: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []

    def add(self, of: Ints, times: Ints, state: int, since: Ints, seen: Ints) -> None:
        """Add a row for each of some keys."""
        if len(of):
            self._parts.append((of, times, np.full(len(of), state), since, seen))

    def arrays(self) -> list[Ints]:
        """Return the keys, the times, the states, since when and when seen last."""
        none = (np.empty(0, np.int64),) * 5
        return [np.concatenate(parts) for parts in zip(none, *self._parts, strict=True)]


class _Gaps:
    """The neighbouring times of each key: from one that was seen to the next row, or to where all is settled.

    Attributes
    ----------
    of : ndarray of int64
        The key of each.
    seen, end : ndarray of int64
        When it begins and ends.
    of_row : ndarray of bool
        Whether a row ends it.
    since, reported : ndarray of int64
        Since when the key is absent, and the last deadline that was reported; ``UNSET`` while it is not.
    gone : ndarray of bool
        Whether the key is forgotten in it.
    last : ndarray of int64
        The last one of each key.
    shown : ndarray of int64
        When the key was seen last, as results show it: ``UNSET`` where it was only announced.
    watched : ndarray of bool
        Whether the key is watched in it.
    """

    def __init__(
        self, of: Ints, seen: Ints, end: Ints, of_row: Mask, since: Ints, reported: Ints, last: Ints, shown: Ints, watched: Mask
    ) -> None:
        self.of, self.seen, self.end, self.of_row, self.last, self.shown = of, seen, end, of_row, last, shown
        self.watched = watched
        self.since, self.reported = since, reported
        self.gone = np.zeros(len(of), np.bool_)

    @classmethod
    def between(
        cls, keys: KeyRows, rows: pa.Table, kinds: Ints, seen: Ints, since: Ints, reported: Ints, upto: int, by_row: Mask
    ) -> _Gaps:
        """Return those of the keys of a step; `kinds` says what each row is, and `by_row` which keys a row has shown before."""
        times, begins = rows[TIME].to_numpy(), keys.begins
        known = seen != UNSET
        alone = ~known & (np.diff(begins) == 0)
        counts = np.diff(begins) + (known | alone)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        of, n = np.repeat(np.arange(keys.n), counts), int(starts[-1])
        begin, kind, first, last = np.zeros(n, np.int64), np.full(n, _ROW), starts[:-1], starts[1:] - 1
        from_rows = np.ones(n, np.bool_)
        from_rows[first[known | alone]] = False
        begin[first[known]] = seen[known]
        begin[from_rows], kind[from_rows] = times, kinds
        kind[first[known & ~by_row]], kind[first[alone]] = _ADDED, _REMOVED
        end, of_row = np.empty(n, np.int64), np.zeros(n, np.bool_)
        end[:-1], of_row[:-1] = begin[1:], kind[1:] == _ROW
        of_row[last] = False
        end[last] = np.maximum(upto, begin[last])
        absent_since, last_report = np.full(n, UNSET), np.full(n, UNSET)
        absent_since[first[known]], last_report[first[known]] = since[known], reported[known]
        shown = np.where(kind == _ROW, begin, UNSET)
        return cls(of, begin, end, of_row, absent_since, last_report, last, shown, kind != _REMOVED)

    def report(self, after: int, repeat: int | None, forget: int | None, results: _Results) -> None:
        """Report absences, and keys that are forgotten; nothing of these is reported from then on."""
        over = np.full(len(self.of), NEVER) if forget is None else np.where(self.watched, self.seen + forget, NEVER)
        self.gone = over <= self.end
        reach = np.where(self.gone, over, self.end)
        absent, first = self.since != UNSET, np.where(self.watched, self.seen + after, NEVER)
        if repeat is None:
            due = np.where(absent, NEVER, first)
            counts = (due <= reach).astype(np.int64)
        else:
            due = np.where(absent, self.reported + repeat, first)
            counts = np.where(due <= reach, (reach - due) // repeat + 1, 0)
        some, again = np.flatnonzero(counts), repeat or 0
        self.since[some] = np.where(absent[some], self.since[some], due[some])
        self.reported[some] = due[some] + (counts[some] - 1) * again
        each = np.repeat(some, counts[some])
        number = np.arange(len(each)) - np.repeat(np.cumsum(counts[some]) - counts[some], counts[some])
        results.add(self.of[each], due[each] + number * again, _ABSENT, self.since[each], self.shown[each])
        gone = np.flatnonzero(self.gone)
        results.add(self.of[gone], over[gone], _FORGOTTEN, self.since[gone], self.shown[gone])

    def recover(self, results: _Results) -> None:
        """Report rows that end an absence."""
        some = np.flatnonzero(self.of_row & (self.since != UNSET) & ~self.gone)
        results.add(self.of[some], self.end[some], _RECOVERED, self.since[some], self.shown[some])
