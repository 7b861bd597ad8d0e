"""The watermark of one or several sources (SEMANTICS §2), as a small state machine without a clock of its own."""

from __future__ import annotations

from typing import Any

import attrs

from krishiv_py.plan.durations import END_OF_TIME, MAX_TIME_US, UNSET
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, WatermarkSpec

ONLY = ""
"""Name of the source where there is one."""


@attrs.define
class WatermarkTracker:
    """Follows event times per source and says what the watermark is.

    Attributes
    ----------
    spec : WatermarkSpec or MultiSourceWatermarkSpec
        Lags, start, idle timeout.
    reached : dict
        Watermark of every source, µs; a declared source that has not spoken is ``UNSET``.
    spoke : dict
        Processing time at which every source last spoke, µs.
    current : int
        The overall watermark; never moves back.
    """

    spec: WatermarkSpec | MultiSourceWatermarkSpec
    reached: dict[str, int] = attrs.field(factory=dict)
    spoke: dict[str, int] = attrs.field(factory=dict)
    current: int = UNSET

    def __attrs_post_init__(self) -> None:
        self.current = max(self.current, self.spec.initial_us)
        for name in self.lags:
            self.reached.setdefault(name, UNSET)

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
        """The idle timeout."""
        return self.spec.idle_timeout_us if isinstance(self.spec, MultiSourceWatermarkSpec) else None

    def saw(self, maxima: dict[str, int], now_us: int) -> None:
        """Take the largest event time per source of one batch; late rows count like any other."""
        lags = self.lags
        for name, time_us in maxima.items():
            if name not in self.reached and self.registered_lag_us is not None:
                self.reached[name] = UNSET
            if name in self.reached and time_us != UNSET:
                lag_us = lags.get(name, self.registered_lag_us or 0)
                self.reached[name] = max(self.reached[name], max(time_us - lag_us, -MAX_TIME_US))
                self.spoke[name] = now_us

    def advance(self, watermark_us: int, source: str | None, now_us: int) -> None:
        """An explicit watermark: of one source, or of all."""
        for name in self.reached if source is None else (source,):
            if name in self.reached:
                self.reached[name] = max(self.reached[name], watermark_us)
                self.spoke[name] = now_us

    def settle(self, now_us: int) -> int:
        """The watermark now: the minimum over the sources that are not idle; it holds when all are."""
        active = [reached for name, reached in self.reached.items() if not self._idle(name, now_us)]
        if active:
            self.current = max(self.current, min(active))
        return self.current

    def idle(self, now_us: int) -> list[str]:
        """Sources left out of the minimum at the moment."""
        return [name for name in self.reached if self._idle(name, now_us)]

    def _idle(self, name: str, now_us: int) -> bool:
        timeout = self.idle_us
        if timeout is None or self.reached[name] == END_OF_TIME:
            return False
        return now_us - self.spoke.setdefault(name, now_us) > timeout

    def saved(self) -> dict[str, Any]:
        """The state as plain data."""
        return {"reached": self.reached, "spoke": self.spoke, "current": self.current}

    @classmethod
    def restored(cls, spec: WatermarkSpec | MultiSourceWatermarkSpec, saved: dict[str, Any]) -> WatermarkTracker:
        """The state from plain data: per-source maxima survive a restart."""
        return cls(spec, dict(saved["reached"]), dict(saved["spoke"]), saved["current"])
