"""The clocks of a plan: one where all its rows tell one time, several where results of stages are joined (SEMANTICS §2.4, §7).

Each stage that reads rows of its own and comes before such a join goes by a clock of its own. The watermark of a join is
the least of what its sides hand on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from krishiv_py.kernels.input.watermark import ONLY, WatermarkTracker
from krishiv_py.kernels.moment import Moment
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec, MultiSourceWatermarkSpec


@attrs.frozen
class ClockSpec:
    """One clock.

    Attributes
    ----------
    name : str
        What its sources are called by; empty where there is one clock only.
    watermark : WatermarkSpec or MultiSourceWatermarkSpec
        How it follows the rows.
    """

    name: str
    watermark: AnyWatermarkSpec

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
    def initial(self) -> Moment:
        """Return what is in force before any row."""
        first, *others = (c.watermark.initial_us for c in self.clocks)
        return Moment(first, others=tuple(others))


class Clocks:
    """Follows event times by clock, and says what is in force."""

    def __init__(self, plan: ClockPlan, trackers: Sequence[WatermarkTracker] | None = None) -> None:
        self.plan = plan
        self.trackers = [WatermarkTracker(c.watermark) for c in plan.clocks] if trackers is None else list(trackers)

    def saw(self, clock: int, maxima: dict[str, int], now_us: int) -> None:
        """Take the largest event times by source of rows that go by this clock."""
        self.trackers[clock].saw(maxima, now_us)

    def advance(self, clock: int | None, watermark_us: int, source: str | None, now_us: int) -> None:
        """An explicit watermark: of a source of a clock, of all its sources, or of everything."""
        for tracker in self.trackers if clock is None else (self.trackers[clock],):
            tracker.advance(watermark_us, source, now_us)

    def settle(self, now_us: int) -> Moment:
        """Return what is in force now."""
        for tracker in self.trackers:
            tracker.settle(now_us)
        for quiet in self.plan.quiet:
            self._pass_over(quiet, now_us)
        return self.moment(now_us)

    def moment(self, now_us: int | None = None) -> Moment:
        """Return what was in force when it was last settled."""
        first, *others = (t.current for t in self.trackers)
        return Moment(first, now_us, others=tuple(others))

    def _pass_over(self, quiet: QuietSides, now_us: int) -> None:
        """Let the clocks of a silent side go on with those of the other one."""
        left, right = ([self.trackers[c] for c in side] for side in quiet.sides)
        for silent, other in ((left, right), (right, left)):
            if _silent(silent, now_us, quiet.after_us) and not _silent(other, now_us, quiet.after_us):
                reached = min(t.current for t in other)
                for tracker in silent:
                    tracker.current = max(tracker.current, reached)

    @property
    def reached(self) -> dict[str, int]:
        """The watermark of every source, µs."""
        return {self._named(n, name): us for n, t in enumerate(self.trackers) for name, us in t.reached.items()}

    def idle(self, now_us: int) -> list[str]:
        """Sources left out at the moment."""
        found = [self._named(n, name) for n, t in enumerate(self.trackers) for name in t.idle(now_us)]
        for quiet in self.plan.quiet:
            for side in quiet.sides:
                if _silent([self.trackers[c] for c in side], now_us, quiet.after_us):
                    found += [self._named(c, name) for c in side for name in self.trackers[c].reached]
        return list(dict.fromkeys(found))

    def find(self, source: str) -> tuple[int, str | None] | None:
        """The clock of a source, and what it is called there; None where there is no such source."""
        for number, (clock, tracker) in enumerate(zip(self.plan.clocks, self.trackers, strict=True)):
            if clock.name and source == clock.name and ONLY in tracker.reached:
                return number, None
            if not source.startswith(f"{clock.name}." if clock.name else ""):
                continue
            inner = source.removeprefix(f"{clock.name}.") if clock.name else source
            if (inner in tracker.reached and inner != ONLY) or tracker.registered_lag_us is not None:
                return number, inner
        return None

    def _named(self, clock: int, source: str) -> str:
        return self.plan.clocks[clock].named(source)

    def saved(self) -> dict[str, Any]:
        """The state as plain data."""
        first, *others = (t.saved() for t in self.trackers)
        return {"tracker": first, "others": others} if others else {"tracker": first}

    @classmethod
    def restored(cls, plan: ClockPlan, saved: dict[str, Any]) -> Clocks:
        """The state from plain data."""
        every = [saved["tracker"], *saved.get("others", [])]
        return cls(plan, [WatermarkTracker.restored(c.watermark, s) for c, s in zip(plan.clocks, every, strict=True)])


def moment_of(saved: dict[str, Any], now_us: int) -> Moment:
    """Return what is in force by what :meth:`Clocks.saved` gave."""
    return Moment(saved["tracker"]["current"], now_us, others=tuple(t["current"] for t in saved.get("others", ())))


def _silent(side: Sequence[WatermarkTracker], now_us: int, after_us: int) -> bool:
    """Return whether no source of a side has spoken for so long; one whose input has ended is not silent."""
    return all(
        now_us - t.spoke.setdefault(name, now_us) > after_us and us != END_OF_TIME
        for t in side
        for name, us in t.reached.items()
    )
