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
    heard : int or None
        Processing time at which any source last spoke, or at which the query began, µs.
    advances_from : int or None
        From where the overall watermark goes on with the clock since then (SEMANTICS §10); None: from where it is.
    """

    spec: WatermarkSpec | MultiSourceWatermarkSpec
    reached: dict[str, int] = attrs.field(factory=dict)
    spoke: dict[str, int] = attrs.field(factory=dict)
    current: int = UNSET
    heard: int | None = None
    advances_from: int | None = None

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
                self._hear(name, now_us)

    def advance(self, watermark_us: int, source: str | None, now_us: int) -> None:
        """An explicit watermark: of one source, or of all. A source that is new registers, where rows of it would."""
        if source is not None and self.registered_lag_us is not None:
            self.reached.setdefault(source, UNSET)
        for name in self.reached if source is None else (source,):
            if name in self.reached:
                self.reached[name] = max(self.reached[name], watermark_us)
                self._hear(name, now_us)

    def _hear(self, name: str, now_us: int) -> None:
        self.spoke[name] = self.heard = now_us
        self.advances_from = None

    def settle(self, now_us: int) -> int:
        """The watermark now: the minimum over the sources that are not idle; it holds when all are, or follows the clock."""
        silent_us = self._silent_us(now_us)
        if self.advances_from is not None and silent_us is not None:
            self.current = max(self.current, min(self.advances_from + silent_us, MAX_TIME_US))
        active = [reached for name, reached in self.reached.items() if not self._idle(name, now_us)]
        if active and min(active) > self.current:
            self.current, self.advances_from = min(active), None
        if self.spec._by_clock and self.current != END_OF_TIME:
            self.current = max(self.current, now_us)
        if self.advances_from is None and silent_us is not None and self.current not in (UNSET, END_OF_TIME):
            self.advances_from = self.current - silent_us
        return self.current

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
        return [name for name in self.reached if self._idle(name, now_us)]

    def _idle(self, name: str, now_us: int) -> bool:
        timeout = self.idle_us
        if timeout is None or self.reached[name] == END_OF_TIME:
            return False
        return now_us - self.spoke.setdefault(name, now_us) > timeout

    def saved(self) -> dict[str, Any]:
        """The state as plain data."""
        plain = {"reached": self.reached, "spoke": self.spoke, "current": self.current}
        return plain if self.spec.idle_advance_us is None else {**plain, "heard": self.heard, "stood": self.advances_from}

    @classmethod
    def restored(cls, spec: WatermarkSpec | MultiSourceWatermarkSpec, saved: dict[str, Any]) -> WatermarkTracker:
        """The state from plain data: per-source maxima survive a restart."""
        quiet = saved.get("heard"), saved.get("stood")
        return cls(spec, dict(saved["reached"]), dict(saved["spoke"]), saved["current"], *quiet)
