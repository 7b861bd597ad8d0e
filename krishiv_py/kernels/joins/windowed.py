"""Window joins (SEMANTICS §9.3): rows are kept by time until their last window is final, then met window by window.

A batch appends; rows are read when one of their windows fires.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group_rows
from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask, pick
from krishiv_py.kernels.columns.times import FixedAssigner, unstamp
from krishiv_py.kernels.firing import FiringDelay, FiringSpan
from krishiv_py.kernels.joins.interval import NOBODY, Pairs, key_of, picked, refuse_many
from krishiv_py.kernels.joins.sides import GIVEN, NUMBER, JoinOperator, JoinProgress
from krishiv_py.kernels.results import StepResult
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.time_log import TimeLog, times_of
from krishiv_py.kernels.state.window_log import HASH, DeadKeys
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.joins import WindowJoin

_WINDOW = "__w"


@attrs.frozen(eq=False)
class _InWindows:
    """Rows of a side, each once for every window that fires: places in its table, and starts of windows."""

    table: pa.Table
    places: Ints
    starts: Ints

    @property
    def keyed(self) -> pa.Table:
        """Keys and windows."""
        names = [n for n in self.table.column_names if n.startswith("k")]
        return pick(self.table.select(names), self.places).append_column(_WINDOW, pa.array(self.starts))


@attrs.define
class WindowJoinProgress(JoinProgress):
    """Also up to which end windows have been given, whatever the allowed lateness was."""

    given_at: int = UNSET


class WindowJoinOperator(JoinOperator):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.operation, WindowJoin)
        self.window = spec.operation.window
        self.how = spec.operation.how
        self.assigner = FixedAssigner(self.window.grid)
        left_us = spec.options.left_us
        self.firing_delay = FiringDelay(self.late_us, self.late_us, left_us, left_us)
        self.schemas = tuple(self.schema_of(half) for half in self.halves)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        known, logs = WindowJoinProgress.of(bucket), self._logs(bucket)
        due = self.firing_delay.due(moment, known.joined_at)
        due = attrs.evolve(due, from_us=max(due.from_us, known.given_at))
        for log, fresh in zip(logs, known.fresh(chunks, self.halves, self.schemas), strict=True):
            log.append(fresh.table, UNSET)
        known.joined_at, known.given_at = due.reached_us, max(known.given_at, due.to_us)
        known.store(bucket)
        out, unmatched = [], 0
        for low, high in self._spans(logs, due):
            table, alone = self._fire(logs, low, high)
            out.append(table)
            unmatched += alone
        for log in logs:
            log.forget(self._first_start(due.to_us))
        table = pa.concat_tables([self.layout.result_schema.empty_table(), *out])
        held = sum(log.rows for log in logs)
        return StepResult(table, self._wakeup(logs, due.to_us), held, held, table.num_rows, {"unmatched": unmatched})

    def _logs(self, bucket: Bucket) -> tuple[TimeLog, TimeLog]:
        return TimeLog(bucket, "wl"), TimeLog(bucket, "wr")

    def _first_start(self, over: int) -> int:
        """Return where the first window begins that ends after `over`."""
        if over in (UNSET, END_OF_TIME):
            return over
        w = self.window
        return w.offset_us - (w.offset_us + w.size_us - over - 1) // w.slide_us * w.slide_us

    def _spans(self, logs: tuple[TimeLog, TimeLog], due: FiringSpan) -> Iterator[tuple[int, int]]:
        """Stretches of time in which windows end that fire now: after the first bound, up to the second."""
        first = [t for t in (log.earliest(self._first_start(due.from_us)) for log in logs) if t is not None]
        if not first or due.from_us >= due.to_us:
            return
        last = max(log.latest for log in logs if log.latest is not None)
        low, high = max(due.from_us, min(first)), min(due.to_us, last + self.window.size_us)
        if low < high:
            most = max(logs, key=lambda log: log.rows)
            yield from most.portions(low, high, self.window.size_us)

    def _fire(self, logs: tuple[TimeLog, TimeLog], low: int, high: int) -> tuple[pa.Table, int]:
        """Fire the windows with ``low < end <= high``; also return how many of their rows met nobody and are not given."""
        size = self.window.size_us
        left, right = (
            self._in_windows(log, schema, low - size, high - size) for log, schema in zip(logs, self.schemas, strict=True)
        )
        pairs = self._met(left, right)
        given, out, unmatched = GIVEN.get(self.how, (False, False)), [self._given(pairs)], 0
        for i, (side, places) in enumerate(zip((left, right), (pairs.left, pairs.right), strict=True)):
            alone = np.ones(len(side.places), np.bool_)
            alone[places] = False
            rows = np.flatnonzero(alone)
            nobody = np.full(len(rows), NOBODY)
            if given[i]:
                out.append(Pairs(rows, nobody) if i == 0 else Pairs(nobody, rows))
            else:
                unmatched += len(rows)
        pairs = Pairs(np.concatenate([p.left for p in out]), np.concatenate([p.right for p in out]))
        return self._table(left, right, pairs), unmatched

    def _in_windows(self, log: TimeLog, schema: pa.Schema, above: int, last: int) -> _InWindows:
        """Return the rows of a side in the windows that begin after `above`, and at `last` at the latest."""
        rows = log.load(above + 1, last + self.window.size_us)
        table = schema.empty_table() if rows is None else rows.combine_chunks()
        places, starts = self.assigner.windows_between(times_of(table), above + 1, last)
        return _InWindows(table, places, starts)

    def _met(self, left: _InWindows, right: _InWindows) -> Pairs:
        """Pairs of rows of one key and window, as places among the rows in windows."""
        names = [*self.layout.key_names, _WINDOW]
        ids = group_rows(names, left.keyed, right.keyed).ids
        ours, theirs = ids[: len(left.places)], ids[len(left.places) :]
        ours, theirs = self._without_nulls(left, ours), self._without_nulls(right, theirs)
        order = stable_order(theirs)
        ordered = theirs[order]
        seeking = np.flatnonzero(ours >= 0)
        start = np.searchsorted(ordered, ours[seeking], side="left")
        stop = np.searchsorted(ordered, ours[seeking], side="right")
        refuse_many(self.layout, left.table, left.places[seeking], stop - start)
        rows_of, spans = expand(start, stop)
        return Pairs(seeking[spans], order[rows_of])

    def _without_nulls(self, side: _InWindows, ids: Ints) -> Ints:
        null: Mask = np.zeros(side.table.num_rows, np.bool_)
        for key in self.layout.key_names:
            null |= side.table[key].is_null().to_numpy()
        return np.where(null[side.places], NOBODY, ids)

    def _given(self, pairs: Pairs) -> Pairs:
        if self.how not in ("semi", "anti"):
            return pairs
        lefts = np.unique(pairs.left) if self.how == "semi" else pairs.left[:0]
        return Pairs(lefts, np.full(len(lefts), NOBODY))

    def _table(self, left: _InWindows, right: _InWindows, pairs: Pairs) -> pa.Table:
        """Result rows by window, then key (its hash), then arrival of the left, then of the right row."""
        starts = np.maximum(picked(left.starts, pairs.left), picked(right.starts, pairs.right))
        ones, others = picked(left.places, pairs.left, NOBODY), picked(right.places, pairs.right, NOBODY)
        hashes = np.maximum(picked(left.table[HASH].to_numpy(), ones), picked(right.table[HASH].to_numpy(), others))
        arrived = picked(right.table[NUMBER].to_numpy(), others), picked(left.table[NUMBER].to_numpy(), ones)
        order = np.lexsort((*arrived, hashes, starts))
        starts = starts[order]
        one, other = (pa.array(places[order], mask=places[order] == NOBODY) for places in (ones, others))
        kind = self.layout.spec.time_kind
        arrays = [key_of(left.table[k], right.table[k], one, other) for k in self.layout.key_names]
        arrays += [unstamp(starts, kind), unstamp(starts + self.window.size_us, kind)]
        arrays += [pick(left.table[n], one) for n in self.names[0]] + [pick(right.table[n], other) for n in self.names[1]]
        schema = self.layout.result_schema
        return pa.Table.from_arrays(arrays[: len(schema)], schema=schema)

    def _wakeup(self, logs: tuple[TimeLog, TimeLog], to: int) -> int | None:
        """Return the next watermark at which a window fires that may hold a row."""
        first = [t for t in (log.earliest(self._first_start(to)) for log in logs) if t is not None]
        if not first or to == END_OF_TIME:
            return None
        return self._first_start(max(to, min(first))) + self.window.size_us + self.late_us

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; counts rows of windows that had not fired."""
        keys = DeadKeys.of(dead, self.layout.key_names)
        known = WindowJoinProgress.of(bucket)
        open_from = self._first_start(max(self.firing_delay.fired(known.joined_at), known.given_at))
        gone = [log.remove(keys.rows, UNSET) for log in self._logs(bucket)]
        return sum(int(np.count_nonzero(times_of(rows) >= open_from)) for rows in gone if rows is not None)
