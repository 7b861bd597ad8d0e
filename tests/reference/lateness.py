"""When a window is complete or closed, and the class of a row (§4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.reference.model import UNSET, Watermark

RowClass = Literal["on_time", "mildly_late", "very_late", "future"]


def classify(t: int, watermark: Watermark, allowed_lateness: int, tolerance: int) -> RowClass:
    """§4.1: the class of a row; while the watermark is unset every row is on time."""
    if watermark == UNSET:
        return "on_time"
    if t < watermark - allowed_lateness:
        return "very_late"
    if t < watermark:
        return "mildly_late"
    return "future" if t > watermark + tolerance else "on_time"


@dataclass(frozen=True)
class FutureRule:
    """§4.4: what becomes of a row far ahead."""

    tolerance: int
    action: Literal["warn", "drop", "side_output"] = "warn"
    reference: Literal["watermark", "clock"] = "watermark"

    def refuses(self, t: int, watermark: Watermark, now: int | None) -> bool:
        """Whether the row is kept out, so that it does not move the watermark either."""
        if self.action == "warn":
            return False
        if self.reference == "watermark":
            return watermark != UNSET and t > watermark + self.tolerance
        if now is None:
            raise ValueError("the clock as reference needs `now` on every batch")
        return t > now + self.tolerance


@dataclass(frozen=True)
class Horizon:
    """How a window's end is held against the watermark: half-open or inclusive, and the allowed lateness."""

    inclusive: bool
    allowed_lateness: int

    def complete(self, end: int, watermark: Watermark) -> bool:
        """§2.1: nothing more is expected for the window."""
        return end < watermark if self.inclusive else end <= watermark

    def closed(self, end: int, watermark: Watermark) -> bool:
        """§5.1: the window has left the state and refuses rows."""
        return self.complete(end + self.allowed_lateness, watermark)

    def too_old(self, t: int, watermark: Watermark) -> bool:
        """§4.2: late by the event rule."""
        return t < watermark - self.allowed_lateness
