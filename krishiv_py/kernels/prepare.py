"""From a batch of a source, or rows that a user sends, to classified working rows: the stateless half of an operator.

``source rows → prefix → stamp → judge → (late | working rows)``. Runs before the shuffle, so late rows leave here whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import normal_key
from krishiv_py.arrays.types import Ints, Mask, NumPy, as_arrow
from krishiv_py.connectors.fit import SENT, fitted, fitted_batch
from krishiv_py.connectors.frames import arrow_table, holds_arrow, in_async_turn, in_turn
from krishiv_py.connectors.values import UnfitError, column
from krishiv_py.errors import OperatorError, SchemaError, shown
from krishiv_py.kernels.columns.evaluate import argument
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.columns.steps import FailedRows, LeftOut, apply_prefix, batches_of, one_batch
from krishiv_py.kernels.columns.times import EventTimes, FixedAssigner, Spans, gap_lengths, spans_of, stamp
from krishiv_py.kernels.lanes import RowClock, RowMarks
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.watermark import (
    ONLY,
    behind_counts,
    beyond,
    beyond_each,
    classify,
    distances_counted,
    late_by_event,
    late_by_window,
    late_line,
    late_line_each,
    latest_expected,
    rows_behind,
)
from krishiv_py.plan.changes import AFTER, BEFORE
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.expressions.expr import Expr, columns_of, lit
from krishiv_py.plan.nodes import Expect, Filter, FilterAfter, Prefix, Project
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, most_lag_us
from krishiv_py.plan.row_classes import as_values, names_of
from krishiv_py.plan.running import FAILED, FAILED_DROPPED, FAILED_HANDLER, failed_of
from krishiv_py.plan.running import stamped as at_time
from krishiv_py.plan.steps import pruned
from krishiv_py.types import article, type_text


def unknown_sources(spec: OperatorSpec, rows: pa.RecordBatch) -> Mask | None:
    """Rows to refuse because the watermark knows nothing of their source; None where there are none.

    A null names no source, whatever is done with new names.

    Raises
    ------
    OperatorError
        For ``unknown("fail")``, naming the source.
    """
    mark = spec.watermark
    if not isinstance(mark, MultiSourceWatermarkSpec) or spec.source_column is None:
        return None
    names = rows.column(spec.source_column)
    if mark.unknown_action == "register":
        unknown = names.is_null()
    else:
        unknown = pc.invert(pc.is_in(names, value_set=pa.array([*(n for n, _ in mark.sources), *mark.passive], pa.string())))
    mask: Mask = unknown.to_numpy(zero_copy_only=False)
    if not mask.any():
        return None
    if mark.unknown_action == "fail":
        got = names[int(np.argmax(mask))].as_py()
        declared = ", ".join(repr(n) for n, _ in mark.sources)
        what = f"a row has a source that was not declared in column {spec.source_column!r}"
        hint = f'declare it with .source(...); declared are {declared}; or .unknown("side_output")'
        raise OperatorError(what, got=shown(got), hint=hint)
    return mask


COUNTERS = (
    *("rows", "late", "null_time", "null_key", "time_out_of_range", "unassigned", "mildly_late", "very_late"),
    *("future", "future_dropped", "future_side_output", "unknown_source", "malformed"),
)
_CLASSIFIED = tuple(name for name in COUNTERS if name != "malformed")
"""The counters of rows once they are rows."""
_REFUSED = {
    "late": ("late",),
    "null_time": ("null_time",),
    "null_key": ("null_key",),
    "time_out_of_range": ("time_out_of_range",),
    "future": ("future_dropped", "future_side_output"),
    "unknown_source": ("unknown_source",),
    "malformed": ("malformed",),
}
_LATE, _FUTURE, _UNKNOWN, _DROPPED, _GAP = 4, 5, 6, 7, 8  # the last two are counted only


@attrs.frozen(eq=False)
class PreparedRows:
    """Holds what became of one batch.

    Attributes
    ----------
    rows : pyarrow.Table
        Accepted rows in the working layout (:class:`~krishiv_py.kernels.columns.layout.Layout`).
    late : pyarrow.Table
        Refused rows with ``reason``, ``watermark`` and ``lateness``; whole rows, or no columns of theirs when only counted.
    counters : dict
        Rows by fate; see :data:`COUNTERS`.
    maxima : dict
        Largest usable event time by source: what the watermark follows. Rows refused for being too far ahead are left out
        (SEMANTICS §4.4).
    ahead : dict
        How many rows are too far ahead by source; sources without any are left out.
    latest_late_us : int
        The largest time of the rows that are late, µs; ``UNSET`` without any.
    newest_us : int
        The largest event time of rows that are checked, µs; ``UNSET`` without any. What a filter leaves out is not among them.
    turns : list of (int, int)
        Rows that state judges, each by the rows before it: where they are, and the watermark of each, µs.
    """

    rows: pa.Table
    late: pa.Table
    counters: dict[str, int]
    maxima: dict[str, int]
    ahead: dict[str, int] = attrs.field(factory=dict)
    latest_late_us: int = UNSET
    newest_us: int = UNSET
    turns: list[tuple[int, int]] = attrs.field(factory=list)


def refused(counters: dict[str, int]) -> dict[str, int]:
    """Return how many rows were refused, by reason."""
    known = {reason: sum(counters.get(name, 0) for name in names) for reason, names in _REFUSED.items()}
    return known | failed_of(counters) | failed_of(counters, (FAILED_HANDLER,))


_REASONS: Final = frozenset(name for names in _REFUSED.values() for name in names)


def refused_rows(counters: dict[str, int]) -> int:
    """Return how many rows were refused, for any reason: the sum of :func:`refused`.

    Examples
    --------
    >>> refused_rows({"rows": 9, "late": 2, "future_dropped": 1, "failed:amount > 0": 3, "behind_us_1024": 5})
    6
    """
    of_all = (FAILED, FAILED_DROPPED, FAILED_HANDLER)
    return sum(rows for name, rows in counters.items() if rows and (name in _REASONS or name.startswith(of_all)))


def _of(times: Ints, chosen: Mask) -> Ints:
    """Return the chosen times, which are copied only if that is not all of them."""
    return times if chosen.all() else times[chosen]


def signs_of(kinds: pa.Array) -> pa.Array:
    """Return 1 for rows of these change kinds that are added, and -1 for those that are taken back."""
    return pc.if_else(pc.starts_with(kinds, "-"), pa.scalar(-1, pa.int8()), pa.scalar(1, pa.int8()))


def _each(watermark_us: int | Ints, rows: Ints | Mask) -> int | Ints:
    """Return the watermarks of some rows: the same one, or one for each."""
    return watermark_us if isinstance(watermark_us, int) else watermark_us[rows]


_ROW: Final = "__row"
"""Working column: the number of a row in its batch, where rows that a filter leaves out are classified among the others."""


def _with_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column(_ROW, as_arrow(np.arange(batch.num_rows)))


def _keeping_numbers(steps: tuple[Prefix, ...]) -> tuple[Prefix, ...]:
    """Return steps that hand the numbers of rows on."""
    return tuple(attrs.evolve(step, envelope=(*step.envelope, _ROW)) if isinstance(step, Project) else step for step in steps)


def _steps_of_left_out(spec: OperatorSpec) -> dict[int, tuple[Prefix, ...]]:
    """Return, by the number of each filter after the watermark, the steps that give its other rows their time and source.

    Steps that take rows out are not among them, but for those that go by the time alone: at the seam of a history a row that is
    of the other side is no row of this one.
    """
    if not spec.time_column:
        return {}
    wanted = {spec.time_column, *([spec.source_column] if spec.source_column else [])}

    def steps(after: tuple[Prefix, ...]) -> Iterator[Prefix]:
        for step in after:
            if not isinstance(step, Filter):
                yield step
            elif isinstance(step, Expect) and step.on_fail == "drop" and columns_of(step.condition) <= wanted:
                yield Filter(step.input, step.condition)

    return {
        number: pruned(tuple(steps(spec.prefix[number + 1 :])), wanted)
        for number, step in enumerate(spec.prefix)
        if isinstance(step, FilterAfter)
    }


@attrs.frozen(eq=False)
class _DatedRows:
    """The event times of rows, µs, and the rows whose time, or whose source, is of no use."""

    times: Ints
    null: Mask
    out_of_range: Mask
    unknown: Mask | None

    @property
    def none(self) -> Mask:
        """Return none of the rows."""
        return np.zeros(len(self.times), np.bool_)

    @property
    def usable(self) -> Mask:
        """Return the rows whose time can be used."""
        usable: Mask = ~(self.null | self.out_of_range)
        return usable if self.unknown is None else usable & ~self.unknown

    def counting(self, ahead: Mask, options: QueryOptions) -> Mask:
        """Return the rows whose time moves the watermark; those that are refused for being `ahead` do not."""
        return self.usable if options.future_action == "warn" else self.usable & ~ahead


@attrs.frozen(eq=False)
class _Marks:
    """The watermark of rows, one or one for each, the rows that are too far ahead, and the maxima after them."""

    watermark_us: int | Ints
    ahead: Mask
    maxima: dict[str, int]


class RowPreparer:
    """The stateless half, made once per operator and worker."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.spec = spec
        self.layout = Layout(spec)
        self._no_late_rows = self.layout.late_schema.empty_table()
        grid = spec.operation.extent.grid
        own_rules = self.layout.gap_column is not None or spec.operation.extent.assigner is not None
        self._late_by_time = not own_rules and (grid is None or not grid.has_gaps)
        """Return whether a row with a time and a key is refused for its time alone."""
        options = spec.options
        self._late_by_event = not (options.late_rule == "window" or options.late_by_batch_before or spec.operation.takes_late)
        """Return whether a row that can be used is late by its own time and watermark."""
        self._lag_us = most_lag_us(spec.watermark)
        self._takes_turns = spec.operation.takes_turns(spec.options)
        self._touching = getattr(spec.operation, "touch", None) == "merge"
        self._then = _steps_of_left_out(spec)
        self._numbered = min(self._then, default=None) if spec.watermark.by_row else None
        """The first filter after the watermark, before which rows are numbered: those that it leaves out move their lane on."""
        if self._numbered is not None:
            self._then = {number: _keeping_numbers(steps) for number, steps in self._then.items()}

    def __call__(
        self,
        batch: pa.RecordBatch,
        watermark_us: int,
        now_us: int | None = None,
        *,
        begun_us: int | None = None,
        results: bool = False,
        lane: tuple[RowClock, str] | None = None,
    ) -> PreparedRows:
        """Judge and reduce one batch of source rows under the watermark in force.

        Parameters
        ----------
        batch : pyarrow.RecordBatch
            Source rows.
        watermark_us : int
            The watermark in force.
        now_us : int, optional
            Processing time, µs since the epoch; needed by rows that go by the clock only.
        begun_us : int, optional
            The clock when the batch began, µs since the epoch, which future rows are ahead of; None where nobody set it.
        results : bool
            Whether the rows are results of a stage, which are never too far ahead: their times are not those of a clock.
        lane : (RowClock, str), optional
            The clock that judges row by row, and the lane that the rows are the next ones of.
        """
        aside: list[FailedRows] = []
        left_out: LeftOut = {}
        rows = self._steps(batch, watermark_us, now_us, aside, left_out if self._then else None)
        if lane is not None and self.spec.time_column:
            prepared = self._by_row(rows, left_out, lane, begun_us)
            return self._with_aside(prepared, aside, watermark_us) if aside else prepared
        prepared = self._classified(rows, watermark_us, begun_us, results=results)
        if left_out:
            self._add_left_out(prepared.maxima, left_out, watermark_us, begun_us, results=results)
        return self._with_aside(prepared, aside, watermark_us) if aside else prepared

    def _classified(self, rows: pa.RecordBatch, watermark_us: int, begun_us: int | None, *, results: bool) -> PreparedRows:
        spec = self.spec
        if not spec.time_column:
            return self._untimed(rows)
        stamped = stamp(rows.column(spec.time_column), spec.time_kind)
        if self._late_by_time and self._all_taken(rows, stamped, watermark_us, begun_us, results=results):
            return self._taken(rows, stamped, watermark_us, results=results)
        times = self._dated(rows, stamped)
        ahead = times.none if results else times.usable & self._ahead(stamped.times, watermark_us, begun_us)
        counts = times.counting(ahead, spec.options)
        marks = _Marks(watermark_us, ahead, self._maxima(rows, stamped.times, counts))
        behind = self._behind_counts(_of(stamped.times, counts), watermark_us, results=results)
        return self._judged(rows, times, marks, behind, results=results)

    def _by_row(
        self, rows: pa.RecordBatch, left_out: LeftOut, lane: tuple[RowClock, str], begun_us: int | None
    ) -> PreparedRows:
        """Judge each row by the rows before it in its lane, those among them that a filter left out."""
        if not left_out and (taken := self._late_by_row(rows, lane, begun_us)) is not None:
            return taken
        out = [apply_prefix(self._then[step], part) for step, parts in left_out.items() for part in parts]
        every, n, options = [rows, *(one for one in out if one.num_rows)], rows.num_rows, self.spec.options
        dated = [self._dated(one, stamp(one.column(self.spec.time_column), self.spec.time_kind)) for one in every]
        ahead = [times.usable & self._ahead(times.times, UNSET, begun_us) for times in dated]  # of the clock of the machine
        counts = [times.counting(some, options) for times, some in zip(dated, ahead, strict=True)]
        marks = self._lane_marks(every, [times.times for times in dated], counts, lane)
        mine, watermarks = dated[0], marks.watermarks[:n]
        own_ahead = ahead[0] | marks.ahead[:n]
        if options.future_reference == "watermark" and options.future_action == "warn":
            own_ahead = mine.usable & beyond_each(mine.times, watermarks, options.future_us)
        counted = mine.counting(own_ahead, options)
        behind = rows_behind(_of(mine.times, counted), _of(marks.newest[:n], counted), self._lag_us)
        return self._judged(rows, mine, _Marks(watermarks, own_ahead, marks.maxima), behind, results=False)

    def _late_by_row(self, rows: pa.RecordBatch, lane: tuple[RowClock, str], begun_us: int | None) -> PreparedRows | None:
        """Return rows of which none is refused but for being late: the common case."""
        spec, options, (clock, name) = self.spec, self.spec.options, lane
        if not self._late_by_time or spec.source_column is not None or options.future_reference == "watermark":
            return None
        if self.layout.marked or (self._touching and self._takes_turns):
            return None
        stamped = stamp(rows.column(spec.time_column), spec.time_kind) if rows.num_rows else None
        if stamped is None or stamped.bounds is None or not self._all_taken(rows, stamped, UNSET, begun_us, results=False):
            return None
        behind = clock.behind(name, stamped.times, stamped.bounds)
        if behind is None:
            return None
        if not len(behind.rows):  # all in order
            prepared = self._taken(rows, stamped, UNSET, results=True)
            prepared.maxima.clear()
            prepared.maxima.update(clock.went(name, stamped.bounds[1]))
            return prepared
        beyond = np.flatnonzero(behind.distances > self._lag_us)
        if len(beyond) and not (self._late_by_event and options.left_us == UNSET):
            return None
        late = beyond[behind.distances[beyond] > self._lag_us + options.allowed_lateness_us]
        prepared = self._without(rows, stamped, behind.rows[late], behind.distances[late] - self._lag_us)
        counters = {**prepared.counters, **distances_counted(behind.distances, self._lag_us)}
        counters["mildly_late"] = len(beyond) - len(late)
        return attrs.evolve(prepared, counters=counters, maxima=clock.went(name, stamped.bounds[1]))

    def _without(self, rows: pa.RecordBatch, stamped: EventTimes, late: Ints, behind_us: Ints) -> PreparedRows:
        """Return rows that are all accepted but for those at some places, which are so far behind their watermark."""
        if not len(late):
            return self._taken(rows, stamped, UNSET, results=True)
        times, keep = stamped.times, np.ones(len(stamped.times), np.bool_)
        keep[late] = False
        late_times = times[late]
        refused = self._refused(rows, late, late_times, late_times + behind_us, np.full(len(late), _LATE, np.int8))
        counters = {**dict.fromkeys(_CLASSIFIED, 0), "rows": len(times), "late": len(late), "very_late": len(late)}
        accepted, newest_us = self._accepted(rows, times, None, keep, UNSET, None), int(times.max())
        return PreparedRows(accepted, refused, counters, {}, latest_late_us=int(late_times.max()), newest_us=newest_us)

    def _lane_marks(
        self, every: list[pa.RecordBatch], times: list[Ints], counts: list[Mask], lane: tuple[RowClock, str]
    ) -> RowMarks:
        """Return what rows are classified by: those of the batch first, then those that filters left out between them."""
        options, column = self.spec.options, self.spec.source_column
        by_mark = options.future_reference == "watermark" and options.future_action != "warn"
        future_us, (clock, name) = options.future_us if by_mark else None, lane
        sources = None if column is None else pa.chunked_array([one.column(column) for one in every]).combine_chunks()
        if len(every) == 1:
            return clock.marks(name, times[0], counts[0], sources, future_us)
        order = np.argsort(np.concatenate([one.column(_ROW).to_numpy() for one in every]), kind="stable")
        sources = None if sources is None else sources.take(pa.array(order))
        in_order = clock.marks(name, np.concatenate(times)[order], np.concatenate(counts)[order], sources, future_us)
        return in_order.put_back(order)

    def _dated(self, rows: pa.RecordBatch, stamped: EventTimes) -> _DatedRows:
        """Return the event times of rows, and which of them can be used, as far as each row alone says."""
        return _DatedRows(stamped.times, stamped.null, stamped.out_of_range, unknown_sources(self.spec, rows))

    def _judged(
        self, rows: pa.RecordBatch, dated: _DatedRows, marks: _Marks, behind: dict[str, int], *, results: bool
    ) -> PreparedRows:
        """Return what becomes of rows, by what they are classified by."""
        spec, options, unknown = self.spec, self.spec.options, dated.unknown
        times, watermark_us, ahead, maxima = dated.times, marks.watermark_us, marks.ahead, marks.maxima
        reasons = np.zeros(len(times), np.int8)  # 0 = accepted, else 1 + index into LATE_REASONS, 5 = unassigned
        reasons[dated.null] = 1
        reasons[dated.out_of_range] = 2
        if options.null_keys == "side_output":
            reasons[(reasons == 0) & self._null_keys(rows)] = 3
        if unknown is not None:
            reasons[unknown & (reasons == 0)] = _UNKNOWN
        usable = dated.counting(ahead, options)
        if options.future_action != "warn":
            reasons[ahead & (reasons == 0)] = _DROPPED if options.future_action == "drop" else _FUTURE
        ahead_by_source = self._sources_of(rows, ahead)
        gaps = None if self.layout.gap_column is None else gap_lengths(rows.column(self.layout.gap_column))
        if gaps is not None:
            reasons[(reasons == 0) & (gaps <= 0)] = _GAP
        accepted = reasons == 0
        spans = self._spans(times, accepted)
        late, classes = (
            self._late(times, watermark_us, spans, gaps, results=results),
            classify(_of(times, accepted), _each(watermark_us, accepted), options.allowed_lateness_us, options.future_us),
        )
        reasons[accepted & late] = _LATE
        self._refuse_pairs(rows, reasons)
        counters = {
            "rows": len(times),
            "null_time": int(np.count_nonzero(reasons == 1)),
            "time_out_of_range": int(np.count_nonzero(reasons == 2)),
            "null_key": int(np.count_nonzero(reasons == 3)),
            "late": int(np.count_nonzero(reasons == _LATE)),
            "mildly_late": classes.mildly_late,
            "very_late": classes.very_late,
            "future": int(np.count_nonzero(ahead)),
            "unassigned": int(np.count_nonzero(reasons == _GAP)),
            "future_dropped": int(np.count_nonzero(reasons == _DROPPED)),
            "future_side_output": int(np.count_nonzero(reasons == _FUTURE)),
            "unknown_source": 0 if unknown is None else int(np.count_nonzero(reasons == _UNKNOWN)),
            **behind,
        }
        grid = spec.operation.extent.grid
        if grid is not None and grid.has_gaps:
            gap = (reasons == 0) & FixedAssigner(grid).unassigned(times)
            counters["unassigned"] = int(np.count_nonzero(gap))
            reasons[gap] = _GAP
        if spans is not None and not spans.tiled:
            gap = reasons == 0
            gap[spans.rows] = False
            counters["unassigned"] = int(np.count_nonzero(gap))
            reasons[gap] = _GAP
        turns = self._turns_of(times, reasons == 0, watermark_us)
        taken = reasons == 0
        if spec.operation.late_side is not None and spec.source_column is not None and counters["late"]:
            of_side = pc.equal(rows.column(spec.source_column), spec.operation.late_side).to_numpy(zero_copy_only=False)
            taken |= (reasons == _LATE) & of_side
        accepted = self._accepted(rows, times, gaps, taken, watermark_us, spans)
        out = np.flatnonzero((reasons > 0) & (reasons < _DROPPED))
        refused = self._refused(rows, out, times[out], _each(watermark_us, out), reasons[out])
        latest_late_us = UNSET
        if counters["late"]:
            latest_late_us = int(times[reasons == _LATE].max())
        newest_us = int(_of(times, usable).max(initial=UNSET))
        return PreparedRows(accepted, refused, counters, maxima, ahead_by_source, latest_late_us, newest_us, turns)

    def _refuse_pairs(self, rows: pa.RecordBatch, reasons: NumPy) -> None:
        """Refuse the new row of an update with the old one that is late, so that no row is in two windows (SEMANTICS §16.6)."""
        spec = self.spec
        if not spec.changes or not spec.operation.nature.opens_windows or not (reasons == _LATE).any():
            return
        kinds = rows.column(spec.changes)
        first, second = (pc.equal(kinds, kind).to_numpy(zero_copy_only=False) for kind in (BEFORE, AFTER))
        pairs = np.flatnonzero(first[:-1] & second[1:] & (reasons[:-1] == _LATE) & (reasons[1:] == 0))
        if not len(pairs):  # always so of windows: both halves of an update have the same time
            return
        of, place = (rows.column(name).to_numpy() for name in spec.arrives_by)
        halves = (of[pairs] == of[pairs + 1]) & (place[pairs] + 1 == place[pairs + 1])  # a filter may have left one out
        reasons[pairs[halves] + 1] = _LATE

    def _turns_of(self, times: Ints, accepted: Mask, watermark_us: int | Ints) -> list[tuple[int, int]]:
        """Return which accepted rows come one by one: where, and by which watermark."""
        if isinstance(watermark_us, int) or not self._takes_turns:
            return []
        marks = watermark_us[accepted]
        lines = late_line_each(marks, self.spec.options)
        behind = np.flatnonzero(times[accepted] < lines if not self._touching else times[accepted] <= lines)
        return list(zip(behind.tolist(), marks[behind].tolist(), strict=True))

    def _all_taken(
        self, rows: pa.RecordBatch, stamped: EventTimes, watermark_us: int, begun_us: int | None, *, results: bool
    ) -> bool:
        """Return whether the smallest and the largest time say that no row is refused, and none is ahead: the common case."""
        spec, bounds = self.spec, stamped.bounds
        if bounds is None:
            return False
        if watermark_us != UNSET and bounds[0] <= late_line(watermark_us, spec.options):
            return False
        if not results and not spec.watermark._by_clock:
            latest = latest_expected(watermark_us, begun_us, spec.options)
            if latest is not None and bounds[1] > latest:
                return False
        if spec.options.null_keys == "side_output" and any(rows.column(key).null_count for key in spec.keys):
            return False
        return unknown_sources(spec, rows) is None

    def _taken(self, rows: pa.RecordBatch, stamped: EventTimes, watermark_us: int, *, results: bool) -> PreparedRows:
        """Rows that are all accepted."""
        times = stamped.times
        low, high = stamped.bounds or (UNSET, END_OF_TIME)
        counters = dict.fromkeys(_CLASSIFIED, 0)
        counters["rows"] = len(times)
        if watermark_us != UNSET and low < watermark_us:
            counters["mildly_late"] = int(np.count_nonzero(times < watermark_us))
        if low < watermark_us + self._lag_us:
            counters |= self._behind_counts(times, watermark_us, results=results)
        accepted = self._accepted(rows, times, None, None, watermark_us, None)
        one = self.spec.source_column is None
        maxima = {ONLY: high} if one else self._maxima(rows, times, np.ones(len(times), np.bool_))
        return PreparedRows(accepted, self._no_late_rows, counters, maxima, newest_us=high)

    def _behind_counts(self, times: Ints, watermark_us: int, *, results: bool) -> dict[str, int]:
        """Count rows of a source by their distance to the newest row of the batches before."""
        return {} if results or self.spec.watermark._by_clock else behind_counts(times, watermark_us, self._lag_us)

    def _untimed(self, rows: pa.RecordBatch) -> PreparedRows:
        """Rows that need no event time: none is refused."""
        times = np.zeros(rows.num_rows, np.int64)
        taken = self._accepted(rows, times, None, None, UNSET, None)
        return PreparedRows(taken, self._no_late_rows, {"rows": rows.num_rows}, {})

    def maxima(self, batch: pa.RecordBatch, watermark_us: int, now_us: int, begun_us: int | None = None) -> dict[str, int]:
        """Largest usable event time by source, without judging or reducing the rows."""
        if not self.spec.time_column:
            return {}
        left_out: LeftOut = {}
        largest = self._newest(self._steps(batch, watermark_us, now_us, None, left_out), watermark_us, begun_us)
        self._add_left_out(largest, left_out, watermark_us, begun_us)
        return largest

    def _add_left_out(
        self, maxima: dict[str, int], left_out: LeftOut, watermark_us: int, begun_us: int | None, *, results: bool = False
    ) -> None:
        """Add the times of rows that filters after the watermark left out to the `maxima`, in place."""
        for step, parts in left_out.items():
            for part in parts:
                rows = apply_prefix(self._then[step], part)
                for source, time_us in self._newest(rows, watermark_us, begun_us, results=results).items():
                    maxima[source] = max(maxima.get(source, UNSET), time_us)

    def _newest(
        self, rows: pa.RecordBatch, watermark_us: int, begun_us: int | None, *, results: bool = False
    ) -> dict[str, int]:
        """Return the largest usable event time of rows by source."""
        stamped = stamp(rows.column(self.spec.time_column), self.spec.time_kind)
        usable = ~(stamped.null | stamped.out_of_range)
        unknown = unknown_sources(self.spec, rows)
        if unknown is not None:
            usable &= ~unknown
        if self.spec.options.future_action != "warn" and not results:
            usable &= ~self._ahead(stamped.times, watermark_us, begun_us)
        return self._maxima(rows, stamped.times, usable)

    def _with_aside(self, prepared: PreparedRows, aside: list[FailedRows], watermark_us: int) -> PreparedRows:
        """Add rows that steps took out: they count as input, and those that are not dropped go to the late output."""
        counters, late = dict(prepared.counters), [prepared.late]
        for one in aside:
            n, name = one.rows.num_rows, f"{FAILED_DROPPED if one.dropped else FAILED}{one.name}"
            counters["rows"] = counters.get("rows", 0) + n
            counters[name] = counters.get(name, 0) + n
            if not one.dropped:
                late.append(self.layout.aside(pa.table(one.rows), one.reason, watermark_us))
        return attrs.evolve(prepared, counters=counters, late=pa.concat_tables(late))

    def _steps(
        self,
        batch: pa.RecordBatch,
        watermark_us: int,
        now_us: int | None,
        aside: list[FailedRows] | None = None,
        left_out: LeftOut | None = None,
    ) -> pa.RecordBatch:
        """Rows after the stateless steps; rows that go by the clock are never behind the watermark, before the input ends."""
        prefix, first = self.spec.prefix, self._numbered
        if first is not None and left_out is not None:
            batch = _with_numbers(apply_prefix(prefix[:first], batch, aside) if first else batch)
            later: LeftOut = {}
            rows = apply_prefix(_keeping_numbers(prefix[first:]), batch, aside, later)
            left_out |= {number + first: parts for number, parts in later.items()}
            return rows
        if self.spec.watermark._by_clock and now_us is not None:
            prefix = at_time(prefix, now_us if watermark_us == END_OF_TIME else max(watermark_us, now_us))
        return apply_prefix(prefix, batch, aside, left_out) if prefix else batch

    def _ahead(self, times: Ints, watermark_us: int, begun_us: int | None) -> Mask:
        """Rows too far ahead; the clock is never ahead of itself."""
        if self.spec.watermark._by_clock:
            return np.zeros(len(times), np.bool_)
        return beyond(times, watermark_us, begun_us, self.spec.options)

    def _maxima(self, rows: pa.RecordBatch, times: Ints, usable: Mask) -> dict[str, int]:
        if not usable.any():
            return {}
        if self.spec.source_column is None:
            return {ONLY: int(_of(times, usable).max())}
        named = pa.table({"source": rows.column(self.spec.source_column), "t": times}).filter(pa.array(usable))
        top = named.group_by("source").aggregate([("t", "max")]).to_pylist()
        return {str(entry["source"]): entry["t_max"] for entry in top}

    def _sources_of(self, rows: pa.RecordBatch, ahead: Mask) -> dict[str, int]:
        """Return how many of the rows `ahead` each source has."""
        if not ahead.any():
            return {}
        if self.spec.source_column is None:
            return {ONLY: int(np.count_nonzero(ahead))}
        named = pc.value_counts(rows.column(self.spec.source_column).filter(pa.array(ahead)))
        return {str(entry["values"]): entry["counts"] for entry in named.to_pylist()}

    def _null_keys(self, rows: pa.RecordBatch) -> Mask:
        mask = np.zeros(rows.num_rows, np.bool_)
        for key in self.spec.keys:
            mask |= rows.column(key).is_null().to_numpy(zero_copy_only=False)
        return mask

    def _spans(self, times: Ints, accepted: Mask) -> Spans | None:
        """Return the windows of rows that are classified, of a user's assigner."""
        if self.spec.operation.extent.assigner is None:
            return None
        if accepted.all():
            return spans_of(self.spec.operation, times, self.spec.time_kind)
        return spans_of(self.spec.operation, times[accepted], self.spec.time_kind).of_rows(np.flatnonzero(accepted))

    def _late(self, times: Ints, watermark_us: int | Ints, spans: Spans | None, gaps: Ints | None, *, results: bool) -> Mask:
        if self.spec.operation.takes_late:
            return np.zeros(len(times), np.bool_)
        late = self._late_now(times, watermark_us, spans, gaps, results=results)
        left_us, window = self.spec.options.left_us, self.spec.operation
        if left_us == UNSET or window.late_by in ("state", "never"):
            return late
        if spans is not None:
            ends = spans.last_ends(times)
        elif window.extent.grid is not None:
            ends = FixedAssigner(window.extent.grid).last_end(times)
        else:
            return late | (times < left_us)
        return late | ((ends > times) & (ends <= left_us))  # all its windows had left

    def _late_now(
        self, times: Ints, watermark_us: int | Ints, spans: Spans | None, gaps: Ints | None, *, results: bool
    ) -> Mask:
        """Return which rows are late by the allowed lateness."""
        options, window = self.spec.options, self.spec.operation
        if isinstance(watermark_us, int) and watermark_us == UNSET:
            return np.zeros(len(times), np.bool_)
        if options.late_rule == "window" and window.extent.grid is not None:
            ends = FixedAssigner(window.extent.grid).last_end(times)
            inside = ends > times  # a row in a gap is late by no window; it is unassigned
            return inside & late_by_window(ends, watermark_us, options.allowed_lateness_us)
        if options.late_rule == "window" and spans is not None:
            ends = spans.last_ends(times)
            return (ends > times) & late_by_window(ends, watermark_us, options.allowed_lateness_us)
        if options.late_by_batch_before and not results and window.late_by in ("state", "time"):
            merges = options.late_rule == "window" and window.late_by == "state" and not window.extent.inclusive
            ends = self._reaches(times, gaps) if merges else times  # of a session, that of the row alone
            return late_by_window(ends, watermark_us, options.allowed_lateness_us)
        if options.late_rule == "window" and window.late_by in ("state", "never"):
            return np.zeros(len(times), np.bool_)  # only the state knows where a session ends; numbered windows never close
        return late_by_event(times, watermark_us, options.allowed_lateness_us)

    def _accepted(
        self,
        rows: pa.RecordBatch,
        times: Ints,
        gaps: Ints | None,
        keep: Mask | None,
        watermark_us: int | Ints,
        spans: Spans | None,
    ) -> pa.Table:
        """Return the rows to keep, None for all, in the working layout."""
        if keep is not None and spans is not None:
            over = late_line_each(watermark_us, self.spec.options)
            spans = spans.kept(keep[spans.rows] & (spans.ends > _each(over, spans.rows)))
            if not (spans.tiled and len(spans.rows) == len(times)):
                rows, times = rows.take(pa.array(spans.rows)), times[spans.rows]
        elif keep is not None and not keep.all():
            # of most rows, column by column: what is kept is copied in runs, and a whole batch row by row
            mask = pa.array(keep)
            columns, times = [column.filter(mask) for column in rows.columns], times[keep]
            rows = pa.RecordBatch.from_arrays(columns, schema=rows.schema) if columns else rows.filter(mask)
            gaps = None if gaps is None else gaps[keep]
        inputs = [self._input(value, where, rows) for value, where in self.layout.inputs]
        keys = [normal_key(rows.column(k)) for k in self.spec.keys]
        own = [signs_of(rows.column(self.spec.changes))] if self.spec.changes else []
        own += [] if gaps is None else [pa.array(gaps)]
        own += [] if spans is None else [pa.array(spans.starts), pa.array(spans.ends)]
        if self.layout.doubts:
            over = late_line_each(watermark_us if keep is None else _each(watermark_us, keep), self.spec.options)
            own.append(pa.array(self._reaches(times, gaps) <= over))
        if self.layout.marked:
            own.append(pa.array(np.full(len(times), watermark_us if keep is None else _each(watermark_us, keep))))
        carried = [rows.column(n) for n in (*self.layout.carried, *self.layout.own, *self.spec.row_ids)]
        return pa.Table.from_arrays([as_arrow(times), *own, *keys, *inputs, *carried], schema=self.layout.row_schema)

    def _reaches(self, times: Ints, gaps: Ints | None) -> Ints:
        """Return where the session of every row alone would end."""
        return times + (self.spec.operation.extent.length_us if gaps is None else gaps)

    @staticmethod
    def _input(value: Expr | None, where: Expr | None, rows: pa.RecordBatch) -> pa.Array:
        """Return an aggregate's argument; null where its filter does not hold (nulls are skipped by every aggregate)."""
        return argument(lit(True) if value is None else value, where, rows)

    def _refused(self, rows: pa.RecordBatch, places: Ints, times: Ints, marks: int | Ints, reasons: NumPy) -> pa.Table:
        """Return rows at some places as the late output has them, by the time, watermark and reason of each."""
        if not len(places):
            return self._no_late_rows
        picked = pa.array(places)
        kept = [rows.column(n).take(picked) for n in self.spec.late_columns]
        labels = pa.DictionaryArray.from_arrays(pa.array(reasons - 1, pa.int8()), self.layout.reasons)
        notes = self.layout.refusal_notes(labels.cast(pa.string()), marks, times, (reasons == _LATE) & (times < marks))
        return pa.Table.from_arrays([*kept, *notes], schema=self.layout.late_schema)


