"""The sources and clocks of a savepoint, as a plan with other sources goes on from them (SEMANTICS §12.4).

The watermark waits for the first row of a source that was added, no longer for one that was removed, and never moves back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from krishiv_py.errors import CheckpointError
from krishiv_py.kernels.watermark import ONLY, ClockSpec, WatermarkTracker
from krishiv_py.plan.durations import END_OF_TIME, MAX_TIME_US, UNSET
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec
from krishiv_py.planner.evolution import StageChange
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.savepoints import Savepoint


def sources_paired(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[int, int]:
    """Return which stream of a plan is which stream of an older one: by name, by where it reads, then the only ones left.

    Parameters
    ----------
    old, new : dict
        The outlines of both.

    Raises
    ------
    CheckpointError
        When an earlier version of the library did not note the names of the sources, and there are other sources now.
    """
    after, count = new["reads"], len(old["sources"])
    if "reads" not in old:
        if count != len(after):
            raise CheckpointError(
                "the plan reads another number of sources than the savepoint has",
                got=f"{len(after)} sources for {count}, written by an earlier version that noted no names of sources",
                then="positions could not be matched",
                hint="start the plan of the savepoint once with this version, and make the savepoint again",
            )
        return {number: number for number in range(count)}
    before, pairs = old["reads"], dict[int, int]()

    def pair(number: int, alike: list[int]) -> None:
        free = [n for n in alike if n not in pairs.values() and old["sources"][n] == new["sources"][number]]
        if number not in pairs and free:
            pairs[number] = free[0]

    for number, read in enumerate(after):
        pair(number, [n for n, other in enumerate(before) if read["name"] and other["name"] == read["name"]])
    for number, read in enumerate(after):
        pair(number, [n for n, other in enumerate(before) if read["place"] and other["place"] == read["place"]])
    only = [_only_stage(outline) for outline in (old, new)]
    for number, read in enumerate(after):
        alike = [n for n, other in enumerate(before) if count == len(after) and not (other["name"] or read["name"])]
        pair(number, alike or [n for n, name in only[0].items() if name == only[1].get(number) and not read["source"]])
    return pairs


def _only_stage(outline: Mapping[str, Any]) -> dict[int, str]:
    """Return the stage of each stream that is the only one of its stage, by the number of the stream."""
    stages = [read["stage"] for read in outline["reads"]]
    return {n: outline["stages"][stage]["name"] for n, stage in enumerate(stages) if stages.count(stage) == 1}


def source_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[StageChange]:
    """Return which sources were added and removed, of two outlines."""
    pairs = sources_paired(old, new)
    called = [_called(read) for read in new["reads"]]
    changes = [
        StageChange(
            name,
            "added",
            ("read from its beginning; the watermark waits for its first row unless its `initial` says otherwise",),
        )
        for number, name in enumerate(called)
        if number not in pairs
    ]
    for number, read in enumerate(old.get("reads", ())):
        if number not in pairs.values():
            changes.append(StageChange(_called(read), "removed", ("nobody waits for it; its position is left aside",)))
    return changes


def _called(read: Mapping[str, Any]) -> str:
    return f"source {read['name'] or read['place'] or 'without a name'}"


@attrs.frozen
class ClocksGoOn:
    """Say how the clocks of a savepoint go on.

    Attributes
    ----------
    clocks : dict
        The clocks, as :meth:`Clocks.saved` gives them.
    before : list of int
        What was in force in the last step, by every clock.
    newest : list of int
        The largest event time that came, by every clock, µs; ``UNSET`` where none came.
    """

    clocks: dict[str, Any]
    before: list[int]
    newest: list[int]


def clocks_for(savepoint: Savepoint, plan: PhysicalPlan, new: Mapping[str, Any], changes: Sequence[StageChange]) -> ClocksGoOn:
    """Return the clocks of a savepoint for the sources of a plan.

    Parameters
    ----------
    savepoint : Savepoint
        The savepoint as it is.
    plan : PhysicalPlan
        The plan that is to run.
    new : dict
        Its outline.
    changes : sequence of StageChange
        Which stages belong together.
    """
    old = savepoint.note["outline"]
    saved = [savepoint.clocks["tracker"], *savepoint.clocks.get("others", [])]
    streams, stages = sources_paired(old, new), {c.new: c.old for c in changes if c.new is not None and c.old is not None}
    trackers, before, newest = list[dict[str, Any]](), list[int](), list[int]()
    for number, clock in enumerate(plan.clocks.clocks):
        was = _clock_before(old, new, number, stages, streams)
        lags_us = {} if was is None else _lags(old, was)
        kept: dict[str, Any] = {"reached": {}, "spoke": {}, "current": UNSET} if was is None else saved[was]
        later_us = min((us - lags_us[n] for n, us in _declared(clock).items() if n in lags_us), default=0)
        current, last = (
            max(
                _reached(savepoint, plan, number, stages, every),
                UNSET if was is None else _by_lag(every[was], 0, later_us),
            )
            for every in (savepoint.after, savepoint.before)
        )
        start_us = max(current, min(savepoint.after)) if was is None else current
        reached = _sources(kept["reached"], lags_us, clock, number, (old, new), streams, start_us)
        if was is not None and (reached, current) == (kept["reached"], kept["current"]):
            trackers.append(kept)
        else:
            spoke = {name: us for name, us in kept["spoke"].items() if name in reached}
            changed = {**kept, "reached": reached, "spoke": spoke, "current": current}
            restored = WatermarkTracker.restored(clock.watermark, changed)
            restored.settle(savepoint.now_us)
            trackers.append(restored.saved())
        before.append(last)
        most_us = max((s["shape"]["lag_us"] for s in old["stages"] if "shape" in s), default=0)
        came = [us + lags_us.get(n, most_us) for n, us in kept["reached"].items() if UNSET < us < END_OF_TIME]
        newest.append(max(came, default=UNSET))
    clocks = {"tracker": trackers[0], "others": trackers[1:]} if len(trackers) > 1 else {"tracker": trackers[0]}
    return ClocksGoOn(clocks, before, newest)


def _clock_before(
    old: Mapping[str, Any], new: Mapping[str, Any], clock: int, stages: Mapping[int, int], streams: Mapping[int, int]
) -> int | None:
    """Return the clock of a savepoint that goes on as a clock: of the same stage, else of a stream that moves both."""
    owner, own = stages.get(new["clocks"][clock]["stage"]), old.get("clocks", ())
    by_stage = [n for n, each in enumerate(own) if each["stage"] == owner]
    if not by_stage and owner is not None:
        times = old["stages"][owner]["times"]
        by_stage = [times[0][0]] if len(times) == 1 else []
    if by_stage:
        return int(by_stage[0])
    for number, read in enumerate(new["reads"]):
        if read["clock"] == clock and number in streams and "reads" in old:
            of = old["reads"][streams[number]]["clock"]
            return 0 if of is None else int(of)
    return None


def _reached(savepoint: Savepoint, plan: PhysicalPlan, clock: int, stages: Mapping[int, int], every: Sequence[int]) -> int:
    """Return what a clock shows at least, so that no stage that keeps its name goes back."""
    first, *others = every
    least = UNSET
    for number, stage in enumerate(plan.stages):
        for followed, by_us in stage.times:
            if followed == clock and number in stages:
                was_us = savepoint.stages[stages[number]].moment((first, *others)).watermark_us
                least = max(least, was_us if was_us in (UNSET, END_OF_TIME) else was_us + by_us)
    return least


def _lags(old: Mapping[str, Any], clock: int) -> dict[str, int]:
    clocks = old.get("clocks", ())
    return dict(clocks[clock]["lags_us"]) if clock < len(clocks) else {}


def _sources(
    reached: Mapping[str, int],
    lags: Mapping[str, int],
    clock: ClockSpec,
    number: int,
    outlines: tuple[Mapping[str, Any], Mapping[str, Any]],
    streams: Mapping[int, int],
    current: int,
) -> dict[str, int]:
    """Return how far each source of a clock has come, by the lags of the plan."""
    mark, declared = clock.watermark, _declared(clock)
    registers = isinstance(mark, MultiSourceWatermarkSpec) and mark.unknown_spec is not None
    begin = (
        {name for name, spec in mark.sources if spec.from_savepoint} if isinstance(mark, MultiSourceWatermarkSpec) else set()
    )
    sources = {name: us for name, us in reached.items() if registers and name not in declared}
    for name, lag_us in declared.items():
        known = [name] if name in reached else _same_stream(name, reached, number, outlines, streams)
        came = [_by_lag(reached[each], lags.get(each), lag_us) for each in known]
        sources[name] = max(came) if came else current if mark.from_savepoint or name in begin else UNSET
    return sources


def _declared(clock: ClockSpec) -> dict[str, int]:
    """Return the lag of each source that is declared, µs."""
    return WatermarkTracker(clock.watermark).lags


def _same_stream(
    name: str,
    reached: Mapping[str, int],
    clock: int,
    outlines: tuple[Mapping[str, Any], Mapping[str, Any]],
    streams: Mapping[int, int],
) -> list[str]:
    """Return the sources of a savepoint whose rows come from the stream that a source is now: all of a stream without names."""
    old, new = outlines
    if "reads" not in old:
        return []
    for number, read in enumerate(new["reads"]):
        if read["clock"] == clock and read["source"] == name and number in streams:
            was = old["reads"][streams[number]]["source"]
            if was in reached:
                return [was]
            return [each for each in reached if each != ONLY] if name == was == ONLY else []
    return []


def _by_lag(us: int, lag_us: int | None, now_us: int) -> int:
    """Return how far a source has come by another lag."""
    if us in (UNSET, END_OF_TIME) or lag_us is None:
        return us
    return max(us + lag_us - now_us, -MAX_TIME_US)
