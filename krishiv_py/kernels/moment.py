"""The moment of a step: what the clocks show while one bucket is worked on."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from krishiv_py.plan.durations import END_OF_TIME, UNSET

Times: TypeAlias = "tuple[tuple[int, int], ...]"
"""What the watermark of a stage follows: the least of some clocks, each with how far the stage is behind it, µs."""
FIRST_CLOCK: Times = ((0, 0),)


@attrs.frozen
class Moment:
    """Holds what is in force in one step of an operator.

    Attributes
    ----------
    watermark_us : int
        The watermark, µs since the epoch (SEMANTICS §2.3); ``UNSET`` or ``END_OF_TIME`` where it is infinite.
    now_us : int or None
        Processing time, µs since the epoch; needed by triggers that go by the clock and a processing-time TTL only.
    calls_triggers : bool
        Whether a user's trigger may be asked: not while windows fire before the rows of the batch are taken in.
    begun_us : int or None
        The clock of the machine when the batch began, µs since the epoch, for rows that are held against it; None where nobody
        set a clock. It is on record before the batch runs.
    before : tuple of int or None
        What was in force in the batch before, by every clock, for plans that judge rows by it (SEMANTICS §4.6); None where that
        makes no difference.
    others : tuple of int
        Of a plan with several clocks, what is in force by the other clocks; `watermark_us` is by the first.
    """

    watermark_us: int
    now_us: int | None = None
    calls_triggers: bool = True
    others: tuple[int, ...] = ()
    begun_us: int | None = None
    before: tuple[int, ...] | None = None

    def at(self, times: Times) -> Moment:
        """Return the moment of a stage that follows the clocks by these `times`; the infinities stay what they are."""
        if times == FIRST_CLOCK and not self.others:
            return self
        before = None if self.before is None else (_least(self.before, times),)
        return attrs.evolve(self, watermark_us=_least((self.watermark_us, *self.others), times), others=(), before=before)

    @property
    def every(self) -> tuple[int, ...]:
        """Return what is in force, by every clock."""
        return (self.watermark_us, *self.others)

    @property
    def late_moment(self) -> Moment:
        """The moment for rows that are classified by the batch before."""
        if self.before is None:
            return self
        return attrs.evolve(self, watermark_us=self.before[0], others=self.before[1:], before=None)

    def later(self, before: Moment) -> bool:
        """Return whether any clock has gone on since the moment `before`."""
        return (self.watermark_us, self.others) != (before.watermark_us, before.others)

    @property
    def ended(self) -> bool:
        """Return whether the input has ended, by every clock."""
        return all(w == END_OF_TIME for w in self.every)


def _least(every: tuple[int, ...], times: Times) -> int:
    """Return the least of what clocks show, each less how far the stage is behind it."""
    reached = [every[clock] for clock, _ in times]
    return min(w if w in (UNSET, END_OF_TIME) else w - by_us for w, (_, by_us) in zip(reached, times, strict=True))
