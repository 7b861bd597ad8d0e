"""Session windows (§3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.reference.lateness import Horizon
from tests.reference.model import Seen, Watermark, Window


@dataclass(frozen=True)
class Session:
    """Each row opens ``[t, t + gap)``; spans of one key that meet are one session."""

    gap: int
    max_duration: int | None = None
    touch: Literal["separate", "merge"] = "separate"
    session_late: Literal["merged", "own"] = "merged"
    inclusive = False
    merging = True

    def gap_of(self, row: Seen) -> int:
        """The row's own gap, or the common one."""
        return self.gap if row.row.gap is None else row.row.gap

    def belongs_nowhere(self, row: Seen) -> bool:
        """A row with an empty span."""
        return self.gap_of(row) <= 0

    def late(self, held: Sequence[Seen], batch: Sequence[Seen], horizon: Horizon, watermark: Watermark) -> set[int]:
        """§4.2: late if the session the row would end up in, with its whole batch merged, is closed.

        Taking a refused row away can move a capped session, so look again until nothing changes.
        """
        if self.session_late == "own":
            return {s.number for s in batch if horizon.closed(s.t + self.gap_of(s), watermark)}
        fresh = {s.number for s in batch}
        late: set[int] = set()
        while True:
            tried = [*held, *(s for s in batch if s.number not in late)]
            shut = [w for w in self.windows(tried, horizon) if horizon.closed(w.end, watermark)]
            refused = {s.number for w in shut for s in w.rows if s.number in fresh}
            if not refused:
                return late
            late |= refused

    def windows(self, held: Sequence[Seen], horizon: Horizon) -> list[Window]:
        """Walk the rows in time order; a row joins while it is within reach and before the longest duration is up."""
        walks: list[tuple[list[Seen], int]] = []  # rows of a session, and the end its gaps reach
        for s in sorted(held, key=lambda s: (s.t, s.number)):
            end = s.t + self.gap_of(s)
            if walks and self._joins(s.t, *walks[-1]):
                rows, reach = walks[-1]
                walks[-1] = ([*rows, s], max(reach, end))  # a shorter gap never pulls the end back
            else:
                walks.append(([s], end))
        return [Window(rows[0].row.key, rows[0].t, self._cut(rows[0].t, reach), tuple(rows)) for rows, reach in walks]

    def _joins(self, t: int, rows: list[Seen], reach: int) -> bool:
        near = t <= reach if self.touch == "merge" else t < reach
        return near and (self.max_duration is None or t - rows[0].t < self.max_duration)

    def _cut(self, first: int, reach: int) -> int:
        return reach if self.max_duration is None else min(reach, first + self.max_duration)
