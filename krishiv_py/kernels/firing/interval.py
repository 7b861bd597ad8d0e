"""The gate of triggers that go by the clock: what changed fires, or is asked about, when the time has come (SEMANTICS §5.3)."""

from __future__ import annotations

import attrs

from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.state.sections import Section
from krishiv_py.plan.options.triggers import Trigger


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
        """The processing time at which it opens, if anything waits for that."""
        if trigger._period_us is None or self.shown_at is None or not changed:
            return None
        return self.shown_at + trigger._period_us