_NOT_SENT: Final = "the batch was not sent"


def _from_dicts(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    known = set(schema.names)
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaError(f"row {i} is not a mapping", got=shown(row), hint="send dicts")
        if not row.keys() <= known:
            extra = next(k for k in row if k not in known)
            hint = f"the columns are: {', '.join(schema.names[:20])}"
            raise SchemaError(f"row {i} has a column that is not in the stream", got=extra, hint=hint)
    arrays = [_column([row.get(f.name) for row in rows], f) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        made = column(values, field.type)
        return made if field.nullable else fitted(made, field, SENT, _NOT_SENT)
    except UnfitError as problem:
        inside = f" at {problem.path}" if problem.path else ""
        what = f"row {problem.row}, column {field.name!r}: not {article(type_text(problem.type))}{inside}"
        raise SchemaError(what, got=shown(problem.value), then=f"{problem.why}; {_NOT_SENT}", hint=problem.hint) from None


def as_batch(rows: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Return what :func:`as_batches` gives, as one batch."""
    batches = as_batches(rows, schema)
    return batches[0] if len(batches) == 1 else one_batch(pa.Table.from_batches(batches))


def as_batches(rows: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return a batch of `schema` from a list of dicts or whatever holds Arrow data (:func:`arrow_table`).

    They are several where the texts of a table are too long for one.

    Raises
    ------
    SchemaError
        Naming the column, the wrong type and, for dicts, the row.
    """
    if isinstance(rows, pa.RecordBatch):
        return [fitted_batch(rows, schema, SENT, _NOT_SENT)]
    if in_turn(rows):
        rows = list(rows)
    if isinstance(rows, (list, tuple)) and rows and not isinstance(rows[0], Mapping) and holds_arrow(rows[0]):
        return [batch for part in rows for batch in as_batches(part, schema)]
    if isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)):
        nested = any(pa.types.is_nested(type_) for type_ in schema.types)
        if nested or any(names_of(kind) is not None for kind in {*map(type, rows)} - {dict}):
            rows = [as_values(row) for row in rows]
        return [_from_dicts(rows, schema)]
    table = arrow_table(rows)
    if table is not None:
        return [fitted_batch(batch, schema, SENT, _NOT_SENT) for batch in batches_of(table)]
    hint = "send a pyarrow RecordBatch or Table, a list of dicts or objects, or a frame of pandas, Polars or DuckDB"
    if in_async_turn(rows):
        hint = "go through it first: await sender.send_async([row async for row in rows])"
    raise SchemaError("not a batch", got=type(rows).__name__, hint=hint)


def late_output_schema(layout: Layout) -> pa.Schema:
    """Schema of late rows as handlers get them; columns of malformed input come before the last three."""
    inner = layout.late_schema
    if not layout.spec.malformed:
        return inner
    taken = set(inner.names)
    extra = []
    for what, type_ in layout.spec.malformed:
        name = f"malformed_{what}"
        while name in taken:
            name = f"late_{name}"
        extra.append(pa.field(name, type_))
    return pa.schema([*list(inner)[:-3], *extra, *list(inner)[-3:]])


def late_output(layout: Layout, tables: Sequence[pa.Table]) -> pa.Table:
    """Late rows and malformed input in one table."""
    schema = late_output_schema(layout)
    return pa.concat_tables([schema.empty_table(), *tables], promote_options="default" if layout.spec.malformed else "none")


def malformed_rows(layout: Layout, columns: Mapping[str, Sequence[str | int | bytes | None]], watermark_us: int) -> pa.Table:
    """Malformed input as late rows; `columns` have all that is known of it, by name."""
    schema, n = late_output_schema(layout), len(columns["problem"])
    arrays = [pa.nulls(n, field.type) for field in layout.late_schema][:-3]
    arrays += [pa.array(columns[what], type_) for what, type_ in layout.spec.malformed]
    arrays += layout.refusal_notes(pa.repeat(pa.scalar("malformed"), n), watermark_us)
    return pa.Table.from_arrays(arrays, schema=schema)
