"""Answers in words: why a window has not fired, and what became of a key at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import among
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.errors import PlanError
from krishiv_py.kernels.columns.times import FixedAssigner, bounds_of, spans_of
from krishiv_py.kernels.watermark import ONLY, ClockPlan, ClockSpec, floor_watermark
from krishiv_py.plan.durations import END_OF_TIME, UNSET, show_instant, show_length, show_us
from krishiv_py.plan.options.late import CountByKeyLateEventHandler, CountingLateEventHandler
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec, MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.planner.cut import StagePlan


def why_not_fired(
    stage: StagePlan,
    clocks: ClockPlan,
    watermark_us: int,
    sources_us: Mapping[str, int],
    end_us: int | None,
    idle: Collection[str] | None = None,
    *,
    brief: bool = False,
    rows: int | None = None,
) -> str:
    """Say what a window of a `stage` that ends at `end_us` is waiting for, or what is in state of a stage without windows.

    Parameters
    ----------
    stage : StagePlan
        The stage, checked.
    clocks : ClockPlan
        The clocks of the query.
    watermark_us : int
        The watermark in force in this stage, µs.
    sources_us : dict
        The watermark of every source, µs; empty for a single source.
    end_us : int or None
        End of the window, µs since the epoch; None where no window waits.
    idle : collection of str, optional
        Sources silent for longer than the idle time-out; None where nobody knows.
    brief : bool
        Leave out what moves the watermark: another window was said to wait for it.
    rows : int, optional
        How many rows the stage has in state; None where nobody knows.
    """
    spec = stage.spec
    unwaiting = spec.operation.unwaiting()
    if unwaiting is not None and not spec.operation.nature.joins:
        return unwaiting
    if end_us is None or unwaiting is not None:
        text = unwaiting or spec.operation.waiting[rows != 0]
        held = f"; {_rows_held(rows)}" if rows else ""
        text += f"{held}; the watermark is {show_instant(watermark_us)}."
        moves = watermark_us != END_OF_TIME and (unwaiting is not None or rows != 0)
        return f"{text} {_holder(stage, clocks, watermark_us, sources_us, None, idle)}" if moves else text
    odd = spec.operation.no_end(end_us)
    if odd is not None:
        return odd
    final = spec.options.emit_mode == "final"
    waits = spec.options.allowed_lateness_us if final else 0
    needed = end_us + _beyond_end_us(stage)
    window = f"the window that ends at {show_instant(end_us)}"
    if not spec.options.trigger.on_time and not final:
        return f"{window} does not wait for the watermark: its trigger fires {spec.options.trigger._describe()}"
    if watermark_us >= needed:
        return (
            f"{window} does not wait: the watermark is {show_instant(watermark_us)}, so it has fired if a row of it was "
            "accepted in time. Where a result is missing, look at the late rows."
        )
    extra = f" (its end and the allowed lateness of {show_us(waits)}, for emit is final)" if waits else ""
    if brief:
        return f"it fires when the watermark reaches {show_instant(needed)}{extra}."
    text = f"{window} fires when the watermark reaches {show_instant(needed)}{extra}; it is {show_instant(watermark_us)}."
    return f"{text} {_holder(stage, clocks, watermark_us, sources_us, needed, idle)}"


def rows_that_wait(stage: StagePlan, open_windows: int, open_rows: int) -> int:
    """Return how many rows in the state of a stage wait for the watermark; of keys without a deadline none do."""
    return open_rows if open_windows or not stage.spec.operation.by_clock else 0


def _rows_held(rows: int) -> str:
    return f"{rows} rows are in state" if rows > 1 else "1 row is in state"


def _beyond_end_us(stage: StagePlan) -> int:
    """Return how far past the end of a window the watermark has to be."""
    spec = stage.spec
    waits = spec.options.allowed_lateness_us if spec.options.emit_mode == "final" else 0
    # both bounds of these belong to the window, so the watermark must be past the end
    return waits + (spec.tick_us if spec.operation.extent.inclusive else 0)


def oldest_waiting_us(stage: StagePlan, watermark_us: int, state: Callable[[], pa.Table]) -> int | None:
    """Return the end, µs, of the oldest window in the `state` of a stage that waits for the watermark; None if none does."""
    if stage.spec.operation.unwaiting() is not None:
        return None
    table = state()
    if "window_end" not in table.schema.names:
        return None
    unit_us = 1_000 if pa.types.is_int64(table.schema.field("window_end").type) else 1
    ends = (end * unit_us for end in table["window_end"].cast(pa.int64()).unique().to_pylist() if end is not None)
    return min((end for end in ends if end + _beyond_end_us(stage) > watermark_us), default=None)


def in_stage(stages: Sequence[StagePlan], one: StagePlan) -> str:
    """Return which stage a sentence is about, to begin it with; nothing where there is only one with state."""
    several = sum(not stage.stateless for stage in stages) > 1
    return f"stage {one.spec.name!r}:" if several else ""


def oldest_of_all(
    stages: Sequence[StagePlan],
    watermark_us: Callable[[StagePlan], int],
    state: Callable[[str], pa.Table],
    rows: Mapping[str, int],
) -> tuple[StagePlan, int | None] | None:
    """Return the stage with the window that waits and ends before all others, and that end, µs.

    Where none does, it is the first one whose rows in state have no table of windows, without an end; None without any. Such
    a stage comes first while it has no watermark: a source of it has sent nothing.

    Parameters
    ----------
    stages : sequence of StagePlan
        The stages of a query, in the order of rows.
    watermark_us : callable
        Gives the watermark of a stage, µs.
    state : callable
        Gives the open windows of a stage by its name.
    rows : dict
        How many rows each stage has in state, by its name.
    """
    ends: list[tuple[int, StagePlan]] = []
    without: list[StagePlan] = []
    for stage in stages:
        operation, name = stage.spec.operation, stage.spec.name
        try:
            end_us = None if stage.stateless else oldest_waiting_us(stage, watermark_us(stage), partial(state, name))
        except PlanError:  # rows that are kept without aggregates have no table
            end_us = None
            without += [stage] if rows.get(name) else []
        else:
            tells = operation.nature.joins or operation.by_clock  # of those that follow the clock, state says what waits
            without += [stage] if rows.get(name) and tells and end_us is None else []
        ends += [] if end_us is None else [(end_us, stage)]
    stalled = [stage for stage in without if watermark_us(stage) == UNSET]
    if without and (not ends or stalled):
        return [*stalled, *without][0], None
    if not ends:
        return None
    end_us, stage = min(ends, key=lambda one: one[0])
    return stage, end_us


def _holder(
    stage: StagePlan,
    clocks: ClockPlan,
    watermark_us: int,
    sources_us: Mapping[str, int],
    needed: int | None,
    idle: Collection[str] | None,
) -> str:
    """Say what moves the watermark to where it is `needed`, or on, and what holds it."""
    marks = [(clocks.clocks[clock], None if needed is None else needed + behind_us) for clock, behind_us in stage.times]
    if any(clock.watermark._by_clock for clock, _ in marks):
        return "It is the clock of the machine, and goes on without rows."
    (first, needed_us), *others = marks
    lull = _clock(first.watermark, watermark_us)
    if not others and isinstance(first.watermark, WatermarkSpec):
        if needed_us is None:
            return f"A newer row, an explicit advance, or the end of input moves it on.{lull}"
        newest = show_instant(needed_us + first.watermark.lag_us)
        return f"A row with event time {newest} or later, an explicit advance, or the end of input moves it there.{lull}"
    quiet = _quiet(stage, first)
    waits = {name: wait for clock, us in marks for name, wait in _waits(clock, sources_us, us).items()}
    silent = set(idle or ()) & waits.keys()
    all_silent = bool(silent) and len(silent) == len(waits)
    counted = {name: wait for name, wait in sorted(waits.items()) if all_silent or name not in silent}
    least_us = min((wait.at_us for wait in counted.values()), default=UNSET)
    parts = [wait.said(name) for name, wait in counted.items() if wait.holds(least_us)]
    way = _OF_SOURCES
    if stage.spec.operation.nature.joins:
        way = _OF_JOIN
    elif stage.after:  # the clock is that of a stage before, which may be a join
        way = f"{_OF_JOIN}, or {_OF_SOURCES}"
    return "; ".join([*parts, _silence(quiet, silent, all_silent, way)]) + f".{lull}"


@attrs.frozen
class _Wait:
    """A source: where its watermark is, which one is needed, and how far that lags its rows."""

    at_us: int
    needed_us: int | None
    lag_us: int

    def holds(self, least_us: int) -> bool:
        """Return whether it is waited for, where the least watermark of all is `least_us`."""
        return self.at_us == least_us if self.needed_us is None else self.at_us < self.needed_us

    def said(self, name: str) -> str:
        """Return what it is waited for."""
        state = "has sent nothing" if self.at_us == UNSET else f"is at {show_instant(self.at_us)}"
        if self.needed_us is None:
            return f"source {name!r} {state}, and holds it"
        return f"source {name!r} {state} and needs a row at {show_instant(self.needed_us + self.lag_us)} or later"


def _waits(clock: ClockSpec, sources_us: Mapping[str, int], needed_us: int | None) -> dict[str, _Wait]:
    """Return the sources of a clock: the declared ones, and those that have registered."""
    mark = clock.watermark
    if isinstance(mark, WatermarkSpec):
        return {clock.named(ONLY): _Wait(sources_us.get(clock.named(ONLY), UNSET), needed_us, mark.lag_us)}
    lags = {clock.named(name): spec.lag_us for name, spec in mark.sources}
    if mark.unknown_spec is not None:
        own = f"{clock.name}." if clock.name else ""
        lags = {name: mark.unknown_spec.lag_us for name in sources_us if name.startswith(own)} | lags
    return {name: _Wait(sources_us.get(name, UNSET), needed_us, lag_us) for name, lag_us in lags.items()}


def _quiet(stage: StagePlan, clock: ClockSpec) -> int | None:
    """After how long, µs, a silent source or side is left out."""
    own = [m for m in (stage.spec.watermark, clock.watermark) if isinstance(m, MultiSourceWatermarkSpec)]
    return next((m.idle_timeout_us for m in own if m.idle_timeout_us is not None), None)


def _clock(mark: AnyWatermarkSpec, watermark_us: int) -> str:
    """Return what idle_advance does about it."""
    after_us = mark.idle_advance_us
    if after_us is None:
        several = isinstance(mark, MultiSourceWatermarkSpec)
        what = "When all sources are silent" if several else "For a source that falls silent"
        return f' {what} idle_advance="30 s" of the watermark lets it go on with the clock.'
    if watermark_us == UNSET:
        return " It goes on with the clock in a lull, but not before it was set by a first row."
    return f" It also goes on with the clock, when no row has come for {show_us(after_us)} of processing time."


_OF_JOIN: Final = 'idle_timeout="30 s" of the join'
_OF_SOURCES: Final = 'MultiSourceWatermarkSpec.new(idle_timeout="30 s")'


def _silence(after_us: int | None, silent: set[str], all_silent: bool, way: str) -> str:
    if after_us is None:
        return f"no idle time-out is set: a silent source is left out with {way}"
    longer = f"silent for longer than {show_us(after_us)}"
    if all_silent:
        return f"all sources are {longer}, so the watermark holds until one speaks"
    out = f" ({', '.join(map(repr, sorted(silent)))} at the moment)" if silent else ""
    return f"a source {longer} is left out{out} while another one speaks; when all are silent the watermark holds"


_MOST: Final = 5
"""So many windows are described one by one."""
_BOUNDS: Final = ("window_start", "window_end")


@attrs.frozen(eq=False)
class QueryProgress:
    """Says how far a query is.

    Attributes
    ----------
    watermark_us : int
        The watermark in force in the stage, µs.
    sources_us : dict
        The watermark of every source, µs; empty for a single source.
    moved_us : dict
        When the watermark of a source last moved, µs of the clock of the query; under ``""`` that of the whole query.
    now_us : int or None
        The clock of the query, µs; None where nobody set it.
    idle : collection of str or None
        Sources that no watermark waits for; None where nobody knows.
    """

    watermark_us: int
    sources_us: Mapping[str, int]
    moved_us: Mapping[str, int]
    now_us: int | None = None
    idle: Collection[str] | None = None


@attrs.frozen(eq=False)
class KeyRows:
    """The rows of a table that are of the key, with the bounds of their windows in µs."""

    rows: pa.Table
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, stage: StagePlan, table: pa.Table | None, keys: pa.Table | None) -> KeyRows | None:
        """Return the rows of a state or of results; None where these have no windows with keys and times."""
        spec = stage.spec
        if table is None or spec.operation.extent.numbered or not {*spec.keys, *_BOUNDS} <= set(table.column_names):
            return None
        if keys is not None:
            table = table.filter(pa.array(among(table, keys.rename_columns(list(spec.keys)), list(spec.keys))))
        bounds = (pa.concat_arrays([*table[name].chunks, pa.array([], table[name].type)]) for name in _BOUNDS)
        starts, ends = (bounds_of(column, spec.time_kind)[0] for column in bounds)
        return cls(table, starts, ends)

    def at(self, start_us: int, end_us: int) -> pa.Table:
        """Return the rows of a window."""
        return self.rows.filter(pa.array((self.starts == start_us) & (self.ends == end_us)))

    def holding(self, time_us: int, *, inclusive: bool) -> Mask:
        """Return which rows are of a window that holds a time."""
        return (self.starts <= time_us) & ((self.ends >= time_us) if inclusive else (self.ends > time_us))


def why(
    stage: StagePlan,
    clocks: ClockPlan,
    now: QueryProgress,
    key: str | None,
    time_us: int | None,
    state: KeyRows | None,
    results: KeyRows | None,
    table: pa.Table | None = None,
) -> str:
    """Say what became of a key at a time.

    Parameters
    ----------
    stage : StagePlan
        The stage, checked.
    clocks : ClockPlan
        The clocks of the query.
    now : Standing
        How far it is.
    key : str or None
        The key as text; None for all keys.
    time_us : int or None
        The event time, µs since the epoch; None for all windows that are open.
    state, results : Held or None
        What the state and the results hold of the key; None where that cannot be read.
    table : pyarrow.Table, optional
        The rows of the state of the key.
    """
    lines = [_watermark(stage, now)]
    if time_us is not None:
        lines.append(_fate(stage, now, time_us))
    of_key = "" if key is None else f" of the key {key}"
    windows = _windows(stage, time_us, state)
    if windows is None:
        standing = why_not_fired(stage, clocks, now.watermark_us, now.sources_us, None, now.idle)
        lines += _of_key(stage, of_key, table) or [f"the state holds no windows with a time; {standing}"]
    elif not windows:
        when = "" if time_us is None else f" that holds {show_instant(time_us)}"
        stalls = now.watermark_us == UNSET and len(now.sources_us) > 1
        holder = f"; {_holder(stage, clocks, UNSET, now.sources_us, None, now.idle)}" if stalls else "."
        lines.append(f"no window{of_key}{when} is in state{holder}")
    else:
        beyond_us, waits = _beyond_end_us(stage), False
        for window in windows[:_MOST]:
            lines.append(_window(stage, clocks, now, of_key, window, state, results, brief=waits))
            waits = waits or window[1] + beyond_us > now.watermark_us
        if len(windows) > _MOST:
            lines.append(f"and {len(windows) - _MOST} more windows, to {show_instant(windows[-1][1])}.")
    return "\n".join(lines)


def _of_key(stage: StagePlan, of_key: str, table: pa.Table | None) -> list[str]:
    """Say what the state holds of a key, of operations that know more of it than windows; nothing for others."""
    if table is None or not of_key:
        return []
    texts = [stage.spec.operation.key_text(row) for row in table.slice(0, 1).to_pylist()]
    return [f"in state{of_key}: {text}." for text in texts if text is not None]


def _windows(stage: StagePlan, time_us: int | None, state: KeyRows | None) -> list[tuple[int, int]] | None:
    """Return the windows in question, ascending: those that a time belongs to, or those in state."""
    operation = stage.spec.operation
    if time_us is not None and operation.extent.grid is not None:
        _, starts = FixedAssigner(operation.extent.grid).windows(np.array([time_us], np.int64))
        return sorted((int(start), int(start) + operation.extent.grid.size_us) for start in starts)
    if time_us is not None and operation.extent.assigner is not None:
        spans = spans_of(operation, np.array([time_us], np.int64), stage.spec.time_kind)
        return sorted(zip(map(int, spans.starts), map(int, spans.ends), strict=True))
    if state is None:
        return None
    mask = (
        np.ones(len(state.ends), np.bool_) if time_us is None else state.holding(time_us, inclusive=operation.extent.inclusive)
    )
    return sorted(set(zip(state.starts[mask].tolist(), state.ends[mask].tolist(), strict=True)), key=lambda w: (w[1], w[0]))


def _watermark(stage: StagePlan, now: QueryProgress) -> str:
    """Say where the watermark is, since when, and which source holds it."""
    since = _since(now, ONLY)
    text = f"the watermark of the stage {stage.spec.name!r} is {show_instant(now.watermark_us)}{since}"
    waited = {name: us for name, us in now.sources_us.items() if name not in (now.idle or ()) and name != ONLY}
    if len(waited) > 1:
        holder = min(waited, key=lambda name: (waited[name], name))
        said = "which has sent no row" if waited[holder] == UNSET else f"which is at {show_instant(waited[holder])}"
        text += f"; it is held by the source {holder!r}, {said}{_since(now, holder)}"
    return f"{text}."


def _since(now: QueryProgress, name: str) -> str:
    moved_us = now.moved_us.get(name)
    if moved_us is None:
        return ""
    seconds = 0 if now.now_us is None else max(now.now_us - moved_us, 0) // 1_000_000
    return f" since {show_instant(moved_us)}" + (f" ({show_length(seconds * 1_000_000)} ago)" if seconds else "")


def _fate(stage: StagePlan, now: QueryProgress, time_us: int) -> str:
    """Say where a row of this time would go now."""
    options, window, w = stage.spec.options, stage.spec.operation, now.watermark_us
    row = f"a row of {show_instant(time_us)}"
    late = "is counted as late, and in no late output"
    if not isinstance(stage.late, (CountingLateEventHandler, CountByKeyLateEventHandler)):
        late = "goes to the late output with the reason 'late'"
    if window.takes_late:
        late = "is late, and goes to on_late"
    reference = now.now_us if options.future_reference == "clock" else w
    if reference not in (None, UNSET, END_OF_TIME) and time_us > reference + options.future_us:
        ahead = f"it is {show_length(time_us - reference)} ahead of the {options.future_reference}"
        if options.future_action == "drop":
            return f"{row} is dropped and counted: {ahead}."
        if options.future_action == "side_output":
            return f"{row} goes to the late output with the reason 'future': {ahead}."
    if w == UNSET:
        return f"{row} is on time: no row has come that sets the watermark."
    over = floor_watermark(w, options.allowed_lateness_us)
    watermark_place = "the input has ended" if w == END_OF_TIME else f"it is {show_length(w - time_us)} before the watermark"
    allowed = f", and {show_us(options.allowed_lateness_us)} are allowed" if options.allowed_lateness_us else ""
    rule = " (compared with the watermark of the batch before)" if options.late_by_batch_before else ""
    if options.late_rule == "window":
        ends = [end for _, end in _windows(stage, time_us, None) or ()]
        if not ends and window.late_by == "never":
            return f"{row} is on time: these windows never close by time."
        if not ends and window.late_by == "state":
            reach = time_us + window.extent.length_us
            if reach > over:
                return f"{row} is on time: the window that it opens alone ends at {show_instant(reach)}{rule}."
            return f"{row} {late}, unless an open window that ends later takes it in: {watermark_place}{allowed}{rule}."
        if ends and max(ends) > over:
            return f"{row} is on time: a window of it ends at {show_instant(max(ends))}{rule}."
        if ends:
            return f"{row} {late}: all its windows are over, for {watermark_place}{allowed}{rule}."
    if time_us >= w:
        return f"{row} is on time{rule}."
    if time_us >= over:
        return f"{row} is late and taken in: {watermark_place}{allowed}{rule}."
    return f"{row} {late}: {watermark_place}{allowed}{rule}."


def _window(
    stage: StagePlan,
    clocks: ClockPlan,
    now: QueryProgress,
    of_key: str,
    window: tuple[int, int],
    state: KeyRows | None,
    results: KeyRows | None,
    *,
    brief: bool,
) -> str:
    """Say what a window is waiting for, or what became of it."""
    options, (start_us, end_us) = stage.spec.options, window
    name = window_name(start_us, end_us)
    over_us = end_us + options.allowed_lateness_us
    leaves = f"it leaves the state when the watermark reaches {show_instant(over_us)}"
    held = None if state is None else state.at(*window).num_rows
    given = None if results is None else results.at(*window)
    fired = None if given is None else given.num_rows
    gave = "" if given is None else _gave(given, stage.spec.keys)
    waits = why_not_fired(stage, clocks, now.watermark_us, now.sources_us, end_us, now.idle, brief=brief)
    if held:
        keys = f"open, with {held} keys" if held > 1 else "open"
        if now.watermark_us >= over_us and not stage.spec.operation.extent.inclusive:
            return f"{name}: {keys}, and due in the next micro-batch.{gave}"
        if now.watermark_us >= end_us and options.emit_mode != "final":
            return f"{name}: {keys}, and fired; a late row fires it again; {leaves}.{gave}"
        return f"{name}: {keys}; {waits}{gave}"
    if now.watermark_us < over_us:
        seen = "its state cannot be read" if held is None else f"no row{of_key} is in its state"
        seen = seen if held is None or fired else f"never seen: {seen}"
        passed = "its end has passed, and a row that is accepted now fires it"
        return f"{name}: {seen}; {passed if now.watermark_us >= end_us else waits}{gave}"
    closed = f"closed since the watermark reached {show_instant(over_us)}"
    if fired is None:
        return f"{name}: {closed}; if a row{of_key} was accepted in time it has fired, and its result is in the sink."
    if fired:
        return f"{name}: {closed}, and fired.{gave}"
    return f"{name}: {closed}, and never seen: no row{of_key} was accepted in time, or none since the sink began."


def window_name(start_us: int, end_us: int) -> str:
    """Return how texts call a window."""
    return f"window {show_instant(start_us)} to {show_instant(end_us)}"


def result_values(row: Mapping[str, object], keys: Collection[str]) -> str:
    """Return what a result of a window says, without its keys and bounds."""
    return ", ".join(f"{name}={value}" for name, value in row.items() if name not in keys and name not in _BOUNDS)


def _gave(results: pa.Table, keys: Collection[str]) -> str:
    """Say what a window gave: a few results one by one, many as a number."""
    if not 0 < results.num_rows <= _MOST:
        return f" Its results so far: {results.num_rows}."
    return f" It gave {', then '.join(result_values(row, keys) for row in results.to_pylist())}."
