"""Absence (SEMANTICS §14.7): keys without a row for a length of time, found between the settled rows of each key.

Two neighbouring times of a key say whether it was absent, whatever happened before: a row and the next one, or the last row
and the point up to which all is settled. So a step computes with arrays, and each row of a busy key costs a difference::

    rows of a key      3   5   9 ············ 40            after 10
    neighbours         3─5─5─9─9──────────────40─40──►      9 to 40: absent at 19, recovered at 40

Of each key are kept: the time of its last row, since when it is absent, and the last deadline that was reported.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, Mask, pick
from krishiv_py.kernels.columns.layout import TIME
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.ordered import NEVER, KeyRows, OrderedOperator, OrderedStep, in_result_order
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.plan.absence import LAST_SEEN, SINCE, STATE, Absence
from krishiv_py.plan.durations import UNSET

_SEEN, _SINCE, _REPORTED = "__seen", "__since", "__reported"
_STATES: Final = pa.array(["absent", "recovered", "forgotten"])
_ABSENT, _RECOVERED, _FORGOTTEN = range(3)


class AbsenceOperator(OrderedOperator):
    """See the module's docstring."""

    NAME: ClassVar[str] = "absence"

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, Absence)
        self.operation = spec.operation
        super().__init__(spec, [pa.field(name, pa.int64()) for name in (_SEEN, _SINCE, _REPORTED)])

    def run(self, step: OrderedStep, keys: KeyRows, rows: pa.Table) -> tuple[pa.Table, pa.Table | None, dict[str, int]]:
        """See :class:`~krishiv_py.kernels.ordered.OrderedOperator`."""
        operation = self.operation
        seen, since, reported = (keys.numbers(name, UNSET) for name in (_SEEN, _SINCE, _REPORTED))
        upto = step.moment.newest_us if step.ended else step.due_us
        gaps = _Gaps.between(keys, rows, seen, since, reported, upto)
        results = _Results()
        dropped = 0
        gaps.report(operation.after_us, operation.repeat_us, operation.forget_us, results)
        if operation.recovered:
            gaps.recover(results)
        last = gaps.last
        seen, since, reported, gone = gaps.seen[last], gaps.since[last], gaps.reported[last], gaps.gone[last]
        first = np.where(since == UNSET, seen + operation.after_us, NEVER)
        if operation.repeat_us is not None:
            first = np.where(since == UNSET, first, reported + operation.repeat_us)
        if operation.forget_us is not None:
            first = np.minimum(first, seen + operation.forget_us)
        if step.ended:
            due = ~gone & (first != NEVER)
            if operation.at_end == "fire":
                some = np.flatnonzero(due & (since == UNSET))
                results.add(some, first[some], _ABSENT, first[some], seen[some])
            else:
                dropped = int(np.count_nonzero(due))
            first = np.full(keys.n, NEVER)
        first[gone] = NEVER
        step.write(keys, ~gone, [pa.array(x) for x in (seen, since, reported)], first)
        return self._table(keys, results), None, {"timers_dropped": dropped} if dropped else {}

    def _table(self, keys: KeyRows, results: _Results) -> pa.Table:
        kind, schema = self.layout.spec.time_kind, self.layout.result_schema
        of, times, states, since, seen = results.arrays()
        order = in_result_order(keys.keys, self.names, of, times)
        of, times, states, since, seen = (column[order] for column in (of, times, states, since, seen))
        missing: Any = pa.array((times // 1_000 - seen // 1_000) if kind == "bigint_ms" else times - seen)
        leading = [pick(keys.keys[name], of) for name in self.names]
        moments = [unstamp(column, kind) for column in (since, seen)]
        columns = [*leading, unstamp(times, kind), _STATES.take(pa.array(states)), *moments]
        return pa.Table.from_arrays([*columns, missing.cast(schema.field(len(schema) - 1).type)], schema=schema)

    def state(self, bucket: Bucket) -> pa.Table:
        """Return for each key its state, when it was seen last, since when it is absent, and how many rows of it are held."""
        kind = self.layout.spec.time_kind
        rows, held = self.state_rows(bucket)
        since = rows[_SINCE].to_numpy()
        states = pa.array(np.where(since == UNSET, "present", "absent").tolist(), pa.string())
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
    """

    def __init__(self, of: Ints, seen: Ints, end: Ints, of_row: Mask, since: Ints, reported: Ints, last: Ints) -> None:
        self.of, self.seen, self.end, self.of_row, self.last = of, seen, end, of_row, last
        self.since, self.reported = since, reported
        self.gone = np.zeros(len(of), np.bool_)

    @classmethod
    def between(cls, keys: KeyRows, rows: pa.Table, seen: Ints, since: Ints, reported: Ints, upto: int) -> _Gaps:
        """Return those of the keys of a step."""
        times, begins = rows[TIME].to_numpy(), keys.begins
        known = seen != UNSET
        counts = np.diff(begins) + known
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        of = np.repeat(np.arange(keys.n), counts)
        begin, first, last = np.empty(len(of), np.int64), starts[:-1], starts[1:] - 1
        from_rows = np.ones(len(of), np.bool_)
        from_rows[first[known]] = False
        begin[first[known]] = seen[known]
        begin[from_rows] = times
        end, of_row = np.empty(len(of), np.int64), np.ones(len(of), np.bool_)
        end[:-1] = begin[1:]
        of_row[last] = False
        end[last] = np.maximum(upto, begin[last])
        absent_since, last_report = np.full(len(of), UNSET), np.full(len(of), UNSET)
        absent_since[first[known]], last_report[first[known]] = since[known], reported[known]
        return cls(of, begin, end, of_row, absent_since, last_report, last)

    def report(self, after: int, repeat: int | None, forget: int | None, results: _Results) -> None:
        """Report absences, and keys that are forgotten; nothing of these is reported from then on."""
        over = np.full(len(self.of), NEVER) if forget is None else self.seen + forget
        self.gone = over <= self.end
        reach = np.where(self.gone, over, self.end)
        absent = self.since != UNSET
        if repeat is None:
            due = np.where(absent, NEVER, self.seen + after)
            counts = (due <= reach).astype(np.int64)
        else:
            due = np.where(absent, self.reported + repeat, self.seen + after)
            counts = np.where(due <= reach, (reach - due) // repeat + 1, 0)
        some, again = np.flatnonzero(counts), repeat or 0
        self.since[some] = np.where(absent[some], self.since[some], due[some])
        self.reported[some] = due[some] + (counts[some] - 1) * again
        each = np.repeat(some, counts[some])
        number = np.arange(len(each)) - np.repeat(np.cumsum(counts[some]) - counts[some], counts[some])
        results.add(self.of[each], due[each] + number * again, _ABSENT, self.since[each], self.seen[each])
        gone = np.flatnonzero(self.gone)
        results.add(self.of[gone], over[gone], _FORGOTTEN, self.since[gone], self.seen[gone])

    def recover(self, results: _Results) -> None:
        """Report rows that end an absence."""
        some = np.flatnonzero(self.of_row & (self.since != UNSET) & ~self.gone)
        results.add(self.of[some], self.end[some], _RECOVERED, self.since[some], self.seen[some])
