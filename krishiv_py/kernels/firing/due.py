"""Due windows of a step: which fire and which are over, by the watermark and by the clock (SEMANTICS §5.1, §5.3)."""

from __future__ import annotations

import attrs

from krishiv_py.kernels.input.lateness import floor_watermark
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.state.store import Section
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.options.triggers import Trigger


@attrs.frozen
class Due:
    """Windows that end after `from_us` and not after `to_us` fire; those that end at or before `horizon_us` are over.

    Attributes
    ----------
    from_us, to_us : int
        The watermark before and now, each less what results wait for.
    horizon_us : int
        The watermark now, less what state waits for.
    reached_us : int
        The watermark now; it never moves back.
    """

    from_us: int
    to_us: int
    horizon_us: int
    reached_us: int


@attrs.frozen
class FiringDelay:
    """Says how far results and state stay behind the watermark.

    Attributes
    ----------
    wait_us : int
        A window fires when the watermark has passed its end by so much: with final results the allowed lateness.
    keep_us : int
        State of a window is kept until the watermark has passed its end by so much.
    left_us : int
        Windows that end up to here have left under another allowed lateness.
    written_us : int
        Final results of windows that end up to here were written under another allowed lateness.
    """

    wait_us: int
    keep_us: int
    left_us: int = UNSET
    written_us: int = UNSET

    @classmethod
    def of(cls, options: QueryOptions) -> FiringDelay:
        """Return what the plan says: results that may be followed by others do not wait."""
        lateness_us = options.allowed_lateness_us
        if options.emit_mode == "final":
            return cls(lateness_us, lateness_us, options.left_us, options.left_us)
        return cls(0, lateness_us, options.left_us)

    def due(self, moment: Moment, fired_at: int = UNSET) -> Due:
        """Return what is due at a moment, after all that was due up to the watermark `fired_at`."""
        reached = max(fired_at, moment.watermark_us)
        return Due(self.fired(fired_at), self.fired(reached), self.over(reached), reached)

    def fired(self, watermark_us: int) -> int:
        """Windows that end up to here have fired under this watermark."""
        return max(floor_watermark(watermark_us, self.wait_us), self.written_us)

    def over(self, watermark_us: int) -> int:
        """Windows that end up to here are over under this watermark."""
        return max(floor_watermark(watermark_us, self.keep_us), self.left_us)


@attrs.define
class IntervalGate(Section):
    """Says when what had changed was last shown: processing time in µs, None before anything changed."""

    shown_at: int | None = None

    def opens(self, trigger: Trigger, moment: Moment, *, changed: bool) -> bool:
        """Return whether it is time for what changed; the clock starts when something has changed for the first time."""
        period_us = trigger._period_us
        if period_us is None or moment.now_us is None or not changed:
            return False
        if self.shown_at is None:
            self.shown_at = moment.now_us
        if moment.now_us - self.shown_at < period_us:
            return False
        self.shown_at = moment.now_us
        return True

    def wakeup(self, trigger: Trigger, *, changed: bool) -> int | None:
        """Return the processing time at which it opens, if anything waits for that."""
        if trigger._period_us is None or self.shown_at is None or not changed:
            return None
        return self.shown_at + trigger._period_us
