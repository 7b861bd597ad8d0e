"""Determine which control files a query needs next to its sources, and who writes them."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from krishiv_py.plan.options.query import Batches
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.clock.controls import ControlFolder, ControlWriter
from krishiv_py.runtime.clock.heartbeats import Heartbeats, by_clock_us, period_us


@attrs.frozen
class ControlFiles:
    """Says which control files a query needs next to its sources.

    Attributes
    ----------
    period_us : int or None
        How often the clock is looked at; None where it plays no part.
    while_open : bool
        Whether that is so only while something is open.
    goes_on : bool
        Whether another run follows when the input there was is done.
    woken : bool
        Whether control files stand for batches without rows.
    """

    period_us: int | None
    while_open: bool
    goes_on: bool
    woken: bool

    @classmethod
    def of(cls, plan: PhysicalPlan, batches: Batches) -> ControlFiles:
        """Return those of a plan."""
        interval_us = min(filter(None, (period_us(s.spec) for s in plan.stages)), default=None)
        by_clock = by_clock_us([s.spec for s in plan.stages]) if plan.by_clock else None
        period = min(filter(None, (interval_us, by_clock)), default=None)
        goes_on = batches._goes_on and not plan.stateless  # nothing is open
        woken = plan.watermarked and not plan.stateless
        return cls(period, interval_us is None, goes_on or (woken and batches.kind == "available_now"), woken)

    @property
    def wanted(self) -> bool:
        """Return whether there are any."""
        return self.period_us is not None or self.goes_on or self.woken

    def heartbeats(
        self, controls: ControlFolder | None, now: Callable[[], int], any_open: Callable[[], bool]
    ) -> Heartbeats | None:
        """Return what writes them when the clock must be looked at."""
        if controls is None or self.period_us is None:
            return None
        return Heartbeats(controls, self.period_us, now, any_open if self.while_open else lambda: True)

    def writer(self, controls: ControlFolder | None, now: Callable[[], int]) -> ControlWriter | None:
        """Return what writes them when the watermark has moved."""
        return ControlWriter(controls, self.period_us is None, now) if controls is not None and self.woken else None
