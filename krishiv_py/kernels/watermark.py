"""The watermark of one or several sources, and the lateness of rows under it (SEMANTICS §2, §4).

A plan has one clock where all its rows tell one time, several where results of stages are joined (§2.4, §7). Each stage that
reads rows of its own and comes before such a join goes by a clock of its own. The watermark of a join is the least of what
its sides hand on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np

from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.errors import PlanError, shown
from krishiv_py.kernels.lanes import RowClock, is_lane, is_lane_of, lane_name, lane_of, shown_lane, source_of_lane
from krishiv_py.kernels.spec import Moment
from krishiv_py.plan.durations import END_OF_TIME, MAX_TIME_US, UNSET, to_us
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.options.watermarks import PARTITION_IDLE, AnyWatermarkSpec, MultiSourceWatermarkSpec, WatermarkSpec
from krishiv_py.plan.running import BEHIND, Control

ONLY = ""
"""Name of the source where there is one."""


@attrs.frozen
class ClockInput:
    """A stream whose rows a clock goes by.

    Attributes
    ----------
    clock : int
        The number of the clock.
    stream : str
        The name of the stream in its union or join; empty where it has none.
    source : str or None
        The source of the clock that all of its rows are of, which several streams may be; None where its rows may be of all.
    lane : str
        What tells it from other streams of its source, with the row clock; empty where there are none.
    partitioned : bool
        Whether each of its partitions is a lane.
    """

    clock: int
    stream: str
    source: str | None
    lane: str = ""
    partitioned: bool = False

    def noted(self, control: Control) -> Control:
        """Return what came in the stream as it is for the clock: for one of its sources, or as the end of the stream."""
        own = self.stream if control.watermark_us == END_OF_TIME else self.source
        return attrs.evolve(control, source=control.source or own)


@attrs.define
class WatermarkTracker:
    """Follows event times per source and says what the watermark is.

    State keeps facts, the newest event times and the explicit watermarks: how far a source has come follows from the lag, which
    may be another one after the next start (SEMANTICS §12.1).

    Attributes
    ----------
    spec : WatermarkSpec or MultiSourceWatermarkSpec
        Lags, start, idle timeout.
    newest : dict
        Largest event time of every source, µs; a declared source that has sent nothing is ``UNSET``. With the row clock, of
        every lane of a source that has several.
    advanced : dict
        The largest explicit watermark of the sources that had one, µs.
    spoke : dict
        Processing time at which every source last spoke, µs.
    current : int
        The overall watermark; never moves back.
    heard : int or None
        Processing time at which any source last spoke, or at which the query began, µs.
    advances_from : int or None
        From where the overall watermark goes on with the clock since then (SEMANTICS §10); None: from where it is.
    ended : set of str
        The streams that have ended.
    inputs : tuple of ClockInput
        All its streams.
    """

    spec: WatermarkSpec | MultiSourceWatermarkSpec
    newest: dict[str, int] = attrs.field(factory=dict)
    advanced: dict[str, int] = attrs.field(factory=dict)
    spoke: dict[str, int] = attrs.field(factory=dict)
    current: int = UNSET
    heard: int | None = None
    advances_from: int | None = None
    ended: set[str] = attrs.field(factory=set)
    inputs: tuple[ClockInput, ...] = ()

    def __attrs_post_init__(self) -> None:
        self.current = max(self.current, self.spec.initial_us)
        for name in self.lags:
            self.newest.setdefault(name, UNSET)
        for one in self.inputs:
            if one.lane and one.source is not None and not one.partitioned:
                self.register(lane_name(one.source, one.lane))

    @property
    def reached(self) -> dict[str, int]:
        """Watermark of every source, µs; ``UNSET`` where nothing came."""
        if isinstance(self.spec, WatermarkSpec) and ONLY in self.newest:  # of one source, as in most plans; each batch needs it
            own_us = self.newest[ONLY]
            if own_us != UNSET:
                own_us = max(own_us - self.spec.lag_us, -MAX_TIME_US)
            return {ONLY: max(own_us, self.advanced[ONLY]) if self.advanced else own_us}
        lags, other_us = self.lags, self.registered_lag_us or 0
        return {
            n: max(watermark_by(us, lags.get(source_of_lane(n), other_us)), self.advanced.get(n, UNSET))
            for n, us in self.newest.items()
        }

    @property
    def lags(self) -> dict[str, int]:
        """Lag by source."""
        if isinstance(self.spec, MultiSourceWatermarkSpec):
            return {name: spec.lag_us for name, spec in self.spec.sources}
        return {ONLY: self.spec.lag_us}

    @property
    def registered_lag_us(self) -> int | None:
        """The lag of sources that register with their first row; None where new names do not."""
        new = self.spec.unknown_spec if isinstance(self.spec, MultiSourceWatermarkSpec) else None
        return None if new is None else new.lag_us

    @property
    def idle_us(self) -> int | None:
        """The idle timeout; lanes of one source have that of partitions."""
        if isinstance(self.spec, MultiSourceWatermarkSpec):
            return self.spec.idle_timeout_us
        return None if ONLY in self.newest else LANE_IDLE_US

    def saw(self, maxima: dict[str, int], now_us: int) -> None:
        """Take the largest event time per source of one batch; late rows count like any other."""
        for name, time_us in maxima.items():
            if name not in self.newest and (is_lane(name) or self.registered_lag_us is not None):
                self.register(name)
            if name in self.newest and time_us != UNSET:
                self.newest[name] = max(self.newest[name], time_us)
                self._hear(name, now_us)

    def register(self, name: str) -> None:
        """Let a source, or a lane of one, take part. A source of several lanes has no time of its own."""
        source = source_of_lane(name)
        if source != name and source in self.newest:
            for facts in (self.newest, self.advanced, self.spoke):
                facts.pop(source, None)
        self.newest.setdefault(name, UNSET)

    def row_clock(self, spec: AnyWatermarkSpec, floor_us: int) -> RowClock:
        """Return the clock of the rows of the next batch, of a stage with the watermark `spec`; it leaves the facts alone."""
        return RowClock(spec, dict(self.newest), dict(self.advanced), floor_us)

    def advance(self, watermark_us: int, source: str | None, now_us: int) -> None:
        """An explicit watermark: of one source, or of all. A source that is new registers, where rows of it would.

        Raises
        ------
        PlanError
            For a source that there is not.
        """
        lanes = [name for name in self.newest if source is None or source_of_lane(name) == source]
        if source is not None and not lanes:
            if not has_source(self.spec, source):
                raise no_such_source(source, list(self.newest))
            self.register(source)
            lanes = [source]
        for name in lanes:
            self.advanced[name] = max(self.advanced.get(name, UNSET), watermark_us)
            self._hear(name, now_us)

    def end(self, stream: str, now_us: int) -> None:
        """The end of a stream: its source ends with the last stream of it (SEMANTICS §2.5)."""
        self.ended.add(stream)
        for name in self.newest if self.spec.by_row else ():
            if is_lane_of(name, stream):
                self.advanced[name] = END_OF_TIME
                self._hear(name, now_us)
        for source in {one.source for one in self.inputs}:
            if all(one.stream in self.ended for one in self.inputs if one.source == source):
                self.advance(END_OF_TIME, source, now_us)

    def _hear(self, name: str, now_us: int) -> None:
        self.spoke[name] = self.heard = now_us
        self.advances_from = None

    def settle(self, now_us: int) -> int:
        """Settle the watermark: the minimum over the sources that are not idle; it holds when all are, or follows the
        clock.
        """
        silent_us = self._silent_us(now_us)
        if self.advances_from is not None and silent_us is not None:
            self.current = max(self.current, min(self.advances_from + silent_us, MAX_TIME_US))
        active = self._active(now_us)
        if active and (least_us := min(active)) > self.current:
            self.current, self.advances_from = least_us, None
        if self.spec._by_clock and self.current != END_OF_TIME:
            self.current = max(self.current, now_us)
        if self.advances_from is None and silent_us is not None and self.current not in (UNSET, END_OF_TIME):
            self.advances_from = self.current - silent_us
        return self.current

    def _active(self, now_us: int) -> list[int]:
        """Return the watermarks of the sources that count: those that are not idle.

        Where all are, those that have never sent anything went before the others, which nobody may have looked at meanwhile.
        """
        reached = self.reached
        if self.idle_us is None:
            return list(reached.values())
        active = [us for name, us in reached.items() if not self._idle(name, now_us)]
        return active or ([us for us in reached.values() if us != UNSET] if UNSET in reached.values() else [])

    def _silent_us(self, now_us: int) -> int | None:
        """For how long the watermark has followed the clock (SEMANTICS §10); None where it never does.

        In whole milliseconds, so that no watermark falls between two times of a bigint column.
        """
        if self.spec.idle_advance_us is None:
            return None
        self.heard = now_us if self.heard is None else self.heard
        return max(now_us - self.heard - self.spec.idle_advance_us, 0) // 1_000 * 1_000

    def idle(self, now_us: int) -> list[str]:
        """Sources left out of the minimum at the moment."""
        return [name for name in self.newest if self._idle(name, now_us)]

    def _idle(self, name: str, now_us: int) -> bool:
        timeout = self.idle_us
        if timeout is None or self.advanced.get(name) == END_OF_TIME:
            return False
        return now_us - self.spoke.setdefault(name, now_us) > timeout

    def saved(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {
            "newest": self.newest,
            "advanced": self.advanced,
            "spoke": self.spoke,
            "current": self.current,
            "heard": self.heard,
            "stood": self.advances_from,
            "ended": sorted(self.ended) if self.ended else [],
        }

    @classmethod
    def restored(
        cls, spec: WatermarkSpec | MultiSourceWatermarkSpec, saved: dict[str, Any], inputs: tuple[ClockInput, ...] = ()
    ) -> WatermarkTracker:
        """Return the state from plain data: facts of sources survive a restart, but for sources that the plan has no more."""
        ended, quiet = set(saved.get("ended", ())), (saved.get("heard"), saved.get("stood"))
        tracker = cls(spec, {}, {}, {}, saved["current"], *quiet, ended, inputs)
        facts = tracker_facts(saved, tracker.lags, tracker.registered_lag_us)
        if not spec.by_row:
            facts = without_lanes(facts)
        for part in _BY_SOURCE:
            known = {n: us for n, us in facts[part].items() if tracker.follows(n)}
            getattr(tracker, part).update(known)
        for name in filter(is_lane, list(tracker.newest)):
            tracker.register(name)  # a source that was one lane, and has several now, has no time of its own
        return tracker

    def follows(self, name: str) -> bool:
        """Return whether facts of a source, or of a lane, are of use to this watermark."""
        streams = [one.lane for one in self.inputs if one.lane] if is_lane(name) else []
        there = not streams or any(is_lane_of(name, stream) for stream in streams)
        return there and (source_of_lane(name) in self.lags or self.registered_lag_us is not None)


_BY_SOURCE: Final = ("newest", "advanced", "spoke")
LANE_IDLE_US: Final = to_us(PARTITION_IDLE, "idle_timeout")


def without_lanes(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of sources with those of their lanes put together: the clock of batches knows no lanes."""
    together: dict[str, Any] = {**facts}
    for part in _BY_SOURCE:
        together[part] = dict[str, int]()
        for name, us in facts[part].items():
            source = source_of_lane(name)
            together[part][source] = max(us, together[part].get(source, UNSET))
    return together


