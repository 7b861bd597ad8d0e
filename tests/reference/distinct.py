"""Distinct-set sliding windows of KIP-450 (§3.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.reference.lateness import Horizon
from tests.reference.model import Seen, Watermark, Window

Span = tuple[int, int]


@dataclass(frozen=True)
class DistinctSet:
    """Both bounds inclusive, length ``size``; one window per distinct set of records.

    backward: a row at ``t`` brings ``[t - size, t]``, and ``[t + tick, t + tick + size]`` once a row lies in it.
    forward: one window ``[t, t + size]`` per distinct time.
    """

    size: int
    direction: Literal["backward", "forward"] = "backward"
    clamp_zero: bool = False
    tick: int = 1
    inclusive = True
    merging = False

    def own_span(self, t: int) -> Span:
        """The window a row brings by itself."""
        if self.direction == "forward":
            return (t, t + self.size)
        if self.clamp_zero and 0 <= t < self.size:
            return (0, self.size)
        return (t - self.size, t)

    def next_spans(self, t: int) -> list[Span]:
        """The window a row brings as soon as another row lies in it."""
        return [] if self.direction == "forward" else [(t + self.tick, t + self.tick + self.size)]

    def belongs_nowhere(self, row: Seen) -> bool:
        """Every row has a window of its own."""
        return False

    def late(self, held: Sequence[Seen], batch: Sequence[Seen], horizon: Horizon, watermark: Watermark) -> set[int]:
        """Late if the row's own window is closed and no open one, of this batch or before, contains it."""
        waiting = {s.number: s for s in batch}
        accepted = list(held)
        while True:
            spans = {span for s in accepted for span in [self.own_span(s.t), *self.next_spans(s.t)]}
            still_open = {(start, end) for start, end in spans if not horizon.closed(end, watermark)}
            taken = [s for s in waiting.values() if self._has_place(s.t, still_open, horizon, watermark)]
            if not taken:
                return set(waiting)
            for s in taken:
                accepted.append(waiting.pop(s.number))

    def _has_place(self, t: int, still_open: set[Span], horizon: Horizon, watermark: Watermark) -> bool:
        own_is_open = not horizon.closed(self.own_span(t)[1], watermark)
        return own_is_open or any(start <= t <= end for start, end in still_open)

    def windows(self, held: Sequence[Seen], horizon: Horizon) -> list[Window]:
        """A row counts in every window that contains it and was not closed when the row came."""
        spans = {self.own_span(s.t) for s in held if not horizon.closed(self.own_span(s.t)[1], s.under)}
        spans |= {span for s in held for span in self.next_spans(s.t)}
        actual = []
        for start, end in sorted(spans):
            rows = tuple(s for s in held if start <= s.t <= end and not horizon.closed(end, s.under))
            if rows:
                actual.append(Window(rows[0].row.key, start, end, rows))
        return actual
