"""Why a window has not fired, in words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError
from krishiv_py.kernels.input.clocks import ClockPlan, ClockSpec
from krishiv_py.kernels.input.watermark import ONLY
from krishiv_py.plan.durations import UNSET, show_instant, show_us
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec, MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.planner.cut import StagePlan


def why_not_fired(
    stage: StagePlan,
    clocks: ClockPlan,
    watermark_us: int,
    sources_us: Mapping[str, int],
    end_us: int | None,
    idle: Collection[str] | None = None,
) -> str:
    """Say what a window of a `stage` that ends at `end_us` is waiting for.

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
    """
    spec = stage.spec
    unwaiting = spec.operation.unwaiting()
    if unwaiting is not None:
        return unwaiting
    if end_us is None:
        return f"no window waits: no row of an open one is in state; the watermark is {show_instant(watermark_us)}."
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
    text = f"{window} fires when the watermark reaches {show_instant(needed)}{extra}; it is {show_instant(watermark_us)}."
    return f"{text} {_holder(stage, clocks, watermark_us, sources_us, needed, idle)}"


def _beyond_end_us(stage: StagePlan) -> int:
    """Return how far past the end of a window the watermark has to be."""
    spec = stage.spec
    waits = spec.options.allowed_lateness_us if spec.options.emit_mode == "final" else 0
    # both bounds of these belong to the window, so the watermark must be past the end
    return waits + (spec.tick_us if spec.operation.inclusive else 0)


def oldest_waiting_us(stage: StagePlan, watermark_us: int, state: Callable[[], pa.Table]) -> int | None:
    """The end, µs, of the oldest window in the `state` of a stage that waits for the watermark; None if none does."""
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
    stages: Sequence[StagePlan], watermark_us: Callable[[StagePlan], int], state: Callable[[str], pa.Table]
) -> tuple[StagePlan, int] | None:
    """Return the stage with the window that waits and ends before all others, and that end, µs; None if no window waits.

    Parameters
    ----------
    stages : sequence of StagePlan
        The stages of a query, in the order of rows.
    watermark_us : callable
        Gives the watermark of a stage, µs.
    state : callable
        Gives the open windows of a stage by its name.
    """
    found: list[tuple[int, StagePlan]] = []
    for stage in stages:
        with contextlib.suppress(PlanError):  # of rows that are kept without aggregates there is no table
            end_us = None if stage.stateless else oldest_waiting_us(stage, watermark_us(stage), partial(state, stage.spec.name))
            found += [] if end_us is None else [(end_us, stage)]
    if not found:
        return None
    end_us, stage = min(found, key=lambda one: one[0])
    return stage, end_us


def _holder(
    stage: StagePlan,
    clocks: ClockPlan,
    watermark_us: int,
    sources_us: Mapping[str, int],
    needed: int,
    idle: Collection[str] | None,
) -> str:
    marks = [(clocks.clocks[clock], needed + behind_us) for clock, behind_us in stage.times]
    if any(clock.watermark._by_clock for clock, _ in marks):
        return "It is the clock of the machine, and goes on without rows."
    (first, needed_us), *others = marks
    lull = _clock(first.watermark, watermark_us)
    if not others and isinstance(first.watermark, WatermarkSpec):
        newest = show_instant(needed_us + first.watermark.lag_us)
        return f"A row with event time {newest} or later, an explicit advance, or the end of input moves it there.{lull}"
    quiet = _quiet(stage, first)
    waits = {name: wait for clock, us in marks for name, wait in _waits(clock, sources_us, us).items()}
    silent = set(idle or ()) & waits.keys()
    all_silent = bool(silent) and len(silent) == len(waits)
    parts = [
        wait.said(name)
        for name, wait in sorted(waits.items())
        if wait.at_us < wait.needed_us and (all_silent or name not in silent)
    ]
    return "; ".join([*parts, _silence(quiet, silent, all_silent)]) + f".{lull}"


@attrs.frozen
class _Wait:
    """A source: where its watermark is, which one is needed, and how far that is behind its rows."""

    at_us: int
    needed_us: int
    lag_us: int

    def said(self, name: str) -> str:
        """Return what it is waited for."""
        state = "has not spoken" if self.at_us == UNSET else f"is at {show_instant(self.at_us)}"
        return f"source {name!r} {state} and needs a row at {show_instant(self.needed_us + self.lag_us)} or later"


def _waits(clock: ClockSpec, sources_us: Mapping[str, int], needed_us: int) -> dict[str, _Wait]:
    """The sources of a clock: the declared ones, and those that have registered."""
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
        return " For a source that falls silent set idle_advance='30 s' with the watermark: it then goes on with the clock."
    if watermark_us == UNSET:
        return " It goes on with the clock in a lull, but not before it was set by a first row."
    return f" It also goes on with the clock, when no row has come for {show_us(after_us)} of processing time."


def _silence(after_us: int | None, silent: set[str], all_silent: bool) -> str:
    if after_us is None:
        return (
            'there is no idle time-out: set one, so that a silent source is left out, with idle_timeout="30 s" of the join, or '
            'MultiSourceWatermarkSpec.new(idle_timeout="30 s")'
        )
    longer = f"silent for longer than {show_us(after_us)}"
    if all_silent:
        return f"all sources are {longer}, so the watermark holds until one speaks"
    out = f" ({', '.join(map(repr, sorted(silent)))} at the moment)" if silent else ""
    return f"a source {longer} is left out{out} while another one speaks; when all are silent the watermark holds"
