"""Watermark specifications (SEMANTICS §2)."""

from __future__ import annotations

import attrs

from krishiv_py.plan.durations import UNSET, Duration, TimePoint, show_instant, show_us, time_point_us, to_us


@attrs.frozen
class WatermarkSpec:
    """How the watermark of one source follows its event times: ``W = max(seen) - lag``.

    Attributes
    ----------
    lag_us : int
        How far rows may be out of order, in microseconds.
    initial_us : int
        The watermark before any row; ``UNSET`` (minus infinity) unless given.
    """

    lag_us: int
    initial_us: int = UNSET

    @classmethod
    def fixed_lag_ms(cls, lag_ms: int, *, initial: TimePoint | None = None) -> WatermarkSpec:
        """A fixed lag in milliseconds; `initial` starts the watermark at a point in time instead of unset."""
        return cls.fixed_lag(lag_ms, initial=initial)

    @classmethod
    def fixed_lag(cls, lag: Duration, *, initial: TimePoint | None = None) -> WatermarkSpec:
        """A fixed lag as any duration of SEMANTICS §1.1; 0 is legal."""
        lag_us = to_us(lag, "lag", allow_zero=True)
        return cls(lag_us, UNSET if initial is None else time_point_us(initial, "initial"))

    def describe(self) -> str:
        """One line for ``explain()``."""
        start = "" if self.initial_us == UNSET else f", from {show_instant(self.initial_us)}"
        return f"max(event time) - {show_us(self.lag_us)}{start}"