def tracker_facts(saved: dict[str, Any], lags: Mapping[str, int], other_us: int | None = None) -> dict[str, Any]:
    """Return what :meth:`WatermarkTracker.saved` gave; of earlier versions, which kept watermarks of sources, by their lags.

    Parameters
    ----------
    saved : dict
        What was saved.
    lags : dict
        The lag of each declared source at that time, µs.
    other_us : int, optional
        The lag of all other sources, µs; where it is not known their watermarks count as explicit ones.
    """
    if "reached" not in saved:
        return saved
    reached, newest, advanced = saved["reached"], dict[str, int](), dict[str, int]()
    for name, us in reached.items():
        lag_us = lags.get(name, other_us)
        counts = us not in (UNSET, END_OF_TIME) and lag_us is not None
        newest[name] = us + (lag_us or 0) if counts else UNSET
        if us != UNSET and not counts:
            advanced[name] = us
    return {**saved, "newest": newest, "advanced": advanced}


@attrs.frozen
class ClockSpec:
    """One clock.

    Attributes
    ----------
    name : str
        What its sources are called by; empty where there is one clock only.
    watermark : WatermarkSpec or MultiSourceWatermarkSpec
        How it follows the rows.
    inputs : tuple of ClockInput
        The streams that it goes by.
    """

    name: str
    watermark: AnyWatermarkSpec
    inputs: tuple[ClockInput, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """Return what its sources are called in the plan, as far as they are known before any row."""
        mark = self.watermark
        return tuple(map(self.named, (n for n, _ in mark.sources) if isinstance(mark, MultiSourceWatermarkSpec) else (ONLY,)))

    def named(self, source: str) -> str:
        """Return what a source of this clock is called in the plan."""
        return ".".join(part for part in (self.name, source) if part)


@attrs.frozen
class QuietSides:
    """A join that does not wait for a silent side: after how long, µs, and the clocks of both sides."""

    after_us: int
    sides: tuple[tuple[int, ...], tuple[int, ...]]


@attrs.frozen
class ClockPlan:
    """All clocks of a plan, and the joins that leave silent sides out."""

    clocks: tuple[ClockSpec, ...]
    quiet: tuple[QuietSides, ...] = ()

    @property
    def has_lanes(self) -> bool:
        """Return whether a clock goes by several lanes of one source, which are left out while they are idle."""
        return any(one.lane or one.partitioned for clock in self.clocks if clock.watermark.by_row for one in clock.inputs)

    @property
    def initial(self) -> Moment:
        """Return what is in force before any row."""
        first, *others = (c.watermark.initial_us for c in self.clocks)
        return Moment(first, others=tuple(others))


class Clocks:
    """Follows event times by clock, and says what is in force."""

    def __init__(self, plan: ClockPlan, trackers: Sequence[WatermarkTracker] | None = None) -> None:
        self.plan = plan
        new = (WatermarkTracker(c.watermark, inputs=c.inputs) for c in plan.clocks)
        self.trackers = list(new if trackers is None else trackers)
        self.by_row = any(clock.watermark.by_row for clock in plan.clocks)
        """True where rows of any clock are classified by the rows before them."""

    def saw(self, clock: int, maxima: dict[str, int], now_us: int) -> None:
        """Take the largest event times by source of rows that go by this clock."""
        self.trackers[clock].saw(maxima, now_us)

    def expect(self, inputs: Sequence[ClockInput], partitions: Iterable[str], now_us: int) -> None:
        """Let the partitions of a stream take part before any row of them came: the watermark waits for each."""
        for one in inputs:
            tracker = self.trackers[one.clock]
            if not tracker.spec.by_row or one.source is None:
                continue
            for partition in partitions:
                name = lane_name(one.source, lane_of(one.lane, partition))
                if name not in tracker.newest:
                    tracker.register(name)
                    tracker.spoke[name] = now_us

    def advance(self, clock: int | None, watermark_us: int, source: str | None, now_us: int) -> None:
        """An explicit watermark: of a source of a clock, of all its sources, or of everything."""
        for tracker in self.trackers if clock is None else (self.trackers[clock],):
            tracker.advance(watermark_us, source, now_us)

    def take(self, control: Control, inputs: Sequence[ClockInput], now_us: int) -> None:
        """Take what came in a stream about the watermark, for each of the clocks that go by the stream.

        Raises
        ------
        PlanError
            When it names a source that there is not.
        """
        marks = {one.clock: self.trackers[one.clock].spec for one in inputs}
        for one in inputs:
            if meant(control, marks[one.clock], marks.values()):
                self.note(one.clock, one.noted(control), now_us)

    def note(self, clock: int, noted: Control, now_us: int) -> None:
        """Take what :meth:`ClockInput.noted` gives, or what is said to a clock alone.

        Raises
        ------
        PlanError
            When it names a source that there is not.
        """
        source, tracker = noted.source, self.trackers[clock]
        if noted.watermark_us == END_OF_TIME and source is not None:
            tracker.end(source, now_us)
        elif noted.watermark_us != UNSET:
            if source is not None and not has_source(tracker.spec, source):  # the whole name of a source, of any clock
                number, source = self.find(source) or (clock, source)
                tracker = self.trackers[number]
            tracker.advance(noted.watermark_us, source, now_us)

    def settle(self, now_us: int) -> Moment:
        """Settle what is in force now, and return it."""
        for tracker in self.trackers:
            tracker.settle(now_us)
        for quiet in self.plan.quiet:
            self._pass_over(quiet, now_us)
        return self.moment(now_us)

    def moment(self, now_us: int | None = None) -> Moment:
        """Return what was in force when it was last settled."""
        first, *others = (t.current for t in self.trackers)
        newest_us = newest_of(t.newest for t in self.trackers) if first == END_OF_TIME else UNSET
        return Moment(first, now_us, others=tuple(others), newest_us=newest_us)

    def _pass_over(self, quiet: QuietSides, now_us: int) -> None:
        """Let the clocks of a silent side go on with those of the other one."""
        left, right = ([self.trackers[c] for c in side] for side in quiet.sides)
        for silent, other in ((left, right), (right, left)):
            left_out = not _silent(other, now_us, quiet.after_us) or _never_spoke(silent)
            if _silent(silent, now_us, quiet.after_us) and left_out:
                reached = min(t.current for t in other)
                for tracker in silent:
                    tracker.current = max(tracker.current, reached)

    @property
    def reached(self) -> dict[str, int]:
        """The watermark of every source, µs."""
        if len(self.trackers) == 1 and not self.plan.clocks[0].name and not self.by_row:
            return self.trackers[0].reached
        return {self._named(n, name): us for n, t in enumerate(self.trackers) for name, us in t.reached.items()}

    def idle(self, now_us: int) -> list[str]:
        """Sources left out at the moment."""
        idle = [self._named(n, name) for n, t in enumerate(self.trackers) for name in t.idle(now_us)]
        for quiet in self.plan.quiet:
            for side in quiet.sides:
                if _silent([self.trackers[c] for c in side], now_us, quiet.after_us):
                    idle += [self._named(c, name) for c in side for name in self.trackers[c].reached]
        return list(dict.fromkeys(idle))

    def find(self, source: str) -> tuple[int, str | None] | None:
        """Return the clock of a source, and what it is called there; None where there is no such source."""
        for number, (clock, tracker) in enumerate(zip(self.plan.clocks, self.trackers, strict=True)):
            sources = {source_of_lane(name) for name in tracker.newest}
            if clock.name and source == clock.name and ONLY in sources:
                return number, None
            if not source.startswith(f"{clock.name}." if clock.name else ""):
                continue
            inner = source.removeprefix(f"{clock.name}.") if clock.name else source
            if (inner in sources and inner != ONLY) or tracker.registered_lag_us is not None:
                return number, inner
        return None

    def _named(self, clock: int, source: str) -> str:
        return self.plan.clocks[clock].named(shown_lane(source))

    def saved(self) -> dict[str, Any]:
        """Return the state as plain data."""
        first, *others = (t.saved() for t in self.trackers)
        return {"tracker": first, "others": others} if others else {"tracker": first}

    @classmethod
    def restored(cls, plan: ClockPlan, saved: dict[str, Any]) -> Clocks:
        """Return the state from plain data."""
        every = [saved["tracker"], *saved.get("others", [])]
        trackers = [WatermarkTracker.restored(c.watermark, s, c.inputs) for c, s in zip(plan.clocks, every, strict=True)]
        return cls(plan, trackers)


def has_source(mark: AnyWatermarkSpec, source: str) -> bool:
    """Return whether a watermark follows a source of this name, or would with the first row of it."""
    if isinstance(mark, WatermarkSpec):
        return source == ONLY
    return mark.unknown_spec is not None or any(source == name for name, _ in mark.sources)


def meant(control: Control, mark: AnyWatermarkSpec, others: Collection[AnyWatermarkSpec]) -> bool:
    """Return whether what came in a stream is for one of the clocks that go by it: those that have a source that it names."""
    source = control.source
    return source is None or has_source(mark, source) or not any(has_source(other, source) for other in others)


def no_such_source(source: object, known: Sequence[str]) -> PlanError:
    """Return the error for the name of a source that a watermark does not follow."""
    names = sorted(name for name in known if name != ONLY)
    hint = f"the sources are {', '.join(map(repr, names))}" if names else "leave `source` out"
    return PlanError("no such source", got=shown(source), hint=hint)


def moment_of(saved: dict[str, Any], now_us: int) -> Moment:
    """Return what is in force by what :meth:`Clocks.saved` gave."""
    first, *others = trackers = [saved["tracker"], *saved.get("others", ())]
    newest_us = newest_of(t.get("newest", {}) for t in trackers) if first["current"] == END_OF_TIME else UNSET
    return Moment(first["current"], now_us, others=tuple(t["current"] for t in others), newest_us=newest_us)


def newest_of(by_source: Iterable[Mapping[str, int]]) -> int:
    """Return the largest event time that clocks know of their sources."""
    return max((us for newest in by_source for us in newest.values()), default=UNSET)


def _silent(side: Sequence[WatermarkTracker], now_us: int, after_us: int) -> bool:
    """Return whether no source of a side has sent anything for so long; one whose input has ended is not silent."""
    return all(
        now_us - t.spoke.setdefault(name, now_us) > after_us and us != END_OF_TIME
        for t in side
        for name, us in t.reached.items()
    )


def _never_spoke(side: Sequence[WatermarkTracker]) -> bool:
    """Return whether no source of a side has ever sent anything; it was silent for so long before the other one was."""
    return all(us == UNSET for t in side for us in t.reached.values())


@attrs.frozen
class Classes:
    """Counts how many rows of a batch fell in each class."""

    on_time: int = 0
    mildly_late: int = 0
    very_late: int = 0
    future: int = 0


_S: Final = 1_000_000
_EDGES_US: Final = (
    *(0, 1_000, 10_000, 100_000),
    *(s * _S for s in (1, 2, 5, 10, 30)),
    *(m * 60 * _S for m in (1, 2, 5, 10, 30)),
    *(h * 3_600 * _S for h in (1, 2, 6, 12, 24, 24 * 7, 24 * 30, 24 * 365)),
    1 << 62,
)
"""Distances by which rows are counted: those that people set as a lag."""
_BLOCK: Final = 1 << 15
"""So many times stay in the cache of a core while they are compared with one distance after the other."""


def behind_counts(times: Ints, watermark_us: int, lag_us: int) -> dict[str, int]:
    """Count rows by their distance to the newest row of the batches before, under a watermark that is a lag before that.

    Rows that are not behind it are not counted. The lag itself is one of the distances, so what it loses is exact.
    """
    if watermark_us in (UNSET, END_OF_TIME):
        return {}
    newest, counts, edges = watermark_us + lag_us, dict[str, int](), _edges(lag_us)
    for begin in range(0, len(times), _BLOCK):
        block = times[begin : begin + _BLOCK]
        block = block[block < newest]  # few, of rows that come about in order
        waiting = len(block)
        for edge_us in edges[1:]:
            if not waiting:
                break
            beyond = int(np.count_nonzero(block < newest - edge_us))
            if beyond < waiting:
                name = f"{BEHIND}{edge_us}"
                counts[name] = counts.get(name, 0) + waiting - beyond
            waiting = beyond
    return counts


def _edges(lag_us: int) -> Sequence[int]:
    return _EDGES_US if lag_us in _EDGES_US else sorted((*_EDGES_US, lag_us))


def rows_behind(times: Ints, newest: Ints, lag_us: int) -> dict[str, int]:
    """Count rows as :func:`behind_counts` does, by their distance to the newest row before each."""
    return distances_counted(np.where(newest == UNSET, 0, newest - times) if len(newest) else newest, lag_us)


def distances_counted(distances: Ints, lag_us: int) -> dict[str, int]:
    """Count rows by their distance to the newest row before each, µs; those that are not behind it are not counted."""
    counts = dict[str, int]()
    for begin in range(0, len(distances), _BLOCK):
        block = distances[begin : begin + _BLOCK]
        waiting, most = int(np.count_nonzero(block > 0)), int(block.max())
        for edge_us in _edges(lag_us)[1:]:
            if not waiting:
                break
            beyond = int(np.count_nonzero(block > edge_us)) if most > edge_us else 0
            if beyond < waiting:
                name = f"{BEHIND}{edge_us}"
                counts[name] = counts.get(name, 0) + waiting - beyond
            waiting = beyond
    return counts


def watermark_by(time_us: int, lag_us: int) -> int:
    """Return the watermark of a source by its newest event time; ``UNSET`` where it has none."""
    return UNSET if time_us == UNSET else max(time_us - lag_us, -MAX_TIME_US)


def floor_watermark(watermark_us: int, back_us: int) -> int:
    """``W - back`` without leaving the number range: the infinities stay what they are."""
    return watermark_us if watermark_us in (UNSET, END_OF_TIME) else watermark_us - back_us


def floor_each(watermarks: int | Ints, back_us: int) -> int | Ints:
    """Return what :func:`floor_watermark` gives for one watermark, or for that of each row."""
    if isinstance(watermarks, int):
        return floor_watermark(watermarks, back_us)
    if not back_us or not len(watermarks):
        return watermarks
    if watermarks.min() != UNSET and watermarks.max() != END_OF_TIME:
        return watermarks - back_us
    infinite = (watermarks == UNSET) | (watermarks == END_OF_TIME)
    return watermarks - np.where(infinite, 0, back_us)


def late_line(watermark_us: int, options: QueryOptions) -> int:
    """``W - L``, or the end of windows that had left when the allowed lateness was another one (SEMANTICS §12.3)."""
    return max(floor_watermark(watermark_us, options.allowed_lateness_us), options.left_us)


def late_line_each(watermarks: int | Ints, options: QueryOptions) -> int | Ints:
    """Return what :func:`late_line` gives for one watermark, or for that of each row."""
    if isinstance(watermarks, int):
        return late_line(watermarks, options)
    return np.maximum(floor_each(watermarks, options.allowed_lateness_us), options.left_us)


def classify_rows(times: Ints, watermarks: Ints, lateness_us: int) -> Classes:
    """Count the rows behind the watermark of each; of those that are not, none is looked at for being of the future."""
    behind = int(np.count_nonzero(times < watermarks))
    very = int(np.count_nonzero(times < floor_each(watermarks, lateness_us))) if behind and lateness_us else behind
    return Classes(len(times) - behind, behind - very, very)


def classify(times: Ints, watermark_us: int | Ints, lateness_us: int, future_us: int) -> Classes:
    """Count the four classes. While the watermark is unset every row is on time."""
    if not isinstance(watermark_us, int):
        return classify_rows(times, watermark_us, lateness_us)
    if watermark_us == UNSET or not len(times):
        return Classes(on_time=len(times))
    before_mark = times < watermark_us
    very = int(np.count_nonzero(times < floor_watermark(watermark_us, lateness_us)))
    ahead = 0 if watermark_us == END_OF_TIME else int(np.count_nonzero(times > watermark_us + future_us))
    mildly = int(np.count_nonzero(before_mark)) - very
    return Classes(len(times) - very - mildly - ahead, mildly, very, ahead)


def class_of(time_us: int, watermark_us: int, lateness_us: int, future_us: int) -> str:
    """Return the class of one row, by its name."""
    classes = classify(np.array([time_us]), watermark_us, lateness_us, future_us)
    return next(name for name, n in attrs.asdict(classes).items() if n)


def beyond(times: Ints, watermark_us: int, begun_us: int | None, options: QueryOptions) -> Mask:
    """Rows further ahead of the watermark, or of the clock when their batch began, than tolerated (SEMANTICS §4.4)."""
    latest = latest_expected(watermark_us, begun_us, options)
    return np.zeros(len(times), np.bool_) if latest is None else times > latest


def beyond_each(times: Ints, watermarks: Ints, future_us: int) -> Mask:
    """Rows further ahead of the watermark of each than tolerated."""
    finite: Mask = (watermarks != UNSET) & (watermarks != END_OF_TIME)
    return finite & (times - future_us > watermarks)


def latest_expected(watermark_us: int, begun_us: int | None, options: QueryOptions) -> int | None:
    """Return the largest time that is not too far ahead, µs; None where no time is."""
    reference = begun_us if options.future_reference == "clock" else watermark_us
    if reference is None or reference in (UNSET, END_OF_TIME):  # None: a clock that nobody set
        return None
    return reference + options.future_us


def late_by_event(times: Ints, watermark_us: int | Ints, lateness_us: int) -> Mask:
    """Rule "event": late when ``t < W - L``."""
    late: Mask = times < floor_each(watermark_us, lateness_us)
    return late


def late_by_window(last_ends: Ints, watermark_us: int | Ints, lateness_us: int) -> Mask:
    """Rule "window": late when even the last window of the row has ``end + L <= W``."""
    if isinstance(watermark_us, int) and watermark_us == UNSET:
        return np.zeros(len(last_ends), np.bool_)
    late: Mask = last_ends <= floor_each(watermark_us, lateness_us)
    return late
