"""Define what became of a key at a time, in words: its windows, the watermark, and where a row of that time would go."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import among
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.assign import FixedAssigner
from krishiv_py.kernels.columns.spans import spans_of
from krishiv_py.kernels.columns.times import bounds_of
from krishiv_py.kernels.input.clocks import ClockPlan
from krishiv_py.kernels.input.lateness import floor_watermark
from krishiv_py.kernels.input.watermark import ONLY
from krishiv_py.plan.durations import END_OF_TIME, UNSET, show_instant, show_us
from krishiv_py.plan.options.late import CountByKeyLateEventHandler, CountingLateEventHandler
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.diagnose import why_not_fired

_MOST: Final = 5
"""So many windows are described one by one."""
_BOUNDS: Final = ("window_start", "window_end")


@attrs.frozen(eq=False)
class Standing:
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
class Held:
    """The rows of a table that are of the key, with the bounds of their windows in µs."""

    rows: pa.Table
    starts: Ints
    ends: Ints

    @classmethod
    def of(cls, stage: StagePlan, table: pa.Table | None, keys: pa.Table | None) -> Held | None:
        """Return the rows of a state or of results; None where these have no windows with keys and times."""
        spec = stage.spec
        if table is None or spec.operation.numbered or not {*spec.keys, *_BOUNDS} <= set(table.column_names):
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
    now: Standing,
    key: str | None,
    time_us: int | None,
    state: Held | None,
    results: Held | None,
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
    """
    lines = [_watermark(stage, now)]
    if time_us is not None:
        lines.append(_fate(stage, now, time_us))
    of_key = "" if key is None else f" of the key {key}"
    windows = _windows(stage, time_us, state)
    if windows is None:
        lines.append("the state holds no windows with a time.")
    elif not windows:
        when = "" if time_us is None else f" that holds {show_instant(time_us)}"
        lines.append(f"no window{of_key}{when} is in state.")
    else:
        lines += [_window(stage, clocks, now, of_key, window, state, results) for window in windows[:_MOST]]
        if len(windows) > _MOST:
            lines.append(f"and {len(windows) - _MOST} more windows, to {show_instant(windows[-1][1])}.")
    return "\n".join(lines)


def _windows(stage: StagePlan, time_us: int | None, state: Held | None) -> list[tuple[int, int]] | None:
    """Return the windows in question, ascending: those that a time belongs to, or those in state."""
    operation = stage.spec.operation
    if time_us is not None and operation.grid is not None:
        _, starts = FixedAssigner(operation.grid).windows(np.array([time_us], np.int64))
        return sorted((int(start), int(start) + operation.grid.size_us) for start in starts)
    if time_us is not None and operation.assigner is not None:
        spans = spans_of(operation, np.array([time_us], np.int64), stage.spec.time_kind)
        return sorted(zip(map(int, spans.starts), map(int, spans.ends), strict=True))
    if state is None:
        return None
    mask = np.ones(len(state.ends), np.bool_) if time_us is None else state.holding(time_us, inclusive=operation.inclusive)
    return sorted(set(zip(state.starts[mask].tolist(), state.ends[mask].tolist(), strict=True)), key=lambda w: (w[1], w[0]))


def _watermark(stage: StagePlan, now: Standing) -> str:
    """Say where the watermark is, since when, and which source holds it."""
    since = _since(now, ONLY)
    text = f"the watermark of the stage {stage.spec.name!r} is {show_instant(now.watermark_us)}{since}"
    waited = {name: us for name, us in now.sources_us.items() if name not in (now.idle or ()) and name != ONLY}
    if len(waited) > 1:
        holder = min(waited, key=lambda name: (waited[name], name))
        said = "which has sent no row" if waited[holder] == UNSET else f"which is at {show_instant(waited[holder])}"
        text += f"; it is held by the source {holder!r}, {said}{_since(now, holder)}"
    return f"{text}."


def _since(now: Standing, name: str) -> str:
    moved_us = now.moved_us.get(name)
    if moved_us is None:
        return ""
    seconds = 0 if now.now_us is None else max(now.now_us - moved_us, 0) // 1_000_000
    return f" since {show_instant(moved_us)}" + (f" ({show_us(seconds * 1_000_000)} ago)" if seconds else "")


def _fate(stage: StagePlan, now: Standing, time_us: int) -> str:
    """Say where a row of this time would go now."""
    options, window, w = stage.spec.options, stage.spec.operation, now.watermark_us
    row = f"a row of {show_instant(time_us)}"
    late = "is counted as late, and in no late output"
    if not isinstance(stage.late, (CountingLateEventHandler, CountByKeyLateEventHandler)):
        late = "goes to the late output with the reason 'late'"
    reference = now.now_us if options.future_reference == "clock" else w
    if reference not in (None, UNSET, END_OF_TIME) and time_us > reference + options.future_us:
        ahead = f"it is {show_us(time_us - reference)} ahead of the {options.future_reference}"
        if options.future_action == "drop":
            return f"{row} is dropped and counted: {ahead}."
        if options.future_action == "side_output":
            return f"{row} goes to the late output with the reason 'future': {ahead}."
    if w == UNSET:
        return f"{row} is on time: no row has come that sets the watermark."
    over = floor_watermark(w, options.allowed_lateness_us)
    behind = "the input has ended" if w == END_OF_TIME else f"it is {show_us(w - time_us)} before the watermark"
    allowed = f", and {show_us(options.allowed_lateness_us)} are allowed" if options.allowed_lateness_us else ""
    rule = " (judged by the watermark of the batch before)" if options.late_by_batch_before else ""
    if options.late_rule == "window":
        ends = [end for _, end in _windows(stage, time_us, None) or ()]
        if not ends and window.late_by == "never":
            return f"{row} is on time: these windows never close by time."
        if not ends and window.late_by == "state":
            reach = time_us + window.length_us
            if reach > over:
                return f"{row} is on time: the window that it opens alone ends at {show_instant(reach)}{rule}."
            return f"{row} {late}, unless an open window that ends later takes it in: {behind}{allowed}{rule}."
        if ends and max(ends) > over:
            return f"{row} is on time: a window of it ends at {show_instant(max(ends))}{rule}."
        if ends:
            return f"{row} {late}: all its windows are over, for {behind}{allowed}{rule}."
    if time_us >= w:
        return f"{row} is on time{rule}."
    if time_us >= over:
        return f"{row} is late and taken in: {behind}{allowed}{rule}."
    return f"{row} {late}: {behind}{allowed}{rule}."


def _window(
    stage: StagePlan,
    clocks: ClockPlan,
    now: Standing,
    of_key: str,
    window: tuple[int, int],
    state: Held | None,
    results: Held | None,
) -> str:
    """Say what a window is waiting for, or what became of it."""
    options, (start_us, end_us) = stage.spec.options, window
    name = f"window {show_instant(start_us)} to {show_instant(end_us)}"
    over_us = end_us + options.allowed_lateness_us
    leaves = f"it leaves the state when the watermark reaches {show_instant(over_us)}"
    held = None if state is None else state.at(*window).num_rows
    fired = None if results is None else results.at(*window).num_rows
    gave = "" if fired is None else f" Its results so far: {fired}."
    waits = why_not_fired(stage, clocks, now.watermark_us, now.sources_us, end_us, now.idle)
    if held:
        keys = f"open, with {held} keys" if held > 1 else "open"
        if now.watermark_us >= over_us and not stage.spec.operation.inclusive:
            return f"{name}: {keys}, and due in the next micro-batch.{gave}"
        if now.watermark_us >= end_us and options.emit_mode != "final":
            return f"{name}: {keys}, and fired; a late row fires it again; {leaves}.{gave}"
        return f"{name}: {keys}; {waits}{gave}"
    if now.watermark_us < over_us:
        seen = "its state cannot be read" if held is None else f"no row{of_key} is in its state"
        seen = seen if held is None or fired else f"never seen: {seen}"
        passed = "its end has passed, and a row that is accepted now fires it"
        return f"{name}: {seen}; {passed if now.watermark_us >= end_us else waits}{gave}"
    if fired is None:
        return f"{name}: closed; if a row{of_key} was accepted in time it has fired, and its result is in the sink."
    if fired:
        return f"{name}: closed, and fired.{gave}"
    return f"{name}: closed, and never seen: no row{of_key} was accepted in time, or none since the sink began."
